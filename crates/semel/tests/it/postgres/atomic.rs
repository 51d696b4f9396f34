//! `run_in_transaction`: the caller's rows and the record commit together, or not at all.

use std::sync::Arc;
use std::time::Duration;

use semel::record::Phase;
use semel::store::sqlx::{self, PgConnection, PgPool};
use semel::store::{MemoryStore, PostgresStore};
use semel::{Answer, Engine, Failure, FailureExt as _, Key, RunError};
use semel_testbed::Postgres;

use super::open;

/// A lease that no test waits for.
const LONG: Duration = Duration::from_secs(60);

struct Bench {
    server: Arc<Postgres>,
    store: Arc<PostgresStore>,
    engine: Engine,
    pool: PgPool,
}

async fn pay(connection: &mut PgConnection, order: &str) -> Result<i64, Failure> {
    sqlx::query("INSERT INTO paid VALUES ($1)").bind(order).execute(&mut *connection).await.failed()?;
    sqlx::query_scalar("SELECT count(*) FROM paid").fetch_one(connection).await.failed()
}

impl Bench {
    async fn new() -> Self {
        let server = Arc::new(Postgres::start().expect("a PostgreSQL server can be started"));
        server.sql("CREATE TABLE paid (order_id text)").expect("a healthy server");
        Self::on(server, Duration::from_secs(2)).await
    }

    /// As another process on the same database.
    async fn peer(&self, lease: Duration) -> Self {
        Self::on(Arc::clone(&self.server), lease).await
    }

    async fn on(server: Arc<Postgres>, lease: Duration) -> Self {
        let store = Arc::new(open(&server.url()).await);
        let engine = Engine::builder(store.clone()).lease(lease).build().expect("a healthy server");
        let pool = PgPool::connect(&server.url()).await.expect("a healthy server");
        Self { server, store, engine, pool }
    }

    async fn pay(&self, order: &'static str) -> Result<Answer<i64>, RunError> {
        let mut transaction = self.pool.begin().await.expect("a healthy server");
        let answer = self
            .engine
            .once(Key::new("pay").value(order))
            .run_in_transaction(&self.store, &mut transaction, async |connection, _| {
                pay(connection, order).await
            })
            .await;
        transaction.commit().await.expect("a healthy server");
        answer
    }

    fn rows(&self) -> String {
        self.server.sql("SELECT count(*) FROM paid").expect("a healthy server").trim().to_owned()
    }

    async fn phase(&self, order: &'static str) -> Option<Phase> {
        let snapshot = self.engine.get(&Key::new("pay").value(order)).await.expect("a healthy server");
        snapshot.map(|snapshot| snapshot.phase())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_leave_one_row_and_get_one_value() {
    let bench = Arc::new(Bench::new().await);
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move { bench.pay("a").await.expect("a healthy server") })
        })
        .collect();
    let mut first = 0;
    for call in calls {
        let answer = call.await.expect("a healthy server");
        assert_eq!(answer.value, 1);
        first += usize::from(!answer.replayed);
    }
    assert_eq!((first, bench.rows().as_str()), (1, "1"));
    assert_eq!(bench.phase("a").await, Some(Phase::Done));
}

// A later commit carries nothing of a failed effect, but everything the caller wrote before and after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_rolled_back_to_the_savepoint() {
    let bench = Bench::new().await;
    let mut transaction = bench.pool.begin().await.expect("a healthy server");
    sqlx::query("INSERT INTO paid VALUES ('before')")
        .execute(&mut *transaction)
        .await
        .expect("a healthy server");
    let failed = bench
        .engine
        .once(Key::new("pay").value("a"))
        .run_in_transaction(&bench.store, &mut transaction, async |connection, _| {
            pay(connection, "a").await?;
            Err::<i64, _>(Failure::Failed(sqlx::Error::RowNotFound.into()))
        })
        .await;
    assert!(matches!(failed, Err(RunError::Failed(_))), "{failed:?}");
    let broken = bench
        .engine
        .once(Key::new("pay").value("a"))
        .run_in_transaction(&bench.store, &mut transaction, async |connection, _| {
            // An error of the server's breaks the transaction up to the savepoint, and no further.
            sqlx::query("SELECT 1 / 0").execute(connection).await.failed()?;
            Ok::<i64, _>(1)
        })
        .await;
    assert!(matches!(broken, Err(RunError::Failed(_))), "{broken:?}");
    let panicked: Result<Answer<i64>, RunError> = bench
        .engine
        .once(Key::new("pay").value("a"))
        .run_in_transaction(&bench.store, &mut transaction, async |connection, _| -> Result<i64, Failure> {
            pay(connection, "a").await?;
            panic!("on purpose")
        })
        .await;
    assert!(matches!(panicked, Err(RunError::Panicked(_))), "{panicked:?}");
    sqlx::query("INSERT INTO paid VALUES ('after')")
        .execute(&mut *transaction)
        .await
        .expect("a healthy server");
    transaction.commit().await.expect("a healthy server");
    assert_eq!(bench.rows(), "2", "before and after, and nothing of the effect");
    assert!(!bench.pay("a").await.expect("a healthy server").replayed);
}

