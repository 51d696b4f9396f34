//! Places a run: under the claim on its key, by the gate, in the buffer or in the ledger.

use std::sync::Arc;
use std::time::Duration;

use semel::engine::{Acquired, Completed, RunError, Running};
use semel::key::KeyId;
use semel::outcome::Outcome;
use semel::record::{Force, Terms};
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::event::{Accepted, Dedupe, Generation, NewEvent, Origin};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::{self, KeyState};
use semel_pipeline::publish;

use super::claim::ResolvedClaim;
use super::existing::{ExistingRun, Lookup};
use super::{Burst, GateUse, KeyedTrigger, RETRY_AFTER, RunRequest, TriggerError, Triggered, Triggers};
use crate::buffer::{PutOutcome, ReadTime};
use crate::gate::GateDecision;
use crate::transfer::count;

/// How often a trigger restarts because its key was reset, expired or got another owner meanwhile.
const ROUNDS: usize = 10;

/// The answer to a trigger. `None`: the generation of the key has ended, and the trigger starts again.
pub(super) type Placement = Option<Triggered>;

/// The result of a put.
enum PutResult {
    /// The run is in the buffer.
    Placed(Triggered),
    /// Another run has the key in the buffer.
    Existing(ExistingRun),
    /// The ledger must be read again.
    Late,
    /// The run must go to the ledger.
    Refused,
}

impl Triggers {
    /// The run of a request.
    ///
    /// # Errors
    /// The key is invalid, or a text contains a character that a ledger cannot store.
    pub(super) fn build_run(&self, request: &RunRequest) -> Result<NewEvent, TriggerError> {
        let texts = [
            ("the tenant", Some(&request.tenant)),
            ("the target", Some(&request.target)),
            ("the principal", Some(&request.principal)),
            ("the request id", request.trace.request_id.as_ref()),
            ("the trace context", request.trace.traceparent.as_ref()),
        ];
        let texts = texts.into_iter().filter_map(|(what, text)| Some((what, text?)));
        let tags = request.notes.tags.iter().map(|tag| ("a tag", tag));
        // Now, and not when the run is drained: an accepted run must fit every ledger.
        if let Some((what, _)) = texts.chain(tags).find(|(_, text)| text.contains('\0')) {
            let why = format!("{what} must not contain the character NUL");
            return Err(ledger::Error::Refused(why).into());
        }
        let dedupe = match &request.key {
            Some(key) => {
                let scope = (request.principal.as_str(), request.tenant.as_str(), request.target.as_str());
                Some(Dedupe::of_run(&self.secret, scope, key, &request.payload, request.lifetime)?)
            }
            None => None,
        };
        Ok(NewEvent {
            id: EventId::new(EventKind::Run, SystemClock.now()),
            tenant: request.tenant.clone(),
            event_type: request.target.clone(),
            dedupe,
            payload: request.payload.clone(),
            content_type: request.content_type.clone(),
            headers: Vec::new(),
            order_key: None,
            origin: Origin::Api { principal: request.principal.clone() },
            targets: vec![request.target.clone()],
            delay: request.delay,
            deliver_within: None,
            notes: request.notes.clone(),
            trace: request.trace.clone(),
        })
    }

    /// A run without a key is never a duplicate, so it needs no claim.
    pub(super) async fn place_keyless(
        &self,
        run: NewEvent,
        gate_use: GateUse,
    ) -> Result<Triggered, TriggerError> {
        if let (Some(burst), GateUse::Ask) = (self.burst(), gate_use)
            && let GateDecision::Divert(_) = burst.gate.decide(&run.tenant).await
            && let Some(PutOutcome::Accepted(accepted)) =
                self.fail_open(burst.buffer.put(&run, ReadTime::default()).await)
        {
            count(&self.counters.buffered, 1);
            return placement_of(accepted, run.id, true)?.ok_or_else(|| self.time_out(RETRY_AFTER));
        }
        self.accept(run).await?.ok_or_else(|| self.time_out(RETRY_AFTER))
    }

