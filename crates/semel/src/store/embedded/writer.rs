//! The one thread that writes. It takes everything that waits, executes it in one transaction through the
//! rules, syncs once, and only then answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::oneshot;

use super::checkpoint::{Load, Log};
use super::clock::StepWatch;
use super::fault::{self, Damage, Fault, Faults};
use super::folder::Folder;
use super::queue::{Queue, Refused, Taken};
use super::schema;
use super::table::{self, RowError, Written};
use crate::key::KeyId;
use crate::record::{self, Command, Fence, Ruling};
use crate::store::Error;
use crate::store::local::Local;
use crate::time::{Clock, Timestamp};

/// What the writer and the callers both see.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) queue: Queue<Job>,
    pub(super) local: Local,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) faults: Faults,
    /// Set by the first failed sync, never taken back.
    pub(super) poison: OnceLock<Fault>,
    /// Commits that reached the disk, for tests and curious people.
    pub(super) commits: AtomicU64,
}

impl Shared {
    pub(super) fn check_poison(&self) -> Result<(), Error> {
        match self.poison.get() {
            Some(fault) => Err(fault.clone().into()),
            None => Ok(()),
        }
    }

    /// Says what a row error means to a caller.
    pub(super) fn explain(&self, error: &RowError) -> Error {
        self.faults.explain_row(error).into()
    }

    fn submit(&self, job: Job) -> Result<(), Error> {
        self.check_poison()?;
        self.queue.push(job).map_err(|refused| {
            match refused {
                Refused::Overloaded(waiting) => self.faults.overloaded(waiting),
                Refused::Closed => self.faults.closed(),
            }
            .into()
        })
    }

    /// Has one command executed and synced. Cancel-safe: a dropped call may or may not have been executed.
    pub(super) async fn command(&self, id: KeyId, command: Command) -> Result<Ruling, Error> {
        let (answer, answered) = oneshot::channel();
        self.submit(Job::Command(Box::new(Ordered { id, command, answer })))?;
        answered.await.unwrap_or_else(|_| Err(self.faults.closed().into()))
    }

    /// Runs `work` on the writer, inside its transaction, and answers once that is on disk. What `work`
    /// changed is undone when it fails or panics; others in the same batch do not notice.
    pub(super) async fn write<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut Writing<'_>) -> Result<T, Error> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.submit(Job::Work(Box::new(move |writing| {
            let result = work(writing);
            let keep = if result.is_ok() { Keep::Yes } else { Keep::No };
            let tell = Box::new(move |fate: Result<(), Error>| {
                // A job's own failure is the truth whatever became of the others: it was undone. And whoever
                // asked may be gone.
                let _ = answer.send(result.and_then(|value| fate.map(|()| value)));
            });
            (keep, tell)
        })))?;
        answered.await.unwrap_or_else(|_| {
            self.check_poison()?;
            Err(self.faults.dropped().into())
        })
    }
}

/// Something for the writer to do.
pub(super) enum Job {
    Command(Box<Ordered>),
    Work(Work),
}

/// A command with somebody who waits for its ruling.
#[derive(Debug)]
pub(super) struct Ordered {
    id: KeyId,
    command: Command,
    answer: oneshot::Sender<Result<Ruling, Error>>,
}

type Work = Box<dyn FnOnce(&mut Writing<'_>) -> (Keep, Tell) + Send>;
type Tell = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// Whether what a job wrote shall stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Yes,
    No,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Command(ordered) => f.debug_tuple("Command").field(&ordered.id).finish(),
            Self::Work(_) => f.write_str("Work"),
        }
    }
}

/// What a job sees of the writer: its open transaction, its time, its fence floor.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    transaction: &'a Transaction<'a>,
    shared: &'a Shared,
    floor: Fence,
    /// To be told to waiters and caches once it is on disk.
    changes: Vec<(KeyId, Command, Ruling)>,
}

impl<'a> Writing<'a> {
    /// The open transaction. Beginning, committing or rolling back is the writer's business.
    pub(crate) fn transaction(&self) -> &'a Transaction<'a> {
        self.transaction
    }

    /// The store's time.
    pub(crate) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Raises the floor, in this transaction: before rows go, so that a fence never goes back.
    pub(super) fn raise_floor(&mut self, floor: Fence) -> Result<(), RowError> {
        if floor > self.floor {
            table::write_floor(self.transaction, floor)?;
            self.floor = floor;
        }
        Ok(())
    }

    /// Executes a command on a record, inside the job's transaction.
    pub(crate) fn apply(&mut self, id: KeyId, command: Command) -> Result<Ruling, Error> {
        let (ruling, _) =
            self.execute(id, &command).map_err(|trouble| self.shared.explain(&trouble.into()))?;
        self.changes.push((id, command, ruling.clone()));
        Ok(ruling)
    }

    /// What a row error means to a caller.
    pub(super) fn explain(&self, error: &RowError) -> Error {
        self.shared.explain(error)
    }

