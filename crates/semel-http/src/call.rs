//! The contract with the service that answers a request: how it reports failures, and how the guard makes calls of its own.
//!
//! The guard wraps any `tower` service that takes a `Request<Body>`. A failure before the request was delivered is handled very
//! differently from one after the effect may have started. So the error of the service should be a [`CallError`], or convert to a boxed
//! one. Every other error, and a panic, counts as [`CallFate::Unknown`].

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tower_service::Service;

use crate::body::{Body, BoxError};

/// What a failed call may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallFate {
    /// No byte of the request was delivered, so it had no effect. The key is released.
    Undelivered,
    /// Something was sent, and its result is unknown. In mode `marked` the key is in doubt; in other modes the next attempt runs the
    /// effect again.
    Unknown,
}

/// A call without an answer.
#[derive(Debug)]
pub struct CallError {
    fate: CallFate,
    status: StatusCode,
    source: BoxError,
}

impl CallError {
    /// Nothing was sent: connection refused, name not resolved, or TLS failed. Answered with 502.
    pub fn undelivered(source: impl Into<BoxError>) -> Self {
        Self { fate: CallFate::Undelivered, status: StatusCode::BAD_GATEWAY, source: source.into() }
    }

    /// The upstream may have received the request: the connection broke after the first byte, or the answer was malformed. Answered
    /// with 502.
    pub fn unknown(source: impl Into<BoxError>) -> Self {
        Self { fate: CallFate::Unknown, status: StatusCode::BAD_GATEWAY, source: source.into() }
    }

    /// The upstream may have received the request, but did not answer in time. Answered with 504.
    pub fn timed_out(source: impl Into<BoxError>) -> Self {
        Self { fate: CallFate::Unknown, status: StatusCode::GATEWAY_TIMEOUT, source: source.into() }
    }

    /// The same error, answered with another status.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// What the call may have done.
    pub const fn fate(&self) -> CallFate {
        self.fate
    }

    /// The status of the answer to the client.
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// Converts any error. An error of an unknown type counts as [`CallFate::Unknown`].
    pub fn from_any(error: BoxError) -> Self {
        match error.downcast::<Self>() {
            Ok(call) => *call,
            Err(error) => {
                Self { fate: CallFate::Unknown, status: StatusCode::INTERNAL_SERVER_ERROR, source: error }
            }
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fate {
            CallFate::Undelivered => write!(f, "the request was not delivered: {}", self.source),
            CallFate::Unknown => {
                write!(f, "the request may or may not have taken effect: {}", self.source)
            }
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.source.as_ref())
    }
}

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes the guard's own calls: the probe that settles doubt, and the check of a credential before an answer from the record. The proxy
/// implements it with its upstream client; [`ServiceCaller`] turns a service into one.
pub trait ProbeCaller: Send + Sync + 'static {
    /// Sends a request and returns the answer. The [`UpstreamName`] of its route is in the request's extensions.
    ///
    /// Set no timeout here; the guard has one. Dropping the future ends the call.
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, CallError>>;
}

/// The name of a route's upstream, in the extensions of every request of that route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamName(pub Arc<str>);

/// Turns any cloneable service into a [`ProbeCaller`].
#[derive(Clone, Debug)]
pub struct ServiceCaller<S>(pub S);

impl<S, B> ProbeCaller for ServiceCaller<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, CallError>> {
        let mut service = self.0.clone();
        Box::pin(async move {
            std::future::poll_fn(|context| service.poll_ready(context))
                .await
                .map_err(|error| CallError::from_any(error.into()))?;
            match service.call(request).await {
                Ok(response) => Ok(response.map(Body::stream)),
                Err(error) => Err(CallError::from_any(error.into())),
            }
        })
    }
}
