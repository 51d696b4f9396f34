//! The hot cache holds records that were completed in the last seconds, so that a burst of duplicates does not reach
//! the store.
//!
//! It holds completed records only. A claim is never cached: evicting one would make an effect happen twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::fingerprint::Fingerprint;
use crate::key::KeyId;
use crate::outcome::Outcome;
use crate::store::{Invalidate, Trust};
use crate::sync::Mutex;
use crate::time::instant;

const GATES: usize = 16;
/// The memory of an entry in addition to its outcome.
const OVERHEAD: u64 = 160;

pub(super) struct HotCache {
    cache: Cache<KeyId, Entry, ByBytes>,
    max_age: Duration,
    trusted: AtomicBool,
    /// Counts the invalidations per part of the key space. An outcome that was read before an invalidation and
    /// arrives after it is rejected: the count is compared and the entry inserted under the same lock.
    gates: [Mutex<u64>; GATES],
    /// Serialises changes of trust.
    changing: Mutex<()>,
}

#[derive(Clone)]
struct Entry {
    fingerprint: Fingerprint,
    outcome: Arc<Outcome>,
    /// When the cache drops it.
    until: Instant,
    /// When its retention ends.
    expires_at: Instant,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<KeyId, Entry> for ByBytes {
    fn weight(&self, _: &KeyId, entry: &Entry) -> u64 {
        entry.outcome.size() as u64 + OVERHEAD
    }
}

/// The cached state of a key.
pub(super) enum Hit {
    Replay {
        outcome: Arc<Outcome>,
        /// How long the outcome is still given.
        expires_in: Duration,
    },
    /// The key was used with another payload.
    Conflict,
    Miss,
}

/// A position in the order of invalidations, taken before the store is asked.
#[derive(Clone, Copy)]
pub(super) struct InvalidationPoint {
    gate: u64,
    pub(super) at: Instant,
}

impl HotCache {
    pub(super) fn new(bytes: u64, max_age: Duration) -> Self {
        let entries = usize::try_from(bytes / 512).unwrap_or(usize::MAX).clamp(1, 100_000);
        Self {
            cache: Cache::with_weighter(entries, bytes, ByBytes),
            max_age,
            trusted: AtomicBool::new(false),
            gates: std::array::from_fn(|_| Mutex::new(0)),
            changing: Mutex::new(()),
        }
    }

    fn gate(&self, id: KeyId) -> &Mutex<u64> {
        &self.gates[usize::from(id.as_bytes()[0]) % GATES]
    }

    pub(super) fn look(&self, id: KeyId, fingerprint: &Fingerprint) -> Hit {
        if !self.trusted.load(Ordering::Acquire) {
            return Hit::Miss;
        }
        let now = instant();
        match self.cache.get(&id) {
            Some(entry) if entry.until <= now => {
                self.cache.remove(&id);
                Hit::Miss
            }
            Some(entry) if entry.fingerprint == *fingerprint => {
                let expires_in = entry.expires_at.saturating_duration_since(now);
                Hit::Replay { outcome: entry.outcome, expires_in }
            }
            Some(_) => Hit::Conflict,
            None => Hit::Miss,
        }
    }

    pub(super) fn moment(&self, id: KeyId) -> InvalidationPoint {
        InvalidationPoint { gate: *self.gate(id).lock(), at: instant() }
    }

    /// Stores an outcome that was read from the store after `moment` and is valid for `expires_in` from then on.
    pub(super) fn keep(
        &self,
        moment: InvalidationPoint,
        id: KeyId,
        fingerprint: Fingerprint,
        outcome: &Arc<Outcome>,
        expires_in: Duration,
    ) {
        let gate = self.gate(id).lock();
        if moment.gate == *gate {
            let until = moment.at + expires_in.min(self.max_age);
            let expires_at = moment.at.checked_add(expires_in).unwrap_or(until);
            self.cache.insert(id, Entry { fingerprint, outcome: Arc::clone(outcome), until, expires_at });
        }
    }
}

impl Invalidate for HotCache {
    fn invalidate(&self, id: KeyId) {
        let mut gate = self.gate(id).lock();
        *gate += 1;
        self.cache.remove(&id);
    }

