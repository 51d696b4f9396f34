//! The steps that are possible in a state.

use super::client::ChangeKind;
use super::world::{
    Caller, ClaimState, Client, Delivery, Drainer, KeyRow, LeaseHolder, Redis, Resetter, Stage, World,
};
use super::{Gate, Milestone, Mutant, Step, TriggerModel};

/// One step. The numbers are callers, drainers, runs or generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A caller sends its next command; the gate decides for this destination, if it is asked.
    Call(u8, Destination),
    /// A drainer sends its next command; it leases this run, if it leases one.
    Drain(u8, Option<u8>),
    /// A worker executes a run.
    Execute(u8),
    /// A client cancels a run.
    Cancel(u8),
    /// The client that cancels sends its next command.
    GoOnCancelling,
    /// A client increments metadata of a run.
    Increment(u8),
    /// The client that increments sends its next command.
    GoOnIncrementing,
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
pub enum Destination {
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

impl Caller {
    /// Whether the caller has begun and is not done.
    fn is_active(self) -> bool {
        !matches!(
            self.stage,
            Stage::Absent
                | Stage::Idle
                | Stage::Answered(_)
                | Stage::Conflict
                | Stage::Unavailable
                | Stage::Gone
        )
    }
}

fn runs(model: &TriggerModel) -> impl Iterator<Item = u8> + use<> {
    0..u8::try_from(model.callers.len()).unwrap_or(u8::MAX)
}

/// Whether a participant that has begun is not done.
pub(super) fn is_unfinished(world: &World) -> bool {
    world.callers.iter().any(|caller| caller.is_active())
        || world.canceller != Client::Idle
        || world.patcher != Client::Idle
}

/// Whether the holder of a lease on a buffered run is alive and still drains this run.
fn holder_is_active(world: &World, run: u8, holder: LeaseHolder) -> bool {
    match holder {
        LeaseHolder::Drainer(drainer) => match world.drainers[usize::from(drainer)] {
            Drainer::AcceptBuffered(leased) | Drainer::CancelAfterwards(leased) | Drainer::Ack(leased) => {
                leased.run == run
            }
            _ => false,
        },
        LeaseHolder::Caller(caller) => match world.callers[usize::from(caller)].stage {
            Stage::AcceptBuffered(leased) | Stage::Ack(leased) => leased.run == run,
            _ => false,
        },
    }
}

/// Steps that will happen: the next command of every active participant, and leases of dead owners that expire. A state
/// without such a step is final unless something new begins.
pub(super) fn certain(model: &TriggerModel, world: &World, actions: &mut Vec<Action>) {
    for caller in runs(model) {
        let me = world.callers[usize::from(caller)];
        if me.is_active() && can_continue(world, me) {
            call(model, caller, me.stage, actions);
        }
    }
    for (drainer, state) in (0..).zip(world.drainers) {
        // Idle drainers are interchangeable.
        let alike = drainer > 0 && world.drainers[usize::from(drainer) - 1] == state;
        match state {
            Drainer::Absent => {}
            Drainer::Idle if alike => {}
            Drainer::Idle if model.listed => {
                if world.redis.list.is_some() {
                    actions.push(Action::Drain(drainer, None));
                }
            }
            Drainer::Idle => lease_any(model, world, drainer, actions),
            Drainer::Turn(_) => {
                let before = actions.len();
                lease_any(model, world, drainer, actions);
                if actions.len() == before {
                    actions.push(Action::Drain(drainer, None));
                }
            }
            _ => actions.push(Action::Drain(drainer, None)),
        }
    }
    for run in runs(model) {
        if world.ledger.event(run).is_some_and(|event| event.delivery == Delivery::Queued) {
            actions.push(Action::Execute(run));
        }
        if let Some(holder) = world.redis.entry(run).and_then(|entry| entry.lease)
            && !holder_is_active(world, run, holder)
        {
            actions.push(Action::LeaseEnds(run));
        }
    }
    for (generation, claim) in (0..).zip(world.redis.claims) {
        if let ClaimState::Held { owner, lapsed: false, .. } = claim
            && !world.callers[usize::from(owner)].is_active()
        {
            actions.push(Action::ClaimLapses(generation));
        }
    }
    match world.canceller {
        Client::Idle => {}
        client if is_waiting(world, client) => {}
        _ => actions.push(Action::GoOnCancelling),
    }
    if world.patcher != Client::Idle {
        actions.push(Action::GoOnIncrementing);
    }
    if world.resetter != Resetter::Idle {
        actions.push(Action::Reset);
    }
}

/// Steps that may happen or not: new work, pauses, crashes and faults.
pub(super) fn possible(model: &TriggerModel, world: &World, actions: &mut Vec<Action>) {
    let left = &world.left;
    for caller in runs(model) {
        let me = world.callers[usize::from(caller)];
        let at = usize::from(caller);
        let alike = at > 0
            && model.callers[at] == model.callers[at - 1]
            && world.callers[at - 1].stage == Stage::Idle;
        if me.stage == Stage::Idle && !alike {
            actions.push(Action::Call(caller, Destination::Ledger));
        }
        if me.is_active() {
            if left.crashes > 0 {
                actions.push(Action::CallerDies(caller));
            }
            if left.failures > 0 && !me.alone {
                let all = [RedisFailure::NotSent, RedisFailure::Lost, RedisFailure::AnswerLost];
                actions.extend(all.map(|failure| Action::Fail(caller, failure)));
            }
        }
        if me.stage == Stage::Idle && left.failures > 0 && !alike {
            actions.push(Action::Fail(caller, RedisFailure::NotSent));
        }
    }
    for (drainer, state) in (0..).zip(world.drainers) {
        if left.crashes > 0 && !matches!(state, Drainer::Absent | Drainer::Idle) {
            actions.push(Action::DrainerDies(drainer));
        }
    }
    if left.crashes > 0 && world.resetter != Resetter::Idle {
        actions.push(Action::ResetterDies);
    }
    for run in runs(model) {
        let placed = world.witness.placed.has(run);
        if placed && left.cancels > 0 && world.canceller == Client::Idle {
            actions.push(Action::Cancel(run));
        }
        if placed && left.increments > 0 && world.patcher == Client::Idle {
            actions.push(Action::Increment(run));
        }
        if placed && left.expiries > 0 && !world.expired.has(run) {
            actions.push(Action::Expire(run));
        }
        if let Some(holder) = world.redis.entry(run).and_then(|entry| entry.lease)
            && left.pauses > 0
            && holder_is_active(world, run, holder)
        {
            actions.push(Action::LeaseEnds(run));
        }
    }
    for (generation, claim) in (0_u8..).zip(world.redis.claims) {
        match claim {
            ClaimState::Held { owner, lapsed: false, .. }
                if left.pauses > 0 && world.callers[usize::from(owner)].is_active() =>
            {
                actions.push(Action::ClaimLapses(generation));
            }
            ClaimState::Done { run } if world.expired.has(run) => {
                actions.push(Action::DoneClaimExpires(generation));
            }
            _ => {}
        }
        let at = usize::from(generation);
        if left.claim_records_end > 0
            && (claim != ClaimState::Free || world.redis.fences[at] != 0 || world.redis.closed[at])
        {
            actions.push(Action::ClaimRecordsEnd(generation));
        }
    }
    if left.resets > 0 && world.resetter == Resetter::Idle {
        actions.push(Action::Reset);
    }
    if left.sweeps > 0 && may_sweep(model, world) {
        actions.push(Action::Sweep);
    }
    if left.losses > 0 && world.redis != Redis::empty() {
        actions.push(Action::Lose);
    }
}

fn call(model: &TriggerModel, caller: u8, stage: Stage, actions: &mut Vec<Action>) {
    let wait = model.callers[usize::from(caller)].wait;
    if stage == Stage::Gate && !wait {
        actions.push(Action::Call(caller, Destination::Buffer));
        if model.gate == Gate::Closed {
            return;
        }
    }
    actions.push(Action::Call(caller, Destination::Ledger));
}

/// Whether a caller does not have to wait.
fn can_continue(world: &World, caller: Caller) -> bool {
    match caller.stage {
        Stage::Wait => {
            let claim = world.redis.claims[usize::from(caller.generation)];
            !matches!(claim, ClaimState::Held { lapsed: false, .. })
        }
        Stage::Lease(run) => world.redis.entry(run).is_none_or(|entry| entry.lease.is_none()),
        _ => true,
    }
}

fn is_waiting(world: &World, client: Client) -> bool {
    let Client::InTransit(run) = client else { return false };
    world.ledger.event(run).is_none() && world.redis.entry(run).is_some()
}

fn lease_any(model: &TriggerModel, world: &World, drainer: u8, actions: &mut Vec<Action>) {
    let free = |run: &u8| world.redis.entry(*run).is_some_and(|entry| entry.lease.is_none());
    actions.extend(runs(model).filter(free).map(|run| Action::Drain(drainer, Some(run))));
}

/// The row of a key without a holder is removed once no claim, entry or process knows an older generation.
fn may_sweep(model: &TriggerModel, world: &World) -> bool {
    let Some(KeyRow { holder, .. }) = world.ledger.row else { return false };
    let free = holder.is_none_or(|holder| world.expired.has(holder));
    let forgotten = world.redis.entries.iter().all(Option::is_none)
        && !world.callers.iter().any(|caller| caller.is_active())
        && world.drainers.iter().all(|drainer| matches!(drainer, Drainer::Idle | Drainer::Absent));
    free && (forgotten || model.broken_by(Mutant::SweepTooEarly))
}

impl Step<'_> {
    /// Takes the action; `None` if it is not possible.
    pub(super) fn take(&mut self, action: Action) -> Option<()> {
        let world = &mut self.world;
        match action {
            Action::Call(caller, place) => self.call(caller, place)?,
            Action::Drain(drainer, run) => self.drain(drainer, run)?,
            Action::Execute(run) => self.execute(run)?,
            Action::Cancel(run) => self.begin_change(ChangeKind::Cancel, run)?,
            Action::GoOnCancelling => self.change(ChangeKind::Cancel)?,
            Action::Increment(run) => self.begin_change(ChangeKind::Increment, run)?,
            Action::GoOnIncrementing => self.change(ChangeKind::Increment)?,
            Action::Reset => self.reset_key()?,
            Action::ClaimLapses(generation) => {
                let ClaimState::Held { owner, lapsed, .. } = world.redis.claim_mut(generation) else {
                    return None;
                };
                *lapsed = true;
                if world.callers[usize::from(*owner)].is_active() {
                    world.left.pauses -= 1;
                }
            }
            Action::LeaseEnds(run) => {
                let holder = world.redis.entry(run)?.lease?;
                if holder_is_active(world, run, holder) {
                    world.left.pauses -= 1;
                }
                world.redis.entry_mut(run).as_mut()?.lease = None;
            }
            Action::Expire(run) => {
                world.left.expiries -= 1;
                world.expired.add(run);
            }
            Action::DoneClaimExpires(generation) => *world.redis.claim_mut(generation) = ClaimState::Free,
            Action::ClaimRecordsEnd(generation) => {
                world.left.claim_records_end -= 1;
                self.end_claim_records(generation);
            }
            Action::Sweep => {
                self.mark(Milestone::Swept);
                self.world.left.sweeps -= 1;
                self.sweep();
                if !self.broken_by(Mutant::SweepTooEarly) {
                    // Claims, fences and closed generations have ended long before.
                    self.world.redis = Redis {
                        entries: self.world.redis.entries,
                        list: self.world.redis.list,
                        part: self.world.redis.part,
                        ..Redis::empty()
                    };
                }
            }
            Action::CallerDies(caller) => {
                world.left.crashes -= 1;
                world.callers[usize::from(caller)].stage = Stage::Gone;
            }
            Action::DrainerDies(drainer) => {
                world.left.crashes -= 1;
                world.drainers[usize::from(drainer)] = Drainer::Idle;
            }
            Action::ResetterDies => {
                world.left.crashes -= 1;
                world.resetter = Resetter::Idle;
            }
            Action::Fail(caller, failure) => {
                world.left.failures -= 1;
                if world.callers[usize::from(caller)].stage == Stage::Idle {
                    self.begin_failed(caller);
                } else {
                    self.fail(caller, failure)?;
                }
            }
            Action::Lose => {
                world.left.losses -= 1;
                for run in 0..u8::try_from(world.redis.entries.len()).unwrap_or(u8::MAX) {
                    if world.redis.entry(run).is_some() && world.ledger.event(run).is_none() {
                        world.witness.lost.add(run);
                    }
                }
                world.redis = Redis::empty();
            }
        }
        Some(())
    }
}
