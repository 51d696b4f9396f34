//! The steps that are possible in a state.

use super::client::ChangeKind;
use super::state::{
    CallerStage, CallerState, ClaimState, ClientStep, DrainerStep, KeyRow, LeaseHolder, LedgerRun,
    ModelDelivery, RedisState, Resetter, TriggerState,
};
use super::{GateChoices, Milestone, ModelStep, TriggerModel, TriggerMutant};

/// One step. The numbers are callers, drainers, runs or generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerAction {
    /// A caller sends its next command; the gate decides for this destination, if it is asked.
    Call(u8, GateOutcome),
    /// A drainer sends its next command; it leases this run, if it leases one.
    Drain(u8, Option<u8>),
    /// A worker executes a run.
    Execute(u8),
    /// A client cancels a run.
    Cancel(u8),
    /// The client that cancels sends its next command.
    ContinueCancel,
    /// A client increments metadata of a run.
    Increment(u8),
    /// The client that increments sends its next command.
    ContinueIncrement,
    /// A client resets the key, or sends the next command of its reset.
    Reset,
    /// The lease of a claim expires.
    ClaimLapses(u8),
    /// The lease on a buffered run expires.
    LeaseEnds(u8),
    /// The lifetime of a run ends.
    Expire(u8),
    /// The record of a resolved claim ends with the lifetime of its run.
    DoneClaimExpires(u8),
    /// More time passes than a claim of this generation can last.
    ClaimRecordsEnd(u8),
    /// The caller that wrote a run to the ledger ends its reservation.
    EndReservation(u8),
    /// The ledger removes the row of the key.
    Sweep,
    /// A caller's process dies.
    CallerDies(u8),
    /// A drainer dies and another one replaces it.
    DrainerDies(u8),
    /// The process that resets the key dies.
    ResetterDies,
    /// Fault: the Redis command of a caller fails.
    Fail(u8, RedisFailure),
    /// Fault: Redis loses all its data.
    Lose,
}

/// Decision of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOutcome {
    /// Write to the ledger.
    Ledger,
    /// Put into the buffer.
    Buffer,
}

/// How a Redis command fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisFailure {
    /// It was certainly not executed.
    NotSent,
    /// It was not executed, and the caller does not know.
    Lost,
    /// It was executed, and the caller does not know.
    AnswerLost,
}

impl CallerState {
    /// Whether the caller has begun and is not done.
    fn is_active(self) -> bool {
        !matches!(
            self.stage,
            CallerStage::Absent
                | CallerStage::Idle
                | CallerStage::Answered(_)
                | CallerStage::Conflict
                | CallerStage::Unavailable
                | CallerStage::Gone
        )
    }
}

fn runs(model: &TriggerModel) -> impl Iterator<Item = u8> + use<> {
    0..u8::try_from(model.callers.len()).unwrap_or(u8::MAX)
}

/// Whether a participant that has begun is not done.
pub(super) fn is_unfinished(state: &TriggerState) -> bool {
    state.callers.iter().any(|caller| caller.is_active())
        || state.canceller != ClientStep::Idle
        || state.patcher != ClientStep::Idle
}

/// Whether the holder of a lease on a buffered run is alive and still drains this run.
fn holder_is_active(state: &TriggerState, run: u8, holder: LeaseHolder) -> bool {
    match holder {
        LeaseHolder::Drainer(drainer) => match state.drainers[usize::from(drainer)] {
            DrainerStep::AcceptBuffered(leased) | DrainerStep::Ack(leased) => leased.run == run,
            _ => false,
        },
        LeaseHolder::Caller(caller) => match state.callers[usize::from(caller)].stage {
            CallerStage::AcceptBuffered(leased) | CallerStage::Ack(leased) => leased.run == run,
            _ => false,
        },
        LeaseHolder::Canceller => match state.canceller {
            ClientStep::Move(leased) | ClientStep::CancelAfterwards(leased) | ClientStep::Ack(leased) => {
                leased.run == run
            }
            _ => false,
        },
    }
}

