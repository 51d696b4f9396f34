//! What every ledger decides in the same way.

use super::{Arrival, KeyState, Patch, RunAction};
use crate::delivery::State;
use crate::event::{Generation, NewEvent};
use crate::id::EventId;
use crate::letter::Status;
use crate::replay::{Action, Mode, NewJob, Pace};

/// Whether a run was cancelled while it was buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    Yes,
    No,
}

/// Applies changes to a buffered run, in order. Answers whether it was cancelled, and names the changes that cannot be applied.
pub(crate) fn patch(run: &mut NewEvent, changes: &[Patch]) -> (Cancelled, Vec<String>) {
    let (mut cancelled, mut refused) = (Cancelled::No, Vec::new());
    for change in changes {
        match change {
            Patch::Change(change) => match run.notes.apply(change) {
                Ok(()) => run.delay = change.delay.unwrap_or(run.delay),
                Err(why) => refused.push(why),
            },
            Patch::Cancel => cancelled = Cancelled::Yes,
            Patch::DropKey => run.dedupe = None,
        }
    }
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
pub(crate) fn verdict(state: State, letter: Option<Status>, mode: Mode) -> (Action, &'static str) {
    match (letter, state, mode) {
        (Some(Status::Discarded), ..) => (Action::Conflict, "its letter was discarded: restore it first"),
        (_, State::Replaying, _) => (Action::Conflict, "another job has released it"),
        (_, State::Running, _) => (Action::Conflict, "it is in flight"),
        (_, State::Idle | State::Queued | State::RetryWait, _) => {
            (Action::Conflict, "it has not ended: it is still tried by itself")
        }
        (_, State::Cancelled, _) => (Action::Conflict, "it was cancelled"),
        (Some(Status::Replaying), State::Dlq, _) => (Action::Conflict, "another job replays it as new"),
        (_, State::Done, Mode::Resume) => (Action::Skip, "it was delivered"),
        (_, State::Dlq | State::Blocked, Mode::Resume) => {
            (Action::Run, "it failed: tried again under its key")
        }
        (_, State::Dlq | State::Blocked | State::Done, Mode::ReExecute) => {
            (Action::Run, "a new epoch: its effect happens again")
        }
        (_, State::Dlq | State::Blocked | State::Done, Mode::AsNew) => {
            (Action::Run, "as a new event under a key of its own")
        }
    }
}

/// Whether a job can be made, or a sentence that says why not.
pub(crate) fn check_job(job: &NewJob) -> Result<(), String> {
    if job.mode == Mode::ReExecute && job.reason.as_ref().is_none_or(|reason| reason.trim().is_empty()) {
        return Err(
            "a replay that executes again needs a reason: say why the effect shall happen twice".to_owned()
        );
    }
    check_pace(&job.pace)
}

/// Whether a job can go at this pace, or a sentence that says why not.
pub(crate) fn check_pace(pace: &Pace) -> Result<(), String> {
    if pace.concurrency == 0 {
        return Err("a job with a concurrency of 0 would never release anything: give at least 1".to_owned());
    }
    if !(pace.rate >= 0.0 && pace.rate.is_finite() && pace.pause_above.is_finite()) {
        return Err("the rate of a job is 0 (no limit) or more, and its ratio a number".to_owned());
    }
    Ok(())
}
