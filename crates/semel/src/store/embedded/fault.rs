//! Translates SQLite errors to store errors.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use rusqlite::ffi;

use super::table::{BadRow, RowError};
use crate::store::{Error, ErrorKind};
use crate::sync::Mutex;

/// A failure that is reported to several callers of one batch.
#[derive(Clone, Debug)]
pub(super) struct BatchFault {
    pub(super) kind: ErrorKind,
    message: String,
    /// True if the log names the cause.
    pub(super) is_logged: bool,
    /// True if the statement failed and not the disk: a caller's own refusal or mistake.
    pub(super) is_callers: bool,
}

impl BatchFault {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), is_logged: false, is_callers: false }
    }

    /// The same message for a caller whose command may have been written.
    pub(super) fn ambiguous(&self) -> Error {
        let message = &self.message;
        self.error(
            ErrorKind::Ambiguous,
            format!("{message}; whether this command was kept shows after the restart: repeat it unchanged"),
        )
    }

    fn error(&self, kind: ErrorKind, message: String) -> Error {
        let error = Error::new(kind, message);
        if self.is_logged { error.logged() } else { error }
    }
}

impl fmt::Display for BatchFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<BatchFault> for Error {
    fn from(fault: BatchFault) -> Self {
        fault.error(fault.kind, fault.message.clone())
    }
}

/// The state after a failed statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// It is certain that nothing was changed.
    None,
    /// A sync failed or its result is unknown: no later answer can be trusted.
    Unknown,
}

/// Translates SQLite's errors for one database file.
#[derive(Debug)]
pub(super) struct Faults {
    file: PathBuf,
    /// For locating damaged rows. Opened before SQLite opens the file and closed after it: closing any handle of a
    /// file ends all of SQLite's own locks on it.
    image: Mutex<File>,
}

impl Faults {
    pub(super) fn of(file: &Path) -> io::Result<Self> {
        Ok(Self { file: file.to_owned(), image: Mutex::new(File::open(file)?) })
    }

    /// The failure to use a row.
    pub(super) fn explain_row(&self, error: &RowError) -> BatchFault {
        match error {
            RowError::Sql(error) => self.explain(error),
            RowError::Damaged(bad) => self.damaged(bad, ""),
        }
    }

    /// A failure while the file is opened and checked. The statements are correct, so if SQLite does not understand
    /// them the file is wrong.
    pub(super) fn explain_open(&self, error: &rusqlite::Error) -> BatchFault {
        match error.sqlite_error_code() {
            Some(ErrorCode::Unknown | ErrorCode::SchemaChanged) | None => self.corrupt(&format!(
                "the file is damaged. Keep a copy of the folder, then restore a backup ({error})"
            )),
            Some(_) => self.explain(error),
        }
    }

