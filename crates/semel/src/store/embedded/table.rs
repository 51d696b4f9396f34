//! The rows: how a record, a mark or a fact about the store is written, read and distinguished from damage.
//!
//! Every row carries a checksum over its key and its value. A row with a wrong checksum is never served and never
//! treated as missing.

use std::fmt;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::hex;
use crate::key::KeyId;
use crate::record::{Fence, Record, State};
use crate::store::MarkId;
use crate::time::Timestamp;

/// The first eight bytes of a BLAKE3 hash: enough against accidental damage.
pub(super) type RecordChecksum = [u8; 8];

/// Why a row or a statement could not be used.
#[derive(Debug)]
pub(super) enum RowError {
    /// SQLite failed.
    Sql(rusqlite::Error),
    /// The row is damaged.
    Damaged(BadRow),
}

/// The place of a damaged row, and its damage.
#[derive(Clone, Debug)]
pub(super) struct BadRow {
    pub(super) table: &'static str,
    /// Its number, if the table has numbers.
    pub(super) number: Option<i64>,
    /// The key of the row as it was read.
    pub(super) key: Vec<u8>,
    /// Its checksum as it was read, for locating it in the file.
    pub(super) sum: Vec<u8>,
    pub(super) reason: String,
}

impl BadRow {
    pub(super) fn at(mut self, number: i64) -> Self {
        self.number = Some(number);
        self
    }
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "row {number} ")?,
            None => write!(f, "the row ")?,
        }
        if self.table == META {
            write!(f, "'{}'", self.key.escape_ascii())?;
        } else {
            f.write_str("with id ")?;
            hex::write(f, &self.key)?;
        }
        write!(f, " of table {} is damaged: {}", self.table, self.reason)
    }
}

impl RowError {
    pub(super) fn damaged(self) -> Option<BadRow> {
        match self {
            Self::Damaged(bad) => Some(bad),
            Self::Sql(_) => None,
        }
    }
}

impl From<rusqlite::Error> for RowError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

pub(super) fn checksum(table: &str, key: &[u8], value: &[u8]) -> RecordChecksum {
    let mut hasher = blake3::Hasher::new();
    // Keys of one table have one length, or end in the table of facts, whose names contain no zero.
    hasher.update(table.as_bytes()).update(&[0]).update(key).update(&[0]).update(value);
    let mut sum = RecordChecksum::default();
    hasher.finalize_xof().fill(&mut sum);
    sum
}

/// Times above SQLite's range become its maximum.
pub(super) fn micros(moment: Timestamp) -> i64 {
    i64::try_from(moment.as_micros()).unwrap_or(i64::MAX)
}

/// The columns beside the packed record, for SQL queries and for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainColumns {
    pub(super) state: i64,
    pub(super) lease_until: i64,
    pub(super) sweep_at: Option<i64>,
}

impl PlainColumns {
    pub(super) fn of(record: &Record) -> Self {
        let state = match record.state {
            State::Vacant => 0,
            State::Bound => 1,
            State::Claimed => 2,
            State::Begun => 3,
            State::Done(_) => 4,
            State::Expired => 5,
        };
        Self { state, lease_until: micros(record.lease_until), sweep_at: record.sweep_at().map(micros) }
    }
}

// === records ===

pub(super) const RECORDS: &str = "records";

/// A record with its number and the bytes it was read from.
#[derive(Debug)]
pub(super) struct StoredRecord {
    pub(super) number: i64,
    pub(super) record: Record,
    pub(super) bytes: Vec<u8>,
}

/// Checks and reads one row of `records`; the columns are those of [`GET`] from `first` on.
pub(super) fn read_record(id: &[u8], row: &Row<'_>, first: usize) -> Result<Record, RowError> {
    let (sum, bytes) = (row.get_ref(first)?, row.get_ref(first + 1)?);
    let damaged = |reason: String| {
        let sum = sum.as_blob().unwrap_or_default().to_vec();
        RowError::Damaged(BadRow { table: RECORDS, number: None, key: id.to_vec(), sum, reason })
    };
    let (ValueRef::Blob(sum), ValueRef::Blob(bytes)) = (sum, bytes) else {
        return Err(damaged("a column has a type it cannot have".into()));
    };
    if sum != checksum(RECORDS, id, bytes) {
        return Err(damaged("its checksum does not match".into()));
    }
    Record::decode(bytes).map_err(|error| damaged(error.to_string()))
}

