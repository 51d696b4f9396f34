//! Wrong settings end in a sentence, and right ones work: users, TLS, prefixes.

use semel::store::ErrorKind;

use super::*;

async fn refusal(url: &str) -> Error {
    RedisStore::builder(url)
        .connect_timeout(Duration::from_secs(5))
        .connect()
        .await
        .map(|_| ())
        .expect_err("it cannot be connected to")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_url_is_named() {
    for (url, says) in [
        ("localhost:6379", "redis://"),
        ("http://localhost", "redis-cluster://"),
        ("redis-sentinel://localhost:26379", "names the service"),
        ("redis://:hun ter2@@localhost:x", "cannot be read: it looks like redis://"),
    ] {
        let error = refusal(url).await;
        assert_eq!(error.kind(), ErrorKind::Setup, "{url}: {error}");
        assert!(error.to_string().contains(says), "{url}: {error}");
        assert!(!error.to_string().contains("ter2"), "the password is shown: {error}");
    }
    let error = refusal("redis://127.0.0.1:1").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("is it running"), "{error}");
    let error =
        RedisStore::builder("redis://127.0.0.1:1").prefix("a{b}").connect().await.expect_err("a brace");
    assert!(error.to_string().contains("braces"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_named() {
    let server = Redis::options().password("right").start().expect("redis-server starts");
    for user in ["", ":wrong@"] {
        let error = refusal(&format!("redis://{user}{}", server.addr())).await;
        assert_eq!(error.kind(), ErrorKind::Setup, "{error}");
        assert!(error.to_string().contains("password"), "{error}");
        assert!(error.to_string().contains("URL"), "says what to do: {error}");
        assert!(!error.to_string().contains("wrong@"), "{error}");
    }
    let store = connect(&format!("redis://:right@{}", server.addr())).await;
    assert_eq!(store.to_string(), format!("redis://{}", server.addr()), "shown without its password");
    win(&store, key()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_refused() {
    let (primary, replica) = (server(), server());
    replica.replica_of(&primary).expect("a replica");
    let error = refusal(&replica.url()).await;
    assert_eq!(error.kind(), ErrorKind::Setup, "{error}");
    assert!(error.to_string().contains("give the URL of its primary, or of Sentinel"), "{error}");
}

/// The rights that docs/reference/redis-store.md lists: enough, and CONFIG is not among them.
const RIGHTS: &str = "on >pw ~semel:* &semel:* +@connection +@pubsub +@scripting +info +time +get +set +setrange +del \
                      +pttl +incr +pexpire +exists +hsetnx +hset +hget +hincrby +scan +wait";

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_config_is_enough() {
    let server = Redis::options().user("app", RIGHTS).start().expect("redis-server starts");
    let url = format!("redis://app:pw@{}", server.addr());
    let context = Context::new(connect(&url).await).peer(connect(&url).await);
    agrees_with_the_rules(&context, 5, 300).await;
    server.config_set("maxmemory-policy", "allkeys-lru").expect("a healthy server");
    assert!(refusal(&url).await.to_string().contains("allkeys-lru"), "read by INFO");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_named() {
    for lacks in ["-@scripting", "-info", "resetkeys", "resetchannels"] {
        let rules = format!("{RIGHTS} {lacks}");
        let server = Redis::options().user("app", &rules).start().expect("redis-server starts");
        let error = refusal(&format!("redis://app:pw@{}", server.addr())).await;
        assert_eq!(error.kind(), ErrorKind::Setup, "{lacks}: {error}");
        let sentence = error.to_string();
        assert!(
            sentence.contains("NOPERM") && sentence.contains("docs/reference/redis-store.md"),
            "{lacks}: {error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls() {
    let server = Redis::options().tls().start().expect("redis-server starts");
    let authority = std::fs::read(server.ca_cert().expect("it has TLS")).expect("a certificate");
    let url = server.tls_url().expect("it has TLS");
    let store =
        RedisStore::builder(&url).root_certificate(authority).connect().await.expect("a trusted server");
    let id = key();
    let grant = win(&store, id).await;
    accepted(store.apply(id, complete(grant, "once")).await);
    replayed(ask(&store, id, &claim()).await);
    let error = refusal(&url).await;
    assert!(error.to_string().contains("certificate"), "an unknown authority: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn persistence_is_said_in_plain_words() {
    use semel_testbed::redis::Persistence;
    for (persistence, says) in [
        (Persistence::None, Some("nothing on disk")),
        (Persistence::EverySecond, Some("once a second")),
        (Persistence::Always, None),
    ] {
        let server = Redis::options().persistence(persistence).start().expect("redis-server starts");
        let warnings = connect(&server.url()).await.warnings();
        match says {
            Some(says) => assert!(warnings.iter().any(|warning| warning.contains(says)), "{warnings:?}"),
            None => assert!(warnings.is_empty(), "{warnings:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prefixes_keep_deployments_apart() {
    let server = server();
    let mut stores = Vec::new();
    for prefix in ["one", "two"] {
        let store = RedisStore::builder(&server.url()).prefix(prefix).connect().await;
        stores.push(Arc::new(store.expect("a healthy server")));
    }
    let id = key();
    win(&stores[0], id).await;
    win(&stores[1], id).await;
}
