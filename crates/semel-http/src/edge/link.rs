//! What the two ends of one connection know of each other: the [`Wire`](super::wire::Wire) below hyper, which sees the
//! bytes, and the calls above it, which see the requests.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::refusal::Refusal;

/// Shared by the two ends. HTTP/1 requests are counted from 0 on both: hyper takes them one after the other, so equal
/// numbers mean the same request.
#[derive(Debug)]
pub(super) struct Link {
    /// Requests whose answer is not finished.
    in_flight: AtomicUsize,
    /// Requests that came up from hyper so far.
    calls: AtomicU64,
    /// The request that was refused, always the last one of its connection.
    refused: OnceLock<(u64, Refusal)>,
    upgrade: Mutex<Upgrade>,
    /// Whether `upgrade` is worth locking.
    upgrading: AtomicBool,
    /// Streams abandoned, less those finished.
    abandoned: AtomicI64,
    flooded: Notify,
    /// Gives the place back when the last user of the connection is gone, be it a tunnel.
    _place: OwnedSemaphorePermit,
}

#[derive(Debug, Default)]
struct Upgrade {
    asked_by: Option<u64>,
    answer: Option<Upgraded>,
    waker: Option<Waker>,
}

/// How a request to speak something else ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upgraded {
    /// Granted: what follows is not HTTP.
    Yes,
    /// Not granted: what follows is the next request.
    No,
}

impl Link {
    pub(super) fn new(place: OwnedSemaphorePermit) -> Self {
        Self {
            in_flight: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
            refused: OnceLock::new(),
            upgrade: Mutex::default(),
            upgrading: AtomicBool::new(false),
            abandoned: AtomicI64::new(0),
            flooded: Notify::new(),
            _place: place,
        }
    }

    // === below hyper ===

    /// The request with this number is not let in.
    pub(super) fn refuse(&self, number: u64, refusal: Refusal) {
        // Set twice never: after the first one nothing more is read.
        let _ = self.refused.set((number, refusal));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0
    }

    /// How many requests came up from hyper so far.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Acquire)
    }

    /// The request with this number asks to speak something else.
    pub(super) fn ask_upgrade(&self, number: u64) {
        self.upgrade.lock().asked_by = Some(number);
        self.upgrading.store(true, Ordering::Release);
    }

    /// How that ended.
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

    // === above hyper ===

    /// Counts a call. An HTTP/1 request's number.
    pub(super) fn enter(&self) -> u64 {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.calls.fetch_add(1, Ordering::AcqRel)
    }

    /// Counts the end of a call. Says on the way whether the client abandoned it.
    pub(super) fn leave(&self, end: End, most_abandoned: u32) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        match end {
            // Never below zero: a long good life must not buy a flood.
            End::Finished => {
                let _ = self
                    .abandoned
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n > 0).then(|| n - 1));
            }
            End::Abandoned => {
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

    /// Tells the wire how the asked upgrade ended.
    pub(super) fn answer_upgrade(&self, answer: Upgraded) {
        let mut upgrade = self.upgrade.lock();
        upgrade.answer = Some(answer);
        if let Some(waker) = upgrade.waker.take() {
            waker.wake();
        }
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its answer was taken to the end.
    Finished,
    /// The client went away first.
    Abandoned,
}
