//! Ledgers: where events, deliveries, attempts, dead letters, replay jobs and the audit log are kept.
//!
//! One trait per room, and [`Ledger`] for all of them. Every ledger is held to the same contract suite.
//!
//! # Contract
//! - **Atomic, durable.** Each call is one transaction, on disk when it answers. Nothing is half there after a crash.
//! - **Repeatable.** A call whose fate is unknown fails with [`ErrorKind::Ambiguous`] and may be repeated unchanged:
//!   events know their id and dedupe key, workers their token, letters their message, jobs their id.
//! - **Its own clock.** Leases, delays and retention are counted by the ledger, from when it executes a call; callers give
//!   durations.
//! - **Only drawn steps.** A delivery changes by [`Step`](crate::delivery::DeliveryStep)s alone; what is not drawn is refused.
//! - **In many processes.** Any number of workers on any number of machines, unless the ledger is embedded.

mod control;
#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "embedded", feature = "postgres"))]
mod rules;
#[cfg(any(feature = "embedded", feature = "postgres"))]
mod sql;

use std::fmt;
use std::time::Duration;

use semel::key::KeyId;
pub use semel::store::{BoxFuture, ErrorKind};
use semel::time::Timestamp;

pub use self::control::{TargetControl, TargetPause};
#[cfg(feature = "embedded")]
pub use self::embedded::EmbeddedLedger;
#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresLedger, PostgresLedgerBuilder};
use crate::delivery::{
    Delivery, DeliveryHistory, DeliveryState, Holding, Impossible, LeaseResult, Settle, Work,
};
use crate::event::{Accepted, Event, Generation, NewEvent};
use crate::id::{DeliveryId, EventId, EventKind, JobId, LetterId};
use crate::letter::{FailureGroups, Letter, LetterStory, NewLetter, Status};
use crate::replay::{JobItem, JobOrder, JobRecord, NewJob, Planned, Selection};

/// What a ledger answers.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// A ledger could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database says no, or nothing. Its kind says whether it may have been done.
    #[error(transparent)]
    Store(#[from] semel::store::Error),
    /// There is no such thing.
    #[error("there is no {what} {id}")]
    NotFound {
        /// What was looked for: `event`, `delivery`, `dead letter`, `replay job`.
        what: &'static str,
        /// Under which id.
        id: String,
    },
    /// The step is not possible from where the delivery stands.
    #[error(transparent)]
    Impossible(#[from] Impossible),
    /// It cannot be done as things are; the text says why and what to do.
    #[error("{0}")]
    Refused(String),
    /// Somebody else changed it first. Read it again and repeat.
    #[error("it was changed meanwhile; read it again and repeat")]
    Stale,
}

impl Error {
    /// True if the database has logged the cause: an outage, which fails every call. Do not log each of them.
    pub fn is_logged(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_logged())
    }
}

/// Everything a ledger keeps.
pub trait Ledger:
    Intake
    + Working
    + TargetControl
    + Reading
    + Letters
    + Replays
    + Runs
    + AuditLog
    + Retention
    + fmt::Debug
    + fmt::Display
{
}

/// Taking events in.
pub trait Intake: Send + Sync + 'static {
    /// Accepts events with their deliveries: all of them in one transaction, each answered in order. An event whose dedupe id is
    /// held is not written again. One that names a generation of its key is written only while that generation lasts
    /// ([`Accepted::Stale`]). The same id twice in one call: the first counts.
    fn accept(&self, events: Vec<NewEvent>) -> Answer<'_, Vec<Accepted>>;

    /// Reads a key: its generation, and the event that holds it.
    fn find(&self, dedupe: KeyId) -> Answer<'_, KeyState>;

    /// Takes buffered runs in, each with its changes and in one transaction with them; one answer for each. It can be
    /// repeated with more changes: those that the run holds already are not applied again.
    ///
    /// A buffered run is never turned away, because its caller was told that it is accepted:
    /// - it holds its key where nothing else holds it in its generation,
    /// - it is accepted without the key where a later generation has begun,
    /// - it becomes a dead letter that can be replayed where another run holds the key in the same generation.
    fn drain(&self, runs: Vec<DrainedRun>) -> Answer<'_, Vec<Drained>>;
}

