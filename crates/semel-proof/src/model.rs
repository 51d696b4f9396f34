//! The claim protocol as a model, over the same transition function that the stores call.
//!
//! A [`ModelState`] holds a real `Option<Record>`; every step that touches the store goes through
//! [`semel::record::apply`]. Around it are workers that obey the protocol, and faults: workers crash at every step,
//! pause for longer than their leases and act late, are cancelled, lose replies, and have old packets delivered
//! again; time passes at any time; operators settle, forget and re-execute; the store loses the record. stateright
//! walks through every interleaving.
//!
//! | file | what |
//! |---|---|
//! | `world` | the state: the record, the workers, and the facts of an omniscient witness |
//! | `canon` | the canonical form of states that differ only in names and in past times |
//! | `store` | a command on the record, with the mutants around the rules and the checks on every transition |
//! | `action`, `step` | the possible actions, and their effects |
//! | `property` | the properties that must always hold, and the states that must be reachable |
//!
//! **Time** is abstract. It does not advance until an action moves it to the end of something. Since that may happen
//! between any two steps, every skew between the clocks of workers and store is covered. Durations are a few
//! microseconds, and the state is relative to the current time, so that it is finite.

mod action;
mod canon;
mod property;
mod step;
mod store;
mod world;

use std::sync::Arc;
use std::time::Duration;

use semel::record::{Mode, Terms};
use stateright::{Model, Property};

pub use self::action::{ModelAction, Packet, PacketOwner};
pub use self::property::name;
pub use self::world::{CallerVerdict, Life, Made, ModelState, ModelWitness, ModelWorker, RecordSlot, Stage};

/// A model to check: the mode, the workers, the faults, and a mutant.
#[derive(Clone, Debug)]
pub struct ProtocolModel {
    /// The mode of every claim.
    pub mode: Mode,
    /// The terms of every claim.
    terms: Arc<Terms>,
    /// The payload of each worker. Two payloads under one key must never get the same outcome.
    pub payloads: Vec<u8>,
    /// How often each event may happen.
    pub budget: ModelBudget,
    /// A fault in rules or workers that some property must catch.
    pub mutant: Option<Mutant>,
    /// Check this property alone: the shortest trace to it is found.
    pub only: Option<&'static str>,
}

/// How often each event may happen in one run. The rest is part of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelBudget {
    /// Claims granted.
    pub grants: u8,
    /// Workers that die, at any step.
    pub crashes: u8,
    /// Callers that are dropped while their effect continues.
    pub cancels: u8,
    /// Handlers that end without knowing the result.
    pub abandons: u8,
    /// Claim packets that are delivered once more, late; also represents lost replies.
    pub late_packets: u8,
    /// How often half a lease passes and the owner may renew.
    pub ticks: u8,
    /// Callers that ask again after a refusal.
    pub asks: u8,
    /// Lives of the key after its first: re-executed, forgotten, or no longer known.
    pub lives: u8,
    /// Fault: the store loses the record and its floor.
    pub losses: u8,
    /// Fault: an operator forgets by force, although a worker may be active.
    pub forced: u8,
    /// Fault: a person settles to run while the owner may still act.
    pub rash_settlements: u8,
    /// Fault: the store's clock goes back by a lease.
    pub clock_steps: u8,
}

/// A deliberate defect. A model that does not detect it proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Writes are accepted from any owner with any fence.
    FenceOff,
    /// Begin is always accepted.
    BeginUnfenced,
    /// Any caller's release deletes the record.
    PlainDelete,
    /// A record that was lost or removed starts with fence 1 again.
    FenceReset,
    /// A dropped caller releases its claim.
    ReleaseOnCancel,
    /// An owner whose complete was refused answers with its own outcome.
    ZombieAnswers,
    /// Settling does not raise the fence.
    SettleKeepsFence,
    /// Begun in `marked` and owner lost: taken over, as in `rerun`.
    TakeoverOfBegun,
    /// A claim takes the key from an owner with a valid lease.
    StealHeld,
    /// Payloads are not compared while a claim is valid or has lapsed.
    ConflictSkippedInFlight,
    /// Payloads are not compared for a stored outcome.
    ConflictSkippedOnReplay,
    /// Release leaves no stub behind.
    StubDropped,
    /// An unknown result counts as if nothing happened.
    AbandonReleases,
    /// The effect starts without waiting for the answer to begin.
    EffectBeforeBegin,
    /// A second complete overwrites the first.
    LastWriterWins,
    /// An expired key runs again although it is still known.
    ExpiredRunsAgain,
    /// Sweeping removes a key in doubt.
    SweepDoubt,
    /// A renewal has no limit.
    RenewForEver,
}

impl ProtocolModel {
    /// A model of `mode` without faults; all workers have one payload, except the last.
    ///
    /// # Panics
    /// If the store may both lose its record and set its clock back: then nothing keeps fences growing, so nothing is
    /// promised, and the model would not show it.
    pub fn new(mode: Mode, workers: usize, budget: ModelBudget) -> Self {
        assert!(budget.losses == 0 || budget.clock_steps == 0, "a lost record and a clock step in one model");
        let payloads = (0..workers).map(|worker| u8::from(workers > 1 && worker + 1 == workers)).collect();
        let terms = Terms {
            mode,
            lease: LEASE,
            in_flight_max: LEASE * 2,
            retention: LEASE * 4,
            grace: LEASE / 2,
            memory: LEASE * 2,
        };
        Self { mode, terms: Arc::new(terms), payloads, budget, mutant: None, only: None }
    }

    /// Adds a mutant.
    #[must_use]
    pub fn with(mut self, mutant: Mutant) -> Self {
        self.mutant = Some(mutant);
        self
    }

    /// Checks only one property.
    #[must_use]
    pub fn only(mut self, name: &'static str) -> Self {
        self.only = Some(name);
        self
    }

    fn broken_by(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

/// The base of all durations: only their order matters.
const LEASE: Duration = Duration::from_micros(10);

impl Model for ProtocolModel {
    type State = ModelState;
    type Action = ModelAction;

    fn init_states(&self) -> Vec<ModelState> {
        vec![ModelState::new(self).canonical()]
    }

    fn actions(&self, world: &ModelState, actions: &mut Vec<ModelAction>) {
        action::possible(self, world, actions);
    }

    fn next_state(&self, world: &ModelState, action: ModelAction) -> Option<ModelState> {
        let next = step::take(self, world, action)?.canonical();
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = property::of(self.mode);
        if self.budget.lives > 0 {
            all.extend(property::of_several_lives());
        }
        if let Some(only) = self.only {
            all.retain(|property| property.name == only);
            assert!(!all.is_empty(), "no property of {:?} is called {only:?}", self.mode);
        }
        all
    }
}
