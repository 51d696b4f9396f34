//! Replay jobs: the list, one job with its progress and report; pause, resume, cancel, pace.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::http::Uri;
use axum::response::Response;
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::id::JobId;
use semel_pipeline::ledger;
use semel_pipeline::replay::{JobItem, JobRecord, JobState, ReplayPace, Selection};
use serde::Deserialize;

use super::html::{self, Html};
use super::page::{Confirm, Next, Page, Section, answer, go, show as show_page};
use super::visitor::{Submission, Visitor};
use super::{actions, chart};
use crate::admin::listing::id_of;
use crate::admin::replays::{OrderKind, OrderRequest, explained, find, order};
use crate::admin::{Admin, Refusal};

const PAGE: u32 = 50;

/// A job as pages show it.
struct JobView {
    id: String,
    state: &'static str,
    note: String,
    mode: &'static str,
    by: String,
    reason: String,
    selection: String,
    total: u64,
    ended: u64,
    bar: Html,
    created: Html,
    updated: Html,
}

impl JobView {
    fn new(job: &JobRecord) -> Self {
        let counts = &job.counts;
        let skipped = counts.skipped_completed + counts.skipped_inflight + counts.cancelled;
        let label = format!(
            "{} of {} delivered, {} failed again, {} in progress, {skipped} skipped",
            counts.replayed, counts.total, counts.failed_again, counts.released
        );
        // What the plan skips is no progress: the bar is empty until the job has sent something, or is over.
        let has_begun = job.state.is_over() || counts.replayed + counts.failed_again + counts.released > 0;
        let parts = [
            ("done", counts.replayed),
            ("failed", counts.failed_again),
            ("skipped", if has_begun { skipped } else { 0 }),
            ("released", counts.released),
        ];
        Self {
            id: job.new.id.to_string(),
            state: job.state.as_str(),
            note: job.note.clone(),
            mode: job.new.mode.as_str(),
            by: job.new.by.clone(),
            reason: job.new.reason.clone().unwrap_or_default(),
            selection: words(&job.new.selection),
            total: counts.total,
            ended: counts.total - counts.pending - counts.released,
            bar: chart::bar(&parts, counts.total, &label),
            created: html::when(job.created_at),
            updated: html::when(job.updated_at),
        }
    }
}

/// What a job replays, in words.
fn words(selection: &Selection) -> String {
    match selection {
        Selection::Failed { limit, tenant, targets, signature } => {
            let mut text = format!("up to {limit} failed deliveries");
            if !targets.is_empty() {
                text.push_str(&format!(" to {}", targets.join(", ")));
            }
            if let Some(tenant) = tenant {
                text.push_str(&format!(" of tenant {tenant}"));
            }
            if let Some(signature) = signature {
                text.push_str(&format!(" that failed like: {signature}"));
            }
            text
        }
        Selection::Letters(letters) if letters.len() == 1 => "1 dead letter".to_owned(),
        Selection::Letters(letters) => format!("{} dead letters", letters.len()),
        Selection::Event { id, targets } if targets.is_empty() => format!("the failed deliveries of {id}"),
        Selection::Event { id, targets } => format!("the deliveries of {id} to {}", targets.join(", ")),
    }
}

#[derive(Deserialize)]
pub(super) struct ReplaysQuery {
    #[serde(default)]
    cursor: String,
    did: Option<String>,
}

#[derive(Template)]
#[template(path = "replays.html")]
struct ReplaysPage {
    page: Page,
    jobs: Vec<JobView>,
    next: Next,
    may_start: bool,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(cursor): Query<ReplaysQuery>,
) -> Response {
    answer(&admin, &visitor, async {
        let shown = html::query(&[("cursor", cursor.cursor.as_str())]);
        let after = Some(cursor.cursor).filter(|cursor| !cursor.is_empty());
        let found = admin.pipeline()?.ledger.jobs(ledger::Page { after, limit: PAGE }).await?;
        let mut page = Page::new(&admin, &visitor, Section::Replays, "Replays").await;
        if found.items.iter().any(|job| job.state == JobState::Running) {
            page = page.refreshed_from(format!("/replays{shown}"));
        }
        Ok(show_page(&ReplaysPage {
            page: page.with_message(cursor.did.as_deref()),
            jobs: found.items.iter().map(JobView::new).collect(),
            next: Next::new("/replays", &[], found.next.as_deref()),
            may_start: visitor.may(&actions::START_REPLAY),
        }))
    })
    .await
}

