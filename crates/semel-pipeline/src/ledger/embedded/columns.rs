//! Between columns and the words of the pipeline.

use std::time::Duration;

use semel::store::rusqlite::types::{FromSql, Type};
use semel::store::rusqlite::{self, Row};
use semel::time::Timestamp;
use serde::de::DeserializeOwned;

/// A moment as the tables keep it: µs since 1970.
pub(super) fn micros(moment: Timestamp) -> i64 {
    i64::try_from(moment.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn moment(micros: i64) -> Timestamp {
    Timestamp::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A number in a column.
pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A duration as the tables keep it: µs.
pub(super) fn length(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A value as JSON text.
pub(super) fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain data without maps of odd keys")
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
        let at = self.next;
        self.next += 1;
        self.row.get(at)
    }

    /// A number that is never negative.
    pub(super) fn count(&mut self) -> rusqlite::Result<u64> {
        let at = self.next;
        let number: i64 = self.get()?;
        u64::try_from(number).map_err(|_| strange(at, format!("{number} is less than nothing")))
    }

    pub(super) fn time(&mut self) -> rusqlite::Result<Timestamp> {
        self.get().map(moment)
    }

    pub(super) fn maybe_time(&mut self) -> rusqlite::Result<Option<Timestamp>> {
        Ok(self.get::<Option<i64>>()?.map(moment))
    }

    pub(super) fn maybe_duration(&mut self) -> rusqlite::Result<Option<Duration>> {
        Ok(self.get::<Option<i64>>()?.map(duration))
    }

    /// A name of a fixed set.
    pub(super) fn name<T>(&mut self, read: impl FnOnce(&str) -> Option<T>) -> rusqlite::Result<T> {
        let at = self.next;
        let text: String = self.get()?;
        read(&text).ok_or_else(|| strange(at, format!("`{text}` is none of its names")))
    }

    /// The same, or nothing.
    pub(super) fn maybe_name<T>(
        &mut self,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> rusqlite::Result<Option<T>> {
        let at = self.next;
        let Some(text) = self.get::<Option<String>>()? else { return Ok(None) };
        read(&text).map(Some).ok_or_else(|| strange(at, format!("`{text}` is none of its names")))
    }

    pub(super) fn json<T: DeserializeOwned>(&mut self) -> rusqlite::Result<T> {
        let at = self.next;
        let text: String = self.get()?;
        serde_json::from_str(&text).map_err(|error| strange(at, error.to_string()))
    }
}

/// A column that holds what this code never wrote.
fn strange(at: usize, why: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, why.into())
}
