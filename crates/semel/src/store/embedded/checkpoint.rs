//! Keeps the write-ahead log bounded: moves it into the database when nobody has come for a while, or when it
//! grew too long.
//!
//! The writer does it itself, between two batches: 4000 pages take about as long as two or three syncs, since most
//! of them are versions of the same few. A log that was moved is used again from its start, so its blocks are
//! allocated already and a sync has less to do than while it grows.

use std::time::Duration;

use rusqlite::Connection;

/// How long the writer waits for somebody before it tidies up.
const QUIET: Duration = Duration::from_millis(50);

/// Whether commands come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Nobody came for a while.
    Quiet,
    Busy,
}

/// How long the log may grow, in pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    /// From here on it is moved as soon as nobody comes.
    soft: i64,
    /// From here on it is moved in any case.
    hard: i64,
    /// Pages that are only in the log, as of the last look.
    length: i64,
    /// Transactions since then.
    unseen: u32,
}

impl Log {
    pub(super) const fn new(soft: i64, hard: i64) -> Self {
        Self { soft, hard, length: 0, unseen: 0 }
    }

    /// How long to wait for commands before [`tend`](Self::tend) is called with [`Load::Quiet`].
    pub(super) fn patience(&self) -> Option<Duration> {
        (self.length >= self.soft).then_some(QUIET)
    }

    /// Called after every transaction, and when it was quiet.
    pub(super) fn tend(&mut self, connection: &Connection, load: Load) -> rusqlite::Result<()> {
        // A look is cheap but not free, and no transaction writes more than a few hundred pages.
        self.unseen += 1;
        if load == Load::Busy && self.unseen < 8 {
            return Ok(());
        }
        self.unseen = 0;
        let limit = match load {
            Load::Quiet => self.soft,
            Load::Busy => self.hard,
        };
        self.length = run(connection, "PRAGMA wal_checkpoint(NOOP)")?;
        if self.length >= limit {
            // Not tried again at once where it fails, or where a reader is in the way.
            self.length = 0;
            run(connection, "PRAGMA wal_checkpoint(PASSIVE)")?;
        }
        Ok(())
    }
}

/// Runs a checkpoint; returns how many pages are only in the log.
fn run(connection: &Connection, sql: &str) -> rusqlite::Result<i64> {
    connection.prepare_cached(sql)?.query_row([], |row| {
        let (in_log, moved): (i64, i64) = (row.get(1)?, row.get(2)?);
        Ok(in_log - moved)
    })
}

/// Moves the whole log and empties it, so that the next one starts under new salts.
pub(super) fn empty_log(connection: &Connection) -> rusqlite::Result<()> {
    run(connection, "PRAGMA wal_checkpoint(TRUNCATE)").map(drop)
}
