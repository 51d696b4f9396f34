//! Where in the ring a key stands: an open-addressing table of 64-bit cells.
//!
//! A cell holds 32 bits of the key's hash and the key's slot in the ring; an empty cell is zero. A cell's
//! home comes from its own hash bits, so an entry is removed by shifting its followers back without looking
//! at a single key, and the table never collects tombstones.
//!
//! Every method that writes is called by one thread at a time (the window's lock sees to that). [`Index::seen`]
//! may run beside a writer.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::WindowError;

/// How many cells stand behind each key of the capacity. At half load a search looks at two or three
/// neighbouring cells.
pub(super) const CELLS_PER_KEY: usize = 2;

/// A reader beside a writer gives up after this many cells and leaves the answer to the lock, since a table
/// that moves under it could lead it round for long.
const PATIENCE: usize = 32;

const EMPTY: u64 = 0;

/// One entry: the hash bits that choose its home, and the slot where its key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) hash: u32,
    pub(super) slot: u32,
}

impl Entry {
    /// Slots are stored one higher, so that no entry reads as empty. The ring has fewer than `u32::MAX` slots.
    fn pack(self) -> u64 {
        u64::from(self.hash) << 32 | (u64::from(self.slot) + 1)
    }

    fn unpack(cell: u64) -> Self {
        Self { hash: (cell >> 32) as u32, slot: (cell as u32).wrapping_sub(1) }
    }
}

pub(super) struct Index {
    cells: Box<[AtomicU64]>,
}

impl Index {
    /// Makes room for `capacity` keys at half load.
    pub(super) fn new(capacity: usize) -> Result<Self, WindowError> {
        let cells = capacity.checked_mul(CELLS_PER_KEY).map(|cells| cells.max(8));
        let cells = cells.ok_or(WindowError::TooLarge { capacity })?;
        Ok(Self { cells: super::allocate(cells, capacity)? })
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        size_of_val::<[AtomicU64]>(&self.cells)
    }

    /// The slot of the entry with `hash` that `is_key` recognises.
    pub(super) fn find(&self, hash: u32, is_key: impl Fn(u32) -> bool) -> Option<Entry> {
        let mut at = self.home(hash);
        loop {
            let cell = self.cells[at].load(Ordering::Relaxed);
            if cell == EMPTY {
                return None;
            }
            let entry = Entry::unpack(cell);
            if entry.hash == hash && is_key(entry.slot) {
                return Some(entry);
            }
            at = self.next(at);
        }
    }

    /// Whether a key is there, asked without the lock. `true` is always right; `false` means "ask again
    /// under the lock", since an entry may have been on the move.
    ///
    /// A slot is written only while no cell points to it. So if the cell is the same after the key was read
    /// as before, the key was not being overwritten in between, and was not read in halves.
    pub(super) fn seen(&self, hash: u32, is_key: impl Fn(u32) -> bool) -> bool {
        let mut at = self.home(hash);
        for _ in 0..PATIENCE {
            let cell = self.cells[at].load(Ordering::Acquire);
            if cell == EMPTY {
                return false;
            }
            let entry = Entry::unpack(cell);
            if entry.hash == hash && is_key(entry.slot) {
                // Pairs with the fence in `Ring::write`: whoever saw a half of a new key sees the cell gone.
                fence(Ordering::Acquire);
                return self.cells[at].load(Ordering::Relaxed) == cell;
            }
            at = self.next(at);
        }
        false
    }

    /// Adds an entry whose key is not in the table and stands in its slot already.
    pub(super) fn insert(&self, entry: Entry) {
        let mut at = self.home(entry.hash);
        while self.cells[at].load(Ordering::Relaxed) != EMPTY {
            at = self.next(at);
        }
        self.cells[at].store(entry.pack(), Ordering::Release);
    }

    /// Whether the entry is in the table.
    pub(super) fn holds(&self, entry: Entry) -> bool {
        self.position(entry).is_some()
    }

