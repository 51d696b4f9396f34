//! What is buffered, by itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use semel::key::KeyId;
use semel::store::RedisClient;
use semel_pipeline::event::{Accepted, Dedupe, Generation, NewEvent};
use semel_pipeline::ledger::{Change, Patch};
use semel_testbed::{Redis, RedisCluster};
use semel_triggers::buffer::{
    AckOutcome, Buffer, LeaseOneOutcome, PatchOutcome, PutOutcome, ReadTime, RunLease,
};

use super::{buffer_at, put, run};

const LEASE: Duration = Duration::from_secs(30);

fn keyless(tenant: &str) -> NewEvent {
    run(tenant, None, "{}", None)
}

/// The time of Redis now: the answer to a put of an unread ledger has it.
async fn read_time(buffer: &Arc<Buffer>, tenant: &str) -> ReadTime {
    let probe = run(tenant, Some("a key of its own"), "{}", None);
    let put = buffer.put(&probe, ReadTime::default()).await.expect("Redis answers");
    assert_eq!(put, PutOutcome::Late, "what was never read has changed");
    buffer.read_time(tenant)
}

fn first(run: &NewEvent) -> (KeyId, Generation) {
    (run.dedupe.as_ref().expect("it has a key").id, Generation::FIRST)
}

async fn lease(buffer: &Buffer, tenant: &str, limit: u32) -> RunLease {
    buffer.lease((tenant, 0), limit, LEASE).await.expect("Redis answers")
}

fn tag(tag: &str) -> Patch {
    Patch::Change(Change { add_tags: vec![tag.to_owned()], ..Change::default() })
}

fn add_one() -> Patch {
    Patch::Change(Change { increment: vec![("n".to_owned(), "1".to_owned())], ..Change::default() })
}

// coalesce
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
            PutOutcome::Accepted(Accepted::First(id)) => {
                first += 1;
                ids.insert(id);
            }
            PutOutcome::Accepted(Accepted::Cached(id)) => {
                ids.insert(id);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((first, ids.len()), (1, 1));
    assert_eq!(
        put(&buffer, &run("t", Some("k"), "[]", None)).await,
        PutOutcome::Accepted(Accepted::Conflict),
        "another payload"
    );
    let other = put(&buffer, &run("u", Some("k"), "[]", None)).await;
    assert!(matches!(other, PutOutcome::Accepted(Accepted::First(_))), "another tenant");
}

// An expired key is not echoed by the buffer, and is not silently given to another run either
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_key_stays_with_its_run_until_its_generation_ends() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let short = run("t", Some("k"), "{}", Some(Duration::from_millis(30)));
    put(&buffer, &short).await;
    let find =
        async || buffer.find("t", first(&short)).await.expect("Redis answers").expect("it is there").expired;
    while !find().await {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let next = run("t", Some("k"), "[]", None);
    assert_eq!(put(&buffer, &next).await, PutOutcome::Expired);
    let dedupe = Dedupe { generation: Some(Generation::new(7)), ..next.dedupe.clone().expect("it has one") };
    let next = NewEvent { dedupe: Some(dedupe), ..next };
    assert_eq!(put(&buffer, &next).await, PutOutcome::Accepted(Accepted::First(next.id)));
    let leased = lease(&buffer, "t", 10).await;
    let keys: Vec<_> = leased
        .runs
        .iter()
        .map(|run| run.run.clone().expect("it is whole").run.dedupe.expect("it has one"))
        .map(|dedupe| (dedupe.generation, dedupe.expires_at.is_some()))
        .collect();
    assert_eq!(keys, [(Some(Generation::FIRST), true), (Some(Generation::new(7)), false)]);
}

