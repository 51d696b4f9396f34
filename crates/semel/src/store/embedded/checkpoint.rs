//! Keeps the write-ahead log bounded: moves it into the database when nobody waits, or when it grew too long.

use rusqlite::Connection;

/// Whether commands wait for the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    Idle,
    Busy,
}

/// How long the log may grow, in pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    /// From here on it is moved as soon as nobody waits.
    soft: i64,
    /// From here on it is moved even while somebody waits.
    hard: i64,
    /// Transactions since the last look.
    unseen: u32,
}

impl Log {
    pub(super) const fn new(soft: i64, hard: i64) -> Self {
        Self { soft, hard, unseen: 0 }
    }

    /// Called after every transaction.
    pub(super) fn tend(&mut self, connection: &Connection, load: Load) -> rusqlite::Result<()> {
        // A look is cheap but not free, and no transaction writes more than a few hundred pages.
        self.unseen += 1;
        if self.unseen < 8 {
            return Ok(());
        }
        self.unseen = 0;
        let limit = match load {
            Load::Idle => self.soft,
            Load::Busy => self.hard,
        };
        let (length, moved) = run(connection, "PRAGMA wal_checkpoint(NOOP)")?;
        if length - moved >= limit {
            run(connection, "PRAGMA wal_checkpoint(PASSIVE)")?;
        }
        Ok(())
    }
}

/// Runs a checkpoint; returns the pages in the log and how many of them are in the database.
fn run(connection: &Connection, sql: &str) -> rusqlite::Result<(i64, i64)> {
    connection.prepare_cached(sql)?.query_row([], |row| Ok((row.get(1)?, row.get(2)?)))
}

/// Moves the whole log and empties it, so that the next one starts under a new name.
pub(super) fn empty_log(connection: &Connection) -> rusqlite::Result<()> {
    run(connection, "PRAGMA wal_checkpoint(TRUNCATE)").map(drop)
}
