//! Keys: the names of effects.
//!
//! A [`Key`] is a namespace (the operation), any number of scope parts (the caller: principal, account) and a value.
//! Stores only see its [`KeyId`]. Three ways to choose the value, each with its price:
//!
//! | the value is | good | price |
//! |---|---|---|
//! | given by the client | the client alone knows what is one request to it | clients must keep it across retries |
//! | a [`ContentHash`] of the payload | works for callers who know nothing of keys | two wanted equal requests are one; fields that change with every try must be excluded |
//! | a [`BusinessKey`] | readable, the same from every caller and in every language | entity and version must be chosen so that they name one effect |
//!
//! ```
//! use semel::key::Key;
//! use semel::secret::Secret;
//!
//! let secret = Secret::random();
//! let key = Key::new("charge").scope("account-7").value("order-2041");
//! assert_ne!(key.id(&secret)?, Key::new("charge").scope("account-8").value("order-2041").id(&secret)?);
//! # Ok::<(), semel::key::KeyError>(())
//! ```

mod content;
mod convention;
mod id;
mod origin;

use std::borrow::Cow;
use std::fmt;

pub use self::content::{Algorithm, ContentHash};
pub use self::convention::{BusinessKey, BusinessKeyBuilder, ConventionError, Field};
pub use self::id::{Hint, KeyId, ParseKeyIdError};
pub use self::origin::Origin;
use crate::secret::Secret;

/// The longest namespace, in bytes.
pub const MAX_NAMESPACE: usize = 255;
/// The longest scope part, in bytes.
pub const MAX_SCOPE: usize = 1024;
/// The most scope parts of one key.
pub const MAX_SCOPES: usize = 16;
/// The longest value, in bytes.
pub const MAX_VALUE: usize = 1024;

/// The name of one effect: namespace, scope parts, value.
///
/// Building never fails; [`check`](Self::check) and [`id`](Self::id) do, so that calls can be chained. `Debug` shows
/// the [`Hint`] only, because keys often hold personal data.
#[derive(Clone, PartialEq, Eq)]
#[must_use = "a key does nothing until an engine runs it or its id is taken"]
pub struct Key {
    namespace: Vec<u8>,
    /// Every scope part behind its length, as it goes into the hash. One buffer, because most keys have one or two.
    scopes: Vec<u8>,
    scope_count: usize,
    value: Vec<u8>,
}

impl Key {
    /// Starts a key of `namespace`, the operation: `charge`, `send-invoice`.
    pub fn new(namespace: impl AsRef<[u8]>) -> Self {
        Self { namespace: namespace.as_ref().to_vec(), scopes: Vec::new(), scope_count: 0, value: Vec::new() }
    }

    /// Adds a scope part: the caller. Call it once per part, from the widest to the narrowest; the order counts.
    ///
    /// Omit it if there is only one tenant. The check refuses an empty part: usually it is a lost account id, which
    /// would give all tenants the same scope.
    pub fn scope(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.scopes.reserve(8 + part.len());
        self.scopes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        self.scopes.extend_from_slice(part);
        self.scope_count += 1;
        self
    }

    /// Sets the value, which names this one effect within its namespace and scope. The last call wins.
    pub fn value(mut self, value: impl AsRef<[u8]>) -> Self {
        self.value.clear();
        self.value.extend_from_slice(value.as_ref());
        self
    }

    /// Checks whether the key is valid.
    ///
    /// # Errors
    /// The first part that is empty, too long or not UTF-8, by name and never with its content.
    pub fn check(&self) -> Result<(), KeyError> {
        check_part(Part::Namespace, &self.namespace, MAX_NAMESPACE)?;
        if self.scope_count > MAX_SCOPES {
            return Err(KeyError::TooManyScopes { count: self.scope_count });
        }
        for (index, part) in self.scope_parts().enumerate() {
            check_part(Part::Scope(index + 1), part, MAX_SCOPE)?;
        }
        check_part(Part::Value, &self.value, MAX_VALUE)
    }

