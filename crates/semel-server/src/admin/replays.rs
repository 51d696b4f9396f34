//! `/v1/replays`: plan, make, follow, pause, resume and cancel replay jobs (P10).

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::id::{EventId, JobId, LetterId};
use semel_pipeline::ledger::AuditLine;
use semel_pipeline::replay::{Action, Item, Job, Mode, NewJob, Order, Pace, Planned, Selection};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Admin;
use super::access::Caller;
use super::answer::{self, Named, Refusal};
use super::audit::{self, to_the_end};
use super::listing::{Asked, id_of, items};
use super::shown::time;
use crate::pipeline::Pipeline;

/// The most items of a plan that are shown one by one; all of them are counted.
const SHOWN: usize = 1_000;
/// How many items a job by status takes where nobody says.
const LIMIT: u64 = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    status: Option<String>,
    limit: Option<u64>,
    tenant: Option<String>,
    signature: Option<String>,
    ids: Option<Vec<String>>,
    event_id: Option<String>,
    #[serde(default)]
    targets: Vec<String>,
    mode: Option<String>,
    reason: Option<String>,
    rate: Option<f64>,
    canary: Option<u32>,
    concurrency: Option<u32>,
    pause_above: Option<f64>,
    #[serde(default)]
    dry_run: bool,
}

/// Makes a job and answers it; or, with `dry_run`, answers what it would do.
pub(super) async fn create(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let wanted: Wanted = answer::body(&body)?;
    to_the_end(async move { create_job(&admin, &caller, wanted).await }).await
}

async fn create_job(admin: &Admin, caller: &Caller, wanted: Wanted) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let mode = match &wanted.mode {
        None => Mode::Resume,
        Some(name) => Mode::from_name(name).ok_or_else(|| {
            Refusal::bad(format!("mode: expected one of {}", Mode::ALL.map(Mode::as_str).join(", ")))
        })?,
    };
    let selection = selection(pipeline, caller, &wanted)?;
    let targets = known(pipeline);
    if wanted.dry_run {
        let plan = pipeline.ledger.plan(selection, mode, targets).await?;
        return answer::json(&shown_plan(&plan, mode));
    }
    let reason = wanted.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty());
    if mode == Mode::ReExecute && reason.is_none() {
        let detail =
            "reason: re-execute makes effects happen again; say why, for whoever reads the audit log";
        return Err(Refusal::bad(detail));
    }
    let job = NewJob {
        id: JobId::new(SystemClock.now()),
        selection,
        mode,
        reason: reason.map(str::to_owned),
        by: caller.name.clone(),
        pace: pace(&wanted)?,
    };
    let (action, subject) = (format!("replay {}", mode.as_str()), job.id.to_string());
    let reason = job.reason.clone().unwrap_or_default();
    audit::write(admin, caller, &action, subject.clone(), &reason).await?;
    let job = match pipeline.ledger.create(job, targets).await {
        Ok(job) => job,
        Err(error) => {
            audit::write_refused(admin, caller, &action, subject, &reason).await;
            return Err(error.into());
        }
    };
    tracing::info!(
        target: "semel::audit", audit = true,
        user = caller.name,
        operation = "replay",
        replay_id = %job.new.id,
        mode = mode.as_str(),
        items = job.counts.total,
        reason = job.new.reason,
        outcome = "made",
        "a replay job was made"
    );
    let mut response = answer::json(&shown_job(&job))?;
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// The targets of the config: what goes to others cannot be replayed.
fn known(pipeline: &Pipeline) -> Vec<String> {
    pipeline.registry.current().names()
}

fn selection(pipeline: &Pipeline, caller: &Caller, wanted: &Wanted) -> Result<Selection, Refusal> {
    let known = known(pipeline);
    if let Some(unknown) = wanted.targets.iter().find(|target| !known.contains(target)) {
        let detail = format!("targets: there is no target {unknown:?}; there are {}", known.join(", "));
        return Err(Refusal::bad(detail));
    }
    let tenant = match (&caller.tenant, &wanted.tenant) {
        (None, None) => None,
        _ => Some(caller.tenant_for(wanted.tenant.clone())?),
    };
    match (&wanted.status, &wanted.ids, &wanted.event_id) {
        (Some(status), None, None) => {
            if status != "failed" {
                return Err(Refusal::bad(
                    "status: expected \"failed\": every delivery that ended in dlq or blocked",
                ));
            }
            Ok(Selection::Failed {
                limit: wanted.limit.unwrap_or(LIMIT).max(1),
                tenant,
                targets: wanted.targets.clone(),
                signature: wanted.signature.clone(),
            })
        }
        (None, Some(ids), None) if !ids.is_empty() => {
            let ids = ids.iter().map(|id| id_of(id)).collect::<Result<Vec<LetterId>, _>>()?;
            Ok(Selection::Letters(ids))
        }
        (None, None, Some(id)) => {
            let id: EventId = id_of(id)?;
            Ok(Selection::Event { id, targets: wanted.targets.clone() })
        }
        _ => Err(Refusal::bad(
            "say what to replay: one of `status` (with `limit`), `ids` of dead letters, or `event_id` (with `targets`)",
        )),
    }
}

