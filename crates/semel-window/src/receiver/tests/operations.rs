//! Operations with a shipped key, and operations without a sequence number.

use super::*;
use semel::store::ErrorKind;
use semel::testkit::fault::{FaultStore, InjectedFault, StoreCall, When};

const KEY: u128 = 7;

impl Ledger {
    async fn send_key(&self, receiver: &Receiver, sequence: u64, key: u128) -> Received<()> {
        let apply = async || {
            self.0.lock().push(sequence);
            Ok::<_, Infallible>(())
        };
        receiver.receive(S, sequence, WindowKey::from(key), apply).await.unwrap()
    }

    /// Sends an operation without a number, which the ledger notes as 0.
    async fn send_unnumbered<'a>(
        &self,
        receiver: &Receiver,
        session: &[u8],
        operation: impl Into<Operation<'a>>,
    ) -> Received<()> {
        let apply = async || {
            self.0.lock().push(0);
            Ok::<_, Infallible>(())
        };
        receiver.receive_unnumbered(session, operation, apply).await.unwrap()
    }
}

#[tokio::test]
async fn a_shipped_key_decides_instead_of_the_bytes() {
    let receiver = strict(&Arc::default());
    let ledger = Ledger::default();
    assert!(matches!(ledger.send_key(&receiver, 1, KEY).await, Received::Applied(())));
    assert!(matches!(
        ledger.send_key(&receiver, 1, KEY).await,
        Received::Duplicate(RefusedBy::Mark { mark: 1 })
    ));
    let renumbered = ledger.send_key(&receiver, 2, KEY).await;
    assert!(matches!(renumbered, Received::Duplicate(RefusedBy::Window)), "{renumbered:?}");
    assert_eq!(receiver.mark(S).await.unwrap(), Some(2), "so that the session goes on");
    assert!(matches!(ledger.send_key(&receiver, 4, 8).await, Received::Gap { expected: 3, got: 4 }));
    assert!(matches!(ledger.send_key(&receiver, 3, 8).await, Received::Applied(())));
    assert!(matches!(ledger.send(&receiver, 4).await, Received::Applied(())), "keys and bytes may mix");
    assert_eq!(ledger.lines(), [1, 3, 4]);
}

#[tokio::test]
async fn an_unnumbered_operation_is_applied_once_and_moves_no_mark() {
    let store = Arc::default();
    let receiver = strict(&store);
    let ledger = Ledger::default();
    let _ = ledger.send(&receiver, 1).await;
    for operation in [Operation::from(b"heartbeat"), WindowKey::from(KEY).into()] {
        assert!(matches!(ledger.send_unnumbered(&receiver, S, operation).await, Received::Applied(())));
        let again = ledger.send_unnumbered(&receiver, S, operation).await;
        assert!(matches!(again, Received::Duplicate(RefusedBy::Window)), "{again:?}");
        assert_eq!(receiver.mark(S).await.unwrap(), Some(1));
    }
    assert!(matches!(ledger.send(&receiver, 2).await, Received::Applied(())), "2 is still the next number");
    assert_eq!(store.read_mark(receiver.mark_id(S)).await.unwrap(), Some(2));
    let numbered = ledger.send_key(&receiver, 3, KEY).await;
    assert!(matches!(numbered, Received::Duplicate(RefusedBy::Window)), "applied without its number");
    assert_eq!(ledger.lines(), [1, 0, 0, 2]);
}

#[tokio::test]
async fn a_failed_unnumbered_operation_leaves_the_window() {
    let receiver = strict(&Arc::default());
    let failed = receiver.receive_unnumbered(S, b"operation", async || Err::<(), _>("no")).await;
    assert!(matches!(failed, Err(ReceiveError::Apply("no"))));
    assert!(receiver.window().is_empty());
    let ledger = Ledger::default();
    assert!(matches!(ledger.send_unnumbered(&receiver, S, b"operation").await, Received::Applied(())));
}

#[tokio::test]
async fn an_unnumbered_operation_is_new_once_the_window_has_forgotten_it() {
    let receiver = Receiver::builder(MemoryStore::new(), Gaps::Strict).window(2).build().unwrap();
    let ledger = Ledger::default();
    for operation in ["a", "b", "c", "a"] {
        assert!(matches!(ledger.send_unnumbered(&receiver, S, operation).await, Received::Applied(())));
    }
}

#[tokio::test]
async fn an_unnumbered_operation_needs_no_store() {
    let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new())));
    for call in [StoreCall::ReadMark, StoreCall::RaiseMark] {
        store.script(call, When::Always, InjectedFault::Refuse(ErrorKind::Unavailable));
    }
    let receiver = Receiver::over(store as _, Gaps::Strict).build().unwrap();
    let ledger = Ledger::default();
    assert!(matches!(ledger.send_unnumbered(&receiver, S, b"operation").await, Received::Applied(())));
}

#[tokio::test]
async fn equal_keys_of_two_sessions_are_two_operations() {
    // A session must not be able to make the operations of another one look like duplicates.
    let receiver = strict(&Arc::default());
    let ledger = Ledger::default();
    let key = WindowKey::from(KEY);
    for session in [b"a", b"b"] {
        assert!(matches!(ledger.send_unnumbered(&receiver, session, key).await, Received::Applied(())));
    }
    // Nor do the bytes of a key stand for the key.
    assert!(matches!(ledger.send_unnumbered(&receiver, b"a", &key.to_bytes()).await, Received::Applied(())));
}

#[tokio::test]
async fn the_same_unnumbered_operation_waits_for_the_first() {
    let receiver = Arc::new(strict(&Arc::default()));
    let (release, released) = oneshot::channel::<()>();
    let (entered, inside) = oneshot::channel();
    let slow = Arc::clone(&receiver);
    let first = tokio::spawn(async move {
        let apply = async || {
            entered.send(()).unwrap();
            released.await.unwrap();
            Err::<(), _>("no")
        };
        slow.receive_unnumbered(S, b"operation", apply).await.map(drop)
    });
    inside.await.unwrap();
    let ledger = Ledger::default();
    let second = ledger.send_unnumbered(&receiver, S, b"operation");
    let (second, ()) = tokio::join!(second, async { release.send(()).unwrap() });
    assert!(first.await.unwrap().is_err());
    assert!(
        matches!(second, Received::Applied(())),
        "the first was not applied, so the second is: {second:?}"
    );
}

#[test]
fn an_operation_does_not_show_its_bytes() {
    assert_eq!(format!("{:?}", Operation::from("secret")), "Bytes(6 bytes)");
}
