//! A ledger for tests of the loop: leases end only on demand, there is no order, and faults come on demand.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use semel::store::{self, ErrorKind};
use semel::time::Timestamp;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::delivery::{Holding, LeaseResult, Settle, Work};
use crate::event::Trace;
use crate::id::{DeliveryId, EventId, EventKind};
use crate::ledger::{Answer, BoxFuture, Take, Working};

#[derive(Debug, Default)]
pub(super) struct Fake {
    latency: Duration,
    waiting: Mutex<Vec<(Instant, Work)>>,
    held: Mutex<HashMap<DeliveryId, Work>>,
    settled: Mutex<Vec<Settle>>,
    settle_calls: AtomicUsize,
    taken: AtomicUsize,
    failures: AtomicU32,
    renewals: AtomicU32,
    changed: Notify,
    /// While it is set, takes are executed and not answered.
    mute: watch::Sender<bool>,
}

impl Fake {
    /// Every call takes this long.
    pub(super) fn slow(latency: Duration) -> Self {
        Self { latency, ..Self::default() }
    }

    pub(super) fn add(&self, target: &str, count: usize) {
        for _ in 0..count {
            self.push(target, |_| {});
        }
        self.changed.notify_waiters();
    }

    pub(super) fn add_with(&self, target: &str, change: impl FnOnce(&mut Work)) {
        self.push(target, change);
        self.changed.notify_waiters();
    }

    /// As [`add_with`](Self::add_with), without a notification for the worker.
    pub(super) fn push_with(&self, target: &str, change: impl FnOnce(&mut Work)) {
        self.push(target, change);
    }

    /// Notifies the worker of work.
    pub(super) fn wake(&self) {
        self.changed.notify_waiters();
    }

    /// Number of deliveries that the worker holds.
    pub(super) fn held(&self) -> usize {
        self.held.lock().len()
    }

    /// Number of them that match.
    pub(super) fn held_by(&self, such: impl Fn(&Work) -> bool) -> usize {
        self.held.lock().values().filter(|work| such(work)).count()
    }

    fn push(&self, target: &str, change: impl FnOnce(&mut Work)) {
        let now = Timestamp::from_micros(1_000_000);
        let mut work = Work {
            holding: Holding { delivery: DeliveryId::new(now), token: 0 },
            event: EventId::new(EventKind::Event, now),
            target: target.into(),
            tenant: String::new(),
            event_type: "a".into(),
            payload: Bytes::new(),
            content_type: "application/json".into(),
            headers: Vec::new(),
            attempt: 0,
            crashes: 0,
            epoch: 0,
            request_id: "r".into(),
            trace: Trace::default(),
            accepted_at: now,
            expired: false,
            job: None,
        };
        change(&mut work);
        self.waiting.lock().push((Instant::now(), work));
    }

    pub(super) fn fail_settles(&self, times: u32) {
        self.failures.store(times, Ordering::SeqCst);
    }

    pub(super) fn count(&self, wanted: impl Fn(&Settle) -> bool) -> usize {
        self.settled.lock().iter().filter(|settle| wanted(settle)).count()
    }

    pub(super) fn settled(&self) -> usize {
        self.settled.lock().len()
    }

