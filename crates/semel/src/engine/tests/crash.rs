//! Crash points that one process can show: lost replies, panics, failures, takeovers.

use super::*;
use crate::outcome::Outcome;
use crate::store::ErrorKind;

#[tokio::test]
async fn claim_reply_lost() {
    let store = faulty();
    let engine = build(over(&store));
    store.script(StoreCall::Claim, When::First(3), InjectedFault::LoseReply);
    let effect = Effect::quick();
    let answer = soon(effect.once(&engine)).await.unwrap();
    assert_eq!((answer.value, answer.replayed), (1, false));
    assert_eq!(store.calls(StoreCall::Claim), 4, "the same owner asked until it was told");
    let record = engine.get(&key()).await.unwrap().unwrap().record;
    assert_eq!(record.attempt, 1, "it knew itself and was not a competitor of its own");
}

// The claim was executed, and then the store became unavailable. Nothing started, so nothing is in doubt.
#[tokio::test]
async fn claim_reply_lost_for_good() {
    let store = faulty();
    let engine = build(over(&store));
    store.script(StoreCall::Claim, When::First(u64::from(u32::MAX)), InjectedFault::LoseReply);
    let effect = Effect::quick();
    let error = soon(effect.once(&engine)).await.unwrap_err();
    assert!(matches!(&error, RunError::Store(error) if error.kind() == ErrorKind::Ambiguous));
    assert_eq!(phase(&engine, store.inner()).await, Phase::Begun, "executed, and nobody heard of it");
    store.heal();
    until_phase(&engine, store.inner(), Phase::Vacant).await;
    assert_eq!(effect.once(&engine).await.unwrap().value, 1);
}

// As above, and the store was unavailable for longer than the lease. The doubt is this caller's own, and is resolved.
#[tokio::test]
async fn claim_reply_lost_for_longer_than_the_lease() {
    for mode in MODES {
        let store = faulty();
        let engine = build(over(&store).mode(mode).lease(ms(50)));
        store.script(StoreCall::Claim, When::Nth(1), InjectedFault::LoseReply);
        for number in 2..1_000 {
            store.script(StoreCall::Claim, When::Nth(number), InjectedFault::Refuse(ErrorKind::Unavailable));
        }
        let effect = Effect::quick();
        assert!(matches!(soon(effect.once(&engine)).await, Err(RunError::Store(_))));
        let lapsed = if mode == Mode::Marked { Phase::InDoubt } else { Phase::Lapsed };
        until_phase(&engine, store.inner(), lapsed).await;
        store.heal();
        // The store fails again while the engine looks up the claim that it gives back.
        store.script(StoreCall::Get, When::First(2), InjectedFault::Refuse(ErrorKind::Unavailable));
        soon(engine.drain()).await;
        let free = if mode == Mode::Keyed { Phase::Bound } else { Phase::Vacant };
        assert_eq!(phase(&engine, store.inner()).await, free);
        assert_eq!(effect.once(&engine).await.unwrap().value, 1);
    }
}

// The result of the first try is unknown, the second one certainly fails: the first may still be valid.
#[tokio::test]
async fn claim_unknown_then_refused() {
    let store = faulty();
    let engine = build(over(&store));
    store.script(StoreCall::Claim, When::Nth(1), InjectedFault::LoseReply);
    store.script(StoreCall::Claim, When::Nth(2), InjectedFault::Refuse(ErrorKind::Unavailable));
    let error = soon(Effect::quick().once(&engine)).await.unwrap_err();
    assert!(matches!(&error, RunError::Store(error) if error.kind() == ErrorKind::Unavailable));
    until_phase(&engine, store.inner(), Phase::Vacant).await;
    assert_eq!(engine.stats().count("released"), 1);
}

#[tokio::test]
async fn a_claim_that_was_certainly_refused_is_not_given_back() {
    let store = faulty();
    let engine = build(over(&store));
    store.script(StoreCall::Claim, When::Nth(1), InjectedFault::Refuse(ErrorKind::Unavailable));
    assert!(soon(Effect::quick().once(&engine)).await.unwrap_err().is_retryable());
    assert_eq!((store.calls(StoreCall::Claim), engine.in_flight()), (1, 0));
}

// An operator forgets by force between two tries of one owner: that owner cannot be used again, but the caller
// continues.
#[tokio::test]
async fn claim_forgotten_between_two_tries() {
    let store = faulty();
    let engine = build(over(&store));
    let id = engine.id(&key()).await.unwrap();
    let below = Arc::clone(store.inner());
    store.script(
        StoreCall::Claim,
        When::Nth(1),
        InjectedFault::after(move || {
            let _ = below.apply_now(id, &Command::Forget(Force::Yes));
        }),
    );
    store.script(StoreCall::Claim, When::Nth(1), InjectedFault::LoseReply);
    assert_eq!(soon(Effect::quick().once(&engine)).await.unwrap().value, 1);
}

#[tokio::test]
async fn publish_reply_lost() {
    let store = faulty();
    let engine = build(over(&store));
    store.script(StoreCall::Complete, When::Nth(1), InjectedFault::LoseReply);
    let effect = Effect::quick();
    let first = soon(effect.once(&engine)).await.unwrap();
    assert_eq!((first.value, first.replayed, first.stored), (1, false, true));
    assert_eq!(engine.stats().count("complete_retried"), 1);
    assert!(effect.once(&engine).await.unwrap().replayed);
}

