//! Effects that commit together with their outcome: one transaction of the embedded store contains the caller's rows
//! and the record. The effect happens exactly once and is never in doubt.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rusqlite::Transaction;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::EngineInner;
use super::acquire::{Acquired, Ask};
use super::answer::{Answer, EffectResult, Failure, RunError};
use super::background::Held;
use super::event::{Event, ReplayedFrom};
use super::execute::{decode, panic_message};
use super::hold::Attempt;
use super::once::Once;
use crate::record::{Begin, Command, Mode, NewClaim, Owner, Ruling};
use crate::store::{self, EmbeddedStore, ErrorKind, OutcomeTransform, Wraps, WriteTransaction};
use crate::sync::Mutex;
use crate::time::instant;

impl<E> Once<E> {
    /// Runs `effect` inside a transaction of the embedded store, on its writer thread. Its writes and its outcome are
    /// committed together, or not at all. The mode is always [`Mode::Atomic`], regardless of the engine's mode.
    ///
    /// Keep it short and free of I/O: every other write waits for it. It must not begin, commit or roll back. The
    /// caller's rows are in the caller's own tables, in the same file.
    ///
    /// A dropped caller changes nothing: a transaction that the writer has received is executed completely or not at
    /// all.
    ///
    /// # Errors
    /// As [`run`](Self::run). A failure of either kind and a panic leave nothing behind, so the next call runs the
    /// effect again. [`RunError::OtherStore`] if `store` is not the engine's own store; if the store is wrapped, pass
    /// the wrapper to both.
    pub async fn run_in<R, F>(
        self,
        store: &impl Wraps<EmbeddedStore>,
        effect: F,
    ) -> Result<Answer<R::Value>, RunError<E>>
    where
        R: EffectResult<E>,
        R::Value: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
        F: FnOnce(&Transaction<'_>, &Attempt) -> R + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let (outside, store, transform) = (store.outside(), store.inside(), store.transform());
        if !std::ptr::addr_eq(Arc::as_ptr(&inner.store), std::ptr::from_ref(outside)) {
            return Err(RunError::OtherStore);
        }
        let ask = Arc::new(self.mode(Mode::Atomic).ask().await?);
        let effect = Arc::new(Mutex::new(Some(effect)));
        let deadline = instant() + ask.wait;
        // Only a claim of another mode can be in the way: the writer runs transactions one after the other.
        let mut changes = outside.watch(ask.subject.id);
        loop {
            let acquired = match transact(&inner, (store, &transform), &ask, &effect).await? {
                TransactionEnd::Own(value, _) => return Ok(Answer { value, replayed: false, stored: true }),
                TransactionEnd::Other(acquired) => acquired,
            };
            if !matches!(acquired, Acquired::InFlight { .. }) || instant() >= deadline {
                inner.emit_refusal(&ask, &acquired);
                return decode(&*acquired.outcome()?);
            }
            tokio::select! {
                biased;
                () = changes.changed() => {}
                () = inner.background.sleep_until(deadline.min(instant() + inner.backstop)) => {}
            }
        }
    }

    /// [`run_in`](Self::run_in) for callers that block.
    ///
    /// # Errors
    /// As [`run_in`](Self::run_in).
    pub fn run_in_blocking<R, F>(
        self,
        store: &impl Wraps<EmbeddedStore>,
        effect: F,
    ) -> Result<Answer<R::Value>, RunError<E>>
    where
        R: EffectResult<E>,
        R::Value: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
        F: FnOnce(&Transaction<'_>, &Attempt) -> R + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        inner.background.block_on(self.run_in(store, effect))
    }
}

/// How one transaction ended.
enum TransactionEnd<T> {
    Own(T, u32),
    Other(Acquired),
}

