//! The engine: claims a key, runs the effect, keeps its outcome, and gives it to everybody else.
//!
//! ```
//! use semel::store::MemoryStore;
//! use semel::{Answer, Engine, FailureExt, Key, RunError};
//!
//! async fn charge_card(amount: u32) -> Result<String, std::io::Error> {
//!     Ok(format!("charged {amount}"))
//! }
//!
//! async fn charge(engine: &Engine, order: &str) -> Result<Answer<String>, RunError<std::io::Error>> {
//!     engine
//!         .once(Key::new("charge").scope("acct_1").value(order))
//!         .fingerprint(&1200)
//!         .run(async |_attempt| charge_card(1200).await.unknown())
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
/// For the other crates of Semel; no part of the interface.
#[doc(hidden)]
pub mod block_on;
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
pub use self::answer::{Answer, DecodeError, Failure, FailureExt, RunError};
pub use self::builder::{BuildError, Builder};
pub use self::event::{Event, Observer, ReplayedFrom, Stats, Subject};
pub use self::flight::WaiterCaps;
pub use self::hold::{Attempt, Claim, Completed, Concluded, NotBegun, Running};
pub use self::once::Once;

use self::background::Background;
use self::cache::{Hit, HotCache};
use self::event::Events;
use self::flight::Flights;
use crate::fingerprint::Payload;
use crate::key::{Key, KeyId};
use crate::outcome::Outcome;
use crate::record::{self, Begin, Command, Force, Mode, Owner, Ruling, Settlement, Terms};
use crate::secret::Secret;
use crate::store::{self, ErrorKind, Snapshot, Store};
use crate::time::instant;

/// Runs effects once over a store. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    terms: Arc<Terms>,
    wait: Duration,
    backstop: Duration,
    max_outcome: usize,
    secret: OnceCell<Arc<Secret>>,
    cache: Arc<HotCache>,
    flights: Arc<Flights>,
    events: Arc<Events>,
    in_flight: InFlight,
    background: Background,
}

impl Engine {
    /// Starts to build an engine over `store`.
    pub fn builder(store: impl Store) -> Builder {
        Builder::new(Arc::new(store))
    }

    /// The same, over a store that others use too.
    pub fn over(store: Arc<dyn Store>) -> Builder {
        Builder::new(store)
    }

    /// Names a call that is to happen once.
    pub fn once(&self, key: Key) -> Once {
        Once::new(self, key)
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// How often each event happened.
    pub fn stats(&self) -> Stats {
        self.inner.events.stats()
    }

    /// How many callers wait for somebody else's effect at present.
    pub fn waiters(&self) -> usize {
        self.inner.flights.waiters()
    }

    /// How many claims this engine holds at present.
    pub fn in_flight(&self) -> usize {
        self.inner.in_flight.count.load(Ordering::Acquire)
    }

    /// Waits until this engine holds no claim any more, and what dropped callers left behind is written: stop
    /// calling first, then drain, then exit. Where the store is away it can take `in_flight_max`; set a limit.
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

    /// The id under which the store keeps a key.
    ///
    /// # Errors
    /// A key that cannot be used, or a store that fails.
    pub async fn id(&self, key: &Key) -> Result<KeyId, RunError<std::convert::Infallible>> {
        let secret = self.inner.secret().await?;
        Ok(key.id(&secret)?)
    }

    /// The same, without asking the store: `None` until the deployment's secret is known, which it is after the first claim.
    #[must_use]
    pub fn id_at_hand(&self, key: &Key) -> Option<KeyId> {
        key.id(self.inner.secret.get()?).ok()
    }

    /// The outcome of a call, where it is at hand: in this process, for the last seconds, by nobody's leave but its
    /// own; with the id under which the store keeps the key. Counts as a replay. `None` says nothing: ask by
    /// [`once`](Self::once).
    #[must_use]
    pub fn at_hand(&self, key: &Key, payload: Payload) -> Option<(KeyId, Arc<Outcome>)> {
        let secret = self.inner.secret.get()?;
        let id = key.id(secret).ok()?;
        match self.inner.cache.look(id, &payload.fingerprint(secret)) {
            Hit::Replay(outcome) => {
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

    /// Says what became of an effect in doubt: a probe's or a person's word.
    ///
    /// # Errors
    /// A store that fails.
    pub async fn settle(&self, id: KeyId, settlement: Settlement) -> Result<Ruling, store::Error> {
        self.inner.store.apply(id, Command::Settle(settlement)).await
    }

    /// Takes a record away. When this returns, no engine of this process replays it any more.
    ///
    /// # Errors
    /// A store that fails.
    pub async fn forget(&self, id: KeyId, force: Force) -> Result<Ruling, store::Error> {
        self.inner.store.apply(id, Command::Forget(force)).await
    }

    /// Lets a done effect be executed anew, in a new epoch.
    ///
    /// # Errors
    /// A store that fails.
    pub async fn reexecute(&self, id: KeyId) -> Result<Ruling, store::Error> {
        self.inner.store.apply(id, Command::Reexecute).await
    }

    /// Measures the store with a few claims of its own and refuses a lease that it cannot keep: a claim must be
    /// renewable several times over before it ends. Returns the slowest round trip.
    ///
    /// # Errors
    /// A store that fails, or a lease below four times the slowest of `rounds` round trips.
    pub async fn verify(&self, rounds: usize) -> Result<Duration, VerifyError> {
        let secret = self.inner.secret().await?;
        let lease = self.inner.terms.lease;
        // Nothing of it stays behind for longer than a stub does, whatever mode and retention the engine has.
        let terms =
            Terms { mode: Mode::Rerun, retention: lease, memory: Duration::ZERO, ..*self.inner.terms };
        let terms = Arc::new(terms);
        let mut slowest = Duration::ZERO;
        for _ in 0..rounds {
            let key = Key::new("semel.verify").value(rand::random::<u128>().to_string());
            let id = key.id(&secret).map_err(|_| VerifyError::Ruling)?;
            let claim = record::Claim {
                owner: Owner::random(),
                fingerprint: crate::fingerprint::Payload::none().fingerprint(&secret),
                terms: Arc::clone(&terms),
                begin: Begin::Later,
                hint: key.hint(),
            };
            let sent = instant();
            let ruling = match self.inner.store.apply(id, Command::Claim(claim)).await {
                // A store that takes no new keys works: it has answered, and serves the keys that it knows.
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

impl Inner {
    /// The deployment's secret: given, or kept in the store so that all processes agree.
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

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("store", &self.store)
            .field("terms", &self.terms)
            .field("wait", &self.wait)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

/// A store that does not hold what the engine needs of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The lease could end before a heartbeat gets through.
    #[error(
        "lease ({lease:?}) is below four times the store's slowest answer ({slowest:?}): lengthen the lease or use a faster store"
    )]
    LeaseTooShort {
        /// As configured.
        lease: Duration,
        /// As measured.
        slowest: Duration,
    },
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The store answered against its contract.
    #[error("the store gave a ruling that a fresh key cannot get: run the contract suite over it")]
    Ruling,
}

/// Counts the claims that are held, for whoever wants to stop.
#[derive(Default)]
struct InFlight {
    count: AtomicUsize,
    left: Notify,
}

/// One claim that is held, until the record knows what became of it. Keeps the engine's own thread alive so long.
struct Counted(Arc<Inner>);

impl Counted {
    fn new(inner: &Arc<Inner>) -> Self {
        inner.in_flight.count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(inner))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.in_flight.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.in_flight.left.notify_waiters();
        }
    }
}
