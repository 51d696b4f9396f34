//! Deliveries: one event for one target. Their states, and the only steps between them, are written down here and
//! nowhere else: ledgers build their statements from [`Step::from`] and [`Step::to`].

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use semel::time::Timestamp;

use crate::event::{Event, Trace};
use crate::id::{DeliveryId, EventId, JobId, LetterId};

/// Where a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Accepted, and not to be made yet: its delay is not over.
    Idle,
    /// To be made as soon as somebody takes it.
    Queued,
    /// Taken; an attempt has been written down as started.
    Running,
    /// Delivered.
    Done,
    /// Failed, to be tried again later; or given back without an attempt.
    RetryWait,
    /// Out of attempts, and the target wants that nothing of the same order key passes it.
    Blocked,
    /// Out of attempts, or hopeless: there is a dead letter.
    Dlq,
    /// Released by a replay job, to be made as soon as somebody takes it.
    Replaying,
    /// Cancelled before it was made.
    Cancelled,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::Idle,
        Self::Queued,
        Self::Running,
        Self::Done,
        Self::RetryWait,
        Self::Blocked,
        Self::Dlq,
        Self::Replaying,
        Self::Cancelled,
    ];

    /// Its name, as the API, the tables and the metrics spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::RetryWait => "retry_wait",
            Self::Blocked => "blocked",
            Self::Dlq => "dlq",
            Self::Replaying => "replaying",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether a worker may take it, once it is due.
    pub const fn is_takeable(self) -> bool {
        matches!(self, Self::Idle | Self::Queued | Self::RetryWait | Self::Replaying)
    }

    /// Whether nothing more comes of it by itself.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Blocked | Self::Dlq | Self::Cancelled)
    }

    /// Whether later deliveries with the same target and order key must wait for it.
    pub const fn holds_order(self) -> bool {
        !matches!(self, Self::Done | Self::Dlq | Self::Cancelled)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What can happen to a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Its delay is over.
    Enqueue,
    /// A worker takes it; the start of the attempt is written with it. An idle one whose delay is over is enqueued and
    /// taken at once.
    Take,
    /// The attempt succeeded.
    Finish,
    /// The attempt failed and another follows; or the delivery is given back; or its worker is gone.
    Retry,
    /// Out of attempts; the target's policy is `blocked`.
    Block,
    /// Out of attempts, or not to be tried again; the dead letter is written with it.
    Bury,
    /// A replay job releases it.
    Replay,
    /// Somebody cancels it.
    Cancel,
}

impl Step {
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

    /// The states it can be taken from.
    pub const fn from(self) -> &'static [State] {
        match self {
            Self::Enqueue => &[State::Idle],
            Self::Take => &[State::Queued, State::RetryWait, State::Replaying],
            Self::Finish | Self::Retry | Self::Block | Self::Bury => &[State::Running],
            Self::Replay => &[State::Dlq, State::Blocked],
            Self::Cancel => &[State::Idle, State::Queued, State::RetryWait, State::Blocked],
        }
    }

    /// The state it leads to.
    pub const fn to(self) -> State {
        match self {
            Self::Enqueue => State::Queued,
            Self::Take => State::Running,
            Self::Finish => State::Done,
            Self::Retry => State::RetryWait,
            Self::Block => State::Blocked,
            Self::Bury => State::Dlq,
            Self::Replay => State::Replaying,
            Self::Cancel => State::Cancelled,
        }
    }
}

impl State {
    /// The state after `step`, where that is possible.
    ///
    /// # Errors
    /// [`Impossible`] where the step is not drawn.
    pub fn after(self, step: Step) -> Result<Self, Impossible> {
        if step.from().contains(&self) { Ok(step.to()) } else { Err(Impossible { state: self, step }) }
    }
}

/// A step that a delivery cannot take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a delivery that is {state} cannot {}", .step.verb())]
pub struct Impossible {
    /// Where it stands.
    pub state: State,
    /// What was asked.
    pub step: Step,
}

