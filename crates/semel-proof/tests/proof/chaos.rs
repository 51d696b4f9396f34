//! Chaos: workers on one store are killed and stopped, servers are killed, connections are cut, delayed and held, callers leave. At the end
//! every key is asked again, and the checker compares the history with the ledger of an independent witness.
//!
//! The short form takes a few seconds on each store. `SEMEL_PROVE=1` (`scripts/prove chaos`) takes minutes. A run prints the seed of its
//! faults; `SEMEL_SEED` repeats them.

mod gateways;
#[cfg(feature = "mutants")]
mod mutants;
mod run;
mod serve;

use self::run::{ChaosRun, ChaosServer, Goal};
use crate::crash::{Form, seed};

fn holds(server: ChaosServer, goal: Goal) {
    let seed = seed();
    let verdict = ChaosRun::start(server, seed, None).play(goal);
    println!("{verdict}");
    assert!(verdict.holds(), "SEMEL_SEED={seed}: {verdict}");
    assert!(verdict.calls >= goal.calls && verdict.killed >= goal.kills, "SEMEL_SEED={seed}: {verdict}");
}

#[test]
fn redis() {
    let (calls, kills) = Form::asked().pick((3_000, 8), (2_000_000, 500));
    holds(ChaosServer::redis(), Goal { calls, kills });
}

#[test]
fn postgres() {
    let (calls, kills) = Form::asked().pick((1_500, 6), (500_000, 300));
    holds(ChaosServer::postgres(), Goal { calls, kills });
}
