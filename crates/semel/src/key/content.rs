//! Keys from content: the hash of the payload.

use std::fmt;
use std::str;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::canonical::{CanonicalError, CanonicalLimits, Exclusions, canonicalize};
use crate::fingerprint::PayloadError;

/// The hash function of a [`ContentHash`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Algorithm {
    /// SHA-256, which every language has.
    #[default]
    Sha256,
    /// BLAKE3, which is faster.
    Blake3,
}

/// The hash of a payload's canonical JSON without the exclusions, to be used as the value of a key.
///
/// The same payload gives the same hash in every process and version: member order, white space and the spelling of
/// numbers and escapes do not count. It displays as 64 lowercase hex characters and is plain SHA-256 (or BLAKE3) of
/// the canonical bytes, so callers in other languages can compute it.
///
/// ```
/// use semel::canonical::Exclusions;
/// use semel::key::{ContentHash, Key};
///
/// let volatile = Exclusions::new(["/meta/sent_at", "/meta/retry"])?;
/// let body = br#"{"risk": 7, "meta": {"sent_at": "2026-03-01T10:00:00Z", "retry": 2}}"#;
/// let key = Key::new("price").value(ContentHash::of_json(body, &volatile)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash {
    /// Stored as text, because a key contains the text.
    hex: [u8; 64],
}

impl ContentHash {
    /// The SHA-256 of a JSON text.
    ///
    /// # Errors
    /// The text is not JSON, or is ambiguous; see [`canonical`](crate::canonical).
    pub fn of_json(text: &[u8], exclusions: &Exclusions) -> Result<Self, CanonicalError> {
        Self::of_json_with(Algorithm::Sha256, text, exclusions)
    }

    /// The hash of a JSON text by the `algorithm`.
    ///
    /// # Errors
    /// The text is not JSON, or is ambiguous; see [`canonical`](crate::canonical).
    pub fn of_json_with(
        algorithm: Algorithm,
        text: &[u8],
        exclusions: &Exclusions,
    ) -> Result<Self, CanonicalError> {
        let mut canonical = Vec::new();
        canonicalize(text, CanonicalLimits::DEFAULT, exclusions, &mut canonical)?;
        Ok(Self::from_hash(match algorithm {
            Algorithm::Sha256 => Sha256::digest(&canonical).into(),
            Algorithm::Blake3 => blake3::hash(&canonical).into(),
        }))
    }

    /// The SHA-256 of what `serde_json` writes for a value.
    ///
    /// # Errors
    /// The value has no JSON, or an ambiguous one.
    pub fn of(value: &(impl Serialize + ?Sized), exclusions: &Exclusions) -> Result<Self, PayloadError> {
        Self::of_with(Algorithm::Sha256, value, exclusions)
    }

    /// The hash of what `serde_json` writes for a value, by the `algorithm`.
    ///
    /// # Errors
    /// The value has no JSON, or an ambiguous one.
    pub fn of_with(
        algorithm: Algorithm,
        value: &(impl Serialize + ?Sized),
        exclusions: &Exclusions,
    ) -> Result<Self, PayloadError> {
        Ok(Self::of_json_with(algorithm, &serde_json::to_vec(value)?, exclusions)?)
    }

    /// The 64 hex characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.hex).expect("hex is ASCII")
    }

    fn from_hash(hash: [u8; 32]) -> Self {
        // blake3's hex is the same lowercase hex for any 32 bytes.
        let text = blake3::Hash::from_bytes(hash).to_hex();
        Self { hex: text.as_bytes().try_into().expect("32 bytes are 64 hex characters") }
    }
}

impl AsRef<[u8]> for ContentHash {
    fn as_ref(&self) -> &[u8] {
        &self.hex
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({}…)", &self.as_str()[..8])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    fn none() -> Exclusions {
        Exclusions::none()
    }

    // printf '%s' '{"amount":12.5,"id":"7f"}' | sha256sum, and printf 0 | b3sum
    #[test]
    fn other_languages_can_compute_it() {
        let hash = ContentHash::of_json(br#"{ "id": "7f", "amount": 12.50 }"#, &none()).unwrap();
        assert_eq!(hash.to_string(), "aac5f8f47af070e0297a3ab1fd5298eb5dd0c070480de6416660743fabe91712");
        let hash = ContentHash::of_json_with(Algorithm::Blake3, b"-0.0", &none()).unwrap();
        assert_eq!(hash.as_str(), "4d067153ac729a4a7e8220c97935ffba67487860d58298ceeb23864369867d9f");
    }

    #[test]
    fn order_and_excluded_fields_do_not_count() {
        let volatile = Exclusions::new(["/sent_at", "/meta/retry", "/items/1/ts"]).unwrap();
        let hash = |text: &str| ContentHash::of_json(text.as_bytes(), &volatile).unwrap();
        let one = hash(r#"{"sent_at":1,"meta":{"retry":0,"by":"x"},"items":[{"ts":1},{"ts":2,"n":3}]}"#);
        assert_eq!(
            one,
            hash(r#"{"items":[{"ts":1},{"n":3,"ts":9}],"meta":{"by":"x","retry":5},"sent_at":2}"#)
        );
        assert_eq!(one, hash(r#"{"items":[{"ts":1},{"n":3}],"meta":{"by":"x"}}"#));
        assert_ne!(one, hash(r#"{"items":[{"ts":2},{"n":3}],"meta":{"by":"x"}}"#));
        assert_ne!(one, hash(r#"{"items":[{"ts":1},{"n":4}],"meta":{"by":"x"}}"#));
    }

    // Decimals, dates and UUIDs are text or exact numbers on the wire, so they hash alike everywhere.
    #[test]
    fn values_and_their_texts_agree() {
        #[derive(Serialize)]
        struct Order {
            total: &'static str,
            rate: f64,
            due: &'static str,
            id: &'static str,
            count: u64,
        }
        let order = Order {
            total: "12.50",
            rate: 0.1,
            due: "2026-03-01",
            id: "6f1c0c1e-5a4b-4c6e-9f5e-1d2a3b4c5d6e",
            count: u64::MAX,
        };
        let text = r#"{"count":18446744073709551615,"due":"2026-03-01",
            "id":"6f1c0c1e-5a4b-4c6e-9f5e-1d2a3b4c5d6e","rate":0.1,"total":"12.50"}"#;
        let hash = ContentHash::of(&order, &none()).unwrap();
        assert_eq!(hash, ContentHash::of_json(text.as_bytes(), &none()).unwrap());
        assert_ne!(hash, ContentHash::of_with(Algorithm::Blake3, &order, &none()).unwrap());
    }

    #[test]
    fn a_hash_is_a_value() {
        let hash = ContentHash::of_json(b"[]", &none()).unwrap();
        assert_eq!(Key::new("n").value(hash), Key::new("n").value(hash.to_string()));
        assert_eq!(format!("{hash:?}"), format!("ContentHash({}…)", &hash.to_string()[..8]));
    }
}
