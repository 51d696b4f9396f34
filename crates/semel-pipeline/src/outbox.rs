//! The transactional outbox: an event published inside a transaction of the caller's own, in one piece with the
//! caller's rows, and relayed once into the ledger.
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

use std::time::Duration;

use bytes::Bytes;
use semel::key::KeyError;
use semel::secret::Secret;

use crate::event::{Dedupe, NewEvent, Notes, Origin, Trace};
use crate::id::EventId;

/// The stream that letters of refused events name as their source.
#[cfg(any(feature = "embedded", feature = "postgres"))]
pub(crate) const STREAM: &str = "outbox";

/// An event as its publisher knows it: for whom it is, and what its key hashes to, is the relay's business.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Published {
    /// Its type, e.g. `order.paid`.
    pub event_type: String,
    /// What makes it the same as another of its type and tenant.
    pub dedupe_key: String,
    /// The exact bytes to deliver.
    #[serde(skip)]
    pub payload: Bytes,
    /// What they are.
    pub content_type: String,
    /// Whose it is; `""` where nobody said.
    pub tenant: String,
    /// Deliveries to one target with the same order key are made one after the other.
    pub order_key: Option<String>,
    /// What else to carry along, in order.
    pub headers: Vec<(String, String)>,
    /// Under which request its story is found.
    pub request_id: Option<String>,
    /// The W3C trace context it belongs to.
    pub traceparent: Option<String>,
}

impl Published {
    /// An event of this type with a JSON payload.
    pub fn new(
        event_type: impl Into<String>,
        dedupe_key: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        Self {
            event_type: event_type.into(),
            dedupe_key: dedupe_key.into(),
            payload: payload.into(),
            content_type: "application/json".to_owned(),
            tenant: String::new(),
            order_key: None,
            headers: Vec::new(),
            request_id: None,
            traceparent: None,
        }
    }

    /// Whose it is.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// What it is delivered in order with.
    #[must_use]
    pub fn order_key(mut self, key: impl Into<String>) -> Self {
        self.order_key = Some(key.into());
        self
    }

    /// The event for the ledger, under the id that was minted when it was published, for these targets.
    ///
    /// # Errors
    /// A dedupe key that is empty or too long.
    pub fn into_event(
        self,
        id: EventId,
        secret: &Secret,
        targets: Vec<String>,
    ) -> Result<NewEvent, KeyError> {
        let dedupe =
            Dedupe::of_event(secret, &self.tenant, &self.event_type, &self.dedupe_key, &self.payload)?;
        Ok(NewEvent {
            id,
            tenant: self.tenant,
            event_type: self.event_type,
            dedupe: Some(dedupe),
            payload: self.payload,
            content_type: self.content_type,
            headers: self.headers,
            order_key: self.order_key,
            origin: Origin::Outbox,
            targets,
            delay: Duration::ZERO,
            deliver_within: None,
            notes: Notes::default(),
            trace: Trace { request_id: self.request_id, traceparent: self.traceparent },
        })
    }
}

/// Says which targets want an event, by its type and tenant: the relay asks it.
pub trait Route: Send + Sync + 'static {
    /// The names of the targets.
    fn targets(&self, event: &Published) -> Vec<String>;
}

impl<F: Fn(&Published) -> Vec<String> + Send + Sync + 'static> Route for F {
    fn targets(&self, event: &Published) -> Vec<String> {
        self(event)
    }
}

/// What a round of the relay did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Events that are in the ledger now.
    pub accepted: u64,
    /// Events that were there already.
    pub cached: u64,
    /// Events whose dedupe key is taken by other bytes, or is none: they are dead letters now.
    pub refused: u64,
}

impl Relayed {
    /// How many events left the outbox.
    pub const fn total(self) -> u64 {
        self.accepted + self.cached + self.refused
    }
}
