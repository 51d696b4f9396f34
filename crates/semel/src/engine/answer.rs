//! The result of a run: an answer, or the reason why there is none.

use std::fmt;
use std::time::Duration;

use crate::fingerprint::PayloadError;
use crate::key::KeyError;
use crate::record::TermsError;
use crate::store;

/// The value of an effect, from this call or an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer<T> {
    /// The value that the effect returned, in this call or an earlier one.
    pub value: T,
    /// True if it came from an earlier call. Computed for each answer and never stored.
    pub replayed: bool,
    /// True if later callers will get it too. False only if the store did not accept the outcome for the length of a
    /// lease although the effect happened. Unless a later try of the background thread succeeds, the key then ends in
    /// doubt in `marked` and is taken over in other modes.
    pub stored: bool,
}

/// Any error: the error type of an effect, unless [`Once::error`](super::Once::error) chooses another. Every error that
/// `?` turns into a `Box<dyn Error + Send + Sync>` becomes one, texts included.
///
/// It does not implement [`std::error::Error`], because it could not be made from every error then.
pub struct AnyError(Box<dyn std::error::Error + Send + Sync>);

impl AnyError {
    /// The error, if it is an `E`.
    #[must_use]
    pub fn downcast_ref<E: std::error::Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }

    /// The error itself.
    #[must_use]
    pub fn into_inner(self) -> Box<dyn std::error::Error + Send + Sync> {
        self.0
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for AnyError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl fmt::Debug for AnyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for AnyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How an effect failed. The effect must choose, because the engine treats the two cases very differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<E = AnyError> {
    /// Nothing happened. The key is free, and the next call runs the effect again.
    Failed(E),
    /// The result is unknown: for example a timeout after the request was sent, or a lost connection. In doubt in
    /// `marked`, taken over in `keyed` and `rerun`.
    Unknown(E),
}

/// Classifies the failure of an effect: `call().await.failed()?` or `.unknown()?`.
pub trait FailureExt<T, E> {
    /// An error here means that nothing happened.
    ///
    /// # Errors
    /// The error, as [`Failure::Failed`].
    fn failed<F: From<E>>(self) -> Result<T, Failure<F>>;

    /// An error here means that the result is unknown.
    ///
    /// # Errors
    /// The error, as [`Failure::Unknown`].
    fn unknown<F: From<E>>(self) -> Result<T, Failure<F>>;
}

impl<T, E> FailureExt<T, E> for Result<T, E> {
    fn failed<F: From<E>>(self) -> Result<T, Failure<F>> {
        self.map_err(|error| Failure::Failed(error.into()))
    }

    fn unknown<F: From<E>>(self) -> Result<T, Failure<F>> {
        self.map_err(|error| Failure::Unknown(error.into()))
    }
}

/// What an effect returns: a `Result` whose error is a [`Failure`].
///
/// A trait only so that the compiler can explain what to write instead. It has one implementation.
#[diagnostic::on_unimplemented(
    message = "an effect returns a `Result`, not `{Self}`",
    label = "return `Ok(..)`, or use `run_infallible` for an effect that cannot fail"
)]
pub trait EffectResult<E> {
    /// The value of a successful effect.
    type Value;

    /// The same result, by its plain type.
    ///
    /// # Errors
    /// The effect's own failure.
    fn into_result(self) -> Result<Self::Value, Failure<E>>;
}

impl<T, X, E: FailureOf<X>> EffectResult<E> for Result<T, X> {
    type Value = T;

    fn into_result(self) -> Result<T, Failure<E>> {
        self.map_err(E::failure_of)
    }
}

/// Says that `X` is a classified error. As [`EffectResult`], it exists for its message and has one implementation.
#[diagnostic::on_unimplemented(
    message = "the effect's error `{X}` does not say whether the effect happened",
    label = "call `.failed()` (nothing happened) or `.unknown()` (it may have happened) on the result",
    note = "both are methods of `semel::FailureExt`; for an error type of your own, call `.error::<YourError>()` before"
)]
pub trait FailureOf<X>: Sized {
    /// The failure itself.
    fn failure_of(error: X) -> Failure<Self>;
}

