//! The only thread that writes. It takes all waiting commands, executes them in one transaction with the rules, syncs
//! once, and only then answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::oneshot;

use super::checkpoint::{Load, Log};
use super::clock::StepWatch;
use super::fault::{self, BatchFault, Damage, Faults};
use super::folder::LockedFolder;
use super::job::{ClosureJob, Job, Ordered, PendingCommit, WriteTransaction};
use super::schema;
use super::table::RowError;
use crate::batch::{BatchQueue, BatchWait, QueueRefusal};
use crate::key::KeyId;
use crate::mutant::{self, Mutant};
use crate::outage::RefusedWrites;
use crate::record::{Command, Fence, Ruling};
use crate::store::local::Local;
use crate::store::transfer::TransferWatch;
use crate::store::{Error, ErrorKind};
use crate::time::Clock;

/// The state that the writer and the callers share.
#[derive(Debug)]
pub(super) struct WriterShared {
    /// The store's name in messages.
    pub(super) name: String,
    pub(super) queue: BatchQueue<Job>,
    pub(super) local: Local,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) faults: Faults,
    pub(super) transfer: TransferWatch,
    /// Set by the first failed sync and never cleared.
    pub(super) poison: OnceLock<BatchFault>,
    /// Number of committed transactions, each with at most one sync.
    pub(super) commits: AtomicU64,
    pub(super) refused: RefusedWrites,
}

impl WriterShared {
    pub(super) fn check_poison(&self) -> Result<(), Error> {
        match self.poison.get() {
            Some(fault) => Err(fault.clone().into()),
            None => Ok(()),
        }
    }

    /// From now on nothing is acknowledged. The first fault is final.
    pub(super) fn poison(&self, fault: BatchFault) -> BatchFault {
        let fault = self.log(fault);
        let _ = self.poison.set(fault.clone());
        self.poison.get().cloned().unwrap_or(fault)
    }

    /// Logs that the disk is full or fails, once until it works again.
    fn log(&self, mut fault: BatchFault) -> BatchFault {
        if !fault.is_callers
            && matches!(fault.kind, ErrorKind::Full | ErrorKind::Unavailable | ErrorKind::Poisoned)
        {
            self.refused.refused(&fault.to_string());
            fault.is_logged = true;
        }
        fault
    }

    /// Translates a row error for a caller.
    pub(super) fn explain(&self, error: &RowError) -> Error {
        self.log(self.faults.explain_row(error)).into()
    }

    fn submit(&self, job: Job) -> Result<(), Error> {
        self.check_poison()?;
        self.queue.push(job).map_err(|refused| {
            match refused {
                QueueRefusal::Overloaded(waiting) => self.faults.overloaded(waiting),
                QueueRefusal::Closed => self.faults.closed(),
            }
            .into()
        })
    }

    /// Executes and syncs one command. Cancel-safe: a dropped call may or may not have been executed.
    pub(super) async fn command(&self, id: KeyId, command: Command) -> Result<Ruling, Error> {
        let (answer, answered) = oneshot::channel();
        self.submit(Job::Command(Box::new(Ordered { id, command, answer })))?;
        answered.await.unwrap_or_else(|_| Err(self.unanswered()))
    }

    /// Runs `work` on the writer, inside its transaction, and answers once that is on disk. If `work` fails or
    /// panics, its changes are rolled back; other jobs in the same batch are not affected.
    pub(super) async fn write<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut WriteTransaction<'_>) -> Result<T, Error> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.submit(Job::Work(Box::new(ClosureJob { work, answer })))?;
        answered.await.unwrap_or_else(|_| Err(self.unanswered()))
    }

    /// The error when no answer came: the writer ended during the command.
    fn unanswered(&self) -> Error {
        self.faults.died().into()
    }
}

/// The most jobs in one transaction: far more than a sync needs, and the wait of the first one is bounded.
const BATCH: usize = 512;

/// The thread's own state.
pub(super) struct Writer {
    pub(super) shared: Arc<WriterShared>,
    pub(super) connection: Connection,
    pub(super) floor: Fence,
    pub(super) steps: StepWatch,
    pub(super) log: Log,
    /// Dropped last: no other process gets the lock before the connection is closed.
    pub(super) _folder: LockedFolder,
}

/// Refuses commands after the writer has ended.
struct ClosedQueue(Arc<WriterShared>);

