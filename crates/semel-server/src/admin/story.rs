//! `/v1/story/{id}`: everything that is known of one action, in the order it happened (P12).
//!
//! Any id of it will do: of an event or run, a delivery, a dead letter, a key, or a request, the caller's or one that a
//! target saw.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use semel::key::KeyId;
use semel::time::Timestamp;
use semel_pipeline::delivery::{Told, delivery_of_request};
use semel_pipeline::id::{DeliveryId, EventId, LetterId};
use semel_pipeline::ledger::Page;
use semel_pipeline::letter::LetterStory;
use serde_json::{Value, json};

use super::Admin;
use super::answer::{self, Named, Refusal};
use super::shown::{self, time};
use super::told;
use crate::pipeline::Pipeline;

/// No action has more.
const LINES: u32 = 200;

/// Something that happened.
struct Moment {
    at: Timestamp,
    shown: Value,
}

fn moment(at: Timestamp, place: &str, what: &str, id: &str, more: Value) -> Moment {
    let mut shown = json!({ "at": time(at), "place": place, "what": what, "id": id });
    if let (Value::Object(shown), Value::Object(more)) = (&mut shown, more) {
        shown.extend(more.into_iter().filter(|(_, value)| !value.is_null()));
    }
    Moment { at, shown }
}

/// The story of whatever the id names.
pub(super) async fn show(State(admin): State<Arc<Admin>>, Named(id): Named) -> Result<Response, Refusal> {
    let mut moments = Vec::new();
    let mut found = Vec::new();
    if let Ok(key) = id.parse::<KeyId>() {
        claim(&admin, key, &mut moments, &mut found).await?;
    }
    let mut events = Vec::new();
    if let Ok(pipeline) = admin.pipeline() {
        for event in named(pipeline, &id).await? {
            events.push(event);
            tell(pipeline, event, &mut moments, &mut found).await?;
        }
        if let Ok(letter) = id.parse::<LetterId>()
            && events.is_empty()
            && let Some(story) = pipeline.ledger.letter(letter).await?
        {
            of_letter(pipeline, &story, &mut moments, &mut found).await?;
        }
    }
    if found.is_empty() {
        let detail = format!(
            "nothing is known of {id:?}: no event, delivery, dead letter, key or request has this id"
        );
        return Err(Refusal::not_found(detail));
    }
    moments.sort_by_key(|moment| moment.at);
    let timeline: Vec<Value> = moments.into_iter().map(|moment| moment.shown).collect();
    answer::json(&json!({ "id": id, "found": found, "timeline": timeline }))
}

/// The events that an id of any kind names.
async fn named(pipeline: &Pipeline, id: &str) -> Result<BTreeSet<EventId>, Refusal> {
    let ledger = &pipeline.ledger;
    let mut events = BTreeSet::new();
    if let Ok(event) = id.parse::<EventId>() {
        events.extend(ledger.event(event).await?.map(|event| event.new.id));
    } else if let Some(delivery) = id.parse::<DeliveryId>().ok().or_else(|| delivery_of_request(id)) {
        events.extend(ledger.delivery(delivery).await?.map(|told| told.delivery.event));
    } else if let Ok(letter) = id.parse::<LetterId>() {
        events.extend(ledger.letter(letter).await?.and_then(|story| story.letter.event));
    } else {
        events.extend(ledger.find_events(Some(id.to_owned()), None).await?);
        if let Ok(key) = id.parse::<KeyId>() {
            events.extend(ledger.find_events(None, Some(key)).await?);
        }
    }
    Ok(events)
}

/// A claim: what the gateway or a worker did under a key.
async fn claim(
    admin: &Admin,
    key: KeyId,
    moments: &mut Vec<Moment>,
    found: &mut Vec<Value>,
) -> Result<(), Refusal> {
    let Some(snapshot) = admin.engine.store().get(key).await? else { return Ok(()) };
    let id = key.to_string();
    let (record, shown) = (&snapshot.record, shown::record(&snapshot));
    let more = json!({ "key": shown["key"], "attempt": record.attempt, "fence": record.fence.get() });
    moments.push(moment(record.claimed_at, "claim", "claimed", &id, more));
    if record.changed_at > record.claimed_at {
        let phase = shown["phase"].as_str().unwrap_or_default().to_owned();
        moments.push(moment(record.changed_at, "claim", &phase, &id, json!({ "outcome": shown["outcome"] })));
    }
    found.push(json!({ "kind": "key", "id": id, "state": shown["phase"] }));
    Ok(())
}

