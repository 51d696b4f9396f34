//! Duplicates while the first call runs: stampede, owner_dies_with_waiters, waiter_deadline, waiter_leaves,
//! waiter_caps.

use std::sync::Arc;
use std::time::Duration;

use http::Response;
use semel::Engine;
use semel::engine::WaiterCaps;
use semel::store::MemoryStore;
use semel::testkit::fault::FaultStore;
use semel::time::ManualClock;
use semel_http::Body;
use semel_http::call::CallError;
use semel_http::policy::InFlight;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::kit::{Kit, Upstream, eventually, gated, is_proof, post};

// Stampede: one effect, every answer the same, none an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stampede() {
    let count = if is_proof() { 10_000 } else { 500 };
    let (upstream, gate) = gated();
    let kit = Kit::route(upstream, |route| route.wait(Duration::from_secs(20)));
    let mut callers = JoinSet::new();
    for _ in 0..count {
        let kit = kit.clone();
        callers.spawn(async move { kit.send(post("k")).await });
    }
    eventually("nearly all wait", || kit.guard.engine().waiters() >= count - 1).await;
    gate.add_permits(1);
    let mut replays = 0;
    while let Some(answer) = callers.join_next().await {
        let answer = answer.unwrap();
        assert_eq!(answer.text(), "call 1");
        replays += usize::from(answer.is_replay());
    }
    assert_eq!((kit.upstream.calls(), replays), (1, count - 1));
}

// Hot_key_isolation: a key that is held holds nobody else up.
#[tokio::test]
async fn other_keys_go_on() {
    let (upstream, gate) = gated();
    let kit = Kit::new(upstream);
    let held = tokio::spawn({
        let kit = kit.clone();
        async move { kit.send(post("held")).await }
    });
    eventually("held", || kit.upstream.calls() == 1).await;
    gate.add_permits(1);
    let waiting = tokio::spawn({
        let kit = kit.clone();
        async move { kit.send(post("other")).await }
    });
    eventually("the other runs too", || kit.upstream.calls() == 2).await;
    gate.add_permits(1);
    held.await.unwrap();
    waiting.await.unwrap();
}

// An owner that fails before it was delivered hands over to exactly one waiter.
#[tokio::test]
async fn a_release_wakes_one_waiter() {
    let gate = Arc::new(Semaphore::new(0));
    let of_upstream = Arc::clone(&gate);
    let upstream = Upstream::new(move |number, _| {
        let gate = Arc::clone(&of_upstream);
        async move {
            if number == 1 {
                gate.acquire().await.unwrap().forget();
                return Err(CallError::undelivered("refused").into());
            }
            Ok(Response::new(Body::from(format!("call {number}"))))
        }
    });
    let kit = Kit::new(upstream);
    let first = tokio::spawn({
        let kit = kit.clone();
        async move { kit.send(post("k")).await }
    });
    eventually("the first runs", || kit.upstream.calls() == 1).await;
    let mut waiters = JoinSet::new();
    for _ in 0..20 {
        let kit = kit.clone();
        waiters.spawn(async move { kit.send(post("k")).await });
    }
    eventually("all wait", || kit.guard.engine().waiters() == 20).await;
    gate.add_permits(1);
    first.await.unwrap().assert_problem(502, "upstream_unreachable");
    while let Some(answer) = waiters.join_next().await {
        assert_eq!(answer.unwrap().text(), "call 2");
    }
    assert_eq!(kit.upstream.calls(), 2);
}

// handler_panic with waiters: they are answered.
#[tokio::test]
async fn a_panic_answers_the_waiters() {
    let gate = Arc::new(Semaphore::new(0));
    let of_upstream = Arc::clone(&gate);
    let upstream = Upstream::new(move |_, _| {
        let gate = Arc::clone(&of_upstream);
        async move {
            gate.acquire().await.unwrap().forget();
            panic!("the handler panicked, as this test wants")
        }
    });
    let kit = Kit::new(upstream);
    let first = tokio::spawn({
        let kit = kit.clone();
        async move { kit.send(post("k")).await }
    });
    eventually("the first runs", || kit.upstream.calls() == 1).await;
    let waiter = tokio::spawn({
        let kit = kit.clone();
        async move { kit.send(post("k")).await }
    });
    eventually("one waits", || kit.guard.engine().waiters() == 1).await;
    gate.add_permits(1);
    first.await.unwrap().assert_problem(500, "upstream_unknown");
    waiter.await.unwrap().assert_problem(409, "in_doubt");
    assert_eq!(kit.upstream.calls(), 1);
}

// waiter_deadline and reject: 409 with Retry-After, in time.
#[tokio::test]
async fn nobody_waits_past_the_deadline() {
    let (upstream, gate) = gated();
    for (in_flight, wait) in [(InFlight::Reject, 5_000), (InFlight::Wait, 100)] {
        let kit = Kit::route(upstream.clone(), |route| {
            route.in_flight(in_flight).wait(Duration::from_millis(wait))
        });
        let before = kit.upstream.calls();
        let first = tokio::spawn({
            let kit = kit.clone();
            async move { kit.send(post("k")).await }
        });
        eventually("the first runs", || kit.upstream.calls() == before + 1).await;
        let asked = tokio::time::Instant::now();
        kit.send(post("k")).await.assert_problem(409, "in_flight");
        assert!(asked.elapsed() < Duration::from_secs(2));
        gate.add_permits(1);
        first.await.unwrap();
    }
}

// waiter_leaves: a caller that goes away frees its place.
#[tokio::test]
async fn a_waiter_that_leaves_frees_its_place() {
    let (upstream, gate) = gated();
    let kit = Kit::new(upstream);
    let first = tokio::spawn({
        let kit = kit.clone();
        async move { kit.send(post("k")).await }
    });
    eventually("the first runs", || kit.upstream.calls() == 1).await;
    let mut waiters = JoinSet::new();
    for _ in 0..50 {
        let kit = kit.clone();
        waiters.spawn(async move { kit.send(post("k")).await });
    }
    eventually("all wait", || kit.guard.engine().waiters() == 50).await;
    waiters.shutdown().await;
    eventually("all left", || kit.guard.engine().waiters() == 0).await;
    gate.add_permits(1);
    assert_eq!(first.await.unwrap().text(), "call 1");
}

// waiter_caps: beyond them 429.
#[tokio::test]
async fn too_many_waiters() {
    let (upstream, gate) = gated();
    let clock = ManualClock::default();
    let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::with_clock(clock.clone()))));
    let caps = WaiterCaps { per_key: 1, ..WaiterCaps::default() };
    let engine = Engine::builder(store.clone()).waiter_caps(caps).build().unwrap();
    let kit = Kit::over(engine, store, clock, upstream, |guard| guard);
    let mut callers = JoinSet::new();
    for _ in 0..2 {
        let kit = kit.clone();
        callers.spawn(async move { kit.send(post("k")).await });
    }
    eventually("one runs, one waits", || kit.upstream.calls() == 1 && kit.guard.engine().waiters() == 1)
        .await;
    let answer = kit.send(post("k")).await;
    answer.assert_problem(429, "rate_limited");
    assert!(answer.header("retry-after").is_some());
    gate.add_permits(1);
    while let Some(answer) = callers.join_next().await {
        assert_eq!(answer.unwrap().text(), "call 1");
    }
}
