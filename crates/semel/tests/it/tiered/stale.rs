//! What Redis holds of a forgotten or re-executed outcome is never believed.

use semel::record::Force;
use semel_testbed::redis::Persistence;
use semel_testbed::{Direction, FaultProxy};

use super::*;

/// A key that is done, and whose copy both stores use.
async fn done(stores: [&Arc<TieredStore>; 2]) -> KeyId {
    let id = key();
    let grant = win(&**stores[0], id).await;
    accepted(stores[0].apply(id, complete(grant, "old")).await);
    for store in stores {
        eventually("both use the copy", async || {
            let before = store.stats().replayed_copies;
            assert_eq!(replayed(ask(&**store, id, &claim()).await), text("old"));
            (store.stats().replayed_copies > before).then_some(())
        })
        .await;
    }
    id
}

/// The next claim wins, and its outcome is what is replayed.
async fn is_anew(stores: [&Arc<TieredStore>; 2], id: KeyId) {
    let grant = win(&**stores[1], id).await;
    busy(ask(&**stores[0], id, &claim()).await);
    accepted(stores[1].apply(id, complete(grant, "new")).await);
    for store in stores {
        assert_eq!(replayed(ask(&**store, id, &claim()).await), text("new"));
    }
}

// Forgotten by one process: from its answer on no other replays it.
#[tokio::test(flavor = "multi_thread")]
async fn forget_reaches_every_process() {
    let servers = Servers::start();
    let (one, two) = (servers.ready().await, servers.ready().await);
    for _ in 0..10 {
        let id = done([&one, &two]).await;
        accepted(one.apply(id, Command::Forget(Force::No)).await);
        is_anew([&one, &two], id).await;
        accepted(two.apply(id, Command::Reexecute).await);
        is_anew([&two, &one], id).await;
    }
}

// The one who forgets is cut off from Redis, and nobody else noticed an outage: Redis still has the copy.
#[tokio::test(flavor = "multi_thread")]
async fn forget_during_an_outage_that_one_process_sees() {
    for command in [Command::Forget(Force::No), Command::Reexecute] {
        let servers = Servers::start();
        let proxy = FaultProxy::before(servers.redis.addr()).expect("a proxy");
        let cut_off = open(servers.builder_at(&format!("redis://{}", proxy.addr()))).await;
        uses_copies(&cut_off).await;
        let other = servers.ready().await;
        let id = done([&cut_off, &other]).await;
        proxy.refuse();
        proxy.cut();
        notices_away(&cut_off).await;
        accepted(cut_off.apply(id, command).await);
        assert!(servers.entries().iter().any(|name| name.contains(&id.to_string())), "Redis was not told");
        assert_eq!(other.stats().breaker_opened, 0, "the other one noticed nothing");
        // A process that comes later, and knows only what is there.
        let later = servers.open().await;
        uses_copies(&later).await;
        is_anew([&later, &other], id).await;
        proxy.heal();
        notices(&cut_off, Coordination::Working).await;
        assert_eq!(replayed(ask(&*cut_off, id, &claim()).await), text("new"));
    }
}

/// Asks until the store has noticed that Redis is away.
async fn notices_away(store: &Arc<TieredStore>) {
    eventually("the outage", async || {
        let _ = ask(&**store, key(), &claim()).await;
        (store.stats().coordination == Coordination::Away).then_some(())
    })
    .await;
}

// By a process that knows nothing of Redis: an operator at the database.
#[tokio::test(flavor = "multi_thread")]
async fn forget_past_redis() {
    let servers = Servers::start();
    let (one, two) = (servers.ready().await, servers.ready().await);
    let id = done([&one, &two]).await;
    let plain = PostgresStore::open(servers.postgres.url()).await.expect("a healthy server");
    accepted(plain.apply(id, Command::Forget(Force::No)).await);
    is_anew([&one, &two], id).await;
}

