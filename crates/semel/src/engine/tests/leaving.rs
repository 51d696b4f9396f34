//! Dropped callers, and every way to end a claim: nothing is left behind.

use std::task::Poll;

use super::*;
use crate::outcome::Outcome;

// Dropped while the effect runs.
#[tokio::test]
async fn a_caller_that_leaves_mid_effect_changes_nothing() {
    let engine = build(Engine::builder(MemoryStore::new()));
    let effect = Effect::held();
    let caller = effect.start(&engine).await;
    caller.abort();
    assert!(soon(caller).await.unwrap_err().is_cancelled());
    assert_eq!(engine.in_flight(), 1, "the effect goes on");
    effect.let_go();
    soon(engine.drain()).await;
    let again = effect.once(&engine).await.unwrap();
    assert_eq!((again.value, again.replayed, effect.runs()), (1, true, 1));
}

// Dropped between effect and record.
#[tokio::test]
async fn a_caller_that_leaves_before_the_record_knows_changes_nothing() {
    let store = faulty();
    let engine = build(over(&store));
    let gate = FaultGate::closed();
    store.script(StoreCall::Complete, When::Nth(1), InjectedFault::HoldRequest(gate.clone()));
    let effect = Effect::quick();
    let caller = effect.spawn(engine.once(key()));
    soon(gate.reached_by(1)).await;
    caller.abort();
    gate.open();
    soon(engine.drain()).await;
    let again = effect.once(&engine).await.unwrap();
    assert_eq!((again.value, again.replayed, effect.runs()), (1, true, 1));
}

// A dropped claim is released, in every mode, although it carried the begin mark.
#[tokio::test]
async fn a_dropped_claim_is_released() {
    for mode in MODES {
        let store = Arc::new(MemoryStore::new());
        let engine = build(over(&store).mode(mode));
        drop(won(engine.once(key())).await);
        soon(engine.drain()).await;
        assert_eq!(
            phase(&engine, &store).await,
            if mode == Mode::Keyed { Phase::Bound } else { Phase::Vacant }
        );
        assert_eq!(engine.stats().count("released"), 1);
    }
}

// It is unknown how far a dropped effect got.
#[tokio::test]
async fn a_dropped_effect_is_abandoned() {
    for mode in MODES {
        let store = Arc::new(MemoryStore::new());
        let engine = build(over(&store).mode(mode));
        drop(won(engine.once(key())).await.begin().await.unwrap());
        soon(engine.drain()).await;
        assert_eq!(
            phase(&engine, &store).await,
            if mode == Mode::Marked { Phase::InDoubt } else { Phase::Lapsed }
        );
        assert_eq!(engine.stats().count("abandoned"), 1);
    }
}

// The last write of the last user of an engine still succeeds: its thread ends after it.
#[tokio::test]
async fn a_claim_that_outlives_its_engine_is_released_all_the_same() {
    let store = faulty();
    let engine = build(over(&store));
    let id = engine.id(&key()).await.unwrap();
    let claim = won(engine.once(key())).await;
    let gate = FaultGate::closed();
    store.script(StoreCall::Release, When::Nth(1), InjectedFault::HoldRequest(gate.clone()));
    drop(engine);
    drop(claim);
    soon(gate.reached_by(1)).await;
    gate.open();
    let memory = store.inner();
    let looking = build(over(memory));
    assert_eq!(looking.id(&key()).await.unwrap(), id);
    until_phase(&looking, memory, Phase::Vacant).await;
}

// One lost packet does not prevent a release.
#[tokio::test]
async fn a_release_from_the_background_is_repeated() {
    let store = faulty();
    let engine = build(over(&store));
    store.script(
        StoreCall::Release,
        When::First(2),
        InjectedFault::Refuse(crate::store::ErrorKind::Unavailable),
    );
    drop(won(engine.once(key())).await);
    soon(engine.drain()).await;
    assert_eq!(phase(&engine, store.inner()).await, Phase::Vacant);
    assert_eq!(store.calls(StoreCall::Release), 3);
}

