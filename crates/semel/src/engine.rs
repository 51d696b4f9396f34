//! The engine claims a key, runs the effect, stores its outcome, and answers every later call from the record.
//!
//! ```
//! use semel::store::MemoryStore;
//! use semel::{Answer, Engine, FailureExt, Key, RunError};
//!
//! async fn charge_card(amount: u32) -> Result<String, std::io::Error> {
//!     Ok(format!("charged {amount}"))
//! }
//!
//! async fn charge(engine: &Engine, order: &str) -> Result<Answer<String>, RunError> {
//!     engine
//!         .once(Key::new("charge").scope("acct_1").value(order))
//!         .fingerprint(&1200)
//!         .run(async || charge_card(1200).await.unknown())
//!         .await
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::builder(MemoryStore::new()).build()?;
//! let first = charge(&engine, "order-42").await?;
//! let again = charge(&engine, "order-42").await?;
//!
//! assert_eq!(first.value, again.value);
//! assert!(!first.replayed && again.replayed);
//! # Ok(())
//! # }
//! ```

mod acquire;
mod answer;
#[cfg(feature = "embedded")]
mod atomic;
#[cfg(feature = "postgres")]
mod atomic_postgres;
mod background;
mod builder;
mod cache;
mod event;
mod execute;
mod flight;
mod hints;
mod hold;
mod once;
mod parting;
#[cfg(test)]
mod tests;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OnceCell};

pub use self::acquire::Acquired;
pub use self::answer::{
    Answer, AnyError, EffectResult, Failure, FailureExt, FailureOf, OutcomeDecodeError, RunError,
};
pub use self::builder::{BuildError, EngineBuilder};
pub use self::event::{Event, Observer, ReplayedFrom, Stats, Subject};
pub use self::flight::WaiterCaps;
pub use self::hold::{Attempt, Claim, Completed, Concluded, NotBegun, Running};
pub use self::once::Once;

use self::background::Background;
use self::cache::{Hit, HotCache};
use self::event::Events;
use self::flight::Flights;
use crate::backoff::Backoff;
use crate::fingerprint::Payload;
use crate::key::{Key, KeyId};
use crate::outcome::Outcome;
use crate::record::{self, Begin, Command, Fence, Force, Mode, Owner, Ruling, Settlement, Terms};
use crate::secret::Secret;
use crate::store::{self, ErrorKind, IntoStore, Snapshot, Store};
use crate::time::instant;

/// How long [`Engine::apply`] repeats a command whose result is unknown.
const APPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs effects once over a store. Cheap to clone: all clones share one engine.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<EngineInner>,
}

struct EngineInner {
    store: Arc<dyn Store>,
    terms: Arc<Terms>,
    wait: Duration,
    backstop: Duration,
    max_outcome: usize,
    secret: OnceCell<Arc<Secret>>,
    cache: Arc<HotCache>,
    flights: Arc<Flights>,
    events: Arc<Events>,
    in_flight: HeldClaims,
    background: Background,
}

impl Engine {
    /// Starts to build an engine over `store`: a store, or an `Arc` of one that other components use too.
    pub fn builder(store: impl IntoStore) -> EngineBuilder {
        EngineBuilder::new(store.into_store())
    }

    /// Names a call that must happen once. A plain text is a key of the namespace `default`; see [`Key`] for
    /// operations and tenants.
    pub fn once(&self, key: impl Into<Key>) -> Once {
        Once::new(self, key.into())
    }

    /// The store of this engine.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// How often each engine signal occurred.
    pub fn stats(&self) -> Stats {
        self.inner.events.stats()
    }

    /// Number of callers that currently wait for another caller's effect.
    pub fn waiters(&self) -> usize {
        self.inner.flights.waiters()
    }

    /// Number of claims that this engine currently holds.
    pub fn in_flight(&self) -> usize {
        self.inner.in_flight.count.load(Ordering::Acquire)
    }

    /// Waits until this engine holds no claim and has written the results that dropped callers left behind. Stop
    /// calling first, then drain, then exit. While the store is unavailable this can take `in_flight_max`, so set a
    /// limit.
    pub async fn drain(&self) {
        loop {
            let left = self.inner.in_flight.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if self.in_flight() == 0 {
                return;
            }
            left.await;
        }
    }

    /// The id of a key in the store.
    ///
    /// # Errors
    /// The key is invalid, or the store failed.
    pub async fn id(&self, key: &Key) -> Result<KeyId, RunError<std::convert::Infallible>> {
        let secret = self.inner.secret().await?;
        Ok(key.id(&secret)?)
    }

