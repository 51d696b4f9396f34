//! What went wrong, in words, and what is known after it.

use semel::store::{Error as StoreError, ErrorKind};

use crate::ledger::Error;

/// A call that failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The database says no, or nothing.
    Database(Trouble),
    /// The ledger's own answer: there is no such thing, or it cannot be done.
    Answer(Error),
}

/// The database says no, or nothing.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    kind: ErrorKind,
    message: String,
    pub(super) fate: Fate,
    pub(super) cure: Cure,
}

/// What became of the statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The server said that it did nothing, or never got it.
    Undone,
    /// It was sent, and nobody said what became of it.
    Unknown,
}

/// What may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cure {
    /// The same again: somebody was in the way.
    Again,
    /// The same again on another connection.
    Reconnect,
    /// Nothing that a program can do.
    None,
}

impl Trouble {
    fn new(kind: ErrorKind, message: impl Into<String>, fate: Fate, cure: Cure) -> Self {
        Self { kind, message: message.into(), fate, cure }
    }

    /// A setting that cannot work, in a sentence that says what to do.
    pub(super) fn setup(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Setup, message, Fate::Undone, Cure::None)
    }

    /// As [`setup`](Self::setup), where it may be different in a moment.
    pub(super) fn setup_for_now(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Setup, message, Fate::Undone, Cure::Reconnect)
    }

    pub(super) fn incompatible(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Incompatible, message, Fate::Undone, Cure::None)
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message, Fate::Undone, Cure::Reconnect)
    }

    /// No answer in time. The connection is given up with it.
    pub(super) fn silent(target: &str) -> Self {
        let message =
            format!("{target} did not answer in time: it is overloaded, paused or cut off; try again later");
        Self::new(ErrorKind::Unavailable, message, Fate::Unknown, Cure::Reconnect)
    }

    pub(super) fn corrupt(target: &str, what: &str) -> Self {
        let message = format!(
            "{target} holds what Semel did not write ({what}); it is never served, restore the row or the database"
        );
        Self::new(ErrorKind::Corrupt, message, Fate::Undone, Cure::None)
    }

    /// The same, where nothing can have been committed: the transaction ends with its connection.
    pub(super) fn uncommitted(self) -> Self {
        Self { fate: Fate::Undone, ..self }
    }

    /// What a failed connect or statement means.
    pub(super) fn of(target: &str, error: &sqlx::Error) -> Self {
        let sqlx::Error::Database(database) = error else { return Self::of_the_link(target, error) };
        let code = database.code().unwrap_or_default();
        let said = database.message();
        let undone = |kind, message: String, cure| Self::new(kind, message, Fate::Undone, cure);
        match &*code {
            // The last one: two took from one lane at the same moment; the loser looks again.
            "40001" | "40P01" | "55P03" | "23505" => undone(
                ErrorKind::Unavailable,
                format!("{target}: others hold the same rows ({said}); try again"),
                Cure::Again,
            ),
            "57014" => undone(
                ErrorKind::Unavailable,
                format!("{target} was too slow and the statement was cancelled ({said}); try again later"),
                Cure::Again,
            ),
            "25006" => undone(
                ErrorKind::Unavailable,
                format!("{target} takes no writes any more ({said}): point the URL at the primary"),
                Cure::Reconnect,
            ),
            "53100" => undone(
                ErrorKind::Full,
                format!("{target} has no disk space left ({said}); nothing was changed, make room"),
                Cure::None,
            ),
            "3F000" | "42P01" | "42703" => Self::incompatible(format!(
                "{target} lacks a table or column of Semel's ledger ({said}): open the ledger again to migrate it, or restore the schema"
            )),
            "42501" => Self::setup(format!(
                "{target}: the user lacks a right ({said}): GRANT it usage of Semel's schema, and all rights on its tables and sequences"
            )),
            "28P01" | "28000" => Self::setup(format!(
                "{target} does not let the user in ({said}): check user and password in the URL, and pg_hba.conf"
            )),
            "3D000" => Self::setup(format!(
                "{target} does not exist ({said}): create the database, or correct its name in the URL"
            )),
            "26000" | "42P05" | "08P01" => Self::setup(format!(
                "{target} mixes up prepared statements or refuses our settings ({said}): it is a transaction pooler, set Pooling::Transaction"
            )),
            // A server that ends a session may have ended it after the commit.
            code if code.starts_with("57P") || code.starts_with("08") => Self::new(
                ErrorKind::Unavailable,
                format!("{target} ended the connection ({said}); try again"),
                Fate::Unknown,
                Cure::Reconnect,
            ),
            code if code.starts_with("53") => undone(
                ErrorKind::Unavailable,
                format!("{target} is overloaded ({said}); try again later"),
                Cure::Reconnect,
            ),
            code if code.starts_with("XX") => Self::corrupt(target, said),
            code => Self::setup(format!("{target} refused a statement ({code}: {said})")),
        }
    }

    fn of_the_link(target: &str, error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_) | sqlx::Error::Decode(_) => {
                Self::corrupt(target, &error.to_string())
            }
            sqlx::Error::PoolTimedOut => Self::unavailable(format!(
                "no connection to {target} came free in time: it is down or takes no more, or all of this ledger's are in use (see `connections`); try again later"
            )),
            sqlx::Error::Tls(tls) => Self::setup(format!(
                "{target} cannot be reached over TLS ({tls}): check sslmode and sslrootcert in the URL"
            )),
            error => Self::new(
                ErrorKind::Unavailable,
                format!("the connection to {target} broke ({error}); try again"),
                Fate::Unknown,
                Cure::Reconnect,
            ),
        }
    }
}

impl From<Trouble> for StoreError {
    fn from(trouble: Trouble) -> Self {
        match (trouble.kind, trouble.fate) {
            (ErrorKind::Unavailable, Fate::Unknown) => StoreError::new(
                ErrorKind::Ambiguous,
                format!("{}; whether it was done is unknown, repeat it unchanged", trouble.message),
            ),
            (kind, _) => StoreError::new(kind, trouble.message),
        }
    }
}

impl From<Trouble> for Fault {
    fn from(trouble: Trouble) -> Self {
        Self::Database(trouble)
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
            Fault::Database(trouble) => Error::Store(trouble.into()),
            Fault::Answer(error) => error,
        }
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}
