//! The circuit breaker for a Redis that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::outage::{OutageEntry, Server};
use crate::store::Error;
use crate::sync::Mutex;

/// Open while Redis is unavailable. Every change is logged, and nothing else is.
#[derive(Debug)]
pub(super) struct RedisBreaker {
    server: Arc<Server>,
    outage: Mutex<Option<OutageEntry>>,
    /// Counts the changes, so it is odd while closed: it begins open, until Redis has answered for the first time. It
    /// tells a call in which period it began, so that a late failure of an earlier period does not open the breaker
    /// again.
    changes: AtomicU64,
    opened: Notify,
}

/// A period in which Redis answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Period(u64);

impl RedisBreaker {
    /// Begins open.
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self { server, outage: Mutex::default(), changes: AtomicU64::new(0), opened: Notify::new() }
    }

    /// Redis is unavailable at the start.
    pub(super) fn stay_open(&self, error: &Error) {
        *self.outage.lock() = Some(self.server.begin(&error.to_string()));
    }

    /// The current period, if a call may use Redis now.
    pub(super) fn admit(&self) -> Option<Period> {
        let changes = self.changes.load(Ordering::Acquire);
        (!changes.is_multiple_of(2)).then_some(Period(changes))
    }

    /// A call of that period has failed.
    pub(super) fn open(&self, Period(period): Period, error: &Error) {
        // Held until the entry is written: it must not be written after the breaker has closed again.
        let mut outage = self.outage.lock();
        let changed =
            self.changes.compare_exchange(period, period + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if changed {
            *outage = Some(self.server.begin(&error.to_string()));
            self.opened.notify_one();
        }
    }

    /// Redis answers, and its entries from before are no longer used.
    pub(super) fn close(&self) {
        let mut outage = self.outage.lock();
        let close = |changes: u64| changes.is_multiple_of(2).then_some(changes + 1);
        let _ = self.changes.fetch_update(Ordering::AcqRel, Ordering::Acquire, close);
        if let Some(outage) = outage.take() {
            outage.end();
        }
    }

    /// Returns once it is open.
    pub(super) async fn is_open(&self) {
        while self.admit().is_some() {
            self.opened.notified().await;
        }
    }

    /// How often it was opened and closed. A start without Redis is neither; the first change is then a closing.
    pub(super) fn changes(&self) -> (u64, u64) {
        let changes = self.changes.load(Ordering::Acquire);
        (changes / 2, changes.div_ceil(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    fn unavailable() -> Error {
        Error::new(ErrorKind::Unavailable, "unavailable")
    }

    fn breaker() -> RedisBreaker {
        RedisBreaker::new(Server::of("redis://breaker.test", "copies"))
    }

    #[test]
    fn one_failure_opens_and_only_closing_closes() {
        let breaker = breaker();
        assert!(breaker.admit().is_none(), "nobody has heard Redis yet");
        breaker.close();
        let period = breaker.admit().expect("it was heard");
        breaker.open(period, &unavailable());
        assert!(breaker.admit().is_none());
        assert_eq!(breaker.changes(), (1, 1));
    }

    #[test]
    fn a_late_failure_of_an_earlier_period_changes_nothing() {
        let breaker = breaker();
        breaker.close();
        let earlier = breaker.admit().expect("closed");
        breaker.open(earlier, &unavailable());
        breaker.close();
        breaker.open(earlier, &unavailable());
        assert!(breaker.admit().is_some());
        breaker.close();
        assert_eq!(breaker.changes(), (1, 2), "closed twice is closed once");
    }
}
