//! Many callers, little space, a slow disk.

use std::sync::atomic::Ordering;
use std::sync::mpsc;

use tokio::task::JoinSet;

use super::*;
use crate::outage::{ServerStatus, servers};
use crate::store::{ErrorKind, MarkId, MarkStore as _, Scan};

/// Blocks the writer inside a transaction until it is released.
struct Hold {
    release: mpsc::Sender<()>,
    held: JoinSet<Result<(), Error>>,
}

impl Hold {
    async fn on(store: &Arc<EmbeddedStore>) -> Self {
        let (release, released) = mpsc::channel::<()>();
        let (entered, is_in) = tokio::sync::oneshot::channel();
        let mut held = JoinSet::new();
        let store = Arc::clone(store);
        held.spawn(async move {
            store
                .write(move |_| {
                    let _ = entered.send(());
                    // Also when the test has ended and dropped the sender.
                    let _ = released.recv();
                    Ok(())
                })
                .await
        });
        is_in.await.unwrap();
        Self { release, held }
    }

    async fn end(mut self) {
        drop(self.release);
        while let Some(done) = self.held.join_next().await {
            done.unwrap().unwrap();
        }
    }
}

async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the condition comes true in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_claims_share_one_sync() {
    let place = Place::new();
    let store = Arc::new(place.open());
    let hold = Hold::on(&store).await;
    let before = store.shared.commits.load(Ordering::Relaxed);
    let mut calls = JoinSet::new();
    for number in 0..100 {
        let store = Arc::clone(&store);
        calls.spawn(async move { store.apply(id(number), claim()).await });
    }
    until(|| store.shared.queue.len() == 100).await;
    hold.end().await;
    while let Some(call) = calls.join_next().await {
        let _ = won(call.unwrap().unwrap());
    }
    let commits = store.shared.commits.load(Ordering::Relaxed) - before;
    assert_eq!(commits, 2, "the held one, and one for all hundred");
}

// N claims of one key in one batch have one winner.
#[tokio::test(flavor = "multi_thread")]
async fn one_key_many_times_in_one_batch() {
    let place = Place::new();
    let store = Arc::new(place.open());
    let hold = Hold::on(&store).await;
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let store = Arc::clone(&store);
        calls.spawn(async move { store.apply(id(1), claim()).await });
    }
    until(|| store.shared.queue.len() == 50).await;
    hold.end().await;
    let rulings: Vec<_> = calls.join_all().await.into_iter().map(Result::unwrap).collect();
    let wins = rulings.iter().filter(|ruling| matches!(ruling, Ruling::Won(_))).count();
    let busy = rulings.iter().filter(|ruling| matches!(ruling, Ruling::Busy { .. })).count();
    assert_eq!((wins, busy), (1, 49));
}

#[tokio::test(flavor = "multi_thread")]
async fn replays_and_refusals_do_not_wait_for_the_writer() {
    let place = Place::new();
    let store = Arc::new(place.open());
    finish(&store, id(1), "done").await;
    let _ = won(store.apply(id(2), claim()).await.unwrap());
    let hold = Hold::on(&store).await;
    let reads = async {
        let _ = replayed(store.apply(id(1), claim()).await.unwrap());
        assert_eq!(store.apply(id(1), claim_as(Owner::random(), 2)).await.unwrap(), Ruling::Conflict);
        assert!(matches!(store.apply(id(2), claim()).await.unwrap(), Ruling::Busy { .. }));
        assert!(store.get(id(2)).await.unwrap().is_some());
        assert_eq!(store.scan(Scan { phase: None, after: None, limit: 9 }).await.unwrap().items.len(), 2);
    };
    tokio::time::timeout(Duration::from_secs(20), reads).await.expect("nothing waits for the writer");
    hold.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_and_recovers() {
    let place = Place::new();
    let store = Arc::new(place.builder().queue_limit(1).open().unwrap());
    let hold = Hold::on(&store).await;
    let waiting = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.apply(id(1), claim()).await })
    };
    until(|| store.shared.queue.len() == 1).await;
    let error = store.apply(id(2), claim()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    hold.end().await;
    let _ = won(waiting.await.unwrap().unwrap());
    let _ = won(store.apply(id(2), claim()).await.unwrap());
}

