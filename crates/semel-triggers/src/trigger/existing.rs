//! Finds the run that already has a key, in the ledger or in the buffer, and answers with it.

use std::sync::Arc;

use semel::Key;
use semel_pipeline::event::{Dedupe, Generation, NewEvent};
use semel_pipeline::id::EventId;
use semel_pipeline::ledger::{self, KeyHolder, KeyState};
use tokio::time::Instant;

use super::place::Placement;
use super::{
    Burst, CHECKS, GateUse, KeyedTrigger, RETRY_AFTER, RunRequest, TriggerError, Triggered, Triggers,
};
use crate::buffer::BufferedHolder;
use crate::drainer::DrainPace;
use crate::transfer::{DrainError, Moved, Transfer};

/// The run that already has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExistingRun {
    /// A run with the same payload.
    Found { id: EventId, buffered: bool },
    /// A run with another payload.
    Conflict,
    /// A buffered run whose key has expired: the generation must be ended.
    Expired,
}

/// The result of a search for the run that has a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    Found(ExistingRun),
    /// Neither the ledger nor the buffer has one.
    Missing,
    /// The ledger has none, and the buffer could not be read.
    Unknown,
}

impl KeyedTrigger<'_> {
    pub(super) fn claim_key(&self, generation: Generation) -> Key {
        let RunRequest { principal, tenant, target, key, .. } = self.request;
        Dedupe::claim_key((principal, tenant, target), key.as_deref().unwrap_or_default(), generation)
    }

    /// The result for this trigger if a run in the ledger has its key.
    pub(super) fn compare(&self, holder: KeyHolder) -> ExistingRun {
        match holder.fingerprint == self.dedupe.fingerprint {
            true => ExistingRun::Found { id: holder.event, buffered: false },
            false => ExistingRun::Conflict,
        }
    }

    /// The result for this trigger if a run in the buffer has its key.
    pub(super) fn compare_buffered(&self, found: BufferedHolder) -> ExistingRun {
        match found.fingerprint == *self.dedupe.fingerprint.as_bytes() {
            _ if found.expired => ExistingRun::Expired,
            true => ExistingRun::Found { id: found.run, buffered: true },
            false => ExistingRun::Conflict,
        }
    }

    /// True if Redis did not answer a put of this run in another generation of its key.
    pub(super) fn is_unconfirmed_before(&self, generation: Generation) -> bool {
        self.unconfirmed.get().is_some_and(|unconfirmed| *unconfirmed != generation)
    }

    /// The run for this generation of its key.
    pub(super) fn run_in(&self, generation: Generation) -> NewEvent {
        let dedupe = Dedupe { generation: Some(generation), ..self.dedupe.clone() };
        NewEvent { dedupe: Some(dedupe), ..self.run.clone() }
    }
}

impl Triggers {
    /// Reads the key in the ledger. Ends the generation of an expired key.
    pub(super) async fn read_key(&self, dedupe: &Dedupe) -> Result<KeyState, ledger::Error> {
        let key = self.ledger.find(dedupe.id).await?;
        if key.holder.is_some_and(|holder| holder.expired) {
            let generation = self.ledger.advance(dedupe.id, key.generation).await?;
            return Ok(KeyState { generation, holder: None });
        }
        Ok(key)
    }

    /// The run that has the key in this generation: in the ledger, else in the buffer, else in the ledger again,
    /// because a run moves from the buffer to the ledger.
    pub(super) async fn find_existing(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
        key: KeyState,
    ) -> Result<Lookup, ledger::Error> {
        if let Some(holder) = key.holder {
            return Ok(Lookup::Found(call.compare(holder)));
        }
        let buffered = burst.buffer.find(&call.run.tenant, (call.dedupe.id, key.generation)).await;
        if let Ok(Some(found)) = buffered {
            return Ok(Lookup::Found(call.compare_buffered(found)));
        }
        let now = self.ledger.find(call.dedupe.id).await?;
        if let Some(holder) = now.live().filter(|_| now.generation == key.generation) {
            return Ok(Lookup::Found(call.compare(holder)));
        }
        Ok(match self.fail_open(buffered) {
            Some(_) => Lookup::Missing,
            None => Lookup::Unknown,
        })
    }

