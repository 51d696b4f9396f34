//! `/v1/deliveries`: list, show.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use schemars::JsonSchema;
use semel_pipeline::delivery::{AttemptClass, Delivery, DeliveryAttempt, DeliveryHistory, DeliveryState};
use semel_pipeline::event::Event;
use semel_pipeline::id::{DeliveryId, EventId, JobId, LetterId};
use semel_pipeline::ledger::{self, DeliveryFilter, EventFilter};
use semel_pipeline::target::Targets;
use serde::Serialize;
use serde_json::{Map, Value};

use super::Admin;
use super::answer::{Answer, PathId, Refusal};
use super::api::{Api, Needs};
use super::events::EventDetails;
use super::listing::{Filters, ListQuery, PAYLOADS, Page, Parameter, id_of, read_in_parts};
use super::records::time;
use super::schema::OneOf;
use super::targets::why_waiting;
use crate::config::show_duration;
use crate::pipeline::Pipeline;
use crate::telemetry::millis;

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
    /// Round of the next attempt, or of the last one if no other follows. Null if the target is not in the configuration. Not in
    /// lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    round: Option<u32>,
    /// Number of rounds: the pauses of the target's schedule, plus one. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    rounds: Option<u32>,
    /// Why it is not sent although it may be due: its target is paused, or the circuit breaker is open. Only where one delivery is
    /// shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<String>,
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
            due_at: due_at(delivery),
            round: None,
            rounds: None,
            waiting: None,
            error: delivery.error.clone(),
            dlq_id: delivery.letter,
            created_at: time(delivery.created_at),
            started_at: delivery.started_at.map(time),
            completed_at: delivery.completed_at.map(time),
            attempts: None,
        }
    }

    pub(super) fn with_attempts(told: &DeliveryHistory, targets: &Targets) -> Self {
        let attempts = told.attempts.iter().map(AttemptDetails::new).collect();
        let (round, rounds) = round(told, targets).unzip();
        Self { attempts: Some(attempts), round, rounds, ..Self::new(&told.delivery) }
    }
}

/// When the next attempt of a delivery may start.
pub(super) fn due_at(delivery: &Delivery) -> Option<String> {
    delivery.state.is_takeable().then(|| time(delivery.due_at))
}

/// The round of a delivery's next attempt, or of its last one if no other follows, and the number of its rounds. `None` if its
/// target is not in the configuration.
pub(super) fn round(told: &DeliveryHistory, targets: &Targets) -> Option<(u32, u32)> {
    let (delivery, policy) = (&told.delivery, &targets.get(&told.delivery.target)?.policy);
    if delivery.state == DeliveryState::Replaying {
        return Some((1, 1));
    }
    let made = delivery.attempts.saturating_sub(delivery.crashes);
    let tries = if delivery.state.is_takeable() { made + 1 } else { made };
    let job = told.attempts.last().and_then(|attempt| attempt.job);
    Some((policy.round(tries), policy.rounds(job)))
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
            latency_ms: latency.map(millis),
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

impl ListedEvent {
    /// The events of a page with the states of their deliveries.
    pub(super) async fn page(
        pipeline: &Pipeline,
        filter: EventFilter,
        page: ledger::Page,
    ) -> Result<Page<Self>, Refusal> {
        let read = |part| {
            let filter = filter.clone();
            async move {
                let found = pipeline.ledger.events(filter, part).await?;
                Ok(Page::with(Self::with_states(pipeline, &found.items).await?, found.next))
            }
        };
        read_in_parts(page, read).await
    }

    /// These events with the states of their deliveries.
    pub(super) async fn of_ids(pipeline: &Pipeline, ids: &[EventId]) -> Result<Page<Self>, Refusal> {
        let mut items = Vec::new();
        for part in ids.chunks(PAYLOADS as usize) {
            let mut events = Vec::new();
            for id in part {
                events.extend(pipeline.ledger.event(*id).await?);
            }
            items.extend(Self::with_states(pipeline, &events).await?);
        }
        Ok(Page::with(items, None))
    }

    async fn with_states(pipeline: &Pipeline, events: &[Event]) -> Result<Vec<Self>, Refusal> {
        let ids = events.iter().map(|event| event.new.id).collect();
        let mut counted: BTreeMap<EventId, Map<String, Value>> = BTreeMap::new();
        for (event, state, count) in pipeline.ledger.delivery_states(ids).await? {
            counted.entry(event).or_default().insert(state.as_str().to_owned(), count.into());
        }
        let mut shown = |event: &Event| {
            let states = counted.remove(&event.new.id).unwrap_or_default();
            Self { event: EventDetails::new(event), states }
        };
        Ok(events.iter().map(&mut shown).collect())
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
    let mut shown = DeliveryDetails::with_attempts(&found, &pipeline.registry.current());
    if shown.due_at.is_some() {
        let pauses = pipeline.ledger.paused_targets().await?;
        shown.waiting = why_waiting(pipeline, &pauses, &found.delivery.target);
    }
    Answer::ok(shown)
}
