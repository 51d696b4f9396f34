//! The transactional outbox: an event is published inside the caller's transaction, atomically with the caller's
//! rows, and relayed once into the ledger.
//!
//! ```text
//!   caller's transaction: rows + publish_in ──commit──► outbox ──relay: accept and remove──► ledger
//! ```
//!
//! Nothing is sent if the transaction is rolled back; nothing is lost once it is committed.

#[cfg(feature = "embedded")]
pub mod embedded;
#[cfg(feature = "postgres")]
pub mod postgres;

use crate::publish::Publication;

/// The source name in the dead letters of refused events.
#[cfg(any(feature = "embedded", feature = "postgres"))]
pub(crate) const STREAM: &str = "outbox";

/// Finds the targets of an event by its type and tenant; the relay calls it.
pub trait Route: Send + Sync + 'static {
    /// The names of the targets.
    fn targets(&self, event: &Publication) -> Vec<String>;
}

impl<F: Fn(&Publication) -> Vec<String> + Send + Sync + 'static> Route for F {
    fn targets(&self, event: &Publication) -> Vec<String> {
        self(event)
    }
}

#[cfg(any(feature = "embedded", feature = "postgres"))]
fn log_failed_relay(error: &crate::ledger::Error) {
    if error.is_logged() {
        tracing::debug!(%error, "the outbox could not be relayed; retrying");
    } else {
        tracing::warn!(%error, "the outbox could not be relayed; retrying");
    }
}

/// The result of one round of the relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Events that are in the ledger now.
    pub accepted: u64,
    /// Events that were already there.
    pub cached: u64,
    /// Events whose deduplication key belongs to another payload or is invalid: they are dead letters now.
    pub refused: u64,
}

impl Relayed {
    /// How many events left the outbox.
    pub const fn total(self) -> u64 {
        self.accepted + self.cached + self.refused
    }
}
