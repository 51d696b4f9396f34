//! Outcomes sealed at rest: a store around any other one.
//!
//! Everything of an outcome that can hold a caller's data (kind, metadata, body, the reason of a tombstone) is sealed
//! with XChaCha20-Poly1305 before the store below sees it, and opened when it is replayed, read or listed. The id of
//! the key stands in the sealed bytes. The record's id, the claim that wrote the outcome, and the format are bound as
//! associated data. All else of a record stays as it is, since the store below rules by it: the fingerprint (a keyed
//! hash), the first 8 characters of the key's value, times, owner and fence.
//!
//! # Nonces
//!
//! A completion can be repeated: the same owner, fence and outcome are accepted again, and the store below finds out
//! by comparing what it has with what it is given. With a random nonce the two would differ. So the nonce is made of
//! what is sealed: keyed BLAKE3, under a sub-key of its own, over the record's id, the key's id, owner, fence and the
//! whole plain outcome, 192 bits of it. Then
//!
//! - the same completion gives the same bytes, in every process, and no store needs to know of sealing;
//! - two different plain texts share a nonce only if the hash collides: at 2⁴⁸ outcomes under one key, with a
//!   probability below 2⁻⁹⁶. That is the same chance that random nonces of this size have, and it does not hang on
//!   the random source, which a copied virtual machine repeats;
//! - equal bytes tell an onlooker only that one and the same completion was sent twice. Equal outcomes of two records,
//!   or of two claims of one record, look unrelated.
//!
//! The other way, a digest of the plain outcome beside the sealed one, would have every store compare that digest
//! instead, and would keep a hash of the outcome where the outcome itself must not be.
//!
//! Between a completion and its repeat the current key may change. The store below then refuses the repeat, and this one
//! looks the record up: where the same owner, fence and outcome stand there, it is accepted after all.

mod keyring;
mod seal;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use self::seal::{Cover, Origin};
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

/// Seals outcomes before the store below keeps them.
///
/// - **What it promises** and what not is in `docs/reference/encryption.md`. Whoever reads the store's files, dumps or network
///   learns no outcome; whoever changes them cannot make one up or move one to another key.
/// - **A missing or wrong key is an error** that names the key's id. The effect is never run again for it.
/// - **[`rotate`](Self::rotate)** changes the ring while calls go on.
/// - `run_in` and `run_in_transaction` take this store in the place of the one below.
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
    sealer: Arc<Sealer>,
    inner: Arc<S>,
}

/// What to do with outcomes that were written before sealing was switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plain {
    /// Replay them. Whoever can write to the store below can then put a plain outcome in the place of a sealed one.
    #[default]
    Read,
    /// Refuse them. Switch to it one retention after sealing was switched on everywhere.
    Refuse,
}

/// With which keys the outcomes of a store are sealed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sealings {
    /// Outcomes by the id of their key, whether it is in the ring or not.
    pub by_key: BTreeMap<String, u64>,
    /// Outcomes that are not sealed.
    pub plain: u64,
}

impl<S: Store> EncryptedStore<S> {
    /// Wraps a store. Outcomes that are in it already stay readable: see [`plain`](Self::plain).
    pub fn new(inner: S, keyring: Keyring) -> Self {
        Self::over(Arc::new(inner), keyring)
    }
}

impl<S: Store + ?Sized> EncryptedStore<S> {
    /// Wraps a store that others hold too, or one that was chosen at run time.
    pub fn over(inner: Arc<S>, keyring: Keyring) -> Self {
        let sealer = Sealer { ring: Mutex::new(Arc::new(keyring)), plain: Plain::default() };
        Self { sealer: Arc::new(sealer), inner }
    }

    /// What to do with outcomes that are not sealed.
    #[must_use]
    pub fn plain(mut self, plain: Plain) -> Self {
        self.sealer = Arc::new(Sealer { ring: Mutex::new(self.sealer.ring()), plain });
        self
    }

    /// Puts another ring in the place of the present one. What is under way ends with the ring it began with.
    ///
    /// Where several processes share the store, go in two steps: first give all of them a ring that also opens with
    /// the new key, then make it the current one. Leave the old key in the ring for as long as
    /// [`sealings`](Self::sealings) counts outcomes under it.
    pub fn rotate(&self, keyring: Keyring) {
        *self.sealer.ring.lock() = Arc::new(keyring);
    }

