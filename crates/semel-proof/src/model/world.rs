//! The state of a model: what the store and the workers know, and what only a witness sees.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use semel::fingerprint::Fingerprint;
use semel::outcome::{Body, Outcome};
use semel::record::{Fence, Grant, Owner, Phase, Record, State};
use semel::time::Timestamp;

use super::{Budget, Protocol};

/// The present. It never moves: when time passes, everything else moves into the past.
pub(super) const NOW: Timestamp = Timestamp::from_micros(1_000_000);

/// The most lives and epochs a run may have.
pub(super) const LIVES: usize = 4;

/// One state of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// What the store keeps for the key.
    pub slot: Slot,
    /// The highest fence of any record the store has removed.
    pub floor: Fence,
    /// The present moment: the same one in every state that the checker sees.
    pub now: Timestamp,
    /// Who wants the effect.
    pub workers: Vec<Worker>,
    /// What may still happen.
    pub left: Budget,
    /// What the witness has seen.
    pub witness: Witness,
}

/// What only an all-seeing witness knows: no step of a worker or of the store reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Witness {
    /// Which life the key is in. It changes only where a second effect is wanted or no longer promised against.
    pub life: u8,
    /// What happened in each life.
    pub lives: [Life; LIVES],
    /// What the receiver of keyed effects keeps for each epoch.
    pub receiver: [Option<Made>; LIVES],
    /// The number of the last effect.
    pub effects: u8,
    /// The highest fence ever given.
    pub highest: Fence,
    /// Who won last, while its packets may still be under way.
    pub last_owner: Option<u8>,
    /// Which rules a transition has broken.
    pub broken: u16,
}

/// What happened in one life of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Life {
    /// How many effects; two stands for all above.
    pub effects: u8,
    /// What the last of them made, where a person may have to find out (`marked`).
    pub made: Option<Made>,
    /// What the first caller was answered.
    pub answer: Option<Made>,
}

/// What an effect made: no two effects make the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Made {
    /// Which effect it was, counted from 1.
    pub effect: u8,
    /// For which payload.
    pub payload: u8,
    /// Whether a person wrote it down instead of the owner: other bytes for the same effect.
    pub settled: bool,
}

/// Somebody who wants the effect: a caller and the process that works for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Worker {
    /// What it asks for.
    pub payload: u8,
    /// How far it is.
    pub stage: Stage,
    /// Whether its caller went away. The work goes on, nobody is answered.
    pub cancelled: bool,
    /// The token of its present attempt; 0 where that no longer matters.
    pub owner: u8,
    /// The token of the attempt before, whose claim packet may still be under way; 0 where there is none.
    pub former: u8,
    /// In which life of the key its claim was won.
    pub life: u8,
    /// In which epoch its claim was won: part of the derived key.
    pub epoch: u8,
}

/// How far a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// It claims, or waits to claim again.
    Asking,
    /// It won; the effect may not start yet.
    Holding(Fence),
    /// Its begin was taken; the effect may start.
    Ready(Fence),
    /// The effect happened and it holds what came of it.
    Acted(Fence, Made),
    /// It is no longer there, but its effect is under way and may still happen.
    Loose,
    /// Its caller was given the outcome.
    Answered,
    /// Its caller was told no.
    Told(Verdict),
    /// It died, or nobody is there to be answered.
    Gone,
}

/// What a caller can be told instead of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// The key belongs to another payload.
    Conflict,
    /// The key is remembered, its outcome is not.
    Expired,
    /// Nobody knows whether it happened.
    InDoubt,
    /// The handler failed without knowing more.
    Failed,
}

impl World {
    pub(super) fn new(protocol: &Protocol) -> Self {
        let workers = (1..).zip(&protocol.payloads).map(|(owner, &payload)| Worker {
            payload,
            stage: Stage::Asking,
            cancelled: false,
            owner,
            former: 0,
            life: 0,
            epoch: 0,
        });
        Self {
            slot: Slot(None),
            floor: Fence::default(),
            now: NOW,
            workers: workers.collect(),
            left: protocol.budget,
            witness: Witness::default(),
        }
    }

    /// The record's phase at present.
    pub fn phase(&self) -> Phase {
        self.slot.0.as_ref().map_or(Phase::Vacant, |record| record.phase(self.now))
    }

    /// What happened in the present life.
    pub fn life(&self) -> &Life {
        &self.witness.lives[usize::from(self.witness.life)]
    }

    /// A token that nobody has.
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

impl Worker {
    /// What it shows with its writes.
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
            Body::Kept(bytes) if bytes.len() == 3 => {
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

/// The real record, in the form a checker needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot(pub Option<Record>);

impl Hash for Slot {
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
