//! Same key, same run.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel::engine::Acquired;
use semel::key::Hint;
use semel::record::{Begin, Command, Mode, NewClaim, Owner, Ruling, Terms};
use semel::secret::Secret;
use semel_pipeline::event::{Accepted, Dedupe};
use semel_pipeline::id::EventId;
use semel_pipeline::ledger::{Change, Error};
use semel_testbed::{FaultProxy, Redis};
use semel_triggers::buffer::PutOutcome;
use semel_triggers::gate::{Gate, GateMode, Limit};
use semel_triggers::trigger::{
    RunAccessError, RunKey, RunLocation, RunRequest, TriggerError, Triggered, Triggers,
};

use super::{Deployment, SHUT, WIDE, audit_line, put, request, triggers};

const KEY: RunKey<'_> = RunKey { principal: "p", tenant: "t", target: "crm", key: "k" };

/// Redis loses what is buffered, and keeps the claims.
fn lose_buffer(redis: &Redis) {
    let script = "for _, key in ipairs(redis.call('KEYS', 'semel:burst:*')) do redis.call('DEL', key) end";
    redis.tell(&["EVAL", script, "0"]).expect("it runs");
}

async fn trigger(triggers: &Triggers, request: &RunRequest) -> Triggered {
    triggers.trigger(request).await.expect("it is triggered")
}

/// Triggers the same run `count` times at once. Answers the ids, and how often it was said to be new.
async fn crowd(triggers: &[Arc<Triggers>], request: &RunRequest, count: usize) -> (BTreeSet<EventId>, usize) {
    let tasks: Vec<_> = (0..count)
        .map(|n| {
            let (triggers, request) = (Arc::clone(&triggers[n % triggers.len()]), request.clone());
            tokio::spawn(async move { trigger(&triggers, &request).await })
        })
        .collect();
    let (mut ids, mut first) = (BTreeSet::new(), 0);
    for task in tasks {
        let triggered = task.await.expect("it ends");
        ids.insert(triggered.id);
        first += usize::from(!triggered.cached);
    }
    (ids, first)
}

// the burst that trips the gate goes both ways
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_on_a_cold_gate_is_one_run() {
    let redis = Redis::start().expect("a Redis");
    let limit = Limit { threshold: 3, window: Duration::from_millis(50), hold: Duration::from_millis(50) };
    let deployment = Deployment::new(&redis, limit).await;
    let (other, _) = triggers(&redis, &deployment.ledger, limit).await;
    let both = [Arc::clone(&deployment.triggers), other];
    let mut all = BTreeSet::new();
    for round in 0..20 {
        // Others of the tenant trip the gate in some rounds and not in others.
        for n in 0..round % 5 {
            trigger(&deployment.triggers, &request("t", Some(&format!("{round}-{n}")), "{}")).await;
        }
        let (ids, first) = crowd(&both, &request("t", Some(&format!("k{round}")), "{}"), 40).await;
        assert_eq!((ids.len(), first), (1, 1), "round {round}");
        all.extend(ids);
    }
    deployment.drain().await;
    let drained: BTreeSet<EventId> = deployment.runs().await.iter().map(|event| event.new.id).collect();
    assert!(drained.is_superset(&all), "every id that was told is a run");
    assert_eq!(drained.len(), 20 + 4 * (1 + 2 + 3 + 4), "and no other is");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_payload_is_a_conflict_wherever_the_run_is() {
    let redis = Redis::start().expect("a Redis");
    for limit in [SHUT, WIDE] {
        let deployment = Deployment::new(&redis, limit).await;
        let tenant = format!("t{}", limit.threshold);
        let first = trigger(&deployment.triggers, &request(&tenant, Some("k"), "{}")).await;
        assert_eq!((first.cached, first.buffered), (false, limit == SHUT));
        let conflict = deployment.triggers.trigger(&request(&tenant, Some("k"), "[]")).await;
        assert!(matches!(conflict, Err(TriggerError::Conflict)), "{conflict:?}");
        let again = trigger(&deployment.triggers, &request(&tenant, Some("k"), "{}")).await;
        assert_eq!((again.id, again.cached), (first.id, true));
    }
}

// exactly one waiter takes over after an owner that failed, with the same id
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_dies_is_taken_over() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let burst = deployment.triggers.burst().expect("there is one").clone();
    let asked = request("t", Some("k"), "{}");
    // Somebody holds the key, and dies without a word: the lease is all that is left of it.
    let held = burst
        .claims
        .once(Dedupe::run_key(("p", "t", "crm"), "k"))
        .payload(Dedupe::run_payload("crm", b"{}"))
        .mode(semel::Mode::Keyed)
        .claim()
        .await
        .expect("Redis answers");
    let semel::engine::Acquired::Won(claim) = held else { panic!("it is free") };
    let waiting = {
        let (triggers, asked) = (Arc::clone(&deployment.triggers), asked.clone());
        tokio::spawn(async move { crowd(&[triggers], &asked, 20).await })
    };
    while deployment.triggers.burst().is_some_and(|burst| burst.claims.waiters() < 20) {
        tokio::task::yield_now().await;
    }
    claim.release().await;
    let (ids, first) = waiting.await.expect("it ends");
    assert_eq!((ids.len(), first), (1, 1));
}

