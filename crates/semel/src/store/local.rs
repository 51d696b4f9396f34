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
        if let Some(cache) = cache.upgrade() {
            // A call in the same process cannot get lost.
            cache.trust(Trust::Confirmed);
        }
        let mut caches = self.caches.lock();
        caches.retain(|known| known.strong_count() > 0);
        caches.push(cache);
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
        for cache in self.caches.lock().iter().filter_map(Weak::upgrade) {
            cache.invalidate(id);
        }
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("wakeups", &self.wakeups).finish_non_exhaustive()
    }
}
