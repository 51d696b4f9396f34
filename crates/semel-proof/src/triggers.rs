//! Triggers as a model: claim, gate, buffer, drainer, promotion, cancel, reset, lifetime, and a Redis that fails or loses
//! everything.
//!
//! A step is one command to Redis or one transaction of the ledger. Every process may pause for any time, or die, between
//! two steps. stateright walks through every interleaving of the steps.
//!
//! | file | contents |
//! |---|---|
//! | `state` | the ledger, Redis, and the next command of each participant |
//! | `ledger` | the transactions of the ledger |
//! | `redis` | the commands on claims, buffer and list of tenants |
//! | `caller` | a trigger, with and without `?wait=true` |
//! | `drainer` | the way out of the buffer |
//! | `client` | cancel, increment and reset |
//! | `action` | the steps that are possible in a state |
//! | `property` | the properties |
//!
//! # Abstractions
//!
//! - There is one key, one tenant and one target.
//! - A claim is free, held, given back or resolved. [`crate::model`] checks the rules of claims.
//! - An owner that starts again gives its claim back in the same step. Other processes cannot tell that from an owner that
//!   does so a moment later.
//! - The gate has no state: it decides either way each time.
//! - All clocks agree about the end of a lifetime.
//! - Redis loses all its data or none.
//! - Entries that cannot be decoded and reschedules are left out. The first become dead letters without a key, the second
//!   have the rules of a cancellation.
//!
//! # Final states
//!
//! A state is final when no process that has begun has a command left to send, no delivery is queued, and no lease of
//! a dead process is left to expire. Faults and new callers may still come, but need not: a run that has not ended by
//! then never ends.

mod action;
mod caller;
mod client;
mod drainer;
mod ledger;
mod property;
mod redis;
mod state;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use stateright::{Model, Property};

pub use self::action::{GateOutcome, RedisFailure, TriggerAction};
pub use self::property::name;
pub use self::state::{
    BufferedEntry, CallerStage, CallerState, ClaimAnswer, ClaimState, ClientStep, DrainerStep, KeyRow,
    LeaseHolder, LeasedRunState, LedgerRun, LedgerState, LookReason, ModelDelivery, RedisState, Resetter,
    RunSet, TenantPart, TriggerRule, TriggerState, TriggerWitness,
};

/// A model to check: its participants, its faults, and possibly a mutant.
#[derive(Clone, Debug)]
pub struct TriggerModel {
    /// The callers. Callers of one kind are interchangeable, so they begin in this order.
    pub callers: Vec<ModelTrigger>,
    /// Number of drainers.
    pub drainers: usize,
    /// Whether drainers find the tenant through the list of tenants.
    pub listed: bool,
    /// Decisions that the gate can take.
    pub gate: GateChoices,
    /// How often each event may happen.
    pub budget: TriggerBudget,
    /// A step that is broken on purpose.
    pub mutant: Option<TriggerMutant>,
    /// Check this property alone, to find the shortest trace to it.
    pub only: Option<&'static str>,
    /// Milestones that were reached, as bits.
    reached: Arc<AtomicU32>,
}

/// A trigger of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelTrigger {
    /// The payload.
    pub payload: u8,
    /// Whether the caller waits for the run (`?wait=true`).
    pub wait: bool,
    /// Whether it has the key. A trigger without a key needs no claim.
    pub keyed: bool,
}

/// Decisions that the gate can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateChoices {
    /// Buffer or ledger, each time.
    Any,
    /// Always the buffer.
    Closed,
}

/// How often each event may happen. The rest is part of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TriggerBudget {
    /// Processes that die, at any step.
    pub crashes: u8,
    /// Leases that expire while their owner is only paused. The lease of a dead owner always expires.
    pub pauses: u8,
    /// Resets of the key.
    pub resets: u8,
    /// Cancellations.
    pub cancels: u8,
    /// Increments of metadata.
    pub increments: u8,
    /// Runs whose lifetime ends.
    pub expiries: u8,
    /// Fault: Redis commands of callers that fail.
    pub failures: u8,
    /// Fault: Redis loses all its data.
    pub losses: u8,
    /// Times the ledger removes the row of a key without a holder.
    pub sweeps: u8,
    /// Times more time passes than a claim can last.
    pub claim_records_end: u8,
}