// a claim that expires under a slow winner: its successor places a run, and the slow one finds that run
#[tokio::test(flavor = "multi_thread")]
async fn a_winner_that_is_too_slow_finds_the_run_of_its_successor() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let burst = deployment.triggers.burst().expect("there is one").clone();
    let slow = super::run("t", Some("k"), "{}", None);
    let dedupe = slow.dedupe.clone().expect("it has one");
    let lease = Duration::from_millis(50);
    // As its process would hold it, if that stood still: without a heartbeat.
    let claim = NewClaim {
        owner: Owner::random(),
        fingerprint: dedupe.fingerprint,
        terms: Arc::new(Terms { mode: Mode::Keyed, lease, ..Terms::default() }),
        begin: Begin::WithClaim,
        hint: Hint::new("k"),
    };
    let won = burst.claims.store().apply(dedupe.id, Command::Claim(claim)).await.expect("Redis answers");
    assert!(matches!(won, Ruling::Won(_)), "it is free: {won:?}");
    put(&deployment.buffer, &super::run("t", Some("another"), "{}", None)).await;
    let read = deployment.buffer.read_time("t");
    deployment.drain().await;
    tokio::time::sleep(lease * 2).await;
    let (ids, first) =
        crowd(std::slice::from_ref(&deployment.triggers), &request("t", Some("k"), "{}"), 20).await;
    assert_eq!((ids.len(), first), (1, 1));
    deployment.drain().await;
    assert_eq!(deployment.runs().await.len(), 2, "the other run, and one of the key");
    let late = deployment.buffer.put(&slow, read).await.expect("Redis answers");
    assert_eq!(late, PutOutcome::Late, "the buffer accepts nothing of the slow one any more");
    let late = deployment.ledger.accept(vec![slow]).await.expect("it answers");
    assert_eq!(late.first().copied(), ids.first().copied().map(Accepted::Cached), "nor does the ledger");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_in_vain_says_so() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let burst = deployment.triggers.burst().expect("there is one").clone();
    let patient = Triggers::new(
        Arc::clone(&deployment.ledger),
        Arc::new(semel::secret::Secret::from_bytes([3; 32])),
        Some(burst.clone()),
    )
    .limits(Duration::from_millis(100), Duration::from_secs(30))
    .expect("they fit");
    let once = burst.claims.once(Dedupe::run_key(("p", "t", "crm"), "k"));
    let held = once.payload(Dedupe::run_payload("crm", b"{}")).mode(semel::Mode::Keyed).claim().await;
    let refused = patient.trigger(&request("t", Some("k"), "{}")).await.expect_err("it is held");
    assert_eq!(refused.to_string(), "idempotency claim resolution timed out");
    assert!(matches!(refused, TriggerError::TimedOut { .. }));
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_the_ledger_decides_alone() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    redis.kill();
    let (ids, first) = crowd(&[Arc::clone(&deployment.triggers)], &request("t", Some("k"), "{}"), 10).await;
    assert_eq!((ids.len(), first), (1, 1));
    assert!(deployment.triggers.counters().failed_open.load(Ordering::Relaxed) > 0, "and it is counted");
    assert_eq!(deployment.runs().await.len(), 1);
}

