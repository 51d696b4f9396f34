//! The claims API: the engine's protocol for workers in other languages.
//!
//! The server keeps nothing between two calls: a claim id holds all that a later step needs. So a worker may go on
//! with another server of the same store, or with this one after a crash, and may repeat every step.

mod batch;
mod deferred;
mod leases;
mod steps;
mod ticket;

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use semel::Engine;
use semel::fingerprint::Payload;
use semel::key::{Key, KeyId};
use semel::record::{self, Begin, Owner, Ruling, Terms};
use semel::secret::Secret;
use semel::store;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::deferred::Deferred;
use self::leases::Leases;
use self::ticket::{Sealer, Ticket};
use super::Admin;
use super::access::Caller;
use super::answer::{self, Answer, JsonBody, Refusal};
use super::api::{Api, Needs};
use super::records::{MODES, OutcomeContent};
use super::schema::{Names, OneOf};
use crate::config::show_duration;

/// How often a waiting claim looks although nothing was pushed.
const BACKSTOP: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The smallest limit of a body: a thousand claim ids fit, whatever the limit of outcomes is.
const SMALLEST_BODY_LIMIT: usize = 1 << 20;

/// What the claims API keeps for itself.
pub(super) struct Claims {
    sealer: Sealer,
    waiters: Semaphore,
    max_outcome: usize,
    reserved: Option<String>,
    engine: Engine,
    deferred: Deferred,
    leases: Leases,
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
            engine: engine.clone(),
            deferred: Deferred::default(),
            leases: Leases::default(),
        }
    }

    /// Waits until every completion that was answered early is in the store, or was given up.
    pub(super) async fn drain(&self) {
        self.deferred.drain().await;
    }

    /// The largest body that is read: an outcome, and some room around it.
    pub(super) fn body_limit(&self) -> usize {
        self.max_outcome.saturating_mul(2).saturating_add(64 << 10).max(SMALLEST_BODY_LIMIT)
    }

    /// Claims, and waits for somebody else's effect until the deadline. Also returns when the store was last asked: the lease of a
    /// won claim is not older than that.
    async fn claim(
        &self,
        id: KeyId,
        claim: record::NewClaim,
        wait: Duration,
    ) -> Result<(Ruling, Instant), store::Error> {
        let mut asked_at = Instant::now();
        // Most keys are free or done: the first question needs no subscription.
        let mut ruling = self.engine.apply_claim(id, claim.clone()).await?;
        if wait.is_zero() || !matches!(ruling, Ruling::Busy { .. }) {
            return Ok((ruling, asked_at));
        }
        let Ok(_seat) = self.waiters.try_acquire() else { return Ok((ruling, asked_at)) };
        let deadline = Instant::now() + wait;
        loop {
            // Subscribed before the question: no change in between is missed.
            let mut watch = self.engine.store().watch(id);
            asked_at = Instant::now();
            ruling = self.engine.apply_claim(id, claim.clone()).await?;
            let Ruling::Busy { lease_left } = ruling else { return Ok((ruling, asked_at)) };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok((ruling, asked_at));
            }
            // A dead owner pushes nothing: the end of its lease is looked at too.
            let pause = left.min(BACKSTOP).min(lease_left + Duration::from_millis(5));
            let _ = tokio::time::timeout(pause, watch.changed()).await;
        }
    }
}

pub(super) fn routes(api: &mut Api) {
    let mut group = api.group("claims", "`claim_id` of the claim.", Needs::Store);
    group
        .post("/v1/claims", claim, "Claim a key.")
        .problem(409, "Code `lost`: this owner released the claim before.");
    steps::routes(&mut group);
    batch::routes(&mut group);
}

/// A claim on a key.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Claim")]
struct ClaimRequest {
    /// The operation.
    namespace: String,
    /// Who asks: one part, or several.
    scope: Option<Scope>,
    /// Names the effect.
    key: String,
    /// Digest of the request, computed by the caller.
    fingerprint: Option<String>,
    /// The request, compared as JSON. Not together with `fingerprint`.
    payload: Option<Box<RawValue>>,
    #[schemars(with = "Option<OneOf<ClaimMode>>", extend("default" = "marked"))]
    mode: Option<String>,
    /// True: the effect may start as soon as the claim is won, without a call of `begin`.
    #[serde(default)]
    #[schemars(extend("default" = false))]
    begin: bool,
    /// 30s by default.
    lease: Option<String>,
    /// 60s by default.
    in_flight_max: Option<String>,
    /// 24h by default.
    retention: Option<String>,
    /// How long to wait while another owner holds the key: 0s by default, at most 60s.
    wait: Option<String>,
    /// 32 random hexadecimal characters, such as a UUID. A call with the same owner can be repeated.
    owner: Option<String>,
    /// Derive a key for this provider, for the mode `keyed`.
    provider: Option<String>,
}

