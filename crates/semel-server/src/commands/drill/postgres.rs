//! A PostgreSQL database for a drill, so that several processes share a ledger: an existing one, or a server started for the drill.

use std::time::Duration;

use anyhow::Context as _;
use semel::store::sqlx::{self, Connection as _, PgConnection, Row as _};
use semel_testbed::Postgres;

/// How long a database may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A PostgreSQL database.
pub(in crate::commands) struct DrillPostgres {
    pub(in crate::commands) url: String,
    /// The schema of all tables of this drill: an existing database may contain others.
    pub(in crate::commands) schema: String,
    /// The server, if the drill started it.
    own: Option<Postgres>,
}

impl DrillPostgres {
    /// A schema of the database at `url`.
    pub(in crate::commands) fn named(url: &str, schema: String) -> Self {
        Self { url: url.to_owned(), schema, own: None }
    }

    /// An error unless the database at `url` answers.
    pub(super) async fn check(url: &str) -> anyhow::Result<()> {
        let connecting = PgConnection::connect(url);
        let connected = tokio::time::timeout(CONNECT, connecting).await;
        let connection = connected.with_context(|| format!("no answer within {} s", CONNECT.as_secs()))??;
        Ok(connection.close().await?)
    }

    /// A name for a new schema.
    pub(in crate::commands) fn new_schema() -> String {
        format!("semel_drill_{:08x}", rand::random::<u32>())
    }

    /// Starts a server; `None` if PostgreSQL is not installed.
    ///
    /// # Errors
    /// It is installed, but cannot be started.
    pub(in crate::commands) fn start() -> anyhow::Result<Option<Self>> {
        match Postgres::options().without_template().start() {
            Ok(own) => {
                let named = Self::named(&own.url(), Self::new_schema());
                Ok(Some(Self { own: Some(own), ..named }))
            }
            Err(semel_testbed::Error::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn own(&self) -> anyhow::Result<&Postgres> {
        self.own.as_ref().context("the drill did not start this PostgreSQL")
    }

    /// Kills it, like a crash.
    pub(in crate::commands) fn kill(&self) -> anyhow::Result<()> {
        self.own().map(Postgres::kill)
    }

    /// Starts it again with its data.
    pub(in crate::commands) fn restart(&self) -> anyhow::Result<()> {
        Ok(self.own()?.restart()?)
    }

    /// Counts rows of the drill's tables, directly in the database. `what` follows SELECT.
    pub(in crate::commands) async fn count(&self, what: &str) -> anyhow::Result<i64> {
        let sql = format!("SET search_path = {}", self.schema);
        let mut connection = PgConnection::connect(&self.url).await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await?;
        let row =
            sqlx::query(sqlx::AssertSqlSafe(format!("SELECT {what}"))).fetch_one(&mut connection).await?;
        Ok(row.try_get(0)?)
    }

    /// Removes the drill's data from an existing database.
    ///
    /// # Errors
    /// It does not answer.
    pub(in crate::commands) async fn remove_data(self) -> anyhow::Result<()> {
        let mut connection = PgConnection::connect(&self.url).await?;
        let drop = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema);
        sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&mut connection).await?;
        Ok(())
    }
}
