//! Settings, and the way from a path to an open store.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::thread;

use super::EmbeddedStore;
use super::checkpoint::{self, Log};
use super::clock::StepWatch;
use super::fault::Faults;
use super::folder::{Folder, setup};
use super::queue::Queue;
use super::reader::Readers;
use super::schema::{self, Layout, Role};
use super::table::{self, RowError};
use super::writer::{Shared, Writer};
use crate::store::local::Local;
use crate::store::{Error, ErrorKind};
use crate::time::{Clock, SystemClock};

/// Settings of an [`EmbeddedStore`]. Made by [`EmbeddedStore::builder`].
#[derive(Clone, Debug)]
#[must_use = "settings open nothing until `open` is called"]
pub struct EmbeddedBuilder {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    queue_limit: usize,
    page_size: u32,
}

impl EmbeddedBuilder {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), clock: Arc::new(SystemClock), queue_limit: 65_536, page_size: 4096 }
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

    /// Opens the store. See [`EmbeddedStore::open`].
    ///
    /// # Errors
    /// As [`EmbeddedStore::open`].
    pub fn open(self) -> Result<EmbeddedStore, Error> {
        let folder = Folder::hold(&self.path)?;
        let database = folder.database();
        let faults = Faults::of(&database);
        self.create_if_missing(&folder, &faults)?;
        let sql = |error: rusqlite::Error| Error::from(faults.explain(&error));
        let left_behind = std::fs::metadata(folder.wal()).is_ok_and(|wal| wal.len() > 0);
        let connection = schema::connect(&database, Role::Writer).map_err(sql)?;
        let floor = table::read_floor(&connection).map_err(|error| match error {
            RowError::Sql(error) => sql(error),
            RowError::Damaged(bad) => faults.corrupt(&bad.to_string()).into(),
        })?;
        if left_behind {
            checkpoint::empty_log(&connection).map_err(sql)?;
        }
        let readers = Readers::open(&database).map_err(sql)?;
        schema::tidy_on_close(&connection).map_err(sql)?;
        let shared = Arc::new(Shared {
            queue: Queue::new(self.queue_limit),
            local: Local::default(),
            clock: self.clock,
            faults,
            poison: OnceLock::new(),
            commits: AtomicU64::new(0),
        });
        let path = folder.path().to_owned();
        let writer = Writer {
            shared: Arc::clone(&shared),
            connection,
            floor,
            steps: StepWatch::default(),
            log: Log::new(1000, 4000),
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

    fn create_if_missing(&self, folder: &Folder, faults: &Faults) -> Result<(), Error> {
        let database = folder.database();
        let found = |path: &Path| {
            path.try_exists().map_err(|error| setup(path, "the file cannot be looked at", error))
        };
        if found(&database)? {
            return Ok(());
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
        schema::create(&folder.draft(), Layout { page_size: self.page_size }, self.clock.now())
            .map_err(|error| Error::from(faults.explain(&error)))?;
        folder.publish_draft()
    }
}