impl Step {
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

/// A delivery as the ledger keeps it (P11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its id.
    pub id: DeliveryId,
    /// What is delivered.
    pub event: EventId,
    /// To whom, by name.
    pub target: String,
    /// Whose it is.
    pub tenant: String,
    /// The type of its event.
    pub event_type: String,
    /// Where it stands.
    pub state: State,
    /// How many attempts were started, in its present round; a replay starts a new round.
    pub attempts: u32,
    /// How many of those ended with their worker: started, and nothing heard since.
    pub crashes: u32,
    /// Raised by every re-execute: it is part of the derived key.
    pub epoch: u32,
    /// When it may be taken next.
    pub due_at: Timestamp,
    /// The last failure, in words that hold no secret.
    pub error: Option<String>,
    /// Its dead letter, where there is or was one. A blocked delivery has none.
    pub letter: Option<LetterId>,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When its first attempt started.
    pub started_at: Option<Timestamp>,
    /// When it was done, buried, blocked or cancelled.
    pub completed_at: Option<Timestamp>,
}

/// One attempt to deliver, as the ledger keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Counts from 1, over all rounds.
    pub number: u32,
    /// Which process made it.
    pub worker: String,
    /// The epoch it was made in.
    pub epoch: u32,
    /// When its start was written.
    pub started_at: Timestamp,
    /// When its end was written; `None` while it runs.
    pub ended_at: Option<Timestamp>,
    /// How it ended; `None` while it runs.
    pub ending: Option<Ending>,
    /// The replay job that wanted it, if one did.
    pub job: Option<JobId>,
    /// The id under which the target saw it: see [`request_id`].
    pub request_id: String,
}

/// The id under which a target sees an attempt: the delivery's, and the attempt's number. So it names both.
pub fn request_id(delivery: DeliveryId, number: u32) -> String {
    format!("{delivery}-{number}")
}

/// The delivery that such an id names; `None` where it is an id of somebody else's.
pub fn delivery_of_request(request_id: &str) -> Option<DeliveryId> {
    let (delivery, number) = request_id.split_once('-')?;
    number.parse::<u32>().ok()?;
    delivery.parse().ok()
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// In one word.
    pub class: Class,
    /// The status the target answered with, where it is an HTTP endpoint that answered.
    pub status: Option<u16>,
    /// What went wrong, in words that hold no secret; empty where nothing did.
    pub error: String,
    /// The beginning of what the target answered, where that helps.
    pub excerpt: String,
    /// How long the target asked to be left alone.
    pub retry_after: Option<Duration>,
}

impl Ending {
    /// The end of an attempt that does not count as one.
    #[cfg(feature = "embedded")]
    pub(crate) fn deferred(error: String) -> Self {
        Self { class: Class::Deferred, status: None, error, excerpt: String::new(), retry_after: None }
    }
}

/// How an attempt ended, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The target took it.
    Success,
    /// It failed in a way that may pass.
    Transient,
    /// It failed in a way that stays.
    Permanent,
    /// Nobody knows whether the target took it: cut off, or too late.
    Unknown,
    /// Its worker was gone before it ended.
    Crashed,
    /// Nothing was sent: it was given back (the target's breaker was open, the lease or the process ended), or set aside as
    /// expired or poison. It does not count as an attempt.
    Deferred,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 6] =
        [Self::Success, Self::Transient, Self::Permanent, Self::Unknown, Self::Crashed, Self::Deferred];

    /// Its name, as the API and the tables spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::Unknown => "unknown",
            Self::Crashed => "crashed",
            Self::Deferred => "deferred",
        }
    }

    /// The class of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == name)
    }
}

/// A delivery in the hands of a worker. Every word about it carries the token, so that a late worker is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holding {
    /// Which delivery.
    pub delivery: DeliveryId,
    /// Proves who holds it: new with every take.
    pub token: u128,
}

