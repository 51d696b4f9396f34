//! A cluster: the whole contract over three shards, TLS, and slots that move under load.

use std::sync::atomic::{AtomicUsize, Ordering};

use semel::record::Force;
use semel::store::{Invalidate, Trust};
use semel::testkit::contract;
use semel_testbed::redis::Persistence;
use semel_testbed::{RedisCluster, Storage};

use super::*;

fn url(cluster: &RedisCluster) -> String {
    let nodes: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
    format!("redis-cluster://{}", nodes.join(","))
}

async fn open(url: &str, prefix: &str) -> Arc<dyn Store> {
    let store = RedisStore::builder(url).prefix(prefix).connect().await;
    Arc::new(store.unwrap_or_else(|error| panic!("{error}")))
}

/// In this number of tests, each with a cluster of its own.
const PARTS: usize = 4;

/// One part of the contract's cases, each with a prefix of its own: six servers take their time.
async fn contract(part: usize) {
    let cluster = RedisCluster::start().expect("a cluster");
    for case in contract::cases().iter().skip(part).step_by(PARTS) {
        let (url, prefix) = (url(&cluster), format!("case:{}", case.name()));
        let context = Context::new(open(&url, &prefix).await).peer(open(&url, &prefix).await);
        let context = context.reopen(move || {
            let (url, prefix) = (url.clone(), prefix.clone());
            async move { open(&url, &prefix).await }
        });
        case.run(&context).await;
    }
}

