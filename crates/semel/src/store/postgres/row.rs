//! Converts a row to a record. [`super::columns`] does the opposite.

use std::sync::Arc;
use std::time::Duration;

use semel_postgres::PostgresError;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::fingerprint::Fingerprint;
use crate::key::{Hint, KeyId};
use crate::outcome::Outcome;
use crate::record::{DecodeError, Epoch, Fence, Mode, Owner, Record, State, Terms};
use crate::time::Timestamp;

/// The answer of a statement about one key.
#[derive(Debug)]
pub(super) enum RowAnswer {
    /// There is a row.
    Stored(Stored),
    /// Our own insert was the first.
    Inserted {
        fence: Fence,
        /// The floor, read after the insert: every record that was removed before is below it.
        floor: Fence,
        now: Timestamp,
    },
}

/// A row as it was read.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) version: i64,
    pub(super) watched: bool,
    /// The server's time when it was read.
    pub(super) now: Timestamp,
}

/// Why a row could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum PgRowError {
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

pub(super) fn id(row: &PgRow) -> Result<KeyId, PgRowError> {
    Ok(KeyId::from_bytes(array(row.try_get(0)?, "id")?))
}

pub(super) fn stored(row: &PgRow) -> Result<Stored, PgRowError> {
    let moment = |column: usize| -> Result<Timestamp, PgRowError> {
        Ok(Timestamp::from_micros(unsigned(row.try_get(column)?, "time")?))
    };
    let length = |column: usize| -> Result<Duration, PgRowError> {
        Ok(Duration::from_micros(unsigned(row.try_get(column)?, "terms")?))
    };
    let count = |column: usize, name| -> Result<u32, PgRowError> {
        let number: i64 = row.try_get(column)?;
        Ok(u32::try_from(number).map_err(|_| DecodeError::Damaged(name))?)
    };
    let state: i16 = row.try_get(3)?;
    let state = match state {
        0 => State::Vacant,
        1 => State::Bound,
        2 => State::Claimed,
        3 => State::Begun,
        4 => {
            let bytes: Option<&[u8]> = row.try_get(21)?;
            State::Done(Arc::new(Outcome::decode(bytes.ok_or(DecodeError::Damaged("outcome"))?)?))
        }
        5 => State::Expired,
        _ => return Err(DecodeError::Damaged("state").into()),
    };
    let mode: i16 = row.try_get(4)?;
    let mode = match mode {
        0 => Mode::Atomic,
        1 => Mode::Keyed,
        2 => Mode::Marked,
        3 => Mode::Rerun,
        _ => return Err(DecodeError::Damaged("mode").into()),
    };
    let hint: &[u8] = row.try_get(10)?;
    let hint = Hint::from_stored(str::from_utf8(hint).map_err(|_| DecodeError::Damaged("hint"))?);
    let record = Record {
        state,
        fingerprint: Fingerprint::from_bytes(array(row.try_get(5)?, "fingerprint")?),
        owner: Owner::from_bytes(array(row.try_get(6)?, "owner")?),
        fence: Fence::new(unsigned(row.try_get(7)?, "fence")?),
        epoch: Epoch::new(count(8, "epoch")?),
        attempt: count(9, "attempt")?,
        hint,
        claimed_at: moment(11)?,
        changed_at: moment(12)?,
        lease_until: moment(13)?,
        expires_at: moment(14)?,
        forget_at: moment(15)?,
        terms: Arc::new(Terms {
            mode,
            lease: length(16)?,
            in_flight_max: length(17)?,
            retention: length(18)?,
            grace: length(19)?,
            memory: length(20)?,
        }),
    };
    Ok(Stored { record, version: row.try_get(1)?, watched: row.try_get(2)?, now: moment(22)? })
}

/// Reads a row of the claim statement.
pub(super) fn answer(row: &PgRow) -> Result<RowAnswer, PgRowError> {
    let floor: Option<i64> = row.try_get(23)?;
    Ok(match floor {
        None => RowAnswer::Stored(stored(row)?),
        Some(floor) => RowAnswer::Inserted {
            fence: Fence::new(unsigned(row.try_get(7)?, "fence")?),
            floor: Fence::new(unsigned(floor, "fence floor")?),
            now: Timestamp::from_micros(unsigned(row.try_get(22)?, "time")?),
        },
    })
}

/// Reads the row of the statement that inserts a single claim.
pub(super) fn inserted(row: &PgRow) -> Result<RowAnswer, PgRowError> {
    Ok(RowAnswer::Inserted {
        fence: Fence::new(unsigned(row.try_get(0)?, "fence")?),
        floor: Fence::new(unsigned(row.try_get(2)?, "fence floor")?),
        now: Timestamp::from_micros(unsigned(row.try_get(1)?, "time")?),
    })
}

fn array<const N: usize>(bytes: &[u8], name: &'static str) -> Result<[u8; N], DecodeError> {
    bytes.try_into().map_err(|_| DecodeError::Damaged(name))
}

fn unsigned(number: i64, name: &'static str) -> Result<u64, DecodeError> {
    u64::try_from(number).map_err(|_| DecodeError::Damaged(name))
}
