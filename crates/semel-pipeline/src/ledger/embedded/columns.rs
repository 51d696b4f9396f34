//! Between columns and the words of the pipeline.

use std::time::Duration;

use semel::store::rusqlite::types::{FromSql, Type};
use semel::store::rusqlite::{self, Row};
use semel::time::Timestamp;

use crate::event::Origin;
use crate::ledger::sql;

/// A moment as the tables keep it: µs since 1970.
pub(super) fn micros(moment: Timestamp) -> i64 {
    sql::bigint(moment.as_micros())
}

pub(super) fn moment(micros: i64) -> Timestamp {
    Timestamp::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A duration as the tables keep it: µs.
pub(super) fn length(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Reads the columns of a row one after the other, in the order of the statement.
pub(super) struct Columns<'a, 'r> {
    row: &'a Row<'r>,
    next: usize,
}

impl<'a, 'r> Columns<'a, 'r> {
    pub(super) fn of(row: &'a Row<'r>) -> Self {
        Self { row, next: 0 }
    }

    pub(super) fn get<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        self.next += 1;
        self.row.get(self.next - 1)
    }
}

impl sql::Columns for Columns<'_, '_> {
    type Error = rusqlite::Error;

    fn integer_or_none(&mut self) -> rusqlite::Result<Option<i64>> {
        self.get()
    }

    fn real(&mut self) -> rusqlite::Result<f64> {
        self.get()
    }

    fn flag(&mut self) -> rusqlite::Result<bool> {
        self.get()
    }

    fn str_or_none(&mut self) -> rusqlite::Result<Option<&str>> {
        self.next += 1;
        let at = self.next - 1;
        self.row.get_ref(at)?.as_str_or_null().map_err(|error| strange(at, error))
    }

    fn bytes_or_none(&mut self) -> rusqlite::Result<Option<&[u8]>> {
        self.next += 1;
        let at = self.next - 1;
        self.row.get_ref(at)?.as_blob_or_null().map_err(|error| strange(at, error))
    }

    fn time_or_none(&mut self) -> rusqlite::Result<Option<Timestamp>> {
        Ok(self.get::<Option<i64>>()?.map(moment))
    }

    fn origin(&mut self) -> rusqlite::Result<Origin> {
        self.json()
    }

    fn corrupt(&self, what: &str) -> rusqlite::Error {
        strange(self.next.saturating_sub(1), what)
    }
}

/// A column that holds what this code never wrote.
fn strange(at: usize, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, why.into())
}