mod the_contract_holds_on_a_cluster {
    #[tokio::test(flavor = "multi_thread")]
    async fn part_one() {
        super::contract(0).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn part_two() {
        super::contract(1).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn part_three() {
        super::contract(2).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn part_four() {
        super::contract(3).await;
    }
}

// rediss-cluster://: calls and subscriptions over TLS, to every shard.
#[tokio::test(flavor = "multi_thread")]
async fn tls_on_a_cluster() {
    let options = Redis::options().storage(Storage::Memory).persistence(Persistence::None).tls();
    let cluster = RedisCluster::start_with(&options).expect("a cluster");
    let authority = cluster.node(0).ca_cert().expect("it has TLS");
    let authority = std::fs::read(authority).expect("a certificate");
    let ports: Vec<String> =
        cluster.nodes().iter().filter_map(Redis::tls_addr).map(|a| a.to_string()).collect();
    let url = format!("rediss-cluster://{}", ports.join(","));
    let connect = async || {
        let builder = RedisStore::builder(&url).root_certificate(authority.clone());
        Arc::new(builder.connect().await.unwrap_or_else(|error| panic!("{error}")))
    };
    let (store, other) = (connect().await, connect().await);
    let mut shards = std::collections::HashSet::new();
    while shards.len() < 3 {
        let id = key();
        let slot = cluster.slot_of(&format!("semel:{{{id}}}")).expect("a healthy cluster");
        shards.insert(cluster.primary_of(slot).expect("a healthy cluster"));
        let grant = win(&store, id).await;
        let mut watch = other.watch(id);
        // The subscription's own word, then that of the change.
        tokio::time::timeout(Duration::from_secs(20), watch.changed()).await.expect("subscribed");
        accepted(store.apply(id, complete(grant, "once")).await);
        tokio::time::timeout(Duration::from_secs(20), watch.changed()).await.expect("woken by push");
        replayed(ask(&other, id, &claim()).await);
    }
    let stranger = RedisStore::connect(&url).await.map(|_| ()).expect_err("an unknown authority");
    assert!(stranger.to_string().contains("certificate"), "{stranger}");
}

// slot_migration: MOVED and ASK during claims and completes: one effect per key, and every outcome is replayed.
#[tokio::test(flavor = "multi_thread")]
async fn slot_migration() {
    let cluster = Arc::new(RedisCluster::start().expect("a cluster"));
    let url = url(&cluster);
    let stores = [connect(&url).await, connect(&url).await];
    let id = key();
    let slot = cluster.slot_of(&format!("semel:{{{id}}}")).expect("a healthy cluster");
    let home = cluster.primary_of(slot).expect("a healthy cluster");
    let effects = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..20)
        .map(|number| {
            let (store, effects) = (Arc::clone(&stores[number % 2]), Arc::clone(&effects));
            tokio::spawn(work(store, id, effects))
        })
        .collect();
    let mover = {
        let cluster = Arc::clone(&cluster);
        tokio::task::spawn_blocking(move || {
            for to in [(home + 1) % 3, (home + 2) % 3, home] {
                cluster.move_slot(slot, to).expect("the slot moves");
            }
        })
    };
    for worker in workers {
        let ended = tokio::time::timeout(Duration::from_secs(60), worker).await;
        ended.expect("an outcome in time").expect("an outcome");
    }
    mover.await.expect("the slot moved");
    assert_eq!(effects.load(Ordering::SeqCst), 1, "one effect, wherever its slot was");
    replayed(
        eventually("a replay at the end", async || {
            Some(ask(&stores[0], id, &claim()).await).filter(Result::is_ok)
        })
        .await,
    );
}

/// Claims until there is an outcome; each winner counts an effect. The same owner throughout: that is how the engine
/// asks while it does not know.
async fn work(store: Arc<RedisStore>, id: KeyId, effects: Arc<AtomicUsize>) {
    let mine = claim();
    loop {
        match ask(&store, id, &mine).await {
            Ok(Ruling::Won(win)) => {
                effects.fetch_add(1, Ordering::SeqCst);
                while store.apply(id, complete(win.grant, "once")).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            Ok(Ruling::Replay { .. }) => return,
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

// A primary is killed: its replica takes over, and with require_replicas nothing acknowledged is lost.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_failover_keeps_what_was_acknowledged() {
    let cluster = RedisCluster::start().expect("a cluster");
    let store = RedisStore::builder(&url(&cluster)).require_replicas(1).connect().await.expect("a cluster");
    let mut ids = Vec::new();
    for _ in 0..30 {
        let id = key();
        let grant = win(&store, id).await;
        accepted(store.apply(id, complete(grant, "once")).await);
        ids.push(id);
    }
    cluster.kill(0);
    for id in ids {
        let outcome =
            eventually("a replay after the failover", async || ask(&store, id, &claim()).await.ok()).await;
        replayed(Ok(outcome));
    }
}

/// Counts what it is told, and knows whether it may answer.
#[derive(Default)]
struct Cache {
    told: AtomicUsize,
    trusted: AtomicUsize,
}

impl Invalidate for Cache {
    fn invalidate(&self, _: KeyId) {
        self.told.fetch_add(1, Ordering::SeqCst);
    }

    fn trust(&self, trust: Trust) {
        self.trusted.store(usize::from(trust == Trust::Confirmed), Ordering::SeqCst);
    }
}

// The channel of the invalidations moves to another shard, which ends its subscriptions: caches are not vouched for
// until there are new ones, and then they are told again.
#[tokio::test(flavor = "multi_thread")]
async fn invalidations_follow_a_moved_slot() {
    let cluster = RedisCluster::start().expect("a cluster");
    let (store, other) = (connect(&url(&cluster)).await, connect(&url(&cluster)).await);
    let cache = Arc::new(Cache::default());
    let weak: std::sync::Weak<dyn Invalidate> = Arc::<Cache>::downgrade(&cache);
    other.attach(weak);
    let slot = cluster.slot_of("semel:forgotten").expect("a healthy cluster");
    let home = cluster.primary_of(slot).expect("a healthy cluster");
    for (moves, to) in [home, (home + 1) % 3, (home + 2) % 3].into_iter().enumerate() {
        if moves > 0 {
            cluster.move_slot(slot, to).expect("the slot moves");
        }
        let id = key();
        let forget = || store.apply(id, Command::Forget(Force::Yes));
        win(&store, id).await;
        // Told, or not trusted when the forget was answered: nothing in between.
        eventually("the cache is told", async || {
            let before = cache.told.load(Ordering::SeqCst);
            accepted(Ok(forget().await.ok()?));
            let (told, trusted) = (cache.told.load(Ordering::SeqCst), cache.trusted.load(Ordering::SeqCst));
            (told > before && trusted == 1).then_some(())
        })
        .await;
    }
}

// restart_empty, on one of three shards: whichever it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_lost_its_data_is_noticed() {
    for shard in 0..3 {
        let cluster = RedisCluster::start().expect("a cluster");
        let store = connect(&url(&cluster)).await;
        win(&store, key()).await;
        assert!(!store.has_lost_data());
        cluster.node(shard).tell(&["FLUSHALL"]).expect("a primary");
        eventually("word of the loss", async || store.has_lost_data().then_some(())).await;
    }
}
