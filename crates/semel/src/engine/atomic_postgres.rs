//! Effects that commit together with their outcome in the caller's PostgreSQL transaction. The effect happens exactly
//! once and is never in doubt.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{PgConnection, Postgres, Transaction};

use super::EngineInner;
use super::acquire::{Acquired, Ask};
use super::answer::{Answer, EffectResult, Failure, RunError};
use super::background::Held;
use super::event::{Event, ReplayedFrom};
use super::execute::{decode, panic_message};
use super::hold::Attempt;
use super::once::Once;
use crate::record::{Begin, Command, Mode, NewClaim, Owner, Ruling, Win};
use crate::store::{self, ErrorKind, OutcomeTransform, PostgresStore, Store, Wraps};
use crate::time::instant;

impl<E> Once<E> {
    /// Runs `effect` inside the caller's own transaction. Its writes and its outcome are committed together when the
    /// caller commits, or not at all. The mode is always [`Mode::Atomic`], regardless of the engine's mode.
    ///
    /// The claim is committed first, so that duplicates see it and wait in their own process. Then the transaction
    /// locks the record behind a savepoint, `effect` runs, and the outcome is written. If the claim is refused or
    /// `effect` fails, the transaction is rolled back to the savepoint: a later commit contains nothing of the
    /// effect.
    ///
    /// Nothing is stored before the caller commits. If the caller rolls back or drops the future, this process gives
    /// the claim back after the transaction has ended; it checks with growing pauses of at most 128 ms. The next call
    /// then runs the effect. If the process dies first, the claim expires with its lease.
    ///
    /// While the transaction is open, no other caller takes the record over, even after its lease has expired. Other
    /// callers wait for the time that they chose and then learn that the effect is in progress.
    ///
    /// # Errors
    /// As [`run`](Self::run). [`RunError::OtherStore`] if `store` is not the engine's own store. A store error if the
    /// transaction is not READ COMMITTED and cannot see the claim.
    pub async fn run_in_transaction<R, F>(
        self,
        store: &impl Wraps<PostgresStore>,
        transaction: &mut Transaction<'_, Postgres>,
        effect: F,
    ) -> Result<Answer<R::Value>, RunError<E>>
    where
        R: EffectResult<E>,
        R::Value: Serialize + DeserializeOwned + Send + 'static,
        F: AsyncFnOnce(&mut PgConnection, &Attempt) -> R,
    {
        let inner = Arc::clone(&self.inner);
        let (outside, store, transform) = (store.outside(), store.inside(), store.transform());
        if !std::ptr::addr_eq(Arc::as_ptr(&inner.store), std::ptr::from_ref(outside)) {
            return Err(RunError::OtherStore);
        }
        let ask = self.mode(Mode::Atomic).ask().await?;
        let (win, sent) = match claim(&inner, outside, &ask).await? {
            ClaimResult::Won(win, sent) => (win, sent),
            ClaimResult::Other(acquired) => {
                inner.emit_refusal(&ask, &acquired);
                return decode(&*acquired.outcome()?);
            }
        };
        // Gives a claim without a result back, however this function ends, also when its future is dropped.
        let _parting = store.parting(ask.subject.id, win.grant, win.lease_left);
        let began = instant();
        inner.events.emit(&ask.subject, &Event::Won { attempt: win.attempt });
        let connection: &mut PgConnection = transaction;
        let held = Arc::new(Held::new(sent, win.lease_left));
        let attempt = Attempt::new(&win, &ask.subject, &ask.secret, &held);
        match inside(&inner, (store, &transform), connection, (&ask, &win, &attempt), effect).await {
            Ok(value) => {
                let took = instant().saturating_duration_since(began);
                inner.events.emit(&ask.subject, &Event::Completed { took });
                Ok(Answer { value, replayed: false, stored: true })
            }
            Err(error) => {
                // The transaction no longer locks the record and contains nothing of the effect, so the next call may
                // run it.
                if store.apply(ask.subject.id, Command::Release(win.grant)).await.is_ok() {
                    inner.events.emit(&ask.subject, &Event::Released);
                }
                Err(error)
            }
        }
    }
}