    fn execute(&self, id: KeyId, command: &Command) -> Result<(Ruling, Written), Trouble> {
        let before = table::get_stored(self.transaction, id).map_err(Trouble::Read)?;
        let mut record = before.as_ref().map(|stored| stored.record.clone());
        // Read after the record: it must not be judged by a time before the change it holds.
        let ruling = record::apply(&mut record, command, self.now(), self.floor);
        let written = match (&ruling, &record) {
            (Ruling::Won(_) | Ruling::Accepted { .. }, Some(record)) => {
                table::put(self.transaction, id, before.as_ref(), record).map_err(Trouble::Write)?
            }
            _ => Written::No,
        };
        Ok((ruling, written))
    }
}

/// Where a command failed.
enum Trouble {
    /// Nothing was written yet.
    Read(RowError),
    /// Some of it may be in the transaction, which must not be kept.
    Write(rusqlite::Error),
}

impl From<Trouble> for RowError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Read(error) => error,
            Trouble::Write(error) => Self::Sql(error),
        }
    }
}

/// The most jobs in one transaction: far more than a sync's worth, and the wait of the first one is bounded.
const BATCH: usize = 512;

/// The thread's own state.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) connection: Connection,
    pub(super) floor: Fence,
    pub(super) steps: StepWatch,
    pub(super) log: Log,
    /// Dropped last: nobody else gets in before the connection is closed.
    pub(super) _folder: Folder,
}

/// A job that was executed and waits for the commit.
enum Pending {
    Command(Box<Ordered>, Result<Ruling, Error>, Written),
    Work(Tell),
}

/// Why a batch could not be committed.
struct Abort {
    fault: Fault,
    damage: Damage,
}

impl Writer {
    /// Works until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let mut batch = Vec::new();
        while self.shared.queue.take(&mut batch, BATCH) == Taken::Jobs {
            self.steps.look(&self.shared.clock);
            self.commit(&mut batch);
            self.checkpoint();
        }
        self.close();
    }

    /// Executes the batch in one transaction. Where that found no room, every job gets a transaction of its
    /// own, so that only those without room are refused.
    fn commit(&mut self, batch: &mut Vec<Job>) {
        let mut pending = Vec::with_capacity(batch.len());
        let mut rest = std::mem::take(batch).into_iter();
        match self.try_commit(&mut rest, &mut pending) {
            Ok(changes) => {
                // Everything is durable: tell waiters and caches first, then whoever asked.
                for (id, command, ruling) in &changes {
                    self.shared.local.announce(*id, command, ruling);
                }
                for job in &pending {
                    if let Pending::Command(ordered, Ok(ruling), _) = job {
                        self.shared.local.announce(ordered.id, &ordered.command, ruling);
                    }
                }
                pending.into_iter().for_each(Pending::tell);
            }
            Err(Abort { fault, damage: Damage::Unknown }) => {
                tracing::error!(%fault, "the embedded store acknowledges nothing any more");
                let fault = self.shared.poison.get_or_init(|| fault).clone();
                for job in pending {
                    job.refuse(&fault, Damage::Unknown);
                }
                rest.for_each(|job| job.refuse(&fault));
            }
            Err(Abort { fault, damage: Damage::None }) => {
                let alone = pending.len() + rest.len() == 1;
                let mut again = Vec::new();
                for job in pending {
                    match job {
                        Pending::Command(ordered, _, _) if !alone => again.push(Job::Command(ordered)),
                        job => job.refuse(&fault, Damage::None),
                    }
                }
                if alone {
                    rest.for_each(|job| job.refuse(&fault));
                } else {
                    again.extend(rest);
                    for job in again {
                        self.commit(&mut vec![job]);
                    }
                }
            }
        }
        // The allocation is used again.
        batch.clear();
    }

    fn try_commit(
        &mut self,
        jobs: &mut std::vec::IntoIter<Job>,
        pending: &mut Vec<Pending>,
    ) -> Result<Vec<(KeyId, Command, Ruling)>, Abort> {
        let shared = Arc::clone(&self.shared);
        if let Some(fault) = shared.poison.get() {
            return Err(Abort { fault: fault.clone(), damage: Damage::Unknown });
        }
        let before_commit = |error: &rusqlite::Error| match fault::damage_before_commit(error) {
            Damage::None => Abort { fault: shared.faults.explain(error), damage: Damage::None },
            Damage::Unknown => Abort { fault: shared.faults.poisoned(error), damage: Damage::Unknown },
        };
        let transaction = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)
            .map_err(|error| before_commit(&error))?;
        let mut writing =
            Writing { transaction: &transaction, shared: &shared, floor: self.floor, changes: Vec::new() };
        let mut failed = None;
        for job in jobs.by_ref() {
            let (executed, error) = writing.run(job);
            pending.push(executed);
            if error.is_some() {
                failed = error;
                break;
            }
        }
        let Writing { floor, changes, .. } = writing;
        if let Some(error) = failed {
            let abort = before_commit(&error);
            return Err(rolled_back(transaction, &shared, abort));
        }
        // Nothing changed: nothing is written and nothing synced.
        if let Err(error) = transaction.commit() {
            let abort = match fault::damage_of_commit(&error) {
                Damage::None => Abort { fault: shared.faults.explain(&error), damage: Damage::None },
                Damage::Unknown => Abort { fault: shared.faults.poisoned(&error), damage: Damage::Unknown },
            };
            return Err(if self.connection.is_autocommit() { abort } else { stuck(&shared, &error) });
        }
        shared.commits.fetch_add(1, Ordering::Relaxed);
        self.floor = floor;
        Ok(changes)
    }

    fn checkpoint(&mut self) {
        let load = if self.shared.queue.len() == 0 { Load::Idle } else { Load::Busy };
        if let Err(error) = self.log.tend(&self.connection, load) {
            if fault::failed_sync(&error) {
                let fault = self.shared.faults.poisoned(&error);
                tracing::error!(%fault, "the embedded store acknowledges nothing any more");
                // The first one stands.
                let _ = self.shared.poison.set(fault);
            } else {
                tracing::warn!(%error, "the log could not be moved into the database; it grows until it can");
            }
        }
    }

    fn close(self) {
        if self.shared.poison.get().is_some() {
            // What is in the log may not be what it seems: the next open looks at it afresh.
            let _ = schema::leave_on_close(&self.connection);
        }
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(%error, "the database could not be closed tidily; nothing acknowledged is lost");
        }
    }
}

