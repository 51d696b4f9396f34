//! G11 to G15, G17: what is buffered, by itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use semel::record::Fence;
use semel_pipeline::buffer::{Acked, Buffer, Leased, Patch, Patched, Put};
use semel_pipeline::event::{Accepted, NewEvent};
use semel_pipeline::ledger::Change;
use semel_testbed::{Redis, RedisCluster};

use super::{buffer_at, run};

const LEASE: Duration = Duration::from_secs(30);

fn keyless(tenant: &str) -> NewEvent {
    run(tenant, None, "{}", None)
}

async fn put(buffer: &Arc<Buffer>, run: &NewEvent) -> Put {
    buffer.put(run, Fence::new(1)).await.expect("Redis answers")
}

async fn lease(buffer: &Buffer, tenant: &str, limit: u32) -> Leased {
    buffer.lease(tenant, limit, LEASE).await.expect("Redis answers")
}

fn tag(tag: &str) -> Patch {
    Patch::Change(Change { add_tags: vec![tag.to_owned()], ..Change::default() })
}

fn add_one() -> Patch {
    Patch::Change(Change { increment: vec![("n".to_owned(), "1".to_owned())], ..Change::default() })
}

// G11, coalesce
#[tokio::test(flavor = "multi_thread")]
async fn one_key_is_one_run_whoever_comes_together() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let buffer = Arc::clone(&buffer);
            tokio::spawn(async move { put(&buffer, &run("t", Some("k"), "{}", None)).await })
        })
        .collect();
    let mut ids = BTreeSet::new();
    let mut first = 0;
    for task in tasks {
        match task.await.expect("it ends") {
            Put::Accepted(Accepted::First(id)) => {
                first += 1;
                ids.insert(id);
            }
            Put::Accepted(Accepted::Cached(id)) => {
                ids.insert(id);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((first, ids.len()), (1, 1));
    assert_eq!(
        put(&buffer, &run("t", Some("k"), "[]", None)).await,
        Put::Accepted(Accepted::Conflict),
        "another payload"
    );
    let other = put(&buffer, &run("u", Some("k"), "[]", None)).await;
    assert!(matches!(other, Put::Accepted(Accepted::First(_))), "another tenant");
}

// expired keys are not echoed by the buffer
#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_time_is_over_is_free() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let short = run("t", Some("k"), "{}", Some(Duration::from_millis(30)));
    put(&buffer, &short).await;
    let key = short.dedupe.as_ref().expect("it has one").id;
    let mut found = Some(());
    for _ in 0..1000 {
        found = buffer.find("t", key).await.expect("Redis answers").map(|_| ());
        if found.is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(found, None);
    let next = run("t", Some("k"), "[]", None);
    assert_eq!(put(&buffer, &next).await, Put::Accepted(Accepted::First(next.id)));
    // The first run is still there and is drained as well.
    assert_eq!(lease(&buffer, "t", 10).await.runs.len(), 2);
}

// crash_after_pop, double_pop: an entry that was taken by a drainer that died is not stranded
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_over_is_given_back_and_its_owner_refused() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let run = run("t", Some("k"), "{}", None);
    put(&buffer, &run).await;
    let dead = buffer.lease("t", 10, Duration::from_millis(20)).await.expect("Redis answers");
    assert_eq!(dead.runs.len(), 1);
    let again = loop {
        let again = lease(&buffer, "t", 10).await;
        if !again.runs.is_empty() {
            break again;
        }
    };
    assert_eq!((again.reclaimed, again.runs[0].attempts), (1, 1));
    let late = (dead.tenant.as_str(), dead.token.as_str());
    assert_eq!(buffer.ack(late, run.id, 0).await.expect("Redis answers"), Acked::Lost);
    assert!(!buffer.give_back(late, run.id, Duration::ZERO, true).await.expect("Redis answers"));
    assert!(!buffer.remove("t", Some(&dead.token), run.id).await.expect("Redis answers"));
    assert_eq!(buffer.renew(late, &[run.id], LEASE).await.expect("Redis answers"), [false]);
    let now = (again.tenant.as_str(), again.token.as_str());
    assert_eq!(buffer.renew(now, &[run.id], LEASE).await.expect("Redis answers"), [true]);
    assert_eq!(buffer.ack(now, run.id, 0).await.expect("Redis answers"), Acked::Gone);
    assert_eq!(buffer.depth("t").await.expect("Redis answers"), semel_pipeline::buffer::Depth::default());
    let key = run.dedupe.as_ref().expect("it has one").id;
    assert_eq!(buffer.find("t", key).await.expect("Redis answers"), None, "no ghost keeps the key");
}

// G12
#[tokio::test(flavor = "multi_thread")]
async fn changes_all_land_while_it_waits_and_while_it_is_on_its_way() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let payload = r#"{"empty":[],"n":9007199254740993}"#;
    let run = run("t", None, payload, None);
    put(&buffer, &run).await;
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let (buffer, id) = (Arc::clone(&buffer), run.id);
            tokio::spawn(async move { buffer.patch("t", id, &add_one(), None).await.expect("Redis answers") })
        })
        .collect();
    for task in tasks {
        assert!(matches!(task.await.expect("it ends"), Patched::Applied(_)));
    }
    let leased = lease(&buffer, "t", 1).await;
    let read = leased.runs[0].run.as_ref().expect("it is whole");
    assert_eq!(read.run.notes.metadata.get("n").map(String::as_str), Some("50"));
    assert_eq!(&read.run.payload[..], payload.as_bytes(), "not a byte is re-encoded");
    // On its way: what may follow is told to the drainer, what must not come too late waits.
    assert_eq!(
        buffer.patch("t", run.id, &tag("late"), None).await.expect("Redis answers"),
        Patched::Applied(51)
    );
    assert_eq!(
        buffer.patch("t", run.id, &Patch::Cancel, None).await.expect("Redis answers"),
        Patched::InTransit
    );
    let held = (leased.tenant.as_str(), leased.token.as_str());
    let acked = buffer.ack(held, run.id, leased.runs[0].version).await.expect("Redis answers");
    assert_eq!(acked, Acked::Changed(vec![tag("late")], 51));
    assert_eq!(buffer.ack(held, run.id, 51).await.expect("Redis answers"), Acked::Gone);
    assert_eq!(buffer.patch("t", run.id, &tag("gone"), None).await.expect("Redis answers"), Patched::Missing);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_with_a_version_is_compare_and_set() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let run = keyless("t");
    put(&buffer, &run).await;
    let (_, version) = buffer.get("t", run.id).await.expect("Redis answers").expect("it is there");
    assert_eq!(
        buffer.patch("t", run.id, &tag("a"), Some(version)).await.expect("Redis answers"),
        Patched::Applied(1)
    );
    assert_eq!(
        buffer.patch("t", run.id, &tag("b"), Some(version)).await.expect("Redis answers"),
        Patched::Stale
    );
    let (read, _) = buffer.get("t", run.id).await.expect("Redis answers").expect("it is there");
    assert_eq!(read.expect("it is whole").run.notes.tags, ["a"]);
}

