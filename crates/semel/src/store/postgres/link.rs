//! A connection that reconnects by itself.

use std::sync::Arc;
use std::time::Duration;

use semel_postgres::{Execution, PostgresError, Remedy};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Postgres};
use tokio::time::timeout;

use super::Pooling;
use super::builder::Settings;
use crate::outage::Availability;

/// A connection of one task. Opened on first use, and closed after every failure that may have left it in an unknown
/// state.
#[derive(Debug)]
pub(super) struct OwnConnection {
    settings: Arc<Settings>,
    availability: Arc<Availability>,
    connection: Option<PgConnection>,
}

impl OwnConnection {
    pub(super) fn new(
        settings: Arc<Settings>,
        availability: Arc<Availability>,
        connection: Option<PgConnection>,
    ) -> Self {
        Self { settings, availability, connection }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Connects and checks the server, if there is no connection.
    pub(super) async fn connect(&mut self) -> Result<&mut PgConnection, PostgresError> {
        if self.connection.is_none() {
            let connecting = semel_postgres::connect(&self.settings);
            self.connection = Some(self.availability.connect(&self.settings, connecting).await?);
        }
        Ok(self.connection.as_mut().expect("it was just made"))
    }

    /// Runs one statement, committed when this returns.
    pub(super) async fn fetch(
        &mut self,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, PostgresError> {
        match self.try_fetch(query).await {
            Ok(rows) => Ok(rows),
            Err(fault) => Err(self.availability.judge_error(fault).await),
        }
    }

    async fn try_fetch(
        &mut self,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, PostgresError> {
        let (settings, availability) = (Arc::clone(&self.settings), Arc::clone(&self.availability));
        // A failure to connect has sent nothing.
        let connection = self.connect().await?;
        let statement =
            async { run(&settings, connection, query).await.map_err(|error| settings.explain(&error)) };
        let result = availability.execute(&settings, statement).await;
        if let Err(fault) = &result
            && (matches!(fault.remedy, Remedy::Reconnect | Remedy::Wait)
                || fault.execution == Execution::Unknown
                || settings.pooling == Pooling::Transaction)
        {
            self.connection = None;
        }
        result
    }

    /// Closes the connection properly, so that the server's log stays clean.
    pub(super) async fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            let _ = timeout(Duration::from_millis(200), connection.close()).await;
        }
    }
}

/// Runs one statement: directly, or in a transaction with its own limits.
pub(super) async fn run(
    settings: &Settings,
    connection: &mut PgConnection,
    query: Query<'_, Postgres, PgArguments>,
) -> Result<Vec<PgRow>, sqlx::Error> {
    match settings.pooling {
        Pooling::Direct => query.fetch_all(connection).await,
        Pooling::Transaction => {
            sqlx::raw_sql(AssertSqlSafe(settings.begin.clone())).execute(&mut *connection).await?;
            let rows = query.fetch_all(&mut *connection).await?;
            sqlx::raw_sql("COMMIT").execute(connection).await?;
            Ok(rows)
        }
    }
}
