//! Processes that die on purpose: their jobs and their reports.
//!
//! A test starts `semel-victim` with a [`VictimJob`] and reads [`VictimReport`]s from its standard output, one line each. A line
//! is one write below the size that a pipe accepts atomically, so a report arrives completely or not at all. A
//! reported event did happen; an event without a report may also have happened before the report was written.

pub mod atomic;
pub mod crowd;
pub mod flood;
pub mod ledger;
pub mod life;
mod report;
pub mod script;
pub mod steady;
pub mod witness;

use std::path::PathBuf;
use std::process::ExitCode;

use rustix::process::{Signal, getpid, kill_process, set_parent_process_death_signal};
use semel::store::EmbeddedStore;
use serde::{Deserialize, Serialize};

pub use self::report::{ReportedEnd, VictimReport};

/// The job of a victim.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum VictimJob {
    /// Opens a store and keeps it open until it is killed.
    Hold {
        /// The folder of the store.
        store: PathBuf,
    },
    /// Runs one effect, and dies at the configured point.
    Life(life::VictimLife),
    /// Writes with many callers until it is killed.
    Flood(flood::Flood),
    /// Writes and works on the embedded ledger until it is killed.
    Ledger(ledger::Post),
    /// Executes a script, one step after the other.
    Steady(steady::Steady),
    /// Asks for the same key with many concurrent callers, round by round.
    Crowd(crowd::Crowd),
    /// Calls with many callers, and writes a history, until it is killed or told to end.
    Worker(crate::chaos::worker::ChaosWorker),
    /// Takes single steps.
    Puppet(crate::chaos::puppet::Puppet),
    /// Writes the effects of other processes to a ledger.
    Witness(crate::chaos::witness::WitnessProcess),
    /// Answers requests of gateways, and writes each as an effect to a ledger.
    Upstream(crate::chaos::upstream::WitnessUpstream),
    /// Executes the requests of another process on a store.
    Serve(crate::place::StorePlace),
}

impl VictimJob {
    /// Does the job. Some jobs do not return.
    pub fn run(self) -> ExitCode {
        // A test that is killed must not leave a victim behind.
        set_parent_process_death_signal(Some(Signal::KILL)).expect("a process may name its own last signal");
        match self {
            Self::Hold { store } => match EmbeddedStore::open(&store) {
                Ok(_open) => {
                    VictimReport::Ready.send();
                    rest()
                }
                Err(error) => {
                    VictimReport::not_opened(&error).send();
                    ExitCode::FAILURE
                }
            },
            Self::Life(life) => life.run(),
            Self::Flood(flood) => flood.run(),
            Self::Ledger(post) => post.run(),
            Self::Steady(steady) => steady.run(),
            Self::Crowd(crowd) => crowd.run(),
            Self::Worker(worker) => worker.run(),
            Self::Upstream(upstream) => upstream.run(),
            Self::Puppet(puppet) => puppet.run(),
            Self::Witness(witness) => witness.run(),
            Self::Serve(place) => crate::remote::serve(&place),
        }
    }
}

/// Waits to be killed.
fn rest() -> ! {
    loop {
        std::thread::park();
    }
}

/// Ends this process like a crash: no destructor runs, no buffer is flushed, no other thread continues.
pub fn die() -> ! {
    kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    rest()
}