// G15: also while it is being drained
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_frees_the_key_and_the_drainer_is_told() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let first = run("t", Some("k"), "{}", None);
    let key = first.dedupe.as_ref().expect("it has one").id;
    put(&buffer, &first).await;
    let leased = lease(&buffer, "t", 1).await;
    assert_eq!(buffer.reset("t", key).await.expect("Redis answers"), Some(first.id));
    assert_eq!(buffer.reset("t", key).await.expect("Redis answers"), None);
    let second = run("t", Some("k"), "[]", None);
    assert_eq!(put(&buffer, &second).await, Put::Accepted(Accepted::First(second.id)));
    let held = (leased.tenant.as_str(), leased.token.as_str());
    let acked = buffer.ack(held, first.id, 0).await.expect("Redis answers");
    assert_eq!(acked, Acked::Changed(vec![Patch::DropKey], 1));
    assert_eq!(buffer.ack(held, first.id, 1).await.expect("Redis answers"), Acked::Gone);
    let found = buffer.find("t", key).await.expect("Redis answers").map(|(id, _)| id);
    assert_eq!(found, Some(second.id), "the next life of the key is not touched");
}

// G13
#[tokio::test(flavor = "multi_thread")]
async fn tenants_take_turns() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    for tenant in ["big", "big", "big", "big", "big", "big", "small", "tiny"] {
        put(&buffer, &keyless(tenant)).await;
    }
    let mut order = Vec::new();
    while let Some(tenant) = buffer.next_tenant().await.expect("Redis answers") {
        let leased = lease(&buffer, &tenant, 2).await;
        for leased_run in &leased.runs {
            let acked = buffer.ack((&tenant, &leased.token), leased_run.id, 0).await.expect("Redis answers");
            assert_eq!(acked, Acked::Gone);
        }
        if !leased.runs.is_empty() {
            order.push(tenant);
        }
    }
    assert_eq!(order, ["big", "small", "tiny", "big", "big"]);
    assert_eq!(buffer.tenants().await.expect("Redis answers"), [""; 0], "nobody is left on the list");
}

