//! Runs after they were triggered: found, changed, cancelled, their keys reset, wherever they are: in the buffer, in the ledger, or on
//! their way from one to the other.
//!
//! A run moves from the buffer to the ledger, so the buffer is asked first. Changes of tags and metadata are kept in the buffer, in
//! order. What must not come too late, a cancellation or another delay, moves the run into the ledger and is done in the same
//! transaction: the ledger decides whether it was in time.

use std::time::Duration;

use rand::RngExt as _;
use semel::store::ErrorKind;
use tokio::time::Instant;

use super::{Burst, PAUSE, Triggers};
use crate::buffer::{Buffered, BufferedRun, Patched};
use crate::event::{Dedupe, Event};
use crate::id::EventId;
use crate::ledger::{AuditLine, Change, Error, Patch, RunAction, rules};
use crate::transfer::{DrainError, Moved};

/// How long a caller waits for a run that a drainer holds.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Located {
    /// In the ledger.
    Ledger(Box<Event>),
    /// In the buffer, with its changes applied.
    Buffer {
        /// The run.
        buffered: Box<Buffered>,
        /// Its version.
        version: u64,
    },
    /// Nowhere.
    Missing,
}

/// Why a run was not found, changed or cancelled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeskError {
    /// The ledger says no.
    #[error(transparent)]
    Ledger(#[from] Error),
    /// The run is on its way from the buffer to the ledger.
    #[error("the run is on its way from the buffer to the ledger; try again in a moment")]
    InTransit,
    /// Redis did not answer, and the ledger does not know the run or key: it may be in the buffer.
    #[error("the buffer does not answer, and what is looked for may be there: {0}")]
    Buffer(#[from] semel::store::Error),
}

/// A key of a run, with what it belongs to.
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
    pub async fn locate(&self, id: EventId) -> Result<Located, DeskError> {
        let buffered = match self.burst_at_hand() {
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
                Ok(Located::Ledger(Box::new(event)))
            }
            (Some(event), _) => Ok(Located::Ledger(Box::new(event))),
            (None, Ok(Some((buffered, version)))) => {
                Ok(Located::Buffer { buffered: Box::new(buffered.current()), version })
            }
            (None, Ok(None)) => Ok(Located::Missing),
            (None, Err(error)) => Err(error.into()),
        }
    }

    /// Changes tags, metadata or the delay of a run. `version` makes it a compare-and-set.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Stale`], [`Error::Impossible`], [`Error::Refused`] as the ledger's; and [`DeskError::InTransit`].
    pub async fn change(
        &self,
        id: EventId,
        change: &Change,
        version: Option<u64>,
    ) -> Result<Located, DeskError> {
        let action = RunAction::Change(change.clone());
        match self.act(id, &action, version).await? {
            Some(event) => Ok(Located::Ledger(event)),
            None => self.locate(id).await,
        }
    }

    /// Cancels a run that has not started.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub async fn cancel(&self, id: EventId, line: &AuditLine) -> Result<(), DeskError> {
        self.act(id, &RunAction::Cancel(line.clone()), None).await.map(drop)
    }

    /// Does something to a run where it is. Answers how it is then, where the ledger told.
    async fn act(
        &self,
        id: EventId,
        action: &RunAction,
        version: Option<u64>,
    ) -> Result<Option<Box<Event>>, DeskError> {
        let until = Instant::now() + PATIENCE;
        let mut pause = PAUSE.0;
        loop {
            let buffer = match self.burst_at_hand() {
                Ok(None) => Ok(Step::Elsewhere),
                Ok(Some(burst)) => self.in_buffer(burst, id, action, version).await,
                Err(error) => Err(error.into()),
            };
            match buffer {
                Ok(Step::Done) => return Ok(None),
                Ok(Step::Later) if Instant::now() >= until => return Err(DeskError::InTransit),
                Ok(Step::Later) => {
                    let jitter = pause.mul_f64(rand::rng().random_range(0.0..1.0));
                    tokio::time::sleep(pause + jitter).await;
                    pause = pause.mul_f64(1.7).min(PAUSE.1);
                }
                Ok(Step::Elsewhere) => {
                    let id = self.ledger.resolve(id).await?.unwrap_or(id);
                    return Ok(self.in_ledger(id, action, version).await?);
                }
                // Redis does not answer. A run that has left the buffer needs none. Where a change may have reached the buffer, it must
                // not be made again in the ledger.
                Err(DeskError::Buffer(error)) if error.kind() != ErrorKind::Ambiguous => {
                    return match self.in_ledger(id, action, version).await {
                        Err(Error::NotFound { .. }) => Err(error.into()),
                        done => Ok(done?),
                    };
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn in_ledger(
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

    async fn in_buffer(
        &self,
        burst: &Burst,
        id: EventId,
        action: &RunAction,
        version: Option<u64>,
    ) -> Result<Step, DeskError> {
        let Some((buffered, known)) = find_buffered(burst, id).await? else { return Ok(Step::Elsewhere) };
        let tenant = buffered.run.tenant.clone();
        if version.is_some_and(|version| version != known) {
            return Err(Error::Stale.into());
        }
        if let RunAction::Change(change) = action {
            // What cannot be applied is refused now, not when it is drained.
            buffered.current().run.notes.apply(change).map_err(Error::Refused)?;
            if change.delay.is_none() {
                let patch = Patch::Change(change.clone());
                return match burst.buffer.patch(&tenant, id, &patch, version).await? {
                    Patched::Applied(_) => Ok(Step::Done),
                    Patched::Stale => Err(Error::Stale.into()),
                    Patched::Missing => Ok(Step::Elsewhere),
                };
            }
        }
        match self.transfer(burst).move_one(&tenant, id, Some(action.clone())).await {
            Ok(Moved::Arrived) => Ok(Step::Done),
            Ok(Moved::Held) => Ok(Step::Later),
            Ok(Moved::Missing) => Ok(Step::Elsewhere),
            Err(DrainError::Ledger(error)) => Err(error.into()),
            Err(DrainError::Buffer(error)) => Err(error.into()),
        }
    }

    /// Ends the generation of a key: the next trigger with the key is another run. What was buffered under it is accepted under
    /// its own id, and does not hold the key. Answers the run that held the key.
    ///
    /// # Errors
    /// The key cannot be used, or the ledger does not answer. A reset that failed can be repeated.
    pub async fn reset_key(&self, key: RunKey<'_>, line: &AuditLine) -> Result<Option<EventId>, DeskError> {
        let RunKey { principal, tenant, target, key } = key;
        let id = Dedupe::run_key((principal, tenant, target), key)
            .id(&self.secret)
            .map_err(|error| Error::Refused(format!("the key cannot be used: {error}")))?;
        let reset = self.ledger.reset(id, line.clone()).await?;
        let Some(burst) = self.burst() else { return Ok(reset.holder) };
        // An owner of a claim in the ended generation that is still at work starts again, unless it has placed its run.
        let (ended, keep) = ((id, reset.ended), self.terms.in_flight_max + self.terms.lease);
        self.open(burst.buffer.close(tenant, ended, keep).await);
        let buffered = self.open(burst.buffer.find(tenant, ended).await).flatten();
        Ok(reset.holder.or(buffered.filter(|found| !found.expired).map(|found| found.run)))
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

/// Shows changes that were acknowledged while the run was on its way, and that its drainer has not brought to the ledger yet.
fn show_pending(event: &mut Event, buffered: &BufferedRun) {
    for patch in rules::behind(&buffered.changes, event.changes) {
        // What cannot be applied is refused when it arrives.
        if let Patch::Change(change) = patch
            && event.new.notes.apply(change).is_ok()
        {
            event.version += 1;
        }
    }
}

/// What a look into the buffer came to.
enum Step {
    Done,
    /// A drainer holds it.
    Later,
    /// It is not there.
    Elsewhere,
}
