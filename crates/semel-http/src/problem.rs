//! What can stand in the way of an answer, and how a client is told.

use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderName, Response, StatusCode};
use serde::Serialize;
use std::time::Duration;

use crate::body::Body;

/// Why a request has no answer from its handler. Each has a code that never changes, whatever the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Situation {
    /// The route requires a key and none was sent.
    KeyMissing,
    /// The key is not one: empty, too long, not visible ASCII, a list, sent twice.
    KeyMalformed,
    /// The request does not say who asks.
    ScopeMissing,
    /// The credential that says who asks was not accepted.
    CredentialRefused,
    /// The body cannot be compared or holds no key: not JSON, or ambiguous.
    BodyMalformed,
    /// The body is larger than the route takes.
    BodyTooLarge,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The key was used with another request.
    Conflict,
    /// Another call with the key is under way.
    InFlight,
    /// The outcome was kept for its retention and is gone.
    Expired,
    /// Nobody knows whether an earlier call took effect.
    InDoubt,
    /// The effect happened and its answer was not kept.
    OutcomeNotKept,
    /// The store cannot be asked, and the route does not go on without it.
    StoreUnavailable,
    /// Too many new keys, replays or waiters.
    RateLimited,
    /// The request was not delivered: nothing happened.
    UpstreamUnreachable,
    /// The request was delivered and no answer came: nobody knows.
    UpstreamUnknown,
    /// The route's `verify` call did not get an answer that says yes or no.
    VerifyUnavailable,
    /// As many calls are in flight, or as many bytes of requests in memory, as the process takes on.
    Overloaded,
    /// Two servers may read the request differently, so it could pass the route that is meant for it.
    Ambiguous,
    /// No route matches, and only requests of a route are passed on.
    NoRoute,
}

impl Situation {
    /// Every situation, in the order of a profile's table.
    pub const ALL: [Self; 20] = [
        Self::KeyMissing,
        Self::KeyMalformed,
        Self::ScopeMissing,
        Self::CredentialRefused,
        Self::BodyMalformed,
        Self::BodyTooLarge,
        Self::BodyTimeout,
        Self::Conflict,
        Self::InFlight,
        Self::Expired,
        Self::InDoubt,
        Self::OutcomeNotKept,
        Self::StoreUnavailable,
        Self::RateLimited,
        Self::UpstreamUnreachable,
        Self::UpstreamUnknown,
        Self::VerifyUnavailable,
        Self::Overloaded,
        Self::Ambiguous,
        Self::NoRoute,
    ];

    /// The problem's code: the same in every profile, in metrics and in logs.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::KeyMissing => "key_missing",
            Self::KeyMalformed => "key_malformed",
            Self::ScopeMissing => "scope_missing",
            Self::CredentialRefused => "credential_refused",
            Self::BodyMalformed => "body_malformed",
            Self::BodyTooLarge => "body_too_large",
            Self::BodyTimeout => "body_timeout",
            Self::Conflict => "conflict",
            Self::InFlight => "in_flight",
            Self::Expired => "expired",
            Self::InDoubt => "in_doubt",
            Self::OutcomeNotKept => "outcome_not_kept",
            Self::StoreUnavailable => "store_unavailable",
            Self::RateLimited => "rate_limited",
            Self::UpstreamUnreachable => "upstream_unreachable",
            Self::UpstreamUnknown => "upstream_unknown",
            Self::VerifyUnavailable => "verify_unavailable",
            Self::Overloaded => "overloaded",
            Self::Ambiguous => "ambiguous_request",
            Self::NoRoute => "no_route",
        }
    }

    /// The problem in a few words.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::KeyMissing => "An idempotency key is required",
            Self::KeyMalformed => "The idempotency key is malformed",
            Self::ScopeMissing => "The request does not say who asks",
            Self::CredentialRefused => "The credential was not accepted",
            Self::BodyMalformed => "The body cannot be read",
            Self::BodyTooLarge => "The body is too large",
            Self::BodyTimeout => "The body did not arrive in time",
            Self::Conflict => "The idempotency key was used with another request",
            Self::InFlight => "Another request with this idempotency key is in flight",
            Self::Expired => "The idempotency key has expired",
            Self::InDoubt => "Nobody knows whether an earlier request took effect",
            Self::OutcomeNotKept => "The request took effect and its answer was not kept",
            Self::StoreUnavailable => "The idempotency store is unavailable",
            Self::RateLimited => "Too many requests",
            Self::UpstreamUnreachable => "The upstream cannot be reached",
            Self::UpstreamUnknown => "The upstream gave no answer",
            Self::VerifyUnavailable => "The credential cannot be checked",
            Self::Overloaded => "The gateway has no capacity left",
            Self::Ambiguous => "The request can be read in two ways",
            Self::NoRoute => "No route matches the request",
        }
    }

    /// What a client should know and do, where nothing more precise is said. Tells nothing of any other request.
    #[must_use]
    pub const fn detail(self) -> &'static str {
        match self {
            Self::KeyMissing => {
                "send a new Idempotency-Key with every new operation, and the same one with its retries"
            }
            Self::KeyMalformed => {
                "a key is 1 to 255 visible ASCII characters, sent once, bare or as a quoted string"
            }
            Self::ScopeMissing => "the header that says who asks is missing",
            Self::CredentialRefused => "send a valid credential",
            Self::BodyMalformed => "the body must be valid JSON in which every member name occurs once",
            Self::BodyTooLarge => "send a smaller body, or no idempotency key",
            Self::BodyTimeout => {
                "the body was not read to its end in time, and nothing happened: send it again"
            }
            Self::Conflict => {
                "a retry must repeat method, path, query, headers and body; use a new key for a new operation"
            }
            Self::InFlight => "wait, then send the same request with the same key again",
            Self::Expired => {
                "this key was used before and its answer is no longer kept; use a new key for a new operation"
            }
            Self::InDoubt => {
                "it is not run again; whether it took effect has to be found out by a probe or a person before the key is settled"
            }
            Self::OutcomeNotKept => "it is not run again; look up what came of it by other means",
            Self::StoreUnavailable => "nothing happened; send the same request with the same key again",
            Self::RateLimited => "wait, then send the same request with the same key again",
            Self::UpstreamUnreachable => "nothing happened; send the same request with the same key again",
            Self::UpstreamUnknown => {
                "it may or may not have taken effect; send the same request with the same key again to learn what is known"
            }
            Self::VerifyUnavailable => "send the same request with the same key again",
            Self::Overloaded => "nothing happened; send the same request with the same key again",
            Self::Ambiguous => "write the path plainly, and send the method and the path that are meant",
            Self::NoRoute => "only requests that a route is configured for are passed on",
        }
    }
}

