//! The 128-bit name of one operation of one session.

use std::fmt;

/// Names one operation of one session in 128 bits.
///
/// It is the first 16 bytes, read little endian, of BLAKE3 over the session's bytes, the sequence number as
/// a little-endian `u64`, and the operation's bytes, with nothing between them. Any implementation of BLAKE3
/// gives the same key, so two ends of a link can agree on it without this library.
///
/// There are no length prefixes, so two triples with session ids of *different* lengths can have the same bytes. If
/// session ids are untrusted, use ids of one length (a UUID, a hash); a [`Receiver`](super::Receiver) does that for
/// you.
///
/// ```
/// use semel_window::WindowKey;
///
/// let key = WindowKey::derive(b"session-1", 1, b"set a=1");
/// assert_eq!(key.to_string(), "68af871641e8ab3409ea221f9f06ea93");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowKey(u128);

impl WindowKey {
    /// Derives the key of `operation`, sent as number `sequence` of `session`.
    #[must_use]
    pub fn derive(session: &[u8], sequence: u64, operation: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(session);
        hasher.update(&sequence.to_le_bytes());
        hasher.update(operation);
        let mut first = [0; 16];
        hasher.finalize_xof().fill(&mut first);
        Self(u128::from_le_bytes(first))
    }

    /// The key as a number.
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        self.0
    }
}

impl From<u128> for WindowKey {
    /// Uses a number as a key, for callers that derive keys in another way. It need not be random.
    fn from(key: u128) -> Self {
        Self(key)
    }
}

impl From<WindowKey> for u128 {
    fn from(key: WindowKey) -> Self {
        key.0
    }
}

impl fmt::Display for WindowKey {
    /// Writes 32 hexadecimal digits, the most significant first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for WindowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected numbers come from another implementation: the Python package `blake3` 1.0.11, as
    /// `int.from_bytes(blake3(session + struct.pack("<Q", sequence) + operation).digest()[:16], "little")`.
    #[test]
    fn keys_match_an_independent_implementation() {
        let long: Vec<u8> = (0..=255).cycle().take(2048).collect();
        let vectors: [(&[u8], u64, &[u8], u128); 5] = [
            (b"", 0, b"", 0xa885_262d_c5ac_b8c0_3149_5673_91a9_e071),
            (b"session-1", 1, b"set a=1", 0x68af_8716_41e8_ab34_09ea_221f_9f06_ea93),
            (b"session-1", 2, b"set a=1", 0x1a8c_b623_5aaf_036e_6e51_9924_62c2_e5ba),
            (&[0, 1, 2, 3], u64::MAX, &[0xff, 0], 0xfc19_9a82_1340_f516_1a08_a562_b7fb_58d5),
            ("αβ".as_bytes(), 0x0102_0304_0506_0708, &long, 0x3564_1b80_7403_f32a_f196_5ae4_3fa8_f25b),
        ];
        for (session, sequence, operation, expected) in vectors {
            let key = WindowKey::derive(session, sequence, operation);
            assert_eq!(key.as_u128(), expected, "session {session:?}, sequence {sequence}");
        }
    }

    #[test]
    fn text_keeps_leading_zeros() {
        assert_eq!(WindowKey::from(0xab).to_string(), format!("{}ab", "0".repeat(30)));
        assert_eq!(format!("{:?}", WindowKey::from(1)), format!("WindowKey({}1)", "0".repeat(31)));
    }
}
