//! Answers of the admin side: JSON, and problems in JSON (RFC 9457).

use std::time::Duration;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use semel::store;

use super::shown::{Returned, WithReturned};
use crate::config::parse_duration;

/// Why a request was not done.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    code: &'static str,
    detail: String,
    retry_after: Option<Duration>,
    more: Box<More>,
}

/// Members beside those of every problem.
#[derive(Debug, Default)]
struct More {
    members: Map<String, Value>,
    returned: Option<Returned>,
}

impl Refusal {
    /// What is wrong, in words for people.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), retry_after: None, more: Box::default() }
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this path has other methods")
    }

    pub(super) fn unauthorised(detail: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorised", detail)
    }

    pub(super) fn too_many_logins(wait: Duration) -> Self {
        let detail = "too many wrong tokens came from this address; come back after Retry-After, or from another address";
        let mut refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_logins", detail);
        refusal.set_retry_after(wait);
        refusal
    }

    /// What was sent cannot be used.
    pub(super) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail)
    }

    /// Says when to come back.
    pub(super) fn set_retry_after(&mut self, retry_after: Duration) {
        self.retry_after = Some(retry_after);
    }

    /// The same refusal with the outcome that stands.
    pub(super) fn returning(mut self, returned: Returned) -> Self {
        self.more.returned = Some(returned);
        self
    }

    /// The same refusal with a member more.
    pub(super) fn with(mut self, member: &str, value: Value) -> Self {
        self.more.members.insert(member.to_owned(), value);
        self
    }
}

impl From<semel_pipeline::ledger::Error> for Refusal {
    fn from(error: semel_pipeline::ledger::Error) -> Self {
        use semel_pipeline::ledger::Error;

        let detail = error.to_string();
        match error {
            Error::Store(error) => error.into(),
            Error::NotFound { .. } => Self::not_found(detail),
            Error::Impossible(_) => Self::new(StatusCode::CONFLICT, "impossible", detail),
            Error::Stale => Self::new(StatusCode::CONFLICT, "stale", detail),
            _ => Self::new(StatusCode::CONFLICT, "refused", detail),
        }
    }
}

impl From<store::Error> for Refusal {
    fn from(error: store::Error) -> Self {
        if error.is_over_limit() {
            // Counted, and not logged each time: a flood must not fill the log.
            let (status, code) = match error.kind() {
                store::ErrorKind::TooManyNewKeys => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
                _ => (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"),
            };
            let mut refusal = Self::new(status, code, error.to_string());
            refusal.retry_after = error.retry_after().or(Some(Duration::from_secs(1)));
            return refusal;
        }
        tracing::warn!(target: "semel", %error, "the store did not do what the admin side asked");
        let mut refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error.to_string());
        refusal.retry_after = Some(Duration::from_secs(1));
        refusal
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let retryable = self.retry_after.is_some();
        let mut problem = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or_default(),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code,
            "retryable": retryable,
        });
        if let Value::Object(members) = &mut problem {
            members.extend(self.more.members);
        }
        let problem = WithReturned { members: &problem, returned: self.more.returned };
        let problem = serde_json::to_string(&problem).unwrap_or_default();
        let mut response =
            (self.status, [(header::CONTENT_TYPE, "application/problem+json")], problem).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, after.as_secs().max(1).into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// An answer in JSON.
pub(super) fn json(value: &impl Serialize) -> Result<Response, Refusal> {
    let text = serde_json::to_string(value)
        .map_err(|error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// The longest time that may be asked for, in days: what is meant to be for ever is a mistake more often than a wish.
const LONGEST_DAYS: u64 = 3650;

/// A length of time in a member with this name.
pub(super) fn length(name: &str, text: Option<&str>) -> Result<Option<Duration>, Refusal> {
    let Some(text) = text else { return Ok(None) };
    match parse_duration(text) {
        None => Err(Refusal::bad(format!("{name}: expected a duration such as \"30s\""))),
        Some(length) if length > Duration::from_secs(LONGEST_DAYS * 86_400) => {
            Err(Refusal::bad(format!("{name}: expected at most \"{LONGEST_DAYS}d\"")))
        }
        length => Ok(length),
    }
}

/// What a path names, by its one part that differs.
pub(super) struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(_) => Err(Refusal::bad("the path holds bytes that are no UTF-8: nothing has such an id")),
        }
    }
}

/// A reason for what is done by hand.
pub(super) fn reason(reason: &str) -> Result<&str, Refusal> {
    let reason = reason.trim();
    if reason.is_empty() {
        Err(Refusal::bad("reason: say why, for whoever reads the audit log"))
    } else {
        Ok(reason)
    }
}

/// Reads a body. An empty one counts as `{}`.
pub(super) fn body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    // Also the derived readers take a list for an object, member by member.
    if bytes.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(Refusal::bad("the body cannot be used: expected a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| Refusal::bad(format!("the body cannot be used: {error}")))
}
