//! `/v1/runs`: trigger, list, show, change, cancel; and the keys of runs. A run in the buffer is treated as one in the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use semel_pipeline::delivery::Told;
use semel_pipeline::event::{CHANGES_MEMBER, NewEvent, Notes};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::{AuditLine, Change, EventFilter};
use semel_pipeline::trigger::{Ask, DeskError, Located, RunKey, TriggerError, Triggered};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Admin;
use super::access::{Caller, Right};
use super::answer::{self, Named, Refusal};
use super::events::trace;
use super::listing::{Asked, id_of, items};
use super::shown::time;
use super::told;
use crate::config::show_duration;
use crate::pipeline::Pipeline;

/// What may stand around a payload.
const AROUND: usize = 256 << 10;
/// The most tags of a run, and the longest of them.
const TAGS: (usize, usize) = (100, 255);
/// How long a caller that waits for a run is kept waiting, where it does not say.
const WAIT: Duration = Duration::from_secs(30);
/// When a caller should come back that found no place to wait.
const NO_PLACE: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Trigger {
    target: String,
    payload: Box<RawValue>,
    tenant: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    metadata: BTreeMap<String, Box<RawValue>>,
    delay: Option<String>,
    ttl: Option<String>,
    idempotency_key: Option<String>,
}

/// Triggers a run: 201 the first time, 202 where it is buffered, 200 from then on.
pub(super) async fn trigger(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<Vec<(String, String)>>,
    request: Request,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    // Before the run is triggered: a caller that is refused has changed nothing.
    let wait = match waits(query, pipeline.waiters.longest())? {
        Some(limit) => Some((limit, pipeline.waiters.enter().ok_or_else(|| too_many_waiters(pipeline))?)),
        None => None,
    };
    let (parts, body) = request.into_parts();
    let most = pipeline.max_payload;
    let body = axum::body::to_bytes(body, most.saturating_add(AROUND)).await.map_err(|_| too_large(most))?;
    let asked: Trigger = answer::body(&body)?;
    if asked.payload.get().len() > most {
        return Err(too_large(most));
    }
    let header = parts.headers.get("idempotency-key").map(|key| key.to_str());
    let header = header.transpose().map_err(|_| Refusal::bad("Idempotency-Key: expected visible ASCII"))?;
    let key = match (header, asked.idempotency_key) {
        (Some(one), Some(other)) if one != other => {
            return Err(Refusal::bad(
                "idempotency_key and the header Idempotency-Key differ: send one, or the same",
            ));
        }
        (Some(key), _) => Some(key.to_owned()),
        (None, key) => key,
    };
    let ask = Ask {
        principal: caller.name.clone(),
        tenant: caller.tenant_for(asked.tenant)?,
        target: target(pipeline, asked.target)?,
        payload: asked.payload.get().to_owned().into(),
        content_type: "application/json".to_owned(),
        key,
        lifetime: answer::length("ttl", asked.ttl.as_deref())?,
        delay: answer::length("delay", asked.delay.as_deref())?.unwrap_or_default(),
        notes: Notes { tags: tags(asked.tags)?, metadata: texts(asked.metadata)? },
        trace: trace(&parts.headers),
    };
    let triggers = &pipeline.intake.triggers;
    let triggered = match wait {
        None => triggers.trigger(&ask).await,
        Some(_) => triggers.trigger_now(&ask).await,
    }
    .map_err(refused)?;
    let Triggered { id, cached, buffered } = triggered;
    tracing::info!(
        target: "semel::events",
        user = caller.name,
        operation = "trigger",
        event_id = %id,
        "target" = ask.target,
        request_id = ask.trace.request_id,
        buffered,
        outcome = if cached { "cached" } else { "accepted" },
    );
    let mut shown = json!({ "id": id, "cached": cached, "buffered": buffered });
    if let Some((limit, _place)) = wait {
        shown["status"] = json!(ended(pipeline, id, limit).await?);
    }
    let mut response = answer::json(&shown)?;
    *response.status_mut() = match (cached, buffered) {
        (true, _) => StatusCode::OK,
        (false, true) => StatusCode::ACCEPTED,
        (false, false) => StatusCode::CREATED,
    };
    if let Some(id) = ask.trace.request_id.and_then(|id| id.parse().ok()) {
        response.headers_mut().insert("x-request-id", id);
    }
    Ok(response)
}

