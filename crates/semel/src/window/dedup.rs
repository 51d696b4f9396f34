//! The window: which of the last N keys were recorded.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::WindowKey;
use super::seed::Seed;
use super::table::{Place, Table};
use super::turn::Turn;

/// How many keys a window holds unless told otherwise.
pub const DEFAULT_CAPACITY: usize = 100_000;

/// The largest capacity a window can be given.
pub const MAX_CAPACITY: usize = 1 << 30;

/// Remembers the last `capacity` keys that were recorded, exactly.
///
/// The oldest *recorded* key leaves first; seeing a key again does not renew it. Nothing is sampled and
/// nothing is approximate: a repeat inside the window is never taken for new, and a key that is not in the
/// window is never taken for a repeat.
///
/// A key costs 34 bytes, all allocated when the window is made. Checking costs the same whether the window is
/// empty or full. Any thread may call it: a repeat is answered without a lock, a new key takes one short lock.
///
/// The window lives in memory and starts empty; what must survive a restart or an eviction is the business of
/// [`Marks`](super::Marks).
///
/// ```
/// use semel::window::{Window, WindowKey};
///
/// let window = Window::new(2)?;
/// let key = |n: u64| WindowKey::derive(b"session-1", n, b"payload");
/// assert!(window.check_and_record(key(1)));
/// assert!(!window.check_and_record(key(1)));
/// assert!(window.check_and_record(key(2)));
/// assert!(window.check_and_record(key(3))); // the oldest, 1, leaves
/// assert!(!window.contains(key(1)));
/// # Ok::<(), semel::window::WindowError>(())
/// ```
pub struct Window {
    table: Table,
    /// Where the held keys stand in the table, oldest to newest, in a ring. When it is full, the slot for the
    /// next key is the slot of the oldest.
    order: Box<[AtomicU32]>,
    /// The only lock. Whoever writes to `table` or `order` holds it.
    ends: Turn<Ends>,
}

/// Which part of the ring is in use.
#[derive(Default)]
struct Ends {
    /// The slot for the next key.
    next: AtomicUsize,
    /// How many slots before that one are in use.
    len: AtomicUsize,
}

/// What became of a key that was to be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forget {
    /// It was in the window and has been taken out.
    TakenBack,
    /// It was not in the window: never recorded, or out already.
    NotHeld,
}

/// Why a window could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// A window of nothing would take every repeat for new.
    #[error("a window's capacity must be at least 1: with 0 it would take every repeat for new")]
    ZeroCapacity,
    /// The capacity is above [`MAX_CAPACITY`], or memory for it cannot be had.
    #[error("no memory for a window of {capacity} keys (34 bytes each, at most {MAX_CAPACITY} keys)")]
    TooLarge {
        /// The capacity that was asked for.
        capacity: usize,
    },
}

impl Window {
    /// Makes an empty window that holds `capacity` keys. [`DEFAULT_CAPACITY`] is a good start.
    ///
    /// # Errors
    /// [`WindowError::ZeroCapacity`] for zero, [`WindowError::TooLarge`] if memory cannot hold it.
    pub fn new(capacity: usize) -> Result<Self, WindowError> {
        Self::with_seed(capacity, Seed::random())
    }

    fn with_seed(capacity: usize, seed: Seed) -> Result<Self, WindowError> {
        if capacity == 0 {
            return Err(WindowError::ZeroCapacity);
        }
        if capacity > MAX_CAPACITY {
            return Err(WindowError::TooLarge { capacity });
        }
        let order = super::allocate(capacity, capacity)?;
        Ok(Self { table: Table::new(capacity, seed)?, order, ends: Turn::default() })
    }

    /// Records `key` unless it is in the window: `true` the first time, `false` after that.
    ///
    /// When the window is full, recording a new key lets the oldest one out. Of any number of threads that
    /// bring the same key at once, exactly one gets `true`.
    #[must_use = "the answer says whether the operation is new"]
    pub fn check_and_record(&self, key: WindowKey) -> bool {
        let key = self.table.sketch(key);
        if self.table.find(&key).is_some() {
            return false;
        }
        let ends = self.ends.take();
        if self.table.find(&key).is_some() {
            return false;
        }
        let next = ends.next.load(Ordering::Relaxed);
        let len = ends.len.load(Ordering::Relaxed);
        let slot = &self.order[next];
        if len == self.order.len() {
            self.table.remove(Place::from_bits(slot.load(Ordering::Relaxed)));
        } else {
            ends.len.store(len + 1, Ordering::Relaxed);
        }
        slot.store(self.table.insert(&key).to_bits(), Ordering::Relaxed);
        ends.next.store(if next + 1 == self.order.len() { 0 } else { next + 1 }, Ordering::Relaxed);
        true
    }

    /// Whether `key` is in the window. Changes nothing.
    #[must_use]
    pub fn contains(&self, key: WindowKey) -> bool {
        let key = self.table.sketch(key);
        if self.table.find(&key).is_some() {
            return true;
        }
        let _ends = self.ends.take();
        self.table.find(&key).is_some()
    }

    /// Takes a key out, as if it had not been recorded: for an operation whose apply failed.
    ///
    /// The room it leaves is room for the next key, which then lets nobody out. A key that had left to make
    /// room for this one does not come back. Forgetting the newest key costs no more than checking; an older
    /// one costs a step (about a nanosecond) for each key recorded since.
    pub fn forget(&self, key: WindowKey) -> Forget {
        let key = self.table.sketch(key);
        let ends = self.ends.take();
        let Some(place) = self.table.find(&key) else { return Forget::NotHeld };
        self.table.remove(place);
        // Those recorded since move up by one, the newest first, until the slot of this key is overwritten.
        let newest = self.before(ends.next.load(Ordering::Relaxed));
        let mut slot = newest;
        let mut follower = place.to_bits();
        loop {
            let here = self.order[slot].load(Ordering::Relaxed);
            self.order[slot].store(follower, Ordering::Relaxed);
            if here == place.to_bits() {
                break;
            }
            follower = here;
            slot = self.before(slot);
        }
        ends.next.store(newest, Ordering::Relaxed);
        ends.len.store(ends.len.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        Forget::TakenBack
    }

    /// How many keys are in the window now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.take().len.load(Ordering::Relaxed)
    }

    /// Whether no key is in the window.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys the window holds when it is full.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.order.len()
    }

    /// Bytes the window occupies, all of which it holds from the start.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.table.memory() + size_of_val::<[AtomicU32]>(&self.order)
    }

    /// The slot of the ring before this one.
    fn before(&self, slot: usize) -> usize {
        if slot == 0 { self.order.len() - 1 } else { slot - 1 }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("len", &self.len()).field("capacity", &self.capacity()).finish()
    }
}

#[cfg(test)]
mod tests;
