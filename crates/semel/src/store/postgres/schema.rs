//! The formats of the store's tables.

use semel_postgres::Migration;

/// The row of the format has no prefix: the store was the first in its schema.
pub(super) const MIGRATION: Migration = Migration {
    prefix: "",
    format: 2,
    serves: 1,
    steps: &[include_str!("schema_1.sql"), include_str!("schema_2.sql")],
};
