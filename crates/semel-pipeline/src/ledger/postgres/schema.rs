//! The ledger's tables. The first process that opens a ledger creates and migrates them.
//!
//! The migration holds an advisory lock for the length of its transaction, so it also works behind a transaction pooler.
//! `ledger_format` in `meta` is what the tables are; `ledger_serves` is the oldest format whose binaries can still work on
//! them, so that an additive migration leaves running ones alone.

use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::builder::SchemaName;
use super::fault::Trouble;

/// The format this binary writes, and knows how to migrate to.
pub(super) const FORMAT: i64 = 3;

/// The oldest binaries that can work on the tables of [`FORMAT`].
const SERVES: i64 = 3;

/// One step for each format; step `n` takes the tables from format `n` to `n + 1`. A step is never edited once
/// it was shipped.
const STEPS: &[&str] = &[
    concat!(include_str!("schema_1.sql"), include_str!("schema_1_words.sql")),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
];

/// Brings the tables to this binary's format, or says why they cannot be used.
pub(super) async fn prepare(
    connection: &mut PgConnection,
    schema: &SchemaName,
    target: &str,
) -> Result<(), Trouble> {
    for _ in 0..20 {
        let found = read_format(connection, schema).await.map_err(|error| explain(target, schema, &error))?;
        if let Some((format, serves)) = found {
            refuse_newer(target, schema, format, serves)?;
            if format >= FORMAT {
                return Ok(());
            }
        }
        if let Err(error) = migrate(connection, schema).await {
            let _ = sqlx::raw_sql("ROLLBACK").execute(&mut *connection).await;
            if !raced(&error) {
                return Err(explain(target, schema, &error));
            }
        }
    }
    Err(Trouble::unavailable(format!(
        "{target}: the schema {} is being migrated by somebody else for too long; try again",
        schema.name()
    )))
}

fn refuse_newer(target: &str, schema: &SchemaName, format: i64, serves: i64) -> Result<(), Trouble> {
    if serves <= FORMAT {
        return Ok(());
    }
    Err(Trouble::incompatible(format!(
        "{target}: the ledger in the schema {} has format {format} and needs a binary of format {serves} or later, this one knows format {FORMAT}: upgrade Semel, or give it another schema",
        schema.name()
    )))
}

async fn read_format(
    connection: &mut PgConnection,
    schema: &SchemaName,
) -> Result<Option<(i64, i64)>, sqlx::Error> {
    // Not prepared: a transaction pooler would give the two halves of it to two servers. The name was checked.
    let sql = format!("SELECT to_regclass('{}.meta') IS NOT NULL", schema.quoted());
    let there: bool = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut *connection).await?.try_get(0)?;
    if !there {
        return Ok(None);
    }
    let sql = format!(
        "SELECT name, number FROM {}.meta WHERE name IN ('ledger_format', 'ledger_serves')",
        schema.quoted()
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
    let fact = |name: &str| {
        rows.iter()
            .find(|row| row.try_get::<&str, _>(0).is_ok_and(|found| found == name))
            .and_then(|row| row.try_get::<i64, _>(1).ok())
    };
    Ok(fact("ledger_format").map(|format| (format, fact("ledger_serves").unwrap_or(format))))
}

async fn migrate(connection: &mut PgConnection, schema: &SchemaName) -> Result<(), sqlx::Error> {
    let quoted = schema.quoted();
    let run = |sql: &str| AssertSqlSafe(sql.replace("{schema}", &quoted).replace("{name}", schema.name()));
    // From here on nobody else migrates.
    sqlx::raw_sql(run(include_str!("schema_0.sql"))).execute(&mut *connection).await?;
    let sql = run("SELECT number FROM {schema}.meta WHERE name = 'ledger_format'");
    let format: i64 = sqlx::raw_sql(sql).fetch_one(&mut *connection).await?.try_get(0)?;
    let done = usize::try_from(format).unwrap_or(usize::MAX).min(STEPS.len());
    for step in &STEPS[done..] {
        sqlx::raw_sql(run(step)).execute(&mut *connection).await?;
    }
    if format < FORMAT {
        let sql = format!(
            "UPDATE {{schema}}.meta SET number = {FORMAT} WHERE name = 'ledger_format'; \
             INSERT INTO {{schema}}.meta (name, number) VALUES ('ledger_serves', {SERVES}) \
             ON CONFLICT (name) DO UPDATE SET number = greatest(meta.number, excluded.number)"
        );
        sqlx::raw_sql(run(&sql)).execute(&mut *connection).await?;
    }
    sqlx::raw_sql("COMMIT").execute(connection).await?;
    Ok(())
}

/// Two made the same object at the same moment: the loser looks again. The store migrates the same schema under a lock of
/// its own.
fn raced(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    matches!(
        database.code().as_deref(),
        Some("23505" | "42P06" | "42P07" | "42710" | "40001" | "40P01" | "55P03" | "XX000")
    )
}

fn explain(target: &str, schema: &SchemaName, error: &sqlx::Error) -> Trouble {
    let sqlx::Error::Database(database) = error else { return Trouble::of(target, error) };
    match database.code().as_deref() {
        Some("42501") => Trouble::setup(format!(
            "{target}: the user may not use or make the schema {name} ({said}): GRANT CREATE ON DATABASE to it, or make the schema as its owner, or GRANT USAGE ON SCHEMA {name} and all rights on its tables and sequences",
            name = schema.name(),
            said = database.message(),
        )),
        _ => Trouble::of(target, error),
    }
}
