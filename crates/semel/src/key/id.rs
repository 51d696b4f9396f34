//! The parts of a key that a store sees: its id, and a hint for people.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::str::FromStr;

use super::origin::Origin;
use serde::{Deserialize, Serialize};

use crate::hex;

/// The id of a key: 128 bits of keyed BLAKE3 over its length-prefixed parts.
///
/// Nobody without the deployment's secret can compute it or guess the key behind it. Displays and parses as 32
/// lowercase hex characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyId([u8; 16]);

impl KeyId {
    /// An id that a store returned.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes for a store.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    pub(super) fn truncated(hash: &blake3::Hash) -> Self {
        let (head, _) = hash.as_bytes().split_first_chunk().expect("a hash has more than 16 bytes");
        Self(*head)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::write(f, &self.0)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

impl FromStr for KeyId {
    type Err = ParseKeyIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        hex::read(text.as_bytes()).map(Self).ok_or(ParseKeyIdError)
    }
}

/// The text is not a key id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key id is 32 hex characters; to find a record by its key, give namespace, scope and value")]
pub struct ParseKeyIdError;

/// What a record shows to people who look for it: the first eight characters of the key's value, and the request that it
/// was claimed for, if that is known.
///
/// Displays the characters of the key, with control and invisible ones escaped, so that they can go into a log line or a
/// terminal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Hint {
    /// UTF-8 padded with zeros. Stored inline: every claim and every record has a hint.
    bytes: [u8; Hint::LENGTH * char::MAX_LEN_UTF8],
    length: u8,
    origin: Option<Origin>,
}

impl Hint {
    /// Number of characters in a hint.
    pub const LENGTH: usize = 8;

    /// Takes the first [`LENGTH`](Self::LENGTH) characters of `value`.
    #[must_use]
    pub fn new(value: &str) -> Self {
        let end = value.char_indices().nth(Self::LENGTH).map_or(value.len(), |(at, _)| at);
        let mut hint = Self { bytes: [0; _], length: end as u8, origin: None };
        hint.bytes[..end].copy_from_slice(&value.as_bytes()[..end]);
        hint
    }

    /// Adds the request that the claim is made for. Spaces at the end of the key's characters are dropped.
    #[must_use]
    pub fn with_origin(self, origin: Origin) -> Self {
        Self { origin: Some(origin), ..Self::new(self.as_str().trim_end_matches(' ')) }
    }

    /// The request that the claim was made for.
    #[must_use]
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// The text that a store holds: the characters of the key, and behind them the origin. Versions that know no origin read
    /// the characters and ignore the rest, so an origin begins only after eight of them.
    #[must_use]
    pub fn to_stored(&self) -> Cow<'_, str> {
        match &self.origin {
            None => self.as_str().into(),
            Some(origin) => format!("{} {}", self.prefix(), origin.as_str()).into(),
        }
    }

    /// The first eight characters of [`to_stored`](Self::to_stored), for stores that show them in a column of its own.
    pub(crate) fn prefix(&self) -> Cow<'_, str> {
        match &self.origin {
            None => self.as_str().into(),
            Some(_) => format!("{:<1$}", self.as_str(), Self::LENGTH).into(),
        }
    }

    /// Reads [`to_stored`](Self::to_stored).
    #[must_use]
    pub fn from_stored(text: &str) -> Self {
        let hint = Self::new(text);
        match text.get(hint.as_str().len()..).unwrap_or_default() {
            "" => hint,
            rest => hint.with_origin(Origin::stored(rest.strip_prefix(' ').unwrap_or(rest))),
        }
    }

    /// The characters without escapes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).expect("cut between characters")
    }
}

impl From<Hint> for String {
    fn from(hint: Hint) -> Self {
        hint.as_str().to_owned()
    }
}

impl From<String> for Hint {
    fn from(value: String) -> Self {
        Self::new(&value)
    }
}

impl fmt::Debug for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hint").field(&self.as_str()).finish()
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.as_str().chars() {
            match c {
                // Harmless here, and escaping them makes ordinary keys hard to read.
                '"' | '\'' => f.write_char(c)?,
                _ => write!(f, "{}", c.escape_debug())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_what_it_writes() {
        let id = KeyId::from_bytes(std::array::from_fn(|i| 0x9 * i as u8));
        assert_eq!(id.to_string(), "0009121b242d363f48515a636c757e87");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.to_string().to_uppercase().parse(), Ok(id));
        for wrong in [
            "",
            "00",
            "0009121b242d363f48515a636c757e8",
            "0009121b242d363f48515a636c757e8g",
            "+009121b242d363f48515a636c757e87",
        ] {
            assert_eq!(wrong.parse::<KeyId>(), Err(ParseKeyIdError), "{wrong}");
        }
    }

    // A caller's input cannot write its own log lines.
    #[test]
    fn a_hint_is_short_and_safe_to_print() {
        assert_eq!(Hint::new("order-2041").to_string(), "order-20");
        assert_eq!(Hint::new("𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞").as_str(), "𝄞𝄞𝄞𝄞𝄞𝄞𝄞𝄞");
        assert_eq!(format!("{:?}", Hint::new("é")), "Hint(\"é\")");
        assert_eq!(Hint::new("it's \"x\"").to_string(), "it's \"x\"");
        assert_eq!(Hint::new("a\n\x1b[2J\u{202e}\\").to_string(), "a\\n\\u{1b}[2J\\u{202e}\\\\");
    }

    #[test]
    fn an_older_version_reads_the_characters_of_a_hint_with_an_origin() {
        let origin = Origin::new("POST", "/pay", Some("req-1"), Some("3f2a9c41"));
        for (value, shown) in
            [("order-2041", "order-20"), ("k", "k       "), ("", "        "), ("é-7  ", "é-7     ")]
        {
            let hint = Hint::new(value).with_origin(origin.clone());
            assert_eq!(Hint::new(&hint.to_stored()).as_str(), shown);
            assert_eq!(hint.prefix(), shown);
            assert_eq!(Hint::from_stored(&hint.to_stored()), hint);
            assert_eq!(hint.as_str(), shown.trim_end());
        }
        let widest = Hint::new(&"𝄞".repeat(8)).with_origin(Origin::new(
            &"m".repeat(99),
            &"p".repeat(999),
            Some(&"r".repeat(999)),
            Some(&"c".repeat(99)),
        ));
        assert!(widest.to_stored().len() <= 255, "its length is one byte");
        assert_eq!(Hint::from_stored("order-20"), Hint::new("order-20"), "a record of an older version");
    }

    #[test]
    fn a_stored_hint_is_cut_too() {
        let hint: Hint = serde_json::from_str("\"0123456789\"").unwrap();
        assert_eq!(hint.as_str(), "01234567");
        let id = KeyId::from_bytes([3; 16]);
        assert_eq!(serde_json::from_slice::<KeyId>(&serde_json::to_vec(&id).unwrap()).unwrap(), id);
    }
}
