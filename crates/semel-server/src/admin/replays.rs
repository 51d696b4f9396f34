//! `/v1/replays`: plan, make, follow, pause, resume and cancel replay jobs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use semel::time::{Clock as _, SystemClock, Timestamp};
use semel_pipeline::id::{DeliveryId, EventId, JobId, LetterId};
use semel_pipeline::ledger::{self, LetterFilter, TargetPause};
use semel_pipeline::letter::{Letter, Status};
use semel_pipeline::replay::{
    Counts, ItemState, JobItem, JobOrder, JobRecord, JobState, NewJob, Planned, ReplayAction, ReplayMode,
    ReplayPace, Selection,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Admin;
use super::access::Caller;
use super::answer::{self, Answer, JsonBody, PathId, Refusal};
use super::api::{Api, Needs, Operation, Output, Schemas};
use super::audit::{self, States, run_to_completion};
use super::listing::{ListQuery, Page, id_of};
use super::records::time;
use super::schema::OneOf;
use super::targets::why_waiting;
use crate::pipeline::Pipeline;

/// The most items of a plan that are shown one by one; all of them are counted.
const SHOWN: usize = 1_000;
/// The most matches that are counted beyond the limit of a job.
const COUNTED: u64 = 1_000;
/// Dead letters that are read at once, and the most that are read, where `since` limits them.
const READ: u32 = 200;
const MOST_READ: usize = 100_000;
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
    /// With `status`: only dead letters that were written in this time, such as "24h". Deliveries that are blocked have no dead
    /// letter and are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    /// The time that `since` goes back to. The console fixes it with the plan that it shows: at the approval, the same length of
    /// time would begin later.
    #[serde(skip)]
    pub(crate) since_at: Option<Timestamp>,
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
pub(crate) struct ReplayJob {
    /// rpl_…
    #[schemars(with = "String")]
    pub(crate) id: JobId,
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
    /// Why a running job waits: for each target of its unfinished items to which nothing is sent now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waiting: Option<String>,
    /// Number of further matches that `limit` left out when the job was started, counted up to 1000; exact with `since`. Only
    /// in the answer to the start of a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_out: Option<u64>,
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
pub(crate) struct ReplayPlan {
    /// Always true.
    dry_run: bool,
    #[schemars(with = "OneOf<ReplayMode>")]
    mode: ReplayMode,
    pub(crate) total: usize,
    /// Number of items that would be sent.
    pub(crate) run: usize,
    /// Number of items that would be skipped.
    pub(crate) skip: usize,
    /// Number of items that cannot be replayed now.
    pub(crate) conflict: usize,
    /// Number of items by failure signature.
    pub(crate) by_signature: Map<String, Value>,
    /// The first 1000 items.
    pub(crate) items: Vec<PlannedItem>,
    /// Number of items that are not in `items`.
    more: usize,
    /// Number of further matches that `limit` leaves out, counted up to 1000; exact with `since`.
    pub(crate) left_out: u64,
    /// The same for two plans that do the same to the same deliveries.
    #[serde(skip)]
    pub(crate) fingerprint: String,
    /// The dead letters of the plan; `None` if a delivery has none.
    #[serde(skip)]
    pub(crate) letters: Option<Vec<LetterId>>,
}

/// What a replay job would do with a delivery.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct PlannedItem {
    #[schemars(with = "String")]
    pub(crate) delivery: DeliveryId,
    #[schemars(with = "Option<String>")]
    letter: Option<LetterId>,
    #[schemars(with = "String")]
    pub(crate) event: EventId,
    pub(crate) target: String,
    tenant: String,
    signature: String,
    #[schemars(with = "OneOf<ReplayAction>")]
    pub(crate) action: ReplayAction,
    pub(crate) why: String,
}

impl ReplayPlan {
    fn new(plan: Vec<Planned>, mode: ReplayMode, left_out: u64) -> Self {
        let count = |action: ReplayAction| plan.iter().filter(|item| item.action == action).count();
        let mut by_signature: Map<String, Value> = Map::new();
        for item in &plan {
            let known = by_signature.entry(item.signature.clone()).or_insert_with(|| 0.into());
            *known = (known.as_u64().unwrap_or(0) + 1).into();
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(mode.as_str().as_bytes());
        for item in &plan {
            let action = match item.action {
                ReplayAction::Run => b"run",
                ReplayAction::Skip => b"skp",
                ReplayAction::Conflict => b"con",
            };
            hasher.update(&item.delivery.to_bytes()).update(action);
        }
        Self {
            fingerprint: hasher.finalize().to_hex().to_string(),
            letters: plan.iter().map(|item| item.letter).collect(),
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
    if wanted.dry_run {
        return Ok(ReplayAnswer::Plan(Answer::ok(plan_job(&admin, &caller, &wanted).await?)?));
    }
    let job = run_to_completion(async move { create_job(&admin, &caller, wanted).await }).await?;
    Ok(ReplayAnswer::Job(Answer::new(StatusCode::CREATED, job)))
}

fn mode(wanted: &ReplayRequest) -> Result<ReplayMode, Refusal> {
    match &wanted.mode {
        None => Ok(ReplayMode::Resume),
        Some(name) => ReplayMode::from_name(name).ok_or_else(|| {
            Refusal::bad(format!(
                "mode: expected one of {}",
                ReplayMode::ALL.map(ReplayMode::as_str).join(", ")
            ))
        }),
    }
}

/// What a job would do. Nothing is sent.
///
/// # Errors
/// The job cannot be made.
pub(crate) async fn plan_job(
    admin: &Admin,
    caller: &Caller,
    wanted: &ReplayRequest,
) -> Result<ReplayPlan, Refusal> {
    let pipeline = admin.pipeline()?;
    let mode = mode(wanted)?;
    pace(wanted)?;
    let selected = selection(pipeline, caller, wanted).await?;
    let (plan, left_out) = plan(pipeline, &selected, mode).await?;
    Ok(ReplayPlan::new(plan, mode, left_out))
}

/// Starts a job.
///
/// # Errors
/// The job cannot be made.
pub(crate) async fn create_job(
    admin: &Admin,
    caller: &Caller,
    wanted: ReplayRequest,
) -> Result<ReplayJob, Refusal> {
    let pipeline = admin.pipeline()?;
    let mode = mode(&wanted)?;
    let selected = selection(pipeline, caller, &wanted).await?;
    let targets = known(pipeline);
    let reason = wanted.reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty());
    if mode == ReplayMode::ReExecute && reason.is_none() {
        let detail = "reason: re-execute makes effects happen again; a reason is required for the audit log";
        return Err(Refusal::bad(detail));
    }
    let left_out = match &selected.selection {
        Selection::Failed { .. } => Some(plan(pipeline, &selected, mode).await?.1),
        Selection::Letters(_) => selected.left_out,
        Selection::Event { .. } => None,
    };
    let job = NewJob {
        id: JobId::new(SystemClock.now()),
        selection: selected.selection,
        mode,
        reason: reason.map(str::to_owned),
        by: caller.name.clone(),
        pace: pace(&wanted)?,
    };
    let (action, subject) = (format!("replay {}", mode.as_str()), job.id.to_string());
    let reason = job.reason.clone().unwrap_or_default();
    let states = States::new("not started", JobState::Running.as_str());
    audit::write(admin, caller, &action, subject.clone(), &reason, &states).await?;
    let job = match pipeline.ledger.create(job, targets).await {
        Ok(job) => job,
        Err(error) => {
            audit::write_refused(admin, caller, &action, subject, &reason, &states.before).await;
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
    Ok(ReplayJob { left_out, ..ReplayJob::new(&job) })
}

/// The plan of a selection, and how many further deliveries match it beyond its limit.
async fn plan(
    pipeline: &Pipeline,
    selected: &Selected,
    mode: ReplayMode,
) -> Result<(Vec<Planned>, u64), Refusal> {
    let mut selection = selected.selection.clone();
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
    Ok((plan, selected.left_out.unwrap_or(left_out)))
}

/// The job, and why it waits: nothing is sent to a target of an item that has not ended.
pub(crate) async fn explained(pipeline: &Pipeline, job: &JobRecord) -> Result<ReplayJob, Refusal> {
    let pauses = match job.state {
        JobState::Running => pipeline.ledger.paused_targets().await?,
        JobState::Paused | JobState::Done | JobState::Cancelled => Vec::new(),
    };
    explained_with(pipeline, &pauses, job).await
}

/// The same with the pauses that were read before.
async fn explained_with(
    pipeline: &Pipeline,
    pauses: &[TargetPause],
    job: &JobRecord,
) -> Result<ReplayJob, Refusal> {
    let mut shown = ReplayJob::new(job);
    if job.state == JobState::Running && job.counts.pending + job.counts.released > 0 {
        // Nothing is read while every target gets its deliveries.
        let waiting: Vec<(String, String)> = blocked(pipeline, pauses);
        if !waiting.is_empty() {
            let unfinished = pipeline.ledger.unfinished_targets(job.new.id).await?;
            let reasons = waiting.into_iter().filter(|(target, _)| unfinished.contains(target));
            let reasons: Vec<String> = reasons.map(|(_, why)| why).collect();
            shown.waiting = (!reasons.is_empty()).then(|| reasons.join("; "));
        }
    }
    Ok(shown)
}

/// The targets that get nothing at present, with the reasons.
fn blocked(pipeline: &Pipeline, pauses: &[TargetPause]) -> Vec<(String, String)> {
    let with_reason = |target: String| why_waiting(pipeline, pauses, &target).map(|why| (target, why));
    known(pipeline).into_iter().filter_map(with_reason).collect()
}

/// The targets of the config: what goes to others cannot be replayed.
fn known(pipeline: &Pipeline) -> Vec<String> {
    pipeline.registry.current().names()
}

/// The items of a job.
struct Selected {
    selection: Selection,
    /// How many further ones the limit left out, where that is known without a plan.
    left_out: Option<u64>,
}

impl From<Selection> for Selected {
    fn from(selection: Selection) -> Self {
        Self { selection, left_out: None }
    }
}

async fn selection(
    pipeline: &Pipeline,
    caller: &Caller,
    wanted: &ReplayRequest,
) -> Result<Selected, Refusal> {
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
            let limit = wanted.limit.unwrap_or(LIMIT);
            if limit == 0 {
                return Err(Refusal::bad("limit: expected at least 1"));
            }
            if let Some(since) = answer::length("since", wanted.since.as_deref())? {
                let since = wanted.since_at.unwrap_or_else(|| time_before(since));
                return recent(pipeline, wanted, tenant, since, limit).await;
            }
            let (targets, signature) = (wanted.targets.clone(), wanted.signature.clone());
            Ok(Selection::Failed { limit, tenant, targets, signature }.into())
        }
        (None, Some(ids), None) if !ids.is_empty() => {
            let ids = ids.iter().map(|id| id_of(id)).collect::<Result<Vec<LetterId>, _>>()?;
            Ok(Selection::Letters(ids).into())
        }
        (None, None, Some(id)) => {
            let id: EventId = id_of(id)?;
            Ok(Selection::Event { id, targets: wanted.targets.clone() }.into())
        }
        _ => Err(Refusal::bad(
            "say what to replay: one of `status` (with `limit`), `ids` of dead letters, or `event_id` (with `targets`)",
        )),
    }
}

/// The time that was this long ago.
pub(crate) fn time_before(length: Duration) -> Timestamp {
    let length = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
    Timestamp::from_micros(SystemClock.now().as_micros().saturating_sub(length))
}

/// The pending dead letters since a time, the oldest first, up to a limit.
async fn recent(
    pipeline: &Pipeline,
    wanted: &ReplayRequest,
    tenant: Option<String>,
    since: Timestamp,
    limit: u64,
) -> Result<Selected, Refusal> {
    // A list for each target: letters of other targets are not read.
    let targets: Vec<Option<String>> = match wanted.targets.as_slice() {
        [] => vec![None],
        targets => targets.iter().cloned().map(Some).collect::<BTreeSet<_>>().into_iter().collect(),
    };
    let (mut found, mut read) = (Vec::new(), 0);
    for target in targets {
        let (status, tenant) = (Some(Status::Pending), tenant.clone());
        let filter = LetterFilter { status, tenant, target, signature: wanted.signature.clone() };
        let mut after = None;
        // The newest come first, and the list ends at the first one that is too old.
        loop {
            let page = pipeline.ledger.letters(filter.clone(), ledger::Page { after, limit: READ }).await?;
            let recent = page.items.iter().take_while(|letter| letter.created_at >= since);
            let recent: Vec<&Letter> = recent.collect();
            read += recent.len();
            let is_last = page.next.is_none() || recent.len() < page.items.len();
            let with_delivery = recent.into_iter().filter(|letter| letter.delivery.is_some());
            found.extend(with_delivery.map(|letter| (letter.created_at, letter.id)));
            if is_last {
                break;
            }
            if read >= MOST_READ {
                return Err(Refusal::bad(format!(
                    "since: more than {MOST_READ} dead letters were written in this time; choose a shorter time, one target or one \
                     failure signature"
                )));
            }
            after = page.next;
        }
    }
    found.sort_unstable();
    let all = found.len();
    found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let left_out = Some((all - found.len()) as u64);
    Ok(Selected { selection: Selection::Letters(found.into_iter().map(|(_, id)| id).collect()), left_out })
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
    let jobs = pipeline.ledger.jobs(query.read()?.page).await?;
    let pauses = pipeline.ledger.paused_targets().await?;
    let mut items = Vec::with_capacity(jobs.items.len());
    for job in &jobs.items {
        items.push(explained_with(pipeline, &pauses, job).await?);
    }
    Page::answer(items, jobs.next)
}

async fn show(State(admin): State<Arc<Admin>>, PathId(id): PathId) -> Result<Answer<ReplayJob>, Refusal> {
    let pipeline = admin.pipeline()?;
    Answer::ok(explained(pipeline, &find(pipeline, id_of(&id)?).await?).await?)
}

pub(crate) async fn find(pipeline: &Pipeline, id: JobId) -> Result<JobRecord, Refusal> {
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
    order_by_id(&state, &caller, &id, &body, OrderKind::Pause).await
}

async fn resume(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    id: PathId,
    body: JsonBody<OrderRequest>,
) -> Result<Answer<ReplayJob>, Refusal> {
    order_by_id(&state, &caller, &id, &body, OrderKind::Resume).await
}

async fn cancel(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    id: PathId,
    body: JsonBody<OrderRequest>,
) -> Result<Answer<ReplayJob>, Refusal> {
    order_by_id(&state, &caller, &id, &body, OrderKind::Cancel).await
}

async fn repace(
    state: State<Arc<Admin>>,
    caller: Extension<Caller>,
    id: PathId,
    body: JsonBody<OrderRequest>,
) -> Result<Answer<ReplayJob>, Refusal> {
    order_by_id(&state, &caller, &id, &body, OrderKind::Pace).await
}

/// What an operator does with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderKind {
    Pause,
    Resume,
    Cancel,
    Pace,
}

impl OrderKind {
    /// Its name in paths and in the audit log.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
            Self::Pace => "pace",
        }
    }

    fn order(self, job: &JobRecord, asked: &OrderRequest) -> Result<JobOrder, Refusal> {
        match self {
            Self::Pause => return Ok(JobOrder::Pause),
            Self::Resume => return Ok(JobOrder::Resume),
            Self::Cancel => return Ok(JobOrder::Cancel),
            Self::Pace => {}
        }
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
    }
}