// Redis dies while triggers wait: one whose wait has ended continues without it
#[tokio::test(flavor = "multi_thread")]
async fn redis_that_dies_under_those_who_wait_sends_nobody_away() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let burst = deployment.triggers.burst().expect("there is one").clone();
    let secret = Arc::new(semel::secret::Secret::from_bytes([3; 32]));
    let waiting = Triggers::new(Arc::clone(&deployment.ledger), secret, Some(burst.clone()));
    let waiting = waiting.limits(Duration::from_millis(500), Duration::from_secs(30)).expect("they fit");
    let waiting = Arc::new(waiting);
    let once = burst.claims.once(Dedupe::run_key(("p", "t", "crm"), "k"));
    let held = once.payload(Dedupe::run_payload("crm", b"{}")).mode(semel::Mode::Keyed).claim().await;
    let asked = request("t", Some("k"), "{}");
    let all = tokio::spawn(async move { crowd(&[waiting], &asked, 20).await });
    while burst.claims.waiters() < 20 {
        tokio::task::yield_now().await;
    }
    redis.kill();
    let (ids, first) = all.await.expect("nobody is sent away");
    assert_eq!((ids.len(), first), (1, 1));
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_was_not_published_is_found_in_the_ledger() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, WIDE).await;
    let first = trigger(&deployment.triggers, &request("t", Some("k"), "{}")).await;
    redis.tell(&["FLUSHALL"]).expect("it forgets the claim");
    let again = trigger(&deployment.triggers, &request("t", Some("k"), "{}")).await;
    assert_eq!((again.id, again.cached), (first.id, true));
}

// the winner died after it wrote the run, its claim still stands, and nobody waits for its lease
#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_found_where_it_is_while_its_claim_is_held() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let burst = deployment.triggers.burst().expect("there is one").clone();
    let once = burst.claims.once(Dedupe::run_key(("p", "t", "crm"), "k"));
    let held = once.payload(Dedupe::run_payload("crm", b"{}")).mode(semel::Mode::Keyed).claim().await;
    let written = super::run("t", Some("k"), "{}", None);
    put(&deployment.buffer, &written).await;
    let found = trigger(&deployment.triggers, &request("t", Some("k"), "{}")).await;
    assert_eq!((found.id, found.cached, found.buffered), (written.id, true, true));
    deployment.drain().await;
    let found = trigger(&deployment.triggers, &request("t", Some("k"), "{}")).await;
    assert_eq!((found.id, found.cached, found.buffered), (written.id, true, false));
    drop(held);
}

// the claim of a buffered run is over, or lost: the run is found all the same, whichever way the gate says
#[tokio::test(flavor = "multi_thread")]
async fn a_buffered_run_whose_claim_is_gone_is_found() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    for gate in [GateMode::On, GateMode::Off] {
        let mut burst = deployment.triggers.burst().expect("there is one").clone();
        burst.gate = Arc::new(Gate::new(Arc::clone(&burst.buffer), gate, SHUT, None));
        let secret = Arc::new(Secret::from_bytes([3; 32]));
        let triggers = Triggers::new(Arc::clone(&deployment.ledger), secret, Some(burst));
        let key = format!("k-{gate:?}");
        let written = super::run("t", Some(&key), "{}", None);
        put(&deployment.buffer, &written).await;
        let other = triggers.trigger(&request("t", Some(&key), "[]")).await;
        assert!(matches!(other, Err(TriggerError::Conflict)), "{gate:?}: {other:?}");
        for time in ["by the buffer", "by the claim that was made of it"] {
            let found = trigger(&triggers, &request("t", Some(&key), "{}")).await;
            assert_eq!(
                (found.id, found.cached, found.buffered),
                (written.id, true, true),
                "{gate:?}: {time}"
            );
        }
    }
    deployment.drain().await;
    assert_eq!(deployment.runs().await.len(), 2);
}

// a trigger with another payload than the buffered run's is refused, and does not take the key
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_with_another_payload_does_not_take_the_key() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let (right, wrong) = (request("t", Some("k"), "{}"), request("t", Some("k"), "[]"));
    let written = super::run("t", Some("k"), "{}", None);
    put(&deployment.buffer, &written).await;
    let burst = deployment.triggers.burst().expect("there is one").clone();
    let once = burst.claims.once(Dedupe::run_key(("p", "t", "crm"), "k"));
    let held = once.payload(Dedupe::run_payload("crm", b"[]")).mode(semel::Mode::Keyed).claim().await;
    let found = trigger(&deployment.triggers, &right).await;
    assert_eq!((found.id, found.cached, found.buffered), (written.id, true, true), "while it is claimed");
    match held.expect("Redis answers") {
        Acquired::Won(claim) => claim.release().await,
        other => panic!("{other:?}"),
    }
    let sent_away = deployment.triggers.trigger(&wrong).await;
    assert!(matches!(sent_away, Err(TriggerError::Conflict)), "{sent_away:?}");
    lose_buffer(&redis);
    let again = trigger(&deployment.triggers, &right).await;
    assert!(!again.cached, "the key is not bound to what was sent away");
}

