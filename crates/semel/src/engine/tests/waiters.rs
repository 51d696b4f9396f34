//! Callers that wait for another caller's effect.

use super::*;
use crate::testkit::fault::WakeUpDelivery;

/// An engine whose owner was cut off from the store: it neither renews nor finishes.
async fn dead_owner(memory: &Arc<MemoryStore>, mode: Mode, lease: Duration) -> (Engine, Claim) {
    let store = Arc::new(FaultStore::new(Arc::clone(memory)));
    let engine = build(over(&store).mode(mode).lease(lease));
    let claim = won(engine.once(key())).await;
    let _never_opened = store.partition();
    (engine, claim)
}

// One waiter takes over, the others keep waiting and get its outcome; in `marked` all learn of the doubt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owner_dies_with_waiters() {
    for mode in [Mode::Keyed, Mode::Rerun, Mode::Marked] {
        let memory = Arc::new(MemoryStore::new());
        let (_engine, _claim) = dead_owner(&memory, mode, ms(400)).await;
        let store = Arc::new(FaultStore::new(Arc::clone(&memory)));
        let engine = build(over(&store).mode(mode).lease(ms(400)));
        let effect = Effect::held();
        let waiters: Vec<_> = (0..20).map(|_| effect.spawn(engine.once(key()))).collect();
        if mode != Mode::Marked {
            until("one takes over", || effect.runs() == 1).await;
            assert_eq!(engine.waiters(), 19, "the others keep waiting");
            effect.let_go();
        }
        let mut first_runs = 0;
        for waiter in waiters {
            match joined(waiter).await {
                Ok(answer) if mode != Mode::Marked => {
                    assert_eq!(answer.value, 1);
                    first_runs += u32::from(!answer.replayed);
                }
                Err(RunError::InDoubt) if mode == Mode::Marked => {}
                other => panic!("{mode:?}: {other:?}"),
            }
        }
        assert_eq!((effect.runs(), first_runs), if mode == Mode::Marked { (0, 0) } else { (1, 1) });
        assert!(store.calls(StoreCall::Claim) < 20, "no herd: {} questions", store.calls(StoreCall::Claim));
    }
}

// Every notification is lost: the backstop finds out.
#[tokio::test]
async fn notify_lost() {
    let store = faulty();
    store.deliver(WakeUpDelivery::Lost);
    let engine = build(over(&store).backstop(ms(30)));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    let waiter = effect.spawn(engine.once(key()));
    until("it polls", || store.calls(StoreCall::Claim) >= 5).await;
    effect.let_go();
    assert!(joined(waiter).await.unwrap().replayed);
    joined(owner).await.unwrap();
}

// Notified, not polled: with a backstop longer than the test only a notification can answer.
#[tokio::test]
async fn a_waiter_is_pushed() {
    let store = faulty();
    let engine = build(over(&store).backstop(secs(3600)).wait(secs(60)));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    let waiters: Vec<_> = (0..3).map(|_| effect.spawn(engine.once(key()))).collect();
    until("all wait", || engine.waiters() == 3 && store.calls(StoreCall::Watch) == 1).await;
    effect.let_go();
    for waiter in waiters {
        assert!(joined(waiter).await.unwrap().replayed);
    }
    joined(owner).await.unwrap();
    assert_eq!(store.calls(StoreCall::Watch), 1, "they share one watch");
    assert_eq!(engine.stats().count("waited"), 3);
}

// A change while leaders change: the next one has the watch of the previous one.
#[tokio::test]
async fn a_push_between_two_leaders_is_not_missed() {
    let store = faulty();
    let engine = build(over(&store).backstop(secs(3600)).wait(secs(60)));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    let leader = effect.spawn(engine.once(key()));
    until("it leads", || store.calls(StoreCall::Claim) == 3).await;
    let next = effect.spawn(engine.once(key()));
    until("another waits", || engine.waiters() == 2).await;
    leader.abort();
    effect.let_go();
    assert!(joined(next).await.unwrap().replayed);
    joined(owner).await.unwrap();
}