/// The modes that a claim may ask for.
struct ClaimMode;

impl Names for ClaimMode {
    fn names() -> Vec<&'static str> {
        MODES.map(|(name, _)| name).to_vec()
    }
}

/// The result of a claim.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "Claimed")]
struct ClaimResult {
    #[schemars(extend("enum" = ["won", "replay", "busy", "conflict", "in_doubt", "expired"]))]
    status: &'static str,
    key_id: String,
    /// won: names the claim in the next steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_id: Option<String>,
    /// won: 32 hexadecimal characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    /// won.
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    /// won.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    /// won.
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u32>,
    /// won: remaining time of the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_left: Option<String>,
    /// won: the largest outcome that is kept, in bytes of JSON. Of a larger one, send `not_kept` instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_outcome: Option<usize>,
    /// won: the key for `provider`.
    #[serde(skip_serializing_if = "Option::is_none")]
    derived_key: Option<String>,
    /// replay: how long the outcome is replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in: Option<String>,
    /// busy: when to retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<String>,
    #[serde(flatten)]
    outcome: Option<OutcomeContent>,
}

/// One scope part, or several.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
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

async fn claim(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    body: JsonBody<ClaimRequest>,
) -> Result<Answer<ClaimResult>, Refusal> {
    Answer::ok(claim_key(&admin, &caller, &body.read()?).await?)
}

async fn claim_key(admin: &Admin, caller: &Caller, asked: &ClaimRequest) -> Result<ClaimResult, Refusal> {
    // Its keys are clients' own; a worker that claimed one would answer for somebody else.
    if admin.claims.reserved.as_ref() == Some(&asked.namespace) {
        return Err(Refusal::bad("namespace: this one is the gateway's; take another"));
    }
    let (key, terms, owner) = (asked.key(caller), asked.terms()?, asked.owner()?);
    let wait = answer::length("wait", asked.wait.as_deref())?
        .unwrap_or_default()
        .min(LONGEST_WAIT)
        .min(terms.in_flight_max);
    let fingerprint = asked.payload()?.fingerprint(&admin.secret);
    let id = key.id(&admin.secret).map_err(|error| Refusal::bad(error.to_string()))?;
    let claim = record::NewClaim {
        owner,
        fingerprint,
        terms: Arc::new(terms),
        begin: if asked.begin { Begin::WithClaim } else { Begin::Later },
        hint: key.hint(),
    };
    let (ruling, asked_at) = admin.claims.claim(id, claim, wait).await?;
    let mut result = ClaimResult { key_id: id.to_string(), ..ClaimResult::default() };
    result.status = match ruling {
        Ruling::Won(win) => {
            let ticket = Ticket { id, grant: win.grant, fingerprint };
            let epoch = win.epoch.get();
            admin.claims.leases.extend(id, win.grant, asked_at + win.lease_left);
            result.claim_id = Some(admin.claims.sealer.seal(&ticket, caller.tenant.as_deref()));
            result.owner = Some(hex(owner.as_bytes()));
            result.fence = Some(win.grant.fence().get());
            result.attempt = Some(win.attempt);
            result.epoch = Some(epoch);
            result.lease_left = Some(show_duration(win.lease_left));
            result.max_outcome = Some(admin.claims.max_outcome);
            result.derived_key = asked
                .provider
                .as_ref()
                .map(|provider| admin.secret.derived_key(provider, id, epoch).to_string());
            "won"
        }
        Ruling::Replay { outcome, expires_in } => {
            result.outcome = Some(OutcomeContent::new(&outcome));
            result.expires_in = Some(show_duration(expires_in));
            "replay"
        }
        Ruling::Busy { lease_left } => {
            let retry_after = lease_left.clamp(BACKSTOP, Duration::from_secs(30));
            result.retry_after = Some(show_duration(retry_after));
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
    admin.metrics.claim(result.status);
    tracing::debug!(
        target: "semel::claims",
        user = caller.name, operation = asked.namespace, key = %key.hint(), id = %id, outcome = result.status
    );
    Ok(result)
}

fn hex(bytes: &[u8; 16]) -> String {
    KeyId::from_bytes(*bytes).to_string()
}
