//! The server loses the secret with everything else, or comes to hold another: what a process that uses the old one may
//! still do.

use semel::record::{Begin, Mode, Phase, Ruling};
use semel::secret::Secret;
use semel::store::ErrorKind;
use semel::{Answer, Engine, Failure, Key, RunError};
use semel_testbed::redis::Persistence;
use semel_testbed::{Direction, FaultProxy, RedisCluster, Storage};

use super::*;

const SECRET: &str = "semel:secret";

/// What the server does at once: all data are gone, and another process has made a secret of its own.
fn lose_all_and_make_another(server: &Redis) {
    let script = "redis.call('FLUSHALL') redis.call('SET', KEYS[1], ARGV[1])";
    server.tell(&["EVAL", script, "1", SECRET, &"x".repeat(32)]).expect("a healthy server");
}

fn kept(server: &Redis) -> Vec<u8> {
    match server.tell(&["GET", SECRET]).expect("a healthy server") {
        semel_testbed::resp::Reply::Bulk(bytes) => bytes,
        other => panic!("a secret, but it is {other:?}"),
    }
}

async fn given(store: &RedisStore) -> Secret {
    store.secret(Secret::random()).await.unwrap_or_else(|error| panic!("{error}"))
}

fn in_mode(mode: Mode, begin: Begin) -> NewClaim {
    NewClaim { terms: Arc::new(Terms { mode, ..Terms::default() }), begin, ..claim() }
}

/// By plain commands, and by the script.
fn claims() -> [NewClaim; 3] {
    [
        in_mode(Mode::Keyed, Begin::WithClaim),
        in_mode(Mode::Marked, Begin::Later),
        in_mode(Mode::Marked, Begin::WithClaim),
    ]
}

/// A store whose packets a test can hold back.
async fn behind(proxy: &FaultProxy) -> Arc<RedisStore> {
    let store = RedisStore::builder(&format!("redis://{}", proxy.addr()))
        .response_timeout(Duration::from_secs(20))
        .connect()
        .await;
    Arc::new(store.unwrap_or_else(|error| panic!("{error}")))
}

fn send(
    store: &Arc<RedisStore>,
    id: KeyId,
    claim: &NewClaim,
) -> tokio::task::JoinHandle<Result<Ruling, Error>> {
    let (store, claim) = (Arc::clone(store), claim.clone());
    tokio::spawn(async move { ask(&store, id, &claim).await })
}

// The claim is on its way while another process makes another secret: nothing that this process asked before can have
// told it, and yet it wins nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_on_its_way_is_not_won_under_another_secret() {
    for claim in claims() {
        let server = server();
        let proxy = FaultProxy::before(server.addr()).expect("a proxy");
        let store = behind(&proxy).await;
        given(&store).await;
        win(&store, key()).await;
        let id = key();
        proxy.hold(Direction::ToServer);
        let asked = send(&store, id, &claim);
        lose_all_and_make_another(&server);
        proxy.release();
        let refused = asked.await.expect("no panic").expect_err("the secret is another");
        assert_eq!(refused.kind(), ErrorKind::SecretDiffers, "{refused}");
        assert!(!refused.is_retryable(), "only a restart helps");
        let left = store.get(id).await.expect("a healthy server");
        let given_back = |phase| matches!(phase, Phase::Vacant | Phase::Bound);
        assert!(left.is_none_or(|left| given_back(left.phase())), "nothing is left in doubt or claimed");
        let again = ask(&store, key(), &claim).await.expect_err("nor the next one");
        assert_eq!(again.kind(), ErrorKind::SecretDiffers, "{again}");
    }
}

// A replay is an answer too. Here the record is still there, as on a cluster that lost the shard of the secret.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_not_replayed_under_another_secret() {
    for mostly_replays in [false, true] {
        let server = server();
        let proxy = FaultProxy::before(server.addr()).expect("a proxy");
        let store = behind(&proxy).await;
        given(&store).await;
        let id = key();
        let grant = win(&store, id).await;
        accepted(store.apply(id, complete(grant, "once")).await);
        for _ in 0..if mostly_replays { 20 } else { 0 } {
            replayed(ask(&store, id, &claim()).await);
        }
        proxy.hold(Direction::ToServer);
        let asked = send(&store, id, &claim());
        server.tell(&["SET", SECRET, &"x".repeat(32)]).expect("a healthy server");
        proxy.release();
        let refused = asked.await.expect("no panic").expect_err("the secret is another");
        assert_eq!(refused.kind(), ErrorKind::SecretDiffers, "{refused}");
    }
}

// The secret is missing, and nobody has made another: it is put back before anything is won.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_gone_is_put_back_with_the_next_claim() {
    for claim in claims() {
        let server = server();
        let proxy = FaultProxy::before(server.addr()).expect("a proxy");
        let store = behind(&proxy).await;
        let secret = given(&store).await;
        let id = key();
        proxy.hold(Direction::ToServer);
        let asked = send(&store, id, &claim);
        server.tell(&["FLUSHALL"]).expect("a healthy server");
        proxy.release();
        let first = asked.await.expect("no panic");
        assert_eq!(kept(&server), secret.expose(), "it was put back before the answer");
        // Whether the claim was lost as well is not known at first. Its owner asks again.
        let grant = match first {
            Err(error) if error.kind() == ErrorKind::Ambiguous => won(ask(&store, id, &claim).await),
            first => won(first),
        };
        assert!(store.get(id).await.expect("a healthy server").is_some(), "what was won is there");
        accepted(store.apply(id, Command::Release(grant)).await);
        let later = connect(&server.url()).await;
        assert_eq!(given(&later).await.expose(), secret.expose());
    }
}

