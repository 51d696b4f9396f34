//! The drainer: moves buffered runs into the ledger, fairly, and loses none (G13, G14).
//!
//! It takes the tenant that has waited longest, leases some of its runs, accepts them into the ledger in one
//! transaction, and only then takes them out of the buffer. Killed at any point it leaves a lease that runs out: the
//! next one accepts the same runs again, under the same ids, and the ledger knows them.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt as _;
use semel::store::{self, Error as StoreError};
use semel::time::{Clock as _, SystemClock};
use tokio::sync::watch;

use crate::buffer::{Acked, Buffer, Buffered, Leased, LeasedRun, Patch, Unreadable};
use crate::event::{Accepted, Dedupe, NewEvent, Notes};
use crate::id::{EventId, LetterId};
use crate::ledger::{self, AuditLine, Ledger};
use crate::letter::{Cause, NewLetter, SourceMessage};

/// How a drainer goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// So many runs a turn.
    pub batch: u32,
    /// How long a lease stands without a renewal. Renewed at a third of it.
    pub lease: Duration,
    /// After so many failures of its own a run becomes a dead letter.
    pub max_attempts: u32,
    /// How long to look away when nothing is buffered.
    pub idle: Duration,
    /// A pause after every turn, to spare the ledger; zero is none.
    pub rest: Duration,
}

