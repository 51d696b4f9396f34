//! The outbox in PostgreSQL: an event is published inside the caller's transaction, on the caller's own connection.
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool) -> Result<(), sqlx::Error> {
//! use semel_pipeline::outbox::postgres::publish_in;
//! use semel_pipeline::publish::Publication;
//!
//! let mut transaction = pool.begin().await?;
//! sqlx::query("INSERT INTO paid VALUES (17)").execute(&mut *transaction).await?;
//! publish_in(&mut transaction, &Publication::new("order.paid", "order-17", r#"{"order":17}"#)).await?;
//! transaction.commit().await?;
//! # Ok(()) }
//! ```

use std::sync::Arc;
use std::time::Duration;

use semel::secret::Secret;
use semel::time::{Clock as _, SystemClock};
use sqlx::{AssertSqlSafe, PgConnection};

use super::{Relayed, Route};
use crate::id::{EventId, EventKind};
use crate::ledger::{Error, PostgresLedger};
use crate::publish::Publication;

/// The source name in the dead letters of refused events.
pub const STREAM: &str = super::STREAM;

/// Publishes an event inside the caller's transaction, into the outbox of the ledger in the schema `semel` of the
/// same database. See [`Outbox::publish_in`].
///
/// # Errors
/// PostgreSQL's error.
pub async fn publish_in(transaction: &mut PgConnection, event: &Publication) -> Result<EventId, sqlx::Error> {
    Outbox::default().publish_in(transaction, event).await
}

/// The outbox of a ledger, for callers that publish into it.
#[derive(Clone, Debug)]
pub struct Outbox {
    statement: Arc<str>,
}

impl Default for Outbox {
    fn default() -> Self {
        Self::in_schema("semel")
    }
}

impl Outbox {
    /// The outbox of the ledger in this schema.
    pub fn in_schema(schema: &str) -> Self {
        let quoted = schema.replace('"', "\"\"");
        let literal = schema.replace('\'', "''");
        // PostgreSQL sends the same notification of one transaction once.
        let statement = format!(
            "WITH published AS (INSERT INTO \"{quoted}\".outbox (id, event, payload, published_at) \
             VALUES ($1, $2::json, $3, statement_timestamp()) RETURNING 1) \
             SELECT pg_notify('{literal}_ledger', 'outbox') FROM published"
        );
        Self { statement: statement.into() }
    }

    /// Publishes an event inside a transaction, whatever schema the caller's own tables are in. It is relayed once
    /// that transaction is committed, and never if it is rolled back. Returns the id that the event has if it is the
    /// first with its deduplication key. One round trip.
    ///
    /// The caller's user needs `USAGE` on the ledger's schema and `INSERT` on its table `outbox`, nothing else.
    ///
    /// # Errors
    /// PostgreSQL's error; the transaction has then failed, as after any statement of the caller.
    pub async fn publish_in(
        &self,
        transaction: &mut PgConnection,
        event: &Publication,
    ) -> Result<EventId, sqlx::Error> {
        // Only for the id: the ledger counts time from when it accepts the event.
        let id = EventId::new(EventKind::Event, SystemClock.now());
        let text = serde_json::to_string(event).expect("an event is plain data");
        sqlx::query(AssertSqlSafe(Arc::clone(&self.statement)))
            .bind(id.to_bytes())
            .bind(text)
            .bind(event.payload.as_ref())
            .fetch_all(transaction)
            .await?;
        Ok(id)
    }
}

/// Moves published events into the ledger. Any number of relays may run, in any number of processes: one works at a
/// time.
pub struct PostgresRelay {
    ledger: Arc<PostgresLedger>,
    secret: Secret,
    route: Box<dyn Route>,
}

impl PostgresRelay {
    /// A relay into `ledger`. `route` finds the targets of an event, `secret` is the deployment's.
    pub fn new(ledger: Arc<PostgresLedger>, secret: Secret, route: impl Route) -> Self {
        Self { ledger, secret, route: Box::new(route) }
    }

    /// Relays at most `limit` events, the oldest first: they are accepted and leave the outbox in one transaction, so
    /// each is relayed once, whatever happens meanwhile. An event whose deduplication key is invalid, or belongs to
    /// another payload, becomes a dead letter. Cancel-safe.
    ///
    /// # Errors
    /// The ledger's error. Either no event has left the outbox, or the result is unknown and the next call continues
    /// from it.
    pub async fn run_once(&self, limit: u32) -> Result<Relayed, Error> {
        let place = |id, event: Publication| {
            let targets = self.route.targets(&event);
            event.place(id, &self.secret, targets)
        };
        self.ledger.relay(limit, &place).await
    }

    /// Relays until it is dropped: immediately after a publication, and every `interval`.
    pub async fn run(&self, interval: Duration) {
        loop {
            match self.run_once(256).await {
                Ok(relayed) if relayed.total() > 0 => continue,
                Ok(_) => {}
                Err(error) => super::log_failed_relay(&error),
            }
            self.ledger.published(interval).await;
        }
    }
}

impl std::fmt::Debug for PostgresRelay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}
