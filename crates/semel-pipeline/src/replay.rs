//! Replay jobs: dead letters get another try, slowly at first, under limits, and in sight.
//!
//! A job is rows in the ledger. Whoever runs a job releases some of its items; the delivery workers do the rest, and
//! the ledger writes what became of an item in the transaction that settles its delivery. So a job survives whatever
//! becomes of the process that ran it, and two processes can run it.

use semel::time::Timestamp;

use crate::id::{DeliveryId, EventId, JobId, LetterId};

/// What to replay.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Selection {
    /// Every delivery that ended in `dlq` or `blocked`, the oldest first, at most so many. Not those whose letter is
    /// parked or discarded.
    Failed {
        /// At most so many.
        limit: u64,
        /// Only of this tenant.
        tenant: Option<String>,
        /// Only for these targets; all where it is empty.
        targets: Vec<String>,
        /// Only with this failure signature.
        signature: Option<String>,
    },
    /// These letters, also parked ones.
    Letters(Vec<LetterId>),
    /// The deliveries of one event, to these targets; to all that failed where it is empty.
    Event {
        /// Which.
        id: EventId,
        /// To whom. A delivery that was done is replayed only in mode re-execute (as another delivery of the same event
        /// to the same target, one epoch up) or as-new.
        targets: Vec<String>,
    },
}

/// How a replay treats what may have happened before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Same key: what was completed is skipped and marked resolved, what is in flight is left, what failed is tried again.
    Resume,
    /// A new epoch under the same key: the effect happens again. A reason is required.
    ReExecute,
    /// Another key, made from the job and the letter: an event of its own, the same one whenever the job repeats it.
    /// That event carries the story on: the letter is `replayed` when it is delivered, and `discarded` when it fails and
    /// has a dead letter of its own (a `copy_of` the first), so that one of the two is pending and never both.
    AsNew,
}

impl Mode {
    /// Every mode.
    pub const ALL: [Self; 3] = [Self::Resume, Self::ReExecute, Self::AsNew];

    /// Its name, as the API and the tables spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::ReExecute => "re-execute",
            Self::AsNew => "as-new",
        }
    }

    /// The mode of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == name)
    }
}

/// A job to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Its id.
    pub id: JobId,
    /// What to replay; frozen when the job is made.
    pub selection: Selection,
    /// How.
    pub mode: Mode,
    /// Why; required by re-execute.
    pub reason: Option<String>,
    /// Who wants it.
    pub by: String,
    /// How it goes about it.
    pub pace: Pace,
}

/// How a job goes about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Maximum number of items released a second, evenly; 0 is no limit. What could not be released in time is not made up
    /// for, beyond a tenth of a second.
    pub rate: f64,
    /// At most so many released and not ended at any moment.
    pub concurrency: u32,
    /// So many are tried first, and the rest waits for what becomes of them; 0 is none.
    pub canary: u32,
    /// It pauses itself when more than this share of what ended failed again: of the canary, once all of it has ended, and
    /// from ten items on of all since the job began or was resumed, or since the last hundred.
    pub pause_above: f64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { rate: 0.0, concurrency: 16, canary: 1, pause_above: 0.5 }
    }
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Items are being released.
    Running,
    /// Nothing is released until somebody resumes it. Why is in the job's note.
    Paused,
    /// Every item has ended.
    Done,
    /// Somebody stopped it; what was not released stays a dead letter.
    Cancelled,
}

impl JobState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Running, Self::Paused, Self::Done, Self::Cancelled];

    /// Its name, as the API and the tables spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether nothing more comes of it, by itself or by anybody.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Cancelled)
    }
}

/// A job as the ledger keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// What was asked for.
    pub new: NewJob,
    /// Where it stands.
    pub state: JobState,
    /// Why it stands there, for people.
    pub note: String,
    /// How many items, by what became of them.
    pub counts: Counts,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// How many items of a job, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// In all.
    pub total: u64,
    /// Not released yet.
    pub pending: u64,
    /// Released, and not ended.
    pub released: u64,
    /// Delivered.
    pub replayed: u64,
    /// Had been completed already: marked resolved, not sent.
    pub skipped_completed: u64,
    /// In flight at that moment, or taken by another job: left alone.
    pub skipped_inflight: u64,
    /// Failed again: a dead letter still.
    pub failed_again: u64,
    /// Left alone because the job was cancelled, or cancelled themselves.
    pub cancelled: u64,
}

impl Counts {
    /// Items of which something came.
    pub const fn ended(&self) -> u64 {
        self.replayed + self.failed_again
    }

    /// Items that were released at some time.
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

/// What became of an item, or is to become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemState {
    /// Not released yet.
    Pending,
    /// Released, and not ended.
    Released,
    /// Delivered.
    Replayed,
    /// Had been completed already.
    SkippedCompleted,
    /// In flight, or in another job.
    SkippedInflight,
    /// Failed again.
    FailedAgain,
    /// The job was cancelled before; or the delivery was, while it waited for a further attempt.
    Cancelled,
}

impl ItemState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Released,
        Self::Replayed,
        Self::SkippedCompleted,
        Self::SkippedInflight,
        Self::FailedAgain,
        Self::Cancelled,
    ];

    /// Its name, as the API and the tables spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Released => "released",
            Self::Replayed => "replayed",
            Self::SkippedCompleted => "skipped_completed",
            Self::SkippedInflight => "skipped_inflight",
            Self::FailedAgain => "failed_again",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

/// One item of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The delivery to be made again.
    pub delivery: DeliveryId,
    /// Its letter, where it has one.
    pub letter: Option<LetterId>,
    /// Its event.
    pub event: EventId,
    /// Its target.
    pub target: String,
    /// Where it stands.
    pub state: ItemState,
    /// The new event, in mode as-new.
    pub new_event: Option<EventId>,
    /// What went wrong, where something did.
    pub error: Option<String>,
}

/// What a job would do with one delivery.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Planned {
    /// The delivery.
    pub delivery: DeliveryId,
    /// Its letter, where it has one.
    pub letter: Option<LetterId>,
    /// Its event.
    pub event: EventId,
    /// Its target.
    pub target: String,
    /// Whose it is.
    pub tenant: String,
    /// By what it is grouped.
    pub signature: String,
    /// What would be done.
    pub action: Action,
    /// Why, in a few words.
    pub why: String,
}

/// What would be done with an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Nothing is sent.
    Skip,
    /// It is sent.
    Run,
    /// It cannot be taken: in flight, in another job, discarded, or its target is gone from the config.
    Conflict,
}

/// What somebody wants of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// Release nothing more for now.
    Pause,
    /// Go on.
    Resume,
    /// Release nothing more at all.
    Cancel,
    /// Another pace from now on.
    Pace(Pace),
}
