//! Replay jobs send dead letters again: slowly at first, under limits, and observable.
//!
//! A job is stored in the ledger. A replayer releases some of its items, the delivery workers deliver them, and the
//! ledger writes the result of an item in the transaction that settles its delivery. A job therefore survives the
//! process that ran it, and several processes can run it.

use semel::time::Timestamp;

use crate::id::{DeliveryId, EventId, JobId, LetterId};
use crate::names::names;

/// The selection of a job.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// Every delivery that ended in `dlq` or `blocked`, the oldest first, up to a limit. Not those whose dead letter
    /// is parked or discarded.
    Failed {
        /// The maximum number.
        limit: u64,
        /// Only of this tenant.
        tenant: Option<String>,
        /// Only for these targets; all if it is empty.
        targets: Vec<String>,
        /// Only with this failure signature.
        signature: Option<String>,
    },
    /// These dead letters, also parked ones.
    Letters(Vec<LetterId>),
    /// The deliveries of one event to these targets; to all that failed if it is empty.
    Event {
        /// The event.
        id: EventId,
        /// The targets. A delivery that was done is replayed only in mode re-execute (as another delivery of the same
        /// event to the same target, in the next epoch) or as-new.
        targets: Vec<String>,
    },
}

/// How a replay treats earlier effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayMode {
    /// Same key: completed deliveries are skipped and marked resolved, those in progress are left, failed ones are
    /// retried.
    Resume,
    /// A new epoch under the same key: the effect happens again. A reason is required.
    ReExecute,
    /// Another key, derived from the job and the dead letter: a new event, the same one whenever the job repeats it.
    /// That event replaces the dead letter: it is `replayed` when the event is delivered, and `discarded` when the
    /// event fails and has its own dead letter (a `copy_of` the first), so that only one of the two is pending.
    AsNew,
}

names!(ReplayMode {
    Resume = "resume",
    ReExecute = "re-execute",
    AsNew = "as-new",
});

/// A new job.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Its id.
    pub id: JobId,
    /// The selection; fixed when the job is created.
    pub selection: Selection,
    /// The mode.
    pub mode: ReplayMode,
    /// The reason; required by re-execute.
    pub reason: Option<String>,
    /// The person or token that created it.
    pub by: String,
    /// The limits.
    pub pace: ReplayPace,
}

/// The limits of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayPace {
    /// Maximum number of items released a second, evenly; 0 means no limit. A delay is not made up for, beyond a
    /// tenth of a second.
    pub rate: f64,
    /// The maximum number of items in progress.
    pub concurrency: u32,
    /// The number of items that are tried first, before the rest is released; 0 for none.
    pub canary: u32,
    /// The job pauses itself when more than this share of the ended items failed again: of the canary, once all of it
    /// has ended, and from ten items on of all since the job began or was resumed, or since the last hundred.
    pub pause_above: f64,
}

impl Default for ReplayPace {
    fn default() -> Self {
        Self { rate: 0.0, concurrency: 16, canary: 1, pause_above: 0.5 }
    }
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Items are being released.
    Running,
    /// Nothing is released until a person resumes it. The job's note gives the reason.
    Paused,
    /// Every item has ended.
    Done,
    /// A person stopped it; items that were not released stay dead letters.
    Cancelled,
}

names!(JobState {
    Running = "running",
    Paused = "paused",
    Done = "done",
    Cancelled = "cancelled",
});

impl JobState {
    /// True if it cannot change any more.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Cancelled)
    }
}

/// A job in the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    /// The job as it was created.
    pub new: NewJob,
    /// Its state.
    pub state: JobState,
    /// The reason of its state, for people.
    pub note: String,
    /// Number of items by result.
    pub counts: Counts,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// Number of items of a job, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// In total.
    pub total: u64,
    /// Not released yet.
    pub pending: u64,
    /// Released, and not ended.
    pub released: u64,
    /// Delivered.
    pub replayed: u64,
    /// Already completed: marked resolved, not sent.
    pub skipped_completed: u64,
    /// In progress, or part of another job: not changed.
    pub skipped_inflight: u64,
    /// Failed again: still a dead letter.
    pub failed_again: u64,
    /// Not released because the job was cancelled, or cancelled themselves.
    pub cancelled: u64,
}

impl Counts {
    /// Number of items with a result.
    pub const fn ended(&self) -> u64 {
        self.replayed + self.failed_again
    }

    /// Number of items that were ever released.
    pub const fn started(&self) -> u64 {
        self.ended() + self.released
    }

    /// The count of items in this state.
    pub const fn of(&mut self, state: ItemState) -> &mut u64 {
        match state {
            ItemState::Pending => &mut self.pending,
            ItemState::Released => &mut self.released,
            ItemState::Replayed => &mut self.replayed,
            ItemState::SkippedCompleted => &mut self.skipped_completed,
            ItemState::SkippedInflight => &mut self.skipped_inflight,
            ItemState::FailedAgain => &mut self.failed_again,
            ItemState::Cancelled => &mut self.cancelled,
        }
    }
}

/// The state of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemState {
    /// Not released yet.
    Pending,
    /// Released, and not ended.
    Released,
    /// Delivered.
    Replayed,
    /// Already completed.
    SkippedCompleted,
    /// In progress, or in another job.
    SkippedInflight,
    /// Failed again.
    FailedAgain,
    /// The job was cancelled first; or the delivery was, while it waited for another attempt.
    Cancelled,
}

names!(ItemState {
    Pending = "pending",
    Released = "released",
    Replayed = "replayed",
    SkippedCompleted = "skipped_completed",
    SkippedInflight = "skipped_inflight",
    FailedAgain = "failed_again",
    Cancelled = "cancelled",
});

/// One item of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobItem {
    /// The delivery to repeat.
    pub delivery: DeliveryId,
    /// Its dead letter, if it has one.
    pub letter: Option<LetterId>,
    /// Its event.
    pub event: EventId,
    /// Its target.
    pub target: String,
    /// Its state.
    pub state: ItemState,
    /// The new event, in mode as-new.
    pub new_event: Option<EventId>,
    /// The error, if there was one.
    pub error: Option<String>,
}

/// The plan of a job for one delivery.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Planned {
    /// The delivery.
    pub delivery: DeliveryId,
    /// Its dead letter, if it has one.
    pub letter: Option<LetterId>,
    /// Its event.
    pub event: EventId,
    /// Its target.
    pub target: String,
    /// The tenant.
    pub tenant: String,
    /// The signature of its failure.
    pub signature: String,
    /// The planned action.
    pub action: ReplayAction,
    /// The reason, in a few words.
    pub why: String,
}

/// The planned action for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayAction {
    /// Nothing is sent.
    Skip,
    /// It is sent.
    Run,
    /// It cannot be taken: in progress, in another job, discarded, or its target is not in the configuration any
    /// more.
    Conflict,
}

/// A command for a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum JobOrder {
    /// Release nothing more for now.
    Pause,
    /// Continue.
    Resume,
    /// Release nothing more at all.
    Cancel,
    /// Other limits from now on.
    Pace(ReplayPace),
}
