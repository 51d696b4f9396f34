//! The only way out of the buffer: a leased run is written to the ledger with all its changes, and then leaves the
//! buffer.
//!
//! ```text
//!   lease ──► ledger: run, changes and their number in one transaction ──► acknowledge ──► gone
//!                       ▲                                                      │
//!                       └──────────── it was changed meanwhile ────────────────┘
//! ```
//!
//! A process that dies in between leaves a lease that expires. The next one writes the same run again, under the same
//! id: the ledger recognises it, and applies only the changes that it does not have. A slow process does no harm
//! either, because the ledger decides, not the lease.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel::mutant::{self, Mutant};
use semel::store;
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::event::NewEvent;
use semel_pipeline::id::{EventId, LetterId};
use semel_pipeline::ledger::{self, Arrival, Drained, DrainedRun, Ledger, Patch, RunAction};
use semel_pipeline::letter::{Cause, NewLetter, SourceMessage};

use crate::buffer::{AckOutcome, Buffer, BufferedRun, LeaseOneOutcome, LeasedRun, RunLease, UnreadableRun};

/// Pauses while the ledger or Redis fails, and before a refused run is retried.
pub(crate) const PAUSES: [Duration; 6] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// Counters of runs that leave the buffer.
#[derive(Debug, Default)]
pub struct DrainCounters {
    /// Turns of drainers that moved a run.
    pub turns: AtomicU64,
    /// Runs moved into the ledger.
    pub drained: AtomicU64,
    /// Runs that became dead letters because another run had their key.
    pub collided: AtomicU64,
    /// Runs that became dead letters because they cannot be read, or because the ledger refuses them.
    pub dead: AtomicU64,
    /// Runs that were given back, to be retried.
    pub given_back: AtomicU64,
    /// Expired leases of dead drainers.
    pub reclaimed: AtomicU64,
    /// Changes that could not be applied.
    pub refused_changes: AtomicU64,
    /// Failed calls to Redis or the ledger.
    pub failures: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// A run could not be moved: nothing was lost, and the attempt does not count.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// Redis did not answer.
    #[error("the buffer: {0}")]
    Buffer(#[from] store::Error),
    /// The ledger did not accept it.
    #[error("the ledger: {0}")]
    Ledger(#[from] ledger::Error),
}

impl DrainError {
    /// True if the cause is logged: an outage of Redis or of the ledger's database.
    pub fn is_logged(&self) -> bool {
        match self {
            Self::Buffer(error) => error.is_logged(),
            Self::Ledger(error) => error.is_logged(),
        }
    }
}

/// The result of moving one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It is in the ledger.
    Arrived,
    /// A drainer has leased it: it will be in the ledger in a moment.
    Held,
    /// It is not in the buffer.
    Missing,
}

/// Moves runs from a buffer into a ledger.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    buffer: Arc<Buffer>,
    ledger: Arc<dyn Ledger>,
    /// How long a lease is valid without a renewal.
    lease: Duration,
    /// The number of refusals by the ledger after which a run becomes a dead letter.
    max_attempts: u32,
    counters: Arc<DrainCounters>,
}

impl Transfer {
    /// Moves runs from `buffer` into `ledger`.
    pub(crate) fn new(
        buffer: Arc<Buffer>,
        ledger: Arc<dyn Ledger>,
        (lease, max_attempts): (Duration, u32),
        counters: Arc<DrainCounters>,
    ) -> Self {
        Self { buffer, ledger, lease, max_attempts, counters }
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Moves one run now, even before it is due, and applies an action to it in the same transaction.
    ///
    /// # Errors
    /// The move failed: the run stays in the buffer unchanged, unless the ledger's answer was lost.
    pub(crate) async fn move_one(
        &self,
        tenant: &str,
        id: EventId,
        then: Option<RunAction>,
    ) -> Result<Moved, DrainError> {
        let leased = match self.buffer.lease_one(tenant, id, self.lease).await? {
            LeaseOneOutcome::Leased(leased) => leased,
            LeaseOneOutcome::Held => return Ok(Moved::Held),
            LeaseOneOutcome::Missing => return Ok(Moved::Missing),
        };
        let moved = self.while_leased(&leased, async {
            let [run] = &leased.runs[..] else { return Ok(()) };
            match &run.run {
                Ok(buffered) => {
                    let drained = self.ledger.drain(vec![drained_run(buffered, then)]).await?;
                    self.record_arrival(&buffered.run, drained.first());
                    // The run has arrived and the action is done: a caller that got an error would repeat it. If this
                    // fails, the next drainer finds the run in the ledger.
                    if let Err(error) = self.remove_arrived(&leased, &[(run, buffered)]).await {
                        tracing::debug!(target: "semel", run_id = %run.id, %error, "a run that is in the ledger has not left the buffer yet");
                        self.give_back(&leased, Duration::ZERO).await;
                    }
                    Ok(())
                }
                // It stays in the buffer, for a version that reads it.
                Err(UnreadableRun { newer_format: Some(_), why, .. }) => {
                    Err(DrainError::Buffer(store::Error::new(store::ErrorKind::Incompatible, why.clone())))
                }
                Err(unreadable) => self.handle_unreadable(&leased, run.id, unreadable).await,
            }
        });
        match Box::pin(moved).await {
            Ok(()) => Ok(Moved::Arrived),
            Err(error) => {
                self.give_back(&leased, Duration::ZERO).await;
                Err(error)
            }
        }
    }

    /// Moves leased runs. If that fails, they are given back for the time of a pause.
    pub(crate) async fn move_leased(&self, leased: &RunLease, pause: Duration) -> Result<(), DrainError> {
        let moved = Box::pin(self.while_leased(leased, self.drain(leased))).await;
        if moved.is_err() {
            self.give_back(leased, pause).await;
        }
        moved
    }

    /// Renews leases while `work` runs.
    async fn while_leased<T>(&self, leased: &RunLease, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            never = self.renew(leased) => match never {},
        }
    }