/// How long the caller waits for the run itself; `None` where it does not.
fn waits(query: Vec<(String, String)>, longest: Duration) -> Result<Option<Duration>, Refusal> {
    let (mut wait, mut limit) = (false, WAIT.min(longest));
    for (name, value) in query {
        match (name.as_str(), value.as_str()) {
            ("wait", "true") => wait = true,
            ("wait", "false") => wait = false,
            ("timeout", text) => {
                limit = answer::length("timeout", Some(text))?.unwrap_or(limit);
                if limit > longest {
                    let most = show_duration(longest);
                    return Err(Refusal::bad(format!(
                        "timeout: expected at most \"{most}\", which is `run_wait` in [limits]; ask again to wait longer"
                    )));
                }
            }
            ("wait", _) => return Err(Refusal::bad("wait: expected true or false")),
            (other, _) => {
                return Err(Refusal::bad(format!("{other:?} is not known here; there are wait, timeout")));
            }
        }
    }
    Ok(wait.then_some(limit))
}

/// Waits until every delivery of a run has ended, but no longer than `limit`. Answers how it stands.
async fn ended(pipeline: &Pipeline, id: EventId, limit: Duration) -> Result<String, Refusal> {
    let deadline = Instant::now() + limit;
    let mut watch = pipeline.waiters.watch(id);
    loop {
        watch.mark_seen();
        let deliveries = pipeline.ledger.deliveries_of(id).await?;
        // A run without any is still in the buffer: Redis did not answer when it was to be moved.
        let open = deliveries.is_empty() || deliveries.iter().any(|told| !told.delivery.state.is_over());
        if !open || Instant::now() >= deadline {
            return Ok(status(&deliveries));
        }
        watch.changed(deadline).await;
    }
}

fn too_many_waiters(pipeline: &Pipeline) -> Refusal {
    let most = pipeline.waiters.most();
    let detail = format!(
        "{most} callers already wait for runs, and nothing was triggered: trigger without wait=true, or come back later; \
         `run_waiters` in [limits] allows more"
    );
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_waiters", detail).after(NO_PLACE)
}

/// A run has one target; one that was executed again has several deliveries, and the last one counts.
fn status(deliveries: &[Told]) -> String {
    deliveries.last().map_or("queued", |told| told.delivery.state.as_str()).to_owned()
}

fn too_large(most: usize) -> Refusal {
    let detail = format!("the payload is larger than {most} bytes; `payload` in [limits] allows more");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", detail)
}

fn target(pipeline: &Pipeline, name: String) -> Result<String, Refusal> {
    let known = pipeline.registry.current().names();
    if known.contains(&name) {
        return Ok(name);
    }
    let detail = match known.as_slice() {
        [] => format!("there is no target {name:?}: the config has no [[target]]"),
        known => format!("there is no target {name:?}; there are {}", known.join(", ")),
    };
    Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown_target", detail))
}

fn tags(tags: Vec<String>) -> Result<Vec<String>, Refusal> {
    let (most, longest) = TAGS;
    let good = |tag: &String| (1..=longest).contains(&tag.len()) && !tag.chars().any(char::is_control);
    if tags.len() > most || !tags.iter().all(good) {
        return Err(Refusal::bad(format!("tags: expected at most {most} words of 1 to {longest} bytes")));
    }
    let mut kept: Vec<String> = Vec::with_capacity(tags.len());
    for tag in tags {
        if !kept.contains(&tag) {
            kept.push(tag);
        }
    }
    Ok(kept)
}

/// The exact texts of JSON values.
fn texts(members: BTreeMap<String, Box<RawValue>>) -> Result<BTreeMap<String, String>, Refusal> {
    if members.contains_key(CHANGES_MEMBER) {
        return Err(Refusal::bad(format!("metadata: the name {CHANGES_MEMBER:?} is taken; use another")));
    }
    Ok(members.into_iter().map(|(name, value)| (name, value.get().to_owned())).collect())
}

fn refused(error: TriggerError) -> Refusal {
    let detail = error.to_string();
    match error {
        TriggerError::Key(_) => Refusal::bad(format!("idempotency_key: {detail}")),
        TriggerError::Conflict => Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "conflict", detail),
        TriggerError::TimedOut { retry_after } => {
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "in_flight", detail).after(retry_after)
        }
        TriggerError::Ledger(error) => error.into(),
        _ => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail),
    }
}

fn desk(error: DeskError) -> Refusal {
    let detail = error.to_string();
    match error {
        DeskError::Ledger(error) => error.into(),
        DeskError::Buffer(error) => error.into(),
        _ => {
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "in_transit", detail).after(Duration::from_secs(1))
        }
    }
}