async fn tell(
    pipeline: &Pipeline,
    id: EventId,
    moments: &mut Vec<Moment>,
    found: &mut Vec<Value>,
) -> Result<(), Refusal> {
    let Some(event) = pipeline.ledger.event(id).await? else { return Ok(()) };
    let shown = told::event(&event);
    let more = json!({
        "type": shown["type"], "tenant": shown["tenant"], "key": shown["dedupe_key"], "origin": shown["origin"],
        "request_id": shown["request_id"], "trace_id": event.new.trace.trace_id(),
    });
    moments.push(moment(event.accepted_at, "event", "accepted", &id.to_string(), more));
    found.push(json!({ "kind": "event", "id": id, "type": shown["type"] }));
    audit(pipeline, &id.to_string(), moments).await?;
    for told in pipeline.ledger.deliveries_of(id).await? {
        of_delivery(&told, moments, found);
        if let Some(letter) = told.delivery.letter
            && let Some(story) = pipeline.ledger.letter(letter).await?
        {
            of_letter(pipeline, &story, moments, found).await?;
        }
    }
    Ok(())
}

fn of_delivery(told: &Told, moments: &mut Vec<Moment>, found: &mut Vec<Value>) {
    let delivery = &told.delivery;
    let id = delivery.id.to_string();
    found.push(json!({ "kind": "delivery", "id": id, "target": delivery.target, "state": delivery.state }));
    for attempt in &told.attempts {
        let shown = told::attempt(attempt);
        let more = json!({
            "target": delivery.target, "attempt": attempt.number, "request_id": attempt.request_id,
            "worker": attempt.worker, "replay_id": attempt.job,
        });
        moments.push(moment(attempt.started_at, "delivery", "attempt started", &id, more));
        if let Some(ended) = attempt.ended_at {
            let more = json!({
                "target": delivery.target, "attempt": attempt.number, "request_id": attempt.request_id,
                "outcome": shown["outcome"], "http_status": shown["http_status"], "latency_ms": shown["latency_ms"],
                "error": shown["error"], "excerpt": shown["excerpt"],
            });
            moments.push(moment(ended, "downstream", "attempt ended", &id, more));
        }
    }
    if let Some(at) = delivery.completed_at {
        let more = json!({ "target": delivery.target, "error": delivery.error });
        moments.push(moment(at, "delivery", delivery.state.as_str(), &id, more));
    } else if delivery.state.is_takeable() {
        let more = json!({ "target": delivery.target, "error": delivery.error });
        moments.push(moment(delivery.due_at, "delivery", "due", &id, more));
    }
}

async fn of_letter(
    pipeline: &Pipeline,
    story: &LetterStory,
    moments: &mut Vec<Moment>,
    found: &mut Vec<Value>,
) -> Result<(), Refusal> {
    let letter = &story.letter;
    let id = letter.id.to_string();
    found.push(json!({ "kind": "dead letter", "id": id, "state": letter.status, "cause": letter.cause }));
    let more = json!({ "target": letter.target, "cause": letter.cause, "error": letter.error });
    moments.push(moment(letter.created_at, "dead letter", "written", &id, more));
    if letter.updated_at > letter.created_at {
        moments.push(moment(letter.updated_at, "dead letter", letter.status.as_str(), &id, json!({})));
    }
    audit(pipeline, &id, moments).await
}

/// What people did.
async fn audit(pipeline: &Pipeline, subject: &str, moments: &mut Vec<Moment>) -> Result<(), Refusal> {
    let page = Page { after: None, limit: LINES };
    let lines = pipeline.ledger.audit_log(Some(subject.to_owned()), page).await?;
    moments.extend(lines.items.iter().map(|audited| {
        let line = &audited.line;
        moment(audited.at, "audit", &line.action, subject, json!({ "who": line.who, "reason": line.reason }))
    }));
    Ok(())
}