// Redis is set back to before the forget: with the data of its last snapshot, and without an outage of its own making.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_was_set_back_is_not_believed() {
    let servers = Servers::start();
    let (one, two) = (servers.ready().await, servers.ready().await);
    let id = done([&one, &two]).await;
    let name = servers.entries().into_iter().find(|name| name.contains(&id.to_string()));
    let name = name.expect("there is a copy");
    // COPY keeps the bytes; nothing that a test client would have to spell.
    servers.redis.tell(&["COPY", &name, "before"]).expect("a healthy server");
    accepted(one.apply(id, Command::Forget(Force::No)).await);
    servers.redis.tell(&["COPY", "before", &name, "REPLACE"]).expect("a healthy server");
    let grant = win(&*two, id).await;
    servers.redis.tell(&["COPY", "before", &name, "REPLACE"]).expect("a healthy server");
    busy(ask(&*one, id, &claim()).await);
    accepted(two.apply(id, complete(grant, "new")).await);
    for store in [&one, &two] {
        servers.redis.tell(&["COPY", "before", &name, "REPLACE"]).expect("a healthy server");
        assert_eq!(replayed(ask(&**store, id, &claim()).await), text("new"));
    }
}

// Everything in Redis from before an outage is ignored after it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_older_than_the_outage_is_ignored() {
    let servers = Arc::new(Servers {
        postgres: Postgres::start().expect("a PostgreSQL server can be started"),
        redis: Redis::options().persistence(Persistence::Always).start().expect("redis-server starts"),
    });
    let store = servers.ready().await;
    let id = done([&store, &store]).await;
    servers.redis.kill();
    notices_away(&store).await;
    servers.redis.restart().expect("it starts again");
    notices(&store, Coordination::Working).await;
    assert!(servers.entries().iter().any(|name| name.contains(&id.to_string())), "Redis kept the copy");
    let before = store.stats();
    assert_eq!(replayed(ask(&*store, id, &claim()).await), text("old"));
    let after = store.stats();
    assert_eq!(after.replayed_copies, before.replayed_copies, "the copy is older than the outage");
    assert_eq!(after.asked_postgres, before.asked_postgres + 1);
    // From PostgreSQL's answer there is a new one.
    eventually("a new copy", async || {
        let before = store.stats().replayed_copies;
        replayed(ask(&*store, id, &claim()).await);
        (store.stats().replayed_copies > before).then_some(())
    })
    .await;
}

// A copy that was written late, after the forget, by an owner whose word to Redis was held up on the way.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_copy_is_an_old_one() {
    let servers = Servers::start();
    let proxy = FaultProxy::before(servers.redis.addr()).expect("a proxy");
    let slow = servers.builder_at(&format!("redis://{}", proxy.addr())).redis_timeout(Duration::from_secs(1));
    let slow = open(slow).await;
    uses_copies(&slow).await;
    let other = servers.ready().await;
    let id = key();
    let grant = win(&*slow, id).await;
    proxy.hold(Direction::ToServer);
    accepted(slow.apply(id, complete(grant, "old")).await);
    accepted(other.apply(id, Command::Forget(Force::No)).await);
    proxy.release();
    // It may have been written by now, or not: either way it is not believed.
    let grant = win(&*other, id).await;
    accepted(other.apply(id, complete(grant, "new")).await);
    assert_eq!(replayed(ask(&*other, id, &claim()).await), text("new"));
}

// While word of forgets may get lost, no copy is used.
#[tokio::test(flavor = "multi_thread")]
async fn without_word_of_forgets_no_copy_is_used() {
    let servers = Servers::start();
    let proxy = FaultProxy::before(servers.postgres.addr()).expect("a proxy");
    let url = servers.postgres.url_at(proxy.addr(), "postgres");
    let postgres = PostgresStore::builder(url).timeout(Duration::from_secs(2));
    let deaf = TieredStore::builder(postgres, RedisStore::builder(&servers.redis.url()));
    let deaf = open(deaf.redis_timeout(Duration::from_secs(5))).await;
    uses_copies(&deaf).await;
    let other = servers.ready().await;
    let id = done([&deaf, &other]).await;
    // It can be replayed for a while, but not once the forget was answered.
    proxy.hold(Direction::ToClient);
    // Past Redis, which keeps the copy.
    let plain = PostgresStore::open(servers.postgres.url()).await.expect("a healthy server");
    accepted(plain.apply(id, Command::Forget(Force::No)).await);
    let asked = ask(&*deaf, id, &claim()).await;
    assert!(asked.is_err(), "PostgreSQL does not answer, and Redis is not believed: {asked:?}");
    proxy.heal();
}
