//! Triggers: same key, same run, whatever way each call took (G1 to G9).
//!
//! ```text
//!   no key ──────────────────────────┐
//!   key ─► ledger? ─► claim ─► won ──┴─► gate ─┬─► buffer? ─► ledger ────────────┐
//!            │          │                      └─► buffer ───────────────────────┤
//!            │          ├─► taken over ─► fence ─► ledger? ─► buffer? ─► ledger ─┴─► publish the id
//!            │          ├─► held ─► buffer? ─► wait ─┐
//!            └──────────┴────────────────────────────┴──► cached
//! ```
//!
//! A key may be in the buffer although its claim is free, or held by somebody who died. So nobody waits for a claim, and
//! nothing goes to the ledger, before the buffer was looked into. What goes to the buffer needs no such look: the
//! buffer itself knows its keys, and a burst is spared a question for each trigger.
//!
//! No id is kept for a successor. Nobody has seen an id before its run is placed; so it is enough that the one before, if
//! it was only slow, places nothing any more that its successor does not meet. The fence keeps it off the buffer, and
//! in the ledger they meet under the unique index (G5).
//!
//! Without a buffer there is one place, the ledger, and its unique index is the claim. With one, all triggers of a key
//! serialise on a claim in Redis, taken before the choice between the two. Redis is for coordination, never for
//! correctness: where it does not answer, the ledger decides alone.

mod desk;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use semel::engine::{Acquired, Attempt, Completed, Running};
use semel::key::KeyError;
use semel::outcome::{Body, Outcome};
use semel::record::{Fence, Force, Mode, Terms};
use semel::secret::Secret;
use semel::time::{Clock as _, SystemClock};
use semel::{Engine, store};

pub use self::desk::{DeskError, Located, RunKey};
use crate::buffer::{Buffer, Put};
use crate::event::{Accepted, Dedupe, NewEvent, Notes, Origin, Trace};
use crate::gate::{Decision, Gate};
use crate::id::{EventId, EventKind};
use crate::ledger::{self, Ledger};

/// How often a claim that names a run which is nowhere is taken away and asked for again.
const ROUNDS: usize = 5;

/// The fence of a run without a key, which nobody can take over.
const UNCLAIMED: Fence = Fence::new(0);

const AWAY: &str = "the Redis of the buffer has not answered since the start";

/// A run to be triggered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Who triggers: the name of a token.
    pub principal: String,
    /// For whom; `""` where nobody said.
    pub tenant: String,
    /// What is to run: the name of a target.
    pub target: String,
    /// The exact bytes to deliver.
    pub payload: Bytes,
    /// What they are.
    pub content_type: String,
    /// Names it: another trigger with the same key is the same run.
    pub key: Option<String>,
    /// How long the key is remembered. `None`: as long as the run.
    pub lifetime: Option<Duration>,
    /// How long to wait before the first attempt.
    pub delay: Duration,
    /// Tags and metadata.
    pub notes: Notes,
    /// Under which ids its story is found elsewhere.
    pub trace: Trace,
}

/// What became of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triggered {
    /// The run.
    pub id: EventId,
    /// Whether it was there already.
    pub cached: bool,
    /// Whether it waits in the buffer.
    pub buffered: bool,
}

/// Why nothing was triggered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TriggerError {
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The key belongs to a run with another payload.
    #[error(
        "the key belongs to a run with another target or payload: use another key, or send the same payload"
    )]
    Conflict,
    /// Somebody else triggers the same run, and did not finish in time.
    #[error("idempotency claim resolution timed out")]
    TimedOut {
        /// When to come back.
        retry_after: Duration,
    },
    /// The ledger does not take it.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
}

