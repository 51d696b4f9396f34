//! Deliveries: one event for one target. Their states and transitions are defined only here: ledgers build their
//! statements from [`DeliveryStep::from`] and [`DeliveryStep::to`].

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use semel::time::Timestamp;

use crate::event::{Event, Trace};
use crate::id::{DeliveryId, EventId, JobId, LetterId};
use crate::names::names;

/// The state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// Accepted, and not due yet: it waits for its delay.
    Idle,
    /// Due: any worker may take it.
    Queued,
    /// Taken; the start of an attempt is written.
    Running,
    /// Delivered.
    Done,
    /// Failed, to be retried later; or given back without an attempt.
    RetryWait,
    /// Out of attempts, and by the target's policy no delivery of the same order key may overtake it.
    Blocked,
    /// Out of attempts, or not retryable: there is a dead letter.
    Dlq,
    /// Released by a replay job: any worker may take it.
    Replaying,
    /// Cancelled before it was made.
    Cancelled,
}

names!(DeliveryState {
    Idle = "idle",
    Queued = "queued",
    Running = "running",
    Done = "done",
    RetryWait = "retry_wait",
    Blocked = "blocked",
    Dlq = "dlq",
    Replaying = "replaying",
    Cancelled = "cancelled",
});

impl DeliveryState {
    /// True if a worker may take it, once it is due.
    pub const fn is_takeable(self) -> bool {
        matches!(self, Self::Idle | Self::Queued | Self::RetryWait | Self::Replaying)
    }

    /// True if it does not change any more by itself.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Blocked | Self::Dlq | Self::Cancelled)
    }

    /// True if later deliveries with the same target and order key must wait for it.
    pub const fn holds_order(self) -> bool {
        !matches!(self, Self::Done | Self::Dlq | Self::Cancelled)
    }
}

impl fmt::Display for DeliveryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A transition of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeliveryStep {
    /// Its delay has passed.
    Enqueue,
    /// A worker takes it; the start of the attempt is written with it. An idle one whose delay has passed is enqueued
    /// and taken in one step.
    Take,
    /// The attempt succeeded.
    Finish,
    /// The attempt failed and another follows; or the delivery is given back; or its worker was lost.
    Retry,
    /// Out of attempts; the target's policy is `blocked`.
    Block,
    /// Out of attempts, or not retryable; the dead letter is written with it.
    Bury,
    /// A replay job releases it.
    Replay,
    /// A caller cancels it.
    Cancel,
}

impl DeliveryStep {
    /// Every step.
    pub const ALL: [Self; 8] = [
        Self::Enqueue,
        Self::Take,
        Self::Finish,
        Self::Retry,
        Self::Block,
        Self::Bury,
        Self::Replay,
        Self::Cancel,
    ];

    /// The states that it can start from.
    pub const fn from(self) -> &'static [DeliveryState] {
        match self {
            Self::Enqueue => &[DeliveryState::Idle],
            Self::Take => &[DeliveryState::Queued, DeliveryState::RetryWait, DeliveryState::Replaying],
            Self::Finish | Self::Retry | Self::Block | Self::Bury => &[DeliveryState::Running],
            Self::Replay => &[DeliveryState::Dlq, DeliveryState::Blocked],
            Self::Cancel => &[
                DeliveryState::Idle,
                DeliveryState::Queued,
                DeliveryState::RetryWait,
                DeliveryState::Blocked,
            ],
        }
    }

    /// The state that it leads to.
    pub const fn to(self) -> DeliveryState {
        match self {
            Self::Enqueue => DeliveryState::Queued,
            Self::Take => DeliveryState::Running,
            Self::Finish => DeliveryState::Done,
            Self::Retry => DeliveryState::RetryWait,
            Self::Block => DeliveryState::Blocked,
            Self::Bury => DeliveryState::Dlq,
            Self::Replay => DeliveryState::Replaying,
            Self::Cancel => DeliveryState::Cancelled,
        }
    }
}

impl DeliveryState {
    /// The state after `step`, if the transition exists.
    ///
    /// # Errors
    /// [`Impossible`] if it does not.
    pub fn after(self, step: DeliveryStep) -> Result<Self, Impossible> {
        if step.from().contains(&self) { Ok(step.to()) } else { Err(Impossible { state: self, step }) }
    }
}

