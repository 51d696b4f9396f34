//! What every ledger decides in the same way.

use std::time::Duration;

use semel::time::Timestamp;

use super::{Arrival, Change, Error, KeyState, Patch, RunAction};
use crate::delivery::{DeliveryState, DeliveryStep, Impossible};
use crate::event::{Accepted, Dedupe, Event, Generation, NewEvent, Origin};
use crate::id::{EventId, JobId, LetterId};
use crate::letter::Status;
use crate::replay::{
    ItemState, JobItem, JobOrder, JobRecord, JobState, NewJob, Planned, ReplayAction, ReplayMode, ReplayPace,
};

/// What keeps an event from being accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Obstacle {
    /// The state of its key.
    pub(crate) key: KeyState,
    /// Whether the event is there, under its own id.
    pub(crate) own: bool,
}

impl Obstacle {
    /// The answer for the event; `None` where nothing is in its way.
    pub(crate) fn answer(&self, event: &NewEvent) -> Option<Accepted> {
        let dedupe = event.dedupe.as_ref();
        let expired = self.key.holder.is_some_and(|holder| holder.expired);
        // The generation that it names has ended, or must end because the key has expired.
        let read = dedupe.and_then(|dedupe| dedupe.generation);
        let stale = read.is_some_and(|read| self.key.generation > read || expired);
        match self.key.live().filter(|_| !stale) {
            Some(holder) if dedupe.is_some_and(|dedupe| dedupe.fingerprint != holder.fingerprint) => {
                Some(Accepted::Conflict)
            }
            Some(holder) => Some(Accepted::Cached(holder.event)),
            // The same call again, after its key was reset, or without one.
            None if self.own => Some(Accepted::Cached(event.id)),
            None => stale.then_some(Accepted::Stale),
        }
    }
}

/// Whether a run was cancelled while it was buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    Yes,
    No,
}

/// Applies changes to a buffered run, in order. Answers whether it was cancelled, and names the changes that cannot be applied.
pub(crate) fn patch(run: &mut NewEvent, changes: &[Patch]) -> (Cancelled, Vec<String>) {
    let refused = changes.iter().filter_map(|change| change.apply(run).err()).collect();
    let cancelled = if changes.contains(&Patch::Cancel) { Cancelled::Yes } else { Cancelled::No };
    (cancelled, refused)
}

/// Applies what is to be done to a buffered run as it arrives, as far as that is a change of the run itself.
pub(crate) fn act(run: &mut NewEvent, then: Option<&RunAction>) -> Result<(), String> {
    if let Some(RunAction::Change(change)) = then {
        run.notes.apply(change)?;
        run.delay = change.delay.unwrap_or(run.delay);
    }
    Ok(())
}

/// What a buffered run that is new to the ledger comes to, by the state of its key.
pub(crate) fn arrival(generation: Option<Generation>, key: KeyState) -> Arrival {
    let own = generation.unwrap_or_default();
    match key.holder {
        _ if key.generation > own => Arrival::Older,
        Some(holder) if key.generation == own => Arrival::LostKey(holder.event),
        _ => Arrival::New,
    }
}

/// Why a run from the buffer is a dead letter.
pub(crate) fn lost_key(winner: EventId) -> String {
    format!(
        "its key belongs to {winner}, which was accepted while Redis did not answer; replay it to run both"
    )
}

/// The changes that a run does not hold yet.
pub(crate) fn behind(changes: &[Patch], held: u64) -> &[Patch] {
    changes.get(usize::try_from(held).unwrap_or(usize::MAX)..).unwrap_or_default()
}

/// The reason in the audit log for a run that an earlier version cancelled in the buffer.
pub(crate) const CANCELLED_IN_BUFFER: &str = "cancelled while it was buffered";

/// What a replay does with a delivery that stands here, and why.
pub(crate) fn verdict(
    state: DeliveryState,
    letter: Option<Status>,
    mode: ReplayMode,
) -> (ReplayAction, &'static str) {
    match (letter, state, mode) {
        (Some(Status::Discarded), ..) => {
            (ReplayAction::Conflict, "its letter was discarded: restore it first")
        }
        (_, DeliveryState::Replaying, _) => (ReplayAction::Conflict, "another job has released it"),
        (_, DeliveryState::Running, _) => (ReplayAction::Conflict, "it is in flight"),
        (_, DeliveryState::Idle | DeliveryState::Queued | DeliveryState::RetryWait, _) => {
            (ReplayAction::Conflict, "it has not ended: it is still tried by itself")
        }
        (_, DeliveryState::Cancelled, _) => (ReplayAction::Conflict, "it was cancelled"),
        (Some(Status::Replaying), DeliveryState::Dlq, _) => {
            (ReplayAction::Conflict, "another job replays it as new")
        }
        (_, DeliveryState::Done, ReplayMode::Resume) => (ReplayAction::Skip, "it was delivered"),
        (_, DeliveryState::Dlq | DeliveryState::Blocked, ReplayMode::Resume) => {
            (ReplayAction::Run, "it failed: tried again under its key")
        }
        (_, DeliveryState::Dlq | DeliveryState::Blocked | DeliveryState::Done, ReplayMode::ReExecute) => {
            (ReplayAction::Run, "a new epoch: its effect happens again")
        }
        (_, DeliveryState::Dlq | DeliveryState::Blocked | DeliveryState::Done, ReplayMode::AsNew) => {
            (ReplayAction::Run, "as a new event under a key of its own")
        }
    }
}

/// Whether a job can be made, or a sentence that says why not.
pub(crate) fn check_job(job: &NewJob) -> Result<(), String> {
    if job.mode == ReplayMode::ReExecute && job.reason.as_ref().is_none_or(|reason| reason.trim().is_empty())
    {
        return Err(
            "a replay that executes again needs a reason: say why the effect shall happen twice".to_owned()
        );
    }
    check_pace(&job.pace)
}

