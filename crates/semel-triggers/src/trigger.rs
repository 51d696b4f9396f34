//! Triggers: the same key names the same run, whichever path each call takes.
//!
//! ```text
//!   trigger ─► does this process know that the gate holds? ─┬─► yes ─► read the key in the ledger ─► put into the buffer
//!                                                           │              ▲                            │
//!                                                           │              └── the ledger has changed ──┤
//!                                                           └─► no ◄────────── reserved, full, unknown ─┘
//!                                                               │
//!                 claim (key, generation) ◄─────────────────────┘
//!                 │
//!                 ├─► read the key in the ledger ─┬─► held: answer its run, cached
//!                 │                               └─► other generation: claim again under that one
//!                 ├─► won ──► gate ─┬─► put into the buffer, as above ─┬─► resolve the claim to the run's id
//!                 │                 └─► reserve the key ─► ledger ─────┘
//!                 ├─► busy ──► buffer? ─► wait, at most `wait` ─► 503
//!                 └─► Redis does not answer ─► ledger alone
//! ```
//!
//! Every run with a key is placed under its claim. In a burst that is the entry of the key in the buffer: one call takes
//! the claim, places the run and resolves the claim. `?wait=true` skips only the gate.
//!
//! A key has generations, stored in the ledger: a reset or an expiry ends one. Claims and buffered runs are named by
//! key and generation, so an ended generation cannot conflict with the next one. A trigger claims under the first
//! generation, which is nearly always right, and reads the ledger after that: a winner therefore sees the run of the
//! previous winner.
//!
//! A run moves from the buffer to the ledger and never back. A caller that searches for a run therefore reads the
//! buffer first, or reads the ledger again after the buffer.
//!
//! No id is reserved for a successor, and no caller sees an id before its run is placed. A slow trigger cannot place a
//! second run. Between two runs in the buffer the entry of the key decides, and between two in the ledger the unique
//! index of key and generation. Between one of each decides the buffer: a direct write reserves its key there, and a
//! put is refused if the ledger has changed since its trigger read it ([`buffer`](crate::buffer)).
//!
//! Redis coordinates, and the ledger decides: if Redis does not answer, the ledger alone accepts a trigger.

mod claim;
mod existing;
mod place;
mod runs;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use semel::backoff::Backoff;
use semel::key::KeyError;
use semel::record::{Mode, Terms, TermsError};
use semel::secret::Secret;
use semel::{Engine, store};
use semel_pipeline::event::{Dedupe, Generation, NewEvent, Notes, Trace};
use semel_pipeline::id::EventId;
use semel_pipeline::ledger::{self, Ledger};

pub use self::runs::{RunAccessError, RunKey, RunLocation};
use crate::buffer::Buffer;
use crate::drainer::DrainCounters;
use crate::gate::Gate;
use crate::transfer::count;

/// The `retry_after` of a trigger that could not be placed in any round.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The waits between two checks of a run that a drainer has leased.
const CHECKS: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(250));

const BURST_PENDING: &str = "the buffer's Redis has not answered since the start";

/// A run to be triggered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRequest {
    /// Name of the token that authenticated the trigger.
    pub principal: String,
    /// The tenant; `""` without one.
    pub tenant: String,
    /// Name of the target.
    pub target: String,
    /// The exact bytes to deliver.
    pub payload: Bytes,
    /// Their content type.
    pub content_type: String,
    /// The idempotency key: another trigger with the same key names the same run.
    pub key: Option<String>,
    /// How long the key is known. `None`: as long as the run.
    pub lifetime: Option<Duration>,
    /// How long to wait before the first attempt.
    pub delay: Duration,
    /// Tags and metadata.
    pub notes: Notes,
    /// The ids that connect it to traces and requests of other systems.
    pub trace: Trace,
}

impl RunRequest {
    /// A run of `target` with this JSON payload; everything else is empty.
    pub fn json(target: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            principal: String::new(),
            tenant: String::new(),
            target: target.into(),
            payload: payload.into(),
            content_type: "application/json".to_owned(),
            key: None,
            lifetime: None,
            delay: Duration::ZERO,
            notes: Notes::default(),
            trace: Trace::default(),
        }
    }
}