struct ItemRow {
    delivery: String,
    event: String,
    target: String,
    result: &'static str,
    error: String,
}

impl ItemRow {
    fn new(item: &JobItem) -> Self {
        Self {
            delivery: item.delivery.to_string(),
            event: item.event.to_string(),
            target: item.target.clone(),
            result: item.state.as_str(),
            error: item.error.clone().unwrap_or_default(),
        }
    }
}

#[derive(Template)]
#[template(path = "replay.html")]
struct ReplayPage {
    page: Page,
    job: JobView,
    /// Results with their numbers, and a note.
    results: Vec<(&'static str, u64, String)>,
    /// `canary`, `progress` or `report`.
    step: &'static str,
    canary: String,
    speed: String,
    eta: String,
    waiting: Option<String>,
    pace: String,
    items: Vec<ItemRow>,
    next: Next,
    may: bool,
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
    Query(cursor): Query<ReplaysQuery>,
) -> Response {
    answer(&admin, &visitor, async {
        let pipeline = admin.pipeline()?;
        let id: JobId = id_of(&id)?;
        let job = find(pipeline, id).await?;
        // What the last action did is shown for as long as it is so.
        let did = cursor.did.filter(|did| is_still_true(did, job.state)).unwrap_or_default();
        let shown = html::query(&[("cursor", cursor.cursor.as_str()), ("did", &did)]);
        let after = Some(cursor.cursor).filter(|cursor| !cursor.is_empty());
        let items = pipeline.ledger.items(id, ledger::Page { after, limit: PAGE }).await?;
        let (counts, pace) = (&job.counts, &job.new.pace);
        let mut page = Page::new(&admin, &visitor, Section::Replays, format!("Replay {id}")).await;
        if !job.state.is_over() {
            page = page.refreshed_from(format!("/replays/{id}{shown}"));
        }
        let canary_runs = u64::from(pace.canary) > counts.ended() && pace.canary > 0 && !job.state.is_over();
        let (speed, eta) = progress(&job);
        Ok(show_page(&ReplayPage {
            page: page.with_message(Some(&did)),
            results: vec![
                ("Delivered", counts.replayed, String::new()),
                ("Failed again", counts.failed_again, String::new()),
                ("In progress", counts.released, String::new()),
                ("Not started", counts.pending, String::new()),
                (
                    "Skipped",
                    counts.skipped_completed + counts.skipped_inflight,
                    format!(
                        "{} delivered before, {} in progress elsewhere",
                        counts.skipped_completed, counts.skipped_inflight
                    ),
                ),
                ("Cancelled", counts.cancelled, String::new()),
            ],
            step: match (job.state.is_over(), canary_runs) {
                (true, _) => "report",
                (false, true) => "canary",
                (false, false) => "progress",
            },
            canary: match pace.canary {
                0 => "no canary".to_owned(),
                number => format!("{} of {number} ended", counts.ended().min(number.into())),
            },
            speed,
            eta,
            waiting: explained(pipeline, &job).await?.waiting,
            pace: format!(
                "{}, {} in progress at most, pauses itself above {} failures",
                rate_limit(pace),
                pace.concurrency,
                html::percent(pace.pause_above)
            ),
            items: items.items.iter().map(ItemRow::new).collect(),
            next: Next::new(&format!("/replays/{id}"), &[], items.next.as_deref()),
            may: !job.state.is_over() && visitor.may(&actions::PAUSE_REPLAY),
            job: JobView::new(&job),
        }))
    })
    .await
}

fn rate_limit(pace: &ReplayPace) -> String {
    if pace.rate > 0.0 {
        format!("at most {} a second", html::rate(pace.rate))
    } else {
        "no rate limit".to_owned()
    }
}

/// True if the message of an action still describes the job.
fn is_still_true(did: &str, state: JobState) -> bool {
    match did {
        "pause" => state == JobState::Paused,
        "started" => state == JobState::Running,
        "cancel" => state == JobState::Cancelled,
        _ => !state.is_over() && (did != "resume" || state == JobState::Running),
    }
}

/// The average speed since the job began, and when it ends at that speed.
fn progress(job: &JobRecord) -> (String, String) {
    let ended = job.counts.ended();
    let left = job.counts.pending + job.counts.released;
    let until = if job.state == JobState::Running { SystemClock.now() } else { job.updated_at };
    let seconds = until.left(job.created_at).as_secs_f64();
    if ended == 0 || seconds < 1.0 {
        return ("–".to_owned(), "–".to_owned());
    }
    let speed = ended as f64 / seconds;
    let eta = match (job.state, left) {
        (_, 0) => "–".to_owned(),
        (JobState::Running, left) => html::duration(Duration::from_secs_f64((left as f64 / speed).min(1e9))),
        _ => "paused".to_owned(),
    };
    (format!("{} a second", html::rate(speed)), eta)
}

/// The order that a path names.
fn kind_of(uri: &Uri) -> Option<OrderKind> {
    let name = uri.path().rsplit('/').next()?;
    [OrderKind::Pause, OrderKind::Resume, OrderKind::Cancel, OrderKind::Pace]
        .into_iter()
        .find(|kind| kind.name() == name)
}

pub(super) async fn order_form(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
    uri: Uri,
) -> Response {
    let kind = kind_of(&uri).unwrap_or(OrderKind::Pause);
    answer(&admin, &visitor, order_page(&admin, &visitor, &id, kind, None)).await
}

async fn order_page(
    admin: &Arc<Admin>,
    visitor: &Visitor,
    id: &str,
    kind: OrderKind,
    refused: Option<(&Submission, &Refusal)>,
) -> Result<Response, Refusal> {
    let id: JobId = id_of(id)?;
    let job = find(admin.pipeline()?, id).await?;
    let left = job.counts.pending;
    let (verb, effect, action) = match kind {
        OrderKind::Pause => (
            "Pause",
            format!(
                "{left} items that have not started wait until somebody resumes the replay. Items in progress end."
            ),
            actions::PAUSE_REPLAY,
        ),
        OrderKind::Resume => (
            "Resume",
            format!("{left} items that have not started are sent, within the limits of the replay."),
            actions::RESUME_REPLAY,
        ),
        OrderKind::Cancel => (
            "Cancel",
            format!("{left} items that have not started stay dead letters. The replay cannot be resumed."),
            actions::CANCEL_REPLAY,
        ),
        OrderKind::Pace => (
            "Change the limits of",
            format!(
                "The new limits hold for {left} items that have not started. Now: {}, {} in progress at most.",
                rate_limit(&job.new.pace),
                job.new.pace.concurrency
            ),
            actions::PACE_REPLAY,
        ),
    };
    // What was typed stays in its field.
    let typed = |name: &str| refused.map(|(form, _)| html::escape(form.get(name)));
    let fields = match kind {
        OrderKind::Pace => format!(
            "<div class=\"row\"><div><label for=\"rate\">Items a second, 0 for no limit</label><input id=\"rate\" name=\"rate\" \
             inputmode=\"decimal\" required value=\"{}\"></div><div><label for=\"concurrency\">In progress at most</label><input \
             id=\"concurrency\" name=\"concurrency\" inputmode=\"numeric\" required value=\"{}\"></div></div>",
            typed("rate").unwrap_or_else(|| job.new.pace.rate.to_string()),
            typed("concurrency").unwrap_or_else(|| job.new.pace.concurrency.to_string())
        ),
        _ => String::new(),
    };
    let view = JobView::new(&job);
    Ok(show_page(&Confirm {
        page: Page::new(admin, visitor, Section::Replays, format!("{verb} a replay")).await,
        heading: format!("{verb} this replay"),
        effects: vec![effect],
        facts: vec![
            ("Replay", Html::text(id)),
            ("State", html::named(view.state)),
            ("Replays", Html::text(&view.selection)),
            ("Ended", Html::text(format!("{} of {}", view.ended, view.total))),
        ],
        fields: Html::trusted(fields),
        path: format!("/replays/{id}/{}", kind.name()),
        button: format!("{verb} this replay"),
        is_dangerous: kind == OrderKind::Cancel,
        back: format!("/replays/{id}"),
        command: match kind {
            OrderKind::Pace => format!("{} … --concurrency … --reason …", action.command),
            _ => format!("{} --reason …", action.command),
        }
        .replace("ID", &id.to_string()),
        problem: refused.map(|(_, refusal)| labelled(refusal)),
        reason: refused.map(|(form, _)| form.get("reason").to_owned()).unwrap_or_default(),
    }))
}

pub(super) async fn pause(admin: State<Arc<Admin>>, id: Path<String>, form: Submission) -> Response {
    give(&admin, &id, &form, OrderKind::Pause).await
}

pub(super) async fn resume(admin: State<Arc<Admin>>, id: Path<String>, form: Submission) -> Response {
    give(&admin, &id, &form, OrderKind::Resume).await
}

pub(super) async fn cancel(admin: State<Arc<Admin>>, id: Path<String>, form: Submission) -> Response {
    give(&admin, &id, &form, OrderKind::Cancel).await
}

pub(super) async fn pace(admin: State<Arc<Admin>>, id: Path<String>, form: Submission) -> Response {
    give(&admin, &id, &form, OrderKind::Pace).await
}

async fn give(admin: &Arc<Admin>, id: &str, form: &Submission, kind: OrderKind) -> Response {
    let visitor = &form.visitor;
    answer(admin, visitor, async {
        let job: JobId = id_of(id)?;
        let given = async {
            crate::admin::answer::reason(form.get("reason"))?;
            let asked = OrderRequest {
                reason: form.get("reason").to_owned(),
                rate: number(form, "rate")?,
                concurrency: number(form, "concurrency")?,
            };
            order(admin, &visitor.caller, job, &asked, kind).await
        };
        match given.await {
            Ok(_) => Ok(go(&format!("/replays/{job}"), kind.name())),
            Err(refusal) => order_page(admin, visitor, id, kind, Some((form, &refusal))).await,
        }
    })
    .await
}

/// A number of a form.
pub(super) fn number<T: FromStr>(form: &Submission, name: &str) -> Result<Option<T>, Refusal> {
    read_number(name, form.get(name))
}

/// The number in a field; `None` if it is empty.
pub(super) fn read_number<T: FromStr>(name: &str, text: &str) -> Result<Option<T>, Refusal> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| Refusal::bad(format!("{name}: expected a number, found {text:?}")))
}

/// Fields of the forms by their name in the API, and their labels.
const LABELS: [(&str, &str); 5] = [
    ("rate", "Items a second"),
    ("canary", "Canary size"),
    ("concurrency", "In progress at most"),
    ("limit", "At most, the oldest first"),
    ("reason", "Reason"),
];

/// A refusal that names the field by its label.
pub(super) fn labelled(refusal: &Refusal) -> String {
    let detail = refusal.detail();
    let found = LABELS.iter().find_map(|(name, label)| {
        let rest = detail.strip_prefix(name)?.strip_prefix(':')?;
        Some(format!("{label}:{rest}"))
    });
    found.unwrap_or_else(|| detail.to_owned())
}
