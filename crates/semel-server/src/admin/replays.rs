//! `/v1/replays`: plan, make, follow, pause, resume and cancel replay jobs.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use semel::time::{Clock as _, SystemClock};
use semel_client::retry::Circuit;
use semel_pipeline::id::{DeliveryId, EventId, JobId, LetterId};
use semel_pipeline::ledger::AuditLine;
use semel_pipeline::replay::{
    Counts, ItemState, JobItem, JobOrder, JobRecord, JobState, NewJob, Planned, ReplayAction, ReplayMode,
    ReplayPace, Selection,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Admin;
use super::access::Caller;
use super::answer::{Answer, JsonBody, PathId, Refusal};
use super::api::{Api, Needs, Operation, Output, Schemas};
use super::audit::{self, run_to_completion};
use super::listing::{ListQuery, Page, id_of};
use super::records::time;
use super::schema::OneOf;
use crate::pipeline::Pipeline;

/// The most items of a plan that are shown one by one; all of them are counted.
const SHOWN: usize = 1_000;
/// The most matches that are counted beyond the limit of a job.
const COUNTED: u64 = 1_000;
/// How many items a job by status takes where nobody says.
const LIMIT: u64 = 100;

pub(super) fn routes(api: &mut Api) {
    let (missing, over) = ("No replay job has this ID.", "The job has ended.");
    let mut group = api.group("replays", "ID of the replay job: rpl_….", Needs::Ledger);
    group.get("/v1/replays", list, "List replay jobs, the newest first.");
    group.post("/v1/replays", create, "Start a replay job, or with `dry_run` show what it would do.");
    group.get("/v1/replays/{id}", show, "Show a replay job.").problem(404, missing);
    group
        .get("/v1/replays/{id}/items", results, "List the items of a replay job with their results.")
        .problem(404, missing);
    group
        .post("/v1/replays/{id}/pause", pause, "Pause a replay job.")
        .problem(404, missing)
        .problem(409, over);
    group
        .post("/v1/replays/{id}/resume", resume, "Resume a paused replay job.")
        .problem(404, missing)
        .problem(409, over);
    group
        .post(
            "/v1/replays/{id}/cancel",
            cancel,
            "Cancel a replay job. Items that have not started stay dead letters.",
        )
        .problem(404, missing)
        .problem(409, over);
    group
        .post("/v1/replays/{id}/pace", repace, "Change rate and concurrency of a replay job.")
        .problem(404, missing)
        .problem(409, over);
}

/// A replay job to start. What to replay is one of `status`, `ids` and `event_id`.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Replay")]
pub(crate) struct ReplayRequest {
    /// Replay every delivery that ended in `dlq` or `blocked`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["failed", null]))]
    pub(crate) status: Option<String>,
    /// Maximum number of items, with `status`: 100 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub(crate) limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    /// Only dead letters with this failure signature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signature: Option<String>,
    /// IDs of dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ids: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) event_id: Option<String>,
    /// Only deliveries to these targets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) targets: Vec<String>,
    /// `resume` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<OneOf<ReplayMode>>")]
    pub(crate) mode: Option<String>,
    /// Why; for the audit log. Required by the mode `re-execute`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Maximum number of items a second; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub(crate) rate: Option<f64>,
    /// Number of items to try first; 0 is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) canary: Option<u32>,
    /// Maximum number of items in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub(crate) concurrency: Option<u32>,
    /// Pause when a larger share of the items than this fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1))]
    pub(crate) pause_above: Option<f64>,
    /// Show what the job would do; send nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) dry_run: bool,
}

/// A replay job.
#[derive(Serialize, JsonSchema)]
pub(super) struct ReplayJob {
    /// rpl_…
    #[schemars(with = "String")]
    id: JobId,
    #[schemars(with = "OneOf<JobState>")]
    state: JobState,
    /// Why the job is in this state.
    note: String,
    #[schemars(with = "OneOf<ReplayMode>")]
    mode: ReplayMode,
    reason: Option<String>,
    /// Name of the token that started the job.
    by: String,
    /// The items of the job: `failed`, `letters` or `event`.
    #[schemars(with = "Map<String, Value>")]
    selection: Selection,
    rate: f64,
    concurrency: u32,
    canary: u32,
    pause_above: f64,
    counts: ReplayCounts,
    /// Why a running job waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<String>,
    /// Number of further matches that `limit` left out when the job was started, counted up to 1000. Only in the answer to
    /// the start of a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
    created_at: String,
    updated_at: String,
}

/// Number of items by result.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ReplayCounts {
    total: u64,
    /// Not started.
    pending: u64,
    /// In progress.
    released: u64,
    /// Delivered.
    replayed: u64,
    /// Delivered before the replay.
    skipped_completed: u64,
    /// In progress elsewhere.
    skipped_inflight: u64,
    failed_again: u64,
    cancelled: u64,
}

