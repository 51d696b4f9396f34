//! One consumer of a group, without a ledger: what it reads, takes over, moves and forgets.

use std::time::Duration;

use bytes::Bytes;
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::id::LetterId;
use semel_pipeline::letter::{Cause, Letter, Signature, SourceMessage, Status};
use semel_pipeline::source::{MessageBatch, RedisStream, Rejected, Source as _};
use semel_testbed::{Direction, FaultProxy, Redis, RedisCluster};

fn stream(url: &str) -> RedisStream {
    RedisStream::builder(url, "orders", "semel")
        .block(Duration::from_millis(20))
        .min_idle(Duration::from_millis(50))
        .build()
        .expect("the settings are good")
}

fn add(redis: &Redis, count: usize) -> Vec<String> {
    let mut connection = redis.connect().expect("it runs");
    (0..count)
        .map(|n| {
            let fields = ["XADD", "orders", "*", "type", "t", "dedupe_key", &n.to_string(), "payload", "{}"];
            connection.tell(&fields).expect("it takes messages").text()
        })
        .collect()
}

fn ids(batch: &MessageBatch) -> Vec<String> {
    batch.messages.iter().map(|message| message.id.clone()).collect()
}

/// Reads until `enough` says so; at most for some seconds.
async fn read(source: &mut RedisStream, enough: impl Fn(&MessageBatch) -> bool) -> MessageBatch {
    read_past(source, 0, enough).await
}

/// As [`read`], but tolerates `breaks` failed reads. The source starts again with its first unacknowledged message after each,
/// so what came before a failed read is dropped here.
async fn read_past(
    source: &mut RedisStream,
    mut breaks: usize,
    enough: impl Fn(&MessageBatch) -> bool,
) -> MessageBatch {
    let mut all = MessageBatch::default();
    for _ in 0..500 {
        let batch = match source.next().await {
            Err(_) if breaks > 0 => {
                breaks -= 1;
                all = MessageBatch::default();
                continue;
            }
            answer => answer.expect("the server runs"),
        };
        all.messages.extend(batch.messages);
        all.lost.extend(batch.lost);
        all.reclaimed += batch.reclaimed;
        all.began_anew |= batch.began_anew;
        if enough(&all) {
            return all;
        }
    }
    panic!("it did not come: {all:?}");
}

fn pending(redis: &Redis) -> String {
    redis.tell(&["XPENDING", "orders", "semel"]).expect("the group is there").text()
}

