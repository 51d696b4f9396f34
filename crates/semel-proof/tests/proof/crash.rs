//! Processes that die, freeze or have a failing disk below them, over the embedded store.
//!
//! Every test has a short form, for each run of the test command, and a full one with `SEMEL_PROVE=1`
//! (`scripts/prove`). A test that draws lots prints its seed when it fails; `SEMEL_SEED` repeats it.

mod atomic;
mod disk;
mod freeze;
pub(crate) mod kill_nine;
mod ledger;
mod memory_group;
mod nth_fault;
mod openers;
mod points;
mod power_cut;
mod shim;
pub(crate) mod supervisor;

use std::time::Duration;

use tempfile::TempDir;

/// Longer than anything here takes on a busy machine, short enough to say what hung.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Short,
    Full,
}

impl Form {
    pub(crate) fn asked() -> Self {
        if std::env::var_os("SEMEL_PROVE").is_some_and(|value| value != "0") {
            Self::Full
        } else {
            Self::Short
        }
    }

    pub(crate) fn pick<T>(self, short: T, full: T) -> T {
        match self {
            Self::Short => short,
            Self::Full => full,
        }
    }
}

/// The seed of this run: given, or new every time. Printed, so that a failure shows it.
pub(crate) fn seed() -> u64 {
    let seed = match std::env::var("SEMEL_SEED") {
        Ok(text) => text.parse().expect("SEMEL_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("SEMEL_SEED={seed}");
    seed
}

/// A folder that is gone after the test.
pub(crate) fn folder() -> TempDir {
    tempfile::Builder::new().prefix("semel-proof-").tempdir().expect("a folder for the test")
}

/// The same, in memory where there is such a place: for tests whose disk is simulated anyway.
fn fast_folder() -> TempDir {
    let memory = tempfile::Builder::new().prefix("semel-proof-").tempdir_in("/dev/shm");
    memory.unwrap_or_else(|_| folder())
}

/// Drives a future where nothing else runs.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be started").block_on(future)
}
