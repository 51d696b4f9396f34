//! One caller that executes a script and reports every answer; the disk may fail.

use std::path::PathBuf;
use std::process::ExitCode;

use semel::store::{EmbeddedStore, Error, ErrorKind, Store as _};
use semel::time::ManualClock;
use serde::{Deserialize, Serialize};

use super::VictimReport;
use super::script::{ScriptStep, ask_again, finished_key, script};

/// The script, and what to do when the disk is full.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Steady {
    /// The folder of the store.
    pub store: PathBuf,
    /// The seed of the script.
    pub seed: u64,
    /// How many steps of it.
    pub steps: usize,
    /// Before which step the store is closed and opened again; not once it is poisoned, which only a restart ends.
    pub reopen_at: Option<usize>,
    /// What to do when the disk is full.
    pub when_full: WhenFull,
}

/// What to do when the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhenFull {
    /// Report it and continue with the next step.
    GoOn,
    /// Read a finished key, then retry until there is space.
    Insist,
}

/// How often a step is tried while the disk is full.
const TRIES: usize = 500;

impl Steady {
    pub(super) fn run(self) -> ExitCode {
        let runtime =
            tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be started");
        match runtime.block_on(self.execute()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                VictimReport::not_opened(&error).send();
                ExitCode::FAILURE
            }
        }
    }

    async fn execute(&self) -> Result<(), Error> {
        let clock = ManualClock::default();
        let mut store = self.open(&clock)?;
        VictimReport::Ready.send();
        let mut health = StoreHealth::Sound;
        for (number, step) in script(self.seed, self.steps).iter().enumerate() {
            clock.set(step.at);
            if self.reopen_at == Some(number) && health == StoreHealth::Sound {
                drop(store);
                store = self.open(&clock)?;
                VictimReport::Ready.send();
            }
            if self.execute_step(&store, number, step).await == StoreHealth::Poisoned {
                health = StoreHealth::Poisoned;
            }
        }
        Ok(())
    }

    fn open(&self, clock: &ManualClock) -> Result<EmbeddedStore, Error> {
        let open = || EmbeddedStore::builder(&self.store).clock(clock.clone()).open();
        let mut opened = open();
        if self.when_full == WhenFull::Insist {
            for _ in 0..TRIES {
                if opened.is_ok() {
                    break;
                }
                opened = open();
            }
        }
        opened
    }

    async fn execute_step(&self, store: &EmbeddedStore, number: usize, step: &ScriptStep) -> StoreHealth {
        for _ in 0..TRIES {
            let error = match step.run(store).await {
                Ok(answer) => {
                    VictimReport::Answered { step: number, answer }.send();
                    return StoreHealth::Sound;
                }
                Err(error) => error,
            };
            VictimReport::Refused { step: number, kind: format!("{:?}", error.kind()) }.send();
            match error.kind() {
                ErrorKind::Poisoned | ErrorKind::Ambiguous => return StoreHealth::Poisoned,
                ErrorKind::Full if self.when_full == WhenFull::Insist => {}
                _ => return StoreHealth::Sound,
            }
            // There is a stored outcome from the third step on.
            if number >= 2 {
                let answer = format!("{:?}", store.apply(finished_key(), ask_again()).await);
                VictimReport::Replayed { answer }.send();
            }
        }
        StoreHealth::Sound
    }
}

/// Whether the store still acknowledges.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreHealth {
    Sound,
    Poisoned,
}