impl<E> FailureOf<Failure<E>> for E {
    fn failure_of(failure: Failure<E>) -> Failure<E> {
        failure
    }
}

/// Why a run has no answer. `E` is the effect's own error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError<E = AnyError> {
    /// The effect failed and nothing happened. Call again to run it again.
    #[error("the effect failed, and nothing happened: {0}")]
    Failed(E),
    /// The effect failed, and it is unknown whether it happened.
    #[error("the effect failed, and it is unknown whether it happened: {0}")]
    Unknown(E),
    /// The effect panicked. It is unknown how far it got.
    #[error("the effect panicked: {0}")]
    Panicked(String),
    /// The effect reached `in_flight_max` and was stopped. It is unknown how far it got.
    #[error("the effect did not end within in_flight_max ({0:?}) and was stopped")]
    TimedOut(Duration),
    /// The key was used with another payload before.
    #[error("this key was used with another payload: use a new key for a new request")]
    Conflict,
    /// Another caller is running the effect.
    #[error("another call with this key is in flight: try again with the same key in {retry_after:?}")]
    InFlight {
        /// When to retry.
        retry_after: Duration,
    },
    /// An earlier call began, and its result is unknown.
    #[error(
        "it is unknown whether an earlier call with this key took effect: settle the key before you retry"
    )]
    InDoubt,
    /// The retention of the outcome has passed.
    #[error("this key was used before and its outcome has expired: use a new key for a new request")]
    Expired,
    /// The effect happened and its outcome was not stored.
    #[error("the effect happened, but its outcome was not stored: {0}")]
    NotKept(String),
    /// The limit on waiting callers is reached.
    #[error("too many callers wait: try again with the same key in {retry_after:?}")]
    TooManyWaiters {
        /// When to retry.
        retry_after: Duration,
    },
    /// The key is invalid.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The payload cannot be fingerprinted.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The durations of this call are inconsistent.
    #[error(transparent)]
    Terms(#[from] TermsError),
    /// The store failed; the effect did not run.
    #[error("the store failed: {0}")]
    Store(#[from] store::Error),
    /// The stored outcome cannot be decoded as the requested type.
    #[error("the stored outcome cannot be decoded as the requested type: {0}")]
    Decode(#[from] OutcomeDecodeError),
    /// `Mode::Atomic` was requested for an effect that runs outside the store's transaction.
    #[error(
        "mode atomic needs run_in, which gives the effect the store's own transaction; for other effects choose marked, keyed or rerun"
    )]
    NotInTransaction,
    /// A transaction was requested for a store that is not the engine's own.
    #[error(
        "run_in needs the store that the engine was built over: give Engine::builder(store.clone()) and run_in(&store) the same Arc"
    )]
    OtherStore,
    /// The effect must run as a task, and there is no runtime.
    #[error("run needs a tokio runtime to run the effect on: call it inside one, or use run_blocking")]
    NoRuntime,
    /// The runtime was shut down while the effect ran. The key is in the same state as after a crash.
    #[error("the runtime was shut down while the effect ran")]
    ShutDown,
}

impl<E> RunError<E> {
    /// True if the same call with the same key may succeed later without a repair.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Failed(_) | Self::InFlight { .. } | Self::TooManyWaiters { .. } | Self::ShutDown => true,
            Self::Store(error) => error.is_retryable(),
            _ => false,
        }
    }
}

/// Why a stored outcome cannot be decoded. Names the position, never the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its JSON does not fit at line {line}, column {column}")]
pub struct OutcomeDecodeError {
    line: usize,
    column: usize,
}

impl From<serde_json::Error> for OutcomeDecodeError {
    /// Drops the message: it quotes the value.
    fn from(error: serde_json::Error) -> Self {
        Self { line: error.line(), column: error.column() }
    }
}
