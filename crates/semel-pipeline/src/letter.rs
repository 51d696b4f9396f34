//! Dead letters: deliveries that failed and messages that cannot be read. Their content is preserved.

use bytes::Bytes;
use semel::time::Timestamp;

use crate::delivery::DeliveryAttempt;
use crate::id::{DeliveryId, EventId, LetterId};
use crate::names::names;

/// After this many failed replays a dead letter is parked.
pub const PARKED_AFTER: u32 = 3;

/// A dead letter in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Its id.
    pub id: LetterId,
    /// The tenant.
    pub tenant: String,
    /// The event, if one could be read.
    pub event: Option<EventId>,
    /// The delivery, if there was one.
    pub delivery: Option<DeliveryId>,
    /// The target, if there was one.
    pub target: Option<String>,
    /// The type of the event, if one could be read.
    pub event_type: Option<String>,
    /// The stream and the message, if it came from a source.
    pub source: Option<SourceMessage>,
    /// Its bytes: the event's payload, or the raw message.
    pub payload: Bytes,
    /// Their content type.
    pub content_type: String,
    /// Other fields of the source: of a raw message, its fields.
    pub headers: Vec<(String, String)>,
    /// Its cause.
    pub cause: Cause,
    /// The last failure, without secrets.
    pub error: String,
    /// Groups similar failures; computed when it is written.
    pub signature: Signature,
    /// Its status.
    pub status: Status,
    /// How many attempts were made in total, without those that were given back.
    pub attempts: u32,
    /// When the last one was made.
    pub last_attempt_at: Option<Timestamp>,
    /// How many replays of it failed; after three it is parked.
    pub failed_replays: u32,
    /// The dead letter of which this is an edited copy, or which was replayed as new and failed as this one.
    pub copy_of: Option<LetterId>,
    /// When it was written.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// The source of a message.
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
    /// A failure that will not pass.
    NonRetryable,
    /// Its workers crashed repeatedly.
    Poison,
    /// It cannot be read.
    Undecodable,
    /// Its time limit had passed.
    Expired,
    /// A person set it aside.
    Manual,
}

names!(Cause {
    Exhausted = "exhausted",
    NonRetryable = "non_retryable",
    Poison = "poison",
    Undecodable = "undecodable",
    Expired = "expired",
    Manual = "manual",
});

/// The status of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Not handled yet; also after a failed replay.
    Pending,
    /// A replay job has released it.
    Replaying,
    /// A replay delivered it.
    Replayed,
    /// A person discarded it. It can be restored until it is swept.
    Discarded,
    /// Too many replays failed: only a person can replay it, by its id.
    Parked,
}

names!(Status {
    Pending = "pending",
    Replaying = "replaying",
    Replayed = "replayed",
    Discarded = "discarded",
    Parked = "parked",
});

/// Groups similar failures: target, cause, status, and the error's words without variable parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature(String);

impl Signature {
    /// The signature of a failure. Ignores numbers, ids, quoted parts and addresses in `error`.
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

    /// The signature from a ledger.
    pub fn from_kept(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A word, or a placeholder for a variable one.
fn plain(word: &str) -> &str {
    let varies = word.len() > 32
        || word.chars().any(|c| c.is_ascii_digit())
        || word.contains(['"', '\'', '`', '/', '@', '=', '{', '[', '<']);
    if varies { "…" } else { word }
}

/// A dead letter without a delivery: a message that cannot be read, or that a person set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLetter {
    /// Its id; if the same message was written before, that one's id stays.
    pub id: LetterId,
    /// The tenant; `""` if it is unknown.
    pub tenant: String,
    /// The source. The same message is written once.
    pub source: SourceMessage,
    /// The raw message.
    pub payload: Bytes,
    /// Its content type.
    pub content_type: String,
    /// Its other fields.
    pub headers: Vec<(String, String)>,
    /// Its cause.
    pub cause: Cause,
    /// Why it cannot be used.
    pub error: String,
    /// How often it was given out before it was set aside.
    pub attempts: u32,
}

/// A dead letter with its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterStory {
    /// The dead letter.
    pub letter: Letter,
    /// All attempts to deliver it, replays included, the first one first.
    pub attempts: Vec<DeliveryAttempt>,
    /// Its edited copies, and the dead letter that it became when it was replayed as new and failed.
    pub copies: Vec<LetterId>,
}

/// A group of similar failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureGroup {
    /// Their signature.
    pub signature: Signature,
    /// The target, if there is one.
    pub target: Option<String>,
    /// Their cause.
    pub cause: Cause,
    /// Number of dead letters by status.
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

/// Groups of similar failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureGroups {
    /// The groups, the largest first.
    pub groups: Vec<FailureGroup>,
    /// True if there are more dead letters than the groups were made of. The oldest are not counted.
    pub is_partial: bool,
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
