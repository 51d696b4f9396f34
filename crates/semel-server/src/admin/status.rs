//! `/v1/status`: what an operator looks at first.

use std::sync::Arc;

use axum::extract::State;
use schemars::JsonSchema;
use semel_client::retry::{Circuit, DestinationState};
use semel_pipeline::delivery::DeliveryState;
use semel_pipeline::ledger::{self, Page, TargetPause, Totals};
use semel_pipeline::letter::Status;
use semel_pipeline::replay::JobRecord;
use serde::Serialize;
use serde_json::{Map, Value};

use super::Admin;
use super::answer::{Answer, Refusal};
use super::api::{Api, Needs};
use super::records::time;
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

/// How many replay jobs are looked at, the newest first.
const JOBS: u32 = 100;

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
    /// The same circuit breakers, with their state.
    breakers: Vec<OpenBreaker>,
    /// Replay jobs that run or are paused, among the newest hundred.
    replays: Vec<OpenReplay>,
    /// Targets that a person paused.
    paused_targets: Vec<PausedTarget>,
}

/// A circuit breaker that is not closed.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct OpenBreaker {
    target: String,
    #[schemars(extend("enum" = ["open", "half_open"]))]
    state: &'static str,
    /// When an open breaker allows the next call.
    open_until: Option<String>,
}

/// A replay job that has not ended.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct OpenReplay {
    /// rpl_…
    id: String,
    #[schemars(extend("enum" = ["running", "paused"]))]
    state: &'static str,
    /// Items that are not over.
    pending: u64,
    /// Why it waits, or what it does.
    note: String,
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
        in_doubt_counted_at: admin.metrics.in_doubt_counted().map(time),
        in_flight: u64::try_from(admin.engine.in_flight()).unwrap_or(u64::MAX),
        pipeline,
        pipeline_why,
    })
}

impl PipelineStatus {
    async fn read(pipeline: &Pipeline) -> Result<Self, ledger::Error> {
        let (totals, pauses) = (pipeline.totals().await?, pipeline.ledger.paused_targets().await?);
        let jobs = pipeline.ledger.jobs(Page { after: None, limit: JOBS }).await?;
        Ok(Self::new(pipeline, &totals, &pauses, &jobs.items))
    }

    fn new(pipeline: &Pipeline, totals: &Totals, pauses: &[TargetPause], jobs: &[JobRecord]) -> Self {
        let of_state = |state: DeliveryState| {
            let counted = totals.deliveries.iter().filter(|(_, known, _)| *known == state);
            (state.as_str().to_owned(), counted.map(|(_, _, count)| count).sum::<u64>().into())
        };
        let of_status = |(status, count): &(Status, u64)| (status.as_str().to_owned(), (*count).into());
        let states = pipeline.destinations.states();
        let open = states.iter().filter(|state| state.circuit != Circuit::Closed);
        Self {
            deliveries: DeliveryState::ALL
                .into_iter()
                .filter(|state| !state.is_over())
                .map(of_state)
                .collect(),
            oldest_due_seconds: totals.oldest_due().map(|age| age.as_secs_f64()),
            dead_letters: totals.letters.iter().map(of_status).collect(),
            buffered_runs: pipeline.intake.depth.lock().queued,
            open_breakers: open.clone().map(|state| state.name.to_string()).collect(),
            breakers: open.map(OpenBreaker::new).collect(),
            replays: jobs.iter().filter(|job| !job.state.is_over()).map(OpenReplay::new).collect(),
            paused_targets: pauses.iter().map(PausedTarget::new).collect(),
        }
    }
}

impl OpenBreaker {
    fn new(state: &DestinationState) -> Self {
        let open_until = match state.circuit {
            Circuit::Open { until } => Some(time(until)),
            Circuit::Closed | Circuit::HalfOpen => None,
        };
        Self { target: state.name.to_string(), state: state.circuit.name(), open_until }
    }
}

impl OpenReplay {
    fn new(job: &JobRecord) -> Self {
        Self {
            id: job.new.id.to_string(),
            state: job.state.as_str(),
            pending: job.counts.pending,
            note: job.note.clone(),
        }
    }
}