// crash_after_pop, double_pop: an entry that was taken by a drainer that died is not stranded
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_over_is_given_back_and_its_owner_refused() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let run = run("t", Some("k"), "{}", None);
    put(&buffer, &run).await;
    let dead = buffer.lease(("t", 0), 10, Duration::from_millis(20)).await.expect("Redis answers");
    assert_eq!(dead.runs.len(), 1);
    let again = loop {
        let again = lease(&buffer, "t", 10).await;
        if !again.runs.is_empty() {
            break again;
        }
    };
    assert_eq!((again.reclaimed, again.runs[0].attempts), (1, 1));
    let late = (dead.tenant.as_str(), dead.token.as_str());
    assert_eq!(buffer.ack(late, run.id, 0).await.expect("Redis answers"), AckOutcome::Lost);
    assert!(!buffer.give_back(late, run.id, Duration::ZERO, true).await.expect("Redis answers"));
    assert!(!buffer.remove(late, run.id).await.expect("Redis answers"));
    assert_eq!(buffer.renew(late, &[run.id], LEASE).await.expect("Redis answers"), [false]);
    let now = (again.tenant.as_str(), again.token.as_str());
    assert_eq!(buffer.renew(now, &[run.id], LEASE).await.expect("Redis answers"), [true]);
    assert_eq!(buffer.ack(now, run.id, 0).await.expect("Redis answers"), AckOutcome::Gone);
    assert_eq!(buffer.depth("t").await.expect("Redis answers"), semel_triggers::buffer::Depth::default());
    assert_eq!(buffer.find("t", first(&run)).await.expect("Redis answers"), None, "no ghost keeps the key");
}

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
        assert!(matches!(task.await.expect("it ends"), PatchOutcome::Applied(_)));
    }
    let leased = lease(&buffer, "t", 1).await;
    let read = leased.runs[0].run.clone().expect("it is whole");
    assert_eq!((read.changes.len(), read.run.notes.metadata.len()), (50, 0));
    let read = read.current();
    assert_eq!(read.run.notes.metadata.get("n").map(String::as_str), Some("50"));
    assert_eq!(&read.run.payload[..], payload.as_bytes(), "not a byte is re-encoded");
    // A drainer holds it: what comes now is told to the drainer.
    assert_eq!(
        buffer.patch("t", run.id, &tag("late"), None).await.expect("Redis answers"),
        PatchOutcome::Applied(51)
    );
    let held = (leased.tenant.as_str(), leased.token.as_str());
    let acked = buffer.ack(held, run.id, leased.runs[0].version).await.expect("Redis answers");
    let AckOutcome::Changed(changes) = acked else { panic!("{acked:?}") };
    assert_eq!((changes.len(), changes.last()), (51, Some(&tag("late"))));
    assert_eq!(buffer.ack(held, run.id, 51).await.expect("Redis answers"), AckOutcome::Gone);
    assert_eq!(
        buffer.patch("t", run.id, &tag("gone"), None).await.expect("Redis answers"),
        PatchOutcome::Missing
    );
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
        PatchOutcome::Applied(1)
    );
    assert_eq!(
        buffer.patch("t", run.id, &tag("b"), Some(version)).await.expect("Redis answers"),
        PatchOutcome::Stale
    );
    let (read, _) = buffer.get("t", run.id).await.expect("Redis answers").expect("it is there");
    assert_eq!(read.expect("it is whole").current().run.notes.tags, ["a"]);
}