    /// Places a run with a key, or answers with the run that has the key.
    pub(super) async fn place_keyed(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
    ) -> Result<Triggered, TriggerError> {
        if call.gate_use == GateUse::Ask
            && let Some(reason) = burst.gate.known_hold(&call.run.tenant)
            && let Some(triggered) = self.place_in_burst(burst, call).await?
        {
            if !triggered.cached {
                burst.gate.count(reason);
            }
            self.count_claim(triggered);
            return Ok(triggered);
        }
        self.claim_and_place(burst, call).await
    }

    fn count_claim(&self, triggered: Triggered) {
        let counter = if triggered.cached { &self.counters.resolved } else { &self.counters.won };
        count(counter, 1);
    }

    /// Places a run in the buffer, where the entry of the key is its claim: one call takes it and resolves it. `None`
    /// if the run must go to the ledger.
    async fn place_in_burst(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
    ) -> Result<Placement, TriggerError> {
        for _ in 0..ROUNDS {
            let read = burst.buffer.read_time(&call.run.tenant);
            let key = self.read_key(call.dedupe).await?;
            let generation = key.generation;
            if let Some(triggered) = self.find_unconfirmed(call, generation).await? {
                return Ok(Some(triggered));
            }
            let existing = match key.holder {
                Some(holder) => call.compare(holder),
                None => match self.put(burst, call, generation, read).await {
                    PutResult::Placed(triggered) => return Ok(Some(triggered)),
                    PutResult::Existing(existing) => existing,
                    PutResult::Late => continue,
                    PutResult::Refused => return Ok(None),
                },
            };
            if let Some(triggered) = self.answer_existing(call, existing, generation).await? {
                return Ok(Some(triggered));
            }
        }
        Ok(None)
    }

    /// Puts a run into the buffer.
    async fn put(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
        generation: Generation,
        read: ReadTime,
    ) -> PutResult {
        if call.is_unconfirmed_before(generation) {
            return PutResult::Refused;
        }
        let put = self.fail_open(burst.buffer.put(&call.run_in(generation), read).await);
        match put {
            Some(PutOutcome::Accepted(Accepted::First(id))) => {
                count(&self.counters.buffered, 1);
                PutResult::Placed(Triggered { id, cached: false, buffered: true })
            }
            Some(PutOutcome::Accepted(Accepted::Cached(id))) => {
                PutResult::Existing(ExistingRun::Found { id, buffered: true })
            }
            Some(PutOutcome::Accepted(Accepted::Conflict | Accepted::Stale)) => {
                PutResult::Existing(ExistingRun::Conflict)
            }
            Some(PutOutcome::Expired) => PutResult::Existing(ExistingRun::Expired),
            Some(PutOutcome::Late) => PutResult::Late,
            Some(PutOutcome::Reserved | PutOutcome::Full) => PutResult::Refused,
            None => {
                call.unconfirmed.get_or_init(|| generation);
                PutResult::Refused
            }
        }
    }

