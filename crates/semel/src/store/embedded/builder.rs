//! Settings of the embedded store, and how it is opened.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::thread;

use rusqlite::{Connection, ErrorCode};

use super::EmbeddedStore;
use super::check;
use super::checkpoint::{self, Log};
use super::clock::StepWatch;
use super::fault::Faults;
use super::folder::{LockedFolder, setup};
use super::header::{self, Shutdown};
use super::reader::Readers;
use super::schema::{self, ConnectionRole, Layout};
use super::table::{self, fact};
use super::writer::{Writer, WriterShared};
use crate::batch::BatchQueue;
use crate::outage::{RefusedWrites, Server};
use crate::store::local::Local;
use crate::store::transfer::TransferWatch;
use crate::store::{Error, ErrorKind};
use crate::time::{Clock, SystemClock, instant};

/// Settings of an [`EmbeddedStore`]. Created by [`EmbeddedStore::builder`].
#[derive(Clone, Debug)]
#[must_use = "settings open nothing until `open` is called"]
pub struct EmbeddedBuilder {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    queue_limit: usize,
    page_size: u32,
    on_corruption: OnCorruption,
    check_up_to: u64,
    log: Log,
}

/// What to do if a file has damaged rows when it is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCorruption {
    /// Do not open, and report where the damage is. Nothing is changed.
    #[default]
    Refuse,
    /// Move the damaged rows to the table `quarantine` and continue without them. Their keys are forgotten, so their
    /// effects can happen again. Damage beyond single rows is refused in any case.
    Quarantine,
}

/// Files up to this size are checked completely when they are opened, which takes a second or less.
const CHECK_UP_TO: u64 = 64 << 20;

