//! One call of one effect: its key, its payload, its terms, and how it runs.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::acquire::{Acquired, Ask};
use super::answer::{Answer, AnyError, EffectResult, RunError};
use super::event::Subject;
use super::execute::{ClaimEnd, EffectEnd, decode, panic_message, stopped};
use super::hold::{Attempt, NotBegun};
use super::{Engine, EngineInner};
use crate::fingerprint::{Payload, PayloadError};
use crate::key::{Key, Origin};
use crate::mutant::{self, Mutant};
use crate::record::{Begin, Mode, Terms, TermsError};

/// How often an effect is claimed again because its lease could have expired before the start. Once can happen when a
/// machine paused. More means that the store is slower than the lease.
const STARTS: usize = 3;

/// A call that must happen once. Created by [`Engine::once`].
#[derive(Debug)]
#[must_use = "nothing runs until one of the run methods or claim is called"]
pub struct Once<E = AnyError> {
    pub(super) inner: Arc<EngineInner>,
    key: Key,
    payload: Result<Payload, PayloadError>,
    terms: Arc<Terms>,
    begin: Begin,
    wait: Duration,
    request_id: Option<Box<str>>,
    origin: Option<Origin>,
    error: PhantomData<fn() -> E>,
}

impl Once {
    pub(super) fn new(engine: &Engine, key: Key) -> Self {
        let inner = Arc::clone(&engine.inner);
        let (terms, wait) = (Arc::clone(&inner.terms), inner.wait);
        let (payload, begin) = (Ok(Payload::none()), Begin::WithClaim);
        let (request_id, origin) = (None, None);
        Self { inner, key, payload, terms, begin, wait, request_id, origin, error: PhantomData }
    }
}

impl<E> Once<E> {
    /// Chooses the error type of the effect, instead of [`AnyError`]. [`RunError`] then contains it as it is.
    pub fn error<X>(self) -> Once<X> {
        let Self { inner, key, payload, terms, begin, wait, request_id, origin, error: _ } = self;
        Once { inner, key, payload, terms, begin, wait, request_id, origin, error: PhantomData }
    }

    /// Compares payloads: the same key with another `request` is a conflict. The request is compared as JSON: the
    /// order of members is ignored, their values are not.
    pub fn fingerprint(mut self, request: &(impl Serialize + ?Sized)) -> Self {
        self.payload = Payload::of(request);
        self
    }

    /// As [`fingerprint`](Self::fingerprint), for a payload that is already hashed: exact bytes, or JSON with
    /// exclusions.
    pub fn payload(mut self, payload: Payload) -> Self {
        self.payload = Ok(payload);
        self
    }

    /// How the effect behaves when its owner is lost; see [`Mode`].
    pub fn mode(mut self, mode: Mode) -> Self {
        Arc::make_mut(&mut self.terms).mode = mode;
        self
    }

    /// Sets all terms, instead of the engine's. Records store them; shared terms take no space.
    pub fn terms(mut self, terms: impl Into<Arc<Terms>>) -> Self {
        self.terms = terms.into();
        self
    }

    /// How long to store the outcome, instead of the engine's `retention`.
    pub fn retention(mut self, retention: Duration) -> Self {
        Arc::make_mut(&mut self.terms).retention = retention;
        self
    }

    /// How long to wait for another caller's effect, instead of the engine's `wait`. Zero refuses immediately.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// The id of the caller's request. The record of its claim can later be found by it: see
    /// [`Owner::is_of_request`](crate::record::Owner::is_of_request). It has no other effect.
    pub fn request_id(mut self, id: &str) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// The request that the effect belongs to. Its record shows it, so that a person can recognise a key in doubt. It has no
    /// other effect.
    pub fn origin(mut self, origin: Origin) -> Self {
        self.origin = Some(origin);
        self
    }

    /// Sends the begin mark as a separate step, for effects that start long after the claim. Only [`claim`] uses it.
    ///
    /// [`claim`]: Self::claim
    pub fn begin_later(mut self) -> Self {
        self.begin = Begin::Later;
        self
    }

    /// Claims the key and leaves the rest to the caller: for surfaces that begin, stream and complete themselves. For
    /// an effect that is a plain function use [`run`](Self::run).
    ///
    /// Cancel-safe: a claim that is won after its caller was dropped is released.
    ///
    /// # Errors
    /// The key, the payload or the terms are invalid, or the store failed.
    pub async fn claim(mut self) -> Result<Acquired, RunError<Infallible>> {
        let ask = self.ask().await?;
        Ok(self.inner.acquire(&ask).await?)
    }

    /// Runs `effect` if it has not run, and answers with its value, or with the value of the call that ran it.
    ///
    /// The effect runs in its own task. If the caller is dropped, the effect still completes, and the next call gets
    /// the outcome. The effect is stopped at `in_flight_max`. The variants:
    /// - [`run_with`](Self::run_with) tells the effect about its attempt: derived keys, the fence, the time left.
    /// - [`run_infallible`](Self::run_infallible) is for an effect that cannot fail.
    /// - [`run_inline`](Self::run_inline) is for an effect that borrows.
    /// - [`run_blocking`](Self::run_blocking) is for callers without a runtime.
    ///
    /// # Errors
    /// See [`RunError`]. The effect classifies its own errors with [`failed`](super::FailureExt::failed) or
    /// [`unknown`](super::FailureExt::unknown).
    pub async fn run<R, F, Fut>(self, effect: F) -> Result<Answer<R::Value>, RunError<E>>
    where
        R: EffectResult<E>,
        R::Value: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = R> + Send + 'static,
    {
        self.run_with(|_| effect()).await
    }