    fn trust(&self, trust: Trust) {
        let _changing = self.changing.lock();
        let trusted = trust == Trust::Confirmed;
        if trusted == self.trusted.load(Ordering::Acquire) {
            return;
        }
        if !trusted {
            self.trusted.store(false, Ordering::Release);
        }
        // Also on the way back: an outcome that was read in the gap may have been invalidated in the gap without
        // notice.
        for gate in &self.gates {
            *gate.lock() += 1;
        }
        self.cache.clear();
        self.trusted.store(trusted, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> (HotCache, KeyId, Fingerprint, Arc<Outcome>) {
        let cache = HotCache::new(1 << 20, Duration::from_secs(10));
        cache.trust(Trust::Confirmed);
        (
            cache,
            KeyId::from_bytes([7; 16]),
            Fingerprint::from_bytes([1; 32]),
            Arc::new(Outcome::new("json", "1")),
        )
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_done_record_replays_and_another_payload_conflicts() {
        let (cache, id, fingerprint, outcome) = parts();
        cache.keep(cache.moment(id), id, fingerprint, &outcome, LONG);
        assert!(
            matches!(cache.look(id, &fingerprint), Hit::Replay { outcome: found, .. } if found == outcome)
        );
        assert!(matches!(cache.look(id, &Fingerprint::from_bytes([2; 32])), Hit::Conflict));
    }

    #[test]
    fn what_was_read_before_an_invalidation_is_not_kept_after_it() {
        let (cache, id, fingerprint, outcome) = parts();
        let moment = cache.moment(id);
        cache.invalidate(id);
        cache.keep(moment, id, fingerprint, &outcome, LONG);
        assert!(matches!(cache.look(id, &fingerprint), Hit::Miss));
    }

    #[test]
    fn nothing_is_answered_while_invalidations_may_get_lost() {
        let (cache, id, fingerprint, outcome) = parts();
        cache.keep(cache.moment(id), id, fingerprint, &outcome, LONG);
        cache.trust(Trust::Unconfirmed);
        assert!(matches!(cache.look(id, &fingerprint), Hit::Miss));
        cache.trust(Trust::Confirmed);
        assert!(
            matches!(cache.look(id, &fingerprint), Hit::Miss),
            "what was kept before is not trusted again"
        );
    }

    // While invalidations get lost, the cache does not learn of a forgotten record. An outcome that was read in that
    // gap must not outlive it, whether it was cached in the gap or arrives after it.
    #[test]
    fn what_was_read_while_invalidations_got_lost_is_never_trusted() {
        let (cache, id, fingerprint, outcome) = parts();
        cache.trust(Trust::Unconfirmed);
        let in_the_gap = cache.moment(id);
        cache.keep(in_the_gap, id, fingerprint, &outcome, LONG);
        cache.trust(Trust::Confirmed);
        assert!(matches!(cache.look(id, &fingerprint), Hit::Miss));
        cache.keep(in_the_gap, id, fingerprint, &outcome, LONG);
        assert!(matches!(cache.look(id, &fingerprint), Hit::Miss));
        cache.keep(cache.moment(id), id, fingerprint, &outcome, LONG);
        cache.trust(Trust::Confirmed);
        assert!(matches!(cache.look(id, &fingerprint), Hit::Replay { .. }), "said twice changes nothing");
    }

    #[test]
    fn no_bytes_are_no_cache() {
        let (_, id, fingerprint, outcome) = parts();
        let cache = HotCache::new(0, Duration::from_secs(10));
        cache.trust(Trust::Confirmed);
        cache.keep(cache.moment(id), id, fingerprint, &outcome, LONG);
        assert!(matches!(cache.look(id, &fingerprint), Hit::Miss));
    }

    // The store counted from a time before it sent its answer.
    #[test]
    fn an_outcome_is_never_replayed_past_its_retention() {
        let (cache, id, fingerprint, outcome) = parts();
        cache.keep(cache.moment(id), id, fingerprint, &outcome, Duration::ZERO);
        assert!(matches!(cache.look(id, &fingerprint), Hit::Miss));
        let slow = InvalidationPoint { at: instant() - Duration::from_secs(2), ..cache.moment(id) };
        cache.keep(slow, id, fingerprint, &outcome, Duration::from_secs(1));
        assert!(matches!(cache.look(id, &fingerprint), Hit::Miss), "over before it arrived");
        cache.keep(slow, id, fingerprint, &outcome, Duration::from_secs(60));
        assert!(matches!(cache.look(id, &fingerprint), Hit::Replay { .. }));
    }
}
