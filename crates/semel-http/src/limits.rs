//! Rate limits of one principal: new keys and answers from the record, each with its own budget.
//!
//! A principal is the hash of a credential that was not verified, so a client can invent many. The table is therefore bounded: when it
//! is full of principals that are still over their rate, new principals share one budget.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::policy::{InsertLimits, Rate};
use crate::scope::Principal;

const SHARDS: usize = 16;
/// Maximum number of principals per shard.
const ROOM: usize = 4_096;
/// How often a full shard is searched for principals that can be removed.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The budgets of a route's principals.
pub(crate) struct Limiter {
    limits: InsertLimits,
    /// The standard hasher is keyed, so clients cannot choose principals that collide.
    shards: [Mutex<LimitShard>; SHARDS],
    shared: Mutex<Budgets>,
}

#[derive(Default)]
struct LimitShard {
    known: HashMap<[u8; 32], Budgets>,
    looked: Option<Instant>,
}

/// The kind of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetKind {
    Writes,
    Reads,
}

#[derive(Clone, Copy)]
struct Budgets {
    writes: Bucket,
    reads: Bucket,
}

/// A token bucket: refills at a rate, up to a burst.
#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self { tokens: f64::from(rate.burst), at: now }
    }

    fn refill(&mut self, rate: Rate, now: Instant) {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * f64::from(rate.per_second)).min(f64::from(rate.burst));
        self.at = now;
    }

    fn take(&mut self, rate: Rate, now: Instant) -> Result<(), Duration> {
        self.refill(rate, now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.tokens) / f64::from(rate.per_second)))
    }

    fn give_back(&mut self, rate: Rate) {
        self.tokens = (self.tokens + 1.0).min(f64::from(rate.burst));
    }
}

impl Limiter {
    pub(crate) fn new(limits: InsertLimits) -> Self {
        let now = Instant::now();
        Self {
            limits,
            shards: std::array::from_fn(|_| Mutex::default()),
            shared: Mutex::new(Budgets {
                writes: Bucket::full(limits.writes, now),
                reads: Bucket::full(limits.reads, now),
            }),
        }
    }

    /// Takes a token from a budget, or returns when one will be available.
    pub(crate) fn take(&self, principal: Option<&Principal>, budget: BudgetKind) -> Result<(), Duration> {
        let now = Instant::now();
        self.with(principal, now, |budgets| match budget {
            BudgetKind::Writes => budgets.writes.take(self.limits.writes, now),
            BudgetKind::Reads => budgets.reads.take(self.limits.reads, now),
        })
    }

    /// Returns the token of a write that did not happen.
    pub(crate) fn give_back_write(&self, principal: Option<&Principal>) {
        self.with(principal, Instant::now(), |budgets| budgets.writes.give_back(self.limits.writes));
    }

    fn with<T>(&self, principal: Option<&Principal>, now: Instant, act: impl FnOnce(&mut Budgets) -> T) -> T {
        let id = principal.map_or([0; 32], |principal| *principal.as_bytes());
        let mut shard = self.shards[usize::from(id[0]) % SHARDS].lock();
        if shard.known.len() >= ROOM && !shard.known.contains_key(&id) {
            if shard.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK_EVERY) {
                shard.looked = Some(now);
                self.forget_idle(&mut shard, now);
            }
            if shard.known.len() >= ROOM {
                drop(shard);
                return act(&mut self.shared.lock());
            }
        }
        let budgets = match shard.known.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Budgets {
                writes: Bucket::full(self.limits.writes, now),
                reads: Bucket::full(self.limits.reads, now),
            }),
        };
        act(budgets)
    }

    /// Removes principals whose budget is full again: they are the same as new ones.
    fn forget_idle(&self, shard: &mut LimitShard, now: Instant) {
        let InsertLimits { writes, reads } = self.limits;
        shard.known.retain(|_, budgets| {
            budgets.writes.refill(writes, now);
            budgets.reads.refill(reads, now);
            budgets.writes.tokens < f64::from(writes.burst) || budgets.reads.tokens < f64::from(reads.burst)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter() -> Limiter {
        let rate = |per_second, burst| Rate { per_second, burst };
        Limiter::new(InsertLimits { writes: rate(2, 3), reads: rate(10, 5) })
    }

    fn principal(number: u32) -> Principal {
        Principal::new(&["test"], &number.to_le_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn burst_then_rate_each_principal_for_itself() {
        let limiter = limiter();
        let (one, other) = (principal(1), principal(2));
        for _ in 0..3 {
            limiter.take(Some(&one), BudgetKind::Writes).unwrap();
        }
        let wait = limiter.take(Some(&one), BudgetKind::Writes).unwrap_err();
        assert_eq!(wait, Duration::from_millis(500));
        limiter.take(Some(&one), BudgetKind::Reads).unwrap();
        limiter.take(Some(&other), BudgetKind::Writes).unwrap();
        tokio::time::advance(Duration::from_millis(500)).await;
        limiter.take(Some(&one), BudgetKind::Writes).unwrap();
        limiter.take(Some(&one), BudgetKind::Writes).unwrap_err();
        limiter.give_back_write(Some(&one));
        limiter.take(Some(&one), BudgetKind::Writes).unwrap();
    }

    // Invented principals fill neither the memory nor the budget of another principal.
    #[tokio::test(start_paused = true)]
    async fn the_table_is_bounded() {
        let limiter = limiter();
        let known = principal(0);
        limiter.take(Some(&known), BudgetKind::Writes).unwrap();
        let mut refused = 0;
        for number in 1..200_000 {
            refused += usize::from(limiter.take(Some(&principal(number)), BudgetKind::Writes).is_err());
        }
        let remembered: usize = limiter.shards.iter().map(|shard| shard.lock().known.len()).sum();
        assert_eq!(remembered, SHARDS * ROOM);
        assert_eq!(refused, 199_999 - (SHARDS * ROOM - 1) - 3, "the rest shared one budget of three");
        limiter.take(Some(&known), BudgetKind::Writes).unwrap();
        tokio::time::advance(Duration::from_secs(10)).await;
        limiter.take(Some(&principal(199_999)), BudgetKind::Writes).unwrap();
        assert!(
            limiter.shards.iter().any(|shard| shard.lock().known.len() == 1),
            "the idle ones were removed"
        );
    }
}
