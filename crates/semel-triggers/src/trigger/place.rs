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

use super::claim::Resolved;
use super::known::Known;
use super::{Burst, GateUse, KeyedTrigger, RETRY_AFTER, RunRequest, TriggerError, Triggered, Triggers, one};
use crate::buffer::Put;
use crate::gate::Decision;

/// How often a trigger restarts because its key was reset, expired or got another owner meanwhile.
const ROUNDS: usize = 10;

/// The fence of a run without a key, which has no claim.
const UNCLAIMED: Fence = Fence::new(0);

pub(super) enum Placed {
    Done(Triggered),
    /// Its generation has ended, or its claim was taken over: start again.
    Again,
}

impl Triggers {
    pub(super) fn run(&self, ask: &RunRequest) -> Result<NewEvent, TriggerError> {
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
    pub(super) async fn place_keyless(
        &self,
        run: NewEvent,
        route: GateUse,
    ) -> Result<Triggered, TriggerError> {
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

    pub(super) async fn place_by_claim(
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
    pub(super) async fn place_without_claim(
        &self,
        call: &KeyedTrigger<'_>,
    ) -> Result<Triggered, TriggerError> {
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

    /// Places a run under its claim, and resolves the claim to its id.
    pub(super) async fn place_won(
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

    pub(super) async fn place_claimed(
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
    pub(super) async fn direct(
        &self,
        call: &KeyedTrigger<'_>,
        run: NewEvent,
    ) -> Result<Placed, TriggerError> {
        let generation = run.dedupe.as_ref().and_then(|dedupe| dedupe.generation).unwrap_or_default();
        match self.accept(run).await {
            Err(TriggerError::Conflict) => self.conflict(call, generation).await,
            placed => placed,
        }
    }

    pub(super) async fn accept(&self, run: NewEvent) -> Result<Placed, TriggerError> {
        let id = run.id;
        let accepted = self.ledger.accept(vec![run]).await?;
        let placed = answer(accepted.first().copied().unwrap_or(Accepted::Conflict), id, false)?;
        if matches!(placed, Placed::Done(_)) {
            one(&self.counters.direct);
        }
        Ok(placed)
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