// The effect's report that nothing happened is stored, although the store was unavailable for longer than a lease.
#[tokio::test]
async fn a_release_that_takes_longer_than_a_lease_leaves_no_doubt() {
    let store = faulty();
    let engine = build(over(&store).lease(ms(100)));
    store.script(
        StoreCall::Release,
        When::Always,
        InjectedFault::Refuse(crate::store::ErrorKind::Unavailable),
    );
    store.script(StoreCall::Renew, When::Always, InjectedFault::Refuse(crate::store::ErrorKind::Unavailable));
    let failed: Run = soon(engine.once(key()).run(async || Err(Failure::Failed("no".into())))).await;
    assert!(matches!(failed, Err(RunError::Failed(_))));
    until_phase(&engine, store.inner(), Phase::InDoubt).await;
    store.heal();
    until_phase(&engine, store.inner(), Phase::Vacant).await;
}

// Stopped at in_flight_max.
#[tokio::test]
async fn an_effect_that_never_ends_is_stopped() {
    for mode in [Mode::Marked, Mode::Keyed, Mode::Rerun] {
        let builder = Engine::builder(MemoryStore::new()).mode(mode);
        let engine = build(builder.lease(ms(50)).in_flight_max(ms(100)).wait(ms(0)));
        let effect = Effect::held();
        let stopped = soon(effect.once(&engine)).await;
        assert!(matches!(stopped, Err(RunError::TimedOut(limit)) if limit == ms(100)));
        assert_eq!(Arc::strong_count(&effect.gate), 1, "the effect is gone before anybody may run it again");
        let next = Effect::quick().once(&engine).await;
        match mode {
            Mode::Marked => assert!(matches!(next, Err(RunError::InDoubt))),
            _ => assert_eq!(next.unwrap().value, 1),
        }
    }
}

// The runtime shuts down during the effect, as at the end of main.
#[test]
fn a_runtime_that_shuts_down_mid_effect_leaves_doubt_and_no_claim() {
    let store = Arc::new(MemoryStore::new());
    let engine = build(over(&store));
    let effect = Effect::held();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let caller = runtime.block_on(effect.start(&engine));
    runtime.shutdown_timeout(PATIENCE);
    let other = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    other.block_on(async {
        assert!(soon(caller).await.unwrap_err().is_cancelled());
        soon(engine.drain()).await;
        assert_eq!(phase(&engine, &store).await, Phase::InDoubt);
    });
}

// The runtime shuts down while the outcome is written. It is known, so it is stored.
#[test]
fn a_runtime_that_shuts_down_mid_complete_loses_no_outcome() {
    let store = faulty();
    let engine = build(over(&store));
    let effect = Effect::quick();
    let gate = FaultGate::closed();
    store.script(StoreCall::Complete, When::Nth(1), InjectedFault::HoldRequest(gate.clone()));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    runtime.block_on(async {
        drop(effect.spawn(engine.once(key())));
        soon(gate.reached_by(1)).await;
    });
    runtime.shutdown_timeout(PATIENCE);
    let other = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    other.block_on(async {
        soon(engine.drain()).await;
        let again = effect.once(&engine).await.unwrap();
        assert_eq!((again.value, again.replayed, effect.runs()), (1, true, 1));
    });
}

// A runtime that has already ended cannot start the effect: nothing happened, and nothing is in doubt.
#[test]
fn an_effect_that_could_not_be_spawned_is_released() {
    let store = faulty();
    let engine = build(over(&store));
    let gate = FaultGate::closed();
    store.script(StoreCall::Claim, When::Nth(1), InjectedFault::HoldReply(gate.clone()));
    let doomed = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let effect = Effect::quick();
    let mut call = Box::pin(effect.once(&engine));
    // Polled once inside the runtime that it will spawn on, and to its end after that one has ended.
    doomed.block_on(async {
        assert!(std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await.is_pending());
    });
    drop(doomed);
    gate.open();
    let other = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    other.block_on(async {
        assert!(matches!(soon(call).await, Err(RunError::ShutDown)));
        soon(engine.drain()).await;
        assert_eq!((phase(&engine, store.inner()).await, effect.runs()), (Phase::Vacant, 0));
    });
}