// G13: with a delay, and without burning attempts
#[tokio::test(flavor = "multi_thread")]
async fn what_is_given_back_waits_for_its_pause() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let run = keyless("t");
    put(&buffer, &run).await;
    let leased = lease(&buffer, "t", 1).await;
    let held = (leased.tenant.as_str(), leased.token.as_str());
    let hour = Duration::from_secs(3600);
    assert!(buffer.give_back(held, run.id, hour, false).await.expect("Redis answers"));
    assert_eq!(lease(&buffer, "t", 1).await.runs, [], "not before its pause is over");
    assert_eq!(buffer.depth("t").await.expect("Redis answers").queued, 1);
    assert_eq!(buffer.tenants().await.expect("Redis answers"), ["t"], "it keeps its place in the turns");
}

// buffer_full
#[tokio::test(flavor = "multi_thread")]
async fn a_full_buffer_refuses_and_loses_nothing() {
    let redis = Redis::start().expect("a Redis");
    let client = semel::store::RedisClient::builder(redis.url()).build().expect("the URL is good");
    let buffer = Arc::new(Buffer::new(client, "semel:burst", 3));
    let first = run("t", Some("k"), "{}", None);
    put(&buffer, &first).await;
    put(&buffer, &keyless("t")).await;
    put(&buffer, &keyless("t")).await;
    assert_eq!(put(&buffer, &keyless("t")).await, Put::Full);
    let again = run("t", Some("k"), "{}", None);
    assert_eq!(
        put(&buffer, &again).await,
        Put::Accepted(Accepted::Cached(first.id)),
        "known keys still answer"
    );
    assert!(matches!(put(&buffer, &keyless("u")).await, Put::Accepted(Accepted::First(_))));
    assert_eq!(lease(&buffer, "t", 10).await.runs.len(), 3);
}

// An entry that cannot be parsed does not strand its tenant
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_handed_out_with_its_bytes() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let (bad, good) = (keyless("t"), keyless("t"));
    put(&buffer, &bad).await;
    put(&buffer, &good).await;
    let keys = redis.tell(&["KEYS", "*:runs"]).expect("it runs").text();
    redis.tell(&["HSET", &keys, &bad.id.to_string(), "rubbish"]).expect("it runs");
    let leased = lease(&buffer, "t", 10).await;
    let of = |id| leased.runs.iter().find(|run| run.id == id).expect("it is handed out");
    assert_eq!(of(bad.id).run.as_ref().expect_err("it is rubbish").bytes.as_ref(), b"rubbish");
    assert!(of(good.id).run.is_ok());
    assert!(buffer.remove("t", Some(&leased.token), bad.id).await.expect("Redis answers"));
}

