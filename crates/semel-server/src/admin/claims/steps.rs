//! The steps of a claim after it is won: begin, renew, complete, release, abandon.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use schemars::JsonSchema;
use semel::outcome::Outcome;
use semel::record::{Command, Phase, Ruling};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::deferred::CompletionMode;
use super::leases::LeaseState;
use super::ticket::Ticket;
use crate::admin::Admin;
use crate::admin::access::Caller;
use crate::admin::answer::{self, Answer, JsonBody, PathId, Refusal};
use crate::admin::api::{Group, Operation};
use crate::admin::records::OutcomeContent;
use crate::admin::schema::Names as _;
use crate::config::show_duration;

/// The longest reason of `not_kept`, in bytes.
const LONGEST_REASON: usize = 1_000;

pub(super) fn routes(group: &mut Group<'_>) {
    refusable(group.post(
        "/v1/claims/{claim_id}/begin",
        begin,
        "Mark that the effect may start. Repeatable.",
    ));
    refusable(group.post(
        "/v1/claims/{claim_id}/renew",
        renew,
        "Extend the lease, up to in_flight_max. Repeatable.",
    ));
    let complete = group.post(
        "/v1/claims/{claim_id}/complete",
        complete,
        "Store the outcome. Repeatable with the same outcome.",
    );
    wait_parameter(refusable(complete)).success(&[
        (200, "The outcome is stored."),
        (202, "With wait=false: the outcome is not stored yet, and the lease was still held."),
    ]);
    refusable(group.post(
        "/v1/claims/{claim_id}/release",
        release,
        "Release the claim: the effect did not happen. Repeatable.",
    ));
    refusable(group.post(
        "/v1/claims/{claim_id}/abandon",
        abandon,
        "End the lease now: it is unknown whether the effect happened. Repeatable.",
    ));
}

fn refusable(operation: &mut Operation) -> &mut Operation {
    operation.problem(404, "No claim has this ID.").problem(
        409,
        "Code `lost`: the claim belongs to someone else. If the key has an outcome for the same payload, it is in `outcome`.",
    )
}

/// Documents the parameter that [`completing`] reads.
pub(super) fn wait_parameter(operation: &mut Operation) -> &mut Operation {
    operation.parameter(
        "wait",
        "false: answer before the outcome is stored, if this server knows that the lease is still held; otherwise wait. If \
         the server dies at this moment, the outcome is lost and the key ends as that of a lost worker.",
        &json!({ "type": "string", "enum": bool::names() }),
    )
}

/// Whether a completion waits for the store.
pub(super) fn completing(query: &[(String, String)]) -> Result<CompletionMode, Refusal> {
    let mut completing = CompletionMode::Stored;
    for (name, value) in query {
        completing = match (name.as_str(), value.as_str()) {
            ("wait", "true") => CompletionMode::Stored,
            ("wait", "false") => CompletionMode::Deferred,
            ("wait", _) => return Err(Refusal::bad("wait: expected true or false")),
            (other, _) => return Err(Refusal::bad(format!("{other:?} is not known here; there is wait"))),
        };
    }
    Ok(completing)
}

/// A claim with an extended lease.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Extended")]
pub(super) struct ClaimExtension {
    #[schemars(extend("enum" = ["begun", "renewed"]))]
    status: &'static str,
    /// Remaining time of the lease.
    lease_left: String,
}

/// A step that extends the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseStep {
    Begin,
    Renew,
}

async fn begin(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(claim_id): PathId,
) -> Result<Answer<ClaimExtension>, Refusal> {
    Answer::ok(extend(&admin, &caller, &claim_id, LeaseStep::Begin).await?)
}

async fn renew(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(claim_id): PathId,
) -> Result<Answer<ClaimExtension>, Refusal> {
    Answer::ok(extend(&admin, &caller, &claim_id, LeaseStep::Renew).await?)
}

pub(super) async fn extend(
    admin: &Admin,
    caller: &Caller,
    claim_id: &str,
    step: LeaseStep,
) -> Result<ClaimExtension, Refusal> {
    let ticket = admin.claims.sealer.open(claim_id, caller.tenant.as_deref())?;
    let (status, command) = match step {
        LeaseStep::Begin => ("begun", Command::Begin(ticket.grant)),
        LeaseStep::Renew => ("renewed", Command::Renew(ticket.grant)),
    };
    let asked_at = Instant::now();
    match admin.engine.apply(ticket.id, command).await? {
        Ruling::Accepted { lease_left } => {
            admin.claims.leases.extend(ticket.id, ticket.grant, asked_at + lease_left);
            admin.metrics.claim("accepted");
            Ok(ClaimExtension { status, lease_left: show_duration(lease_left) })
        }
        ruling => Err(lost(admin, ruling)),
    }
}

/// The outcome of an effect.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(super) struct CompleteRequest {
    /// Any JSON. It is replayed as it was given.
    pub(super) outcome: Option<Box<RawValue>>,
    /// Why there is no `outcome`, for example because it is larger than `max_outcome`. The effect does not run again.
    pub(super) not_kept: Option<String>,
    /// How long to replay the outcome, instead of the retention of the claim.
    pub(super) retention: Option<String>,
}

/// The outcome is stored, or will be.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Completion {
    /// `accepted`: not stored yet.
    #[schemars(extend("enum" = ["done", "accepted"]))]
    status: &'static str,
}

