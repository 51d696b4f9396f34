//! How a store fails.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// A store could not do what was asked. Whether it may have been done all the same is in the [`ErrorKind`].
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    retry_after: Option<Duration>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What sort of failure it was, and so what a caller may do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store cannot be reached or is overloaded; nothing was changed. Try again.
    Unavailable,
    /// The command was sent and its fate is unknown. Repeat it unchanged, never with another owner.
    Ambiguous,
    /// There is no room; nothing was changed. Try again once there is.
    Full,
    /// The store holds as much as it may, so it takes no new key; nothing was changed. Keys that it knows are served.
    OverCapacity,
    /// More new keys come than the limit allows; nothing was changed. Keys that the store knows are served.
    TooManyNewKeys,
    /// A sync failed: what is on disk is no longer known. Nothing is acknowledged until a restart.
    Poisoned,
    /// What was read is not what was written. It is never served.
    Corrupt,
    /// The data was written by a newer version, or is not Semel's.
    Incompatible,
    /// Somebody else has it open.
    Locked,
    /// The store is set up in a way that cannot work, e.g. a folder that may not be written.
    Setup,
    /// The store keeps another secret than the one it gave this process: its data were lost or replaced. Nothing was
    /// changed, and nothing is granted until the process is restarted, because the same keys have other ids elsewhere.
    SecretDiffers,
    /// The store was closed.
    Closed,
}

impl Error {
    /// An error of this kind. The message names the thing and the way out; it never holds a key or a body.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None, source: None }
    }

    /// The same error with the one that caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same error with when to try again.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// When to try again, where the store knows.
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether a limit on new keys refused a claim. The store works, and serves the keys that it knows.
    pub const fn is_over_limit(&self) -> bool {
        matches!(self.kind, ErrorKind::OverCapacity | ErrorKind::TooManyNewKeys)
    }

    /// What sort of failure it was.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later without anybody repairing anything.
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
