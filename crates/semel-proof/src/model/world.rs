//! The state of a model: the data of the store and the workers, and the facts that only a witness knows.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use semel::fingerprint::Fingerprint;
use semel::outcome::{Outcome, OutcomeBody};
use semel::record::{Fence, Grant, Owner, Phase, Record, State};
use semel::time::Timestamp;

use super::{ModelBudget, ProtocolModel};

/// The current time. It never changes: when time passes, everything else moves into the past.
pub(super) const NOW: Timestamp = Timestamp::from_micros(1_000_000);

/// The maximum number of lives and epochs in a run.
pub(super) const LIVES: usize = 4;

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelState {
    /// The record of the key in the store.
    pub slot: RecordSlot,
    /// The highest fence of any record the store has removed.
    pub floor: Fence,
    /// The current time: the same in every state that the checker sees.
    pub now: Timestamp,
    /// The workers.
    pub workers: Vec<ModelWorker>,
    /// The remaining budget.
    pub left: ModelBudget,
    /// The facts of the witness.
    pub witness: ModelWitness,
}

/// The facts that only an omniscient witness knows: no step of a worker or of the store reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModelWitness {
    /// The life of the key. It changes only if a second effect is requested, or is no longer prevented.
    pub life: u8,
    /// The events of each life.
    pub lives: [Life; LIVES],
    /// What the receiver of keyed effects stores for each epoch.
    pub receiver: [Option<Made>; LIVES],
    /// The number of the last effect.
    pub effects: u8,
    /// The highest fence ever given.
    pub highest: Fence,
    /// The last winner, while its packets may still be in transit.
    pub last_owner: Option<u8>,
    /// The rules that a transition has broken.
    pub broken: u16,
}

/// The events of one life of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Life {
    /// The number of effects; two means two or more.
    pub effects: u8,
    /// The result of the last of them, which a person may have to find out (`marked`).
    pub made: Option<Made>,
    /// The first answer to a caller.
    pub answer: Option<Made>,
}

/// The result of an effect, unique to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Made {
    /// The number of the effect, counted from 1.
    pub effect: u8,
    /// Its payload.
    pub payload: u8,
    /// True if a person wrote it instead of the owner: other bytes for the same effect.
    pub settled: bool,
}

/// A worker: a caller and the process that works for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelWorker {
    /// Its payload.
    pub payload: u8,
    /// Its progress.
    pub stage: Stage,
    /// True if its caller was dropped. The work continues, without an answer.
    pub cancelled: bool,
    /// The token of its current attempt; 0 if that no longer matters.
    pub owner: u8,
    /// The token of the previous attempt, whose claim packet may still be in transit; 0 if there is none.
    pub former: u8,
    /// The life of the key in which it won its claim.
    pub life: u8,
    /// The epoch in which it won its claim: part of the derived key.
    pub epoch: u8,
}

/// The progress of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// It claims, or waits to claim again.
    Asking,
    /// It won; the effect may not start yet.
    Holding(Fence),
    /// Its begin was accepted; the effect may start.
    Ready(Fence),
    /// The effect happened, and it has the result.
    Acted(Fence, Made),
    /// It has died, but its effect is in progress and may still happen.
    Loose,
    /// Its caller got the outcome.
    Answered,
    /// Its caller was refused.
    Told(CallerVerdict),
    /// It died, or its caller was dropped.
    Gone,
}

/// A refusal to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CallerVerdict {
    /// The key was used with another payload.
    Conflict,
    /// The key is known, its outcome has expired.
    Expired,
    /// It is unknown whether it happened.
    InDoubt,
    /// The handler failed without knowing the result.
    Failed,
}

impl ModelState {
    pub(super) fn new(protocol: &ProtocolModel) -> Self {
        let workers = (1..).zip(&protocol.payloads).map(|(owner, &payload)| ModelWorker {
            payload,
            stage: Stage::Asking,
            cancelled: false,
            owner,
            former: 0,
            life: 0,
            epoch: 0,
        });
        Self {
            slot: RecordSlot(None),
            floor: Fence::default(),
            now: NOW,
            workers: workers.collect(),
            left: protocol.budget,
            witness: ModelWitness::default(),
        }
    }

    /// The record's current phase.
    pub fn phase(&self) -> Phase {
        self.slot.0.as_ref().map_or(Phase::Vacant, |record| record.phase(self.now))
    }

    /// The events of the current life.
    pub fn life(&self) -> &Life {
        &self.witness.lives[usize::from(self.witness.life)]
    }

    /// An unused token.
    pub(super) fn fresh_owner(&self) -> u8 {
        let record = self.slot.0.as_ref().map(|record| number(record.owner));
        let taken = |owner: u8| {
            Some(owner) == record
                || Some(owner) == self.witness.last_owner
                || self.workers.iter().any(|worker| worker.owner == owner || worker.former == owner)
        };
        (1..=u8::MAX).find(|owner| !taken(*owner)).expect("there are fewer workers than tokens")
    }
}

impl ModelWorker {
    /// The grant of its writes.
    pub fn grant(&self) -> Option<Grant> {
        match self.stage {
            Stage::Holding(fence) | Stage::Ready(fence) | Stage::Acted(fence, _) => {
                Some(Grant::from_parts(token(self.owner), fence))
            }
            Stage::Asking | Stage::Loose | Stage::Answered | Stage::Told(_) | Stage::Gone => None,
        }
    }
}

impl Made {
    pub(super) fn outcome(self) -> Arc<Outcome> {
        Arc::new(Outcome::new("", [self.effect, self.payload, u8::from(self.settled)]))
    }

    pub(super) fn read(outcome: &Outcome) -> Self {
        match outcome.body() {
            OutcomeBody::Kept(bytes) if bytes.len() == 3 => {
                Self { effect: bytes[0], payload: bytes[1], settled: bytes[2] == 1 }
            }
            other => panic!("an outcome that no effect made: {other:?}"),
        }
    }
}

pub(super) fn token(owner: u8) -> Owner {
    Owner::from_bytes([owner; 16])
}

pub(super) fn number(owner: Owner) -> u8 {
    owner.as_bytes()[0]
}

pub(super) fn fingerprint(payload: u8) -> Fingerprint {
    Fingerprint::from_bytes([payload; 32])
}

/// The real record, in the form that a checker needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSlot(pub Option<Record>);

impl Hash for RecordSlot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Some(record) = &self.0 else {
            state.write_u8(0);
            return;
        };
        // The terms and the hint are the same in all records of a model.
        let Record {
            state: written,
            fingerprint,
            owner,
            fence,
            epoch,
            attempt,
            hint: _,
            terms: _,
            claimed_at,
            changed_at,
            lease_until,
            expires_at,
            forget_at,
        } = record;
        let kind = match written {
            State::Vacant => 1,
            State::Bound => 2,
            State::Claimed => 3,
            State::Begun => 4,
            State::Done(outcome) => {
                Made::read(outcome).hash(state);
                5
            }
            State::Expired => 6,
        };
        (kind, fingerprint.as_bytes()[0], number(*owner), fence, epoch, attempt).hash(state);
        (claimed_at, changed_at, lease_until, expires_at, forget_at).hash(state);
    }
}
