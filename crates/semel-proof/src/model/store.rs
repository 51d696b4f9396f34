//! The store of the model: the real rules, the mutants around them, and a check of every transition.

use std::sync::Arc;

use semel::record::{self, Command, Fence, Grant, Mode, NewClaim, Phase, Record, Ruling, State, Sweep};
use semel::time::Timestamp;

use super::world::{ModelState, number};
use super::{Mutant, ProtocolModel};

/// The rules that a transition can break. Each is a property.
#[derive(Clone, Copy, Debug)]
pub(super) enum ModelRule {
    /// A granted fence is above all earlier ones, and a record's fence never goes back.
    FenceGrows,
    /// A write with another grant than the record's changes nothing.
    OldFence,
    /// A refused command changes nothing.
    Refusal,
    /// A completed outcome never changes within its epoch.
    DoneStays,
    /// A key in doubt is not run again.
    DoubtHolds,
    /// A claim with a valid lease is not taken over.
    HeldStays,
    /// A key that is known as expired is not run again.
    ExpiredStays,
    /// One payload per life of a record.
    OnePayload,
    /// A settlement invalidates every grant.
    SettleFences,
    /// The last owner's late packet wins nothing.
    LatePacket,
    /// Two answers of one life differ.
    Answers,
    /// An outcome was given for another payload.
    PayloadAnswer,
    /// An answer without an effect.
    AnswerMade,
    /// The effect started without an accepted begin.
    BeginFirst,
}

impl ModelState {
    pub(super) fn breaks(&mut self, rule: ModelRule) {
        self.witness.broken |= 1 << rule as u16;
    }

    /// True if no transition so far broke `rule`.
    pub(super) fn keeps(&self, rule: ModelRule) -> bool {
        self.witness.broken & (1 << rule as u16) == 0
    }

    /// Executes a command as the store does, and checks the result.
    pub(super) fn apply(&mut self, protocol: &ProtocolModel, command: &Command) -> Ruling {
        let before = self.slot.0.clone();
        let ruling = self.apply_mutated(protocol, command);
        self.audit(before.as_ref(), command, &ruling);
        ruling
    }

