//! Settings of the PostgreSQL ledger.

use std::time::Duration;

use semel::store::Error;
use semel_postgres::{Opens, PostgresSettings, Profile};

use super::PostgresLedger;

/// Settings for a [`PostgresLedger`]. Created by [`PostgresLedger::builder`].
pub type PostgresLedgerBuilder = semel_postgres::PostgresBuilder<PostgresLedger>;

impl Opens for PostgresLedger {
    const PROFILE: Profile = Profile {
        name: "ledger",
        application_name: "semel-ledger",
        connections: 6,
        lock_wait: Duration::from_secs(2),
        // The statements name no schema, and are written for their indexes: a plan made while a table was small must
        // not scan it whole once it is large.
        session: &[
            ("search_path", "{name}"),
            ("enable_seqscan", "off"),
            ("enable_bitmapscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("jit", "off"),
        ],
        logs_failover: false,
    };

    type Error = Error;

    async fn open(settings: PostgresSettings) -> Result<Self, Error> {
        Self::start(settings).await.map_err(Error::from)
    }
}
