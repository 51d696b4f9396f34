//! The ledger in PostgreSQL: many processes, durable, every table readable in psql.
//!
//! ```text
//!   accept ──► all that waits in one statement: keys that are free, their events, their deliveries
//!   take   ──► one statement: leases that are over, fair choice, SKIP LOCKED, attempts written as started
//!   settle ──► one statement for all that ended; a transaction where letters, jobs or order keys are concerned
//! ```
//!
//! READ COMMITTED everywhere. What must happen once is guarded by a unique index (dedupe keys, what runs in a lane, the
//! messages of letters) or by the row that is updated (tokens, jobs). Times are the server's own.

mod builder;
mod database;
mod drain;
mod fault;
mod ids;
mod intake;
mod join;
mod link;
mod listen;
#[cfg(test)]
mod plans;
mod relay;
mod schema;
mod settle;
mod statements;
mod sweep;
mod take;
mod values;
mod writing;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel::key::KeyId;
use semel::store::Pooling;
use semel_postgres::{PostgresError, PostgresSettings};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub use self::builder::PostgresLedgerBuilder;
use self::database::Db;
use self::fault::Fault;
use self::link::{Shape, Shared};
use super::sql::reading;
use super::sql::traits::sql_ledger;
use super::{Answer, BoxFuture, Drained, DrainedRun, Intake, KeyState, Retention, Take, Working};
use crate::delivery::{Holding, LeaseResult, Settle, Work};
use crate::event::{Accepted, NewEvent};
use crate::id::DeliveryId;

/// Keeps the ledger in PostgreSQL: what was acknowledged survives a crash of this process and of the server, and every
/// process on the same database and schema works on it.
///
/// Its connections live in the runtime in which it was opened.
///
/// # Failures
/// - The server does not answer: [`ErrorKind::Unavailable`](super::ErrorKind::Unavailable), for the first calls after the
///   builder's `timeout`. From then on the outage is known: it is logged once, and calls fail at once until the server
///   answers again.
/// - A connection that breaks during a call: the call is repeated, which every call bears, and
///   [`ErrorKind::Ambiguous`](super::ErrorKind::Ambiguous) only where that was not possible in time.
/// - A standby, `synchronous_commit = off`, an old server, missing rights: refused with a sentence that says what to do,
///   on every new connection.
///
/// ```no_run
/// # async fn open() -> Result<(), semel::store::Error> {
/// use semel_pipeline::ledger::PostgresLedger;
///
/// let ledger = PostgresLedger::open("postgres://semel:secret@db.internal/app").await?;
/// # Ok(())
/// # }
/// ```
pub struct PostgresLedger {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

impl PostgresLedger {
    /// Connects to the database of `url`, as in `postgres://user:password@host:5432/database`, and makes or migrates the
    /// ledger's tables in the schema `semel`.
    ///
    /// # Errors
    /// As [`PostgresLedgerBuilder::open`].
    pub async fn open(url: impl AsRef<str>) -> Result<Self, semel::store::Error> {
        Self::builder(url).open().await
    }

    /// Settings for a ledger in the database of `url`.
    pub fn builder(url: impl AsRef<str>) -> PostgresLedgerBuilder {
        PostgresLedgerBuilder::new(url.as_ref())
    }

    async fn start(settings: PostgresSettings) -> Result<Self, PostgresError> {
        // Tables may have to be made, by us or by somebody we wait for: that is not the timeout of a call.
        let prepared = timeout(settings.timeout.max(OPENING), prepare(&settings)).await;
        prepared.unwrap_or_else(|_| Err(PostgresError::unreachable(&settings.target)))?;
        let pooling = settings.pooling;
        let shared = Shared::new(settings);
        let mut tasks = Vec::new();
        if pooling == Pooling::Direct {
            tasks.push(tokio::spawn(listen::listen(Arc::downgrade(&shared))));
        }
        tasks.push(tokio::spawn(listen::speak(Arc::downgrade(&shared))));
        Ok(Self { shared, tasks })
    }
}

impl PostgresLedger {
    /// Carries out `work`, as [`Shared::call`] does.
    fn call<'a, A, T>(
        &'a self,
        shape: Shape,
        asked: A,
        work: impl for<'c, 'd> Fn(&'c mut Db<'d>, &'c A) -> BoxFuture<'c, Result<T, Fault>> + Send + Sync + 'a,
    ) -> Answer<'a, T>
    where
        A: Send + Sync + 'a,
        T: Send + 'a,
    {
        Box::pin(async move { self.shared.call(shape, &asked, work).await })
    }

    /// Tells workers that there may be something to take, once the answer is there.
    fn wake<'a, T: Send + 'a>(&'a self, answer: Answer<'a, T>) -> Answer<'a, T> {
        Box::pin(async move {
            let answer = answer.await?;
            self.shared.news.tell();
            Ok(answer)
        })
    }
}

sql_ledger!(PostgresLedger);

impl Retention for PostgresLedger {
    fn sweep(&self, keep: Duration, limit: u32) -> Answer<'_, u64> {
        Box::pin(async move { sweep::sweep(&self.shared, keep, limit).await })
    }

    fn sweep_audit(&self, keep: Duration, limit: u32) -> Answer<'_, u64> {
        self.call(Shape::Statement, (keep, limit), |db, (keep, limit)| {
            Box::pin(reading::sweep_audit(db, *keep, *limit))
        })
    }
}

/// How long opening may take, where a call's timeout is shorter.
const OPENING: Duration = Duration::from_secs(15);

async fn prepare(settings: &PostgresSettings) -> Result<(), PostgresError> {
    schema::MIGRATION.apply(&mut semel_postgres::connect(settings).await?, settings).await
}

impl Intake for PostgresLedger {
    fn accept(&self, events: Vec<NewEvent>) -> Answer<'_, Vec<Accepted>> {
        Box::pin(join::accept(&self.shared, events))
    }

    fn find(&self, dedupe: KeyId) -> Answer<'_, KeyState> {
        Box::pin(intake::find(&self.shared, dedupe))
    }

    fn drain(&self, runs: Vec<DrainedRun>) -> Answer<'_, Vec<Drained>> {
        Box::pin(async move { drain::drain(&self.shared, &runs).await })
    }
}

impl Working for PostgresLedger {
    fn take(&self, take: Take) -> Answer<'_, Vec<Work>> {
        Box::pin(async move { take::take(&self.shared, &take).await })
    }

    fn retake(&self, delivery: DeliveryId, worker: String, lease: Duration) -> Answer<'_, Option<Work>> {
        Box::pin(async move { take::retake(&self.shared, delivery, &worker, lease).await })
    }

    fn renew(&self, held: Vec<Holding>, lease: Duration) -> Answer<'_, Vec<LeaseResult>> {
        Box::pin(async move { take::renew(&self.shared, &held, lease).await })
    }

    fn settle(&self, settled: Vec<(Holding, Settle)>) -> Answer<'_, Vec<LeaseResult>> {
        Box::pin(async move { settle::settle(&self.shared, &settled).await })
    }

    fn next_due(&self, targets: Vec<String>) -> Answer<'_, Option<Duration>> {
        Box::pin(async move { take::next_due(&self.shared, &targets).await })
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        let known = self.shared.news.number();
        Box::pin(self.shared.news.wait(known, self.shared.settings.pooling))
    }
}

impl Drop for PostgresLedger {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl fmt::Debug for PostgresLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLedger").field("target", &self.shared.settings.target).finish_non_exhaustive()
    }
}

impl fmt::Display for PostgresLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres://{}", self.shared.settings.address)
    }
}