/// A step that is broken on purpose. A model that does not notice it proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerMutant {
    /// A cancellation is acknowledged, the run is accepted as live, and it is cancelled afterwards.
    CancelAfterAccept,
    /// `?wait=true` writes to the ledger without a claim and a reservation.
    WaitWithoutClaim,
    /// `?wait=true` is answered while its run is still in the buffer.
    WaitNotPromoted,
    /// Promotion reads the run, writes it to the ledger as live, and removes it, without a lease.
    PromoteWithoutLease,
    /// A buffered run is inserted although its id is already in the ledger.
    AcceptIgnoresId,
    /// A run that lost its key becomes an alias of the winner.
    CollisionAliases,
    /// As `CollisionAliases`, and its increments overwrite those of the winner.
    CollisionOverwrites,
    /// Payloads are not compared.
    PayloadNotCompared,
    /// A drained run of an older generation is treated like one of the current generation.
    DrainIgnoresGeneration,
    /// The lifetime of a buffered run starts again when it is drained.
    LifetimeFromDrain,
    /// The buffer frees the key of an expired run and the generation stays as it is.
    BufferFreesExpiredKey,
    /// A direct write that meets an expired holder answers with it.
    AcceptAnswersExpired,
    /// A run leaves the buffer, and puts of callers that read the ledger before are accepted.
    AckLeavesNoNote,
    /// The same for a run that was written directly.
    WriteLeavesNoNote,
    /// A reset frees the key in ledger, buffer and claim, and the generation stays as it is.
    ResetWithoutGeneration,
    /// A reset leaves the old generation open in the buffer.
    ResetLeavesGenerationOpen,
    /// A drainer takes the tenant out of the list though it was announced again.
    LeaveWithoutComparison,
    /// The tenant is announced after the put.
    AnnounceAfterPut,
    /// A put for a tenant that is not listed carries the number of its announcement instead of the token of the refusal.
    NumberInsteadOfToken,
    /// Numbers of announcements start again after Redis lost its data.
    NumbersStartAgain,
    /// A caller whose rounds are exhausted writes to the ledger without a claim and a reservation.
    RoundsBypassClaim,
    /// The first winner of a claim does not read the ledger.
    WinnerSkipsLedger,
    /// Changes are applied without looking at their numbers.
    ChangesNotNumbered,
    /// A drainer that knows fewer changes sets the number back.
    NumberSetBack,
    /// A direct write with an old generation is accepted.
    StaleWriteAccepted,
    /// A put does not look at notes.
    PutIgnoresNotes,
    /// A put is accepted however long ago its caller read the ledger.
    LatePutAccepted,
    /// A direct write looks into the buffer and reserves nothing.
    NoReservation,
    /// A reservation ends with the claim, while its owner may still write to the ledger.
    ReservationEndsWithClaim,
    /// A direct write is not preceded by a look into the buffer.
    DirectWriteSkipsBuffer,
    /// A run that lost its key is looked for in the ledger first, then in the buffer.
    LedgerBeforeBuffer,
    /// The ledger removes the row of a key while Redis still knows older generations.
    SweepTooEarly,
    /// A caller whose put was not confirmed does not look for its run under the generation of that put.
    UnconfirmedForgotten,
}

/// An interesting situation. A configuration that never reaches it proves little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// A claim was taken over.
    TakenOver,
    /// A put was refused because its key is reserved.
    Reserved,
    /// A put was refused because the ledger has changed since its caller read it.
    Outdated,
    /// A put met a run of its key.
    Duplicate,
    /// A direct write was refused because of its generation.
    StaleWrite,
    /// A drained run of an older generation was accepted without the key.
    OlderGeneration,
    /// A drained run had lost its key.
    LostKey,
    /// A caller was answered with a run that had lost its key.
    LostKeyFound,
    /// A drainer wrote a run that was already in the ledger.
    AcceptedTwice,
    /// A change came while the run was leased.
    ChangedInTransit,
    /// A buffered run was cancelled.
    CancelledInBuffer,
    /// A cancellation had to wait until the run was in the ledger.
    CancelWaited,
    /// A buffered run was promoted.
    Promoted,
    /// A promotion had to wait for a drainer.
    PromotionWaited,
    /// A generation ended by expiry.
    Expired,
    /// A put was refused because the tenant was not announced.
    NotListed,
    /// The tenant was taken out of the list.
    Left,
    /// The tenant stayed in the list because it was announced meanwhile.
    Stayed,
    /// A caller without Redis wrote its run to the ledger.
    Alone,
    /// A caller was answered with a conflict.
    Conflict,
    /// The row of the key was removed.
    Swept,
    /// A put was refused because its caller read the ledger too long ago.
    PutTooLate,
    /// A caller found the run of a put that Redis did not confirm under an ended generation.
    UnconfirmedFound,
}

impl TriggerModel {
    /// A model with these callers, and one drainer.
    pub fn new(callers: &[ModelTrigger], budget: TriggerBudget) -> Self {
        assert!(callers.len() <= state::RUNS, "more callers than runs");
        Self {
            callers: callers.to_vec(),
            drainers: 1,
            listed: false,
            gate: GateChoices::Any,
            budget,
            mutant: None,
            only: None,
            reached: Arc::default(),
        }
    }

    /// The same model with a mutant.
    #[must_use]
    pub fn with(mut self, mutant: TriggerMutant) -> Self {
        self.mutant = Some(mutant);
        self
    }

    /// The same model with only one property.
    #[must_use]
    pub fn only(mut self, name: &'static str) -> Self {
        self.only = Some(name);
        self
    }

