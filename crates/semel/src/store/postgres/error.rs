//! Errors of PostgreSQL as errors of a store.

use semel_postgres::{PostgresError, PostgresErrorKind};

use crate::store::{Error, ErrorKind};

/// The error of a command that may have been executed.
pub(super) fn ambiguous(error: &PostgresError) -> Error {
    let ambiguous =
        Error::new(ErrorKind::Ambiguous, format!("{error}; whether the command was executed is unknown"));
    if error.is_logged() { ambiguous.logged() } else { ambiguous }
}

impl From<PostgresError> for Error {
    fn from(error: PostgresError) -> Self {
        let kind = match error.kind {
            PostgresErrorKind::Unavailable => ErrorKind::Unavailable,
            PostgresErrorKind::Setup => ErrorKind::Setup,
            PostgresErrorKind::Full => ErrorKind::Full,
            PostgresErrorKind::Incompatible => ErrorKind::Incompatible,
            PostgresErrorKind::Corrupt => ErrorKind::Corrupt,
            PostgresErrorKind::SecretDiffers => ErrorKind::SecretDiffers,
        };
        let is_logged = error.is_logged();
        let error = Error::new(kind, error.message);
        if is_logged { error.logged() } else { error }
    }
}
