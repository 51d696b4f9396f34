//! Triggers: the same key names the same run, whichever path each call takes.
//!
//! ```text
//!   trigger ─► claim (key, generation) ─► read the key in the ledger ─┬─► held: answer its run, cached
//!                 │                                                   ├─► other generation: claim again under that one
//!                 │                                                   └─► free ─┐
//!                 ├─► won ──► gate ─┬─► buffer ─────────────────────────────────┤
//!                 │                 └─► buffer? ─► ledger ──────────────────────┴─► resolve the claim to the run's id
//!                 ├─► taken over ──► fence the owner before ─► ledger? ─► buffer? ─► ledger
//!                 ├─► busy ──► buffer? ─► wait, at most `wait` ─► 503
//!                 └─► Redis does not answer ─► ledger alone
//! ```
//!
//! Every run with a key is placed under its claim. `?wait=true` skips only the gate.
//!
//! A key has generations, stored in the ledger: a reset or an expiry ends one. Claims and buffered runs are named by
//! key and generation, so an ended generation cannot conflict with the next one. A trigger claims under the first
//! generation, which is nearly always right, and reads the ledger after that: a winner therefore sees the run of the
//! previous winner.
//!
//! A run moves from the buffer to the ledger and never back. A caller that searches for a run therefore reads the
//! buffer first, or reads the ledger again after the buffer.
//!
//! No id is reserved for a successor, and no caller sees an id before its run is placed. A slow previous owner cannot
//! place a second run: the fence keeps it out of the buffer, and in the ledger the unique index of key and generation
//! decides.
//!
//! Redis coordinates, and the ledger decides: if Redis does not answer, the ledger alone accepts a trigger.

mod desk;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use semel::engine::{Acquired, Completed, RunError, Running};
use semel::key::{KeyError, KeyId};
use semel::outcome::{Outcome, OutcomeBody};
use semel::record::{Fence, Force, Mode, Phase, Terms, TermsError};
use semel::secret::Secret;
use semel::time::{Clock as _, SystemClock};
use semel::{Engine, Key, store};
use tokio::time::Instant;

pub use self::desk::{DeskError, RunKey, RunLocation};
use crate::buffer::{Buffer, Put};
use crate::drainer::{DrainCounters, DrainPace};
use crate::gate::{Decision, Gate};
use crate::transfer::{DrainError, Moved, Transfer};
use semel_pipeline::event::{Accepted, Dedupe, Generation, NewEvent, Notes, Origin, Trace};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::{self, KeyHolder, KeyState, Ledger};

/// How often a trigger restarts because its key was reset, expired or got another owner meanwhile.
const ROUNDS: usize = 10;

/// The fence of a run without a key, which has no claim.
const UNCLAIMED: Fence = Fence::new(0);

/// The `retry_after` of a trigger that could not be placed in any round.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The first and the longest pause between two checks of a run that a drainer has leased.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

const AWAITED: &str = "the buffer's Redis has not answered since the start";

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
    /// Claims won.
    pub won: AtomicU64,
    /// Claims waited for: another trigger held the key, and its run was not placed yet.
    pub waited: AtomicU64,
    /// Claims that another trigger had resolved: immediately, or after a wait.
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

fn one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
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
    awaited: bool,
    terms: Terms,
    wait: Duration,
    counters: Arc<TriggerCounters>,
    drains: Arc<DrainCounters>,
}

/// The outcome of a claim on a key: the id of its run.
#[derive(serde::Serialize, serde::Deserialize)]
struct Resolved {
    id: EventId,
    buffered: bool,
}

impl Resolved {
    fn read(outcome: &Outcome) -> Option<Self> {
        match outcome.body() {
            OutcomeBody::Kept(bytes) => serde_json::from_slice(bytes).ok(),
            OutcomeBody::Tombstone(_) => None,
        }
    }
}

/// Whether a trigger asks the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateUse {
    /// Yes: in a burst the run is buffered.
    ByGate,
    /// No: its caller waits for the run, which goes into the ledger.
    PastGate,
}

