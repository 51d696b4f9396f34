//! A caller's transaction that is open while `semel store copy` moves its store.

use semel::store::PostgresStore;
use semel::store::sqlx::{self, PgPool};
use semel::{Engine, Failure, FailureExt as _, Key};

use super::*;

/// Cause: a copy read committed rows only, and did not wait for transactions whose lease had expired. Consequence: the
/// new store ran the effect, and then the transaction committed it on the old one. Fix: the move waits for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_waits_for_a_transaction_that_outlives_its_lease() {
    let (postgres, folder) = (Postgres::start().unwrap(), tempfile::tempdir().unwrap());
    postgres.sql("CREATE TABLE paid (order_id text)").unwrap();
    let store = Arc::new(PostgresStore::open(postgres.url()).await.unwrap());
    let lease = Duration::from_millis(500);
    let engine = Engine::builder(Arc::clone(&store)).lease(lease).build().unwrap();
    let pool = PgPool::connect(&postgres.url()).await.unwrap();
    let mut open = pool.begin().await.unwrap();
    let pay = async |connection: &mut sqlx::PgConnection, _: &_| -> Result<i64, Failure> {
        sqlx::query("INSERT INTO paid VALUES ('order-1')").execute(connection).await.failed()?;
        Ok(1)
    };
    engine.once(Key::new("pay").value("order-1")).run_in_transaction(&store, &mut open, pay).await.unwrap();

    let new = format!("embedded:{}", folder.path().join("new").display());
    let copying = Copying::start(&postgres.url(), &new);
    copying.said("waiting for 1 open transactions of callers");
    open.commit().await.unwrap();
    let result = tokio::task::spawn_blocking(|| copying.end()).await.unwrap();
    assert_eq!((&result["records"], &result["in_progress"]), (&1.into(), &0.into()), "{result}");

    let new = Arc::new(semel::store::EmbeddedStore::open(folder.path().join("new")).unwrap());
    let engine = Engine::builder(new).build().unwrap();
    let again =
        engine.once(Key::new("pay").value("order-1")).run(async || Ok::<i64, Failure>(2)).await.unwrap();
    assert_eq!((again.value, again.replayed), (1, true));
}