/// Work for a worker: a delivery that was taken, with everything needed to make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The right to speak about it.
    pub holding: Holding,
    /// What is delivered.
    pub event: EventId,
    /// To whom, by name.
    pub target: String,
    /// Whose it is.
    pub tenant: String,
    /// The event's type.
    pub event_type: String,
    /// The exact bytes to deliver.
    pub payload: Bytes,
    /// What they are.
    pub content_type: String,
    /// What else the source carried.
    pub headers: Vec<(String, String)>,
    /// Which attempt of the present round this is; counts from 1.
    pub attempt: u32,
    /// How many of this round's attempts ended with their worker.
    pub crashes: u32,
    /// Part of the derived key.
    pub epoch: u32,
    /// The id under which the target sees this attempt.
    pub request_id: String,
    /// The trace it belongs to.
    pub trace: Trace,
    /// When its event was accepted.
    pub accepted_at: Timestamp,
    /// Set where its time to be delivered is over: it is to be set aside as expired.
    pub expired: bool,
    /// The replay job that released it, if one did.
    pub job: Option<JobId>,
}

impl Settle {
    /// The step it asks for.
    pub const fn step(&self) -> Step {
        match self {
            Self::Done(_) => Step::Finish,
            Self::Retry(..) | Self::Defer(_) => Step::Retry,
            Self::Block(_) => Step::Block,
            Self::Bury(..) => Step::Bury,
        }
    }
}

/// What a worker says of a delivery it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settle {
    /// Delivered.
    Done(Ending),
    /// Failed; to be tried again after so long.
    Retry(Ending, Duration),
    /// Given back untried, for so long. The attempt does not count.
    Defer(Duration),
    /// Failed for good; nothing of the same order key may pass it.
    Block(Ending),
    /// Failed for good; a dead letter is written, in the same transaction.
    Bury(Ending, crate::letter::Cause),
}

/// What the ledger answers a worker that speaks about a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is written, now or by an earlier try of the same call.
    Kept,
    /// Somebody else holds it by now, or it has ended: nothing was written.
    Lost,
}

/// A delivery with its event and all its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The delivery.
    pub delivery: Delivery,
    /// Its event.
    pub event: Event,
    /// Every attempt, the first one first.
    pub attempts: Vec<Attempt>,
}

#[cfg(test)]
mod tests {
    use semel::time::Timestamp;

    use super::{State, Step, delivery_of_request, request_id};
    use crate::id::DeliveryId;

    /// The drawing of the design, as pairs.
    const DRAWN: [(State, State); 14] = [
        (State::Idle, State::Queued),
        (State::Queued, State::Running),
        (State::Running, State::Done),
        (State::Running, State::RetryWait),
        (State::Running, State::Blocked),
        (State::Running, State::Dlq),
        (State::RetryWait, State::Running),
        (State::Dlq, State::Replaying),
        (State::Blocked, State::Replaying),
        (State::Replaying, State::Running),
        (State::Idle, State::Cancelled),
        (State::Queued, State::Cancelled),
        (State::RetryWait, State::Cancelled),
        (State::Blocked, State::Cancelled),
    ];

    // P6
    #[test]
    fn only_the_drawn_transitions_are_possible() {
        for from in State::ALL {
            for to in State::ALL {
                let possible = Step::ALL.into_iter().any(|step| from.after(step) == Ok(to));
                assert_eq!(possible, DRAWN.contains(&(from, to)), "{from} to {to}");
            }
        }
    }

    // P12
    #[test]
    fn a_request_id_names_its_delivery() {
        let id = DeliveryId::new(Timestamp::from_micros(1));
        assert_eq!(delivery_of_request(&request_id(id, 17)), Some(id));
        assert_eq!(delivery_of_request("dlv_x-1"), None);
        assert_eq!(delivery_of_request(&id.to_string()), None);
    }

    #[test]
    fn names_read_back() {
        for state in State::ALL {
            assert_eq!(State::from_name(state.as_str()), Some(state));
        }
    }
}