/// What the ledger knows of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// The generation that lasts.
    pub generation: Generation,
    /// The event that holds the key in it.
    pub holder: Option<KeyHolder>,
}

impl KeyState {
    /// The event that holds the key, unless the key has expired.
    pub fn live(&self) -> Option<KeyHolder> {
        self.holder.filter(|holder| !holder.expired)
    }
}

/// The event that holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHolder {
    /// The event.
    pub event: EventId,
    /// What it asked for.
    pub fingerprint: semel::fingerprint::Fingerprint,
    /// Whether the key has expired.
    pub expired: bool,
}

/// A run on its way from the buffer into the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainedRun {
    /// The run as it was buffered.
    pub run: NewEvent,
    /// Its changes since, all of them: the first has number 1.
    pub changes: Vec<Patch>,
    /// What to do to it in the same transaction, after the changes. Where that is not possible, nothing is written, and the call
    /// fails; so such a run comes alone.
    pub then: Option<RunAction>,
}

/// A change to a buffered run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Patch {
    /// Tags, metadata, delay.
    Change(Change),
    /// It is not to be delivered. Written by earlier versions; a buffered run is cancelled in the ledger now.
    Cancel,
    /// It has lost its key. Written by earlier versions; a reset ends the generation of the key now.
    DropKey,
}

impl Patch {
    /// Applies the change to a buffered run. A cancellation does not change the run itself.
    ///
    /// # Errors
    /// Why the change cannot be applied: the run stays as it was.
    pub fn apply(&self, run: &mut NewEvent) -> Result<(), String> {
        match self {
            Self::Change(change) => {
                run.notes.apply(change)?;
                run.delay = change.delay.unwrap_or(run.delay);
            }
            Self::Cancel => {}
            Self::DropKey => run.dedupe = None,
        }
        Ok(())
    }
}

/// Something to do to a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunAction {
    /// Change it.
    Change(Change),
    /// Cancel it.
    Cancel(AuditLine),
}

/// What became of a run from the buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained {
    /// How it is in the ledger now.
    pub arrival: Arrival,
    /// Changes that could not be applied, in words.
    pub refused: Vec<String>,
}

/// How a run from the buffer is in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is new, and holds its key if it has one.
    New,
    /// It was there already, under its own id.
    Known,
    /// It is new, and a later generation of its key has begun: it does not hold the key.
    Older,
    /// It is a new dead letter: this run holds its key in the same generation.
    LostKey(EventId),
}

/// Making deliveries.
pub trait Working: Send + Sync + 'static {
    /// Takes deliveries that are due: state `running`, the attempt written down as started, a lease and a token.
    ///
    /// Fair: tenants take turns, the one that has waited longest for a turn first, so that one with a large backlog delays
    /// nobody. In order: of one target and order key only the earliest that has not ended, one at a time. A delivery
    /// whose lease is over is first given back (`retry_wait`, its attempt ends as crashed) and may be taken at once. One at
    /// a time holds for an earlier one that is replayed too: it waits for what runs, then goes first. Nothing is taken for a
    /// target that is [paused](TargetControl::pause_target).
    fn take(&self, take: Take) -> Answer<'_, Vec<Work>>;

    /// Takes this delivery, as [`take`](Self::take) would, where it waits for its retry, due or not. `None` where it does not,
    /// where another one of its order key runs or goes first, or where its target is paused.
    fn retake(&self, delivery: DeliveryId, worker: String, lease: Duration) -> Answer<'_, Option<Work>>;

    /// Extends leases; one answer for each. A lease that is over is extended too, where nobody has noticed yet.
    fn renew(&self, held: Vec<Holding>, lease: Duration) -> Answer<'_, Vec<LeaseResult>>;

    /// Writes how attempts ended; one answer for each. With it, in the same transaction: the dead letter of a buried
    /// one, the letter of a replayed one, the item of its replay job. A letter whose replay failed is pending again, or
    /// parked after [`PARKED_AFTER`](crate::letter::PARKED_AFTER) of them. A delivery that waits for a retry is due no later
    /// than its time to be delivered ends, so that it becomes a dead letter then. The same word of the same token again, while the
    /// delivery stands where it led, is kept again and writes nothing.
    fn settle(&self, settled: Vec<(Holding, Settle)>) -> Answer<'_, Vec<LeaseResult>>;

    /// How long until something is due for one of these targets, zero where something is; `None` where nothing waits.
    /// Leases that run out count too; deliveries to a paused target do not.
    fn next_due(&self, targets: Vec<String>) -> Answer<'_, Option<Duration>>;

    /// Ends when there may be new work: something was accepted, released or given back, here or (where the ledger can tell)
    /// in another process. May end for nothing. Workers ask again at [`next_due`](Self::next_due) anyway. Changes count
    /// from when this is called, not from when it is first awaited: call it, look for work, then await it.
    fn changed(&self) -> BoxFuture<'_, ()>;
}

