//! Why an upstream gave no answer, and whether it may have acted.

use std::error::Error as _;
use std::io;

use http::StatusCode;

use crate::BoxError;
use crate::call::{CallError, CallFate};

/// A request without an answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection was refused, or the address was not found.
    #[error("the upstream cannot be reached: {0}")]
    Connect(#[source] io::Error),
    /// The connection was not established in time.
    #[error("the upstream cannot be reached in time")]
    ConnectTimeout,
    /// The TLS or HTTP/2 handshake failed.
    #[error("the handshake with the upstream failed: {0}")]
    Handshake(#[source] BoxError),
    /// The connection was closed before the request went out.
    #[error("the upstream closed the connection before the request was sent")]
    Closed,
    /// The route names an upstream that is not configured.
    #[error("the route names an upstream that is not configured")]
    NoUpstream,
    /// The target does not fit after the upstream's prefix, or leads out of it.
    #[error("the request target cannot be forwarded")]
    Target,
    /// The client's own body failed while it was passed on.
    #[error("the request body failed: {0}")]
    RequestBody(#[source] hyper::Error),
    /// The upstream declared over HTTP/2 that it did not process the request: `REFUSED_STREAM`, or a stream after the last one of a
    /// graceful `GOAWAY`.
    #[error("the upstream refused the request without processing it: {0}")]
    Refused(#[source] hyper::Error),
    /// The connection broke, or the answer was not HTTP.
    #[error("the upstream gave no complete answer: {0}")]
    Cut(#[source] hyper::Error),
    /// The upstream switched to another protocol without a request to do so.
    #[error("the upstream switched protocols without being asked")]
    Switched,
    /// No answer in time.
    #[error("the upstream did not answer in time")]
    Timeout,
}

impl Error {
    /// Classifies a failed exchange.
    pub(super) fn of(error: hyper::Error) -> Self {
        if error.is_user() {
            return Self::RequestBody(error);
        }
        let cause = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
        // A GOAWAY with an error may also end streams that were processed.
        let unread = cause.is_some_and(|cause| {
            cause.is_remote()
                && match cause.reason() {
                    Some(h2::Reason::REFUSED_STREAM) => cause.is_reset(),
                    Some(h2::Reason::NO_ERROR) => cause.is_go_away(),
                    _ => false,
                }
        });
        if unread { Self::Refused(error) } else { Self::Cut(error) }
    }

    /// Whether the upstream may have acted.
    #[must_use]
    pub fn fate(&self) -> CallFate {
        match self {
            Self::Connect(_)
            | Self::ConnectTimeout
            | Self::Handshake(_)
            | Self::Closed
            | Self::Refused(_)
            | Self::NoUpstream
            | Self::Target => CallFate::Undelivered,
            Self::RequestBody(_) | Self::Cut(_) | Self::Switched | Self::Timeout => CallFate::Unknown,
        }
    }

    /// The status of the answer to the client.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Connect(_)
            | Self::Handshake(_)
            | Self::Closed
            | Self::Refused(_)
            | Self::NoUpstream
            | Self::Cut(_)
            | Self::Switched => StatusCode::BAD_GATEWAY,
            Self::ConnectTimeout | Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Target | Self::RequestBody(_) => StatusCode::BAD_REQUEST,
        }
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        let status = error.status();
        match error.fate() {
            CallFate::Undelivered => Self::undelivered(error).with_status(status),
            CallFate::Unknown => Self::unknown(error).with_status(status),
        }
    }
}