/// Ends a transaction that must leave nothing behind.
fn rolled_back(transaction: Transaction<'_>, shared: &Shared, abort: Abort) -> Abort {
    // Some failures end the transaction by themselves.
    if transaction.is_autocommit() {
        return abort;
    }
    match transaction.rollback() {
        Ok(()) => abort,
        Err(error) => stuck(shared, &error),
    }
}

/// A transaction that can neither be committed nor rolled back.
fn stuck(shared: &Shared, error: &rusqlite::Error) -> Abort {
    Abort { fault: shared.faults.poisoned(error), damage: Damage::Unknown }
}

impl Writing<'_> {
    /// Executes one job. A failed write ends the batch; a row that cannot be read concerns only the command
    /// that met it.
    fn run(&mut self, job: Job) -> (Pending, Option<rusqlite::Error>) {
        match job {
            Job::Command(ordered) => match self.execute(ordered.id, &ordered.command) {
                Ok((ruling, written)) => (Pending::Command(ordered, Ok(ruling), written), None),
                Err(Trouble::Read(error)) => {
                    let told = Err(self.shared.explain(&error));
                    (Pending::Command(ordered, told, Written::No), None)
                }
                Err(Trouble::Write(error)) => {
                    let told = Err(self.shared.faults.explain(&error).into());
                    (Pending::Command(ordered, told, Written::No), Some(error))
                }
            },
            Job::Work(work) => self.run_work(work),
        }
    }

    fn run_work(&mut self, work: Work) -> (Pending, Option<rusqlite::Error>) {
        let changes = self.changes.len();
        let floor = self.floor;
        let nobody: fn() -> Tell = || Box::new(|_| ());
        if let Err(error) = self.transaction.execute_batch("SAVEPOINT job") {
            // It holds its own answer: dropping it says that it was not run.
            drop(work);
            return (Pending::Work(nobody()), Some(error));
        }
        let (keep, tell) = match catch_unwind(AssertUnwindSafe(|| work(self))) {
            Ok(done) => done,
            Err(_) => {
                tracing::error!("a job of the embedded store's writer panicked; what it wrote is undone");
                (Keep::No, nobody())
            }
        };
        let end = match keep {
            Keep::Yes => "RELEASE job",
            Keep::No => "ROLLBACK TO job; RELEASE job",
        };
        if keep == Keep::No {
            self.changes.truncate(changes);
            self.floor = floor;
        }
        // It fails where the job's failure took the whole transaction with it.
        (Pending::Work(tell), self.transaction.execute_batch(end).err())
    }
}

impl Pending {
    fn tell(self) {
        match self {
            // Whoever asked may be gone; the command stands all the same.
            Self::Command(ordered, ruling, _) => drop(ordered.answer.send(ruling)),
            Self::Work(tell) => tell(Ok(())),
        }
    }

    fn refuse(self, fault: &Fault, damage: Damage) {
        match (self, damage) {
            (Self::Command(ordered, _, Written::Yes), Damage::Unknown) => {
                drop(ordered.answer.send(Err(fault.ambiguous())));
            }
            (Self::Command(ordered, ..), _) => drop(ordered.answer.send(Err(fault.clone().into()))),
            (Self::Work(tell), Damage::Unknown) => tell(Err(fault.ambiguous())),
            (Self::Work(tell), Damage::None) => tell(Err(fault.clone().into())),
        }
    }
}

impl Job {
    fn refuse(self, fault: &Fault) {
        match self {
            Self::Command(ordered) => drop(ordered.answer.send(Err(fault.clone().into()))),
            // It holds its own answer: dropping it says that it was not run.
            Self::Work(work) => drop(work),
        }
    }
}
