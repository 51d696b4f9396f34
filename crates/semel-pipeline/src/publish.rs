//! Publishing: what a publisher knows becomes an event, accepted once.

use std::time::Duration;

use bytes::Bytes;
use semel::key::KeyError;
use semel::secret::Secret;
use semel::time::{Clock as _, SystemClock, Timestamp};
use tokio::time::Instant;

use crate::envelope;
use crate::event::{Accepted, Dedupe, NewEvent, Notes, Origin, Trace};
use crate::id::{EventId, EventKind};
use crate::ledger::{self, ErrorKind, Intake};
use crate::target::{Targets, is_event_type};

/// The longest tenant, in bytes.
pub const MAX_TENANT: usize = 255;
/// The longest order key, in bytes.
pub const MAX_ORDER_KEY: usize = 255;

/// How long a call to the ledger whose outcome is unknown is repeated.
const RETRY_TIMEOUT: Duration = Duration::from_secs(5);

/// An event as its publisher knows it: with its plain key, and without targets. The API, streams and outboxes publish
/// it. In JSON it is a row of an outbox.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Publication {
    /// Its type, e.g. `order.paid`.
    pub event_type: String,
    /// Names the event within its tenant and type.
    pub dedupe_key: String,
    /// The exact bytes to deliver.
    #[serde(skip)]
    pub payload: Bytes,
    /// Their content type.
    pub content_type: String,
    /// The tenant; `""` without one.
    pub tenant: String,
    /// Deliveries to one target with the same order key are made one after the other.
    pub order_key: Option<String>,
    /// Other fields of the source, in order.
    pub headers: Vec<(String, String)>,
    /// The ids that connect it to traces and requests of other systems.
    #[serde(flatten)]
    pub trace: Trace,
    /// How long to wait before the first attempt.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub delay: Duration,
    /// After this time it is not delivered any more. `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_within: Option<Duration>,
    /// The origin of the event. In an outbox it is always [`Origin::Outbox`].
    #[serde(skip, default = "from_outbox")]
    pub origin: Origin,
}

fn from_outbox() -> Origin {
    Origin::Outbox
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

/// The result of publishing an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishAnswer {
    /// The event is new.
    New {
        /// Its id.
        id: EventId,
        /// The names of its targets.
        targets: Vec<String>,
    },
    /// The event was accepted before, under this id.
    Known(EventId),
}

/// Why an event was not published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// A member is invalid.
    #[error(transparent)]
    Invalid(#[from] Unpublishable),
    /// Another payload was published under the same tenant, type and deduplication key.
    #[error("another event has this tenant, type and dedupe_key, and another payload")]
    Conflict,
    /// The ledger failed. If the error is ambiguous, the event may have been accepted: publish it again.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
}

