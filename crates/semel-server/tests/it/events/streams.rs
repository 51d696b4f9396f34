//! Events from a Redis stream, through several servers over one ledger. In full form: `./scripts/prove streams`.

use std::collections::BTreeSet;
use std::time::Duration;

use semel_testbed::resp::Reply;
use semel_testbed::{FaultProxy, Postgres, Redis, wait};
use serde_json::json;

use super::{count, target};
use crate::kit::{Action, Direction, HoldingProxy, PATIENCE, Semel, Sink, metric};

fn in_full() -> bool {
    std::env::var_os("SEMEL_PROVE").is_some()
}

/// A config for servers that share a ledger in PostgreSQL and a stream.
fn config(folder: &tempfile::TempDir, postgres: &Postgres, redis: &Redis, sink: &Sink) -> std::path::PathBuf {
    let text = format!(
        "drain = \"5s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\n\
         [ledger]\nlease = \"2s\"\n[limits]\ncrashes = 1000\n{}\n\
         [[source]]\nkind = \"redis-stream\"\nurl = \"{}\"\nstream = \"orders\"\nmin_idle = \"1s\"\nat_once = 200\n",
        postgres.url(),
        target("all", sink, "concurrency = 32"),
        redis.url(),
    );
    let file = folder.path().join("semel.toml");
    std::fs::write(&file, text).unwrap();
    file
}

// Poison_loop, producer_duplicate: consumers killed again and again, 1 % poison, 5 % duplicates.
#[test]
fn a_stream_is_delivered_once_and_poison_is_set_aside() {
    let (messages, servers) = if in_full() { (100_000, 4) } else { (1_500, 2) };
    let (redis, postgres, sink) = (Redis::start().unwrap(), Postgres::start().unwrap(), Sink::start());
    sink.refuse("poison");
    let folder = tempfile::tempdir().unwrap();
    let file = config(&folder, &postgres, &redis, &sink);
    let mut running: Vec<Semel> = (0..servers).map(|_| Semel::with_config(&file, &[])).collect();
    let (mut good, mut poison, mut undecodable) = (0, 0, 0);
    let mut connection = redis.connect().unwrap();
    for number in 0..messages {
        let key = format!("o-{number}");
        let payload = if number % 100 == 7 {
            poison += 1;
            json!({ "n": number, "kind": "poison" })
        } else {
            good += 1;
            json!({ "n": number })
        };
        let payload = payload.to_string();
        let fields = ["XADD", "orders", "*", "type", "order.paid", "dedupe_key", &key, "payload", &payload];
        connection.tell(&fields).unwrap();
        if number % 20 == 3 {
            connection.tell(&fields).unwrap();
        }
        if number % 500 == 11 {
            undecodable += 1;
            connection.tell(&["XADD", "orders", "*", "rubbish", &key]).unwrap();
        }
    }
    let mut next = 0;
    let mut kills = 0;
    let ended = |running: &[Semel]| {
        let admin = running[0].admin();
        let unread = redis.tell(&["XINFO", "GROUPS", "orders"]).unwrap().text();
        let pending = redis.tell(&["XPENDING", "orders", "semel"]).unwrap().text();
        unread.contains("lag 0")
            && pending.starts_with('0')
            && count(&admin, "queued,running,retry_wait,idle") == 0
            && sink.effects().len() >= good
    };
    loop {
        let pause = if in_full() { Duration::from_secs(2) } else { Duration::from_millis(700) };
        if wait::until("all is delivered", pause, || ended(&running)).is_ok() {
            break;
        }
        assert!(kills < 2_000, "it does not end");
        if in_full() || kills < 4 {
            let victim = next % servers;
            next += 1;
            kills += 1;
            let dead = std::mem::replace(&mut running[victim], Semel::with_config(&file, &[]));
            dead.kill();
        } else {
            kills += 1;
        }
    }
    let admin = running[0].admin();
    let taken: BTreeSet<String> = sink.effects();
    assert_eq!(taken.len(), good, "one effect for each good message");
    let groups = admin.get("/v1/dead-letters/groups").expect(200);
    let by_cause = |cause: &str| -> u64 {
        let groups = groups["items"].as_array().unwrap().iter();
        groups.filter(|group| group["cause"] == cause).filter_map(|group| group["count"].as_u64()).sum()
    };
    assert_eq!(by_cause("non_retryable"), poison, "{groups}");
    assert_eq!(by_cause("undecodable"), undecodable, "{groups}");
    assert_eq!(by_cause("poison") + by_cause("exhausted"), 0, "{groups}");
    // The stream of dead letters has each of them once, a moment later.
    let mirrored =
        || redis.tell(&["XLEN", "orders.dlq"]).unwrap().text() == (poison + undecodable).to_string();
    wait::until("the dead-letter stream has them", PATIENCE, mirrored).unwrap();
    println!("{messages} messages, {poison} poison, {kills} kills");
}