/// What triggers count (G16).
#[derive(Debug, Default)]
pub struct TriggerCounters {
    /// Claims that were won.
    pub won: AtomicU64,
    /// Claims that were waited for: somebody else held the key, and its run was nowhere yet.
    pub waited: AtomicU64,
    /// Claims that somebody else had resolved: at once, or after a wait.
    pub resolved: AtomicU64,
    /// Waits that were in vain.
    pub timed_out: AtomicU64,
    /// Triggers that went on without a claim, a look into the buffer, or the buffer, because Redis did not answer.
    pub failed_open: AtomicU64,
    /// Ids that could not be published after the run was written: the next caller finds it in the ledger.
    pub unpublished: AtomicU64,
    /// Runs that went into the buffer.
    pub buffered: AtomicU64,
    /// Runs that went into the ledger at once.
    pub direct: AtomicU64,
}

fn one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Where bursts are kept.
#[derive(Clone, Debug)]
pub struct Burst {
    /// Claims on keys, in Redis alone: the point is to keep bursts off the database.
    pub claims: Engine,
    /// The buffer.
    pub buffer: Arc<Buffer>,
    /// What decides which runs go there.
    pub gate: Arc<Gate>,
}

/// Triggers runs.
#[derive(Debug)]
pub struct Triggers {
    ledger: Arc<dyn Ledger>,
    secret: Arc<Secret>,
    burst: OnceLock<Burst>,
    /// Set where there is to be one, and Redis did not answer at the start.
    awaited: bool,
    terms: Terms,
    wait: Duration,
    counters: Arc<TriggerCounters>,
}

/// The outcome of a claim on a key: which run it is.
#[derive(serde::Serialize, serde::Deserialize)]
struct Resolved {
    id: EventId,
    buffered: bool,
}

impl Resolved {
    fn read(outcome: &Outcome) -> Option<Self> {
        match outcome.body() {
            Body::Kept(bytes) => serde_json::from_slice(bytes).ok(),
            Body::Tombstone(_) => None,
        }
    }
}

/// Where a run was found under its key.
struct Known {
    id: EventId,
    buffered: bool,
    same: bool,
}

impl Triggers {
    /// Triggers runs into `ledger`. Keys are hashed under `secret`: the deployment's own.
    pub fn new(ledger: Arc<dyn Ledger>, secret: Arc<Secret>, burst: Option<Burst>) -> Self {
        let terms =
            Terms { mode: Mode::Keyed, grace: Duration::ZERO, memory: Duration::ZERO, ..Terms::default() };
        let burst = burst.map(OnceLock::from).unwrap_or_default();
        let (wait, counters) = (Duration::from_secs(5), Arc::default());
        Self { ledger, secret, burst, awaited: false, terms, wait, counters }
    }

    /// There is to be a burst, and Redis does not answer yet: the ledger decides alone until
    /// [`begin_bursts`](Self::begin_bursts) is called.
    #[must_use]
    pub fn await_bursts(mut self) -> Self {
        self.awaited = true;
        self
    }

    /// From now on bursts are kept here. Only the first one counts.
    pub fn begin_bursts(&self, burst: Burst) {
        // Whoever comes second has the same settings.
        let _ = self.burst.set(burst);
    }

