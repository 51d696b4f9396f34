//! The rules: one pure function that says what a command does to a record.
//!
//! Memory and embedded stores call [`apply`]; every other store is another spelling of it, held to it by the
//! contract suite. There is no I/O here and no clock: the store gives the time. Read this file to know what
//! Semel does.
//!
//! ```text
//!   vacant ──claim──► claimed ──begin──► begun ──complete──► done ──► expired ──► vacant
//!      ▲                 │                 │
//!      └── release, ◄────┴─────────────────┤ lease over: lapsed (the next claim wins),
//!          bind → bound                    └─ or, begun in `marked`: in doubt (settle)
//! ```

mod codec;
mod terms;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub use self::codec::DecodeError;
#[cfg(feature = "redis")]
pub(crate) use self::codec::encode_outcome;
pub use self::terms::{Epoch, Fence, Grant, Mode, Owner, Terms, TermsError};
use crate::fingerprint::Fingerprint;
use crate::key::Hint;
use crate::outcome::Outcome;
use crate::time::Timestamp;

/// What a store keeps for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What was last written. Time may have moved it on: read it through [`Record::phase`].
    pub state: State,
    /// What was asked; set by the first claim of this life, unchanged until the record is vacant again.
    pub fingerprint: Fingerprint,
    /// Who claimed last.
    pub owner: Owner,
    /// Grows with every claim, settlement and re-execution; never goes back.
    pub fence: Fence,
    /// How often an operator asked for the effect to be executed anew.
    pub epoch: Epoch,
    /// Claims granted in this life of the record, the present one included.
    pub attempt: u32,
    /// The first characters of the key, for people.
    pub hint: Hint,
    /// Under which terms the last claim was granted. Shared: an engine's claims mostly have the same.
    pub terms: Arc<Terms>,
    /// When the last claim was granted.
    pub claimed_at: Timestamp,
    /// When it was last claimed, completed, released, settled or forgotten.
    pub changed_at: Timestamp,
    /// Until when the claim stands without a heartbeat (claimed only).
    pub lease_until: Timestamp,
    /// When a done, bound or lapsed record stops to stand for its outcome or payload; grace included.
    pub expires_at: Timestamp,
    /// Until when it is then remembered as expired.
    pub forget_at: Timestamp,
}

/// The state as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing stands here. The rest of the record is a stub that keeps the fence and refuses late packets.
    Vacant,
    /// No owner, but the key belongs to one payload.
    Bound,
    /// An owner holds it; the effect may not start yet.
    Claimed,
    /// An owner holds it and its effect may have started.
    Begun,
    /// The effect happened and this came of it.
    Done(Arc<Outcome>),
    /// The outcome was dropped, the key is still remembered.
    Expired,
}

/// The state as it is at a moment: what was written, with time applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Free for any payload.
    Vacant,
    /// Free for the payload it is bound to.
    Bound,
    /// Held, effect not started.
    Claimed,
    /// Held, effect started.
    Begun,
    /// Its lease ended; whoever claims next wins.
    Lapsed,
    /// Begun in `marked`, and its owner was lost: nobody knows whether the effect happened.
    InDoubt,
    /// The outcome is replayed.
    Done,
    /// Retention is over and the key is still remembered.
    Expired,
}

/// What a caller may ask of a record. Every write after a claim carries its [`Grant`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Ask to run the effect.
    Claim(Claim),
    /// Mark that the effect may start. Repeatable.
    Begin(Grant),
    /// Extend the lease, up to `in_flight_max`.
    Renew(Grant),
    /// Keep the outcome.
    Complete {
        /// Whose claim it is.
        grant: Grant,
        /// What was asked; a refused owner is shown the winner's outcome only for the same payload.
        fingerprint: Fingerprint,
        /// What came of it.
        outcome: Arc<Outcome>,
        /// Replaces the retention of the terms, where the effect itself said how long to keep it.
        retention: Option<Duration>,
    },
    /// The owner's word that nothing happened: anybody may claim, with any payload (in `keyed`: see `Bind`).
    Release(Grant),
    /// The same, but the key stays bound to its payload.
    Bind(Grant),
    /// The owner gives up without knowing whether the effect happened: its lease ends now.
    Abandon(Grant),
    /// A probe or a person says what became of an effect in doubt.
    Settle(Settlement),
    /// An operator takes the record away.
    Forget(Force),
    /// An operator wants the effect executed anew under the same key: a new epoch.
    Reexecute,
}

