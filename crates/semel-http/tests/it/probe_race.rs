//! Several gateways and one key in doubt: whatever each of them finds out, every caller gets the answer that is stored.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Response};
use semel::Mode;
use semel::testkit::fault::StoreCall;
use semel_http::Body;
use semel_http::call::CallError;
use semel_http::policy::{Absent, CallTemplate, OnDoubt, Pin, PolicyBuilder, Probe};
use semel_http::{Profile, RoutePolicy};
use tokio::sync::Semaphore;

use crate::kit::{Answered, Kit, Reply, Upstream, eventually, post};

/// Two gateways over one store, before one upstream.
fn two_gateways(upstream: &Upstream, settings: impl Fn(PolicyBuilder) -> PolicyBuilder + Copy) -> (Kit, Kit) {
    let route = || settings(RoutePolicy::builder(&Profile::ietf(), "* /**")).build().unwrap();
    let first = Kit::with(upstream.clone(), |guard| guard.route(route()));
    let second = first.beside(|guard| guard.route(route()));
    (first, second)
}

fn probing(absent: Absent) -> impl Fn(PolicyBuilder) -> PolicyBuilder + Copy {
    move |route| {
        let call = CallTemplate::parse("GET /v1/payments/by-key/{key}").unwrap();
        route.on_doubt(OnDoubt::Probe).probe(Probe { call, absent })
    }
}

/// One gate for each call of an upstream, in the order in which they arrive.
#[derive(Clone)]
struct Gates(Arc<[Semaphore; 4]>);

impl Gates {
    fn new() -> Self {
        Self(Arc::new([const { Semaphore::const_new(0) }; 4]))
    }

    fn open(&self, number: usize) {
        self.0[number].add_permits(1);
    }

    async fn pass(&self, number: usize) {
        self.0[number].acquire().await.unwrap().forget();
    }
}

/// Sends the same request in a task of its own.
fn sent(kit: &Kit) -> tokio::task::JoinHandle<Answered> {
    let kit = kit.clone();
    tokio::spawn(async move { kit.send(post("k")).await })
}

fn told(answer: &Answered) -> (u16, &str, bool) {
    (answer.status.as_u16(), answer.text(), answer.is_replay())
}

// probe_race: two probes at once, each with another body. Whichever settles the key first decides for both callers.
#[tokio::test]
async fn two_gateways_that_probe_at_once_give_one_answer() {
    for (first_back, second_back) in [(2, 3), (3, 2)] {
        let gates = Gates::new();
        let of_upstream = gates.clone();
        let upstream = Upstream::new(move |number, seen| {
            let gates = of_upstream.clone();
            async move {
                if seen.method == Method::POST {
                    return Err(CallError::unknown("cut").into());
                }
                gates.pass(number).await;
                Ok(Response::new(Body::from(format!("found by call {number}"))))
            }
        });
        let (one, other) = two_gateways(&upstream, probing(Absent::Unknown));
        one.send(post("k")).await.assert_problem(502, "upstream_unknown");
        one.guard.engine().drain().await;
        let mut probes = Vec::new();
        for (kit, calls) in [(&one, 2), (&other, 3)] {
            probes.push(sent(kit));
            eventually("the probe is held", || upstream.calls() == calls).await;
        }
        // The probe that comes back first settles the key, before the other one is answered.
        gates.open(first_back);
        let winner = probes.remove(first_back - 2).await.unwrap();
        let stored = format!("found by call {first_back}");
        assert_eq!(told(&winner), (200, stored.as_str(), true));
        gates.open(second_back);
        let loser = probes.remove(0).await.unwrap();
        assert_eq!(told(&loser), (200, stored.as_str(), true), "the stored outcome, not its own probe's");
        for kit in [&one, &other] {
            assert_eq!(told(&kit.send(post("k")).await), (200, stored.as_str(), true));
        }
        assert_eq!(upstream.calls(), 3, "one call, two probes");
    }
}

// probe_race: the owner was only slow. Its outcome is stored during the probe, and is everybody's answer.
#[tokio::test]
async fn an_owner_that_completes_during_a_probe_decides_the_answer() {
    for (found, absent) in [(200, Absent::Unknown), (404, Absent::Run)] {
        let gates = Gates::new();
        let of_upstream = gates.clone();
        let upstream = Upstream::new(move |number, seen| {
            let gates = of_upstream.clone();
            async move {
                gates.pass(number).await;
                let (status, body) =
                    if seen.method == Method::POST { (201, "owner") } else { (found, "probe") };
                Ok(Response::builder().status(status).body(Body::from(body)).unwrap())
            }
        });
        let (owner, other) = two_gateways(&upstream, probing(absent));
        let owning = sent(&owner);
        eventually("the owner's call is held", || upstream.calls() == 1).await;
        // Its lease is over: for everybody else the key is in doubt.
        owner.clock.advance(Duration::from_secs(31));
        let asking = sent(&other);
        eventually("the probe is held", || upstream.calls() == 2).await;
        gates.open(1);
        assert_eq!(told(&owning.await.unwrap()), (201, "owner", false));
        gates.open(2);
        assert_eq!(told(&asking.await.unwrap()), (201, "owner", true), "the stored outcome, not its probe's");
        assert_eq!(told(&other.send(post("k")).await), (201, "owner", true));
        assert_eq!(upstream.calls(), 2, "one call, one probe");
    }
}