// A claim that points at an id which no longer exists does not block its key
// The owner of the claim may be refused itself. Then no run with another payload exists, and a 422 would be wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_with_another_payload_is_waited_for() {
    let redis = Redis::start().expect("a Redis");
    for limit in [SHUT, WIDE] {
        let deployment = Deployment::new(&redis, limit).await;
        let tenant = format!("w{}", limit.threshold);
        let burst = deployment.triggers.burst().expect("there is one").clone();
        let key = Dedupe::run_key(("p", &tenant, "crm"), "k");
        let claim_id = key.id(&Secret::from_bytes([3; 32])).expect("it is valid");
        let once = burst.claims.once(key).payload(Dedupe::run_payload("crm", b"[]"));
        let held = once.mode(Mode::Keyed).claim().await.expect("Redis answers");
        let Acquired::Won(claim) = held else { panic!("it is free") };
        let running = claim.begin().await.expect("it begins");
        let waiting = {
            let (triggers, asked) = (Arc::clone(&deployment.triggers), request(&tenant, Some("k"), "{}"));
            tokio::spawn(async move { triggers.trigger(&asked).await })
        };
        while deployment.triggers.counters().waited.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(!waiting.is_finished(), "it is answered while the claim is held");
        }
        // As a trigger does that was refused.
        running.release().await;
        let _ = burst.claims.forget(claim_id, semel::record::Force::No).await.expect("Redis answers");
        let triggered = waiting.await.expect("it ends").expect("it is triggered");
        assert!(!triggered.cached);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_names_a_ghost_is_taken_away() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let first = trigger(&deployment.triggers, &request("t", Some("k"), "{}")).await;
    lose_buffer(&redis);
    // In a burst nobody reads claims: this one comes from elsewhere.
    let (other, _) = triggers(&redis, &deployment.ledger, SHUT).await;
    let again = trigger(&other, &request("t", Some("k"), "{}")).await;
    assert!(again.id != first.id && !again.cached, "{again:?}");
    assert_eq!(other.counters().lost.load(Ordering::Relaxed), 1, "and it is counted");
    let third = trigger(&deployment.triggers, &request("t", Some("k"), "{}")).await;
    assert_eq!((third.id, third.cached), (again.id, true));
}

/// A deployment, and triggers of another process that reaches the buffer through a proxy.
async fn behind_proxy(redis: &Redis) -> (Deployment, FaultProxy, Arc<Triggers>) {
    let deployment = Deployment::new(redis, SHUT).await;
    let proxy = FaultProxy::before(redis.addr()).expect("a proxy");
    let limit = Limit { hold: Duration::from_secs(3600), ..SHUT };
    let url = format!("redis://{}", proxy.addr());
    let (triggers, _) = super::triggers_at(redis, &url, &deployment.ledger, limit).await;
    (deployment, proxy, triggers)
}

fn counted(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

// One failed read of the buffer was taken for an absence: the run was reported as lost, with an alert, although it was
// there.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_look_up_does_not_report_a_lost_run() {
    let redis = Redis::start().expect("a Redis");
    let (deployment, proxy, triggers) = behind_proxy(&redis).await;
    let asked = request("t", Some("k"), "{}");
    let first = trigger(&triggers, &asked).await;
    assert!(first.buffered, "{first:?}");
    proxy.drop_reply_to(b"HGET");
    let again = triggers.trigger_now(&asked).await.expect("it is triggered");
    assert_eq!(proxy.counts().dropped_replies, 1, "the look-up failed");
    assert_eq!((again.id, again.cached, again.buffered), (first.id, true, false));
    let counters = triggers.counters();
    assert_eq!((counted(&counters.lost), counted(&counters.failed_open)), (0, 1), "lost, failed open");
    deployment.drain().await;
    assert_eq!(deployment.runs().await.len(), 1);
}