    /// The real rules, unless the model has a mutant.
    fn apply_mutated(&mut self, protocol: &ProtocolModel, command: &Command) -> Ruling {
        let (now, floor, phase) = (self.now, self.floor, self.phase());
        let Some(mutant) = protocol.mutant else {
            return record::apply(&mut self.slot.0, command, now, floor);
        };
        let slot = &mut self.slot.0;
        match (mutant, command) {
            (Mutant::FenceOff, _) => {
                let command = with_current_grant(command, slot.as_ref());
                record::apply(slot, &command, now, floor)
            }
            (Mutant::BeginUnfenced, Command::Begin(_)) if slot.is_some() => {
                Ruling::Accepted { lease_left: super::LEASE }
            }
            (Mutant::PlainDelete, Command::Release(_)) if slot.is_some() => {
                self.remove();
                Ruling::Accepted { lease_left: super::LEASE }
            }
            (Mutant::FenceReset, Command::Claim(_)) if slot.is_none() => {
                let ruling = record::apply(slot, command, now, Fence::default());
                match (ruling, slot) {
                    (Ruling::Won(mut win), Some(record)) => {
                        record.fence = Fence::new(1);
                        win.grant = Grant::from_parts(record.owner, record.fence);
                        Ruling::Won(win)
                    }
                    (ruling, _) => ruling,
                }
            }
            (Mutant::SettleKeepsFence, Command::Settle(_) | Command::SettleAttempt(..)) => {
                let fence = slot.as_ref().map(|record| record.fence);
                let ruling = record::apply(slot, command, now, floor);
                if let (Some(record), Some(fence)) = (slot, fence) {
                    record.fence = fence;
                }
                ruling
            }
            (Mutant::TakeoverOfBegun, Command::Claim(_)) if phase == Phase::InDoubt => {
                apply_to_changed(slot, command, now, floor, |record, _| {
                    Arc::make_mut(&mut record.terms).mode = Mode::Rerun;
                })
            }
            (Mutant::StealHeld, Command::Claim(_)) if matches!(phase, Phase::Claimed | Phase::Begun) => {
                apply_to_changed(slot, command, now, floor, |record, _| {
                    record.lease_until = now;
                    Arc::make_mut(&mut record.terms).mode = Mode::Rerun;
                })
            }
            (Mutant::ConflictSkippedInFlight, Command::Claim(_))
                if matches!(phase, Phase::Claimed | Phase::Begun | Phase::Lapsed) =>
            {
                apply_to_changed(slot, command, now, floor, |record, claim| {
                    record.fingerprint = claim.fingerprint;
                })
            }
            (Mutant::ConflictSkippedOnReplay, Command::Claim(_)) if phase == Phase::Done => {
                apply_to_changed(slot, command, now, floor, |record, claim| {
                    record.fingerprint = claim.fingerprint;
                })
            }
            (Mutant::ExpiredRunsAgain, Command::Claim(_)) if phase == Phase::Expired => {
                apply_to_changed(slot, command, now, floor, |record, _| record.forget_at = now)
            }
            (Mutant::StubDropped, Command::Release(_)) => {
                let ruling = record::apply(slot, command, now, floor);
                if slot.as_ref().is_some_and(|record| record.state == State::Vacant) {
                    self.remove();
                }
                ruling
            }
            (Mutant::AbandonReleases, Command::Abandon(grant)) => {
                record::apply(slot, &Command::Release(*grant), now, floor)
            }
            (Mutant::LastWriterWins, Command::Complete { outcome, .. }) => match slot {
                Some(record) if phase == Phase::Done => {
                    record.state = State::Done(Arc::clone(outcome));
                    Ruling::Accepted { lease_left: super::LEASE }
                }
                slot => record::apply(slot, command, now, floor),
            },
            (Mutant::RenewForEver, Command::Renew(_)) => {
                let ruling = record::apply(slot, command, now, floor);
                if let (Ruling::Accepted { .. }, Some(record)) = (&ruling, slot) {
                    record.lease_until = now.after(record.terms.lease);
                }
                ruling
            }
            _ => record::apply(slot, command, now, floor),
        }
    }

    fn audit(&mut self, before: Option<&Record>, command: &Command, ruling: &Ruling) {
        let now = self.now;
        let after = self.slot.0.clone();
        let changed = before != after.as_ref();
        let taken = matches!(ruling, Ruling::Won(_) | Ruling::Accepted { .. });
        if changed && !taken {
            self.breaks(ModelRule::Refusal);
        }
        let phase = before.map_or(Phase::Vacant, |record| record.phase(now));
        if let (Some(before), Some(after)) = (before, &after)
            && after.fence < before.fence
        {
            self.breaks(ModelRule::FenceGrows);
        }
        if let Some(grant) = grant_of(command) {
            let current = before.is_some_and(|record| is_current(record, grant));
            if !current && (changed || taken) {
                self.breaks(ModelRule::OldFence);
            }
        }
        self.audit_done(before, after.as_ref(), command);
        match (command, ruling) {
            (Command::Claim(claim), Ruling::Won(win)) => {
                let again = before.is_some_and(|record| is_current(record, &win.grant));
                if !again {
                    self.audit_grant(before, phase, claim, win.grant.fence());
                }
            }
            (Command::Settle(_) | Command::SettleAttempt(..), Ruling::Accepted { .. })
                if after.as_ref().map(|record| record.fence) <= before.map(|record| record.fence) =>
            {
                self.breaks(ModelRule::SettleFences);
            }
            _ => {}
        }
        if let Some(record) = after {
            self.witness.highest = self.witness.highest.max(record.fence);
        }
    }

