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
    /// The store was closed.
    Closed,
}

impl Error {
    /// An error of this kind. The message names the cause and the remedy; it never contains a key or a body.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None, source: None }
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

    /// When to retry, if the store knows.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// True if a limit on new keys refused a claim. The store works and serves known keys.
    pub const fn is_over_limit(&self) -> bool {
        matches!(self.kind, ErrorKind::OverCapacity | ErrorKind::TooManyNewKeys)
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