/// The result of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triggered {
    /// The run.
    pub id: EventId,
    /// True if the run already existed.
    pub cached: bool,
    /// True if the run waits in the buffer.
    pub buffered: bool,
}

/// Why a trigger failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TriggerError {
    /// The key is invalid.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The key names a run with another target or payload.
    #[error(
        "the key belongs to a run with another target or payload: use another key, or send the same payload"
    )]
    Conflict,
    /// Another trigger of the same run did not finish in time.
    #[error("idempotency claim resolution timed out")]
    TimedOut {
        /// When to retry.
        retry_after: Duration,
    },
    /// The ledger does not accept the run.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// The configured claim settings are invalid.
    #[error("the claim on the key of a run cannot be made: {0}")]
    Claim(String),
}

/// Counters of triggers.
#[derive(Debug, Default)]
pub struct TriggerCounters {
    /// Claims won by the trigger whose run was placed.
    pub won: AtomicU64,
    /// Claims waited for: another trigger held the key, and its run was not placed yet.
    pub waited: AtomicU64,
    /// Triggers that found the run of another one: immediately, or after a wait.
    pub resolved: AtomicU64,
    /// Triggers that were answered with "timed out": the claim was not resolved in time.
    pub timed_out: AtomicU64,
    /// Failed calls to Redis. After each, a trigger continued without Redis: the ledger decided alone.
    pub failed_open: AtomicU64,
    /// Claims that named a run which is neither in the ledger nor in the buffer: Redis has lost it.
    pub lost: AtomicU64,
    /// Ids that could not be published after the run was written: the next trigger finds the run in the ledger.
    pub unpublished: AtomicU64,
    /// Runs placed in the buffer.
    pub buffered: AtomicU64,
    /// Runs placed directly in the ledger.
    pub direct: AtomicU64,
}

/// The parts that keep bursts off the database.
#[derive(Clone, Debug)]
pub struct Burst {
    /// Claims on keys, in Redis only, to keep bursts off the database.
    pub claims: Engine,
    /// The buffer.
    pub buffer: Arc<Buffer>,
    /// The gate that decides which runs are buffered.
    pub gate: Arc<Gate>,
}

/// Triggers runs.
#[derive(Debug)]
pub struct Triggers {
    ledger: Arc<dyn Ledger>,
    secret: Arc<Secret>,
    burst: OnceLock<Burst>,
    /// A buffer is configured, and Redis did not answer at the start.
    burst_pending: bool,
    terms: Terms,
    wait: Duration,
    counters: Arc<TriggerCounters>,
    drains: Arc<DrainCounters>,
}

/// Whether a trigger asks the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateUse {
    /// Yes: in a burst the run is buffered.
    Ask,
    /// No: its caller waits for the run, which goes into the ledger.
    Skip,
}

/// A trigger with a key while it is placed.
struct KeyedTrigger<'a> {
    request: &'a RunRequest,
    run: &'a NewEvent,
    dedupe: &'a Dedupe,
    gate_use: GateUse,
    /// The generation of a put that Redis did not answer: the run may be in the buffer under it, or drained already.
    unconfirmed: OnceLock<Generation>,
}

impl Triggers {
    /// Triggers runs into `ledger`. Keys are hashed with `secret`, the deployment's own.
    pub fn new(ledger: Arc<dyn Ledger>, secret: Arc<Secret>, burst: Option<Burst>) -> Self {
        let terms =
            Terms { mode: Mode::Keyed, grace: Duration::ZERO, memory: Duration::ZERO, ..Terms::default() };
        let burst = burst.map(OnceLock::from).unwrap_or_default();
        let (wait, counters, drains) = (Duration::from_secs(5), Arc::default(), Arc::default());
        Self { ledger, secret, burst, burst_pending: false, terms, wait, counters, drains }
    }

    /// A buffer is configured, and Redis does not answer yet: the ledger decides alone until
    /// [`set_burst`](Self::set_burst) is called.
    #[must_use]
    pub fn with_burst_pending(mut self) -> Self {
        self.burst_pending = true;
        self
    }

