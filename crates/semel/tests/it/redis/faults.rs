//! Faults of one server, each with its promised end.

use semel::record::{Phase, Ruling};
use semel::store::{ErrorKind, OnStoreLoss};
use semel_testbed::redis::Persistence;
use semel_testbed::{Direction, FaultProxy};

use super::*;

// noscript: the server forgets its scripts by SCRIPT FLUSH or a restart, and nobody notices.
#[tokio::test(flavor = "multi_thread")]
async fn noscript() {
    // Synced before it answers: with less, a killed server may come back without what it said.
    let server = Redis::options().persistence(Persistence::Always).start().expect("redis-server starts");
    let store = connect(&server.url()).await;
    let id = key();
    let grant = win(&store, id).await;
    server.tell(&["SCRIPT", "FLUSH"]).expect("a healthy server");
    accepted(store.apply(id, complete(grant, "once")).await);
    server.restart().expect("it starts again");
    let outcome =
        eventually("a replay after the restart", async || ask(&store, id, &claim()).await.ok()).await;
    assert_eq!(replayed(Ok(outcome)).body(), &semel::outcome::OutcomeBody::Kept(b"once".to_vec()));
}

// redis_stall: a server that stands still for two seconds is an unknown fate, and the same owner learns it afterwards.
// Leases do not stand still with it.
#[tokio::test(flavor = "multi_thread")]
async fn redis_stall() {
    let server = server();
    let store =
        RedisStore::builder(&server.url()).response_timeout(Duration::from_millis(200)).connect().await;
    let store = Arc::new(store.expect("a healthy server"));
    let second = Duration::from_secs(1);
    let terms = Arc::new(Terms { lease: second, in_flight_max: second, ..Terms::default() });
    let early = key();
    won(ask(&store, early, &NewClaim { terms, ..claim() }).await);
    let (id, mine) = (key(), claim());
    server.pause().expect("it runs");
    let stall = tokio::time::sleep(2 * second);
    let fate = ask(&store, id, &mine).await.expect_err("nobody answers");
    assert_eq!(fate.kind(), ErrorKind::Ambiguous, "{fate}");
    stall.await;
    server.resume().expect("it is paused");
    let grant = eventually("the claim is mine", async || ask(&store, id, &mine).await.ok()).await;
    let grant = won(Ok(grant));
    assert!(
        matches!(ask(&store, id, &claim()).await, Ok(Ruling::Busy { .. })),
        "somebody else's comes second"
    );
    accepted(store.apply(id, complete(grant, "once")).await);
    let after = ask(&store, early, &claim()).await;
    assert!(matches!(after, Ok(Ruling::InDoubt)), "begun, and its lease ended meanwhile: {after:?}");
}

// A reply that is lost on the way: the write happened, and its repetition says so.
#[tokio::test(flavor = "multi_thread")]
async fn lost_reply_is_ambiguous_and_repeatable() {
    let server = server();
    let proxy = FaultProxy::before(server.addr()).expect("a proxy");
    let store = RedisStore::builder(&format!("redis://{}", proxy.addr()))
        .response_timeout(Duration::from_millis(300))
        .connect()
        .await
        .expect("a healthy server");
    let store = Arc::new(store);
    let (id, mine) = (key(), claim());
    proxy.hold(Direction::ToClient);
    let fate = ask(&store, id, &mine).await.expect_err("nothing comes back");
    assert_eq!(fate.kind(), ErrorKind::Ambiguous, "{fate}");
    proxy.heal();
    let again = eventually("the repeated claim", async || ask(&store, id, &mine).await.ok()).await;
    let Ruling::Won(again) = again else { panic!("the claim was mine: {again:?}") };
    assert_eq!(again.attempt, 1, "one claim, asked twice");
}

// reply_desync: callers that hang up, a fifth of them, leave no answer behind for others. Every outcome names its own
// key. A million calls in the full form.
#[tokio::test(flavor = "multi_thread")]
async fn reply_desync() {
    let server = server();
    let store = connect(&server.url()).await;
    let ids: Vec<KeyId> = (0..50).map(|_| key()).collect();
    for id in &ids {
        let grant = win(&store, *id).await;
        accepted(store.apply(*id, complete(grant, &id.to_string())).await);
    }
    for round in 0..rounds(200, 20_000) {
        let calls: Vec<_> = ids
            .iter()
            .map(|id| {
                let (store, id) = (Arc::clone(&store), *id);
                tokio::spawn(async move {
                    let outcome = replayed(ask(&store, id, &claim()).await);
                    assert_eq!(
                        outcome.body(),
                        &semel::outcome::OutcomeBody::Kept(id.to_string().into_bytes())
                    );
                })
            })
            .collect();
        for (number, call) in calls.iter().enumerate() {
            if (number + round) % 5 == 0 {
                // Some before they were sent, some while they wait for the answer.
                call.abort();
            }
        }
        for call in calls {
            match call.await {
                Ok(()) => {}
                Err(error) => assert!(error.is_cancelled(), "an answer for somebody else: {error}"),
            }
        }
    }
}

