//! Store errors.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// A store operation failed. The [`ErrorKind`] says whether it may have taken effect.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    retry_after: Option<Duration>,
    is_logged: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kind of failure, which determines what the caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store is unreachable or overloaded; nothing was changed. Retry.
    Unavailable,
    /// The command was sent and its result is unknown. Repeat it unchanged, never with another owner.
    Ambiguous,
    /// There is no space; nothing was changed. Retry once there is.
    Full,
    /// The store has reached its maximum size and accepts no new key; nothing was changed. Known keys are served.
    OverCapacity,
    /// The rate of new keys is above the limit; nothing was changed. Known keys are served.
    TooManyNewKeys,
    /// A sync failed: the state on disk is unknown. Nothing is acknowledged until a restart.
    Poisoned,
    /// The data read is not the data written. It is never served.
    Corrupt,
    /// The data was written by a newer version, or is not Semel's.
    Incompatible,
    /// Another process has it open.
    Locked,
    /// The store's configuration cannot work, e.g. a folder that is not writable.
    Setup,
    /// The store holds another secret than the one it gave this process: its data were lost or replaced. Nothing was
    /// changed, and no claim is granted until the process is restarted, because the same keys have other ids
    /// elsewhere.
    SecretDiffers,
    /// The records were moved to another store, or are being copied into this one. Nothing was changed, and no claim
    /// is granted.
    Moved,
    /// The store was closed.
    Closed,
}

impl Error {
    /// An error of this kind. The message names the cause and the remedy; it never contains a key or a body.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None, is_logged: false, source: None }
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds the time after which to retry.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Marks an error whose cause the store has logged.
    #[must_use]
    pub fn logged(mut self) -> Self {
        self.is_logged = true;
        self
    }

    /// True if the store has logged the cause, once for all errors that it has: an outage, or a loss of data. Do not log
    /// each of them at a level that wakes somebody.
    pub const fn is_logged(&self) -> bool {
        self.is_logged
    }

    /// The same error for another caller, without its source.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self {
            kind: self.kind,
            message: self.message.clone(),
            retry_after: self.retry_after,
            is_logged: self.is_logged,
            source: None,
        }
    }

    /// When to retry, if the store knows.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// True if a limit on new keys refused a claim. The store works and serves known keys.
    pub const fn is_over_limit(&self) -> bool {
        matches!(self.kind, ErrorKind::OverCapacity | ErrorKind::TooManyNewKeys)
    }

    /// True if the store is reachable and other processes protect its keys. An effect that ran without a claim would run
    /// in addition to theirs.
    pub const fn is_protected_elsewhere(&self) -> bool {
        matches!(self.kind, ErrorKind::SecretDiffers | ErrorKind::Moved)
    }

    /// The kind of failure.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// True if the same call may succeed later without a repair.
    pub const fn is_retryable(&self) -> bool {
        self.is_over_limit()
            || matches!(self.kind, ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::Full)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