    /// [`run`](Self::run) for an effect that cannot fail. It can still panic or reach `in_flight_max`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_infallible<T, F, Fut>(self, effect: F) -> Result<Answer<T>, RunError<Infallible>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = T> + Send + 'static,
    {
        self.error().run_with(|_| async { Ok(effect().await) }).await
    }

    /// [`run`](Self::run) for an effect that uses its [`Attempt`], for example to derive the key of a downstream
    /// call.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_with<R, F, Fut>(mut self, effect: F) -> Result<Answer<R::Value>, RunError<E>>
    where
        R: EffectResult<E>,
        R::Value: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
        F: FnOnce(Attempt) -> Fut + Send + 'static,
        Fut: Future<Output = R> + Send + 'static,
    {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| RunError::NoRuntime)?;
        self.refuse_atomic()?;
        let ask = Arc::new(self.ask().await?);
        let mut effect = effect;
        for _ in 0..STARTS {
            let claim = match self.inner.acquire(&ask).await? {
                Acquired::Won(claim) => claim,
                other => return decode(&*other.outcome()?),
            };
            let (inner, of_task) = (Arc::clone(&self.inner), Arc::clone(&ask));
            let task = async move { inner.try_run(claim, effect, &of_task).await };
            let ended = match mutant::is(Mutant::EffectTiedToCaller) {
                false => runtime.spawn(task).await,
                true => Ok(Box::pin(task).await),
            };
            effect = match ended {
                Ok(ClaimEnd::Ended(answer)) => return answer,
                Ok(ClaimEnd::NotStarted(effect)) => effect,
                Err(error) => return Err(stopped(error)),
            };
        }
        Err(self.inner.too_slow(&ask))
    }

    /// [`run_with`](Self::run_with) for an effect that borrows from the caller: it runs in the caller's own task.
    ///
    /// If the caller is dropped while the effect runs, the effect stops where it is. The key is then in the same
    /// state as after a crash: in doubt in `marked`, taken over in `keyed` and `rerun`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_inline<R, F, Fut>(mut self, effect: F) -> Result<Answer<R::Value>, RunError<E>>
    where
        R: EffectResult<E>,
        R::Value: Serialize + DeserializeOwned,
        F: FnOnce(Attempt) -> Fut,
        Fut: Future<Output = R>,
    {
        self.refuse_atomic()?;
        let ask = self.ask().await?;
        let mut effect = effect;
        for _ in 0..STARTS {
            let claim = match self.inner.acquire(&ask).await? {
                Acquired::Won(claim) => claim,
                other => return decode(&*other.outcome()?),
            };
            effect = match self.inner.try_run(claim, effect, &ask).await {
                ClaimEnd::Ended(answer) => return answer,
                ClaimEnd::NotStarted(effect) => effect,
            };
        }
        Err(self.inner.too_slow(&ask))
    }

    /// [`run_with`](Self::run_with) for callers that block. The effect runs on the calling thread, so it can neither be
    /// dropped nor stopped at `in_flight_max`.
    ///
    /// It may be called anywhere, but inside an async task it blocks that task's thread.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_blocking<R, F>(mut self, effect: F) -> Result<Answer<R::Value>, RunError<E>>
    where
        R: EffectResult<E>,
        R::Value: Serialize + DeserializeOwned,
        F: FnOnce(Attempt) -> R,
    {
        self.refuse_atomic()?;
        let inner = Arc::clone(&self.inner);
        let block_on = &inner.background;
        let ask = block_on.block_on(self.ask())?;
        for _ in 0..STARTS {
            let claim = match block_on.block_on(inner.acquire(&ask))? {
                Acquired::Won(claim) => claim,
                other => return decode(&*other.outcome()?),
            };
            let running = match block_on.block_on(claim.begin()) {
                Ok(running) => running,
                Err(NotBegun::Lost) => continue,
                Err(NotBegun::Store(error)) => return Err(error.into()),
            };
            let attempt = running.attempt();
            let ended = match std::panic::catch_unwind(AssertUnwindSafe(|| effect(attempt))) {
                Ok(returned) => EffectEnd::Returned(returned.into_result()),
                Err(panic) => EffectEnd::Panicked(panic_message(panic.as_ref())),
            };
            return block_on.block_on(inner.conclude(running, ended, &ask));
        }
        Err(inner.too_slow(&ask))
    }

    /// An effect outside the store's transaction cannot commit with it.
    fn refuse_atomic(&self) -> Result<(), RunError<E>> {
        if self.terms.mode == Mode::Atomic { Err(RunError::NotInTransaction) } else { Ok(()) }
    }

    pub(super) async fn ask<X>(&mut self) -> Result<Ask, RunError<X>> {
        self.terms.check()?;
        if self.wait > self.terms.in_flight_max {
            let (wait, in_flight_max) = (self.wait, self.terms.in_flight_max);
            return Err(TermsError::WaitAboveInFlight { wait, in_flight_max }.into());
        }
        self.key.check()?;
        let payload = std::mem::replace(&mut self.payload, Ok(Payload::none()))?;
        let secret = self.inner.secret().await?;
        let hint = self.key.hint();
        let subject = Subject {
            namespace: self.key.namespace().into_owned(),
            id: self.key.id_unchecked(&secret),
            hint: match self.origin.take() {
                Some(origin) => hint.with_origin(origin),
                None => hint,
            },
        };
        Ok(Ask {
            subject: Arc::new(subject),
            scope: self.key.take_scope(),
            fingerprint: payload.fingerprint(&secret),
            terms: Arc::clone(&self.terms),
            begin: self.begin,
            wait: self.wait,
            secret,
            request_id: self.request_id.take(),
        })
    }
}