/// The state of a key that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The run with the same payload.
    Run { id: EventId, buffered: bool },
    /// Its run has another payload.
    Conflict,
    /// It has expired in the buffer: its generation must be ended.
    Expired,
}

enum Placed {
    Done(Triggered),
    /// Its generation has ended, or its claim was taken over: start again.
    Again,
}

/// A trigger with a key while it is placed.
struct KeyedTrigger<'a> {
    ask: &'a RunRequest,
    run: &'a NewEvent,
    dedupe: &'a Dedupe,
    route: GateUse,
}

impl KeyedTrigger<'_> {
    fn claim_key(&self, generation: Generation) -> Key {
        let RunRequest { principal, tenant, target, key, .. } = self.ask;
        Dedupe::claim_key((principal, tenant, target), key.as_deref().unwrap_or_default(), generation)
    }

    /// The result for this trigger if a run in the ledger has its key.
    fn held_by(&self, holder: KeyHolder) -> Known {
        match holder.fingerprint == self.dedupe.fingerprint {
            true => Known::Run { id: holder.event, buffered: false },
            false => Known::Conflict,
        }
    }

    /// The run for this generation of its key.
    fn run_in(&self, generation: Generation) -> NewEvent {
        let dedupe = Dedupe { generation: Some(generation), ..self.dedupe.clone() };
        NewEvent { dedupe: Some(dedupe), ..self.run.clone() }
    }
}

impl Triggers {
    /// Triggers runs into `ledger`. Keys are hashed with `secret`, the deployment's own.
    pub fn new(ledger: Arc<dyn Ledger>, secret: Arc<Secret>, burst: Option<Burst>) -> Self {
        let terms =
            Terms { mode: Mode::Keyed, grace: Duration::ZERO, memory: Duration::ZERO, ..Terms::default() };
        let burst = burst.map(OnceLock::from).unwrap_or_default();
        let (wait, counters, drains) = (Duration::from_secs(5), Arc::default(), Arc::default());
        Self { ledger, secret, burst, awaited: false, terms, wait, counters, drains }
    }

    /// A buffer is configured, and Redis does not answer yet: the ledger decides alone until
    /// [`begin_bursts`](Self::begin_bursts) is called.
    #[must_use]
    pub fn await_bursts(mut self) -> Self {
        self.awaited = true;
        self
    }

