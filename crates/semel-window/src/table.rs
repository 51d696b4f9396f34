//! Which keys are held: buckets of seven cells, the tags of a bucket in one word.
//!
//! Seven bytes of a bucket's word are the tags of its cells, zero for a free cell. The eighth counts the keys that found
//! the bucket full and moved on to the next one. One load therefore nearly always shows whether a key is here,
//! elsewhere or missing, and the words of 100,000 keys fit into a core's own cache. A key never moves: there are no
//! tombstones and no rehashing, and its [`TablePosition`] is valid until it is removed.
//!
//! Only one thread at a time may write, under the window's lock. [`WindowTable::find`] may run concurrently.

use std::sync::atomic::{AtomicU64, Ordering};

use super::seed::{HashedKey, Seed};
use super::{WindowError, WindowKey};

/// Cells of a bucket.
const CELLS: usize = 7;

/// Capacity per bucket: with four keys for seven cells, two keys in a hundred are outside their home.
const KEYS_PER_BUCKET: usize = 4;

/// One in every byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// The lower seven bits of every byte.
const LOWER_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// The upper bit of every byte that is a tag.
const TAG_BITS: u64 = 0x0080_8080_8080_8080;

/// The first bit of the overflow count in the word.
const OVERFLOW: u32 = 56;

/// An overflow count that has reached this is no longer exact, and stays.
const OVERFLOW_MAX: u64 = 0xff;

/// The position of a key: bucket, cell, and whether the bucket is not its home.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TablePosition(u32);

pub(super) struct WindowTable {
    seed: Seed,
    words: Box<[AtomicU64]>,
    /// The halves of each key ([`HashedKey::halves`]), cell by cell.
    keys: Box<[[AtomicU64; 2]]>,
}

impl TablePosition {
    #[inline]
    fn new(bucket: usize, cell: usize, home: usize) -> Self {
        Self((bucket as u32) << 4 | u32::from(bucket != home) << 3 | cell as u32)
    }

    #[inline]
    fn bucket(self) -> usize {
        (self.0 >> 4) as usize
    }

    #[inline]
    fn cell(self) -> usize {
        (self.0 & 7) as usize
    }

    #[inline]
    fn is_displaced(self) -> bool {
        self.0 & 8 != 0
    }
}

impl WindowTable {
    /// Allocates a table for `capacity` keys.
    pub(super) fn new(capacity: usize, seed: Seed) -> Result<Self, WindowError> {
        let buckets = capacity.div_ceil(KEYS_PER_BUCKET);
        let cells = buckets.checked_mul(CELLS).ok_or(WindowError::TooLarge { capacity })?;
        Ok(Self { seed, words: super::allocate(buckets, capacity)?, keys: super::allocate(cells, capacity)? })
    }

    /// Allocated bytes, without the struct itself.
    pub(super) fn memory(&self) -> usize {
        size_of_val::<[AtomicU64]>(&self.words) + size_of_val::<[[AtomicU64; 2]]>(&self.keys)
    }

    /// Hashes a key for the other methods.
    #[inline]
    pub(super) fn hash_key(&self, key: WindowKey) -> HashedKey {
        self.seed.hash_key(key, self.words.len())
    }

    /// The position of a key.
    ///
    /// Without the lock, `Some` is right (the key was in the table during the call), and `None` means "ask again under
    /// the lock".
    #[inline]
    pub(super) fn find(&self, key: &HashedKey) -> Option<TablePosition> {
        let mut bucket = key.home;
        for _ in 0..self.words.len() {
            // Acquire: a thread that sees the tag sees the key.
            let word = self.words[bucket].load(Ordering::Acquire);
            let mut matches = zero_tags(word ^ (ONES * u64::from(key.tag)));
            while matches != 0 {
                let cell = lowest(matches);
                if self.halves(bucket, cell) == key.halves {
                    return Some(TablePosition::new(bucket, cell, key.home));
                }
                matches &= matches - 1;
            }
            if word >> OVERFLOW == 0 {
                break;
            }
            bucket = self.next(bucket);
        }
        None
    }

