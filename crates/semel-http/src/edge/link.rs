//! State shared by the two ends of one connection: the [`Wire`](super::wire::Wire) below hyper, which sees the bytes, and the calls
//! above it, which see the requests.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;

use super::refusal::Refusal;

/// How late a body may be before its connection can be closed for another one.
const BODY_GRACE: Duration = Duration::from_secs(1);

/// Both ends count HTTP/1 requests from 0. hyper handles them one after the other, so equal numbers mean the same request.
#[derive(Debug)]
pub(super) struct ConnectionLink {
    /// Requests whose answer is not finished.
    in_flight: AtomicUsize,
    /// Number of requests that hyper has passed up.
    calls: AtomicU64,
    /// The refused request, always the last one of its connection.
    refused: OnceLock<(u64, Refusal)>,
    upgrade: Mutex<Upgrade>,
    /// Spares requests without an upgrade the lock of `upgrade`.
    upgrading: AtomicBool,
    /// Number of abandoned streams minus the number of finished ones.
    abandoned: AtomicI64,
    flooded: Notify,
    opened_at: Instant,
    /// Since when the wire has waited for its client: microseconds after `opened_at`, plus one, shifted left by one. The lowest bit
    /// is set while it waits for a body. 0 while it does not wait.
    waiting: AtomicU64,
    evicted: Notify,
    /// Returns the slot when the last user of the connection, possibly a tunnel, is gone.
    _place: OwnedSemaphorePermit,
}

#[derive(Debug, Default)]
struct Upgrade {
    asked_by: Option<u64>,
    answer: Option<Upgraded>,
    waker: Option<Waker>,
}

/// The result of a request to switch protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upgraded {
    /// Granted: the following bytes are not HTTP.
    Yes,
    /// Refused: the next request follows.
    No,
}

impl ConnectionLink {
    pub(super) fn new(place: OwnedSemaphorePermit) -> Self {
        Self {
            in_flight: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            refused: OnceLock::new(),
            upgrade: Mutex::default(),
            upgrading: AtomicBool::new(false),
            abandoned: AtomicI64::new(0),
            flooded: Notify::new(),
            opened_at: Instant::now(),
            waiting: AtomicU64::new(0),
            evicted: Notify::new(),
            _place: place,
        }
    }

    // === below hyper ===

    /// Refuses the request with this number.
    pub(super) fn refuse(&self, number: u64, refusal: Refusal) {
        // Never set twice: nothing is read after the first refusal.
        let _ = self.refused.set((number, refusal));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0
    }

    /// Number of requests that hyper has passed up.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Acquire)
    }

    /// Records that the request with this number asks to switch protocols.
    pub(super) fn ask_upgrade(&self, number: u64) {
        self.upgrade.lock().asked_by = Some(number);
        self.upgrading.store(true, Ordering::Release);
    }

    /// The result of the request to switch protocols.
    pub(super) fn poll_upgrade(&self, context: &Context<'_>) -> Poll<Upgraded> {
        let mut upgrade = self.upgrade.lock();
        if let Some(answer) = upgrade.answer.take() {
            *upgrade = Upgrade::default();
            self.upgrading.store(false, Ordering::Release);
            return Poll::Ready(answer);
        }
        upgrade.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Records that the wire waits for its client since this moment.
    pub(super) fn wait_since(&self, since: Instant, part: RequestPart) {
        let micros = since.saturating_duration_since(self.opened_at).as_micros();
        let micros = u64::try_from(micros).unwrap_or(u64::MAX >> 2);
        self.waiting.store(((micros + 1) << 1) | u64::from(part == RequestPart::Body), Ordering::Release);
    }

    /// Records that the client has sent something.
    pub(super) fn end_wait(&self) {
        self.waiting.store(0, Ordering::Release);
    }

    // === the listener ===

    /// How long the connection has waited for its client, if it may be closed: no call is in progress on it, or the call's body has
    /// been late for more than [`BODY_GRACE`].
    pub(super) fn evictable_for(&self, now: Instant) -> Option<Duration> {
        let waiting = self.waiting.load(Ordering::Acquire);
        let since = self.opened_at + Duration::from_micros((waiting >> 1).checked_sub(1)?);
        let waited = now.saturating_duration_since(since);
        let is_body = waiting & 1 == 1;
        let allowed = if is_body { waited > BODY_GRACE } else { self.is_idle() };
        allowed.then_some(waited)
    }

    /// Asks the connection to close, because a new one needs its slot.
    pub(super) fn evict(&self) {
        self.evicted.notify_one();
    }

    /// Returns when the listener needs the slot and the connection still only waits for its client.
    pub(super) async fn evicted(&self) {
        loop {
            self.evicted.notified().await;
            if self.evictable_for(Instant::now()).is_some() {
                return;
            }
        }
    }

    // === above hyper ===

    /// Counts a call. Returns the number of an HTTP/1 request.
    pub(super) fn enter(&self) -> u64 {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.calls.fetch_add(1, Ordering::AcqRel)
    }

    /// Counts the end of a call, finished or abandoned.
    pub(super) fn leave(&self, end: CallEnd, most_abandoned: u32) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        match end {
            // Never below zero: many finished streams must not permit a flood of abandoned ones.
            CallEnd::Finished => {
                let _ = self
                    .abandoned
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n > 0).then(|| n - 1));
            }
            CallEnd::Abandoned => {
                if self.abandoned.fetch_add(1, Ordering::AcqRel) >= i64::from(most_abandoned) {
                    self.flooded.notify_one();
                }
            }
        }
    }

    /// Returns once the client has abandoned too many streams.
    pub(super) async fn flooded(&self) {
        self.flooded.notified().await;
    }

    pub(super) fn refusal_of(&self, number: u64) -> Option<Refusal> {
        self.refused.get().filter(|(refused, _)| *refused == number).map(|(_, refusal)| *refusal)
    }

    pub(super) fn asks_upgrade(&self, number: u64) -> bool {
        self.upgrading.load(Ordering::Acquire) && self.upgrade.lock().asked_by == Some(number)
    }

    /// Tells the wire whether the upgrade was granted.
    pub(super) fn answer_upgrade(&self, answer: Upgraded) {
        let mut upgrade = self.upgrade.lock();
        upgrade.answer = Some(answer);
        if let Some(waker) = upgrade.waker.take() {
            waker.wake();
        }
    }
}

/// The part of a request that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestPart {
    /// The head, or the first byte of the next one.
    Head,
    Body,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// Its answer was sent completely.
    Finished,
    /// The client disconnected first.
    Abandoned,
}