fn pace(wanted: &Wanted) -> Result<Pace, Refusal> {
    let usual = Pace::default();
    let pace = Pace {
        rate: wanted.rate.unwrap_or(usual.rate),
        concurrency: wanted.concurrency.unwrap_or(usual.concurrency),
        canary: wanted.canary.unwrap_or(usual.canary),
        pause_above: wanted.pause_above.unwrap_or(usual.pause_above),
    };
    if !pace.rate.is_finite() || pace.rate < 0.0 {
        return Err(Refusal::bad("rate: expected items a second, such as 10; 0 is no limit"));
    }
    if pace.concurrency == 0 {
        return Err(Refusal::bad("concurrency: expected at least 1"));
    }
    if !(0.0..=1.0).contains(&pace.pause_above) {
        return Err(Refusal::bad("pause_above: expected a share from 0 to 1"));
    }
    Ok(pace)
}

fn shown_plan(plan: &[Planned], mode: Mode) -> Value {
    let count = |action: Action| plan.iter().filter(|item| item.action == action).count();
    let mut by_signature: Map<String, Value> = Map::new();
    for item in plan {
        let known = by_signature.entry(item.signature.clone()).or_insert_with(|| json!(0));
        *known = json!(known.as_u64().unwrap_or(0) + 1);
    }
    json!({
        "dry_run": true,
        "mode": mode,
        "total": plan.len(),
        "run": count(Action::Run),
        "skip": count(Action::Skip),
        "conflict": count(Action::Conflict),
        "by_signature": by_signature,
        "items": plan.iter().take(SHOWN).collect::<Vec<_>>(),
        "more": plan.len().saturating_sub(SHOWN),
    })
}

fn shown_job(job: &Job) -> Value {
    let pace = &job.new.pace;
    json!({
        "id": job.new.id,
        "state": job.state,
        "note": job.note,
        "mode": job.new.mode,
        "reason": job.new.reason,
        "by": job.new.by,
        "selection": job.new.selection,
        "rate": pace.rate,
        "concurrency": pace.concurrency,
        "canary": pace.canary,
        "pause_above": pace.pause_above,
        "counts": job.counts,
        "created_at": time(job.created_at),
        "updated_at": time(job.updated_at),
    })
}

fn shown_item(item: &Item) -> Value {
    json!({
        "delivery_id": item.delivery,
        "dlq_id": item.letter,
        "event_id": item.event,
        "target": item.target,
        "result": item.state,
        "new_event_id": item.new_event,
        "error": item.error,
    })
}

/// Lists jobs, the newest first.
pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let page = pipeline.ledger.jobs(Asked::read(query, &[])?.page()).await?;
    items(page.items.iter().map(shown_job), page.next)
}

/// One job.
pub(super) async fn show(State(admin): State<Arc<Admin>>, Named(id): Named) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: JobId = id_of(&id)?;
    let job = pipeline.ledger.job(id).await?;
    answer::json(&shown_job(&job.ok_or_else(|| Refusal::not_found(format!("there is no replay job {id}")))?))
}

/// What became of the items of a job.
pub(super) async fn results(
    State(admin): State<Arc<Admin>>,
    Named(id): Named,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let page = pipeline.ledger.items(id_of(&id)?, Asked::read(query, &[])?.page()).await?;
    items(page.items.iter().map(shown_item), page.next)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    #[serde(default)]
    reason: String,
    rate: Option<f64>,
    concurrency: Option<u32>,
}

/// Releases nothing more for now.
pub(super) async fn pause(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    id: Named,
    body: Bytes,
) -> Result<Response, Refusal> {
    order(state, caller, id, body, |_, _| Ok(Order::Pause), "pause").await
}

/// Goes on.
pub(super) async fn resume(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    id: Named,
    body: Bytes,
) -> Result<Response, Refusal> {
    order(state, caller, id, body, |_, _| Ok(Order::Resume), "resume").await
}

/// Releases nothing more at all.
pub(super) async fn cancel(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    id: Named,
    body: Bytes,
) -> Result<Response, Refusal> {
    order(state, caller, id, body, |_, _| Ok(Order::Cancel), "cancel").await
}

/// Changes rate and concurrency of a job that runs.
pub(super) async fn repace(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    id: Named,
    body: Bytes,
) -> Result<Response, Refusal> {
    let wish = |job: &Job, told: &Told| {
        let pace = Pace {
            rate: told.rate.unwrap_or(job.new.pace.rate),
            concurrency: told.concurrency.unwrap_or(job.new.pace.concurrency),
            ..job.new.pace
        };
        if !pace.rate.is_finite() || pace.rate < 0.0 || pace.concurrency == 0 {
            return Err(Refusal::bad(
                "expected `rate` in items a second, 0 for no limit, and `concurrency` of 1 or more",
            ));
        }
        Ok(Order::Pace(pace))
    };
    order(state, caller, id, body, wish, "pace").await
}

async fn order(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
    body: Bytes,
    wish: impl FnOnce(&Job, &Told) -> Result<Order, Refusal>,
    action: &'static str,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: JobId = id_of(&id)?;
    let told: Told = answer::body(&body)?;
    let job = pipeline.ledger.job(id).await?;
    let job = job.ok_or_else(|| Refusal::not_found(format!("there is no replay job {id}")))?;
    let wish = wish(&job, &told)?;
    let reason = told.reason.trim();
    let note = match reason {
        "" => format!("{action} by {}", caller.name),
        reason => format!("{action} by {}: {reason}", caller.name),
    };
    let line = AuditLine {
        who: caller.name.clone(),
        action: action.to_owned(),
        subject: id.to_string(),
        reason: reason.to_owned(),
    };
    let job = pipeline.ledger.order(id, wish, note, line).await?;
    tracing::info!(
        target: "semel::audit", audit = true,
        user = caller.name,
        operation = action,
        replay_id = %id,
        reason,
        outcome = "done",
        "a replay job was told"
    );
    answer::json(&shown_job(&job))
}