    pub(super) fn settle_calls(&self) -> usize {
        self.settle_calls.load(Ordering::SeqCst)
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::SeqCst)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }

    pub(super) fn renewals(&self) -> u32 {
        self.renewals.load(Ordering::SeqCst)
    }

    /// From now on takes are executed, and their answers are held back.
    pub(super) fn hold_answers(&self) {
        self.mute.send_replace(true);
    }

    /// Sends the answers that were held back.
    pub(super) fn release_answers(&self) {
        self.mute.send_replace(false);
    }

    /// All leases expire: another worker takes the deliveries and ends them.
    pub(super) fn lose_all(&self) {
        self.held.lock().clear();
    }

    fn give(&self, take: &Take) -> Vec<Work> {
        let now = Instant::now();
        let mut left: HashMap<&str, u32> =
            take.targets.iter().map(|(name, most)| (name.as_str(), *most)).collect();
        let mut waiting = self.waiting.lock();
        let mut given = Vec::new();
        let mut kept = Vec::new();
        for (due, mut work) in waiting.drain(..) {
            let room = left.get_mut(work.target.as_str()).filter(|room| **room > 0);
            match room {
                Some(room) if due <= now && given.len() < take.limit as usize => {
                    *room -= 1;
                    work.attempt += 1;
                    work.holding.token += 1;
                    given.push(work);
                }
                _ => kept.push((due, work)),
            }
        }
        *waiting = kept;
        self.taken.fetch_add(given.len(), Ordering::SeqCst);
        self.held.lock().extend(given.iter().map(|work| (work.holding.delivery, work.clone())));
        given
    }

    fn write(&self, holding: Holding, settle: Settle) -> LeaseResult {
        let mut held = self.held.lock();
        let is_held = held.get(&holding.delivery).is_some_and(|work| work.holding == holding);
        let Some(mut work) = held.remove(&holding.delivery).filter(|_| is_held) else {
            return LeaseResult::Lost;
        };
        drop(held);
        match &settle {
            Settle::Retry(_, delay) => self.waiting.lock().push((Instant::now() + *delay, work)),
            Settle::Defer(delay) => {
                work.attempt -= 1;
                self.waiting.lock().push((Instant::now() + *delay, work));
            }
            Settle::Done(_) | Settle::Block(_) | Settle::Bury(..) => {}
        }
        self.settled.lock().push(settle);
        LeaseResult::Kept
    }
}

impl Working for Fake {
    fn take(&self, take: Take) -> Answer<'_, Vec<Work>> {
        Box::pin(async move {
            tokio::time::sleep(self.latency).await;
            let given = self.give(&take);
            // The sender lives as long as the ledger.
            let _ = self.mute.subscribe().wait_for(|mute| !*mute).await;
            Ok(given)
        })
    }

    fn retake(&self, delivery: DeliveryId, _: String, _: Duration) -> Answer<'_, Option<Work>> {
        let mut waiting = self.waiting.lock();
        let at = waiting.iter().position(|(_, work)| work.holding.delivery == delivery);
        let given = at.map(|at| {
            let (_, mut work) = waiting.remove(at);
            work.attempt += 1;
            work.holding.token += 1;
            self.taken.fetch_add(1, Ordering::SeqCst);
            self.held.lock().insert(delivery, work.clone());
            work
        });
        drop(waiting);
        Box::pin(async move { Ok(given) })
    }

    fn renew(&self, held: Vec<Holding>, _: Duration) -> Answer<'_, Vec<LeaseResult>> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        let known = self.held.lock();
        let is_held =
            |held: &Holding| known.get(&held.delivery).is_some_and(|work| work.holding.token == held.token);
        let said = held
            .iter()
            .map(|held| if is_held(held) { LeaseResult::Kept } else { LeaseResult::Lost })
            .collect();
        drop(known);
        Box::pin(async move { Ok(said) })
    }

    fn settle(&self, settled: Vec<(Holding, Settle)>) -> Answer<'_, Vec<LeaseResult>> {
        Box::pin(async move {
            self.settle_calls.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(self.latency).await;
            let failing = |left: u32| left.checked_sub(1);
            if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, failing).is_ok() {
                return Err(store::Error::new(ErrorKind::Ambiguous, "on purpose").into());
            }
            Ok(settled.into_iter().map(|(holding, settle)| self.write(holding, settle)).collect())
        })
    }

    fn next_due(&self, targets: Vec<String>) -> Answer<'_, Option<Duration>> {
        let now = Instant::now();
        let waiting = self.waiting.lock();
        let of_targets = waiting.iter().filter(|(_, work)| targets.contains(&work.target));
        let next = of_targets.map(|(due, _)| due.saturating_duration_since(now)).min();
        Box::pin(async move { Ok(next) })
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.changed.notified())
    }
}