// Whether or not its time has come; not the one that a drainer holds
#[tokio::test(flavor = "multi_thread")]
async fn one_run_is_leased_by_its_id() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let (one, other) = (keyless("t"), keyless("t"));
    for run in [&one, &other] {
        put(&buffer, run).await;
    }
    buffer.patch("t", one.id, &tag("a"), None).await.expect("Redis answers");
    let brief = Duration::from_millis(20);
    let LeaseOneOutcome::Leased(dead) = buffer.lease_one("t", one.id, brief).await.expect("Redis answers")
    else {
        panic!("it is free")
    };
    assert_eq!((dead.runs.len(), dead.runs[0].id, dead.runs[0].version), (1, one.id, 1));
    let now = loop {
        match buffer.lease_one("t", one.id, LEASE).await.expect("Redis answers") {
            LeaseOneOutcome::Held => tokio::time::sleep(Duration::from_millis(2)).await,
            LeaseOneOutcome::Leased(now) => break now,
            LeaseOneOutcome::Missing => panic!("it is there"),
        }
    };
    assert_eq!(now.runs[0].attempts, 1, "the lease before it has expired");
    assert_eq!(buffer.lease_one("t", one.id, LEASE).await.expect("Redis answers"), LeaseOneOutcome::Held);
    assert_eq!(lease(&buffer, "t", 10).await.runs.len(), 1, "the other one");
    let late = (dead.tenant.as_str(), dead.token.as_str());
    assert_eq!(buffer.ack(late, one.id, 1).await.expect("Redis answers"), AckOutcome::Lost);
    let held = (now.tenant.as_str(), now.token.as_str());
    assert_eq!(buffer.ack(held, one.id, 1).await.expect("Redis answers"), AckOutcome::Gone);
    assert_eq!(buffer.lease_one("t", one.id, LEASE).await.expect("Redis answers"), LeaseOneOutcome::Missing);
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_take_turns() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    for tenant in ["big", "big", "big", "big", "big", "big", "small", "tiny"] {
        put(&buffer, &keyless(tenant)).await;
    }
    let mut order = Vec::new();
    while let Some((tenant, announced)) = buffer.next_tenant().await.expect("Redis answers") {
        let leased = buffer.lease((&tenant, announced), 2, LEASE).await.expect("Redis answers");
        for leased_run in &leased.runs {
            let acked = buffer.ack((&tenant, &leased.token), leased_run.id, 0).await.expect("Redis answers");
            assert_eq!(acked, AckOutcome::Gone);
        }
        if !leased.runs.is_empty() {
            order.push(tenant);
        }
    }
    assert_eq!(order, ["big", "small", "tiny", "big", "big"]);
    assert_eq!(buffer.tenants().await.expect("Redis answers"), [""; 0], "nobody is left on the list");
}

// with a delay, and without burning attempts
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
    assert_eq!(put(&buffer, &keyless("t")).await, PutOutcome::Full);
    let again = run("t", Some("k"), "{}", None);
    assert_eq!(
        put(&buffer, &again).await,
        PutOutcome::Accepted(Accepted::Cached(first.id)),
        "known keys still answer"
    );
    assert!(matches!(put(&buffer, &keyless("u")).await, PutOutcome::Accepted(Accepted::First(_))));
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
    assert!(buffer.remove(("t", &leased.token), bad.id).await.expect("Redis answers"));
}

// The ledger changed after the caller of a put had read it, or is about to
#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_caller_read_another_ledger_is_refused() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let day = Duration::from_secs(86_400);
    let put_at = async |run: &NewEvent, read| buffer.put(run, read).await.expect("Redis answers");
    let (slow, other) = (run("t", Some("k"), "{}", None), run("t", Some("other"), "{}", None));
    let before = read_time(&buffer, "t").await;
    assert_eq!(buffer.reserve("t", first(&slow), day).await.expect("Redis answers"), None, "it is free");
    let both = tokio::join!(put_at(&slow, before), put_at(&other, before));
    assert_eq!(
        both,
        (PutOutcome::Reserved, PutOutcome::Accepted(Accepted::First(other.id))),
        "only under its key"
    );
    let after = read_time(&buffer, "t").await;
    assert_eq!(put_at(&slow, after).await, PutOutcome::Reserved, "whenever the ledger was read");
    let held = buffer.reserve("t", first(&other), day).await.expect("Redis answers");
    assert_eq!(held.map(|holder| holder.run), Some(other.id), "a key with a run is not reserved");
    assert!(buffer.find("t", first(&slow)).await.expect("Redis answers").is_none());

    buffer.outdate("t", first(&slow)).await.expect("Redis answers");
    assert_eq!(put_at(&slow, after).await, PutOutcome::Reserved, "a reset ends no reservation");
    buffer.end_reservation("t", first(&slow)).await.expect("Redis answers");
    assert_eq!(put_at(&slow, after).await, PutOutcome::Late, "the ledger has changed since");
    assert_eq!(put(&buffer, &slow).await, PutOutcome::Accepted(Accepted::First(slow.id)));
    let late = run("t", Some("k"), "{}", None);
    assert_eq!(
        put_at(&late, before).await,
        PutOutcome::Accepted(Accepted::Cached(slow.id)),
        "the late one is told of it"
    );

    let read = read_time(&buffer, "t").await;
    let leased = lease(&buffer, "t", 10).await;
    for run in &leased.runs {
        let gone = buffer.ack(("t", &leased.token), run.id, 0).await.expect("Redis answers");
        assert_eq!(gone, AckOutcome::Gone);
    }
    assert_eq!(put_at(&late, read).await, PutOutcome::Late, "the run of its key came into the ledger");
}

