//! A seeded hash for keys that a stranger may have chosen.

use super::WindowKey;

/// The secret of one window. Keys are hash output when [`WindowKey::derive`] made them, but any `u128` may be
/// one; without the secret nobody can choose keys that meet in one bucket.
pub(super) struct Seed([u64; 6]);

/// What the window needs to know of a key, worked out once per call and outside the lock.
pub(super) struct Sketch {
    /// The key's bucket, unless that is full.
    pub(super) home: usize,
    /// Tells neighbours apart; never zero.
    pub(super) tag: u8,
    /// The key as the table keeps it: the lower half, and the upper half masked with a secret hash of the
    /// lower. A reader beside a writer may get halves of two keys, as there is no 128-bit atomic. It does not
    /// take them for a third key: for that, masks would have to agree in 64 bits that nobody knows.
    pub(super) halves: [u64; 2],
}

impl Seed {
    pub(super) fn random() -> Self {
        Self(rand::random())
    }

    #[cfg(test)]
    pub(super) fn known(seed: [u64; 6]) -> Self {
        Self(seed)
    }

    /// Sketches a key for a table with this number of buckets.
    #[inline]
    pub(super) fn sketch(&self, key: WindowKey, buckets: usize) -> Sketch {
        let (low, high) = (key.as_u128() as u64, (key.as_u128() >> 64) as u64);
        self.sketch_of([low, high ^ self.mask(low)], buckets)
    }

    /// Sketches the key that has these [halves](Sketch::halves).
    #[inline]
    pub(super) fn sketch_of(&self, halves: [u64; 2], buckets: usize) -> Sketch {
        let hash = self.hash(halves[0], halves[1] ^ self.mask(halves[0]));
        // The upper bits, scaled to the table, are the home: that spares a power of two and a division.
        let home = ((hash >> 32) * buckets as u64) >> 32;
        Sketch { home: home as usize, tag: (hash as u8).max(1), halves }
    }

    /// Two rounds of multiply and fold: the first binds both halves to the secret, the second spreads what
    /// little the first may have left together.
    #[inline]
    fn hash(&self, low: u64, high: u64) -> u64 {
        let [a, b, c, d, ..] = self.0;
        fold(fold(low ^ a, high ^ b) ^ c, d | 1)
    }

    #[inline]
    fn mask(&self, low: u64) -> u64 {
        let [.., e, f] = self.0;
        fold(low ^ e, f | 1)
    }
}

#[inline]
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_two_keys_are_not_a_third() {
        // What a reader gets that is overtaken between its two loads.
        let key = |low: u64, high: u64| WindowKey::from(u128::from(high) << 64 | u128::from(low));
        let seed = Seed::random();
        let halves = |key| seed.sketch(key, 100).halves;
        let (old, new, asked) = (halves(key(5, 1)), halves(key(6, 2)), halves(key(5, 2)));
        assert_ne!([old[0], new[1]], asked);
        assert_ne!([new[0], old[1]], halves(key(6, 1)));
    }

    #[test]
    fn halves_lead_back_to_the_home() {
        let seed = Seed::random();
        for n in 0..1_000_u128 {
            let sketch = seed.sketch(WindowKey::from(n << 60), 77);
            assert!(sketch.home < 77 && sketch.tag != 0);
            let again = seed.sketch_of(sketch.halves, 77);
            assert_eq!((again.home, again.tag), (sketch.home, sketch.tag));
        }
    }
}
