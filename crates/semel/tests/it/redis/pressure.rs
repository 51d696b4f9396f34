//! A server that forgets, or has no room.

use semel::store::ErrorKind;

use super::*;

// eviction_policy: refused at the start, and claims are refused as soon as it changes at run time.
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

/// Fills a server's memory with other people's keys.
fn fill(server: &Redis) {
    server.config_set("maxmemory", "8mb").expect("a healthy server");
    let mut conn = server.connect().expect("a healthy server");
    let ballast = "x".repeat(10_000);
    let full = (0..10_000).any(|number| conn.tell(&["SET", &format!("ballast:{number}"), &ballast]).is_err());
    assert!(full, "8 MB hold no 100 MB");
    // Well below what is used now: a buffer that is given back must not make room again.
    server.config_set("maxmemory", "6mb").expect("a healthy server");
}

// redis_oom: no room is said before any effect; what is done is still replayed.
#[tokio::test(flavor = "multi_thread")]
async fn redis_oom() {
    let server = server();
    let store = connect(&server.url()).await;
    let done = key();
    let grant = win(&store, done).await;
    accepted(store.apply(done, complete(grant, "once")).await);
    fill(&server);
    for _ in 0..rounds(20, 2_000) {
        let refused = ask(&store, key(), &claim()).await.expect_err("there is no room");
        assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
        assert!(refused.to_string().contains("maxmemory"), "{refused}");
        replayed(ask(&store, done, &claim()).await);
    }
    store.sweep(100).await.expect("sweeping makes room, it needs none");
    server.config_set("maxmemory", "0").expect("a healthy server");
    win(&store, key()).await;
}

// publish_at_oom: memory is full between begin and publish: who holds a claim can renew and complete it.
#[tokio::test(flavor = "multi_thread")]
async fn publish_at_oom() {
    let server = server();
    let store = connect(&server.url()).await;
    let mut begun = Vec::new();
    for _ in 0..rounds(20, 500) {
        let id = key();
        begun.push((id, win(&store, id).await));
    }
    fill(&server);
    for (id, grant) in begun {
        accepted(store.apply(id, Command::Renew(grant)).await);
        accepted(store.apply(id, complete(grant, &"published without room".repeat(100))).await);
        replayed(ask(&store, id, &claim()).await);
    }
}

// More callers than the connection's queue has places, all of which stop in the middle of their calls. Another call,
// such as a heartbeat, is answered.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_stop_hold_up_nobody() {
    let server = server();
    let store = RedisStore::builder(&server.url()).response_timeout(Duration::from_secs(60)).connect().await;
    let store = store.expect("a healthy server");
    let grant = win(&store, key()).await;
    // So large that the sockets take only few of them.
    let large = complete(grant, &"x".repeat(8192));
    server.pause().expect("it runs");
    // On a thread of its own: inside a task the number of polls is limited.
    let stopped: Vec<_> = std::thread::scope(|scope| {
        let poll_once = || {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let mut calls: Vec<_> = (0..10_000).map(|_| store.apply(key(), large.clone())).collect();
            for call in &mut calls {
                assert!(call.as_mut().poll(&mut context).is_pending(), "nobody answers");
            }
            calls
        };
        scope.spawn(poll_once).join().expect("every call waits")
    });
    server.resume().expect("it is paused");
    let others = async {
        let id = key();
        let grant = win(&store, id).await;
        accepted(store.apply(id, Command::Renew(grant)).await);
    };
    tokio::time::timeout(Duration::from_secs(30), others).await.expect("nobody waits for them");
    drop(stopped);
}
