//! Wrong settings end in a sentence; a Redis that is away is none of them.

use semel::store::ErrorKind;
use semel_testbed::RedisCluster;

use super::*;

async fn refusal(builder: TieredBuilder) -> Error {
    builder.open().await.map(drop).expect_err("it cannot be opened")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_url_is_named() {
    let servers = Servers::start();
    let error = refusal(servers.builder_at("localhost:6379")).await;
    assert_eq!(error.kind(), ErrorKind::Setup);
    assert!(error.to_string().contains("redis://"), "{error}");
    let redis = RedisStore::builder(&servers.redis.url());
    let error = refusal(TieredStore::builder(PostgresStore::builder("mysql://x"), redis.clone())).await;
    assert_eq!(error.kind(), ErrorKind::Setup);
    assert!(error.to_string().contains("postgres://"), "{error}");
    let nobody = PostgresStore::builder("postgres://nobody@127.0.0.1:1/none");
    let error = refusal(TieredStore::builder(nobody.timeout(Duration::from_secs(1)), redis)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "PostgreSQL has to be there: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_refused() {
    let servers = Servers::start();
    let standby = Postgres::standby_of(&servers.postgres).expect("a standby can be started");
    let redis = RedisStore::builder(&servers.redis.url());
    let error = refusal(TieredStore::builder(PostgresStore::builder(standby.url()), redis)).await;
    assert_eq!(error.kind(), ErrorKind::Setup);
    assert!(error.to_string().contains("standby"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_and_missing_rights_are_named() {
    let servers = Servers::start();
    let guarded = Redis::options().password("right").start().expect("redis-server starts");
    let error = refusal(servers.builder_at(&guarded.url())).await;
    assert_eq!(error.kind(), ErrorKind::Setup, "{error}");
    assert!(error.to_string().contains("password"), "{error}");
    for (lacks, fit) in [("-publish", false), ("-set", false), ("+ping", true)] {
        let rules = format!("{RIGHTS} {lacks}");
        let server = Redis::options().user("app", &rules).start().expect("redis-server starts");
        let opened = servers.builder_at(&format!("redis://app:pw@{}", server.addr())).open().await;
        match opened {
            Ok(store) => {
                assert!(fit, "it opened without {lacks}");
                uses_copies(&Arc::new(store)).await;
            }
            Err(error) => {
                assert!(!fit && error.to_string().contains("NOPERM"), "{lacks}: {error}");
            }
        }
    }
}

/// The rights that docs/reference/tiered-store.md lists.
const RIGHTS: &str = "on >pw ~semel:copies:* &semel:copies:* +@connection +@pubsub +get +set +del +exists";

#[tokio::test(flavor = "multi_thread")]
async fn redis_away_at_the_start_is_no_refusal() {
    let servers = Servers::start();
    servers.redis.kill();
    let store = servers.open().await;
    assert_eq!(store.stats().coordination, Coordination::Away);
    let id = key();
    let grant = win(&*store, id).await;
    accepted(store.apply(id, complete(grant, "once")).await);
    servers.redis.restart().expect("it starts again");
    notices(&store, Coordination::Working).await;
    uses_copies(&store).await;
    assert_eq!((store.stats().breaker_opened, store.stats().breaker_closed), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_shows_itself_without_passwords() {
    let servers = Servers::start();
    let guarded = Redis::options().password("hunter2").start().expect("redis-server starts");
    let store = open(servers.builder_at(&format!("redis://:hunter2@{}", guarded.addr()))).await;
    let shown = format!("{store} {store:?}");
    assert!(shown.contains(&guarded.addr().to_string()) && shown.contains("postgres://"), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

// Entries and channels of a key are on its shard.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_will_do() {
    let servers = Servers::start();
    let cluster = RedisCluster::start().expect("a cluster");
    let nodes: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
    let url = format!("redis-cluster://{}", nodes.join(","));
    let (owner, other) = (open(servers.builder_at(&url)).await, open(servers.builder_at(&url)).await);
    uses_copies(&owner).await;
    uses_copies(&other).await;
    for _ in 0..20 {
        let id = key();
        let grant = win(&*owner, id).await;
        let mut watch = other.watch(id);
        busy(ask(&*other, id, &claim()).await);
        accepted(owner.apply(id, complete(grant, "once")).await);
        tokio::time::timeout(Duration::from_secs(20), watch.changed()).await.expect("woken");
        assert_eq!(replayed(ask(&*other, id, &claim()).await), text("once"));
    }
    let stats = other.stats();
    assert!(stats.coordination == Coordination::Working && stats.replayed_copies >= 20, "{stats:?}");
}
