//! `/v1/events`: publish, list, show.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::event::{Accepted, Dedupe, NewEvent, Origin, Trace};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::{Error, ErrorKind, EventFilter};
use semel_pipeline::publish::Publication;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Admin;
use super::access::{Caller, Right};
use super::answer::{self, Named, Refusal};
use super::listing::{Asked, id_of, items};
use super::told;
use crate::pipeline::Pipeline;

/// What may stand around a payload.
const AROUND: usize = 64 << 10;
/// How long a call to the ledger that may or may not have been executed is repeated.
const PERSISTENCE: Duration = Duration::from_secs(5);
/// The longest request id of a caller's that is kept.
const REQUEST_ID: usize = 128;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Publish {
    r#type: String,
    dedupe_key: String,
    payload: Box<RawValue>,
    tenant: Option<String>,
    order_key: Option<String>,
    delay: Option<String>,
    ttl: Option<String>,
}

/// Accepts an event: 201 the first time, 200 from then on, 422 where the same key came with another payload.
pub(super) async fn publish(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let (parts, body) = request.into_parts();
    let most = pipeline.max_payload;
    let body = axum::body::to_bytes(body, most.saturating_add(AROUND)).await.map_err(|_| too_large(most))?;
    let asked: Publish = answer::body(&body)?;
    if asked.payload.get().len() > most {
        return Err(too_large(most));
    }
    let trace = trace(&parts.headers);
    let request_id = trace.request_id.clone();
    let publication = publication(asked, &caller, trace)?;
    let event = publication
        .into_event(&pipeline.secret, &pipeline.registry.current(), SystemClock.now())
        .map_err(|error| Refusal::bad(error.to_string()))?;
    let (id, targets, key) =
        (event.id, event.targets.clone(), event.dedupe.as_ref().map(|dedupe| dedupe.hint.clone()));
    let event_type = event.event_type.clone();
    let accepted = accept(pipeline, event).await?;
    let (status, id, cached) = match accepted {
        Accepted::First(id) => (StatusCode::CREATED, id, false),
        // An earlier try of this very call wrote it, and its answer got lost.
        Accepted::Cached(known) if known == id => (StatusCode::CREATED, id, false),
        Accepted::Cached(known) => (StatusCode::OK, known, true),
        Accepted::Conflict | Accepted::Stale => {
            let detail = "another event has this tenant, type and dedupe_key, and another payload";
            return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "conflict", detail));
        }
    };
    tracing::info!(
        target: "semel::events",
        user = caller.name,
        operation = "publish",
        event_id = %id,
        event_type,
        key = key.map(tracing::field::display),
        request_id,
        outcome = if cached { "cached" } else { "accepted" },
    );
    let mut shown = json!({ "id": id, "cached": cached });
    if !cached {
        shown["targets"] = json!(targets);
    }
    let mut response = answer::json(&shown)?;
    *response.status_mut() = status;
    if let Some(id) = request_id.and_then(|id| id.parse().ok()) {
        response.headers_mut().insert("x-request-id", id);
    }
    Ok(response)
}

fn too_large(most: usize) -> Refusal {
    let detail = format!("the payload is larger than {most} bytes; `payload` in [limits] allows more");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", detail)
}

fn publication(asked: Publish, caller: &Caller, trace: Trace) -> Result<Publication, Refusal> {
    let origin = Origin::Api { principal: caller.name.clone() };
    let payload = asked.payload.get().to_owned();
    let mut publication = Publication::json(asked.r#type, asked.dedupe_key, payload, origin);
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

/// Asks the ledger, again while its answer is unknown: the event has its id.
async fn accept(pipeline: &Pipeline, event: NewEvent) -> Result<Accepted, Refusal> {
    let give_up = Instant::now() + PERSISTENCE;
    let mut pause = Duration::from_millis(10);
    loop {
        match pipeline.ledger.accept(vec![event.clone()]).await {
            Err(Error::Store(error))
                if error.kind() == ErrorKind::Ambiguous && Instant::now() + pause < give_up =>
            {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            Err(error) => return Err(error.into()),
            Ok(accepted) => {
                let lost =
                    || Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the ledger said nothing");
                return accepted.into_iter().next().ok_or_else(lost);
            }
        }
    }
}

/// Lists events, the newest first; or finds those of a request id, or of a dedupe key.
pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let mut asked =
        Asked::read(query, &["type", "tenant", "kind", "tag", "request_id", "dedupe_key", "key_id"])?;
    let found = find(pipeline, &mut asked).await?;
    if let Some(ids) = found {
        let mut shown = Vec::new();
        for id in ids {
            if let Some(event) = pipeline.ledger.event(id).await? {
                shown.push(told::event(&event));
            }
        }
        return answer::json(&json!({ "items": shown, "next": null }));
    }
    let kind = asked.choice("kind", &[("event", EventKind::Event), ("run", EventKind::Run)])?;
    let filter = EventFilter {
        kind,
        tenant: asked.take("tenant"),
        event_type: asked.take("type"),
        tag: asked.take("tag"),
    };
    let page = pipeline.ledger.events(filter, asked.page()).await?;
    items(page.items.iter().map(told::event), page.next)
}

/// Events that are named by something else than their id.
async fn find(pipeline: &Pipeline, asked: &mut Asked) -> Result<Option<Vec<EventId>>, Refusal> {
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
    Ok(Some(pipeline.ledger.find_events(request_id, dedupe).await?))
}

/// One event with its deliveries and their attempts. Whoever may operate also sees its payload.
pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: EventId = id_of(&id)?;
    let event = pipeline.ledger.event(id).await?;
    let event = event.ok_or_else(|| Refusal::not_found(format!("there is no event {id}")))?;
    let deliveries = pipeline.ledger.deliveries_of(id).await?;
    let mut shown = told::event(&event);
    shown["deliveries"] = deliveries.iter().map(told::delivery_with_attempts).collect();
    let payload = caller.may(Right::Operate).is_ok().then_some(&event.new.payload);
    let text = told::with_payload(&shown, payload);
    Ok(([(header::CONTENT_TYPE, "application/json")], text?).into_response())
}