// A missing reply counts as lost: the request is repeated while the lease is valid.
#[tokio::test]
async fn replies_that_never_come() {
    let store = faulty();
    let engine = build(over(&store).lease(ms(600)));
    let never = FaultGate::closed();
    for call in [StoreCall::Claim, StoreCall::Complete] {
        store.script(call, When::Nth(1), InjectedFault::HoldReply(never.clone()));
    }
    let answer = soon(Effect::quick().once(&engine)).await.unwrap();
    assert_eq!((answer.value, answer.stored), (1, true));
}

// Retried for a lease, then reported; once the store is available again the outcome is stored.
#[tokio::test]
async fn an_outcome_that_cannot_be_written_is_given_to_its_caller_and_said() {
    let store = faulty();
    let engine = build(over(&store).lease(ms(200)));
    store.script(StoreCall::Complete, When::Always, InjectedFault::Refuse(ErrorKind::Unavailable));
    let effect = Effect::quick();
    let first = soon(effect.once(&engine)).await.unwrap();
    assert_eq!((first.value, first.replayed, first.stored), (1, false, false));
    let stats = engine.stats();
    assert!(stats.count("complete_retried") > 1 && stats.count("complete_failed") == 1, "{stats}");
    store.heal();
    until_phase(&engine, store.inner(), Phase::Done).await;
    let again = effect.once(&engine).await.unwrap();
    assert_eq!((again.value, again.replayed, effect.runs()), (1, true, 1));
}

// A store that does not recover by itself. The key is in doubt immediately, not at the end of the lease.
#[tokio::test]
async fn an_outcome_that_never_lands_leaves_doubt() {
    let store = faulty();
    let engine = build(over(&store));
    store.script(StoreCall::Complete, When::Always, InjectedFault::Refuse(ErrorKind::Poisoned));
    let effect = Effect::quick();
    assert!(!soon(effect.once(&engine)).await.unwrap().stored);
    until_phase(&engine, store.inner(), Phase::InDoubt).await;
    assert!(matches!(effect.once(&engine).await, Err(RunError::InDoubt)));
    assert_eq!(effect.runs(), 1);
}

// In all modes the process survives, and all waiters are answered.
#[tokio::test]
async fn handler_panic() {
    for mode in MODES {
        let engine = build(Engine::builder(MemoryStore::new()).mode(mode));
        let held = Effect::held();
        let owner = tokio::spawn({
            let (once, held) = (engine.once(key()), held.clone());
            once.run(async move || -> Result<u32, Failure> {
                let _ = held.run().await;
                panic!("on purpose")
            })
        });
        until("the effect runs", || held.runs() == 1).await;
        let next = Effect::quick();
        let waiter = next.spawn(engine.once(key()));
        until("one waits", || engine.waiters() == 1).await;
        held.let_go();
        assert!(matches!(joined(owner).await, Err(RunError::Panicked(why)) if why == "on purpose"));
        match (mode, joined(waiter).await) {
            (Mode::Marked, Err(RunError::InDoubt)) => assert_eq!(next.runs(), 0),
            (Mode::Keyed | Mode::Rerun, Ok(answer)) => {
                assert!((answer.value, answer.replayed) == (1, false));
            }
            (mode, other) => panic!("{mode:?}: {other:?}"),
        }
        assert_eq!(engine.stats().count("panicked"), 1);
    }
}

#[tokio::test]
async fn error_before_effect() {
    for mode in MODES {
        let engine = build(Engine::builder(MemoryStore::new()).mode(mode));
        let asked = |amount: u32| engine.once(key()).fingerprint(&amount);
        let failed: Run = asked(1).run(async || Err(Failure::Failed("no route".into()))).await;
        assert!(failed.is_err_and(|error| error.is_retryable()));
        let effect = Effect::quick();
        let other = effect.run_as(asked(2)).await;
        match mode {
            Mode::Keyed => assert!(matches!(other, Err(RunError::Conflict)), "stays bound to its payload"),
            _ => assert_eq!(other.unwrap().value, 1, "free for any payload"),
        }
    }
}

#[tokio::test]
async fn error_that_says_nobody_knows() {
    for mode in MODES {
        let engine = build(Engine::builder(MemoryStore::new()).mode(mode));
        let cut: Run = engine.once(key()).run(async || Err(Failure::Unknown("cut".into()))).await;
        assert!(matches!(cut, Err(RunError::Unknown(_))));
        let next = Effect::quick().once(&engine).await;
        match mode {
            Mode::Marked => assert!(matches!(next, Err(RunError::InDoubt))),
            _ => assert_eq!(next.unwrap().value, 1),
        }
    }
}

// Two owners are lost one after the other; the third one's outcome is valid for all.
#[tokio::test]
async fn double_crash_takeover() {
    for mode in [Mode::Keyed, Mode::Rerun] {
        let (clock, memory) = clocked();
        let outcome = |text: &str| Arc::new(Outcome::new("json", text));
        let mut lost = Vec::new();
        let mut fence = Fence::default();
        for number in 1..=2 {
            let store = Arc::new(FaultStore::new(Arc::clone(&memory)));
            let engine = build(over(&store).mode(mode));
            let running = won(engine.once(key())).await.begin().await.unwrap();
            assert_eq!(running.attempt().number(), number);
            assert!(running.attempt().fence() > fence, "a fence never goes back");
            fence = running.attempt().fence();
            clock.advance(secs(31));
            lost.push(running);
        }
        let engine = build(over(&memory).mode(mode));
        let third = won(engine.once(key())).await.begin().await.unwrap();
        assert!((third.attempt().number(), third.attempt().fence() > fence) == (3, true));
        assert!(matches!(third.complete(&outcome("3"), None).await, Completed::Kept));
        for running in lost {
            let late = running.complete(&outcome("own"), None).await;
            assert!(matches!(late, Completed::Superseded(winner) if winner == outcome("3")), "{mode:?}");
        }
    }
}
