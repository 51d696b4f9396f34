//! The caches that this process told the store of, and whether they may answer.

use std::sync::{Arc, Weak};

use crate::key::KeyId;
use crate::store::{Invalidate, Trust};
use crate::sync::Mutex;

/// Caches of done records, vouched for while invalidations of other processes reach this one.
pub(super) struct Caches(Mutex<Known>);

struct Known {
    caches: Vec<Weak<dyn Invalidate>>,
    trust: Trust,
}

impl Caches {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Known { caches: Vec::new(), trust: Trust::Unconfirmed }))
    }

    pub(super) fn attach(&self, cache: Weak<dyn Invalidate>) {
        let Some(attached) = cache.upgrade() else { return };
        let mut known = self.0.lock();
        known.caches.retain(|known| known.strong_count() > 0);
        known.caches.push(cache);
        // Within the lock, so that no other word about trust comes between.
        attached.trust(known.trust);
        drop(known);
        // After it: the last holder may drop the cache here.
        drop(attached);
    }

    pub(super) fn set_trust(&self, trust: Trust) {
        let mut known = self.0.lock();
        known.trust = trust;
        let caches = upgraded(&known.caches);
        for cache in &caches {
            cache.trust(trust);
        }
        drop(known);
    }

    pub(super) fn invalidate(&self, id: KeyId) {
        let caches = upgraded(&self.0.lock().caches);
        for cache in caches {
            cache.invalidate(id);
        }
    }
}

fn upgraded(caches: &[Weak<dyn Invalidate>]) -> Vec<Arc<dyn Invalidate>> {
    caches.iter().filter_map(Weak::upgrade).collect()
}
