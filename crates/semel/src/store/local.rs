//! What an in-process store does after a change: it wakes the waiters and invalidates the caches.

use std::sync::Weak;

use super::{Invalidate, Trust, Wakeups, Watch};
use crate::key::KeyId;
use crate::record::{Command, Ruling};
use crate::sync::Mutex;

/// Waiters and caches of one process.
#[derive(Default)]
pub(super) struct Local {
    wakeups: Wakeups,
    caches: Mutex<Vec<Weak<dyn Invalidate>>>,
}

impl Local {
    pub(super) fn watch(&self, id: KeyId) -> Watch {
        self.wakeups.watch(id)
    }

    pub(super) fn attach(&self, cache: Weak<dyn Invalidate>) {
        let Some(attached) = cache.upgrade() else { return };
        {
            let mut caches = self.caches.lock();
            caches.retain(|known| known.strong_count() > 0);
            caches.push(cache);
        }
        // A call in the same process cannot get lost, but only after the cache is registered here.
        attached.trust(Trust::Confirmed);
    }

    /// Must be called once the change is durable, before it is acknowledged.
    pub(super) fn announce(&self, id: KeyId, command: &Command, ruling: &Ruling) {
        if !matches!(ruling, Ruling::Accepted { .. }) {
            return;
        }
        match command {
            Command::Claim(_) | Command::Begin(_) | Command::Renew(_) => return,
            Command::Forget(_) | Command::Reexecute => self.invalidate(id),
            Command::Complete { .. }
            | Command::Release(_)
            | Command::Bind(_)
            | Command::Abandon(_)
            | Command::Settle(_)
            | Command::SettleAttempt(..) => {}
        }
        self.wakeups.wake(id);
    }

    fn invalidate(&self, id: KeyId) {
        // Outside the lock: a cache may attach another one, or may be dropped here.
        let caches: Vec<_> = self.caches.lock().iter().filter_map(Weak::upgrade).collect();
        for cache in caches {
            cache.invalidate(id);
        }
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("wakeups", &self.wakeups).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};
    use std::time::Duration;

    use super::*;
    use crate::fingerprint::Fingerprint;
    use crate::key::Hint;
    use crate::outcome::Outcome;
    use crate::record::{Begin, Epoch, Fence, Force, Grant, NewClaim, Owner, Phase, Settlement, Terms, Win};

    const KEY: KeyId = KeyId::from_bytes([1; 16]);
    const ACCEPTED: Ruling = Ruling::Accepted { lease_left: Duration::ZERO };

    #[derive(Default)]
    struct Cache {
        local: Mutex<Option<Arc<Local>>>,
        told: AtomicUsize,
        /// The number of invalidations when it became trusted.
        told_at_trust: AtomicUsize,
    }

    impl Invalidate for Cache {
        fn invalidate(&self, _: KeyId) {
            self.told.fetch_add(1, Ordering::SeqCst);
            let local = self.local.lock().take();
            if let Some(local) = local {
                let other: Arc<dyn Invalidate> = Arc::new(Cache::default());
                local.attach(Arc::downgrade(&other));
            }
        }

        fn trust(&self, trust: Trust) {
            assert_eq!(trust, Trust::Confirmed);
            // A forget at the moment in which the cache begins to answer.
            let local = self.local.lock().take();
            if let Some(local) = local {
                local.announce(KEY, &Command::Forget(Force::No), &ACCEPTED);
            }
            self.told_at_trust.store(self.told.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }

    fn attach(local: &Local, cache: &Arc<Cache>) {
        let weak: Weak<dyn Invalidate> = Arc::<Cache>::downgrade(cache);
        local.attach(weak);
    }

    fn grant() -> Grant {
        Grant::from_parts(Owner::from_bytes([1; 16]), Fence::new(1))
    }

    fn commands() -> Vec<(Command, Ruling)> {
        let outcome = Arc::new(Outcome::new("text", "done"));
        let claim = NewClaim {
            owner: grant().owner(),
            fingerprint: Fingerprint::from_bytes([1; 32]),
            terms: Arc::new(Terms::default()),
            begin: Begin::Later,
            hint: Hint::default(),
        };
        let win = Win { grant: grant(), attempt: 1, epoch: Epoch::default(), lease_left: Duration::ZERO };
        let complete = Command::Complete {
            grant: grant(),
            fingerprint: claim.fingerprint,
            outcome: Arc::clone(&outcome),
            retention: None,
        };
        vec![
            (Command::Claim(claim), Ruling::Won(win)),
            (Command::Begin(grant()), ACCEPTED),
            (Command::Renew(grant()), ACCEPTED),
            (complete, ACCEPTED),
            (Command::Release(grant()), ACCEPTED),
            (Command::Bind(grant()), ACCEPTED),
            (Command::Abandon(grant()), ACCEPTED),
            (Command::Settle(Settlement::Done(outcome)), ACCEPTED),
            (Command::Forget(Force::No), ACCEPTED),
            (Command::Reexecute, ACCEPTED),
        ]
    }

    #[test]
    fn what_ends_a_wait_wakes_and_what_changes_an_outcome_invalidates() {
        let refused = Ruling::Refused { phase: Phase::Begun };
        for (command, taken) in commands() {
            let holds = matches!(command, Command::Claim(_) | Command::Begin(_) | Command::Renew(_));
            let takes_away = matches!(command, Command::Forget(_) | Command::Reexecute);
            for (ruling, wakes, invalidates) in [(&taken, !holds, takes_away), (&refused, false, false)] {
                let (local, cache) = (Local::default(), Arc::new(Cache::default()));
                attach(&local, &cache);
                let mut watch = local.watch(KEY);
                local.announce(KEY, &command, ruling);
                let woken = std::pin::pin!(watch.changed()).poll(&mut Context::from_waker(Waker::noop()));
                assert_eq!(woken.is_ready(), wakes, "{command:?} {ruling:?}");
                assert_eq!(
                    cache.told.load(Ordering::SeqCst),
                    usize::from(invalidates),
                    "{command:?} {ruling:?}"
                );
            }
        }
    }

    // A forget between trust and registration would leave the cache with a stale outcome.
    #[test]
    fn a_cache_is_known_before_it_is_trusted() {
        let local = Arc::new(Local::default());
        let cache = Arc::new(Cache { local: Mutex::new(Some(Arc::clone(&local))), ..Cache::default() });
        attach(&local, &cache);
        assert_eq!(
            cache.told_at_trust.load(Ordering::SeqCst),
            1,
            "told of a forget while it was vouched for"
        );
    }

    #[test]
    fn a_cache_may_attach_another_and_gone_ones_are_dropped() {
        let local = Arc::new(Local::default());
        let cache = Arc::new(Cache::default());
        attach(&local, &cache);
        *cache.local.lock() = Some(Arc::clone(&local));
        local.announce(KEY, &Command::Reexecute, &ACCEPTED);
        for _ in 0..100 {
            attach(&local, &Arc::new(Cache::default()));
        }
        assert!(local.caches.lock().len() <= 2, "caches that are gone take no room");
        let dead: Weak<dyn Invalidate> = Weak::<Cache>::new();
        local.attach(dead);
        local.announce(KEY, &Command::Reexecute, &ACCEPTED);
        assert_eq!(cache.told.load(Ordering::SeqCst), 2);
    }
}
