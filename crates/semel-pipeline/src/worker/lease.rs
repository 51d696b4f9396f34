//! How long a worker still holds a delivery.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How long a worker certainly holds a delivery. Cheap to clone; clones share the results of heartbeats.
///
/// It is counted from before the take, or the renewal, was sent: the ledger's own lease ends later. It uses the
/// machine's monotonic clock, which continues while the process is stopped (SIGSTOP, a debugger, no processor): a
/// worker that was paused for too long finds the lease expired. The clock stops while the whole machine is suspended.
#[derive(Clone)]
pub struct Lease {
    shared: Arc<LeaseShared>,
}

struct LeaseShared {
    started: Instant,
    length: Duration,
    /// In µs after `started`.
    until: AtomicU64,
    lost: AtomicBool,
}

impl Lease {
    /// The lease of a delivery from a take that was sent at `sent`.
    pub(crate) fn new(sent: Instant, length: Duration) -> Self {
        let shared =
            LeaseShared { started: sent, length, until: AtomicU64::new(0), lost: AtomicBool::new(false) };
        let lease = Self { shared: Arc::new(shared) };
        lease.extend(sent);
        lease
    }

    /// Extends the lease after a renewal that was sent at `sent`.
    pub(crate) fn extend(&self, sent: Instant) {
        let LeaseShared { started, length, until, .. } = &*self.shared;
        let end = sent.saturating_duration_since(*started).saturating_add(*length);
        until.fetch_max(u64::try_from(end.as_micros()).unwrap_or(u64::MAX), Ordering::AcqRel);
    }

    /// Another worker has the delivery.
    pub(crate) fn lose(&self) {
        self.shared.lost.store(true, Ordering::Release);
    }

    /// How long the worker certainly holds the delivery; zero once another worker may have it.
    pub fn left(&self) -> Duration {
        let LeaseShared { started, until, lost, .. } = &*self.shared;
        if lost.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        let until = Duration::from_micros(until.load(Ordering::Acquire));
        until.saturating_sub(started.elapsed())
    }

    /// True if an irreversible step may start now. A tenth of the lease is the margin for a slow thread between this
    /// check and the first byte.
    pub fn may_start(&self) -> bool {
        self.left() > self.shared.length / 10
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("left", &self.left()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn it_is_counted_from_before_the_call_that_got_it() {
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(4)).await;
        let lease = Lease::new(sent, LENGTH);
        assert_eq!(lease.left(), Duration::from_secs(6));
        tokio::time::advance(Duration::from_millis(4_999)).await;
        assert!(lease.may_start());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!lease.may_start(), "a tenth of it is left, and that is too little to start");
        assert_eq!(lease.left(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_never_shortens_it_and_a_lost_one_stays_lost() {
        let lease = Lease::new(Instant::now(), LENGTH);
        let sent = Instant::now() + Duration::from_secs(3);
        lease.extend(sent);
        lease.extend(Instant::now());
        assert_eq!(lease.left(), Duration::from_secs(13));
        lease.lose();
        lease.extend(sent);
        assert_eq!(lease.left(), Duration::ZERO);
        assert!(!lease.may_start());
    }
}
