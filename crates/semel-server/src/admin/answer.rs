//! Answers of the admin side: JSON, and problems in JSON (RFC 9457).

use std::convert::Infallible;
use std::marker::PhantomData;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use semel::record::Phase;
use semel::store;

use super::records::{OutcomeContent, phase_name};
use super::schema::OneOf;
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

/// Members of some problems only.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct More {
    /// Phase of the key, where it forbids the operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OneOf<Phase>")]
    phase: Option<&'static str>,
    #[serde(flatten)]
    outcome: Option<OutcomeContent>,
}

/// A problem as RFC 9457 describes it.
#[derive(Serialize, JsonSchema)]
pub(super) struct Problem {
    r#type: &'static str,
    title: &'static str,
    /// HTTP status.
    status: u16,
    /// What is wrong, for people.
    detail: String,
    /// What is wrong, for programs.
    code: &'static str,
    /// True if the same request can succeed later.
    retryable: bool,
    #[serde(flatten)]
    more: More,
}

impl Refusal {
    /// What is wrong, in words for people.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// Its code, for programs.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// The status of its answer.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), retry_after: None, more: Box::default() }
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
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
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_logins", detail).with_retry_after(wait)
    }

    /// What was sent cannot be used.
    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail)
    }

    /// The same refusal with the outcome that stands.
    pub(super) fn with_outcome(mut self, outcome: OutcomeContent) -> Self {
        self.more.outcome = Some(outcome);
        self
    }

    /// Bytes of the outcome in it; 0 without one.
    pub(super) fn outcome_size(&self) -> usize {
        self.more.outcome.as_ref().map_or(0, OutcomeContent::size)
    }

    /// The same refusal with the phase of the key.
    pub(super) fn with_phase(mut self, phase: Phase) -> Self {
        self.more.phase = Some(phase_name(phase));
        self
    }

    /// The same refusal in other words.
    pub(super) fn with_detail(mut self, detail: String) -> Self {
        self.detail = detail;
        self
    }

    /// The same refusal with a Retry-After.
    pub(super) fn with_retry_after(mut self, retry_after: Duration) -> Self {
        self.retry_after = Some(retry_after);
        self
    }

    /// The refusal as a document.
    pub(super) fn into_problem(self) -> Problem {
        Problem {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or_default(),
            status: self.status.as_u16(),
            detail: self.detail,
            code: self.code,
            retryable: self.retry_after.is_some(),
            more: *self.more,
        }
    }

    pub(super) fn payload_too_large(limit: usize) -> Self {
        let detail = format!("the payload is larger than {limit} bytes; `payload` in [limits] allows more");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", detail)
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
        // The store logs its outage once.
        if error.is_logged() {
            tracing::debug!(target: "semel", %error, "store request of the admin API failed");
        } else {
            tracing::warn!(target: "semel", %error, "store request of the admin API failed");
        }
        let mut refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error.to_string());
        refusal.retry_after = Some(Duration::from_secs(1));
        refusal
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, retry_after) = (self.status, self.retry_after);
        let problem = self.into_problem();
        let problem = serde_json::to_string(&problem).unwrap_or_default();
        let mut response =
            (status, [(header::CONTENT_TYPE, "application/problem+json")], problem).into_response();
        let headers = response.headers_mut();
        if let Some(after) = retry_after {
            headers.insert(header::RETRY_AFTER, after.as_secs().max(1).into());
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// An answer in JSON.
pub(crate) struct Answer<T> {
    status: StatusCode,
    header: Option<(HeaderName, HeaderValue)>,
    body: T,
}

impl<T> Answer<T> {
    pub(super) fn new(status: StatusCode, body: T) -> Self {
        Self { status, header: None, body }
    }

    /// 200 with this body.
    pub(super) fn ok(body: T) -> Result<Self, Refusal> {
        Ok(Self::new(StatusCode::OK, body))
    }

    /// The same with the header X-Request-Id, where the id can be a header.
    pub(super) fn with_request_id(mut self, id: Option<String>) -> Self {
        let value = id.and_then(|id| id.parse().ok());
        self.header = value.map(|value| (HeaderName::from_static("x-request-id"), value));
        self
    }
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        let text = match serde_json::to_string(&self.body) {
            Ok(text) => text,
            Err(error) => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                return Refusal::new(status, "internal", error.to_string()).into_response();
            }
        };
        let mut response = (self.status, [(header::CONTENT_TYPE, "application/json")], text).into_response();
        response.headers_mut().extend(self.header);
        response
    }
}

/// A JSON body that the handler parses when it has checked what comes first.
pub(crate) struct JsonBody<T>(Bytes, PhantomData<T>);

impl<T: DeserializeOwned> JsonBody<T> {
    pub(super) fn read(&self) -> Result<T, Refusal> {
        parse(&self.0)
    }
}

impl<T, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let bytes = Bytes::from_request(request, state).await.map_err(unread)?;
        Ok(Self(bytes, PhantomData))
    }
}

/// The refusal of a body that was not read to its end.
fn unread(rejection: BytesRejection) -> Refusal {
    let status = rejection.into_response().status();
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        let detail = "the body is larger than this server reads; `max_outcome` in [store] allows more";
        Refusal::new(status, "payload_too_large", detail)
    } else {
        Refusal::bad("the body could not be read to its end")
    }
}

/// A JSON body with a payload, whose limit the pipeline knows.
pub(super) struct PayloadBody<T> {
    pub(super) headers: HeaderMap,
    body: Body,
    of: PhantomData<T>,
}

impl<T: DeserializeOwned> PayloadBody<T> {
    /// Reads `payload` bytes, and `envelope` bytes around them.
    pub(super) async fn read(self, payload: usize, envelope: usize) -> Result<T, Refusal> {
        parse(&self.read_bytes(payload, envelope).await?)
    }

    /// As [`read`](Self::read), unparsed.
    pub(super) async fn read_bytes(self, payload: usize, envelope: usize) -> Result<Bytes, Refusal> {
        let body = axum::body::to_bytes(self.body, payload.saturating_add(envelope)).await;
        body.map_err(|_| Refusal::payload_too_large(payload))
    }
}

impl<T, S: Sync> FromRequest<S> for PayloadBody<T> {
    type Rejection = Infallible;

    async fn from_request(request: Request, _: &S) -> Result<Self, Infallible> {
        let (parts, body) = request.into_parts();
        Ok(Self { headers: parts.headers, body, of: PhantomData })
    }
}

/// The longest time that may be asked for, in days: what is meant to be for ever is a mistake more often than a wish.
const LONGEST_DAYS: u64 = 3650;

/// A length of time in a member with this name.
pub(crate) fn length(name: &str, text: Option<&str>) -> Result<Option<Duration>, Refusal> {
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
pub(super) struct PathId(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(_) => Err(Refusal::bad("the path holds bytes that are no UTF-8: nothing has such an id")),
        }
    }
}

/// A reason for what is done by hand.
pub(crate) fn reason(reason: &str) -> Result<&str, Refusal> {
    let reason = reason.trim();
    if reason.is_empty() { Err(Refusal::bad("reason: required for the audit log")) } else { Ok(reason) }
}

/// Parses a body. An empty one counts as `{}`.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    // Also the derived readers take a list for an object, member by member.
    if bytes.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(Refusal::bad("the body cannot be used: expected a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| Refusal::bad(format!("the body cannot be used: {error}")))
}