// A dropped call does no harm.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_is_executed_or_not_and_hurts_nobody() {
    let place = Place::new();
    let store = Arc::new(place.open());
    let hold = Hold::on(&store).await;
    let owner = Owner::random();
    let dropped = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.apply(id(1), claim_as(owner, 1)).await })
    };
    until(|| store.shared.queue.len() == 1).await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    hold.end().await;
    let _ = won(store.apply(id(1), claim_as(owner, 1)).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_store_executes_what_waits() {
    let place = Place::new();
    let store = place.open();
    for number in 0..20 {
        // Sent, and nobody waits for the answer.
        let mut call = store.apply(id(number), claim());
        assert!(
            std::future::poll_fn(|context| std::task::Poll::Ready(call.as_mut().poll(context)))
                .await
                .is_pending()
        );
    }
    drop(store);
    let store = place.open();
    for number in 0..20 {
        assert!(store.get(id(number)).await.unwrap().is_some());
    }
}

/// A caller's own transaction that gives up, or has a mistake, is not an outage of the disk.
#[tokio::test]
async fn a_failed_transaction_of_a_caller_is_no_outage() {
    let place = Place::new();
    let store = place.open();
    let gives_up = |_: &rusqlite::Transaction<'_>| Err::<(), _>(rusqlite::Error::QueryReturnedNoRows);
    let mistake =
        |transaction: &rusqlite::Transaction<'_>| transaction.execute_batch("SELECT * FROM nowhere");
    let reads = store.read(|connection| connection.execute_batch("SELECT * FROM nowhere"));
    for error in
        [store.transact(gives_up).await, store.transact(mistake).await, reads].map(Result::unwrap_err)
    {
        assert!(!error.is_logged() && error.to_string().contains("the transaction failed"), "{error}");
    }
}

/// As `disk_full`, with a limit that SQLite enforces: no space for new pages.
#[tokio::test(flavor = "multi_thread")]
async fn disk_full_of_pages() {
    let place = Place::new();
    let store = Arc::new(place.open());
    finish(&store, id(1), "done").await;
    let limit_pages = |limit: u32| {
        store.write(move |writing| {
            let sql = format!("PRAGMA max_page_count = {limit}");
            writing.transaction().execute_batch(&sql).map_err(|error| writing.explain(&error.into()))
        })
    };
    limit_pages(1).await.unwrap();
    // A batch in which some fit and some do not: those that fit are stored.
    let grant = won(store.apply(id(2), claim()).await.unwrap());
    let hold = Hold::on(&store).await;
    let mut calls = JoinSet::new();
    for (number, size) in [(2, 100_000), (3, 0), (4, 0)] {
        let caller = Arc::clone(&store);
        calls.spawn(async move {
            match size {
                0 => (number, caller.apply(id(number), claim()).await),
                _ => (number, caller.apply(id(number), complete(grant, &"x".repeat(size))).await),
            }
        });
        until(|| store.shared.queue.len() >= usize::try_from(number - 1).unwrap()).await;
    }
    hold.end().await;
    for (number, answer) in calls.join_all().await {
        match number {
            2 => {
                let error = answer.unwrap_err();
                assert_eq!((error.kind(), error.is_logged()), (ErrorKind::Full, true), "{error}");
            }
            _ => drop(won(answer.unwrap())),
        }
    }
    let _ = replayed(store.apply(id(1), claim()).await.unwrap());
    limit_pages(1_000_000).await.unwrap();
    assert_eq!((outage(&store).is_available, outage(&store).outages), (false, 1), "one outage");
    let again = store.apply(id(2), complete(grant, &"x".repeat(100_000))).await.unwrap();
    assert!(matches!(again, Ruling::Accepted { .. }));
    for number in 10.. {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let _ = won(store.apply(id(number), claim()).await.unwrap());
        if outage(&store).is_available {
            break;
        }
    }
    assert_eq!(outage(&store).outages, 1);
}

/// The state of the disk, as the log and the metrics tell it.
fn outage(store: &EmbeddedStore) -> ServerStatus {
    let mut servers = servers().into_iter();
    servers.find(|server| server.name == store.to_string()).expect("it is in use")
}

fn length(place: &Place, name: &str) -> u64 {
    std::fs::metadata(place.path().join(name)).unwrap().len()
}

const PAGE: u64 = 4096 + 24;

#[tokio::test]
async fn the_log_stays_bounded_under_load() {
    let place = Place::new();
    let store = place.builder().log_pages(1_000_000, 50).open().unwrap();
    for number in 0..300 {
        finish(&store, id(number), "done").await;
    }
    // It is checked every eighth transaction.
    let pages = length(&place, "semel.db-wal") / PAGE;
    assert!(pages < 150, "{pages} pages after 600 transactions");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_moved_when_nobody_comes() {
    let place = Place::new();
    let store = place.builder().log_pages(10, 1_000_000).open().unwrap();
    let before = length(&place, "semel.db");
    for number in 0..200 {
        finish(&store, id(number), "done").await;
    }
    until(|| length(&place, "semel.db") > before).await;
    let used = length(&place, "semel.db-wal");
    finish(&store, id(1000), "done").await;
    assert_eq!(length(&place, "semel.db-wal"), used, "it is used again from its start");
}

// The space of swept records is reused and returned.
#[tokio::test]
async fn a_sweep_gives_room_back() {
    let place = Place::new();
    let store = place.open();
    let pages = async || -> i64 {
        let count = store.transact(|sql| sql.query_row("PRAGMA page_count", [], |row| row.get(0)));
        count.await.unwrap()
    };
    let empty = pages().await;
    for number in 0..300 {
        finish(&store, id(number), &"x".repeat(4000)).await;
    }
    let full = pages().await;
    assert!(full > empty + 300);
    place.clock.advance(DAY * 3);
    let mut rounds = 0;
    while pages().await > empty + 80 {
        let _ = store.sweep(100).await.unwrap();
        rounds += 1;
        assert!(rounds < 30, "{} pages are left of {full}", pages().await);
    }
}

// A failed sync, as far as one process can show it: semel-proof breaks real syncs.
#[tokio::test]
async fn a_poisoned_store_acknowledges_nothing() {
    let place = Place::new();
    let store = place.open();
    finish(&store, id(1), "done").await;
    let failed =
        rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC), None);
    store.shared.poison(store.shared.faults.poisoned(&failed));
    let errors = [
        store.apply(id(1), claim()).await.err(),
        store.apply(id(2), claim()).await.err(),
        store.get(id(1)).await.err(),
        store.sweep(1).await.err(),
        store.raise_mark(MarkId::of_session(b"s"), 1).await.err(),
    ];
    for error in errors {
        let error = error.expect("nothing is answered");
        assert_eq!(error.kind(), ErrorKind::Poisoned);
        assert!(error.to_string().contains("restarted"), "{error}");
        assert!(!error.is_retryable() && error.is_logged());
    }
    assert_eq!((outage(&store).is_available, outage(&store).outages), (false, 1));
    drop(store);
    let store = place.open();
    let _ = replayed(store.apply(id(1), claim()).await.unwrap());
}

/// A cache that panics kills the writer. No caller waits forever, and none is told that nothing happened.
#[tokio::test]
async fn a_dead_writer_is_told_of() {
    #[derive(Debug)]
    struct Broken;
    impl crate::store::Invalidate for Broken {
        fn invalidate(&self, _: KeyId) {
            panic!("a bug in a cache");
        }
        fn trust(&self, _: crate::store::Trust) {}
    }
    let place = Place::new();
    let store = place.open();
    finish(&store, id(1), "done").await;
    let cache: Arc<dyn crate::store::Invalidate> = Arc::new(Broken);
    store.attach(Arc::downgrade(&cache));
    let forgotten = store.apply(id(1), Command::Forget(crate::record::Force::No)).await;
    assert_eq!(forgotten.unwrap_err().kind(), ErrorKind::Ambiguous);
    let refused = store.apply(id(2), claim()).await.unwrap_err().kind();
    assert!(matches!(refused, ErrorKind::Closed | ErrorKind::Ambiguous), "{refused:?}");
    drop(store);
    let store = place.open();
    let _ = won(store.apply(id(1), claim()).await.unwrap());
}