/// A run as it is shown. Metadata is the exact text that was given.
#[derive(Serialize)]
struct Shown {
    id: EventId,
    target: String,
    tenant: String,
    status: String,
    buffered: bool,
    tags: Vec<String>,
    metadata: BTreeMap<String, Box<RawValue>>,
    version: u64,
    idempotency_key: Option<String>,
    key_id: Option<String>,
    request_id: Option<String>,
    accepted_at: Option<String>,
    deliveries: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
}

/// How a run is shown, whoever asks.
struct View<'a> {
    run: &'a NewEvent,
    version: u64,
    status: String,
    buffered: bool,
    accepted_at: Option<String>,
    deliveries: &'a [Told],
}

fn shown(view: &View<'_>, caller: &Caller) -> Shown {
    let View { run, version, status, buffered, accepted_at, deliveries } = view;
    let raw = |text: &String| RawValue::from_string(text.clone()).ok();
    let metadata = &run.notes.metadata;
    let metadata = metadata.iter().filter_map(|(name, text)| Some((name.clone(), raw(text)?))).collect();
    let payload = caller.may(Right::Operate).is_ok();
    let payload = payload.then(|| serde_json::from_slice(&run.payload).ok()).flatten();
    Shown {
        id: run.id,
        target: run.event_type.clone(),
        tenant: run.tenant.clone(),
        status: status.clone(),
        buffered: *buffered,
        tags: run.notes.tags.clone(),
        metadata,
        version: *version,
        idempotency_key: run.dedupe.as_ref().map(|dedupe| dedupe.hint.to_string()),
        key_id: run.dedupe.as_ref().map(|dedupe| dedupe.id.to_string()),
        request_id: run.trace.request_id.clone(),
        accepted_at: accepted_at.clone(),
        deliveries: deliveries.iter().map(told::delivery_with_attempts).collect(),
        payload,
    }
}

/// A located run as it is shown; 404 where it is nowhere, or another tenant's.
async fn view(
    pipeline: &Pipeline,
    located: Located,
    id: EventId,
    caller: &Caller,
) -> Result<Response, Refusal> {
    let not_found = || Refusal::not_found(format!("there is no run {id}"));
    let own = |run: &NewEvent| caller.tenant.as_ref().is_none_or(|tenant| *tenant == run.tenant);
    match located {
        Located::Ledger(event) if event.new.id.kind() == EventKind::Run && own(&event.new) => {
            let deliveries = pipeline.ledger.deliveries_of(event.new.id).await?;
            let view = View {
                run: &event.new,
                version: event.version,
                status: status(&deliveries),
                buffered: false,
                accepted_at: Some(time(event.accepted_at)),
                deliveries: &deliveries,
            };
            answer::json(&shown(&view, caller))
        }
        Located::Buffer { buffered, version } if own(&buffered.run) => {
            let status = if buffered.cancelled { "cancelled" } else { "queued" }.to_owned();
            let run = &buffered.run;
            let view = View { run, version, status, buffered: true, accepted_at: None, deliveries: &[] };
            answer::json(&shown(&view, caller))
        }
        _ => Err(not_found()),
    }
}

/// One run, wherever it is.
pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: EventId = id_of(&id)?;
    let located = pipeline.intake.triggers.locate(id).await.map_err(desk)?;
    view(pipeline, located, id, &caller).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Patch {
    #[serde(default)]
    add_tags: Vec<String>,
    #[serde(default)]
    metadata: BTreeMap<String, Box<RawValue>>,
    #[serde(default)]
    increment: BTreeMap<String, Box<RawValue>>,
    delay: Option<String>,
    version: Option<u64>,
}

/// Changes a run, wherever it is. A member of `metadata` that is null is taken away.
pub(super) async fn patch(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
    body: Bytes,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: EventId = id_of(&id)?;
    own(pipeline, id, &caller).await?;
    let asked: Patch = answer::body(&body)?;
    let (removed, set): (Vec<_>, Vec<_>) =
        texts(asked.metadata)?.into_iter().partition(|(_, value)| value == "null");
    let change = Change {
        add_tags: tags(asked.add_tags)?,
        set,
        remove: removed.into_iter().map(|(name, _)| name).collect(),
        increment: texts(asked.increment)?.into_iter().collect(),
        delay: answer::length("delay", asked.delay.as_deref())?,
    };
    let located = pipeline.intake.triggers.change(id, &change, asked.version).await.map_err(desk)?;
    view(pipeline, located, id, &caller).await
}