    /// Lets an entry of the table point to another slot, where its key stands already.
    pub(super) fn move_to(&self, entry: Entry, slot: u32) {
        if let Some(at) = self.position(entry) {
            self.cells[at].store(Entry { slot, ..entry }.pack(), Ordering::Release);
        }
    }

    /// Takes the entry out; `false` if it is not in the table.
    pub(super) fn remove(&self, entry: Entry) -> bool {
        let Some(mut hole) = self.position(entry) else { return false };
        let mut at = self.next(hole);
        loop {
            let cell = self.cells[at].load(Ordering::Relaxed);
            if cell == EMPTY {
                break;
            }
            // A follower may fill the hole if that does not bring it before its home.
            if self.distance(self.home(Entry::unpack(cell).hash), at) >= self.distance(hole, at) {
                self.cells[hole].store(cell, Ordering::Release);
                hole = at;
            }
            at = self.next(at);
        }
        self.cells[hole].store(EMPTY, Ordering::Release);
        true
    }

    /// The longest way from an entry's home to its cell.
    #[cfg(test)]
    pub(super) fn longest_way(&self) -> usize {
        let way = |(at, cell): (usize, &AtomicU64)| {
            let cell = cell.load(Ordering::Relaxed);
            (cell != EMPTY).then(|| self.distance(self.home(Entry::unpack(cell).hash), at))
        };
        self.cells.iter().enumerate().filter_map(way).max().unwrap_or(0)
    }

    fn position(&self, entry: Entry) -> Option<usize> {
        let wanted = entry.pack();
        let mut at = self.home(entry.hash);
        loop {
            match self.cells[at].load(Ordering::Relaxed) {
                EMPTY => return None,
                cell if cell == wanted => return Some(at),
                _ => at = self.next(at),
            }
        }
    }

    /// Scales the hash to the table, which spares a power of two and a division.
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.cells.len() as u64) >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.cells.len() { 0 } else { at + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.cells.len() - from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Entry = Entry { hash: 7, slot: 3 };

    /// A table whose entries all have the same home, the last cell but one, so that they wrap around.
    fn crowded() -> (Index, Vec<Entry>) {
        let index = Index::new(8).unwrap();
        let entries: Vec<_> = (0..6).map(|slot| Entry { hash: 0xf000_0000, slot }).collect();
        entries.iter().for_each(|entry| index.insert(*entry));
        (index, entries)
    }

    #[test]
    fn a_reader_that_is_overtaken_leaves_the_answer_to_the_lock() {
        // W4: the slot is reused while the reader compares keys, so what it compared may be two halves.
        let index = Index::new(8).unwrap();
        index.insert(OLD);
        assert!(index.seen(OLD.hash, |slot| slot == OLD.slot));
        let overtaken = index.seen(OLD.hash, |_| {
            index.remove(OLD);
            true
        });
        assert!(!overtaken);
        index.insert(OLD);
        let moved = index.seen(OLD.hash, |_| {
            index.move_to(OLD, 4);
            true
        });
        assert!(!moved);
        assert!(index.seen(OLD.hash, |slot| slot == 4));
    }

    #[test]
    fn removing_keeps_the_others_reachable_across_the_end_of_the_table() {
        let (_, entries) = crowded();
        for gone in &entries {
            let (index, _) = crowded();
            assert!(index.remove(*gone));
            assert!(!index.remove(*gone));
            for other in &entries {
                assert_eq!(index.holds(*other), other != gone, "slot {} without {}", other.slot, gone.slot);
            }
        }
    }

    #[test]
    fn a_follower_is_never_moved_before_its_home() {
        let index = Index::new(8).unwrap();
        let home = |home: u32| (home << 28) | 1; // sixteen cells: the upper four bits are the home
        let (first, second, third) = (
            Entry { hash: home(3), slot: 0 },
            Entry { hash: home(4), slot: 1 },
            Entry { hash: home(3), slot: 2 },
        );
        [first, second, third].iter().for_each(|entry| index.insert(*entry));
        index.remove(first);
        assert!(index.holds(second) && index.holds(third));
        assert_eq!(index.longest_way(), 0, "the third took the place of the first, the second stayed");
    }
}
