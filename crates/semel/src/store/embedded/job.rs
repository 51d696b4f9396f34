//! The jobs of the writer, how one is executed, and how its answer is held back until it is on disk.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::Transaction;
use tokio::sync::oneshot;

use super::fault::{BatchFault, Damage};
use super::table::{self, RowError, Written};
use super::writer::WriterShared;
use crate::key::KeyId;
use crate::record::{self, Command, Fence, Ruling};
use crate::store::transfer::apply_closed;
use crate::store::{Error, Snapshot};
use crate::time::Timestamp;

/// A job for the writer.
pub(super) enum Job {
    Command(Box<Ordered>),
    Work(Box<dyn TransactionWork>),
}

/// A command and the channel for its ruling.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) id: KeyId,
    pub(super) command: Command,
    pub(super) answer: oneshot::Sender<Result<Ruling, Error>>,
}

/// The caller's own work inside the transaction.
pub(super) trait TransactionWork: Send {
    /// Runs it, and holds the answer back until the result of the transaction is known.
    fn run(self: Box<Self>, writing: &mut WriteTransaction<'_>) -> (Keep, Tell);

    /// Answers that it was not done.
    fn refuse(self: Box<Self>, fault: &BatchFault);
}

pub(super) type Tell = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// A closure and the channel for its result.
pub(super) struct ClosureJob<F, T> {
    pub(super) work: F,
    pub(super) answer: oneshot::Sender<Result<T, Error>>,
}

impl<F, T> TransactionWork for ClosureJob<F, T>
where
    F: FnOnce(&mut WriteTransaction<'_>) -> Result<T, Error> + Send,
    T: Send + 'static,
{
    fn run(self: Box<Self>, writing: &mut WriteTransaction<'_>) -> (Keep, Tell) {
        let Self { work, answer } = *self;
        let result = catch_unwind(AssertUnwindSafe(|| work(writing))).unwrap_or_else(|_| {
            tracing::error!("a job of the embedded store's writer panicked; what it wrote is undone");
            Err(writing.shared.faults.panicked().into())
        });
        let keep = if result.is_ok() { Keep::Yes } else { Keep::No };
        let tell = move |fate: Result<(), Error>| {
            // A job's own failure is valid regardless of the other jobs: it was rolled back. The caller may have been
            // dropped.
            let _ = answer.send(result.and_then(|value| fate.map(|()| value)));
        };
        (keep, Box::new(tell))
    }

    fn refuse(self: Box<Self>, fault: &BatchFault) {
        // The caller may have been dropped.
        let _ = self.answer.send(Err(fault.clone().into()));
    }
}

/// Whether the writes of a job are committed.
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

/// The writer's state that a job sees: its open transaction, its time, its fence floor.
#[derive(Debug)]
pub(crate) struct WriteTransaction<'a> {
    pub(super) transaction: &'a Transaction<'a>,
    pub(super) shared: &'a WriterShared,
    pub(super) floor: Fence,
    /// Announced to waiters and caches once it is on disk.
    pub(super) changes: Vec<(KeyId, Command, Ruling)>,
}

impl<'a> WriteTransaction<'a> {
    /// The open transaction. Only the writer begins, commits or rolls back.
    pub(crate) fn transaction(&self) -> &'a Transaction<'a> {
        self.transaction
    }

    /// The store's time.
    pub(crate) fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Raises the floor in this transaction, before rows are removed, so that a fence never goes back.
    pub(super) fn raise_floor(&mut self, floor: Fence) -> Result<(), RowError> {
        if floor > self.floor {
            table::write_floor(self.transaction, floor)?;
            self.floor = floor;
        }
        Ok(())
    }

    /// Executes a command on a record, inside the job's transaction.
    pub(crate) fn apply(&mut self, id: KeyId, command: Command) -> Result<Ruling, Error> {
        if let Some(refusal) = self.shared.transfer.refusal(&command, &self.shared.name) {
            let found = table::get(self.transaction, id).map_err(|error| self.explain(&error))?;
            let found = found.map(|record| Snapshot { id, record, now: self.now() });
            return apply_closed(found, &command, refusal);
        }
        let (ruling, _) =
            self.execute(id, &command).map_err(|trouble| self.shared.explain(&trouble.into()))?;
        self.changes.push((id, command, ruling.clone()));
        Ok(ruling)
    }

