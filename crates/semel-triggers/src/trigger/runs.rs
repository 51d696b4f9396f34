//! Runs after their trigger: find, change, cancel, reset the key. A run is in the buffer, in the ledger, or moving
//! from one to the other.
//!
//! A run moves from the buffer to the ledger, so the buffer is read first. Changes of tags and metadata are stored in
//! the buffer, in order. A cancellation or another delay must not come too late: it moves the run into the ledger and
//! is applied in the same transaction, so the ledger decides whether it was in time.

use std::time::Duration;

use semel::store::ErrorKind;
use semel_pipeline::event::{Dedupe, Event};
use semel_pipeline::id::EventId;
use semel_pipeline::ledger::{AuditLine, Change, Error, Patch, RunAction};
use tokio::time::Instant;

use super::{Burst, CHECKS, Triggers};
use crate::buffer::{BufferedRun, CurrentRun, PatchOutcome};
use crate::transfer::{DrainError, Moved};

/// How long a caller waits for a run that a drainer has leased.
const LEASED_RUN_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunLocation {
    /// In the ledger.
    Ledger(Box<Event>),
    /// In the buffer, with its changes applied.
    Buffer {
        /// The run.
        buffered: Box<CurrentRun>,
        /// Its version.
        version: u64,
    },
    /// Not found.
    Missing,
}

/// Why a run was not found, changed or cancelled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunAccessError {
    /// The ledger refused the command.
    #[error(transparent)]
    Ledger(#[from] Error),
    /// The run is moving from the buffer to the ledger.
    #[error("the run is on its way from the buffer to the ledger; try again in a moment")]
    InTransit,
    /// Redis did not answer, and the ledger does not have the run or key: it may be in the buffer.
    #[error("the buffer does not answer, and the run may be there: {0}")]
    Buffer(#[from] semel::store::Error),
}

/// A key of a run, with its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunKey<'a> {
    /// Name of the token that authenticated the trigger.
    pub principal: &'a str,
    /// The tenant; `""` without one.
    pub tenant: &'a str,
    /// Name of the target.
    pub target: &'a str,
    /// The key.
    pub key: &'a str,
}

impl Triggers {
    /// Finds a run.
    ///
    /// # Errors
    /// The ledger or the buffer does not answer.
    pub async fn locate(&self, id: EventId) -> Result<RunLocation, RunAccessError> {
        let buffered = match self.connected_burst() {
            Ok(None) => Ok(None),
            Ok(Some(burst)) => find_buffered(burst, id).await,
            Err(error) => Err(error),
        };
        let mut event = self.ledger.event(id).await?;
        // An earlier version may have given its id to another run.
        if event.is_none()
            && !matches!(buffered, Ok(Some(_)))
            && let Some(winner) = self.ledger.resolve(id).await?
        {
            event = self.ledger.event(winner).await?;
        }
        match (event, buffered) {
            (Some(mut event), Ok(Some((buffered, _)))) => {
                show_pending(&mut event, &buffered);
                Ok(RunLocation::Ledger(Box::new(event)))
            }
            (Some(event), _) => Ok(RunLocation::Ledger(Box::new(event))),
            (None, Ok(Some((buffered, version)))) => {
                Ok(RunLocation::Buffer { buffered: Box::new(buffered.current()), version })
            }
            (None, Ok(None)) => Ok(RunLocation::Missing),
            (None, Err(error)) => Err(error.into()),
        }
    }

    /// Changes tags, metadata or the delay of a run. `version` makes it a compare-and-set.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Stale`], [`Error::Impossible`], [`Error::Refused`] as the ledger's; and [`RunAccessError::InTransit`].
    pub async fn change(
        &self,
        id: EventId,
        change: &Change,
        version: Option<u64>,
    ) -> Result<RunLocation, RunAccessError> {
        let action = RunAction::Change(change.clone());
        match self.apply_action(id, &action, version).await? {
            Some(event) => Ok(RunLocation::Ledger(event)),
            None => self.locate(id).await,
        }
    }