/// 404 where the run is another tenant's: whoever is confined to one does not learn of others.
async fn own(pipeline: &Pipeline, id: EventId, caller: &Caller) -> Result<(), Refusal> {
    let Some(tenant) = &caller.tenant else { return Ok(()) };
    let located = pipeline.intake.triggers.locate(id).await.map_err(desk)?;
    let whose = match &located {
        Located::Ledger(event) => Some(&event.new.tenant),
        Located::Buffer { buffered, .. } => Some(&buffered.run.tenant),
        Located::Missing => None,
    };
    match whose {
        Some(whose) if whose == tenant => Ok(()),
        _ => Err(Refusal::not_found(format!("there is no run {id}"))),
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reason {
    #[serde(default)]
    reason: String,
}

/// Cancels a run that has not started.
pub(super) async fn cancel(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
    body: Bytes,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: EventId = id_of(&id)?;
    own(pipeline, id, &caller).await?;
    let Reason { reason } = answer::body(&body)?;
    let line =
        AuditLine { who: caller.name.clone(), action: "cancel".to_owned(), subject: id.to_string(), reason };
    pipeline.intake.triggers.cancel(id, &line).await.map_err(desk)?;
    pipeline.waiters.wake(id);
    let located = pipeline.intake.triggers.locate(id).await.map_err(desk)?;
    view(pipeline, located, id, &caller).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reset {
    target: String,
    key: String,
    tenant: Option<String>,
    principal: Option<String>,
    #[serde(default)]
    reason: String,
}

/// Resets a key: the next trigger with it is another run. An operator may reset a key of another principal.
pub(super) async fn reset_key(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let asked: Reset = answer::body(&body)?;
    let tenant = caller.tenant_for(asked.tenant)?;
    let principal = match asked.principal {
        Some(other) if other != caller.name => {
            caller.may(Right::Operate)?;
            other
        }
        _ => caller.name.clone(),
    };
    let line = AuditLine {
        who: caller.name.clone(),
        action: "reset-key".to_owned(),
        subject: asked.target.clone(),
        reason: asked.reason,
    };
    let key = RunKey { principal: &principal, tenant: &tenant, target: &asked.target, key: &asked.key };
    let whose = pipeline.intake.triggers.reset_key(key, &line).await.map_err(desk)?;
    answer::json(&json!({ "reset": whose.is_some(), "id": whose }))
}

/// Lists runs of the ledger, the newest first; or, with `buffered=true`, those that wait in the buffer of a tenant.
pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let mut asked = Asked::read(query, &["target", "tenant", "tag", "buffered"])?;
    let tenant = match &caller.tenant {
        Some(own) => Some(own.clone()),
        None => asked.take("tenant"),
    };
    if asked.choice("buffered", &[("true", true), ("false", false)])? == Some(true) {
        return buffered(pipeline, tenant, asked).await;
    }
    let filter = EventFilter {
        kind: Some(EventKind::Run),
        tenant,
        event_type: asked.take("target"),
        tag: asked.take("tag"),
    };
    let page = pipeline.ledger.events(filter, asked.page()).await?;
    items(page.items.iter().map(told::event), page.next)
}

/// What waits in the buffer: how much for each tenant, and the runs of one.
async fn buffered(pipeline: &Pipeline, tenant: Option<String>, asked: Asked) -> Result<Response, Refusal> {
    let Some(burst) = pipeline.intake.triggers.burst_at_hand()? else {
        return answer::json(&json!({ "items": [], "next": null, "tenants": [] }));
    };
    let mut tenants = Vec::new();
    for name in burst.buffer.tenants().await? {
        if tenant.as_ref().is_some_and(|tenant| *tenant != name) {
            continue;
        }
        let depth = burst.buffer.depth(&name).await?;
        tenants.push(json!({
            "tenant": name,
            "queued": depth.queued,
            "in_transit": depth.leased,
            "oldest_seconds": depth.oldest.as_secs_f64(),
        }));
    }
    let Some(tenant) = tenant else {
        return answer::json(&json!({ "items": [], "next": null, "tenants": tenants }));
    };
    let page = asked.page();
    let after = page.after.map(|after| id_of(&after)).transpose()?;
    let ids = burst.buffer.list(&tenant, after, page.limit).await?;
    let full = ids.len() == usize::try_from(page.limit).unwrap_or(usize::MAX);
    let next = ids.last().filter(|_| full).map(ToString::to_string);
    let shown: Vec<Value> =
        ids.iter().map(|id| json!({ "id": id, "tenant": tenant, "buffered": true })).collect();
    answer::json(&json!({ "items": shown, "next": next, "tenants": tenants }))
}

impl Refusal {
    /// The same with a hint when to come back.
    fn after(mut self, retry_after: Duration) -> Self {
        self.set_retry_after(retry_after);
        self
    }
}
