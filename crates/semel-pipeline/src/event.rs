//! Events, which are accepted once.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use semel::Key;
use semel::fingerprint::{Fingerprint, Payload};
use semel::key::{Hint, KeyError, KeyId};
use semel::secret::Secret;
use semel::time::Timestamp;

use crate::decimal;
use crate::id::{DeliveryId, EventId, JobId};
use crate::ledger::Change;

/// An event to be accepted, with its deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// Its id, created by the first process that accepts it, and final.
    pub id: EventId,
    /// The tenant; `""` without one.
    pub tenant: String,
    /// Its type, e.g. `order.paid`; of a run, its target's name.
    pub event_type: String,
    /// Its deduplication. `None`: never a duplicate of another event (a run without a key).
    pub dedupe: Option<Dedupe>,
    /// The exact bytes to deliver.
    pub payload: Bytes,
    /// The content type of the payload; `application/json` unless the source gave another.
    pub content_type: String,
    /// Other fields of the source, in order.
    pub headers: Vec<(String, String)>,
    /// Deliveries to one target with the same order key are made one after the other.
    pub order_key: Option<String>,
    /// The origin of the event.
    pub origin: Origin,
    /// The names of its targets; each gets one delivery.
    pub targets: Vec<String>,
    /// How long to wait before the first attempt.
    pub delay: Duration,
    /// After this time it is not delivered any more and becomes a dead letter with cause `expired`. `None`: never.
    pub deliver_within: Option<Duration>,
    /// Tags for searching, and a JSON object of the caller; for runs.
    pub notes: Notes,
    /// The ids that connect it to traces and requests of other systems.
    pub trace: Trace,
}

/// The deduplication of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dedupe {
    /// The keyed hash of its name: of an event its tenant, type and deduplication key; of a run its principal,
    /// tenant, target and key. See [`semel::Key::id`].
    pub id: KeyId,
    /// The first characters of the key, for people.
    pub hint: Hint,
    /// The fingerprint of the payload: another one under the same id is a conflict.
    pub fingerprint: Fingerprint,
    /// How long the key is known. `None`: as long as the event.
    pub lifetime: Option<Duration>,
    /// When the key expires, if that was fixed before the ledger saw the event: a buffered run was accepted when it
    /// was buffered. `None`: the ledger counts `lifetime` from when it accepts the event.
    pub expires_at: Option<Timestamp>,
    /// The generation of the key that the caller read. `None`: the current one, and an expired key counts as free.
    pub generation: Option<Generation>,
}

/// Distinguishes the lives of a key: a reset or an expiry ends one generation and starts the next, and a key names
/// one event in each. A later generation has a larger number, and no number is used twice.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Generation(u64);

impl Generation {
    /// The generation of a key that was never reset and never expired.
    pub const FIRST: Self = Self(0);

    /// The generation with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The generation after this one, if it ends at `now`. The number is a time, so that it is not used again after
    /// the ledger has forgotten the key.
    #[must_use]
    pub fn next(self, now: Timestamp) -> Self {
        Self(now.as_micros().max(self.0 + 1))
    }
}

impl Dedupe {
    /// For a published event: the same tenant, type and deduplication key name the same event; other bytes are a
    /// conflict.
    ///
    /// # Errors
    /// The deduplication key is empty or too long.
    pub fn of_event(
        secret: &Secret,
        tenant: &str,
        event_type: &str,
        dedupe_key: &str,
        payload: &[u8],
    ) -> Result<Self, KeyError> {
        let key = Key::new("semel.event").scope(whose(tenant)).scope(event_type).value(dedupe_key);
        Self::of(secret, &key, &[event_type.as_bytes(), payload], None)
    }

    /// For a run: the same principal, tenant, target and key name the same run; another payload is a conflict.
    ///
    /// # Errors
    /// The key is empty or too long.
    pub fn of_run(
        secret: &Secret,
        (principal, tenant, target): (&str, &str, &str),
        key: &str,
        payload: &[u8],
        lifetime: Option<Duration>,
    ) -> Result<Self, KeyError> {
        let key = Self::run_key((principal, tenant, target), key);
        Self::of(secret, &key, &[target.as_bytes(), payload], lifetime)
    }

    /// The key of a run.
    pub fn run_key((principal, tenant, target): (&str, &str, &str), key: &str) -> Key {
        Key::new("semel.run").scope(whose(principal)).scope(whose(tenant)).scope(target).value(key)
    }

    /// The key of the claim on one generation of a run's key.
    pub fn claim_key(whose: (&str, &str, &str), key: &str, generation: Generation) -> Key {
        let claim = Self::run_key(whose, key);
        match generation {
            Generation::FIRST => claim,
            later => claim.scope(format!("generation {}", later.get())),
        }
    }

