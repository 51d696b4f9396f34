//! One call of one effect: what is asked, under which terms, and how it is run.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::acquire::{Acquired, Ask};
use super::answer::{Answer, Failure, RunError};
use super::event::{Event, Subject};
use super::hold::{Attempt, Claim, Completed, NotBegun, Running};
use super::{Engine, Inner};
use crate::fingerprint::{Payload, PayloadError};
use crate::key::Key;
use crate::outcome::{Body, Outcome};
use crate::record::{Begin, Mode, Terms, TermsError};

/// The kind of outcomes that hold a value as JSON.
const JSON: &str = "json";

/// A call that is about to be made once. Made by [`Engine::once`].
#[derive(Debug)]
#[must_use = "nothing runs until run, run_blocking or claim is called"]
pub struct Once {
    inner: Arc<Inner>,
    key: Key,
    payload: Result<Payload, PayloadError>,
    terms: Terms,
    begin: Begin,
    wait: Duration,
}

impl Once {
    pub(super) fn new(engine: &Engine, key: Key) -> Self {
        let inner = Arc::clone(&engine.inner);
        let (terms, wait) = (inner.terms, inner.wait);
        Self { inner, key, payload: Ok(Payload::none()), terms, begin: Begin::WithClaim, wait }
    }

    /// Compares payloads: the same key with another `request` is a conflict. The request is compared as JSON:
    /// member order does not matter, values do.
    pub fn fingerprint(mut self, request: &(impl Serialize + ?Sized)) -> Self {
        self.payload = Payload::of(request);
        self
    }

    /// The same, for a payload that was digested already: exact bytes, or JSON with exclusions.
    pub fn payload(mut self, payload: Payload) -> Self {
        self.payload = Ok(payload);
        self
    }

    /// How the effect behaves when its owner is lost; see [`Mode`].
    pub fn mode(mut self, mode: Mode) -> Self {
        self.terms.mode = mode;
        self
    }

    /// All terms at once, instead of the engine's.
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// How long to keep the outcome, instead of the engine's `retention`.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.terms.retention = retention;
        self
    }

    /// How long to wait for somebody else's effect, instead of the engine's `wait`. Zero refuses at once.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sends the begin-mark as a step of its own, for effects that start long after the claim. Only [`claim`]
    /// makes use of it.
    ///
    /// [`claim`]: Self::claim
    pub fn begin_later(mut self) -> Self {
        self.begin = Begin::Later;
        self
    }

    /// Claims the key and leaves the rest to the caller: for surfaces that begin, stream and complete by
    /// themselves. Effects that are plain functions are better served by [`run`](Self::run).
    ///
    /// Cancel-safe: a claim that is won while nobody listens is released.
    ///
    /// # Errors
    /// A key, payload or terms that cannot be used, or a store that fails.
    pub async fn claim(mut self) -> Result<Acquired, RunError<std::convert::Infallible>> {
        let ask = self.ask().await?;
        Ok(self.inner.acquire(&ask).await?)
    }

    /// Runs `effect` if nobody has, and answers with its value, or with the value of whoever ran it.
    ///
    /// The effect runs in a task of its own: a caller that is dropped changes nothing, the effect and its record
    /// finish, and the next call gets the outcome. It is stopped at `in_flight_max`.
    ///
    /// # Errors
    /// See [`RunError`]. The effect names its own errors [`Failure::Failed`] or [`Failure::Unknown`].
    pub async fn run<T, E, F, Fut>(mut self, effect: F) -> Result<Answer<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, Failure<E>>> + Send + 'static,
    {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| RunError::NoRuntime)?;
        let ask = self.ask().await?;
        let running = match self.begin(&ask).await? {
            Begun::Run(running) => running,
            Begun::Answer(outcome) => return decode(&outcome),
        };
        let inner = Arc::clone(&self.inner);
        let task = runtime.spawn(async move {
            let limit = running.limit();
            let attempt = running.attempt();
            let ended = tokio::select! {
                biased;
                ended = CatchUnwind(Box::pin(async move { effect(attempt).await })) => ended,
                () = inner.background.sleep_until(limit) => Ended::TimedOut,
            };
            inner.conclude(running, ended, &ask).await
        });
        task.await.unwrap_or(Err(RunError::ShutDown))
    }

    /// [`run`](Self::run) for callers that block. The effect runs on the calling thread, so it cannot be dropped
    /// midway, nor stopped at `in_flight_max`.
    ///
    /// It may be called anywhere, but inside an async task it blocks that task's thread.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_blocking<T, E, F>(mut self, effect: F) -> Result<Answer<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(Attempt) -> Result<T, Failure<E>>,
    {
        let background = Arc::clone(&self.inner);
        let background = &background.background;
        let ask = background.block_on(self.ask())?;
        let running = match background.block_on(self.begin(&ask))? {
            Begun::Run(running) => running,
            Begun::Answer(outcome) => return decode(&outcome),
        };
        let attempt = running.attempt();
        let ended = match std::panic::catch_unwind(AssertUnwindSafe(|| effect(attempt))) {
            Ok(returned) => Ended::Returned(returned),
            Err(panic) => Ended::Panicked(panic_message(panic.as_ref())),
        };
        background.block_on(self.inner.conclude(running, ended, &ask))
    }

    async fn ask<E>(&mut self) -> Result<Ask, RunError<E>> {
        self.terms.check()?;
        if self.wait > self.terms.in_flight_max {
            let (wait, in_flight_max) = (self.wait, self.terms.in_flight_max);
            return Err(TermsError::WaitAboveInFlight { wait, in_flight_max }.into());
        }
        self.key.check()?;
        let payload = std::mem::replace(&mut self.payload, Ok(Payload::none()))?;
        let secret = self.inner.secret().await?;
        let subject = Subject {
            namespace: self.key.namespace().into_owned(),
            id: self.key.id(&secret)?,
            hint: self.key.hint(),
        };
        Ok(Ask {
            subject: Arc::new(subject),
            fingerprint: payload.fingerprint(&secret),
            terms: Arc::new(self.terms),
            begin: self.begin,
            wait: self.wait,
            secret,
        })
    }

    /// Claims until there is a claim whose effect may start, or an outcome.
    async fn begin<E>(&self, ask: &Ask) -> Result<Begun, RunError<E>> {
        loop {
            let claim: Claim = match self.inner.acquire(ask).await? {
                Acquired::Won(claim) => claim,
                other => return other.outcome().map(Begun::Answer),
            };
            match claim.begin().await {
                Ok(running) => return Ok(Begun::Run(running)),
                // The machine stood still for about a lease; somebody else may have it by now.
                Err(NotBegun::Lost) => {}
                Err(NotBegun::Store(error)) => return Err(error.into()),
            }
        }
    }
}

