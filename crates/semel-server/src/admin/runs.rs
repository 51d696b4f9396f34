//! `/v1/runs`: trigger, list, show, change, cancel; and the keys of runs. A run in the buffer is treated as one in the ledger.

mod change;
mod list;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use schemars::JsonSchema;
use semel_pipeline::delivery::{DeliveryHistory, DeliveryState};
use semel_pipeline::event::{CHANGES_MEMBER, NewEvent, Notes};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger;
use semel_pipeline::target::Targets;
use semel_triggers::trigger::{RunAccessError, RunLocation, RunRequest, TriggerError, Triggered};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

pub(crate) use self::change::{CancelRequest, PatchRequest, ResetRequest, cancel_run};
use self::change::{cancel, patch, reset_key};
use self::list::list;
use super::Admin;
use super::access::{Caller, Right};
use super::answer::{self, Answer, PathId, PayloadBody, Refusal};
use super::api::{Api, Needs};
use super::deliveries::{DeliveryDetails, due_at};
use super::events::trace;
use super::listing::id_of;
use super::records::time;
use super::schema::{Names as _, OneOf};
use crate::config::show_duration;
use crate::pipeline::Pipeline;

/// Maximum size of a trigger without its payload.
const ENVELOPE: usize = 256 << 10;
/// Maximum number of tags of a run, and maximum length of a tag.
const TAGS: (usize, usize) = (100, 255);
/// How long a caller waits for a run, unless it says otherwise.
const WAIT: Duration = Duration::from_secs(30);
/// `Retry-After` for a caller that may not wait because too many do.
const RETRY_WHEN_FULL: Duration = Duration::from_secs(5);

pub(super) fn routes(api: &mut Api) {
    let missing = "No run has this ID.";
    let mut group = api.group("runs", "ID of the run: run_….", Needs::Ledger);
    group.get("/v1/runs", list, "List runs, the newest first, or with `buffered` those in the buffer.");
    group
        .post("/v1/runs", trigger, "Trigger a run. Triggers with the same key are the same run.")
        .parameter("wait", "true: answer when the run has ended.", &json!({ "type": "string", "enum": bool::names() }))
        .parameter(
            "timeout",
            "How long to wait: 30s by default, at most `run_wait` in [limits]. The answer then has the state of the run and the \
             time of its next attempt.",
            &json!({ "type": "string" }),
        )
        .success(&[
            (200, "The run already existed."),
            (201, "A new run."),
            (202, "A new run, in the buffer."),
        ])
        .problem(422, "The key belongs to another payload, or no target has this name.")
        .problem(
            503,
            "The store or the ledger is unavailable, or another trigger with the same key is in progress. Code \
             `too_many_waiters`, with wait=true: nothing was triggered.",
        );
    group.post("/v1/runs/reset-key", reset_key, "Reset a key: the next trigger with it is another run.");
    group.get("/v1/runs/{id}", show, "Show a run.").problem(404, missing);
    group
        .patch("/v1/runs/{id}", patch, "Change a run. A member of `metadata` that is null is removed.")
        .problem(404, missing)
        .problem(409, "The run has another version or has started, or a member is not a number.");
    group
        .post("/v1/runs/{id}/cancel", cancel, "Cancel a run that has not started.")
        .problem(404, missing)
        .problem(409, "The run has started.");
}

/// A run to trigger.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Trigger")]
pub(crate) struct TriggerRequest {
    /// Name of a target in the configuration.
    pub(crate) target: String,
    /// Any JSON. The target receives the same bytes.
    pub(crate) payload: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<String>,
    /// Every value keeps its text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata: BTreeMap<String, Box<RawValue>>,
    /// How long to wait before the first attempt, such as "30s".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delay: Option<String>,
    /// How long the key is remembered, such as "24h".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<String>,
    /// Key of the run. The header Idempotency-Key can hold it instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idempotency_key: Option<String>,
}

/// A triggered run.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Triggered")]
struct TriggerResult {
    /// run_…
    #[schemars(with = "String")]
    id: EventId,
    /// True if the run already existed.
    cached: bool,
    /// True if the run is in the buffer.
    buffered: bool,
    /// State of the run. Only with wait=true.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    /// When the next attempt may start, if the run has not ended. Only with wait=true.
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<String>,
}

