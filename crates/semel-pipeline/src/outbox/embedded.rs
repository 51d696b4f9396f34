//! The outbox in the embedded store's file: the caller's rows, the outbox and the ledger are one file, so the relay is
//! one transaction.

use std::sync::Arc;
use std::time::Duration;

use semel::secret::Secret;
use semel::store::rusqlite::{self, Transaction, params};
use semel::time::{Clock, SystemClock};

use super::{Relayed, Route};
use crate::id::{EventId, EventKind};
use crate::ledger::{EmbeddedLedger, Error};
use crate::publish::Publication;

/// The source name in the dead letters of refused events.
pub const STREAM: &str = super::STREAM;

/// Publishes an event inside a transaction of the embedded store: of [`EmbeddedStore::transact`], or of an effect run
/// by [`Once::run_in`]. It is relayed once that transaction is committed, and never if it is rolled back. Returns the
/// id that the event has if it is the first with its deduplication key.
///
/// The store must have a ledger: [`EmbeddedLedger::open`] creates the table.
///
/// # Errors
/// SQLite's error.
///
/// [`EmbeddedStore::transact`]: semel::store::EmbeddedStore::transact
/// [`Once::run_in`]: semel::engine::Once::run_in
pub fn publish_in(transaction: &Transaction<'_>, event: &Publication) -> rusqlite::Result<EventId> {
    // Only for the id and for people: the ledger counts time from when it accepts the event.
    let now = SystemClock.now();
    let id = EventId::new(EventKind::Event, now);
    let text = serde_json::to_string(event).expect("an event is plain data");
    transaction
        .prepare_cached(
            "INSERT INTO ledger_outbox (id, event, payload, published_at) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![
            id.to_bytes(),
            text,
            &event.payload[..],
            i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
        ])?;
    Ok(id)
}

/// Moves published events into the ledger.
pub struct EmbeddedRelay {
    ledger: Arc<EmbeddedLedger>,
    shared: Arc<OutboxShared>,
}

struct OutboxShared {
    secret: Secret,
    route: Box<dyn Route>,
}

impl EmbeddedRelay {
    /// A relay into `ledger`. `route` finds the targets of an event, `secret` is the deployment's.
    pub fn new(ledger: Arc<EmbeddedLedger>, secret: Secret, route: impl Route) -> Self {
        Self { ledger, shared: Arc::new(OutboxShared { secret, route: Box::new(route) }) }
    }

    /// Relays at most `limit` events, the oldest first: they are accepted and leave the outbox in one transaction, so
    /// each is relayed once, whatever happens meanwhile. An event whose deduplication key is invalid, or belongs to
    /// another payload, becomes a dead letter. Cancel-safe.
    ///
    /// # Errors
    /// The ledger's error. Either no event has left the outbox, or the result is unknown and the next call continues
    /// from it.
    pub async fn run_once(&self, limit: u32) -> Result<Relayed, Error> {
        // Usually the outbox is empty, which a read shows without the writer.
        let some = self.ledger.store().read(|connection| {
            connection.prepare_cached("SELECT 1 FROM ledger_outbox LIMIT 1")?.exists([])
        })?;
        if !some {
            return Ok(Relayed::default());
        }
        let shared = Arc::clone(&self.shared);
        let place = move |id, event: Publication| {
            let targets = shared.route.targets(&event);
            event.place(id, &shared.secret, targets)
        };
        self.ledger.relay(limit, place).await
    }

    /// Relays until it is dropped, and checks every `interval` when the outbox is empty.
    pub async fn run(&self, interval: Duration) {
        loop {
            let relayed = self.run_once(256).await.unwrap_or_else(|error| {
                super::log_failed_relay(&error);
                Relayed::default()
            });
            if relayed.total() == 0 {
                tokio::time::sleep(interval).await;
            }
        }
    }
}

impl std::fmt::Debug for EmbeddedRelay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}