// The caller's rollback takes the outcome along, and the claim is given back long before its lease is over: for the same
// process and for another one, which waited already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolled_back_transaction_never_happened() {
    let bench = Bench::new().await;
    let (one, other) = (bench.peer(LONG).await, Arc::new(bench.peer(LONG).await));
    for waiter in [Arc::new(bench.peer(LONG).await), other] {
        let began = tokio::time::Instant::now();
        let mut transaction = one.pool.begin().await.expect("a healthy server");
        let once = one.engine.once(Key::new("pay").value("a"));
        let ran = once.run_in_transaction(&one.store, &mut transaction, async |connection, _| {
            pay(connection, "a").await
        });
        assert_eq!(ran.await.expect("a healthy server").value, 1);
        let waits = {
            let waiter = Arc::clone(&waiter);
            tokio::spawn(async move {
                let mut transaction = waiter.pool.begin().await.expect("a healthy server");
                let once = waiter.engine.once(Key::new("pay").value("a"));
                let ran = once
                    .run_in_transaction(&waiter.store, &mut transaction, async |connection, _| {
                        pay(connection, "a").await
                    })
                    .await
                    .expect("a healthy server");
                transaction.rollback().await.expect("a healthy server");
                ran
            })
        };
        // Longer than the longest pause between two looks: it is not given back while the transaction is open.
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert!(!waits.is_finished(), "two transactions ran the effect at the same time");
        assert_eq!(bench.phase("a").await, Some(Phase::Begun));
        transaction.rollback().await.expect("a healthy server");
        let waited = waits.await.expect("a healthy server");
        assert_eq!((waited.value, waited.replayed, bench.rows().as_str()), (1, false, "0"));
        assert!(began.elapsed() < LONG / 2, "the lease was waited for");
    }
    let again = one.pay("a").await.expect("a healthy server");
    assert_eq!((again.value, again.replayed, bench.rows().as_str()), (1, false, "1"));
}

// A caller that goes away in the middle of the effect drops its transaction with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_call_is_given_back() {
    let bench = Arc::new(Bench::new().await.peer(LONG).await);
    let began = tokio::time::Instant::now();
    let call = {
        let bench = Arc::clone(&bench);
        tokio::spawn(async move {
            let mut transaction = bench.pool.begin().await.expect("a healthy server");
            let once = bench.engine.once(Key::new("pay").value("a"));
            let ran = once.run_in_transaction(&bench.store, &mut transaction, async |connection, _| {
                pay(connection, "a").await?;
                std::future::pending::<Result<i64, _>>().await
            });
            ran.await.expect("never")
        })
    };
    let deadline = began + Duration::from_secs(10);
    while bench.phase("a").await != Some(Phase::Begun) {
        assert!(tokio::time::Instant::now() < deadline, "the effect does not start");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    call.abort();
    let again = bench.pay("a").await.expect("a healthy server");
    assert_eq!((again.value, again.replayed, bench.rows().as_str()), (1, false, "1"));
    assert!(began.elapsed() < LONG / 2, "the lease was waited for");
}

