//! The claim protocol as a model, over the very transition function that the stores call.
//!
//! A [`World`] holds a real `Option<Record>`; every step that touches the store goes through
//! [`semel::record::apply`]. Around it are workers that obey the protocol, and everything that may go wrong: they
//! crash at every step, sleep through their leases and act late, are cancelled, lose replies, have old packets
//! delivered again; time passes at any moment; operators settle, forget and re-execute; the store loses the record.
//! stateright walks through every interleaving.
//!
//! | file | what |
//! |---|---|
//! | `world` | the state: the record, the workers, and what an all-seeing witness knows |
//! | `canon` | states that differ only in names and in times long past are one |
//! | `store` | a command on the record, with the mutants around the rules and the checks on every transition |
//! | `action`, `step` | what can happen, and what it does |
//! | `property` | what must always hold, and what must be reachable so that a pass means something |
//!
//! **Time** is abstract. It stands still until an action moves it to where something ends; since that may happen
//! between any two steps, every skew between the clocks of workers and store is covered. Durations are a few
//! microseconds, and the state is kept relative to the present, so that it is finite.

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

pub use self::action::{Action, Attempt, Packet};
pub use self::property::name;
pub use self::world::{Life, Made, Slot, Stage, Verdict, Witness, Worker, World};

/// A model to check: the mode, who takes part, what may go wrong, and what was broken on purpose.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// The mode of every claim.
    pub mode: Mode,
    /// The terms of every claim.
    terms: Arc<Terms>,
    /// What each worker asks for. Two payloads under one key must never meet.
    pub payloads: Vec<u8>,
    /// How often each thing may happen.
    pub budget: Budget,
    /// A fault in rules or workers that some property must catch.
    pub mutant: Option<Mutant>,
    /// Check this property alone: the shortest trace to it is found.
    pub only: Option<&'static str>,
}

/// How often each thing may happen in one run. What is left is part of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Budget {
    /// Claims granted.
    pub grants: u8,
    /// Workers that die, at any step.
    pub crashes: u8,
    /// Callers that go away while their effect goes on.
    pub cancels: u8,
    /// Handlers that give up without knowing.
    pub abandons: u8,
    /// Claim packets delivered once more, late; also stands for lost replies.
    pub late_packets: u8,
    /// Times half a lease passes and the owner may renew.
    pub ticks: u8,
    /// Callers that ask again after they were told no.
    pub asks: u8,
    /// Lives of the key after its first: re-executed, forgotten, or its memory has ended.
    pub lives: u8,
    /// Fault: the store loses the record and its floor.
    pub losses: u8,
    /// Fault: an operator forgets by force, whoever may be at work.
    pub forced: u8,
    /// Fault: a person settles to run while the owner may still act.
    pub rash_settlements: u8,
    /// Fault: the store's clock steps back by a lease.
    pub clock_steps: u8,
}

/// Something broken on purpose. A model that does not notice proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Writes are taken from any owner with any fence.
    FenceOff,
    /// Begin says yes to everybody.
    BeginUnfenced,
    /// Release deletes the record, whoever asks.
    PlainDelete,
    /// A record that was lost or removed starts with fence 1 again.
    FenceReset,
    /// A caller that goes away releases its claim.
    ReleaseOnCancel,
    /// An owner whose complete was refused answers with its own outcome.
    ZombieAnswers,
    /// Settling leaves the fence as it was.
    SettleKeepsFence,
    /// Begun in `marked` and owner lost: taken over, as in `rerun`.
    TakeoverOfBegun,
    /// A claim takes the key from an owner whose lease still stands.
    StealHeld,
    /// Payloads are not compared while a claim stands or has lapsed.
    ConflictSkippedInFlight,
    /// Payloads are not compared on replay.
    ConflictSkippedOnReplay,
    /// Release leaves no stub behind.
    StubDropped,
    /// Giving up without knowing counts as nothing happened.
    AbandonReleases,
    /// The effect starts without waiting for the answer to begin.
    EffectBeforeBegin,
    /// A second complete overwrites the first.
    LastWriterWins,
    /// An expired key runs again though it is still remembered.
    ExpiredRunsAgain,
    /// Sweeping takes what is in doubt.
    SweepDoubt,
    /// A renewal knows no limit.
    RenewForEver,
}

impl Protocol {
    /// A model of `mode` without faults; workers ask for one payload, the last of them for another.
    ///
    /// # Panics
    /// If the store may both lose its record and step its clock back: nothing is left then that keeps fences
    /// growing, so nothing is promised, and the model would not show it.
    pub fn new(mode: Mode, workers: usize, budget: Budget) -> Self {
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

    /// The same model, broken.
    #[must_use]
    pub fn with(mut self, mutant: Mutant) -> Self {
        self.mutant = Some(mutant);
        self
    }

    /// The same model with one property to check.
    #[must_use]
    pub fn only(mut self, name: &'static str) -> Self {
        self.only = Some(name);
        self
    }

    fn broken_by(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

/// All durations are made of this one: only their order matters.
const LEASE: Duration = Duration::from_micros(10);

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self).canonical()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        action::possible(self, world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
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