impl ReplayJob {
    fn new(job: &JobRecord) -> Self {
        let NewJob { id, selection, mode, reason, by, pace } = job.new.clone();
        let Counts {
            total,
            pending,
            released,
            replayed,
            skipped_completed,
            skipped_inflight,
            failed_again,
            cancelled,
        } = job.counts;
        Self {
            id,
            state: job.state,
            note: job.note.clone(),
            mode,
            reason,
            by,
            selection,
            rate: pace.rate,
            concurrency: pace.concurrency,
            canary: pace.canary,
            pause_above: pace.pause_above,
            counts: ReplayCounts {
                total,
                pending,
                released,
                replayed,
                skipped_completed,
                skipped_inflight,
                failed_again,
                cancelled,
            },
            waiting: None,
            left_out: None,
            created_at: time(job.created_at),
            updated_at: time(job.updated_at),
        }
    }
}

/// What a replay job would do.
#[derive(Serialize, JsonSchema)]
pub(super) struct ReplayPlan {
    /// Always true.
    dry_run: bool,
    #[schemars(with = "OneOf<ReplayMode>")]
    mode: ReplayMode,
    total: usize,
    /// Number of items that would be sent.
    run: usize,
    /// Number of items that would be skipped.
    skip: usize,
    /// Number of items that cannot be replayed now.
    conflict: usize,
    /// Number of items by failure signature.
    by_signature: Map<String, Value>,
    /// The first 1000 items.
    items: Vec<PlannedItem>,
    /// Number of items that are not in `items`.
    more: usize,
    /// Number of further matches that `limit` leaves out, counted up to 1000.
    left_out: u64,
}

/// What a replay job would do with a delivery.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct PlannedItem {
    #[schemars(with = "String")]
    delivery: DeliveryId,
    #[schemars(with = "Option<String>")]
    letter: Option<LetterId>,
    #[schemars(with = "String")]
    event: EventId,
    target: String,
    tenant: String,
    signature: String,
    #[schemars(with = "OneOf<ReplayAction>")]
    action: ReplayAction,
    why: String,
}

impl ReplayPlan {
    fn new(plan: Vec<Planned>, mode: ReplayMode, left_out: u64) -> Self {
        let count = |action: ReplayAction| plan.iter().filter(|item| item.action == action).count();
        let mut by_signature: Map<String, Value> = Map::new();
        for item in &plan {
            let known = by_signature.entry(item.signature.clone()).or_insert_with(|| 0.into());
            *known = (known.as_u64().unwrap_or(0) + 1).into();
        }
        Self {
            dry_run: true,
            mode,
            total: plan.len(),
            run: count(ReplayAction::Run),
            skip: count(ReplayAction::Skip),
            conflict: count(ReplayAction::Conflict),
            by_signature,
            more: plan.len().saturating_sub(SHOWN),
            items: plan.into_iter().take(SHOWN).map(PlannedItem::from).collect(),
            left_out,
        }
    }
}

impl From<Planned> for PlannedItem {
    fn from(planned: Planned) -> Self {
        let Planned { delivery, letter, event, target, tenant, signature, action, why } = planned;
        Self { delivery, letter, event, target, tenant, signature, action, why }
    }
}

/// An item of a replay job.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ReplayItem {
    #[schemars(with = "String")]
    delivery_id: DeliveryId,
    #[schemars(with = "Option<String>")]
    dlq_id: Option<LetterId>,
    #[schemars(with = "String")]
    event_id: EventId,
    target: String,
    #[schemars(with = "OneOf<ItemState>")]
    result: ItemState,
    /// The new event, in mode `as-new`.
    #[schemars(with = "Option<String>")]
    new_event_id: Option<EventId>,
    error: Option<String>,
}

