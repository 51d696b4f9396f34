//! Values on their way into columns and back.

use std::collections::BTreeMap;
use std::time::Duration;

use semel::time::Timestamp;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgRow, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Postgres, Row as _, Type};

use super::fault::Fault;
use super::link::Shared;
use crate::ledger::Error;

/// PostgreSQL counts from the year 2000.
const EPOCH: i64 = 946_684_800_000_000;

const TIMESTAMPTZ: Oid = Oid(1184);

/// A column of type `timestamptz`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment(pub(super) Timestamp);

impl Type<Postgres> for Moment {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }

    fn compatible(ty: &PgTypeInfo) -> bool {
        ty.oid() == Some(TIMESTAMPTZ)
    }
}

impl<'r> Decode<'r, Postgres> for Moment {
    fn decode(value: PgValueRef<'r>) -> Result<Self, sqlx::error::BoxDynError> {
        if value.format() != PgValueFormat::Binary {
            return Err("a time must come in binary form".into());
        }
        let micros = i64::from_be_bytes(value.as_bytes()?.try_into()?).saturating_add(EPOCH);
        Ok(Self(Timestamp::from_micros(u64::try_from(micros).unwrap_or(0))))
    }
}

/// A length of time in microseconds. Nothing is longer than a thousand years: a sum with it stays in PostgreSQL's range.
pub(super) fn micros(length: Duration) -> i64 {
    const LONGEST: i64 = 1_000 * 366 * 86_400 * 1_000_000;
    i64::try_from(length.as_micros()).unwrap_or(LONGEST).min(LONGEST)
}

/// The length of time in a column of microseconds.
pub(super) fn length(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A count in a column of type `integer`.
pub(super) fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// As much of a count as a column of type `integer` holds.
pub(super) fn integer(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Refuses what a column of type `text` cannot hold.
pub(super) fn check_text(what: &str, text: &str) -> Result<(), Error> {
    if text.contains('\0') {
        return Err(Error::Refused(format!("{what} must not contain the character NUL")));
    }
    Ok(())
}

/// Words of others that are only for people: what a column cannot hold is replaced.
pub(super) fn plain(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Pairs in their order, as JSON.
pub(super) fn pairs_to_json(pairs: &[(String, String)]) -> String {
    serde_json::to_string(pairs).expect("pairs of strings are JSON")
}

/// Texts in their order, as JSON.
pub(super) fn texts_to_json(texts: &[String]) -> String {
    serde_json::to_string(texts).expect("strings are JSON")
}

/// Members and the texts of their values, as JSON.
pub(super) fn members_to_json(members: &BTreeMap<String, String>) -> String {
    serde_json::to_string(members).expect("a map of strings is JSON")
}

/// Reads columns of one row by their place.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a> {
    shared: &'a Shared,
    row: &'a PgRow,
}

impl<'a> Columns<'a> {
    pub(super) fn new(shared: &'a Shared, row: &'a PgRow) -> Self {
        Self { shared, row }
    }

    pub(super) fn get<T>(&self, column: usize) -> Result<T, Fault>
    where
        T: Decode<'a, Postgres> + Type<Postgres>,
    {
        self.row.try_get(column).map_err(|error| self.shared.explain(&error))
    }

    pub(super) fn bytes<const N: usize>(&self, column: usize) -> Result<[u8; N], Fault> {
        self.get::<&[u8]>(column)?.try_into().map_err(|_| self.corrupt("an id of another length"))
    }

    pub(super) fn bytes_or_none<const N: usize>(&self, column: usize) -> Result<Option<[u8; N]>, Fault> {
        let bytes: Option<&[u8]> = self.get(column)?;
        bytes.map(|bytes| bytes.try_into().map_err(|_| self.corrupt("an id of another length"))).transpose()
    }

    pub(super) fn time(&self, column: usize) -> Result<Timestamp, Fault> {
        self.get::<Moment>(column).map(|moment| moment.0)
    }

    pub(super) fn time_or_none(&self, column: usize) -> Result<Option<Timestamp>, Fault> {
        Ok(self.get::<Option<Moment>>(column)?.map(|moment| moment.0))
    }

    pub(super) fn count(&self, column: usize) -> Result<u32, Fault> {
        self.get(column).map(count)
    }

    /// A column of JSON that was selected as text.
    pub(super) fn json<T: serde::de::DeserializeOwned>(&self, column: usize) -> Result<T, Fault> {
        serde_json::from_str(self.get::<&str>(column)?).map_err(|_| self.corrupt("JSON of another form"))
    }

    /// One of the words that stand for something.
    pub(super) fn word<T>(&self, column: usize, read: impl FnOnce(&str) -> Option<T>) -> Result<T, Fault> {
        read(self.get::<&str>(column)?).ok_or_else(|| self.corrupt("a word of another version"))
    }

    pub(super) fn corrupt(&self, what: &str) -> Fault {
        self.shared.corrupt(what)
    }
}
