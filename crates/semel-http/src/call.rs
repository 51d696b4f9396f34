//! The contract with whatever answers a request: how it says that it failed, and how the guard calls it on its own.
//!
//! The guard stands before any `tower` service that takes a `Request<Body>`. A service that fails after the effect
//! may have started and one that never reached anybody are treated very differently, so its error should say which
//! it was: return a [`CallError`], or anything that turns into a boxed one. Every other error counts as
//! [`Fate::Unknown`], and so does a panic.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tower_service::Service;

use crate::body::{Body, BoxError};

/// What a failed call may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// No byte of the request reached anybody: nothing happened. The key is released.
    Undelivered,
    /// Something was sent, and nobody knows what came of it: in doubt in `marked`, taken over in other modes.
    Unknown,
}

/// A call that has no answer.
#[derive(Debug)]
pub struct CallError {
    fate: Fate,
    status: StatusCode,
    source: BoxError,
}

impl CallError {
    /// Nothing was sent: the connection was refused, no address was found, TLS failed. Answered with 502.
    pub fn undelivered(source: impl Into<BoxError>) -> Self {
        Self { fate: Fate::Undelivered, status: StatusCode::BAD_GATEWAY, source: source.into() }
    }

    /// It may have been received: the connection was cut after the first byte, the answer was malformed. Answered
    /// with 502.
    pub fn unknown(source: impl Into<BoxError>) -> Self {
        Self { fate: Fate::Unknown, status: StatusCode::BAD_GATEWAY, source: source.into() }
    }

    /// It may have been received, and no answer came in time. Answered with 504.
    pub fn timed_out(source: impl Into<BoxError>) -> Self {
        Self { fate: Fate::Unknown, status: StatusCode::GATEWAY_TIMEOUT, source: source.into() }
    }

    /// The same error, answered with another status.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// What the call may have done.
    pub const fn fate(&self) -> Fate {
        self.fate
    }

    /// The status that a client is answered with.
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// Reads any error. One that does not say what it was may have done anything.
    pub fn from_any(error: BoxError) -> Self {
        match error.downcast::<Self>() {
            Ok(call) => *call,
            Err(error) => {
                Self { fate: Fate::Unknown, status: StatusCode::INTERNAL_SERVER_ERROR, source: error }
            }
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fate {
            Fate::Undelivered => write!(f, "the request was not delivered: {}", self.source),
            Fate::Unknown => {
                write!(f, "nobody knows whether the request took effect: {}", self.source)
            }
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.source.as_ref())
    }
}

/// A future that can be kept behind a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes calls that no client asked for: the probe that settles doubt, and the check of a credential before a
/// replay. The proxy implements it with its upstream client; a service is made one by [`ServiceCaller`].
pub trait Caller: Send + Sync + 'static {
    /// Sends a request and returns the answer. The [`Upstream`] of its route is among the request's extensions.
    ///
    /// Set no time limit here: the guard does. Dropping the future ends the call.
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, CallError>>;
}

/// Which upstream a route names, among the extensions of every request of that route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream(pub Arc<str>);

/// Makes a [`Caller`] of any service that can be cloned.
#[derive(Clone, Debug)]
pub struct ServiceCaller<S>(pub S);

impl<S, B> Caller for ServiceCaller<S>
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