/// A request to run the effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Names this attempt to claim: a repeated call knows itself by it.
    pub owner: Owner,
    /// What is asked.
    pub fingerprint: Fingerprint,
    /// Under which terms.
    pub terms: Arc<Terms>,
    /// Whether the claim also marks the effect as begun.
    pub begin: Begin,
    /// The key's first characters, kept for people.
    pub hint: Hint,
}

/// Whether a claim is also the begin-mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The effect may start as soon as the claim is won.
    WithClaim,
    /// A [`Command::Begin`] follows.
    Later,
}

/// How an effect in doubt is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It happened, with this outcome.
    Done(Arc<Outcome>),
    /// It did not happen: the same payload may run again.
    Run,
}

/// Whether an operator insists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Refuse to forget what is claimed or in doubt.
    No,
    /// Forget it all the same.
    Yes,
}

/// What the rules answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a ruling decides whether the effect may run"]
pub enum Ruling {
    /// The claim is yours: run the effect.
    Won(Win),
    /// Somebody else holds the claim.
    Busy {
        /// How long its lease still stands without a heartbeat.
        lease_left: Duration,
    },
    /// The effect happened; this came of it.
    Replay {
        /// What came of it.
        outcome: Arc<Outcome>,
        /// How long the outcome will still be replayed.
        expires_in: Duration,
    },
    /// The key belongs to another payload.
    Conflict,
    /// Nobody knows whether the effect happened.
    InDoubt,
    /// The key is known and its outcome is no longer kept.
    Expired,
    /// The write was taken.
    Accepted {
        /// What is left of the lease, where there is one.
        lease_left: Duration,
    },
    /// The claim is no longer yours, nothing was changed.
    Lost {
        /// The outcome that stands, where there is one for the same payload.
        winner: Option<Arc<Outcome>>,
    },
    /// An operator's command does not fit the record as it is; nothing was changed.
    Refused {
        /// What the record is.
        phase: Phase,
    },
}

/// A claim that was won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Win {
    /// To be shown with every later write.
    pub grant: Grant,
    /// 1 for the first claim of a record's life.
    pub attempt: u32,
    /// The epoch the effect runs in.
    pub epoch: Epoch,
    /// How long the claim stands without a heartbeat.
    pub lease_left: Duration,
}

/// What sweeping does to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// It still says something.
    Keep,
    /// Its outcome is over; only the memory of it stays.
    Shrink(Record),
    /// Nothing of it is needed once the store's fence floor stands at its fence.
    Remove,
}

impl Record {
    /// The state at `now`. Get, list and count go through this, so a lapsed lease shows whether swept or not.
    pub fn phase(&self, now: Timestamp) -> Phase {
        let remembered = || if now < self.forget_at { Phase::Expired } else { Phase::Vacant };
        match self.state {
            State::Vacant => Phase::Vacant,
            State::Bound if now < self.expires_at => Phase::Bound,
            State::Bound => Phase::Vacant,
            State::Claimed if now < self.lease_until => Phase::Claimed,
            State::Begun if now < self.lease_until => Phase::Begun,
            State::Begun if self.terms.mode == Mode::Marked => Phase::InDoubt,
            State::Claimed | State::Begun if now < self.expires_at => Phase::Lapsed,
            State::Done(_) if now < self.expires_at => Phase::Done,
            State::Claimed | State::Begun | State::Done(_) | State::Expired => remembered(),
        }
    }

    /// The outcome that stands at `now`.
    pub fn outcome(&self, now: Timestamp) -> Option<&Arc<Outcome>> {
        match &self.state {
            State::Done(outcome) if now < self.expires_at => Some(outcome),
            _ => None,
        }
    }

    /// From when on [`sweep`](Self::sweep) has something to do; `None` while only an owner or a person can.
    pub fn sweep_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Begun if self.terms.mode == Mode::Marked => None,
            State::Done(_) => Some(self.expires_at),
            State::Vacant | State::Bound | State::Claimed | State::Begun | State::Expired => {
                Some(self.remove_at())
            }
        }
    }

    /// What is left of this record at `now`. Raise the fence floor to its fence *before* removing it.
    pub fn sweep(&self, now: Timestamp) -> Sweep {
        match self.phase(now) {
            Phase::Vacant if now >= self.remove_at() => Sweep::Remove,
            Phase::Expired | Phase::Vacant if matches!(self.state, State::Done(_)) => {
                Sweep::Shrink(Record { state: State::Expired, ..self.clone() })
            }
            _ => Sweep::Keep,
        }
    }

    /// A stub outlives every packet its owner can still have under way.
    fn remove_at(&self) -> Timestamp {
        self.forget_at.max(self.changed_at.after(self.terms.in_flight_max).after(self.terms.lease))
    }
}

