//! Callers that wait for a run to end (`?wait=true`): their number, their maximum wait, and how they are woken.
//!
//! The worker of this process wakes them when the ledger has stored the result of an attempt. Another process may deliver the run
//! instead, so each waiter also polls the ledger, with growing pauses.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel_pipeline::id::EventId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

/// The first and the longest pause between two reads of the ledger.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// All callers of this process that wait for a run.
#[derive(Debug)]
pub(crate) struct RunWaiters {
    places: Arc<Semaphore>,
    most: usize,
    longest: Duration,
    refused: AtomicU64,
    reads: AtomicU64,
    runs: Mutex<HashMap<EventId, Watched>>,
}

/// A run with waiting callers.
#[derive(Debug)]
struct Watched {
    changed: watch::Sender<()>,
    waiters: usize,
}

/// A slot among the waiters. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct WaiterSlot {
    _permit: OwnedSemaphorePermit,
}

/// Receives changes of one run.
#[derive(Debug)]
pub(crate) struct RunWatch<'a> {
    waiters: &'a RunWaiters,
    run: EventId,
    changed: watch::Receiver<()>,
    pause: Duration,
}

impl RunWaiters {
    /// Allows `most` callers, each for at most `longest`.
    pub(crate) fn new(most: usize, longest: Duration) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(most)),
            most,
            longest,
            refused: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            runs: Mutex::default(),
        }
    }

    /// Maximum wait of a caller.
    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// Maximum number of waiting callers.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Number of waiting callers.
    pub(crate) fn waiting(&self) -> usize {
        self.most - self.places.available_permits()
    }

    /// Number of refused callers.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Number of reads of the ledger for waiting callers.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Takes a slot; `None` if all are taken.
    pub(crate) fn enter(&self) -> Option<WaiterSlot> {
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(permit) => Some(WaiterSlot { _permit: permit }),
            Err(_) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Subscribes to changes of a run.
    pub(crate) fn watch(&self, run: EventId) -> RunWatch<'_> {
        let mut runs = self.runs.lock();
        let new = || Watched { changed: watch::Sender::new(()), waiters: 0 };
        let watched = runs.entry(run).or_insert_with(new);
        watched.waiters += 1;
        RunWatch { waiters: self, run, changed: watched.changed.subscribe(), pause: PAUSE.0 }
    }

    /// Signals that a run may have changed.
    pub(crate) fn wake(&self, run: EventId) {
        if let Some(watched) = self.runs.lock().get(&run) {
            watched.changed.send_replace(());
        }
    }
}

impl RunWatch<'_> {
    /// Call it before reading the run: a change after this call ends the next wait.
    pub(crate) fn mark_seen(&mut self) {
        self.waiters.reads.fetch_add(1, Ordering::Relaxed);
        self.changed.mark_unchanged();
    }

    /// Waits until the run should be read again, at most until the deadline.
    pub(crate) async fn changed(&mut self, deadline: Instant) {
        let pause = self.pause.min(deadline.saturating_duration_since(Instant::now()));
        if tokio::time::timeout(pause, self.changed.changed()).await.is_err() {
            self.pause = (self.pause * 2).min(PAUSE.1);
        }
    }
}

impl Drop for RunWatch<'_> {
    fn drop(&mut self) {
        let mut runs = self.waiters.runs.lock();
        if let Some(watched) = runs.get_mut(&self.run) {
            watched.waiters -= 1;
            if watched.waiters == 0 {
                runs.remove(&self.run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> EventId {
        "run_00000000000000000000000000".parse().unwrap()
    }

    #[tokio::test]
    async fn a_waiter_reads_the_ledger_less_and_less_often() {
        let waiters = RunWaiters::new(1, Duration::from_secs(60));
        let deadline = Instant::now() + Duration::from_millis(800);
        let mut watch = waiters.watch(run());
        let mut reads = 0;
        while Instant::now() < deadline {
            watch.mark_seen();
            reads += 1;
            watch.changed(deadline).await;
        }
        assert!(reads <= 5, "{reads} reads in 800 ms, and the pauses double from 50 ms");
        drop(watch);
        assert!(waiters.runs.lock().is_empty(), "nothing is left of it");
    }

    #[tokio::test]
    async fn a_change_during_a_read_is_not_missed() {
        let waiters = RunWaiters::new(1, Duration::from_secs(60));
        let began = Instant::now();
        let mut watch = waiters.watch(run());
        watch.mark_seen();
        waiters.wake(run());
        watch.changed(began + Duration::from_secs(60)).await;
        // A pause that was not cut short doubles the next one.
        assert_eq!(watch.pause, PAUSE.0, "it was woken");
    }

    #[test]
    fn places_are_limited_and_given_back() {
        let waiters = RunWaiters::new(2, Duration::from_secs(60));
        let held = [waiters.enter().unwrap(), waiters.enter().unwrap()];
        assert!(waiters.enter().is_none());
        assert_eq!((waiters.waiting(), waiters.refused()), (2, 1));
        drop(held);
        assert!(waiters.enter().is_some());
    }
}