/// Steps that will happen: the next command of every active participant, and leases of dead owners that expire. A state
/// without such a step is final unless something new begins.
pub(super) fn list_certain(model: &TriggerModel, state: &TriggerState, actions: &mut Vec<TriggerAction>) {
    for caller in runs(model) {
        let own = state.callers[usize::from(caller)];
        if own.is_active() && can_continue(state, own) {
            list_call(model, caller, own.stage, actions);
        }
    }
    for (drainer, step) in (0..).zip(state.drainers) {
        // Idle drainers are interchangeable.
        let alike = drainer > 0 && state.drainers[usize::from(drainer) - 1] == step;
        match step {
            DrainerStep::Absent => {}
            DrainerStep::Idle if alike => {}
            DrainerStep::Idle if model.listed => {
                if state.redis.list.is_some() {
                    actions.push(TriggerAction::Drain(drainer, None));
                }
            }
            DrainerStep::Idle => list_leases(model, state, drainer, actions),
            DrainerStep::Turn(_) => {
                let before = actions.len();
                list_leases(model, state, drainer, actions);
                if actions.len() == before {
                    actions.push(TriggerAction::Drain(drainer, None));
                }
            }
            _ => actions.push(TriggerAction::Drain(drainer, None)),
        }
    }
    for run in runs(model) {
        if state.ledger.event(run).is_some_and(|event| event.delivery == ModelDelivery::Queued) {
            actions.push(TriggerAction::Execute(run));
        }
        if let Some(holder) = state.redis.entry(run).and_then(|entry| entry.lease)
            && !holder_is_active(state, run, holder)
        {
            actions.push(TriggerAction::LeaseEnds(run));
        }
    }
    for (generation, claim) in (0..).zip(state.redis.claims) {
        if let ClaimState::Held { owner, lapsed: false, .. } = claim
            && !state.callers[usize::from(owner)].is_active()
        {
            actions.push(TriggerAction::ClaimLapses(generation));
        }
    }
    match state.canceller {
        ClientStep::Idle => {}
        client if is_waiting(state, client) => {}
        _ => actions.push(TriggerAction::ContinueCancel),
    }
    if state.patcher != ClientStep::Idle {
        actions.push(TriggerAction::ContinueIncrement);
    }
    if state.resetter != Resetter::Idle {
        actions.push(TriggerAction::Reset);
    }
}

