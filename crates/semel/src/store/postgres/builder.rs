//! Settings of the PostgreSQL store.

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnectOptions};
use sqlx::query::Query;
use sqlx::{ConnectOptions as _, Postgres};

use super::PostgresStore;
use super::fault::Fault;
use super::sql::{Statement, Statements};
use crate::store::Error;
use crate::sync::Mutex;

/// The connection between the store and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Direct, or through a pooler that gives every client its own session. Statements are prepared once, LISTEN
    /// wakes waiters.
    #[default]
    Direct,
    /// Through a pooler that assigns connections per transaction. No feature of a session is used: no named
    /// statements, no LISTEN. Waiters poll, and caches of outcomes are disabled.
    Transaction,
}

/// What to do with a server that acknowledges commits before they are on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AsyncCommit {
    /// Refuse to open: a crash of the server would lose acknowledged claims, and effects would happen twice.
    #[default]
    Refuse,
    /// Accept it.
    Accept,
}

/// Settings for a [`PostgresStore`]. Created by [`PostgresStore::builder`].
#[derive(Clone, Debug)]
pub struct PostgresBuilder {
    url: String,
    schema: String,
    pooling: Pooling,
    async_commit: AsyncCommit,
    connections: u32,
    patience: Duration,
}

impl PostgresBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            schema: "semel".to_owned(),
            pooling: Pooling::default(),
            async_commit: AsyncCommit::default(),
            connections: 4,
            patience: Duration::from_secs(5),
        }
    }

    /// The schema of Semel's tables; default `semel`. It is created if it is missing.
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// Whether a transaction pooler is in use.
    #[must_use]
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = pooling;
        self
    }

    /// What to do if `synchronous_commit` is off.
    #[must_use]
    pub fn async_commit(mut self, async_commit: AsyncCommit) -> Self {
        self.async_commit = async_commit;
        self
    }

    /// The number of connections for reads, listings and sweeps; default 4. Claims have their own connection and a
    /// spare one for single claims; owners' writes and wake-ups have one each: four more in total.
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How long a call may wait for the server, reconnecting included, before it fails; default 5 s.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience.max(Duration::from_millis(10));
        self
    }

    /// Connects, checks the server, and creates or migrates the schema.
    ///
    /// # Errors
    /// `Setup`, with a message that says what to change: a wrong URL, user, password or privilege, a standby, an old
    /// server, `synchronous_commit = off`. `Incompatible` if a newer Semel wrote the schema. `Unavailable` if the
    /// server does not answer.
    pub async fn open(self) -> Result<PostgresStore, Error> {
        PostgresStore::start(Arc::new(self.settings()?)).await
    }

    pub(super) fn settings(self) -> Result<Settings, Fault> {
        Settings::new(self)
    }
}

/// The settings, checked.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) options: PgConnectOptions,
    /// The server's name in messages, without user and password.
    pub(super) target: String,
    pub(super) address: String,
    pub(super) user: String,
    pub(super) schema: SchemaName,
    pub(super) pooling: Pooling,
    pub(super) async_commit: AsyncCommit,
    pub(super) connections: u32,
    pub(super) patience: Duration,
    pub(super) statements: Statements,
    /// The timeline of the last server. It changes with every promotion.
    pub(super) timeline: Mutex<Option<String>>,
}

impl Settings {
    fn new(builder: PostgresBuilder) -> Result<Self, Fault> {
        let PostgresBuilder { url, schema, pooling, async_commit, connections, patience } = builder;
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(Fault::setup(
                "the store's URL must start with postgres://, as in postgres://user:password@host:5432/database",
            ));
        }
        // The error may repeat the URL, which contains the password.
        let options = PgConnectOptions::from_str(&url).map_err(|_| {
            Fault::setup(
                "the store's URL cannot be read: it looks like postgres://user:password@host:5432/database, with special characters in the password written as %XX",
            )
        })?;
        let schema = SchemaName::new(schema)?;
        let address = format!(
            "{}:{}/{}",
            options.get_host(),
            options.get_port(),
            options.get_database().unwrap_or(options.get_username())
        );
        let milliseconds = |length: Duration| length.as_millis().to_string();
        let options = options.disable_statement_logging();
        let options = if options.get_application_name().is_none() {
            options.application_name("semel")
        } else {
            options
        };
        let options = match pooling {
            // Set in the start-up message, without a round trip. A pooler would refuse them.
            Pooling::Direct => options.options([
                ("statement_timeout", milliseconds(patience * 2)),
                ("lock_timeout", milliseconds(patience.min(LOCK_WAIT))),
                ("idle_in_transaction_session_timeout", milliseconds(patience * 4)),
                ("default_transaction_isolation", "read committed".to_owned()),
            ]),
            Pooling::Transaction => options.statement_cache_capacity(0).extra_float_digits(None),
        };
        Ok(Self {
            target: format!("PostgreSQL at {address}"),
            address,
            user: options.get_username().to_owned(),
            statements: Statements::new(&schema),
            options,
            schema,
            pooling,
            async_commit,
            connections,
            patience,
            timeline: Mutex::default(),
        })
    }

    /// A statement, prepared once for each connection unless a pooler is in between.
    pub(super) fn query<'q>(&self, statement: &Statement) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(statement.sql()).persistent(self.pooling == Pooling::Direct)
    }

    /// Opens a transaction with the limits that a pooler's session cannot hold.
    pub(super) fn begin(&self) -> String {
        format!("BEGIN ISOLATION LEVEL READ COMMITTED; {}", self.limits())
    }

    /// The maximum durations of a transaction: total, lock wait and idle.
    pub(super) fn limits(&self) -> String {
        format!(
            "SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = {}; \
             SET LOCAL idle_in_transaction_session_timeout = {}",
            (self.patience * 2).as_millis(),
            self.patience.min(LOCK_WAIT).as_millis(),
            (self.patience * 4).as_millis(),
        )
    }
}

/// How long a statement waits for a row that another transaction has locked.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// A schema name that needs no escaping.
#[derive(Clone, Debug)]
pub(super) struct SchemaName(String);

impl SchemaName {
    fn new(name: String) -> Result<Self, Fault> {
        let fits = (1..=48).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.starts_with("pg_");
        if fits {
            Ok(Self(name))
        } else {
            Err(Fault::setup(
                "the schema's name must be 1 to 48 lower-case letters, digits or underscores, not beginning with a digit or pg_; the default is semel",
            ))
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }

    pub(super) fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}
