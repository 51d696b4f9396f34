//! Settings of a store or ledger.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr as _;
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

use crate::PostgresError;

/// The connection between Semel and the server.
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
    /// Refuse to open: a crash of the server would lose acknowledged writes, and effects would happen twice.
    #[default]
    Refuse,
    /// Accept it.
    Accept,
}

/// A store or ledger that a [`PostgresBuilder`] opens.
pub trait Opens: Sized {
    /// What it needs of its connections.
    const PROFILE: Profile;

    /// Why it cannot be opened.
    type Error: From<PostgresError>;

    /// Connects, checks the server, and creates or migrates the tables.
    fn open(settings: PostgresSettings) -> impl Future<Output = Result<Self, Self::Error>> + Send;
}

/// What a store or ledger needs of its connections.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Its name in messages.
    pub name: &'static str,
    /// Its name in `pg_stat_activity`, unless the URL gives one.
    pub application_name: &'static str,
    /// The default of [`PostgresBuilder::connections`].
    pub connections: u32,
    /// How long a statement waits for a row that another transaction has locked.
    pub lock_wait: Duration,
    /// Further settings of each session; `{name}` stands for the schema.
    pub session: &'static [(&'static str, &'static str)],
    /// Whether a change of the primary is logged.
    pub logs_failover: bool,
}

/// Settings for a PostgreSQL store or ledger. Created by its `builder`.
pub struct PostgresBuilder<T> {
    url: String,
    schema: String,
    pooling: Pooling,
    async_commit: AsyncCommit,
    connections: u32,
    timeout: Duration,
    opens: PhantomData<fn() -> T>,
}

impl<T: Opens> PostgresBuilder<T> {
    /// The default settings, for the database of `url`.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            schema: "semel".to_owned(),
            pooling: Pooling::default(),
            async_commit: AsyncCommit::default(),
            connections: T::PROFILE.connections,
            timeout: Duration::from_secs(5),
            opens: PhantomData,
        }
    }

    /// The schema of Semel's tables; default `semel`. It is created if it is missing. A store and a ledger can share
    /// one.
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

    /// The number of pooled connections. A store has 4 by default, for reads, listings and sweeps, and four more:
    /// one for claims, a spare one for single claims, one for owners' writes and one for wake-ups. A ledger has 6 by
    /// default, and one more that listens.
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How long a call may wait for the server, reconnecting included, before it fails; default 5 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.max(Duration::from_millis(10));
        self
    }

    /// Connects, checks the server, and creates or migrates the tables. A ledger's connections live in the tokio
    /// runtime that calls this.
    ///
    /// # Errors
    /// `Setup`, with a message that says what to change: a wrong URL, user, password or privilege, a standby, an old
    /// server, `synchronous_commit = off`. `Incompatible` if a newer Semel wrote the tables. `Unavailable` if the
    /// server does not answer.
    pub async fn open(self) -> Result<T, T::Error> {
        T::open(PostgresSettings::new(self)?).await
    }
}

impl<T> Clone for PostgresBuilder<T> {
    fn clone(&self) -> Self {
        Self { url: self.url.clone(), schema: self.schema.clone(), ..*self }
    }
}

impl<T> fmt::Debug for PostgresBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL: it contains a password.
        f.debug_struct("PostgresBuilder")
            .field("schema", &self.schema)
            .field("pooling", &self.pooling)
            .field("async_commit", &self.async_commit)
            .field("connections", &self.connections)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// The settings, checked.
#[derive(Debug)]
pub struct PostgresSettings {
    /// For every connection.
    pub options: PgConnectOptions,
    /// The server's name in messages, without user and password.
    pub target: String,
    /// Host, port and database.
    pub address: String,
    /// The schema of the tables.
    pub schema: SchemaName,
    /// The connection between Semel and the server.
    pub pooling: Pooling,
    /// What to do with asynchronous commits.
    pub async_commit: AsyncCommit,
    /// The number of pooled connections.
    pub connections: u32,
    /// How long a call may wait for the server.
    pub timeout: Duration,
    /// Begins a transaction with the settings that a pooler's session cannot hold.
    pub begin: String,
    pub(crate) profile: Profile,
    /// The timeline of the last server. It changes with every promotion.
    pub(crate) timeline: Mutex<Option<String>>,
}

impl PostgresSettings {
    fn new<T: Opens>(builder: PostgresBuilder<T>) -> Result<Self, PostgresError> {
        let PostgresBuilder { url, schema, pooling, async_commit, connections, timeout, .. } = builder;
        let profile = T::PROFILE;
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(PostgresError::setup(format!(
                "the {}'s URL must start with postgres://, as in postgres://user:password@host:5432/database",
                profile.name
            )));
        }
        // The error may repeat the URL, which contains the password.
        let options = PgConnectOptions::from_str(&url).map_err(|_| {
            PostgresError::setup(format!(
                "the {}'s URL cannot be read: it looks like postgres://user:password@host:5432/database, with special characters in the password written as %XX",
                profile.name
            ))
        })?;
        let schema = SchemaName::new(schema)?;
        let address = format!(
            "{}:{}/{}",
            options.get_host(),
            options.get_port(),
            options.get_database().unwrap_or(options.get_username())
        );
        let session = session(&profile, &schema, timeout);
        let options = options.disable_statement_logging();
        let options = if options.get_application_name().is_none() {
            options.application_name(profile.application_name)
        } else {
            options
        };
        let (options, begin) = match pooling {
            // Set in the start-up message, without a round trip. A pooler would refuse them.
            Pooling::Direct => (options.options(session), "BEGIN".to_owned()),
            Pooling::Transaction => {
                let local = session.iter().map(|(name, value)| format!("; SET LOCAL {name} = '{value}'"));
                let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED{}", local.collect::<String>());
                (options.statement_cache_capacity(0).extra_float_digits(None), begin)
            }
        };
        Ok(Self {
            target: format!("PostgreSQL at {address}"),
            address,
            options,
            schema,
            pooling,
            async_commit,
            connections,
            timeout,
            begin,
            profile,
            timeline: Mutex::default(),
        })
    }
}

fn session(profile: &Profile, schema: &SchemaName, timeout: Duration) -> Vec<(&'static str, String)> {
    let milliseconds = |length: Duration| length.as_millis().to_string();
    let common = [
        ("statement_timeout", milliseconds(timeout * 2)),
        ("lock_timeout", milliseconds(timeout.min(profile.lock_wait))),
        ("idle_in_transaction_session_timeout", milliseconds(timeout * 4)),
        ("default_transaction_isolation", "read committed".to_owned()),
    ];
    let own = profile.session.iter().map(|(name, value)| (*name, value.replace("{name}", schema.name())));
    common.into_iter().chain(own).collect()
}

/// A schema name that needs no escaping.
#[derive(Clone, Debug)]
pub struct SchemaName(String);

impl SchemaName {
    fn new(name: String) -> Result<Self, PostgresError> {
        let fits = (1..=48).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.starts_with("pg_");
        if fits {
            Ok(Self(name))
        } else {
            Err(PostgresError::setup(
                "the schema's name must be 1 to 48 lower-case letters, digits or underscores, not beginning with a digit or pg_; the default is semel",
            ))
        }
    }

    /// The name alone.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The name for SQL.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}
