//! Which keys are held: buckets of seven cells, the tags of a bucket in one word.
//!
//! Seven bytes of a bucket's word are the tags of its cells (zero where a cell is free); the eighth counts the
//! keys that found the bucket full and went on to the next one. So one load tells nearly always whether a key
//! is here, elsewhere or nowhere, and the words of 100,000 keys fit into a core's own cache. A key never moves
//! while it is held: there are no tombstones and no rehashing, and its [`Place`] stays good until it is removed.
//!
//! Only one thread at a time may write; the window's lock sees to that. [`WindowTable::find`] may run beside it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::seed::{Seed, Sketch};
use super::{WindowError, WindowKey};

/// Cells of a bucket.
const CELLS: usize = 7;

/// Keys for which one bucket is made: at four in seven, two keys in a hundred lie outside their home.
const KEYS_PER_BUCKET: usize = 4;

/// One in every byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// The lower seven bits of every byte.
const LOWER_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// The upper bit of every byte that is a tag.
const TAG_BITS: u64 = 0x0080_8080_8080_8080;

/// Where in the word the overflow count begins.
const OVERFLOW: u32 = 56;

/// An overflow count that has reached this is not exact any more, and stays.
const MANY: u64 = 0xff;

/// Where a held key stands: bucket, cell, and whether that bucket is not its home.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place(u32);

pub(super) struct WindowTable {
    seed: Seed,
    words: Box<[AtomicU64]>,
    /// The halves of each key ([`Sketch::halves`]), cell by cell.
    keys: Box<[[AtomicU64; 2]]>,
}

impl Place {
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
    /// Makes room for `capacity` keys.
    pub(super) fn new(capacity: usize, seed: Seed) -> Result<Self, WindowError> {
        let buckets = capacity.div_ceil(KEYS_PER_BUCKET);
        let cells = buckets.checked_mul(CELLS).ok_or(WindowError::TooLarge { capacity })?;
        Ok(Self { seed, words: super::allocate(buckets, capacity)?, keys: super::allocate(cells, capacity)? })
    }

    /// Bytes held beside the struct itself.
    pub(super) fn memory(&self) -> usize {
        size_of_val::<[AtomicU64]>(&self.words) + size_of_val::<[[AtomicU64; 2]]>(&self.keys)
    }

    /// Works out what the other methods need to know of a key.
    #[inline]
    pub(super) fn sketch(&self, key: WindowKey) -> Sketch {
        self.seed.sketch(key, self.words.len())
    }

    /// Where the key stands.
    ///
    /// Asked beside a writer, `Some` is right (the key was held during the call) and `None` means "ask again
    /// under the lock".
    #[inline]
    pub(super) fn find(&self, key: &Sketch) -> Option<Place> {
        let mut bucket = key.home;
        for _ in 0..self.words.len() {
            // Acquire: a thread that sees the tag sees the key.
            let word = self.words[bucket].load(Ordering::Acquire);
            let mut matches = zero_tags(word ^ (ONES * u64::from(key.tag)));
            while matches != 0 {
                let cell = lowest(matches);
                if self.halves(bucket, cell) == key.halves {
                    return Some(Place::new(bucket, cell, key.home));
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

    /// Adds a key that is not held. There must be fewer keys than the capacity.
    #[inline]
    pub(super) fn insert(&self, key: &Sketch) -> Place {
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
                return Place::new(bucket, cell, key.home);
            }
            if word >> OVERFLOW < MANY {
                self.words[bucket].store(word + (1 << OVERFLOW), Ordering::Release);
            }
            bucket = self.next(bucket);
        }
    }

    /// Takes out the key that stands at `place`.
    #[inline]
    pub(super) fn remove(&self, place: Place) {
        let word = &self.words[place.bucket()];
        word.store(word.load(Ordering::Relaxed) & !(0xff << (place.cell() * 8)), Ordering::Release);
        if place.is_displaced() {
            self.unwind(place);
        }
    }

    /// Counts the key that stood at `place` out of the buckets that it had found full.
    #[cold]
    fn unwind(&self, place: Place) {
        let halves = self.halves(place.bucket(), place.cell());
        let mut bucket = self.seed.sketch_of(halves, self.words.len()).home;
        while bucket != place.bucket() {
            let word = self.words[bucket].load(Ordering::Relaxed);
            if word >> OVERFLOW < MANY {
                self.words[bucket].store(word - (1 << OVERFLOW), Ordering::Release);
            }
            bucket = self.next(bucket);
        }
    }

    /// The longest way of a key from its home, in buckets.
    #[cfg(test)]
    pub(super) fn longest_way(&self) -> usize {
        let cells = (0..self.words.len()).flat_map(|bucket| (0..CELLS).map(move |cell| (bucket, cell)));
        let held = cells
            .filter(|(bucket, cell)| self.words[*bucket].load(Ordering::Relaxed) >> (cell * 8) & 0xff != 0);
        let way = |(bucket, cell)| {
            let home = self.seed.sketch_of(self.halves(bucket, cell), self.words.len()).home;
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
            let place = Place::new(bucket, cell, home);
            assert_eq!((place.cell(), place.is_displaced()), (cell, bucket != home));
            assert_eq!(place.bucket(), bucket % (1 << 28));
        }
    }
}
