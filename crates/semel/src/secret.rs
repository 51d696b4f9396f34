//! The deployment's secret and the keys derived from it.
//!
//! One secret per deployment. Everything that is keyed uses its own sub-key, derived with a fixed context string, so
//! that a key id can never be mistaken for a fingerprint or for a key that was sent to another system. Without the
//! secret no stored record can be found again. With the secret and a dump of the store, key values can be guessed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::{Zeroize, Zeroizing};

use crate::hex;
use crate::key::KeyId;

// The context strings are part of the stored format: changing one changes every id, fingerprint or derived key.
const PASSPHRASE: &str = "semel 2026-01-01 passphrase to secret v1";
const KEY_IDS: &str = "semel 2026-01-01 key ids v1";
const FINGERPRINTS: &str = "semel 2026-01-01 fingerprints v1";
const DOWNSTREAM: &str = "semel 2026-01-01 downstream keys v1";

/// The secret of one deployment: 32 bytes, wiped from memory when dropped, never printed.
///
/// Every process that shares a store must use the same secret. Cloning is cheap, but each clone is one more copy
/// in memory; share an `Arc` where many parts need it.
#[derive(Clone)]
pub struct Secret {
    root: [u8; 32],
    // Derived once, because key ids and fingerprints are on the path of every call.
    key_ids: [u8; 32],
    fingerprints: [u8; 32],
    downstream: [u8; 32],
    /// Secrets of providers that have their own.
    providers: Arc<BTreeMap<String, Zeroizing<Vec<u8>>>>,
}

impl Secret {
    /// Creates a new secret from the process's cryptographic random source.
    #[must_use]
    pub fn random() -> Self {
        Self::from_bytes(rand::random())
    }

    /// Takes 32 bytes that are already uniformly random, such as those [`expose`](Self::expose) gave.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self {
            key_ids: blake3::derive_key(KEY_IDS, &bytes),
            fingerprints: blake3::derive_key(FINGERPRINTS, &bytes),
            downstream: blake3::derive_key(DOWNSTREAM, &bytes),
            providers: Arc::default(),
            root: bytes,
        }
    }

    /// Derives the secret from a passphrase of any length.
    ///
    /// This is a fast derivation, not a password hash: the passphrase must be long and random, as one from a secret
    /// manager is. A memorable one can be guessed.
    #[must_use]
    pub fn from_passphrase(passphrase: &[u8]) -> Self {
        Self::from_bytes(blake3::derive_key(PASSPHRASE, passphrase))
    }

    /// The raw bytes, for a store that must store the secret with its records. Never log them.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.root
    }

    /// Gives `provider` its own secret instead of the derived one: for keys that must survive a change of the
    /// deployment's secret, or that another system computes too. It must be long and random.
    #[must_use]
    pub fn with_provider(mut self, provider: impl Into<String>, secret: &[u8]) -> Self {
        Arc::make_mut(&mut self.providers).insert(provider.into(), Zeroizing::new(secret.to_vec()));
        self
    }

    /// The key to send to `provider` with the effect of `id` in `epoch`.
    ///
    /// It is HMAC-SHA256(K, id ‖ epoch as u32 little endian) with K = HMAC-SHA256(downstream sub-key, provider), or
    /// the provider's [own secret](Self::with_provider). The same triple always gives the same key, so the receiver
    /// recognises a repeated effect. Two providers never see the same key, and neither can compute the other's or
    /// find the id behind its own.
    #[must_use]
    pub fn derived_key(&self, provider: &str, id: KeyId, epoch: u32) -> DerivedKey {
        DerivedKey(hmac(&self.provider(provider), &[id.as_bytes(), &epoch.to_le_bytes()]))
    }

    /// The key to send to `provider` for a caller's `key`, without an engine: HMAC-SHA256(K, key) with the same K. It
    /// knows neither scope nor epoch: `key` must contain everything that distinguishes callers.
    #[must_use]
    pub fn derived_key_of(&self, provider: &str, key: &[u8]) -> DerivedKey {
        DerivedKey(hmac(&self.provider(provider), &[key]))
    }

    fn provider(&self, provider: &str) -> Zeroizing<Vec<u8>> {
        match self.providers.get(provider) {
            Some(own) => own.clone(),
            None => Zeroizing::new(hmac(&self.downstream, &[provider.as_bytes()]).to_vec()),
        }
    }

    pub(crate) fn key_ids(&self) -> &[u8; 32] {
        &self.key_ids
    }

    pub(crate) fn fingerprints(&self) -> &[u8; 32] {
        &self.fingerprints
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let Self { root, key_ids, fingerprints, downstream, providers: _ } = self;
        [root, key_ids, fingerprints, downstream].into_iter().for_each(Zeroize::zeroize);
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// A key for another system: the same for one effect, different for every provider.
///
/// Displays as 64 lowercase hex characters, which fit into an `Idempotency-Key` header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DerivedKey([u8; 32]);

impl DerivedKey {
    /// The 32 bytes behind the hex text.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for DerivedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex::write(f, &self.0)
    }
}

