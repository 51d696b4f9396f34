//! Outcomes sealed at rest: a wrapper around any store.
//!
//! Every part of an outcome that can contain a caller's data (kind, metadata, body, the reason of a tombstone) is
//! sealed with XChaCha20-Poly1305 before the inner store sees it, and opened when it is read or listed. The sealed
//! bytes contain the id of the sealing key. The record's id, the claim that wrote the outcome, and the format are
//! bound as associated data. The rest of a record is not sealed, because the inner store applies the rules to it: the
//! fingerprint (a keyed hash), the first 8 characters of the key's value, times, owner and fence.
//!
//! # Nonces
//!
//! A completion can be repeated: the same owner, fence and outcome are accepted again, and the inner store recognises
//! the repeat by comparing the stored bytes with the new ones. With a random nonce the two would differ. The nonce is
//! therefore derived from the sealed content: keyed BLAKE3, under a sub-key of its own, over the record's id, the
//! key's id, owner, fence and the whole plain outcome, 192 bits of it. Then
//!
//! - the same completion gives the same bytes, in every process, and no store needs to know of sealing;
//! - two different plain texts share a nonce only if the hash collides: at 2⁴⁸ outcomes under one key, with a
//!   probability below 2⁻⁹⁶. Random nonces of this size have the same chance, but depend on the random source, which
//!   a copied virtual machine repeats;
//! - equal bytes only reveal that the same completion was sent twice. Equal outcomes of two records, or of two claims
//!   of one record, look unrelated.
//!
//! The alternative, a digest of the plain outcome beside the sealed one, would require every store to compare that
//! digest, and would store a hash of the outcome where the outcome itself must not be.
//!
//! Between a completion and its repeat the current key may change. The inner store then refuses the repeat, and this
//! store reads the record: if it has the same owner, fence and outcome, the repeat is accepted.

mod keyring;
mod seal;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use self::seal::{Cover, OutcomeOrigin};
use super::forward::{forward_marks, forward_upkeep};
use super::{
    BoxFuture, Durability, Error, ErrorKind, Invalidate, MarkId, MarkStore, Page, Scan, Snapshot, Store,
    Swept, Watch,
};
use crate::key::KeyId;
use crate::outcome::Outcome;
use crate::record::{Command, Grant, Phase, Ruling, Settlement, State};
use crate::secret::Secret;
use crate::sync::Mutex;

pub use self::keyring::{Keyring, KeyringError, SealingKey};

/// Seals outcomes before the inner store stores them.
///
/// - **What it promises** and what not is in `docs/reference/encryption.md`. A reader of the store's files, dumps or network
///   learns no outcome; a writer cannot forge one or move one to another key.
/// - **A missing or wrong key is an error** that names the key's id. The effect is never run again for it.
/// - **[`rotate`](Self::rotate)** changes the ring without interrupting calls.
/// - `run_in` and `run_in_transaction` take this store instead of the inner one.
///
/// ```
/// use semel::store::{EncryptedStore, Keyring, MemoryStore, SealingKey};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let keyring = Keyring::new("2026-11", &SealingKey::random())?;
/// let store = EncryptedStore::new(MemoryStore::new(), keyring);
/// let engine = semel::Engine::builder(store).build()?;
/// # Ok(())
/// # }
/// ```
pub struct EncryptedStore<S: ?Sized = dyn Store> {
    sealer: Arc<OutcomeSealer>,
    inner: Arc<S>,
}

/// What to do with outcomes that were written before sealing was enabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plain {
    /// Read them. A writer to the inner store can then replace a sealed outcome with a plain one.
    #[default]
    Read,
    /// Refuse them. Choose it one retention after sealing was enabled everywhere.
    Refuse,
}

/// Counts of outcomes by sealing key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sealings {
    /// Outcomes by the id of their key, including keys that are not in the ring.
    pub by_key: BTreeMap<String, u64>,
    /// Outcomes that are not sealed.
    pub plain: u64,
}

impl<S: Store> EncryptedStore<S> {
    /// Wraps a store. Its existing outcomes stay readable: see [`plain`](Self::plain).
    pub fn new(inner: S, keyring: Keyring) -> Self {
        Self::over(Arc::new(inner), keyring)
    }
}

impl<S: Store + ?Sized> EncryptedStore<S> {
    /// Wraps a shared store, or one that was chosen at run time.
    pub fn over(inner: Arc<S>, keyring: Keyring) -> Self {
        let sealer = OutcomeSealer { ring: Mutex::new(Arc::new(keyring)), plain: Plain::default() };
        Self { sealer: Arc::new(sealer), inner }
    }

