//! Checks that the file contains what was written: its structure, its tables, every row.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, params};

use super::fault::{BatchFault, Faults};
use super::schema::OBJECTS;
use super::table::{self, BadRow, PlainColumns, RowError};
use crate::record::Fence;
use crate::time::Timestamp;

/// The result of a successful check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Number of intact records.
    pub records: u64,
    /// Number of intact high-water marks.
    pub marks: u64,
}

/// The findings of a check.
#[derive(Debug)]
pub(super) struct Findings {
    pub(super) verified: Verified,
    /// Damaged rows; at most [`MOST`].
    pub(super) bad: Vec<BadRow>,
    /// Damage of the file itself.
    pub(super) structure: Option<String>,
}

/// With more damaged rows than this, saving single rows is pointless.
const MOST: usize = 10_000;

/// Checks everything. Takes time in proportion to the file.
pub(super) fn everything(connection: &Connection) -> rusqlite::Result<Findings> {
    let mut findings = Findings { verified: Verified::default(), bad: Vec::new(), structure: None };
    findings.structure = match structure(connection) {
        Ok(found) => found,
        // Severe damage stops the check itself.
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseCorrupt) => {
            Some(error.to_string())
        }
        Err(error) => return Err(error),
    };
    let rows = rows(connection, &mut findings);
    match rows {
        Err(error) if findings.structure.is_none() => Err(error),
        // The damaged structure explains it.
        _ => Ok(findings),
    }
}

/// The tables are defined exactly as in this version, and SQLite finds no damaged page.
fn structure(connection: &Connection) -> rusqlite::Result<Option<String>> {
    for (name, sql) in OBJECTS {
        let mut statement = connection.prepare("SELECT sql FROM sqlite_schema WHERE name = ?1")?;
        let mut rows = statement.query([name])?;
        let same = match rows.next()? {
            Some(row) => row.get_ref(0)? == ValueRef::Text(sql.as_bytes()),
            None => false,
        };
        if !same {
            return Ok(Some(format!("{name} is not defined as this version of Semel defines it")));
        }
    }
    let found: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    Ok((found != "ok").then_some(found))
}

fn rows(connection: &Connection, findings: &mut Findings) -> rusqlite::Result<()> {
    let mut records = connection.prepare(
        "SELECT number, id, sum, record, state, hint, lease_until, sweep_at FROM records ORDER BY number",
    )?;
    let mut rows = records.query([])?;
    while let Some(row) = rows.next()? {
        if findings.note(check_record(row)?) {
            findings.verified.records += 1;
        }
    }
    let mut marks = connection.prepare("SELECT id, sum, value FROM marks")?;
    let mut rows = marks.query([])?;
    while let Some(row) = rows.next()? {
        let (key, sum) = (bytes(row.get_ref(0)?), bytes(row.get_ref(1)?));
        let value = row.get_ref(2)?.as_i64().unwrap_or_default();
        if findings.note(table::check_mark(key, sum, value).err().and_then(RowError::damaged)) {
            findings.verified.marks += 1;
        }
    }
    let mut meta = connection.prepare("SELECT name, sum, value FROM meta")?;
    let mut rows = meta.query([])?;
    while let Some(row) = rows.next()? {
        let (name, sum, value) = (bytes(row.get_ref(0)?), bytes(row.get_ref(1)?), bytes(row.get_ref(2)?));
        findings.note(table::check_meta(name, sum, value).err().and_then(RowError::damaged));
    }
    Ok(())
}

impl Findings {
    /// Records a damaged row; returns true if the row is intact.
    fn note(&mut self, bad: Option<BadRow>) -> bool {
        let good = bad.is_none();
        if let Some(bad) = bad
            && self.bad.len() < MOST
        {
            self.bad.push(bad);
        }
        good
    }

    /// The first damage, with its place.
    pub(super) fn first(&self, faults: &Faults) -> Option<BatchFault> {
        if let Some(bad) = self.bad.first() {
            let others = match self.bad.len() {
                1 => String::new(),
                count => format!(" ({} other rows are damaged too)", count - 1),
            };
            return Some(faults.damaged(bad, &others));
        }
        let structure = self.structure.as_ref()?;
        Some(faults.corrupt(&format!(
            "the file is damaged: {}. Keep a copy of the folder, then restore a backup or salvage it with the sqlite3 shell (.recover)",
            structure.trim_start_matches("*** in database main ***\n").replace('\n', "; ")
        )))
    }
}