async fn complete(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(claim_id): PathId,
    Query(query): Query<Vec<(String, String)>>,
    body: JsonBody<CompleteRequest>,
) -> Result<Answer<Completion>, Refusal> {
    let completing = completing(&query)?;
    let completion = store_outcome(&admin, &caller, &claim_id, body.read()?, completing).await?;
    let status = if completion.status == "done" { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok(Answer::new(status, completion))
}

pub(super) async fn store_outcome(
    admin: &Arc<Admin>,
    caller: &Caller,
    claim_id: &str,
    asked: CompleteRequest,
    completing: CompletionMode,
) -> Result<Completion, Refusal> {
    let CompleteRequest { outcome, not_kept, retention } = asked;
    let retention = answer::length("retention", retention.as_deref())?;
    let Ticket { id, grant, fingerprint } = admin.claims.sealer.open(claim_id, caller.tenant.as_deref())?;
    let outcome = match (&outcome, not_kept) {
        (Some(_), Some(_)) => return Err(Refusal::bad("give `outcome` or `not_kept`, not both")),
        (None, Some(reason)) if reason.len() > LONGEST_REASON => {
            return Err(Refusal::bad(format!("not_kept: expected at most {LONGEST_REASON} bytes")));
        }
        (None, Some(reason)) => Outcome::tombstone("json", reason),
        (outcome, None) => {
            let text = outcome.as_ref().map_or("null", |outcome| outcome.get());
            let most = admin.claims.max_outcome;
            if text.len() <= most {
                Outcome::new("json", text)
            } else {
                let reason = format!("{} bytes are more than the {most} that are kept", text.len());
                Outcome::tombstone("json", reason)
            }
        }
    };
    let size = outcome.size();
    let command = Command::Complete { grant, fingerprint, outcome: Arc::new(outcome), retention };
    let lease = admin.claims.leases.end(id, grant);
    // A worker whose lease is over learns whose outcome stands, so it must not be answered before the store is.
    if completing == CompletionMode::Deferred
        && lease == LeaseState::Held
        && let Some(room) = admin.claims.deferred.room(size)
    {
        super::deferred::store_later(Arc::clone(admin), id, command, room);
        return Ok(Completion { status: "accepted" });
    }
    match admin.engine.apply(id, command).await? {
        Ruling::Accepted { .. } => {
            admin.metrics.claim("accepted");
            tracing::debug!(target: "semel::claims", user = caller.name, id = %id, outcome = "completed");
            Ok(Completion { status: "done" })
        }
        ruling => Err(lost(admin, ruling)),
    }
}

/// The claim is released.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Release {
    #[schemars(extend("const" = "released"))]
    status: &'static str,
}

async fn release(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(claim_id): PathId,
) -> Result<Answer<Release>, Refusal> {
    Answer::ok(release_claim(&admin, &caller, &claim_id).await?)
}

pub(super) async fn release_claim(
    admin: &Admin,
    caller: &Caller,
    claim_id: &str,
) -> Result<Release, Refusal> {
    let Ticket { id, grant, .. } = admin.claims.sealer.open(claim_id, caller.tenant.as_deref())?;
    admin.claims.leases.end(id, grant);
    let ruling = admin.engine.apply(id, Command::Release(grant)).await?;
    let released = match &ruling {
        Ruling::Accepted { .. } => true,
        // The answer to an earlier release may have got lost: the stub still knows whose it was.
        _ => admin.engine.store().get(id).await?.is_some_and(|found| {
            let mine = found.record.owner == grant.owner() && found.record.fence == grant.fence();
            mine && matches!(found.phase(), Phase::Vacant | Phase::Bound)
        }),
    };
    if !released {
        return Err(lost(admin, ruling));
    }
    admin.metrics.claim("accepted");
    tracing::debug!(target: "semel::claims", user = caller.name, id = %id, outcome = "released");
    Ok(Release { status: "released" })
}

/// The lease is over.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct Abandonment {
    #[schemars(extend("const" = "abandoned"))]
    status: &'static str,
}

async fn abandon(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(claim_id): PathId,
) -> Result<Answer<Abandonment>, Refusal> {
    Answer::ok(abandon_claim(&admin, &caller, &claim_id).await?)
}

pub(super) async fn abandon_claim(
    admin: &Admin,
    caller: &Caller,
    claim_id: &str,
) -> Result<Abandonment, Refusal> {
    let Ticket { id, grant, .. } = admin.claims.sealer.open(claim_id, caller.tenant.as_deref())?;
    admin.claims.leases.end(id, grant);
    match admin.engine.apply(id, Command::Abandon(grant)).await? {
        Ruling::Accepted { .. } => {
            admin.metrics.claim("accepted");
            tracing::debug!(target: "semel::claims", user = caller.name, id = %id, outcome = "abandoned");
            Ok(Abandonment { status: "abandoned" })
        }
        ruling => Err(lost(admin, ruling)),
    }
}

/// The claim is no longer the caller's. Where somebody else's outcome stands for the same payload, it is in the answer.
fn lost(admin: &Admin, ruling: Ruling) -> Refusal {
    admin.metrics.claim("lost");
    let detail = "the claim is no longer yours: its lease ended, or it was taken away; answer with the outcome that \
                  stands, never with your own";
    let refusal = Refusal::new(StatusCode::CONFLICT, "lost", detail);
    match ruling {
        Ruling::Lost { winner: Some(winner) } => refusal.with_outcome(OutcomeContent::new(&winner)),
        _ => refusal,
    }
}
