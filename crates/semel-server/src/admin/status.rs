//! `/v1/status`: what an operator looks at first.

use std::sync::Arc;

use axum::extract::State;
use schemars::JsonSchema;
use semel_client::retry::Circuit;
use semel_pipeline::delivery::DeliveryState;
use semel_pipeline::ledger::{self, TargetPause, Totals};
use semel_pipeline::letter::Status;
use serde::Serialize;
use serde_json::{Map, Value};

use super::Admin;
use super::answer::{Answer, Refusal};
use super::api::{Api, Needs};
use super::targets::PausedTarget;
use crate::pipeline::Pipeline;
use crate::telemetry::millis;

pub(super) fn routes(api: &mut Api) {
    api.group("health", "", Needs::Token).get(
        "/v1/status",
        status,
        "Show the state of the server: store, keys in doubt, deliveries, dead letters, buffer, circuit breakers and paused targets.",
    );
}

/// Why a full store takes no new keys.
pub(crate) const FULL_STORE: &str =
    "the store has reached max_bytes: new keys are refused, known keys are served";

/// The state of a server.
#[derive(Serialize, JsonSchema)]
struct ServerStatus {
    version: &'static str,
    /// True if a claim works.
    ready: bool,
    /// Why claims do not work, or not for new keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// How long a claim took.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_ms: Option<f64>,
    /// The store, without credentials.
    store: String,
    /// True if this server has a gateway.
    gateway: bool,
    /// Keys in doubt at the last count.
    in_doubt: u64,
    /// When the keys in doubt were counted; null before the first count.
    in_doubt_counted_at: Option<String>,
    /// Claims held by this server.
    in_flight: u64,
    /// Null if there is no ledger, or if it does not answer.
    pipeline: Option<PipelineStatus>,
    /// Why the ledger does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pipeline_why: Option<String>,
}

/// The state of events and deliveries.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct PipelineStatus {
    /// Number of deliveries by state. Those that succeeded are not counted.
    deliveries: Map<String, Value>,
    /// How long the oldest delivery that is due has been waiting.
    oldest_due_seconds: Option<f64>,
    /// Number of dead letters by status.
    dead_letters: Map<String, Value>,
    /// Runs in the buffer at the last count.
    buffered_runs: u64,
    /// Targets whose circuit breaker is not closed.
    open_breakers: Vec<String>,
    /// Targets that a person paused.
    paused_targets: Vec<PausedTarget>,
}

async fn status(State(admin): State<Arc<Admin>>) -> Result<Answer<ServerStatus>, Refusal> {
    let probed = admin.health.probe().await;
    let why = match &probed {
        Err(why) => Some(why.clone()),
        Ok(_) => admin.metrics.store_is_full().then(|| FULL_STORE.to_owned()),
    };
    // A ledger that does not answer hides nothing else.
    let (pipeline, pipeline_why) = match admin.pipeline.as_deref() {
        Some(pipeline) => match PipelineStatus::read(pipeline).await {
            Ok(status) => (Some(status), None),
            Err(error) => (None, Some(error.to_string())),
        },
        None => (None, None),
    };
    Answer::ok(ServerStatus {
        version: env!("CARGO_PKG_VERSION"),
        ready: probed.is_ok(),
        why,
        claim_ms: probed.ok().map(millis),
        store: admin.engine.store().to_string(),
        gateway: admin.gateway.is_some(),
        in_doubt: admin.metrics.keys_in_doubt(),
        in_doubt_counted_at: admin.metrics.in_doubt_counted().map(super::records::time),
        in_flight: u64::try_from(admin.engine.in_flight()).unwrap_or(u64::MAX),
        pipeline,
        pipeline_why,
    })
}

impl PipelineStatus {
    async fn read(pipeline: &Pipeline) -> Result<Self, ledger::Error> {
        let (totals, pauses) = (pipeline.totals().await?, pipeline.ledger.paused_targets().await?);
        Ok(Self::new(pipeline, &totals, &pauses))
    }

    fn new(pipeline: &Pipeline, totals: &Totals, pauses: &[TargetPause]) -> Self {
        let of_state = |state: DeliveryState| {
            let counted = totals.deliveries.iter().filter(|(_, known, _)| *known == state);
            (state.as_str().to_owned(), counted.map(|(_, _, count)| count).sum::<u64>().into())
        };
        let of_status = |(status, count): &(Status, u64)| (status.as_str().to_owned(), (*count).into());
        let open = pipeline.destinations.states().into_iter();
        Self {
            deliveries: DeliveryState::ALL
                .into_iter()
                .filter(|state| !state.is_over())
                .map(of_state)
                .collect(),
            oldest_due_seconds: totals.oldest_due().map(|age| age.as_secs_f64()),
            dead_letters: totals.letters.iter().map(of_status).collect(),
            buffered_runs: pipeline.intake.depth.lock().queued,
            open_breakers: open
                .filter(|state| state.circuit != Circuit::Closed)
                .map(|state| state.name.to_string())
                .collect(),
            paused_targets: pauses.iter().map(PausedTarget::new).collect(),
        }
    }
}
