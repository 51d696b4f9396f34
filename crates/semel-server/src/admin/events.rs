//! `/v1/events`: publish, list, show.

mod envelope;

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use schemars::JsonSchema;
use semel::key::Hint;
use semel_pipeline::envelope::ENVELOPE_JSON;
use semel_pipeline::event::{Dedupe, Event, Origin, Trace};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::EventFilter;
use semel_pipeline::publish::{Publication, PublishAnswer, PublishError};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use self::envelope::{EnvelopeDetails, EnvelopeMode};
use super::Admin;
use super::access::{Caller, Right};
use super::answer::{self, Answer, PathId, PayloadBody, Refusal};
use super::api::{Api, Needs};
use super::deliveries::{DeliveryDetails, ListedEvent};
use super::listing::{Filters, ListQuery, ListRequest, Page, Parameter, id_of};
use super::records::time;
use crate::config::show_duration;
use crate::pipeline::Pipeline;

/// What may stand around a payload.
const ENVELOPE: usize = 64 << 10;
/// The longest request id of a caller's that is kept.
const REQUEST_ID: usize = 128;

pub(super) fn routes(api: &mut Api) {
    let mut group = api.group("events", "ID of the event or run: evt_… or run_….", Needs::Ledger);
    group.get(
        "/v1/events",
        list,
        "List events, the newest first, or find those of a request ID or deduplication key.",
    );
    group
        .post(
            "/v1/events",
            publish,
            "Publish an event. It is accepted once for its tenant, type and dedupe_key, and delivered once to each target of \
             its type. A message may come in an envelope: as application/cloudevents+json, or as the body of ce-* headers.",
        )
        .also_reads(ENVELOPE_JSON, &envelope::schema())
        .success(&[(201, "The event is accepted."), (200, "The event was accepted before.")])
        .problem(422, "Code `conflict`: an event with the same key has another payload.");
    group
        .get(
            "/v1/events/{id}",
            show,
            "Show an event with its deliveries and attempts. Operators also see its payload.",
        )
        .problem(404, "No event has this ID.");
}

/// An event to publish.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Publish")]
pub(crate) struct PublishRequest {
    /// Type of the event, such as order.paid. Targets choose events by type.
    pub(crate) r#type: String,
    /// Deduplication key: two events of a tenant with the same type and key are the same event.
    pub(crate) dedupe_key: String,
    /// Any JSON. Targets receive the same bytes.
    pub(crate) payload: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    /// A target receives events with the same order key one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) order_key: Option<String>,
    /// How long to wait before the first attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delay: Option<String>,
    /// Expire after this time: the event is not sent any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<String>,
}

/// A published event.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Published")]
pub(super) struct PublishResult {
    /// evt_…
    #[schemars(with = "String")]
    id: EventId,
    /// True if the event was accepted before.
    cached: bool,
    /// Targets that receive the event. Only of a new event.
    #[serde(skip_serializing_if = "Option::is_none")]
    targets: Option<Vec<String>>,
}

/// An event or run.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Event")]
pub(super) struct EventDetails {
    #[schemars(with = "String")]
    id: EventId,
    pub(super) r#type: String,
    pub(super) tenant: String,
    /// The first eight characters of the deduplication key.
    pub(super) dedupe_key: Option<String>,
    /// ID of the deduplication key.
    key_id: Option<String>,
    order_key: Option<String>,
    content_type: String,
    /// Size of the payload.
    bytes: usize,
    headers: Vec<(String, String)>,
    pub(super) origin: EventOrigin,
    targets: Vec<String>,
    tags: Vec<String>,
    metadata: Map<String, Value>,
    ttl: Option<String>,
    pub(super) request_id: Option<String>,
    traceparent: Option<String>,
    #[serde(flatten)]
    pub(super) envelope: EnvelopeDetails,
    accepted_at: String,
    /// Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    deliveries: Option<Vec<DeliveryDetails>>,
    #[serde(flatten)]
    payload: PayloadContent,
}

/// Where an event came from.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum EventOrigin {
    /// The HTTP API. `principal` is the name of the token.
    Api { principal: String },
    /// A stream.
    Stream { stream: String, message: String },
    /// A transaction of the application.
    Outbox,
    /// A dead letter or a replay job.
    Replay {
        #[schemars(with = "String")]
        of: EventId,
    },
}