impl fmt::Debug for DerivedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The holder of the whole key can ask the provider for the outcome, so logs contain only its start.
        f.write_str("DerivedKey(")?;
        hex::write(f, &self.0[..4])?;
        f.write_str("…)")
    }
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        Secret::from_bytes(std::array::from_fn(|i| i as u8))
    }

    fn id() -> KeyId {
        KeyId::from_bytes(std::array::from_fn(|i| 0xf0 + i as u8))
    }

    // Computed with another implementation of BLAKE3 and HMAC. A change here breaks every running deployment.
    #[test]
    fn derived_keys_never_change() {
        let vectors = [
            (0, "b6db265ac658b696112f7183f2923798c95de5aafc6be48be026cabe8be13c55"),
            (1, "287a934e522591c640be70dab38d3c47672433cb1f0c17a47ab24f2fe3ae7468"),
        ];
        for (epoch, expected) in vectors {
            assert_eq!(secret().derived_key("acme", id(), epoch).to_string(), expected);
        }
        let root = "565052d73a1a25ee67d25f2bcc3ed3d728188a531ba6478d2d07ddc78c7be803";
        assert_eq!(Secret::from_passphrase(b"correct horse").expose(), &hex::read(root.as_bytes()).unwrap());
    }

    // HMAC-SHA256, cases 1 and 2 of RFC 4231.
    #[test]
    fn a_provider_with_its_own_secret_gets_plain_hmac() {
        let secret = secret().with_provider("one", &[0x0b; 20]).with_provider("two", b"Jefe");
        let vectors: [(&str, &[u8], &str); 2] = [
            ("one", b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
            (
                "two",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
        ];
        for (provider, key, expected) in vectors {
            assert_eq!(secret.derived_key_of(provider, key).to_string(), expected);
        }
        let plain = super::tests::secret();
        assert_eq!(
            secret.derived_key("three", id(), 0),
            plain.derived_key("three", id(), 0),
            "others keep theirs"
        );
        assert_ne!(secret.derived_key("one", id(), 0), plain.derived_key("one", id(), 0));
        assert_ne!(plain.derived_key_of("a", b"k"), plain.derived_key_of("b", b"k"));
    }

    #[test]
    fn every_part_of_the_triple_counts() {
        let keys = [
            secret().derived_key("acme", id(), 0),
            secret().derived_key("acme", id(), 1),
            secret().derived_key("acm", id(), 0),
            secret().derived_key("acme", KeyId::from_bytes([1; 16]), 0),
            Secret::from_passphrase(b"other").derived_key("acme", id(), 0),
        ];
        for (i, one) in keys.iter().enumerate() {
            for other in &keys[i + 1..] {
                assert_ne!(one, other);
            }
        }
    }

    #[test]
    fn sub_keys_differ() {
        let secret = secret();
        assert_ne!(secret.key_ids, secret.fingerprints);
        assert_ne!(secret.key_ids, secret.downstream);
        assert_ne!(secret.fingerprints, secret.downstream);
        assert_ne!(secret.root, secret.downstream);
    }

    #[test]
    fn debug_shows_no_secret() {
        assert_eq!(format!("{:?}", secret()), "Secret(redacted)");
        let key = secret().derived_key("acme", id(), 0);
        assert!(!format!("{key:?}").contains(&key.to_string()[..9]));
    }

    #[test]
    fn a_kept_secret_comes_back() {
        let secret = Secret::random();
        let again = Secret::from_bytes(*secret.expose());
        assert_eq!(secret.derived_key("p", id(), 3), again.derived_key("p", id(), 3));
        assert_ne!(Secret::random().expose(), secret.expose());
    }
}