/// Reads a row with the columns number, id, sum, record, state, hint, lease_until, sweep_at.
fn check_record(row: &Row<'_>) -> rusqlite::Result<Option<BadRow>> {
    let key = bytes(row.get_ref(1)?);
    let record = match table::read_record(key, row, 2) {
        Ok(record) => record,
        Err(error) => {
            return match error {
                RowError::Sql(error) => Err(error),
                RowError::Damaged(bad) => Ok(Some(bad.at(row.get(0)?))),
            };
        }
    };
    let PlainColumns { state, lease_until, sweep_at } = PlainColumns::of(&record);
    let same = row.get_ref(4)? == ValueRef::Integer(state)
        && row.get_ref(5)? == ValueRef::Text(record.hint.prefix().as_bytes())
        && row.get_ref(6)? == ValueRef::Integer(lease_until)
        && row.get_ref(7)? == sweep_at.map_or(ValueRef::Null, ValueRef::Integer)
        && key.len() == 16;
    if same {
        return Ok(None);
    }
    let reason = "a column beside the record says something else than the record".to_owned();
    let sum = bytes(row.get_ref(2)?).to_vec();
    Ok(Some(BadRow { table: table::RECORDS, number: Some(row.get(0)?), key: key.to_vec(), sum, reason }))
}

fn bytes(value: ValueRef<'_>) -> &[u8] {
    match value {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes,
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => &[],
    }
}

/// Checks the next rows after `after`, in the order of their numbers, and that each is found by its id. Returns where
/// to continue; `None` after the last.
pub(super) fn some(
    connection: &Connection,
    after: i64,
    rows: usize,
    bytes_most: usize,
) -> rusqlite::Result<(Option<i64>, Vec<BadRow>)> {
    let mut statement = connection.prepare_cached(
        "SELECT number, id, sum, record, state, hint, lease_until, sweep_at,
                (SELECT number FROM records AS found WHERE found.id = records.id)
         FROM records WHERE number > ?1 ORDER BY number LIMIT ?2",
    )?;
    let mut found = statement.query(params![after, i64::try_from(rows).unwrap_or(i64::MAX)])?;
    let (mut bad, mut last, mut seen) = (Vec::new(), None, 0);
    while let Some(row) = found.next()? {
        let number = row.get_ref(0)?;
        last = Some(row.get(0)?);
        if let Some(row) = check_record(row)? {
            bad.push(row);
        } else if row.get_ref(8)? != number {
            let (key, sum) = (bytes(row.get_ref(1)?).to_vec(), bytes(row.get_ref(2)?).to_vec());
            let reason = "it is not found by its id".to_owned();
            bad.push(BadRow { table: table::RECORDS, number: last, key, sum, reason });
        }
        seen += bytes(row.get_ref(3)?).len();
        if seen >= bytes_most {
            break;
        }
    }
    Ok((last, bad))
}

/// Moves the damaged rows to the table `quarantine`, in one transaction, and checks again.
///
/// Their keys are forgotten, so the fence floor is raised to the current time: no fence goes back.
pub(super) fn quarantine(
    connection: &Connection,
    bad: &[BadRow],
    now: Timestamp,
) -> Result<Findings, RowError> {
    let transaction = connection.unchecked_transaction()?;
    // The index does not find a damaged id.
    transaction.execute_batch("REINDEX records")?;
    for row in bad {
        set_aside(&transaction, row, now)?;
    }
    let floor = table::read_floor(&transaction)?;
    table::write_floor(&transaction, floor.max(Fence::new(now.as_micros())))?;
    let findings = everything(&transaction)?;
    if findings.bad.is_empty() && findings.structure.is_none() {
        transaction.commit()?;
    }
    Ok(findings)
}

fn set_aside(connection: &Connection, row: &BadRow, now: Timestamp) -> rusqlite::Result<()> {
    let BadRow { table, number, key, reason, .. } = row;
    let now = table::micros(now);
    match (*table, number) {
        (table::RECORDS, Some(number)) => {
            connection.execute(
                "INSERT INTO quarantine SELECT ?2, 'records', ?3, id, sum, record FROM records WHERE number = ?1",
                params![number, now, reason],
            )?;
            table::remove(connection, *number)
        }
        (table::MARKS, _) => {
            connection.execute(
                "INSERT INTO quarantine SELECT ?2, 'marks', ?3, id, sum, value FROM marks WHERE id = ?1",
                params![key, now, reason],
            )?;
            connection.execute("DELETE FROM marks WHERE id = ?1", [key]).map(drop)
        }
        // A fact about the store cannot be replaced: the check that follows finds it again and refuses.
        _ => Ok(()),
    }
}
