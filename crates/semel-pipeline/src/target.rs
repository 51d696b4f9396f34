//! Targets, the receivers of events: an HTTP endpoint, or a handler in the program itself.

mod filter;
mod handler;
#[cfg(feature = "http")]
mod http;
mod policy;
mod registry;
#[cfg(feature = "http")]
mod scrub;
mod signature;
mod trace;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use semel::key::KeyId;
use semel::secret::{DerivedKey, Secret};
use semel::store::BoxFuture;
use semel_client::retry::{DestinationHealth, Judged, Repeat, Signal, TryFate, Verdict};

pub(crate) use self::filter::is_type as is_event_type;
pub use self::filter::{EventTypes, FilterError, MAX_TYPE};
pub use self::handler::Handler;
#[cfg(feature = "http")]
pub use self::http::{HttpOptions, HttpTarget, HttpTargetError};
pub use self::policy::{Exhausted, Policy, RoundPosition, SCHEDULE};
pub use self::registry::{Registered, RegistryError, TargetRegistry, Targets};
pub use self::signature::{SecretError, SigningSecret};
pub use self::trace::{AttemptSpan, Sampled};
use crate::delivery::{AttemptClass, Ending, Work};
use crate::envelope::{self, Envelope};
use crate::id::EventId;
use crate::worker::Lease;

/// The longest stored excerpt of an answer, in bytes.
pub const MAX_EXCERPT: usize = 512;
/// The longest stored error, in bytes.
pub const MAX_ERROR: usize = 512;

/// A receiver of events.
///
/// # Contract
/// - A failed delivery is repeated with the same [`DeliveryCall::key`]: the receiver acts once for a key.
/// - `deliver` is dropped at its time limit; a request that it had sent may still take effect.
/// - The worker holds the delivery for a limited time. A target that waits before it sends calls [`DeliveryCall::may_send`]
///   again right before sending, and answers [`DeliveryOutcome::given_up`] if it returns false: another worker may have made
///   the delivery meanwhile, and later ones of the same order key.
/// - A panic counts as an attempt with an unknown result.
pub trait Target: fmt::Debug + Send + Sync + 'static {
    /// Delivers once, and returns the result.
    fn deliver(&self, call: DeliveryCall) -> BoxFuture<'_, DeliveryOutcome>;
}

/// One attempt to deliver, as a target sees it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DeliveryCall {
    work: Arc<Work>,
    key: DerivedKey,
    max_attempts: u32,
    timeout: Duration,
    lease: Option<Lease>,
    accepted: Arc<OnceLock<u16>>,
}

impl DeliveryCall {
    /// An attempt of this delivery.
    pub fn new(work: Arc<Work>, secret: &Secret, policy: &Policy) -> Self {
        let key = delivery_key(secret, work.event, &work.target, work.epoch);
        let (max_attempts, timeout) = (policy.max_attempts(work.job), policy.timeout);
        Self { work, key, max_attempts, timeout, lease: None, accepted: Arc::default() }
    }

