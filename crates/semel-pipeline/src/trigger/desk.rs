//! Runs after they were triggered: found, changed, cancelled, their keys reset, wherever they are: in the ledger, in the
//! buffer, or on their way from one to the other.

use std::time::Duration;

use rand::RngExt as _;
use semel::record::Force;
use tokio::time::Instant;

use super::{Burst, Triggers};
use crate::buffer::{Buffered, Patch, Patched};
use crate::event::{Dedupe, Event};
use crate::id::EventId;
use crate::ledger::{AuditLine, Change, Error};

/// How long a run may be on its way before whoever wants to change it is sent away.
const PATIENCE: Duration = Duration::from_secs(2);

/// The first and the longest pause between two looks at a run that is on its way.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

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

/// What became of a wish to change a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeskError {
    /// The ledger says no.
    #[error(transparent)]
    Ledger(#[from] Error),
    /// The run is on its way from the buffer to the ledger, and has not arrived.
    #[error("the run is on its way from the buffer to the ledger; try again in a moment")]
    InTransit,
    /// Redis did not answer, and the ledger does not know the run or key: it may be in the buffer.
    #[error("the buffer does not answer, and what is looked for may be there: {0}")]
    Buffer(#[from] semel::store::Error),
}

/// Names a key of a run: whose, for which target, and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunKey<'a> {
    /// Who triggered it.
    pub principal: &'a str,
    /// For whom.
    pub tenant: &'a str,
    /// What it runs.
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
        if let Some(event) = self.ledger.event(id).await? {
            return Ok(Located::Ledger(Box::new(event)));
        }
        if let Some(burst) = self.burst()
            && let Some(tenant) = burst.buffer.tenant_of(id).await?
            && let Some((Ok(buffered), version)) = burst.buffer.get(&tenant, id).await?
        {
            return Ok(Located::Buffer { buffered: Box::new(buffered), version });
        }
        // It may have arrived between the two looks, or it may be another run by now.
        let id = self.ledger.resolve(id).await?.unwrap_or(id);
        let event = self.ledger.event(id).await?;
        if event.is_none() {
            self.burst_at_hand()?;
        }
        Ok(event.map_or(Located::Missing, |event| Located::Ledger(Box::new(event))))
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
        match self.wherever(id, &Wish::Change(change, version)).await? {
            Some(located) => Ok(located),
            None => self.locate(id).await,
        }
    }

    /// Cancels a run that has not started.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub async fn cancel(&self, id: EventId, line: &AuditLine) -> Result<(), DeskError> {
        self.wherever(id, &Wish::Cancel(line)).await.map(drop)
    }

    /// Does something where the run is: in the ledger, or in the buffer, or after it has arrived. Answers how it is then, where
    /// that is known.
    async fn wherever(&self, id: EventId, wish: &Wish<'_>) -> Result<Option<Located>, DeskError> {
        let until = Instant::now() + PATIENCE;
        let mut pause = PAUSE.0;
        let mut nowhere = 0;
        loop {
            let missing = match self.in_ledger(id, wish).await {
                Err(error @ Error::NotFound { .. }) => error,
                done => return Ok(done?),
            };
            let Some(burst) = self.burst_at_hand()? else { return Err(missing.into()) };
            let step = match burst.buffer.tenant_of(id).await? {
                Some(tenant) => self.in_buffer(burst, &tenant, id, wish).await?,
                None => Step::Elsewhere,
            };
            match step {
                Step::Done(done) => return Ok(done),
                Step::Later if Instant::now() >= until => return Err(DeskError::InTransit),
                Step::Later => {
                    let jitter = pause.mul_f64(rand::rng().random_range(0.0..1.0));
                    tokio::time::sleep(pause + jitter).await;
                    pause = pause.mul_f64(1.7).min(PAUSE.1);
                }
                Step::Elsewhere => {
                    if let Some(winner) = self.ledger.resolve(id).await? {
                        return Ok(self.in_ledger(winner, wish).await?);
                    }
                    // Once it may have arrived between the two looks.
                    nowhere += 1;
                    if nowhere > 1 {
                        return Err(missing.into());
                    }
                }
            }
        }
    }

    async fn in_ledger(&self, id: EventId, wish: &Wish<'_>) -> Result<Option<Located>, Error> {
        match wish {
            Wish::Change(change, version) => {
                let event = self.ledger.change(id, (*change).clone(), *version).await?;
                Ok(Some(Located::Ledger(Box::new(event))))
            }
            Wish::Cancel(line) => self.ledger.cancel(id, (*line).clone()).await.map(|_| None),
        }
    }

    async fn in_buffer(
        &self,
        burst: &Burst,
        tenant: &str,
        id: EventId,
        wish: &Wish<'_>,
    ) -> Result<Step, DeskError> {
        let (patch, version) = match wish {
            Wish::Change(change, version) => {
                let Some((Ok(mut buffered), _)) = burst.buffer.get(tenant, id).await? else {
                    return Ok(Step::Elsewhere);
                };
                // What cannot be applied is refused now, not when it is drained.
                buffered.run.notes.apply(change).map_err(Error::Refused)?;
                (Patch::Change((*change).clone()), *version)
            }
            Wish::Cancel(_) => (Patch::Cancel, None),
        };
        match burst.buffer.patch(tenant, id, &patch, version).await? {
            Patched::Applied(_) => {
                if let Wish::Cancel(line) = wish {
                    self.ledger.audit((*line).clone()).await?;
                }
                Ok(Step::Done(None))
            }
            Patched::Stale => Err(Error::Stale.into()),
            Patched::InTransit => Ok(Step::Later),
            Patched::Missing => Ok(Step::Elsewhere),
        }
    }

    /// Frees a key (G15): in the ledger, in the buffer, and its claim; also while its run is on its way. Answers whose it
    /// was.
    ///
    /// # Errors
    /// The key cannot be used, or a store does not answer. A reset that failed can be repeated.
    pub async fn reset_key(&self, key: RunKey<'_>, line: &AuditLine) -> Result<Option<EventId>, DeskError> {
        let RunKey { principal, tenant, target, key } = key;
        let id = Dedupe::run_key((principal, tenant, target), key)
            .id(&self.secret)
            .map_err(|error| Error::Refused(format!("the key cannot be used: {error}")))?;
        let mut whose = self.ledger.reset(id, line.clone()).await?;
        let Some(burst) = self.burst_at_hand()? else { return Ok(whose) };
        let buffered = burst.buffer.reset(tenant, id).await?;
        whose = whose.or(buffered);
        let _ = burst.claims.forget(id, Force::Yes).await?;
        // It may have arrived in the ledger between the two.
        Ok(self.ledger.reset(id, line.clone()).await?.or(whose))
    }
}

/// What somebody wants of a run.
enum Wish<'a> {
    Change(&'a Change, Option<u64>),
    Cancel(&'a AuditLine),
}

/// What a look into the buffer came to.
enum Step {
    Done(Option<Located>),
    /// It is on its way.
    Later,
    /// It is not there.
    Elsewhere,
}