    fn audit_grant(&mut self, before: Option<&Record>, phase: Phase, claim: &NewClaim, fence: Fence) {
        if fence <= self.witness.highest {
            self.breaks(ModelRule::FenceGrows);
        }
        match phase {
            Phase::Claimed | Phase::Begun => self.breaks(ModelRule::HeldStays),
            Phase::InDoubt => self.breaks(ModelRule::DoubtHolds),
            Phase::Expired => self.breaks(ModelRule::ExpiredStays),
            Phase::Vacant | Phase::Bound | Phase::Lapsed | Phase::Done => {}
        }
        if phase != Phase::Vacant && before.is_some_and(|record| record.fingerprint != claim.fingerprint) {
            self.breaks(ModelRule::OnePayload);
        }
        // A lapsed claim may be won again by its own owner: nothing has ended it yet.
        if phase != Phase::Lapsed && self.witness.last_owner == Some(number(claim.owner)) {
            self.breaks(ModelRule::LatePacket);
        }
        self.witness.last_owner = Some(number(claim.owner));
    }

    fn audit_done(&mut self, before: Option<&Record>, after: Option<&Record>, command: &Command) {
        let Some(before) = before else { return };
        let Some(outcome) = before.outcome(self.now) else { return };
        let stays = after.is_some_and(|after| after.outcome(self.now) == Some(outcome));
        if !stays && !matches!(command, Command::Forget(_) | Command::Reexecute) {
            self.breaks(ModelRule::DoneStays);
        }
    }

    /// The sweep of a store, now.
    pub(super) fn sweep(&mut self, protocol: &ProtocolModel) {
        let Some(record) = &self.slot.0 else { return };
        if protocol.broken_by(Mutant::SweepDoubt) && record.phase(self.now) == Phase::InDoubt {
            self.remove();
            return;
        }
        match record.sweep(self.now) {
            Sweep::Keep => {}
            Sweep::Shrink(shrunk) => self.slot.0 = Some(shrunk),
            Sweep::Remove => {
                self.remove();
                // The stub was stored for as long as a packet of its owner can be in transit.
                self.witness.last_owner = None;
                self.left.late_packets = 0;
            }
        }
    }

    /// The floor is raised before a record is removed.
    fn remove(&mut self) {
        if let Some(record) = self.slot.0.take() {
            self.floor = self.floor.max(record.fence);
        }
    }

    /// When a sweep next has work.
    pub(super) fn sweep_at(&self) -> Option<Timestamp> {
        self.slot.0.as_ref().and_then(Record::sweep_at)
    }
}

/// Applies the rules to another record than the stored one; the result counts only if it was a win.
fn apply_to_changed(
    slot: &mut Option<Record>,
    command: &Command,
    now: Timestamp,
    floor: Fence,
    change: impl FnOnce(&mut Record, &NewClaim),
) -> Ruling {
    let mut shown = slot.clone();
    if let (Some(record), Command::Claim(claim)) = (&mut shown, command) {
        change(record, claim);
    }
    let ruling = record::apply(&mut shown, command, now, floor);
    if matches!(ruling, Ruling::Won(_)) {
        *slot = shown;
    }
    ruling
}

fn is_current(record: &Record, grant: &Grant) -> bool {
    record.owner == grant.owner() && record.fence == grant.fence()
}

fn grant_of(command: &Command) -> Option<&Grant> {
    match command {
        Command::Begin(grant)
        | Command::Renew(grant)
        | Command::Complete { grant, .. }
        | Command::Release(grant)
        | Command::Bind(grant)
        | Command::Abandon(grant) => Some(grant),
        Command::Claim(_)
        | Command::Settle(_)
        | Command::SettleAttempt(..)
        | Command::Forget(_)
        | Command::Reexecute => None,
    }
}

fn with_current_grant(command: &Command, record: Option<&Record>) -> Command {
    let mut command = command.clone();
    let Some(record) = record else { return command };
    match &mut command {
        Command::Begin(grant)
        | Command::Renew(grant)
        | Command::Complete { grant, .. }
        | Command::Release(grant)
        | Command::Bind(grant)
        | Command::Abandon(grant) => *grant = Grant::from_parts(record.owner, record.fence),
        Command::Claim(_)
        | Command::Settle(_)
        | Command::SettleAttempt(..)
        | Command::Forget(_)
        | Command::Reexecute => {}
    }
    command
}