// Never hangs: refused at the deadline, with a `retry_after`.
#[tokio::test]
async fn waiter_deadline() {
    let engine = build(Engine::builder(MemoryStore::new()).wait(ms(50)));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    let from = instant();
    let refused = soon(effect.once(&engine)).await.unwrap_err();
    assert!(from.elapsed() >= ms(50));
    let RunError::InFlight { retry_after } = refused else { panic!("{refused}") };
    assert!(retry_after > secs(20) && retry_after <= secs(30), "what is left of the lease: {retry_after:?}");
    assert!(refused.is_retryable());
    let at_once = effect.run_as(engine.once(key()).wait(ms(0))).await;
    assert!(matches!(at_once, Err(RunError::InFlight { .. })));
    let short = Terms { lease: ms(100), retention: ms(200), ..Terms::default() };
    let short = effect.run_as(engine.once(key()).terms(short)).await;
    assert!(matches!(short, Err(RunError::InFlight { retry_after }) if retry_after <= ms(200)), "{short:?}");
    effect.let_go();
    joined(owner).await.unwrap();
    assert_eq!(engine.waiters(), 0);
}

// The store stops answering while a caller waits.
#[tokio::test]
async fn waiter_deadline_on_a_store_that_hangs() {
    let store = faulty();
    let engine = build(over(&store).wait(ms(100)).backstop(ms(10)));
    let owner = won(engine.once(key())).await;
    let waiters: Vec<_> = (0..10).map(|_| Effect::quick().spawn(engine.once(key()))).collect();
    until("all wait", || engine.waiters() == 10).await;
    let cut = store.partition();
    for waiter in waiters {
        assert!(matches!(joined(waiter).await, Err(RunError::InFlight { .. })));
    }
    cut.open();
    owner.release().await;
    soon(engine.drain()).await;
    assert_eq!(
        phase(&engine, store.inner()).await,
        Phase::Vacant,
        "what the leaders asked for was given back"
    );
}

