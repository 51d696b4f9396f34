//! Runs an effect under a claim, stores its result, and builds the caller's answer.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::EngineInner;
use super::acquire::{Acquired, Ask};
use super::answer::{Answer, EffectResult, Failure, OutcomeDecodeError, RunError};
use super::event::{Event, ReplayedFrom};
use super::hold::{Attempt, Claim, Completed, NotBegun, Running};
use crate::outcome::{Outcome, OutcomeBody};
use crate::store::{self, ErrorKind};

/// The kind of outcomes that contain a value as JSON.
const JSON: &str = "json";

/// How an effect ended.
pub(super) enum EffectEnd<T, E> {
    Returned(Result<T, Failure<E>>),
    Panicked(String),
    TimedOut,
}

/// The result of one claim.
pub(super) enum ClaimEnd<T, E, F> {
    Ended(Result<Answer<T>, RunError<E>>),
    /// The claim was lost before the effect began. Contains the effect, for another claim.
    NotStarted(F),
}

impl EngineInner {
    /// Begins and runs the effect. The begin happens here, in the effect's own task: otherwise a runtime that is busy
    /// for a lease between claim and effect would start the effect of an expired claim.
    pub(super) async fn try_run<R, E, F, Fut>(
        self: &Arc<Self>,
        claim: Claim,
        effect: F,
        ask: &Ask,
    ) -> ClaimEnd<R::Value, E, F>
    where
        R: EffectResult<E>,
        R::Value: Serialize + DeserializeOwned,
        F: FnOnce(Attempt) -> Fut,
        Fut: Future<Output = R>,
    {
        let running = match claim.begin().await {
            Ok(running) => running,
            Err(NotBegun::Lost) => return ClaimEnd::NotStarted(effect),
            Err(NotBegun::Store(error)) => return ClaimEnd::Ended(Err(error.into())),
        };
        let limit = running.limit();
        let attempt = running.attempt();
        let ended = tokio::select! {
            biased;
            ended = CatchUnwind(Box::pin(async move { effect(attempt).await.into_result() })) => ended,
            () = self.background.sleep_until(limit) => EffectEnd::TimedOut,
        };
        ClaimEnd::Ended(self.conclude(running, ended, ask).await)
    }

    /// Stores how the effect ended and builds the caller's answer.
    pub(super) async fn conclude<T, E>(
        self: &Arc<Self>,
        running: Running,
        ended: EffectEnd<T, E>,
        ask: &Ask,
    ) -> Result<Answer<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
    {
        let value = match ended {
            EffectEnd::Returned(Ok(value)) => value,
            EffectEnd::Returned(Err(Failure::Failed(error))) => {
                running.release().await;
                return Err(RunError::Failed(error));
            }
            EffectEnd::Returned(Err(Failure::Unknown(error))) => {
                running.abandon().await;
                return Err(RunError::Unknown(error));
            }
            EffectEnd::Panicked(message) => {
                self.events.emit(&ask.subject, &Event::Panicked);
                running.abandon().await;
                return Err(RunError::Panicked(message));
            }
            EffectEnd::TimedOut => {
                self.events.emit(&ask.subject, &Event::TimedOut);
                running.abandon().await;
                return Err(RunError::TimedOut(ask.terms.in_flight_max));
            }
        };
        let outcome = Arc::new(self.encode(&value));
        if matches!(outcome.body(), OutcomeBody::Tombstone(_)) {
            self.events.emit(&ask.subject, &Event::NotKept);
        }
        match running.complete(&outcome, None).await {
            Completed::Kept => Ok(Answer { value, replayed: false, stored: true }),
            Completed::NotStored(_) => Ok(Answer { value, replayed: false, stored: false }),
            Completed::Superseded(winner) => {
                self.events.emit(&ask.subject, &Event::Replayed { from: ReplayedFrom::Store });
                decode(&winner)
            }
            Completed::Lost => decode(&*self.follow(ask).await.outcome()?),
        }
    }

    /// The value as an outcome. A tombstone if it cannot be stored, because the effect happened anyway.
    pub(super) fn encode<T: Serialize>(&self, value: &T) -> Outcome {
        // Omits the message of a serialiser that panics or fails: it may quote the value, and later callers see it.
        match std::panic::catch_unwind(AssertUnwindSafe(|| serde_json::to_vec(value))) {
            Ok(Ok(body)) if body.len() <= self.max_outcome => Outcome::new(JSON, body),
            Ok(Ok(body)) => Outcome::tombstone(
                JSON,
                format!("{} bytes are more than the limit of {} (max_outcome)", body.len(), self.max_outcome),
            ),
            Ok(Err(_)) | Err(_) => Outcome::tombstone(JSON, "it cannot be written as JSON"),
        }
    }

    /// No claim was valid long enough to start the effect.
    pub(super) fn too_slow<E>(&self, ask: &Ask) -> RunError<E> {
        let (store, lease) = (self.store.as_ref(), ask.terms.lease);
        RunError::Store(store::Error::new(
            ErrorKind::Unavailable,
            format!(
                "{store} answers too slowly for a lease of {lease:?}, so the effect was not started: lengthen the lease"
            ),
        ))
    }
}

impl Acquired {
    /// The outcome of a claim that was not won, or why there is none.
    pub(super) fn outcome<E>(self) -> Result<Arc<Outcome>, RunError<E>> {
        match self {
            Self::Replay(outcome) => Ok(outcome),
            Self::Conflict => Err(RunError::Conflict),
            Self::InFlight { retry_after } => Err(RunError::InFlight { retry_after }),
            Self::InDoubt => Err(RunError::InDoubt),
            Self::Expired => Err(RunError::Expired),
            Self::TooManyWaiters { retry_after } => Err(RunError::TooManyWaiters { retry_after }),
            // Dropped here, which releases it.
            Self::Won(_) => Err(RunError::InFlight { retry_after: Duration::ZERO }),
        }
    }
}

pub(super) fn decode<T: DeserializeOwned, E>(outcome: &Outcome) -> Result<Answer<T>, RunError<E>> {
    match outcome.body() {
        OutcomeBody::Kept(body) => {
            let value = serde_json::from_slice(body).map_err(OutcomeDecodeError::from)?;
            Ok(Answer { value, replayed: true, stored: true })
        }
        OutcomeBody::Tombstone(reason) => Err(RunError::NotKept(reason.clone())),
    }
}

/// Polls an effect and turns its panic into a result, so that a panic is recorded like any other result.
struct CatchUnwind<Fut>(Pin<Box<Fut>>);

impl<T, E, Fut: Future<Output = Result<T, Failure<E>>>> Future for CatchUnwind<Fut> {
    type Output = EffectEnd<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(returned)) => Poll::Ready(EffectEnd::Returned(returned)),
            Err(panic) => Poll::Ready(EffectEnd::Panicked(panic_message(panic.as_ref()))),
        }
    }
}

/// An effect's task did not complete: the runtime was shut down, or the effect panicked while it was stopped.
pub(super) fn stopped<E>(error: tokio::task::JoinError) -> RunError<E> {
    match error.try_into_panic() {
        Ok(panic) => RunError::Panicked(panic_message(panic.as_ref())),
        Err(_) => RunError::ShutDown,
    }
}

pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