    /// Translates a row error for a caller.
    pub(super) fn explain(&self, error: &RowError) -> Error {
        self.shared.explain(error)
    }

    fn execute(&self, id: KeyId, command: &Command) -> Result<(Ruling, Written), CommandFailure> {
        let before = table::get_stored(self.transaction, id).map_err(CommandFailure::Read)?;
        let mut record = before.as_ref().map(|stored| stored.record.clone());
        // Read after the record: it must not be judged at a time before its last change.
        let ruling = record::apply(&mut record, command, self.now(), self.floor);
        let written = match (&ruling, &record) {
            (Ruling::Won(_) | Ruling::Accepted { .. }, Some(record)) => {
                table::put(self.transaction, id, before.as_ref(), record).map_err(CommandFailure::Write)?
            }
            _ => Written::No,
        };
        Ok((ruling, written))
    }
}

/// When a command failed.
enum CommandFailure {
    /// Before any write.
    Read(RowError),
    /// The transaction may contain a part of it and must be rolled back.
    Write(rusqlite::Error),
}

impl From<CommandFailure> for RowError {
    fn from(trouble: CommandFailure) -> Self {
        match trouble {
            CommandFailure::Read(error) => error,
            CommandFailure::Write(error) => Self::Sql(error),
        }
    }
}

/// An executed job that waits for the commit.
pub(super) enum PendingCommit {
    Command(Box<Ordered>, Result<Ruling, Error>, Written),
    Work(Tell),
}

impl WriteTransaction<'_> {
    /// Executes one job. A failed write ends the batch; a row that cannot be read affects only its own command.
    pub(super) fn run(&mut self, job: Job) -> (PendingCommit, Option<rusqlite::Error>) {
        match job {
            Job::Command(ordered) => match self.execute(ordered.id, &ordered.command) {
                Ok((ruling, written)) => (PendingCommit::Command(ordered, Ok(ruling), written), None),
                Err(CommandFailure::Read(error)) => {
                    let told = Err(self.shared.explain(&error));
                    (PendingCommit::Command(ordered, told, Written::No), None)
                }
                Err(CommandFailure::Write(error)) => {
                    let told = Err(self.shared.faults.explain(&error).into());
                    (PendingCommit::Command(ordered, told, Written::No), Some(error))
                }
            },
            Job::Work(work) => self.run_work(work),
        }
    }

    fn run_work(&mut self, work: Box<dyn TransactionWork>) -> (PendingCommit, Option<rusqlite::Error>) {
        let (changes, floor) = (self.changes.len(), self.floor);
        if let Err(error) = self.transaction.execute_batch("SAVEPOINT job") {
            work.refuse(&self.shared.faults.explain(&error));
            return (PendingCommit::Work(Box::new(|_| ())), Some(error));
        }
        let (keep, tell) = work.run(self);
        let end = match keep {
            Keep::Yes => "RELEASE job",
            Keep::No => "ROLLBACK TO job; RELEASE job",
        };
        if keep == Keep::No {
            self.changes.truncate(changes);
            self.floor = floor;
        }
        // Fails if the job's failure ended the whole transaction.
        (PendingCommit::Work(tell), self.transaction.execute_batch(end).err())
    }
}

impl PendingCommit {
    pub(super) fn notify(self) {
        match self {
            // The caller may have been dropped; the command is valid anyway.
            Self::Command(ordered, ruling, _) => drop(ordered.answer.send(ruling)),
            Self::Work(tell) => tell(Ok(())),
        }
    }

    pub(super) fn refuse(self, fault: &BatchFault, damage: Damage) {
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
    pub(super) fn refuse(self, fault: &BatchFault) {
        match self {
            Self::Command(ordered) => drop(ordered.answer.send(Err(fault.clone().into()))),
            Self::Work(work) => work.refuse(fault),
        }
    }
}
