//! The embedded store: SQLite in its own folder. Durable, one process, nothing to install.
//!
//! ```text
//!   callers ──► queue ──► writer thread: all that waits → one transaction → one sync ──► answers
//!      └──────► readers: stored outcomes, refusals, listings; never behind a sync
//! ```
//!
//! The writer executes the rules of [`crate::record`] inside a SQLite transaction. While one batch is synced the next
//! one fills: many claims share one sync, and a single claim is not delayed. A reader answers a command that would
//! change nothing (a stored outcome, a busy key, a conflict).
//!
//! Reads run on the caller's own thread. They take microseconds, wait for no sync and no other process, and a hop to
//! another thread would cost more.

mod builder;
mod check;
mod checkpoint;
mod clock;
mod fault;
mod folder;
mod header;
mod job;
mod reader;
mod schema;
mod sweep;
mod table;
#[cfg(test)]
mod tests;
mod transfer;
mod wal;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use tokio::sync::oneshot;

pub use self::builder::{EmbeddedBuilder, OnCorruption};
pub use self::check::Verified;
pub(crate) use self::job::WriteTransaction;
use self::reader::Readers;
use self::schema::ConnectionRole;
use self::table::{RowError, fact};
pub use self::transfer::EmbeddedReader;
use self::writer::WriterShared;
use super::transfer::apply_closed;
use super::{
    BoxFuture, Durability, Error, Invalidate, MarkId, MarkStore, Page, Scan, Snapshot, Store, Swept, Watch,
};
use crate::key::KeyId;
use crate::record::{Command, Fence, Ruling};
use crate::secret::Secret;
use crate::sync::Mutex;
use crate::time::Clock;

/// Stores records on disk: acknowledged writes survive a crash of the process and of the machine.
///
/// The path is a folder, which is created if it is missing. Only one opener is allowed: a second one, in this process
/// or another, fails with [`ErrorKind::Locked`](super::ErrorKind::Locked). The lock ends with the process.
///
/// # Failures
/// - No disk space: [`ErrorKind::Full`](super::ErrorKind::Full), nothing is changed, stored outcomes are still
///   served, and the store recovers when there is space again.
/// - A failed sync: [`ErrorKind::Poisoned`](super::ErrorKind::Poisoned). Nothing is acknowledged until a restart.
/// - A damaged row: [`ErrorKind::Corrupt`](super::ErrorKind::Corrupt), never served and never treated as missing.
///
/// Dropping the store executes the waiting commands and closes the files, which can take as long as a sync.
///
/// ```
/// # fn main() -> Result<(), semel::store::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// let store = semel::store::EmbeddedStore::open(folder.path().join("semel-data"))?;
/// # Ok(())
/// # }
/// ```
pub struct EmbeddedStore {
    shared: Arc<WriterShared>,
    /// Closed before the writer's connection: the last connection to close cleans up.
    readers: Option<Readers>,
    writer: Option<JoinHandle<()>>,
    sweep_cursor: Mutex<sweep::Cursor>,
    path: PathBuf,
}