impl EmbeddedBuilder {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            clock: Arc::new(SystemClock),
            queue_limit: 65_536,
            page_size: 4096,
            on_corruption: OnCorruption::default(),
            check_up_to: CHECK_UP_TO,
            log: Log::new(1000, 4000),
        }
    }

    /// The clock that decides leases and retention; the machine's by default.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// How many commands may wait for the disk before further ones are refused as
    /// [`ErrorKind::Unavailable`]; 65 536 by default.
    pub fn queue_limit(mut self, commands: usize) -> Self {
        self.queue_limit = commands.max(1);
        self
    }

    /// What to do about damaged rows; refuse to open by default.
    pub fn on_corruption(mut self, choice: OnCorruption) -> Self {
        self.on_corruption = choice;
        self
    }

    /// The page size of a new file.
    #[cfg(test)]
    pub(super) fn page_size(mut self, bytes: u32) -> Self {
        self.page_size = bytes;
        self
    }

    /// Up to which size a file is checked completely when it is opened.
    #[cfg(test)]
    pub(super) fn check_up_to(mut self, bytes: u64) -> Self {
        self.check_up_to = bytes;
        self
    }

    /// From how many pages on the log is checkpointed: when the writer is idle, and in any case.
    #[cfg(test)]
    pub(super) fn log_pages(mut self, soft: i64, hard: i64) -> Self {
        self.log = Log::new(soft, hard);
        self
    }

    /// Opens the store. See [`EmbeddedStore::open`].
    ///
    /// # Errors
    /// As [`EmbeddedStore::open`].
    pub fn open(self) -> Result<EmbeddedStore, Error> {
        let folder = LockedFolder::hold(&self.path)?;
        let database = folder.database();
        self.create_if_missing(&folder)?;
        let shutdown = header::check(&database, &folder.wal())?;
        if shutdown == Shutdown::Unclean {
            folder.write_log_again()?;
        }
        let faults =
            Faults::of(&database).map_err(|error| setup(&database, "the file cannot be read", error))?;
        let sql = |error: rusqlite::Error| Error::from(faults.explain_open(&error));
        let connection = schema::connect(&database, ConnectionRole::Writer).map_err(sql)?;
        self.check(&connection, &database, &faults)?;
        let floor = table::read_floor(&connection).map_err(|error| faults.explain_row(&error))?;
        let state =
            table::read_meta(&connection, fact::TRANSFER).map_err(|error| faults.explain_row(&error))?;
        // SQLite syncs the name of its log with the first commit and ignores the result; a log without a name would
        // lose every commit. Reading has created the log, so its name is synced here.
        sync_names(&folder)?;
        if shutdown == Shutdown::Unclean {
            // The next log starts with new salts, so that a torn tail is never mistaken for damage later.
            checkpoint::empty_log(&connection).map_err(sql)?;
        }
        let readers = Readers::open(&database).map_err(sql)?;
        schema::tidy_on_close(&connection).map_err(sql)?;
        let path = folder.path().to_owned();
        let shared = Arc::new(WriterShared {
            name: format!("embedded:{}", path.display()),
            queue: BatchQueue::new(self.queue_limit),
            local: Local::default(),
            clock: self.clock,
            faults,
            transfer: TransferWatch::default(),
            poison: OnceLock::new(),
            commits: AtomicU64::new(0),
            refused: RefusedWrites::new(Server::of(format!("embedded:{}", folder.path().display()), "store")),
        });
        shared.transfer.saw(state.as_deref(), instant(), &shared.name)?;
        let writer = Writer {
            shared: Arc::clone(&shared),
            connection,
            floor,
            steps: StepWatch::default(),
            log: self.log,
            _folder: folder,
        };
        let writer = thread::Builder::new()
            .name("semel-writer".into())
            .spawn(move || writer.run())
            .map_err(|error| setup(&path, "no thread can be started for the writer", error))?;
        Ok(EmbeddedStore {
            shared,
            readers: Some(readers),
            writer: Some(writer),
            sweep_cursor: crate::sync::Mutex::new(None),
            path,
        })
    }

    /// Checks every row if that takes negligible time.
    fn check(&self, connection: &Connection, database: &Path, faults: &Faults) -> Result<(), Error> {
        let size = std::fs::metadata(database).map_or(0, |found| found.len());
        if size > self.check_up_to {
            return Ok(());
        }
        let findings = check::everything(connection).map_err(|error| faults.explain_open(&error))?;
        let Some(fault) = findings.first(faults) else { return Ok(()) };
        if self.on_corruption == OnCorruption::Refuse || findings.bad.is_empty() {
            return Err(fault.into());
        }
        let after = check::quarantine(connection, &findings.bad, self.clock.now())
            .map_err(|error| faults.explain_row(&error))?;
        if let Some(fault) = after.first(faults) {
            return Err(fault.into());
        }
        for row in &findings.bad {
            tracing::error!(%row, "a damaged row was moved to the table quarantine; its effect may happen again");
        }
        Ok(())
    }

    fn create_if_missing(&self, folder: &LockedFolder) -> Result<(), Error> {
        let database = folder.database();
        let found = |path: &Path| {
            path.try_exists().map_err(|error| setup(path, "the file cannot be accessed", error))
        };
        if found(&database)? {
            // An earlier creation may have failed at its last sync: the log must not have a name before the file has
            // one.
            return sync_names(folder);
        }
        if found(&folder.wal())? {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{} is missing but its log is there: put the file back, or move the log away to start empty",
                    database.display()
                ),
            ));
        }
        folder.discard_draft()?;
        folder.make_draft()?;
        schema::create(
            &folder.draft_without_links()?,
            Layout { page_size: self.page_size },
            self.clock.now(),
        )
        .map_err(|error| cannot_create(&database, &error))?;
        folder.publish_draft()
    }
}

fn sync_names(folder: &LockedFolder) -> Result<(), Error> {
    schema::sync_folder(folder.path())
        .map_err(|error| setup(folder.path(), "the folder cannot be synced", error))
}

fn cannot_create(database: &Path, error: &rusqlite::Error) -> Error {
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => ErrorKind::Full,
        _ => ErrorKind::Setup,
    };
    let name = database.display();
    Error::new(
        kind,
        format!("{name} cannot be created: check space, permissions and mount options ({error})"),
    )
}
