//! The claims API: the engine's protocol for workers in other languages.
//!
//! The server keeps nothing between two calls: a claim id holds all that a later step needs. So a worker may go on
//! with another server of the same store, or with this one after a crash, and may repeat every step.

mod ticket;

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use semel::Engine;
use semel::fingerprint::Payload;
use semel::key::{Key, KeyId};
use semel::outcome::Outcome;
use semel::record::{self, Begin, Command, Owner, Phase, Ruling, Terms};
use semel::secret::Secret;
use semel::store::{self, ErrorKind};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::ticket::{Sealer, Ticket};
use super::Admin;
use super::access::Caller;
use super::answer::{self, Named, Refusal};
use super::shown::{MODES, Returned, WithReturned};
use crate::config::show_duration;

/// How long a call to the store that may or may not have been executed is repeated.
const PERSISTENCE: Duration = Duration::from_secs(5);
/// How often a waiting claim looks although nothing was pushed.
const BACKSTOP: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What the claims API keeps for itself.
pub(super) struct Claims {
    sealer: Sealer,
    waiters: Semaphore,
    max_outcome: usize,
    reserved: Option<String>,
    store: Arc<dyn store::Store>,
}

impl Claims {
    pub(super) fn new(
        engine: &Engine,
        secret: &Secret,
        waiters: usize,
        max_outcome: usize,
        reserved: Option<String>,
    ) -> Self {
        Self {
            sealer: Sealer::new(secret),
            waiters: Semaphore::new(waiters.min(Semaphore::MAX_PERMITS)),
            max_outcome,
            reserved,
            store: Arc::clone(engine.store()),
        }
    }

    /// The largest body that is read: an outcome, and some room around it.
    pub(super) fn body_limit(&self) -> usize {
        self.max_outcome.saturating_mul(2).saturating_add(64 << 10)
    }

    /// Asks the store, again while the answer is unknown: claims know their owner, writes their grant.
    async fn apply(&self, id: KeyId, command: Command) -> Result<Ruling, store::Error> {
        let give_up = Instant::now() + PERSISTENCE;
        let mut pause = Duration::from_millis(10);
        loop {
            match self.store.apply(id, command.clone()).await {
                Err(error) if error.kind() == ErrorKind::Ambiguous && Instant::now() + pause < give_up => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                answered => return answered,
            }
        }
    }

