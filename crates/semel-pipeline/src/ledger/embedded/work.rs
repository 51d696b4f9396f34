//! What one call does on the writer: its transaction, its time, and what is written at its end for all of it.

use std::collections::BTreeMap;

use semel::store::rusqlite::{self, Connection, OptionalExtension as _, Params, params};
use semel::time::Timestamp;

use super::columns::{Columns, micros};
use crate::delivery::{DeliveryState, Impossible};
use crate::ledger::Error;
use crate::letter::Status;

/// Why a call on the writer ends without an answer. Everything it wrote is undone.
#[derive(Debug)]
pub(super) enum Fault {
    /// SQLite failed.
    Sql(rusqlite::Error),
    /// The answer of the ledger itself.
    Answer(Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Answer(error)
    }
}

impl From<Impossible> for Fault {
    fn from(impossible: Impossible) -> Self {
        Self::Answer(impossible.into())
    }
}

pub(super) type Done<T> = Result<T, Fault>;

/// One call's view of the file: of the writer's transaction, or of a snapshot beside it.
#[derive(Debug)]
pub(super) struct Work<'a> {
    pub(super) sql: &'a Connection,
    /// The ledger's time: one moment for the whole call.
    pub(super) now: Timestamp,
    /// Counts that changed, to be written once.
    tally: BTreeMap<(&'static str, String, &'static str), i64>,
    /// Lanes with something new to take, and when that is due.
    lanes: BTreeMap<(String, String), Timestamp>,
    /// Whether somebody who waits for work should look.
    pub(super) news: bool,
}

impl<'a> Work<'a> {
    pub(super) fn new(sql: &'a Connection, now: Timestamp) -> Self {
        Self { sql, now, tally: BTreeMap::new(), lanes: BTreeMap::new(), news: false }
    }

    /// Notes that a delivery of `target` came into a state, or left it.
    pub(super) fn count_delivery(&mut self, target: &str, state: DeliveryState, by: i64) {
        *self.tally.entry(("delivery", target.to_owned(), state.as_str())).or_default() += by;
    }

    /// The same of a letter.
    pub(super) fn count_letter(&mut self, status: Status, by: i64) {
        *self.tally.entry(("letter", String::new(), status.as_str())).or_default() += by;
    }

    /// Notes that a delivery can be taken from `due` on.
    pub(super) fn ready(&mut self, target: &str, tenant: &str, due: Timestamp) {
        self.news = true;
        let lane = self.lanes.entry((target.to_owned(), tenant.to_owned())).or_insert(due);
        *lane = (*lane).min(due);
    }

    /// Writes the lanes that were noted.
    pub(super) fn write_lanes(&mut self) -> rusqlite::Result<()> {
        // A lane that is awake is not written: a take from it reads what is due.
        let mut statement = self.sql.prepare_cached(
            "INSERT INTO ledger_turn (target, tenant, turn, due_at) VALUES (?1, ?2, NULL, ?3)
             ON CONFLICT (target, tenant) DO UPDATE SET due_at = excluded.due_at
             WHERE turn IS NULL AND excluded.due_at < due_at",
        )?;
        for ((target, tenant), due) in std::mem::take(&mut self.lanes) {
            statement.execute(params![target, tenant, micros(due)])?;
        }
        Ok(())
    }

    /// Writes what is written once for the whole call.
    pub(super) fn finish(mut self) -> rusqlite::Result<bool> {
        self.write_lanes()?;
        let mut statement = self.sql.prepare_cached(
            "INSERT INTO ledger_total (what, name, state, count) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (what, name, state) DO UPDATE SET count = count + excluded.count",
        )?;
        for ((what, name, state), by) in self.tally {
            if by != 0 {
                statement.execute(params![what, name, state, by])?;
            }
        }
        Ok(self.news)
    }

    /// Runs a statement. Answers how many rows it changed.
    pub(super) fn execute(&self, sql: &str, with: impl Params) -> rusqlite::Result<usize> {
        self.sql.prepare_cached(sql)?.execute(with)
    }

    /// The first row of a statement.
    pub(super) fn one<T>(
        &self,
        sql: &str,
        with: impl Params,
        read: impl FnOnce(&mut Columns<'_, '_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>> {
        self.sql.prepare_cached(sql)?.query_row(with, |row| read(&mut Columns::of(row))).optional()
    }

    /// All rows of a statement.
    pub(super) fn all<T>(
        &self,
        sql: &str,
        with: impl Params,
        read: impl Fn(&mut Columns<'_, '_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.sql.prepare_cached(sql)?.query_map(with, |row| read(&mut Columns::of(row)))?.collect()
    }
}
