//! The window: which of the last N keys were recorded.

use std::fmt;

use super::WindowKey;
use super::index::{Entry, Index};
use super::ring::Ring;
use super::seed::Seed;
use crate::sync::Mutex;

/// How many keys a window holds unless told otherwise.
pub const DEFAULT_CAPACITY: usize = 100_000;

/// The largest capacity a window can be given.
pub const MAX_CAPACITY: usize = 1 << 31;

/// Every how many keys of the capacity one spare slot is kept, for the holes that [`Window::forget`] leaves.
const KEYS_PER_SPARE: usize = 8;

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
    capacity: usize,
    seed: Seed,
    /// Points from keys to slots. A slot whose key no cell points to is a hole.
    index: Index,
    ring: Ring,
    /// The only lock. Whoever writes to `index` or `ring` holds it.
    ends: Mutex<Ends>,
}

/// Which part of the ring is in use.
#[derive(Default)]
struct Ends {
    /// The slot of the oldest key, or of a hole before it.
    first: usize,
    /// Slots in use from there on, holes included.
    used: usize,
    /// Keys among them.
    len: usize,
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
        let slots = capacity + capacity.div_ceil(KEYS_PER_SPARE);
        Ok(Self {
            capacity,
            seed,
            index: Index::new(capacity)?,
            ring: Ring::new(slots, capacity)?,
            ends: Mutex::default(),
        })
    }

    /// Records `key` unless it is in the window: `true` the first time, `false` after that.
    ///
    /// When the window is full, recording a new key lets the oldest one out. Of any number of threads that
    /// bring the same key at once, exactly one gets `true`.
    #[must_use = "the answer says whether the operation is new"]
    pub fn check_and_record(&self, key: WindowKey) -> bool {
        let hash = self.seed.hash(key);
        if self.index.seen(hash, |slot| self.ring.holds(slot, key)) {
            return false;
        }
        let mut ends = self.ends.lock();
        if self.find(hash, key).is_some() {
            return false;
        }
        self.record(&mut ends, hash, key);
        true
    }

    /// Whether `key` is in the window. Changes nothing.
    #[must_use]
    pub fn contains(&self, key: WindowKey) -> bool {
        let hash = self.seed.hash(key);
        if self.index.seen(hash, |slot| self.ring.holds(slot, key)) {
            return true;
        }
        let _ends = self.ends.lock();
        self.find(hash, key).is_some()
    }

    /// Takes a key out, as if it had not been recorded: for an operation whose apply failed.
    ///
    /// The room it leaves is room for the next key, which then lets nobody out. A key that had left to make
    /// room for this one does not come back. Forgetting costs no more than checking, except that once in
    /// capacity / 8 times, at most, the keys are moved together (about a millisecond for 100,000).
    pub fn forget(&self, key: WindowKey) -> Forget {
        let hash = self.seed.hash(key);
        let mut ends = self.ends.lock();
        let Some(entry) = self.find(hash, key) else { return Forget::NotHeld };
        self.index.remove(entry);
        ends.len -= 1;
        // Forgetting the newest is the usual case, and needs no hole.
        if entry.slot as usize == self.slot_at(ends.first, ends.used - 1) {
            ends.used -= 1;
        }
        Forget::TakenBack
    }

    /// How many keys are in the window now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.lock().len
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
        size_of::<Self>() + self.index.memory() + self.ring.memory()
    }

    /// Needs the lock.
    fn find(&self, hash: u32, key: WindowKey) -> Option<Entry> {
        self.index.find(hash, |slot| self.ring.holds(slot, key))
    }

    fn record(&self, ends: &mut Ends, hash: u32, key: WindowKey) {
        if ends.len == self.capacity {
            self.let_oldest_out(ends);
        } else if ends.used == self.ring.slots() {
            self.close_holes(ends);
        }
        let slot = self.slot_at(ends.first, ends.used) as u32;
        self.ring.write(slot, key);
        self.index.insert(Entry { hash, slot });
        ends.used += 1;
        ends.len += 1;
    }

    /// Takes the oldest key out, and the holes before it.
    fn let_oldest_out(&self, ends: &mut Ends) {
        loop {
            let entry = self.entry_of(ends.first);
            ends.first = self.slot_at(ends.first, 1);
            ends.used -= 1;
            if self.index.remove(entry) {
                ends.len -= 1;
                return;
            }
        }
    }

    /// Moves the keys together, in their order, so that all holes are at the end. Each call is paid for by
    /// the forgets that made the holes, more than one in [`KEYS_PER_SPARE`] of the capacity.
    fn close_holes(&self, ends: &mut Ends) {
        let mut kept = 0;
        for ahead in 0..ends.used {
            let from = self.slot_at(ends.first, ahead);
            let to = self.slot_at(ends.first, kept);
            let entry = self.entry_of(from);
            if from == to {
                kept += usize::from(self.index.holds(entry));
            } else if self.index.holds(entry) {
                // `to` is a hole, or the slot of a key that has been moved: nothing points to it.
                self.ring.write(to as u32, self.ring.read(from as u32));
                self.index.move_to(entry, to as u32);
                kept += 1;
            }
        }
        ends.used = kept;
    }

    /// The entry that the index has for this slot, unless the slot is a hole.
    fn entry_of(&self, slot: usize) -> Entry {
        let slot = slot as u32;
        Entry { hash: self.seed.hash(self.ring.read(slot)), slot }
    }

    fn slot_at(&self, first: usize, ahead: usize) -> usize {
        let slot = first + ahead;
        if slot >= self.ring.slots() { slot - self.ring.slots() } else { slot }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window").field("len", &self.len()).field("capacity", &self.capacity).finish()
    }
}

#[cfg(test)]
mod tests;
