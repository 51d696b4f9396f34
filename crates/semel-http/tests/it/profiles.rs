//! Every cell of the table of situations, per profile.

use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use semel::store::ErrorKind;
use semel::testkit::fault::{InjectedFault, StoreCall, When};
use semel_http::call::CallError;
use semel_http::policy::{InFlight, InsertLimits, KeyRequired, Pin, Rate};
use semel_http::problem::{Problem, RetryAdvice, Shape};
use semel_http::{Body, Codec, KeySource, Profile, RoutePolicy, Situation};

use crate::kit::{Answered, Kit, Upstream, eventually, post, post_body, with};

/// Those whose requests are calls; where calls are messages, the table is `mcp/errors.rs`.
fn all() -> Vec<Profile> {
    let all = Profile::NAMES.iter().map(|name| Profile::named(name).unwrap());
    all.filter(|profile| profile.codec == Codec::Http).collect()
}

/// By profile: ietf, stripe, stripe-v2, ucp.
fn each(statuses: [u16; 4]) -> Vec<(Profile, u16)> {
    all().into_iter().zip(statuses).collect()
}

fn is_stripe(profile: &Profile) -> bool {
    profile.shape == Shape::Stripe
}

/// The body is in the profile's shape.
fn assert_shape(profile: &Profile, answer: &Answered, kind: &str, retry: RetryAdvice) {
    let json = answer.json();
    assert_eq!(answer.header("link"), Some("</.well-known/idempotency>; rel=\"describedby\""));
    // Generated clients retry a 409 unless they are told not to.
    let told = answer.header("x-should-retry");
    let useless = retry == RetryAdvice::Useless && answer.code() != "upstream_unknown";
    assert_eq!(told, useless.then_some("false"), "{}", profile.name);
    if is_stripe(profile) {
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(json["error"]["type"], kind, "{}", profile.name);
        assert!(json["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
    } else {
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(json["status"], answer.status.as_u16());
        assert_eq!(json["type"], format!("urn:semel:problem:{}", answer.code()));
        assert_eq!(json["retryable"], retry == RetryAdvice::Useful, "{}", profile.name);
        assert_eq!(json["message"], json["detail"], "SDKs show `message`");
        for member in ["title", "detail"] {
            assert!(json[member].as_str().is_some_and(|text| !text.is_empty()), "{member}");
        }
    }
}

fn retry_after(answer: &Answered) -> u64 {
    answer.header("retry-after").expect("it says when to come back").parse().unwrap()
}

#[tokio::test]
async fn key_missing_where_required() {
    for (profile, status) in each([400; 4]) {
        let header = || KeySource::Header(profile.key_header.clone());
        let kit =
            Kit::route_of(&profile, Upstream::counting(), |route| route.key(header(), KeyRequired::Required));
        let mut request = post("k");
        request.headers_mut().remove("idempotency-key");
        let answer = kit.send(request).await;
        answer.assert_problem(status, "key_missing");
        assert_shape(&profile, &answer, "invalid_request_error", RetryAdvice::Useless);
        assert_eq!((kit.upstream.calls(), kit.store.all_calls()), (0, 0), "R1");
    }
}

#[tokio::test]
async fn key_malformed_and_no_scope() {
    for (profile, status) in each([400; 4]) {
        let kit = Kit::profile(&profile, Upstream::counting());
        let answer = kit.send(post("two, keys")).await;
        answer.assert_problem(status, "key_malformed");
        assert_shape(&profile, &answer, "invalid_request_error", RetryAdvice::Useless);
        let mut request = post("k");
        request.headers_mut().remove("authorization");
        let answer = kit.send(request).await;
        answer.assert_problem(status, "scope_missing");
        assert!(answer.text().contains("--scope single-tenant"));
        assert_shape(&profile, &answer, "invalid_request_error", RetryAdvice::Useless);
        assert_eq!((kit.upstream.calls(), kit.store.all_calls()), (0, 0), "R1");
    }
}

#[tokio::test]
async fn other_payload() {
    for (profile, status) in each([422, 400, 400, 409]) {
        let kit = Kit::profile(&profile, Upstream::counting());
        kit.send(post_body("k", "1")).await;
        let answer = kit.send(post_body("k", "2")).await;
        answer.assert_problem(status, "conflict");
        assert_shape(&profile, &answer, "idempotency_error", RetryAdvice::Useless);
        assert_eq!(answer.header("retry-after"), None);
        assert_eq!(kit.upstream.calls(), 1);
    }
}

#[tokio::test]
async fn in_flight_rejected_and_waited_for() {
    for (profile, status) in each([409; 4]) {
        for in_flight in [InFlight::Reject, InFlight::Wait] {
            let (opened, gate) = tokio::sync::watch::channel(false);
            let upstream = Upstream::new(move |_, _| {
                let mut gate = gate.clone();
                async move {
                    gate.wait_for(|open| *open).await.unwrap();
                    Ok(Response::new(Body::from("done")))
                }
            });
            let kit = Kit::route_of(&profile, upstream, |route| {
                route.in_flight(in_flight).wait(Duration::from_millis(30))
            });
            let first = tokio::spawn({
                let kit = kit.clone();
                async move { kit.send(post("k")).await }
            });
            eventually("the first is in progress", || kit.upstream.calls() == 1).await;
            let answer = kit.send(post("k")).await;
            answer.assert_problem(status, "in_flight");
            assert!((1..=30).contains(&retry_after(&answer)), "R9");
            assert_shape(&profile, &answer, "idempotency_error", RetryAdvice::Useful);
            opened.send_replace(true);
            assert_eq!(first.await.unwrap().text(), "done");
            assert_eq!(kit.upstream.calls(), 1);
        }
    }
}

#[tokio::test]
async fn expired_or_run_again() {
    for (profile, status) in each([410, 200, 200, 410]) {
        let kit = Kit::profile(&profile, Upstream::counting());
        kit.send(post("k")).await;
        kit.clock.advance(profile.retention + profile.grace - Duration::from_secs(1));
        assert!(kit.send(post("k")).await.is_replay(), "replayed until retention and grace are over");
        kit.clock.advance(Duration::from_secs(1));
        let answer = kit.send(post("k")).await;
        if status == 200 {
            assert_eq!(answer.text(), "call 2");
        } else {
            answer.assert_problem(status, "expired");
            assert_shape(&profile, &answer, "idempotency_error", RetryAdvice::Useless);
            kit.clock.advance(profile.memory);
            assert_eq!(kit.send(post("k")).await.text(), "call 2", "after its memory a key is new");
        }
    }
    let option = |route: semel_http::policy::PolicyBuilder| route.expired(StatusCode::PRECONDITION_FAILED);
    let kit = Kit::route(Upstream::counting(), option);
    kit.send(post("k")).await;
    kit.clock.advance(Duration::from_secs(24 * 60 * 60 + 60));
    let answer = kit.send(post("k")).await;
    answer.assert_problem(412, "expired");
    assert_eq!(answer.json()["status"], 412);
}

#[tokio::test]
async fn in_doubt() {
    for (profile, status) in each([409; 4]) {
        let upstream = Upstream::new(|_, _| async { Err(CallError::unknown("cut").into()) });
        let kit = Kit::profile(&profile, upstream);
        let first = kit.send(post("k")).await;
        first.assert_problem(502, "upstream_unknown");
        assert_shape(&profile, &first, "api_error", RetryAdvice::Useless);
        let answer = kit.send(post("k")).await;
        answer.assert_problem(status, "in_doubt");
        assert_shape(&profile, &answer, "idempotency_error", RetryAdvice::Useless);
        let should_retry = is_stripe(&profile).then_some("false");
        assert_eq!(answer.header("stripe-should-retry"), should_retry);
        assert_eq!(kit.upstream.calls(), 1);
    }
}

#[tokio::test]
async fn outcome_not_kept() {
    for (profile, status) in each([409; 4]) {
        let kit = Kit::route_of(&profile, Upstream::counting(), |route| route.response_limit(3));
        assert_eq!(kit.send(post("k")).await.text(), "call 1");
        let answer = kit.send(post("k")).await;
        answer.assert_problem(status, "outcome_not_kept");
        assert_shape(&profile, &answer, "idempotency_error", RetryAdvice::Useless);
        let should_retry = is_stripe(&profile).then_some("false");
        assert_eq!(answer.header("stripe-should-retry"), should_retry);
        assert_eq!(kit.upstream.calls(), 1, "never a second run");
    }
}

#[tokio::test]
async fn store_down_closed() {
    for (profile, status) in each([503; 4]) {
        let kit = Kit::profile(&profile, Upstream::counting());
        kit.store.script(StoreCall::Claim, When::Always, InjectedFault::Refuse(ErrorKind::Unavailable));
        let answer = kit.send(post("k")).await;
        answer.assert_problem(status, "store_unavailable");
        assert_eq!(retry_after(&answer), 1);
        assert_shape(&profile, &answer, "api_error", RetryAdvice::Useful);
        assert_eq!(kit.upstream.calls(), 0);
    }
}

#[tokio::test]
async fn too_many_new_keys() {
    for (profile, status) in each([429; 4]) {
        let rate = Rate { per_second: 1, burst: 1 };
        let limits = InsertLimits { writes: rate, reads: Rate { per_second: 100, burst: 100 } };
        let kit = Kit::route_of(&profile, Upstream::counting(), |route| route.limits(limits));
        kit.send(post("k1")).await;
        let answer = kit.send(post("k2")).await;
        answer.assert_problem(status, "rate_limited");
        assert_eq!(retry_after(&answer), 1);
        assert_shape(&profile, &answer, "invalid_request_error", RetryAdvice::Useful);
        assert_eq!(kit.upstream.calls(), 1);
    }
}

#[tokio::test]
async fn replay_is_marked_and_byte_identical() {
    for profile in all() {
        let kit = Kit::profile(&profile, Upstream::counting());
        let first = kit.send(post("k")).await;
        assert!(!first.is_replay() && first.is_stored(), "R4");
        for _ in 0..3 {
            let mut again = kit.send(post("k")).await;
            assert_eq!(again.headers.remove("idempotent-replayed").unwrap(), "true");
            assert_eq!(again, first);
        }
        assert_eq!(kit.upstream.calls(), 1);
    }
}

#[test]
fn default_pinning_retention_and_methods() {
    let day = Duration::from_secs(24 * 60 * 60);
    let (post, patch, put, delete) = (Method::POST, Method::PATCH, Method::PUT, Method::DELETE);
    let table = [
        ("ietf", Pin::Deterministic, day, vec![&post, &patch]),
        ("stripe", Pin::All, day, vec![&post, &patch]),
        ("stripe-v2", Pin::Success, 30 * day, vec![&post, &patch, &delete]),
        ("ucp", Pin::Deterministic, day, vec![&post, &put, &patch]),
    ];
    for (profile, (name, pin, retention, methods)) in all().iter().zip(table) {
        assert_eq!((profile.name, profile.pin, profile.retention), (name, pin, retention));
        let policy = RoutePolicy::fallback(profile).unwrap();
        for method in [&post, &patch, &put, &delete, &Method::GET, &Method::HEAD, &Method::OPTIONS] {
            assert_eq!(policy.guards(method), methods.contains(&method), "{name} {method}");
        }
    }
}

// A profile is data: another one needs no line of code here.
#[tokio::test]
async fn a_profile_of_ones_own() {
    let mut mine = Profile::ietf();
    mine.name = "mine";
    mine.key_header = http::HeaderName::from_static("x-request-key");
    mine.text_mut(Situation::Conflict).status = StatusCode::IM_A_TEAPOT;
    mine.methods = vec![Method::DELETE];
    let kit = Kit::profile(&mine, Upstream::counting());
    let request = |path| {
        Request::delete(path)
            .header("x-request-key", "k")
            .header("authorization", "a")
            .body(Body::empty())
            .unwrap()
    };
    kit.send(request("/a")).await;
    assert!(kit.send(request("/a")).await.is_replay());
    kit.send(request("/b")).await.assert_problem(418, "conflict");
    let unguarded = kit.send(with(post("k"), "x-request-key", "k")).await;
    assert!(unguarded.is_stored() && !unguarded.is_replay());
}

#[test]
fn every_situation_is_told_in_every_profile() {
    for profile in Profile::NAMES.iter().map(|name| Profile::named(name).unwrap()) {
        for situation in Situation::ALL {
            let answer = profile.answer(&Problem::from(situation));
            assert!(answer.status().is_client_error() || answer.status().is_server_error(), "{situation:?}");
        }
    }
}