    /// The id of this key in stores, for the deployment of `secret`.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn id(&self, secret: &Secret) -> Result<KeyId, KeyError> {
        self.check()?;
        Ok(self.id_unchecked(secret))
    }

    /// As [`id`](Self::id), for a key that was checked.
    pub(crate) fn id_unchecked(&self, secret: &Secret) -> KeyId {
        let Self { namespace, scopes, scope_count, value } = self;
        // Written to one buffer first: hashing a short text in one call is faster than hashing its parts.
        let mut text = Vec::with_capacity(24 + namespace.len() + scopes.len() + value.len());
        // Every part follows its length and the scopes follow their count: two different keys cannot give the same
        // bytes, wherever a caller puts separators.
        for (length, part) in [(namespace.len(), namespace), (*scope_count, scopes), (value.len(), value)] {
            text.extend_from_slice(&(length as u64).to_le_bytes());
            text.extend_from_slice(part);
        }
        KeyId::truncated(&blake3::keyed_hash(secret.key_ids(), &text))
    }

    /// The operation this key belongs to. Not secret: it names code, not callers.
    #[must_use]
    pub fn namespace(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.namespace)
    }

    /// The first eight characters of the value. Records and logs show no more of a key.
    #[must_use]
    pub fn hint(&self) -> Hint {
        // Eight characters need at most 32 bytes.
        Hint::new(&String::from_utf8_lossy(&self.value[..self.value.len().min(32)]))
    }

    /// Takes the scope in its hashed form. The key must not be used afterwards.
    pub(crate) fn take_scope(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.scopes)
    }

    fn scope_parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.scopes.as_slice();
        std::iter::from_fn(move || {
            let (length, tail) = rest.split_first_chunk::<8>()?;
            let (part, tail) = tail.split_at(u64::from_le_bytes(*length) as usize);
            rest = tail;
            Some(part)
        })
    }
}

/// A plain text is the value of a key in the namespace `default`, without a scope.
impl From<&str> for Key {
    fn from(value: &str) -> Self {
        Self::new("default").value(value)
    }
}

/// As from `&str`.
impl From<String> for Key {
    fn from(value: String) -> Self {
        Self::from(value.as_str())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({}…)", self.hint())
    }
}

fn check_part(part: Part, bytes: &[u8], limit: usize) -> Result<(), KeyError> {
    if bytes.is_empty() {
        return Err(KeyError::Empty { part });
    }
    if bytes.len() > limit {
        return Err(KeyError::TooLong { part, length: bytes.len(), limit });
    }
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(KeyError::NotUtf8 { part, position: error.valid_up_to() }),
    }
}

/// Names a part of a key in an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The namespace.
    Namespace,
    /// The scope part with this number, counted from 1.
    Scope(usize),
    /// The value.
    Value,
}

impl Part {
    fn way_out_of_empty(self) -> &'static str {
        match self {
            Self::Namespace => "name the operation, as in Key::new(\"charge\")",
            Self::Scope(_) => "leave .scope() out if there is only one tenant",
            Self::Value => "call .value() with what names this one effect",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace => f.write_str("namespace"),
            Self::Scope(number) => write!(f, "scope part {number}"),
            Self::Value => f.write_str("value"),
        }
    }
}