    /// Claims, and waits for somebody else's effect until the deadline.
    async fn claim(&self, id: KeyId, claim: record::Claim, wait: Duration) -> Result<Ruling, store::Error> {
        let deadline = Instant::now() + wait;
        let mut seat = None;
        loop {
            // Subscribed before the question: no change in between is missed.
            let mut watch = self.store.watch(id);
            let ruling = self.apply(id, Command::Claim(claim.clone())).await?;
            let Ruling::Busy { lease_left } = ruling else { return Ok(ruling) };
            if seat.is_none() {
                seat = self.waiters.try_acquire().ok();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || seat.is_none() {
                return Ok(ruling);
            }
            // A dead owner pushes nothing: the end of its lease is looked at too.
            let pause = left.min(BACKSTOP).min(lease_left + Duration::from_millis(5));
            let _ = tokio::time::timeout(pause, watch.changed()).await;
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimRequest {
    namespace: String,
    scope: Option<Scope>,
    key: String,
    fingerprint: Option<String>,
    payload: Option<Box<RawValue>>,
    mode: Option<String>,
    lease: Option<String>,
    in_flight_max: Option<String>,
    retention: Option<String>,
    wait: Option<String>,
    owner: Option<String>,
    provider: Option<String>,
}

/// One scope part, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scope {
    One(String),
    Several(Vec<String>),
}

impl ClaimRequest {
    fn key(&self, caller: &Caller) -> Key {
        let key = Key::new(&self.namespace);
        let key = caller.tenant.iter().fold(key, |key, tenant| key.scope(tenant));
        let parts: &[String] = match &self.scope {
            None => &[],
            Some(Scope::One(part)) => std::slice::from_ref(part),
            Some(Scope::Several(parts)) => parts,
        };
        parts.iter().fold(key, |key, part| key.scope(part)).value(&self.key)
    }

    /// What was asked. The same as the library's for the same JSON, so that workers in all languages meet.
    fn payload(&self) -> Result<Payload, Refusal> {
        match (&self.fingerprint, &self.payload) {
            (Some(_), Some(_)) => Err(Refusal::bad("give `fingerprint` or `payload`, not both")),
            (Some(fingerprint), None) => Ok(Payload::exact(&[fingerprint.as_bytes()])),
            (None, Some(payload)) => {
                Payload::json(payload.get().as_bytes(), &semel::canonical::Exclusions::none())
                    .map_err(|error| Refusal::bad(format!("payload: {error}")))
            }
            (None, None) => Ok(Payload::none()),
        }
    }

    fn terms(&self) -> Result<Terms, Refusal> {
        let mut terms = Terms::default();
        if let Some(name) = &self.mode {
            let mode = MODES.iter().find(|(known, _)| known == name).map(|(_, mode)| *mode);
            terms.mode = mode.ok_or_else(|| Refusal::bad("mode: expected marked, keyed or rerun"))?;
        }
        terms.lease = answer::length("lease", self.lease.as_deref())?.unwrap_or(terms.lease);
        // A longer lease alone is enough to ask for.
        terms.in_flight_max = answer::length("in_flight_max", self.in_flight_max.as_deref())?
            .unwrap_or(terms.in_flight_max.max(terms.lease));
        terms.retention = answer::length("retention", self.retention.as_deref())?.unwrap_or(terms.retention);
        terms.check().map_err(|error| Refusal::bad(error.to_string()))?;
        Ok(terms)
    }

    /// The token of this attempt: given, so that the call can be repeated, or a fresh one.
    fn owner(&self) -> Result<Owner, Refusal> {
        let Some(text) = &self.owner else { return Ok(Owner::random()) };
        let hex: String = text.chars().filter(|c| *c != '-').collect();
        let owner: Option<KeyId> = hex.parse().ok();
        let expected = "owner: expected 32 random hex characters, such as a UUID of version 4";
        owner.map(|bytes| Owner::from_bytes(*bytes.as_bytes())).ok_or_else(|| Refusal::bad(expected))
    }
}

/// Claims a key.
pub(super) async fn claim(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let asked: ClaimRequest = answer::body(&body)?;
    // Its keys are clients' own; a worker that claimed one would answer for somebody else.
    if admin.claims.reserved.as_ref() == Some(&asked.namespace) {
        return Err(Refusal::bad("namespace: this one is the gateway's; take another"));
    }
    let (key, terms, owner) = (asked.key(&caller), asked.terms()?, asked.owner()?);
    let wait = answer::length("wait", asked.wait.as_deref())?
        .unwrap_or_default()
        .min(LONGEST_WAIT)
        .min(terms.in_flight_max);
    let fingerprint = asked.payload()?.fingerprint(&admin.secret);
    let id = key.id(&admin.secret).map_err(|error| Refusal::bad(error.to_string()))?;
    let claim =
        record::Claim { owner, fingerprint, terms: Arc::new(terms), begin: Begin::Later, hint: key.hint() };
    let ruling = admin.claims.claim(id, claim, wait).await?;
    let mut members = json!({ "status": "", "key_id": id.to_string() });
    let mut returned = None;
    let status = match ruling {
        Ruling::Won(win) => {
            let ticket = Ticket { id, grant: win.grant, fingerprint };
            members["claim_id"] = admin.claims.sealer.seal(&ticket, caller.tenant.as_deref()).into();
            members["owner"] = hex(owner.as_bytes()).into();
            members["fence"] = win.grant.fence().get().into();
            members["attempt"] = win.attempt.into();
            members["epoch"] = win.epoch.get().into();
            members["lease_left"] = show_duration(win.lease_left).into();
            if let Some(provider) = &asked.provider {
                let derived = admin.secret.derived_key(provider, id, win.epoch.get());
                members["derived_key"] = derived.to_string().into();
            }
            "won"
        }
        Ruling::Replay { outcome, expires_in } => {
            returned = Some(Returned::of(&outcome));
            members["expires_in"] = show_duration(expires_in).into();
            "replay"
        }
        Ruling::Busy { lease_left } => {
            members["retry_after"] =
                show_duration(lease_left.clamp(BACKSTOP, Duration::from_secs(30))).into();
            "busy"
        }
        Ruling::Conflict => "conflict",
        Ruling::InDoubt => "in_doubt",
        Ruling::Expired => "expired",
        Ruling::Lost { .. } | Ruling::Accepted { .. } | Ruling::Refused { .. } => {
            admin.metrics.claim("lost");
            let detail = "this owner gave its claim back, or it was taken away: claim again with a new owner";
            return Err(Refusal::new(StatusCode::CONFLICT, "lost", detail));
        }
    };
    members["status"] = status.into();
    admin.metrics.claim(status);
    tracing::info!(
        target: "semel::claims",
        user = caller.name, operation = asked.namespace, key = %key.hint(), id = %id, outcome = status
    );
    answer::json(&WithReturned { members: &members, returned })
}

/// Marks that the effect may start. Repeatable.
pub(super) async fn begin(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    claim_id: Named,
) -> Result<Response, Refusal> {
    extend(state, caller, claim_id, "begun", Command::Begin).await
}

/// Extends the lease, up to `in_flight_max`. Repeatable.
pub(super) async fn renew(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    claim_id: Named,
) -> Result<Response, Refusal> {
    extend(state, caller, claim_id, "renewed", Command::Renew).await
}

async fn extend(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(claim_id): Named,
    status: &'static str,
    command: fn(record::Grant) -> Command,
) -> Result<Response, Refusal> {
    let ticket = admin.claims.sealer.open(&claim_id, caller.tenant.as_deref())?;
    match admin.claims.apply(ticket.id, command(ticket.grant)).await? {
        Ruling::Accepted { lease_left } => {
            admin.metrics.claim("accepted");
            answer::json(&json!({ "status": status, "lease_left": show_duration(lease_left) }))
        }
        ruling => Err(lost(&admin, ruling)),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Complete {
    outcome: Option<Box<RawValue>>,
    retention: Option<String>,
}

/// Keeps the outcome. Repeatable with the same outcome.
pub(super) async fn complete(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(claim_id): Named,
    body: Bytes,
) -> Result<Response, Refusal> {
    let Complete { outcome, retention } = answer::body(&body)?;
    let retention = answer::length("retention", retention.as_deref())?;
    let ticket = admin.claims.sealer.open(&claim_id, caller.tenant.as_deref())?;
    let text = outcome.as_ref().map_or("null", |outcome| outcome.get());
    let outcome = if text.len() <= admin.claims.max_outcome {
        Outcome::new("json", text)
    } else {
        let most = admin.claims.max_outcome;
        Outcome::tombstone("json", format!("{} bytes are more than the {most} that are kept", text.len()))
    };
    let Ticket { id, grant, fingerprint } = ticket;
    let command = Command::Complete { grant, fingerprint, outcome: Arc::new(outcome), retention };
    match admin.claims.apply(id, command).await? {
        Ruling::Accepted { .. } => {
            admin.metrics.claim("accepted");
            tracing::info!(target: "semel::claims", user = caller.name, id = %id, outcome = "completed");
            answer::json(&json!({ "status": "done" }))
        }
        ruling => Err(lost(&admin, ruling)),
    }
}

/// Gives the claim back: nothing happened. Repeatable.
pub(super) async fn release(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(claim_id): Named,
) -> Result<Response, Refusal> {
    let Ticket { id, grant, .. } = admin.claims.sealer.open(&claim_id, caller.tenant.as_deref())?;
    let ruling = admin.claims.apply(id, Command::Release(grant)).await?;
    let released = match &ruling {
        Ruling::Accepted { .. } => true,
        // The answer to an earlier release may have got lost: the stub still knows whose it was.
        _ => admin.engine.store().get(id).await?.is_some_and(|found| {
            let mine = found.record.owner == grant.owner() && found.record.fence == grant.fence();
            mine && matches!(found.phase(), Phase::Vacant | Phase::Bound)
        }),
    };
    if !released {
        return Err(lost(&admin, ruling));
    }
    admin.metrics.claim("accepted");
    tracing::info!(target: "semel::claims", user = caller.name, id = %id, outcome = "released");
    answer::json(&json!({ "status": "released" }))
}

/// The claim is no longer the caller's. Where somebody else's outcome stands for the same payload, it is in the answer.
fn lost(admin: &Admin, ruling: Ruling) -> Refusal {
    admin.metrics.claim("lost");
    let detail = "the claim is no longer yours: its lease ended, or it was taken away; answer with the outcome that \
                  stands, never with your own";
    let refusal = Refusal::new(StatusCode::CONFLICT, "lost", detail);
    match ruling {
        Ruling::Lost { winner: Some(winner) } => refusal.returning(Returned::of(&winner)),
        _ => refusal,
    }
}

fn hex(bytes: &[u8; 16]) -> String {
    KeyId::from_bytes(*bytes).to_string()
}