    /// The run of this trigger, if a put of an earlier generation without an answer has placed it. A run belongs to one
    /// generation: under a second one, triggers after a reset would be answered with a run from before it.
    ///
    /// # Errors
    /// The buffer, where the run may be, could not be read.
    pub(super) async fn find_unconfirmed(
        &self,
        call: &KeyedTrigger<'_>,
        generation: Generation,
    ) -> Result<Placement, TriggerError> {
        let Some(burst) = self.burst().filter(|_| call.is_unconfirmed_before(generation)) else {
            return Ok(None);
        };
        let id = call.run.id;
        // The buffer first, because a run moves from the buffer to the ledger.
        let buffered = match burst.buffer.get(&call.run.tenant, id).await {
            Ok(Some(_)) => return Ok(Some(Triggered { id, cached: false, buffered: true })),
            buffered => self.fail_open(buffered),
        };
        match (self.ledger.event(id).await?, buffered) {
            (Some(_), _) => Ok(Some(Triggered { id, cached: false, buffered: false })),
            (None, Some(_)) => Ok(None),
            (None, None) => Err(self.time_out(RETRY_AFTER)),
        }
    }

    /// Answers with the run that has the key. If the caller waits for it, it is moved into the ledger.
    pub(super) async fn answer_existing(
        &self,
        call: &KeyedTrigger<'_>,
        existing: ExistingRun,
        generation: Generation,
    ) -> Result<Placement, TriggerError> {
        match existing {
            ExistingRun::Conflict => self.resolve_conflict(call, generation).await,
            ExistingRun::Expired => {
                self.ledger.advance(call.dedupe.id, generation).await?;
                Ok(None)
            }
            ExistingRun::Found { id, buffered } => {
                let buffered = match (buffered, call.gate_use, self.burst()) {
                    (true, GateUse::Skip, Some(burst)) => {
                        Box::pin(self.promote(burst, &call.run.tenant, id)).await?
                    }
                    _ => buffered,
                };
                Ok(Some(Triggered { id, cached: id != call.run.id, buffered }))
            }
        }
    }

    /// A run with another payload has the key. Before the caller gets a conflict, this searches for a run with the
    /// caller's own payload: it may have lost the key to the other run because Redis did not answer, and an earlier
    /// caller got its id. It is in the buffer or, if it was drained, in the ledger.
    pub(super) async fn resolve_conflict(
        &self,
        call: &KeyedTrigger<'_>,
        generation: Generation,
    ) -> Result<Placement, TriggerError> {
        let buffer = match self.connected_burst() {
            Ok(None) => Ok(None),
            Ok(Some(burst)) => burst.buffer.find(&call.run.tenant, (call.dedupe.id, generation)).await,
            Err(error) => Err(error),
        };
        let fingerprint = call.dedupe.fingerprint;
        if let Ok(Some(found)) = &buffer
            && found.fingerprint == *fingerprint.as_bytes()
            && !found.expired
        {
            let existing = ExistingRun::Found { id: found.run, buffered: true };
            return Box::pin(self.answer_existing(call, existing, generation)).await;
        }
        let key = self.read_key(call.dedupe).await?;
        if key.generation != generation {
            return Ok(None);
        }
        let holder = key.holder.filter(|holder| holder.fingerprint == fingerprint);
        let own = match holder {
            Some(holder) => Some(holder.event),
            None => self.ledger.find_keyless(call.dedupe.id, generation, fingerprint).await?,
        };
        match (own, buffer) {
            (Some(id), _) => Ok(Some(Triggered { id, cached: id != call.run.id, buffered: false })),
            (None, Ok(_)) => Err(TriggerError::Conflict),
            // It may be in the buffer.
            (None, Err(error)) => {
                self.report_failed_open(&error);
                Err(self.time_out(RETRY_AFTER))
            }
        }
    }

    /// Moves a buffered run into the ledger; waits for a drainer that has leased it. Returns true if it is still in
    /// the buffer, which is so if Redis does not answer.
    pub(super) async fn promote(
        &self,
        burst: &Burst,
        tenant: &str,
        id: EventId,
    ) -> Result<bool, TriggerError> {
        let (until, mut checks) = (Instant::now() + self.wait, CHECKS);
        loop {
            match self.transfer(burst).move_one(tenant, id, None).await {
                Ok(Moved::Arrived | Moved::Missing) => return Ok(false),
                Ok(Moved::Held) if Instant::now() >= until => return Err(self.time_out(RETRY_AFTER)),
                Ok(Moved::Held) => {}
                Err(DrainError::Ledger(error)) => return Err(error.into()),
                Err(DrainError::Buffer(error)) => {
                    self.report_failed_open(&error);
                    return Ok(true);
                }
            }
            checks.wait().await;
        }
    }

    pub(super) fn transfer(&self, burst: &Burst) -> Transfer {
        let (lease, max_attempts) = (self.terms.lease, DrainPace::default().max_attempts);
        let (buffer, ledger) = (Arc::clone(&burst.buffer), Arc::clone(&self.ledger));
        Transfer::new(buffer, ledger, (lease, max_attempts), Arc::clone(&self.drains))
    }
}
