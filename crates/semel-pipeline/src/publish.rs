//! Turns a publication from the API or a caller into an event, with every member checked.

use std::time::Duration;

use bytes::Bytes;
use semel::key::KeyError;
use semel::secret::Secret;
use semel::time::Timestamp;

use crate::event::{Dedupe, NewEvent, Notes, Origin, Trace};
use crate::id::{EventId, EventKind};
use crate::target::{Targets, is_event_type};

/// The longest tenant, in bytes.
pub const MAX_TENANT: usize = 255;
/// The longest order key, in bytes.
pub const MAX_ORDER_KEY: usize = 255;

/// An event to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The tenant; `""` without one.
    pub tenant: String,
    /// Its type, e.g. `order.paid`.
    pub event_type: String,
    /// Names the event within its tenant and type.
    pub dedupe_key: String,
    /// The exact bytes to deliver.
    pub payload: Bytes,
    /// Their content type.
    pub content_type: String,
    /// Other fields of the source, in order.
    pub headers: Vec<(String, String)>,
    /// Deliveries to one target with the same order key are made one after the other.
    pub order_key: Option<String>,
    /// The origin of the event.
    pub origin: Origin,
    /// The ids that connect it to traces and requests of other systems.
    pub trace: Trace,
    /// How long to wait before the first attempt.
    pub delay: Duration,
    /// After this time it is not delivered any more. `None`: never.
    pub deliver_within: Option<Duration>,
}

/// Why an event cannot be published. The text names the member, and never contains its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unpublishable {
    /// The type is invalid.
    #[error(
        "type: expected letters, digits, `.`, `_`, `-`, `:` or `/`, from 1 to 200 characters, as in \"order.paid\""
    )]
    Type,
    /// The deduplication key is invalid.
    #[error("dedupe_key: {0}")]
    Key(#[from] KeyError),
    /// The deduplication key is empty.
    #[error(
        "dedupe_key: is empty; name what makes this event the same as another, such as the order and its version"
    )]
    NoKey,
    /// The tenant is too long.
    #[error("tenant: expected at most {MAX_TENANT} bytes without control characters")]
    Tenant,
    /// The order key is empty or too long.
    #[error("order_key: expected 1 to {MAX_ORDER_KEY} bytes")]
    OrderKey,
}

impl Publication {
    /// An event with a JSON payload, without a publisher.
    pub fn json(
        event_type: impl Into<String>,
        dedupe_key: impl Into<String>,
        payload: impl Into<Bytes>,
        origin: Origin,
    ) -> Self {
        Self {
            tenant: String::new(),
            event_type: event_type.into(),
            dedupe_key: dedupe_key.into(),
            payload: payload.into(),
            content_type: "application/json".to_owned(),
            headers: Vec::new(),
            order_key: None,
            origin,
            trace: Trace::default(),
            delay: Duration::ZERO,
            deliver_within: None,
        }
    }

    /// The event for a ledger, with the targets that subscribe to its type now.
    ///
    /// # Errors
    /// The first invalid member.
    pub fn into_event(
        self,
        secret: &Secret,
        targets: &Targets,
        now: Timestamp,
    ) -> Result<NewEvent, Unpublishable> {
        let dedupe = self.dedupe(secret)?;
        Ok(NewEvent {
            id: EventId::new(EventKind::Event, now),
            targets: targets.wanting(&self.event_type),
            tenant: self.tenant,
            event_type: self.event_type,
            dedupe: Some(dedupe),
            payload: self.payload,
            content_type: self.content_type,
            headers: self.headers,
            order_key: self.order_key,
            origin: self.origin,
            delay: self.delay,
            deliver_within: self.deliver_within,
            notes: Notes::default(),
            trace: self.trace,
        })
    }

    /// Its deduplication: tenant, type and key name it, and its payload, byte for byte, detects a conflict.
    ///
    /// # Errors
    /// The first invalid member.
    pub fn dedupe(&self, secret: &Secret) -> Result<Dedupe, Unpublishable> {
        if !is_event_type(&self.event_type) {
            return Err(Unpublishable::Type);
        }
        if self.dedupe_key.is_empty() {
            return Err(Unpublishable::NoKey);
        }
        if self.tenant.len() > MAX_TENANT || self.tenant.chars().any(char::is_control) {
            return Err(Unpublishable::Tenant);
        }
        if self.order_key.as_ref().is_some_and(|key| !(1..=MAX_ORDER_KEY).contains(&key.len())) {
            return Err(Unpublishable::OrderKey);
        }
        let Self { tenant, event_type, dedupe_key, payload, .. } = self;
        Ok(Dedupe::of_event(secret, tenant, event_type, dedupe_key, payload)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publication() -> Publication {
        Publication::json("order.paid", "order-1", "{}", Origin::Outbox)
    }

    // The identity of an event.
    #[test]
    fn tenant_type_and_key_name_an_event() {
        let secret = Secret::from_bytes([3; 32]);
        let dedupe = |change: fn(&mut Publication)| {
            let mut publication = publication();
            change(&mut publication);
            publication.dedupe(&secret).unwrap()
        };
        let same = dedupe(|_| {});
        assert_eq!(dedupe(|p| p.order_key = Some("x".into())), same);
        for other in [
            dedupe(|p| p.tenant = "acme".into()),
            dedupe(|p| p.event_type = "order.made".into()),
            dedupe(|p| p.dedupe_key = "order-2".into()),
        ] {
            assert_ne!(other.id, same.id);
        }
        let other_payload = dedupe(|p| p.payload = "{ }".into());
        assert_eq!(other_payload.id, same.id);
        assert_ne!(other_payload.fingerprint, same.fingerprint);
    }

    #[test]
    fn what_cannot_be_published_is_named() {
        let secret = Secret::from_bytes([3; 32]);
        let wrong = |change: fn(&mut Publication)| {
            let mut publication = publication();
            change(&mut publication);
            publication.into_event(&secret, &Targets::new(), Timestamp::from_micros(1)).unwrap_err()
        };
        assert_eq!(wrong(|p| p.event_type = "order paid".into()), Unpublishable::Type);
        assert_eq!(wrong(|p| p.event_type = "x".repeat(201)), Unpublishable::Type);
        assert_eq!(wrong(|p| p.dedupe_key = String::new()), Unpublishable::NoKey);
        assert!(matches!(wrong(|p| p.dedupe_key = "k".repeat(2_000)), Unpublishable::Key(_)));
        assert_eq!(wrong(|p| p.tenant = "a\nb".into()), Unpublishable::Tenant);
        assert_eq!(wrong(|p| p.order_key = Some(String::new())), Unpublishable::OrderKey);
    }
}