/// Applies `command` to what the store knows of a key, at the store's time `now`.
///
/// `record` is `None` where the store knows nothing, and changes only when the ruling is [`Ruling::Won`] or
/// [`Ruling::Accepted`]. `floor` is the highest fence of any record the store has removed. Nothing else
/// decides, and nothing else is read.
pub fn apply(record: &mut Option<Record>, command: &Command, now: Timestamp, floor: Fence) -> Ruling {
    match (record, command) {
        (Some(record), _) => record.apply(command, now, floor),
        (slot @ None, Command::Claim(claim)) => {
            let granted = claim.grant(None, now, floor);
            let win = granted.win(now);
            *slot = Some(granted);
            Ruling::Won(win)
        }
        (None, Command::Settle(_) | Command::Forget(_) | Command::Reexecute) => {
            Ruling::Refused { phase: Phase::Vacant }
        }
        (None, _) => LOST,
    }
}

const ACCEPTED: Ruling = Ruling::Accepted { lease_left: Duration::ZERO };
const LOST: Ruling = Ruling::Lost { winner: None };

impl Record {
    /// [`apply`] on a record that is there.
    pub fn apply(&mut self, command: &Command, now: Timestamp, floor: Fence) -> Ruling {
        use Phase::{Begun, Bound, Claimed, Done, Expired, InDoubt, Lapsed, Vacant};
        let phase = self.phase(now);
        let mine = |grant: &Grant| self.owner == grant.owner && self.fence == grant.fence;
        match (command, phase) {
            // The payload is compared before anything else is said about the key.
            (Command::Claim(claim), Bound | Claimed | Begun | Lapsed | InDoubt | Done)
                if self.fingerprint != claim.fingerprint =>
            {
                Ruling::Conflict
            }
            (Command::Claim(claim), Claimed | Begun) if self.owner == claim.owner => {
                if claim.begin == Begin::WithClaim {
                    self.state = State::Begun;
                }
                Ruling::Won(self.win(now))
            }
            (Command::Claim(_), Claimed | Begun) => Ruling::Busy { lease_left: self.lease_until.left(now) },
            (Command::Claim(_), InDoubt) => Ruling::InDoubt,
            (Command::Claim(_), Expired) => Ruling::Expired,
            (Command::Claim(_), Done) => self.replay(now),
            // A packet that was still under way when its owner released or was taken away from.
            (Command::Claim(claim), Vacant | Bound) if self.owner == claim.owner => LOST,
            (Command::Claim(claim), Vacant | Bound | Lapsed) => {
                *self = claim.grant(Some((self, phase)), now, floor);
                Ruling::Won(self.win(now))
            }

            (Command::Begin(grant), Claimed | Begun) if mine(grant) => {
                self.state = State::Begun;
                Ruling::Accepted { lease_left: self.lease_until.left(now) }
            }
            (Command::Renew(grant), Claimed | Begun) if mine(grant) => {
                let limit = self.claimed_at.after(self.terms.in_flight_max);
                self.lease_until = self.lease_until.max(now.after(self.terms.lease).min(limit));
                Ruling::Accepted { lease_left: self.lease_until.left(now) }
            }
            (Command::Begin(_) | Command::Renew(_), _) => LOST,

            // Also after the lease: nobody else has claimed, so this is still the current fence.
            (Command::Complete { grant, outcome, retention, .. }, Claimed | Begun | Lapsed | InDoubt)
                if mine(grant) =>
            {
                self.finish(Arc::clone(outcome), now, *retention);
                ACCEPTED
            }
            (Command::Complete { grant, outcome, .. }, Done)
                if mine(grant) && self.outcome(now) == Some(outcome) =>
            {
                ACCEPTED
            }
            (Command::Complete { fingerprint, .. }, _) => {
                let same_payload = self.fingerprint == *fingerprint;
                Ruling::Lost { winner: self.outcome(now).filter(|_| same_payload).cloned() }
            }

            (Command::Release(grant), Claimed | Begun | Lapsed | InDoubt) if mine(grant) => {
                match self.terms.mode {
                    Mode::Keyed => self.bind(now),
                    Mode::Atomic | Mode::Marked | Mode::Rerun => self.vacate(now),
                }
                ACCEPTED
            }
            (Command::Bind(grant), Claimed | Begun | Lapsed | InDoubt) if mine(grant) => {
                self.bind(now);
                ACCEPTED
            }
            (Command::Abandon(grant), Claimed | Begun | Lapsed | InDoubt) if mine(grant) => {
                self.lease_until = self.lease_until.min(now);
                ACCEPTED
            }
            (Command::Release(_) | Command::Bind(_) | Command::Abandon(_), _) => LOST,

            (Command::Settle(settlement), InDoubt) => {
                self.fence = self.fence.next(floor, now);
                match settlement {
                    Settlement::Done(outcome) => self.finish(Arc::clone(outcome), now, None),
                    Settlement::Run => self.bind(now),
                }
                ACCEPTED
            }
            (Command::Forget(Force::No), Claimed | Begun | Lapsed | InDoubt) => Ruling::Refused { phase },
            (Command::Forget(_), _) => {
                self.vacate(now);
                ACCEPTED
            }
            (Command::Reexecute, Done | Expired) => {
                self.fence = self.fence.next(floor, now);
                self.epoch = self.epoch.next();
                self.bind(now);
                ACCEPTED
            }
            (Command::Settle(_) | Command::Reexecute, _) => Ruling::Refused { phase },
        }
    }