/// What a worker asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// Who asks: unique for each process.
    pub worker: String,
    /// Targets, each with its maximum. Those whose circuit breaker is open are left out.
    pub targets: Vec<(String, u32)>,
    /// Maximum number of deliveries in all.
    pub limit: u32,
    /// How long the work is the worker's without a renewal.
    pub lease: Duration,
}

/// Looking.
pub trait Reading: Send + Sync + 'static {
    /// One event.
    fn event(&self, id: EventId) -> Answer<'_, Option<Event>>;

    /// Events, the newest first.
    fn events(&self, filter: EventFilter, page: Page) -> Answer<'_, Paged<Event>>;

    /// One delivery with its event and its attempts.
    fn delivery(&self, id: DeliveryId) -> Answer<'_, Option<DeliveryHistory>>;

    /// Deliveries, the newest first.
    fn deliveries(&self, filter: DeliveryFilter, page: Page) -> Answer<'_, Paged<Delivery>>;

    /// How many deliveries of these events are in each state.
    fn delivery_states(&self, events: Vec<EventId>) -> Answer<'_, Vec<(EventId, DeliveryState, u64)>>;

    /// The deliveries of an event with their attempts.
    fn deliveries_of(&self, event: EventId) -> Answer<'_, Vec<DeliveryHistory>>;

    /// Events that a request id, a dedupe id or one of these tags names: for the story of an action. The request id of an
    /// attempt names the event it delivered. At most 1000.
    fn find_events(
        &self,
        request_id: Option<String>,
        dedupe: Option<KeyId>,
        tags: Vec<String>,
    ) -> Answer<'_, Vec<EventId>>;

    /// Numbers for the metrics: how many deliveries in each state, the age of each target's oldest that is due, how many letters in
    /// each status.
    fn totals(&self) -> Answer<'_, Totals>;
}

/// The audit log: who did what, and why.
pub trait AuditLog: Send + Sync + 'static {
    /// Writes a line.
    fn audit(&self, line: AuditLine) -> Answer<'_, ()>;

    /// The lines, the newest first; of one subject, where one is named.
    fn audit_log(&self, subject: Option<String>, page: Page) -> Answer<'_, Paged<Audited>>;
}

/// How long ended work stays in the ledger.
pub trait Retention: Send + Sync + 'static {
    /// Removes what ended longer ago than `keep`, no more than `limit` rows of each kind. Dead letters that are pending,
    /// parked or replaying stay, with their events.
    fn sweep(&self, keep: Duration, limit: u32) -> Answer<'_, u64>;

    /// Removes lines of the audit log that are older than `keep`, the oldest first, no more than `limit`.
    fn sweep_audit(&self, keep: Duration, limit: u32) -> Answer<'_, u64>;
}

/// Which part of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// After this item: the `next` of the page before. An opaque text.
    pub after: Option<String>,
    /// Maximum number of items.
    pub limit: u32,
}

/// A part of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paged<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next part begins; `None` after the last. A part can be short, or empty, and still have one.
    pub next: Option<String>,
}

/// Which events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only events, or only runs.
    pub kind: Option<EventKind>,
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only of this type.
    pub event_type: Option<String>,
    /// Only with this tag.
    pub tag: Option<String>,
}

/// Which deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryFilter {
    /// Only of this event.
    pub event: Option<EventId>,
    /// Only to this target.
    pub target: Option<String>,
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only in one of these states; in any where it is empty.
    pub states: Vec<DeliveryState>,
}

