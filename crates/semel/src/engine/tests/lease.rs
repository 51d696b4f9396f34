//! Leases, heartbeats, and owners that come back too late.

use std::sync::mpsc;

use super::*;
use crate::outcome::Outcome;
use crate::store::ErrorKind;

// Two engines on one store. The late one answers with the winner's value, never with its own.
#[tokio::test]
async fn zombie_publish() {
    for mode in [Mode::Keyed, Mode::Rerun] {
        let (clock, store) = clocked();
        let (slow, fast) = (build(over(&store).mode(mode)), build(over(&store).mode(mode)));
        let zombie = Effect::held();
        let late = zombie.start(&slow).await;
        clock.advance(secs(31));
        let winner: Run = fast.once(key()).run(async || Ok(77)).await;
        assert_eq!(winner.unwrap().value, 77);
        zombie.let_go();
        let late = joined(late).await.unwrap();
        assert_eq!((late.value, late.replayed), (77, true), "{mode:?}");
        assert_eq!(slow.stats().count("lost"), 1);
    }
}

// As above while the winner is still running: the late owner waits for it.
#[tokio::test]
async fn zombie_publish_before_the_winner_is_done() {
    let (clock, store) = clocked();
    let (slow, fast) = (build(over(&store).mode(Mode::Rerun)), build(over(&store).mode(Mode::Rerun)));
    let (zombie, winner) = (Effect::held(), Effect::held());
    winner.now();
    let late = zombie.start(&slow).await;
    clock.advance(secs(31));
    let first = winner.start(&fast).await;
    zombie.let_go();
    until("the late one was refused", || slow.stats().count("lost") == 1).await;
    winner.let_go();
    assert_eq!(joined(first).await.unwrap().value, 2);
    let late = joined(late).await.unwrap();
    assert_eq!((late.value, late.replayed), (2, true));
}

// The winner fails or hangs: the late owner is refused in time, and its own value is never given.
#[tokio::test]
async fn zombie_publish_without_a_winner() {
    let (clock, store) = clocked();
    let slow = build(over(&store).mode(Mode::Rerun).wait(ms(50)));
    let fast = build(over(&store).mode(Mode::Rerun));
    let zombie = Effect::held();
    let late = zombie.start(&slow).await;
    clock.advance(secs(31));
    let winner = won(fast.once(key())).await;
    zombie.let_go();
    assert!(matches!(joined(late).await, Err(RunError::InFlight { .. })));
    winner.release().await;
}

// In `marked` there is no takeover, so an owner may come back: it knows the result.
#[tokio::test]
async fn an_owner_in_doubt_that_comes_back_settles_it() {
    let (clock, store) = clocked();
    let engine = build(over(&store));
    let effect = Effect::held();
    let late = effect.start(&engine).await;
    clock.advance(secs(31));
    assert!(matches!(effect.once(&engine).await, Err(RunError::InDoubt)));
    effect.let_go();
    let late = joined(late).await.unwrap();
    assert_eq!((late.value, late.replayed, effect.runs()), (1, false, 1));
    assert!(effect.once(&engine).await.unwrap().replayed);
}

#[tokio::test]
async fn zombie_effect() {
    let (clock, store) = clocked();
    let (slow, fast) = (build(over(&store)), build(over(&store)));
    let zombie = won(slow.once(key()).begin_later()).await;
    clock.advance(secs(31));
    let winner = won(fast.once(key()).begin_later()).await;
    assert!(winner.attempt().fence() > zombie.attempt().fence(), "a resource can refuse the lower number");
    let begun = zombie.begin().await;
    assert!(matches!(begun, Err(NotBegun::Lost)), "{begun:?}");
    assert!(winner.begin().await.is_ok());
}

#[tokio::test]
async fn zombie_release() {
    let (clock, store) = clocked();
    let (slow, fast) = (build(over(&store).mode(Mode::Rerun)), build(over(&store).mode(Mode::Rerun)));
    let zombies = [won(slow.once(key())).await, {
        clock.advance(secs(31));
        won(slow.once(key())).await
    }];
    clock.advance(secs(31));
    let winner = won(fast.once(key())).await;
    let before = fast.get(&key()).await.unwrap();
    let [released, dropped] = zombies;
    released.release().await;
    drop(dropped);
    soon(slow.drain()).await;
    assert_eq!(fast.get(&key()).await.unwrap(), before, "somebody else's claim is untouched");
    assert_eq!(slow.stats().count("lost"), 2);
    winner.release().await;
}

// The effect runs much longer than its lease, and no other caller gets the claim.
#[tokio::test]
async fn a_lease_shorter_than_the_effect_is_renewed() {
    let store = faulty();
    let engine = build(over(&store).lease(ms(400)).wait(ms(0)));
    let other = build(over(&store).lease(ms(400)).wait(ms(0)));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    until("three leases went by", || store.calls(StoreCall::Renew) >= 9).await;
    assert!(matches!(effect.once(&other).await, Err(RunError::InFlight { .. })));
    effect.let_go();
    assert_eq!(joined(owner).await.unwrap().value, 1);
    assert_eq!(engine.stats().count("lost"), 0);
}

