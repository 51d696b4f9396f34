//! The 128-bit name of one operation of one session.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};

/// The first byte of [`WindowKey::to_bytes`].
const VERSION: u8 = 1;

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
///
/// # On the wire
/// A leader can ship the key with the operation, so that followers need not hash the operation. There are two forms, and
/// neither changes in a later version:
/// - [`to_bytes`](Self::to_bytes): 17 bytes, the version (1) and the number little endian. With [`derive`](Self::derive),
///   the last 16 are the first 16 bytes of the hash.
/// - [`to_string`](ToString::to_string): 32 lowercase hexadecimal digits, the most significant first.
///
/// With serde, formats for people (JSON) get the text and others (postcard) the 17 bytes.
///
/// ```
/// # use semel_window::WindowKey;
/// let key = WindowKey::derive(b"session-1", 1, b"set a=1");
/// assert_eq!(WindowKey::from_bytes(&key.to_bytes())?, key);
/// assert_eq!("68af871641e8ab3409ea221f9f06ea93".parse::<WindowKey>()?, key);
/// # Ok::<(), semel_window::WindowKeyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowKey(u128);

/// Why bytes or a text are not a [`WindowKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowKeyError {
    /// The number of bytes is wrong: they were cut, or are something else.
    #[error("a window key has {} bytes, got {got}", WindowKey::BYTES)]
    Length {
        /// The number of bytes.
        got: usize,
    },
    /// The first byte is a version that this library does not know.
    #[error(
        "window key of version {got}: this library reads version {VERSION}; update the receiver before the sender"
    )]
    Version {
        /// The first byte.
        got: u8,
    },
    /// The text is not 32 lowercase hexadecimal digits.
    #[error("expected a window key of 32 lowercase hexadecimal digits")]
    Text,
}

impl WindowKey {
    /// The number of bytes of [`to_bytes`](Self::to_bytes).
    pub const BYTES: usize = 17;

    /// Derives the key of `operation`, sent as number `sequence` of `session`.
    #[must_use]
    pub fn derive(session: &[u8], sequence: u64, operation: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(session);
        hasher.update(&sequence.to_le_bytes());
        hasher.update(operation);
        Self::from_hash(&hasher)
    }

    /// The first 16 bytes of a hash.
    pub(super) fn from_hash(hasher: &blake3::Hasher) -> Self {
        let mut first = [0; 16];
        hasher.finalize_xof().fill(&mut first);
        Self(u128::from_le_bytes(first))
    }

    /// The key as [17 bytes](Self#on-the-wire).
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [VERSION; Self::BYTES];
        bytes[1..].copy_from_slice(&self.0.to_le_bytes());
        bytes
    }

    /// Reads a key that [`to_bytes`](Self::to_bytes) wrote, in this version or an earlier one.
    ///
    /// # Errors
    /// [`WindowKeyError::Length`] and [`WindowKeyError::Version`] for bytes that are not such a key.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WindowKeyError> {
        let [version, key @ ..] = bytes else { return Err(WindowKeyError::Length { got: 0 }) };
        if *version != VERSION {
            return Err(WindowKeyError::Version { got: *version });
        }
        let key = key.try_into().map_err(|_| WindowKeyError::Length { got: bytes.len() })?;
        Ok(Self(u128::from_le_bytes(key)))
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

impl FromStr for WindowKey {
    type Err = WindowKeyError;

    /// Reads the 32 digits that `Display` writes.
    fn from_str(text: &str) -> Result<Self, WindowKeyError> {
        // `from_str_radix` also takes a sign, fewer digits and upper case.
        if text.len() != 32 || !text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(WindowKeyError::Text);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| WindowKeyError::Text)
    }
}

impl Serialize for WindowKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.to_bytes().serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for WindowKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            std::borrow::Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
        } else {
            Self::from_bytes(&<[u8; Self::BYTES]>::deserialize(deserializer)?).map_err(D::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_test::{Configure as _, Token};

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

    /// The bytes that `struct.pack("<BQQ", 1, key & (2**64 - 1), key >> 64)` gives in Python.
    #[test]
    fn bytes_and_text_are_fixed() {
        let key = WindowKey::derive(b"session-1", 1, b"set a=1");
        let bytes = *b"\x01\x93\xea\x06\x9f\x1f\x22\xea\x09\x34\xab\xe8\x41\x16\x87\xaf\x68";
        assert_eq!(key.to_bytes(), bytes);
        assert_eq!(WindowKey::from_bytes(&bytes), Ok(key));
        assert_eq!(blake3::hash(b"session-1\x01\0\0\0\0\0\0\0set a=1").as_bytes()[..16], bytes[1..]);
        assert_eq!(serde_json::to_string(&key).unwrap(), r#""68af871641e8ab3409ea221f9f06ea93""#);
        let highest = WindowKey::from(u128::MAX);
        assert_eq!(highest.to_bytes()[1..], [0xff; 16]);
        assert_eq!(WindowKey::from_bytes(&highest.to_bytes()), Ok(highest));
    }

    #[test]
    fn bad_bytes_and_texts_are_errors() {
        let good = WindowKey::from(7).to_bytes();
        for length in (0..64).filter(|length| *length != WindowKey::BYTES) {
            let bytes: Vec<u8> = good.iter().copied().cycle().take(length).collect();
            assert_eq!(WindowKey::from_bytes(&bytes), Err(WindowKeyError::Length { got: length }));
        }
        for version in (0..=u8::MAX).filter(|version| *version != VERSION) {
            let mut bytes = good;
            bytes[0] = version;
            assert_eq!(WindowKey::from_bytes(&bytes), Err(WindowKeyError::Version { got: version }));
        }
        let digits = "68af871641e8ab3409ea221f9f06ea93";
        let bad =
            ["", &digits[1..], "+8af871641e8ab3409ea221f9f06ea93", &digits.to_uppercase(), &"é".repeat(16)];
        for text in bad {
            assert_eq!(text.parse::<WindowKey>(), Err(WindowKeyError::Text), "{text}");
            let error = serde_json::from_value::<WindowKey>(text.into()).unwrap_err();
            assert!(error.to_string().contains("32 lowercase"), "{error}");
        }
        assert!(serde_json::from_str::<WindowKey>("7").is_err());
    }

    proptest::proptest! {
        #[test]
        fn every_form_leads_back_to_the_key(number: u128) {
            let key = WindowKey::from(number);
            proptest::prop_assert_eq!(WindowKey::from_bytes(&key.to_bytes()), Ok(key));
            proptest::prop_assert_eq!(key.to_string().parse(), Ok(key));
            let json = serde_json::to_vec(&key).unwrap();
            proptest::prop_assert_eq!(serde_json::from_slice::<WindowKey>(&json).unwrap(), key);
            let mut tokens = vec![Token::Tuple { len: WindowKey::BYTES }];
            tokens.extend(key.to_bytes().map(Token::U8));
            tokens.push(Token::TupleEnd);
            serde_test::assert_tokens(&key.compact(), &tokens);
        }

        #[test]
        fn any_bytes_are_a_key_or_an_error(
            version in 0..3_u8,
            rest in proptest::collection::vec(proptest::num::u8::ANY, 14..19),
        ) {
            let bytes = [&[version], &rest[..]].concat();
            if let Ok(key) = WindowKey::from_bytes(&bytes) {
                proptest::prop_assert_eq!(&key.to_bytes()[..], &bytes[..]);
            }
        }
    }
}
