//! Problems that a client can get instead of an answer.

use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderName, Response, StatusCode};
use serde::Serialize;
use std::time::Duration;

use crate::body::Body;

/// Why a request has no answer from its handler. Each situation has a code that is the same in every profile and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Situation {
    /// The route requires a key and none was sent.
    KeyMissing,
    /// The key is invalid: empty, too long, not visible ASCII, a list, or sent twice.
    KeyMalformed,
    /// The request does not identify the caller.
    ScopeMissing,
    /// The caller's credential was refused.
    CredentialRefused,
    /// The body is not JSON or is ambiguous, so it cannot be compared or contains no key.
    BodyMalformed,
    /// The body is larger than the route accepts.
    BodyTooLarge,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The key was used with another request.
    Conflict,
    /// Another call with the key is in progress.
    InFlight,
    /// The retention of the outcome is over.
    Expired,
    /// The effect of an earlier call is unknown.
    InDoubt,
    /// The effect happened, but its answer was not stored.
    OutcomeNotKept,
    /// The store is unavailable, and the route refuses requests meanwhile.
    StoreUnavailable,
    /// Too many new keys, answers from the record, or waiters.
    RateLimited,
    /// The request was not delivered, so it had no effect.
    UpstreamUnreachable,
    /// The request was delivered but not answered: its effect is unknown.
    UpstreamUnknown,
    /// The route's `verify` call neither accepted nor refused the credential.
    VerifyUnavailable,
    /// The process has reached its limit of calls in progress or of request bytes in memory.
    Overloaded,
    /// Two servers may read the request differently, so it could bypass the route that is meant for it.
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

    /// The problem's code, the same in every profile, in metrics and in logs.
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

    /// The title of the problem.
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

    /// The default advice for a client. It reveals nothing about other requests.
    #[must_use]
    pub const fn detail(self) -> &'static str {
        match self {
            Self::KeyMissing => {
                "send a new Idempotency-Key with every new operation, and the same one with its retries"
            }
            Self::KeyMalformed => {
                "a key is 1 to 255 visible ASCII characters, sent once, bare or as a quoted string"
            }
            Self::ScopeMissing => "the header that identifies the caller is missing",
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
                "it is not run again; a probe or an operator must find out whether it took effect and settle the key"
            }
            Self::OutcomeNotKept => "it is not run again; look up its result by other means",
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

/// How a profile presents one situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SituationText {
    /// The status of the answer.
    pub status: StatusCode,
    /// The `type` of an error in a format with few types, e.g. `idempotency_error`.
    pub kind: &'static str,
    /// Whether the same request with the same key may succeed later.
    pub retry: RetryAdvice,
    /// A header with the same advice, for clients that look for it.
    pub hint: Option<(&'static str, &'static str)>,
    /// The same advice in a format that has words for it: `transient`, `correctable` or `terminal`.
    pub recovery: &'static str,
    /// Bounds of the retry hint for such clients, in seconds.
    pub hint_within: Option<(u64, u64)>,
}

/// Whether to send the same request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAdvice {
    /// It may succeed without an intervention.
    Useful,
    /// It will get the same answer.
    Useless,
}

/// The format of an error's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Shape {
    /// `application/problem+json` with `type`, `title`, `status`, `detail`, `message`, `code`, `retryable`.
    Problem,
    /// `application/json` with `{"error": {"type", "code", "message"}}`.
    Stripe,
    /// `application/json` with a JSON-RPC error, for bodies that are not messages. A tool call gets its error as a result of the tool.
    JsonRpc,
}

/// One problem, with its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The kind of problem.
    pub situation: Situation,
    /// A more precise text than the default of the situation.
    pub detail: Option<String>,
    /// When to retry.
    pub retry_after: Option<Duration>,
    /// A status that overrides the profile's.
    pub status: Option<StatusCode>,
    /// A retry advice that overrides the profile's.
    pub retry: Option<RetryAdvice>,
}

impl From<Situation> for Problem {
    fn from(situation: Situation) -> Self {
        Self { situation, detail: None, retry_after: None, status: None, retry: None }
    }
}

impl Problem {
    /// A problem with a more precise text.
    pub fn new(situation: Situation, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..situation.into() }
    }

    /// The same problem with a time to retry.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The answer in the format of a profile.
    #[must_use]
    pub fn answer(&self, shape: Shape, text: &SituationText) -> Response<Body> {
        let status = self.status.unwrap_or(text.status);
        let detail = self.detail.as_deref().unwrap_or(self.situation.detail());
        let code = self.situation.code();
        let (content_type, body) = match shape {
            Shape::JsonRpc => {
                let data = RpcData { code: text.kind, recovery: text.recovery };
                let error = RpcErrorBody { code: -32603, message: detail, data };
                ("application/json", to_json(&RpcJson { jsonrpc: "2.0", id: (), error }))
            }
            Shape::Problem => {
                let (r#type, title) = (format!("urn:semel:problem:{code}"), self.situation.title());
                let retryable = self.retry.unwrap_or(text.retry) == RetryAdvice::Useful;
                let status = status.as_u16();
                let body = ProblemJson { r#type, title, status, detail, message: detail, code, retryable };
                ("application/problem+json", to_json(&body))
            }
            Shape::Stripe => {
                let error = StripeError { r#type: text.kind, code, message: detail };
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
        // Generated clients retry a 409 unless they are told not to. A retry after an unknown result learns what became of it.
        let useless = self.retry.unwrap_or(text.retry) == RetryAdvice::Useless;
        if useless && self.situation != Situation::UpstreamUnknown {
            headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
        }
        if let Some((name, value)) = text.hint {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        answer
    }
}

/// Whole seconds, rounded up and never zero: with "0" a client would retry immediately.
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
    /// The same text: many SDKs show only a member of this name.
    message: &'a str,
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
    error: RpcErrorBody<'a>,
}

#[derive(Serialize)]
struct RpcErrorBody<'a> {
    code: i32,
    message: &'a str,
    data: RpcData<'a>,
}

#[derive(Serialize)]
struct RpcData<'a> {
    code: &'a str,
    recovery: &'a str,
}
