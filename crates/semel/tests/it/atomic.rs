//! `run_in`: the caller's rows and the record commit together, or not at all.

use std::sync::Arc;
use std::time::Duration;

use semel::record::Phase;
use semel::store::{EmbeddedStore, MemoryStore, rusqlite};
use semel::{Engine, Failure, FailureExt, Key, Mode, RunError};

struct Bench {
    store: Arc<EmbeddedStore>,
    engine: Engine,
    _folder: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("the store works");
        let store = Arc::new(EmbeddedStore::open(folder.path()).expect("the store works"));
        store
            .transact(|transaction| transaction.execute_batch("CREATE TABLE paid (order_id TEXT)"))
            .await
            .expect("the store works");
        let engine = Engine::builder(store.clone()).build().expect("the store works");
        Self { store, engine, _folder: folder }
    }

    async fn pay(&self, order: &'static str) -> Result<semel::Answer<i64>, RunError> {
        self.engine
            .once(Key::new("pay").value(order))
            .run_in(&self.store, move |transaction, _| {
                transaction.execute("INSERT INTO paid VALUES (?1)", [order]).failed()?;
                transaction.query_row("SELECT count(*) FROM paid", [], |row| row.get(0)).failed()
            })
            .await
    }

    async fn rows(&self) -> i64 {
        let count = |transaction: &rusqlite::Transaction<'_>| {
            transaction.query_row("SELECT count(*) FROM paid", [], |row| row.get(0))
        };
        self.store.transact(count).await.expect("the store works")
    }

    async fn phase(&self, order: &'static str) -> Option<Phase> {
        let snapshot = self.engine.get(&Key::new("pay").value(order)).await.expect("the store works");
        snapshot.map(|snapshot| snapshot.phase())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_leave_one_row_and_get_one_value() {
    let bench = Arc::new(Bench::new().await);
    let calls = (0..50).map(|_| {
        let bench = Arc::clone(&bench);
        tokio::spawn(async move { bench.pay("a").await.unwrap() })
    });
    let mut first = 0;
    for call in calls.collect::<Vec<_>>() {
        let answer = call.await.unwrap();
        assert_eq!(answer.value, 1);
        first += usize::from(!answer.replayed);
    }
    assert_eq!((first, bench.rows().await), (1, 1));
}

#[tokio::test]
async fn a_failure_leaves_neither_row_nor_record() {
    let bench = Bench::new().await;
    let failed = bench.engine.once(Key::new("pay").value("a")).run_in(&bench.store, |transaction, _| {
        transaction.execute("INSERT INTO paid VALUES ('a')", []).failed()?;
        Err::<i64, _>(Failure::Failed(rusqlite::Error::QueryReturnedNoRows.into()))
    });
    assert!(matches!(failed.await, Err(RunError::Failed(_))));
    assert_eq!((bench.rows().await, bench.phase("a").await), (0, None));
    assert!(!bench.pay("a").await.unwrap().replayed);
}

#[tokio::test]
async fn a_panic_leaves_nothing_and_the_writer_lives() {
    let bench = Bench::new().await;
    let panicked = bench.engine.once(Key::new("pay").value("a")).run_in(
        &bench.store,
        |transaction, _| -> Result<i64, Failure> {
            transaction.execute("INSERT INTO paid VALUES ('a')", []).failed()?;
            panic!("half way")
        },
    );
    assert!(matches!(panicked.await, Err(RunError::Panicked(message)) if message == "half way"));
    assert_eq!((bench.rows().await, bench.phase("a").await), (0, None));
    assert_eq!(bench.pay("a").await.unwrap().value, 1);
}

#[tokio::test]
async fn a_failed_statement_that_was_swallowed_is_still_the_effects_own_business() {
    let bench = Bench::new().await;
    let answer = bench.engine.once(Key::new("pay").value("a")).run_in(&bench.store, |transaction, _| {
        let _ = transaction.execute("INSERT INTO nowhere VALUES ('a')", []);
        transaction.execute("INSERT INTO paid VALUES ('a')", []).failed()
    });
    assert_eq!(answer.await.unwrap().value, 1);
    assert_eq!((bench.rows().await, bench.phase("a").await), (1, Some(Phase::Done)));
}

#[tokio::test]
async fn an_effect_that_ends_the_transaction_itself_is_an_error_and_the_store_goes_on() {
    let bench = Bench::new().await;
    for statement in ["COMMIT", "ROLLBACK"] {
        let meddled = bench.engine.once(Key::new("pay").value(statement)).run_in(
            &bench.store,
            move |transaction, _| {
                transaction.execute("INSERT INTO paid VALUES ('a')", []).failed()?;
                transaction.execute_batch(statement).failed()
            },
        );
        assert!(meddled.await.is_err(), "{statement}");
    }
    assert!(!bench.pay("b").await.unwrap().replayed);
    assert!(bench.pay("b").await.unwrap().replayed);
}

#[tokio::test]
async fn another_payload_conflicts_and_runs_nothing() {
    let bench = Bench::new().await;
    bench.pay("a").await.unwrap();
    let other = bench
        .engine
        .once(Key::new("pay").value("a"))
        .fingerprint("something else")
        .run_in(&bench.store, |transaction, _| {
            transaction.execute("INSERT INTO paid VALUES ('x')", []).failed()
        });
    assert!(matches!(other.await, Err(RunError::Conflict)));
    assert_eq!(bench.rows().await, 1);
}

#[tokio::test]
async fn a_claim_of_another_mode_is_waited_for_within_bounds() {
    let bench = Bench::new().await;
    let once = bench.engine.once(Key::new("pay").value("a")).mode(Mode::Marked);
    let Ok(semel::engine::Acquired::Won(claim)) = once.claim().await else { panic!("a fresh key is won") };
    let running = claim.begin().await.unwrap();
    let waiting = bench.engine.once(Key::new("pay").value("a")).wait(Duration::from_millis(50));
    let refused = waiting.run_in(&bench.store, |_, _| Ok::<i64, Failure>(1)).await;
    assert!(matches!(refused, Err(RunError::InFlight { .. })), "{refused:?}");

    let (paid, ()) = tokio::join!(bench.pay("a"), running.release());
    assert!(!paid.unwrap().replayed);
}

#[tokio::test]
async fn a_transaction_of_another_store_is_refused() {
    let bench = Bench::new().await;
    let engine = Engine::builder(MemoryStore::new()).build().unwrap();
    let refused =
        engine.once(Key::new("pay").value("a")).run_in(&bench.store, |_, _| Ok::<i64, Failure>(1)).await;
    assert!(matches!(refused, Err(RunError::OtherStore)));
}

#[test]
fn a_blocking_caller_needs_no_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(folder.path()).unwrap());
    let engine = Engine::builder(store.clone()).build().unwrap();
    let call = || {
        engine.once(Key::new("make").value("table")).run_in_blocking(&store, |transaction, attempt| {
            assert_eq!(attempt.number(), 1);
            transaction.execute_batch("CREATE TABLE made (id INTEGER)").failed()
        })
    };
    assert!(!call().unwrap().replayed);
    assert!(call().unwrap().replayed);
}

#[tokio::test]
async fn atomic_outside_a_transaction_is_refused_with_the_way_out() {
    let engine = Engine::builder(MemoryStore::new()).mode(Mode::Atomic).build().unwrap();
    let refused = engine.once(Key::new("pay").value("a")).run(async || Ok(1)).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("run_in")));
    let refused = engine.once(Key::new("pay").value("a")).run_blocking(|_| Ok(1));
    assert!(matches!(refused, Err(RunError::NotInTransaction)));
}
