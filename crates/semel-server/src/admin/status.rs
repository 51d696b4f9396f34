//! `/v1/status` and `/v1/targets`: what an operator looks at first.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use schemars::JsonSchema;
use semel_client::retry::{Circuit, DestinationState};
use semel_pipeline::delivery::DeliveryState;
use semel_pipeline::ledger::Totals;
use semel_pipeline::letter::Status;
use serde::Serialize;
use serde_json::{Map, Value};

use super::Admin;
use super::answer::{Answer, Refusal};
use super::api::{Api, Needs};
use super::listing::Page;
use super::records::time;
use crate::pipeline::Pipeline;

pub(super) fn routes(api: &mut Api) {
    api.group("health", "", Needs::Token).get(
        "/v1/status",
        status,
        "Show the state of the server: store, keys in doubt, deliveries, dead letters, buffer and circuit breakers.",
    );
    api.group("events", "", Needs::Ledger).get(
        "/v1/targets",
        targets,
        "List the targets with their circuit breaker and backlog.",
    );
}

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
    /// Keys in doubt at the last count, at most a few seconds ago.
    in_doubt: u64,
    /// Claims held by this server.
    in_flight: u64,
    /// Null if there is no ledger.
    pipeline: Option<PipelineStatus>,
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
}

async fn status(State(admin): State<Arc<Admin>>) -> Result<Answer<ServerStatus>, Refusal> {
    let probed = admin.health.probe().await;
    let full = "the store has reached max_bytes: new keys are refused, known keys are served";
    let why = match &probed {
        Err(why) => Some(why.clone()),
        Ok(_) => admin.metrics.store_is_full().then(|| full.to_owned()),
    };
    let pipeline = match admin.pipeline.as_deref() {
        Some(pipeline) => Some(PipelineStatus::new(pipeline, &pipeline.ledger.totals().await?)),
        None => None,
    };
    Answer::ok(ServerStatus {
        version: env!("CARGO_PKG_VERSION"),
        ready: probed.is_ok(),
        why,
        claim_ms: probed.ok().map(|took| took.as_secs_f64() * 1e3),
        store: admin.engine.store().to_string(),
        gateway: admin.gateway.is_some(),
        in_doubt: admin.metrics.keys_in_doubt(),
        in_flight: u64::try_from(admin.engine.in_flight()).unwrap_or(u64::MAX),
        pipeline,
    })
}

impl PipelineStatus {
    fn new(pipeline: &Pipeline, totals: &Totals) -> Self {
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
            oldest_due_seconds: totals.oldest_due.map(|age| age.as_secs_f64()),
            dead_letters: totals.letters.iter().map(of_status).collect(),
            buffered_runs: pipeline.intake.depth.lock().queued,
            open_breakers: open
                .filter(|state| state.circuit != Circuit::Closed)
                .map(|state| state.name.to_string())
                .collect(),
        }
    }
}

/// A target.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Target")]
struct TargetDetails {
    name: String,
    /// The events that it gets.
    events: String,
    /// State of its circuit breaker in this server.
    #[schemars(extend("enum" = ["closed", "open", "half_open"]))]
    breaker: &'static str,
    /// When an open breaker allows the first call.
    open_until: Option<String>,
    /// Calls within the window of the breaker, which begins again when it opens.
    calls: u64,
    /// Those of them that failed.
    failures: u64,
    /// Share of the calls that succeeded; null without calls.
    success_rate: Option<f64>,
    /// Deliveries that are not over, by state.
    backlog: Map<String, Value>,
    /// Time until the next delivery is due; zero if one is due now; null if none waits.
    next_due_seconds: Option<f64>,
}

async fn targets(State(admin): State<Arc<Admin>>) -> Result<Answer<Page<TargetDetails>>, Refusal> {
    let pipeline = admin.pipeline()?;
    let (totals, states) = (pipeline.ledger.totals().await?, pipeline.destinations.states());
    let mut items = Vec::new();
    for (name, registered) in pipeline.registry.current().iter() {
        let due = pipeline.ledger.next_due(vec![name.to_string()]).await?;
        let state = states.iter().find(|state| state.name == *name);
        items.push(TargetDetails::new(name, registered.events.to_string(), state, &totals, due));
    }
    Page::answer(items, None)
}

impl TargetDetails {
    fn new(
        name: &str,
        events: String,
        state: Option<&DestinationState>,
        totals: &Totals,
        due: Option<Duration>,
    ) -> Self {
        let circuit = state.map_or(Circuit::Closed, |state| state.circuit);
        let (calls, failures) = state.map_or((0, 0), |state| (state.calls, state.failures));
        let backlog =
            totals.deliveries.iter().filter(|(target, state, _)| target == name && !state.is_over());
        Self {
            name: name.to_owned(),
            events,
            breaker: circuit.name(),
            open_until: match circuit {
                Circuit::Open { until } => Some(time(until)),
                Circuit::Closed | Circuit::HalfOpen => None,
            },
            calls,
            failures,
            success_rate: (calls > 0).then(|| 1.0 - failures as f64 / calls as f64),
            backlog: backlog.map(|(_, state, count)| (state.as_str().to_owned(), (*count).into())).collect(),
            next_due_seconds: due.map(|due| due.as_secs_f64()),
        }
    }
}