/// How a profile tells of one situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Telling {
    /// The status.
    pub status: StatusCode,
    /// The `type` of an error in a shape that has few of them, e.g. `idempotency_error`.
    pub kind: &'static str,
    /// Whether the same request with the same key may be sent again, and may then succeed.
    pub retry: Retry,
    /// A header that says so to clients which look for it.
    pub hint: Option<(&'static str, &'static str)>,
    /// The same in a shape with words for it: `transient`, `correctable` or `terminal`.
    pub recovery: &'static str,
    /// Bounds, in seconds, on when such clients are told to come back.
    pub hint_within: Option<(u64, u64)>,
}

/// Whether to send the same request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It may succeed without anybody repairing anything.
    Useful,
    /// It will be answered the same.
    Useless,
}

/// The form of an error's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Shape {
    /// `application/problem+json` with `type`, `title`, `status`, `detail`, `code`, `retryable`.
    Problem,
    /// `application/json` with `{"error": {"type", "code", "message"}}`.
    Stripe,
    /// `application/json` with an error of JSON-RPC, for whoever sent something that is no message. Calls of tools
    /// are answered as such.
    JsonRpc,
}

/// One problem, ready to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What stands in the way.
    pub situation: Situation,
    /// More precise than the situation's own words, where something more can be said.
    pub detail: Option<String>,
    /// When to come back.
    pub retry_after: Option<Duration>,
    /// Another status than the profile's.
    pub status: Option<StatusCode>,
    /// Another word about retrying than the profile's.
    pub retry: Option<Retry>,
}

impl From<Situation> for Problem {
    fn from(situation: Situation) -> Self {
        Self { situation, detail: None, retry_after: None, status: None, retry: None }
    }
}

impl Problem {
    /// A problem that can be told more precisely.
    pub fn new(situation: Situation, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..situation.into() }
    }

    /// The same, with when to come back.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The answer, as a profile tells it.
    #[must_use]
    pub fn answer(&self, shape: Shape, telling: &Telling) -> Response<Body> {
        let status = self.status.unwrap_or(telling.status);
        let detail = self.detail.as_deref().unwrap_or(self.situation.detail());
        let code = self.situation.code();
        let (content_type, body) = match shape {
            Shape::JsonRpc => {
                let data = RpcData { code: telling.kind, recovery: telling.recovery };
                let error = RpcError { code: -32603, message: detail, data };
                ("application/json", to_json(&RpcJson { jsonrpc: "2.0", id: (), error }))
            }
            Shape::Problem => {
                let (r#type, title) = (format!("urn:semel:problem:{code}"), self.situation.title());
                let retryable = self.retry.unwrap_or(telling.retry) == Retry::Useful;
                let status = status.as_u16();
                let body = ProblemJson { r#type, title, status, detail, code, retryable };
                ("application/problem+json", to_json(&body))
            }
            Shape::Stripe => {
                let error = StripeError { r#type: telling.kind, code, message: detail };
                ("application/json", to_json(&StripeJson { error }))
            }
        };
        let mut answer = Response::new(Body::from(body));
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds(after)));
        }
        if let Some((name, value)) = telling.hint {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        answer
    }
}

/// Whole seconds, rounded up and never zero: a client told "0" comes back at once.
pub(crate) fn seconds(after: Duration) -> u64 {
    after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0)).max(1)
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings, a number and a bool always have a JSON form")
}

#[derive(Serialize)]
struct ProblemJson<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    retryable: bool,
}

#[derive(Serialize)]
struct StripeJson<'a> {
    error: StripeError<'a>,
}

#[derive(Serialize)]
struct StripeError<'a> {
    r#type: &'a str,
    code: &'a str,
    message: &'a str,
}

#[derive(Serialize)]
struct RpcJson<'a> {
    jsonrpc: &'static str,
    id: (),
    error: RpcError<'a>,
}

#[derive(Serialize)]
struct RpcError<'a> {
    code: i32,
    message: &'a str,
    data: RpcData<'a>,
}

#[derive(Serialize)]
struct RpcData<'a> {
    code: &'a str,
    recovery: &'a str,
}
