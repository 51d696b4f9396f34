//! The ledger's tables, and how a file comes to have them.
//!
//! `docs/reference/ledger.md` explains them to an operator; keep both in step.

use semel::store::rusqlite::{self, Connection, OptionalExtension as _};
use semel::store::{Error, ErrorKind};

/// The version of the tables that this code writes.
const VERSION: u32 = 4;

/// What leads from one version to the next: the first entry makes version 1.
const STEPS: [&str; VERSION as usize] = [
    include_str!("schema_1.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
];

/// Brings the file to the present version, inside the caller's transaction.
///
/// # Errors
/// What SQLite said; inside the answer, that the tables are a newer version's.
pub(super) fn migrate(connection: &Connection) -> rusqlite::Result<Result<(), Error>> {
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS ledger_meta (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID",
    )?;
    let found: Option<String> = connection
        .query_row("SELECT value FROM ledger_meta WHERE name = 'version'", [], |row| row.get(0))
        .optional()?;
    let found: u32 = match found.map(|text| text.parse()) {
        None => 0,
        Some(Ok(version)) if version <= VERSION => version,
        Some(_) => {
            return Ok(Err(Error::new(
                ErrorKind::Incompatible,
                "the ledger in this file was written by a newer version of Semel: start that version; nothing was changed",
            )));
        }
    };
    for step in &STEPS[found as usize..] {
        connection.execute_batch(step)?;
    }
    if found < VERSION {
        connection.execute(
            "INSERT OR REPLACE INTO ledger_meta (name, value) VALUES ('version', ?1)",
            [VERSION.to_string()],
        )?;
    }
    Ok(Ok(()))
}
