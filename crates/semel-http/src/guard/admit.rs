//! Admission: all checks that do not need the store.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap};
use http::request::Parts;
use semel::fingerprint::Payload;
use tokio::time::Instant;

use super::Inner;
#[cfg(feature = "mcp")]
use super::mcp::WatchedReply;
use super::read::{Read, ReadDecision, ReadStop, Whole, read_until};
use crate::body::Body;
use crate::capacity::{BodyRoom, NoRoom};
use crate::codec::CallForm;
use crate::key_source::{KeySource, Sought};
use crate::policy::{KeyRequired, RoutePolicy};
use crate::problem::{Problem, Situation};
use crate::request_fingerprint;
use crate::scope::Principal;

/// `Retry-After` while the process is at a limit.
const OVERLOADED: Duration = Duration::from_secs(1);

/// A request that may be claimed.
pub(super) struct Admitted {
    pub(super) principal: Option<Principal>,
    /// The account that the caller acts for, where calls name one.
    pub(super) account: Option<Principal>,
    pub(super) key: String,
    /// Position of the client's key in the body, if the upstream gets a derived key instead.
    pub(super) key_at: Option<Range<usize>>,
    pub(super) payload: Payload,
    /// The parts of the request that its answer depends on.
    pub(super) asked: CallForm,
    /// Which answers of the upstream the guard inspects or changes.
    #[cfg(feature = "mcp")]
    pub(super) watch: WatchedReply,
}

/// The result of the admission.
pub(super) enum Admission {
    /// The request may be claimed. Its body was read in full.
    Keyed(Admitted, Body),
    /// The request has no key and needs none.
    Unkeyed(Body),
    /// The guard does not claim the request, but inspects its answer.
    #[cfg(feature = "mcp")]
    Watched(Body, WatchedReply),
    Refused(CallForm, Problem),
}

impl Inner {
    pub(super) async fn admit(&self, policy: &RoutePolicy, parts: &Parts, body: Body) -> Admission {
        let found = policy.pattern.found(parts.uri.path());
        // The head is checked first: a request that will be refused need not send its body.
        let in_head = policy.key.in_head(parts, &found, policy.key_length);
        let key = match (in_head, policy.key.is_in_body()) {
            (Sought::Key(key), _) => Some(key),
            (Sought::Absent, true) => None,
            (Sought::Absent, false) if policy.required == KeyRequired::Optional => {
                return Admission::Unkeyed(body);
            }
            (refused, _) => return refused_as(problem_of(refused)),
        };
        let scope = policy.scope.as_ref().unwrap_or(&self.scope);
        // Where the key is in the body, the principal is needed only if there is a key.
        let principal = match (scope.principal(&parts.headers), &key) {
            (Err(problem), Some(_)) => return refused_as(problem),
            (principal, _) => principal,
        };
        if declared_length(parts).is_some_and(|length| length > policy.request_limit as u64) {
            return refused_as(too_large(policy));
        }
        let (data, trailers) = match self.read_request(policy, body).await {
            Ok(read) => read,
            Err(problem) => return refused_as(problem),
        };
        let key = match key {
            Some(key) => key,
            None => match policy.key.in_body(&data, policy.key_length) {
                Sought::Key(key) => key,
                Sought::Absent if policy.required == KeyRequired::Optional => {
                    return Admission::Unkeyed(Body::with_trailers(data, trailers));
                }
                refused => return refused_as(problem_of(refused)),
            },
        };
        let principal = match principal {
            Ok(principal) => principal,
            Err(problem) => return refused_as(problem),
        };
        let key_at = match key_to_replace(policy, &data) {
            Ok(key_at) => key_at,
            Err(problem) => return refused_as(problem),
        };
        match request_fingerprint::payload(parts, &data, trailers.as_ref(), policy) {
            Ok(payload) => {
                let asked = CallForm::Request;
                let admitted = Admitted {
                    principal,
                    account: None,
                    key,
                    key_at,
                    payload,
                    asked,
                    #[cfg(feature = "mcp")]
                    watch: WatchedReply::Nothing,
                };
                Admission::Keyed(admitted, Body::with_trailers(data, trailers))
            }
            Err(reason) => refused_as(Problem::new(Situation::BodyMalformed, reason)),
        }
    }
}

/// Position of the client's key in the body, if the upstream must not see it.
pub(super) fn key_to_replace(policy: &RoutePolicy, body: &[u8]) -> Result<Option<Range<usize>>, Problem> {
    if !policy.sends_derived_key() {
        return Ok(None);
    }
    match (&policy.key, policy.key.place_in_body(body)) {
        // The key was read from this body a moment ago. No call is better than one that passes the client's key on.
        (KeySource::Json(_), None) => {
            Err(Problem::new(Situation::BodyMalformed, "the key in the body could not be found again"))
        }
        (_, place) => Ok(place),
    }
}

fn refused_as(problem: Problem) -> Admission {
    Admission::Refused(CallForm::Request, problem)
}

impl Inner {
    /// Reads the whole body of a request.
    pub(super) async fn read_request(
        &self,
        policy: &RoutePolicy,
        body: Body,
    ) -> Result<(Bytes, Option<HeaderMap>), Problem> {
        let mut room = self.room();
        let deadline = Instant::now() + policy.body_timeout;
        let read =
            read_until(body, policy.request_limit, deadline, Some(&mut room), |_| ReadDecision::On).await;
        match read {
            Read::Whole(whole) => keep_room(room, whole),
            Read::Partly(_, ReadStop::NoRoom) => Err(no_room(&room)),
            Read::Partly(_, ReadStop::TooLarge) => Err(too_large(policy)),
            Read::Partly(_, _) => Err(Situation::BodyTimeout.into()),
            Read::Cut(_) => Err(Problem::new(Situation::BodyMalformed, "the body is incomplete")),
        }
    }

    /// Memory for the body of a request.
    pub(super) fn room(&self) -> BodyRoom {
        BodyRoom::new(&self.capacity, &self.limits)
    }
}

/// The bytes of a body. They count against the memory limit until they were passed on.
pub(super) fn keep_room(room: BodyRoom, whole: Whole) -> Result<(Bytes, Option<HeaderMap>), Problem> {
    let (data, trailers) = whole.join();
    match room.keep(data) {
        Ok(data) => Ok((data, trailers)),
        Err(NoRoom) => Err(overloaded("the gateway has reached its limit for request bodies in memory")),
    }
}

/// Counts a body that exceeded the memory limit.
pub(super) fn no_room(room: &BodyRoom) -> Problem {
    room.refuse();
    overloaded("the gateway has reached its limit for request bodies in memory")
}

/// The process is at a limit. The request had no effect.
pub(super) fn overloaded(reason: &str) -> Problem {
    let detail = format!("{reason}; {}", Situation::Overloaded.detail());
    Problem::new(Situation::Overloaded, detail).retry_after(OVERLOADED)
}

pub(super) fn declared_length(parts: &Parts) -> Option<u64> {
    parts.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

pub(super) fn too_large(policy: &RoutePolicy) -> Problem {
    let detail = format!(
        "a request with an idempotency key may have a body of at most {} bytes here",
        policy.request_limit
    );
    Problem::new(Situation::BodyTooLarge, detail)
}

/// The problem for a missing or invalid key.
fn problem_of(sought: Sought) -> Problem {
    match sought {
        Sought::Malformed(malformed) => Problem::new(Situation::KeyMalformed, malformed.to_string()),
        Sought::BodyMalformed(reason) => Problem::new(Situation::BodyMalformed, reason),
        Sought::Absent | Sought::Key(_) => Situation::KeyMissing.into(),
    }
}