/// Steps that may happen or not: new work, pauses, crashes and faults.
pub(super) fn list_possible(model: &TriggerModel, state: &TriggerState, actions: &mut Vec<TriggerAction>) {
    let left = &state.left;
    for caller in runs(model) {
        let own = state.callers[usize::from(caller)];
        let at = usize::from(caller);
        let alike = at > 0
            && model.callers[at] == model.callers[at - 1]
            && state.callers[at - 1].stage == CallerStage::Idle;
        if own.stage == CallerStage::Idle && !alike {
            actions.push(TriggerAction::Call(caller, GateOutcome::Ledger));
            // It knows that the gate holds.
            if model.callers[at].keyed && !model.callers[at].wait {
                actions.push(TriggerAction::Call(caller, GateOutcome::Buffer));
            }
        }
        if own.is_active() {
            if left.crashes > 0 {
                actions.push(TriggerAction::CallerDies(caller));
            }
            let asks_redis = !own.alone || matches!(own.stage, CallerStage::LookUnconfirmedBuffer(..));
            if left.failures > 0 && asks_redis {
                let all = [RedisFailure::NotSent, RedisFailure::Lost, RedisFailure::AnswerLost];
                actions.extend(all.map(|failure| TriggerAction::Fail(caller, failure)));
            }
        }
        if own.stage == CallerStage::Idle && left.failures > 0 && !alike {
            actions.push(TriggerAction::Fail(caller, RedisFailure::NotSent));
        }
    }
    for (drainer, step) in (0..).zip(state.drainers) {
        if left.crashes > 0 && !matches!(step, DrainerStep::Absent | DrainerStep::Idle) {
            actions.push(TriggerAction::DrainerDies(drainer));
        }
    }
    if left.crashes > 0 && state.resetter != Resetter::Idle {
        actions.push(TriggerAction::ResetterDies);
    }
    for run in runs(model) {
        let placed = state.witness.placed.has(run);
        if placed && left.cancels > 0 && state.canceller == ClientStep::Idle {
            actions.push(TriggerAction::Cancel(run));
        }
        if placed && left.increments > 0 && state.patcher == ClientStep::Idle {
            actions.push(TriggerAction::Increment(run));
        }
        if placed && left.expiries > 0 && !state.expired.has(run) {
            actions.push(TriggerAction::Expire(run));
        }
        if let Some(holder) = state.redis.entry(run).and_then(|entry| entry.lease)
            && left.pauses > 0
            && holder_is_active(state, run, holder)
        {
            actions.push(TriggerAction::LeaseEnds(run));
        }
    }
    for (generation, claim) in (0_u8..).zip(state.redis.claims) {
        match claim {
            ClaimState::Held { owner, lapsed: false, .. }
                if left.pauses > 0 && state.callers[usize::from(owner)].is_active() =>
            {
                actions.push(TriggerAction::ClaimLapses(generation));
            }
            ClaimState::Done { run } if state.expired.has(run) => {
                actions.push(TriggerAction::DoneClaimExpires(generation));
            }
            _ => {}
        }
        if left.claim_records_end > 0
            && (claim != ClaimState::Free
                || state.callers.iter().any(|caller| caller.is_about_to_put(generation)))
        {
            actions.push(TriggerAction::ClaimRecordsEnd(generation));
        }
    }
    // The caller that wrote the run ends its reservation at any time, or dies before. Not as late as the row is swept.
    let is_swept = state.ledger.row.is_none();
    for generation in (0_u8..).zip(state.redis.reserved).filter_map(|(at, reserved)| reserved.then_some(at)) {
        let wrote = |event: &LedgerRun| event.generation == generation && !event.lost_key && !event.drained;
        if !is_swept && state.ledger.events.iter().flatten().any(wrote) {
            actions.push(TriggerAction::EndReservation(generation));
        }
    }
    if left.resets > 0 && state.resetter == Resetter::Idle {
        actions.push(TriggerAction::Reset);
    }
    if left.sweeps > 0 && may_sweep(model, state) {
        actions.push(TriggerAction::Sweep);
    }
    if left.losses > 0 && state.redis != RedisState::empty() {
        actions.push(TriggerAction::Lose);
    }
}

fn list_call(model: &TriggerModel, caller: u8, stage: CallerStage, actions: &mut Vec<TriggerAction>) {
    let wait = model.callers[usize::from(caller)].wait;
    if stage == CallerStage::Gate && !wait {
        actions.push(TriggerAction::Call(caller, GateOutcome::Buffer));
        if model.gate == GateChoices::Closed {
            return;
        }
    }
    actions.push(TriggerAction::Call(caller, GateOutcome::Ledger));
}

/// Whether a caller does not have to wait.
fn can_continue(state: &TriggerState, caller: CallerState) -> bool {
    match caller.stage {
        CallerStage::Wait => {
            let claim = state.redis.claims[usize::from(caller.generation)];
            !matches!(claim, ClaimState::Held { lapsed: false, .. })
        }
        CallerStage::Lease(run) => state.redis.entry(run).is_none_or(|entry| entry.lease.is_none()),
        _ => true,
    }
}

fn is_waiting(state: &TriggerState, client: ClientStep) -> bool {
    let ClientStep::Buffer(run) = client else { return false };
    state.redis.entry(run).is_some_and(|entry| entry.lease.is_some())
}

fn list_leases(model: &TriggerModel, state: &TriggerState, drainer: u8, actions: &mut Vec<TriggerAction>) {
    let free = |run: &u8| state.redis.entry(*run).is_some_and(|entry| entry.lease.is_none());
    actions.extend(runs(model).filter(free).map(|run| TriggerAction::Drain(drainer, Some(run))));
}