/// A line for the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    /// Who: the name of a token, or `-`.
    pub who: String,
    /// What was done, in a word: `discard`, `restore`, `replay`, `cancel`…
    pub action: String,
    /// To what: an id.
    pub subject: String,
    /// Why, as they said.
    pub reason: String,
}

impl AuditLine {
    /// A line about something that Semel did by itself.
    pub fn by_semel(action: &str, subject: impl fmt::Display, reason: &str) -> Self {
        Self {
            who: "semel".to_owned(),
            action: action.to_owned(),
            subject: subject.to_string(),
            reason: reason.to_owned(),
        }
    }
}

/// A line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    /// When.
    pub at: Timestamp,
    /// What.
    pub line: AuditLine,
}

/// Numbers for the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Deliveries by target and state; those that ended well need not be counted.
    pub deliveries: Vec<(String, DeliveryState, u64)>,
    /// How long the oldest delivery of a target that is due has been waiting; only targets with a due delivery.
    pub due: Vec<(String, Duration)>,
    /// Letters by status.
    pub letters: Vec<(Status, u64)>,
}

impl Totals {
    /// How long the oldest delivery that is due has been waiting.
    pub fn oldest_due(&self) -> Option<Duration> {
        self.due.iter().map(|(_, age)| *age).max()
    }
}

/// Dead letters.
pub trait Letters: Send + Sync + 'static {
    /// Writes letters that no delivery stands behind. The same message is written once; each answer is the id it is
    /// kept under.
    fn put(&self, letters: Vec<NewLetter>) -> Answer<'_, Vec<LetterId>>;

    /// One letter with its history.
    fn letter(&self, id: LetterId) -> Answer<'_, Option<LetterStory>>;

    /// Letters, the newest first.
    fn letters(&self, filter: LetterFilter, page: Page) -> Answer<'_, Paged<Letter>>;

    /// Letters that failed alike, the largest group first: of the newest 100,000, or the newest 100,000 in the status of the
    /// filter.
    fn groups(&self, filter: LetterFilter) -> Answer<'_, FailureGroups>;

    /// Gives a letter up; it can be restored. Refused while it is replaying, and once it was replayed. Again: no change.
    fn discard(&self, id: LetterId, line: AuditLine) -> Answer<'_, ()>;

    /// Takes that back; also takes a parked one back to pending, its failed replays forgotten. Refused while it is
    /// replaying, once it was replayed, and where its delivery was cancelled. Again: no change.
    fn restore(&self, id: LetterId, line: AuditLine) -> Answer<'_, ()>;

    /// Makes a copy of a letter with another payload, as an event of its own with one delivery that is in `dlq` (or for a
    /// letter without an event: with the event that `copy` describes), linked both ways; its cause is `manual`. Answers the
    /// copy's id; for the same event id again, the same.
    fn edit(&self, id: LetterId, copy: NewEvent, line: AuditLine) -> Answer<'_, LetterId>;

    /// Letters from streams that are not in the dead-letter stream yet, the oldest first.
    fn unmirrored(&self, stream: String, limit: u32) -> Answer<'_, Vec<Letter>>;

    /// Notes that they are.
    fn mirrored(&self, letters: Vec<LetterId>) -> Answer<'_, ()>;
}

/// Which letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetterFilter {
    /// Only in this status.
    pub status: Option<Status>,
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only for this target.
    pub target: Option<String>,
    /// Only with this signature.
    pub signature: Option<String>,
}

