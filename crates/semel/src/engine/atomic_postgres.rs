//! Effects that commit together with their outcome, in a PostgreSQL transaction of the caller's. Exactly one effect,
//! never in doubt.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{PgConnection, Postgres, Transaction};

use super::Inner;
use super::acquire::{Acquired, Ask};
use super::answer::{Answer, Failure, RunError};
use super::background::Held;
use super::event::{Event, ReplayedFrom};
use super::execute::{decode, panic_message};
use super::hold::Attempt;
use super::once::Once;
use crate::record::{Begin, Claim, Command, Mode, Owner, Ruling, Win};
use crate::store::{self, ErrorKind, PostgresStore, Store, Veil, Wraps};
use crate::time::instant;

impl Once {
    /// Runs `effect` inside the caller's own transaction: what it writes there and its outcome are committed together
    /// when the caller commits, or neither is. The mode is [`Mode::Atomic`], whatever the engine's is.
    ///
    /// The claim itself is committed first, so that duplicates know of it and wait in their own process. Then the record
    /// is held by the transaction, behind a savepoint; `effect` runs; and the outcome is written. Whoever is refused
    /// there, and a failure of `effect`, are rolled back to the savepoint: a later commit carries nothing of the effect.
    ///
    /// Nothing is stored before the caller commits. Where the caller rolls back instead, or the future is dropped, the
    /// claim is given back as soon as the transaction has ended: this process looks after it, in growing pauses of at most
    /// 128 ms. The next call then runs the effect. If the process dies meanwhile, the claim ends with its lease.
    ///
    /// While the transaction is open nobody takes the record over, also after its lease: others are told that it is in
    /// flight, after the time they chose to wait.
    ///
    /// # Errors
    /// As [`run`](Self::run). [`RunError::OtherStore`] where `store` is not the engine's own. A store error where the
    /// transaction is not READ COMMITTED and cannot see the claim.
    pub async fn run_in_transaction<T, E, F>(
        self,
        store: &impl Wraps<PostgresStore>,
        transaction: &mut Transaction<'_, Postgres>,
        effect: F,
    ) -> Result<Answer<T>, RunError<E>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: AsyncFnOnce(&mut PgConnection, &Attempt) -> Result<T, Failure<E>>,
    {
        let inner = Arc::clone(&self.inner);
        let (outside, store, veil) = (store.outside(), store.inside(), store.veil());
        if !std::ptr::addr_eq(Arc::as_ptr(&inner.store), std::ptr::from_ref(outside)) {
            return Err(RunError::OtherStore);
        }
        let ask = self.mode(Mode::Atomic).ask().await?;
        let (win, sent) = match claim(&inner, outside, &ask).await? {
            Asked::Won(win, sent) => (win, sent),
            Asked::Other(acquired) => {
                inner.say(&ask, &acquired);
                return decode(&*acquired.outcome()?);
            }
        };
        // However this ends, and also where this future is dropped: a claim of which nothing came is given back.
        let _parting = store.parting(ask.subject.id, win.grant, win.lease_left);
        let began = instant();
        inner.events.emit(&ask.subject, &Event::Won { attempt: win.attempt });
        let connection: &mut PgConnection = transaction;
        let held = Arc::new(Held::new(sent, win.lease_left));
        let attempt = Attempt::new(&win, &ask.subject, &ask.secret, &held);
        match inside(&inner, (store, &veil), connection, (&ask, &win, &attempt), effect).await {
            Ok(value) => {
                let took = instant().saturating_duration_since(began);
                inner.events.emit(&ask.subject, &Event::Completed { took });
                Ok(Answer { value, replayed: false, stored: true })
            }
            Err(error) => {
                // The record is no longer held, and nothing of the effect is left: the next may try.
                if store.apply(ask.subject.id, Command::Release(win.grant)).await.is_ok() {
                    inner.events.emit(&ask.subject, &Event::Released);
                }
                Err(error)
            }
        }
    }
}

/// Holds the record, runs the effect and writes its outcome; or leaves the transaction as it was.
async fn inside<T, E, F>(
    inner: &Inner,
    (store, veil): (&PostgresStore, &Veil),
    connection: &mut PgConnection,
    (ask, win, attempt): (&Ask, &Win, &Attempt),
    effect: F,
) -> Result<T, RunError<E>>
where
    T: Serialize,
    F: AsyncFnOnce(&mut PgConnection, &Attempt) -> Result<T, Failure<E>>,
{
    let id = ask.subject.id;
    say(store, connection, "SAVEPOINT semel").await?;
    let ran: Result<T, RunError<E>> = async {
        // Repeatable, and so the word that holds the record: whoever lost it is told here, before the effect.
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
        let value = match returned {
            Ok(Ok(value)) => value,
            Ok(Err(Failure::Failed(error))) => return Err(RunError::Failed(error)),
            Ok(Err(Failure::Unknown(error))) => return Err(RunError::Unknown(error)),
            Err(panic) => return Err(RunError::Panicked(panic_message(panic.as_ref()))),
        };
        let outcome = Arc::new(inner.encode(&value));
        let complete =
            Command::Complete { grant: win.grant, fingerprint: ask.fingerprint, outcome, retention: None };
        match store.apply_in(connection, id, &veil.cover(id, complete)).await? {
            Some(Ruling::Accepted { .. }) => Ok(value),
            _ => Err(taken().into()),
        }
    }
    .await;
    match ran {
        Ok(value) => {
            say(store, connection, "RELEASE SAVEPOINT semel").await?;
            Ok(value)
        }
        Err(error) => {
            // Where even that fails the transaction is broken, and cannot be committed.
            say(store, connection, "ROLLBACK TO SAVEPOINT semel; RELEASE SAVEPOINT semel").await?;
            Err(error)
        }
    }
}

async fn say(
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

/// What a claim ended in.
enum Asked {
    Won(Win, std::time::Instant),
    Other(Acquired),
}

/// Claims and commits; waits while somebody else holds it. There are no heartbeats: the transaction holds the record.
async fn claim(inner: &Arc<Inner>, store: &dyn Store, ask: &Ask) -> Result<Asked, store::Error> {
    let deadline = instant() + ask.wait;
    let mut changes = None;
    let claim = Claim {
        owner: Owner::random(),
        fingerprint: ask.fingerprint,
        terms: Arc::clone(&ask.terms),
        begin: Begin::WithClaim,
        hint: ask.subject.hint.clone(),
    };
    loop {
        let sent = instant();
        let acquired = match store.apply(ask.subject.id, Command::Claim(claim.clone())).await? {
            Ruling::Won(win) => return Ok(Asked::Won(win, sent)),
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
        return Ok(Asked::Other(acquired));
    }
}