impl Drop for ClosedQueue {
    fn drop(&mut self) {
        self.0.queue.close();
        self.0.queue.clear();
    }
}

/// Why a batch could not be committed.
struct Abort {
    fault: BatchFault,
    damage: Damage,
}

impl Writer {
    /// Works until the queue is closed and empty.
    pub(super) fn run(mut self) {
        // However this thread ends, no caller waits for it forever.
        let _closing = ClosedQueue(Arc::clone(&self.shared));
        let mut batch = Vec::new();
        loop {
            match self.shared.queue.wait(&mut batch, BATCH, self.log.patience()) {
                BatchWait::Items => {
                    self.steps.look(&self.shared.clock);
                    self.commit(&mut batch);
                    self.checkpoint(Load::Busy);
                }
                BatchWait::Nothing => self.checkpoint(Load::Quiet),
                BatchWait::Ended => break,
            }
        }
        self.close();
    }

    /// Executes the batch in one transaction. If there was no space, every job gets its own transaction, so that only
    /// the jobs without space are refused.
    fn commit(&mut self, batch: &mut Vec<Job>) {
        let mut pending = Vec::with_capacity(batch.len());
        let mut rest = batch.drain(..);
        match self.try_commit(&mut rest, &mut pending) {
            Ok(changes) => {
                self.shared.refused.wrote();
                // Everything is durable: announce it to waiters and caches first, then answer the callers.
                for (id, command, ruling) in &changes {
                    self.shared.local.announce(*id, command, ruling);
                }
                for job in &pending {
                    if let PendingCommit::Command(ordered, Ok(ruling), _) = job {
                        self.shared.local.announce(ordered.id, &ordered.command, ruling);
                    }
                }
                pending.into_iter().for_each(PendingCommit::notify);
            }
            Err(Abort { fault, damage: Damage::Unknown }) => {
                let fault = self.shared.poison(fault);
                for job in pending {
                    job.refuse(&fault, Damage::Unknown);
                }
                rest.for_each(|job| job.refuse(&fault));
            }
            Err(Abort { fault, damage: Damage::None }) => {
                let fault = self.shared.log(fault);
                let alone = pending.len() + rest.len() == 1;
                let mut again = Vec::new();
                for job in pending {
                    match job {
                        PendingCommit::Command(ordered, _, _) if !alone => again.push(Job::Command(ordered)),
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
    }

    fn try_commit(
        &mut self,
        jobs: &mut std::vec::Drain<'_, Job>,
        pending: &mut Vec<PendingCommit>,
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
        let mut writing = WriteTransaction {
            transaction: &transaction,
            shared: &shared,
            floor: self.floor,
            changes: Vec::new(),
        };
        let mut failed = None;
        for job in jobs.by_ref() {
            let (executed, error) = writing.run(job);
            pending.push(executed);
            if error.is_some() {
                failed = error;
                break;
            }
        }
        let WriteTransaction { floor, changes, .. } = writing;
        if failed.is_none() && mutant::is(Mutant::AckBeforeDurable) {
            pending.drain(..).for_each(PendingCommit::notify);
        }
        if let Some(error) = failed {
            let abort = before_commit(&error);
            return Err(rolled_back(transaction, &shared, abort));
        }
        // If nothing changed, nothing is written and nothing synced.
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

    fn checkpoint(&mut self, load: Load) {
        if self.shared.poison.get().is_some() {
            return;
        }
        match self.log.tend(&self.connection, load) {
            Ok(()) => {}
            Err(error) if fault::failed_sync(&error) => {
                self.shared.poison(self.shared.faults.poisoned(&error));
            }
            Err(error) => {
                tracing::warn!(%error, "the log could not be moved into the database; it grows until it can");
            }
        }
    }

    fn close(self) {
        if self.shared.poison.get().is_some() {
            // The log may be inconsistent: the next open checks it again.
            let _ = schema::leave_on_close(&self.connection);
        }
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(%error, "the database could not be closed cleanly; nothing acknowledged is lost");
        }
    }
}

/// Rolls a transaction back.
fn rolled_back(transaction: Transaction<'_>, shared: &WriterShared, abort: Abort) -> Abort {
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
fn stuck(shared: &WriterShared, error: &rusqlite::Error) -> Abort {
    Abort { fault: shared.faults.poisoned(error), damage: Damage::Unknown }
}