/// A transition that a delivery cannot make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a delivery that is {state} cannot {}", .step.verb())]
pub struct Impossible {
    /// The current state.
    pub state: DeliveryState,
    /// The transition.
    pub step: DeliveryStep,
}

impl DeliveryStep {
    const fn verb(self) -> &'static str {
        match self {
            Self::Enqueue => "be enqueued",
            Self::Take => "be taken",
            Self::Finish => "be finished",
            Self::Retry => "be tried again",
            Self::Block => "be blocked",
            Self::Bury => "become a dead letter",
            Self::Replay => "be replayed",
            Self::Cancel => "be cancelled",
        }
    }
}

/// A delivery in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its id.
    pub id: DeliveryId,
    /// The event.
    pub event: EventId,
    /// The name of the target.
    pub target: String,
    /// The tenant.
    pub tenant: String,
    /// The type of its event.
    pub event_type: String,
    /// Its state.
    pub state: DeliveryState,
    /// How many attempts were started since it was accepted or last replayed.
    pub attempts: u32,
    /// How many of those crashed: started, and their worker was lost.
    pub crashes: u32,
    /// Grows with every re-execute: it is part of the derived key.
    pub epoch: u32,
    /// When it may be taken next.
    pub due_at: Timestamp,
    /// The last failure, without secrets.
    pub error: Option<String>,
    /// Its dead letter, if there is or was one. A blocked delivery has none.
    pub letter: Option<LetterId>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its first attempt started.
    pub started_at: Option<Timestamp>,
    /// When it was done, blocked or cancelled, or became a dead letter.
    pub completed_at: Option<Timestamp>,
}

/// One attempt of a delivery, in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryAttempt {
    /// Counts from 1, also over replays.
    pub number: u32,
    /// The process that made it.
    pub worker: String,
    /// The epoch of the attempt.
    pub epoch: u32,
    /// When its start was written.
    pub started_at: Timestamp,
    /// When its end was written; `None` while it runs.
    pub ended_at: Option<Timestamp>,
    /// How it ended; `None` while it runs.
    pub ending: Option<Ending>,
    /// The replay job that released it, if one did.
    pub job: Option<JobId>,
    /// The id that the target saw: see [`request_id`].
    pub request_id: String,
}

/// The id of an attempt for the target: the delivery's id and the attempt's number.
pub fn request_id(delivery: DeliveryId, number: u32) -> String {
    format!("{delivery}-{number}")
}

/// The delivery that such an id names; `None` if it is another kind of id.
pub fn delivery_of_request(request_id: &str) -> Option<DeliveryId> {
    let (delivery, number) = request_id.split_once('-')?;
    number.parse::<u32>().ok()?;
    delivery.parse().ok()
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The class of the result.
    pub class: AttemptClass,
    /// The HTTP status of the target's answer, if there was one.
    pub status: Option<u16>,
    /// The error, without secrets; empty if there is none.
    pub error: String,
    /// The beginning of the target's answer, if that helps.
    pub excerpt: String,
    /// How long the target asked to wait before a retry.
    pub retry_after: Option<Duration>,
}

impl Ending {
    /// The end of an attempt that does not count as one.
    #[cfg(feature = "embedded")]
    pub(crate) fn deferred(error: String) -> Self {
        Self { class: AttemptClass::Deferred, status: None, error, excerpt: String::new(), retry_after: None }
    }
}

/// The class of an attempt's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptClass {
    /// The target accepted it.
    Success,
    /// A failure that may pass.
    Transient,
    /// A failure that will not pass.
    Permanent,
    /// It is unknown whether the target accepted it: a lost connection or a timeout.
    Unknown,
    /// Its worker was lost before it ended.
    Crashed,
    /// Nothing was sent: it was given back (the target's breaker was open, the lease or the process ended), or became
    /// a dead letter as expired or poison. It does not count as an attempt.
    Deferred,
}

names!(AttemptClass {
    Success = "success",
    Transient = "transient",
    Permanent = "permanent",
    Unknown = "unknown",
    Crashed = "crashed",
    Deferred = "deferred",
});

/// The lease of a worker on a delivery. Every call about it carries the token, so that a late worker is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holding {
    /// The delivery.
    pub delivery: DeliveryId,
    /// Proves the ownership: new with every take.
    pub token: u128,
}