/// Why a key is invalid. No variant contains any of the key's content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A part has no bytes.
    #[error("the key's {part} is empty; {}", part.way_out_of_empty())]
    Empty {
        /// The part.
        part: Part,
    },
    /// A part is longer than allowed.
    #[error(
        "the key's {part} has {length} bytes, but at most {limit} are allowed; shorten it or use its hash"
    )]
    TooLong {
        /// The part.
        part: Part,
        /// Its length in bytes.
        length: usize,
        /// The longest allowed length in bytes.
        limit: usize,
    },
    /// A part is not UTF-8.
    #[error("the key's {part} is not UTF-8 at byte {position}; encode binary data as hex or base64")]
    NotUtf8 {
        /// The part.
        part: Part,
        /// How many bytes at its start are valid.
        position: usize,
    },
    /// There are more than [`MAX_SCOPES`] scope parts.
    #[error("the key has {count} scope parts, but at most {MAX_SCOPES} are allowed; join some of them")]
    TooManyScopes {
        /// The number of scope parts.
        count: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        Secret::from_bytes([7; 32])
    }

    fn id(key: &Key) -> KeyId {
        key.id(&secret()).unwrap()
    }

    // Wherever the borders between parts are, the id differs.
    #[test]
    fn parts_never_alias() {
        let keys = [
            Key::new("ab").scope("c").value("d"),
            Key::new("a").scope("bc").value("d"),
            Key::new("a").scope("b").value("cd"),
            Key::new("a").scope("b").scope("c").value("d"),
            Key::new("a").scope("c").scope("b").value("d"),
            Key::new("a").scope("bc").value("d\0"),
            Key::new("abc").value("d"),
            Key::new("a").value("bcd"),
            // A value that spells the encoding of a scope and a value.
            Key::new("a").value(b"b\x01\0\0\0\0\0\0\0c\x01\0\0\0\0\0\0\0d"),
        ];
        for (i, one) in keys.iter().enumerate() {
            for other in &keys[i + 1..] {
                assert_ne!(id(one), id(other), "{one:?} and {other:?}");
            }
        }
    }

    // Computed with another implementation of BLAKE3. A change here loses every stored record.
    #[test]
    fn ids_never_change() {
        let secret = Secret::from_bytes(std::array::from_fn(|i| i as u8));
        let key = Key::new("charge").scope("p-1").scope("account-7").value("order-2041");
        assert_eq!(key.id(&secret).unwrap().to_string(), "191b65ac0a0b80333ffb701f7720d669");
        let key = Key::new("charge").value("order-2041");
        assert_eq!(key.id(&secret).unwrap().to_string(), "863592e78e668e7dc690ce91c6dfbcdb");
    }

    #[test]
    fn the_id_depends_on_the_secret_and_on_nothing_else() {
        let key = Key::new("charge").scope("acct").value("order");
        assert_eq!(id(&key), id(&key.clone()));
        assert_eq!(id(&key), id(&Key::new("charge").value("first").scope("acct").value("order")));
        assert_ne!(id(&key), key.id(&Secret::from_bytes([8; 32])).unwrap());
    }

    #[test]
    fn wrong_parts_are_named_and_not_shown() {
        let cases = [
            (
                Key::new("").value("v"),
                "the key's namespace is empty; name the operation, as in Key::new(\"charge\")",
            ),
            (Key::new("n"), "the key's value is empty; call .value() with what names this one effect"),
            (
                Key::new("n").scope("a").scope("").value("v"),
                "the key's scope part 2 is empty; leave .scope() out if there is only one tenant",
            ),
            (
                Key::new("n").scope("s").value("x".repeat(1025)),
                "the key's value has 1025 bytes, but at most 1024 are allowed; shorten it or use its hash",
            ),
            (
                Key::new("n".repeat(256)).value("v"),
                "the key's namespace has 256 bytes, but at most 255 are allowed; shorten it or use its hash",
            ),
            (
                Key::new("n").scope("s".repeat(1025)).value("v"),
                "the key's scope part 1 has 1025 bytes, but at most 1024 are allowed; shorten it or use its hash",
            ),
            (
                Key::new("n").value(b"ok\xff"),
                "the key's value is not UTF-8 at byte 2; encode binary data as hex or base64",
            ),
        ];
        for (key, sentence) in cases {
            assert_eq!(key.check().unwrap_err().to_string(), sentence);
            assert!(key.id(&secret()).is_err());
        }
        let many = (0..17).fold(Key::new("n").value("v"), |key, _| key.scope("s"));
        assert_eq!(many.check(), Err(KeyError::TooManyScopes { count: 17 }));
        let most = (0..16).fold(Key::new("n".repeat(255)), |key, _| key.scope("s".repeat(1024)));
        assert_eq!(most.value("v".repeat(1024)).check(), Ok(()));
    }

    // Only eight characters of a value are ever shown.
    #[test]
    fn debug_shows_the_hint_only() {
        let key = Key::new("secret-ns").scope("secret-scope").value("4111111111111111");
        assert_eq!(format!("{key:?}"), "Key(41111111…)");
        assert_eq!(Key::new("n").value("äöüß€𝄞xyz").hint().as_str(), "äöüß€𝄞xy");
        assert_eq!(Key::new("n").value("𝄞".repeat(9)).hint().as_str(), "𝄞".repeat(8));
        assert_eq!(Key::new("n").value(b"\xff\xfeab").hint().as_str(), "\u{fffd}\u{fffd}ab");
    }
}
