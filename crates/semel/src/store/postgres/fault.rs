//! Errors of PostgreSQL, and the state after them.

use sqlx::postgres::PgDatabaseError;

use super::row::PgRowError;
use crate::store::{Error, ErrorKind};

/// A failed statement or connection.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) kind: ErrorKind,
    message: String,
    pub(super) fate: Fate,
    pub(super) cure: Cure,
}

/// The result of a failed statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The server did not execute it.
    Undone,
    /// It was sent, and its result is unknown.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cure {
    /// Retry: another transaction was in the way.
    Again,
    /// Retry on another connection.
    Reconnect,
    /// None: a program cannot repair it, or the statement is refused.
    None,
}

impl Fault {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>, fate: Fate, cure: Cure) -> Self {
        Self { kind, message: message.into(), fate, cure }
    }

    /// A setting that cannot work, with a message that says what to do.
    pub(super) fn setup(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Setup, message, Fate::Undone, Cure::None)
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message, Fate::Undone, Cure::Reconnect)
    }

    /// No answer in time. The connection is closed.
    pub(super) fn silent(target: &str) -> Self {
        let message =
            format!("{target} did not answer in time: it is overloaded, paused or cut off; try again later");
        Self::new(ErrorKind::Unavailable, message, Fate::Unknown, Cure::Reconnect)
    }

    pub(super) fn connecting(target: &str, user: &str, error: &sqlx::Error) -> Self {
        if let sqlx::Error::Database(database) = error
            && let Some(postgres) = database.try_downcast_ref::<PgDatabaseError>()
        {
            let said = postgres.message();
            return match postgres.code() {
                "28P01" | "28000" => Self::setup(format!(
                    "{target} refuses the user {user} ({said}): check user and password in the URL, and pg_hba.conf"
                )),
                "3D000" => Self::setup(format!(
                    "{target} does not exist ({said}): create the database, or correct its name in the URL"
                )),
                "42501" => Self::setup(format!(
                    "the user {user} may not connect to {target} ({said}): GRANT CONNECT ON DATABASE to it"
                )),
                "08P01" => Self::setup(format!(
                    "{target} refuses our start-up settings ({said}): behind a transaction pooler set Pooling::Transaction"
                )),
                _ => Self::unavailable(format!("{target} refuses connections ({said}); try again later")),
            };
        }
        match error {
            sqlx::Error::Tls(tls) => Self::setup(format!(
                "{target} cannot be reached over TLS ({tls}): check sslmode and sslrootcert in the URL"
            )),
            error => Self::unavailable(format!(
                "{target} cannot be reached ({error}): check host and port in the URL, and whether PostgreSQL runs there"
            )),
        }
    }

    pub(super) fn statement(target: &str, error: &sqlx::Error) -> Self {
        let sqlx::Error::Database(database) = error else {
            return match error {
                sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::ColumnNotFound(_)
                | sqlx::Error::Decode(_) => Self::corrupt(target, &error.to_string()),
                sqlx::Error::PoolTimedOut => Self::unavailable(format!(
                    "no connection to {target} became free in time: the server is down or at its limit, or all connections of this store are in use (see `connections`); try again later"
                )),
                error => Self::new(
                    ErrorKind::Unavailable,
                    format!("the connection to {target} broke ({error}); try again"),
                    Fate::Unknown,
                    Cure::Reconnect,
                ),
            };
        };
        let code = database.code().unwrap_or_default();
        let said = database.message();
        let undone = |kind, message: String, cure| Self::new(kind, message, Fate::Undone, cure);
        match &*code {
            "40001" | "40P01" | "55P03" => undone(
                ErrorKind::Unavailable,
                format!("{target}: other transactions lock the same records ({said}); try again"),
                Cure::Again,
            ),
            "57014" => undone(
                ErrorKind::Unavailable,
                format!("{target} was too slow and the statement was cancelled ({said}); try again later"),
                Cure::Again,
            ),
            "25006" => undone(
                ErrorKind::Unavailable,
                format!("{target} is read-only now ({said}): point the URL at the primary"),
                Cure::Reconnect,
            ),
            "53100" => undone(
                ErrorKind::Full,
                format!("{target} has no disk space left ({said}); nothing was changed, make room"),
                Cure::None,
            ),
            "3F000" | "42P01" | "42703" => undone(
                ErrorKind::Incompatible,
                format!(
                    "{target} lacks a table or column of Semel ({said}): open the store again to migrate it, or restore the schema"
                ),
                Cure::None,
            ),
            "42501" => Self::setup(format!(
                "{target}: the user lacks a privilege ({said}): GRANT it USAGE on Semel's schema, and ALL on its tables and sequences"
            )),
            "26000" | "42P05" | "08P01" => undone(
                ErrorKind::Setup,
                format!(
                    "{target} mixes up prepared statements ({said}): it is a transaction pooler, set Pooling::Transaction"
                ),
                Cure::None,
            ),
            // A server that ends a session may do so after the commit.
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
            code => {
                undone(ErrorKind::Setup, format!("{target} refused a statement ({code}: {said})"), Cure::None)
            }
        }
    }

    fn corrupt(target: &str, what: &str) -> Self {
        Self::new(
            ErrorKind::Corrupt,
            format!(
                "{target} contains data that Semel did not write ({what}); it is never served, restore the row or the database"
            ),
            Fate::Undone,
            Cure::None,
        )
    }

    pub(super) fn row(target: &str, error: &PgRowError) -> Self {
        match error {
            PgRowError::Sql(error) => Self::statement(target, error),
            PgRowError::Decode(error) => Self::corrupt(target, &error.to_string()),
        }
    }

    /// For a command that may have been executed.
    pub(super) fn ambiguous(&self) -> Error {
        Error::new(
            ErrorKind::Ambiguous,
            format!("{}; whether the command was executed is unknown", self.message),
        )
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Error::new(fault.kind, fault.message)
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}
