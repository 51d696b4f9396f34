//! Settings of the PostgreSQL ledger.

use std::str::FromStr as _;
use std::time::Duration;

use semel::store::{AsyncCommit, Error, Pooling};
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

use super::PostgresLedger;
use super::fault::Trouble;

/// Settings for a [`PostgresLedger`]. Made by [`PostgresLedger::builder`].
#[derive(Clone)]
pub struct PostgresLedgerBuilder {
    url: String,
    schema: String,
    pooling: Pooling,
    async_commit: AsyncCommit,
    connections: u32,
    patience: Duration,
}

impl PostgresLedgerBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            schema: "semel".to_owned(),
            pooling: Pooling::default(),
            async_commit: AsyncCommit::default(),
            connections: 6,
            patience: Duration::from_secs(5),
        }
    }

    /// The schema that holds the ledger's tables; `semel` unless told. It is made if it is missing. The PostgreSQL store
    /// may live in the same one.
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// Whether a transaction pooler stands in between. Then nothing of a session is used, and
    /// [`changed`](crate::ledger::Working::changed) ends once a second instead of when another process has news.
    #[must_use]
    pub fn pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = pooling;
        self
    }

    /// What to do where `synchronous_commit` is off.
    #[must_use]
    pub fn async_commit(mut self, async_commit: AsyncCommit) -> Self {
        self.async_commit = async_commit;
        self
    }

    /// How many connections it may use; 6 unless told. One more listens.
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// How long a call may wait for the server, reconnecting included, before it fails; 5 s unless told.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience.max(Duration::from_millis(10));
        self
    }

    /// Connects, checks the server, and makes or migrates the tables. Must be called inside a tokio runtime, which then
    /// carries the ledger's connections.
    ///
    /// # Errors
    /// `Setup` with a sentence that says what to change: a wrong URL, user, password or right, a standby, an old
    /// server, `synchronous_commit = off`. `Incompatible` where a newer Semel wrote the tables. `Unavailable`
    /// where nobody answers.
    pub async fn open(self) -> Result<PostgresLedger, Error> {
        PostgresLedger::start(Settings::new(self)?).await.map_err(Error::from)
    }
}

impl std::fmt::Debug for PostgresLedgerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the URL: it holds a password.
        f.debug_struct("PostgresLedgerBuilder")
            .field("schema", &self.schema)
            .field("pooling", &self.pooling)
            .field("async_commit", &self.async_commit)
            .field("connections", &self.connections)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// The settings, checked.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) options: PgConnectOptions,
    /// What messages call the server. Without user and password.
    pub(super) target: String,
    pub(super) address: String,
    pub(super) schema: SchemaName,
    pub(super) pooling: Pooling,
    pub(super) async_commit: AsyncCommit,
    pub(super) connections: u32,
    pub(super) patience: Duration,
    /// Opens a transaction with everything that a pooler's session cannot keep.
    pub(super) begin: String,
}

/// How long a statement waits for a row that somebody else holds.
const LOCK_WAIT: Duration = Duration::from_secs(2);

impl Settings {
    fn new(builder: PostgresLedgerBuilder) -> Result<Self, Trouble> {
        let PostgresLedgerBuilder { url, schema, pooling, async_commit, connections, patience } = builder;
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(Trouble::setup(
                "the ledger's URL must start with postgres://, as in postgres://user:password@host:5432/database",
            ));
        }
        // The error may repeat the URL, and with it the password.
        let options = PgConnectOptions::from_str(&url).map_err(|_| {
            Trouble::setup(
                "the ledger's URL cannot be read: it looks like postgres://user:password@host:5432/database, with special characters in the password written as %XX",
            )
        })?;
        let schema = SchemaName::new(schema)?;
        let address = format!(
            "{}:{}/{}",
            options.get_host(),
            options.get_port(),
            options.get_database().unwrap_or(options.get_username())
        );
        let session = session(&schema, patience);
        let options = options.disable_statement_logging();
        let options = if options.get_application_name().is_none() {
            options.application_name("semel-ledger")
        } else {
            options
        };
        let (options, begin) = match pooling {
            // Set as the connection starts: no round trip for it.
            Pooling::Direct => (options.options(session), "BEGIN".to_owned()),
            Pooling::Transaction => {
                let locally = session.iter().map(|(name, value)| format!("; SET LOCAL {name} = '{value}'"));
                let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED{}", locally.collect::<String>());
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
            patience,
            begin,
        })
    }
}

/// What every session or transaction of the ledger needs. Its statements name no schema, and are written for their
/// indexes: a plan made while a table was small must not scan it whole once it is large.
fn session(schema: &SchemaName, patience: Duration) -> Vec<(&'static str, String)> {
    let milliseconds = |length: Duration| length.as_millis().to_string();
    vec![
        ("search_path", schema.name().to_owned()),
        ("statement_timeout", milliseconds(patience * 2)),
        ("lock_timeout", milliseconds(patience.min(LOCK_WAIT))),
        ("idle_in_transaction_session_timeout", milliseconds(patience * 4)),
        ("default_transaction_isolation", "read committed".to_owned()),
        ("enable_seqscan", "off".to_owned()),
        ("enable_bitmapscan", "off".to_owned()),
        ("enable_hashjoin", "off".to_owned()),
        ("enable_mergejoin", "off".to_owned()),
        ("jit", "off".to_owned()),
    ]
}

/// A schema's name that needs no escaping anywhere.
#[derive(Clone, Debug)]
pub(super) struct SchemaName(String);

impl SchemaName {
    fn new(name: String) -> Result<Self, Trouble> {
        let fits = (1..=48).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.starts_with("pg_");
        if fits {
            Ok(Self(name))
        } else {
            Err(Trouble::setup(
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
