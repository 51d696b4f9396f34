//! Places a run: under the claim on its key, by the gate, in the buffer or in the ledger.

use std::sync::Arc;
use std::time::Duration;

use semel::engine::{Acquired, Completed, RunError, Running};
use semel::key::KeyId;
use semel::outcome::Outcome;
use semel::record::{Fence, Force, Terms};
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::event::{Accepted, Dedupe, Generation, NewEvent, Origin};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::{self, KeyState};
use semel_pipeline::publish;

use super::claim::ResolvedClaim;
use super::existing::ExistingRun;
use super::{Burst, GateUse, KeyedTrigger, RETRY_AFTER, RunRequest, TriggerError, Triggered, Triggers};
use crate::buffer::PutOutcome;
use crate::gate::GateDecision;
use crate::transfer::count;

/// How often a trigger restarts because its key was reset, expired or got another owner meanwhile.
const ROUNDS: usize = 10;

/// The fence of a run without a key, which has no claim.
const UNCLAIMED: Fence = Fence::new(0);

/// The answer to a trigger. `None`: the generation has ended, or the claim was taken over, and the trigger starts again.
pub(super) type Placement = Option<Triggered>;

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
                self.fail_open(burst.buffer.put(&run, UNCLAIMED).await)
        {
            count(&self.counters.buffered, 1);
            return placement_of(accepted, run.id, true)?.ok_or_else(|| self.time_out(RETRY_AFTER));
        }
        self.accept(run).await?.ok_or_else(|| self.time_out(RETRY_AFTER))
    }

    /// Claims the key, and places the run or answers with the one that has the key.
    pub(super) async fn place_keyed(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
    ) -> Result<Triggered, TriggerError> {
        // An unresolved claim must be remembered for longer than its owner, or the run that its owner has buffered,
        // can exist.
        let longest = call.request.lifetime.unwrap_or_default() + self.terms.in_flight_max;
        let retention = self.terms.retention.max(longest);
        let terms = Arc::new(Terms { retention, ..self.terms });
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
                (generation, wait) = (key.generation, Duration::ZERO);
                continue;
            }
            match acquired {
                Acquired::Won(claim) => {
                    count(&self.counters.won, 1);
                    let Ok(running) = claim.begin().await else { continue };
                    if let Some(triggered) = self.place_and_resolve(burst, call, (id, running), key).await? {
                        return Ok(triggered);
                    }
                }
                Acquired::Replay(outcome) => {
                    count(&self.counters.resolved, 1);
                    match self.find_existing(Some(burst), call, key).await? {
                        Some(existing) => {
                            if let Some(triggered) = self.answer_existing(call, existing, generation).await? {
                                return Ok(triggered);
                            }
                        }
                        None => self.forget_lost_claim(burst, id, &outcome).await?,
                    }
                }
                Acquired::Conflict => {
                    // Before searching for the run: a claim that is resolved by now had placed its run before.
                    let unresolved = self.is_unresolved(burst, id).await;
                    match self.find_existing(Some(burst), call, key).await? {
                        Some(existing) => {
                            if let Some(triggered) = self.answer_existing(call, existing, generation).await? {
                                return Ok(triggered);
                            }
                        }
                        None if unresolved => self.wait_for_claim(burst, id).await?,
                        // It is the claim of a run that no longer has the key.
                        None => drop(self.fail_open(burst.claims.forget(id, Force::No).await)),
                    }
                }
                Acquired::InFlight { retry_after } | Acquired::TooManyWaiters { retry_after } => {
                    if let Some(existing) = self.find_existing(Some(burst), call, key).await? {
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

    /// The ledger decides alone: there is no buffer, or Redis does not answer.
    pub(super) async fn place_without_claim(
        &self,
        call: &KeyedTrigger<'_>,
    ) -> Result<Triggered, TriggerError> {
        for _ in 0..ROUNDS {
            let key = self.read_key(call.dedupe).await?;
            let placed = match self.find_existing(self.burst(), call, key).await? {
                Some(existing) => self.answer_existing(call, existing, key.generation).await?,
                None => self.place_in_ledger(call, call.run_in(key.generation)).await?,
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
        let triggered = match self.place_under_claim(burst, call, &running, key).await {
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

    /// Places a run whose claim this trigger holds.
    pub(super) async fn place_under_claim(
        &self,
        burst: &Burst,
        call: &KeyedTrigger<'_>,
        running: &Running,
        mut key: KeyState,
    ) -> Result<Placement, TriggerError> {
        let (attempt, generation) = (running.attempt(), key.generation);
        let first = attempt.number() == 1;
        if !first {
            // The previous owner may have placed its run, or may continue at any time. From here on it cannot write
            // to the buffer. A run that it placed there is found, and in the ledger the unique index decides between
            // the two.
            let keep = self.terms.in_flight_max + self.terms.lease;
            let name = (call.dedupe.id, generation);
            self.fail_open(burst.buffer.take_over(&call.run.tenant, name, attempt.fence(), keep).await);
            key = self.ledger.find(call.dedupe.id).await?;
            if key.generation != generation || key.holder.is_some_and(|holder| holder.expired) {
                return Ok(None);
            }
        }
        if let Some(holder) = key.holder {
            return self.answer_existing(call, call.compare(holder), generation).await;
        }
        let run = call.run_in(generation);
        if first
            && call.gate_use == GateUse::Ask
            && let GateDecision::Divert(_) = burst.gate.decide(&run.tenant).await
        {
            match self.fail_open(burst.buffer.put(&run, attempt.fence()).await) {
                Some(PutOutcome::Accepted(Accepted::Conflict)) => {
                    return self.resolve_conflict(call, generation).await;
                }
                Some(PutOutcome::Accepted(accepted)) => {
                    count(&self.counters.buffered, 1);
                    return placement_of(accepted, run.id, true);
                }
                Some(PutOutcome::Expired) => {
                    return self.answer_existing(call, ExistingRun::Expired, generation).await;
                }
                Some(PutOutcome::TakenOver) => return Ok(None),
                // It is unknown whether the run is in the buffer. The ledger accepts it under the same id, so that it
                // is one run either way.
                None => return self.place_in_ledger(call, run).await,
                Some(PutOutcome::Full) => {}
            }
        }
        // A run that is being drained is found in the ledger.
        if let Some(existing) = self.find_in_buffer(burst, call, generation).await {
            return self.answer_existing(call, existing, generation).await;
        }
        self.place_in_ledger(call, run).await
    }

    /// Places a run with a key in the ledger.
    pub(super) async fn place_in_ledger(
        &self,
        call: &KeyedTrigger<'_>,
        run: NewEvent,
    ) -> Result<Placement, TriggerError> {
        let generation = run.dedupe.as_ref().and_then(|dedupe| dedupe.generation).unwrap_or_default();
        match self.accept(run).await {
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
