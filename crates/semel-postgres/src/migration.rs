//! Semel's tables: the first process that opens them creates and migrates them.
//!
//! The migration holds an advisory lock for the length of its transaction, so it also works behind a transaction
//! pooler. It locks the row of the format too, because older binaries lock only that. `format` in `meta` is the format
//! of the tables; `serves` is the oldest format whose binaries still work with them, so that an additive migration
//! does not affect running ones.

use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use crate::{PostgresError, PostgresErrorKind, PostgresSettings};

/// The formats of a store's or ledger's tables.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Before the names of its rows in `meta`.
    pub prefix: &'static str,
    /// The format that this binary writes and can migrate to.
    pub format: i64,
    /// The oldest binaries that work with the tables of `format`.
    pub serves: i64,
    /// One step for each format; step `n` migrates the tables from format `n` to `n + 1`. `{schema}` stands for the
    /// quoted schema, `{name}` for its name. A step never changes once it was released.
    pub steps: &'static [&'static str],
}

impl Migration {
    /// Migrates the tables to this binary's format.
    ///
    /// # Errors
    /// A newer Semel wrote the tables, a privilege is missing, or the server failed.
    pub async fn apply(
        &self,
        connection: &mut PgConnection,
        settings: &PostgresSettings,
    ) -> Result<(), PostgresError> {
        let name = settings.schema.name();
        for _ in 0..20 {
            let found = self.read_format(connection, settings).await;
            if let Some((format, serves)) = found.map_err(|error| explain(settings, &error))? {
                self.refuse_newer(settings, format, serves)?;
                if format >= self.format {
                    return Ok(());
                }
            }
            if let Err(error) = self.migrate(connection, settings).await {
                let _ = sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await;
                if !is_race(&error) {
                    return Err(explain(settings, &error));
                }
            }
        }
        Err(PostgresError::unavailable(format!(
            "{}: the schema {name} is being migrated by another process for too long; try again",
            settings.target
        )))
    }

    fn refuse_newer(
        &self,
        settings: &PostgresSettings,
        format: i64,
        serves: i64,
    ) -> Result<(), PostgresError> {
        if serves <= self.format {
            return Ok(());
        }
        Err(PostgresError::new(
            PostgresErrorKind::Incompatible,
            format!(
                "{}: the {} in the schema {} has format {format} and needs a binary of format {serves} or later, this one knows format {}: upgrade Semel, or give it another schema",
                settings.target,
                settings.profile.name,
                settings.schema.name(),
                self.format,
            ),
        ))
    }

    async fn read_format(
        &self,
        connection: &mut PgConnection,
        settings: &PostgresSettings,
    ) -> Result<Option<(i64, i64)>, sqlx::Error> {
        // Not prepared: a transaction pooler would send the two halves to two servers.
        let sql = self.fill("SELECT to_regclass('{schema}.meta') IS NOT NULL", settings);
        let there: bool = sqlx::raw_sql(sql).fetch_one(&mut *connection).await?.try_get(0)?;
        if !there {
            return Ok(None);
        }
        let sql = "SELECT f.number, coalesce(s.number, f.number) FROM {schema}.meta f \
             LEFT JOIN {schema}.meta s ON s.name = '{prefix}serves' WHERE f.name = '{prefix}format'";
        let row = sqlx::raw_sql(self.fill(sql, settings)).fetch_optional(connection).await?;
        row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
    }

    async fn migrate(
        &self,
        connection: &mut PgConnection,
        settings: &PostgresSettings,
    ) -> Result<(), sqlx::Error> {
        // From here on no other process migrates.
        let begin = self.fill(include_str!("migration.sql"), settings);
        let found = sqlx::raw_sql(begin).fetch_all(&mut *connection).await?;
        let format: i64 = found.last().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        let done = usize::try_from(format).unwrap_or(usize::MAX).min(self.steps.len());
        for step in &self.steps[done..] {
            sqlx::raw_sql(self.fill(step, settings)).execute(&mut *connection).await?;
        }
        if format < self.format {
            let sql = format!(
                "UPDATE {{schema}}.meta SET number = {} WHERE name = '{{prefix}}format'; \
                 INSERT INTO {{schema}}.meta (name, number) VALUES ('{{prefix}}serves', {}) \
                 ON CONFLICT (name) DO UPDATE SET number = greatest(meta.number, excluded.number)",
                self.format, self.serves
            );
            sqlx::raw_sql(self.fill(&sql, settings)).execute(&mut *connection).await?;
        }
        sqlx::raw_sql("COMMIT").execute(connection).await?;
        Ok(())
    }

    /// Fills in names that need no escaping: see [`SchemaName`](crate::SchemaName).
    fn fill(&self, sql: &str, settings: &PostgresSettings) -> AssertSqlSafe<String> {
        let schema = &settings.schema;
        let sql = sql.replace("{schema}", &schema.quoted()).replace("{name}", schema.name());
        AssertSqlSafe(sql.replace("{prefix}", self.prefix).replace("{owner}", settings.profile.name))
    }
}

/// Two processes created the same object concurrently: the loser checks again.
fn is_race(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    matches!(
        database.code().as_deref(),
        Some("23505" | "42P06" | "42P07" | "42710" | "40001" | "40P01" | "55P03" | "XX000")
    )
}

fn explain(settings: &PostgresSettings, error: &sqlx::Error) -> PostgresError {
    let (target, name) = (&settings.target, settings.schema.name());
    match error {
        sqlx::Error::Database(database) if database.code().as_deref() == Some("42501") => {
            PostgresError::setup(format!(
                "{target}: the user may not use or make the schema {name} ({said}): GRANT CREATE ON DATABASE to it, or make the schema as its owner, or GRANT USAGE ON SCHEMA {name} and all rights on its tables and sequences",
                said = database.message(),
            ))
        }
        error => PostgresError::statement(target, error).not_executed(),
    }
}