/// Claims, runs and completes in one transaction. `effect` is taken only if the claim is won.
async fn transact<R, E, F>(
    inner: &Arc<EngineInner>,
    (store, transform): (&EmbeddedStore, &OutcomeTransform),
    ask: &Arc<Ask>,
    effect: &Arc<Mutex<Option<F>>>,
) -> Result<TransactionEnd<R::Value>, RunError<E>>
where
    R: EffectResult<E>,
    R::Value: Serialize + Send + 'static,
    E: Send + 'static,
    F: FnOnce(&Transaction<'_>, &Attempt) -> R + Send + 'static,
{
    // How the effect failed. It is returned beside the job's own result, which only says that the job must be rolled
    // back.
    let failed: Arc<Mutex<Option<RunError<E>>>> = Arc::default();
    let job = AtomicJob { inner: Arc::clone(inner), ask: Arc::clone(ask), transform: transform.clone() };
    let (effect, of_job) = (Arc::clone(effect), Arc::clone(&failed));
    let began = instant();
    let ran = store.write(move |writing| job.run(writing, &effect, &of_job)).await;
    if let Some(failure) = failed.lock().take() {
        inner.events.emit(&ask.subject, &Event::Released);
        return Err(failure);
    }
    let ran = ran?;
    match &ran {
        TransactionEnd::Own(_, attempt) => {
            inner.events.emit(&ask.subject, &Event::Won { attempt: *attempt });
            let took = instant().saturating_duration_since(began);
            inner.events.emit(&ask.subject, &Event::Completed { took });
        }
        TransactionEnd::Other(Acquired::Replay(_)) => {
            inner.events.emit(&ask.subject, &Event::Replayed { from: ReplayedFrom::Store });
        }
        TransactionEnd::Other(_) => {}
    }
    Ok(ran)
}

struct AtomicJob {
    inner: Arc<EngineInner>,
    ask: Arc<Ask>,
    transform: OutcomeTransform,
}

impl AtomicJob {
    fn run<R, E, F>(
        self,
        writing: &mut WriteTransaction<'_>,
        effect: &Mutex<Option<F>>,
        failed: &Mutex<Option<RunError<E>>>,
    ) -> Result<TransactionEnd<R::Value>, store::Error>
    where
        R: EffectResult<E>,
        R::Value: Serialize,
        F: FnOnce(&Transaction<'_>, &Attempt) -> R,
    {
        let Self { inner, ask, transform } = self;
        let (id, fingerprint) = (ask.subject.id, ask.fingerprint);
        let claim = NewClaim {
            owner: Owner::random(),
            fingerprint,
            terms: Arc::clone(&ask.terms),
            begin: Begin::WithClaim,
            hint: ask.subject.hint.clone(),
        };
        let sent = instant();
        let win = match transform.open_ruling(id, writing.apply(id, Command::Claim(claim))?)? {
            Ruling::Won(win) => win,
            Ruling::Replay { outcome, .. } => return Ok(TransactionEnd::Other(Acquired::Replay(outcome))),
            Ruling::Busy { lease_left } => {
                return Ok(TransactionEnd::Other(Acquired::in_flight(&ask, lease_left)));
            }
            Ruling::Conflict => return Ok(TransactionEnd::Other(Acquired::Conflict)),
            Ruling::InDoubt => return Ok(TransactionEnd::Other(Acquired::InDoubt)),
            Ruling::Expired => return Ok(TransactionEnd::Other(Acquired::Expired)),
            Ruling::Accepted { .. } | Ruling::Lost { .. } | Ruling::Refused { .. } => return Err(undone()),
        };
        let Some(effect) = effect.lock().take() else { return Err(undone()) };
        let held = Arc::new(Held::new(sent, win.lease_left));
        let attempt = Attempt::new(&win, &ask.subject, &ask.secret, &held);
        let returned =
            catch_unwind(AssertUnwindSafe(|| effect(writing.transaction(), &attempt).into_result()));
        let value = match returned {
            Ok(Ok(value)) => value,
            Ok(Err(failure)) => {
                *failed.lock() = Some(match failure {
                    Failure::Failed(error) => RunError::Failed(error),
                    Failure::Unknown(error) => RunError::Unknown(error),
                });
                return Err(undone());
            }
            Err(panic) => {
                *failed.lock() = Some(RunError::Panicked(panic_message(panic.as_ref())));
                return Err(undone());
            }
        };
        let outcome = Arc::new(inner.encode(&value));
        let complete = Command::Complete { grant: win.grant, fingerprint, outcome, retention: None };
        match writing.apply(id, transform.seal_command(id, complete))? {
            Ruling::Accepted { .. } => Ok(TransactionEnd::Own(value, win.attempt)),
            // The clock moved past the retention inside the transaction: nothing of it may remain.
            _ => Err(undone()),
        }
    }
}

/// Tells the writer to roll the job back.
fn undone() -> store::Error {
    store::Error::new(ErrorKind::Unavailable, "the transaction was undone: nothing of it was kept")
}
