//! What retries promise, row by row.

mod breaker;
mod budget;
mod delays;
mod hints;
mod running;
mod table;

use std::sync::Arc;
use std::time::Duration;

use super::*;
use semel::time::ManualClock;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Destinations on a clock that the test moves.
fn clocked(limits: Limits) -> (ManualClock, Destinations) {
    let clock = ManualClock::default();
    (clock.clone(), Destinations::with_clock(limits, Arc::new(clock)))
}

fn go(admit: Admit) -> Permit {
    match admit {
        Admit::Go(permit) => permit,
        held => panic!("expected to go: {held:?}"),
    }
}
