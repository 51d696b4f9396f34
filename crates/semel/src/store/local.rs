//! What an in-process store owes to others after a change: wake the waiters, clean the caches.

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
        // A call in the same process cannot get lost; but only once the cache is known here.
        attached.trust(Trust::Confirmed);
    }

    /// To be called once the change is durable, before it is acknowledged.
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
            | Command::Settle(_) => {}
        }
        self.wakeups.wake(id);
    }

    fn invalidate(&self, id: KeyId) {
        // Outside the lock: a cache may attach another one, or be dropped here by its last holder.
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