    /// As [`id`](Self::id), without a call to the store. `None` until the deployment's secret is known; the first
    /// claim loads it.
    #[must_use]
    pub fn id_at_hand(&self, key: &Key) -> Option<KeyId> {
        key.id(self.inner.secret.get()?).ok()
    }

    /// The outcome of a call and the id of its key, if the hot cache of this process holds it. Counts as an answer
    /// from the record. `None` means only that the cache has no entry: call [`once`](Self::once).
    #[must_use]
    pub fn at_hand(&self, key: &Key, payload: Payload) -> Option<(KeyId, Arc<Outcome>)> {
        let secret = self.inner.secret.get()?;
        let id = key.id(secret).ok()?;
        match self.inner.cache.look(id, &payload.fingerprint(secret)) {
            Hit::Replay { outcome, .. } => {
                let subject = Subject { namespace: key.namespace().into_owned(), id, hint: key.hint() };
                self.inner.events.emit(&subject, &Event::Replayed { from: ReplayedFrom::HotCache });
                Some((id, outcome))
            }
            Hit::Conflict | Hit::Miss => None,
        }
    }

    /// The record of a key, if there is one.
    ///
    /// # Errors
    /// As [`id`](Self::id).
    pub async fn get(&self, key: &Key) -> Result<Option<Snapshot>, RunError<std::convert::Infallible>> {
        Ok(self.inner.store.get(self.id(key).await?).await?)
    }

    /// Declares the result of an effect in doubt. The caller learnt it from a probe or from a person.
    ///
    /// # Errors
    /// The store failed.
    pub async fn settle(&self, id: KeyId, settlement: Settlement) -> Result<Ruling, store::Error> {
        self.inner.store.apply(id, Command::Settle(settlement)).await
    }

    /// As [`settle`](Self::settle), but only the attempt with this fence: the one that was looked at. The ruling is
    /// [`Ruling::Lost`] if another attempt is in doubt now.
    ///
    /// # Errors
    /// The store failed.
    pub async fn settle_attempt(
        &self,
        id: KeyId,
        fence: Fence,
        settlement: Settlement,
    ) -> Result<Ruling, store::Error> {
        self.inner.store.apply(id, Command::SettleAttempt(fence, settlement)).await
    }

    /// Removes a record. After this returns, no engine of this process answers from it.
    ///
    /// # Errors
    /// The store failed.
    pub async fn forget(&self, id: KeyId, force: Force) -> Result<Ruling, store::Error> {
        self.inner.store.apply(id, Command::Forget(force)).await
    }

    /// Allows a completed effect to run again, in a new epoch.
    ///
    /// # Errors
    /// The store failed.
    pub async fn reexecute(&self, id: KeyId) -> Result<Ruling, store::Error> {
        self.inner.store.apply(id, Command::Reexecute).await
    }

    /// Sends one step of a claim to the store, for a caller that keeps the owner or the grant itself, such as a service
    /// for workers in other languages. Everybody else uses [`once`](Self::once). The command is repeated for up to five
    /// seconds while its result is unknown: the store recognises the owner or the grant. The commands of operators
    /// have neither, and are sent once.
    ///
    /// # Errors
    /// The store failed; ambiguous only if the result was unknown to the end.
    pub async fn apply(&self, id: KeyId, command: Command) -> Result<Ruling, store::Error> {
        let repeatable = !matches!(
            command,
            Command::Settle(_) | Command::SettleAttempt(..) | Command::Forget(_) | Command::Reexecute
        );
        let give_up = instant() + APPLY_TIMEOUT;
        let mut backoff = Backoff::new(Duration::from_millis(10), APPLY_TIMEOUT);
        let mut unknown = None;
        loop {
            match self.inner.store.apply(id, command.clone()).await {
                Err(error) if repeatable && error.kind() == ErrorKind::Ambiguous => {
                    let wait = backoff.next_wait();
                    if instant() + wait >= give_up {
                        return Err(error);
                    }
                    unknown = Some(error);
                    self.inner.background.sleep_until(instant() + wait).await;
                }
                // This try changed nothing, and an earlier one may have.
                Err(error) if error.is_retryable() => return Err(unknown.unwrap_or(error)),
                answered => return answered,
            }
        }
    }