/// The payload of an event or dead letter. Only operators see it.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct PayloadContent {
    /// The payload as it was given, if it is JSON. Only operators see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    /// The payload in base64, if it is not JSON. Only operators see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl PayloadContent {
    pub(super) fn new(payload: &[u8]) -> Self {
        match serde_json::from_slice(payload) {
            Ok(payload) => Self { payload: Some(payload), payload_base64: None },
            Err(_) => Self { payload: None, payload_base64: Some(BASE64.encode(payload)) },
        }
    }
}

impl EventDetails {
    /// The event without its payload and deliveries.
    pub(super) fn new(event: &Event) -> Self {
        let new = &event.new;
        // As values. The exact text of a large number is in the run itself.
        let metadata = new.notes.metadata.iter().map(|(name, text)| {
            let value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()));
            (name.clone(), value)
        });
        Self {
            id: new.id,
            r#type: new.event_type.clone(),
            tenant: new.tenant.clone(),
            dedupe_key: new.dedupe.as_ref().map(|dedupe| dedupe.hint.to_string()),
            key_id: new.dedupe.as_ref().map(|dedupe| dedupe.id.to_string()),
            order_key: new.order_key.clone(),
            content_type: new.content_type.clone(),
            bytes: new.payload.len(),
            headers: new.headers.clone(),
            origin: EventOrigin::new(&new.origin),
            targets: new.targets.clone(),
            tags: new.notes.tags.clone(),
            metadata: metadata.collect(),
            ttl: new.deliver_within.map(show_duration),
            request_id: new.trace.request_id.clone(),
            traceparent: new.trace.traceparent.clone(),
            envelope: EnvelopeDetails::new(&new.notes.tags),
            accepted_at: time(event.accepted_at),
            deliveries: None,
            payload: PayloadContent::default(),
        }
    }
}

impl EventOrigin {
    fn new(origin: &Origin) -> Self {
        match origin.clone() {
            Origin::Api { principal } => Self::Api { principal },
            Origin::Stream { stream, message } => Self::Stream { stream, message },
            Origin::Outbox => Self::Outbox,
            Origin::Replay { of } => Self::Replay { of },
        }
    }
}

async fn publish(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    body: PayloadBody<PublishRequest>,
) -> Result<Answer<PublishResult>, Refusal> {
    let pipeline = admin.pipeline()?;
    let most = pipeline.max_payload;
    let trace = trace(&body.headers);
    let request_id = trace.request_id.clone();
    let publication = match EnvelopeMode::of(&body.headers)? {
        None => publication(body.read(most, ENVELOPE).await?, &caller, trace)?,
        Some(mode) => envelope::publication(mode.read(body, most).await?, &caller, trace)?,
    };
    if publication.payload.len() > most {
        return Err(Refusal::payload_too_large(most));
    }
    let (event_type, key) = (publication.event_type.clone(), Hint::new(&publication.dedupe_key));
    let published =
        publication.publish(&*pipeline.ledger, &pipeline.secret, &pipeline.registry.current()).await;
    let (id, targets) = match published {
        Ok(PublishAnswer::New { id, targets }) => (id, Some(targets)),
        Ok(PublishAnswer::Known(id)) => (id, None),
        Err(PublishError::Ledger(error)) => return Err(error.into()),
        Err(error @ PublishError::Conflict) => {
            return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "conflict", error.to_string()));
        }
        Err(error) => return Err(Refusal::bad(error.to_string())),
    };
    let cached = targets.is_none();
    tracing::info!(
        target: "semel::events",
        user = caller.name,
        operation = "publish",
        event_id = %id,
        event_type,
        %key,
        request_id,
        outcome = if cached { "cached" } else { "accepted" },
    );
    let status = if cached { StatusCode::OK } else { StatusCode::CREATED };
    Ok(Answer::new(status, PublishResult { id, cached, targets }).with_request_id(request_id))
}