// The script dropped all runs, and then failed to write the notes of more than 4,000 keys: a put that had read the ledger
// before was accepted, and its key had a second id. Now the notes come first, in parts.
#[tokio::test(flavor = "multi_thread")]
async fn every_run_of_a_large_batch_leaves_a_note() {
    const RUNS: u32 = 4_500;
    let redis = Redis::start().expect("a Redis");
    let client = RedisClient::builder(redis.url()).build().expect("the URL is good");
    let buffer = Arc::new(Buffer::new(client, "semel:burst", u64::from(RUNS)));
    let puts: Vec<_> = (0..RUNS)
        .map(|number| {
            let (buffer, run) = (Arc::clone(&buffer), run("t", Some(&number.to_string()), "{}", None));
            tokio::spawn(async move { (put(&buffer, &run).await, run) })
        })
        .collect();
    let mut runs = Vec::new();
    for put in puts {
        let (put, run) = put.await.expect("it ends");
        assert_eq!(put, PutOutcome::Accepted(Accepted::First(run.id)));
        runs.push(run);
    }
    let leased = lease(&buffer, "t", RUNS).await;
    let versions: Vec<_> = leased.runs.iter().map(|run| (run.id, run.version)).collect();
    assert_eq!(versions.len(), runs.len());
    let before = read_time(&buffer, "t").await;
    let acked = buffer.ack_all(leased.proof(), &versions).await.expect("Redis answers");
    assert!(acked.iter().all(|acked| *acked == AckOutcome::Gone));
    for run in [&runs[0], &runs[runs.len() / 2], &runs[runs.len() - 1]] {
        assert_eq!(buffer.put(run, before).await.expect("Redis answers"), PutOutcome::Late);
    }
    let notes = redis.tell(&["KEYS", "*:refused"]).expect("it runs").text();
    assert_eq!(redis.tell(&["ZCARD", &notes]).expect("it runs").text(), RUNS.to_string());
}

// The answer to a put was lost, and its caller repeats it. The script called a number, so that all runs of the tenant in
// the batch failed; and a run that was not new lost its entry in the list of ids.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_is_repeated_is_accepted_again() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    for key in [Some("k"), None] {
        let again = run("t", key, "{}", None);
        let accepted = PutOutcome::Accepted(Accepted::First(again.id));
        assert_eq!(put(&buffer, &again).await, accepted);
        let other = run("t", None, "{}", None);
        let both = tokio::join!(put(&buffer, &again), put(&buffer, &other));
        assert_eq!(both, (accepted, PutOutcome::Accepted(Accepted::First(other.id))));
        assert_eq!(buffer.tenant_of(again.id).await.expect("Redis answers").as_deref(), Some("t"));
        assert!(buffer.get("t", again.id).await.expect("Redis answers").is_some(), "it is found by its id");
    }
    assert_eq!(buffer.depth("t").await.expect("Redis answers").queued, 4, "each once");
    let leased = lease(&buffer, "t", 1).await;
    buffer.patch("t", leased.runs[0].id, &tag("x"), None).await.expect("Redis answers");
    let again = leased.runs[0].run.clone().expect("it is whole").run;
    put(&buffer, &again).await;
    let acked = buffer.ack(leased.proof(), again.id, 1).await.expect("Redis answers");
    assert_eq!(acked, AckOutcome::Gone, "its lease and its changes stay");
}