impl ReplayItem {
    fn new(item: &JobItem) -> Self {
        let JobItem { delivery, letter, event, target, state, new_event, error } = item.clone();
        Self {
            delivery_id: delivery,
            dlq_id: letter,
            event_id: event,
            target,
            result: state,
            new_event_id: new_event,
            error,
        }
    }
}

/// A plan with `dry_run`, otherwise a job.
enum ReplayAnswer {
    Plan(Answer<ReplayPlan>),
    Job(Answer<ReplayJob>),
}

impl IntoResponse for ReplayAnswer {
    fn into_response(self) -> Response {
        match self {
            Self::Plan(plan) => plan.into_response(),
            Self::Job(job) => job.into_response(),
        }
    }
}

impl Output for ReplayAnswer {
    fn describe(operation: &mut Operation, schemas: &mut Schemas) {
        operation.answer::<ReplayPlan>(200, schemas);
        operation.answer::<ReplayJob>(201, schemas);
    }
}

async fn create(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    body: JsonBody<ReplayRequest>,
) -> Result<ReplayAnswer, Refusal> {
    let wanted = body.read()?;
    run_to_completion(async move { create_job(&admin, &caller, wanted).await }).await
}

async fn create_job(admin: &Admin, caller: &Caller, wanted: ReplayRequest) -> Result<ReplayAnswer, Refusal> {
    let pipeline = admin.pipeline()?;
    let mode = match &wanted.mode {
        None => ReplayMode::Resume,
        Some(name) => ReplayMode::from_name(name).ok_or_else(|| {
            Refusal::bad(format!(
                "mode: expected one of {}",
                ReplayMode::ALL.map(ReplayMode::as_str).join(", ")
            ))
        })?,
    };
    let selection = selection(pipeline, caller, &wanted)?;
    let targets = known(pipeline);
    if wanted.dry_run {
        let (plan, left_out) = plan(pipeline, &selection, mode).await?;
        return Ok(ReplayAnswer::Plan(Answer::ok(ReplayPlan::new(plan, mode, left_out))?));
    }
    let reason = wanted.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty());
    if mode == ReplayMode::ReExecute && reason.is_none() {
        let detail = "reason: re-execute makes effects happen again; a reason is required for the audit log";
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
    let left_out = match &job.selection {
        Selection::Failed { .. } => Some(plan(pipeline, &job.selection, mode).await?.1),
        Selection::Letters(_) | Selection::Event { .. } => None,
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
        "replay job created"
    );
    let job = ReplayJob { left_out, ..ReplayJob::new(&job) };
    Ok(ReplayAnswer::Job(Answer::new(StatusCode::CREATED, job)))
}

/// The plan of a selection, and how many further deliveries match it beyond its limit.
async fn plan(
    pipeline: &Pipeline,
    selection: &Selection,
    mode: ReplayMode,
) -> Result<(Vec<Planned>, u64), Refusal> {
    let mut selection = selection.clone();
    let most = match &mut selection {
        Selection::Failed { limit, .. } => {
            let asked = *limit;
            *limit = asked.saturating_add(COUNTED);
            usize::try_from(asked).unwrap_or(usize::MAX)
        }
        Selection::Letters(_) | Selection::Event { .. } => usize::MAX,
    };
    let mut plan = pipeline.ledger.plan(selection, mode, known(pipeline)).await?;
    let left_out = plan.len().saturating_sub(most) as u64;
    plan.truncate(most);
    Ok((plan, left_out))
}

/// The job, and why it waits: a target of it takes no calls.
fn explained(pipeline: &Pipeline, job: &JobRecord) -> ReplayJob {
    let targets = match &job.new.selection {
        Selection::Failed { targets, .. } | Selection::Event { targets, .. } => targets.as_slice(),
        Selection::Letters(_) => &[],
    };
    let is_meant = |name: &str| targets.is_empty() || targets.iter().any(|target| target == name);
    let is_waiting = job.state == JobState::Running && job.counts.pending + job.counts.released > 0;
    let open = pipeline.destinations.states().into_iter().find_map(|state| match state.circuit {
        Circuit::Open { until } if is_waiting && is_meant(&state.name) => Some((state.name, until)),
        _ => None,
    });
    let waiting =
        open.map(|(name, until)| format!("the circuit breaker of {name} is open until {}", time(until)));
    ReplayJob { waiting, ..ReplayJob::new(job) }
}

