use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::*;
use semel::store::MemoryStore;

mod faults;
mod operations;

const S: &[u8] = b"session-1";

/// What was applied, in order: the effect that must not happen twice.
#[derive(Default)]
struct Ledger(parking_lot::Mutex<Vec<u64>>);

impl Ledger {
    fn lines(&self) -> Vec<u64> {
        self.0.lock().clone()
    }

    async fn send(&self, receiver: &Receiver, sequence: u64) -> Received<()> {
        let apply = async || {
            self.0.lock().push(sequence);
            Ok::<_, Infallible>(())
        };
        receiver.receive(S, sequence, b"operation", apply).await.unwrap()
    }
}

fn strict(store: &Arc<MemoryStore>) -> Receiver {
    Receiver::over(Arc::clone(store) as _, Gaps::Strict).build().unwrap()
}

async fn fail(receiver: &Receiver, sequence: u64) -> ReceiveError<&'static str> {
    receiver.receive(S, sequence, b"operation", async || Err::<(), _>("no")).await.unwrap_err()
}

#[tokio::test]
async fn each_operation_is_applied_once_and_in_its_turn() {
    let receiver = strict(&Arc::default());
    let ledger = Ledger::default();
    assert!(matches!(ledger.send(&receiver, 2).await, Received::Gap { expected: 1, got: 2 }));
    assert!(matches!(ledger.send(&receiver, 1).await, Received::Applied(())));
    assert!(matches!(ledger.send(&receiver, 2).await, Received::Applied(())));
    for n in [1, 2] {
        let again = ledger.send(&receiver, n).await;
        assert!(matches!(again, Received::Duplicate(RefusedBy::Mark { mark: 2 })), "{again:?}");
    }
    assert_eq!(ledger.lines(), [1, 2]);
}

#[tokio::test]
async fn lenient_takes_gaps_and_refuses_what_it_skipped() {
    let receiver = Receiver::builder(MemoryStore::new(), Gaps::Lenient).build().unwrap();
    let ledger = Ledger::default();
    for n in [5, 9, 7, 10] {
        let _ = ledger.send(&receiver, n).await;
    }
    assert_eq!(ledger.lines(), [5, 9, 10]);
}

#[tokio::test]
async fn a_key_that_left_the_window_is_refused_by_the_mark() {
    let receiver = Receiver::builder(MemoryStore::new(), Gaps::Strict).window(3).build().unwrap();
    let ledger = Ledger::default();
    for n in 1..=10 {
        let _ = ledger.send(&receiver, n).await;
    }
    let key = WindowKey::derive(receiver.mark_id(S).as_bytes(), 1, b"operation");
    assert!(!receiver.window().contains(key), "it has left the window");
    assert!(matches!(ledger.send(&receiver, 1).await, Received::Duplicate(RefusedBy::Mark { mark: 10 })));
    assert_eq!(ledger.lines().len(), 10);
}

#[tokio::test]
async fn marks_survive_a_restart() {
    let store = Arc::default();
    let ledger = Ledger::default();
    for n in 1..=3 {
        let _ = ledger.send(&strict(&store), n).await; // a new process for every operation
    }
    let restarted = strict(&store);
    assert!(matches!(ledger.send(&restarted, 3).await, Received::Duplicate(RefusedBy::Mark { mark: 3 })));
    assert!(matches!(ledger.send(&restarted, 5).await, Received::Gap { expected: 4, got: 5 }));
    assert!(matches!(ledger.send(&restarted, 4).await, Received::Applied(())));
    assert_eq!(ledger.lines(), [1, 2, 3, 4]);
}

#[tokio::test]
async fn marks_survive_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let store = semel::store::EmbeddedStore::open(folder.path()).unwrap();
        Receiver::builder(store, Gaps::Strict).build().unwrap()
    };
    let ledger = Ledger::default();
    let receiver = start();
    for n in [1, 2] {
        assert!(matches!(ledger.send(&receiver, n).await, Received::Applied(())));
    }
    drop(receiver);
    let restarted = start();
    assert!(matches!(ledger.send(&restarted, 2).await, Received::Duplicate(RefusedBy::Mark { mark: 2 })));
    assert!(matches!(ledger.send(&restarted, 3).await, Received::Applied(())));
    assert_eq!(ledger.lines(), [1, 2, 3]);
}

