//! Builds an engine. Rejects inconsistent settings with a message that says what to change.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::OnceCell;

use super::background::Background;
use super::cache::HotCache;
use super::event::{Events, Observer};
use super::flight::{Flights, WaiterCaps};
use super::{Engine, EngineInner, HeldClaims};
use crate::record::{Mode, Terms, TermsError};
use crate::secret::Secret;
use crate::store::{Durability, Invalidate, Store};
use crate::time::instant;

/// How many records one step of a sweep reads.
const SWEEP_STEP: usize = 500;

/// Settings of an [`Engine`]. The defaults suit a payment API.
#[must_use = "nothing is built until build is called"]
pub struct EngineBuilder {
    store: Arc<dyn Store>,
    terms: Terms,
    wait: Duration,
    backstop: Duration,
    max_outcome: usize,
    secret: Option<Secret>,
    cache_bytes: u64,
    cache_age: Duration,
    caps: WaiterCaps,
    observers: Vec<Arc<dyn Observer>>,
    sweep_every: Option<Duration>,
}

impl EngineBuilder {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            terms: Terms::default(),
            wait: Duration::from_secs(5),
            backstop: Duration::from_secs(1),
            max_outcome: 1 << 20,
            secret: None,
            cache_bytes: 16 << 20,
            cache_age: Duration::from_secs(10),
            caps: WaiterCaps::default(),
            observers: Vec::new(),
            sweep_every: Some(Duration::from_secs(30)),
        }
    }

    /// How effects behave when their owner is lost. Default: [`Mode::Marked`].
    pub fn mode(mut self, mode: Mode) -> Self {
        self.terms.mode = mode;
        self
    }

    /// How long a claim is valid without a heartbeat. Default 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.terms.lease = lease;
        self
    }

    /// How long an effect may run. Default 60 s.
    pub fn in_flight_max(mut self, in_flight_max: Duration) -> Self {
        self.terms.in_flight_max = in_flight_max;
        self
    }

    /// How long callers are answered from a stored outcome. Default 24 h.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.terms.retention = retention;
        self
    }

    /// How much longer than `retention` the outcome is still given. Default 60 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.terms.grace = grace;
        self
    }

    /// How long after that a key answers "expired" before it counts as new. Default 24 h.
    pub fn memory(mut self, memory: Duration) -> Self {
        self.terms.memory = memory;
        self
    }

    /// How long a caller waits for another caller's effect. Default 5 s; zero refuses immediately.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How often waiters ask the store without a notification. Default 1 s.
    pub fn backstop(mut self, backstop: Duration) -> Self {
        self.backstop = backstop;
        self
    }

    /// The largest stored outcome, in bytes. A larger one leaves a tombstone. Default 1 MiB.
    pub fn max_outcome(mut self, bytes: usize) -> Self {
        self.max_outcome = bytes;
        self
    }

    /// The deployment's secret. Default: created on first use and stored in the store.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Limits the cache of completed records in this process. Default 16 MiB and 10 s; zero bytes disable it.
    pub fn hot_cache(mut self, bytes: u64, max_age: Duration) -> Self {
        (self.cache_bytes, self.cache_age) = (bytes, max_age);
        self
    }

    /// How many callers may wait.
    pub fn waiter_caps(mut self, caps: WaiterCaps) -> Self {
        self.caps = caps;
        self
    }

    /// Adds an observer of all signals.
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// How often expired records are removed. Default every 30 s; `None` leaves it to other processes.
    pub fn sweep_every(mut self, interval: Option<Duration>) -> Self {
        self.sweep_every = interval;
        self
    }

    /// Builds the engine. Needs no runtime.
    ///
    /// # Errors
    /// The settings are inconsistent; the error names them.
    pub fn build(self) -> Result<Engine, BuildError> {
        self.terms.check()?;
        let (wait, in_flight_max) = (self.wait, self.terms.in_flight_max);
        if wait > in_flight_max {
            return Err(TermsError::WaitAboveInFlight { wait, in_flight_max }.into());
        }
        if self.backstop < Duration::from_millis(1) {
            return Err(BuildError::Backstop);
        }
        let sweep_every = self.sweep_every.unwrap_or_default();
        let lengths =
            [("backstop", self.backstop), ("hot_cache", self.cache_age), ("sweep_every", sweep_every)];
        if let Some((setting, _)) = lengths.into_iter().find(|(_, length)| *length > LONGEST) {
            return Err(TermsError::TooLong { setting }.into());
        }
        if self.sweep_every.is_some_and(|interval| interval.is_zero()) {
            return Err(BuildError::SweepEvery);
        }
        if [self.caps.per_key, self.caps.per_scope, self.caps.in_all].contains(&0) {
            return Err(BuildError::WaiterCaps);
        }
        if self.max_outcome > LARGEST_OUTCOME {
            return Err(BuildError::MaxOutcome { bytes: self.max_outcome });
        }
        if self.store.durability() == Durability::Process {
            let store = self.store.as_ref();
            tracing::warn!(target: "semel", %store, "this store loses its data when the process ends");
        }
        let cache = Arc::new(HotCache::new(self.cache_bytes, self.cache_age));
        let of_store: Weak<dyn Invalidate> = {
            let cache: Arc<dyn Invalidate> = cache.clone();
            Arc::downgrade(&cache)
        };
        self.store.attach(of_store);
        let inner = Arc::new(EngineInner {
            store: self.store,
            terms: Arc::new(self.terms),
            wait: self.wait,
            backstop: self.backstop,
            max_outcome: self.max_outcome,
            secret: OnceCell::new_with(self.secret.map(Arc::new)),
            cache,
            flights: Arc::new(Flights::new(self.caps)),
            events: Arc::new(Events::new(self.observers)),
            in_flight: HeldClaims::default(),
            background: Background::start().map_err(BuildError::Thread)?,
        });
        if let Some(interval) = self.sweep_every {
            inner.background.spawn(sweep(Arc::downgrade(&inner), interval));
        }
        Ok(Engine { inner })
    }
}

