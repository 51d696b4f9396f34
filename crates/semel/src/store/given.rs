//! Compares the secret that a store gave this process with the one that it holds now.
//!
//! The id of a key depends on the secret. Two processes with two secrets would not see each other's claims, and each
//! would run the effect of the same key. A store that gave a secret therefore grants a claim only while it holds that
//! secret.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "postgres")]
use sha2::{Digest as _, Sha256};

use super::{Error, ErrorKind};
use crate::secret::Secret;

/// The secret that everything above this store uses. Empty if the secret was configured; nothing is compared then.
#[derive(Default)]
pub(super) struct GivenSecret {
    secret: OnceLock<Secret>,
    differs: AtomicBool,
}

/// The secret that the store holds, compared with the one it gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Same,
    /// None: the data were lost.
    Nothing,
    /// Another process has created a new one since.
    Other,
}

impl GivenSecret {
    pub(super) fn get(&self) -> Option<&Secret> {
        self.secret.get()
    }

    /// SHA-256 of the secret, for a statement that compares it on the server: parameters of statements get into logs.
    #[cfg(feature = "postgres")]
    pub(super) fn digest(&self) -> Option<[u8; 32]> {
        self.secret.get().map(|secret| Sha256::digest(secret.expose()).into())
    }

    /// Sets the secret of the process; the first one is final.
    pub(super) fn give(&self, kept: &Secret, store: &dyn fmt::Display) -> Result<Secret, Error> {
        let given = self.secret.get_or_init(|| kept.clone());
        let kept = self.compare(Some(kept.expose()));
        if self.found(kept, store) { Ok(given.clone()) } else { Err(Self::error(store)) }
    }

    /// Compares the stored secret with the given one. Without a given one nothing differs.
    pub(super) fn compare(&self, kept: Option<&[u8]>) -> Kept {
        match (self.secret.get(), kept) {
            (None, _) => Kept::Same,
            (Some(_), None) => Kept::Nothing,
            (Some(given), Some(kept)) if kept == given.expose() => Kept::Same,
            (Some(_), Some(_)) => Kept::Other,
        }
    }

    /// Remembers the last finding and logs a change. Returns true if this process may answer.
    pub(super) fn found(&self, kept: Kept, store: &dyn fmt::Display) -> bool {
        let differs = kept == Kept::Other;
        match (self.differs.swap(differs, Ordering::AcqRel), differs) {
            (false, true) => {
                tracing::error!(
                    %store,
                    secret_differs = true,
                    "the store holds another secret than this process: restart the process to grant claims"
                );
            }
            (true, false) => {
                tracing::info!(%store, "the store holds the secret of this process again: claims are granted");
            }
            _ => {}
        }
        !differs
    }

    /// Why no claim may be granted now.
    #[cfg(any(feature = "redis", test))]
    pub(super) fn refusal(&self, store: &dyn fmt::Display) -> Option<Error> {
        self.differs.load(Ordering::Acquire).then(|| Self::error(store))
    }

    /// The error for a store with another secret.
    pub(super) fn error(store: &dyn fmt::Display) -> Error {
        let message = format!(
            "{store} keeps another secret than this process uses: its data were lost or replaced, and another process \
             made a new secret. Nothing is claimed, because effects would run twice: restart this process, and configure \
             a secret so that this cannot happen again"
        );
        // `found` logs it.
        Error::new(ErrorKind::SecretDiffers, message).logged()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_secret_of_the_store_nothing_is_compared() {
        let given = GivenSecret::default();
        for kept in [None, Some(&[1; 32][..]), Some(b"short")] {
            assert_eq!(given.compare(kept), Kept::Same);
        }
    }

    #[test]
    fn the_first_secret_stays_and_another_is_refused_until_it_is_back() {
        let (given, store) = (GivenSecret::default(), "memory:");
        let (first, second) = (Secret::from_bytes([1; 32]), Secret::from_bytes([2; 32]));
        let got = given.give(&first, &store).expect("it is the first");
        assert_eq!(got.expose(), first.expose());
        assert_eq!(given.compare(Some(first.expose())), Kept::Same);
        assert_eq!(given.compare(Some(second.expose())), Kept::Other);
        assert_eq!(given.compare(Some(b"")), Kept::Other);
        assert_eq!(given.compare(None), Kept::Nothing);

        let refused = given.give(&second, &store).expect_err("it is another");
        assert_eq!(refused.kind(), ErrorKind::SecretDiffers);
        assert_eq!(given.refusal(&store).map(|error| error.kind()), Some(ErrorKind::SecretDiffers));
        assert!(!refused.to_string().contains("2, 2"), "no secret in an error");
        assert!(given.found(Kept::Nothing, &store), "it can be put back");
        assert!(given.refusal(&store).is_none());
    }
}