fn publication(asked: PublishRequest, caller: &Caller, trace: Trace) -> Result<Publication, Refusal> {
    let payload = asked.payload.get().to_owned();
    let mut publication = Publication::new(asked.r#type, asked.dedupe_key, payload);
    publication.origin = Origin::Api { principal: caller.name.clone() };
    publication.tenant = caller.tenant_for(asked.tenant)?;
    publication.order_key = asked.order_key;
    publication.delay = answer::length("delay", asked.delay.as_deref())?.unwrap_or_default();
    publication.deliver_within = answer::length("ttl", asked.ttl.as_deref())?;
    publication.trace = trace;
    Ok(publication)
}

/// Under which ids the story is found: the caller's, or a fresh request id.
pub(super) fn trace(headers: &HeaderMap) -> Trace {
    let read = |name: &str, most: usize| {
        let given = headers.get(name)?.to_str().ok()?;
        (!given.is_empty() && given.len() <= most).then(|| given.to_owned())
    };
    let request_id =
        read("x-request-id", REQUEST_ID).unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
    Trace { request_id: Some(request_id), traceparent: read("traceparent", 255) }
}

struct EventFilters;

impl Filters for EventFilters {
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::text("type", "Only events of this type."),
        Parameter::text("tenant", "Only events of this tenant."),
        Parameter::one_of::<EventKind>("kind", "Only events, or only runs."),
        Parameter::text("tag", "Only runs with this tag."),
        Parameter::text("request_id", "Only events of the request with this ID."),
        Parameter::text(
            "dedupe_key",
            "The event with this deduplication key. Requires `type`, and `tenant` if it has one.",
        ),
        Parameter::text("key_id", "The event whose deduplication key has this ID."),
        Parameter::text("message_id", "Only messages whose envelope has this ID."),
        Parameter::text("correlation_id", "Only messages whose envelope has this correlation ID."),
        Parameter::text("causation_id", "Only messages whose envelope has this causation ID."),
        Parameter::text("trace_id", "Only messages whose envelope has this trace ID."),
        Parameter::text("user", "Only messages whose envelope has this user."),
    ];
}

async fn list(
    State(admin): State<Arc<Admin>>,
    query: ListQuery<EventFilters>,
) -> Result<Answer<Page<ListedEvent>>, Refusal> {
    let pipeline = admin.pipeline()?;
    let mut asked = query.read()?;
    let found = find(pipeline, &mut asked).await?;
    if let Some(ids) = found {
        return Answer::ok(ListedEvent::of_ids(pipeline, &ids).await?);
    }
    let kind = asked.choice("kind", &[("event", EventKind::Event), ("run", EventKind::Run)])?;
    let filter = EventFilter {
        kind,
        tenant: asked.take("tenant"),
        event_type: asked.take("type"),
        tag: envelope::take_tag(&mut asked)?,
    };
    Answer::ok(ListedEvent::page(pipeline, filter, asked.page).await?)
}

/// Events that are named by something else than their id.
async fn find(pipeline: &Pipeline, asked: &mut ListRequest) -> Result<Option<Vec<EventId>>, Refusal> {
    let request_id = asked.take("request_id");
    let mut dedupe = match asked.take("key_id") {
        Some(id) => Some(id_of(&id)?),
        None => None,
    };
    if let Some(key) = asked.take("dedupe_key") {
        let tenant = asked.take("tenant").unwrap_or_default();
        let event_type = asked.take("type").ok_or_else(|| Refusal::bad("dedupe_key: give `type` too"))?;
        let named = Dedupe::of_event(&pipeline.secret, &tenant, &event_type, &key, b"");
        dedupe = Some(named.map_err(|error| Refusal::bad(format!("dedupe_key: {error}")))?.id);
    }
    if request_id.is_none() && dedupe.is_none() {
        return Ok(None);
    }
    Ok(Some(pipeline.ledger.find_events(request_id, dedupe, Vec::new()).await?))
}

async fn show(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Answer<EventDetails>, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: EventId = id_of(&id)?;
    let event = pipeline.ledger.event(id).await?;
    let event = event.ok_or_else(|| Refusal::not_found(format!("there is no event {id}")))?;
    let deliveries = pipeline.ledger.deliveries_of(id).await?;
    let mut shown = EventDetails::new(&event);
    let targets = pipeline.registry.current();
    let deliveries = deliveries.iter().map(|told| DeliveryDetails::with_attempts(told, &targets));
    shown.deliveries = Some(deliveries.collect());
    if caller.may(Right::Operate).is_ok() {
        shown.payload = PayloadContent::new(&event.new.payload);
    }
    Answer::ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_shown_as_they_are() {
        let shown = |payload| serde_json::to_string(&PayloadContent::new(payload)).unwrap();
        assert_eq!(
            shown(br#"{"n": 1.10, "big": 12345678901234567890123}"#),
            r#"{"payload":{"n": 1.10, "big": 12345678901234567890123}}"#
        );
        assert_eq!(shown(b"\xff\x00"), r#"{"payload_base64":"/wA="}"#);
        assert_eq!(serde_json::to_string(&PayloadContent::default()).unwrap(), "{}");
    }
}