/// Records store lengths in four bytes.
const LARGEST_OUTCOME: usize = 1 << 30;
/// The same limit as for terms: times that far ahead can still be represented.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A sweep uses at most a tenth of the time: a store without an index reads all of its records.
const SWEEP_SHARE: u32 = 9;

/// Sweeps step by step while the engine exists.
async fn sweep(engine: Weak<EngineInner>, interval: Duration) {
    let mut pause = interval;
    loop {
        tokio::time::sleep_until((instant() + pause).into()).await;
        let begun = instant();
        loop {
            // Holds only the store while it sweeps, so that an engine over a hanging store can be dropped.
            let Some(store) = engine.upgrade().map(|inner| Arc::clone(&inner.store)) else { return };
            match store.sweep(SWEEP_STEP).await {
                Ok(swept) if swept.more => tokio::task::yield_now().await,
                Ok(_) => break,
                Err(error) => {
                    if error.is_logged() {
                        tracing::debug!(target: "semel", %error, "sweeping failed; retrying later");
                    } else {
                        tracing::warn!(target: "semel", %error, "sweeping failed; retrying later");
                    }
                    break;
                }
            }
        }
        pause = interval.max(instant().saturating_duration_since(begun) * SWEEP_SHARE);
    }
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("store", &self.store)
            .field("terms", &self.terms)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// Settings that an engine cannot be built with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The durations are inconsistent.
    #[error(transparent)]
    Terms(#[from] TermsError),
    /// Waiters would ask without a pause.
    #[error(
        "backstop must be at least 1ms: it is how often waiters poll where no push arrives; the default is 1s"
    )]
    Backstop,
    /// Sweeping would never pause.
    #[error("sweep_every must not be zero: give an interval, or None to leave sweeping to others")]
    SweepEvery,
    /// No caller could wait.
    #[error("waiter caps must not be zero: to refuse instead of wait, set wait to zero")]
    WaiterCaps,
    /// Larger than a record can hold.
    #[error(
        "max_outcome ({bytes} bytes) is above 1 GiB: larger outcomes leave a tombstone, keep them elsewhere"
    )]
    MaxOutcome {
        /// The given value.
        bytes: usize,
    },
    /// The system refused a thread for heartbeats.
    #[error("the heartbeat thread could not be started: {0}")]
    Thread(#[source] std::io::Error),
}