type Fail = fn() -> Reply;

/// What an owner can hear from its upstream that is no outcome.
fn no_outcomes() -> [(&'static str, Fail); 5] {
    [
        ("503: released", || Ok(Response::builder().status(503).body(Body::from("late")).unwrap())),
        ("502: doubt", || Ok(Response::builder().status(502).body(Body::from("late")).unwrap())),
        ("a discarded answer", || {
            Ok(Response::builder().header("idempotency-store", "no").body(Body::from("late")).unwrap())
        }),
        ("a cut connection", || Err(CallError::unknown("cut").into())),
        ("not delivered", || Err(CallError::undelivered("refused").into())),
    ]
}

// A late owner whose release or abandon is refused, because a probe has settled the key, gives what is stored.
#[tokio::test]
async fn a_late_owner_without_an_outcome_gives_the_settled_one() {
    for (what, fail) in no_outcomes() {
        let gates = Gates::new();
        let of_upstream = gates.clone();
        let upstream = Upstream::new(move |number, seen| {
            let gates = of_upstream.clone();
            async move {
                if seen.method == Method::GET {
                    return Ok(Response::new(Body::from("found")));
                }
                gates.pass(number).await;
                fail()
            }
        });
        let (owner, other) = two_gateways(&upstream, probing(Absent::Unknown));
        let owning = sent(&owner);
        eventually("the owner's call is held", || upstream.calls() == 1).await;
        owner.clock.advance(Duration::from_secs(31));
        assert_eq!(told(&other.send(post("k")).await), (200, "found", true), "{what}");
        gates.open(1);
        assert_eq!(told(&owning.await.unwrap()), (200, "found", true), "{what}: the stored outcome");
    }
}

// The same where the key was taken over, and the one who took it over still runs: the late owner waits for it.
#[tokio::test]
async fn a_late_owner_without_an_outcome_waits_for_the_new_owner() {
    for (what, fail) in no_outcomes() {
        let gates = Gates::new();
        let of_upstream = gates.clone();
        let upstream = Upstream::new(move |number, _| {
            let gates = of_upstream.clone();
            async move {
                gates.pass(number).await;
                if number == 1 { fail() } else { Ok(Response::new(Body::from("taken over"))) }
            }
        });
        let (owner, other) = two_gateways(&upstream, |route| route.mode(Mode::Rerun).pin(Pin::Success));
        let owning = sent(&owner);
        eventually("the owner's call is held", || upstream.calls() == 1).await;
        owner.clock.advance(Duration::from_secs(31));
        let taking_over = sent(&other);
        eventually("the second call is held", || upstream.calls() == 2).await;
        let gets = owner.store.calls(StoreCall::Get);
        gates.open(1);
        // It looks what stands, and waits; or it is done, which the assertion below finds out.
        let looked = || owning.is_finished() || owner.store.calls(StoreCall::Get) > gets;
        eventually("the late owner looks what stands", looked).await;
        gates.open(2);
        assert_eq!(told(&taking_over.await.unwrap()), (200, "taken over", false), "{what}");
        assert_eq!(told(&owning.await.unwrap()), (200, "taken over", true), "{what}: the stored outcome");
    }
}

// Where nothing is stored and nobody runs it, the late owner's own word is all there is.
#[tokio::test]
async fn a_late_owner_gives_its_own_answer_where_nothing_is_stored() {
    let gates = Gates::new();
    let of_upstream = gates.clone();
    let upstream = Upstream::new(move |number, _| {
        let gates = of_upstream.clone();
        async move {
            gates.pass(number).await;
            Ok(Response::builder().status(503).body(Body::from(format!("call {number}"))).unwrap())
        }
    });
    let (owner, other) = two_gateways(&upstream, |route| route.mode(Mode::Rerun));
    let owning = sent(&owner);
    eventually("the owner's call is held", || upstream.calls() == 1).await;
    owner.clock.advance(Duration::from_secs(31));
    gates.open(2);
    assert_eq!(told(&other.send(post("k")).await), (503, "call 2", false));
    gates.open(1);
    assert_eq!(told(&owning.await.unwrap()), (503, "call 1", false), "both calls say that nothing happened");
}
