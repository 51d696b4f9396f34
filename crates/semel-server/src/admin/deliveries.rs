//! `/v1/deliveries`: list, show.

use std::sync::Arc;

use axum::extract::State;
use schemars::JsonSchema;
use semel_pipeline::delivery::{AttemptClass, Delivery, DeliveryAttempt, DeliveryHistory, DeliveryState};
use semel_pipeline::event::Event;
use semel_pipeline::id::{DeliveryId, EventId, JobId, LetterId};
use semel_pipeline::ledger::{self, DeliveryFilter, Paged};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Admin;
use super::answer::{Answer, PathId, Refusal};
use super::api::{Api, Needs};
use super::events::EventDetails;
use super::listing::{Filters, ListQuery, Page, Parameter, id_of};
use super::records::time;
use super::schema::OneOf;
use crate::config::show_duration;
use crate::pipeline::Pipeline;

pub(super) fn routes(api: &mut Api) {
    let mut group = api.group("events", "ID of the delivery: dlv_….", Needs::Ledger);
    group.get("/v1/deliveries", list, "List deliveries, the newest first.");
    group
        .get("/v1/deliveries/{id}", show, "Show a delivery with its attempts.")
        .problem(404, "No delivery has this ID.");
}

/// A delivery of an event to a target.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Delivery")]
pub(super) struct DeliveryDetails {
    /// dlv_…
    #[schemars(with = "String")]
    id: DeliveryId,
    #[schemars(with = "String")]
    event_id: EventId,
    target: String,
    tenant: String,
    r#type: String,
    #[schemars(with = "OneOf<DeliveryState>")]
    state: DeliveryState,
    /// Attempts since the delivery was accepted or last replayed.
    attempts_made: u32,
    /// Attempts whose worker died.
    crashes: u32,
    /// Number of times the delivery was executed again on purpose.
    epoch: u32,
    /// When the next attempt may start.
    due_at: Option<String>,
    /// The last failure.
    error: Option<String>,
    #[schemars(with = "Option<String>")]
    dlq_id: Option<LetterId>,
    created_at: String,
    started_at: Option<String>,
    completed_at: Option<String>,
    /// Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<Vec<AttemptDetails>>,
}

impl DeliveryDetails {
    pub(super) fn new(delivery: &Delivery) -> Self {
        Self {
            id: delivery.id,
            event_id: delivery.event,
            target: delivery.target.clone(),
            tenant: delivery.tenant.clone(),
            r#type: delivery.event_type.clone(),
            state: delivery.state,
            attempts_made: delivery.attempts,
            crashes: delivery.crashes,
            epoch: delivery.epoch,
            due_at: delivery.state.is_takeable().then(|| time(delivery.due_at)),
            error: delivery.error.clone(),
            dlq_id: delivery.letter,
            created_at: time(delivery.created_at),
            started_at: delivery.started_at.map(time),
            completed_at: delivery.completed_at.map(time),
            attempts: None,
        }
    }

    pub(super) fn with_attempts(told: &DeliveryHistory) -> Self {
        let attempts = told.attempts.iter().map(AttemptDetails::new).collect();
        Self { attempts: Some(attempts), ..Self::new(&told.delivery) }
    }
}

/// An attempt to deliver an event.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Attempt")]
pub(super) struct AttemptDetails {
    /// Counts from 1.
    attempt: u32,
    epoch: u32,
    worker: String,
    /// Request ID that the target received.
    request_id: String,
    /// Replay job that asked for this attempt.
    #[schemars(with = "Option<String>")]
    replay_id: Option<JobId>,
    started_at: String,
    ended_at: Option<String>,
    pub(super) latency_ms: Option<f64>,
    #[schemars(with = "Option<OneOf<AttemptClass>>")]
    pub(super) outcome: Option<AttemptClass>,
    pub(super) http_status: Option<u16>,
    pub(super) error: Option<String>,
    /// The beginning of the response.
    pub(super) excerpt: Option<String>,
    /// How long the target asked to wait.
    retry_after: Option<String>,
}