// Drainers could not lease anything while the memory was full, so it stayed full. A reservation was refused too, and its
// key could get a second run.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_is_drained_and_keeps_reservations() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let (one, other) = (run("t", Some("k"), "{}", None), run("t", Some("other"), "{}", None));
    put(&buffer, &one).await;
    let before = read_time(&buffer, "t").await;
    redis.config_set("maxmemory", "1").expect("it is set");
    let refused = buffer.put(&other, before).await.expect_err("the memory is full");
    assert_eq!(refused.kind(), semel::store::ErrorKind::Full, "{refused}");
    buffer.reserve("t", first(&other), LEASE).await.expect("a reservation is written");
    let turn = buffer.next_tenant().await.expect("a turn is written").expect("there is one");
    let leased = buffer.lease((&turn.0, turn.1), 1, LEASE).await.expect("a lease is written");
    let held = leased.proof();
    assert_eq!(buffer.renew(held, &[one.id], LEASE).await.expect("it is renewed"), [true]);
    assert!(buffer.give_back(held, one.id, Duration::ZERO, false).await.expect("it is given back"));
    let LeaseOneOutcome::Leased(again) = buffer.lease_one("t", one.id, LEASE).await.expect("it is leased")
    else {
        panic!("it is free")
    };
    assert_eq!(buffer.ack(again.proof(), one.id, 0).await.expect("it leaves"), AckOutcome::Gone);
    assert!(buffer.remove(again.proof(), one.id).await.expect("a run that is gone is no error"));
    redis.config_set("maxmemory", "0").expect("it is set");
    assert_eq!(buffer.put(&one, before).await.expect("Redis answers"), PutOutcome::Late);
    assert_eq!(buffer.put(&other, before).await.expect("Redis answers"), PutOutcome::Reserved);
}

// A put that was answered "late" opened the tenant although it buffered nothing, and used up the token. A drainer found the
// tenant empty and closed it, so that a put with the same token was refused: after five times its run passed the gate.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_buffers_nothing_announces_no_tenant() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let listed = || redis.tell(&["KEYS", "*:listed"]).expect("it runs").text();
    let tenants = async || buffer.tenants().await.expect("Redis answers");
    let read = read_time(&buffer, "t").await;
    let reserved = run("t", Some("k"), "{}", None);
    buffer.reserve("t", first(&reserved), LEASE).await.expect("Redis answers");
    assert_eq!(buffer.put(&reserved, read).await.expect("Redis answers"), PutOutcome::Reserved);
    assert_eq!((tenants().await, listed()), (Vec::new(), String::new()));
    let (late, kept) = (run("t", Some("late"), "{}", None), keyless("t"));
    let put_at = async |run: &NewEvent, read| buffer.put(run, read).await.expect("Redis answers");
    let both = tokio::join!(put_at(&late, ReadTime::default()), put_at(&kept, read));
    assert_eq!(both, (PutOutcome::Late, PutOutcome::Accepted(Accepted::First(kept.id))), "one of a batch");
    assert_eq!(tenants().await, ["t"]);
    assert_eq!(lease(&buffer, "t", 10).await.runs.len(), 1);
}

// The list of tenants is in another slot of a cluster, whose master can fail over and lose it. The tenant's part still said that
// it is on the list, and no drainer ever found its runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_the_list_has_lost_is_announced_again() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let told = |command: &[&str]| redis.tell(command).expect("it runs").text().trim().to_owned();
    let tenants = async || buffer.tenants().await.expect("Redis answers");
    let lost = async || {
        for name in ["*{tenants}:turns", "*{tenants}:announced"] {
            told(&["DEL", &told(&["KEYS", name])]);
        }
        assert!(tenants().await.is_empty());
    };
    let listed = |field: &str| told(&["HGET", &told(&["KEYS", "*:listed"]), field]);
    let older = || {
        let opened: u64 = listed("open").parse().expect("a time");
        told(&["HSET", &told(&["KEYS", "*:listed"]), "open", &(opened - 61_000_000).to_string()]);
    };
    let waiting = run("t", Some("k"), "{}", None);
    put(&buffer, &waiting).await;
    lost().await;
    put(&buffer, &keyless("t")).await;
    assert!(tenants().await.is_empty(), "it was announced less than a minute ago");
    older();
    put(&buffer, &keyless("t")).await;
    assert_eq!(tenants().await, ["t"], "a minute later");
    lost().await;
    older();
    let again = run("t", Some("k"), "{}", None);
    assert_eq!(put(&buffer, &again).await, PutOutcome::Accepted(Accepted::Cached(waiting.id)));
    assert_eq!(tenants().await, ["t"], "a retry brings it back too");
    assert_eq!(lease(&buffer, "t", 10).await.runs.len(), 3);
    // As an earlier version wrote it.
    lost().await;
    told(&["HSET", &told(&["KEYS", "*:listed"]), "open", "1"]);
    put(&buffer, &keyless("t")).await;
    assert_eq!(tenants().await, ["t"]);
}

