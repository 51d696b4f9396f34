//! Fingerprints: what was asked, as 256 bits.
//!
//! A key names an effect; a fingerprint says whether two callers with that key asked for the same thing. It is made
//! in two steps, because the deployment's secret is only known once the store was asked: a [`Payload`] is digested
//! where the request is at hand, and becomes a [`Fingerprint`] under the secret. Only the fingerprint is stored, so
//! nobody can find a short body by trying all of them against a dump.
//!
//! | a payload is | two requests are the same if |
//! |---|---|
//! | [`exact`](Payload::exact) (the default) | all their parts have the same bytes |
//! | [`none`](Payload::none) | always: the payload is not compared |

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hex;
use crate::secret::Secret;

// One tag for each way to compare, all of one length: the same bytes asked for in two ways are two payloads.
const EXACT: &[u8; 16] = b"semel exact v1\0\0";
const NONE: &[u8; 16] = b"semel none v1\0\0\0";

/// The longest part that goes into the digest as it is. A longer one is hashed by itself first: BLAKE3 is several
/// times faster on bytes that start at the border of one of its 1024-byte chunks than behind a length prefix.
const INLINE: usize = 1024;

/// The digest of what was asked: 256 bits of BLAKE3, without any secret.
///
/// It lives between a request and its claim and is never stored: whoever has it can test guesses of a short payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Payload([u8; 32]);

impl Payload {
    /// A payload of byte parts, such as method, path, query and body. Every byte and every border between parts counts.
    #[must_use]
    pub fn exact(parts: &[&[u8]]) -> Self {
        parts.iter().fold(PayloadHasher::new(), |hasher, part| hasher.part(part)).finish()
    }

    /// The payload of callers who do not want payloads compared. All such payloads are equal.
    #[must_use]
    pub fn none() -> Self {
        Self(blake3::hash(NONE).into())
    }

    /// The fingerprint of this payload in the deployment of `secret`.
    #[must_use]
    pub fn fingerprint(&self, secret: &Secret) -> Fingerprint {
        Fingerprint(blake3::keyed_hash(secret.fingerprints(), &self.0).into())
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Payload(…)")
    }
}

/// Builds an [exact](Payload::exact) payload part by part.
///
/// ```
/// use semel::fingerprint::{Payload, PayloadHasher};
///
/// let payload = PayloadHasher::new().part("POST").part("/charges").part(b"{}").finish();
/// assert_eq!(payload, Payload::exact(&[b"POST", b"/charges", b"{}"]));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a hasher gives nothing until finish() is called"]
pub struct PayloadHasher {
    hasher: blake3::Hasher,
}

impl PayloadHasher {
    /// Starts a payload without parts.
    pub fn new() -> Self {
        Self::tagged(EXACT)
    }

    /// Adds a part. An empty part counts as well: no part and an empty one differ.
    pub fn part(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.hasher.update(&(part.len() as u64).to_le_bytes());
        // The length before it says which of the two follows, so neither can be taken for the other.
        if part.len() <= INLINE {
            self.hasher.update(part);
        } else {
            self.hasher.update(blake3::hash(part).as_bytes());
        }
        self
    }

    /// Ends the payload.
    #[must_use]
    pub fn finish(self) -> Payload {
        Payload(self.hasher.finalize().into())
    }

    fn tagged(tag: &[u8; 16]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(tag);
        Self { hasher }
    }
}

impl Default for PayloadHasher {
    fn default() -> Self {
        Self::new()
    }
}

/// What a record keeps of the request that claimed its key: 256 bits of keyed BLAKE3.
///
/// Comparing takes the same time wherever two fingerprints differ.
#[derive(Clone, Copy, Eq, Serialize, Deserialize)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Takes a fingerprint that a store kept.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes that a store keeps.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        // blake3's comparison takes constant time.
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(")?;
        hex::write(f, &self.0[..4])?;
        f.write_str("…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_differ(payloads: &[Payload]) {
        for (i, one) in payloads.iter().enumerate() {
            for (j, other) in payloads.iter().enumerate().skip(i + 1) {
                assert_ne!(one, other, "payloads {i} and {j}");
            }
        }
    }

    // 5.8: each part stands behind its length.
    #[test]
    fn default_exact() {
        let long = vec![b'x'; INLINE + 1];
        let digest = blake3::hash(&long);
        all_differ(&[
            Payload::none(),
            Payload::exact(&[]),
            Payload::exact(&[b""]),
            Payload::exact(&[b"", b""]),
            Payload::exact(&[b"ab", b"c"]),
            Payload::exact(&[b"a", b"bc"]),
            Payload::exact(&[b"abc"]),
            Payload::exact(&[b"abc", b""]),
            Payload::exact(&[b"", b"abc"]),
            Payload::exact(&[b"a", b"b", b"c"]),
            // A part that spells the encoding of two.
            Payload::exact(&[b"a\x02\0\0\0\0\0\0\0bc"]),
            Payload::exact(&[NONE]),
            // A long part and the digest that stands for it.
            Payload::exact(&[&long]),
            Payload::exact(&[&long[1..]]),
            Payload::exact(&[digest.as_bytes()]),
            Payload::exact(&[&long[..INLINE], b"x"]),
        ]);
    }

    #[test]
    fn the_hasher_is_the_same_as_the_slice() {
        let long = vec![7; 5000];
        assert_eq!(PayloadHasher::new().finish(), Payload::exact(&[]));
        assert_eq!(PayloadHasher::default().part("a").part(&long).finish(), Payload::exact(&[b"a", &long]));
    }

    #[test]
    fn a_fingerprint_needs_the_secret() {
        let payload = Payload::exact(&[b"POST", b"/"]);
        let fingerprint = payload.fingerprint(&Secret::from_bytes([1; 32]));
        assert_eq!(fingerprint, payload.fingerprint(&Secret::from_bytes([1; 32])));
        assert_ne!(fingerprint, payload.fingerprint(&Secret::from_bytes([2; 32])));
        assert_ne!(fingerprint, Payload::none().fingerprint(&Secret::from_bytes([1; 32])));
        assert_ne!(fingerprint.as_bytes(), &payload.0);
        assert_eq!(Fingerprint::from_bytes(*fingerprint.as_bytes()), fingerprint);
    }

    // pii_at_rest
    #[test]
    fn debug_shows_little() {
        assert_eq!(format!("{:?}", Payload::none()), "Payload(…)");
        assert_eq!(format!("{:?}", Fingerprint::from_bytes([0xab; 32])), "Fingerprint(abababab…)");
    }
}