    /// Adds a new key. There must be fewer keys than the capacity.
    #[inline]
    pub(super) fn insert(&self, key: &HashedKey) -> TablePosition {
        let mut bucket = key.home;
        loop {
            let word = self.words[bucket].load(Ordering::Relaxed);
            let free = zero_tags(word);
            if free != 0 {
                let cell = lowest(free);
                let [low, high] = &self.keys[bucket * CELLS + cell];
                low.store(key.halves[0], Ordering::Relaxed);
                high.store(key.halves[1], Ordering::Relaxed);
                self.words[bucket].store(word | u64::from(key.tag) << (cell * 8), Ordering::Release);
                return TablePosition::new(bucket, cell, key.home);
            }
            if word >> OVERFLOW < OVERFLOW_MAX {
                self.words[bucket].store(word + (1 << OVERFLOW), Ordering::Release);
            }
            bucket = self.next(bucket);
        }
    }

    /// Removes the key at `place`.
    #[inline]
    pub(super) fn remove(&self, place: TablePosition) {
        let word = &self.words[place.bucket()];
        word.store(word.load(Ordering::Relaxed) & !(0xff << (place.cell() * 8)), Ordering::Release);
        if place.is_displaced() {
            self.uncount_overflow(place);
        }
    }

    /// Reduces the overflow counts of the buckets that the key at `place` had found full.
    #[cold]
    fn uncount_overflow(&self, place: TablePosition) {
        let halves = self.halves(place.bucket(), place.cell());
        let mut bucket = self.seed.hash_halves(halves, self.words.len()).home;
        while bucket != place.bucket() {
            let word = self.words[bucket].load(Ordering::Relaxed);
            if word >> OVERFLOW < OVERFLOW_MAX {
                self.words[bucket].store(word - (1 << OVERFLOW), Ordering::Release);
            }
            bucket = self.next(bucket);
        }
    }

    /// The longest distance of a key from its home, in buckets.
    #[cfg(test)]
    pub(super) fn longest_displacement(&self) -> usize {
        let cells = (0..self.words.len()).flat_map(|bucket| (0..CELLS).map(move |cell| (bucket, cell)));
        let held = cells
            .filter(|(bucket, cell)| self.words[*bucket].load(Ordering::Relaxed) >> (cell * 8) & 0xff != 0);
        let way = |(bucket, cell)| {
            let home = self.seed.hash_halves(self.halves(bucket, cell), self.words.len()).home;
            (bucket + self.words.len() - home) % self.words.len()
        };
        held.map(way).max().unwrap_or(0)
    }

    #[inline]
    fn halves(&self, bucket: usize, cell: usize) -> [u64; 2] {
        let [low, high] = &self.keys[bucket * CELLS + cell];
        [low.load(Ordering::Relaxed), high.load(Ordering::Relaxed)]
    }

    #[inline]
    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 == self.words.len() { 0 } else { bucket + 1 }
    }
}

/// Marks the tag bytes of `word` that are zero, and no others. (The shorter `word - ONES & !word` lets a borrow
/// run into the byte above, and so takes a free cell beside a match for one.)
#[inline]
fn zero_tags(word: u64) -> u64 {
    !(((word & LOWER_BITS) + LOWER_BITS) | word) & TAG_BITS
}

#[inline]
fn lowest(marks: u64) -> usize {
    (marks.trailing_zeros() / 8) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tags_are_searched() {
        assert_eq!(zero_tags(0x0101_0101_0101_0101), 0);
        assert_eq!(zero_tags(0x0001_0101_0101_0101), 0, "the count is no tag");
        assert_eq!(lowest(zero_tags(0xff01_0101_0001_0101)), 3);
        assert_eq!(lowest(zero_tags(0xff00_0101_0101_0101)), 6);
        assert_eq!(zero_tags(0), TAG_BITS);
    }

    /// An evicted key was found again: its cell was free, but the key's tag was 1 and the cell below it matched,
    /// and subtracting from that match borrowed from the free cell, which then looked like a match as well.
    /// What the cell had kept of the key did the rest.
    #[test]
    fn a_free_cell_above_a_match_is_no_match() {
        let word = 0x00_00_00_00_00_00_00_01_u64; // the lowest cell has tag 1, the others are free
        assert_eq!(zero_tags(word ^ ONES), 0x80);
    }

    #[test]
    fn a_place_keeps_its_parts() {
        for (bucket, cell, home) in [(0, 0, 0), (0, 6, 5), (1 << 28, 3, 1 << 28), ((1 << 28) - 1, 6, 0)] {
            let place = TablePosition::new(bucket, cell, home);
            assert_eq!((place.cell(), place.is_displaced()), (cell, bucket != home));
            assert_eq!(place.bucket(), bucket % (1 << 28));
        }
    }
}
