//! The drainer moves buffered runs into the ledger. It is fair to tenants and loses no run.
//!
//! It takes the tenant that has waited longest, leases some of its runs, and moves them with
//! `transfer`.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use semel_pipeline::ledger::Ledger;
use tokio::sync::watch;

use crate::buffer::Buffer;
pub use crate::transfer::{DrainCounters, DrainError};
use crate::transfer::{PAUSES, Transfer, count};

/// The speed of a drainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainPace {
    /// The most runs in one turn.
    pub batch: u32,
    /// How long a lease is valid without a renewal. Renewed at a third of it.
    pub lease: Duration,
    /// The number of refusals by the ledger after which a run becomes a dead letter.
    pub max_attempts: u32,
    /// The pause when nothing is buffered.
    pub idle: Duration,
    /// The pause after every turn, to spare the ledger; zero for none.
    pub rest: Duration,
}

impl Default for DrainPace {
    fn default() -> Self {
        Self {
            batch: 100,
            lease: Duration::from_secs(30),
            max_attempts: 5,
            idle: Duration::from_millis(50),
            rest: Duration::ZERO,
        }
    }
}

/// Moves buffered runs into the ledger. Any number of drainers may run, in any number of processes.
#[derive(Debug)]
pub struct Drainer {
    transfer: Transfer,
    pace: DrainPace,
    counters: Arc<DrainCounters>,
    failures: usize,
    /// True if the failure was logged, and its end is to be.
    is_logged: bool,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainTurn {
    /// Nothing is buffered, or nothing is due yet.
    Idle,
    /// Runs were moved, or became dead letters.
    Moved(usize),
}

impl Drainer {
    /// A drainer from `buffer` into `ledger`.
    pub fn new(
        buffer: Arc<Buffer>,
        ledger: Arc<dyn Ledger>,
        pace: DrainPace,
        counters: Arc<DrainCounters>,
    ) -> Self {
        let transfer = Transfer::new(buffer, ledger, (pace.lease, pace.max_attempts), Arc::clone(&counters));
        Self { transfer, pace, counters, failures: 0, is_logged: false }
    }

    /// Drains until `stop` turns true. A turn that has begun is finished.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut idle_turns = 0;
        while !*stop.borrow() {
            let pause = match self.turn().await {
                Ok(DrainTurn::Moved(_)) => {
                    self.recovered();
                    idle_turns = 0;
                    self.pace.rest
                }
                Ok(DrainTurn::Idle) => {
                    self.recovered();
                    idle_turns += 1;
                    self.pace.idle
                }
                Err(error) => self.failed(&error),
            };
            // Several tenants may wait for their delays: check each before pausing.
            if pause.is_zero() || (idle_turns > 0 && idle_turns % 8 != 0 && pause == self.pace.idle) {
                tokio::task::yield_now().await;
                continue;
            }
            let stopped = async { drop(stop.wait_for(|stop| *stop).await) };
            tokio::select! { () = stopped => {}, () = tokio::time::sleep(pause) => {} }
        }
    }

    /// One tenant's turn.
    ///
    /// # Errors
    /// The buffer or the ledger failed. Leased runs are given back, or their leases expire.
    pub async fn turn(&self) -> Result<DrainTurn, DrainError> {
        let buffer = self.transfer.buffer();
        let Some((tenant, announced)) = buffer.next_tenant().await? else { return Ok(DrainTurn::Idle) };
        let leased = buffer.lease((&tenant, announced), self.pace.batch, self.pace.lease).await?;
        count(&self.counters.reclaimed, leased.reclaimed);
        if leased.runs.is_empty() {
            return Ok(DrainTurn::Idle);
        }
        count(&self.counters.turns, 1);
        let pause = PAUSES[self.failures.min(PAUSES.len() - 1)];
        self.transfer.move_leased(&leased, pause).await?;
        Ok(DrainTurn::Moved(leased.runs.len()))
    }

    /// Logs that a turn failed, once until it succeeds again, and returns how long to wait. An outage is logged by its
    /// store.
    fn failed(&mut self, error: &DrainError) -> Duration {
        count(&self.counters.failures, 1);
        if self.is_logged || error.is_logged() {
            tracing::debug!(target: "semel", %error, "draining failed; nothing is lost, retrying");
        } else {
            tracing::warn!(target: "semel", %error, "draining failed; nothing is lost, retrying");
            self.is_logged = true;
        }
        let pause = PAUSES[self.failures.min(PAUSES.len() - 1)];
        self.failures += 1;
        pause + pause.mul_f64(rand::rng().random_range(0.0..0.5))
    }

    fn recovered(&mut self) {
        self.failures = 0;
        if std::mem::take(&mut self.is_logged) {
            tracing::info!(target: "semel", "draining works again");
        }
    }
}
