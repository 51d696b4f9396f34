//! Fingerprints: a payload as 256 bits.
//!
//! A key names an effect; a fingerprint says whether two callers with that key asked for the same thing. It is made
//! in two steps, because the deployment's secret is only known after a call to the store: the request is hashed to a
//! [`Payload`], which becomes a [`Fingerprint`] under the secret. Only the fingerprint is stored, so nobody can find
//! a short body by trying all of them against a dump.
//!
//! | a payload is | two requests are the same if |
//! |---|---|
//! | [`exact`](Payload::exact) (the default) | all their parts have the same bytes |
//! | [`json`](Payload::json), [`of`](Payload::of) | their [canonical](crate::canonical) JSON without the exclusions is the same |
//! | [`none`](Payload::none) | always: the payload is not compared |

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::canonical::{CanonicalError, CanonicalLimits, Canonicalizer, Exclusions};
use crate::hex;
use crate::secret::Secret;

// One tag for each way to compare, all of one length: the same bytes compared in two ways are two payloads.
const EXACT: &[u8; 16] = b"semel exact v1\0\0";
const JSON: &[u8; 16] = b"semel json v1\0\0\0";
const NONE: &[u8; 16] = b"semel none v1\0\0\0";

/// The longest part that goes into the digest unchanged. A longer part is hashed separately first: BLAKE3 is several
/// times faster on contiguous bytes than on bytes behind length prefixes.
const INLINE: usize = 64;

/// The digest of a request: 256 bits of BLAKE3, without any secret.
///
/// It lives between a request and its claim and is never stored: with it, guesses of a short payload can be tested.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Payload([u8; 32]);

impl Payload {
    /// A payload of byte parts, such as method, path, query and body. Every byte and every border between parts counts.
    #[must_use]
    pub fn exact(parts: &[&[u8]]) -> Self {
        parts.iter().fold(PayloadHasher::new(), |hasher, part| hasher.part(part)).finish()
    }

    /// A payload of one JSON text, within the default limits. Spelling does not count, nor do the `exclusions`.
    ///
    /// # Errors
    /// The text is not JSON, or is ambiguous; see [`canonical`](crate::canonical).
    pub fn json(text: &[u8], exclusions: &Exclusions) -> Result<Self, CanonicalError> {
        Self::json_with(&mut Canonicalizer::new(), text, CanonicalLimits::DEFAULT, exclusions)
    }

    /// As [`json`](Self::json), with its own limits and reused scratch space.
    ///
    /// # Errors
    /// The text is not JSON, is ambiguous, or is beyond the limits; see [`canonical`](crate::canonical).
    pub fn json_with(
        canonicalizer: &mut Canonicalizer,
        text: &[u8],
        limits: CanonicalLimits,
        exclusions: &Exclusions,
    ) -> Result<Self, CanonicalError> {
        let mut canonical = Vec::new();
        canonicalizer.write(text, limits, exclusions, &mut canonical)?;
        Ok(PayloadHasher::tagged(JSON).part(canonical).finish())
    }

    /// A payload of a value: the same as [`json`](Self::json) of what `serde_json` writes for it.
    ///
    /// Two values are the same if their JSON is, so a NaN and a `None` are, both being `null` there.
    ///
    /// # Errors
    /// The value has no JSON, or an ambiguous one.
    pub fn of(value: &(impl Serialize + ?Sized)) -> Result<Self, PayloadError> {
        Self::of_without(value, &Exclusions::none())
    }

    /// As [`of`](Self::of), without the `exclusions`.
    ///
    /// # Errors
    /// The value has no JSON, or an ambiguous one.
    pub fn of_without(
        value: &(impl Serialize + ?Sized),
        exclusions: &Exclusions,
    ) -> Result<Self, PayloadError> {
        Ok(Self::json(&serde_json::to_vec(value)?, exclusions)?)
    }

    /// The payload of callers that do not want payloads compared. All such payloads are equal.
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

/// A value has no canonical JSON.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// The value can not be written as JSON.
    #[error("the value can not be written as JSON: {0}")]
    Serialize(#[from] serde_json::Error),
    /// Its JSON has no canonical form.
    #[error(transparent)]
    Canonical(#[from] CanonicalError),
}

/// Builds an [exact](Payload::exact) payload part by part.
///
/// ```
/// use semel::fingerprint::{Payload, PayloadHasher};
///
/// let payload = PayloadHasher::new().part("POST").part("/charges").part(b"{}").finish();
/// assert_eq!(payload, Payload::exact(&[b"POST", b"/charges", b"{}"]));
/// ```
#[derive(Clone)]
#[must_use = "a hasher gives nothing until finish() is called"]
pub struct PayloadHasher {
    /// The tag, then each part behind its length. Short, because long parts are replaced by their hashes.
    encoded: Vec<u8>,
}

impl PayloadHasher {
    /// Starts a payload without parts.
    pub fn new() -> Self {
        Self::tagged(EXACT)
    }

    /// Adds a part. An empty part counts as well: no part and an empty one differ.
    pub fn part(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.encoded.extend_from_slice(&(part.len() as u64).to_le_bytes());
        // The length says which of the two follows, so neither can be mistaken for the other.
        if part.len() <= INLINE {
            self.encoded.extend_from_slice(part);
        } else {
            self.encoded.extend_from_slice(blake3::hash(part).as_bytes());
        }
        self
    }

    /// Ends the payload.
    #[must_use]
    pub fn finish(self) -> Payload {
        Payload(blake3::hash(&self.encoded).into())
    }

    fn tagged(tag: &[u8; 16]) -> Self {
        // Enough for method, path, query and body of most requests.
        let mut encoded = Vec::with_capacity(192);
        encoded.extend_from_slice(tag);
        Self { encoded }
    }
}

impl Default for PayloadHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PayloadHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It contains parts of the request in plain text.
        f.write_str("PayloadHasher(…)")
    }
}