    /// How long a trigger waits for another with the same key (5 s).
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long a claim stands without a heartbeat (30 s).
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.terms.lease = lease;
        self
    }

    /// What it counted.
    pub fn counters(&self) -> &Arc<TriggerCounters> {
        &self.counters
    }

    /// Where bursts are kept, if anywhere.
    pub fn burst(&self) -> Option<&Burst> {
        self.burst.get()
    }

    /// The same, for whoever must not take what is buffered for what is nowhere.
    ///
    /// # Errors
    /// There is to be one, and Redis has not answered since the start.
    pub fn burst_at_hand(&self) -> Result<Option<&Burst>, store::Error> {
        match self.burst.get() {
            None if self.awaited => Err(store::Error::new(store::ErrorKind::Unavailable, AWAY)),
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
    /// See [`TriggerError`]. Nothing is lost by calling again.
    pub async fn trigger(&self, ask: &Ask) -> Result<Triggered, TriggerError> {
        let run = self.run(ask)?;
        let Some(dedupe) = &run.dedupe else { return self.place(&run, UNCLAIMED).await };
        if let Some(known) = self.known_in_ledger(dedupe).await? {
            return known.answer();
        }
        match self.burst() {
            Some(burst) => self.claim(ask, burst, &run, dedupe).await,
            None => self.place(&run, UNCLAIMED).await,
        }
    }

    /// Puts a run into the ledger past gate and claim, for a caller that waits for it (G9). One that is buffered under its
    /// key is promoted, under its own id.
    ///
    /// # Errors
    /// As [`trigger`](Self::trigger).
    pub async fn trigger_now(&self, ask: &Ask) -> Result<Triggered, TriggerError> {
        let mut run = self.run(ask)?;
        let mut promoted = None;
        if let (Some(dedupe), Some(burst)) = (&run.dedupe, self.burst()) {
            match self.look_up(&run.tenant, dedupe).await? {
                Some(known) if !known.buffered => return known.answer(),
                Some(known) => {
                    let id = known.answer()?.id;
                    let buffered = burst.buffer.get(&run.tenant, id).await;
                    if let Some((Ok(buffered), _)) = self.open(buffered).flatten() {
                        run = buffered.run;
                        promoted = Some(id);
                    }
                }
                None => {}
            }
        }
        let (id, tenant) = (run.id, run.tenant.clone());
        let mut triggered = self.direct(run).await?;
        if let (Some(promoted), Some(burst)) = (promoted, self.burst()) {
            // It is in the ledger now. What is being drained at this moment finds it there, under the same id.
            self.open(burst.buffer.remove(&tenant, None, promoted).await);
            triggered.cached = triggered.cached || id == promoted;
        }
        Ok(triggered)
    }

    fn run(&self, ask: &Ask) -> Result<NewEvent, KeyError> {
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

    /// The ledger first, then the buffer (G8).
    async fn look_up(&self, tenant: &str, dedupe: &Dedupe) -> Result<Option<Known>, ledger::Error> {
        match (self.known_in_ledger(dedupe).await?, self.burst()) {
            (None, Some(burst)) => Ok(self.known_in_buffer(burst, tenant, dedupe).await),
            (known, _) => Ok(known),
        }
    }

    async fn known_in_ledger(&self, dedupe: &Dedupe) -> Result<Option<Known>, ledger::Error> {
        let found = self.ledger.find(dedupe.id).await?;
        Ok(found.map(|found| Known {
            id: found.event,
            buffered: false,
            same: found.fingerprint == dedupe.fingerprint,
        }))
    }

    async fn known_in_buffer(&self, burst: &Burst, tenant: &str, dedupe: &Dedupe) -> Option<Known> {
        let (id, print) = self.open(burst.buffer.find(tenant, dedupe.id).await).flatten()?;
        Some(Known { id, buffered: true, same: print == *dedupe.fingerprint.as_bytes() })
    }

    async fn claim(
        &self,
        ask: &Ask,
        burst: &Burst,
        run: &NewEvent,
        dedupe: &Dedupe,
    ) -> Result<Triggered, TriggerError> {
        let whose = (ask.principal.as_str(), ask.tenant.as_str(), ask.target.as_str());
        // A key may live shorter than a lease; its claim does not (its outcome does).
        let retention = ask.lifetime.unwrap_or(self.terms.retention).max(self.terms.lease);
        let terms = Arc::new(Terms { retention, ..self.terms });
        // Nobody waits before the buffer was looked into.
        let mut wait = Duration::ZERO;
        for _ in 0..ROUNDS {
            let once = burst
                .claims
                .once(Dedupe::run_key(whose, ask.key.as_deref().unwrap_or_default()))
                .payload(Dedupe::run_payload(&ask.target, &ask.payload))
                .terms(Arc::clone(&terms))
                .wait(wait);
            let acquired = match once.claim().await {
                Ok(acquired) => acquired,
                Err(error) => {
                    self.failed_open(&error);
                    return self.to_ledger(burst, run).await;
                }
            };
            match acquired {
                Acquired::Won(claim) => {
                    one(&self.counters.won);
                    let Ok(running) = claim.begin().await else { continue };
                    return self.won(burst, running, run, dedupe).await;
                }
                Acquired::Replay(outcome) => {
                    one(&self.counters.resolved);
                    if let Some(resolved) = self.exists(burst, &run.tenant, &outcome).await? {
                        return Ok(Triggered { id: resolved.id, cached: true, buffered: resolved.buffered });
                    }
                    // It names a run that is nowhere: it must not block its key.
                    self.open(burst.claims.forget(dedupe.id, Force::No).await);
                }
                // Unless it is the claim that is in the wrong: of one whom the run itself sends away.
                Acquired::Conflict => {
                    return match self.look_up(&run.tenant, dedupe).await? {
                        Some(known) => known.answer(),
                        None => Err(TriggerError::Conflict),
                    };
                }
                Acquired::InFlight { .. } if wait < self.wait => {
                    if let Some(known) = self.known_in_buffer(burst, &run.tenant, dedupe).await {
                        return known.answer();
                    }
                    one(&self.counters.waited);
                    wait = self.wait;
                }
                Acquired::InFlight { retry_after } | Acquired::TooManyWaiters { retry_after } => {
                    return self.waited_in_vain(burst, run, dedupe, retry_after).await;
                }
                // Neither is reached with these terms, and neither may block the key.
                _ => {
                    self.open(burst.claims.forget(dedupe.id, Force::Yes).await);
                }
            }
        }
        self.to_ledger(burst, run).await
    }

    /// Nobody said in time which run it is. Where Redis is away nobody can: the ledger decides alone (G6).
    async fn waited_in_vain(
        &self,
        burst: &Burst,
        run: &NewEvent,
        dedupe: &Dedupe,
        retry_after: Duration,
    ) -> Result<Triggered, TriggerError> {
        if let Err(error) = burst.buffer.find(&run.tenant, dedupe.id).await {
            self.failed_open(&error);
            return self.direct(run.clone()).await;
        }
        // Somebody may have gone on without Redis, which is back.
        if let Some(known) = self.look_up(&run.tenant, dedupe).await? {
            return known.answer();
        }
        one(&self.counters.timed_out);
        Err(TriggerError::TimedOut { retry_after })
    }

    /// Whether the run that a claim names is anywhere.
    async fn exists(
        &self,
        burst: &Burst,
        tenant: &str,
        outcome: &Outcome,
    ) -> Result<Option<Resolved>, ledger::Error> {
        let Some(mut resolved) = Resolved::read(outcome) else { return Ok(None) };
        if resolved.buffered {
            match burst.buffer.get(tenant, resolved.id).await {
                Ok(Some(_)) => return Ok(Some(resolved)),
                Ok(None) => resolved.buffered = false,
                // It cannot be known, and the claim was good a moment ago.
                Err(error) => {
                    self.failed_open(&error);
                    return Ok(Some(resolved));
                }
            }
        }
        Ok(self.ledger.event(resolved.id).await?.map(|_| resolved))
    }

    async fn won(
        &self,
        burst: &Burst,
        running: Running,
        run: &NewEvent,
        dedupe: &Dedupe,
    ) -> Result<Triggered, TriggerError> {
        let placed = self.place_once(burst, running.attempt(), run, dedupe).await;
        let triggered = match placed {
            Ok(triggered) => triggered,
            Err(error) => {
                running.release().await;
                if matches!(error, TriggerError::Conflict) {
                    // The key is another payload's: it must not stay bound to ours.
                    self.open(burst.claims.forget(dedupe.id, Force::No).await);
                }
                return Err(error);
            }
        };
        let resolved = Resolved { id: triggered.id, buffered: triggered.buffered };
        let body = serde_json::to_vec(&resolved).expect("an id is plain data");
        match running.complete(&Arc::new(Outcome::new("run", body)), dedupe.lifetime).await {
            Completed::Kept => Ok(triggered),
            Completed::Superseded(winner) => match Resolved::read(&winner) {
                Some(winner) if winner.id != triggered.id => {
                    Ok(Triggered { id: winner.id, cached: true, buffered: winner.buffered })
                }
                _ => Ok(triggered),
            },
            // G7: the next caller finds it where it is.
            _ => {
                one(&self.counters.unpublished);
                Ok(triggered)
            }
        }
    }

    async fn place_once(
        &self,
        burst: &Burst,
        attempt: Attempt,
        run: &NewEvent,
        dedupe: &Dedupe,
    ) -> Result<Triggered, TriggerError> {
        if attempt.number() == 1 {
            return self.place(run, attempt.fence()).await;
        }
        // The one before may have come far, or may go on any moment. Nothing of it reaches the buffer from here on; what
        // did is found; and in the ledger it meets this one, and the unique index decides (G5).
        let keep = self.terms.in_flight_max + self.terms.lease;
        self.open(burst.buffer.take_over(&run.tenant, dedupe.id, attempt.fence(), keep).await);
        match self.look_up(&run.tenant, dedupe).await? {
            Some(known) => known.answer(),
            None => self.direct(run.clone()).await,
        }
    }

    /// Into the ledger or into the buffer, as the gate says.
    async fn place(&self, run: &NewEvent, fence: Fence) -> Result<Triggered, TriggerError> {
        let Some(burst) = self.burst() else {
            if self.awaited {
                self.failed_open(&AWAY);
            }
            return self.direct(run.clone()).await;
        };
        if let Decision::Pass(_) = burst.gate.decide(&run.tenant).await {
            return self.to_ledger(burst, run).await;
        }
        match self.open(burst.buffer.put(run, fence).await) {
            Some(Put::Accepted(accepted)) => {
                one(&self.counters.buffered);
                answer(accepted, run.id, true)
            }
            // Full, or nobody knows whether it is there: the ledger takes it, under the same id, so that it is one run
            // all the same. Or taken over: whoever did that went to the ledger too.
            Some(Put::Full | Put::TakenOver) | None => self.direct(run.clone()).await,
        }
    }

    /// Past the buffer, unless its key is there already. Without a claim there is no other way: only the ledger decides
    /// alone (G6).
    async fn to_ledger(&self, burst: &Burst, run: &NewEvent) -> Result<Triggered, TriggerError> {
        if let Some(dedupe) = &run.dedupe
            && let Some(known) = self.known_in_buffer(burst, &run.tenant, dedupe).await
        {
            return known.answer();
        }
        self.direct(run.clone()).await
    }

    async fn direct(&self, run: NewEvent) -> Result<Triggered, TriggerError> {
        one(&self.counters.direct);
        let id = run.id;
        let accepted = self.ledger.accept(vec![run]).await?;
        let accepted = accepted.first().copied().unwrap_or(Accepted::Conflict);
        answer(accepted, id, false)
    }

    /// What Redis answered; `None`, said and counted, where it did not (G6).
    fn open<T>(&self, answer: Result<T, store::Error>) -> Option<T> {
        answer.map_err(|error| self.failed_open(&error)).ok()
    }

    fn failed_open(&self, error: &dyn std::fmt::Display) {
        one(&self.counters.failed_open);
        tracing::warn!(target: "semel", %error, "a trigger goes on without Redis; the ledger decides alone");
    }
}

impl Known {
    fn answer(&self) -> Result<Triggered, TriggerError> {
        if !self.same {
            return Err(TriggerError::Conflict);
        }
        Ok(Triggered { id: self.id, cached: true, buffered: self.buffered })
    }
}

/// What a place answered. A run that is there under our own id was written by an earlier try of ours.
fn answer(accepted: Accepted, own: EventId, buffered: bool) -> Result<Triggered, TriggerError> {
    match accepted {
        Accepted::First(id) => Ok(Triggered { id, cached: false, buffered }),
        Accepted::Cached(id) => Ok(Triggered { id, cached: id != own, buffered }),
        Accepted::Conflict => Err(TriggerError::Conflict),
    }
}
