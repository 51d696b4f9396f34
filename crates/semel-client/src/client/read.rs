//! What an answer means beyond its status: what it says about retrying, and which conflict a 409 is.

use serde::Deserialize;

use super::Response;
use super::request::{Conflicts, Request};
use crate::retry::{Advice, Hints, Kind, Repeat, Signal};
use semel::time::Timestamp;

/// Codes by which services say that the same key is being worked on.
const IN_FLIGHT: [&str; 6] = [
    "in_flight",
    "idempotency_in_flight",
    "idempotency_in_progress",
    "idempotency_key_in_use",
    "idempotency_concurrent_request",
    "request_in_progress",
];

/// The part of a problem document, or of a common error body, that says what a client may do.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ProblemBody {
    code: Option<String>,
    retryable: Option<bool>,
    error: Option<Nested>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Nested {
    code: Option<String>,
}

/// What was seen of a try that was answered.
pub(super) fn signal(request: &Request, response: &Response, now: Timestamp) -> Signal {
    let mut hints = Hints::read(|name| response.headers.get(name)?.to_str().ok(), now);
    let signal = Signal::status(response.status.as_u16());
    if response.status.is_success() {
        return signal;
    }
    let is_json = response
        .headers
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|kind| String::from_utf8_lossy(kind.as_bytes()).to_ascii_lowercase().contains("json"));
    let problem: ProblemBody = if is_json {
        serde_json::from_slice(&response.body).unwrap_or_default()
    } else {
        ProblemBody::default()
    };
    if hints.advice.is_none() {
        hints.advice = problem.retryable.map(|yes| if yes { Advice::Retry } else { Advice::Stop });
    }
    let code =
        problem.code.or(problem.error.unwrap_or_default().code).unwrap_or_default().to_ascii_lowercase();
    let conflict = match code.as_str() {
        "in_doubt" => Kind::InDoubt,
        "outcome_not_kept" => Kind::Duplicate,
        code if IN_FLIGHT.contains(&code) => Kind::InFlight,
        // A conflict that passes by itself is somebody at work on the same key.
        "" if hints.after.is_some() && request.repeat() == Repeat::Safe && request.key_text().is_some() => {
            Kind::InFlight
        }
        _ if request.conflicts == Conflicts::Exists => Kind::Exists,
        _ => Kind::Conflict,
    };
    signal.conflict(conflict).hints(hints)
}
