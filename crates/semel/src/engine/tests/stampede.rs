//! Ten thousand concurrent callers.

use super::*;

const CROWD: usize = 10_000;

fn crowded(store: &Arc<impl Store>) -> EngineBuilder {
    over(store).waiter_caps(WaiterCaps { per_key: CROWD, per_scope: CROWD, in_all: 2 * CROWD }).wait(secs(30))
}

async fn crowd(engine: &Engine, effect: &Effect) -> Vec<tokio::task::JoinHandle<Run>> {
    let tasks = (0..CROWD).map(|_| effect.spawn(engine.once(key()))).collect();
    until("all wait", || engine.waiters() == CROWD).await;
    tasks
}

// One effect, all callers answered, and the store is asked once per interval, not once per caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stampede() {
    let store = faulty();
    let backstop = ms(100);
    let engine = build(crowded(&store).backstop(backstop));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    let from = instant();
    let waiters = crowd(&engine, &effect).await;
    effect.let_go();
    for waiter in waiters {
        assert_eq!(joined(waiter).await.unwrap().value, 1);
    }
    assert_eq!(joined(owner).await.unwrap().value, 1);
    assert_eq!(effect.runs(), 1);
    let intervals = (from.elapsed().as_millis() / backstop.as_millis()) as u64;
    // The owner; callers that came before there was a room; one per interval; the first leader and the last one.
    let asked = store.calls(StoreCall::Claim);
    assert!(asked <= 8 + intervals, "{asked} questions in {intervals} intervals");
    assert_eq!(engine.stats().count("replayed"), CROWD as u64);
}

// The deadlines of all callers pass one after the other. Each leaves without asking the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_deadline_of_a_crowd() {
    let store = faulty();
    let engine = build(crowded(&store).backstop(secs(1)));
    let owner = won(engine.once(key())).await;
    let effect = Effect::quick();
    let from = instant();
    let waiters: Vec<_> = (0..CROWD).map(|_| effect.spawn(engine.once(key()).wait(ms(700)))).collect();
    for waiter in waiters {
        assert!(matches!(joined(waiter).await, Err(RunError::InFlight { .. })));
    }
    let asked = store.calls(StoreCall::Claim);
    assert!(asked <= 10 + from.elapsed().as_secs(), "{asked} questions");
    assert_eq!((effect.runs(), engine.waiters()), (0, 0));
    owner.release().await;
}

// All callers leave: seats and watches are free, and the owner is not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_leaves() {
    let memory = Arc::new(MemoryStore::new());
    let engine = build(crowded(&memory));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    let waiters = crowd(&engine, &effect).await;
    assert!(format!("{memory:?}").contains("watched: 1"), "one watch for all: {memory:?}");
    for waiter in &waiters {
        waiter.abort();
    }
    until("the seats are free", || engine.waiters() == 0).await;
    until("the watch is gone", || format!("{memory:?}").contains("watched: 0")).await;
    effect.let_go();
    assert_eq!(joined(owner).await.unwrap().value, 1);
    assert!(effect.once(&engine).await.unwrap().replayed);
    assert_eq!(effect.runs(), 1);
}

// Ten thousand waiters for one key do not affect other keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_key_isolation() {
    let engine = build(crowded(&Arc::new(MemoryStore::new())));
    let (hot, cold) = (Effect::held(), Effect::quick());
    let owner = hot.start(&engine).await;
    let waiters = crowd(&engine, &hot).await;
    for number in 0..500 {
        let once = engine.once(Key::new("cold").value(number.to_string()));
        assert!(!soon(cold.run_as(once)).await.unwrap().replayed);
    }
    assert_eq!((engine.waiters(), cold.runs()), (CROWD, 500), "done while all of them still wait");
    hot.let_go();
    for waiter in waiters {
        joined(waiter).await.unwrap();
    }
    joined(owner).await.unwrap();
    assert_eq!(hot.runs(), 1);
}
