//! Counters of the tiered store, for people on call.

use std::sync::atomic::{AtomicU64, Ordering};

use super::breaker::RedisBreaker;

/// Whether Redis is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordination {
    /// Redis answers: copies are used, and it wakes waiters too.
    Working,
    /// Redis is unavailable: PostgreSQL serves everything.
    Away,
}

/// Counts of a [`TieredStore`](super::TieredStore) since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TieredStats {
    /// Whether Redis is currently used.
    pub coordination: Coordination,
    /// Claims answered with a copy of the outcome.
    pub replayed_copies: u64,
    /// Claims answered as busy without a query to PostgreSQL.
    pub believed_busy: u64,
    /// Claims that PostgreSQL answered.
    pub asked_postgres: u64,
    /// Entries in Redis that were not used: old, of another payload, or not written by Semel.
    pub ignored: u64,
    /// Entries written to Redis.
    pub told: u64,
    /// Failed calls to Redis. Each of these calls continued without Redis.
    pub failed: u64,
    /// Calls to Redis that were skipped because it was unavailable.
    pub without_redis: u64,
    /// How often Redis became unavailable.
    pub breaker_opened: u64,
    /// How often Redis became available; the first time counts.
    pub breaker_closed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// See [`TieredStats`] for the meaning of each counter.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) replayed_copies: Counter,
    pub(super) believed_busy: Counter,
    pub(super) asked_postgres: Counter,
    pub(super) ignored: Counter,
    pub(super) told: Counter,
    pub(super) failed: Counter,
    pub(super) without_redis: Counter,
}

impl Counters {
    pub(super) fn read(&self, breaker: &RedisBreaker) -> TieredStats {
        let (breaker_opened, breaker_closed) = breaker.changes();
        let working = breaker.admit().is_some();
        TieredStats {
            coordination: if working { Coordination::Working } else { Coordination::Away },
            replayed_copies: self.replayed_copies.get(),
            believed_busy: self.believed_busy.get(),
            asked_postgres: self.asked_postgres.get(),
            ignored: self.ignored.get(),
            told: self.told.get(),
            failed: self.failed.get(),
            without_redis: self.without_redis.get(),
            breaker_opened,
            breaker_closed,
        }
    }
}