/// Whether a job can go at this pace, or a sentence that says why not.
pub(crate) fn check_pace(pace: &ReplayPace) -> Result<(), String> {
    if pace.concurrency == 0 {
        return Err("a job with a concurrency of 0 would never release anything: give at least 1".to_owned());
    }
    if !(pace.rate >= 0.0 && pace.rate.is_finite() && pace.pause_above.is_finite()) {
        return Err("the rate of a job is 0 (no limit) or more, and its ratio a number".to_owned());
    }
    Ok(())
}

/// What an order makes of a job: its state, and its pace where that changes. `None` where nothing changes.
pub(crate) fn order(
    job: &JobRecord,
    order: JobOrder,
) -> Result<Option<(JobState, Option<ReplayPace>)>, Error> {
    Ok(Some(match (job.state, order) {
        (JobState::Cancelled, JobOrder::Cancel) => return Ok(None),
        (state, _) if state.is_over() => {
            return Err(Error::Refused(format!("{} is {}: make another job", job.new.id, state.as_str())));
        }
        (_, JobOrder::Cancel) => (JobState::Cancelled, None),
        (_, JobOrder::Pause) => (JobState::Paused, None),
        (_, JobOrder::Resume) => (JobState::Running, None),
        (state, JobOrder::Pace(pace)) => {
            check_pace(&pace).map_err(Error::Refused)?;
            (state, Some(pace))
        }
    }))
}

/// The state in which an item of a new job begins, and why it is skipped.
pub(crate) fn first_state(planned: &Planned) -> (ItemState, Option<&str>) {
    match planned.action {
        ReplayAction::Run => (ItemState::Pending, None),
        ReplayAction::Skip => (ItemState::SkippedCompleted, None),
        ReplayAction::Conflict => (ItemState::SkippedInflight, Some(&planned.why)),
    }
}

/// The event that repeats `original` for the target of an item, under a key of its own.
pub(crate) fn repeat_as_new(original: NewEvent, job: JobId, item: &JobItem, now: Timestamp) -> NewEvent {
    NewEvent {
        id: EventId::new(original.id.kind(), now),
        dedupe: Some(Dedupe::of_replay(job, item.delivery, &original.payload)),
        origin: Origin::Replay { of: original.id },
        targets: vec![item.target.clone()],
        delay: Duration::ZERO,
        deliver_within: None,
        ..original
    }
}

/// The status of a letter that is discarded; `None` where it is already.
pub(crate) fn discard(id: LetterId, status: Status) -> Result<Option<Status>, Error> {
    match status {
        Status::Discarded => Ok(None),
        Status::Pending | Status::Parked => Ok(Some(Status::Discarded)),
        Status::Replaying => Err(Error::Refused(format!(
            "{id} is being replayed: wait for what becomes of it, or cancel its job"
        ))),
        Status::Replayed => {
            Err(Error::Refused(format!("{id} was delivered after all: there is nothing to give up")))
        }
    }
}

/// The status of a letter that is restored, whose delivery is in state `delivery`; `None` where it is already.
pub(crate) fn restore(
    id: LetterId,
    status: Status,
    delivery: Option<DeliveryState>,
) -> Result<Option<Status>, Error> {
    match (status, delivery) {
        (Status::Pending, _) => Ok(None),
        (Status::Replaying, _) => Err(Error::Refused(format!("{id} is being replayed: it is not given up"))),
        (Status::Replayed, _) => {
            Err(Error::Refused(format!("{id} was delivered after all: there is nothing to restore")))
        }
        (Status::Discarded | Status::Parked, Some(DeliveryState::Cancelled)) => {
            Err(Error::Refused(format!("the delivery of {id} was cancelled: publish its event again")))
        }
        (Status::Discarded | Status::Parked, _) => Ok(Some(Status::Pending)),
    }
}

/// The one target of an edited copy.
pub(crate) fn target_of_copy(copy: &NewEvent) -> Result<&str, Error> {
    match &copy.targets[..] {
        [target] => Ok(target),
        _ => Err(Error::Refused(
            "an edited copy is for one target: name the one that the letter was for".to_owned(),
        )),
    }
}

/// The error of an edited copy of a letter.
pub(crate) fn error_of_copy(of: LetterId) -> String {
    format!("an edited copy of {of}, not sent yet")
}

/// The refusal of a copy whose id another event has.
pub(crate) fn id_of_copy_is_taken(id: EventId) -> Error {
    Error::Refused(format!("{id} is another event already: give the copy an id of its own"))
}

/// The refusal of a copy whose dedupe key another event holds.
pub(crate) fn key_of_copy_is_taken() -> Error {
    Error::Refused("the dedupe key of the copy is taken: give the copy a key of its own, or none".to_owned())
}

/// Changes an event, if its version is still `version`.
pub(crate) fn change(event: &mut Event, change: &Change, version: Option<u64>) -> Result<(), Error> {
    if version.is_some_and(|version| version != event.version) {
        return Err(Error::Stale);
    }
    event.new.notes.apply(change).map_err(Error::Refused)?;
    event.version += 1;
    Ok(())
}

/// Refuses to reschedule an event of which one delivery has started.
pub(crate) fn check_not_started(mut deliveries: impl Iterator<Item = DeliveryState>) -> Result<(), Error> {
    match deliveries.find(|state| !matches!(state, DeliveryState::Idle | DeliveryState::Queued)) {
        Some(state) => Err(Impossible { state, step: DeliveryStep::Enqueue }.into()),
        None => Ok(()),
    }
}
