//! Errors of the test harness, each with a hint what to do.

use std::{io, time::Duration};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the harness could not do what a test asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program is not on this machine.
    #[error(
        "`{program}` was not found. Run `./scripts/test`, which installs the Debian package `{package}`, or install it yourself."
    )]
    Missing {
        /// The program.
        program: String,
        /// The Debian package of the program.
        package: &'static str,
    },
    /// The operating system returned an error.
    #[error("{doing}: {source}")]
    Io {
        /// The action.
        doing: String,
        /// The cause.
        source: io::Error,
    },
    /// A server ended before it was ready.
    #[error("{name} ended before it was ready ({status}). The end of its log:\n{log}")]
    Start {
        /// The server.
        name: &'static str,
        /// How it ended.
        status: String,
        /// The last lines it wrote.
        log: String,
    },
    /// A condition was not true in time.
    #[error("not within {within:?}: {what}")]
    Timeout {
        /// The condition.
        what: String,
        /// The timeout.
        within: Duration,
    },
    /// A helper program failed.
    #[error("`{program}` failed ({status}): {message}")]
    Command {
        /// The program.
        program: String,
        /// How it ended.
        status: String,
        /// What it wrote to its standard error.
        message: String,
    },
    /// A server answered a command with an error, or with an unexpected reply.
    #[error("{asked} was answered with: {answer}")]
    Reply {
        /// The command.
        asked: String,
        /// The answer.
        answer: String,
    },
    /// The call needs a running server, and the test has killed or stopped it.
    #[error("{name} is not running: the test killed or stopped it. Call `restart()` first.")]
    NotRunning {
        /// The server.
        name: &'static str,
    },
}

impl Error {
    /// True if the server's port was taken, so that another port or another attempt helps.
    pub(crate) fn is_port_clash(&self) -> bool {
        matches!(self, Error::Start { log, .. } if log.contains("Address already in use") || log.contains("Failed listening on port"))
    }
}

/// Adds the action to an error of the operating system.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Io { doing: what(), source: error.into() })
    }
}
