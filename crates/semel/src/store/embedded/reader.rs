//! Reads concurrently with the writer. A read never waits for a sync: it sees the log as of the last commit.

use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use rusqlite::Connection;

use super::check;
use super::schema::{self, ConnectionRole};
use super::table::{self, BadRow, RowError};
use crate::key::KeyId;
use crate::record::{Phase, Record};
use crate::store::{MarkId, Page, Scan, Snapshot};
use crate::sync::Mutex;
use crate::time::Clock;

/// Read-only connections. Each read is its own transaction, so it sees everything that was acknowledged.
#[derive(Debug)]
pub(super) struct Readers {
    /// For single rows: held for microseconds.
    points: [Mutex<Connection>; 2],
    /// For listings: held for a page.
    pages: Mutex<Connection>,
    /// For callers' own tables: held as long as the caller reads.
    callers: [Mutex<Connection>; 2],
    next: AtomicUsize,
    /// The number of the last row that a sweep checked.
    scrubbed: AtomicI64,
}

/// The most rows that a page reads, so that a listing with few results does not block its thread.
const LOOK_AT: usize = 512;

/// The most bytes of records in a page.
const PAGE_BYTES: usize = 4 << 20;

impl Readers {
    pub(super) fn open(path: &Path) -> rusqlite::Result<Self> {
        let open = || schema::connect(path, ConnectionRole::Reader).map(Mutex::new);
        Ok(Self {
            points: [open()?, open()?],
            pages: open()?,
            callers: [open()?, open()?],
            next: AtomicUsize::new(0),
            scrubbed: AtomicI64::new(0),
        })
    }

    fn point<T>(&self, read: impl FnOnce(&Connection) -> T) -> T {
        self.on_one_of(&self.points, read)
    }

    fn on_one_of<T>(&self, readers: &[Mutex<Connection>; 2], read: impl FnOnce(&Connection) -> T) -> T {
        for reader in readers {
            if let Some(connection) = reader.try_lock() {
                return read(&connection);
            }
        }
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % readers.len();
        read(&readers[turn].lock())
    }

    /// A caller's read, in a transaction: it sees one state, however many statements it has.
    pub(super) fn of_caller<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.on_one_of(&self.callers, |connection| {
            // Dropping it rolls it back: there is nothing to commit.
            let snapshot = connection.unchecked_transaction()?;
            read(&snapshot)
        })
    }

    pub(super) fn get(&self, id: KeyId) -> Result<Option<Record>, RowError> {
        self.point(|connection| table::get(connection, id))
    }

    pub(super) fn mark(&self, mark: MarkId) -> Result<Option<u64>, RowError> {
        self.point(|connection| table::read_mark(connection, mark))
    }

    /// Checks the next few rows, and starts again after the last.
    pub(super) fn scrub(&self, limit: usize) -> rusqlite::Result<Vec<BadRow>> {
        let connection = self.pages.lock();
        let after = self.scrubbed.load(Ordering::Relaxed);
        let (last, bad) = check::some(&connection, after, limit.min(LOOK_AT), PAGE_BYTES)?;
        self.scrubbed.store(last.unwrap_or(0), Ordering::Relaxed);
        Ok(bad)
    }

    pub(super) fn page(&self, query: Scan, clock: &dyn Clock) -> Result<Page, RowError> {
        page(&self.pages.lock(), query, clock)
    }
}

/// A page of records in the order of their ids. Records in progress have their own index.
pub(super) fn page(connection: &Connection, query: Scan, clock: &dyn Clock) -> Result<Page, RowError> {
    let Scan { phase, after, limit } = query;
    let sql = match phase.is_some_and(Phase::is_in_progress) {
        true => {
            "SELECT id, state, sum, record FROM records INDEXED BY records_in_flight
             WHERE id > ?1 AND state IN (2, 3) ORDER BY id"
        }
        false => "SELECT id, state, sum, record FROM records WHERE id > ?1 ORDER BY id",
    };
    let mut statement = connection.prepare_cached(sql)?;
    // The empty blob sorts before every id.
    let after = after.map_or_else(Vec::new, |after| after.as_bytes().to_vec());
    let mut rows = statement.query([after])?;
    let mut page = Page::default();
    let (mut looked_at, mut bytes) = (0, 0);
    let mut last = None;
    while let Some(row) = rows.next()? {
        if page.items.len() >= limit || looked_at >= LOOK_AT.max(limit) || bytes >= PAGE_BYTES {
            page.next = last;
            break;
        }
        looked_at += 1;
        let id = table::key_id(row)?;
        last = Some(id);
        if !possible(phase, row.get(1)?) {
            continue;
        }
        let record = table::read_record(id.as_bytes(), row, 2)?;
        let now = clock.now();
        if phase.is_none_or(|phase| record.phase(now) == phase) {
            bytes += row.get_ref(3)?.as_blob().map_or(0, <[u8]>::len);
            page.items.push(Snapshot { id, record, now });
        }
    }
    Ok(page)
}

/// True if a record in `state` can be in `phase`, without reading the rest of it.
fn possible(phase: Option<Phase>, state: i64) -> bool {
    match phase {
        None | Some(Phase::Vacant | Phase::Expired) => true,
        Some(Phase::Bound) => state == 1,
        Some(Phase::Claimed) => state == 2,
        Some(Phase::Begun | Phase::InDoubt) => state == 3,
        Some(Phase::Lapsed) => matches!(state, 2 | 3),
        Some(Phase::Done) => state == 4,
    }
}