// An error ends the wait of the caller that asked; it gets the error, and still counts as a wait.
#[tokio::test]
async fn an_error_ends_the_leaders_wait_and_nobody_elses() {
    let store = faulty();
    let engine = build(over(&store).backstop(ms(20)));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    let waiters: Vec<_> = (0..3).map(|_| effect.spawn(engine.once(key()))).collect();
    until("all wait", || engine.waiters() == 3).await;
    store.script(StoreCall::Claim, When::Nth(1), InjectedFault::Refuse(crate::store::ErrorKind::Unavailable));
    until("one is told", || engine.waiters() == 2).await;
    assert_eq!(engine.stats().count("waited"), 1);
    effect.let_go();
    let mut failed = 0;
    for waiter in waiters {
        match joined(waiter).await {
            Ok(answer) => assert!(answer.replayed),
            Err(RunError::Store(_)) => failed += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(failed, 1);
    joined(owner).await.unwrap();
}

#[tokio::test]
async fn waiter_caps() {
    let caps = WaiterCaps { per_key: 2, per_scope: 3, in_all: 3 };
    let engine = build(Engine::builder(MemoryStore::new()).waiter_caps(caps));
    let (effect, other) = (Effect::held(), Effect::held());
    let other_key = || engine.once(Key::new("charge").value("other"));
    let owners = [effect.spawn(engine.once(key())), other.spawn(other_key())];
    until("both run", || effect.runs() + other.runs() == 2).await;
    let mut waiters = vec![effect.spawn(engine.once(key())), effect.spawn(engine.once(key()))];
    until("two wait", || engine.waiters() == 2).await;
    let third = soon(effect.once(&engine)).await;
    assert!(
        matches!(third, Err(RunError::TooManyWaiters { retry_after }) if retry_after >= secs(1)),
        "{third:?}"
    );
    waiters.push(other.spawn(other_key()));
    until("three wait", || engine.waiters() == 3).await;
    let fourth = soon(other.run_as(other_key())).await;
    assert!(matches!(fourth, Err(RunError::TooManyWaiters { .. })), "in all: {fourth:?}");
    assert_eq!(engine.stats().count("too_many_waiters"), 2);
    effect.let_go();
    other.let_go();
    for task in waiters.into_iter().chain(owners) {
        assert_eq!(joined(task).await.unwrap().value, 1);
    }
    assert_eq!(engine.waiters(), 0);
}

// One tenant cannot take every place.
#[tokio::test]
async fn waiter_caps_of_a_scope() {
    let caps = WaiterCaps { per_key: 10, per_scope: 2, in_all: 10 };
    let engine = build(Engine::builder(MemoryStore::new()).waiter_caps(caps));
    let effects = [Effect::held(), Effect::held(), Effect::held()];
    let call = |effect: usize| {
        let (tenant, value) = [("a", "1"), ("a", "2"), ("b", "1")][effect];
        engine.once(Key::new("charge").scope(tenant).value(value))
    };
    let mut tasks: Vec<_> = (0..3).map(|effect| effects[effect].spawn(call(effect))).collect();
    until("all run", || effects.iter().all(|effect| effect.runs() == 1)).await;
    tasks.extend([effects[0].spawn(call(0)), effects[1].spawn(call(1))]);
    until("two wait", || engine.waiters() == 2).await;
    for effect in [0, 1] {
        let refused = soon(effects[effect].run_as(call(effect))).await;
        assert!(matches!(refused, Err(RunError::TooManyWaiters { .. })), "{refused:?}");
    }
    tasks.push(effects[2].spawn(call(2)));
    until("the other tenant waits", || engine.waiters() == 3).await;
    effects.iter().for_each(Effect::let_go);
    for task in tasks {
        assert_eq!(joined(task).await.unwrap().value, 1);
    }
    assert!(engine.inner.flights.is_empty(), "every place is free again");
}

// A request from before a caller arrived does not answer it: the record may have been forgotten since.
#[tokio::test]
async fn an_answer_from_before_a_caller_came_is_not_given_to_it() {
    let store = faulty();
    let engine = build(over(&store).hot_cache(0, secs(1)));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    let old = effect.spawn(engine.once(key()));
    until("it leads", || store.calls(StoreCall::Claim) == 3).await;
    // The leader gets "done, 1", but late.
    let gate = FaultGate::closed();
    store.script(StoreCall::Claim, When::Nth(1), InjectedFault::HoldReply(gate.clone()));
    effect.let_go();
    joined(owner).await.unwrap();
    soon(gate.reached_by(1)).await;
    let id = engine.id(&key()).await.unwrap();
    assert!(matches!(engine.forget(id, Force::No).await.unwrap(), Ruling::Accepted { .. }));
    let new = effect.spawn(engine.once(key()));
    until("it waits in the same room", || engine.waiters() == 2).await;
    gate.open();
    assert_eq!(joined(old).await.unwrap().value, 1);
    let new = joined(new).await.unwrap();
    assert_eq!((new.value, new.replayed), (2, false), "forgotten is forgotten");
}

// The leader's thread is blocked. Other callers in the room, and later ones, are answered long before their
// deadlines.
#[tokio::test]
async fn a_leader_that_is_stuck_does_not_hold_the_others_up() {
    let store = faulty();
    let engine = build(over(&store).backstop(ms(20)).hot_cache(0, secs(1)).wait(secs(60)));
    let blocked =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    let leader = blocked.spawn({
        let (effect, once) = (effect.clone(), engine.once(key()));
        async move { effect.run_as(once).await }
    });
    until("it leads", || store.calls(StoreCall::Claim) >= 3).await;
    let (go_on, held) = std::sync::mpsc::channel::<()>();
    let (began, begun) = std::sync::mpsc::channel::<()>();
    drop(blocked.spawn(async move {
        began.send(()).unwrap();
        held.recv_timeout(2 * PATIENCE).unwrap();
    }));
    begun.recv_timeout(PATIENCE).unwrap();
    let waiters: Vec<_> = (0..10).map(|_| effect.spawn(engine.once(key()))).collect();
    until("all wait", || engine.waiters() == 11).await;
    effect.let_go();
    joined(owner).await.unwrap();
    for waiter in waiters {
        assert!(joined(waiter).await.unwrap().replayed);
    }
    assert_eq!(engine.waiters(), 1, "the stuck one");
    go_on.send(()).unwrap();
    assert!(joined(leader).await.unwrap().replayed);
    blocked.shutdown_background();
}