/// Locks the record, runs the effect and writes its outcome, or leaves the transaction unchanged.
async fn inside<R, E, F>(
    inner: &EngineInner,
    (store, transform): (&PostgresStore, &OutcomeTransform),
    connection: &mut PgConnection,
    (ask, win, attempt): (&Ask, &Win, &Attempt),
    effect: F,
) -> Result<R::Value, RunError<E>>
where
    R: EffectResult<E>,
    R::Value: Serialize,
    F: AsyncFnOnce(&mut PgConnection, &Attempt) -> R,
{
    let id = ask.subject.id;
    execute(store, connection, "SAVEPOINT semel").await?;
    let ran: Result<R::Value, RunError<E>> = async {
        // This command can be repeated, and it locks the record. A caller that lost the claim learns it here, before
        // the effect runs.
        match store.apply_in(connection, id, &Command::Begin(win.grant)).await? {
            Some(Ruling::Accepted { .. }) => {}
            None => return Err(invisible().into()),
            Some(_) => return Err(taken().into()),
        }
        let returned = {
            let mut running = pin!(effect(&mut *connection, attempt));
            poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context))) {
                Ok(poll) => poll.map(Ok),
                Err(panic) => Poll::Ready(Err(panic)),
            })
            .await
        };
        let value = match returned.map(EffectResult::into_result) {
            Ok(Ok(value)) => value,
            Ok(Err(Failure::Failed(error))) => return Err(RunError::Failed(error)),
            Ok(Err(Failure::Unknown(error))) => return Err(RunError::Unknown(error)),
            Err(panic) => return Err(RunError::Panicked(panic_message(panic.as_ref()))),
        };
        let outcome = Arc::new(inner.encode(&value));
        let complete =
            Command::Complete { grant: win.grant, fingerprint: ask.fingerprint, outcome, retention: None };
        match store.apply_in(connection, id, &transform.seal_command(id, complete)).await? {
            Some(Ruling::Accepted { .. }) => Ok(value),
            _ => Err(taken().into()),
        }
    }
    .await;
    match ran {
        Ok(value) => {
            execute(store, connection, "RELEASE SAVEPOINT semel").await?;
            Ok(value)
        }
        Err(error) => {
            // If this fails too, the transaction is broken and cannot be committed.
            execute(store, connection, "ROLLBACK TO SAVEPOINT semel; RELEASE SAVEPOINT semel").await?;
            Err(error)
        }
    }
}

async fn execute(
    store: &PostgresStore,
    connection: &mut PgConnection,
    sql: &'static str,
) -> Result<(), store::Error> {
    sqlx::raw_sql(sql).execute(connection).await.map_err(|error| store.explain(&error))?;
    Ok(())
}

fn invisible() -> store::Error {
    store::Error::new(
        ErrorKind::Setup,
        "the transaction does not see the claim: begin it as READ COMMITTED, on the database of the store",
    )
}

fn taken() -> store::Error {
    store::Error::new(
        ErrorKind::Unavailable,
        "the claim ended before the transaction held it: nothing of the effect was kept, try again",
    )
}

/// The result of a claim.
enum ClaimResult {
    Won(Win, std::time::Instant),
    Other(Acquired),
}

/// Claims and commits, and waits while another caller holds the key. There are no heartbeats: the transaction locks
/// the record.
async fn claim(inner: &Arc<EngineInner>, store: &dyn Store, ask: &Ask) -> Result<ClaimResult, store::Error> {
    let deadline = instant() + ask.wait;
    let mut changes = None;
    let claim = NewClaim {
        owner: Owner::random(),
        fingerprint: ask.fingerprint,
        terms: Arc::clone(&ask.terms),
        begin: Begin::WithClaim,
        hint: ask.subject.hint.clone(),
    };
    loop {
        let sent = instant();
        let acquired = match store.apply(ask.subject.id, Command::Claim(claim.clone())).await? {
            Ruling::Won(win) => return Ok(ClaimResult::Won(win, sent)),
            Ruling::Replay { outcome, .. } => {
                inner.events.emit(&ask.subject, &Event::Replayed { from: ReplayedFrom::Store });
                Acquired::Replay(outcome)
            }
            Ruling::Busy { lease_left } if instant() < deadline => {
                let Some(changes) = &mut changes else {
                    // Subscribe first, then look again, then wait.
                    changes = Some(store.watch(ask.subject.id));
                    continue;
                };
                let until = deadline.min(instant() + inner.backstop.min(lease_left));
                tokio::select! {
                    biased;
                    () = changes.changed() => {}
                    () = inner.background.sleep_until(until) => {}
                }
                continue;
            }
            Ruling::Busy { lease_left } => Acquired::in_flight(ask, lease_left),
            Ruling::Conflict => Acquired::Conflict,
            Ruling::InDoubt => Acquired::InDoubt,
            Ruling::Expired => Acquired::Expired,
            Ruling::Accepted { .. } | Ruling::Lost { .. } | Ruling::Refused { .. } => return Err(taken()),
        };
        return Ok(ClaimResult::Other(acquired));
    }
}
