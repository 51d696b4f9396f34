//! Settings of the PostgreSQL store.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use semel_postgres::{Opens, PostgresError, PostgresSettings, Profile};
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

use super::row::PgRowError;
use super::sql::{Statement, Statements};
use super::{Pooling, PostgresStore};
use crate::store::Error;

/// Settings for a [`PostgresStore`]. Created by [`PostgresStore::builder`].
pub type PostgresBuilder = semel_postgres::PostgresBuilder<PostgresStore>;

impl Opens for PostgresStore {
    const PROFILE: Profile = Profile {
        name: "store",
        application_name: "semel",
        connections: 4,
        lock_wait: Duration::from_secs(1),
        session: &[],
        logs_failover: true,
    };

    type Error = Error;

    async fn open(settings: PostgresSettings) -> Result<Self, Error> {
        let statements = Statements::new(&settings.schema);
        Self::start(Arc::new(Settings { connection: Arc::new(settings), statements })).await
    }
}

/// The settings, checked, and the statements for their schema.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) connection: Arc<PostgresSettings>,
    pub(super) statements: Statements,
}

impl Settings {
    /// Explains a failed statement.
    pub(super) fn explain(&self, error: &sqlx::Error) -> PostgresError {
        PostgresError::statement(&self.target, error)
    }

    /// Explains a row that cannot be read.
    pub(super) fn explain_row(&self, error: &PgRowError) -> PostgresError {
        match error {
            PgRowError::Postgres(error) => error.clone(),
            PgRowError::Sql(error) => self.explain(error),
            PgRowError::Decode(error) => PostgresError::corrupt(&self.target, &error.to_string()),
        }
    }

    /// A statement, prepared once for each connection unless a pooler is in between.
    pub(super) fn query<'q>(&self, statement: &Statement) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(statement.sql()).persistent(self.pooling == Pooling::Direct)
    }
}

impl Deref for Settings {
    type Target = PostgresSettings;

    fn deref(&self) -> &PostgresSettings {
        &self.connection
    }
}