    /// Buffers bursts from now on. Only the first call counts.
    pub fn begin_bursts(&self, burst: Burst) {
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
    pub fn burst_at_hand(&self) -> Result<Option<&Burst>, store::Error> {
        match self.burst.get() {
            None if self.awaited => Err(store::Error::new(store::ErrorKind::Unavailable, AWAITED)),
            burst => Ok(burst),
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> &Arc<dyn Ledger> {
        &self.ledger
    }

    /// Triggers a run, or finds the one that its key names.
    ///
    /// # Errors
    /// See [`TriggerError`]. Calling again is safe.
    pub async fn trigger(&self, ask: &RunRequest) -> Result<Triggered, TriggerError> {
        self.trigger_by(ask, GateUse::ByGate).await
    }

    /// As [`trigger`](Self::trigger), for a caller that waits for the run: it skips the gate and goes into the
    /// ledger. A run that is buffered under its key is moved there, under its own id.
    ///
    /// # Errors
    /// As [`trigger`](Self::trigger).
    pub async fn trigger_now(&self, ask: &RunRequest) -> Result<Triggered, TriggerError> {
        self.trigger_by(ask, GateUse::PastGate).await
    }

    async fn trigger_by(&self, ask: &RunRequest, route: GateUse) -> Result<Triggered, TriggerError> {
        let run = self.run(ask)?;
        if self.awaited && self.burst().is_none() {
            self.failed_open(&AWAITED);
        }
        let Some(dedupe) = &run.dedupe else { return self.place_keyless(run, route).await };
        let call = KeyedTrigger { ask, run: &run, dedupe, route };
        match self.burst() {
            Some(burst) => self.place_by_claim(burst, &call).await,
            None => self.place_without_claim(&call).await,
        }
    }

    fn run(&self, ask: &RunRequest) -> Result<NewEvent, TriggerError> {
        let texts = [
            ("the tenant", Some(&ask.tenant)),
            ("the target", Some(&ask.target)),
            ("the principal", Some(&ask.principal)),
            ("the request id", ask.trace.request_id.as_ref()),
            ("the trace context", ask.trace.traceparent.as_ref()),
        ];
        let texts = texts.into_iter().filter_map(|(what, text)| Some((what, text?)));
        let tags = ask.notes.tags.iter().map(|tag| ("a tag", tag));
        // Now, and not when the run is drained: an accepted run must fit every ledger.
        if let Some((what, _)) = texts.chain(tags).find(|(_, text)| text.contains('\0')) {
            let why = format!("{what} must not contain the character NUL");
            return Err(ledger::Error::Refused(why).into());
        }
        let dedupe = match &ask.key {
            Some(key) => {
                let whose = (ask.principal.as_str(), ask.tenant.as_str(), ask.target.as_str());
                Some(Dedupe::of_run(&self.secret, whose, key, &ask.payload, ask.lifetime)?)
            }
            None => None,
        };
        Ok(NewEvent {
            id: EventId::new(EventKind::Run, SystemClock.now()),
            tenant: ask.tenant.clone(),
            event_type: ask.target.clone(),
            dedupe,
            payload: ask.payload.clone(),
            content_type: ask.content_type.clone(),
            headers: Vec::new(),
            order_key: None,
            origin: Origin::Api { principal: ask.principal.clone() },
            targets: vec![ask.target.clone()],
            delay: ask.delay,
            deliver_within: None,
            notes: ask.notes.clone(),
            trace: ask.trace.clone(),
        })
    }

    /// A run without a key is never a duplicate, so it needs no claim.
    async fn place_keyless(&self, run: NewEvent, route: GateUse) -> Result<Triggered, TriggerError> {
        if let (Some(burst), GateUse::ByGate) = (self.burst(), route)
            && let Decision::Divert(_) = burst.gate.decide(&run.tenant).await
            && let Some(Put::Accepted(accepted)) = self.open(burst.buffer.put(&run, UNCLAIMED).await)
        {
            one(&self.counters.buffered);
            return match answer(accepted, run.id, true)? {
                Placed::Done(triggered) => Ok(triggered),
                Placed::Again => Err(self.timed_out(RETRY_AFTER)),
            };
        }
        match self.accept(run).await? {
            Placed::Done(triggered) => Ok(triggered),
            Placed::Again => Err(self.timed_out(RETRY_AFTER)),
        }
    }

    async fn place_by_claim(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
    ) -> Result<Triggered, TriggerError> {
        // An unresolved claim must be remembered for longer than its owner, or the run that its owner has buffered,
        // can exist.
        let longest = call.ask.lifetime.unwrap_or_default() + self.terms.in_flight_max;
        let retention = self.terms.retention.max(longest);
        let terms = Arc::new(Terms { retention, ..self.terms });
        let (mut generation, mut wait) = (Generation::FIRST, Duration::ZERO);
        for _ in 0..ROUNDS {
            let key = call.claim_key(generation);
            let id = key.id(&self.secret)?;
            let once = burst
                .claims
                .once(key)
                .payload(Dedupe::run_payload(&call.ask.target, &call.ask.payload))
                .terms(Arc::clone(&terms))
                .wait(wait);
            let acquired = match once.claim().await {
                Ok(acquired) => acquired,
                Err(RunError::Store(error)) => {
                    self.failed_open(&error);
                    return self.place_without_claim(call).await;
                }
                Err(error) => return Err(TriggerError::Claim(error.to_string())),
            };
            // Dropping the claim on an error releases it.
            let key = self.read_key(call.dedupe).await?;
            if key.generation != generation {
                if let Acquired::Won(claim) = acquired {
                    claim.release().await;
                }
                (generation, wait) = (key.generation, Duration::ZERO);
                continue;
            }
            match acquired {
                Acquired::Won(claim) => {
                    one(&self.counters.won);
                    let Ok(running) = claim.begin().await else { continue };
                    match self.place_won(burst, call, (id, running), key).await? {
                        Placed::Done(triggered) => return Ok(triggered),
                        Placed::Again => {}
                    }
                }
                Acquired::Replay(outcome) => {
                    one(&self.counters.resolved);
                    match self.known(Some(burst), call, key).await? {
                        Some(known) => match self.answer_known(call, known, generation).await? {
                            Placed::Done(triggered) => return Ok(triggered),
                            Placed::Again => {}
                        },
                        None => self.forget_lost(burst, id, &outcome).await?,
                    }
                }
                Acquired::Conflict => {
                    // Before searching for the run: a claim that is resolved by now had placed its run before.
                    let in_flight = self.is_in_flight(burst, id).await;
                    match self.known(Some(burst), call, key).await? {
                        Some(known) => match self.answer_known(call, known, generation).await? {
                            Placed::Done(triggered) => return Ok(triggered),
                            Placed::Again => {}
                        },
                        None if in_flight => self.await_claim(burst, id).await?,
                        // It is the claim of a run that no longer has the key.
                        None => drop(self.open(burst.claims.forget(id, Force::No).await)),
                    }
                }
                Acquired::InFlight { retry_after } | Acquired::TooManyWaiters { retry_after } => {
                    if let Some(known) = self.known(Some(burst), call, key).await? {
                        match self.answer_known(call, known, generation).await? {
                            Placed::Done(triggered) => return Ok(triggered),
                            Placed::Again => continue,
                        }
                    }
                    if wait < self.wait {
                        one(&self.counters.waited);
                        wait = self.wait;
                        continue;
                    }
                    // If Redis does not answer, nobody can resolve the claim.
                    if let Err(error) = burst.buffer.tenant_of(call.run.id).await {
                        self.failed_open(&error);
                        return self.place_without_claim(call).await;
                    }
                    return Err(self.timed_out(retry_after));
                }
                // Both are impossible with these terms, and neither may block the key.
                _ => drop(self.open(burst.claims.forget(id, Force::Yes).await)),
            }
        }
        Err(self.timed_out(RETRY_AFTER))
    }

    /// The ledger decides alone: there is no buffer, or Redis does not answer.
    async fn place_without_claim(&self, call: &KeyedTrigger<'_>) -> Result<Triggered, TriggerError> {
        for _ in 0..ROUNDS {
            let key = self.read_key(call.dedupe).await?;
            let placed = match self.known(self.burst(), call, key).await? {
                Some(known) => self.answer_known(call, known, key.generation).await?,
                None => self.direct(call, call.run_in(key.generation)).await?,
            };
            if let Placed::Done(triggered) = placed {
                return Ok(triggered);
            }
        }
        Err(self.timed_out(RETRY_AFTER))
    }

    /// Reads the key in the ledger. Ends the generation of an expired key.
    async fn read_key(&self, dedupe: &Dedupe) -> Result<KeyState, ledger::Error> {
        let key = self.ledger.find(dedupe.id).await?;
        if key.holder.is_some_and(|holder| holder.expired) {
            let generation = self.ledger.advance(dedupe.id, key.generation).await?;
            return Ok(KeyState { generation, holder: None });
        }
        Ok(key)
    }

    /// The run that has the key in this generation: in the ledger, else in the buffer, else in the ledger again,
    /// because a run moves from the buffer to the ledger.
    async fn known(
        &self,
        burst: Option<&Burst>,
        call: &KeyedTrigger<'_>,
        key: KeyState,
    ) -> Result<Option<Known>, ledger::Error> {
        if let Some(holder) = key.holder {
            return Ok(Some(call.held_by(holder)));
        }
        let Some(burst) = burst else { return Ok(None) };
        if let Some(known) = self.known_in_buffer(burst, call, key.generation).await {
            return Ok(Some(known));
        }
        let now = self.ledger.find(call.dedupe.id).await?;
        Ok(now.live().filter(|_| now.generation == key.generation).map(|holder| call.held_by(holder)))
    }

    async fn known_in_buffer(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
        generation: Generation,
    ) -> Option<Known> {
        let found = burst.buffer.find(&call.run.tenant, (call.dedupe.id, generation)).await;
        let found = self.open(found).flatten()?;
        Some(match found.fingerprint == *call.dedupe.fingerprint.as_bytes() {
            _ if found.expired => Known::Expired,
            true => Known::Run { id: found.run, buffered: true },
            false => Known::Conflict,
        })
    }

    /// Answers with the run that has the key. If the caller waits for it, it is moved into the ledger.
    async fn answer_known(
        &self,
        call: &KeyedTrigger<'_>,
        known: Known,
        generation: Generation,
    ) -> Result<Placed, TriggerError> {
        match known {
            Known::Conflict => self.conflict(call, generation).await,
            Known::Expired => {
                self.ledger.advance(call.dedupe.id, generation).await?;
                Ok(Placed::Again)
            }
            Known::Run { id, buffered } => {
                let buffered = match (buffered, call.route, self.burst()) {
                    (true, GateUse::PastGate, Some(burst)) => {
                        self.promote(burst, &call.run.tenant, id).await?
                    }
                    _ => buffered,
                };
                Ok(Placed::Done(Triggered { id, cached: id != call.run.id, buffered }))
            }
        }
    }

    /// A run with another payload has the key. Before the caller gets a conflict, this searches for a run with the
    /// caller's own payload: it may have lost the key to the other run because Redis did not answer, and an earlier
    /// caller got its id. It is in the buffer or, if it was drained, in the ledger.
    async fn conflict(
        &self,
        call: &KeyedTrigger<'_>,
        generation: Generation,
    ) -> Result<Placed, TriggerError> {
        let buffer = match self.burst_at_hand() {
            Ok(None) => Ok(None),
            Ok(Some(burst)) => burst.buffer.find(&call.run.tenant, (call.dedupe.id, generation)).await,
            Err(error) => Err(error),
        };
        let fingerprint = call.dedupe.fingerprint;
        if let Ok(Some(found)) = &buffer
            && found.fingerprint == *fingerprint.as_bytes()
            && !found.expired
        {
            let known = Known::Run { id: found.run, buffered: true };
            return Box::pin(self.answer_known(call, known, generation)).await;
        }
        let key = self.read_key(call.dedupe).await?;
        if key.generation != generation {
            return Ok(Placed::Again);
        }
        let holder = key.holder.filter(|holder| holder.fingerprint == fingerprint);
        let own = match holder {
            Some(holder) => Some(holder.event),
            None => self.ledger.find_keyless(call.dedupe.id, generation, fingerprint).await?,
        };
        match (own, buffer) {
            (Some(id), _) => Ok(Placed::Done(Triggered { id, cached: id != call.run.id, buffered: false })),
            (None, Ok(_)) => Err(TriggerError::Conflict),
            // It may be in the buffer.
            (None, Err(error)) => {
                self.failed_open(&error);
                Err(self.timed_out(RETRY_AFTER))
            }
        }
    }

    /// Moves a buffered run into the ledger; waits for a drainer that has leased it. Returns true if it is still in
    /// the buffer, which is so if Redis does not answer.
    async fn promote(&self, burst: &Burst, tenant: &str, id: EventId) -> Result<bool, TriggerError> {
        let (until, mut pause) = (Instant::now() + self.wait, PAUSE.0);
        loop {
            match self.transfer(burst).move_one(tenant, id, None).await {
                Ok(Moved::Arrived | Moved::Missing) => return Ok(false),
                Ok(Moved::Held) if Instant::now() >= until => return Err(self.timed_out(RETRY_AFTER)),
                Ok(Moved::Held) => {}
                Err(DrainError::Ledger(error)) => return Err(error.into()),
                Err(DrainError::Buffer(error)) => {
                    self.failed_open(&error);
                    return Ok(true);
                }
            }
            tokio::time::sleep(pause).await;
            pause = pause.mul_f64(1.7).min(PAUSE.1);
        }
    }

    fn transfer(&self, burst: &Burst) -> Transfer {
        let (lease, max_attempts) = (self.terms.lease, DrainPace::default().max_attempts);
        let (buffer, ledger) = (Arc::clone(&burst.buffer), Arc::clone(&self.ledger));
        Transfer::new(buffer, ledger, (lease, max_attempts), Arc::clone(&self.drains))
    }

    /// A claim is resolved to a run that does not have the key: the claim must not block it.
    async fn forget_lost(&self, burst: &Burst, claim: KeyId, outcome: &Outcome) -> Result<(), ledger::Error> {
        if let Some(Resolved { id, .. }) = Resolved::read(outcome)
            && self.ledger.event(id).await?.is_none()
            && self.ledger.resolve(id).await?.is_none()
        {
            one(&self.counters.lost);
            tracing::error!(target: "semel", run_id = %id, "an accepted run is neither in the buffer nor in the ledger: Redis has lost it, or it was swept");
        }
        self.open(burst.claims.forget(claim, Force::No).await);
        Ok(())
    }

    /// Waits until a claim with another payload is resolved or released. A claim is not a run: its owner may itself
    /// be refused.
    ///
    /// # Errors
    /// [`TriggerError::Conflict`] if the owner was lost, because the key stays bound to the payload of that claim.
    /// [`TriggerError::TimedOut`] if the owner still holds the claim after `wait`.
    async fn await_claim(&self, burst: &Burst, claim: KeyId) -> Result<(), TriggerError> {
        one(&self.counters.waited);
        let (until, mut pause) = (Instant::now() + self.wait, PAUSE.0);
        loop {
            let found = self.open(burst.claims.store().get(claim).await).flatten();
            match found.map(|found| found.phase()) {
                None | Some(Phase::Done | Phase::Vacant | Phase::Expired) => return Ok(()),
                Some(Phase::Lapsed) => return Err(TriggerError::Conflict),
                // An owner that was refused releases its claim and then removes the binding.
                Some(Phase::Bound) if Instant::now() >= until => return Err(TriggerError::Conflict),
                Some(_) if Instant::now() >= until => return Err(self.timed_out(RETRY_AFTER)),
                Some(_) => {}
            }
            tokio::time::sleep(pause).await;
            pause = pause.mul_f64(1.7).min(PAUSE.1);
        }
    }

    /// True if another trigger holds the claim, or held it and may have placed its run.
    async fn is_in_flight(&self, burst: &Burst, claim: KeyId) -> bool {
        let found = self.open(burst.claims.store().get(claim).await).flatten();
        !found.is_some_and(|found| found.phase() == Phase::Done)
    }

    /// Places a run under its claim, and resolves the claim to its id.
    async fn place_won(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
        (claim, running): (KeyId, Running),
        key: KeyState,
    ) -> Result<Placed, TriggerError> {
        let triggered = match self.place_claimed(burst, call, &running, key).await {
            Ok(Placed::Done(triggered)) => triggered,
            Ok(Placed::Again) => {
                running.release().await;
                return Ok(Placed::Again);
            }
            Err(error) => {
                running.release().await;
                if matches!(error, TriggerError::Conflict) {
                    // The key has another payload: it must not stay bound to ours.
                    self.open(burst.claims.forget(claim, Force::No).await);
                }
                return Err(error);
            }
        };
        let resolved = Resolved { id: triggered.id, buffered: triggered.buffered };
        let body = serde_json::to_vec(&resolved).expect("an id is plain data");
        let outcome = Arc::new(Outcome::new("run", body));
        // The ledger and the buffer decide when the key expires. The claim is remembered a little longer, on any
        // clock.
        let remembered = call.dedupe.lifetime.map(|lifetime| lifetime + self.terms.lease);
        Ok(Placed::Done(match running.complete(&outcome, remembered).await {
            Completed::Kept => triggered,
            Completed::Superseded(winner) => match Resolved::read(&winner) {
                Some(Resolved { id, buffered }) if id != triggered.id => {
                    Triggered { id, cached: true, buffered }
                }
                _ => triggered,
            },
            // The next trigger finds the run in its place.
            _ => {
                one(&self.counters.unpublished);
                triggered
            }
        }))
    }

    async fn place_claimed(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
        running: &Running,
        mut key: KeyState,
    ) -> Result<Placed, TriggerError> {
        let (attempt, generation) = (running.attempt(), key.generation);
        let first = attempt.number() == 1;
        if !first {
            // The previous owner may have placed its run, or may continue at any time. From here on it cannot write
            // to the buffer. A run that it placed there is found, and in the ledger the unique index decides between
            // the two.
            let keep = self.terms.in_flight_max + self.terms.lease;
            let name = (call.dedupe.id, generation);
            self.open(burst.buffer.take_over(&call.run.tenant, name, attempt.fence(), keep).await);
            key = self.ledger.find(call.dedupe.id).await?;
            if key.generation != generation || key.holder.is_some_and(|holder| holder.expired) {
                return Ok(Placed::Again);
            }
        }
        if let Some(holder) = key.holder {
            return self.answer_known(call, call.held_by(holder), generation).await;
        }
        let run = call.run_in(generation);
        if first
            && call.route == GateUse::ByGate
            && let Decision::Divert(_) = burst.gate.decide(&run.tenant).await
        {
            match self.open(burst.buffer.put(&run, attempt.fence()).await) {
                Some(Put::Accepted(Accepted::Conflict)) => return self.conflict(call, generation).await,
                Some(Put::Accepted(accepted)) => {
                    one(&self.counters.buffered);
                    return answer(accepted, run.id, true);
                }
                Some(Put::Expired) => {
                    return self.answer_known(call, Known::Expired, generation).await;
                }
                Some(Put::TakenOver) => return Ok(Placed::Again),
                // It is unknown whether the run is in the buffer. The ledger accepts it under the same id, so that it
                // is one run either way.
                None => return self.direct(call, run).await,
                Some(Put::Full) => {}
            }
        }
        // A run that is being drained is found in the ledger.
        if let Some(known) = self.known_in_buffer(burst, call, generation).await {
            return self.answer_known(call, known, generation).await;
        }
        self.direct(call, run).await
    }

    /// Places a run with a key in the ledger.
    async fn direct(&self, call: &KeyedTrigger<'_>, run: NewEvent) -> Result<Placed, TriggerError> {
        let generation = run.dedupe.as_ref().and_then(|dedupe| dedupe.generation).unwrap_or_default();
        match self.accept(run).await {
            Err(TriggerError::Conflict) => self.conflict(call, generation).await,
            placed => placed,
        }
    }

    async fn accept(&self, run: NewEvent) -> Result<Placed, TriggerError> {
        let id = run.id;
        let accepted = self.ledger.accept(vec![run]).await?;
        let placed = answer(accepted.first().copied().unwrap_or(Accepted::Conflict), id, false)?;
        if matches!(placed, Placed::Done(_)) {
            one(&self.counters.direct);
        }
        Ok(placed)
    }

    fn timed_out(&self, retry_after: Duration) -> TriggerError {
        one(&self.counters.timed_out);
        TriggerError::TimedOut { retry_after }
    }

    /// Redis' answer; `None`, logged and counted, if it did not answer.
    fn open<T>(&self, answer: Result<T, store::Error>) -> Option<T> {
        answer.map_err(|error| self.failed_open(&error)).ok()
    }

    fn failed_open(&self, error: &dyn std::fmt::Display) {
        one(&self.counters.failed_open);
        tracing::warn!(target: "semel", %error, "a trigger continues without Redis; the ledger decides alone");
    }
}

/// The answer of the ledger or the buffer. An existing run with our own id was written by an earlier try of this
/// trigger.
fn answer(accepted: Accepted, own: EventId, buffered: bool) -> Result<Placed, TriggerError> {
    match accepted {
        Accepted::First(id) => Ok(Placed::Done(Triggered { id, cached: false, buffered })),
        Accepted::Cached(id) => Ok(Placed::Done(Triggered { id, cached: id != own, buffered })),
        Accepted::Conflict => Err(TriggerError::Conflict),
        Accepted::Stale => Ok(Placed::Again),
    }
}
