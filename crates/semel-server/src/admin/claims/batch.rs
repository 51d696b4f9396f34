//! Many claims and steps in one call.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use super::deferred::CompletionMode;
use super::steps::{
    self, Abandonment, ClaimExtension, CompleteRequest, Completion, LeaseStep, Release, completing,
    wait_parameter,
};
use super::{ClaimRequest, ClaimResult, claim_key};
use crate::admin::Admin;
use crate::admin::access::Caller;
use crate::admin::answer::{Answer, JsonBody, Problem, Refusal};
use crate::admin::api::Group;

/// The most operations of one call.
const MOST: usize = 1_000;

pub(super) fn routes(group: &mut Group<'_>) {
    let batch = group.post(
        "/v1/claims/batch",
        batch,
        "Make many claims and steps of claims in one call. They run at the same time, each on its own.",
    );
    wait_parameter(batch);
    group.post("/v1/claims/renew", renew_many, "Extend the leases of many claims. Repeatable.");
}

/// Operations on claims.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Batch")]
struct BatchRequest {
    /// At most 1000.
    operations: Vec<BatchOperation>,
}

/// One operation. It does what the call of the same name does.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum BatchOperation {
    Claim(Box<ClaimRequest>),
    Begin(ClaimName),
    Renew(ClaimName),
    Complete(NamedComplete),
    Release(ClaimName),
    Abandon(ClaimName),
}

/// A claim.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct ClaimName {
    claim_id: String,
}

/// The outcome of a claim.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct NamedComplete {
    claim_id: String,
    /// Any JSON. It is replayed as it was given.
    outcome: Option<Box<RawValue>>,
    /// Why there is no `outcome`, for example because it is larger than `max_outcome`. The effect does not run again.
    not_kept: Option<String>,
    /// How long to replay the outcome, instead of the retention of the claim.
    retention: Option<String>,
}

/// The results, in the order of the operations.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BatchResults")]
struct BatchResults {
    results: Vec<BatchResult>,
}

/// What the call of the same name answers.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum BatchResult {
    Result(StepResult),
    Problem(Box<Problem>),
}

/// The result of an operation.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum StepResult {
    Claimed(Box<ClaimResult>),
    Extended(ClaimExtension),
    Completed(Completion),
    Released(Release),
    Abandoned(Abandonment),
}

async fn batch(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<Vec<(String, String)>>,
    body: JsonBody<BatchRequest>,
) -> Result<Answer<BatchResults>, Refusal> {
    let completing = completing(&query)?;
    let operations = body.read()?.operations;
    run_all(admin, caller, operations, completing).await
}

/// Claims to renew.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct RenewRequest {
    /// At most 1000.
    claim_ids: Vec<String>,
}

async fn renew_many(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    body: JsonBody<RenewRequest>,
) -> Result<Answer<BatchResults>, Refusal> {
    let claim_ids = body.read()?.claim_ids.into_iter();
    let operations = claim_ids.map(|claim_id| BatchOperation::Renew(ClaimName { claim_id })).collect();
    run_all(admin, caller, operations, CompletionMode::Stored).await
}

async fn run_all(
    admin: Arc<Admin>,
    caller: Caller,
    operations: Vec<BatchOperation>,
    completing: CompletionMode,
) -> Result<Answer<BatchResults>, Refusal> {
    if operations.len() > MOST {
        return Err(Refusal::bad(format!(
            "{} operations are more than the {MOST} of one call",
            operations.len()
        )));
    }
    let caller = Arc::new(caller);
    // Dropped with the call: a client that is gone claims nothing more.
    let mut running = JoinSet::new();
    let mut results: Vec<Option<BatchResult>> = operations.iter().map(|_| None).collect();
    for (place, operation) in operations.into_iter().enumerate() {
        let (admin, caller) = (Arc::clone(&admin), Arc::clone(&caller));
        running.spawn(async move { (place, run(&admin, &caller, operation, completing).await) });
    }
    while let Some(ended) = running.join_next().await {
        let Ok((place, result)) = ended else { continue };
        if let Some(slot) = results.get_mut(place) {
            *slot = Some(result.map_or_else(problem, BatchResult::Result));
        }
    }
    let ended_early = || {
        let detail = "the operation ended without a result: repeat it";
        problem(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail))
    };
    let results = results.into_iter().map(|result| result.unwrap_or_else(ended_early)).collect();
    Answer::ok(BatchResults { results })
}

fn problem(refusal: Refusal) -> BatchResult {
    BatchResult::Problem(Box::new(refusal.into_problem()))
}

async fn run(
    admin: &Arc<Admin>,
    caller: &Caller,
    operation: BatchOperation,
    completing: CompletionMode,
) -> Result<StepResult, Refusal> {
    Ok(match operation {
        BatchOperation::Claim(asked) => {
            StepResult::Claimed(Box::new(claim_key(admin, caller, &asked).await?))
        }
        BatchOperation::Begin(ClaimName { claim_id }) => {
            StepResult::Extended(steps::extend(admin, caller, &claim_id, LeaseStep::Begin).await?)
        }
        BatchOperation::Renew(ClaimName { claim_id }) => {
            StepResult::Extended(steps::extend(admin, caller, &claim_id, LeaseStep::Renew).await?)
        }
        BatchOperation::Complete(NamedComplete { claim_id, outcome, not_kept, retention }) => {
            let asked = CompleteRequest { outcome, not_kept, retention };
            StepResult::Completed(steps::store_outcome(admin, caller, &claim_id, asked, completing).await?)
        }
        BatchOperation::Release(ClaimName { claim_id }) => {
            StepResult::Released(steps::release_claim(admin, caller, &claim_id).await?)
        }
        BatchOperation::Abandon(ClaimName { claim_id }) => {
            StepResult::Abandoned(steps::abandon_claim(admin, caller, &claim_id).await?)
        }
    })
}
