//! The caches of this process that are attached to the store, and whether they may answer.

use std::sync::{Arc, Weak};

use crate::key::KeyId;
use crate::store::{Invalidate, Trust};
use crate::sync::Mutex;

/// Caches of completed records. They are trusted while invalidations of other processes reach this one and all use
/// the same secret.
pub(super) struct Caches(Mutex<KnownCache>);

struct KnownCache {
    caches: Vec<Weak<dyn Invalidate>>,
    heard: Trust,
    agreed: bool,
}

impl KnownCache {
    fn trust(&self) -> Trust {
        if self.agreed { self.heard } else { Trust::Unconfirmed }
    }
}

impl Caches {
    pub(super) fn new() -> Self {
        Self(Mutex::new(KnownCache { caches: Vec::new(), heard: Trust::Unconfirmed, agreed: true }))
    }

    pub(super) fn attach(&self, cache: Weak<dyn Invalidate>) {
        let Some(attached) = cache.upgrade() else { return };
        let mut known = self.0.lock();
        known.caches.retain(|known| known.strong_count() > 0);
        known.caches.push(cache);
        // Within the lock, so that no other change of trust comes between.
        attached.trust(known.trust());
        drop(known);
        // After it: this may be the last reference to the cache.
        drop(attached);
    }

    /// Whether invalidations reach this process.
    pub(super) fn set_trust(&self, heard: Trust) {
        self.change(|known| known.heard = heard);
    }

    /// Whether this process uses the secret of the server.
    pub(super) fn set_agreed(&self, agreed: bool) {
        self.change(|known| known.agreed = agreed);
    }

    /// Clears the caches: the server may have lost the records.
    pub(super) fn clear(&self) {
        let known = self.0.lock();
        let caches = upgraded(&known.caches);
        for cache in &caches {
            cache.trust(Trust::Unconfirmed);
            cache.trust(known.trust());
        }
        drop(known);
    }

    fn change(&self, change: impl FnOnce(&mut KnownCache)) {
        let mut known = self.0.lock();
        change(&mut known);
        let caches = upgraded(&known.caches);
        for cache in &caches {
            cache.trust(known.trust());
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