    /// Claims the key, and places the run or answers with the one that has the key.
    async fn claim_and_place(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
    ) -> Result<Triggered, TriggerError> {
        let terms = Arc::new(Terms { retention: self.unresolved_retention(call), ..self.terms });
        let (mut generation, mut wait) = (Generation::FIRST, Duration::ZERO);
        for _ in 0..ROUNDS {
            let key = call.claim_key(generation);
            let id = key.id(&self.secret)?;
            let once = burst
                .claims
                .once(key)
                .payload(Dedupe::run_payload(&call.request.target, &call.request.payload))
                .terms(Arc::clone(&terms))
                .wait(wait);
            let acquired = match once.claim().await {
                Ok(acquired) => acquired,
                Err(RunError::Store(error)) => {
                    self.report_failed_open(&error);
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
                if let Some(triggered) = self.find_unconfirmed(call, key.generation).await? {
                    return Ok(triggered);
                }
                (generation, wait) = (key.generation, Duration::ZERO);
                continue;
            }
            match acquired {
                Acquired::Won(claim) => {
                    let Ok(running) = claim.begin().await else { continue };
                    let placed = self.place_and_resolve(burst, call, (id, running), key);
                    if let Some(triggered) = Box::pin(placed).await? {
                        self.count_claim(triggered);
                        return Ok(triggered);
                    }
                }
                Acquired::Replay(outcome) => {
                    count(&self.counters.resolved, 1);
                    match self.find_existing(burst, call, key).await? {
                        Lookup::Found(existing) => {
                            if let Some(triggered) = self.answer_existing(call, existing, generation).await? {
                                return Ok(triggered);
                            }
                        }
                        Lookup::Missing => self.forget_lost_claim(burst, id, &outcome).await?,
                        // The run may be in the buffer. The reservation of the key searches for it again.
                        Lookup::Unknown => return self.place_without_claim(call).await,
                    }
                }
                Acquired::Conflict => {
                    // Before searching for the run: a claim that is resolved by now had placed its run before.
                    let unresolved = self.is_unresolved(burst, id).await;
                    match self.find_existing(burst, call, key).await? {
                        Lookup::Found(existing) => {
                            if let Some(triggered) = self.answer_existing(call, existing, generation).await? {
                                return Ok(triggered);
                            }
                        }
                        _ if unresolved => self.wait_for_claim(burst, id).await?,
                        // It is the claim of a run that no longer has the key.
                        Lookup::Missing => drop(self.fail_open(burst.claims.forget(id, Force::No).await)),
                        Lookup::Unknown => return self.place_without_claim(call).await,
                    }
                }
                Acquired::InFlight { retry_after } | Acquired::TooManyWaiters { retry_after } => {
                    if let Lookup::Found(existing) = self.find_existing(burst, call, key).await? {
                        match self.answer_existing(call, existing, generation).await? {
                            Some(triggered) => return Ok(triggered),
                            None => continue,
                        }
                    }
                    if wait < self.wait {
                        count(&self.counters.waited, 1);
                        wait = self.wait;
                        continue;
                    }
                    // If Redis does not answer, nobody can resolve the claim.
                    if let Err(error) = burst.buffer.tenant_of(call.run.id).await {
                        self.report_failed_open(&error);
                        return self.place_without_claim(call).await;
                    }
                    return Err(self.time_out(retry_after));
                }
                // Both are impossible with these terms, and neither may block the key.
                _ => drop(self.fail_open(burst.claims.forget(id, Force::Yes).await)),
            }
        }
        Err(self.time_out(RETRY_AFTER))
    }

    /// How long an unresolved claim and a reservation are remembered: for longer than their owner, or the run that
    /// their owner has buffered, can exist.
    fn unresolved_retention(&self, call: &KeyedTrigger<'_>) -> Duration {
        let longest = call.request.lifetime.unwrap_or_default() + self.terms.in_flight_max;
        self.terms.retention.max(longest)
    }

    /// The ledger decides alone: there is no buffer, or Redis does not answer.
    pub(super) async fn place_without_claim(
        &self,
        call: &KeyedTrigger<'_>,
    ) -> Result<Triggered, TriggerError> {
        for _ in 0..ROUNDS {
            let key = self.read_key(call.dedupe).await?;
            if let Some(triggered) = self.find_unconfirmed(call, key.generation).await? {
                return Ok(triggered);
            }
            let placed = match key.holder {
                Some(holder) => self.answer_existing(call, call.compare(holder), key.generation).await?,
                None => self.place_directly(self.burst(), call, key.generation).await?,
            };
            if let Some(triggered) = placed {
                return Ok(triggered);
            }
        }
        Err(self.time_out(RETRY_AFTER))
    }

    /// Places a run under its claim, and resolves the claim to its id.
    pub(super) async fn place_and_resolve(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
        (claim, running): (KeyId, Running),
        key: KeyState,
    ) -> Result<Placement, TriggerError> {
        let triggered = match self.place_under_claim(burst, call, key).await {
            Ok(Some(triggered)) => triggered,
            Ok(None) => {
                running.release().await;
                return Ok(None);
            }
            Err(error) => {
                running.release().await;
                if matches!(error, TriggerError::Conflict) {
                    // The key has another payload: it must not stay bound to ours.
                    self.fail_open(burst.claims.forget(claim, Force::No).await);
                }
                return Err(error);
            }
        };
        let resolved = ResolvedClaim { id: triggered.id, buffered: triggered.buffered };
        let body = serde_json::to_vec(&resolved).expect("an id is plain data");
        let outcome = Arc::new(Outcome::new("run", body));
        // The ledger and the buffer decide when the key expires. The claim is remembered a little longer, on any
        // clock.
        let remembered = call.dedupe.lifetime.map(|lifetime| lifetime + self.terms.lease);
        Ok(Some(match running.complete(&outcome, remembered).await {
            Completed::Kept => triggered,
            Completed::Superseded(winner) => match ResolvedClaim::read(&winner) {
                Some(ResolvedClaim { id, buffered }) if id != triggered.id => {
                    Triggered { id, cached: true, buffered }
                }
                _ => triggered,
            },
            // The next trigger finds the run in its place.
            _ => {
                count(&self.counters.unpublished, 1);
                triggered
            }
        }))
    }

    /// Places a run whose claim this trigger holds. A previous owner of the claim may continue at any time. What it
    /// places first is found, and in the ledger the unique index decides between the two.
    async fn place_under_claim(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
        key: KeyState,
    ) -> Result<Placement, TriggerError> {
        if let Some(holder) = key.holder {
            return self.answer_existing(call, call.compare(holder), key.generation).await;
        }
        if call.gate_use == GateUse::Ask
            && let GateDecision::Divert(_) = burst.gate.decide(&call.run.tenant).await
            && let Some(triggered) = self.place_in_burst(burst, call).await?
        {
            return Ok(Some(triggered));
        }
        self.place_directly(Some(burst), call, key.generation).await
    }

    /// Places a run in the ledger, unless the buffer has one of its key.
    async fn place_directly(
        &self,
        burst: Option<&Burst>,
        call: &KeyedTrigger<'_>,
        generation: Generation,
    ) -> Result<Placement, TriggerError> {
        let Some(burst) = burst else { return self.place_in_ledger(call, generation).await };
        let (tenant, name) = (&call.run.tenant, (call.dedupe.id, generation));
        let reserved = burst.buffer.reserve(tenant, name, self.unresolved_retention(call)).await;
        // Our own run is there if Redis did not confirm an earlier put. The ledger accepts it under the same id.
        let other = self.fail_open(reserved).flatten().filter(|found| found.run != call.run.id);
        if let Some(found) = other {
            return self.answer_existing(call, call.compare_buffered(found), generation).await;
        }
        let placed = self.place_in_ledger(call, generation).await?;
        if placed.is_some() {
            // Nobody waits for this: a reservation that remains only sends later triggers to the ledger.
            let (buffer, tenant) = (Arc::clone(&burst.buffer), tenant.clone());
            tokio::spawn(async move {
                if let Err(error) = buffer.end_reservation(&tenant, name).await {
                    tracing::debug!(target: "semel", %error, "a reservation could not be ended");
                }
            });
        }
        Ok(placed)
    }

    /// Places a run with a key in the ledger.
    pub(super) async fn place_in_ledger(
        &self,
        call: &KeyedTrigger<'_>,
        generation: Generation,
    ) -> Result<Placement, TriggerError> {
        match self.accept(call.run_in(generation)).await {
            Err(TriggerError::Conflict) => self.resolve_conflict(call, generation).await,
            placed => placed,
        }
    }

    pub(super) async fn accept(&self, run: NewEvent) -> Result<Placement, TriggerError> {
        let id = run.id;
        let placed = placement_of(publish::accept(&*self.ledger, run).await?, id, false)?;
        if placed.is_some() {
            count(&self.counters.direct, 1);
        }
        Ok(placed)
    }
}

/// The answer of the ledger or the buffer. An existing run with our own id was written by an earlier try of this
/// trigger.
fn placement_of(accepted: Accepted, own: EventId, buffered: bool) -> Result<Placement, TriggerError> {
    match accepted {
        Accepted::First(id) => Ok(Some(Triggered { id, cached: false, buffered })),
        Accepted::Cached(id) => Ok(Some(Triggered { id, cached: id != own, buffered })),
        Accepted::Conflict => Err(TriggerError::Conflict),
        Accepted::Stale => Ok(None),
    }
}