async fn trigger(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<Vec<(String, String)>>,
    body: PayloadBody<TriggerRequest>,
) -> Result<Answer<TriggerResult>, Refusal> {
    let pipeline = admin.pipeline()?;
    // Before the run is triggered: a caller that is refused has changed nothing.
    let wait = match waits(query, pipeline.waiters.longest())? {
        Some(limit) => Some((limit, pipeline.waiters.enter().ok_or_else(|| too_many_waiters(pipeline))?)),
        None => None,
    };
    let most = pipeline.max_payload;
    let headers = body.headers.clone();
    let asked = body.read(most, ENVELOPE).await?;
    if asked.payload.get().len() > most {
        return Err(Refusal::payload_too_large(most));
    }
    let header = headers.get("idempotency-key").map(|key| key.to_str());
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
    let ask = RunRequest {
        principal: caller.name.clone(),
        tenant: caller.tenant_for(asked.tenant)?,
        target: target(pipeline, asked.target)?,
        payload: asked.payload.get().to_owned().into(),
        content_type: "application/json".to_owned(),
        key,
        lifetime: answer::length("ttl", asked.ttl.as_deref())?,
        delay: answer::length("delay", asked.delay.as_deref())?.unwrap_or_default(),
        notes: Notes { tags: tags(asked.tags)?, metadata: texts(asked.metadata)? },
        trace: trace(&headers),
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
    let (status, due_at) = match wait {
        Some((limit, _place)) => {
            let (status, due_at) = ended(pipeline, id, limit).await?;
            (Some(status), due_at)
        }
        None => (None, None),
    };
    let code = match (cached, buffered) {
        (true, _) => StatusCode::OK,
        (false, true) => StatusCode::ACCEPTED,
        (false, false) => StatusCode::CREATED,
    };
    Ok(Answer::new(code, TriggerResult { id, cached, buffered, status, due_at })
        .with_request_id(ask.trace.request_id))
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

/// Waits until every delivery of a run has ended, but no longer than `limit`. Answers its state, and when its next attempt may
/// start.
async fn ended(
    pipeline: &Pipeline,
    id: EventId,
    limit: Duration,
) -> Result<(String, Option<String>), Refusal> {
    let deadline = Instant::now() + limit;
    let mut watch = pipeline.waiters.watch(id);
    loop {
        watch.mark_seen();
        let deliveries = pipeline.ledger.deliveries_of(id).await?;
        // A run without any is still in the buffer: Redis did not answer when it was to be moved.
        let open = deliveries.is_empty() || deliveries.iter().any(|told| !told.delivery.state.is_over());
        if !open || Instant::now() >= deadline {
            let due = deliveries.last().and_then(|told| due_at(&told.delivery));
            return Ok((status(&deliveries), due));
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
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_waiters", detail)
        .with_retry_after(RETRY_WHEN_FULL)
}

/// A run has one target; one that was executed again has several deliveries, and the last one counts.
fn status(deliveries: &[DeliveryHistory]) -> String {
    deliveries.last().map_or("queued", |told| told.delivery.state.as_str()).to_owned()
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
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "in_flight", detail).with_retry_after(retry_after)
        }
        TriggerError::Ledger(error) => error.into(),
        _ => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail),
    }
}

pub(crate) fn run_error(error: RunAccessError) -> Refusal {
    let detail = error.to_string();
    match error {
        // The ledger keeps a run as an event.
        RunAccessError::Ledger(ledger::Error::NotFound { id, .. }) => {
            Refusal::not_found(format!("there is no run {id}"))
        }
        RunAccessError::Ledger(error) => error.into(),
        // Says that it is the buffer that does not answer, not the store.
        RunAccessError::Buffer(error) => Refusal::from(error).with_detail(detail),
        _ => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "in_transit", detail)
            .with_retry_after(Duration::from_secs(1)),
    }
}

/// A run.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Run")]
struct RunDetails {
    #[schemars(with = "String")]
    id: EventId,
    target: String,
    tenant: String,
    #[schemars(with = "OneOf<DeliveryState>")]
    status: String,
    /// True if the run is in the buffer.
    buffered: bool,
    tags: Vec<String>,
    /// Every value has the text that was given.
    metadata: BTreeMap<String, Box<RawValue>>,
    version: u64,
    /// The first eight characters of the key.
    idempotency_key: Option<String>,
    key_id: Option<String>,
    request_id: Option<String>,
    /// Null while the run is in the buffer.
    accepted_at: Option<String>,
    deliveries: Vec<DeliveryDetails>,
    /// Only operators see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
}

/// How a run is shown to every caller.
struct View<'a> {
    run: &'a NewEvent,
    version: u64,
    status: String,
    buffered: bool,
    accepted_at: Option<String>,
    deliveries: &'a [DeliveryHistory],
}

fn shown(view: &View<'_>, caller: &Caller, targets: &Targets) -> RunDetails {
    let View { run, version, status, buffered, accepted_at, deliveries } = view;
    let raw = |text: &String| RawValue::from_string(text.clone()).ok();
    let metadata = &run.notes.metadata;
    let metadata = metadata.iter().filter_map(|(name, text)| Some((name.clone(), raw(text)?))).collect();
    let payload = caller.may(Right::Operate).is_ok();
    let payload = payload.then(|| serde_json::from_slice(&run.payload).ok()).flatten();
    RunDetails {
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
        deliveries: deliveries.iter().map(|told| DeliveryDetails::with_attempts(told, targets)).collect(),
        payload,
    }
}

/// A located run as it is shown; 404 where it is nowhere, or another tenant's.
async fn view(
    pipeline: &Pipeline,
    located: RunLocation,
    id: EventId,
    caller: &Caller,
) -> Result<Answer<RunDetails>, Refusal> {
    let not_found = || Refusal::not_found(format!("there is no run {id}"));
    let targets = pipeline.registry.current();
    let own = |run: &NewEvent| caller.tenant.as_ref().is_none_or(|tenant| *tenant == run.tenant);
    match located {
        RunLocation::Ledger(event) if event.new.id.kind() == EventKind::Run && own(&event.new) => {
            let deliveries = pipeline.ledger.deliveries_of(event.new.id).await?;
            let view = View {
                run: &event.new,
                version: event.version,
                status: status(&deliveries),
                buffered: false,
                accepted_at: Some(time(event.accepted_at)),
                deliveries: &deliveries,
            };
            Answer::ok(shown(&view, caller, &targets))
        }
        RunLocation::Buffer { buffered, version } if own(&buffered.run) => {
            let status = if buffered.cancelled { "cancelled" } else { "queued" }.to_owned();
            let run = &buffered.run;
            let view = View { run, version, status, buffered: true, accepted_at: None, deliveries: &[] };
            Answer::ok(shown(&view, caller, &targets))
        }
        _ => Err(not_found()),
    }
}

async fn show(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Answer<RunDetails>, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: EventId = id_of(&id)?;
    let located = pipeline.intake.triggers.locate(id).await.map_err(run_error)?;
    view(pipeline, located, id, &caller).await
}
