//! The fault-injecting store: a store like any other until told otherwise, and then it fails as told.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::Outcome;
use semel::record::{Begin, Command, NewClaim, Owner, Phase, Ruling, Terms, Win};
use semel::store::{ErrorKind, MemoryStore, Store};
use semel::testkit::contract::Context;
use semel::testkit::fault::{FaultStore, InjectedFault, StoreCall, WakeUpDelivery, When};
use semel::time::ManualClock;
use tokio::time::timeout;

async fn fresh() -> Context {
    let clock = ManualClock::default();
    let store = MemoryStore::with_clock(clock.clone());
    Context::new(Arc::new(FaultStore::new(Arc::new(store)))).clock(clock)
}

semel::contract_tests!(fresh);

const SOON: Duration = Duration::from_secs(10);
const ID: KeyId = KeyId::from_bytes([7; 16]);

fn store() -> Arc<FaultStore<MemoryStore>> {
    Arc::new(FaultStore::new(Arc::new(MemoryStore::new())))
}

fn claim() -> Command {
    Command::Claim(NewClaim {
        owner: Owner::random(),
        fingerprint: Fingerprint::from_bytes([1; 32]),
        terms: Terms::default().into(),
        begin: Begin::WithClaim,
        hint: Hint::default(),
    })
}

fn complete(win: Win) -> Command {
    Command::Complete {
        grant: win.grant,
        fingerprint: Fingerprint::from_bytes([1; 32]),
        outcome: Arc::new(Outcome::new("text", "done")),
        retention: None,
    }
}

async fn phase(store: &FaultStore<MemoryStore>) -> Phase {
    store
        .inner()
        .get(ID)
        .await
        .expect("memory does not fail")
        .map_or(Phase::Vacant, |snapshot| snapshot.phase())
}

fn won(ruling: Ruling) -> Win {
    match ruling {
        Ruling::Won(win) => win,
        other => panic!("expected a win, got {other:?}"),
    }
}

// claim_reply_lost, publish_reply_lost: what was executed without a reply is known when it is repeated.
#[tokio::test]
async fn a_lost_reply_is_executed_and_can_be_repeated() {
    let store = store();
    store.script(StoreCall::Claim, When::Nth(1), InjectedFault::LoseReply);
    store.script(StoreCall::Complete, When::First(2), InjectedFault::LoseReply);
    let claim = claim();
    let error = store.apply(ID, claim.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ambiguous);
    assert_eq!(phase(&store).await, Phase::Begun, "it was executed");
    let win = won(store.apply(ID, claim).await.unwrap());
    for _ in 0..2 {
        assert_eq!(store.apply(ID, complete(win)).await.unwrap_err().kind(), ErrorKind::Ambiguous);
        assert_eq!(phase(&store).await, Phase::Done);
    }
    assert!(matches!(store.apply(ID, complete(win)).await.unwrap(), Ruling::Accepted { .. }));
    assert_eq!((store.calls(StoreCall::Claim), store.calls(StoreCall::Complete)), (2, 3));
    assert_eq!((store.all_calls(), store.calls(StoreCall::Get)), (5, 0));
    store.reset_calls();
    assert_eq!(store.all_calls(), 0);
}

#[tokio::test]
async fn a_refused_call_is_not_executed() {
    let store = store();
    store.script(StoreCall::Claim, When::Nth(2), InjectedFault::Refuse(ErrorKind::Unavailable));
    won(store.apply(KeyId::from_bytes([1; 16]), claim()).await.unwrap());
    assert_eq!(store.apply(ID, claim()).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(phase(&store).await, Phase::Vacant);
    won(store.apply(ID, claim()).await.unwrap());
}

// renew_partition: what a cut network looks like from above.
#[tokio::test]
async fn a_partition_holds_calls_until_it_is_healed() {
    let store = store();
    let gate = store.partition();
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.apply(ID, claim()).await.unwrap() })
        })
        .collect();
    timeout(SOON, gate.reached_by(3)).await.unwrap();
    assert_eq!((gate.waiting(), phase(&store).await), (3, Phase::Vacant));
    calls[0].abort();
    store.heal();
    won(store.apply(KeyId::from_bytes([1; 16]), claim()).await.unwrap());
    gate.open();
    let mut wins = 0;
    for call in calls {
        match timeout(SOON, call).await.unwrap() {
            Ok(ruling) => wins += usize::from(matches!(ruling, Ruling::Won(_))),
            Err(error) => assert!(error.is_cancelled()),
        }
    }
    assert_eq!((wins, gate.waiting()), (1, 0));
}

#[tokio::test]
async fn a_held_reply_was_executed() {
    let store = store();
    let gate = semel::testkit::fault::FaultGate::closed();
    store.script(StoreCall::Claim, When::Always, InjectedFault::HoldReply(gate.clone()));
    let call = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.apply(ID, claim()).await.unwrap() }
    });
    timeout(SOON, gate.reached_by(1)).await.unwrap();
    assert_eq!(phase(&store).await, Phase::Begun);
    gate.open();
    won(timeout(SOON, call).await.unwrap().unwrap());
}

// notify_lost: the change happens, nobody is woken.
#[tokio::test(start_paused = true)]
async fn lost_wakeups_never_come() {
    let store = store();
    let mut hears = store.watch(ID);
    store.deliver(WakeUpDelivery::Lost);
    let mut deaf = store.watch(ID);
    let win = won(store.apply(ID, claim()).await.unwrap());
    assert!(matches!(store.apply(ID, complete(win)).await.unwrap(), Ruling::Accepted { .. }));
    timeout(SOON, hears.changed()).await.expect("a watch made before still hears");
    timeout(SOON, deaf.changed()).await.expect_err("a watch made while wake-ups are lost hears nothing");
    assert_eq!(store.calls(StoreCall::Watch), 2);
}

#[tokio::test(start_paused = true)]
async fn a_delay_takes_its_time() {
    let store = store();
    store.script(StoreCall::Get, When::Nth(1), InjectedFault::Delay(Duration::from_secs(5)));
    let start = tokio::time::Instant::now();
    store.get(ID).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    store.get(ID).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn hooks_are_called_around_the_call() {
    let store = store();
    let record_there = Arc::new(AtomicUsize::new(0));
    for (weight, make) in [(1, false), (10, true)] {
        let (inner, there) = (Arc::clone(store.inner()), Arc::clone(&record_there));
        let hook = move || {
            // The memory store answers without waiting.
            let mut get = inner.get(ID);
            let waker = std::task::Waker::noop();
            if let std::task::Poll::Ready(Ok(Some(_))) =
                get.as_mut().poll(&mut std::task::Context::from_waker(waker))
            {
                there.fetch_add(weight, Ordering::SeqCst);
            }
        };
        let fault = if make { InjectedFault::after(hook) } else { InjectedFault::before(hook) };
        store.script(StoreCall::Claim, When::Nth(1), fault);
    }
    won(store.apply(ID, claim()).await.unwrap());
    assert_eq!(record_there.load(Ordering::SeqCst), 10, "nothing before the claim, a record after it");
}
