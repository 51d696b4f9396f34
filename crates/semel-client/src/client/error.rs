//! Why there is no answer, or not the one that was hoped for.

use std::io;

use http::StatusCode;

use super::Response;
use crate::retry::{self, Judged, Repeat, Signal, TryFate};

/// A call without a usable answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It was given up.
    #[error(transparent)]
    Call(#[from] retry::Error<TryFailure>),
    /// It succeeded, and its answer cannot be read.
    #[error(transparent)]
    Decode(AnswerDecodeError),
}

impl Error {
    /// Whether the same call, with the same key, may succeed later without anybody repairing anything.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Call(error) => error.is_retryable(),
            Self::Decode(_) => false,
        }
    }

    /// Whether the effect happened.
    #[must_use]
    pub fn fate(&self) -> TryFate {
        match self {
            Self::Call(error) => error.fate,
            Self::Decode(_) => TryFate::Done,
        }
    }

    /// The last answer, where there was one.
    #[must_use]
    pub fn response(&self) -> Option<&Response> {
        match self {
            Self::Call(retry::Error { last: Some(TryFailure::Refused { response, .. }), .. }) => {
                Some(response)
            }
            Self::Call(_) | Self::Decode(_) => None,
        }
    }
}

impl<F: From<Error>> From<Error> for semel::Failure<F> {
    /// [`Failed`](semel::Failure::Failed) only if certainly nothing happened.
    fn from(error: Error) -> Self {
        match error.fate() {
            TryFate::Undone => Self::Failed(error.into()),
            TryFate::Unknown | TryFate::Done => Self::Unknown(error.into()),
        }
    }
}

/// How one try failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TryFailure {
    /// No byte of it reached the other side.
    #[error("not sent: {0}")]
    NotSent(#[source] Lost),
    /// Nobody knows whether it took effect.
    #[error("sent, and nobody knows what came of it: {0}")]
    Unknown(#[source] Lost),
    /// An answer that is not a success.
    #[error("answered with {}", response.status)]
    Refused {
        /// The answer.
        response: Response,
        /// What it means.
        judged: Judged,
    },
}

impl TryFailure {
    pub(super) fn judged(&self, repeat: Repeat) -> Judged {
        match self {
            Self::NotSent(_) => Signal::not_sent().judge(repeat),
            Self::Unknown(Lost::Timeout) => Signal::timed_out().judge(repeat),
            Self::Unknown(_) => Signal::cut().judge(repeat),
            Self::Refused { judged, .. } => *judged,
        }
    }
}

/// Why there is no whole answer. Holds nothing of the request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// The path does not fit behind the base URL.
    #[error("the request's path cannot be sent")]
    Target,
    /// Nobody answers at the address.
    #[error("the service cannot be reached: {0}")]
    Connect(#[source] io::Error),
    /// The TLS handshake failed.
    #[error("the service cannot be spoken to over TLS: {0}")]
    Tls(#[source] io::Error),
    /// The connection was closed before the request went out.
    #[error("the service closed the connection before the request was sent")]
    Closed,
    /// Not done in time: connecting where it was not sent, answering where it was.
    #[error("out of time")]
    Timeout,
    /// Its [`SendControl`](super::SendControl) did not let it go out, or not all of it.
    #[error("it was stopped before all of it was sent")]
    Stopped,
    /// The connection was cut, or the answer was not HTTP.
    #[error("no whole answer: {0}")]
    Cut(#[source] hyper::Error),
}

/// Why an answer cannot be read. Says where, and nothing of what stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerDecodeError {
    /// Not the JSON that was asked for.
    #[error("the answer ({status}) does not fit at line {line}, column {column}")]
    NotJson {
        /// The answer's status.
        status: StatusCode,
        /// Where it does not fit.
        line: usize,
        /// Where it does not fit.
        column: usize,
    },
    /// Longer than the client's limit.
    #[error("the answer ({status}) is longer than the limit of {limit} bytes")]
    TooLong {
        /// The answer's status.
        status: StatusCode,
        /// The limit.
        limit: usize,
    },
}