// long_effect_tx: beyond its lease the transaction still holds the record. Other callers are told that it is in
// flight, in bounded time; nobody waits inside the server; vacuum is held back by nothing but the caller's own transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_effect_tx() {
    let bench = Arc::new(Bench::new().await);
    let short = bench.peer(Duration::from_secs(1)).await;
    let mut transaction = short.pool.begin().await.expect("a healthy server");
    let once = short.engine.once(Key::new("pay").value("a"));
    let ran = once
        .run_in_transaction(&short.store, &mut transaction, async |connection, _| pay(connection, "a").await);
    assert_eq!(ran.await.expect("a healthy server").value, 1);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(bench.phase("a").await, Some(Phase::Lapsed));
    for wait in [Duration::ZERO, Duration::from_millis(600)] {
        let began = tokio::time::Instant::now();
        let mut second = bench.pool.begin().await.expect("a healthy server");
        let once = bench.engine.once(Key::new("pay").value("a")).wait(wait);
        let busy = once
            .run_in_transaction(&bench.store, &mut second, async |connection, _| pay(connection, "a").await)
            .await;
        assert!(matches!(busy, Err(RunError::InFlight { .. })), "{busy:?}");
        assert!(began.elapsed() < wait + Duration::from_secs(3), "{:?}", began.elapsed());
        let once = bench.engine.once(Key::new("pay").value("a")).wait(wait);
        let busy = once.run(async || Ok(2)).await;
        assert!(matches!(busy, Err(RunError::InFlight { .. })), "{busy:?}");
        drop(second);
    }
    let waiter = {
        let bench = Arc::clone(&bench);
        tokio::spawn(async move { bench.pay("a").await })
    };
    let blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    for _ in 0..20 {
        assert_eq!(bench.server.sql(blocked).expect("a healthy server"), "0", "somebody waits in the server");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    transaction.commit().await.expect("a healthy server");
    let answer = waiter.await.expect("a healthy server").expect("a healthy server");
    assert_eq!((answer.value, answer.replayed, bench.rows().as_str()), (1, true, "1"));
}

// now_frozen: the transaction is seconds old when the claim is made; its lease counts from the claim all the same.
// long_effect_tx: and while it goes on beyond its lease, a duplicate neither runs the effect nor waits in the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn now_frozen() {
    let bench = Arc::new(Bench::new().await);
    let mut transaction = bench.pool.begin().await.expect("a healthy server");
    sqlx::query("SELECT now()").execute(&mut *transaction).await.expect("a healthy server");
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let of_other = Arc::clone(&bench);
    let once = bench.engine.once(Key::new("pay").value("a"));
    let ran = once
        .run_in_transaction(&bench.store, &mut transaction, async |connection, _| {
            let phase = of_other.phase("a").await;
            assert_eq!(phase, Some(Phase::Begun), "a lease of 2 s on a transaction that is older than that");
            let value = pay(connection, "a").await;
            tokio::time::sleep(Duration::from_millis(2500)).await;
            value
        })
        .await;
    assert_eq!(ran.expect("a healthy server").value, 1);
    let record = bench
        .engine
        .get(&Key::new("pay").value("a"))
        .await
        .expect("a healthy server")
        .expect("a healthy server");
    assert_eq!(record.phase(), Phase::Lapsed, "not committed yet");
    let duplicate = {
        let bench = Arc::clone(&bench);
        tokio::spawn(async move { bench.pay("a").await })
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    transaction.commit().await.expect("a healthy server");
    let answer = duplicate.await.expect("a healthy server").expect("a healthy server");
    assert_eq!((answer.value, answer.replayed, bench.rows().as_str()), (1, true, "1"));
    let done = bench
        .engine
        .get(&Key::new("pay").value("a"))
        .await
        .expect("a healthy server")
        .expect("a healthy server");
    assert!(
        done.record.expires_at.left(done.now) > Duration::from_secs(86_000),
        "retention counts from complete"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_cannot_see_the_claim_is_refused() {
    let bench = Bench::new().await;
    let mut transaction =
        bench.pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.expect("a healthy server");
    sqlx::query("SELECT count(*) FROM paid").execute(&mut *transaction).await.expect("a healthy server");
    let once = bench.engine.once(Key::new("pay").value("a"));
    let refused = once
        .run_in_transaction(&bench.store, &mut transaction, async |connection, _| pay(connection, "a").await)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("READ COMMITTED"), "{refused}");
    transaction.commit().await.expect("a healthy server");
    assert_eq!(bench.rows(), "0");

    let elsewhere = Engine::builder(MemoryStore::new()).build().expect("a healthy server");
    let mut transaction = bench.pool.begin().await.expect("a healthy server");
    let other = elsewhere.once(Key::new("pay").value("a")).run_in_transaction(
        &bench.store,
        &mut transaction,
        async |connection, _| pay(connection, "a").await,
    );
    assert!(matches!(other.await, Err(RunError::OtherStore)));
}