    /// Adds the lease of the worker that took the delivery.
    #[must_use]
    pub fn leased(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// The delivery and its event.
    pub fn work(&self) -> &Work {
        &self.work
    }

    /// The exact bytes of the event's payload.
    pub fn payload(&self) -> &bytes::Bytes {
        &self.work.payload
    }

    /// The event's type.
    pub fn event_type(&self) -> &str {
        &self.work.event_type
    }

    /// The envelope of a message that was published in one. It has no idempotency key: [`key`](Self::key) names the
    /// effect at this target.
    pub fn envelope(&self) -> Option<Envelope> {
        let Work { headers, content_type, payload, .. } = &*self.work;
        let attributes = headers.iter().filter(|(name, _)| name.starts_with(envelope::PREFIX));
        let attributes = attributes.map(|(name, value)| (name.as_str(), value.as_str()));
        let headers = attributes.chain([("content-type", content_type.as_str())]);
        Envelope::from_headers(headers, payload.clone()).ok()
    }

    /// Names the effect: the same for every attempt to deliver this event to this target in this epoch, and unique to
    /// it.
    pub fn key(&self) -> &DerivedKey {
        &self.key
    }

    /// The maximum number of attempts, in all rounds together: see [`Policy::schedule`].
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// The time limit of the attempt.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// How long the worker certainly holds the delivery. At zero, stop before the next irreversible step.
    pub fn time_left(&self) -> Duration {
        self.lease.as_ref().map_or(Duration::MAX, Lease::left)
    }

    /// True if the delivery may be sent now: the worker certainly holds it for a while longer.
    pub fn may_send(&self) -> bool {
        self.lease.as_ref().is_none_or(Lease::may_start)
    }

    /// The status with which the target accepted it.
    pub(crate) fn accepted(&self) -> Option<u16> {
        self.accepted.get().copied()
    }
}

#[cfg(feature = "http")]
impl semel_client::client::SendControl for DeliveryCall {
    fn may_send(&self) -> bool {
        Self::may_send(self)
    }

    fn answered(&self, status: ::http::StatusCode) {
        if status.is_success() {
            // Set once: there is one answer.
            let _ = self.accepted.set(status.as_u16());
        }
    }
}

/// The key that names the effect of delivering `event` to `target` in `epoch`.
#[must_use]
pub fn delivery_key(secret: &Secret, event: EventId, target: &str, epoch: u32) -> DerivedKey {
    // Distinct from providers with the same name.
    let provider = format!("target {target}");
    secret.derived_key(&provider, KeyId::from_bytes(event.to_bytes()), epoch)
}

/// The result of an attempt, reported by a target.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an outcome says whether to try again"]
pub struct DeliveryOutcome {
    judged: Judged,
    error: String,
    excerpt: String,
    given_up: bool,
}

impl DeliveryOutcome {
    /// The target accepted it.
    pub fn done() -> Self {
        Self::judged(Verdict::Success, "")
    }

    /// The target certainly did not accept it, and may accept it later.
    pub fn retry(error: impl Into<String>) -> Self {
        let mut outcome = Self::judged(Verdict::Retry { after: None }, error);
        outcome.judged.fate = TryFate::Undone;
        outcome
    }

    /// As [`retry`](Self::retry), with a minimum delay.
    pub fn retry_after(error: impl Into<String>, after: Duration) -> Self {
        let mut outcome = Self::judged(Verdict::Retry { after: Some(after) }, error);
        (outcome.judged.fate, outcome.judged.health) = (TryFate::Undone, DestinationHealth::Unclear);
        outcome
    }

    /// It is unknown whether the target accepted it. It is retried with the same key.
    pub fn unknown(error: impl Into<String>) -> Self {
        let mut outcome = Self::judged(Verdict::Retry { after: None }, error);
        outcome.judged.fate = TryFate::Unknown;
        outcome
    }

    /// Nothing was sent, because the worker's lease expired first ([`DeliveryCall::may_send`]). The delivery is given back,
    /// and the attempt does not count.
    pub fn given_up() -> Self {
        let mut outcome = Self::retry("the lease expired before the delivery was sent");
        (outcome.judged.health, outcome.given_up) = (DestinationHealth::Unclear, true);
        outcome
    }

    /// The target refused it, and would refuse it again.
    pub fn refused(error: impl Into<String>) -> Self {
        Self::judged(Verdict::Fatal, error)
    }

    /// The result of an HTTP call, judged as a call with a key.
    pub fn of(signal: &Signal, error: impl Into<String>) -> Self {
        Self::judged(signal.judge(Repeat::Safe), error)
    }

    /// A verdict and its error.
    pub fn judged(judged: impl Into<Judged>, error: impl Into<String>) -> Self {
        let mut error = error.into();
        shorten(&mut error, MAX_ERROR);
        Self { judged: judged.into(), error, excerpt: String::new(), given_up: false }
    }