/// Work for a worker: a taken delivery, with everything needed to make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The lease.
    pub holding: Holding,
    /// The event.
    pub event: EventId,
    /// The name of the target.
    pub target: String,
    /// The tenant.
    pub tenant: String,
    /// The event's type.
    pub event_type: String,
    /// The exact bytes to deliver.
    pub payload: Bytes,
    /// Their content type.
    pub content_type: String,
    /// Other fields of the source.
    pub headers: Vec<(String, String)>,
    /// The number of the attempt since the delivery was accepted or last replayed; counts from 1.
    pub attempt: u32,
    /// How many of those attempts crashed.
    pub crashes: u32,
    /// Part of the derived key.
    pub epoch: u32,
    /// The id of this attempt for the target.
    pub request_id: String,
    /// The trace it belongs to.
    pub trace: Trace,
    /// When its event was accepted.
    pub accepted_at: Timestamp,
    /// True if its time limit has passed: it must become a dead letter with cause `expired`.
    pub expired: bool,
    /// The replay job that released it, if one did.
    pub job: Option<JobId>,
}

impl Settle {
    /// The transition for this result.
    pub const fn step(&self) -> DeliveryStep {
        match self {
            Self::Done(_) => DeliveryStep::Finish,
            Self::Retry(..) | Self::Defer(_) => DeliveryStep::Retry,
            Self::Block(_) => DeliveryStep::Block,
            Self::Bury(..) => DeliveryStep::Bury,
        }
    }
}

/// The result that a worker reports for a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settle {
    /// Delivered.
    Done(Ending),
    /// Failed; retry after this delay.
    Retry(Ending, Duration),
    /// Given back without an attempt, for this delay. The attempt does not count.
    Defer(Duration),
    /// Failed permanently; no delivery of the same order key may overtake it.
    Block(Ending),
    /// Failed permanently; a dead letter is written, in the same transaction.
    Bury(Ending, crate::letter::Cause),
}

/// The ledger's answer to a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseResult {
    /// It is written, now or by an earlier try of the same call.
    Kept,
    /// Another worker holds it, or it has ended: nothing was written.
    Lost,
}

/// A delivery with its event and all its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryHistory {
    /// The delivery.
    pub delivery: Delivery,
    /// Its event.
    pub event: Event,
    /// All attempts, the first one first.
    pub attempts: Vec<DeliveryAttempt>,
}

#[cfg(test)]
mod tests {
    use semel::time::Timestamp;

    use super::{DeliveryState, DeliveryStep, delivery_of_request, request_id};
    use crate::id::DeliveryId;

    /// The state diagram, as pairs.
    const DRAWN: [(DeliveryState, DeliveryState); 14] = [
        (DeliveryState::Idle, DeliveryState::Queued),
        (DeliveryState::Queued, DeliveryState::Running),
        (DeliveryState::Running, DeliveryState::Done),
        (DeliveryState::Running, DeliveryState::RetryWait),
        (DeliveryState::Running, DeliveryState::Blocked),
        (DeliveryState::Running, DeliveryState::Dlq),
        (DeliveryState::RetryWait, DeliveryState::Running),
        (DeliveryState::Dlq, DeliveryState::Replaying),
        (DeliveryState::Blocked, DeliveryState::Replaying),
        (DeliveryState::Replaying, DeliveryState::Running),
        (DeliveryState::Idle, DeliveryState::Cancelled),
        (DeliveryState::Queued, DeliveryState::Cancelled),
        (DeliveryState::RetryWait, DeliveryState::Cancelled),
        (DeliveryState::Blocked, DeliveryState::Cancelled),
    ];

    #[test]
    fn only_the_drawn_transitions_are_possible() {
        for from in DeliveryState::ALL {
            for to in DeliveryState::ALL {
                let possible = DeliveryStep::ALL.into_iter().any(|step| from.after(step) == Ok(to));
                assert_eq!(possible, DRAWN.contains(&(from, to)), "{from} to {to}");
            }
        }
    }

    #[test]
    fn a_request_id_names_its_delivery() {
        let id = DeliveryId::new(Timestamp::from_micros(1));
        assert_eq!(delivery_of_request(&request_id(id, 17)), Some(id));
        assert_eq!(delivery_of_request("dlv_x-1"), None);
        assert_eq!(delivery_of_request(&id.to_string()), None);
    }

    #[test]
    fn names_read_back() {
        for state in DeliveryState::ALL {
            assert_eq!(DeliveryState::from_name(state.as_str()), Some(state));
        }
    }
}
