//! From what somebody publishes by hand or by HTTP to an event, with every member checked.

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

/// Something to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Whose it is; `""` where nobody said.
    pub tenant: String,
    /// Its type, e.g. `order.paid`.
    pub event_type: String,
    /// What makes it the same as another one of its tenant and type.
    pub dedupe_key: String,
    /// The exact bytes to deliver.
    pub payload: Bytes,
    /// What they are.
    pub content_type: String,
    /// What else the source carried, in order.
    pub headers: Vec<(String, String)>,
    /// Deliveries to one target with the same order key are made one after the other.
    pub order_key: Option<String>,
    /// Where it came from.
    pub origin: Origin,
    /// Under which ids its story is found elsewhere.
    pub trace: Trace,
    /// How long to wait before the first attempt.
    pub delay: Duration,
    /// After this time it is not delivered any more. `None`: never.
    pub deliver_within: Option<Duration>,
}

/// Why something cannot be published. The text names the member, and never holds its content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unpublishable {
    /// No type.
    #[error(
        "type: expected letters, digits, `.`, `_`, `-`, `:` or `/`, from 1 to 200 characters, as in \"order.paid\""
    )]
    Type,
    /// No dedupe key.
    #[error("dedupe_key: {0}")]
    Key(#[from] KeyError),
    /// No dedupe key at all.
    #[error(
        "dedupe_key: is empty; name what makes this event the same as another, such as the order and its version"
    )]
    NoKey,
    /// A tenant that is too long.
    #[error("tenant: expected at most {MAX_TENANT} bytes without control characters")]
    Tenant,
    /// An order key that is empty or too long.
    #[error("order_key: expected 1 to {MAX_ORDER_KEY} bytes")]
    OrderKey,
}

impl Publication {
    /// JSON to be published, by nobody in particular.
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

    /// The event that a ledger accepts, for the targets that want it now.
    ///
    /// # Errors
    /// The first member that cannot be used.
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

    /// What makes it the same as another: tenant, type and key; and its payload, byte for byte, to notice another one
    /// under the same key.
    ///
    /// # Errors
    /// The first member that cannot be used.
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

    // What makes two events the same.
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
