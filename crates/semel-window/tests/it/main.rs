//! The crate from outside: every store of Semel held to the suite for marks, and a receiver on a shared transaction.

mod atomic;
mod mutants;

use std::sync::Arc;
use std::time::Duration;

use semel::store::{
    BoxFuture, EmbeddedStore, EncryptedStore, Keyring, LimitedStore, MemoryStore, PostgresStore, RedisStore,
    SealingKey, Store, StoreLimits, TieredStore,
};
use semel::testkit::fault::FaultStore;
use semel_testbed::{Postgres, Redis, RedisCluster};
use semel_window::{MarkStore, testkit};

/// How a store is opened. Each opening is a handle on the same data.
type Open = Box<dyn Fn() -> BoxFuture<'static, Arc<dyn MarkStore>>>;

fn opened_by<S: MarkStore, F>(open: impl Fn() -> F + 'static) -> Open
where
    F: Future<Output = S> + Send + 'static,
{
    Box::new(move || {
        let opening = open();
        Box::pin(async move { Arc::new(opening.await) as Arc<dyn MarkStore> })
    })
}

/// A store that lives in this process: to open it again is to take another handle.
fn in_process(store: impl MarkStore) -> Open {
    let store: Arc<dyn MarkStore> = Arc::new(store);
    Box::new(move || {
        let store = Arc::clone(&store);
        Box::pin(async move { store })
    })
}

fn on_disk<S: MarkStore>(wrap: impl Fn(EmbeddedStore) -> S + 'static) -> Open {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    opened_by(move || {
        let store = wrap(EmbeddedStore::open(folder.path()).expect("the folder can be opened"));
        async move { store }
    })
}

fn sealed<S: Store>(store: S) -> EncryptedStore<S> {
    EncryptedStore::new(store, Keyring::new("a", &SealingKey::from_passphrase(b"a")).expect("a good id"))
}

fn on_redis(server: impl Send + 'static, url: String) -> Open {
    opened_by(move || {
        let (url, _) = (url.clone(), &server);
        async move { RedisStore::connect(&url).await.expect("a healthy server") }
    })
}

fn redis_server() -> Redis {
    Redis::start().expect("redis-server starts")
}

fn postgres_server() -> Postgres {
    Postgres::start().expect("a PostgreSQL server can be started")
}

fn redis_cluster() -> Open {
    let cluster = RedisCluster::start().expect("a cluster");
    let nodes: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
    on_redis(cluster, format!("redis-cluster://{}", nodes.join(",")))
}

fn on_postgres() -> Open {
    let server = postgres_server();
    opened_by(move || {
        let url = server.url();
        async move { PostgresStore::open(&url).await.expect("a healthy server") }
    })
}

fn on_both() -> Open {
    let (postgres, redis) = (postgres_server(), redis_server());
    opened_by(move || {
        // As patient as a busy machine needs it: what is tested is not its speed.
        let postgres = PostgresStore::builder(postgres.url()).timeout(Duration::from_secs(20));
        let builder = TieredStore::builder(postgres, RedisStore::builder(&redis.url()));
        async move { builder.redis_timeout(Duration::from_secs(5)).open().await.expect("healthy servers") }
    })
}

/// Makes one test for each promise, in a module of the store's name.
macro_rules! suite {
    ($($store:ident: $handles:literal of $open:expr;)*) => {
        $(mod $store {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn marks_never_go_down() {
                let open = $open;
                let mut handles = Vec::new();
                for _ in 0..$handles {
                    handles.push(open().await);
                }
                testkit::marks_never_go_down(&handles).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn acknowledged_marks_survive() {
                let open = $open;
                testkit::acknowledged_marks_survive(async || open().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn dropped_calls_leave_no_lock_behind() {
                let open = $open;
                testkit::dropped_calls_leave_no_lock_behind(&*open().await).await;
            }
        })*
    };
}

suite! {
    memory: 1 of in_process(MemoryStore::new());
    fault: 1 of in_process(FaultStore::new(Arc::new(MemoryStore::new())));
    limited: 1 of in_process(LimitedStore::over(Arc::new(MemoryStore::new()), StoreLimits::default()));
    encrypted_memory: 1 of in_process(sealed(MemoryStore::new()));
    embedded: 1 of on_disk(|store| store);
    encrypted_embedded: 1 of on_disk(sealed);
    redis: 2 of {
        let server = redis_server();
        let url = server.url();
        on_redis(server, url)
    };
    cluster: 2 of redis_cluster();
    postgres: 2 of on_postgres();
    tiered: 2 of on_both();
}