    /// A failure while reading, or before the commit.
    pub(super) fn explain(&self, error: &rusqlite::Error) -> BatchFault {
        let file = self.file.display();
        if is_callers(error) {
            let message = format!("{file}: the transaction failed; nothing was changed ({error})");
            return BatchFault { is_callers: true, ..BatchFault::new(ErrorKind::Unavailable, message) };
        }
        let (kind, way_out) = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => (
                ErrorKind::Full,
                "there is no disk space: free some; nothing was changed, stored outcomes are still served",
            ),
            Some(ErrorCode::DatabaseCorrupt) => (
                ErrorKind::Corrupt,
                "the file is damaged: stop, keep a copy of the folder, restore a backup or salvage it with the sqlite3 shell (.recover)",
            ),
            Some(ErrorCode::NotADatabase) => {
                (ErrorKind::Incompatible, "the file is not a database: give Semel a folder of its own")
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => (
                ErrorKind::Setup,
                "the file cannot be opened for writing: check owner, permissions and mount options",
            ),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
                ErrorKind::Unavailable,
                "another program holds a lock on the file: end it (a sqlite3 shell?)",
            ),
            Some(_) | None => {
                (ErrorKind::Unavailable, "nothing was changed; look at the disk if it stays so")
            }
        };
        BatchFault::new(kind, format!("{file}: {way_out} ({error})"))
    }

    /// The failure after which nothing is acknowledged any more.
    pub(super) fn poisoned(&self, error: &rusqlite::Error) -> BatchFault {
        let file = self.file.display();
        BatchFault::new(
            ErrorKind::Poisoned,
            format!(
                "{file}: a sync failed, so the state on disk is unknown. Nothing is acknowledged until the process is restarted; check the disk first ({error})"
            ),
        )
    }

    pub(super) fn closed(&self) -> BatchFault {
        BatchFault::new(ErrorKind::Closed, format!("{}: the store was closed", self.file.display()))
    }

    /// The writer's thread ended; the command may have been executed.
    pub(super) fn died(&self) -> BatchFault {
        BatchFault::new(
            ErrorKind::Ambiguous,
            format!(
                "{}: the writer ended before it answered; restart the process, then repeat the command unchanged",
                self.file.display()
            ),
        )
    }

    /// A caller's job that panicked inside the transaction.
    pub(super) fn panicked(&self) -> BatchFault {
        BatchFault::new(
            ErrorKind::Unavailable,
            format!("{}: the job panicked; what it wrote was undone", self.file.display()),
        )
    }

    pub(super) fn overloaded(&self, waiting: usize) -> BatchFault {
        BatchFault::new(
            ErrorKind::Unavailable,
            format!(
                "{}: {waiting} commands wait for the disk already; nothing was changed, try again later",
                self.file.display()
            ),
        )
    }

    /// A damaged row, with its place in the file.
    pub(super) fn damaged(&self, bad: &BadRow, others: &str) -> BatchFault {
        let place = match self.locate(&bad.sum) {
            Some(at) => format!(" (at byte {at} of the file)"),
            None => String::new(),
        };
        self.corrupt(&format!(
            "{bad}{place}{others}. It is never served; keep a copy of the folder, then restore a backup, or open once with on_corruption(OnCorruption::Quarantine) to set it aside and forget it"
        ))
    }

    /// The position of `bytes` in the file. Best effort: they may be in the log, or beyond the searched range.
    fn locate(&self, bytes: &[u8]) -> Option<u64> {
        const SEARCHED: u64 = 64 << 20;
        if bytes.is_empty() {
            return None;
        }
        let mut file = self.image.lock();
        file.seek(SeekFrom::Start(0)).ok()?;
        let mut content = Vec::new();
        Read::by_ref(&mut *file).take(SEARCHED).read_to_end(&mut content).ok()?;
        let at = content.windows(bytes.len()).position(|window| window == bytes)?;
        u64::try_from(at).ok()
    }

    pub(super) fn corrupt(&self, what: &str) -> BatchFault {
        BatchFault::new(ErrorKind::Corrupt, format!("{}: {what}", self.file.display()))
    }
}

/// True if the file and the disk are well: what ran in the transaction gave up, or its statement is wrong.
fn is_callers(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        None | Some(
            ErrorCode::Unknown
                | ErrorCode::ConstraintViolation
                | ErrorCode::TypeMismatch
                | ErrorCode::ParameterOutOfRange
                | ErrorCode::TooBig
                | ErrorCode::ApiMisuse
        )
    )
}

/// The state after a statement before the commit failed.
pub(super) fn damage_before_commit(error: &rusqlite::Error) -> Damage {
    if failed_sync(error) { Damage::Unknown } else { Damage::None }
}

/// The state after the commit failed. Only a lack of space certainly left nothing behind: the commit mark is written
/// last, and a write without space was incomplete.
pub(super) fn damage_of_commit(error: &rusqlite::Error) -> Damage {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy) => Damage::None,
        _ => Damage::Unknown,
    }
}

/// True if a file or its folder could not be synced.
pub(super) fn failed_sync(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error().map(|error| error.extended_code),
        Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC)
    )
}