fn letter(cause: Cause) -> Letter {
    let now = SystemClock.now();
    Letter {
        id: LetterId::new(now),
        tenant: String::new(),
        event: None,
        delivery: None,
        target: Some("crm".to_owned()),
        event_type: Some("t".to_owned()),
        source: Some(SourceMessage { stream: "orders".to_owned(), message: "1-1".to_owned() }),
        payload: Bytes::from_static(b"\xff{}"),
        content_type: "application/json".to_owned(),
        headers: Vec::new(),
        cause,
        error: "no".to_owned(),
        signature: Signature::of(None, cause, None, "no"),
        status: Status::Pending,
        attempts: 3,
        last_attempt_at: None,
        failed_replays: 0,
        copy_of: None,
        created_at: now,
        updated_at: now,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_and_not_acknowledged_comes_again_after_a_broken_connection() {
    let redis = Redis::start().expect("a Redis");
    let proxy = FaultProxy::before(redis.addr()).expect("a proxy");
    let sent = add(&redis, 30);
    let mut source = stream(&format!("redis://{}", proxy.addr()));
    assert_eq!(ids(&read(&mut source, |batch| batch.messages.len() == 30).await), sent);
    source.done(sent[..10].to_vec()).await.expect("it acknowledges");
    let more = add(&redis, 5);
    // The server gives five more to us, and we do not hear of it.
    proxy.hold(Direction::ToClient);
    tokio::time::timeout(Duration::from_millis(300), source.next()).await.expect_err("nothing is heard");
    proxy.cut();
    proxy.heal();
    source.next().await.expect_err("the connection broke");
    // The source has two connections, one of them for blocking reads. It can notice the break of the second one later.
    let again = read_past(&mut source, 1, |batch| batch.messages.len() >= 25).await;
    assert_eq!(ids(&again), [&sent[10..], &more[..]].concat(), "its own first, in order, each once");
}

// autoclaim_double: those of a dead consumer are taken over, with the server's count
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_dead_consumer_are_taken_over() {
    let redis = Redis::start().expect("a Redis");
    let sent = add(&redis, 450);
    let mut dead = stream(&redis.url());
    read(&mut dead, |batch| batch.messages.len() == 450).await;
    drop(dead);
    let mut living = stream(&redis.url());
    let taken = read(&mut living, |batch| batch.messages.len() == 450).await;
    assert_eq!((ids(&taken), taken.reclaimed), (sent, 450), "all of them, by the cursor, over several calls");
    assert!(taken.messages.iter().all(|message| message.given_out == 2), "the server counts");
}

// prefetch_aging: what is held is renewed; what another has taken over since is not stolen back
#[tokio::test(flavor = "multi_thread")]
async fn renewing_keeps_what_is_ours_and_steals_nothing() {
    let redis = Redis::start().expect("a Redis");
    let sent = add(&redis, 2);
    let mut first = stream(&redis.url());
    read(&mut first, |batch| batch.messages.len() == 2).await;
    let mut second = stream(&redis.url());
    // `first` is silent for too long with both; `second` takes them over.
    read(&mut second, |batch| batch.reclaimed == 2).await;
    first.renew(sent.clone()).await.expect("it renews");
    let holder = pending(&redis);
    assert!(holder.contains(second.consumer()) && !holder.contains(first.consumer()), "{holder}");
    // Renewed all the time, they stay where they are.
    for _ in 0..10 {
        second.renew(sent.clone()).await.expect("it renews");
        let batch = first.next().await.expect("the server runs");
        assert_eq!(batch.reclaimed, 0);
    }
    let counts = redis.tell(&["XPENDING", "orders", "semel", "-", "+", "9"]).expect("it runs").text();
    assert!(counts.ends_with(" 2"), "renewing is not giving out: {counts}");
}

// trimmed_pending
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_were_trimmed_are_reported_as_lost_once() {
    let redis = Redis::start().expect("a Redis");
    let sent = add(&redis, 20);
    let mut dead = stream(&redis.url());
    read(&mut dead, |batch| batch.messages.len() == 20).await;
    redis.tell(&["XTRIM", "orders", "MAXLEN", "5"]).expect("it trims");
    let mut living = stream(&redis.url());
    let taken = read(&mut living, |batch| batch.messages.len() + batch.lost.len() == 20).await;
    assert_eq!((taken.lost, taken.messages.len()), (sent[..15].to_vec(), 5));
    // Our own that are gone are reported as well, and both are then over.
    redis.tell(&["XTRIM", "orders", "MAXLEN", "0"]).expect("it trims");
    let mut proxyless = stream(&redis.url());
    let rest = read(&mut proxyless, |batch| batch.lost.len() == 5).await;
    assert_eq!(rest.lost, sent[15..]);
    assert!(pending(&redis).starts_with('0'), "nothing is looped");
}

// nogroup_flush
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_gone_is_made_anew_from_the_beginning_and_said() {
    let redis = Redis::start().expect("a Redis");
    add(&redis, 3);
    let mut source = stream(&redis.url());
    let first = read(&mut source, |batch| batch.messages.len() == 3).await;
    assert!(!first.began_anew, "the first time it is no surprise");
    redis.tell(&["FLUSHALL"]).expect("it flushes");
    let sent = add(&redis, 4);
    let after = read(&mut source, |batch| batch.messages.len() == 4).await;
    assert_eq!((ids(&after), after.began_anew), (sent, true));
}

// orphan_consumers
#[tokio::test(flavor = "multi_thread")]
async fn names_of_dead_consumers_go_only_when_they_hold_nothing() {
    let redis = Redis::start().expect("a Redis");
    add(&redis, 1);
    let lasting = || {
        RedisStream::builder(redis.url(), "orders", "semel")
            .block(Duration::from_millis(5))
            .min_idle(Duration::from_secs(3600))
    };
    let mut holding = lasting().build().expect("the settings are good");
    read(&mut holding, |batch| batch.messages.len() == 1).await;
    for _ in 0..20 {
        lasting().build().expect("the settings are good").next().await.expect("it reads");
    }
    let mut pruning = lasting().prune_after(Duration::from_millis(1)).build().expect("the settings are good");
    pruning.next().await.expect("it reads");
    let names = redis.tell(&["XINFO", "CONSUMERS", "orders", "semel"]).expect("it runs").text();
    assert!(names.contains(holding.consumer()), "its message would go with it: {names}");
    assert_eq!(names.matches("semel:").count(), 2, "{names}");
}

// dlq_atomic
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_message_is_moved_once_with_every_byte() {
    let redis = Redis::start().expect("a Redis");
    let sent = add(&redis, 1);
    let mut source = stream(&redis.url());
    let batch = read(&mut source, |batch| batch.messages.len() == 1).await;
    let rejected = Rejected {
        message: batch.messages[0].clone(),
        letter: LetterId::new(SystemClock.now()),
        error: "unreadable".to_owned(),
    };
    for _ in 0..3 {
        source.reject(vec![rejected.clone()]).await.expect("it moves");
    }
    assert!(pending(&redis).starts_with('0'), "acknowledged");
    let moved = redis.tell(&["XRANGE", "orders.dlq", "-", "+"]).expect("it runs").text();
    assert_eq!(moved.matches("semel_letter").count(), 1, "never twice: {moved}");
    assert!(moved.contains(&sent[0]) && moved.contains("dedupe_key 0 payload {}"), "{moved}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_is_mirrored_once_however_often_it_is_tried() {
    let redis = Redis::start().expect("a Redis");
    let (mut source, mut other) = (stream(&redis.url()), stream(&redis.url()));
    let letters = vec![letter(Cause::Exhausted), letter(Cause::Poison)];
    for _ in 0..2 {
        source.mirror(letters.clone()).await.expect("it copies");
        other.mirror(letters.clone()).await.expect("it copies");
    }
    assert_eq!(redis.tell(&["XLEN", "orders.dlq"]).expect("it runs").text(), "2");
    source.forget(letters.iter().map(|letter| letter.id).collect()).await.expect("it forgets");
    // Another process had read that they are missing, and comes late.
    other.mirror(letters.clone()).await.expect("it copies");
    assert_eq!(redis.tell(&["XLEN", "orders.dlq"]).expect("it runs").text(), "2");
}

// One slot
#[tokio::test(flavor = "multi_thread")]
async fn it_works_on_a_cluster() {
    let cluster = RedisCluster::start().expect("a cluster");
    let nodes: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
    let url = format!("redis-cluster://{}", nodes.join(","));
    let client = semel::store::RedisClient::builder(url.clone()).build().expect("the URL is good");
    let mut add = semel::store::redis_driver::cmd("XADD");
    add.arg(&["orders", "*", "type", "t", "dedupe_key", "1", "payload", "{}"]);
    client.query(&add, semel::store::Effect::Writes).await.expect("it adds");
    let mut source = stream(&url);
    let batch = read(&mut source, |batch| batch.messages.len() == 1).await;
    source.renew(ids(&batch)).await.expect("it renews");
    let letter_id = LetterId::new(SystemClock.now());
    let rejected =
        Rejected { message: batch.messages[0].clone(), letter: letter_id, error: "unreadable".to_owned() };
    source.reject(vec![rejected]).await.expect("it moves");
    let letters = vec![letter(Cause::Exhausted)];
    source.mirror(letters.clone()).await.expect("it copies");
    source.forget(vec![letters[0].id]).await.expect("it forgets");
    let mut count = semel::store::redis_driver::cmd("XLEN");
    count.arg(source.dead_letters());
    let count = client.query(&count, semel::store::Effect::Reads).await.expect("it counts");
    assert_eq!(count, semel::store::redis_driver::Value::Int(2));
}

#[test]
fn what_cannot_be_a_stream_is_refused() {
    for (stream, group) in [("", "g"), ("s", ""), ("s\n", "g")] {
        let error =
            RedisStream::builder("redis://127.0.0.1:1", stream, group).build().expect_err("it is wrong");
        assert!(error.to_string().contains("control character"), "{error}");
    }
    let error = RedisStream::builder("http://u:secret@h", "s", "g").build().expect_err("it is no Redis");
    assert!(!error.to_string().contains("secret"), "{error}");
}
