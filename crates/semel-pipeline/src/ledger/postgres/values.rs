//! Values on their way into columns and back.

use std::time::Duration;

use semel::time::Timestamp;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgRow, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Column as _, Decode, Postgres, Row as _, Type};

use super::fault::Fault;
use super::link::Shared;
use crate::event::Origin;
use crate::ledger::{Error, sql};

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

/// Reads the columns of a row one after the other, in the order of the statement.
pub(super) struct Columns<'a> {
    shared: &'a Shared,
    row: &'a PgRow,
    next: usize,
}

impl<'a> Columns<'a> {
    pub(super) fn new(shared: &'a Shared, row: &'a PgRow) -> Self {
        Self { shared, row, next: 0 }
    }

    fn get<T>(&mut self) -> Result<T, Fault>
    where
        T: Decode<'a, Postgres> + Type<Postgres>,
    {
        self.next += 1;
        self.row.try_get(self.next - 1).map_err(|error| self.shared.explain(&error))
    }
}

impl sql::Columns for Columns<'_> {
    type Error = Fault;

    /// Of a column of type `integer` or `bigint`.
    fn integer_or_none(&mut self) -> Result<Option<i64>, Fault> {
        let column = self.row.try_column(self.next).map_err(|error| self.shared.explain(&error))?;
        if <i32 as Type<Postgres>>::compatible(column.type_info()) {
            return Ok(self.get::<Option<i32>>()?.map(i64::from));
        }
        self.get()
    }

    fn real(&mut self) -> Result<f64, Fault> {
        self.get()
    }

    fn flag(&mut self) -> Result<bool, Fault> {
        self.get()
    }

    fn str_or_none(&mut self) -> Result<Option<&str>, Fault> {
        self.get()
    }

    fn bytes_or_none(&mut self) -> Result<Option<&[u8]>, Fault> {
        self.get()
    }

    fn time_or_none(&mut self) -> Result<Option<Timestamp>, Fault> {
        Ok(self.get::<Option<Moment>>()?.map(|moment| moment.0))
    }

    fn origin(&mut self) -> Result<Origin, Fault> {
        let (kind, name): (&str, Option<String>) = (self.get()?, self.get()?);
        let (name, message) = (name.unwrap_or_default(), self.text_or_none()?);
        Ok(match kind {
            "api" => Origin::Api { principal: name },
            "stream" => Origin::Stream { stream: name, message: message.unwrap_or_default() },
            "outbox" => Origin::Outbox,
            _ => Origin::Replay { of: name.parse().map_err(|_| self.corrupt("an origin that is no event"))? },
        })
    }

    fn corrupt(&self, what: &str) -> Fault {
        self.shared.corrupt(what)
    }
}
