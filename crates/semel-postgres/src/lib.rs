//! Internal to Semel: what its PostgreSQL store and its PostgreSQL ledger share.
//!
//! Both connect with the same settings, refuse the same servers, and need the same answer after a failure: was the
//! statement executed, and can a retry help? Statements, rows and batches belong to the store and the ledger.
//!
//! The API can change in every version. Use `semel::store::PostgresStore` and `semel_pipeline::ledger::PostgresLedger`.

mod connection;
mod error;
mod listen;
mod migration;
mod settings;

pub use self::connection::{ReplacedPool, check, connect, probe};
pub use self::error::{Execution, PostgresError, PostgresErrorKind, Remedy};
pub use self::listen::Subscription;
pub use self::migration::Migration;
pub use self::settings::{
    AsyncCommit, Opens, Pooling, PostgresBuilder, PostgresSettings, Profile, SchemaName,
};
