//! Dead letters: what could not be delivered, or not even be read. Nothing of them is lost.

use bytes::Bytes;
use semel::time::Timestamp;

use crate::delivery::Attempt;
use crate::id::{DeliveryId, EventId, LetterId};

/// After so many failed replays a letter is parked.
pub const PARKED_AFTER: u32 = 3;

/// A dead letter as the ledger keeps it (P9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Its id.
    pub id: LetterId,
    /// Whose it is.
    pub tenant: String,
    /// The event, where one could be read.
    pub event: Option<EventId>,
    /// The delivery, where there was one.
    pub delivery: Option<DeliveryId>,
    /// The target, where there was one.
    pub target: Option<String>,
    /// The type of the event, where one could be read.
    pub event_type: Option<String>,
    /// The stream and the message it came from, where it did.
    pub source: Option<SourceMessage>,
    /// Its bytes: the event's payload, or the raw message.
    pub payload: Bytes,
    /// What they are.
    pub content_type: String,
    /// What else the source carried: of a raw message, its fields.
    pub headers: Vec<(String, String)>,
    /// Why it is here.
    pub cause: Cause,
    /// The last failure, in words that hold no secret.
    pub error: String,
    /// Groups what failed alike: computed when it is written.
    pub signature: Signature,
    /// Where it stands.
    pub status: Status,
    /// How many attempts were made in all, those that were given back untried not counted.
    pub attempts: u32,
    /// When the last one was made.
    pub last_attempt_at: Option<Timestamp>,
    /// How many replays of it failed; after some it is parked.
    pub failed_replays: u32,
    /// The letter of which this is an edited copy, or which was replayed as new and failed as this one.
    pub copy_of: Option<LetterId>,
    /// When it was written.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// Where a message came from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceMessage {
    /// The stream's name.
    pub stream: String,
    /// The message's id in it.
    pub message: String,
}

/// Why something became a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Every attempt failed.
    Exhausted,
    /// It failed in a way that stays.
    NonRetryable,
    /// Its attempts ended with the worker, again and again.
    Poison,
    /// It cannot be read.
    Undecodable,
    /// Its time to be delivered was over.
    Expired,
    /// Somebody set it aside.
    Manual,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 6] =
        [Self::Exhausted, Self::NonRetryable, Self::Poison, Self::Undecodable, Self::Expired, Self::Manual];

    /// Its name, as the API and the tables spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::NonRetryable => "non_retryable",
            Self::Poison => "poison",
            Self::Undecodable => "undecodable",
            Self::Expired => "expired",
            Self::Manual => "manual",
        }
    }

    /// The cause of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == name)
    }
}

/// Where a dead letter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Nobody has dealt with it yet; also after a replay that failed.
    Pending,
    /// A replay job has released it.
    Replaying,
    /// It was delivered after all.
    Replayed,
    /// Somebody gave it up. It can be restored until it is swept.
    Discarded,
    /// Too many replays failed: only a person's own choice replays it, by its id.
    Parked,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Replaying, Self::Replayed, Self::Discarded, Self::Parked];

    /// Its name, as the API and the tables spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Replaying => "replaying",
            Self::Replayed => "replayed",
            Self::Discarded => "discarded",
            Self::Parked => "parked",
        }
    }

    /// The status of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

/// Groups what failed alike: target, cause, status, and the error's words without what differs from case to case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature(String);

impl Signature {
    /// The signature of a failure. Numbers, ids, quoted parts and addresses in `error` do not count.
    pub fn of(target: Option<&str>, cause: Cause, status: Option<u16>, error: &str) -> Self {
        let mut words = String::new();
        for word in error.split_whitespace().map(plain) {
            if words.len() + word.len() >= 120 {
                break;
            }
            if !words.is_empty() {
                words.push(' ');
            }
            words.push_str(word);
        }
        let target = target.unwrap_or("-");
        let status = status.map_or_else(|| "-".to_owned(), |status| status.to_string());
        Self(format!("{target} {} {status} {words}", cause.as_str()))
    }

    /// The signature that a ledger kept.
    pub fn from_kept(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A word, or a mark in its place where it would differ from case to case.
fn plain(word: &str) -> &str {
    let varies = word.len() > 32
        || word.chars().any(|c| c.is_ascii_digit())
        || word.contains(['"', '\'', '`', '/', '@', '=', '{', '[', '<']);
    if varies { "…" } else { word }
}

/// A letter that no delivery stands behind: a message that cannot be read, or that was set aside by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLetter {
    /// Its id; where the same message was written before, that one's stays.
    pub id: LetterId,
    /// Whose it is; `""` where nobody knows.
    pub tenant: String,
    /// Where it came from. The same message is written once.
    pub source: SourceMessage,
    /// The raw message.
    pub payload: Bytes,
    /// What it is.
    pub content_type: String,
    /// Its other fields.
    pub headers: Vec<(String, String)>,
    /// Why it is here.
    pub cause: Cause,
    /// What is wrong with it.
    pub error: String,
    /// How often it was given out before it was set aside.
    pub attempts: u32,
}

/// A letter with its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterStory {
    /// The letter.
    pub letter: Letter,
    /// Every attempt to deliver it, replays included, the first one first.
    pub attempts: Vec<Attempt>,
    /// Its edited copies, and what it became when it was replayed as new and failed.
    pub copies: Vec<LetterId>,
}

/// What failed alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// By what.
    pub signature: Signature,
    /// The target, where there is one.
    pub target: Option<String>,
    /// Why.
    pub cause: Cause,
    /// How many letters, with their status.
    pub counts: Vec<(Status, u64)>,
    /// The oldest of them.
    pub first_at: Timestamp,
    /// The newest.
    pub last_at: Timestamp,
    /// One of them, as an example.
    pub sample: LetterId,
    /// Its error.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::{Cause, Signature};

    #[test]
    fn what_differs_from_case_to_case_does_not_count() {
        let of = |error| Signature::of(Some("crm"), Cause::Exhausted, Some(503), error);
        assert_eq!(of("order 17 is locked by 'ann'"), of("order 4711 is locked by 'bob'"));
        assert_ne!(of("order 17 is locked"), of("order 17 is gone"));
        assert_ne!(of("gone"), Signature::of(Some("crm"), Cause::NonRetryable, Some(503), "gone"));
    }
}