    /// Cancels a run that has not started.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub async fn cancel(&self, id: EventId, line: &AuditLine) -> Result<(), RunAccessError> {
        self.apply_action(id, &RunAction::Cancel(line.clone()), None).await.map(drop)
    }

    /// Applies an action to a run in its place. Returns the new event, if the ledger returned it.
    async fn apply_action(
        &self,
        id: EventId,
        action: &RunAction,
        version: Option<u64>,
    ) -> Result<Option<Box<Event>>, RunAccessError> {
        let until = Instant::now() + LEASED_RUN_TIMEOUT;
        let mut checks = CHECKS;
        loop {
            let buffer = match self.connected_burst() {
                Ok(None) => Ok(BufferResult::Missing),
                Ok(Some(burst)) => self.apply_in_buffer(burst, id, action, version).await,
                Err(error) => Err(error.into()),
            };
            match buffer {
                Ok(BufferResult::Done) => return Ok(None),
                Ok(BufferResult::Leased) if Instant::now() >= until => return Err(RunAccessError::InTransit),
                Ok(BufferResult::Leased) => checks.wait().await,
                Ok(BufferResult::Missing) => {
                    let id = self.ledger.resolve(id).await?.unwrap_or(id);
                    return Ok(self.apply_in_ledger(id, action, version).await?);
                }
                // Redis does not answer. A run that has left the buffer does not need it. A change that may have
                // reached the buffer must not be repeated in the ledger.
                Err(RunAccessError::Buffer(error)) if error.kind() != ErrorKind::Ambiguous => {
                    return match self.apply_in_ledger(id, action, version).await {
                        Err(Error::NotFound { .. }) => Err(error.into()),
                        done => Ok(done?),
                    };
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn apply_in_ledger(
        &self,
        id: EventId,
        action: &RunAction,
        version: Option<u64>,
    ) -> Result<Option<Box<Event>>, Error> {
        match action {
            RunAction::Change(change) => {
                let event = self.ledger.change(id, change.clone(), version).await?;
                Ok(Some(Box::new(event)))
            }
            RunAction::Cancel(line) => self.ledger.cancel(id, line.clone()).await.map(|_| None),
        }
    }

    async fn apply_in_buffer(
        &self,
        burst: &Burst,
        id: EventId,
        action: &RunAction,
        version: Option<u64>,
    ) -> Result<BufferResult, RunAccessError> {
        let Some((buffered, known)) = find_buffered(burst, id).await? else {
            return Ok(BufferResult::Missing);
        };
        let tenant = buffered.run.tenant.clone();
        if version.is_some_and(|version| version != known) {
            return Err(Error::Stale.into());
        }
        if let RunAction::Change(change) = action {
            // A change that cannot be applied is refused now, not when the run is drained.
            buffered.current().run.notes.apply(change).map_err(Error::Refused)?;
            if change.delay.is_none() {
                let patch = Patch::Change(change.clone());
                return match burst.buffer.patch(&tenant, id, &patch, version).await? {
                    PatchOutcome::Applied(_) => Ok(BufferResult::Done),
                    PatchOutcome::Stale => Err(Error::Stale.into()),
                    PatchOutcome::Missing => Ok(BufferResult::Missing),
                };
            }
        }
        match self.transfer(burst).move_one(&tenant, id, Some(action.clone())).await {
            Ok(Moved::Arrived) => Ok(BufferResult::Done),
            Ok(Moved::Held) => Ok(BufferResult::Leased),
            Ok(Moved::Missing) => Ok(BufferResult::Missing),
            Err(DrainError::Ledger(error)) => Err(error.into()),
            Err(DrainError::Buffer(error)) => Err(error.into()),
        }
    }

    /// Ends the generation of a key: the next trigger with the key is another run. A run that was buffered under it
    /// is accepted under its own id, without the key. Returns the run that had the key.
    ///
    /// # Errors
    /// The key is invalid, or the ledger or the buffer does not answer. A failed reset can be repeated.
    pub async fn reset_key(
        &self,
        key: RunKey<'_>,
        line: &AuditLine,
    ) -> Result<Option<EventId>, RunAccessError> {
        let RunKey { principal, tenant, target, key } = key;
        let id = Dedupe::run_key((principal, tenant, target), key)
            .id(&self.secret)
            .map_err(|error| Error::Refused(format!("the key cannot be used: {error}")))?;
        let burst = self.connected_burst()?;
        if let Some(burst) = burst {
            // The run may be in the buffer. Redis is asked before anything changes: a second reset would not find the run of
            // the generation that the first one ended.
            burst.buffer.depth(tenant).await?;
        }
        let reset = self.ledger.reset(id, line.clone()).await?;
        let Some(burst) = burst else { return Ok(reset.holder) };
        // A trigger of the ended generation starts again, unless it has placed its run.
        let ended = (id, reset.ended);
        self.fail_open(burst.buffer.outdate(tenant, ended).await);
        match (reset.holder, burst.buffer.find(tenant, ended).await) {
            (Some(holder), _) => Ok(Some(holder)),
            (None, found) => Ok(found?.filter(|found| !found.expired).map(|found| found.run)),
        }
    }
}

/// A run in the buffer, and its version.
async fn find_buffered(
    burst: &Burst,
    id: EventId,
) -> Result<Option<(BufferedRun, u64)>, semel::store::Error> {
    let Some(tenant) = burst.buffer.tenant_of(id).await? else { return Ok(None) };
    let found = burst.buffer.get(&tenant, id).await?;
    Ok(found.and_then(|(buffered, version)| Some((buffered.ok()?, version))))
}

/// Shows changes that were acknowledged during the move, and that the drainer has not written to the ledger yet.
fn show_pending(event: &mut Event, buffered: &BufferedRun) {
    for patch in buffered.changes.iter().skip(usize::try_from(event.changes).unwrap_or(usize::MAX)) {
        // A change that cannot be applied is refused when it arrives.
        if let Patch::Change(change) = patch
            && event.new.notes.apply(change).is_ok()
        {
            event.version += 1;
        }
    }
}

/// The result of an action on a buffered run.
enum BufferResult {
    Done,
    /// A drainer has leased it.
    Leased,
    /// It is not in the buffer.
    Missing,
}