    /// Buffers bursts from now on. Only the first call counts.
    pub fn set_burst(&self, burst: Burst) {
        // A second one has the same settings.
        let _ = self.burst.set(burst);
    }

    /// How long a trigger waits for another with the same key (5 s), and how long a claim is valid without a
    /// heartbeat (30 s).
    ///
    /// # Errors
    /// Neither may be longer than a claim can last (60 s).
    pub fn limits(mut self, wait: Duration, lease: Duration) -> Result<Self, TermsError> {
        let terms = Terms { lease, ..self.terms };
        terms.check()?;
        if wait > terms.in_flight_max {
            return Err(TermsError::WaitAboveInFlight { wait, in_flight_max: terms.in_flight_max });
        }
        (self.wait, self.terms) = (wait, terms);
        Ok(self)
    }

    /// Counts runs that triggers move out of the buffer in the counters of the drainers.
    #[must_use]
    pub fn drain_counters(mut self, counters: Arc<DrainCounters>) -> Self {
        self.drains = counters;
        self
    }

    /// The counters.
    pub fn counters(&self) -> &Arc<TriggerCounters> {
        &self.counters
    }

    /// The parts that keep bursts off the database, if configured.
    pub fn burst(&self) -> Option<&Burst> {
        self.burst.get()
    }

    /// As [`burst`](Self::burst), for callers that must not treat a buffered run as missing.
    ///
    /// # Errors
    /// A buffer is configured, and Redis has not answered since the start.
    pub fn connected_burst(&self) -> Result<Option<&Burst>, store::Error> {
        match self.burst.get() {
            None if self.burst_pending => Err(pending()),
            burst => Ok(burst),
        }
    }

    /// Triggers a run, or finds the one that its key names.
    ///
    /// # Errors
    /// See [`TriggerError`]. Calling again is safe.
    pub async fn trigger(&self, request: &RunRequest) -> Result<Triggered, TriggerError> {
        self.trigger_with(request, GateUse::Ask).await
    }

    /// As [`trigger`](Self::trigger), for a caller that waits for the run: it skips the gate and goes into the
    /// ledger. A run that is buffered under its key is moved there, under its own id.
    ///
    /// # Errors
    /// As [`trigger`](Self::trigger).
    pub async fn trigger_now(&self, request: &RunRequest) -> Result<Triggered, TriggerError> {
        self.trigger_with(request, GateUse::Skip).await
    }

    async fn trigger_with(&self, request: &RunRequest, gate_use: GateUse) -> Result<Triggered, TriggerError> {
        let run = self.build_run(request)?;
        if self.burst_pending && self.burst().is_none() {
            self.report_failed_open(&pending());
        }
        let Some(dedupe) = &run.dedupe else { return self.place_keyless(run, gate_use).await };
        let call = KeyedTrigger { request, run: &run, dedupe, gate_use, unconfirmed: OnceLock::new() };
        match self.burst() {
            Some(burst) => self.place_keyed(burst, &call).await,
            None => self.place_without_claim(&call).await,
        }
    }

    fn time_out(&self, retry_after: Duration) -> TriggerError {
        count(&self.counters.timed_out, 1);
        TriggerError::TimedOut { retry_after }
    }

    /// Redis' answer; `None`, logged and counted, if it did not answer.
    fn fail_open<T>(&self, answer: Result<T, store::Error>) -> Option<T> {
        answer.map_err(|error| self.report_failed_open(&error)).ok()
    }

    fn report_failed_open(&self, error: &store::Error) {
        count(&self.counters.failed_open, 1);
        if error.is_logged() {
            tracing::debug!(target: "semel", %error, "a trigger continues without Redis; the ledger decides alone");
        } else {
            tracing::warn!(target: "semel", %error, "a trigger continues without Redis; the ledger decides alone");
        }
    }
}

/// The start without Redis is logged, once.
fn pending() -> store::Error {
    store::Error::new(store::ErrorKind::Unavailable, BURST_PENDING).logged()
}
