//! The gate.

use std::sync::Arc;
use std::time::Duration;

use semel_testbed::resp::Reply;
use semel_testbed::{Redis, RedisCluster, wait};
use semel_triggers::gate::{Gate, GateDecision, GateMode, GateReason, Limit};

use super::buffer_at;

/// Ten in ten seconds, so that no test is fast or slow enough to matter.
const TEN: Limit = Limit { threshold: 10, window: Duration::from_secs(10), hold: Duration::from_millis(200) };

async fn passed(gate: &Gate, tenant: &str, of: usize) -> usize {
    let mut passed = 0;
    for _ in 0..of {
        passed += usize::from(matches!(gate.decide(tenant).await, GateDecision::Pass(_)));
    }
    passed
}

#[tokio::test(flavor = "multi_thread")]
async fn it_admits_the_threshold_and_holds_the_rest_for_each_tenant() {
    let redis = Redis::start().expect("a Redis");
    let gate = Gate::new(buffer_at(&redis.url()), GateMode::On, TEN, None);
    assert_eq!(passed(&gate, "a", 30).await, 10);
    assert_eq!(gate.decide("a").await, GateDecision::Divert(GateReason::Tenant));
    assert_eq!(passed(&gate, "b", 5).await, 5, "another tenant has its own");
    assert_eq!(
        (gate.counters().count(GateReason::Room), gate.counters().count(GateReason::Tenant)),
        (15, 21)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_it() {
    let redis = Redis::start().expect("a Redis");
    let gates: Vec<_> =
        (0..4).map(|_| Arc::new(Gate::new(buffer_at(&redis.url()), GateMode::On, TEN, None))).collect();
    let tasks: Vec<_> =
        gates.into_iter().map(|gate| tokio::spawn(async move { passed(&gate, "a", 20).await })).collect();
    let mut all = 0;
    for task in tasks {
        all += task.await.expect("it ends");
    }
    assert_eq!(all, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_tenants_together_have_a_limit_too() {
    let redis = Redis::start().expect("a Redis");
    let gate = Gate::new(buffer_at(&redis.url()), GateMode::On, TEN, Some(Limit { threshold: 12, ..TEN }));
    assert_eq!(passed(&gate, "a", 8).await, 8);
    assert_eq!(passed(&gate, "b", 8).await, 4);
    assert_eq!(gate.decide("c").await, GateDecision::Divert(GateReason::Global));
}

// open_herd: after the hold no more than the threshold is in any window
#[tokio::test(flavor = "multi_thread")]
async fn it_opens_again_and_never_admits_more_than_the_threshold_in_a_window() {
    let redis = Redis::start().expect("a Redis");
    let limit = Limit { threshold: 10, window: Duration::from_millis(300), hold: Duration::from_millis(50) };
    let gate = Gate::new(buffer_at(&redis.url()), GateMode::On, limit, None);
    let begin = tokio::time::Instant::now();
    let mut admitted = Vec::new();
    while begin.elapsed() < Duration::from_millis(2500) {
        let before = begin.elapsed();
        if matches!(gate.decide("a").await, GateDecision::Pass(_)) {
            admitted.push((before, begin.elapsed()));
        }
    }
    assert!(admitted.len() > 20, "it opens again: {}", admitted.len());
    // Each was admitted between the two times beside it: those that end before the window does were surely in it.
    for (n, (first, _)) in admitted.iter().enumerate() {
        let surely = admitted[n..].iter().filter(|(_, after)| *after < *first + limit.window).count();
        assert!(surely <= 10, "{surely} in one window");
    }
}

// The moment at which two fixed windows would let twice as many through
#[tokio::test(flavor = "multi_thread")]
async fn a_window_admits_the_threshold_wherever_it_begins() {
    let redis = Redis::start().expect("a Redis");
    let window = Duration::from_millis(400);
    let limit = Limit { threshold: 10, window, hold: Duration::ZERO };
    let gate = Gate::new(buffer_at(&redis.url()), GateMode::On, limit, None);
    // A machine that stalls can miss the moment: then the next tenant tries.
    for attempt in 0..50 {
        let tenant = format!("tenant {attempt}");
        let begin = tokio::time::Instant::now();
        assert_eq!(passed(&gate, &tenant, 1).await, 1);
        let first = begin.elapsed();
        // The other nine as late as possible: then the first one leaves, and makes room for one.
        tokio::time::sleep_until(begin + window.mul_f64(0.7)).await;
        let nine_begin = tokio::time::Instant::now();
        let nine = passed(&gate, &tenant, 20).await;
        if begin.elapsed() >= window || first >= window.mul_f64(0.5) {
            continue;
        }
        assert_eq!(nine, 9);
        let mut more = 0;
        while begin.elapsed() < window.mul_f64(1.6) {
            more += passed(&gate, &tenant, 1).await;
        }
        if nine_begin.elapsed() < window {
            assert_eq!(more, 1, "the nine are still in the window");
            return;
        }
    }
    panic!("the machine stalled in every attempt");
}

#[tokio::test(flavor = "multi_thread")]
async fn off_asks_nobody_and_shadow_lets_everything_pass() {
    let redis = Redis::start().expect("a Redis");
    let off = Gate::new(buffer_at("redis://127.0.0.1:1"), GateMode::Off, TEN, None);
    assert_eq!(off.decide("a").await, GateDecision::Pass(GateReason::Off));
    let shadow = Gate::new(buffer_at(&redis.url()), GateMode::Shadow, TEN, None);
    assert_eq!(passed(&shadow, "a", 30).await, 30);
    assert_eq!(shadow.counters().count(GateReason::Shadow), 20, "and says how many it would have held");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_it_fails_open_and_counts_that() {
    let redis = Redis::start().expect("a Redis");
    let gate = Gate::new(buffer_at(&redis.url()), GateMode::On, TEN, None);
    assert_eq!(passed(&gate, "a", 2).await, 2);
    redis.kill();
    assert_eq!(gate.decide("a").await, GateDecision::Pass(GateReason::FailedOpen));
    assert_eq!(gate.counters().count(GateReason::FailedOpen), 1);
    redis.restart().expect("it comes back");
    semel_testbed::wait::until("it is asked again", Duration::from_secs(10), || {
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(gate.decide("b"))
                == GateDecision::Pass(GateReason::Room)
        })
    })
    .expect("it heals");
}

// A burst costs Redis one call a hold, not one a trigger. A diverted trigger that finds no Redis goes to the ledger.
#[tokio::test(flavor = "multi_thread")]
async fn while_it_holds_nobody_is_asked() {
    let redis = Redis::start().expect("a Redis");
    let limit = Limit { hold: Duration::from_secs(3600), ..TEN };
    let gate = Gate::new(buffer_at(&redis.url()), GateMode::On, limit, None);
    assert_eq!(passed(&gate, "a", 12).await, 10);
    redis.kill();
    assert_eq!(gate.decide("a").await, GateDecision::Divert(GateReason::Tenant));
    assert_eq!(
        gate.decide("b").await,
        GateDecision::Pass(GateReason::FailedOpen),
        "another tenant is not held"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn it_works_on_a_cluster() {
    let cluster = RedisCluster::start().expect("a cluster");
    let nodes: Vec<String> = cluster.addrs().iter().map(ToString::to_string).collect();
    let buffer = buffer_at(&format!("redis-cluster://{}", nodes.join(",")));
    let gate = Gate::new(buffer, GateMode::On, TEN, Some(Limit { threshold: 35, ..TEN }));
    let mut all = 0;
    for tenant in ["a", "b", "c", "d", "e"] {
        all += passed(&gate, tenant, 12).await;
    }
    assert_eq!(all, 35);
    assert_eq!(gate.counters().count(GateReason::FailedOpen), 0);
}

// gate_slot_leak: the gate has no slots that a dead process could keep. What it admitted counts until its window ends, and nothing
// that it keeps in Redis stays longer.
#[tokio::test(flavor = "multi_thread")]
async fn gate_slot_leak_cannot_happen() {
    let redis = Redis::start().expect("a Redis");
    let limit = Limit { threshold: 10, window: Duration::from_secs(4), hold: Duration::from_millis(50) };
    for round in 0..2 {
        // A process is admitted as often as it may be, and is gone without a word.
        let gate = Gate::new(buffer_at(&redis.url()), GateMode::On, limit, None);
        assert_eq!(passed(&gate, "a", 15).await, 10, "after {round} dead processes");
        drop(gate);
        let Reply::Array(keys) = redis.tell(&["KEYS", "*"]).expect("keys") else { panic!("a list") };
        assert!(!keys.is_empty(), "the gate keeps its count in Redis");
        for key in keys.iter().map(Reply::text) {
            let left = redis.tell(&["PTTL", &key]).expect("an answer");
            let ends = matches!(left, Reply::Int(left) if left == -2 || (0..=4_000).contains(&left));
            assert!(ends, "{key} ends with its window: {left:?}");
        }
        let is_empty = || matches!(redis.tell(&["DBSIZE"]), Ok(Reply::Int(0)));
        tokio::task::block_in_place(|| wait::until("the window ends", Duration::from_secs(30), is_empty))
            .expect("it ends");
    }
}