impl AttemptDetails {
    pub(super) fn new(attempt: &DeliveryAttempt) -> Self {
        let ending = attempt.ending.as_ref();
        let latency = attempt.ended_at.map(|ended| ended.left(attempt.started_at));
        let some = |text: &String| (!text.is_empty()).then(|| text.clone());
        Self {
            attempt: attempt.number,
            epoch: attempt.epoch,
            worker: attempt.worker.clone(),
            request_id: attempt.request_id.clone(),
            replay_id: attempt.job,
            started_at: time(attempt.started_at),
            ended_at: attempt.ended_at.map(time),
            latency_ms: latency.map(|latency| latency.as_secs_f64() * 1e3),
            outcome: ending.map(|ending| ending.class),
            http_status: ending.and_then(|ending| ending.status),
            error: ending.and_then(|ending| some(&ending.error)),
            excerpt: ending.and_then(|ending| some(&ending.excerpt)),
            retry_after: ending.and_then(|ending| ending.retry_after).map(show_duration),
        }
    }
}

/// An event or run in a list.
#[derive(Serialize, JsonSchema)]
pub(super) struct ListedEvent {
    #[serde(flatten)]
    event: EventDetails,
    /// Number of its deliveries by state.
    states: Map<String, Value>,
}

/// The most deliveries of one event that are counted.
const COUNTED: u32 = 100;

impl ListedEvent {
    /// The events of a page with the states of their deliveries.
    pub(super) async fn page(pipeline: &Pipeline, page: Paged<Event>) -> Result<Page<Self>, Refusal> {
        let mut items = Vec::with_capacity(page.items.len());
        for event in &page.items {
            let filter = DeliveryFilter { event: Some(event.new.id), ..DeliveryFilter::default() };
            let limit = ledger::Page { after: None, limit: COUNTED };
            let mut states: Map<String, Value> = Map::new();
            for delivery in pipeline.ledger.deliveries(filter, limit).await?.items {
                let known = states.entry(delivery.state.as_str()).or_insert_with(|| 0.into());
                *known = (known.as_u64().unwrap_or(0) + 1).into();
            }
            items.push(Self { event: EventDetails::new(event), states });
        }
        Ok(Page::with(items, page.next))
    }
}

struct DeliveryFilters;

impl Filters for DeliveryFilters {
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::text("event_id", "Only deliveries of this event."),
        Parameter::text("target", "Only deliveries to this target."),
        Parameter::text("tenant", "Only deliveries of this tenant."),
        Parameter::text(
            "state",
            "Only deliveries in these states: a comma-separated list, or several parameters.",
        ),
    ];
}

async fn list(
    State(admin): State<Arc<Admin>>,
    query: ListQuery<DeliveryFilters>,
) -> Result<Answer<Page<DeliveryDetails>>, Refusal> {
    let pipeline = admin.pipeline()?;
    let mut asked = query.read()?;
    let mut states = Vec::new();
    while let Some(given) = asked.take("state") {
        for name in given.split(',') {
            let state = DeliveryState::from_name(name).ok_or_else(|| {
                let names = DeliveryState::ALL.map(DeliveryState::as_str).join(", ");
                Refusal::bad(format!("state: expected some of {names}"))
            })?;
            states.push(state);
        }
    }
    let event = asked.take("event_id").map(|id| id_of(&id)).transpose()?;
    let filter = DeliveryFilter { event, target: asked.take("target"), tenant: asked.take("tenant"), states };
    let page = pipeline.ledger.deliveries(filter, asked.page).await?;
    Page::of(page, DeliveryDetails::new)
}

async fn show(
    State(admin): State<Arc<Admin>>,
    PathId(id): PathId,
) -> Result<Answer<DeliveryDetails>, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: DeliveryId = id_of(&id)?;
    let found = pipeline.ledger.delivery(id).await?;
    let found = found.ok_or_else(|| Refusal::not_found(format!("there is no delivery {id}")))?;
    Answer::ok(DeliveryDetails::with_attempts(&found))
}