// Longer ago than the buffer remembers what has changed
#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_comes_too_late_is_refused() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let run = run("t", Some("k"), "{}", None);
    let read = read_time(&buffer, "t").await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(buffer.put(&run, read).await.expect("Redis answers"), PutOutcome::Late);
    assert_eq!(put(&buffer, &run).await, PutOutcome::Accepted(Accepted::First(run.id)));
}

#[tokio::test(flavor = "multi_thread")]
async fn notes_of_keys_do_not_pile_up() {
    let redis = Redis::start().expect("a Redis");
    let buffer = buffer_at(&redis.url());
    let name = |name: &str| first(&run("t", Some(name), "{}", None));
    let hour = Duration::from_secs(3600);
    buffer.reserve("t", name("stays"), hour).await.expect("Redis answers");
    for number in 0..200 {
        buffer.outdate("t", name(&number.to_string())).await.expect("Redis answers");
    }
    let notes = redis.tell(&["KEYS", "*:refused"]).expect("it runs").text();
    let count = || redis.tell(&["ZCARD", &notes]).expect("it runs").text();
    assert_eq!(count(), "201");
    tokio::time::sleep(Duration::from_secs(11)).await;
    buffer.outdate("t", name("another")).await.expect("Redis answers");
    assert_eq!(count(), "2", "the reservation and the new note");
}

// Separators inside user-supplied parts
#[tokio::test(flavor = "multi_thread")]
async fn it_works_on_a_cluster_whatever_tenants_are_called() {
    let cluster = RedisCluster::start().expect("a cluster");
    let nodes: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
    let buffer = buffer_at(&format!("redis-cluster://{}", nodes.join(",")));
    let tenants = ["", "a", "{a}", "a}:queue", "}{", "a|b\n", "ä:{all}:gate"];
    for tenant in tenants {
        let run = run(tenant, Some("k"), "{}", None);
        assert_eq!(put(&buffer, &run).await, PutOutcome::Accepted(Accepted::First(run.id)), "{tenant:?}");
        buffer.patch(tenant, run.id, &tag("x"), None).await.expect("Redis answers");
        assert!(buffer.get(tenant, run.id).await.expect("Redis answers").is_some());
        let listed = buffer.list(tenant, None, 10).await.expect("Redis answers");
        assert_eq!(listed, (vec![run.id], None), "{tenant:?}");
        let held = buffer.reserve(tenant, first(&run), LEASE).await.expect("Redis answers");
        assert_eq!(held.map(|holder| holder.run), Some(run.id), "{tenant:?}");
    }
    let mut seen = BTreeSet::new();
    for _ in tenants {
        let (tenant, announced) = buffer.next_tenant().await.expect("Redis answers").expect("all wait");
        let leased = buffer.lease((&tenant, announced), 10, LEASE).await.expect("Redis answers");
        assert_eq!(leased.runs.len(), 1, "{tenant:?}");
        let held = (tenant.as_str(), leased.token.as_str());
        assert_eq!(buffer.renew(held, &[leased.runs[0].id], LEASE).await.expect("Redis answers"), [true]);
        assert_eq!(buffer.ack(held, leased.runs[0].id, 1).await.expect("Redis answers"), AckOutcome::Gone);
        seen.insert(tenant);
    }
    assert_eq!(seen, tenants.iter().map(|&tenant| tenant.to_owned()).collect());
}
