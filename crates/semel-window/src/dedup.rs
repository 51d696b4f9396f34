//! The window: which of the last N keys were recorded.

use std::fmt;

use super::WindowKey;
use super::seed::{Seed, Sketch};
use super::table::{Place, WindowTable};
use parking_lot::Mutex;

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
/// the marks of a [`Receiver`](super::Receiver).
///
/// ```
/// use semel_window::{Window, WindowKey};
///
/// let window = Window::new(2)?;
/// let key = |n: u64| WindowKey::derive(b"session-1", n, b"payload");
/// assert!(window.check_and_record(key(1)));
/// assert!(!window.check_and_record(key(1)));
/// assert!(window.check_and_record(key(2)));
/// assert!(window.check_and_record(key(3))); // the oldest, 1, leaves
/// assert!(!window.contains(key(1)));
/// # Ok::<(), semel_window::WindowError>(())
/// ```
pub struct Window {
    capacity: usize,
    table: WindowTable,
    /// The only lock. Every write to `table` holds it.
    order: Mutex<Order>,
}

/// In which order the held keys were recorded.
struct Order {
    /// Where each stands in the table, in a ring. When it is full, the slot for the next is that of the oldest.
    places: Box<[Place]>,
    /// The slot for the next key.
    next: usize,
    /// How many slots before that one are in use.
    len: usize,
}

/// What became of a key that was to be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgetResult {
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
        let order = Order { places: super::allocate(capacity, capacity)?, next: 0, len: 0 };
        Ok(Self { capacity, table: WindowTable::new(capacity, seed)?, order: Mutex::new(order) })
    }

    /// Records `key` unless it is in the window: `true` the first time, `false` after that.
    ///
    /// When the window is full, recording a new key lets the oldest one out. Of any number of threads that
    /// bring the same key at once, exactly one gets `true`.
    #[must_use = "the answer says whether the operation is new"]
    pub fn check_and_record(&self, key: WindowKey) -> bool {
        let key = self.table.sketch(key);
        self.table.find(&key).is_none() && self.record(&key)
    }

    /// Whether `key` is in the window. Changes nothing.
    #[must_use]
    pub fn contains(&self, key: WindowKey) -> bool {
        let key = self.table.sketch(key);
        if self.table.find(&key).is_some() {
            return true;
        }
        let _order = self.order.lock();
        self.table.find(&key).is_some()
    }

    /// Takes a key out, as if it had not been recorded: for an operation whose apply failed.
    ///
    /// The room it leaves is room for the next key, which then lets nobody out. A key that had left to make
    /// room for this one does not come back. Forgetting the newest key costs no more than checking; an older
    /// one costs a step (about a nanosecond) for each key recorded since.
    pub fn forget(&self, key: WindowKey) -> ForgetResult {
        let key = self.table.sketch(key);
        let mut order = self.order.lock();
        let Some(place) = self.table.find(&key) else { return ForgetResult::NotHeld };
        self.table.remove(place);
        order.take_out(place);
        ForgetResult::TakenBack
    }

    /// How many keys are in the window now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.lock().len
    }

    /// Whether no key is in the window.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys the window holds when it is full.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes the window occupies, all of which it holds from the start.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.table.memory() + self.capacity * size_of::<Place>()
    }

    /// Records a key that did not seem to be held, unless it is after all.
    #[inline]
    fn record(&self, key: &Sketch) -> bool {
        let mut order = self.order.lock();
        if self.table.find(key).is_some() {
            return false;
        }
        if let Some(oldest) = order.make_room() {
            self.table.remove(oldest);
        }
        order.push(self.table.insert(key));
        true
    }
}

impl Order {
    /// Lets the oldest go if there is no slot for another.
    #[inline]
    fn make_room(&mut self) -> Option<Place> {
        if self.len < self.places.len() {
            return None;
        }
        self.len -= 1;
        Some(self.places[self.next])
    }

    /// Puts the newest into the ring. There must be room.
    #[inline]
    fn push(&mut self, place: Place) {
        self.places[self.next] = place;
        self.next = if self.next + 1 == self.places.len() { 0 } else { self.next + 1 };
        self.len += 1;
    }

    /// Takes out one that is in the ring, and moves those recorded since up by one.
    fn take_out(&mut self, place: Place) {
        self.next = self.before(self.next);
        self.len -= 1;
        let mut slot = self.next;
        let mut later = place;
        while self.places[slot] != place {
            later = std::mem::replace(&mut self.places[slot], later);
            slot = self.before(slot);
        }
        self.places[slot] = later;
    }

    fn before(&self, slot: usize) -> usize {
        slot.checked_sub(1).unwrap_or(self.places.len() - 1)
    }
}

impl Default for Window {
    /// A window of [`DEFAULT_CAPACITY`] keys.
    fn default() -> Self {
        Self::new(DEFAULT_CAPACITY).expect("the default capacity is not zero, and takes less than 4 MB")
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("len", &self.len()).field("capacity", &self.capacity).finish()
    }
}

#[cfg(test)]
mod tests;
