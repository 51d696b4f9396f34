//! The formats of the ledger's tables.

use semel_postgres::Migration;

/// The format this binary writes, and knows how to migrate to.
pub(super) const FORMAT: i64 = 4;

/// The oldest binaries that can work on the tables of [`FORMAT`]. Those of format 3 do not know pauses of targets.
const SERVES: i64 = 3;

/// One step for each format; step `n` takes the tables from format `n` to `n + 1`. A step is never edited once
/// it was shipped.
const STEPS: &[&str] = &[
    concat!(include_str!("schema_1.sql"), include_str!("schema_1_words.sql")),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
];

/// The migration to [`FORMAT`].
pub(super) const MIGRATION: Migration =
    Migration { prefix: "ledger_", format: FORMAT, serves: SERVES, steps: STEPS };
