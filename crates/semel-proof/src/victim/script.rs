//! A script of commands, and the world that results according to the rules alone.
//!
//! Everything follows from a seed, including the clock, so the state of a store after any number of steps is known
//! exactly without reading it.

mod world;

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::outcome::Outcome;
use semel::record::{Begin, Command, Force, Grant, Mode, NewClaim, Owner, Phase, Settlement, Terms};
use semel::store::{EmbeddedStore, Error, MarkId, MarkStore as _, Store as _};
use semel::time::Timestamp;

pub use self::world::World;

/// An action, and its time on the store's clock.
#[derive(Clone, Debug)]
pub struct ScriptStep {
    /// The store's time.
    pub at: Timestamp,
    /// The action.
    pub deed: Deed,
}

/// The action of a step.
#[derive(Clone, Debug)]
pub enum Deed {
    /// A command on a record.
    Apply(KeyId, Command),
    /// Raises a high-water mark.
    Raise(MarkId, u64),
    /// Removes expired records.
    Sweep,
}

/// The limit of a sweep: more than a script has keys.
const SWEEP_LIMIT: usize = 1000;

/// Number of keys in a script: few, so that they reach all states, and fewer than one step of a sweep takes.
const KEYS: u64 = 40;

impl ScriptStep {
    /// Executes the step; the answer can be compared with that of [`World::execute`].
    ///
    /// # Errors
    /// The store's error.
    pub async fn run(&self, store: &EmbeddedStore) -> Result<String, Error> {
        Ok(match &self.deed {
            Deed::Apply(id, command) => format!("{:?}", store.apply(*id, command.clone()).await?),
            Deed::Raise(mark, value) => format!("{:?}", store.raise_mark(*mark, *value).await?),
            Deed::Sweep => format!("{:?}", store.sweep(SWEEP_LIMIT).await?),
        })
    }
}

/// The key that the first two steps of every script finish, and that no other step uses.
pub fn finished_key() -> KeyId {
    KeyId::from_bytes([0xf1; 16])
}

/// A claim of it by another owner: it can only be answered from the record.
pub fn ask_again() -> Command {
    Command::Claim(claim_on_finished(Owner::from_bytes([0xee; 16])))
}

fn claim_on_finished(owner: Owner) -> NewClaim {
    NewClaim {
        owner,
        fingerprint: Fingerprint::from_bytes([1; 32]),
        terms: Arc::new(Terms::default()),
        begin: Begin::WithClaim,
        hint: Hint::new("finished"),
    }
}

/// The first `count` steps of the script that follows from `seed`.
pub fn script(seed: u64, count: usize) -> Vec<ScriptStep> {
    let mut author = Author {
        rng: StdRng::seed_from_u64(seed),
        world: World::default(),
        now: Timestamp::from_micros(1_700_000_000_000_000),
        terms: [Mode::Marked, Mode::Keyed, Mode::Rerun, Mode::Atomic].map(|mode| {
            let terms = Terms {
                mode,
                lease: Duration::from_millis(300),
                in_flight_max: Duration::from_millis(900),
                retention: Duration::from_millis(700),
                grace: Duration::from_millis(50),
                memory: Duration::from_millis(400),
            };
            Arc::new(terms)
        }),
    };
    (0..count).map(|number| author.next(number)).collect()
}

/// Writes a script: mostly picks commands that are valid in the current world.
struct Author {
    rng: StdRng,
    world: World,
    now: Timestamp,
    terms: [Arc<Terms>; 4],
}

impl Author {
    fn next(&mut self, number: usize) -> ScriptStep {
        self.now = self.now.after(Duration::from_micros(self.rng.random_range(200..30_000)));
        let deed = match number {
            0 => {
                Deed::Apply(finished_key(), Command::Claim(claim_on_finished(Owner::from_bytes([0xfe; 16]))))
            }
            1 => self.finish_first(),
            _ => match self.rng.random_range(0..24) {
                0 => Deed::Raise(self.mark(), self.rng.random_range(0..1_000)),
                1 => Deed::Sweep,
                _ => self.command(),
            },
        };
        let step = ScriptStep { at: self.now, deed };
        self.world.execute(&step);
        step
    }

    fn finish_first(&self) -> Deed {
        let record = self.world.record(finished_key()).expect("the first step claims it");
        let command = Command::Complete {
            grant: Grant::from_parts(record.owner, record.fence),
            fingerprint: record.fingerprint,
            outcome: Arc::new(Outcome::new("text", "finished")),
            retention: None,
        };
        Deed::Apply(finished_key(), command)
    }

    fn mark(&mut self) -> MarkId {
        World::marks()[self.rng.random_range(0..World::marks().len())]
    }

    fn command(&mut self) -> Deed {
        let number = self.rng.random_range(0..KEYS);
        let mut bytes = [0; 16];
        // Spread over the table, like hashes.
        bytes[..8].copy_from_slice(&(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        let id = KeyId::from_bytes(bytes);
        let record = self.world.record(id);
        let phase = record.map_or(Phase::Vacant, |record| record.phase(self.now));
        let grant = record.map(|record| Grant::from_parts(record.owner, record.fence));
        let turn = self.rng.random_range(0..10);
        let command = match (phase, grant) {
            (Phase::Claimed, Some(grant)) => match turn {
                0..5 => Command::Begin(grant),
                5..8 => self.complete(grant),
                8 => Command::Release(grant),
                _ => self.claim(number),
            },
            (Phase::Begun, Some(grant)) => match turn {
                0..6 => self.complete(grant),
                6 => Command::Renew(grant),
                7 => Command::Release(grant),
                8 => Command::Bind(grant),
                _ => Command::Abandon(grant),
            },
            (Phase::InDoubt, Some(grant)) => match turn {
                0..3 => self.complete(grant),
                3..6 => Command::Settle(Settlement::Run),
                6..8 => Command::Settle(Settlement::Done(self.outcome())),
                _ => self.claim(number),
            },
            (Phase::Done | Phase::Expired, _) => match turn {
                0..2 => Command::Reexecute,
                2..4 => Command::Forget(Force::No),
                _ => self.claim(number),
            },
            _ => self.claim(number),
        };
        Deed::Apply(id, command)
    }

    fn claim(&mut self, number: u64) -> Command {
        Command::Claim(NewClaim {
            owner: Owner::from_bytes(self.rng.random()),
            fingerprint: Fingerprint::from_bytes([u8::from(self.rng.random_bool(0.05)); 32]),
            terms: Arc::clone(&self.terms[(number % 4) as usize]),
            begin: if self.rng.random_bool(0.6) { Begin::WithClaim } else { Begin::Later },
            hint: Hint::new(&format!("key {number}")),
        })
    }

    fn complete(&mut self, grant: Grant) -> Command {
        Command::Complete {
            grant,
            fingerprint: Fingerprint::from_bytes([0; 32]),
            outcome: self.outcome(),
            retention: None,
        }
    }

    /// Mostly small, some with several pages, a few with many: so the log is checkpointed within one script.
    fn outcome(&mut self) -> Arc<Outcome> {
        let most = match self.rng.random_range(0..10) {
            0 => 120_000,
            1..4 => 6_000,
            _ => 300,
        };
        let size = self.rng.random_range(0..most);
        let body: Vec<u8> = (0..size).map(|_| self.rng.random()).collect();
        Arc::new(Outcome::new("bytes", body))
    }
}
