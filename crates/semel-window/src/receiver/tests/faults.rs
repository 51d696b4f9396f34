//! What becomes of marks when the store fails.

use super::*;
use semel::store::ErrorKind;
use semel::testkit::fault::{FaultGate, FaultStore, InjectedFault, StoreCall, When};
use std::sync::atomic::AtomicBool;

/// A receiver over a store that can be made to fail.
fn shaky() -> (Arc<FaultStore<MemoryStore>>, Receiver) {
    let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new())));
    let receiver = Receiver::over(Arc::clone(&store) as _, Gaps::Strict).idle_sessions(0).build().unwrap();
    (store, receiver)
}

fn refuse(store: &FaultStore<MemoryStore>, call: StoreCall) {
    store.script(call, When::Always, InjectedFault::Refuse(ErrorKind::Unavailable));
}

/// Opens and ends 255 other sessions, which evicts idle ones from memory.
async fn crowd(receiver: &Receiver) {
    for other in 0..=255_u8 {
        let _ = receiver.mark(&[other]).await.unwrap();
    }
}

#[tokio::test]
async fn a_crash_between_apply_and_mark_applies_again_and_then_never() {
    // The mark cannot be raised, then the process is gone.
    let (store, receiver) = shaky();
    let ledger = Ledger::default();
    refuse(&store, StoreCall::RaiseMark);
    let applied = ledger.send(&receiver, 1).await;
    assert!(matches!(applied, Received::AppliedUnmarked { value: (), .. }), "{applied:?}");
    drop(receiver);
    let disk = store.inner();
    let restarted = strict(disk);
    assert!(matches!(ledger.send(&restarted, 1).await, Received::Applied(())));
    assert!(matches!(ledger.send(&restarted, 1).await, Received::Duplicate(_)));
    assert!(matches!(ledger.send(&strict(disk), 1).await, Received::Duplicate(_)));
    assert_eq!(ledger.lines(), [1, 1], "once more after the crash, not more often");
}

#[tokio::test]
async fn an_owed_mark_is_paid_before_anything_else() {
    let (store, receiver) = shaky();
    let ledger = Ledger::default();
    refuse(&store, StoreCall::RaiseMark);
    let _ = ledger.send(&receiver, 1).await;
    for n in [1, 2] {
        let refused = receiver.receive(S, n, b"operation", async || Ok::<_, Infallible>(())).await;
        assert!(matches!(refused, Err(ReceiveError::Store(_))), "neither applied nor called a duplicate");
    }
    crowd(&receiver).await;
    store.heal();
    assert!(matches!(ledger.send(&receiver, 1).await, Received::Duplicate(RefusedBy::Mark { mark: 1 })));
    assert_eq!(store.inner().read_mark(receiver.mark_id(S)).await.unwrap(), Some(1));
    assert!(matches!(ledger.send(&receiver, 2).await, Received::Applied(())));
    assert_eq!(ledger.lines(), [1, 2]);
}

#[tokio::test]
async fn a_mark_that_was_kept_unheard_is_raised_again_without_harm() {
    // The store did it, but its answer was lost.
    let (store, receiver) = shaky();
    let ledger = Ledger::default();
    store.script(StoreCall::RaiseMark, When::Nth(1), InjectedFault::LoseReply);
    let applied = ledger.send(&receiver, 1).await;
    assert!(matches!(applied, Received::AppliedUnmarked { .. }), "{applied:?}");
    assert!(matches!(ledger.send(&receiver, 1).await, Received::Duplicate(RefusedBy::Mark { mark: 1 })));
    assert!(matches!(ledger.send(&receiver, 2).await, Received::Applied(())));
    assert_eq!(ledger.lines(), [1, 2]);
}

#[tokio::test]
async fn a_caller_dropped_while_the_mark_is_raised_leaves_it_owed() {
    let (store, receiver) = shaky();
    let ledger = Ledger::default();
    let gate = FaultGate::closed();
    store.script(StoreCall::RaiseMark, When::Nth(1), InjectedFault::HoldRequest(gate.clone()));
    tokio::select! {
        _ = ledger.send(&receiver, 1) => panic!("the gate is closed"),
        () = gate.reached_by(1) => {}
    }
    assert_eq!(store.inner().read_mark(receiver.mark_id(S)).await.unwrap(), None);
    assert!(matches!(ledger.send(&receiver, 1).await, Received::Duplicate(RefusedBy::Mark { mark: 1 })));
    assert_eq!(ledger.lines(), [1]);
}

#[tokio::test]
async fn a_store_that_cannot_be_read_lets_nothing_through() {
    let (store, receiver) = shaky();
    refuse(&store, StoreCall::ReadMark);
    let applied = AtomicBool::new(false);
    let apply = async || {
        applied.store(true, Ordering::SeqCst);
        Ok::<_, Infallible>(())
    };
    let refused = receiver.receive(S, 1, b"operation", apply).await;
    assert!(matches!(refused, Err(ReceiveError::Store(_))));
    assert!(!applied.load(Ordering::SeqCst));
    assert!(receiver.window().is_empty());
}

#[tokio::test]
async fn the_window_covers_for_a_store_that_lost_its_marks() {
    // The session leaves memory, the store forgets; what this process applied is still refused.
    let (_store, receiver) = shaky();
    let ledger = Ledger::default();
    // An apply function that says it committed the mark, and did not: the store never had it.
    for n in [1, 2] {
        let apply = async |_| {
            ledger.0.lock().push(n);
            Ok::<_, Infallible>(Joined::Marked(()))
        };
        let _ = receiver.receive_joined(S, n, b"operation", apply).await.unwrap();
    }
    crowd(&receiver).await;
    assert_eq!(receiver.mark(S).await.unwrap(), None, "the mark is lost");
    assert!(matches!(ledger.send(&receiver, 1).await, Received::Duplicate(RefusedBy::Window)));
    assert!(matches!(ledger.send(&receiver, 2).await, Received::Duplicate(RefusedBy::Window)));
    assert!(matches!(ledger.send(&receiver, 3).await, Received::Applied(())), "and the session goes on");
    assert_eq!(ledger.lines(), [1, 2, 3]);
}