impl EmbeddedStore {
    /// Opens the store in the folder `path`, on the machine's clock.
    ///
    /// Blocks while it checks the files: do it before serving.
    ///
    /// # Errors
    /// `Locked` if it is already open, `Setup` if the folder cannot be used, `Incompatible` if it contains other data
    /// or data of a newer version, `Corrupt` if the data is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::builder(path).open()
    }

    /// Settings for a store in the folder `path`.
    pub fn builder(path: impl AsRef<Path>) -> EmbeddedBuilder {
        EmbeddedBuilder::new(path.as_ref())
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` in a transaction on the writer, for the caller's own tables beside Semel's. It is answered once it
    /// is on disk, and rolled back if it fails. For an effect that happens once, use
    /// [`Once::run_in`](crate::engine::Once::run_in).
    ///
    /// Keep it short: every write waits for it. It must not begin, commit or roll back.
    ///
    /// # Errors
    /// SQLite's error, or why the store accepts no writes.
    pub async fn transact<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    {
        self.write(|writing| work(writing.transaction()).map_err(|error| writing.explain(&error.into())))
            .await
    }

    /// Runs `work` on a read-only connection, on the caller's own thread: for the caller's own tables beside Semel's.
    /// All of `work` sees one state of the file, including everything that was acknowledged before. It waits for no
    /// sync, and no record waits for it.
    ///
    /// Keep it short: at most two such reads run concurrently. It must not begin, commit or roll back, and cannot
    /// write.
    ///
    /// # Errors
    /// SQLite's error, or why the store cannot answer.
    pub fn read<T>(
        &self,
        work: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.shared.check_poison()?;
        self.readers().of_caller(work).map_err(|error| self.explain(&error.into()))
    }

    /// The clock of this store, for callers that have their own rows beside Semel's and need the time of a write.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.shared.clock)
    }

    /// Raises a high-water mark inside a transaction of [`transact`](Self::transact), so that it commits together
    /// with what was applied: for `Receiver::receive_joined` of `semel-window`. Returns where the mark stands.
    ///
    /// # Errors
    /// SQLite's error. A damaged mark is an error too, and never treated as missing.
    pub fn raise_mark_in(
        transaction: &rusqlite::Transaction<'_>,
        mark: MarkId,
        value: u64,
    ) -> rusqlite::Result<u64> {
        raise_mark(transaction, mark, value).map_err(|error| match error {
            RowError::Sql(error) => error,
            RowError::Damaged(bad) => rusqlite::Error::FromSqlConversionFailure(
                0,
                rusqlite::types::Type::Blob,
                bad.to_string().into(),
            ),
        })
    }

    /// Runs `work` on the writer, inside its transaction, which other commands may share. It is answered once it is
    /// on disk, and rolled back if it fails. Keep it short: every write waits for it.
    pub(crate) async fn write<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut WriteTransaction<'_>) -> Result<T, Error> + Send + 'static,
    {
        self.shared.write(work).await
    }

    /// Checks the whole file: its structure, and every row against its checksum.
    ///
    /// Small files are checked whenever they are opened, and every sweep checks a few more rows. This is for a large
    /// file that may be damaged. It reads the whole file on its own thread; no command waits for it.
    ///
    /// # Errors
    /// `Corrupt`, with the first damaged place; `Setup` if no thread can be started.
    pub async fn verify(&self) -> Result<Verified, Error> {
        let (answer, answered) = oneshot::channel();
        let (shared, database) = (Arc::clone(&self.shared), self.path.join("semel.db"));
        let check = move || {
            let findings = schema::connect(&database, ConnectionRole::Reader)
                .and_then(|connection| check::everything(&connection))
                .map_err(|error| Error::from(shared.faults.explain(&error)))?;
            match findings.first(&shared.faults) {
                None => Ok(findings.verified),
                Some(fault) => Err(fault.into()),
            }
        };
        thread::Builder::new()
            .name("semel-verify".into())
            // The caller may have been dropped.
            .spawn(move || drop(answer.send(check())))
            .map_err(|error| folder::setup(&self.path, "no thread can be started for the check", error))?;
        answered.await.unwrap_or_else(|_| Err(self.shared.faults.panicked().into()))
    }

    fn readers(&self) -> &Readers {
        self.readers.as_ref().expect("the readers are there until the store is dropped")
    }

    fn explain(&self, error: &RowError) -> Error {
        self.shared.explain(error)
    }

    /// The ruling of a command that changes nothing; `None` if it would change the record.
    fn settled(&self, id: KeyId, command: &Command) -> Result<Option<Ruling>, Error> {
        self.shared.check_poison()?;
        let Some(mut record) = self.readers().get(id).map_err(|error| self.explain(&error))? else {
            return Ok(None);
        };
        // On a copy: a claim that is granted here does not count. The floor matters only to granted claims.
        Ok(match record.apply(command, self.shared.clock.now(), Fence::default()) {
            Ruling::Won(_) | Ruling::Accepted { .. } => None,
            ruling => Some(ruling),
        })
    }

    /// Checks a few more rows, so that a damaged row is found before it is needed.
    fn scrub(&self, limit: usize) -> Result<(), Error> {
        self.shared.check_poison()?;
        let bad = self.readers().scrub(limit).map_err(|error| self.shared.faults.explain(&error))?;
        for row in bad {
            tracing::error!(fault = %self.shared.faults.damaged(&row, ""), "the embedded store has a damaged row");
        }
        Ok(())
    }

    async fn sweep_steps(&self, limit: usize) -> Result<Swept, Error> {
        self.scrub(limit)?;
        let mut swept = Swept::default();
        let mut left = limit;
        while left > 0 {
            let (now_limit, cursor) = (left.min(sweep::STEP), *self.sweep_cursor.lock());
            let step = self
                .write(move |writing| {
                    sweep::step(writing, now_limit, cursor).map_err(|error| writing.explain(&error))
                })
                .await?;
            *self.sweep_cursor.lock() = step.cursor;
            swept.shrunk += step.swept.shrunk;
            swept.removed += step.swept.removed;
            swept.more = step.swept.more;
            left -= step.looked_at.min(left);
            if !step.swept.more {
                break;
            }
        }
        Ok(swept)
    }
}

impl Store for EmbeddedStore {
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
        Box::pin(async move {
            if let Command::Claim(_) = command
                && let Some(ruling) = self.settled(id, &command)?
            {
                return Ok(ruling);
            }
            if let Some(refusal) = self.shared.transfer.refusal(&command, self) {
                return apply_closed(self.get(id).await?, &command, refusal);
            }
            self.shared.command(id, command).await
        })
    }

    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        Box::pin(async move {
            self.shared.check_poison()?;
            let record = self.readers().get(id).map_err(|error| self.explain(&error))?;
            let now = self.shared.clock.now();
            Ok(record.map(|record| Snapshot { id, record, now }))
        })
    }

    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>> {
        Box::pin(async move {
            self.shared.check_poison()?;
            self.readers().page(query, &*self.shared.clock).map_err(|error| self.explain(&error))
        })
    }

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>> {
        Box::pin(self.sweep_steps(limit))
    }

    fn watch(&self, id: KeyId) -> Watch {
        self.shared.local.watch(id)
    }

    fn attach(&self, cache: Weak<dyn Invalidate>) {
        self.shared.local.attach(cache);
    }

    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>> {
        Box::pin(async move {
            self.shared.check_poison()?;
            let kept = self
                .write(move |writing| {
                    keep_secret(writing, &candidate).map_err(|error| writing.explain(&error))
                })
                .await?;
            Ok(kept)
        })
    }

    /// The pages in use, of records and of tables beside them. Pages that a sweep freed are used again and do not
    /// count; nor does the log, which has a bound of its own.
    fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(async move {
            let bytes = self.read(|connection| {
                let number =
                    |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
                Ok((number("page_count")? - number("freelist_count")?) * number("page_size")?)
            })?;
            Ok(u64::try_from(bytes).ok())
        })
    }

    fn durability(&self) -> Durability {
        Durability::Disk
    }
}

impl MarkStore for EmbeddedStore {
    fn read_mark(&self, mark: MarkId) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        Box::pin(async move {
            self.shared.check_poison()?;
            self.readers().mark(mark).map_err(|error| self.explain(&error))
        })
    }

    fn raise_mark(&self, mark: MarkId, value: u64) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(async move {
            if let Some(refusal) = self.shared.transfer.moved(self) {
                return Err(refusal);
            }
            self.write(move |writing| {
                raise_mark(writing.transaction(), mark, value).map_err(|error| writing.explain(&error))
            })
            .await
        })
    }
}

fn keep_secret(writing: &WriteTransaction<'_>, candidate: &Secret) -> Result<Secret, RowError> {
    match read_secret(writing.transaction())? {
        Some(kept) => Ok(kept),
        None => {
            table::write_meta(writing.transaction(), fact::SECRET, candidate.expose())?;
            Ok(candidate.clone())
        }
    }
}

fn read_secret(connection: &rusqlite::Connection) -> Result<Option<Secret>, RowError> {
    let Some(kept) = table::read_meta(connection, fact::SECRET)? else { return Ok(None) };
    match kept.try_into() {
        Ok(bytes) => Ok(Some(Secret::from_bytes(bytes))),
        Err(_) => Err(table::bad_fact(fact::SECRET.as_bytes(), &[], "it has not 32 bytes")),
    }
}

fn raise_mark(connection: &rusqlite::Connection, mark: MarkId, value: u64) -> Result<u64, RowError> {
    let stands = table::read_mark(connection, mark)?;
    match stands {
        Some(stands) if stands >= value => Ok(stands),
        _ => {
            table::write_mark(connection, mark, value)?;
            Ok(value)
        }
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        self.readers = None;
        self.shared.queue.close();
        let Some(writer) = self.writer.take() else { return };
        // The writer wakes tasks, and a woken task can hold the last handle to this store: it must not join itself.
        // It ends by itself either way.
        if writer.thread().id() != thread::current().id() && writer.join().is_err() {
            tracing::error!("the writer of the embedded store panicked");
        }
    }
}

impl fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl fmt::Display for EmbeddedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "embedded:{}", self.path.display())
    }
}
