//! The dispatcher asks the ledger for work when there may be some, and sleeps otherwise.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use semel::backoff::Backoff;
use tokio::sync::watch;
use tokio::time::Instant;

use super::room::TakeRequest;
use super::{WorkerShared, attempt};
use crate::delivery::{Settle, Work};
use crate::id::DeliveryId;
use crate::ledger::{BoxFuture, Error, Take};
use crate::target::{Registered, Targets};

/// The most deliveries of one take.
const BATCH: u32 = 256;
/// While attempts are in progress, the ledger is asked for the next due time at most this often: usually an attempt
/// ends first and causes the next take.
const LAZY: Duration = Duration::from_millis(50);
/// The longest time between two takes.
const BACKSTOP: Duration = Duration::from_secs(30);
/// The first and the longest pause after a failed take.
const RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// A delivery whose worker crashed this often is sent while nothing else is in progress.
const SUSPECT: u32 = 2;
/// How many of them are remembered; others return by themselves.
const SUSPECTS: usize = 1_000;
/// How long a suspect is given back for, unless its turn comes first.
const SUSPECT_WAITS: Duration = Duration::from_secs(2);
/// The longest time that others wait for a suspect, or a suspect for others, if attempts take long.
const ALONE: Duration = Duration::from_secs(10);

pub(super) async fn run(shared: Arc<WorkerShared>, mut stop: watch::Receiver<bool>) {
    let ledger = Arc::clone(&shared.ledger);
    let mut changed = ledger.changed();
    let mut retries = RETRIES;
    // Whether to ask the ledger for the next due time, instead of waiting for attempts in progress.
    let mut patience = DispatchWait::Fresh;
    // How often in a row the ledger reported due work and then returned none.
    let mut futile = 0u32;
    let mut suspects = Suspects::default();
    loop {
        // Before the ledger is asked, so that a change during its answer is not missed. The second iteration is for
        // the new future.
        for _ in 0..2 {
            if !is_over(&mut changed).await {
                break;
            }
            changed = ledger.changed();
            shared.room.mark_all_dirty();
        }
        if *stop.borrow() {
            return;
        }
        let targets = shared.registry.current();
        if let Some(suspect) = suspects.next() {
            let since = Instant::now();
            if send_alone(&shared, &targets, suspect, &mut stop).await.is_err() {
                suspects.add(suspect);
            }
            suspects.rest(since.elapsed());
            shared.room.mark_all_dirty();
            continue;
        }
        let wanted = shared.room.wanted(&targets);
        if wanted.limit > 0 {
            patience = DispatchWait::Fresh;
            match take(&shared, &targets, &wanted, &mut suspects, &stop).await {
                Ok(()) => retries.reset(),
                Err(()) => {
                    tokio::select! {
                        () = retries.wait() => {}
                        _ = stop.changed() => {}
                    }
                    shared.room.mark_all_dirty();
                }
            }
            continue;
        }
        let lazy = patience == DispatchWait::Fresh && shared.room.held() > 0;
        let wait = if lazy { LAZY } else { due(&shared, &targets, &mut futile).await };
        let wait = wanted.reopens.map_or(wait, |left| wait.min(left));
        let wait = suspects.left().map_or(wait, |left| wait.min(left));
        tokio::select! {
            () = &mut changed => {
                changed = ledger.changed();
                futile = 0;
                shared.room.mark_all_dirty();
            }
            () = shared.wake.notified() => futile = 0,
            () = tokio::time::sleep(wait) => {
                patience = DispatchWait::Spent;
                if !lazy {
                    shared.room.mark_all_dirty();
                }
            }
            _ = stop.changed() => {}
        }
    }
}

#[derive(PartialEq, Eq)]
enum DispatchWait {
    Fresh,
    Spent,
}

/// Polls once.
async fn is_over(future: &mut BoxFuture<'_, ()>) -> bool {
    tokio::select! {
        biased;
        () = future => true,
        () = std::future::ready(()) => false,
    }
}

async fn due(shared: &WorkerShared, targets: &Targets, futile: &mut u32) -> Duration {
    // Targets with an open breaker are skipped: their deliveries must wait.
    let open = |registered: &Registered| super::room::is_open(registered);
    let asked: Vec<String> = targets
        .iter()
        .filter(|(_, registered)| !open(registered))
        .map(|(name, _)| name.as_ref().to_owned())
        .collect();
    if asked.is_empty() {
        return BACKSTOP;
    }
    match shared.ledger.next_due(asked).await {
        Ok(Some(Duration::ZERO)) => {
            // Due, but not returned: it waits for another delivery's end, or another worker has just taken it.
            *futile = (*futile + 1).min(8);
            Duration::from_millis(4) * (1 << *futile)
        }
        Ok(next) => {
            *futile = 0;
            next.map_or(BACKSTOP, |due| due.min(BACKSTOP))
        }
        Err(error) => {
            tracing::debug!(target: "semel::deliveries", %error, "the ledger did not return the next due time");
            Duration::from_secs(1)
        }
    }
}