// The first put was executed and its answer was lost. The second one failed in the script, with all others of the batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_answer_was_lost_is_the_same_buffered_run() {
    let redis = Redis::start().expect("a Redis");
    let (deployment, proxy, triggers) = behind_proxy(&redis).await;
    trigger(&triggers, &request("t", Some("before"), "{}")).await;
    proxy.drop_reply_to(b"marker");
    let first = trigger(&triggers, &request("t", Some("k"), "\"marker\"")).await;
    assert_eq!(proxy.counts().dropped_replies, 1, "the answer was lost");
    assert_eq!((first.cached, first.buffered), (false, true));
    assert_eq!(counted(&triggers.counters().failed_open), 1, "only the lost answer");
    let found = triggers.locate(first.id).await.expect("Redis answers");
    assert!(matches!(found, RunLocation::Buffer { .. }), "{found:?}");
    let again = trigger(&triggers, &request("t", Some("k"), "\"marker\"")).await;
    assert_eq!((again.id, again.cached), (first.id, true));
    deployment.drain().await;
    assert_eq!(deployment.runs().await.len(), 2);
}

// A run went to the ledger without a reservation, because the memory of Redis was full. A put whose caller had read the
// ledger before was accepted as a second run of the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_a_full_redis_sends_to_the_ledger_is_the_only_one_of_its_key() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, WIDE).await;
    let slow = super::run("t", Some("k"), "{}", None);
    put(&deployment.buffer, &super::run("t", Some("another"), "{}", None)).await;
    let read = deployment.buffer.read_time("t");
    redis.config_set("maxmemory", "1").expect("it is set");
    let first = trigger(&deployment.triggers, &request("t", Some("k"), "{}")).await;
    assert_eq!((first.cached, first.buffered), (false, false));
    redis.config_set("maxmemory", "0").expect("it is set");
    let put = deployment.buffer.put(&slow, read).await.expect("Redis answers");
    assert!(matches!(put, PutOutcome::Reserved | PutOutcome::Late), "{put:?}");
    assert_eq!(
        counted(&deployment.triggers.counters().failed_open),
        1,
        "the claim was refused, and nothing else"
    );
}

// Short key lifetimes do not let the claim lapse mid-way, and the key is free afterwards
#[tokio::test(flavor = "multi_thread")]
async fn a_key_lives_as_long_as_it_was_asked_to() {
    let redis = Redis::start().expect("a Redis");
    for limit in [SHUT, WIDE] {
        let deployment = Deployment::new(&redis, limit).await;
        let tenant = format!("s{}", limit.threshold);
        let short =
            RunRequest { lifetime: Some(Duration::from_millis(600)), ..request(&tenant, Some("k"), "{}") };
        let (ids, first) = crowd(&[Arc::clone(&deployment.triggers)], &short, 10).await;
        assert_eq!((ids.len(), first), (1, 1));
        let id = *ids.first().expect("there is one");
        let mut next = trigger(&deployment.triggers, &short).await;
        for _ in 0..500 {
            if next.id != id {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            next = trigger(&deployment.triggers, &short).await;
        }
        assert!(next.id != id && !next.cached, "{next:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_waits_promotes_a_buffered_run_under_its_own_id() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let buffered = trigger(&deployment.triggers, &request("t", Some("k"), "{}")).await;
    assert!(buffered.buffered);
    let now = deployment.triggers.trigger_now(&request("t", Some("k"), "{}")).await.expect("it is triggered");
    assert_eq!((now.id, now.cached, now.buffered), (buffered.id, true, false));
    assert!(matches!(deployment.triggers.locate(now.id).await, Ok(RunLocation::Ledger(_))));
    let keyless = deployment.triggers.trigger_now(&request("t", None, "{}")).await.expect("it is triggered");
    assert_eq!((keyless.cached, keyless.buffered), (false, false), "past the gate");
    deployment.drain().await;
    assert_eq!(deployment.runs().await.len(), 2);
}

// a trigger without a key does no claim work at all
#[tokio::test(flavor = "multi_thread")]
async fn without_a_key_every_trigger_is_a_run() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, WIDE).await;
    let one = trigger(&deployment.triggers, &request("t", None, "{}")).await;
    let two = trigger(&deployment.triggers, &request("t", None, "{}")).await;
    assert!(one.id != two.id && !one.cached && !two.cached);
    assert_eq!(deployment.triggers.counters().won.load(Ordering::Relaxed), 0);
}

// A key's scope is principal, tenant and target
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_others_are_other_keys() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let base = request("t", Some("k"), "{}");
    let others = [
        base.clone(),
        RunRequest { principal: "q".to_owned(), ..base.clone() },
        RunRequest { tenant: "u".to_owned(), ..base.clone() },
        RunRequest { target: "erp".to_owned(), ..base.clone() },
        RunRequest { tenant: "t:p".to_owned(), principal: String::new(), ..base },
    ];
    let mut ids = BTreeSet::new();
    for other in &others {
        let triggered = trigger(&deployment.triggers, other).await;
        assert!(!triggered.cached);
        ids.insert(triggered.id);
    }
    assert_eq!(ids.len(), others.len());
}

