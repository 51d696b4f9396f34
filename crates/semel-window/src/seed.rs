//! A seeded hash for untrusted keys.

use super::WindowKey;

/// The secret of one window. Any `u128` may be a key: without the secret, nobody can choose keys that collide in one
/// bucket.
pub(super) struct Seed([u64; 6]);

/// A key as the table stores it, computed once per call and outside the lock.
pub(super) struct HashedKey {
    /// The key's bucket, unless it is full.
    pub(super) home: usize,
    /// Distinguishes the keys of a bucket; never zero.
    pub(super) tag: u8,
    /// The lower half, and the upper half masked with a secret hash of the lower one. There is no 128-bit atomic, so
    /// a concurrent reader may get halves of two keys. The mask keeps them from matching a third key.
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

    /// Hashes a key for a table with this number of buckets.
    #[inline]
    pub(super) fn hash_key(&self, key: WindowKey, buckets: usize) -> HashedKey {
        let (low, high) = (key.as_u128() as u64, (key.as_u128() >> 64) as u64);
        self.hash_halves([low, high ^ self.mask(low)], buckets)
    }

    /// Hashes the key that has these [halves](HashedKey::halves).
    #[inline]
    pub(super) fn hash_halves(&self, halves: [u64; 2], buckets: usize) -> HashedKey {
        let hash = self.hash(halves[0], halves[1] ^ self.mask(halves[0]));
        // The upper bits, scaled to the table, are the home: no power of two and no division is needed.
        let home = ((hash >> 32) * buckets as u64) >> 32;
        HashedKey { home: home as usize, tag: (hash as u8).max(1), halves }
    }

    /// Two rounds of multiply and fold: the first mixes both halves with the secret, the second spreads values that
    /// are still close.
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
        // A writer replaces the key between the two loads of a reader.
        let key = |low: u64, high: u64| WindowKey::from(u128::from(high) << 64 | u128::from(low));
        let seed = Seed::random();
        let halves = |key| seed.hash_key(key, 100).halves;
        let (old, new, asked) = (halves(key(5, 1)), halves(key(6, 2)), halves(key(5, 2)));
        assert_ne!([old[0], new[1]], asked);
        assert_ne!([new[0], old[1]], halves(key(6, 1)));
    }

    #[test]
    fn halves_lead_back_to_the_home() {
        let seed = Seed::random();
        for n in 0..1_000_u128 {
            let hashed = seed.hash_key(WindowKey::from(n << 60), 77);
            assert!(hashed.home < 77 && hashed.tag != 0);
            let again = seed.hash_halves(hashed.halves, 77);
            assert_eq!((again.home, again.tag), (hashed.home, hashed.tag));
        }
    }
}