    /// Adds the beginning of the answer. It must not contain a secret.
    pub fn excerpt(mut self, excerpt: impl Into<String>) -> Self {
        self.excerpt = excerpt.into();
        shorten(&mut self.excerpt, MAX_EXCERPT);
        self
    }

    /// True if nothing was sent because the worker's lease expired first.
    pub fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// The verdict.
    pub fn verdict(&self) -> Verdict {
        self.judged.verdict
    }

    /// What it says about the health of the target.
    pub fn health(&self) -> DestinationHealth {
        self.judged.health
    }

    /// The HTTP status of the answer.
    pub fn status(&self) -> Option<u16> {
        self.judged.status
    }

    /// The result for the ledger.
    pub fn into_ending(self) -> Ending {
        let class = match (self.judged.verdict, self.judged.fate) {
            (Verdict::Success, _) => AttemptClass::Success,
            (Verdict::Fatal, _) => AttemptClass::Permanent,
            (_, TryFate::Unknown) if self.judged.status.is_none() => AttemptClass::Unknown,
            (Verdict::Unknown, _) => AttemptClass::Unknown,
            _ => AttemptClass::Transient,
        };
        Ending {
            class,
            status: self.judged.status,
            error: self.error,
            excerpt: self.excerpt,
            retry_after: self.judged.verdict.after(),
        }
    }
}

/// Cuts a text to `most` bytes, between two characters.
pub(crate) fn shorten(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use semel::time::Timestamp;

    use super::*;
    use crate::id::EventKind;

    // A repeat carries the same key; another event, target or epoch has another one.
    #[test]
    fn the_key_names_event_target_and_epoch() {
        let secret = Secret::from_bytes([7; 32]);
        let event = EventId::new(EventKind::Event, Timestamp::from_micros(1));
        let key = |event, target, epoch| delivery_key(&secret, event, target, epoch).to_string();
        assert_eq!(key(event, "crm", 0), key(event, "crm", 0));
        assert_ne!(key(event, "crm", 0), key(event, "crm", 1));
        assert_ne!(key(event, "crm", 0), key(event, "erp", 0));
        let other = EventId::new(EventKind::Event, Timestamp::from_micros(1));
        assert_ne!(key(event, "crm", 0), key(other, "crm", 0));
    }

    #[test]
    fn outcomes_have_their_class() {
        let class = |outcome: DeliveryOutcome| outcome.into_ending().class;
        assert_eq!(class(DeliveryOutcome::done()), AttemptClass::Success);
        assert_eq!(class(DeliveryOutcome::retry("busy")), AttemptClass::Transient);
        assert_eq!(class(DeliveryOutcome::unknown("cut")), AttemptClass::Unknown);
        assert_eq!(class(DeliveryOutcome::refused("no")), AttemptClass::Permanent);
        for (status, expected) in [
            (200, AttemptClass::Success),
            (204, AttemptClass::Success),
            (301, AttemptClass::Permanent),
            (400, AttemptClass::Permanent),
            (404, AttemptClass::Permanent),
            (408, AttemptClass::Transient),
            (429, AttemptClass::Transient),
            (500, AttemptClass::Transient),
            (503, AttemptClass::Transient),
        ] {
            assert_eq!(class(DeliveryOutcome::of(&Signal::status(status), "")), expected, "{status}");
        }
        assert_eq!(class(DeliveryOutcome::of(&Signal::timed_out(), "")), AttemptClass::Unknown);
        assert_eq!(class(DeliveryOutcome::of(&Signal::not_sent(), "")), AttemptClass::Transient);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let outcome = DeliveryOutcome::refused("ä".repeat(600)).excerpt("é".repeat(600));
        let ending = outcome.into_ending();
        assert!(ending.error.len() <= MAX_ERROR + 3 && ending.error.ends_with('…'));
        assert!(ending.excerpt.len() <= MAX_EXCERPT + 3);
    }
}