/// Replay jobs.
pub trait Replays: Send + Sync + 'static {
    /// What a job would do, item by item, without doing it. `targets` are those of the config: a delivery to another one
    /// is a conflict.
    fn plan(
        &self,
        selection: Selection,
        mode: crate::replay::ReplayMode,
        targets: Vec<String>,
    ) -> Answer<'_, Vec<Planned>>;

    /// Makes a job and freezes its items; the same id again answers the job that is there. Items whose delivery another
    /// job has released, or that run, are skipped.
    fn create(&self, job: NewJob, targets: Vec<String>) -> Answer<'_, JobRecord>;

    /// One job.
    fn job(&self, id: JobId) -> Answer<'_, Option<JobRecord>>;

    /// Jobs, the newest first.
    fn jobs(&self, page: Page) -> Answer<'_, Paged<JobRecord>>;

    /// The items of a job, in the order they are released.
    fn items(&self, job: JobId, page: Page) -> Answer<'_, Paged<JobItem>>;

    /// Targets that a job still sends to: those of its next 1000 items, and of the latest 8192 items before them that are in
    /// progress. Sorted; empty for a job that has ended.
    fn unfinished_targets(&self, job: JobId) -> Answer<'_, Vec<String>>;

    /// Jobs that are running, also those that ran before a restart.
    fn running(&self) -> Answer<'_, Vec<JobId>>;

    /// Pauses, resumes, cancels or paces a job. Refused once it is over, except to cancel a cancelled one again.
    fn order(&self, job: JobId, order: JobOrder, note: String, line: AuditLine) -> Answer<'_, JobRecord>;

    /// Releases the next items of a job, at most `limit`, and never more than its concurrency allows: counted in the same
    /// transaction, so that no number of processes exceeds it. A released delivery is `replaying`, its letter too.
    /// In mode resume a delivery that is done is skipped and its letter marked as replayed; re-execute raises the epoch;
    /// as-new accepts an event with a dedupe id made from job and letter, and leaves the delivery in `dlq`. What is replayed
    /// counts its attempts from one, and its time to be delivered no longer ends. A job whose last item has ended is done.
    /// A job that is not running releases nothing and is answered as it is.
    fn release(&self, job: JobId, limit: u32) -> Answer<'_, JobRecord>;

    /// As [`release`](Self::release), if this number of items of the job was [started](crate::replay::Counts::started); otherwise
    /// nothing is released, and the job is answered as it is. So of several processes that saw the same job one releases, and
    /// a call that is repeated because its answer was lost releases once.
    fn release_after(&self, job: JobId, started: u64, limit: u32) -> Answer<'_, JobRecord>;
}

/// What only runs have: changes, cancelling, keys that are reset.
pub trait Runs: Send + Sync + 'static {
    /// Changes tags, metadata or the delay of an event, if its version is still `version` (any where it is `None`).
    /// Answers it as it is now.
    ///
    /// # Errors
    /// [`Error::Stale`] where the version is another; [`Error::Impossible`] where it is to be rescheduled and has started.
    fn change(&self, id: EventId, change: Change, version: Option<u64>) -> Answer<'_, Event>;

    /// Cancels the deliveries of an event that have not started. Answers how many.
    ///
    /// # Errors
    /// [`Error::Impossible`] where none could be cancelled; [`Error::NotFound`] where there is no such event.
    fn cancel(&self, id: EventId, line: AuditLine) -> Answer<'_, u32>;

    /// The run that an id leads to which an earlier version gave to two runs; `None` where there is none.
    fn resolve(&self, ghost: EventId) -> Answer<'_, Option<EventId>>;

    /// Ends the generation of a key: the next event under it is a new one, and what was buffered under it does not hold it.
    fn reset(&self, dedupe: KeyId, line: AuditLine) -> Answer<'_, Reset>;

    /// Ends the generation `from` of a key, unless it has ended; for keys that have expired. Answers the one that lasts now.
    fn advance(&self, dedupe: KeyId, from: Generation) -> Answer<'_, Generation>;

    /// The run with this fingerprint that was accepted under a key in this generation and does not hold it: it came from the
    /// buffer, and another run had the key.
    fn find_keyless(
        &self,
        dedupe: KeyId,
        generation: Generation,
        fingerprint: semel::fingerprint::Fingerprint,
    ) -> Answer<'_, Option<EventId>>;
}

/// What a reset of a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The generation that has ended.
    pub ended: Generation,
    /// The event that held the key.
    pub holder: Option<EventId>,
}

/// A change to a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Change {
    /// Tags to add; what is there already is not added again.
    pub add_tags: Vec<String>,
    /// Members of the metadata to set; the texts of JSON values, kept as they are.
    pub set: Vec<(String, String)>,
    /// Members of the metadata to take away.
    pub remove: Vec<String>,
    /// Members of the metadata to add to, exactly: they are decimal numbers of any size.
    pub increment: Vec<(String, String)>,
    /// A new delay, counted from now.
    pub delay: Option<Duration>,
}
