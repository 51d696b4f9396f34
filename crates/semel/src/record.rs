//! The rules: one pure function that says what a command does to a record.
//!
//! Memory and embedded stores call [`apply`]; every other store implements the same rules, and the contract suite
//! checks that. There is no I/O here and no clock: the store gives the time. Read this file to know what Semel does.
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

/// The data that a store holds for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The last written state. Time may have changed its meaning: read it through [`Record::phase`].
    pub state: State,
    /// The fingerprint of the payload. The first claim sets it; it stays until the record is vacant again.
    pub fingerprint: Fingerprint,
    /// The owner of the last claim.
    pub owner: Owner,
    /// Grows with every claim, settlement and re-execution; never goes back.
    pub fence: Fence,
    /// How often an operator asked for the effect to be executed again.
    pub epoch: Epoch,
    /// Number of claims granted since the record was last vacant, the current one included.
    pub attempt: u32,
    /// The first characters of the key, for people.
    pub hint: Hint,
    /// The terms of the last claim. Shared: most claims of an engine have the same terms.
    pub terms: Arc<Terms>,
    /// When the last claim was granted.
    pub claimed_at: Timestamp,
    /// When it was last claimed, completed, released, settled or forgotten.
    pub changed_at: Timestamp,
    /// Until when the claim is valid without a heartbeat (claimed only).
    pub lease_until: Timestamp,
    /// When the outcome or payload of a done, bound or lapsed record expires, grace included.
    pub expires_at: Timestamp,
    /// Until when it is then remembered as expired.
    pub forget_at: Timestamp,
}

/// The stored state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// No claim and no outcome. The rest of the record is a stub that preserves the fence and refuses late packets.
    Vacant,
    /// Has no owner, but the key is bound to one payload.
    Bound,
    /// An owner holds the claim; the effect may not start yet.
    Claimed,
    /// An owner holds the claim and its effect may have started.
    Begun,
    /// The effect happened, with this outcome.
    Done(Arc<Outcome>),
    /// The outcome was dropped; the key is still known.
    Expired,
}

/// The state at a given time: the stored state with time applied.
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
    /// The lease expired; the next claim wins.
    Lapsed,
    /// Begun in `marked`, and the owner was lost: it is unknown whether the effect happened.
    InDoubt,
    /// Callers are answered with the outcome.
    Done,
    /// The retention has passed and the key is still known.
    Expired,
}

impl Phase {
    /// True if the record is stored as claimed or begun: it has an owner, or lost one and was not ended since.
    pub fn is_in_progress(self) -> bool {
        matches!(self, Self::Claimed | Self::Begun | Self::Lapsed | Self::InDoubt)
    }
}

/// A command to a record. Every write after a claim carries its [`Grant`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Ask to run the effect.
    Claim(NewClaim),
    /// Mark that the effect may start. Repeatable.
    Begin(Grant),
    /// Extend the lease, up to `in_flight_max`.
    Renew(Grant),
    /// Store the outcome.
    Complete {
        /// The grant of the claim.
        grant: Grant,
        /// The payload's fingerprint. A refused owner gets the winner's outcome only for the same payload.
        fingerprint: Fingerprint,
        /// The outcome.
        outcome: Arc<Outcome>,
        /// Replaces the retention of the terms, if the effect chose one.
        retention: Option<Duration>,
    },
    /// The owner reports that nothing happened: any caller may claim, with any payload (in `keyed`: see `Bind`).
    Release(Grant),
    /// As `Release`, but the key stays bound to its payload.
    Bind(Grant),
    /// The owner does not know whether the effect happened: its lease ends now.
    Abandon(Grant),
    /// A probe or a person declares the result of an effect in doubt.
    Settle(Settlement),
    /// As `Settle`, but only the attempt with this fence: the one that was looked at.
    SettleAttempt(Fence, Settlement),
    /// An operator removes the record.
    Forget(Force),
    /// An operator asks to execute the effect again under the same key: a new epoch.
    Reexecute,
}

/// A request to run the effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClaim {
    /// Identifies this attempt to claim, so that a repeated call is recognised.
    pub owner: Owner,
    /// The payload's fingerprint.
    pub fingerprint: Fingerprint,
    /// The terms of the claim.
    pub terms: Arc<Terms>,
    /// Whether the claim also marks the effect as begun.
    pub begin: Begin,
    /// The key's first characters, stored for people.
    pub hint: Hint,
}

/// Whether a claim is also the begin mark.
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

/// Whether an operator forces a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Refuse to forget a record that is claimed or in doubt.
    No,
    /// Forget it anyway.
    Yes,
    /// Forget it anyway, but only the attempt with this fence: the one that was looked at.
    Attempt(Fence),
}

