//! A server that forgets, or has no room (failure-modes 5.3).

use semel::store::ErrorKind;

use super::*;

// eviction_policy: refused at the start, and claims are refused as soon as it is changed under way.
#[tokio::test(flavor = "multi_thread")]
async fn eviction_policy() {
    for policy in ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-lfu", "volatile-random"] {
        let server =
            Redis::options().config("maxmemory-policy", policy).start().expect("redis-server starts");
        let refused = RedisStore::connect(&server.url()).await.expect_err("an evicting server");
        assert_eq!(refused.kind(), ErrorKind::Setup);
        let sentence = refused.to_string();
        assert!(sentence.contains(policy) && sentence.contains("noeviction"), "{sentence}");
    }
    let server = server();
    let store = RedisStore::builder(&server.url()).check_every(Duration::from_millis(50)).connect().await;
    let store = store.expect("a healthy server");
    let id = key();
    let grant = win(&store, id).await;
    server.config_set("maxmemory-policy", "allkeys-lru").expect("a healthy server");
    let refused = eventually("claims are refused", async || ask(&store, key(), &claim()).await.err()).await;
    assert_eq!(refused.kind(), ErrorKind::Setup, "{refused}");
    accepted(store.apply(id, complete(grant, "who holds a claim may end it")).await);
    replayed(ask(&store, id, &claim()).await);
    server.config_set("maxmemory-policy", "noeviction").expect("a healthy server");
    won(Ok(eventually("claims are granted again", async || ask(&store, key(), &claim()).await.ok()).await));
}

// redis_oom, publish_at_oom: no room is said before any effect; who holds a claim can still complete it, and what is
// done is still replayed.
#[tokio::test(flavor = "multi_thread")]
async fn redis_oom() {
    let server = server();
    let store = connect(&server.url()).await;
    let (done, begun) = (key(), key());
    let grant = win(&store, done).await;
    accepted(store.apply(done, complete(grant, "once")).await);
    let grant = win(&store, begun).await;
    server.config_set("maxmemory", "1mb").expect("a healthy server");
    let refused = ask(&store, key(), &claim()).await.expect_err("there is no room");
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
    replayed(ask(&store, done, &claim()).await);
    accepted(store.apply(begun, Command::Renew(grant)).await);
    accepted(store.apply(begun, complete(grant, "published without room")).await);
    replayed(ask(&store, begun, &claim()).await);
    store.sweep(100).await.expect("sweeping makes room, it needs none");
    server.config_set("maxmemory", "0").expect("a healthy server");
    win(&store, key()).await;
}