    async fn renew(&self, leased: &RunLease) -> Infallible {
        let held = leased.proof();
        let ids: Vec<EventId> = leased.runs.iter().map(|run| run.id).collect();
        loop {
            tokio::time::sleep(self.lease / 3).await;
            // An expired lease does no harm: the run is drained again, and the ledger recognises it.
            if let Err(error) = self.buffer.renew(held, &ids, self.lease).await {
                tracing::debug!(target: "semel", %error, "the leases of buffered runs were not renewed");
            }
        }
    }

    /// Gives back the leased runs. Attempts do not count: the runs did not cause the failure.
    async fn give_back(&self, leased: &RunLease, pause: Duration) {
        let held = leased.proof();
        for run in &leased.runs {
            match self.buffer.give_back(held, run.id, pause, false).await {
                Ok(true) => count(&self.counters.given_back, 1),
                Ok(false) => {}
                // Their leases expire.
                Err(_) => return,
            }
        }
    }

    async fn drain(&self, leased: &RunLease) -> Result<(), DrainError> {
        let mut readable: Vec<(&LeasedRun, &BufferedRun)> = Vec::with_capacity(leased.runs.len());
        for run in &leased.runs {
            match &run.run {
                Ok(buffered) => readable.push((run, buffered)),
                Err(unreadable) => self.handle_unreadable(leased, run.id, unreadable).await?,
            }
        }
        if mutant::is(Mutant::AckBeforeLedger) {
            self.remove_arrived(leased, &readable).await?;
        }
        let arrived = self.write_to_ledger(leased, readable).await?;
        self.remove_arrived(leased, &arrived).await
    }