    /// The ids of the ring's keys, the current one first.
    pub fn key_ids(&self) -> Vec<String> {
        self.sealer.ring().ids().map(str::to_owned).collect()
    }

    /// The store below. What it shows of outcomes is sealed; what is written to it directly is not.
    pub fn inner(&self) -> &Arc<S> {
        &self.inner
    }

    /// Counts the outcomes that stand, by the key that sealed them. Reads every record: for an operator who wants to
    /// take an old key out of the ring.
    ///
    /// # Errors
    /// Where the store below fails, or holds what is not a sealed outcome of this version.
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

    /// Whether what a refused completion said is what stands: then it was a repeat that the store below did not know
    /// again. Where that cannot be read, the refusal stands; it shows the same outcome.
    async fn stands(&self, id: KeyId, sent: &Sent) -> bool {
        let Ok(Some(Snapshot { record, now, .. })) = self.get(id).await else { return false };
        let mine = Grant::from_parts(record.owner, record.fence) == sent.grant;
        mine && record.outcome(now) == Some(&sent.outcome)
    }

    #[cfg(any(feature = "embedded", feature = "postgres"))]
    pub(crate) fn sealer(&self) -> &Arc<Sealer> {
        &self.sealer
    }
}

/// Seals what goes down and opens what comes up.
pub(crate) struct Sealer {
    ring: Mutex<Arc<Keyring>>,
    plain: Plain,
}

/// What a completion said, to know it again.
pub(crate) struct Sent {
    grant: Grant,
    outcome: Arc<Outcome>,
}

impl Sealer {
    fn ring(&self) -> Arc<Keyring> {
        Arc::clone(&self.ring.lock())
    }

    fn seal(&self, id: KeyId, origin: Origin, outcome: &Outcome) -> Arc<Outcome> {
        seal::seal(self.ring().current(), id, origin, outcome)
    }

    /// The command as the store below may see it.
    pub(crate) fn seal_command(&self, id: KeyId, command: Command) -> (Command, Option<Sent>) {
        match command {
            Command::Complete { grant, fingerprint, outcome, retention } => {
                let sealed = self.seal(id, Origin::Completed(grant), &outcome);
                let sent = Sent { grant, outcome };
                (Command::Complete { grant, fingerprint, outcome: sealed, retention }, Some(sent))
            }
            Command::Settle(Settlement::Done(outcome)) => {
                let sealed = self.seal(id, Origin::Settled, &outcome);
                (Command::Settle(Settlement::Done(sealed)), None)
            }
            Command::Claim(_)
            | Command::Begin(_)
            | Command::Renew(_)
            | Command::Release(_)
            | Command::Bind(_)
            | Command::Abandon(_)
            | Command::Settle(Settlement::Run)
            | Command::Forget(_)
            | Command::Reexecute => (command, None),
        }
    }

    /// The ruling as the caller may see it. An error says that nothing was changed: only rulings that change nothing
    /// carry an outcome.
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

    fn open(&self, id: KeyId, outcome: &Arc<Outcome>) -> Result<(Arc<Outcome>, Option<Origin>), Error> {
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
        // An outcome that is over is given to nobody, so its key need not be there any more.
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
        if let Some(Origin::Completed(grant)) = origin
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

    fn sweep(&self, limit: usize) -> BoxFuture<'_, Result<Swept, Error>> {
        self.inner.sweep(limit)
    }

    fn watch(&self, id: KeyId) -> Watch {
        self.inner.watch(id)
    }

    fn attach(&self, cache: Weak<dyn Invalidate>) {
        self.inner.attach(cache);
    }

    fn secret(&self, candidate: Secret) -> BoxFuture<'_, Result<Secret, Error>> {
        self.inner.secret(candidate)
    }

    fn used_bytes(&self) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.inner.used_bytes()
    }

    fn durability(&self) -> Durability {
        self.inner.durability()
    }
}

impl<S: Store + MarkStore + ?Sized> MarkStore for EncryptedStore<S> {
    fn read_mark(&self, mark: MarkId) -> BoxFuture<'_, Result<Option<u64>, Error>> {
        self.inner.read_mark(mark)
    }

    fn raise_mark(&self, mark: MarkId, value: u64) -> BoxFuture<'_, Result<u64, Error>> {
        self.inner.raise_mark(mark, value)
    }
}

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
