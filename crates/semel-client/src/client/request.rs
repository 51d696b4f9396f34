//! What is asked.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde::Serialize;

use crate::retry::{Repeat, StoryIds};

/// A request: built once, sent as often as it takes, always the same.
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until a client sends it"]
pub struct Request {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    key: Option<RequestKey>,
    pub(super) user: Option<String>,
    pub(super) request_id: String,
    operation: Option<String>,
    repeat: Option<Repeat>,
    pub(super) conflicts: Conflicts,
    pub(super) story: StoryIds,
}

#[derive(Clone)]
struct RequestKey {
    text: String,
    value: HeaderValue,
}

impl std::fmt::Debug for RequestKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}…", semel::key::Hint::new(&self.text))
    }
}

/// What a 409 means to a request, where it is not about its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conflicts {
    /// A refusal.
    #[default]
    Refuse,
    /// The request creates what is absent, and it is there: a success.
    Exists,
}

/// Why a request cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The body has no JSON form.
    #[error("the body cannot be written as JSON")]
    Json,
    /// The text cannot stand in a header. It is not repeated: it may be a key or a token.
    #[error("the {0} cannot stand in a header: it must be visible ASCII")]
    Header(&'static str),
}

impl Request {
    /// A request of this method to `path`, which is put behind the client's base URL and may have a query.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            key: None,
            user: None,
            request_id: format!("{:032x}", rand::random::<u128>()),
            operation: None,
            repeat: None,
            conflicts: Conflicts::default(),
            story: StoryIds::default(),
        }
    }

    /// A GET.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// A POST.
    pub fn post(path: impl Into<String>) -> Self {
        Self::new(Method::POST, path)
    }

    /// With a body of JSON.
    ///
    /// # Errors
    /// A value that has no JSON form.
    pub fn json(mut self, value: &(impl Serialize + ?Sized)) -> Result<Self, RequestError> {
        self.body = serde_json::to_vec(value).map_err(|_| RequestError::Json)?.into();
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(self)
    }

    /// With these bytes as its body.
    pub fn bytes(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// With a header, in place of one of that name. `Host`, `Idempotency-Key`, `X-Request-Id` and the user header are the
    /// client's own.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// With an idempotency key that its receiver honours: it may be repeated. Send a derived one, never a caller's.
    ///
    /// # Errors
    /// A key that cannot stand in a header.
    pub fn key(mut self, key: impl Into<String>) -> Result<Self, RequestError> {
        let text = key.into();
        let mut value = HeaderValue::from_str(&text).map_err(|_| RequestError::Header("idempotency key"))?;
        value.set_sensitive(true);
        self.key = Some(RequestKey { text, value });
        Ok(self)
    }

    /// On whose behalf: goes into the client's user header and into logs.
    ///
    /// # Errors
    /// A name that cannot stand in a header.
    pub fn user(mut self, user: impl Into<String>) -> Result<Self, RequestError> {
        let user = user.into();
        HeaderValue::from_str(&user).map_err(|_| RequestError::Header("user"))?;
        self.user = Some(user);
        Ok(self)
    }

    /// The id that finds it in everybody's logs; a random one otherwise.
    ///
    /// # Errors
    /// An id that cannot stand in a header.
    pub fn with_request_id(mut self, id: impl Into<String>) -> Result<Self, RequestError> {
        self.request_id = id.into();
        HeaderValue::from_str(&self.request_id).map_err(|_| RequestError::Header("request id"))?;
        Ok(self)
    }

    /// The trace it belongs to, as a W3C `traceparent`.
    ///
    /// # Errors
    /// A text that cannot stand in a header.
    pub fn traceparent(mut self, parent: &str) -> Result<Self, RequestError> {
        let value = HeaderValue::from_str(parent).map_err(|_| RequestError::Header("traceparent"))?;
        self.headers.insert(HeaderName::from_static("traceparent"), value);
        Ok(self)
    }

    /// What it is called in logs; otherwise its method.
    pub fn operation(mut self, operation: impl Into<String>) -> Self {
        self.operation = Some(operation.into());
        self
    }

    /// Says that it may be repeated although it has no key, such as a PUT that sets all there is. Otherwise only safe methods
    /// and requests with a key may.
    pub fn repeatable(mut self) -> Self {
        self.repeat = Some(Repeat::Safe);
        self
    }

    /// What a 409 means.
    pub fn conflicts(mut self, conflicts: Conflicts) -> Self {
        self.conflicts = conflicts;
        self
    }

    /// The ids of the action it belongs to, for logs.
    pub fn story(mut self, story: StoryIds) -> Self {
        self.story = story;
        self
    }

    /// Whether it may be repeated: a safe method, a key, or the caller's word.
    #[must_use]
    pub fn repeat(&self) -> Repeat {
        let safe = matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
        match self.repeat {
            Some(repeat) => repeat,
            None if safe || self.key.is_some() => Repeat::Safe,
            None => Repeat::Unsafe,
        }
    }

    pub(super) fn key_text(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.text.as_str())
    }

    pub(super) fn key_value(&self) -> Option<&HeaderValue> {
        self.key.as_ref().map(|key| &key.value)
    }

    pub(super) fn operation_name(&self) -> &str {
        self.operation.as_deref().unwrap_or(self.method.as_str())
    }

    /// The second part of `00-TRACE-SPAN-FLAGS`.
    pub(super) fn trace_id(&self) -> Option<&str> {
        let parent = self.headers.get("traceparent")?.to_str().ok()?;
        parent.split('-').nth(1).filter(|id| id.len() == 32)
    }
}
