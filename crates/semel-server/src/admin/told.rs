//! Events, deliveries, attempts and dead letters as the admin API shows them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use semel_pipeline::delivery::{Attempt, Delivery, Told};
use semel_pipeline::event::{Event, Origin};
use semel_pipeline::letter::{Group, Letter, LetterStory};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::answer::Refusal;
use super::shown::time;
use crate::config::show_duration;

/// An event, without its payload.
pub(super) fn event(event: &Event) -> Value {
    let new = &event.new;
    json!({
        "id": new.id,
        "type": new.event_type,
        "tenant": new.tenant,
        "dedupe_key": new.dedupe.as_ref().map(|dedupe| dedupe.hint.to_string()),
        "key_id": new.dedupe.as_ref().map(|dedupe| dedupe.id.to_string()),
        "order_key": new.order_key,
        "content_type": new.content_type,
        "bytes": new.payload.len(),
        "headers": headers(&new.headers),
        "origin": origin(&new.origin),
        "targets": new.targets,
        "tags": new.notes.tags,
        "metadata": metadata(&new.notes.metadata),
        "ttl": new.deliver_within.map(show_duration),
        "request_id": new.trace.request_id,
        "traceparent": new.trace.traceparent,
        "accepted_at": time(event.accepted_at),
    })
}

fn metadata(members: &std::collections::BTreeMap<String, String>) -> Value {
    // Shown as values; whoever needs the exact text of a large number reads it from the run itself.
    let read = |text: &String| serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()));
    Value::Object(members.iter().map(|(name, text)| (name.clone(), read(text))).collect::<Map<_, _>>())
}

fn headers(headers: &[(String, String)]) -> Value {
    headers.iter().map(|(name, value)| json!([name, value])).collect()
}

fn origin(origin: &Origin) -> Value {
    match origin {
        Origin::Api { principal } => json!({ "kind": "api", "principal": principal }),
        Origin::Stream { stream, message } => {
            json!({ "kind": "stream", "stream": stream, "message": message })
        }
        Origin::Outbox => json!({ "kind": "outbox" }),
        Origin::Replay { of } => json!({ "kind": "replay", "of": of }),
    }
}

/// A delivery, without its attempts.
pub(super) fn delivery(delivery: &Delivery) -> Value {
    json!({
        "id": delivery.id,
        "event_id": delivery.event,
        "target": delivery.target,
        "tenant": delivery.tenant,
        "type": delivery.event_type,
        "state": delivery.state,
        "attempts_made": delivery.attempts,
        "crashes": delivery.crashes,
        "epoch": delivery.epoch,
        "due_at": delivery.state.is_takeable().then(|| time(delivery.due_at)),
        "error": delivery.error,
        "dlq_id": delivery.letter,
        "created_at": time(delivery.created_at),
        "started_at": delivery.started_at.map(time),
        "completed_at": delivery.completed_at.map(time),
    })
}

/// A delivery with its attempts.
pub(super) fn delivery_with_attempts(told: &Told) -> Value {
    let mut shown = delivery(&told.delivery);
    shown["attempts"] = told.attempts.iter().map(attempt).collect();
    shown
}

/// One attempt.
pub(super) fn attempt(attempt: &Attempt) -> Value {
    let ending = attempt.ending.as_ref();
    let latency = attempt.ended_at.map(|ended| ended.left(attempt.started_at));
    json!({
        "attempt": attempt.number,
        "epoch": attempt.epoch,
        "worker": attempt.worker,
        "request_id": attempt.request_id,
        "replay_id": attempt.job,
        "started_at": time(attempt.started_at),
        "ended_at": attempt.ended_at.map(time),
        "latency_ms": latency.map(|latency| latency.as_secs_f64() * 1e3),
        "outcome": ending.map(|ending| ending.class),
        "http_status": ending.and_then(|ending| ending.status),
        "error": ending.map(|ending| ending.error.as_str()).filter(|error| !error.is_empty()),
        "excerpt": ending.map(|ending| ending.excerpt.as_str()).filter(|excerpt| !excerpt.is_empty()),
        "retry_after": ending.and_then(|ending| ending.retry_after).map(show_duration),
    })
}

/// A dead letter, without its payload.
pub(super) fn letter(letter: &Letter) -> Value {
    json!({
        "id": letter.id,
        "status": letter.status,
        "cause": letter.cause,
        "error": letter.error,
        "signature": letter.signature.as_str(),
        "event_id": letter.event,
        "delivery_id": letter.delivery,
        "target": letter.target,
        "type": letter.event_type,
        "tenant": letter.tenant,
        "source": letter.source.as_ref().map(|source| {
            json!({ "stream": source.stream, "message": source.message })
        }),
        "content_type": letter.content_type,
        "bytes": letter.payload.len(),
        "headers": headers(&letter.headers),
        "attempts_made": letter.attempts,
        "last_attempt_at": letter.last_attempt_at.map(time),
        "failed_replays": letter.failed_replays,
        "copy_of": letter.copy_of,
        "created_at": time(letter.created_at),
        "updated_at": time(letter.updated_at),
    })
}

/// A dead letter with its attempts and copies.
pub(super) fn letter_story(story: &LetterStory) -> Value {
    let mut shown = letter(&story.letter);
    shown["attempts"] = story.attempts.iter().map(attempt).collect();
    shown["copies"] = json!(story.copies);
    shown
}

/// Letters that failed alike.
pub(super) fn group(group: &Group) -> Value {
    let counts: Map<String, Value> =
        group.counts.iter().map(|(status, count)| (status.as_str().to_owned(), (*count).into())).collect();
    json!({
        "signature": group.signature.as_str(),
        "target": group.target,
        "cause": group.cause,
        "count": group.counts.iter().map(|(_, count)| count).sum::<u64>(),
        "by_status": counts,
        "first_at": time(group.first_at),
        "last_at": time(group.last_at),
        "sample": group.sample,
        "error": group.error,
    })
}

#[derive(serde::Serialize)]
struct WithPayload<'a> {
    #[serde(flatten)]
    shown: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

/// The same with its payload: as it is where it is JSON, byte for byte; else in base64.
pub(super) fn with_payload(shown: &Value, payload: Option<&Bytes>) -> Result<String, Refusal> {
    let raw = payload.and_then(|payload| serde_json::from_slice::<Box<RawValue>>(payload).ok());
    let encoded = payload.filter(|_| raw.is_none()).map(|payload| BASE64.encode(payload));
    let whole = WithPayload { shown, payload: raw, payload_base64: encoded };
    serde_json::to_string(&whole).map_err(|error| {
        let status = axum::http::StatusCode::INTERNAL_SERVER_ERROR;
        Refusal::new(status, "internal", error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_shown_as_they_are() {
        let shown = |payload: &'static [u8]| {
            with_payload(&json!({ "id": 1 }), Some(&Bytes::from_static(payload))).unwrap()
        };
        assert_eq!(
            shown(br#"{"n": 1.10, "big": 12345678901234567890123}"#),
            r#"{"id":1,"payload":{"n": 1.10, "big": 12345678901234567890123}}"#
        );
        assert_eq!(shown(b"\xff\x00"), r#"{"id":1,"payload_base64":"/wA="}"#);
        assert_eq!(with_payload(&json!({ "id": 1 }), None).unwrap(), r#"{"id":1}"#);
    }
}
