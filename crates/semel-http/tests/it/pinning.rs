//! Which answers are kept: status_policy.

use http::Response;
use semel_http::policy::{OnServerError, Pin, PolicyBuilder};
use semel_http::{Body, Profile};

use crate::kit::{Kit, Upstream, post};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The retry gets the same answer.
    Kept,
    /// The retry runs again.
    Again,
    /// The retry is told that nobody knows.
    Doubt,
}

async fn then(status: u16, settings: impl FnOnce(PolicyBuilder) -> PolicyBuilder) -> Then {
    let kit = Kit::route(Upstream::status(status), settings);
    let first = kit.send(post("k")).await;
    assert_eq!((first.status.as_u16(), first.text()), (status, "call 1"));
    let again = kit.send(post("k")).await;
    let then = match again.text() {
        "call 1" => Then::Kept,
        "call 2" => Then::Again,
        _ => Then::Doubt,
    };
    assert_eq!(first.is_stored(), then == Then::Kept, "{status}: an answer that is not kept says so");
    assert_eq!(again.is_replay(), then == Then::Kept);
    if then == Then::Doubt {
        again.assert_problem(409, "in_doubt");
    }
    then
}

const NOT_DETERMINISTIC: [u16; 10] = [401, 403, 408, 409, 421, 423, 425, 426, 428, 429];

fn statuses() -> impl Iterator<Item = u16> {
    (200..=208).chain(300..=308).chain(400..=431).chain([451, 499]).chain(500..=511)
}

#[tokio::test]
async fn deterministic() {
    for status in statuses() {
        let expected = match status {
            502 | 504 => Then::Doubt,
            500.. => Then::Again,
            _ if NOT_DETERMINISTIC.contains(&status) => Then::Again,
            _ => Then::Kept,
        };
        assert_eq!(then(status, |route| route).await, expected, "{status}");
    }
}

#[tokio::test]
async fn success() {
    for status in statuses() {
        let expected = match status {
            502 | 504 => Then::Doubt,
            200..300 => Then::Kept,
            _ => Then::Again,
        };
        assert_eq!(then(status, |route| route.pin(Pin::Success)).await, expected, "{status}");
    }
}

#[tokio::test]
async fn everything() {
    for status in statuses() {
        let expected = if matches!(status, 502 | 504) { Then::Doubt } else { Then::Kept };
        assert_eq!(then(status, |route| route.pin(Pin::All)).await, expected, "{status}");
    }
}

#[tokio::test]
async fn on_5xx() {
    for status in 500..=511 {
        for (on_5xx, expected) in [
            (OnServerError::Release, Then::Again),
            (OnServerError::Doubt, Then::Doubt),
            (OnServerError::Pin, Then::Kept),
        ] {
            let expected = if matches!(status, 502 | 504) { Then::Doubt } else { expected };
            for pin in [Pin::Success, Pin::Deterministic] {
                let got = then(status, |route| route.pin(pin).on_5xx(on_5xx)).await;
                assert_eq!(got, expected, "{status} {on_5xx:?} {pin:?}");
            }
        }
    }
}

// stripe: everything that began, 500 too; stripe-v2: success only.
#[tokio::test]
async fn profiles_differ_in_what_they_keep() {
    for (name, status, replayed) in [
        ("ietf", 400, true),
        ("ietf", 500, false),
        ("stripe", 402, true),
        ("stripe", 500, true),
        ("stripe-v2", 200, true),
        ("stripe-v2", 400, false),
        ("stripe-v2", 500, false),
        ("ucp", 404, true),
    ] {
        let kit = Kit::profile(&Profile::named(name).unwrap(), Upstream::status(status));
        kit.send(post("k")).await;
        assert_eq!(kit.send(post("k")).await.is_replay(), replayed, "{name} {status}");
    }
}

// Steering: the upstream knows best, and no client sees how it says so.
#[tokio::test]
async fn the_upstream_steers() {
    let upstream = Upstream::new(|number, _| async move {
        let answer = Response::builder().header("Idempotency-Store", "no").header("x-other", "1");
        Ok(answer.body(Body::from(format!("call {number}"))).unwrap())
    });
    let kit = Kit::new(upstream);
    let first = kit.send(post("k")).await;
    assert!(!first.is_stored() && first.header("idempotency-store").is_none());
    assert_eq!(first.header("x-other"), Some("1"));
    assert_eq!(kit.send(post("k")).await.text(), "call 2");

    let upstream = Upstream::new(|number, _| async move {
        let answer = Response::builder().header("Idempotency-Retention", "3600");
        Ok(answer.body(Body::from(format!("call {number}"))).unwrap())
    });
    let kit = Kit::route(upstream, |route| route.memory(std::time::Duration::ZERO));
    let first = kit.send(post("k")).await;
    assert!(first.is_stored() && first.header("idempotency-retention").is_none());
    kit.clock.advance(std::time::Duration::from_secs(3600 + 59));
    assert!(kit.send(post("k")).await.is_replay());
    kit.clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(kit.send(post("k")).await.text(), "call 2");
}

// A replay never refreshes what it replays.
#[tokio::test]
async fn a_replay_does_not_renew_the_retention() {
    let kit = Kit::route(Upstream::counting(), |route| route.memory(std::time::Duration::ZERO));
    kit.send(post("k")).await;
    for _ in 0..24 {
        kit.clock.advance(std::time::Duration::from_secs(60 * 60));
        assert!(kit.send(post("k")).await.is_replay());
    }
    kit.clock.advance(std::time::Duration::from_secs(60));
    assert_eq!(kit.send(post("k")).await.text(), "call 2");
}

// A request without a key is passed on, and its answer says that it is not protected; so is a steering header taken.
#[tokio::test]
async fn without_a_key_nothing_is_kept_and_the_answer_says_so() {
    let upstream = Upstream::new(|number, _| async move {
        let answer = Response::builder().header("Idempotency-Store", "no");
        Ok(answer.body(Body::from(format!("call {number}"))).unwrap())
    });
    let kit = Kit::new(upstream);
    for number in 1..=2 {
        let mut request = post("k");
        request.headers_mut().remove("idempotency-key");
        let answer = kit.send(request).await;
        assert_eq!(answer.text(), format!("call {number}"));
        assert!(!answer.is_stored() && answer.header("idempotency-store").is_none());
    }
    assert_eq!(kit.store.all_calls(), 0);
}
