//! Limits the write-ahead log: moves it into the database when the writer is idle, or when it grew too long.
//!
//! The writer does it itself, between two batches: 4000 pages take about as long as two or three syncs, since most of
//! them are versions of the same few. A checkpointed log is reused from its start, so its blocks are already
//! allocated and a sync is cheaper than while the log grows.

use std::time::Duration;

use rusqlite::Connection;

/// How long the writer waits for a command before it checkpoints.
const QUIET: Duration = Duration::from_millis(50);

/// Whether commands arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// No command arrived for a while.
    Quiet,
    Busy,
}

/// How long the log may grow, in pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    /// From here on it is checkpointed when the writer is idle.
    soft: i64,
    /// From here on it is checkpointed in any case.
    hard: i64,
    /// Pages that are only in the log, as of the last check.
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

    /// Called after every transaction, and when the writer is idle.
    pub(super) fn tend(&mut self, connection: &Connection, load: Load) -> rusqlite::Result<()> {
        // A check is cheap but not free, and no transaction writes more than a few hundred pages.
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
            // Not retried immediately if it fails or a reader is in the way.
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

/// Moves the whole log and empties it, so that the next one starts with new salts.
pub(super) fn empty_log(connection: &Connection) -> rusqlite::Result<()> {
    run(connection, "PRAGMA wal_checkpoint(TRUNCATE)").map(drop)
}