    fn win(&self, now: Timestamp) -> Win {
        Win {
            grant: Grant { owner: self.owner, fence: self.fence },
            attempt: self.attempt,
            epoch: self.epoch,
            lease_left: self.lease_until.left(now),
        }
    }

    fn replay(&self, now: Timestamp) -> Ruling {
        match self.outcome(now) {
            Some(outcome) => {
                Ruling::Replay { outcome: Arc::clone(outcome), expires_in: self.expires_at.left(now) }
            }
            None => Ruling::Expired,
        }
    }

    fn finish(&mut self, outcome: Arc<Outcome>, now: Timestamp, retention: Option<Duration>) {
        let Terms { retention: usual, grace, memory, .. } = *self.terms;
        let stands = retention.unwrap_or(usual).saturating_add(grace);
        self.rest(State::Done(outcome), now, stands, memory);
    }

    fn bind(&mut self, now: Timestamp) {
        self.rest(State::Bound, now, self.terms.retention, Duration::ZERO);
    }

    fn vacate(&mut self, now: Timestamp) {
        self.rest(State::Vacant, now, Duration::ZERO, Duration::ZERO);
    }

    /// Puts the record into a state that nobody owns; `stands` is how long it means something.
    fn rest(&mut self, state: State, now: Timestamp, stands: Duration, memory: Duration) {
        self.state = state;
        self.changed_at = now;
        self.lease_until = now;
        self.expires_at = now.after(stands);
        self.forget_at = self.expires_at.after(memory);
    }
}

impl Claim {
    /// The record of a granted claim. A life goes on from bound or lapsed and starts anew from vacant; fence
    /// and epoch outlive both.
    fn grant(&self, before: Option<(&Record, Phase)>, now: Timestamp, floor: Fence) -> Record {
        let Terms { lease, in_flight_max, retention, memory, .. } = *self.terms;
        // Not before a claim that was renewed to its limit had time to be taken over.
        let expires_at = now.after(retention.max(in_flight_max.saturating_add(lease)));
        let (fence, epoch, attempt) = match before {
            Some((record, Phase::Vacant)) => (record.fence, record.epoch, 0),
            Some((record, _)) => (record.fence, record.epoch, record.attempt),
            None => (Fence::default(), Epoch::default(), 0),
        };
        Record {
            state: match self.begin {
                Begin::WithClaim => State::Begun,
                Begin::Later => State::Claimed,
            },
            fingerprint: self.fingerprint,
            owner: self.owner,
            fence: fence.next(floor, now),
            epoch,
            attempt: attempt.saturating_add(1),
            hint: self.hint.clone(),
            terms: Arc::clone(&self.terms),
            claimed_at: now,
            changed_at: now,
            lease_until: now.after(lease.min(in_flight_max)),
            expires_at,
            forget_at: expires_at.after(memory),
        }
    }
}
