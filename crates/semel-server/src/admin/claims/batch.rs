//! Many claims and steps in one call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tracing::Instrument as _;

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
use crate::admin::records::OutcomeContent;

/// The most operations of one call.
const MOST: usize = 1_000;
/// The outcomes of one answer, in bytes of JSON. An operation whose outcome does not fit is answered without it.
const MOST_OUTCOMES: usize = 16 << 20;
/// When to repeat an operation that has no result.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

pub(super) fn routes(group: &mut Group<'_>) {
    let batch = group.post(
        "/v1/claims/batch",
        batch,
        "Make many claims and steps of claims in one call. They run at the same time, each on its own. The answer holds up to 16 MiB \
         of outcomes: an operation whose outcome does not fit has the retryable problem `batch_too_large`.",
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
    let operations = operations.into_iter().map(|operation| {
        let (admin, caller) = (Arc::clone(&admin), Arc::clone(&caller));
        async move { run(&admin, &caller, operation, completing).await }
    });
    Answer::ok(BatchResults { results: run_together(operations, MOST_OUTCOMES).await })
}

/// Runs the operations at the same time. Answers their results in their order, with up to `room` bytes of outcomes.
async fn run_together<F>(operations: impl ExactSizeIterator<Item = F>, room: usize) -> Vec<BatchResult>
where
    F: Future<Output = Result<StepResult, Refusal>> + Send + 'static,
{
    let room = Arc::new(OutcomeRoom { used: AtomicUsize::new(0), most: room });
    // Dropped with the call: a client that is gone claims nothing more.
    let mut running = JoinSet::new();
    let mut results: Vec<Option<BatchResult>> = Vec::new();
    results.resize_with(operations.len(), || None);
    for (place, operation) in operations.enumerate() {
        let room = Arc::clone(&room);
        // The room is taken in the task: a result that waits here for the others holds no outcome that is left out.
        running.spawn(async move { (place, room.fit(operation.await)) }.in_current_span());
    }
    while let Some(ended) = running.join_next().await {
        let Ok((place, result)) = ended else { continue };
        if let Some(slot) = results.get_mut(place) {
            *slot = Some(result);
        }
    }
    results.into_iter().map(|result| result.unwrap_or_else(ended_early)).collect()
}

/// The result of an operation that panicked. Every operation can be repeated.
fn ended_early() -> BatchResult {
    let detail = "the operation ended without a result: repeat it";
    let refusal = Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail);
    problem(refusal.with_retry_after(REPEAT_AFTER))
}

/// Bounds the memory of the outcomes in one answer.
struct OutcomeRoom {
    used: AtomicUsize,
    most: usize,
}

impl OutcomeRoom {
    /// The result, or a problem if its outcome does not fit. A result without an outcome always fits, so every claim that
    /// was won is answered.
    fn fit(&self, result: Result<StepResult, Refusal>) -> BatchResult {
        let size = match &result {
            Ok(result) => result.outcome_size(),
            Err(refusal) => refusal.outcome_size(),
        };
        if !self.take(size) {
            let detail = format!(
                "the outcomes of this batch are larger than {} bytes: repeat this operation by itself",
                self.most
            );
            let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "batch_too_large", detail);
            return problem(refusal.with_retry_after(REPEAT_AFTER));
        }
        result.map_or_else(problem, BatchResult::Result)
    }

    fn take(&self, size: usize) -> bool {
        let used = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let after = used.saturating_add(size);
            // The first outcome always fits, so that a client that repeats the rest makes progress.
            (size == 0 || used == 0 || after <= self.most).then_some(after)
        });
        used.is_ok()
    }
}

impl StepResult {
    /// Bytes of its outcome in JSON; 0 without one.
    fn outcome_size(&self) -> usize {
        match self {
            Self::Claimed(claimed) => claimed.outcome.as_ref().map_or(0, OutcomeContent::size),
            Self::Extended(_) | Self::Completed(_) | Self::Released(_) | Self::Abandoned(_) => 0,
        }
    }
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

#[cfg(test)]
mod tests {
    use semel::outcome::Outcome;

    use super::*;

    fn replay(outcome: &str) -> Result<StepResult, Refusal> {
        let outcome = OutcomeContent::new(&Outcome::new("json", outcome));
        Ok(StepResult::Claimed(Box::new(ClaimResult { outcome: Some(outcome), ..ClaimResult::default() })))
    }

    fn lost(outcome: &str) -> Result<StepResult, Refusal> {
        let outcome = OutcomeContent::new(&Outcome::new("json", outcome));
        Err(Refusal::new(StatusCode::CONFLICT, "lost", "").with_outcome(outcome))
    }

    fn won() -> Result<StepResult, Refusal> {
        let claim_id = Some("c".to_owned());
        Ok(StepResult::Claimed(Box::new(ClaimResult { claim_id, ..ClaimResult::default() })))
    }

    fn shown(results: &[BatchResult]) -> Vec<serde_json::Value> {
        results.iter().map(|result| serde_json::to_value(result).unwrap()).collect()
    }

    #[test]
    fn outcomes_that_do_not_fit_are_left_out() {
        let room = OutcomeRoom { used: AtomicUsize::new(0), most: 10 };
        let results =
            shown(&[replay("1234567"), lost("4321"), lost("321"), replay("1"), won()].map(|r| room.fit(r)));
        assert_eq!(results[0]["result"]["outcome"], 1_234_567);
        assert_eq!(results[1]["problem"]["code"], "batch_too_large");
        assert_eq!(results[1]["problem"]["retryable"], true);
        assert_eq!(results[1]["problem"].get("outcome"), None);
        assert_eq!(
            (&results[2]["problem"]["code"], &results[2]["problem"]["outcome"]),
            (&"lost".into(), &321.into())
        );
        assert_eq!(results[3]["problem"]["code"], "batch_too_large", "ten bytes are taken");
        assert_eq!(results[4]["result"]["claim_id"], "c", "without an outcome it always fits");
        // Repeated by itself, it is answered, whatever its size is.
        let alone = OutcomeRoom { used: AtomicUsize::new(0), most: 10 };
        assert_eq!(shown(&[alone.fit(replay("123456789012"))])[0]["result"]["outcome"], 123_456_789_012_u64);
    }

    // The others have their results, in their order, and the client repeats the one that has none.
    #[tokio::test]
    async fn an_operation_that_panicked_can_be_repeated() {
        let operations = (0..3).map(|number| async move {
            assert_ne!(number, 1);
            replay(&number.to_string())
        });
        let results = shown(&run_together(operations, MOST_OUTCOMES).await);
        assert_eq!(
            (&results[0]["result"]["outcome"], &results[2]["result"]["outcome"]),
            (&0.into(), &2.into())
        );
        let problem = &results[1]["problem"];
        assert_eq!((&problem["code"], &problem["retryable"]), (&"internal".into(), &true.into()));
    }
}