// restart_empty: the server comes back with nothing: said aloud, and new claims are refused where that was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn restart_empty() {
    let server = Redis::options().persistence(Persistence::None).start().expect("redis-server starts");
    let cautious = RedisStore::builder(&server.url())
        .on_store_loss(OnStoreLoss::Refuse(Duration::from_secs(3600)))
        .connect()
        .await
        .expect("a healthy server");
    let carefree = connect(&server.url()).await;
    let id = key();
    let grant = win(&carefree, id).await;
    accepted(carefree.apply(id, complete(grant, "once")).await);
    server.restart().expect("it starts again");
    eventually("word of the loss", async || {
        let asked = ask(&cautious, id, &claim()).await;
        assert!(!matches!(asked, Ok(Ruling::Won(_))), "a claim was granted after the loss");
        // The outage is an error too.
        asked.err().filter(|error| error.to_string().contains("less data")).map(drop)
    })
    .await;
    assert!(cautious.has_lost_data());
    eventually("the other process sees it too", async || carefree.has_lost_data().then_some(())).await;
    win(&carefree, id).await;
    // A process that comes later is told by the marker.
    let later =
        RedisStore::builder(&server.url()).on_store_loss(OnStoreLoss::Refuse(Duration::from_secs(3600)));
    let later = later.connect().await.expect("it connects all the same");
    assert_eq!(ask(&later, key(), &claim()).await.expect_err("refused").kind(), ErrorKind::Unavailable);
    assert!(
        matches!(ask(&later, id, &claim()).await, Ok(Ruling::Busy { .. })),
        "what is known is still answered"
    );
}

// flushall / key_deleted: noticed within a beat.
#[tokio::test(flavor = "multi_thread")]
async fn flushall() {
    let server = server();
    let store = connect(&server.url()).await;
    win(&store, key()).await;
    assert!(!store.has_lost_data());
    server.tell(&["FLUSHALL"]).expect("a healthy server");
    eventually("word of the loss", async || store.has_lost_data().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn key_deleted() {
    let server = server();
    let store = connect(&server.url()).await;
    let id = key();
    let grant = win(&store, id).await;
    server.tell(&["DEL", &format!("semel:{{{id}}}")]).expect("a healthy server");
    // The owner is refused: what it did cannot be told from somebody else's.
    assert!(matches!(store.apply(id, complete(grant, "late")).await, Ok(Ruling::Lost { winner: None })));
    let next = win(&store, id).await;
    assert!(next.fence() > grant.fence(), "the clock keeps the fence up");
}

// crossslot: whatever the bytes of an id, its key has one tag, and all a script touches lies under it.
#[tokio::test(flavor = "multi_thread")]
async fn crossslot() {
    let server = server();
    let store = connect(&server.url()).await;
    let chosen = [*b"{}{}{}{}{}{}{}{}", *b"}}}}}}}}{{{{{{{{", [0; 16], [0xff; 16]];
    let drawn = (0..rounds(100, 10_000)).map(|_| {
        // Mostly braces.
        let mut bytes = *Owner::random().as_bytes();
        bytes.iter_mut().for_each(|byte| *byte = [b'{', b'}', *byte][usize::from(*byte % 3)]);
        bytes
    });
    for bytes in chosen.into_iter().chain(drawn) {
        let id = KeyId::from_bytes(bytes);
        let grant = win(&store, id).await;
        accepted(store.apply(id, complete(grant, "once")).await);
        let name = format!("semel:{{{id}}}");
        assert_eq!(server.tell(&["EXISTS", &name]).expect("a healthy server").text(), "1");
        assert_eq!(name.matches(['{', '}']).count(), 2);
    }
}

// wake-up: by push, from another process, long before any poll.
#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_come_back_after_a_cut() {
    let server = server();
    let proxy = FaultProxy::before(server.addr()).expect("a proxy");
    let waiting = connect(&format!("redis://{}", proxy.addr())).await;
    let working = connect(&server.url()).await;
    let id = key();
    let grant = win(&working, id).await;
    let mut watch = waiting.watch(id);
    proxy.cut();
    // A cut is a gap in which something may have been missed, so it wakes; and so does the change afterwards.
    let woken = tokio::time::timeout(Duration::from_secs(20), watch.changed()).await;
    assert!(woken.is_ok(), "nobody was woken after the gap");
    accepted(working.apply(id, complete(grant, "once")).await);
    eventually("the change is seen", async || {
        let _ = tokio::time::timeout(Duration::from_millis(500), watch.changed()).await;
        let found = waiting.get(id).await.ok()??;
        (found.phase() == Phase::Done).then_some(())
    })
    .await;
}

// script_replication: only effects replicate, so a replica is the same to the last byte.
#[tokio::test(flavor = "multi_thread")]
async fn script_replication() {
    let start =
        || Redis::options().config("enable-debug-command", "yes").start().expect("redis-server starts");
    let (primary, replica) = (start(), start());
    replica.replica_of(&primary).expect("a replica");
    let store = connect(&primary.url()).await;
    let context = Context::new(store.clone()).peer(store.clone());
    agrees_with_the_rules(&context, 77, 300).await;
    let digest = |server: &Redis| server.tell(&["DEBUG", "DIGEST"]).map(|reply| reply.text()).ok();
    eventually("the replica is the same", async || {
        let (here, there) = (digest(&primary)?, digest(&replica)?);
        (here == there && digest(&primary)? == here).then_some(())
    })
    .await;
}