/// The stored form of a payload: 256 bits of keyed BLAKE3.
///
/// Comparing takes the same time wherever two fingerprints differ.
#[derive(Clone, Copy, Eq, Serialize, Deserialize)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// A fingerprint that a store returned.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes for a store.
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

    // Each part follows its length.
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
            // A long part and its digest.
            Payload::exact(&[&long]),
            Payload::exact(&[&long[1..]]),
            Payload::exact(&[digest.as_bytes()]),
            Payload::exact(&[&long[..INLINE], b"x"]),
        ]);
    }

    #[test]
    fn json_compares_values() {
        let json = |text: &str| Payload::json(text.as_bytes(), &Exclusions::none()).unwrap();
        assert_eq!(json(r#"{"a": 1.0, "b": [true]}"#), json(r#"{"b":[true],"a":1}"#));
        assert_eq!(
            json(r#"{"a":1,"b":[true]}"#),
            Payload::of(&serde_json::json!({"b": [true], "a": 1})).unwrap()
        );
        all_differ(&[
            json(r#"{"a":null}"#),
            json("{}"),
            json("null"),
            Payload::none(),
            Payload::exact(&[b"{}"]),
            Payload::exact(&[b"null"]),
        ]);
        let exclusions = Exclusions::new(["/sent_at"]).unwrap();
        let excluded = |text: &str| Payload::json(text.as_bytes(), &exclusions).unwrap();
        assert_eq!(excluded(r#"{"a":1,"sent_at":17}"#), excluded(r#"{"sent_at":"later","a":1}"#));
        assert_ne!(excluded(r#"{"a":1,"sent_at":17}"#), excluded(r#"{"a":2,"sent_at":17}"#));
        let value = serde_json::json!({"sent_at": 18, "a": 1});
        assert_eq!(Payload::of_without(&value, &exclusions).unwrap(), json(r#"{"a":1}"#));
        assert_ne!(Payload::of(&value).unwrap(), json(r#"{"a":1}"#));
    }

    #[test]
    fn json_refuses_what_is_ambiguous() {
        let error = Payload::json(br#"{"amount":1,"amount":100}"#, &Exclusions::none()).unwrap_err();
        let sentence = "the JSON can not be compared: a member name occurs twice in one object; send every name once, at byte 12";
        assert_eq!(error.to_string(), sentence);
        let no_text: std::collections::BTreeMap<[u8; 2], u8> = [([1, 2], 3)].into();
        assert!(matches!(Payload::of(&no_text), Err(PayloadError::Serialize(_))));
        let limits = CanonicalLimits::DEFAULT.size(3);
        assert!(Payload::json_with(&mut Canonicalizer::new(), b"[1]", limits, &Exclusions::none()).is_ok());
        assert!(Payload::json_with(&mut Canonicalizer::new(), b"[1] ", limits, &Exclusions::none()).is_err());
    }

    // Computed with another implementation of BLAKE3. A change here turns every retry into a conflict.
    #[test]
    fn fingerprints_never_change() {
        let secret = Secret::from_bytes(std::array::from_fn(|i| i as u8));
        let json = Payload::json(r#"{"b": "\u00e9", "a": 1.0}"#.as_bytes(), &Exclusions::none()).unwrap();
        let vectors = [
            (
                Payload::exact(&[b"POST", b"/charges", b"", br#"{"amount":1}"#]),
                "5fc5845651d2d6602c800cfc16c94ca3e50e3a801617b12d3118bc99f489b763",
            ),
            (json, "a64753ae58e7fa71bf71997e645131ed00999905064a2b5bc5a982997fe09781"),
            (Payload::none(), "1c93c885256772dc5a7149747afb1117200ec22759ba3333b6f0e36c995a0ae0"),
        ];
        for (payload, expected) in vectors {
            assert_eq!(payload.fingerprint(&secret).as_bytes(), &hex::read(expected.as_bytes()).unwrap());
        }
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

    #[test]
    fn debug_shows_little() {
        assert_eq!(format!("{:?}", Payload::none()), "Payload(…)");
        assert_eq!(format!("{:?}", Fingerprint::from_bytes([0xab; 32])), "Fingerprint(abababab…)");
    }
}
