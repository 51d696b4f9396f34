//! Transactions that hold the caller's rows and the record go through the wrapper: outcomes in them are sealed too.

use semel::outcome::Outcome;
use semel::{Engine, FailureExt as _, Key, RunError};

use super::*;

/// What the store below has for a key, past the wrapper.
async fn kept(engine: &Engine, below: &dyn Store) -> Arc<Outcome> {
    let id = engine.get(&Key::new("pay").value("a")).await.expect("a healthy store").expect("it is done").id;
    let snapshot = below.get(id).await.expect("a healthy store").expect("it is done");
    Arc::clone(snapshot.record.outcome(snapshot.now).expect("it is done"))
}

#[cfg(feature = "embedded")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_in_seals_and_opens() {
    use semel::store::{EmbeddedStore, rusqlite};
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let below = Arc::new(EmbeddedStore::open(folder.path()).expect("the folder can be opened"));
    let table = |transaction: &rusqlite::Transaction<'_>| transaction.execute_batch("CREATE TABLE paid (a)");
    below.transact(table).await.expect("a healthy store");
    let store = sealed(&below, &["a"]);
    let engine = Engine::builder(store.clone()).build().expect("a healthy store");
    let pay = |transaction: &rusqlite::Transaction<'_>, _: &semel::Attempt| {
        transaction.execute("INSERT INTO paid VALUES (1)", []).failed()?;
        transaction.query_row("SELECT count(*) FROM paid", [], |row| row.get::<_, i64>(0)).failed()
    };
    for replayed in [false, true] {
        let answer =
            engine.once(Key::new("pay").value("a")).run_in(&store, pay).await.expect("a healthy store");
        assert_eq!((answer.value, answer.replayed), (1, replayed));
    }
    assert_eq!(kept(&engine, &*below).await.kind(), "semel.sealed");
    // Past the wrapper the outcome would be written as it is: refused.
    let refused = engine.once(Key::new("pay").value("b")).run_in(&below, pay).await;
    assert!(matches!(refused, Err(RunError::OtherStore)), "{refused:?}");
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_in_transaction_seals_and_opens() {
    use semel::store::PostgresStore;
    use semel::store::sqlx::{self, PgPool};
    let server = semel_testbed::Postgres::start().expect("a PostgreSQL server can be started");
    server.sql("CREATE TABLE paid (a int)").expect("a healthy server");
    let below = Arc::new(PostgresStore::open(&server.url()).await.expect("a healthy server"));
    let store = sealed(&below, &["a"]);
    let engine = Engine::builder(store.clone()).build().expect("a healthy server");
    let pool = PgPool::connect(&server.url()).await.expect("a healthy server");
    for replayed in [false, true] {
        let mut transaction = pool.begin().await.expect("a healthy server");
        let once = engine.once(Key::new("pay").value("a"));
        let answer = once
            .run_in_transaction(&store, &mut transaction, async |connection, _| {
                sqlx::query("INSERT INTO paid VALUES (1)").execute(&mut *connection).await.failed()?;
                sqlx::query_scalar::<_, i64>("SELECT count(*) FROM paid").fetch_one(connection).await.failed()
            })
            .await
            .expect("a healthy server");
        transaction.commit().await.expect("a healthy server");
        assert_eq!((answer.value, answer.replayed), (1, replayed));
    }
    assert_eq!(kept(&engine, &*below).await.kind(), "semel.sealed");
}
