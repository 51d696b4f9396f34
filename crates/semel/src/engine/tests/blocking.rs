//! Callers that block, and unusual runtimes.

use super::*;

fn blocking(engine: &Engine, effect: &Effect) -> Run {
    engine.once(key()).run_blocking(|_| Ok(effect.now()))
}

#[test]
fn ten_threads_with_one_payload_run_the_function_once() {
    let engine = build(Engine::builder(MemoryStore::new()));
    let effect = Effect::quick();
    let together = std::sync::Barrier::new(10);
    let answers: Vec<Run> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..10)
            .map(|_| {
                scope.spawn(|| {
                    together.wait();
                    engine.once(key()).fingerprint("one payload").run_blocking(|_| {
                        // Long enough that the others come while it runs.
                        let deadline = instant() + ms(300);
                        while engine.waiters() < 9 && instant() < deadline {
                            std::thread::yield_now();
                        }
                        Ok(effect.now())
                    })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(effect.runs(), 1);
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.value == 1)));
    assert_eq!(
        answers.iter().filter(|answer| answer.as_ref().is_ok_and(|answer| !answer.replayed)).count(),
        1
    );
}

#[test]
fn blocking_works_without_any_runtime() {
    let engine = build(Engine::builder(MemoryStore::new()));
    let effect = Effect::quick();
    assert!(!blocking(&engine, &effect).unwrap().replayed);
    assert!(blocking(&engine, &effect).unwrap().replayed);
}

// A task's budget is refilled only between its polls. A blocking call inside one must not depend on it.
#[test]
fn blocking_works_inside_a_task_however_often() {
    let engine = build(Engine::builder(MemoryStore::new()).hot_cache(0, secs(1)).wait(ms(1)));
    let effect = Effect::quick();
    let calls = async move {
        for _ in 0..300 {
            let held: Run = engine.once(key()).run_blocking(|_| {
                let busy = blocking(&engine, &effect);
                assert!(matches!(busy, Err(RunError::InFlight { .. })), "{busy:?}");
                Err(Failure::Failed("on purpose".into()))
            });
            assert!(matches!(held, Err(RunError::Failed(_))));
        }
        effect.runs()
    };
    let (done, called) = std::sync::mpsc::channel();
    // On its own thread: one that waits forever cannot notice that it does.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let calls = runtime.spawn(calls);
        let _ = done.send(runtime.block_on(calls).unwrap());
    });
    assert_eq!(called.recv_timeout(PATIENCE), Ok(0));
}

#[test]
fn async_works_on_a_runtime_without_timers() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = faulty();
        let engine = build(over(&store).lease(ms(300)).wait(ms(100)));
        // A retried claim, a retried completion, a wait and its deadline: all of them need a timer.
        store.script(StoreCall::Claim, When::Nth(1), InjectedFault::LoseReply);
        store.script(StoreCall::Complete, When::Nth(1), InjectedFault::LoseReply);
        let effect = Effect::held();
        let owner = effect.spawn(engine.once(key()));
        while effect.runs() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(effect.once(&engine).await, Err(RunError::InFlight { .. })));
        effect.let_go();
        assert_eq!(owner.await.unwrap().unwrap().value, 1);
    });
}

#[test]
fn run_outside_of_a_runtime_says_what_to_do() {
    let engine = build(Engine::builder(MemoryStore::new()));
    let error = crate::block_on::block_on(Effect::quick().once(&engine)).unwrap_err();
    assert!(matches!(error, RunError::NoRuntime));
    assert!(error.to_string().contains("run_blocking"));
}

// An effect that calls itself waits for itself; it is refused when the wait ends, and nothing hangs.
#[tokio::test]
async fn an_effect_that_needs_its_own_key_is_refused_not_hung() {
    let engine = build(Engine::builder(MemoryStore::new()).wait(ms(50)));
    let inside = engine.clone();
    let answer: Run = soon(engine.once(key()).run(async move || {
        let inner = Effect::quick().once(&inside).await;
        assert!(matches!(inner, Err(RunError::InFlight { .. })));
        Ok(7)
    }))
    .await;
    assert_eq!(answer.unwrap().value, 7);
}

// A panic of the effect, for callers that block.
#[test]
fn a_blocking_effect_that_panics_is_in_doubt_and_its_thread_lives() {
    let engine = build(Engine::builder(MemoryStore::new()));
    let panicked: Run = engine.once(key()).run_blocking(|_| -> Result<u32, Failure> { panic!("on purpose") });
    assert!(matches!(panicked, Err(RunError::Panicked(why)) if why == "on purpose"));
    assert!(matches!(blocking(&engine, &Effect::quick()), Err(RunError::InDoubt)));
}
