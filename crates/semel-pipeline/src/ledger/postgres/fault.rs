//! Failures of a call.

use semel::store::{Error as StoreError, ErrorKind};
use semel_postgres::{Execution, PostgresError, PostgresErrorKind};

use crate::ledger::Error;

/// A call that failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The database refused it, or did not answer.
    Database(PostgresError),
    /// The ledger's own answer: not found, or refused.
    Answer(Error),
}

/// The error of a failed call, which is ambiguous if the call may have been executed.
pub(super) fn store_error(error: PostgresError) -> Error {
    Error::Store(match (error.kind, error.execution) {
        (PostgresErrorKind::Unavailable, Execution::Unknown) => {
            let message = format!("{error}; whether it was done is unknown, repeat it unchanged");
            let ambiguous = StoreError::new(ErrorKind::Ambiguous, message);
            if error.is_logged() { ambiguous.logged() } else { ambiguous }
        }
        _ => error.into(),
    })
}

impl From<PostgresError> for Fault {
    fn from(error: PostgresError) -> Self {
        Self::Database(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Answer(error)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Database(error) => store_error(error),
            Fault::Answer(error) => error,
        }
    }
}
