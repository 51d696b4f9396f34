//! Redis away, its word lost, Redis frozen; PostgreSQL killed.

use semel::store::ErrorKind;
use semel_testbed::redis::Persistence;
use semel_testbed::{Direction, FaultProxy};

use super::*;

// Counted, and gone on without it.
#[tokio::test(flavor = "multi_thread")]
async fn redis_down_at_claim() {
    let servers = Servers::start();
    let (one, two) = (servers.ready().await, servers.ready().await);
    servers.redis.kill();
    for _ in 0..20 {
        let id = key();
        let grant = win(&*one, id).await;
        busy(ask(&*two, id, &claim()).await);
        accepted(one.apply(id, complete(grant, "once")).await);
        assert_eq!(replayed(ask(&*two, id, &claim()).await), text("once"));
    }
    for store in [&one, &two] {
        let stats = store.stats();
        assert_eq!((stats.coordination, stats.breaker_opened), (Coordination::Away, 1), "{stats:?}");
        assert!(stats.failed >= 1 && stats.without_redis > 0, "{stats:?}");
        assert!(stats.failed <= 2, "only calls in progress found out by themselves: {stats:?}");
    }
    servers.redis.restart().expect("it starts again");
    for store in [&one, &two] {
        notices(store, Coordination::Working).await;
        uses_copies(store).await;
    }
}

// Redis goes while somebody waits. PostgreSQL wakes it.
#[tokio::test(flavor = "multi_thread")]
async fn redis_down_at_wait() {
    let servers = Servers::start();
    let (owner, waiter) = (servers.ready().await, servers.ready().await);
    let id = key();
    let grant = win(&*owner, id).await;
    let mut watch = waiter.watch(id);
    busy(ask(&*waiter, id, &claim()).await);
    servers.redis.kill();
    accepted(owner.apply(id, complete(grant, "once")).await);
    let replay = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            watch.changed().await;
            match ask(&*waiter, id, &claim()).await {
                Ok(Ruling::Busy { .. }) => {}
                ruling => return replayed(ruling),
            }
        }
    });
    assert_eq!(replay.await.expect("woken without Redis"), text("once"));
}

// A waiter that comes while Redis is away is woken by it once it is back.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_from_an_outage_are_subscribed_afterwards() {
    let servers = Servers::start();
    let waiter = servers.ready().await;
    servers.redis.kill();
    let id = key();
    let grant = win(&*waiter, id).await;
    assert_eq!(waiter.stats().coordination, Coordination::Away);
    let mut watch = waiter.watch(id);
    servers.redis.restart().expect("it starts again");
    notices(&waiter, Coordination::Working).await;
    let channel = format!("{{{id}}}");
    eventually("the subscription", async || {
        let channels = servers.redis.tell(&["PUBSUB", "CHANNELS"]).ok()?.text();
        channels.contains(&channel).then_some(())
    })
    .await;
    accepted(waiter.apply(id, complete(grant, "once")).await);
    tokio::time::timeout(Duration::from_secs(20), watch.changed()).await.expect("woken");
}

// PostgreSQL has the outcome and Redis was never told. The next caller finds it in PostgreSQL.
#[tokio::test(flavor = "multi_thread")]
async fn publish_lost() {
    let servers = Servers::start();
    let proxy = FaultProxy::before(servers.redis.addr()).expect("a proxy");
    let owner = open(servers.builder_at(&format!("redis://{}", proxy.addr()))).await;
    uses_copies(&owner).await;
    let next = servers.ready().await;
    let id = key();
    let grant = win(&*owner, id).await;
    proxy.refuse();
    proxy.cut();
    let failed = owner.stats().failed;
    accepted(owner.apply(id, complete(grant, "once")).await);
    assert!(owner.stats().failed > failed, "the word to Redis was lost");
    // The busy entry is still there, for a second at most: a waiter is told to wait, and asks again.
    let outcome = eventually("the outcome", async || match ask(&*next, id, &claim()).await {
        Ok(Ruling::Busy { .. }) => None,
        ruling => Some(replayed(ruling)),
    })
    .await;
    assert_eq!(outcome, text("once"));
}

// Redis is full: writes are refused, so it takes no part, and nothing else happens.
#[tokio::test(flavor = "multi_thread")]
async fn redis_full() {
    let servers = Servers::start();
    let store = servers.ready().await;
    servers.redis.config_set("maxmemory", "1").expect("a healthy server");
    for _ in 0..20 {
        let id = key();
        let grant = win(&*store, id).await;
        accepted(store.apply(id, complete(grant, "once")).await);
        assert_eq!(replayed(ask(&*store, id, &claim()).await), text("once"));
    }
    assert_eq!(store.stats().coordination, Coordination::Away);
    assert_eq!(store.stats().breaker_opened, 1, "it is not tried by callers, and its probe writes");
    servers.redis.config_set("maxmemory", "0").expect("a healthy server");
    notices(&store, Coordination::Working).await;
}

// An evicting Redis is harmless, and not refused.
#[tokio::test(flavor = "multi_thread")]
async fn an_evicting_redis_is_taken() {
    let servers = Servers::start();
    servers.redis.config_set("maxmemory-policy", "allkeys-random").expect("a healthy server");
    let store = servers.ready().await;
    servers.redis.config_set("maxmemory", "3mb").expect("a healthy server");
    let mut grants = Vec::new();
    for _ in 0..50 {
        let id = key();
        grants.push((id, win(&*store, id).await));
    }
    for (id, grant) in &grants {
        accepted(store.apply(*id, complete(*grant, &"x".repeat(100_000))).await);
    }
    for (id, _) in &grants {
        replayed(ask(&*store, *id, &claim()).await);
    }
}