// A live claim cannot be taken over even a moment too early.
#[tokio::test]
async fn a_claim_stands_to_the_last_microsecond_of_its_lease() {
    let (clock, store) = clocked();
    let engine = build(over(&store).mode(Mode::Rerun).wait(ms(0)));
    let claim = won(engine.once(key())).await;
    clock.advance(secs(30) - Duration::from_micros(1));
    let early = engine.once(key()).claim().await.unwrap();
    assert!(matches!(early, Acquired::InFlight { retry_after } if retry_after == secs(1)), "{early:?}");
    clock.advance(Duration::from_micros(1));
    drop(won(engine.once(key())).await);
    claim.release().await;
}

// Every worker of the runtime is blocked for several leases. The heartbeat has its own thread.
#[test]
fn renewer_starved() {
    let store = faulty();
    let lease = ms(500);
    let engine = build(over(&store).lease(lease));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let (go_on, blocked) = mpsc::channel::<()>();
    let (began, begun) = mpsc::channel::<()>();
    let also_blocked = began.clone();
    let (wake_other, other_blocked) = mpsc::channel::<()>();
    runtime.spawn(async move {
        also_blocked.send(()).unwrap();
        other_blocked.recv_timeout(PATIENCE).unwrap();
    });
    let owner = runtime.spawn(engine.once(key()).run_with(async move |attempt| {
        began.send(()).unwrap();
        blocked.recv_timeout(PATIENCE).unwrap();
        Ok(attempt.time_left() > Duration::ZERO)
    }));
    for _ in 0..2 {
        begun.recv_timeout(PATIENCE).unwrap();
    }
    let deadline = instant() + PATIENCE;
    while store.calls(StoreCall::Renew) < 9 {
        assert!(instant() < deadline, "a blocked runtime must not stop the heartbeat");
        std::thread::yield_now();
    }
    let second = build(over(&store).lease(lease).wait(ms(0)));
    let busy: Run = second.once(key()).run_blocking(|_| Ok(2));
    assert!(matches!(busy, Err(RunError::InFlight { .. })), "{busy:?}");
    go_on.send(()).unwrap();
    wake_other.send(()).unwrap();
    assert!(runtime.block_on(joined(owner)).unwrap().value, "the owner knows that it still stands");
}

// The worker that must start the effect is blocked, and heartbeats fail. When it continues the lease has expired: the
// effect must not start under that claim.
#[test]
fn renewer_starved_before_the_effect() {
    let store = faulty();
    store.script(StoreCall::Renew, When::Always, InjectedFault::Refuse(ErrorKind::Unavailable));
    let engine = build(over(&store).lease(ms(200)).mode(Mode::Marked));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let (go_on, blocked) = mpsc::channel::<()>();
    let (began, begun) = mpsc::channel::<()>();
    runtime.spawn(async move {
        began.send(()).unwrap();
        blocked.recv_timeout(PATIENCE).unwrap();
    });
    begun.recv_timeout(PATIENCE).unwrap();
    let effect = Effect::quick();
    let answer = std::thread::scope(|scope| {
        let call = scope.spawn(|| runtime.block_on(effect.once(&engine)));
        let other = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        other.block_on(until_phase(&engine, store.inner(), Phase::InDoubt));
        go_on.send(()).unwrap();
        call.join().unwrap()
    });
    let stats = engine.stats();
    assert!(stats.count("self_fenced") >= 1, "{stats}");
    assert_eq!((stats.count("won") - stats.count("self_fenced"), effect.runs()), (1, 1));
    assert_eq!(answer.unwrap().value, 1, "and a new claim runs it at once: nothing was in doubt");
}

// `time_left` counts from before the claim was sent, so it ends before the store's lease.
#[tokio::test]
async fn renew_partition() {
    let store = faulty();
    let lease = ms(600);
    let engine = build(over(&store).lease(lease));
    let (gate, cut) = (FaultGate::closed(), FaultGate::closed());
    store.script(StoreCall::Claim, When::Nth(1), InjectedFault::HoldRequest(gate.clone()));
    store.script(StoreCall::Renew, When::Always, InjectedFault::HoldRequest(cut.clone()));
    let asking = tokio::spawn(engine.once(key()).claim());
    soon(gate.reached_by(1)).await;
    let sent_before = instant();
    until("some of the lease is spent on the way", || instant() - sent_before > lease / 6).await;
    gate.open();
    let Ok(Acquired::Won(claim)) = joined(asking).await else { panic!("not won") };
    let attempt = claim.attempt();
    assert!(attempt.time_left() + sent_before.elapsed() <= lease, "{:?}", attempt.time_left());
    until("no heartbeat gets through", || attempt.time_left() == Duration::ZERO).await;
    assert!(engine.stats().count("renew_failed") > 0, "an answer that never comes is noticed");
    let begun = claim.begin().await;
    assert!(matches!(begun, Err(NotBegun::Lost)), "no effect is started any more: {begun:?}");
    soon(engine.drain()).await;
    assert_eq!(phase(&engine, store.inner()).await, Phase::Vacant, "it was given back");
}

