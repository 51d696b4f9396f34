//! Calls that nobody knows the end of: upstream_timeout, handler_panic, 502 and 504, probes, release.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use semel::Mode;
use semel_http::Body;
use semel_http::call::CallError;
use semel_http::observe::AnswerOutcome;
use semel_http::policy::{Absent, CallTemplate, OnDoubt, PolicyBuilder, Probe};

use crate::kit::{Kit, Upstream, eventually, post, with};

/// Fails its first call with `fail`, then succeeds.
fn failing(fail: fn() -> Result<Response<Body>, semel_http::BoxError>) -> Upstream {
    Upstream::new(move |number, _| async move {
        if number == 1 { fail() } else { Ok(Response::new(Body::from(format!("call {number}")))) }
    })
}

type Fail = fn() -> Result<Response<Body>, semel_http::BoxError>;

fn unknowns() -> [(&'static str, u16, Fail); 6] {
    [
        ("cut", 502, || Err(CallError::unknown("cut").into())),
        ("timeout", 504, || Err(CallError::timed_out("late").into())),
        ("any error", 500, || Err("something".into())),
        ("panic", 500, || panic!("the handler panicked, as this test wants")),
        ("502", 502, || Ok(Response::builder().status(502).body(Body::empty()).unwrap())),
        ("504", 504, || Ok(Response::builder().status(504).body(Body::empty()).unwrap())),
    ]
}

// In marked: in doubt, never run again, and said.
#[tokio::test]
async fn marked_is_in_doubt() {
    for (what, status, fail) in unknowns() {
        let kit = Kit::new(failing(fail));
        let first = kit.send(post("k")).await;
        assert_eq!((first.status.as_u16(), first.is_stored()), (status, false), "{what}");
        assert_eq!(kit.count(AnswerOutcome::Doubtful), 1, "{what}");
        kit.guard.engine().drain().await;
        for _ in 0..2 {
            kit.send(post("k")).await.assert_problem(409, "in_doubt");
        }
        assert_eq!(kit.upstream.calls(), 1, "{what}");
    }
}

// In keyed and rerun: taken over by the retry, and the first caller is told that a retry is useful.
#[tokio::test]
async fn keyed_and_rerun_are_taken_over() {
    for mode in [Mode::Keyed, Mode::Rerun] {
        for (what, _, fail) in unknowns() {
            let kit = Kit::route(failing(fail), |route| route.mode(mode));
            let first = kit.send(post("k")).await;
            if !first.body.is_empty() {
                assert_eq!(first.json()["retryable"], true, "{what}");
            }
            kit.guard.engine().drain().await;
            assert_eq!(kit.send(post("k")).await.text(), "call 2", "{what}");
            assert!(kit.send(post("k")).await.is_replay(), "{what}");
        }
    }
}

// What never reached the upstream releases: any mode, and the retry runs.
#[tokio::test]
async fn undelivered_releases() {
    for mode in [Mode::Marked, Mode::Keyed, Mode::Rerun] {
        let kit =
            Kit::route(failing(|| Err(CallError::undelivered("refused").into())), |route| route.mode(mode));
        let first = kit.send(post("k")).await;
        first.assert_problem(502, "upstream_unreachable");
        assert_eq!(first.json()["retryable"], true);
        assert_eq!(kit.send(post("k")).await.text(), "call 2");
    }
}

// upstream_timeout: stopped at in_flight_max; in doubt, not a retryable failure.
#[tokio::test]
async fn a_call_is_stopped_at_in_flight_max() {
    let short = Duration::from_millis(50);
    let dropped = Arc::new(());
    let of_upstream = Arc::clone(&dropped);
    let upstream = Upstream::new(move |_, _| {
        let held = Arc::clone(&of_upstream);
        async move {
            std::future::pending::<()>().await;
            drop(held);
            unreachable!("it is pending for ever")
        }
    });
    let kit = Kit::route(upstream, |route| route.lease(short).in_flight_max(short).wait(short));
    let first = kit.send(post("k")).await;
    first.assert_problem(504, "upstream_unknown");
    assert_eq!(first.json()["retryable"], false);
    kit.send(post("k")).await.assert_problem(409, "in_doubt");
    eventually("the call was dropped", || Arc::strong_count(&dropped) == 2).await;
    assert_eq!(kit.upstream.calls(), 1);
}

/// The upstream cuts its first call, and answers probes.
fn probed(probe: fn(usize) -> Response<Body>) -> Upstream {
    Upstream::new(move |number, seen| async move {
        if seen.method == http::Method::GET {
            return Ok(probe(number));
        }
        if number == 1 {
            return Err(CallError::unknown("cut").into());
        }
        Ok(Response::new(Body::from(format!("call {number}"))))
    })
}

fn with_probe(absent: Absent) -> impl FnOnce(PolicyBuilder) -> PolicyBuilder {
    move |route| {
        let call = CallTemplate::parse("GET /v1/payments/by-key/{key}").unwrap();
        route.on_doubt(OnDoubt::Probe).probe(Probe { call, absent })
    }
}

fn status(status: u16) -> Response<Body> {
    Response::builder().status(status).header("x-probed", "1").body(Body::from("found")).unwrap()
}

// A probe's 2xx is the outcome.
#[tokio::test]
async fn a_probe_settles_what_happened() {
    let kit = Kit::route(probed(|_| status(201)), with_probe(Absent::Unknown));
    let request = || with(with(post("k/1"), "cookie", "a=1"), "stripe-account", "acct");
    kit.send(request()).await.assert_problem(502, "upstream_unknown");
    let retry = kit.send(request()).await;
    assert_eq!((retry.status.as_u16(), retry.text(), retry.is_replay()), (201, "found", true));
    assert_eq!(retry.header("x-probed"), Some("1"));
    let asked = kit.upstream.last();
    assert_eq!(asked.uri, "/v1/payments/by-key/k%2F1", "the key that was sent, as one segment");
    assert_eq!(asked.headers["authorization"], "Bearer alice", "in the name of who asks");
    assert_eq!(
        (&asked.headers["cookie"], &asked.headers["stripe-account"]),
        (&"a=1".parse().unwrap(), &"acct".parse().unwrap())
    );
    assert!(kit.send(request()).await.is_replay());
    assert_eq!(kit.upstream.calls(), 2, "one call, one probe");
}

// 404 settles to run only where the upstream honours the key; anything else leaves the doubt.
#[tokio::test]
async fn what_a_probe_does_not_settle() {
    let kit = Kit::route(probed(|_| status(404)), with_probe(Absent::Unknown));
    kit.send(post("k")).await;
    kit.send(post("k")).await.assert_problem(409, "in_doubt");
    let kit = Kit::route(probed(|_| status(404)), with_probe(Absent::Run));
    kit.send(post("k")).await;
    assert_eq!(kit.send(post("k")).await.text(), "call 3", "one call, one probe, one call");
    for code in [302, 400, 401, 409, 429, 500, 503] {
        let upstream = Upstream::new(move |number, _| async move {
            if number == 1 { Err(CallError::unknown("cut").into()) } else { Ok(status(code)) }
        });
        let kit = Kit::route(upstream, with_probe(Absent::Run));
        kit.send(post("k")).await;
        kit.send(post("k")).await.assert_problem(409, "in_doubt");
        assert_eq!(kit.upstream.calls(), 2);
    }
    let kit = Kit::route(
        Upstream::new(|_, _| async { Err(CallError::unknown("cut").into()) }),
        with_probe(Absent::Run),
    );
    kit.send(post("k")).await;
    kit.send(post("k")).await.assert_problem(409, "in_doubt");
}

// Many retries, one question.
#[tokio::test]
async fn one_probe_at_a_time() {
    let (sender, receiver) = tokio::sync::watch::channel(false);
    let upstream = Upstream::new(move |number, _| {
        let mut may = receiver.clone();
        async move {
            if number == 1 {
                return Err(CallError::unknown("cut").into());
            }
            may.wait_for(|may| *may).await.unwrap();
            Ok(status(200))
        }
    });
    let kit = Kit::route(upstream, with_probe(Absent::Unknown));
    kit.send(post("k")).await;
    let asking = tokio::spawn({
        let kit = kit.clone();
        async move { kit.send(post("k")).await }
    });
    eventually("the upstream is asked", || kit.upstream.calls() == 2).await;
    for _ in 0..10 {
        let answer = kit.send(post("k")).await;
        answer.assert_problem(409, "in_doubt");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    sender.send_replace(true);
    assert_eq!(asking.await.unwrap().text(), "found");
    assert_eq!(kit.upstream.calls(), 2);
}

// on_doubt = release: at least once, but not before in_flight_max.
#[tokio::test]
async fn release_at_in_flight_max() {
    let kit = Kit::route(failing(|| Err("cut".into())), |route| route.on_doubt(OnDoubt::Release));
    let first = kit.send(post("k")).await;
    assert_eq!(first.json()["retryable"], true);
    kit.clock.advance(Duration::from_secs(59));
    let early = kit.send(post("k")).await;
    early.assert_problem(409, "in_doubt");
    assert_eq!(early.header("retry-after"), Some("1"));
    kit.clock.advance(Duration::from_secs(1));
    assert_eq!(kit.send(post("k")).await.text(), "call 2");
    assert!(kit.send(post("k")).await.is_replay());
}

// reauthorise_replay: a revoked credential gets what the upstream says, not the replay.
#[tokio::test]
async fn verify_before_every_replay() {
    let allowed = Arc::new(std::sync::atomic::AtomicU16::new(200));
    let of_upstream = Arc::clone(&allowed);
    let upstream = Upstream::new(move |number, seen| {
        let status = of_upstream.load(std::sync::atomic::Ordering::SeqCst);
        async move {
            if seen.uri.path() == "/v1/me" {
                assert_eq!(seen.headers["authorization"], "Bearer alice");
                return Ok(Response::builder().status(status).body(Body::from("me")).unwrap());
            }
            Ok(Response::new(Body::from(format!("call {number}"))))
        }
    });
    let kit = Kit::route(upstream, |route| route.verify(CallTemplate::parse("GET /v1/me").unwrap()));
    assert_eq!(kit.send(post("k")).await.text(), "call 1");
    assert!(kit.send(post("k")).await.is_replay());
    for revoked in [401, 403] {
        allowed.store(revoked, std::sync::atomic::Ordering::SeqCst);
        let answer = kit.send(post("k")).await;
        assert_eq!((answer.status.as_u16(), answer.text(), answer.is_replay()), (revoked, "me", false));
    }
    for away in [500, 404, 302] {
        allowed.store(away, std::sync::atomic::Ordering::SeqCst);
        kit.send(post("k")).await.assert_problem(503, "verify_unavailable");
    }
    let paid = kit.upstream.seen().iter().filter(|seen| seen.uri.path() == "/v1/payments").count();
    assert_eq!((paid, kit.count(AnswerOutcome::VerifyRefused)), (1, 2));
}

// keyed: the derived key replaces the client's, is the same on every attempt, and tells nothing of it.
#[tokio::test]
async fn keyed_forwards_the_derived_key() {
    let kit = Kit::route(failing(|| Err("cut".into())), |route| route.mode(Mode::Keyed));
    kit.send(post("client-key")).await;
    kit.send(post("client-key")).await;
    let keys: Vec<_> =
        kit.upstream.seen().iter().map(|seen| seen.headers["idempotency-key"].clone()).collect();
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], keys[1]);
    assert_eq!(keys[0].len(), 64);
    kit.send(post("other-key")).await;
    assert_ne!(kit.upstream.last().headers["idempotency-key"], keys[0]);

    let header = http::HeaderName::from_static("x-payment-token");
    let kit = Kit::route(Upstream::counting(), |route| {
        route.mode(Mode::Keyed).derived_key(header.clone(), "acquirer")
    });
    kit.send(post("client-key")).await;
    let seen = kit.upstream.last();
    assert_eq!(seen.headers["x-payment-token"].len(), 64);
    assert!(!seen.headers.contains_key("idempotency-key"), "R12: the caller's own key goes no further");
    assert_eq!(kit.send(post("client-key")).await.status, StatusCode::OK);
}