    /// What to do with outcomes that are not sealed.
    #[must_use]
    pub fn plain(mut self, plain: Plain) -> Self {
        self.sealer = Arc::new(OutcomeSealer { ring: Mutex::new(self.sealer.ring()), plain });
        self
    }

    /// Replaces the ring. Calls in progress finish with the ring they began with.
    ///
    /// If several processes share the store, take two steps: first give all of them a ring that also opens with the
    /// new key, then make it the current one. Leave the old key in the ring while [`sealings`](Self::sealings) counts
    /// outcomes under it.
    pub fn rotate(&self, keyring: Keyring) {
        *self.sealer.ring.lock() = Arc::new(keyring);
    }

    /// The ids of the ring's keys, the current one first.
    pub fn key_ids(&self) -> Vec<String> {
        self.sealer.ring().ids().map(str::to_owned).collect()
    }

    /// The inner store. It returns sealed outcomes, and data written to it directly is not sealed.
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// Counts the stored outcomes by the key that sealed them. Reads every record: for an operator who wants to
    /// remove an old key from the ring.
    ///
    /// # Errors
    /// The inner store failed, or contains data that is not a sealed outcome of this version.
    pub async fn sealings(&self) -> Result<Sealings, Error> {
        let mut found = Sealings::default();
        let mut after = None;
        loop {
            let page = self.inner.scan(Scan { phase: Some(Phase::Done), after, limit: 500 }).await?;
            for Snapshot { id, record, .. } in &page.items {
                let State::Done(outcome) = &record.state else { continue };
                match seal::cover(*id, outcome)? {
                    Cover::Plain => found.plain += 1,
                    Cover::Sealed(head) => *found.by_key.entry(head.key_id.to_owned()).or_default() += 1,
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    /// True if a refused completion is the stored one: it was a repeat that the inner store did not recognise. If the
    /// record cannot be read, the refusal is final; it shows the same outcome.
    async fn stands(&self, id: KeyId, sent: &SentCompletion) -> bool {
        let Ok(Some(Snapshot { record, now, .. })) = self.get(id).await else { return false };
        let mine = Grant::from_parts(record.owner, record.fence) == sent.grant;
        mine && record.outcome(now) == Some(&sent.outcome)
    }

    #[cfg(any(feature = "embedded", feature = "postgres"))]
    pub(crate) fn sealer(&self) -> &Arc<OutcomeSealer> {
        &self.sealer
    }
}

/// Seals outcomes on the way to the inner store and opens them on the way back.
pub(crate) struct OutcomeSealer {
    ring: Mutex<Arc<Keyring>>,
    plain: Plain,
}

/// The content of a completion, to recognise a repeat.
pub(crate) struct SentCompletion {
    grant: Grant,
    outcome: Arc<Outcome>,
}

impl OutcomeSealer {
    fn ring(&self) -> Arc<Keyring> {
        Arc::clone(&self.ring.lock())
    }

    fn seal(&self, id: KeyId, origin: OutcomeOrigin, outcome: &Outcome) -> Arc<Outcome> {
        seal::seal(self.ring().current(), id, origin, outcome)
    }

    /// The command for the inner store.
    pub(crate) fn seal_command(&self, id: KeyId, command: Command) -> (Command, Option<SentCompletion>) {
        match command {
            Command::Complete { grant, fingerprint, outcome, retention } => {
                let sealed = self.seal(id, OutcomeOrigin::Completed(grant), &outcome);
                let sent = SentCompletion { grant, outcome };
                (Command::Complete { grant, fingerprint, outcome: sealed, retention }, Some(sent))
            }
            Command::Settle(Settlement::Done(outcome)) => {
                let sealed = self.seal(id, OutcomeOrigin::Settled, &outcome);
                (Command::Settle(Settlement::Done(sealed)), None)
            }
            Command::SettleAttempt(fence, Settlement::Done(outcome)) => {
                let sealed = self.seal(id, OutcomeOrigin::Settled, &outcome);
                (Command::SettleAttempt(fence, Settlement::Done(sealed)), None)
            }
            Command::Claim(_)
            | Command::Begin(_)
            | Command::Renew(_)
            | Command::Release(_)
            | Command::Bind(_)
            | Command::Abandon(_)
            | Command::Settle(Settlement::Run)
            | Command::SettleAttempt(_, Settlement::Run)
            | Command::Forget(_)
            | Command::Reexecute => (command, None),
        }
    }

    /// The ruling for the caller. An error means that nothing was changed: only rulings that change nothing carry an
    /// outcome.
    pub(crate) fn open_ruling(&self, id: KeyId, ruling: Ruling) -> Result<Ruling, Error> {
        Ok(match ruling {
            Ruling::Replay { outcome, expires_in } => {
                Ruling::Replay { outcome: self.open(id, &outcome)?.0, expires_in }
            }
            Ruling::Lost { winner: Some(winner) } => Ruling::Lost { winner: Some(self.open(id, &winner)?.0) },
            Ruling::Won(_)
            | Ruling::Busy { .. }
            | Ruling::Conflict
            | Ruling::InDoubt
            | Ruling::Expired
            | Ruling::Accepted { .. }
            | Ruling::Lost { winner: None }
            | Ruling::Refused { .. } => ruling,
        })
    }

    fn open(
        &self,
        id: KeyId,
        outcome: &Arc<Outcome>,
    ) -> Result<(Arc<Outcome>, Option<OutcomeOrigin>), Error> {
        match seal::cover(id, outcome)? {
            Cover::Sealed(head) => {
                let (outcome, origin) = seal::open(&self.ring(), id, &head)?;
                Ok((Arc::new(outcome), Some(origin)))
            }
            Cover::Plain if self.plain == Plain::Read => Ok((Arc::clone(outcome), None)),
            Cover::Plain => Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "the outcome of record {id} is not sealed, and outcomes that are not are refused: read them while they \
                     last (Plain::Read), or forget the record"
                ),
            )),
        }
    }

    fn open_snapshot(&self, mut snapshot: Snapshot) -> Result<Snapshot, Error> {
        let Snapshot { id, record, now } = &mut snapshot;
        let State::Done(outcome) = &record.state else { return Ok(snapshot) };
        // An expired outcome is given to no caller, so its key is not needed any more.
        if record.outcome(*now).is_none() {
            record.state = State::Expired;
            return Ok(snapshot);
        }
        let (outcome, origin) = match self.open(*id, outcome) {
            // A record whose key is lost can be listed, exported and forgotten: it is shown without its outcome. A
            // claim of it still gets the error.
            Err(error) if matches!(error.kind(), ErrorKind::Setup | ErrorKind::Incompatible) => {
                record.state = State::Done(Arc::new(Outcome::tombstone(seal::SEALED, error.to_string())));
                return Ok(snapshot);
            }
            opened => opened?,
        };
        if let Some(OutcomeOrigin::Completed(grant)) = origin
            && grant != Grant::from_parts(record.owner, record.fence)
        {
            return Err(seal::damaged(*id));
        }
        record.state = State::Done(outcome);
        Ok(snapshot)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<S: Store + ?Sized> Store for EncryptedStore<S> {
    fn apply(&self, id: KeyId, command: Command) -> BoxFuture<'_, Result<Ruling, Error>> {
        Box::pin(async move {
            let (command, sent) = self.sealer.seal_command(id, command);
            let ruling = self.inner.apply(id, command).await?;
            if let (Ruling::Lost { .. }, Some(sent)) = (&ruling, sent)
                && self.stands(id, &sent).await
            {
                return Ok(Ruling::Accepted { lease_left: Duration::ZERO });
            }
            self.sealer.open_ruling(id, ruling)
        })
    }

    fn get(&self, id: KeyId) -> BoxFuture<'_, Result<Option<Snapshot>, Error>> {
        Box::pin(async move {
            let found = self.inner.get(id).await?;
            found.map(|snapshot| self.sealer.open_snapshot(snapshot)).transpose()
        })
    }

    fn scan(&self, query: Scan) -> BoxFuture<'_, Result<Page, Error>> {
        Box::pin(async move {
            let Page { items, next } = self.inner.scan(query).await?;
            let items: Result<_, _> = items.into_iter().map(|item| self.sealer.open_snapshot(item)).collect();
            Ok(Page { items: items?, next })
        })
    }

    forward_upkeep!();
}

forward_marks!(EncryptedStore);

impl<S: Store + ?Sized> fmt::Debug for EncryptedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptedStore")
            .field("keys", &self.sealer.ring())
            .field("plain", &self.sealer.plain)
            .field("inner", &&*self.inner)
            .finish()
    }
}

impl<S: Store + ?Sized> fmt::Display for EncryptedStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, sealed", self.inner)
    }
}