// One missing reply does not end a claim: the heartbeat asks again.
#[tokio::test]
async fn a_heartbeat_without_an_answer_is_repeated() {
    let store = faulty();
    let engine = build(over(&store).lease(ms(600)));
    let never = FaultGate::closed();
    store.script(StoreCall::Renew, When::Nth(1), InjectedFault::HoldRequest(never.clone()));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    until("more than a lease went by", || store.calls(StoreCall::Renew) >= 5).await;
    effect.let_go();
    assert_eq!(joined(owner).await.unwrap().value, 1);
    assert_eq!(engine.stats().count("lost"), 0);
}

// The machine pauses between claim and effect; then the claim is given back and claimed again.
#[tokio::test]
async fn frozen_between_claim_and_effect() {
    let store = faulty();
    store.script(StoreCall::Renew, When::Always, InjectedFault::Refuse(ErrorKind::Unavailable));
    let engine = build(over(&store).lease(ms(50)));
    let claim = won(engine.once(key())).await;
    until_phase(&engine, store.inner(), Phase::InDoubt).await;
    assert!(matches!(claim.begin().await, Err(NotBegun::Lost)));
    assert_eq!(phase(&engine, store.inner()).await, Phase::Vacant, "before anybody is told to claim again");
    assert_eq!(engine.stats().count("self_fenced"), 1);
}

// A store that is slower than the lease: refused with a reason after a few claims, not retried forever.
#[tokio::test]
async fn lease_too_short_for_every_claim() {
    let store = faulty();
    store.script(StoreCall::Claim, When::Always, InjectedFault::Delay(ms(13)));
    let engine = build(over(&store).lease(ms(14)));
    let effect = Effect::quick();
    let error = soon(effect.once(&engine)).await.unwrap_err();
    let RunError::Store(error) = error else { panic!("{error:?}") };
    assert!(error.is_retryable());
    assert_eq!(effect.runs(), 0);
}

#[tokio::test]
async fn lease_too_short() {
    for (call, lease, fits) in
        [(StoreCall::Claim, 100, false), (StoreCall::Release, 100, false), (StoreCall::Claim, 30_000, true)]
    {
        let store = faulty();
        store.script(call, When::Nth(2), InjectedFault::Delay(ms(40)));
        let engine = build(over(&store).lease(ms(lease)).in_flight_max(secs(60)).mode(Mode::Keyed));
        match engine.verify(3).await {
            Ok(slowest) => assert!(fits && slowest >= ms(40)),
            Err(VerifyError::LeaseTooShort { slowest, .. }) => assert!(!fits && slowest >= ms(40)),
            Err(other) => panic!("{other}"),
        }
        let all = crate::store::Scan { phase: None, after: None, limit: 100 };
        let left = store.inner().scan(all).await.unwrap().items;
        assert!(
            left.iter().all(|left| left.phase() == Phase::Vacant),
            "it leaves nothing that stands: {left:?}"
        );
    }
}

// A heartbeat that finds the claim finished by its own owner is not a loss.
#[tokio::test]
async fn a_heartbeat_after_the_last_word_is_not_a_loss() {
    for call in [StoreCall::Complete, StoreCall::Release] {
        let store = faulty();
        let engine = build(over(&store).lease(ms(300)));
        let reply = FaultGate::closed();
        store.script(call, When::Nth(1), InjectedFault::HoldReply(reply.clone()));
        let running = won(engine.once(key())).await.begin().await.unwrap();
        let last_word = async {
            match call {
                StoreCall::Complete => {
                    let kept = running.complete(&Arc::new(Outcome::new("json", "1")), None).await;
                    assert!(matches!(kept, Completed::Kept), "{kept:?}");
                }
                _ => running.release().await,
            }
        };
        let beats = async {
            soon(reply.reached_by(1)).await;
            let before = store.calls(StoreCall::Renew);
            until("it beats on", || store.calls(StoreCall::Renew) > before).await;
            reply.open();
        };
        tokio::join!(last_word, beats);
        soon(engine.drain()).await;
        assert_eq!(engine.stats().count("lost"), 0, "{call:?}");
    }
}

// Heartbeats renew even a lease of ten milliseconds, on a machine that is not overloaded; if they fail, the owner
// knows.
#[tokio::test]
async fn a_very_short_lease() {
    let store = faulty();
    let engine = build(over(&store).lease(ms(10)).mode(Mode::Rerun));
    let effect = Effect::held();
    let owner = effect.start(&engine).await;
    until("it beats", || store.calls(StoreCall::Renew) >= 5 || engine.stats().count("lost") > 0).await;
    effect.let_go();
    let answer = joined(owner).await;
    assert!(answer.is_ok_and(|answer| answer.value == 1), "nobody else wanted it, so it stands");
}
