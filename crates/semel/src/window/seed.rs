//! A seeded hash for keys that a stranger may have chosen.

use super::WindowKey;
use super::ring::halves;

/// The secret of one window. Keys are hash output when [`WindowKey::derive`] made them, but any `u128` may be
/// one; without the secret nobody can choose keys that meet in one corner of the table.
pub(super) struct Seed([u64; 4]);

impl Seed {
    pub(super) fn random() -> Self {
        Self(rand::random())
    }

    #[cfg(test)]
    pub(super) fn known(seed: [u64; 4]) -> Self {
        Self(seed)
    }

    /// Two rounds of multiply and fold: the first binds both halves to the secret, the second spreads what
    /// little the first may have left together.
    pub(super) fn hash(&self, key: WindowKey) -> u32 {
        let [a, b, c, d] = self.0;
        let (low, high) = halves(key);
        let bound = fold(low ^ a, high ^ b);
        (fold(bound ^ c, d | 1) >> 32) as u32
    }
}

fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    (product as u64) ^ (product >> 64) as u64
}