/// Accepts one event, and repeats the call for up to five seconds while its outcome is unknown: the event has its id, so
/// that it is accepted once. An event that an earlier try of this call wrote is [`Accepted::First`].
///
/// Cancel-safe: the event is accepted or not.
///
/// # Errors
/// The ledger's error; ambiguous only if the outcome was unknown to the end.
pub async fn accept<L: Intake + ?Sized>(ledger: &L, event: NewEvent) -> Result<Accepted, ledger::Error> {
    let (id, give_up) = (event.id, Instant::now() + RETRY_TIMEOUT);
    let mut pause = Duration::from_millis(10);
    let mut unknown = None;
    loop {
        match ledger.accept(vec![event.clone()]).await {
            Err(ledger::Error::Store(error))
                if error.kind() == ErrorKind::Ambiguous && Instant::now() + pause < give_up =>
            {
                unknown = Some(error);
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            // This try changed nothing, and an earlier one may have.
            Err(ledger::Error::Store(error)) if error.is_retryable() => {
                return Err(unknown.unwrap_or(error).into());
            }
            Err(error) => return Err(error),
            Ok(answers) => {
                return match answers[..] {
                    [Accepted::Cached(known)] if known == id => Ok(Accepted::First(id)),
                    [accepted] => Ok(accepted),
                    _ => Err(ledger::Error::Refused("the ledger gave no answer for the event".to_owned())),
                };
            }
        }
    }
}

impl Publication {
    /// Publishes the event once for its tenant, type and deduplication key, with the targets that subscribe to its type
    /// now. See [`accept`].
    ///
    /// # Errors
    /// A member is invalid, another payload has the key, or the ledger failed.
    pub async fn publish<L: Intake + ?Sized>(
        self,
        ledger: &L,
        secret: &Secret,
        targets: &Targets,
    ) -> Result<PublishAnswer, PublishError> {
        let event = self.into_event(secret, targets, SystemClock.now())?;
        let targets = event.targets.clone();
        match accept(ledger, event).await? {
            Accepted::First(id) => Ok(PublishAnswer::New { id, targets }),
            Accepted::Cached(id) => Ok(PublishAnswer::Known(id)),
            Accepted::Conflict | Accepted::Stale => Err(PublishError::Conflict),
        }
    }

    /// An event with a JSON payload, published by the application itself.
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
            trace: Trace::default(),
            delay: Duration::ZERO,
            deliver_within: None,
            origin: Origin::Outbox,
        }
    }

    /// Sets the tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Sets the order key.
    #[must_use]
    pub fn order_key(mut self, key: impl Into<String>) -> Self {
        self.order_key = Some(key.into());
        self
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
        self.check()?;
        let targets = targets.wanting(&self.event_type);
        Ok(self.place(EventId::new(EventKind::Event, now), secret, targets)?)
    }

    /// The event for a ledger. Its tenant, type and key name it, and its payload, byte for byte, detects a conflict.
    pub(crate) fn place(
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
            order_key: self.order_key,
            origin: self.origin,
            targets,
            delay: self.delay,
            deliver_within: self.deliver_within,
            notes: Notes { tags: envelope::tags(&self.headers, &self.trace), ..Notes::default() },
            headers: self.headers,
            trace: self.trace,
        })
    }

    fn check(&self) -> Result<(), Unpublishable> {
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
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use semel::key::KeyId;

    use super::*;
    use crate::ledger::{Answer, Drained, DrainedRun, KeyState};

    /// Accepts an event, and loses its first answers.
    struct LosesAnswers {
        lost: u64,
        calls: AtomicU64,
    }

    impl Intake for LosesAnswers {
        fn accept(&self, events: Vec<NewEvent>) -> Answer<'_, Vec<Accepted>> {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                if call < self.lost {
                    return Err(semel::store::Error::new(ErrorKind::Ambiguous, "on purpose").into());
                }
                let known = |event: NewEvent| match call {
                    0 => Accepted::First(event.id),
                    _ => Accepted::Cached(event.id),
                };
                Ok(events.into_iter().map(known).collect())
            })
        }

        fn find(&self, _: KeyId) -> Answer<'_, KeyState> {
            unreachable!("nobody asks")
        }

        fn drain(&self, _: Vec<DrainedRun>) -> Answer<'_, Vec<Drained>> {
            unreachable!("nothing is drained")
        }
    }

    async fn publish(lost: u64) -> (Result<PublishAnswer, PublishError>, u64) {
        let ledger = LosesAnswers { lost, calls: AtomicU64::new(0) };
        let published = publication().publish(&ledger, &Secret::from_bytes([3; 32]), &Targets::new()).await;
        (published, ledger.calls.into_inner())
    }

    // The caller of the library must not decide what the ledger can: the event has its id.
    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_is_asked_for_again() {
        for lost in [0, 1, 5] {
            let (published, calls) = publish(lost).await;
            assert!(matches!(published, Ok(PublishAnswer::New { .. })), "{published:?}");
            assert_eq!(calls, lost + 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outcome_that_stays_unknown_is_told() {
        let start = Instant::now();
        match publish(u64::MAX).await {
            (Err(PublishError::Ledger(ledger::Error::Store(error))), calls) => {
                assert_eq!((error.kind(), calls > 5), (ErrorKind::Ambiguous, true));
                assert!(start.elapsed() <= RETRY_TIMEOUT, "{:?}", start.elapsed());
            }
            other => panic!("{other:?}"),
        }
    }

    fn publication() -> Publication {
        Publication::new("order.paid", "order-1", "{}")
    }

    // Applications of other versions write and read this form in outboxes.
    #[test]
    fn the_row_of_an_outbox_keeps_its_form() {
        let text = r#"{"event_type":"order.paid","dedupe_key":"order-1","content_type":"application/json","tenant":"acme","order_key":"o","headers":[["a","b"]],"request_id":"r","traceparent":null}"#;
        let mut written = publication().tenant("acme").order_key("o");
        written.headers.push(("a".to_owned(), "b".to_owned()));
        written.trace.request_id = Some("r".to_owned());
        assert_eq!(serde_json::to_string(&written).unwrap(), text);
        let read: Publication = serde_json::from_str(text).unwrap();
        assert_eq!(Publication { payload: "{}".into(), ..read }, written);
    }

    // The identity of an event.
    #[test]
    fn tenant_type_and_key_name_an_event() {
        let secret = Secret::from_bytes([3; 32]);
        let dedupe = |change: fn(&mut Publication)| {
            let mut publication = publication();
            change(&mut publication);
            let event = publication.into_event(&secret, &Targets::new(), Timestamp::from_micros(1)).unwrap();
            event.dedupe.unwrap()
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