async fn order_by_id(
    admin: &Admin,
    caller: &Caller,
    id: &PathId,
    body: &JsonBody<OrderRequest>,
    kind: OrderKind,
) -> Result<Answer<ReplayJob>, Refusal> {
    admin.pipeline()?;
    Answer::ok(order(admin, caller, id_of(&id.0)?, &body.read()?, kind).await?)
}

/// Pauses, resumes, cancels or slows down a job.
///
/// # Errors
/// There is no such job, or it has ended.
pub(crate) async fn order(
    admin: &Admin,
    caller: &Caller,
    id: JobId,
    asked: &OrderRequest,
    kind: OrderKind,
) -> Result<ReplayJob, Refusal> {
    let pipeline = admin.pipeline()?;
    let action = kind.name();
    let before = find(pipeline, id).await?;
    let wish = kind.order(&before, asked)?;
    let reason = asked.reason.trim();
    let note = match reason {
        "" => format!("{action} by {}", caller.name),
        reason => format!("{action} by {}: {reason}", caller.name),
    };
    let limits = |pace: &ReplayPace| format!("rate {}, concurrency {}", pace.rate, pace.concurrency);
    let states = match &wish {
        JobOrder::Pause => States::new(before.state.as_str(), JobState::Paused.as_str()),
        JobOrder::Resume => States::new(before.state.as_str(), JobState::Running.as_str()),
        JobOrder::Cancel => States::new(before.state.as_str(), JobState::Cancelled.as_str()),
        JobOrder::Pace(pace) => States::new(limits(&before.new.pace), limits(pace)),
    };
    let line = audit::line(caller, action, id.to_string(), reason, &states);
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
    Ok(ReplayJob::new(&job))
}