// The background thread finishes a dropped completion, and a dropped release.
#[tokio::test]
async fn last_words_are_cancel_safe() {
    let store = faulty();
    let engine = build(over(&store));
    for (call, expected) in [
        (StoreCall::Complete, Phase::Done),
        (StoreCall::Release, Phase::Vacant),
        (StoreCall::Bind, Phase::Bound),
    ] {
        for hold in [InjectedFault::HoldRequest, InjectedFault::HoldReply] {
            let _ = store.inner().apply_now(engine.id(&key()).await.unwrap(), &Command::Forget(Force::Yes));
            let gate = FaultGate::closed();
            store.script(call, When::Nth(1), hold(gate.clone()));
            let running = won(engine.once(key())).await.begin().await.unwrap();
            let word: std::pin::Pin<Box<dyn Future<Output = ()>>> = match call {
                StoreCall::Complete => Box::pin(async move {
                    let outcome = Arc::new(Outcome::new("json", "1"));
                    let _ = running.complete(&outcome, None).await;
                }),
                StoreCall::Release => Box::pin(running.release()),
                _ => Box::pin(running.bind()),
            };
            tokio::select! {
                () = word => panic!("held"),
                () = gate.reached_by(1) => {}
            }
            soon(engine.drain()).await;
            assert_eq!(phase(&engine, store.inner()).await, expected, "{call:?}");
        }
    }
}

// Wherever a caller is dropped while it claims, the claim ends released, never in doubt, and no seat is leaked.
#[tokio::test]
async fn acquire_is_cancel_safe_at_every_step() {
    for call in [StoreCall::Secret, StoreCall::Claim, StoreCall::Begin] {
        for hold in [InjectedFault::HoldRequest, InjectedFault::HoldReply] {
            let store = faulty();
            let engine = build(over(&store));
            let gate = FaultGate::closed();
            store.script(call, When::Nth(1), hold(gate.clone()));
            let call = async {
                let claim = engine.once(key()).begin_later().claim().await;
                let Ok(Acquired::Won(claim)) = claim else { panic!("{claim:?}") };
                let _running = claim.begin().await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = call => unreachable!("it never ends"),
                () = gate.reached_by(1) => {}
            }
            gate.open();
            soon(engine.drain()).await;
            assert_eq!(phase(&engine, store.inner()).await, Phase::Vacant);
        }
    }
}

// As above if the claim carries the begin mark, in the waiting room, as a leader that is just asking.
#[tokio::test]
async fn a_leader_that_is_dropped_while_it_asks_leaves_no_claim() {
    for hold in [InjectedFault::HoldRequest, InjectedFault::HoldReply] {
        let store = faulty();
        let engine = build(over(&store));
        let owner = won(engine.once(key())).await;
        let asks = FaultGate::closed();
        let effect = Effect::quick();
        let leader = effect.spawn(engine.once(key()));
        until("it leads", || store.calls(StoreCall::Claim) == 3).await;
        store.script(StoreCall::Claim, When::Nth(1), hold(asks.clone()));
        owner.release().await;
        soon(asks.reached_by(1)).await;
        leader.abort();
        assert!(soon(leader).await.unwrap_err().is_cancelled());
        soon(engine.drain()).await;
        assert_eq!((engine.waiters(), effect.runs()), (0, 0));
        assert_eq!(phase(&engine, store.inner()).await, Phase::Vacant, "not in doubt: nothing started");
    }
}

#[tokio::test]
async fn drain_waits_for_the_last_word() {
    let store = faulty();
    let engine = build(over(&store));
    soon(engine.drain()).await;
    let gate = FaultGate::closed();
    store.script(StoreCall::Release, When::Nth(1), InjectedFault::HoldRequest(gate.clone()));
    drop(won(engine.once(key())).await);
    let mut drained = Box::pin(engine.drain());
    tokio::select! {
        biased;
        () = &mut drained => panic!("an exit now would leave the claim in doubt"),
        () = gate.reached_by(1) => {}
    }
    gate.open();
    soon(drained).await;
    assert_eq!((engine.in_flight(), phase(&engine, store.inner()).await), (0, Phase::Vacant));
}