#[tokio::test]
async fn a_failed_apply_takes_back_mark_and_entry() {
    let store = Arc::default();
    let receiver = strict(&store);
    let ledger = Ledger::default();
    let _ = ledger.send(&receiver, 1).await;
    assert!(matches!(fail(&receiver, 2).await, ReceiveError::Apply("no")));
    assert_eq!(receiver.window().len(), 1, "the entry of 2 is gone");
    assert_eq!(receiver.mark(S).await.unwrap(), Some(1));
    assert_eq!(store.read_mark(receiver.mark_id(S)).await.unwrap(), Some(1));
    assert!(matches!(ledger.send(&receiver, 2).await, Received::Applied(())), "the same may come again");
    assert_eq!(ledger.lines(), [1, 2]);
}

#[tokio::test]
async fn a_panic_or_a_dropped_caller_takes_back_too() {
    let receiver = Arc::new(strict(&Arc::default()));
    let panicking = Arc::clone(&receiver);
    let panicked = tokio::spawn(async move {
        let apply = async || -> Result<(), Infallible> { panic!("in the middle of an apply") };
        panicking.receive(S, 1, b"operation", apply).await.map(drop)
    });
    assert!(panicked.await.unwrap_err().is_panic());
    assert!(receiver.window().is_empty());

    let (started, dropped) = (Arc::new(Notify::new()), Arc::clone(&receiver));
    let begun = Arc::clone(&started);
    let call = tokio::spawn(async move {
        let apply = async || {
            begun.notify_one();
            std::future::pending::<Result<(), Infallible>>().await
        };
        dropped.receive(S, 1, b"operation", apply).await.map(drop)
    });
    started.notified().await;
    assert_eq!(receiver.window().len(), 1);
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert!(receiver.window().is_empty());
    let ledger = Ledger::default();
    assert!(matches!(ledger.send(&receiver, 1).await, Received::Applied(())));
}

#[tokio::test]
async fn idle_sessions_leave_memory_and_come_back_with_their_marks() {
    let receiver = Receiver::builder(MemoryStore::new(), Gaps::Strict).idle_sessions(160).build().unwrap();
    let count = AtomicU64::new(0);
    for round in 1..=2 {
        for n in 0..2_000_u32 {
            let apply = async || {
                count.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Infallible>(())
            };
            let session = n.to_le_bytes();
            let received = receiver.receive(&session, round, b"operation", apply).await.unwrap();
            assert!(matches!(received, Received::Applied(())));
            assert!(receiver.sessions.len() <= 160 + 2 * 16, "{} sessions", receiver.sessions.len());
        }
    }
    assert_eq!(count.load(Ordering::Relaxed), 4_000);
    let early = 7_u32.to_le_bytes();
    let again = receiver.receive(&early, 1, b"operation", async || Ok::<_, Infallible>(()));
    assert!(matches!(again.await.unwrap(), Received::Duplicate(RefusedBy::Mark { mark: 2 })));
}

#[tokio::test]
async fn a_joined_mark_is_read_after_a_restart_and_after_an_unclear_failure() {
    // The transaction raises the mark itself; once it commits but its answer is lost.
    let disk = Arc::new(MemoryStore::new());
    let ledger = Ledger::default();
    let commit = async |receiver: &Receiver, n: u64, answer: Result<(), &'static str>| {
        let apply = async |mark| {
            ledger.0.lock().push(n);
            disk.raise_mark(mark, n).await.unwrap();
            answer.map(Joined::Marked)
        };
        receiver.receive_joined(S, n, b"operation", apply).await
    };
    let receiver = strict(&disk);
    assert!(matches!(commit(&receiver, 1, Ok(())).await, Ok(Received::Applied(()))));
    assert!(matches!(commit(&receiver, 1, Ok(())).await, Ok(Received::Duplicate(_))));
    assert!(matches!(commit(&receiver, 2, Err("timeout")).await, Err(ReceiveError::Apply("timeout"))));
    let again = commit(&receiver, 2, Ok(())).await;
    assert!(matches!(again, Ok(Received::Duplicate(RefusedBy::Mark { mark: 2 }))), "{again:?}");
    let restarted = strict(&disk);
    assert!(matches!(commit(&restarted, 2, Ok(())).await, Ok(Received::Duplicate(_))));
    assert!(matches!(commit(&restarted, 3, Ok(())).await, Ok(Received::Applied(()))));
    assert_eq!(ledger.lines(), [1, 2, 3]);
}

#[tokio::test]
async fn an_apply_that_did_not_join_has_its_mark_raised_after_it() {
    let disk = Arc::default();
    let receiver = strict(&disk);
    let apply = async |_| Ok::<_, Infallible>(Joined::Unmarked(()));
    assert!(matches!(receiver.receive_joined(S, 1, b"o", apply).await.unwrap(), Received::Applied(())));
    assert_eq!(disk.read_mark(receiver.mark_id(S)).await.unwrap(), Some(1));
}