    /// As [`apply`](Self::apply) for a claim. The hot cache answers if it holds the outcome of the key.
    ///
    /// # Errors
    /// As `apply`.
    pub async fn apply_claim(&self, id: KeyId, claim: record::NewClaim) -> Result<Ruling, store::Error> {
        let cache = &self.inner.cache;
        let fingerprint = claim.fingerprint;
        match cache.look(id, &fingerprint) {
            Hit::Replay { outcome, expires_in } => return Ok(Ruling::Replay { outcome, expires_in }),
            Hit::Conflict => return Ok(Ruling::Conflict),
            Hit::Miss => {}
        }
        let moment = cache.moment(id);
        let ruling = self.apply(id, Command::Claim(claim)).await?;
        if let Ruling::Replay { outcome, expires_in } = &ruling {
            cache.keep(moment, id, fingerprint, outcome, *expires_in);
        }
        Ok(ruling)
    }

    /// Measures the store with a few claims and rejects a lease that is too short for it: a heartbeat must have time
    /// for several retries before the lease expires. Returns the slowest round trip.
    ///
    /// # Errors
    /// The store failed, or the lease is shorter than four times the slowest of `rounds` round trips.
    pub async fn verify(&self, rounds: usize) -> Result<Duration, VerifyError> {
        let secret = self.inner.secret().await?;
        let lease = self.inner.terms.lease;
        // The record of this probe is stored no longer than a stub, regardless of the engine's mode and retention.
        let terms =
            Terms { mode: Mode::Rerun, retention: lease, memory: Duration::ZERO, ..*self.inner.terms };
        let terms = Arc::new(terms);
        let mut slowest = Duration::ZERO;
        for _ in 0..rounds {
            let key = Key::new("semel.verify").value(rand::random::<u128>().to_string());
            let id = key.id(&secret).map_err(|_| VerifyError::Ruling)?;
            let claim = record::NewClaim {
                owner: Owner::random(),
                fingerprint: crate::fingerprint::Payload::none().fingerprint(&secret),
                terms: Arc::clone(&terms),
                begin: Begin::Later,
                hint: key.hint(),
            };
            let sent = instant();
            let ruling = match self.inner.store.apply(id, Command::Claim(claim)).await {
                // A store that is full and accepts no new keys still works: it serves the keys that it has.
                Err(error) if error.is_over_limit() => {
                    slowest = slowest.max(instant().saturating_duration_since(sent));
                    continue;
                }
                answered => answered?,
            };
            let Ruling::Won(win) = ruling else { return Err(VerifyError::Ruling) };
            let won = instant();
            let Ruling::Accepted { .. } = self.inner.store.apply(id, Command::Release(win.grant)).await?
            else {
                return Err(VerifyError::Ruling);
            };
            slowest = slowest.max(won.saturating_duration_since(sent));
            slowest = slowest.max(instant().saturating_duration_since(won));
        }
        if lease < slowest * 4 { Err(VerifyError::LeaseTooShort { lease, slowest }) } else { Ok(slowest) }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl EngineInner {
    /// The deployment's secret: configured, or read from the store so that all processes use the same one.
    async fn secret(&self) -> Result<Arc<Secret>, store::Error> {
        if let Some(secret) = self.secret.get() {
            return Ok(Arc::clone(secret));
        }
        let kept = async || self.store.secret(Secret::random()).await.map(Arc::new);
        let asked = self.secret.get_or_try_init(kept);
        let kept = self.background.before(|| instant() + self.terms.lease, asked).await;
        kept.map(|kept| kept.cloned()).unwrap_or_else(|| {
            let message = format!("{} did not give the deployment's secret within a lease", self.store);
            Err(store::Error::new(ErrorKind::Unavailable, message))
        })
    }
}

impl fmt::Debug for EngineInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("store", &self.store)
            .field("terms", &self.terms)
            .field("wait", &self.wait)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

/// The store does not meet the engine's requirements.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The lease could expire before a heartbeat succeeds.
    #[error(
        "lease ({lease:?}) is below four times the store's slowest answer ({slowest:?}): lengthen the lease or use a faster store"
    )]
    LeaseTooShort {
        /// The configured lease.
        lease: Duration,
        /// The slowest measured round trip.
        slowest: Duration,
    },
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The store broke its contract.
    #[error("the store gave a ruling that a fresh key cannot get: run the contract suite over it")]
    Ruling,
}

/// Counts held claims, so that `drain` can wait for them.
#[derive(Default)]
struct HeldClaims {
    count: AtomicUsize,
    left: Notify,
}

/// One held claim. It is counted until its result is in the record, and keeps the engine's thread alive until then.
struct HeldClaim(Arc<EngineInner>);

impl HeldClaim {
    fn new(inner: &Arc<EngineInner>) -> Self {
        inner.in_flight.count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(inner))
    }
}

impl Drop for HeldClaim {
    fn drop(&mut self) {
        if self.0.in_flight.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.in_flight.left.notify_waiters();
        }
    }
}