enum Begun {
    Run(Running),
    Answer(Arc<Outcome>),
}

/// How an effect ended.
enum Ended<T, E> {
    Returned(Result<T, Failure<E>>),
    Panicked(String),
    TimedOut,
}

impl Acquired {
    /// The outcome of what was not won, or why there is none.
    fn outcome<E>(self) -> Result<Arc<Outcome>, RunError<E>> {
        match self {
            Self::Replay(outcome) => Ok(outcome),
            Self::Conflict => Err(RunError::Conflict),
            Self::InFlight { retry_after } => Err(RunError::InFlight { retry_after }),
            Self::InDoubt => Err(RunError::InDoubt),
            Self::Expired => Err(RunError::Expired),
            Self::TooManyWaiters { retry_after } => Err(RunError::TooManyWaiters { retry_after }),
            // Dropped here, and so released.
            Self::Won(_) => Err(RunError::InFlight { retry_after: Duration::ZERO }),
        }
    }
}

impl Inner {
    /// Writes down how the effect ended, and makes the caller's answer of it.
    async fn conclude<T, E>(
        self: &Arc<Self>,
        running: Running,
        ended: Ended<T, E>,
        ask: &Ask,
    ) -> Result<Answer<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned,
    {
        let value = match ended {
            Ended::Returned(Ok(value)) => value,
            Ended::Returned(Err(Failure::Failed(error))) => {
                running.release().await;
                return Err(RunError::Failed(error));
            }
            Ended::Returned(Err(Failure::Unknown(error))) => {
                running.abandon().await;
                return Err(RunError::Unknown(error));
            }
            Ended::Panicked(message) => {
                self.events.emit(&ask.subject, &Event::Panicked);
                running.abandon().await;
                return Err(RunError::Panicked(message));
            }
            Ended::TimedOut => {
                self.events.emit(&ask.subject, &Event::TimedOut);
                running.abandon().await;
                return Err(RunError::TimedOut(ask.terms.in_flight_max));
            }
        };
        let outcome = Arc::new(self.encode(&value));
        if matches!(outcome.body(), Body::Tombstone(_)) {
            self.events.emit(&ask.subject, &Event::NotKept);
        }
        match running.complete(&outcome, None).await {
            Completed::Kept => Ok(Answer { value, replayed: false, stored: true }),
            Completed::NotStored(_) => Ok(Answer { value, replayed: false, stored: false }),
            Completed::Superseded(winner) => decode(&winner),
            Completed::Lost => decode(&*self.follow(ask).await?.outcome()?),
        }
    }

    /// The value as an outcome; a tombstone where it cannot be kept, for the effect happened all the same.
    fn encode<T: Serialize>(&self, value: &T) -> Outcome {
        match serde_json::to_vec(value) {
            Ok(body) if body.len() <= self.max_outcome => Outcome::new(JSON, body),
            Ok(body) => Outcome::tombstone(
                JSON,
                format!("{} bytes are more than the limit of {} (max_outcome)", body.len(), self.max_outcome),
            ),
            Err(error) => Outcome::tombstone(JSON, format!("it cannot be written as JSON: {error}")),
        }
    }
}

fn decode<T: DeserializeOwned, E>(outcome: &Outcome) -> Result<Answer<T>, RunError<E>> {
    match outcome.body() {
        Body::Kept(body) => {
            let value = serde_json::from_slice(body).map_err(RunError::Decode)?;
            Ok(Answer { value, replayed: true, stored: true })
        }
        Body::Tombstone(reason) => Err(RunError::NotKept(reason.clone())),
    }
}

/// Polls an effect and turns its panic into an ending, so that a panic is recorded like any other.
struct CatchUnwind<T, E>(Pin<Box<dyn Future<Output = Result<T, Failure<E>>> + Send>>);

impl<T, E> Future for CatchUnwind<T, E> {
    type Output = Ended<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(returned)) => Poll::Ready(Ended::Returned(returned)),
            Err(panic) => Poll::Ready(Ended::Panicked(panic_message(panic.as_ref()))),
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
