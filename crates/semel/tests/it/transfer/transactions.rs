//! A caller's transaction that is open while its store is moved runs its effect once: the move waits for its end, or
//! the transaction is refused.

use semel::store::sqlx::{self, PgPool};
use semel::store::transfer::{Transfer, TransferSource as _};
use semel::store::{ErrorKind, MemoryStore, PostgresStore};
use semel::{Answer, Engine, Failure, FailureExt as _, Key, RunError};
use semel_testbed::Postgres;
use sqlx::PgConnection;

use super::*;

async fn pay(connection: &mut PgConnection) -> Result<i64, Failure> {
    sqlx::query("INSERT INTO paid VALUES ('order-1')").execute(&mut *connection).await.failed()?;
    sqlx::query_scalar("SELECT count(*) FROM paid").fetch_one(connection).await.failed()
}

/// A store with a lease that expires soon, its callers' connections, and a table of effects.
struct Shop {
    server: Postgres,
    store: Arc<PostgresStore>,
    engine: Engine,
    pool: PgPool,
}

impl Shop {
    async fn open() -> Self {
        let server = Postgres::start().expect("it works");
        server.sql("CREATE TABLE paid (order_id text)").expect("it works");
        let store = Arc::new(PostgresStore::open(server.url()).await.expect("it works"));
        let lease = Duration::from_millis(300);
        let engine = Engine::builder(Arc::clone(&store)).lease(lease).build().expect("it works");
        let pool = PgPool::connect(&server.url()).await.expect("it works");
        Self { server, store, engine, pool }
    }

    async fn pay(
        &self,
        key: &str,
        transaction: &mut sqlx::Transaction<'_, sqlx::Postgres>,
    ) -> Result<Answer<i64>, RunError> {
        let once = self.engine.once(Key::new("pay").value(key));
        once.run_in_transaction(&self.store, transaction, async |connection, _| pay(connection).await).await
    }

    async fn close(&self, transfer: &Transfer, to: &Arc<dyn TransferStore>) {
        let moved = TransferState::Moved { run: transfer.run(), to: to.address() };
        assert!(self.store.change_state(&TransferState::Open, &moved).await.expect("it works"));
    }

    fn paid(&self) -> String {
        self.server.sql("SELECT count(*) FROM paid").expect("it works").trim().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_sees_a_transaction_that_outlives_its_lease() {
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        let shop = Shop::open().await;
        let to: Arc<dyn TransferStore> = Arc::new(MemoryStore::new());
        let mut open = shop.pool.begin().await.expect("it works");
        let set = format!("SET TRANSACTION ISOLATION LEVEL {isolation}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(&mut *open).await.expect("it works");
        shop.pay("order-1", &mut open).await.expect("it works");
        let mut transfer =
            Transfer::begin(&*shop.store, Arc::clone(&to), [None, None]).await.expect("it works");
        shop.close(&transfer, &to).await;
        let id = shop.engine.get(&Key::new("pay").value("order-1")).await.expect("it works");
        let id = id.expect("it is claimed").id;
        phase_is(&*shop.store, id, Phase::Lapsed).await;

        let joined = shop.store.open_transactions().await.expect("it works");
        assert_eq!(joined.len(), 1, "{isolation}: the move waits for {joined:?}");
        open.commit().await.expect("it works");
        let ended = async {
            while !shop.store.open_transactions().await.expect("it works").is_disjoint(&joined) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("it ends with the transaction");
        transfer.pass(&*shop.store).await.expect("it works");
        transfer.finish(&*shop.store).await.expect("it works");

        let engine = Engine::builder(to as Arc<dyn Store>).build().expect("it works");
        let again = engine.once(Key::new("pay").value("order-1")).run(async || Ok::<_, Failure>(2_i64)).await;
        let again = again.expect("it works");
        assert_eq!((again.value, again.replayed), (1, true), "{isolation}: it ran once, on the old store");
        assert_eq!(shop.paid(), "1");
    }
}

/// The process read a moment ago that the store is open, so it still grants the claim; its transaction must not begin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_begins_after_the_switch_is_refused() {
    let shop = Shop::open().await;
    run(&*shop.store, number(1), Terms::default()).await;
    shop.engine.id(&Key::new("pay").value("any")).await.expect("the store has a secret");
    let to: Arc<dyn TransferStore> = Arc::new(MemoryStore::new());
    let operator = PostgresStore::open(shop.server.url()).await.expect("it works");
    let transfer = Transfer::begin(&operator, Arc::clone(&to), [None, None]).await.expect("it works");
    let moved = TransferState::Moved { run: transfer.run(), to: to.address() };
    assert!(operator.change_state(&TransferState::Open, &moved).await.expect("it works"));
    let mut late = shop.pool.begin().await.expect("it works");
    let refused = shop.pay("order-1", &mut late).await.expect_err("the store was moved");
    late.commit().await.expect("it works");
    let RunError::Store(refused) = refused else { panic!("{refused}") };
    assert_eq!(refused.kind(), ErrorKind::Moved, "{refused}");
    assert_eq!(shop.paid(), "0");
}