// G5: a claim was taken over; the slow one before buffers nothing under its key, and the next life of the key is free
#[tokio::test(flavor = "multi_thread")]
async fn whoever_was_taken_over_buffers_nothing() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let (slow, other) = (run("t", Some("k"), "{}", None), run("t", Some("other"), "{}", None));
    let key = slow.dedupe.as_ref().expect("it has one").id;
    buffer.take_over("t", key, Fence::new(20), Duration::from_secs(60)).await.expect("Redis answers");
    let put = async |run: &NewEvent, fence| buffer.put(run, Fence::new(fence)).await.expect("Redis answers");
    let both = tokio::join!(put(&slow, 10), put(&other, 10));
    assert_eq!(both, (Put::TakenOver, Put::Accepted(Accepted::First(other.id))), "only under its key");
    assert_eq!(put(&slow, 0).await, Put::TakenOver, "nor does anybody without a claim");
    assert!(buffer.find("t", key).await.expect("Redis answers").is_none());
    let next = run("t", Some("k"), "{}", None);
    assert_eq!(put(&next, 30).await, Put::Accepted(Accepted::First(next.id)));
    assert_eq!(
        put(&slow, 10).await,
        Put::Accepted(Accepted::Cached(next.id)),
        "and who comes late is told of it"
    );
    assert!(buffer.take_over("t", key, Fence::new(40), Duration::from_millis(1)).await.is_ok());
    tokio::time::sleep(Duration::from_millis(20)).await;
    buffer.reset("t", key).await.expect("Redis answers");
    assert_eq!(put(&slow, 10).await, Put::Accepted(Accepted::First(slow.id)), "it is not kept for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_of_claims_that_were_taken_over_do_not_pile_up() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let mark = async |name: &str, keep| {
        let key = run("t", Some(name), "{}", None).dedupe.expect("it has one").id;
        buffer.take_over("t", key, Fence::new(20), keep).await.expect("Redis answers");
    };
    mark("stays", Duration::from_secs(60)).await;
    for number in 0..200 {
        mark(&number.to_string(), Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    for number in 200..300 {
        mark(&number.to_string(), Duration::from_secs(60)).await;
    }
    let marks = redis.tell(&["KEYS", "*:taken"]).expect("it runs").text();
    let left = redis.tell(&["HLEN", &marks]).expect("it runs").text();
    let left: u32 = left.parse().expect("a number");
    assert!((101..=150).contains(&left), "{left} are left of 301, of which 101 still count");
}

// G17; separators inside user-supplied parts
#[tokio::test(flavor = "multi_thread")]
async fn it_works_on_a_cluster_whatever_tenants_are_called() {
    let cluster = RedisCluster::start().expect("a cluster");
    let nodes: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
    let buffer = buffer_at(&format!("redis-cluster://{}", nodes.join(",")));
    let tenants = ["", "a", "{a}", "a}:queue", "}{", "a|b\n", "ä:{all}:gate"];
    for tenant in tenants {
        let run = run(tenant, Some("k"), "{}", None);
        assert_eq!(put(&buffer, &run).await, Put::Accepted(Accepted::First(run.id)), "{tenant:?}");
        buffer.patch(tenant, run.id, &tag("x"), None).await.expect("Redis answers");
        assert!(buffer.get(tenant, run.id).await.expect("Redis answers").is_some());
        assert_eq!(buffer.list(tenant, None, 10).await.expect("Redis answers"), [run.id], "{tenant:?}");
        let minute = Duration::from_secs(60);
        let key = run.dedupe.as_ref().expect("it has one").id;
        buffer.take_over(tenant, key, Fence::new(1), minute).await.expect("Redis answers");
    }
    let mut seen = BTreeSet::new();
    for _ in tenants {
        let tenant = buffer.next_tenant().await.expect("Redis answers").expect("all wait");
        let leased = lease(&buffer, &tenant, 10).await;
        assert_eq!(leased.runs.len(), 1, "{tenant:?}");
        let held = (tenant.as_str(), leased.token.as_str());
        assert_eq!(buffer.renew(held, &[leased.runs[0].id], LEASE).await.expect("Redis answers"), [true]);
        assert_eq!(buffer.ack(held, leased.runs[0].id, 1).await.expect("Redis answers"), Acked::Gone);
        seen.insert(tenant);
    }
    assert_eq!(seen, tenants.iter().map(|&tenant| tenant.to_owned()).collect());
}