// Without any claim, within a beat.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_gone_is_put_back_by_an_idle_process() {
    let server = Redis::options().persistence(Persistence::None).start().expect("redis-server starts");
    let store = connect(&server.url()).await;
    let secret = given(&store).await;
    server.restart().expect("it starts again, with nothing");
    let there = || server.tell(&["EXISTS", SECRET]).is_ok_and(|reply| reply.text() == "1");
    eventually("the secret is back", async || there().then_some(())).await;
    assert_eq!(kept(&server), secret.expose());
}

// A process that starts after the loss asks those that run before it makes a secret, and until then they have dropped
// what they remember.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_finds_no_secret_gets_that_of_the_others() {
    let server = server();
    let store = connect(&server.url()).await;
    let engine = Engine::builder(store.clone()).build().expect("an engine");
    let once = async || -> Result<Answer<u32>, RunError> {
        let call = engine.once(Key::new("charge").value("order-1"));
        call.run(async || Ok::<u32, Failure>(1)).await
    };
    let remembers = || {
        let key = Key::new("charge").value("order-1");
        engine.at_hand(&key, semel::fingerprint::Payload::none()).is_some()
    };
    eventually("it remembers the outcome", async || {
        once().await.expect("a healthy server");
        remembers().then_some(())
    })
    .await;
    let secret = given(&store).await;

    server.tell(&["FLUSHALL"]).expect("a healthy server");
    let later = connect(&server.url()).await;
    assert_eq!(given(&later).await.expose(), secret.expose());
    assert!(!remembers(), "what the other may run again is not replayed from memory");
    assert!(!once().await.expect("a healthy server").replayed, "its record is lost");
}

// Processes that start together after a loss, with nobody to ask, agree.
#[tokio::test(flavor = "multi_thread")]
async fn processes_that_start_together_agree_on_a_secret() {
    for _ in 0..rounds(3, 50) {
        let server = server();
        let start = |_| {
            let url = server.url();
            tokio::spawn(async move {
                let store = connect(&url).await;
                (*given(&store).await.expose(), store)
            })
        };
        let tasks: Vec<_> = (0..8).map(start).collect();
        let (mut secrets, mut stores) = (Vec::new(), Vec::new());
        for task in tasks {
            let (secret, store) = task.await.expect("no panic");
            secrets.push(secret);
            // Nobody leaves while the others wait for its word.
            stores.push(store);
        }
        assert!(secrets.iter().all(|secret| *secret == secrets[0]));
        assert_eq!(kept(&server), secrets[0]);
    }
}

// A process works under one secret, and works on when the store keeps it again.
#[tokio::test(flavor = "multi_thread")]
async fn another_secret_is_not_given_to_the_same_process() {
    let server = server();
    let store = connect(&server.url()).await;
    let secret = given(&store).await;
    let keep = |bytes: &[u8]| {
        let escaped: String = bytes.iter().map(|byte| format!("\\{byte}")).collect();
        let script = format!("redis.call('SET', KEYS[1], '{escaped}')");
        server.tell(&["EVAL", &script, "1", SECRET]).expect("a healthy server");
    };
    keep(&[7; 32]);
    let refused = store.secret(Secret::random()).await.expect_err("it has another");
    assert_eq!(refused.kind(), ErrorKind::SecretDiffers, "{refused}");
    assert_eq!(ask(&store, key(), &claim()).await.expect_err("refused").kind(), ErrorKind::SecretDiffers);
    keep(secret.expose());
    won(Ok(eventually("it works again", async || ask(&store, key(), &claim()).await.ok()).await));
    assert_eq!(given(&store).await.expose(), secret.expose());
}

// Who was given none, because it was configured, is never refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_configured_secret_is_not_compared() {
    let server = server();
    let store = connect(&server.url()).await;
    let engine =
        Engine::builder(store.clone()).secret(Secret::from_bytes([1; 32])).build().expect("an engine");
    lose_all_and_make_another(&server);
    for _ in 0..2 {
        engine.verify(3).await.expect("claims work");
        eventually("the loss is noticed", async || store.has_lost_data().then_some(())).await;
    }
}

// On a cluster the secret is on another shard than most keys. It is read after the claim was answered.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_cluster_a_claim_is_not_won_under_another_secret() {
    let options = Redis::options().storage(Storage::Memory).persistence(Persistence::None);
    let cluster = RedisCluster::start_with(&options).expect("a cluster");
    let nodes: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
    let store = connect(&format!("redis-cluster://{}", nodes.join(","))).await;
    let secret = given(&store).await;
    win(&store, key()).await;
    let shard = cluster.slot_of(SECRET).and_then(|slot| cluster.primary_of(slot)).expect("a healthy cluster");
    let shard = cluster.node(shard);

    // That shard alone comes back with nothing: put back, and the records of the others stay good.
    shard.tell(&["DEL", SECRET]).expect("a healthy cluster");
    let grant = eventually("a claim is won", async || ask(&store, key(), &claim()).await.ok()).await;
    won(Ok(grant));
    assert_eq!(kept(shard), secret.expose());

    shard.tell(&["SET", SECRET, &"x".repeat(32)]).expect("a healthy cluster");
    let id = key();
    let refused = ask(&store, id, &claim()).await.expect_err("the secret is another");
    assert_eq!(refused.kind(), ErrorKind::SecretDiffers, "{refused}");
    let left = store.get(id).await.expect("a healthy cluster");
    assert!(left.is_none_or(|left| left.phase() == Phase::Vacant), "nothing is left in doubt or claimed");
}