    /// Writes runs to the ledger: in one call, or one by one if the ledger refuses one of them. Returns the runs that
    /// arrived.
    async fn write_to_ledger<'a>(
        &self,
        leased: &RunLease,
        runs: Vec<(&'a LeasedRun, &'a BufferedRun)>,
    ) -> Result<Vec<(&'a LeasedRun, &'a BufferedRun)>, DrainError> {
        if runs.is_empty() {
            return Ok(runs);
        }
        let all = runs.iter().map(|(_, buffered)| drained_run(buffered, None)).collect();
        match self.ledger.drain(all).await {
            Ok(drained) => {
                for ((_, buffered), drained) in runs.iter().zip(&drained) {
                    self.record_arrival(&buffered.run, Some(drained));
                }
                return Ok(runs);
            }
            Err(error) if is_unavailable(&error) => return Err(error.into()),
            Err(_) => {}
        }
        let mut arrived = Vec::with_capacity(runs.len());
        for (run, buffered) in runs {
            match self.ledger.drain(vec![drained_run(buffered, None)]).await {
                Ok(drained) => {
                    self.record_arrival(&buffered.run, drained.first());
                    arrived.push((run, buffered));
                }
                Err(error) if is_unavailable(&error) => return Err(error.into()),
                Err(error) => self.handle_refusal(leased, run, buffered, &error).await?,
            }
        }
        Ok(arrived)
    }

    /// The ledger refuses a run: it is retried a few times, and then becomes a dead letter.
    async fn handle_refusal(
        &self,
        leased: &RunLease,
        run: &LeasedRun,
        buffered: &BufferedRun,
        error: &ledger::Error,
    ) -> Result<(), DrainError> {
        let request_id = buffered.run.trace.request_id.as_deref();
        if run.attempts + 1 >= self.max_attempts {
            let (payload, error) = (buffered.run.payload.clone(), error.to_string());
            let dead = (payload, Cause::NonRetryable, error.as_str());
            return self.write_dead_letter(leased, run.id, dead, request_id).await;
        }
        tracing::warn!(target: "semel", run_id = %run.id, request_id, %error, "the ledger refused a buffered run; retrying");
        let pause = PAUSES[usize::try_from(run.attempts).unwrap_or(usize::MAX).min(PAUSES.len() - 1)];
        let held = leased.proof();
        if self.buffer.give_back(held, run.id, pause, true).await? {
            count(&self.counters.given_back, 1);
        }
        Ok(())
    }

    /// Counts and logs how a run arrived.
    fn record_arrival(&self, run: &NewEvent, drained: Option<&Drained>) {
        let Some(drained) = drained else { return };
        let (id, request_id) = (run.id, run.trace.request_id.as_deref());
        match drained.arrival {
            Arrival::LostKey(winner) => {
                count(&self.counters.collided, 1);
                tracing::warn!(target: "semel", run_id = %id, request_id, holder = %winner, "another run holds the key of a buffered run; it is a dead letter that can be replayed");
            }
            Arrival::New | Arrival::Known | Arrival::Older => count(&self.counters.drained, 1),
        }
        for error in &drained.refused {
            count(&self.counters.refused_changes, 1);
            tracing::warn!(target: "semel", run_id = %id, request_id, error, "a change to a buffered run could not be applied");
        }
    }

    /// Removes runs from the buffer that are in the ledger. Changes that came meanwhile go into the ledger first.
    async fn remove_arrived(
        &self,
        leased: &RunLease,
        runs: &[(&LeasedRun, &BufferedRun)],
    ) -> Result<(), DrainError> {
        let held = leased.proof();
        let versions: Vec<(EventId, u64)> = runs.iter().map(|(run, _)| (run.id, run.version)).collect();
        let acked = self.buffer.ack_all(held, &versions).await?;
        for ((run, buffered), acked) in runs.iter().zip(acked) {
            let mut acked = acked;
            // Lost: another drainer has it, and finds it in the ledger with the later changes.
            while let AckOutcome::Changed(changes) = acked {
                let version = changes.len() as u64;
                let drained = DrainedRun { run: buffered.run.clone(), changes, then: None };
                let drained = self.ledger.drain(vec![drained]).await?;
                for error in drained.iter().flat_map(|drained| &drained.refused) {
                    count(&self.counters.refused_changes, 1);
                    let request_id = buffered.run.trace.request_id.as_deref();
                    tracing::warn!(target: "semel", run_id = %run.id, request_id, error, "a change to a buffered run could not be applied");
                }
                acked = self.buffer.ack(held, run.id, version).await?;
            }
        }
        Ok(())
    }

    async fn handle_unreadable(
        &self,
        leased: &RunLease,
        id: EventId,
        UnreadableRun { bytes, why, newer_format }: &UnreadableRun,
    ) -> Result<(), DrainError> {
        if newer_format.is_some() {
            tracing::warn!(target: "semel", run_id = %id, error = why, "a buffered run was written by a later version; it stays in the buffer");
            let held = leased.proof();
            if self.buffer.give_back(held, id, PAUSES[PAUSES.len() - 1], false).await? {
                count(&self.counters.given_back, 1);
            }
            return Ok(());
        }
        let dead = (bytes.clone(), Cause::Undecodable, why.as_str());
        self.write_dead_letter(leased, id, dead, None).await
    }

    /// Writes a dead letter, and only then removes the run from the buffer.
    async fn write_dead_letter(
        &self,
        leased: &RunLease,
        id: EventId,
        (payload, cause, why): (bytes::Bytes, Cause, &str),
        request_id: Option<&str>,
    ) -> Result<(), DrainError> {
        let letter = NewLetter {
            id: LetterId::new(SystemClock.now()),
            tenant: leased.tenant.clone(),
            source: SourceMessage { stream: "semel.buffer".to_owned(), message: id.to_string() },
            payload,
            content_type: "application/octet-stream".to_owned(),
            headers: Vec::new(),
            cause,
            error: why.to_owned(),
            attempts: 1,
        };
        let letters = self.ledger.put(vec![letter]).await?;
        let letter = letters.first().map(ToString::to_string);
        tracing::error!(target: "semel", run_id = %id, request_id, dlq_id = letter, error = why, "a buffered run cannot be drained; it is a dead letter");
        if self.buffer.remove(leased.proof(), id).await? {
            count(&self.counters.dead, 1);
        }
        Ok(())
    }
}

fn drained_run(buffered: &BufferedRun, then: Option<RunAction>) -> DrainedRun {
    let (mut run, changes): (NewEvent, Vec<Patch>) = (buffered.run.clone(), buffered.changes.clone());
    if let Some(RunAction::Change(change)) = &then {
        // A delayed run must arrive as one that waits.
        run.delay = change.delay.unwrap_or(run.delay);
    }
    DrainedRun { run, changes, then }
}

/// True if a failure says nothing about the run itself: the ledger is unavailable or misconfigured.
fn is_unavailable(error: &ledger::Error) -> bool {
    matches!(error, ledger::Error::Store(error) if error.is_retryable() || !matches!(error.kind(), store::ErrorKind::Corrupt))
}
