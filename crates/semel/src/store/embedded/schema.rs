//! The tables, the setup of connections, and the creation of a new file.
//!
//! `docs/reference/embedded-store.md` explains the tables to an operator; keep both in step.

use std::fs::File;
use std::io;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, ffi};

use super::table::{self, fact};
use crate::record::Fence;
use crate::time::Timestamp;

/// `SEML`: distinguishes Semel's files from others.
pub(super) const APPLICATION_ID: u32 = 0x5345_4d4c;

/// The version of the tables that this code writes.
pub(super) const VERSION: u32 = 1;

/// Version 1 of every table, by name. The text is compared with the file's when it is opened.
pub(super) const OBJECTS: [(&str, &str); 7] = [
    (
        "meta",
        "CREATE TABLE meta (name TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL, sum BLOB NOT NULL) STRICT, WITHOUT ROWID",
    ),
    // Numbered rather than ordered by id: rows of one batch are adjacent, so a batch writes few pages. The index on
    // the id is dense. Ordered by id, a pair costs 1.6 times the CPU.
    (
        "records",
        "CREATE TABLE records (number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, state INTEGER NOT NULL, hint TEXT NOT NULL, lease_until INTEGER NOT NULL, sweep_at INTEGER, sum BLOB NOT NULL, record BLOB NOT NULL) STRICT",
    ),
    // Partial, so that a done record is in one index and a claimed one in the other.
    ("records_to_sweep", "CREATE INDEX records_to_sweep ON records (sweep_at) WHERE sweep_at IS NOT NULL"),
    ("records_in_flight", "CREATE INDEX records_in_flight ON records (id) WHERE state IN (2, 3)"),
    (
        "marks",
        "CREATE TABLE marks (id BLOB NOT NULL PRIMARY KEY, value INTEGER NOT NULL, sum BLOB NOT NULL) STRICT, WITHOUT ROWID",
    ),
    (
        "quarantine",
        "CREATE TABLE quarantine (found_at INTEGER NOT NULL, tab TEXT NOT NULL, reason TEXT NOT NULL, id BLOB, sum BLOB, value BLOB)",
    ),
    // For people with a sqlite3 shell, also an old one.
    (
        "readable",
        "CREATE VIEW readable AS SELECT lower(hex(id)) AS id, hint, CASE WHEN state = 0 THEN 'vacant' WHEN state = 1 THEN 'bound' WHEN state = 5 THEN 'expired' WHEN state = 4 THEN iif(sweep_at > strftime('%s', 'now') * 1000000, 'done', 'expired') WHEN lease_until > strftime('%s', 'now') * 1000000 THEN iif(state = 2, 'claimed', 'begun') WHEN sweep_at IS NULL THEN 'in doubt' ELSE 'lapsed' END AS state, datetime(lease_until / 1000000, 'unixepoch') AS lease_until, datetime(sweep_at / 1000000, 'unixepoch') AS sweep_at, length(record) AS bytes FROM records",
    ),
];

/// The layout of a file, fixed when it is created.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) page_size: u32,
}

/// Creates a complete, empty file at `path`. The caller moves it to its place, so a partial file is never found.
pub(super) fn create(path: &Path, layout: Layout, now: Timestamp) -> rusqlite::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch(&format!(
        "PRAGMA page_size = {}; PRAGMA auto_vacuum = INCREMENTAL; PRAGMA synchronous = FULL; BEGIN IMMEDIATE;
         PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};",
        layout.page_size
    ))?;
    for (_, sql) in OBJECTS {
        connection.execute_batch(sql)?;
    }
    table::write_meta(&connection, fact::CREATED, now.as_micros().to_string().as_bytes())?;
    table::write_floor(&connection, Fence::default())?;
    connection.execute_batch("COMMIT")?;
    // Here rather than at the first open, so that the file never depends on a rollback journal again.
    use_log(&connection)?;
    connection.close().map_err(|(_, error)| error)
}

/// Makes the names in `folder` durable.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    /// The only one that writes.
    Writer,
    /// Reads, and cannot write even by mistake.
    Reader,
}

/// Opens a connection to the file and sets it up for its role.
pub(super) fn connect(path: &Path, role: ConnectionRole) -> rusqlite::Result<Connection> {
    // Only one thread uses a connection at a time, so SQLite's own lock would be a second one.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // Until all checks have passed, closing must leave the files unchanged.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    // Enough for Semel's own statements and those of a caller with its own tables.
    connection.set_prepared_statement_cache_capacity(192);
    connection.execute_batch(
        "PRAGMA busy_timeout = 2000; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA temp_store = MEMORY;",
    )?;
    match role {
        ConnectionRole::Writer => {
            use_log(&connection)?;
            // Only the writer runs checkpoints: it must know when one fails.
            connection.execute_batch(
                "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; PRAGMA secure_delete = FAST;
                 PRAGMA cache_size = -16384;",
            )?;
        }
        ConnectionRole::Reader => {
            connection.execute_batch(
                "PRAGMA query_only = ON; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = -2048;",
            )?;
        }
    }
    Ok(connection)
}

/// Switches the file to a write-ahead log, if it has none yet.
fn use_log(connection: &Connection) -> rusqlite::Result<()> {
    // Reads all rows: SQLite reports the new mode before it commits the switch, and only the commit can fail.
    let mut switch = connection.prepare("PRAGMA journal_mode = WAL")?;
    let mut said = switch.query([])?;
    while said.next()?.is_some() {}
    // Without a log, commits would depend on a name that is never synced.
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    if mode == "wal" {
        return Ok(());
    }
    let why = format!("the file stays in journal mode {mode} instead of wal");
    Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR), Some(why)))
}

/// From now on closing the last connection moves the log into the file and removes it.
pub(super) fn tidy_on_close(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map(drop)
}

/// Closing the connection leaves the files unchanged.
pub(super) fn leave_on_close(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(drop)
}