// "No run had this key" was said of a run that was in the buffer.
#[tokio::test(flavor = "multi_thread")]
async fn without_redis_no_key_is_reset() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, WIDE).await;
    let asked = request("t", Some("k"), "{}");
    redis.kill();
    let first = trigger(&deployment.triggers, &asked).await;
    let refused =
        deployment.triggers.reset_key(KEY, &audit_line()).await.expect_err("the run may be in the buffer");
    assert!(matches!(refused, RunAccessError::Buffer(_)), "{refused:?}");
    assert!(refused.to_string().contains("buffer does not answer"), "{refused}");
    let again = trigger(&deployment.triggers, &asked).await;
    assert_eq!((again.id, again.cached), (first.id, true), "nothing was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_key_is_free_wherever_its_run_is() {
    let redis = Redis::start().expect("a Redis");
    let asked = request("t", Some("k"), "{}");
    for limit in [SHUT, WIDE] {
        redis.tell(&["FLUSHALL"]).expect("it forgets");
        let deployment = Deployment::new(&redis, limit).await;
        let first = trigger(&deployment.triggers, &asked).await;
        let whose = deployment.triggers.reset_key(KEY, &audit_line()).await.expect("it is reset");
        assert_eq!(whose, Some(first.id));
        assert_eq!(deployment.triggers.reset_key(KEY, &audit_line()).await.expect("it is reset"), None);
        let second = trigger(&deployment.triggers, &asked).await;
        assert!(second.id != first.id && !second.cached);
        deployment.drain().await;
        assert_eq!(deployment.runs().await.len(), 2, "both are runs");
        let third = trigger(&deployment.triggers, &asked).await;
        assert_eq!((third.id, third.cached), (second.id, true), "the key is the second one's");
    }
}

// read, tagged, given metadata, rescheduled and cancelled, in the buffer as in the ledger
#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_a_full_citizen_wherever_it_is() {
    let redis = Redis::start().expect("a Redis");
    for limit in [SHUT, WIDE] {
        let deployment = Deployment::new(&redis, limit).await;
        let run =
            trigger(&deployment.triggers, &request("t", None, r#"{"empty":[],"n":9007199254740993}"#)).await;
        let change = Change {
            add_tags: vec!["vip".to_owned()],
            set: vec![
                ("total".to_owned(), "9007199254740993".to_owned()),
                ("list".to_owned(), "[]".to_owned()),
            ],
            increment: vec![("total".to_owned(), "1".to_owned())],
            delay: Some(Duration::from_secs(3600)),
            ..Change::default()
        };
        deployment.triggers.change(run.id, &change, None).await.expect("it is changed");
        let stale = deployment.triggers.change(run.id, &change, Some(77)).await;
        assert!(matches!(stale, Err(RunAccessError::Ledger(Error::Stale))), "{stale:?}");
        let wrong = Change { increment: vec![("list".to_owned(), "1".to_owned())], ..Change::default() };
        let refused = deployment.triggers.change(run.id, &wrong, None).await;
        assert!(matches!(refused, Err(RunAccessError::Ledger(Error::Refused(_)))), "{refused:?}");
        deployment.triggers.cancel(run.id, &audit_line()).await.expect("it is cancelled");
        deployment.drain().await;
        let event = deployment.runs().await.remove(0);
        assert_eq!(event.new.notes.tags, ["vip"]);
        let value = |name: &str| event.new.notes.metadata.get(name).map(String::as_str);
        assert_eq!((value("total"), value("list")), (Some("9007199254740994"), Some("[]")));
        assert_eq!(&event.new.payload[..], br#"{"empty":[],"n":9007199254740993}"#);
        let told = deployment.ledger.deliveries_of(run.id).await.expect("it is there");
        assert_eq!(told[0].delivery.state, semel_pipeline::delivery::DeliveryState::Cancelled);
    }
    let deployment = Deployment::new(&redis, SHUT).await;
    let nobody = EventId::new(semel_pipeline::id::EventKind::Run, semel::time::Timestamp::from_micros(1));
    let missing = deployment.triggers.change(nobody, &Change::default(), None).await;
    assert!(matches!(missing, Err(RunAccessError::Ledger(Error::NotFound { .. }))), "{missing:?}");
    assert!(matches!(deployment.triggers.locate(nobody).await, Ok(RunLocation::Missing)));
}
