//! Wakes the waiters of a key. Shared by all stores: in-process stores call it directly, others forward their
//! notifications to it.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::key::KeyId;
use crate::sync::Mutex;

const SHARDS: usize = 16;

/// A registry of waiters by key. Clones share it.
#[derive(Clone)]
pub struct Wakeups {
    shards: Arc<[Mutex<WatchShard>; SHARDS]>,
}

/// Only watched keys have a slot, so a wake-up for any other key is one look-up.
#[derive(Default)]
struct WatchShard {
    slots: HashMap<KeyId, Slot>,
    next_watch: u64,
}

#[derive(Default)]
struct Slot {
    /// Counts the changes. A watch that saw an older number is woken immediately: no change between reading and
    /// waiting can be missed.
    version: u64,
    watches: usize,
    wakers: Vec<(u64, Waker)>,
}

impl Wakeups {
    /// A registry without waiters.
    pub fn new() -> Self {
        Self { shards: Arc::new(std::array::from_fn(|_| Mutex::new(WatchShard::default()))) }
    }

    fn shard(&self, id: KeyId) -> &Mutex<WatchShard> {
        &self.shards[usize::from(id.as_bytes()[0]) % SHARDS]
    }

    /// Watches a key from now on.
    pub fn watch(&self, id: KeyId) -> Watch {
        let mut shard = self.shard(id).lock();
        let number = shard.next_watch;
        shard.next_watch += 1;
        let slot = shard.slots.entry(id).or_default();
        slot.watches += 1;
        Watch { wakeups: self.clone(), id, number, seen: slot.version }
    }

    /// Wakes all watches of `id`.
    pub fn wake(&self, id: KeyId) {
        let wakers = {
            let mut shard = self.shard(id).lock();
            let Some(slot) = shard.slots.get_mut(&id) else { return };
            slot.version += 1;
            std::mem::take(&mut slot.wakers)
        };
        // Outside the lock: a woken task may run immediately and watch the same key.
        for (_, waker) in wakers {
            waker.wake();
        }
    }

    /// Wakes all watches: after a gap in the notifications it is unknown what was missed.
    pub fn wake_all(&self) {
        for shard in self.shards.iter() {
            let ids: Vec<KeyId> = shard.lock().slots.keys().copied().collect();
            for id in ids {
                self.wake(id);
            }
        }
    }

    /// True if `id` is currently watched.
    pub fn is_watched(&self, id: KeyId) -> bool {
        self.shard(id).lock().slots.contains_key(&id)
    }

    /// The currently watched keys.
    pub fn keys(&self) -> Vec<KeyId> {
        self.shards.iter().flat_map(|shard| shard.lock().slots.keys().copied().collect::<Vec<_>>()).collect()
    }

    /// Number of currently watched keys.
    pub fn watched(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().slots.len()).sum()
    }
}

impl Default for Wakeups {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Wakeups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wakeups").field("watched", &self.watched()).finish()
    }
}

/// A subscription to one key. Dropping it ends it.
#[derive(Debug)]
#[must_use = "a watch wakes nobody unless it is waited for"]
pub struct Watch {
    wakeups: Wakeups,
    id: KeyId,
    number: u64,
    seen: u64,
}

impl Watch {
    /// Returns once the key has changed since the watch was created, or since this last returned.
    ///
    /// Cancel-safe: a change that arrives while nobody polls is reported by the next call.
    pub async fn changed(&mut self) {
        poll_fn(|context| self.poll_changed(context)).await;
    }

    fn poll_changed(&mut self, context: &Context<'_>) -> Poll<()> {
        // Declared before the lock is taken, so dropped after it is released: dropping a waker may drop a task, and
        // with it another watch on this shard.
        let _replaced;
        let mut shard = self.wakeups.shard(self.id).lock();
        let Some(slot) = shard.slots.get_mut(&self.id) else {
            unreachable!("a slot lives as long as a watch on it");
        };
        if slot.version != self.seen {
            self.seen = slot.version;
            return Poll::Ready(());
        }
        match slot.wakers.iter_mut().find(|(number, _)| *number == self.number) {
            Some((_, waker)) if waker.will_wake(context.waker()) => {}
            Some((_, waker)) => _replaced = std::mem::replace(waker, context.waker().clone()),
            None => slot.wakers.push((self.number, context.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Both dropped after the lock is released, as in `poll_changed`.
        let (_waker, _slot);
        let mut shard = self.wakeups.shard(self.id).lock();
        if let Some(slot) = shard.slots.get_mut(&self.id) {
            let registered = slot.wakers.iter().position(|(number, _)| *number == self.number);
            _waker = registered.map(|position| slot.wakers.swap_remove(position));
            slot.watches -= 1;
            if slot.watches == 0 {
                _slot = shard.slots.remove(&self.id);
            }
        }
    }
}
