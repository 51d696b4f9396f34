//! Errors of PostgreSQL, and the state after them.

use std::fmt;

use sqlx::postgres::PgDatabaseError;

/// A failed statement or connection.
#[derive(Clone, Debug)]
pub struct PostgresError {
    /// What kind of failure it is for the caller.
    pub kind: PostgresErrorKind,
    /// The failure and what to do, without user data.
    pub message: String,
    /// Whether the statement was executed.
    pub execution: Execution,
    /// What can help.
    pub remedy: Remedy,
}

/// The kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostgresErrorKind {
    /// The server does not answer, or not now.
    Unavailable,
    /// A setting of the server or of Semel cannot work.
    Setup,
    /// The server's disk is full.
    Full,
    /// The tables have another format.
    Incompatible,
    /// A row contains data that Semel did not write.
    Corrupt,
    /// The database has the secret of another deployment.
    SecretDiffers,
}

/// The result of a failed statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// The server did not execute it.
    No,
    /// It was sent, and its result is unknown.
    Unknown,
}

/// What can help after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Retry: another transaction was in the way.
    Retry,
    /// Retry on another connection.
    Reconnect,
    /// Wait: the server is known to be unavailable, and that is logged.
    Wait,
    /// None: a program cannot repair it, or the statement is refused.
    None,
}

impl PostgresError {
    /// A failure after which nothing was executed and no retry helps.
    pub fn new(kind: PostgresErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), execution: Execution::No, remedy: Remedy::None }
    }

    /// A setting that cannot work, with a message that says what to do.
    pub fn setup(message: impl Into<String>) -> Self {
        Self::new(PostgresErrorKind::Setup, message)
    }

    /// Nothing was executed; a retry on another connection may help.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(PostgresErrorKind::Unavailable, message).with_remedy(Remedy::Reconnect)
    }

    /// An outage of the server is known, and logged. Nothing was executed.
    pub fn outage(message: impl Into<String>) -> Self {
        Self::unavailable(message).with_remedy(Remedy::Wait)
    }

    /// No answer in time. The connection must be closed.
    pub fn timed_out(target: &str) -> Self {
        Self::disconnected(format!(
            "{target} did not answer in time: it is overloaded, paused or cut off; try again later"
        ))
    }

    /// The server does not answer a connect.
    pub fn unreachable(target: &str) -> Self {
        Self::unavailable(format!("{target} cannot be reached: no answer; check host and port in the URL"))
    }

    /// A row contains data that Semel did not write.
    pub fn corrupt(target: &str, what: &str) -> Self {
        Self::new(
            PostgresErrorKind::Corrupt,
            format!(
                "{target} contains data that Semel did not write ({what}); it is never served, restore the row or the database"
            ),
        )
    }

    fn disconnected(message: String) -> Self {
        Self::unavailable(message).unknown()
    }

    fn busy(message: String) -> Self {
        Self::unavailable(message).with_remedy(Remedy::Retry)
    }

    /// True if the cause is logged, once for all errors that it has: an outage, a full disk, another secret.
    pub fn is_logged(&self) -> bool {
        self.remedy == Remedy::Wait
            || matches!(self.kind, PostgresErrorKind::Full | PostgresErrorKind::SecretDiffers)
    }

    /// The same failure with another remedy.
    #[must_use]
    pub fn with_remedy(self, remedy: Remedy) -> Self {
        Self { remedy, ..self }
    }

    /// The same failure of a statement that was sent, and whose result is unknown.
    #[must_use]
    pub fn unknown(self) -> Self {
        Self { execution: Execution::Unknown, ..self }
    }

    /// The same failure where nothing can have been committed: the transaction ended with its connection.
    #[must_use]
    pub fn not_executed(self) -> Self {
        Self { execution: Execution::No, ..self }
    }

    /// Explains a failed connect.
    pub fn connecting(target: &str, user: &str, error: &sqlx::Error) -> Self {
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
            // The refusal of `check`. The server may be another one in a moment.
            sqlx::Error::Configuration(refusal) => {
                Self::setup(refusal.to_string()).with_remedy(Remedy::Reconnect)
            }
            sqlx::Error::PoolTimedOut => Self::unavailable(format!(
                "no connection to {target} became free in time: the server is down or at its limit, or all connections are in use (see `connections`); try again later"
            )),
            sqlx::Error::Tls(tls) => Self::setup(format!(
                "{target} cannot be reached over TLS ({tls}): check sslmode and sslrootcert in the URL"
            )),
            error => Self::unavailable(format!(
                "{target} cannot be reached ({error}): check host and port in the URL, and whether PostgreSQL runs there"
            )),
        }
    }

    /// Explains a failed statement.
    pub fn statement(target: &str, error: &sqlx::Error) -> Self {
        let sqlx::Error::Database(database) = error else {
            return match error {
                sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::ColumnNotFound(_)
                | sqlx::Error::Decode(_) => Self::corrupt(target, &error.to_string()),
                sqlx::Error::PoolTimedOut => Self::connecting(target, "", error),
                error => Self::disconnected(format!("the connection to {target} broke ({error}); try again")),
            };
        };
        let code = database.code().unwrap_or_default();
        let said = database.message();
        match &*code {
            // The last one: another process wrote the same unique key concurrently.
            "40001" | "40P01" | "55P03" | "23505" => {
                Self::busy(format!("{target}: other transactions lock the same rows ({said}); try again"))
            }
            "57014" => Self::busy(format!(
                "{target} was too slow and the statement was cancelled ({said}); try again later"
            )),
            "25006" => {
                Self::unavailable(format!("{target} is read-only now ({said}): point the URL at the primary"))
            }
            "53100" => Self::new(
                PostgresErrorKind::Full,
                format!("{target} has no disk space left ({said}); nothing was changed, make room"),
            ),
            "3F000" | "42P01" | "42703" => Self::new(
                PostgresErrorKind::Incompatible,
                format!(
                    "{target} lacks a table or column of Semel ({said}): restart Semel to migrate it, or restore the schema"
                ),
            ),
            "42501" => Self::setup(format!(
                "{target}: the user lacks a privilege ({said}): GRANT it USAGE on Semel's schema, and ALL on its tables and sequences"
            )),
            "26000" | "42P05" | "08P01" => Self::setup(format!(
                "{target} mixes up prepared statements ({said}): it is a transaction pooler, set Pooling::Transaction"
            )),
            // A server that ends a session may do so after the commit.
            code if code.starts_with("57P") || code.starts_with("08") => {
                Self::disconnected(format!("{target} ended the connection ({said}); try again"))
            }
            code if code.starts_with("53") => {
                Self::unavailable(format!("{target} is overloaded ({said}); try again later"))
            }
            code if code.starts_with("XX") => Self::corrupt(target, said),
            code => Self::setup(format!("{target} refused a statement ({code}: {said})")),
        }
    }
}

impl std::error::Error for PostgresError {}

impl fmt::Display for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