/// The row of a key without a holder is removed once no claim, entry or process knows an older generation.
fn may_sweep(model: &TriggerModel, state: &TriggerState) -> bool {
    let Some(KeyRow { holder, .. }) = state.ledger.row else { return false };
    let free = holder.is_none_or(|holder| state.expired.has(holder));
    let forgotten = state.redis.entries.iter().all(Option::is_none)
        && !state.callers.iter().any(|caller| caller.is_active())
        && state.drainers.iter().all(|drainer| matches!(drainer, DrainerStep::Idle | DrainerStep::Absent));
    free && (forgotten || model.broken_by(TriggerMutant::SweepTooEarly))
}

impl ModelStep<'_> {
    /// Takes the action; `None` if it is not possible.
    pub(super) fn apply(&mut self, action: TriggerAction) -> Option<()> {
        let state = &mut self.state;
        match action {
            TriggerAction::Call(caller, place) => self.call(caller, place)?,
            TriggerAction::Drain(drainer, run) => self.drain(drainer, run)?,
            TriggerAction::Execute(run) => self.execute(run)?,
            TriggerAction::Cancel(run) => self.begin_change(ChangeKind::Cancel, run)?,
            TriggerAction::ContinueCancel => self.change(ChangeKind::Cancel)?,
            TriggerAction::Increment(run) => self.begin_change(ChangeKind::Increment, run)?,
            TriggerAction::ContinueIncrement => self.change(ChangeKind::Increment)?,
            TriggerAction::Reset => self.reset_key()?,
            TriggerAction::ClaimLapses(generation) => {
                let ClaimState::Held { owner, lapsed, .. } = state.redis.claim_mut(generation) else {
                    return None;
                };
                *lapsed = true;
                if state.callers[usize::from(*owner)].is_active() {
                    state.left.pauses -= 1;
                }
            }
            TriggerAction::LeaseEnds(run) => {
                let holder = state.redis.entry(run)?.lease?;
                if holder_is_active(state, run, holder) {
                    state.left.pauses -= 1;
                }
                state.redis.entry_mut(run).as_mut()?.lease = None;
            }
            TriggerAction::Expire(run) => {
                state.left.expiries -= 1;
                state.expired.add(run);
            }
            TriggerAction::DoneClaimExpires(generation) => {
                *state.redis.claim_mut(generation) = ClaimState::Free;
            }
            TriggerAction::ClaimRecordsEnd(generation) => {
                state.left.claim_records_end -= 1;
                self.end_claim_records(generation);
            }
            TriggerAction::EndReservation(generation) => {
                state.redis.reserved[usize::from(generation)] = false;
                if !self.broken_by(TriggerMutant::WriteLeavesNoNote) {
                    self.outdate(generation);
                }
            }
            TriggerAction::Sweep => {
                self.reach(Milestone::Swept);
                self.state.left.sweeps -= 1;
                self.sweep();
                if !self.broken_by(TriggerMutant::SweepTooEarly) {
                    // Claims and reservations have ended long before.
                    self.state.redis = RedisState {
                        entries: self.state.redis.entries,
                        list: self.state.redis.list,
                        part: self.state.redis.part,
                        ..RedisState::empty()
                    };
                }
            }
            TriggerAction::CallerDies(caller) => {
                state.left.crashes -= 1;
                state.callers[usize::from(caller)].stage = CallerStage::Gone;
            }
            TriggerAction::DrainerDies(drainer) => {
                state.left.crashes -= 1;
                state.drainers[usize::from(drainer)] = DrainerStep::Idle;
            }
            TriggerAction::ResetterDies => {
                state.left.crashes -= 1;
                state.resetter = Resetter::Idle;
            }
            TriggerAction::Fail(caller, failure) => {
                state.left.failures -= 1;
                if state.callers[usize::from(caller)].stage == CallerStage::Idle {
                    self.begin_failed(caller);
                } else {
                    self.fail(caller, failure)?;
                }
            }
            TriggerAction::Lose => {
                state.left.losses -= 1;
                for run in 0..u8::try_from(state.redis.entries.len()).unwrap_or(u8::MAX) {
                    if state.redis.entry(run).is_some() && state.ledger.event(run).is_none() {
                        state.witness.lost.add(run);
                    }
                }
                state.redis = RedisState::empty();
                for caller in &mut state.callers {
                    caller.outdated = false;
                }
            }
        }
        Some(())
    }
}