/// The targets of the config: what goes to others cannot be replayed.
fn known(pipeline: &Pipeline) -> Vec<String> {
    pipeline.registry.current().names()
}

fn selection(pipeline: &Pipeline, caller: &Caller, wanted: &ReplayRequest) -> Result<Selection, Refusal> {
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

fn pace(wanted: &ReplayRequest) -> Result<ReplayPace, Refusal> {
    let usual = ReplayPace::default();
    let pace = ReplayPace {
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

async fn list(
    State(admin): State<Arc<Admin>>,
    query: ListQuery<()>,
) -> Result<Answer<Page<ReplayJob>>, Refusal> {
    let pipeline = admin.pipeline()?;
    Page::of(pipeline.ledger.jobs(query.read()?.page).await?, ReplayJob::new)
}

async fn show(State(admin): State<Arc<Admin>>, PathId(id): PathId) -> Result<Answer<ReplayJob>, Refusal> {
    let pipeline = admin.pipeline()?;
    Answer::ok(explained(pipeline, &find(pipeline, id_of(&id)?).await?))
}

async fn find(pipeline: &Pipeline, id: JobId) -> Result<JobRecord, Refusal> {
    let job = pipeline.ledger.job(id).await?;
    job.ok_or_else(|| Refusal::not_found(format!("there is no replay job {id}")))
}

async fn results(
    State(admin): State<Arc<Admin>>,
    PathId(id): PathId,
    query: ListQuery<()>,
) -> Result<Answer<Page<ReplayItem>>, Refusal> {
    let pipeline = admin.pipeline()?;
    Page::of(pipeline.ledger.items(id_of(&id)?, query.read()?.page).await?, ReplayItem::new)
}

/// A change of a replay job. Only /pace uses `rate` and `concurrency`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct OrderRequest {
    /// Why; for the audit log.
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) concurrency: Option<u32>,
}

async fn pause(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    id: PathId,
    body: JsonBody<OrderRequest>,
) -> Result<Answer<ReplayJob>, Refusal> {
    order(state, caller, id, body, |_, _| Ok(JobOrder::Pause), "pause").await
}

async fn resume(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    id: PathId,
    body: JsonBody<OrderRequest>,
) -> Result<Answer<ReplayJob>, Refusal> {
    order(state, caller, id, body, |_, _| Ok(JobOrder::Resume), "resume").await
}

async fn cancel(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    id: PathId,
    body: JsonBody<OrderRequest>,
) -> Result<Answer<ReplayJob>, Refusal> {
    order(state, caller, id, body, |_, _| Ok(JobOrder::Cancel), "cancel").await
}

async fn repace(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    id: PathId,
    body: JsonBody<OrderRequest>,
) -> Result<Answer<ReplayJob>, Refusal> {
    let wish = |job: &JobRecord, asked: &OrderRequest| {
        let pace = ReplayPace {
            rate: asked.rate.unwrap_or(job.new.pace.rate),
            concurrency: asked.concurrency.unwrap_or(job.new.pace.concurrency),
            ..job.new.pace
        };
        if !pace.rate.is_finite() || pace.rate < 0.0 || pace.concurrency == 0 {
            return Err(Refusal::bad(
                "expected `rate` in items a second, 0 for no limit, and `concurrency` of 1 or more",
            ));
        }
        Ok(JobOrder::Pace(pace))
    };
    order(state, caller, id, body, wish, "pace").await
}

async fn order(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    body: JsonBody<OrderRequest>,
    wish: impl FnOnce(&JobRecord, &OrderRequest) -> Result<JobOrder, Refusal>,
    action: &'static str,
) -> Result<Answer<ReplayJob>, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: JobId = id_of(&id)?;
    let asked = body.read()?;
    let wish = wish(&find(pipeline, id).await?, &asked)?;
    let reason = asked.reason.trim();
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
        "replay job changed by an operator"
    );
    Answer::ok(ReplayJob::new(&job))
}