    /// The payload of a run for claims on its key: the same as in its fingerprint.
    pub fn run_payload(target: &str, payload: &[u8]) -> Payload {
        Payload::exact(&[target.as_bytes(), payload])
    }

    /// For an event that a replay job creates in mode as-new: one for each job and delivery, however often it is
    /// repeated.
    pub fn of_replay(job: JobId, delivery: DeliveryId, payload: &[u8]) -> Self {
        // No secret is needed: both ids are random, and guessing them gains nothing.
        let secret = Secret::from_bytes(*b"semel: replays as new, no secret");
        let key = Key::new("semel.replay").scope(job.to_string()).value(delivery.to_string());
        let made = Self::of(&secret, &key, &[payload], None);
        made.expect("an id is neither empty nor too long")
    }

    fn of(secret: &Secret, key: &Key, asked: &[&[u8]], lifetime: Option<Duration>) -> Result<Self, KeyError> {
        let fingerprint = Payload::exact(asked).fingerprint(secret);
        Ok(Self {
            id: key.id(secret)?,
            hint: key.hint(),
            fingerprint,
            lifetime,
            expires_at: None,
            generation: None,
        })
    }
}

/// A scope part for a name that may be empty: a part of a key is never empty.
fn whose(name: &str) -> String {
    format!("={name}")
}

/// The origin of an event.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The HTTP API; the principal is the name of the token.
    Api {
        /// The principal.
        principal: String,
    },
    /// A stream.
    Stream {
        /// Its name.
        stream: String,
        /// The id of the message in it.
        message: String,
    },
    /// An outbox: published inside a caller's transaction.
    Outbox,
    /// An edited copy of a dead letter, or a replay as new.
    Replay {
        /// The event that it repeats.
        of: EventId,
    },
}

/// Tags and metadata of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Tags for searching, each once, in the order they were added.
    pub tags: Vec<String>,
    /// A JSON object by member; each value is the original text, never re-encoded.
    pub metadata: BTreeMap<String, String>,
}

/// The member of the metadata in which earlier versions counted the applied changes of a buffered run. It is hidden,
/// and no caller may use the name.
pub const CHANGES_MEMBER: &str = "$semel.changes";

impl Notes {
    /// Removes the number of applied changes that an earlier version stored in the metadata.
    #[cfg(any(feature = "embedded", feature = "postgres"))]
    pub(crate) fn take_changes(&mut self) -> u64 {
        self.metadata.remove(CHANGES_MEMBER).and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Changes tags and metadata: adds tags, then sets, removes and increments members, in this order. A missing
    /// member counts as 0. After an error nothing has changed.
    ///
    /// # Errors
    /// A message that names the member which is not a number.
    pub fn apply(&mut self, change: &Change) -> Result<(), String> {
        let mut next = self.clone();
        for tag in &change.add_tags {
            if !next.tags.contains(tag) {
                next.tags.push(tag.clone());
            }
        }
        next.metadata.extend(change.set.iter().cloned());
        for name in &change.remove {
            next.metadata.remove(name);
        }
        for (name, by) in &change.increment {
            let stands = next.metadata.get(name).map_or("0", String::as_str);
            let sum = decimal::sum(stands, by).ok_or_else(|| {
                format!(
                    "metadata `{name}` cannot be incremented: both it and the step must be decimal numbers"
                )
            })?;
            next.metadata.insert(name.clone(), sum);
        }
        *self = next;
        Ok(())
    }
}

/// Ids that connect an event to traces and requests of other systems.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Trace {
    /// The id of the request that published it.
    pub request_id: Option<String>,
    /// The W3C trace context that came with it.
    pub traceparent: Option<String>,
}

/// The result of accepting an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is new, and is stored with its deliveries.
    First(EventId),
    /// It already existed, under this id. Nothing was written. If this is the given id, an earlier try of the same
    /// call wrote it.
    Cached(EventId),
    /// Another event with another payload has this deduplication key. Nothing was written.
    Conflict,
    /// The generation of the event has ended: its key was reset or has expired. Nothing was written. Read the key
    /// again.
    Stale,
}

/// An event in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The accepted event. Its `delay` is the original one.
    pub new: NewEvent,
    /// When it was accepted, by the ledger's clock.
    pub accepted_at: Timestamp,
    /// Grows with every change of its notes: for compare-and-set.
    pub version: u64,
    /// How many of the changes that were made in the buffer are applied.
    pub changes: u64,
}
