//! The commands on claims, buffer and list of tenants: each is one step.

use super::state::{
    BufferedEntry, CallerStage, CallerState, ClaimAnswer, ClaimState, DrainerStep, LeaseHolder,
    LeasedRunState, TenantPart,
};
use super::{Milestone, ModelStep, TriggerMutant};

pub(super) enum PutResult {
    /// The run is buffered.
    Taken,
    /// The key has this run.
    Duplicate(u8),
    /// The key has a run whose lifetime is over.
    Expired,
    /// The ledger must be read again.
    Late,
    /// Another caller is about to write a run of the key to the ledger.
    Reserved,
    /// The tenant is not listed: announce it, and show this token.
    NotListed(u8),
}

pub(super) enum AckResult {
    /// The run has left the buffer.
    Gone,
    /// There are more changes.
    Changed(LeasedRunState),
    /// The lease belongs to another drainer.
    Lost,
}

impl ModelStep<'_> {
    pub(super) fn claim(&mut self, caller: u8, generation: u8) -> ClaimAnswer {
        let payload = self.payload(caller);
        let other = |run| self.payload(run) != payload;
        let (answer, next) = match self.state.redis.claims[usize::from(generation)] {
            ClaimState::Free => (ClaimAnswer::Won, true),
            ClaimState::Held { payload: its, .. } | ClaimState::Bound { payload: its } if its != payload => {
                return ClaimAnswer::Conflict;
            }
            ClaimState::Held { lapsed: false, .. } => return ClaimAnswer::Busy,
            ClaimState::Held { .. } | ClaimState::Bound { .. } => (ClaimAnswer::TookOver, false),
            ClaimState::Done { run } if other(run) => return ClaimAnswer::Conflict,
            ClaimState::Done { run } => return ClaimAnswer::Replay(run),
        };
        if answer == ClaimAnswer::TookOver {
            self.reach(Milestone::TakenOver);
        }
        *self.state.redis.claim_mut(generation) =
            ClaimState::Held { owner: caller, payload, first: next, lapsed: false };
        self.state.callers[usize::from(caller)].claimed = true;
        answer
    }

    fn holds(&self, caller: u8, generation: u8) -> bool {
        matches!(self.state.redis.claims[usize::from(generation)], ClaimState::Held { owner, .. } if owner == caller)
    }

    /// Gives a claim back if it is still the caller's.
    pub(super) fn release_claim(&mut self, caller: u8, generation: u8) {
        if self.holds(caller, generation) {
            let payload = self.payload(caller);
            *self.state.redis.claim_mut(generation) = ClaimState::Bound { payload };
        }
    }

    /// As `release_claim`, if the key belongs to another payload: the claim must not stay bound to the caller's payload.
    pub(super) fn drop_claim(&mut self, caller: u8, generation: u8) {
        if self.holds(caller, generation) {
            *self.state.redis.claim_mut(generation) = ClaimState::Free;
        }
    }

    pub(super) fn resolve(&mut self, caller: u8, generation: u8, run: u8) {
        if self.holds(caller, generation) {
            *self.state.redis.claim_mut(generation) = ClaimState::Done { run };
        }
    }

    /// Forgets a claim without a run.
    pub(super) fn forget(&mut self, generation: u8) {
        let claim = self.state.redis.claim_mut(generation);
        if matches!(claim, ClaimState::Done { .. }) {
            *claim = ClaimState::Free;
        }
    }

    /// More time passes than a claim can last: unresolved claims and notes end, and the buffer refuses the puts of callers
    /// that are still paused. Reservations last.
    pub(super) fn end_claim_records(&mut self, generation: u8) {
        let at = usize::from(generation);
        if !matches!(self.state.redis.claims[at], ClaimState::Done { .. }) {
            self.state.redis.claims[at] = ClaimState::Free;
        }
        if self.broken_by(TriggerMutant::ReservationEndsWithClaim) {
            self.state.redis.reserved[at] = false;
        }
        for caller in &mut self.state.callers {
            if caller.is_about_to_put(generation) {
                (caller.outdated, caller.late) = (false, true);
            }
        }
    }

    /// Notes that the ledger has changed: puts of callers that read it before are refused.
    pub(super) fn outdate(&mut self, generation: u8) {
        for caller in &mut self.state.callers {
            caller.outdated |= caller.is_about_to_put(generation);
        }
    }

    /// The run of a generation, or the reservation of the generation.
    pub(super) fn reserve(&mut self, generation: u8) -> Option<u8> {
        let found = self.state.redis.indexed(generation);
        if found.is_none() && !self.broken_by(TriggerMutant::NoReservation) {
            self.state.redis.reserved[usize::from(generation)] = true;
        }
        found
    }

    pub(super) fn put(&mut self, run: u8) -> PutResult {
        let caller = self.state.callers[usize::from(run)];
        if self.model.is_keyed(run)
            && let Some(refusal) = self.key_taken(caller)
        {
            return refusal;
        }
        if let Some(token) = self.not_listed(caller.token) {
            self.reach(Milestone::NotListed);
            return PutResult::NotListed(token);
        }
        *self.state.redis.entry_mut(run) = Some(BufferedEntry {
            generation: caller.generation,
            indexed: self.model.is_keyed(run),
            lease: None,
            version: 0,
        });
        self.record_placed(run, caller.era);
        PutResult::Taken
    }

    /// The reason why the key and its generation accept no run from this caller.
    fn key_taken(&mut self, caller: CallerState) -> Option<PutResult> {
        let generation = caller.generation;
        let at = usize::from(generation);
        if let Some(other) = self.state.redis.indexed(generation) {
            if !self.state.expired.has(other) {
                self.reach(Milestone::Duplicate);
                return Some(PutResult::Duplicate(other));
            }
            if !self.broken_by(TriggerMutant::BufferFreesExpiredKey) {
                return Some(PutResult::Expired);
            }
            if let Some(entry) = self.state.redis.entry_mut(other) {
                entry.indexed = false;
            }
        }
        if self.state.redis.reserved[at] {
            self.reach(Milestone::Reserved);
            return Some(PutResult::Reserved);
        }
        if caller.outdated {
            self.reach(Milestone::Outdated);
            if !self.broken_by(TriggerMutant::PutIgnoresNotes) {
                return Some(PutResult::Late);
            }
        }
        if caller.late {
            self.reach(Milestone::PutTooLate);
            if !self.broken_by(TriggerMutant::LatePutAccepted) {
                return Some(PutResult::Late);
            }
        }
        None
    }

    /// The token that the put is missing; `None` if the tenant is listed, or becomes listed because the put carries it.
    fn not_listed(&mut self, shown: u8) -> Option<u8> {
        if !self.model.listed || self.broken_by(TriggerMutant::AnnounceAfterPut) {
            return None;
        }
        let TenantPart::Closed(token) = self.state.redis.part else { return None };
        if self.broken_by(TriggerMutant::NumberInsteadOfToken) {
            if shown > token {
                self.state.redis.part = TenantPart::Listed;
                return None;
            }
            return Some(0);
        }
        if token != 0 && shown == token {
            self.state.redis.part = TenantPart::Listed;
            return None;
        }
        if token != 0 {
            return Some(token);
        }
        let token = self.state.fresh_number();
        self.state.redis.part = TenantPart::Closed(token);
        Some(token)
    }

    /// Puts the tenant into the list, with a new number.
    pub(super) fn announce(&mut self) -> u8 {
        // A counter that starts again repeats a number that a drainer still holds.
        let again = self.state.drainers.iter().find_map(|drainer| match drainer {
            DrainerStep::Turn(number) | DrainerStep::Leave(number) => Some(*number),
            _ => None,
        });
        let redis_lost = self.state.left.losses != self.model.budget.losses;
        let number = match again {
            Some(number) if redis_lost && self.broken_by(TriggerMutant::NumbersStartAgain) => number,
            _ => self.state.fresh_number(),
        };
        self.state.redis.list = Some(number);
        number
    }

    /// Takes the tenant out of the list, unless it was announced since.
    pub(super) fn leave(&mut self, number: u8) {
        if self.state.redis.list == Some(number) || self.broken_by(TriggerMutant::LeaveWithoutComparison) {
            self.reach(Milestone::Left);
            self.state.redis.list = None;
        } else if self.state.redis.list.is_some() {
            self.reach(Milestone::Stayed);
        }
    }

    /// A lease found no run: the next put needs a new announcement.
    pub(super) fn close_part(&mut self, number: u8) {
        let token = match self.state.redis.part {
            TenantPart::Closed(token) if self.broken_by(TriggerMutant::NumberInsteadOfToken) => {
                token.max(number)
            }
            TenantPart::Listed if self.broken_by(TriggerMutant::NumberInsteadOfToken) => number,
            _ => self.state.fresh_number(),
        };
        self.state.redis.part = TenantPart::Closed(token);
    }

    /// Leases a run unless it has another lease.
    pub(super) fn lease(&mut self, run: u8, holder: LeaseHolder) -> Option<LeasedRunState> {
        let entry = self.state.redis.entry_mut(run).as_mut()?;
        if entry.lease.is_some() {
            return None;
        }
        entry.lease = Some(holder);
        Some(entry.leased(run))
    }

    /// Takes a run out of the buffer whose changes are all in the ledger.
    pub(super) fn ack(&mut self, leased: LeasedRunState, holder: LeaseHolder) -> AckResult {
        let Some(entry) = self.state.redis.entry(leased.run) else { return AckResult::Gone };
        if entry.lease != Some(holder) {
            return AckResult::Lost;
        }
        if entry.version != leased.version {
            self.reach(Milestone::ChangedInTransit);
            return AckResult::Changed(entry.leased(leased.run));
        }
        *self.state.redis.entry_mut(leased.run) = None;
        if !self.broken_by(TriggerMutant::AckLeavesNoNote) {
            self.outdate(entry.generation);
        }
        AckResult::Gone
    }
}

impl CallerState {
    /// Whether Redis did not confirm a put of its run under another generation.
    pub(super) fn is_unconfirmed_before(&self, generation: u8) -> bool {
        self.unconfirmed.is_some_and(|unconfirmed| unconfirmed != generation)
    }

    /// Whether it has read the ledger, found no run of this generation, and puts its run next.
    pub(super) fn is_about_to_put(&self, generation: u8) -> bool {
        self.generation == generation && matches!(self.stage, CallerStage::Put | CallerStage::Announce)
    }
}

impl BufferedEntry {
    pub(super) fn leased(self, run: u8) -> LeasedRunState {
        LeasedRunState { run, generation: self.generation, version: self.version }
    }
}
