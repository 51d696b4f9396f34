//! What a run gives back: an answer, or the reason why there is none.

use std::time::Duration;

use crate::fingerprint::PayloadError;
use crate::key::KeyError;
use crate::record::TermsError;
use crate::store;

/// The value of an effect, whoever ran it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer<T> {
    /// What the effect returned, here or in an earlier call.
    pub value: T,
    /// Whether it came from an earlier call. The mark is made now and never stored.
    pub replayed: bool,
    /// Whether later callers will get it too. False only when the store did not take the outcome of an effect
    /// that did happen, for as long as a lease lasts. Unless a last try from the background gets through, the key
    /// then ends in doubt in `marked`, and is taken over in other modes.
    pub stored: bool,
}

/// How an effect says that it did not succeed. It has to choose: the two are treated very differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// Nothing happened. The key is free, the next call runs the effect again.
    Failed(E),
    /// Nobody knows whether it happened: a timeout after the request was sent, a connection cut. In doubt in
    /// `marked`, taken over in `keyed` and `rerun`.
    Unknown(E),
}

/// Lets an effect name its failures in passing: `call().await.failed()?` or `.unknown()?`.
pub trait FailureExt<T, E> {
    /// An error here means that nothing happened.
    ///
    /// # Errors
    /// The error, as [`Failure::Failed`].
    fn failed(self) -> Result<T, Failure<E>>;

    /// An error here means that nobody knows.
    ///
    /// # Errors
    /// The error, as [`Failure::Unknown`].
    fn unknown(self) -> Result<T, Failure<E>>;
}

impl<T, E> FailureExt<T, E> for Result<T, E> {
    fn failed(self) -> Result<T, Failure<E>> {
        self.map_err(Failure::Failed)
    }

    fn unknown(self) -> Result<T, Failure<E>> {
        self.map_err(Failure::Unknown)
    }
}

/// Why a run has no answer. `E` is the effect's own error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// The effect failed and nothing happened. Call again to run it again.
    #[error("the effect failed, and nothing happened")]
    Failed(E),
    /// The effect failed and nobody knows whether it happened.
    #[error("the effect failed, and nobody knows whether it happened")]
    Unknown(E),
    /// The effect panicked: nobody knows how far it got.
    #[error("the effect panicked: {0}")]
    Panicked(String),
    /// The effect ran into `in_flight_max` and was stopped: nobody knows how far it got.
    #[error("the effect did not end within in_flight_max ({0:?}) and was stopped")]
    TimedOut(Duration),
    /// The key was used with another payload before.
    #[error("this key was used with another payload: use a new key for a new request")]
    Conflict,
    /// Somebody else is running the effect.
    #[error("another call with this key is in flight: try again with the same key in {retry_after:?}")]
    InFlight {
        /// When to come back.
        retry_after: Duration,
    },
    /// An earlier call began and nobody knows how it ended.
    #[error(
        "nobody knows whether an earlier call with this key took effect: settle the key before you try again"
    )]
    InDoubt,
    /// The outcome was kept for its retention and is gone.
    #[error("this key was used before and its outcome is no longer kept: use a new key for a new request")]
    Expired,
    /// The effect happened and its outcome was not kept.
    #[error("the effect happened, but its outcome was not kept: {0}")]
    NotKept(String),
    /// More callers wait than may.
    #[error("too many callers wait: try again with the same key in {retry_after:?}")]
    TooManyWaiters {
        /// When to come back.
        retry_after: Duration,
    },
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The payload cannot be compared.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The durations of this call do not fit together.
    #[error(transparent)]
    Terms(#[from] TermsError),
    /// The store failed; the effect did not run.
    #[error("the store failed: {0}")]
    Store(#[from] store::Error),
    /// The outcome that is kept cannot be read as the type that is asked for.
    #[error("the kept outcome cannot be read as the asked type: {0}")]
    Decode(#[from] DecodeError),
    /// `Mode::Atomic` was asked of an effect that runs outside the store's transaction.
    #[error(
        "mode atomic needs run_in, which gives the effect the store's own transaction; for other effects choose marked, keyed or rerun"
    )]
    NotInTransaction,
    /// A transaction was asked of a store that is not the engine's own.
    #[error(
        "run_in needs the store that the engine was built over: give Engine::over(store.clone()) and run_in(&store) the same one"
    )]
    OtherStore,
    /// An effect is run detached, and there is nothing to run it on.
    #[error("run needs a tokio runtime to run the effect on: call it inside one, or use run_blocking")]
    NoRuntime,
    /// The runtime went away under the effect. What it left behind is as after a crash.
    #[error("the runtime was shut down while the effect ran")]
    ShutDown,
}

impl<E> RunError<E> {
    /// Whether the same call, with the same key, may succeed later without anybody repairing anything.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Failed(_) | Self::InFlight { .. } | Self::TooManyWaiters { .. } | Self::ShutDown => true,
            Self::Store(error) => error.is_retryable(),
            _ => false,
        }
    }
}

/// Why a kept outcome cannot be read. Says where, and nothing of what stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its JSON does not fit at line {line}, column {column}")]
pub struct DecodeError {
    line: usize,
    column: usize,
}

impl From<serde_json::Error> for DecodeError {
    /// Drops the text: it quotes the value.
    fn from(error: serde_json::Error) -> Self {
        Self { line: error.line(), column: error.column() }
    }
}
