//! The ledger in the embedded store's own file: records and ledger commit together, nothing to install.
//!
//! Every write is a job of the store's writer, so that many calls share one sync; every read is a snapshot beside it.
//!
//! # Taking turns
//! A *lane* is a target and a tenant that have something to take. A lane is asleep until something in it is due, then
//! awake with a turn; a take from it gives it the last turn. So tenants take turns however much each has waiting,
//! and neither what is not due nor what waits behind another of its order key is ever looked at.
//!
//! # Order
//! Of the deliveries with one target and order key one is at the *front*: the one that runs, else the earliest that has
//! not ended. Only fronts can be taken; every step that can change the front looks.

mod columns;
mod database;
mod intake;
mod letter_rows;
mod order;
#[cfg(test)]
mod plans;
mod relay;
mod rows;
mod schema;
mod settle;
mod statements;
mod sweep;
mod take;
mod work;
mod writing;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use parking_lot::Mutex;
use semel::store::rusqlite;
use semel::store::{EmbeddedStore, ErrorKind};
use tokio::sync::Notify;

use self::database::now;
use self::work::{Done, Fault, Work};
use crate::ledger::sql::reading;
use crate::ledger::sql::traits::sql_ledger;
use crate::ledger::{Answer, Error, Retention};

/// Keeps the ledger in the file of an embedded store, in tables of its own beside the records.
///
/// Durable as the store is, one process at a time. Share the store with the engine: a claim, the rows of a caller and
/// what is published with them can then commit together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// use std::sync::Arc;
///
/// use semel::store::EmbeddedStore;
/// use semel_pipeline::ledger::{EmbeddedLedger, Reading as _};
///
/// let store = Arc::new(EmbeddedStore::open(folder.path().join("semel-data"))?);
/// let ledger = EmbeddedLedger::open(Arc::clone(&store)).await?;
/// assert!(ledger.totals().await?.oldest_due().is_none());
/// # Ok(())
/// # }
/// ```
pub struct EmbeddedLedger {
    store: Arc<EmbeddedStore>,
    shared: Arc<Shared>,
}

/// What calls on the writer need too.
#[derive(Debug)]
struct Shared {
    /// The last turn that a lane was given.
    turns: AtomicI64,
    /// Told when there may be something to take.
    news: Notify,
}

impl EmbeddedLedger {
    /// The ledger in this store's file; its tables are made, or brought to the present version.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`] where a newer version wrote them; what the store says.
    pub async fn open(store: Arc<EmbeddedStore>) -> Result<Self, Error> {
        let turns = store
            .transact(|transaction| match schema::migrate(transaction)? {
                Ok(()) => transaction
                    .query_row("SELECT coalesce(max(turn), 0) FROM ledger_turn", [], |row| row.get(0))
                    .map(Ok),
                Err(error) => Ok(Err(error)),
            })
            .await??;
        let shared = Shared { turns: AtomicI64::new(turns), news: Notify::new() };
        Ok(Self { store, shared: Arc::new(shared) })
    }

    /// The store whose file it is in.
    pub fn store(&self) -> &Arc<EmbeddedStore> {
        &self.store
    }

    /// Runs `work` on the writer, as one piece: kept wholly and on disk, or undone.
    async fn write<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut Work<'_>, &Shared) -> Done<T> + Send + 'static,
    {
        // The ledger's own refusals travel beside the job's result, which only says that it is to be undone.
        let told: Arc<Mutex<Option<Error>>> = Arc::default();
        let (of_job, clock, shared) = (Arc::clone(&told), self.store.clock(), Arc::clone(&self.shared));
        let kept = self.store.transact(move |transaction| {
            let mut call = Work::new(transaction, clock.now());
            let answer = match work(&mut call, &shared) {
                Ok(answer) => answer,
                Err(Fault::Sql(error)) => return Err(error),
                Err(Fault::Answer(error)) => {
                    *of_job.lock() = Some(error);
                    return Err(rusqlite::Error::QueryReturnedNoRows);
                }
            };
            Ok((answer, call.finish()?))
        });
        match kept.await {
            Ok((answer, news)) => {
                if news {
                    self.shared.news.notify_waiters();
                }
                Ok(answer)
            }
            Err(error) => Err(told.lock().take().unwrap_or(Error::Store(error))),
        }
    }

    /// Carries out shared code: reads on the caller's thread, writes on the writer.
    fn call<'a, A, T>(
        &'a self,
        shape: Shape,
        asked: A,
        work: impl for<'c, 'd> FnOnce(&'c mut Work<'d>, &'c A) -> LocalFuture<'c, Done<T>> + Send + 'static,
    ) -> Answer<'a, T>
    where
        A: Send + 'static,
        T: Send + 'static,
    {
        Box::pin(async move {
            match shape {
                Shape::Read => self.read(|db| now(work(db, &asked))),
                Shape::Statement | Shape::Transaction | Shape::TransactionOnce => {
                    self.write(move |db, _| now(work(db, &asked))).await
                }
            }
        })
    }

    /// What was written has told workers already.
    #[expect(clippy::unused_self, reason = "shared code calls it on every ledger")]
    fn wake<'a, T>(&'a self, answer: Answer<'a, T>) -> Answer<'a, T> {
        answer
    }

    /// Reads one state of the ledger, on the caller's thread.
    fn read<T>(&self, read: impl FnOnce(&mut Work<'_>) -> Done<T>) -> Result<T, Error> {
        let mut told = None;
        let now = self.store.clock().now();
        let found = self.store.read(|connection| match read(&mut Work::new(connection, now)) {
            Ok(found) => Ok(found),
            Err(Fault::Sql(error)) => Err(error),
            Err(Fault::Answer(error)) => {
                told = Some(error);
                Err(rusqlite::Error::QueryReturnedNoRows)
            }
        });
        found.map_err(|error| told.take().unwrap_or(Error::Store(error)))
    }
}

sql_ledger!(EmbeddedLedger);

impl Retention for EmbeddedLedger {
    fn sweep(&self, keep: Duration, limit: u32) -> Answer<'_, u64> {
        Box::pin(self.write(move |work, _| work.sweep(keep, limit)))
    }

    fn sweep_audit(&self, keep: Duration, limit: u32) -> Answer<'_, u64> {
        Box::pin(self.write(move |work, _| now(reading::sweep_audit(work, keep, limit))))
    }
}

/// A future that stays on its thread.
type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// How a call meets the database. Every call that writes is a transaction here.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Read,
    Statement,
    Transaction,
    TransactionOnce,
}

/// What the ledger holds contradicts itself: somebody else wrote in the file.
fn broken(what: &str) -> Fault {
    Fault::Answer(Error::Store(semel::store::Error::new(
        ErrorKind::Corrupt,
        format!("the ledger contradicts itself: {what}. Keep a copy of the folder, then restore a backup"),
    )))
}

impl fmt::Debug for EmbeddedLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedLedger").field("store", &self.store).finish_non_exhaustive()
    }
}

impl fmt::Display for EmbeddedLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}
