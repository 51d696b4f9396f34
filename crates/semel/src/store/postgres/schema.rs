//! Semel's own schema: created and migrated by the first store that opens it.
//!
//! There is no advisory lock: a transaction pooler would lose it. The migrating process locks the row `format` of
//! `meta`, and objects are created only if they are missing. `format` is the format of the tables; `serves` is the
//! oldest format whose binaries still work with them, so that an additive migration does not affect running ones.

use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::builder::SchemaName;
use super::fault::{Cure, Fate, Fault};
use crate::store::ErrorKind;

/// The format that this binary writes and can migrate to.
pub(super) const FORMAT: i64 = 1;

/// The oldest binaries that work with the tables of [`FORMAT`].
const SERVES: i64 = 1;

/// One step for each format; step `n` migrates the tables from format `n` to `n + 1`. A step never changes once it
/// was released.
const STEPS: &[&str] = &[include_str!("schema_1.sql")];

/// Migrates the schema to this binary's format, or returns why it cannot be used.
pub(super) async fn prepare(
    connection: &mut PgConnection,
    schema: &SchemaName,
    target: &str,
) -> Result<(), Fault> {
    for _ in 0..20 {
        if let Some((format, serves)) = read_format(connection, schema, target).await? {
            refuse_newer(target, schema, format, serves)?;
            if format >= FORMAT {
                return Ok(());
            }
        }
        match migrate(connection, schema).await {
            Ok(()) => {}
            Err(error) if raced(&error) => {
                let _ = sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await;
            }
            Err(error) => {
                let _ = sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await;
                return Err(explain(target, schema, &error));
            }
        }
    }
    Err(Fault::unavailable(format!(
        "{target}: the schema {} is being migrated by another process for too long; try again",
        schema.name()
    )))
}

fn refuse_newer(target: &str, schema: &SchemaName, format: i64, serves: i64) -> Result<(), Fault> {
    if serves <= FORMAT {
        return Ok(());
    }
    Err(Fault::new(
        ErrorKind::Incompatible,
        format!(
            "{target}: the schema {} has format {format} and needs a binary of format {serves} or later, this one knows format {FORMAT}: upgrade Semel, or give it another schema",
            schema.name()
        ),
        Fate::Undone,
        Cure::None,
    ))
}

async fn read_format(
    connection: &mut PgConnection,
    schema: &SchemaName,
    target: &str,
) -> Result<Option<(i64, i64)>, Fault> {
    // Not prepared: see `link::check`. The name was checked.
    let sql = format!("SELECT to_regclass('{}.meta') IS NOT NULL", schema.quoted());
    let there = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut *connection).await;
    let there: bool =
        there.and_then(|row| row.try_get(0)).map_err(|error| explain(target, schema, &error))?;
    if !there {
        return Ok(None);
    }
    let sql = format!("SELECT name, number FROM {}.meta WHERE name IN ('format', 'serves')", schema.quoted());
    let rows = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_all(connection)
        .await
        .map_err(|error| explain(target, schema, &error))?;
    let fact = |name: &str| {
        rows.iter()
            .find(|row| row.try_get::<&str, _>(0).is_ok_and(|found| found == name))
            .and_then(|row| row.try_get::<i64, _>(1).ok())
    };
    Ok(fact("format").map(|format| (format, fact("serves").unwrap_or(format))))
}

async fn migrate(connection: &mut PgConnection, schema: &SchemaName) -> Result<(), sqlx::Error> {
    let quoted = schema.quoted();
    let run = |sql: String| AssertSqlSafe(sql.replace("{schema}", &quoted).replace("{name}", schema.name()));
    sqlx::raw_sql(run(include_str!("schema_0.sql").to_owned())).execute(&mut *connection).await?;
    // From here on other processes wait for this row and cannot migrate.
    let sql = run("SELECT number FROM {schema}.meta WHERE name = 'format' FOR UPDATE".to_owned());
    let format: i64 = sqlx::query_scalar(sql).persistent(false).fetch_one(&mut *connection).await?;
    let done = usize::try_from(format).unwrap_or(usize::MAX).min(STEPS.len());
    for step in &STEPS[done..] {
        sqlx::raw_sql(run((*step).to_owned())).execute(&mut *connection).await?;
    }
    if format < FORMAT {
        let sql = format!(
            "UPDATE {{schema}}.meta SET number = {FORMAT} WHERE name = 'format'; \
             INSERT INTO {{schema}}.meta (name, number) VALUES ('serves', {SERVES}) \
             ON CONFLICT (name) DO UPDATE SET number = greatest(meta.number, excluded.number)"
        );
        sqlx::raw_sql(run(sql)).execute(&mut *connection).await?;
    }
    sqlx::raw_sql("COMMIT").execute(connection).await?;
    Ok(())
}

/// Two processes created the same object concurrently: the loser checks again.
fn raced(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    matches!(
        database.code().as_deref(),
        Some("23505" | "42P06" | "42P07" | "42710" | "40001" | "40P01" | "55P03" | "XX000")
    )
}

fn explain(target: &str, schema: &SchemaName, error: &sqlx::Error) -> Fault {
    let sqlx::Error::Database(database) = error else { return Fault::statement(target, error) };
    match database.code().as_deref() {
        Some("42501") => Fault::setup(format!(
            "{target}: the user may not use or make the schema {name} ({said}): GRANT CREATE ON DATABASE to it, or make the schema as its owner, or GRANT USAGE ON SCHEMA {name} and all rights on its tables and sequences",
            name = schema.name(),
            said = database.message(),
        )),
        _ => Fault::statement(target, error),
    }
}