// redis_stall: Redis is frozen. One call waits for it, for as long as it may; the others go on.
#[tokio::test(flavor = "multi_thread")]
async fn redis_stall() {
    let servers = Servers::start();
    let timeout = Duration::from_millis(500);
    let store = open(servers.builder().redis_timeout(timeout)).await;
    notices(&store, Coordination::Working).await;
    eventually("copies are used", async || {
        // A busy machine may open the breaker by itself: this waits for a time in which it is closed.
        let before = store.stats().told;
        win(&*store, key()).await;
        (store.stats().told > before).then_some(())
    })
    .await;
    servers.redis.pause().expect("it runs");
    let work = async {
        for _ in 0..100 {
            let id = key();
            let grant = win(&*store, id).await;
            accepted(store.apply(id, complete(grant, "once")).await);
            assert_eq!(replayed(ask(&*store, id, &claim()).await), text("once"));
        }
    };
    // 300 calls that each waited for Redis would take more than two minutes.
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("a bounded slowdown");
    let stats = store.stats();
    assert_eq!(stats.coordination, Coordination::Away);
    assert!(stats.failed <= 4, "hardly anybody waited: {stats:?}");
    servers.redis.resume().expect("it is paused");
    notices(&store, Coordination::Working).await;
}

// backend_killed, crash_recovery: nothing acknowledged is lost with PostgreSQL, whatever Redis has.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_killed_and_restarted() {
    let servers = Servers::start();
    let mut stores = Vec::new();
    for _ in 0..2 {
        let postgres = PostgresStore::builder(servers.postgres.url()).timeout(Duration::from_secs(3));
        let store = TieredStore::builder(postgres, RedisStore::builder(&servers.redis.url()));
        stores.push(open(store.redis_timeout(Duration::from_secs(5))).await);
        uses_copies(&stores[stores.len() - 1]).await;
    }
    let (store, other) = (&stores[0], &stores[1]);
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        for number in 0..20 {
            let (id, body) = (key(), format!("{round}-{number}"));
            let grant = win(&**store, id).await;
            accepted(store.apply(id, complete(grant, &body)).await);
            acknowledged.push((id, body));
        }
        servers.postgres.kill();
        // Redis still has copies; a key it has nothing of is nobody's to grant.
        let refused = tokio::time::timeout(Duration::from_secs(30), ask(&**store, key(), &claim())).await;
        match refused {
            Ok(Err(error)) => {
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous), "{error}");
            }
            Ok(Ok(ruling)) => panic!("nobody could decide, and yet {ruling:?}"),
            Err(_) => panic!("no answer within its timeout"),
        }
        servers.postgres.restart().expect("it starts again");
        for store in [store, other] {
            let healed = eventually("it heals", async || ask(&**store, key(), &claim()).await.ok()).await;
            assert!(matches!(healed, Ruling::Won(_)), "{healed:?}");
        }
    }
    for copies in [true, false] {
        if !copies {
            servers.redis.tell(&["FLUSHALL"]).expect("a healthy server");
        }
        for (id, body) in &acknowledged {
            for store in [store, other] {
                assert_eq!(replayed(ask(&**store, *id, &claim()).await), text(body));
            }
        }
    }
}

// notify_lost: Redis' channel is silent, and only it. PostgreSQL's wakes.
#[tokio::test(flavor = "multi_thread")]
async fn either_channel_wakes() {
    let servers = Servers::start();
    let proxy = FaultProxy::before(servers.redis.addr()).expect("a proxy");
    let waiter = open(servers.builder_at(&format!("redis://{}", proxy.addr()))).await;
    uses_copies(&waiter).await;
    let owner = servers.ready().await;
    for silent in ["Redis", "PostgreSQL"] {
        let id = key();
        let grant = win(&*owner, id).await;
        let mut watch = waiter.watch(id);
        match silent {
            "Redis" => proxy.hold(Direction::ToClient),
            _ => {
                proxy.heal();
                notices(&waiter, Coordination::Working).await;
                let channel = format!("{{{id}}}");
                drop(watch);
                watch = waiter.watch(id);
                eventually("the subscription", async || {
                    let channels = servers.redis.tell(&["PUBSUB", "CHANNELS"]).ok()?.text();
                    channels.contains(&channel).then_some(())
                })
                .await;
                // Nobody has to notify for a row that nobody waits for.
                servers.postgres.sql("UPDATE semel.record SET watched = false").expect("a healthy server");
            }
        }
        // Wakes that say "look, something may have been missed" may still be on their way.
        while tokio::time::timeout(Duration::from_millis(300), watch.changed()).await.is_ok() {}
        accepted(owner.apply(id, complete(grant, "once")).await);
        let woken = tokio::time::timeout(Duration::from_secs(20), watch.changed()).await;
        assert!(woken.is_ok(), "{silent} is silent, and nobody else woke the waiter");
    }
}

// Redis without persistence comes back empty: nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn restart_empty() {
    let servers = Arc::new(Servers {
        postgres: Postgres::start().expect("a PostgreSQL server can be started"),
        redis: Redis::options().persistence(Persistence::None).start().expect("redis-server starts"),
    });
    let store = servers.ready().await;
    let id = key();
    let grant = win(&*store, id).await;
    accepted(store.apply(id, complete(grant, "once")).await);
    servers.redis.restart().expect("it starts again");
    assert_eq!(replayed(ask(&*store, id, &claim()).await), text("once"));
    assert!(matches!(ask(&*store, id, &claim()).await, Ok(Ruling::Replay { .. })));
}