    /// The same model with this many drainers.
    #[must_use]
    pub fn drainers(mut self, drainers: usize) -> Self {
        assert!(drainers <= state::DRAINERS, "more drainers than there is room for");
        self.drainers = drainers;
        self
    }

    /// The same model with a list of tenants.
    #[must_use]
    pub fn listed(mut self) -> Self {
        self.listed = true;
        self
    }

    /// The same model with a gate that sends every trigger into the buffer.
    #[must_use]
    pub fn gate_closed(mut self) -> Self {
        self.gate = GateChoices::Closed;
        self
    }

    /// Whether the milestone was reached.
    pub fn reached(&self, milestone: Milestone) -> bool {
        self.reached.load(Ordering::Relaxed) & (1 << milestone as u32) != 0
    }

    /// Whether a run has the key.
    pub fn is_keyed(&self, run: u8) -> bool {
        self.callers[usize::from(run)].keyed
    }

    /// Whether Redis failed a caller or lost its data on the way to this state.
    pub fn redis_failed(&self, state: &TriggerState) -> bool {
        (state.left.failures, state.left.losses) != (self.budget.failures, self.budget.losses)
    }

    fn broken_by(&self, mutant: TriggerMutant) -> bool {
        self.mutant == Some(mutant)
    }
}

/// One step: the state that it changes, and the model it belongs to.
struct ModelStep<'a> {
    model: &'a TriggerModel,
    state: TriggerState,
}

impl ModelStep<'_> {
    fn reach(&self, milestone: Milestone) {
        self.model.reached.fetch_or(1 << milestone as u32, Ordering::Relaxed);
    }

    fn broken_by(&self, mutant: TriggerMutant) -> bool {
        self.model.broken_by(mutant)
    }

    fn payload(&self, run: u8) -> u8 {
        self.model.callers[usize::from(run)].payload
    }

    fn waits(&self, caller: u8) -> bool {
        self.model.callers[usize::from(caller)].wait
    }
}

impl Model for TriggerModel {
    type State = TriggerState;
    type Action = TriggerAction;

    fn init_states(&self) -> Vec<TriggerState> {
        vec![TriggerState::new(self).canonical()]
    }

    fn actions(&self, state: &TriggerState, actions: &mut Vec<TriggerAction>) {
        action::list_certain(self, state, actions);
        action::list_possible(self, state, actions);
    }

    fn next_state(&self, state: &TriggerState, action: TriggerAction) -> Option<TriggerState> {
        let mut step = ModelStep { model: self, state: state.clone() };
        step.apply(action)?;
        let next = step.state.canonical();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = property::all();
        if self.only == Some(name::ONE_ID_WITHOUT_REDIS) {
            all.extend(property::not_promised());
        }
        if let Some(only) = self.only {
            all.retain(|property| property.name == only);
            assert!(!all.is_empty(), "no property is called {only:?}");
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn successors(model: &TriggerModel, state: &TriggerState) -> HashSet<TriggerState> {
        let mut actions = Vec::new();
        model.actions(state, &mut actions);
        let next = actions.into_iter().filter_map(|action| {
            let mut step = ModelStep { model, state: state.clone() };
            step.apply(action).map(|()| step.state.canonical())
        });
        next.collect()
    }

    // A state and its canonical form must have the same future, or the checker would skip states that it never saw.
    #[test]
    fn model_canonical_form_has_the_same_future() {
        let budget = TriggerBudget {
            crashes: 3,
            pauses: 4,
            resets: 1,
            cancels: 2,
            increments: 3,
            expiries: 2,
            failures: 1,
            losses: 1,
            sweeps: 0,
            claim_records_end: 1,
        };
        let caller = ModelTrigger { payload: 0, wait: false, keyed: true };
        let mut random = 1_u64;
        let mut compared = 0;
        for walk in 0..300 {
            let second = ModelTrigger { wait: walk % 2 == 0, ..caller };
            let third = ModelTrigger { payload: 1, keyed: walk % 3 != 0, ..caller };
            let model = TriggerModel::new(&[caller, second, third], budget).drainers(2);
            let model = if walk % 4 < 2 { model.listed() } else { model };
            // Never made canonical: fences and numbers grow.
            let mut state = TriggerState::new(&model);
            for _ in 0..50 {
                let canonical = state.clone().canonical();
                assert_eq!(canonical, canonical.clone().canonical());
                assert_eq!(successors(&model, &state), successors(&model, &canonical), "{state:#?}");
                compared += 1;
                let mut actions = Vec::new();
                model.actions(&state, &mut actions);
                if actions.is_empty() {
                    break;
                }
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let choice = usize::try_from(random >> 33).unwrap() % actions.len();
                let mut step = ModelStep { model: &model, state: state.clone() };
                if step.apply(actions[choice]).is_some() {
                    state = step.state;
                }
            }
        }
        assert!(compared > 5_000, "{compared} states are too few");
    }
}
