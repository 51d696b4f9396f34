//! The window: which of the last N keys were recorded.

use std::fmt;

use super::WindowKey;
use super::seed::{HashedKey, Seed};
use super::table::{TablePosition, WindowTable};
use parking_lot::Mutex;

/// The default capacity of a window.
pub const DEFAULT_CAPACITY: usize = 100_000;

/// The largest capacity of a window.
pub const MAX_CAPACITY: usize = 1 << 30;

/// Remembers the last `capacity` keys that were recorded, exactly.
///
/// The oldest *recorded* key leaves first; a duplicate does not renew its key. The answer is exact: a duplicate inside
/// the window is never reported as new, and a key that is not in the window is never reported as a duplicate.
///
/// A key costs 34 bytes; a window allocates all its memory at the start. A check costs the same in an empty and in a
/// full window. Any thread may call it: a duplicate needs no lock, a new key one short lock.
///
/// The window is in memory and starts empty. The marks of a [`Receiver`](super::Receiver) survive restarts and
/// evictions.
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
    order: Mutex<RecordingOrder>,
}

/// The order in which the held keys were recorded.
struct RecordingOrder {
    /// The positions of the keys in the table, as a ring. In a full ring the next slot is that of the oldest key.
    places: Box<[TablePosition]>,
    /// The slot for the next key.
    next: usize,
    /// The number of used slots before it.
    len: usize,
}

/// The result of [`Window::forget`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgetResult {
    /// The key was in the window and is removed.
    TakenBack,
    /// The key was not in the window: never recorded, or already evicted.
    NotHeld,
}

/// Why a window could not be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// A window without capacity would report every duplicate as new.
    #[error("a window's capacity must be at least 1: with 0 it would take every repeat for new")]
    ZeroCapacity,
    /// The capacity is above [`MAX_CAPACITY`], or there is not enough memory.
    #[error("no memory for a window of {capacity} keys (34 bytes each, at most {MAX_CAPACITY} keys)")]
    TooLarge {
        /// The requested capacity.
        capacity: usize,
    },
}

impl Window {
    /// Creates an empty window for `capacity` keys. [`DEFAULT_CAPACITY`] is a good start.
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
        let order = RecordingOrder { places: super::allocate(capacity, capacity)?, next: 0, len: 0 };
        Ok(Self { capacity, table: WindowTable::new(capacity, seed)?, order: Mutex::new(order) })
    }

    /// Records `key` unless it is in the window: `true` the first time, `false` after that.
    ///
    /// A new key evicts the oldest one if the window is full. If several threads record the same key at once, exactly
    /// one gets `true`.
    #[must_use = "the answer says whether the operation is new"]
    pub fn check_and_record(&self, key: WindowKey) -> bool {
        let key = self.table.hash_key(key);
        self.table.find(&key).is_none() && self.record(&key)
    }

    /// True if `key` is in the window.
    #[must_use]
    pub fn contains(&self, key: WindowKey) -> bool {
        let key = self.table.hash_key(key);
        if self.table.find(&key).is_some() {
            return true;
        }
        let _order = self.order.lock();
        self.table.find(&key).is_some()
    }

    /// Removes a key, as if it had not been recorded: for an operation that could not be applied.
    ///
    /// The next key uses its slot and evicts no other key. The key that was evicted for this one does not return.
    /// Removing the newest key costs no more than a check; an older one costs a step (about a nanosecond) for each
    /// key recorded since.
    pub fn forget(&self, key: WindowKey) -> ForgetResult {
        let key = self.table.hash_key(key);
        let mut order = self.order.lock();
        let Some(place) = self.table.find(&key) else { return ForgetResult::NotHeld };
        self.table.remove(place);
        order.remove(place);
        ForgetResult::TakenBack
    }

    /// Number of keys in the window.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.lock().len
    }

    /// True if the window has no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of keys in a full window.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The memory of the window in bytes, constant from the start.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.table.memory() + self.capacity * size_of::<TablePosition>()
    }

    /// Records a key that was not found without the lock, unless another thread has recorded it since.
    #[inline]
    fn record(&self, key: &HashedKey) -> bool {
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

impl RecordingOrder {
    /// Removes the oldest key from a full ring, and returns its position.
    #[inline]
    fn make_room(&mut self) -> Option<TablePosition> {
        if self.len < self.places.len() {
            return None;
        }
        self.len -= 1;
        Some(self.places[self.next])
    }

    /// Adds the newest key. The ring must not be full.
    #[inline]
    fn push(&mut self, place: TablePosition) {
        self.places[self.next] = place;
        self.next = if self.next + 1 == self.places.len() { 0 } else { self.next + 1 };
        self.len += 1;
    }

    /// Removes a key of the ring, and moves the later ones by one slot.
    fn remove(&mut self, place: TablePosition) {
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