#[tokio::test]
async fn one_session_goes_one_at_a_time_and_others_do_not_wait() {
    let receiver = Receiver::builder(MemoryStore::new(), Gaps::Strict).idle_sessions(0).build();
    let receiver = Arc::new(receiver.unwrap());
    let (release, released) = oneshot::channel::<()>();
    let (entered, inside) = oneshot::channel();
    let slow = Arc::clone(&receiver);
    let first = tokio::spawn(async move {
        let apply = async || {
            entered.send(()).unwrap();
            released.await.unwrap();
            Ok::<_, Infallible>("first")
        };
        slow.receive(S, 1, b"operation", apply).await.unwrap()
    });
    inside.await.unwrap();
    for other in 0..=255_u8 {
        let other = receiver.receive(&[other], 1, b"operation", async || Ok::<_, Infallible>(())).await;
        assert!(matches!(other, Ok(Received::Applied(()))), "other sessions do not wait, nor push it out");
    }
    let queued = Arc::clone(&receiver);
    let second = tokio::spawn(async move {
        queued.receive(S, 1, b"operation", async || Ok::<_, Infallible>("second")).await.unwrap()
    });
    tokio::task::yield_now().await;
    assert!(!second.is_finished(), "the same operation waits to see what becomes of the first");
    release.send(()).unwrap();
    assert!(matches!(first.await.unwrap(), Received::Applied("first")));
    assert!(matches!(second.await.unwrap(), Received::Duplicate(_)));
}

#[tokio::test]
async fn old_numbers_are_refused_while_a_new_one_is_applied() {
    let receiver = strict(&Arc::default());
    let ledger = Ledger::default();
    let _ = ledger.send(&receiver, 1).await;
    let apply = async || Ok::<_, Infallible>(ledger.send(&receiver, 1).await);
    let outer = receiver.receive(S, 2, b"operation", apply);
    let outer = tokio::time::timeout(Duration::from_secs(10), outer).await.expect("1 does not wait for 2");
    let Ok(Received::Applied(inner)) = outer else { panic!("2 is new") };
    assert!(matches!(inner, Received::Duplicate(RefusedBy::Mark { mark: 1 })));
}

#[test]
fn blocking_callers_on_many_threads_apply_each_operation_once() {
    let receiver = strict(&Arc::default());
    let applied: Vec<AtomicUsize> = (0..=200).map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for n in 1..=200_u64 {
                    let apply = || {
                        applied[n as usize].fetch_add(1, Ordering::Relaxed);
                        Ok::<_, Infallible>(())
                    };
                    let received = receiver.receive_blocking(S, n, b"operation", apply).unwrap();
                    assert!(!matches!(received, Received::Gap { .. }), "{received:?}");
                }
            });
        }
    });
    assert!(applied[1..].iter().all(|count| count.load(Ordering::Relaxed) == 1));
}

#[tokio::test]
async fn reload_sees_what_another_process_applied() {
    let store = Arc::default();
    let (here, there) = (strict(&store), strict(&store));
    let ledger = Ledger::default();
    let _ = ledger.send(&here, 1).await;
    let _ = ledger.send(&there, 2).await;
    here.reload(S).await;
    assert!(matches!(ledger.send(&here, 2).await, Received::Duplicate(RefusedBy::Mark { mark: 2 })));
    assert_eq!(ledger.lines(), [1, 2]);
}

#[tokio::test]
async fn names_keep_receivers_of_one_store_apart() {
    let store: Arc<MemoryStore> = Arc::default();
    let named =
        |name: &str| Receiver::over(Arc::clone(&store) as _, Gaps::Strict).name(name).build().unwrap();
    let (orders, audit) = (named("orders"), named("audit"));
    let ledger = Ledger::default();
    let _ = ledger.send(&orders, 1).await;
    assert!(matches!(ledger.send(&audit, 1).await, Received::Applied(())));
    assert_ne!(named("ab").mark_id(b"c"), named("a").mark_id(b"bc"));
    assert_eq!(strict(&store).mark_id(S), MarkId::of_session(S));
}

#[test]
fn a_window_of_nothing_is_refused() {
    let refused = Receiver::builder(MemoryStore::new(), Gaps::Strict).window(0).build();
    assert!(refused.is_err_and(|error| error.to_string().contains("at least 1")));
}

#[test]
fn a_receive_can_be_spawned() {
    fn is_send<T: Send>(_: &T) {}
    let receiver = strict(&Arc::default());
    is_send(&receiver.receive(S, 1, b"operation", || async { Ok::<_, Infallible>(()) }));
}