/// The id in the first column.
pub(super) fn key_id(row: &Row<'_>) -> Result<KeyId, RowError> {
    let key = match row.get_ref(0)? {
        ValueRef::Blob(key) | ValueRef::Text(key) => key,
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => &[],
    };
    key.try_into().map(KeyId::from_bytes).map_err(|_| {
        let reason = "its id has not 16 bytes".to_owned();
        RowError::Damaged(BadRow { table: RECORDS, number: None, key: key.to_vec(), sum: Vec::new(), reason })
    })
}

const GET: &str = "SELECT sum, record, number FROM records WHERE id = ?1";

pub(super) fn get(connection: &Connection, id: KeyId) -> Result<Option<Record>, RowError> {
    let mut statement = connection.prepare_cached(GET)?;
    let mut rows = statement.query([id.as_bytes()])?;
    rows.next()?.map(|row| read_record(id.as_bytes(), row, 0)).transpose()
}

/// As [`get`], with the bytes, so that the writer knows whether a command changed them.
pub(super) fn get_stored(connection: &Connection, id: KeyId) -> Result<Option<StoredRecord>, RowError> {
    let mut statement = connection.prepare_cached(GET)?;
    let mut rows = statement.query([id.as_bytes()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let record = read_record(id.as_bytes(), row, 0)?;
    let bytes = row.get_ref(1)?.as_blob().map_or_else(|_| Vec::new(), <[u8]>::to_vec);
    Ok(Some(StoredRecord { number: row.get(2)?, record, bytes }))
}

const INSERT: &str = "INSERT INTO records (id, state, hint, lease_until, sweep_at, sum, record)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
const UPDATE: &str =
    "UPDATE records SET state = ?2, hint = ?3, lease_until = ?4, sweep_at = ?5, sum = ?6, record = ?7
     WHERE number = ?1";
// Does not change the indexed columns, so that a heartbeat writes one page and no index.
const TOUCH: &str = "UPDATE records SET lease_until = ?2, sum = ?3, record = ?4 WHERE number = ?1";

/// Whether anything was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Yes,
    No,
}

/// Writes `record` in place of `before`.
pub(super) fn put(
    connection: &Connection,
    id: KeyId,
    before: Option<&StoredRecord>,
    record: &Record,
) -> rusqlite::Result<Written> {
    let bytes = record.encode();
    let sum = checksum(RECORDS, id.as_bytes(), &bytes);
    let PlainColumns { state, lease_until, sweep_at } = PlainColumns::of(record);
    let hint = &*record.hint.prefix();
    let id = id.as_bytes();
    match before {
        None => {
            let all = params![id, state, hint, lease_until, sweep_at, sum, bytes];
            connection.prepare_cached(INSERT)?.execute(all)?;
        }
        Some(before) if before.bytes == bytes => return Ok(Written::No),
        Some(before) => {
            let was = PlainColumns::of(&before.record);
            if was.state == state && was.sweep_at == sweep_at && before.record.hint == record.hint {
                connection.prepare_cached(TOUCH)?.execute(params![before.number, lease_until, sum, bytes])?;
            } else {
                let all = params![before.number, state, hint, lease_until, sweep_at, sum, bytes];
                connection.prepare_cached(UPDATE)?.execute(all)?;
            }
        }
    }
    Ok(Written::Yes)
}

/// Writes `record` over the row with this number.
pub(super) fn replace(
    connection: &Connection,
    number: i64,
    id: KeyId,
    record: &Record,
) -> rusqlite::Result<()> {
    let bytes = record.encode();
    let sum = checksum(RECORDS, id.as_bytes(), &bytes);
    let PlainColumns { state, lease_until, sweep_at } = PlainColumns::of(record);
    let all = params![number, state, &*record.hint.prefix(), lease_until, sweep_at, sum, bytes];
    connection.prepare_cached(UPDATE)?.execute(all)?;
    Ok(())
}

pub(super) fn remove(connection: &Connection, number: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM records WHERE number = ?1")?.execute([number])?;
    Ok(())
}

// === facts about the store ===

const META: &str = "meta";

pub(super) fn read_meta(connection: &Connection, name: &str) -> Result<Option<Vec<u8>>, RowError> {
    let row: Option<(Vec<u8>, Vec<u8>)> = connection
        .prepare_cached("SELECT sum, value FROM meta WHERE name = ?1")?
        .query_row([name], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((sum, value)) = row else { return Ok(None) };
    check_meta(name.as_bytes(), &sum, &value)?;
    Ok(Some(value))
}

pub(super) fn check_meta(name: &[u8], sum: &[u8], value: &[u8]) -> Result<(), RowError> {
    if sum == checksum(META, name, value) {
        return Ok(());
    }
    Err(bad_fact(name, sum, "its checksum does not match"))
}

/// A fact that cannot be used.
pub(super) fn bad_fact(name: &[u8], sum: &[u8], reason: &str) -> RowError {
    let (key, sum, reason) = (name.to_vec(), sum.to_vec(), reason.to_owned());
    RowError::Damaged(BadRow { table: META, number: None, key, sum, reason })
}

pub(super) fn write_meta(connection: &Connection, name: &str, value: &[u8]) -> rusqlite::Result<()> {
    let sum = checksum(META, name.as_bytes(), value);
    connection
        .prepare_cached("INSERT OR REPLACE INTO meta (name, value, sum) VALUES (?1, ?2, ?3)")?
        .execute(params![name, value, sum])?;
    Ok(())
}

/// The names of the facts.
pub(super) mod fact {
    pub(in crate::store::embedded) const CREATED: &str = "created";
    pub(in crate::store::embedded) const FLOOR: &str = "fence_floor";
    pub(in crate::store::embedded) const SECRET: &str = "secret";
    /// Whether the store grants claims; missing in a store that was never moved or filled.
    pub(in crate::store::embedded) const TRANSFER: &str = "transfer";
}

/// The fence floor is stored as decimal digits, so that an operator can read it.
pub(super) fn read_floor(connection: &Connection) -> Result<Fence, RowError> {
    let damaged = |reason| bad_fact(fact::FLOOR.as_bytes(), &[], reason);
    let value = read_meta(connection, fact::FLOOR)?.ok_or_else(|| damaged("it is missing"))?;
    let digits = str::from_utf8(&value).ok().and_then(|digits| digits.parse().ok());
    digits.map(Fence::new).ok_or_else(|| damaged("it is not a number"))
}

pub(super) fn write_floor(connection: &Connection, floor: Fence) -> rusqlite::Result<()> {
    write_meta(connection, fact::FLOOR, floor.to_string().as_bytes())
}

// === marks ===

pub(super) const MARKS: &str = "marks";

pub(super) fn read_mark(connection: &Connection, mark: MarkId) -> Result<Option<u64>, RowError> {
    let row: Option<(Vec<u8>, i64)> = connection
        .prepare_cached("SELECT sum, value FROM marks WHERE id = ?1")?
        .query_row([mark.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    row.map(|(sum, value)| check_mark(mark.as_bytes(), &sum, value)).transpose()
}

/// The marks after `after`, in the order of their ids.
pub(super) fn marks(
    connection: &Connection,
    after: &[u8],
    limit: usize,
) -> Result<Vec<(MarkId, u64)>, RowError> {
    let mut statement =
        connection.prepare_cached("SELECT id, sum, value FROM marks WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    let mut rows = statement.query(params![after, i64::try_from(limit).unwrap_or(i64::MAX)])?;
    let mut marks = Vec::new();
    while let Some(row) = rows.next()? {
        let (id, sum): (Vec<u8>, Vec<u8>) = (row.get(0)?, row.get(1)?);
        let value = check_mark(&id, &sum, row.get(2)?)?;
        let mark = id.try_into().map(MarkId::from_bytes).map_err(|id: Vec<u8>| {
            let reason = "its id has not 16 bytes".to_owned();
            RowError::Damaged(BadRow { table: MARKS, number: None, key: id, sum, reason })
        })?;
        marks.push((mark, value));
    }
    Ok(marks)
}

pub(super) fn check_mark(id: &[u8], sum: &[u8], value: i64) -> Result<u64, RowError> {
    if sum == checksum(MARKS, id, &value.to_le_bytes()) {
        return Ok(value.cast_unsigned());
    }
    let reason = "its checksum does not match".to_owned();
    Err(RowError::Damaged(BadRow { table: MARKS, number: None, key: id.to_vec(), sum: sum.to_vec(), reason }))
}

pub(super) fn write_mark(connection: &Connection, mark: MarkId, value: u64) -> rusqlite::Result<()> {
    // SQLite's range ends at 2^63. The bits are preserved, so only an operator sees a negative number.
    let value = value.cast_signed();
    let sum = checksum(MARKS, mark.as_bytes(), &value.to_le_bytes());
    connection
        .prepare_cached("INSERT OR REPLACE INTO marks (id, value, sum) VALUES (?1, ?2, ?3)")?
        .execute(params![mark.as_bytes(), value, sum])?;
    Ok(())
}