impl Default for Pace {
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

/// Pauses while the ledger or Redis fails; with up to half as much added.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// What drainers count.
#[derive(Debug, Default)]
pub struct DrainCounters {
    /// Turns that moved something.
    pub turns: AtomicU64,
    /// Runs that are in the ledger now.
    pub drained: AtomicU64,
    /// Runs whose key the ledger had already: their id resolves to the winner.
    pub collided: AtomicU64,
    /// Runs that became dead letters.
    pub dead: AtomicU64,
    /// Runs that were given back, to be tried again.
    pub given_back: AtomicU64,
    /// Leases of dead drainers that were over.
    pub reclaimed: AtomicU64,
    /// Changes that could not be applied.
    pub refused_changes: AtomicU64,
    /// Calls to Redis or the ledger that failed.
    pub failures: AtomicU64,
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Moves buffered runs into the ledger. Any number of them, in any number of processes.
#[derive(Debug)]
pub struct Drainer {
    buffer: Arc<Buffer>,
    ledger: Arc<dyn Ledger>,
    pace: Pace,
    counters: Arc<DrainCounters>,
    failures: usize,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing is buffered, or nothing may be drained yet.
    Idle,
    /// Runs were moved, or set aside.
    Moved(usize),
}

/// A turn that failed: nothing was lost, and attempts were not counted.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// Redis did not answer.
    #[error("the buffer: {0}")]
    Buffer(#[from] StoreError),
    /// The ledger did not take them.
    #[error("the ledger: {0}")]
    Ledger(#[from] ledger::Error),
}

impl Drainer {
    /// A drainer from `buffer` into `ledger`.
    pub fn new(
        buffer: Arc<Buffer>,
        ledger: Arc<dyn Ledger>,
        pace: Pace,
        counters: Arc<DrainCounters>,
    ) -> Self {
        Self { buffer, ledger, pace, counters, failures: 0 }
    }

    /// Drains until `stop` turns true. A turn that has begun is finished.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut idle_turns = 0;
        while !*stop.borrow() {
            let pause = match self.turn().await {
                Ok(Turn::Moved(_)) => {
                    self.recovered();
                    idle_turns = 0;
                    self.pace.rest
                }
                Ok(Turn::Idle) => {
                    self.recovered();
                    idle_turns += 1;
                    self.pace.idle
                }
                Err(error) => self.failed(&error),
            };
            // Several tenants may wait for their delays: look at each before looking away.
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
    /// What failed. What was leased is given back, or its lease runs out.
    pub async fn turn(&self) -> Result<Turn, DrainError> {
        let Some(tenant) = self.buffer.next_tenant().await? else { return Ok(Turn::Idle) };
        let leased = self.buffer.lease(&tenant, self.pace.batch, self.pace.lease).await?;
        count(&self.counters.reclaimed, leased.reclaimed);
        if leased.runs.is_empty() {
            return Ok(Turn::Idle);
        }
        count(&self.counters.turns, 1);
        let moved = leased.runs.len();
        let drained = tokio::select! {
            drained = self.drain(&leased) => drained,
            never = self.keep(&leased) => match never {},
        };
        match drained {
            Ok(()) => Ok(Turn::Moved(moved)),
            Err(error) => {
                self.give_back(&leased).await;
                Err(error)
            }
        }
    }

    /// Renews the leases for as long as the ledger takes: runs that are slow to arrive are not given to somebody else.
    async fn keep(&self, leased: &Leased) -> Infallible {
        let held = (leased.tenant.as_str(), leased.token.as_str());
        let ids: Vec<EventId> = leased.runs.iter().map(|run| run.id).collect();
        loop {
            tokio::time::sleep(self.pace.lease / 3).await;
            // Those that have left are not ours any more. One that runs out is drained again, and the ledger knows it.
            if let Err(error) = self.buffer.renew(held, &ids, self.pace.lease).await {
                tracing::debug!(target: "semel", %error, "the leases of buffered runs were not renewed");
            }
        }
    }

    /// Gives everything back that is still ours, for the time of the pause. Its attempts are not counted: it was not its fault.
    async fn give_back(&self, leased: &Leased) {
        let pause = PAUSES[self.failures.min(PAUSES.len() - 1)];
        let held = (leased.tenant.as_str(), leased.token.as_str());
        for run in &leased.runs {
            match self.buffer.give_back(held, run.id, pause, false).await {
                Ok(true) => count(&self.counters.given_back, 1),
                Ok(false) => {}
                // Their leases run out.
                Err(_) => return,
            }
        }
    }

    async fn drain(&self, leased: &Leased) -> Result<(), DrainError> {
        let mut whole: Vec<(&LeasedRun, &Buffered)> = Vec::with_capacity(leased.runs.len());
        for run in &leased.runs {
            match &run.run {
                Ok(buffered) => whole.push((run, buffered)),
                Err(Unreadable { bytes, why }) => {
                    self.set_aside(leased, run.id, bytes.clone(), Cause::Undecodable, why).await?;
                }
            }
        }
        let accepted = self.accept(leased, &whole).await?;
        // Nearly all are new, and nothing is to be done about them but to let them go.
        let (as_they_were, others): (Vec<_>, Vec<_>) =
            whole.into_iter().zip(accepted).partition(|((_, buffered), taken)| {
                matches!(taken, Taken::New) && buffered.refused.is_empty() && !buffered.cancelled
            });
        let as_they_were: Vec<_> = as_they_were.into_iter().map(|(run, _)| run).collect();
        count(&self.counters.drained, as_they_were.len() as u64);
        self.all_leave(leased, &as_they_were).await?;
        for ((run, buffered), taken) in others {
            match taken {
                Taken::New | Taken::Known => {
                    count(&self.counters.drained, 1);
                    self.arrived(leased, run, buffered).await?;
                }
                Taken::Collided(winner) => {
                    count(&self.counters.collided, 1);
                    self.collided(leased, run, buffered, winner).await?;
                }
                Taken::Refused(why) => {
                    let (cause, payload) = (Cause::NonRetryable, buffered.run.payload.clone());
                    self.set_aside(leased, run.id, payload, cause, &why).await?;
                }
                Taken::Later => {}
            }
        }
        Ok(())
    }

    /// Takes runs out of the buffer that are in the ledger with all changes that were known.
    async fn all_leave(&self, leased: &Leased, runs: &[(&LeasedRun, &Buffered)]) -> Result<(), DrainError> {
        let held = (leased.tenant.as_str(), leased.token.as_str());
        let versions: Vec<(EventId, u64)> = runs.iter().map(|(run, _)| (run.id, run.version)).collect();
        let acked = self.buffer.ack_all(held, &versions).await?;
        for ((run, buffered), acked) in runs.iter().zip(acked) {
            if let Acked::Changed(..) = acked {
                self.leave(leased, run, buffered.run.dedupe.as_ref(), (run.id, run.version)).await?;
            }
        }
        Ok(())
    }

    /// Accepts runs into the ledger: together, or one by one where the ledger refuses one of them.
    async fn accept(
        &self,
        leased: &Leased,
        whole: &[(&LeasedRun, &Buffered)],
    ) -> Result<Vec<Taken>, DrainError> {
        if whole.is_empty() {
            return Ok(Vec::new());
        }
        let runs: Vec<NewEvent> = whole.iter().map(|(leased, buffered)| marked(leased, buffered)).collect();
        match self.ledger.accept(runs.clone()).await {
            Ok(accepted) => {
                return Ok(runs.iter().zip(accepted).map(|(run, accepted)| taken(run, accepted)).collect());
            }
            Err(error) if is_everybodys(&error) => return Err(error.into()),
            Err(_) => {}
        }
        let held = (leased.tenant.as_str(), leased.token.as_str());
        let mut all = Vec::with_capacity(runs.len());
        for ((leased_run, _), run) in whole.iter().zip(&runs) {
            all.push(match self.ledger.accept(vec![run.clone()]).await {
                Ok(accepted) => taken(run, accepted.first().copied().unwrap_or(Accepted::Conflict)),
                Err(error) if is_everybodys(&error) => return Err(error.into()),
                Err(error) if leased_run.attempts + 1 >= self.pace.max_attempts => {
                    Taken::Refused(error.to_string())
                }
                Err(error) => {
                    tracing::warn!(target: "semel", run = %run.id, %error, "a buffered run was refused; it is tried again");
                    let pause = PAUSES[usize::try_from(leased_run.attempts).unwrap_or(5).min(PAUSES.len() - 1)];
                    if self.buffer.give_back(held, run.id, pause, true).await? {
                        count(&self.counters.given_back, 1);
                    }
                    Taken::Later
                }
            });
        }
        Ok(all)
    }

    /// The run is in the ledger: what is left of it in the buffer is applied there, then it leaves.
    async fn arrived(&self, leased: &Leased, run: &LeasedRun, buffered: &Buffered) -> Result<(), DrainError> {
        let id = run.id;
        for why in &buffered.refused {
            self.report(id, why);
        }
        if buffered.cancelled {
            self.cancel(id).await?;
        }
        // One that died before its acknowledgement may have brought it here with fewer changes: go on behind those.
        let held = self.ledger.event(id).await?.map_or(0, |event| changes_held(&event.new.notes));
        self.leave(leased, run, buffered.run.dedupe.as_ref(), (id, held)).await
    }

    /// Takes a run out of the buffer, and applies what was changed meanwhile to where it is now.
    async fn leave(
        &self,
        leased: &Leased,
        run: &LeasedRun,
        dedupe: Option<&Dedupe>,
        (id, mut version): (EventId, u64),
    ) -> Result<(), DrainError> {
        let held = (leased.tenant.as_str(), leased.token.as_str());
        loop {
            match self.buffer.ack(held, run.id, version).await? {
                // Somebody else has it by now: it finds the run in the ledger as well, and what was changed since.
                Acked::Gone | Acked::Lost => return Ok(()),
                Acked::Changed(patches, now) => {
                    for patch in &patches {
                        version += 1;
                        self.apply(id, dedupe, patch, Some(version).filter(|_| id == run.id)).await?;
                    }
                    version = now;
                }
            }
        }
    }

    /// Applies a change to a run in the ledger. Where it has a number, once: the number is written with it.
    async fn apply(
        &self,
        id: EventId,
        dedupe: Option<&Dedupe>,
        patch: &Patch,
        number: Option<u64>,
    ) -> Result<(), DrainError> {
        match patch {
            Patch::Change(change) => self.change(id, change.clone(), number).await,
            // These two may be repeated.
            Patch::Cancel => {
                self.cancel(id).await?;
                self.change(id, ledger::Change::default(), number).await
            }
            Patch::DropKey => {
                // Only its own: the key may have a new life.
                if let Some(dedupe) = dedupe
                    && self.ledger.find(dedupe.id).await?.is_some_and(|found| found.event == id)
                {
                    self.ledger.reset(dedupe.id, line("reset-key", id, "reset while it was drained")).await?;
                }
                self.change(id, ledger::Change::default(), number).await
            }
        }
    }

    async fn change(
        &self,
        id: EventId,
        mut change: ledger::Change,
        number: Option<u64>,
    ) -> Result<(), DrainError> {
        if let Some(number) = number {
            change.set.push((CHANGES_HELD.to_owned(), number.to_string()));
        }
        loop {
            let version = match number {
                None => None,
                Some(number) => match self.ledger.event(id).await? {
                    // Another drainer has come further meanwhile.
                    Some(event) if changes_held(&event.new.notes) >= number => return Ok(()),
                    Some(event) => Some(event.version),
                    None => return Ok(()),
                },
            };
            match self.ledger.change(id, change.clone(), version).await {
                Ok(_) => return Ok(()),
                Err(ledger::Error::Stale) if number.is_some() => {}
                Err(error) if is_everybodys(&error) => return Err(error.into()),
                Err(error) => {
                    self.report(id, &error.to_string());
                    let Some(number) = number else { return Ok(()) };
                    // It is not to be tried again.
                    let held = vec![(CHANGES_HELD.to_owned(), number.to_string())];
                    change = ledger::Change { set: held, ..ledger::Change::default() };
                }
            }
        }
    }

    async fn cancel(&self, id: EventId) -> Result<(), DrainError> {
        match self.ledger.cancel(id, line("cancel", id, "cancelled while it was buffered")).await {
            Ok(_) => Ok(()),
            Err(error) if is_everybodys(&error) => Err(error.into()),
            Err(error) => {
                self.report(id, &error.to_string());
                Ok(())
            }
        }
    }

    /// The ledger has another run under the key: this one's id resolves to it, and its changes go there (G14).
    async fn collided(
        &self,
        leased: &Leased,
        run: &LeasedRun,
        buffered: &Buffered,
        winner: EventId,
    ) -> Result<(), DrainError> {
        tracing::info!(target: "semel", run = %run.id, %winner, "a buffered run had its key in the ledger already; its id resolves to that run");
        self.ledger.alias(run.id, winner).await?;
        let notes = &buffered.run.notes;
        let change = ledger::Change {
            add_tags: notes.tags.clone(),
            set: notes.metadata.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            ..ledger::Change::default()
        };
        if change != ledger::Change::default() {
            self.apply(winner, None, &Patch::Change(change), None).await?;
        }
        if buffered.cancelled {
            self.cancel(winner).await?;
        }
        self.leave(leased, run, None, (winner, run.version)).await
    }

    /// Writes a dead letter, and only then takes the run out of the buffer.
    async fn set_aside(
        &self,
        leased: &Leased,
        id: EventId,
        payload: bytes::Bytes,
        cause: Cause,
        why: &str,
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
        tracing::error!(target: "semel", run = %id, letter = ?letters.first(), why, "a buffered run cannot be drained; it is a dead letter");
        if self.buffer.remove(&leased.tenant, Some(&leased.token), id).await? {
            count(&self.counters.dead, 1);
        }
        Ok(())
    }

    fn report(&self, id: EventId, why: &str) {
        count(&self.counters.refused_changes, 1);
        tracing::warn!(target: "semel", run = %id, why, "a change to a buffered run could not be applied");
    }

    /// Says that a turn failed, once until it works again, and how long to wait.
    fn failed(&mut self, error: &dyn fmt::Display) -> Duration {
        count(&self.counters.failures, 1);
        if self.failures == 0 {
            tracing::warn!(target: "semel", %error, "draining failed; nothing is lost, it is tried again until it works");
        }
        let pause = PAUSES[self.failures.min(PAUSES.len() - 1)];
        self.failures += 1;
        pause + pause.mul_f64(rand::rng().random_range(0.0..0.5))
    }

    fn recovered(&mut self) {
        if self.failures > 0 {
            tracing::info!(target: "semel", "draining works again");
            self.failures = 0;
        }
    }
}

/// A member of a run's metadata: how many of the changes that were made in the buffer it holds. Written together with
/// them, so that each is applied once, whoever dies in between.
pub const CHANGES_HELD: &str = "$semel.changes";

fn changes_held(notes: &Notes) -> u64 {
    notes.metadata.get(CHANGES_HELD).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The run as it is accepted: it says how many changes are in it.
fn marked(leased: &LeasedRun, buffered: &Buffered) -> NewEvent {
    let mut run = buffered.run.clone();
    if leased.version > 0 {
        run.notes.metadata.insert(CHANGES_HELD.to_owned(), leased.version.to_string());
    }
    run
}

/// What became of a buffered run in the ledger.
enum Taken {
    /// It is there now, under its own id.
    New,
    /// It was there, under its own id.
    Known,
    /// Its key belongs to this one.
    Collided(EventId),
    /// It never will be.
    Refused(String),
    /// It was given back.
    Later,
}

fn taken(run: &NewEvent, accepted: Accepted) -> Taken {
    match accepted {
        Accepted::First(_) => Taken::New,
        Accepted::Cached(id) if id == run.id => Taken::Known,
        Accepted::Cached(winner) => Taken::Collided(winner),
        Accepted::Conflict => {
            Taken::Refused("its key belongs to a run with another payload in the ledger".to_owned())
        }
    }
}

/// Whether a failure says nothing about the run itself: the ledger is away, or cannot be used by anybody.
fn is_everybodys(error: &ledger::Error) -> bool {
    matches!(error, ledger::Error::Store(error) if error.is_retryable() || !matches!(error.kind(), store::ErrorKind::Corrupt))
}

fn line(action: &str, subject: EventId, reason: &str) -> AuditLine {
    AuditLine {
        who: "semel".to_owned(),
        action: action.to_owned(),
        subject: subject.to_string(),
        reason: reason.to_owned(),
    }
}