async fn take(
    shared: &Arc<WorkerShared>,
    targets: &Targets,
    wanted: &TakeRequest,
    suspects: &mut Suspects,
    stop: &watch::Receiver<bool>,
) -> Result<(), ()> {
    let limit = wanted.limit.min(BATCH);
    let take = Take {
        worker: shared.settings.name.clone(),
        targets: wanted.targets.clone(),
        limit,
        lease: shared.settings.lease,
    };
    // Leases are counted from here: the answer may be read long after the ledger gave it.
    let sent = Instant::now();
    let taken = match shared.ledger.take(take).await {
        Ok(taken) => taken,
        Err(error) => {
            log_failed_take(&error);
            return Err(());
        }
    };
    mark_dirty_if_full(shared, wanted, limit, &taken);
    let stopping = *stop.borrow();
    let (mut sent_on, mut given_back) = (Vec::with_capacity(taken.len()), Vec::new());
    for work in taken {
        shared.room.take();
        let lease = shared.leases.hold(work.holding, sent, shared.settings.lease);
        match targets.get(&work.target) {
            Some(registered) if !stopping && is_suspect(&work, registered) => {
                suspects.add(work.holding.delivery);
                given_back.push(shared.settle_and_tell(&work, Settle::Defer(SUSPECT_WAITS)));
            }
            Some(registered) if !stopping => sent_on.push((Arc::new(work), registered, lease)),
            // It cannot be sent from here any more; another worker may send it.
            _ => shared.settle(&work, Settle::Defer(Duration::ZERO)),
        }
    }
    for written in given_back {
        // Deliveries in progress crash with the process, so nothing is sent before these are given back. If the
        // settler has ended, it has written what it could.
        let _ = written.await;
    }
    for (work, registered, lease) in sent_on {
        attempt::start(shared, &work, registered, lease);
    }
    Ok(())
}

/// True if this delivery may have crashed its workers: it was in progress twice when that happened. Others may have
/// been too; sending each alone shows which one it is.
fn is_suspect(work: &Work, registered: &Registered) -> bool {
    work.crashes >= SUSPECT && registered.policy.refuse(work).is_none()
}

#[derive(Default)]
struct Suspects {
    queue: VecDeque<DeliveryId>,
    /// Until then other deliveries use the worker.
    not_before: Option<Instant>,
}

impl Suspects {
    fn add(&mut self, delivery: DeliveryId) {
        if self.queue.len() < SUSPECTS && !self.queue.contains(&delivery) {
            self.queue.push_back(delivery);
        }
    }

    /// The next suspect, if it is its turn.
    fn next(&mut self) -> Option<DeliveryId> {
        if self.left()?.is_zero() { self.queue.pop_front() } else { None }
    }

    /// How long until the turn of the next.
    fn left(&self) -> Option<Duration> {
        self.queue.front()?;
        Some(self.not_before.map_or(Duration::ZERO, |then| then.saturating_duration_since(Instant::now())))
    }

    /// A suspect had the worker to itself for `length`: now the others have it for the same time.
    fn rest(&mut self, length: Duration) {
        self.not_before = Some(Instant::now() + length.max(LAZY));
    }
}

/// Sends one delivery while nothing else is in progress, so that a crash is its own. The wait is bounded: if another
/// attempt takes long, a crash counts for both. Fails if the ledger does.
async fn send_alone(
    shared: &Arc<WorkerShared>,
    targets: &Targets,
    delivery: DeliveryId,
    stop: &mut watch::Receiver<bool>,
) -> Result<(), ()> {
    until_empty(shared, stop).await;
    if *stop.borrow() {
        return Ok(());
    }
    let sent = Instant::now();
    let (worker, length) = (shared.settings.name.clone(), shared.settings.lease);
    let work = match shared.ledger.retake(delivery, worker, length).await {
        Ok(Some(work)) => work,
        // It has ended, or another worker has it.
        Ok(None) => return Ok(()),
        Err(error) => {
            log_failed_take(&error);
            return Err(());
        }
    };
    shared.room.take();
    let lease = shared.leases.hold(work.holding, sent, length);
    match targets.get(&work.target) {
        Some(registered) => attempt::start(shared, &Arc::new(work), registered, lease),
        None => shared.settle(&work, Settle::Defer(Duration::ZERO)),
    }
    until_empty(shared, stop).await;
    Ok(())
}

/// Waits until nothing is in progress, the worker must stop, or the time limit is reached.
async fn until_empty(shared: &WorkerShared, stop: &mut watch::Receiver<bool>) {
    let until = Instant::now() + ALONE;
    while Instant::now() < until {
        let empty = shared.empty.notified();
        if shared.room.held() == 0 || *stop.borrow() {
            return;
        }
        tokio::select! {
            () = empty => {}
            _ = stop.changed() => {}
            () = tokio::time::sleep_until(until) => {}
        }
    }
}

fn log_failed_take(error: &Error) {
    if error.is_logged() {
        tracing::debug!(target: "semel::deliveries", %error, "the ledger returned no work; retrying");
    } else {
        tracing::warn!(target: "semel::deliveries", %error, "the ledger returned no work; retrying");
    }
}

/// A target that got all it asked for, or may have been cut off by the limit, may have more.
fn mark_dirty_if_full(shared: &WorkerShared, wanted: &TakeRequest, limit: u32, taken: &[Work]) {
    let full = u32::try_from(taken.len()).unwrap_or(u32::MAX) >= limit;
    for (name, asked) in &wanted.targets {
        let got = taken.iter().filter(|work| work.target == *name).count();
        if full || u32::try_from(got).unwrap_or(u32::MAX) >= *asked {
            shared.room.mark_dirty(name);
        }
    }
}