// nogroup_flush, trimmed_pending and the metrics, on the binary
#[test]
fn what_happens_to_a_stream_is_counted() {
    let (redis, sink) = (Redis::start().unwrap(), Sink::start());
    let bench = super::Bench::new(&format!(
        "{}\n[[source]]\nkind = \"redis-stream\"\nurl = \"{}\"\nstream = \"orders\"\n",
        target("all", &sink, ""),
        redis.url()
    ));
    let semel = bench.start();
    let admin = semel.admin();
    let add = |key: &str| {
        redis.tell(&["XADD", "orders", "*", "type", "a", "dedupe_key", key, "payload", "[1]"]).unwrap();
    };
    add("1");
    add("1");
    wait::until("it is delivered", PATIENCE, || sink.effects().len() == 1).unwrap();
    assert_eq!(sink.seen()[0].body, "[1]", "byte for byte");
    let counted = |outcome: &str| {
        metric(&admin, &format!("semel_source_messages_total{{stream=\"orders\",outcome=\"{outcome}\"}}"))
    };
    wait::until("the duplicate is counted", PATIENCE, || counted("duplicate") >= 1.0).unwrap();
    redis.tell(&["FLUSHALL"]).unwrap();
    add("2");
    wait::until("it starts again", PATIENCE, || sink.effects().len() == 2).unwrap();
    assert!(counted("began_anew") >= 1.0);
    assert!(semel.log().contains("the consumer group was missing"), "{}", semel.log());
    // Redis goes away and comes back: it heals by itself.
    redis.kill();
    redis.restart().unwrap();
    add("3");
    wait::until("it heals", PATIENCE, || sink.effects().len() == 3).unwrap();
}

/// How many messages the group has read and not acknowledged.
fn pending(redis: &Redis) -> i64 {
    match redis.tell(&["XPENDING", "orders", "semel"]).unwrap() {
        Reply::Array(parts) => match parts.first() {
            Some(Reply::Int(count)) => *count,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

// ack_before_publish: a message is acknowledged only when the ledger has it. Without the ledger none is, and none is lost with the
// process that read them.
#[test]
fn ack_before_publish_never_happens() {
    const MESSAGES: usize = 20;
    let (redis, postgres, sink) = (Redis::start().unwrap(), Postgres::start().unwrap(), Sink::start());
    let (to_redis, to_postgres) =
        (HoldingProxy::before(redis.addr()), FaultProxy::before(postgres.addr()).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let text = format!(
        "drain = \"5s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n\
         [ledger]\nurl = \"{}\"\nlease = \"2s\"\n{}\n\
         [[source]]\nkind = \"redis-stream\"\nurl = \"redis://{}\"\nstream = \"orders\"\nmin_idle = \"1s\"\n",
        postgres.url_at(to_postgres.addr(), "postgres"),
        target("all", &sink, ""),
        to_redis.addr(),
    );
    std::fs::write(&file, text).unwrap();
    let add = |key: &str| {
        redis.tell(&["XADD", "orders", "*", "type", "a", "dedupe_key", key, "payload", "{}"]).unwrap();
    };
    let accepted = || postgres.sql("SELECT count(*) FROM semel.ledger_event").unwrap();

    // With a ledger: its event is there before the acknowledgement reaches Redis.
    let semel = Semel::with_config(&file, &[]);
    to_redis.trap("XACK", Direction::ToServer, Action::Hold);
    add("first");
    to_redis.caught("the acknowledgement is on its way");
    assert_eq!((accepted().as_str(), pending(&redis)), ("1", 1));
    to_redis.release();
    wait::until("it is acknowledged", PATIENCE, || pending(&redis) == 0).unwrap();
    // The next process has another secret, in memory: what it delivers again, it delivers under another key.
    wait::until("it is delivered", PATIENCE, || count(&semel.admin(), "done") == 1).unwrap();

    // Without: what was read stays unacknowledged, also when the process is killed.
    to_postgres.hold(semel_testbed::Direction::ToServer);
    (0..MESSAGES).for_each(|number| add(&format!("o-{number}")));
    // It reads no more than it can hold until the ledger answers.
    wait::until("messages are read", PATIENCE, || pending(&redis) > 0).unwrap();
    let read = pending(&redis);
    semel.logged("store unavailable");
    assert!(pending(&redis) >= read, "no message is acknowledged without a ledger");
    assert_eq!(accepted(), "1");
    semel.kill();
    to_postgres.cut();
    to_postgres.heal();

    let semel = Semel::with_config(&file, &[]);
    wait::until("all are delivered", PATIENCE, || count(&semel.admin(), "done") == MESSAGES + 1).unwrap();
    wait::until("all are acknowledged", PATIENCE, || pending(&redis) == 0).unwrap();
    assert_eq!(accepted(), (MESSAGES + 1).to_string());
    assert_eq!(sink.effects().len(), MESSAGES + 1);
}