/// The answer of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a ruling decides whether the effect may run"]
pub enum Ruling {
    /// The claim is won: run the effect.
    Won(Win),
    /// Another owner holds the claim.
    Busy {
        /// How long its lease is still valid without a heartbeat.
        lease_left: Duration,
    },
    /// The effect happened: answer from the record.
    Replay {
        /// The stored outcome.
        outcome: Arc<Outcome>,
        /// How long the outcome is still given.
        expires_in: Duration,
    },
    /// The key was used with another payload.
    Conflict,
    /// It is unknown whether the effect happened.
    InDoubt,
    /// The key is known and its outcome has expired.
    Expired,
    /// The write was accepted.
    Accepted {
        /// What remains of the lease, if there is one.
        lease_left: Duration,
    },
    /// The claim belongs to another owner, or the record has another fence than the command; nothing was changed.
    Lost {
        /// The stored outcome, if there is one for the same payload.
        winner: Option<Arc<Outcome>>,
    },
    /// An operator's command is not possible in the record's phase; nothing was changed.
    Refused {
        /// The record's phase.
        phase: Phase,
    },
}

/// A won claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Win {
    /// Must be shown with every later write.
    pub grant: Grant,
    /// 1 for the first claim since the record was vacant.
    pub attempt: u32,
    /// The epoch the effect runs in.
    pub epoch: Epoch,
    /// How long the claim is valid without a heartbeat.
    pub lease_left: Duration,
}

/// What a sweep does to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// It is still needed.
    Keep,
    /// Its outcome has expired; only the key remains known.
    Shrink(Record),
    /// Nothing of it is needed once the store's fence floor is at its fence.
    Remove,
}

impl Record {
    /// The state at `now`. Get, list and count use it, so an expired lease shows before the sweep too.
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

    /// The outcome that is valid at `now`.
    pub fn outcome(&self, now: Timestamp) -> Option<&Arc<Outcome>> {
        match &self.state {
            State::Done(outcome) if now < self.expires_at => Some(outcome),
            _ => None,
        }
    }

    /// When [`sweep`](Self::sweep) next has work for this record; `None` while only an owner or a person can change
    /// it.
    pub fn sweep_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Begun if self.terms.mode == Mode::Marked => None,
            State::Done(_) => Some(self.expires_at),
            State::Vacant | State::Bound | State::Claimed | State::Begun | State::Expired => {
                Some(self.remove_at())
            }
        }
    }

    /// What remains of this record at `now`. Raise the fence floor to its fence *before* removing it.
    pub fn sweep(&self, now: Timestamp) -> Sweep {
        match self.phase(now) {
            Phase::Vacant if now >= self.remove_at() => Sweep::Remove,
            Phase::Expired | Phase::Vacant if matches!(self.state, State::Done(_)) => {
                Sweep::Shrink(Record { state: State::Expired, ..self.clone() })
            }
            _ => Sweep::Keep,
        }
    }

    /// A stub outlives every packet that its owner can still have in transit.
    fn remove_at(&self) -> Timestamp {
        self.forget_at.max(self.changed_at.after(self.terms.in_flight_max).after(self.terms.lease))
    }
}

/// Applies `command` to the record of a key, at the store's time `now`.
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
        (None, Command::Settle(_) | Command::SettleAttempt(..) | Command::Forget(_) | Command::Reexecute) => {
            Ruling::Refused { phase: Phase::Vacant }
        }
        (None, _) => LOST,
    }
}

const ACCEPTED: Ruling = Ruling::Accepted { lease_left: Duration::ZERO };
const LOST: Ruling = Ruling::Lost { winner: None };

impl Record {
    /// [`apply`] on an existing record.
    pub fn apply(&mut self, command: &Command, now: Timestamp, floor: Fence) -> Ruling {
        use Phase::{Begun, Bound, Claimed, Done, Expired, InDoubt, Lapsed, Vacant};
        let phase = self.phase(now);
        let mine = |grant: &Grant| self.owner == grant.owner && self.fence == grant.fence;
        match (command, phase) {
            // The payload is compared before anything else is revealed about the key.
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
            // A packet that arrives after its owner released the claim or lost it.
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

            // Also after the lease: no other owner has claimed, so this is still the current fence.
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

            (Command::SettleAttempt(fence, _), InDoubt) | (Command::Forget(Force::Attempt(fence)), _)
                if self.fence != *fence =>
            {
                LOST
            }
            (Command::Settle(settlement) | Command::SettleAttempt(_, settlement), InDoubt) => {
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
            (Command::Settle(_) | Command::SettleAttempt(..) | Command::Reexecute, _) => {
                Ruling::Refused { phase }
            }
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

    /// Puts the record into a state without an owner; `stands` is how long the state is valid.
    fn rest(&mut self, state: State, now: Timestamp, stands: Duration, memory: Duration) {
        self.state = state;
        self.changed_at = now;
        self.lease_until = now;
        self.expires_at = now.after(stands);
        self.forget_at = self.expires_at.after(memory);
    }
}

impl NewClaim {
    /// The record of a granted claim. From bound or lapsed it continues the attempt count; from vacant it starts
    /// again. Fence and epoch survive both.
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
