//! The keys that seal outcomes: a current one that seals, and others that are still needed to open.

use std::fmt;

use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use zeroize::{Zeroize, Zeroizing};

// Part of the stored format: changing one makes everything sealed before unreadable.
const CIPHER: &str = "semel 2026-11 outcome cipher v1";
const NONCE: &str = "semel 2026-11 outcome nonce v1";
const CHECK: &str = "semel 2026-11 outcome key check v1";
const PASSPHRASE: &str = "semel 2026-11 passphrase to sealing key v1";

/// The longest id of a key, in bytes. Every sealed outcome contains it.
pub(super) const LONGEST_ID: usize = 64;

/// A key that seals outcomes: 32 random bytes, wiped from memory when dropped, never printed.
#[derive(Clone)]
pub struct SealingKey(Zeroizing<[u8; 32]>);

impl SealingKey {
    /// Creates a new key from the process's cryptographic random source. Store the result of
    /// [`expose`](Self::expose): without it nothing that the key sealed can be read again.
    #[must_use]
    pub fn random() -> Self {
        Self::from_bytes(rand::random())
    }

    /// Takes 32 bytes that are already uniformly random, as a key management service gives them.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Derives a key from a passphrase of any length.
    ///
    /// This is a fast derivation, not a password hash: the passphrase must be long and random, as one from a secret
    /// manager is. A memorable one can be guessed.
    #[must_use]
    pub fn from_passphrase(passphrase: &[u8]) -> Self {
        Self::from_bytes(blake3::derive_key(PASSPHRASE, passphrase))
    }

    /// The raw bytes, for a key store. Never log them.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey(redacted)")
    }
}

/// The keys of a deployment. The current one seals new outcomes; each one opens the outcomes that it sealed.
///
/// ```
/// # use semel::store::{Keyring, SealingKey};
/// # fn main() -> Result<(), semel::store::KeyringError> {
/// # let (new, old) = (SealingKey::random(), SealingKey::random());
/// let keyring = Keyring::new("2026-11", &new)?.also_opens("2026-10", &old)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Keyring {
    /// The current key comes first. A ring is short: searching it is quicker than hashing.
    keys: Vec<RingKey>,
}

/// One key of a ring, ready to use.
#[derive(Clone)]
pub(super) struct RingKey {
    pub(super) id: String,
    /// Wiped when dropped (its crate's feature `zeroize`).
    pub(super) cipher: XChaCha20Poly1305,
    /// Derives nonces.
    pub(super) nonce: Zeroizing<[u8; 32]>,
    /// Part of every sealed outcome, so that another key under the same id is distinguished from damage.
    pub(super) check: [u8; 4],
}

/// An invalid ring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyringError {
    /// The id of a key is empty, too long, or has characters that a log line or an error could not show.
    #[error(
        "`{0}` cannot be the id of a sealing key: take 1 to {LONGEST_ID} letters, digits and - _ . : /, e.g. 2026-11"
    )]
    Id(String),
    /// Two keys have the same id.
    #[error("two sealing keys have the id `{0}`: a sealed outcome names its key by id, so give each its own")]
    Twice(String),
}

impl Keyring {
    /// A ring with one key, which seals and opens.
    ///
    /// `id` names the key forever: it is stored with every outcome that the key seals. Never reuse it for another
    /// key.
    ///
    /// # Errors
    /// The id is empty, too long or unprintable.
    pub fn new(id: &str, key: &SealingKey) -> Result<Self, KeyringError> {
        Self { keys: Vec::new() }.also_opens(id, key)
    }

    /// Adds a key that opens the outcomes it sealed and seals nothing: an older one, or one that another process
    /// already uses.
    ///
    /// # Errors
    /// As [`new`](Self::new), or the ring already has a key with that id.
    pub fn also_opens(mut self, id: &str, key: &SealingKey) -> Result<Self, KeyringError> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
        if id.is_empty() || id.len() > LONGEST_ID || !id.bytes().all(known) {
            return Err(KeyringError::Id(id.to_owned()));
        }
        if self.find(id).is_some() {
            return Err(KeyringError::Twice(id.to_owned()));
        }
        self.keys.push(RingKey::new(id, key));
        Ok(self)
    }

    /// The id of the key that seals.
    pub fn current_id(&self) -> &str {
        &self.current().id
    }

    /// The ids of all keys, the current one first.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|key| key.id.as_str())
    }

    pub(super) fn current(&self) -> &RingKey {
        self.keys.first().expect("a ring is made with its current key")
    }

    pub(super) fn find(&self, id: &str) -> Option<&RingKey> {
        self.keys.iter().find(|key| key.id == id)
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

impl RingKey {
    fn new(id: &str, key: &SealingKey) -> Self {
        // Each purpose has its own sub-key, so that the use of one reveals nothing about another.
        let derive = |context| Zeroizing::new(blake3::derive_key(context, key.expose()));
        let mut bytes = *derive(CIPHER);
        let cipher = XChaCha20Poly1305::new(&bytes.into());
        bytes.zeroize();
        let check = derive(CHECK);
        Self {
            id: id.to_owned(),
            cipher,
            nonce: derive(NONCE),
            check: [check[0], check[1], check[2], check[3]],
        }
    }
}
