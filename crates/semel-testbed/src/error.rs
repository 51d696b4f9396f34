//! What can go wrong in the harness, each as a sentence that says what to do.

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
        /// The program that was looked for.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The operating system refused something.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// The refusal.
        source: io::Error,
    },
    /// A server ended before it was ready.
    #[error("{name} ended before it was ready ({status}). The end of its log:\n{log}")]
    Start {
        /// Which server.
        name: &'static str,
        /// How it ended.
        status: String,
        /// The last lines it wrote.
        log: String,
    },
    /// A condition did not come true in time.
    #[error("not within {within:?}: {what}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
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
    /// A server answered a command with an error, or with something else than expected.
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
        /// Which server.
        name: &'static str,
    },
}

impl Error {
    /// Whether a server found its port taken, so that another port (or a moment of patience) helps.
    pub(crate) fn is_port_clash(&self) -> bool {
        matches!(self, Error::Start { log, .. } if log.contains("Address already in use") || log.contains("Failed listening on port"))
    }
}

/// Names what was being done when the operating system refused.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Io { doing: what(), source: error.into() })
    }
}
