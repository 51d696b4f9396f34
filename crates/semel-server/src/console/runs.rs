//! Runs: tabs by state with counts, the buffer by tenant, one run, and cancelling several at once.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use semel_pipeline::delivery::{DeliveryHistory, DeliveryState};
use semel_pipeline::event::{Event, NewEvent};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::{self, DeliveryFilter, EventFilter, Totals};
use semel_triggers::trigger::RunLocation;
use serde::Deserialize;

use super::actions;
use super::dead_letters::preview_of;
use super::events::{DeliveryView, facts};
use super::html::{self, Html};
use super::page::{Confirm, Next, Page, Section, answer, go, hidden, show as show_page};
use super::targets::HeldTargets;
use super::visitor::{Submission, Visitor};
use crate::admin::audit::run_to_completion;
use crate::admin::listing::id_of;
use crate::admin::runs::{CancelRequest, cancel_run, run_error};
use crate::admin::{Admin, Refusal};
use crate::pipeline::Pipeline;

const PAGE: u32 = 50;
/// The most deliveries of a state that are read to count the runs among them. The count of a tab with more has a `+`.
const COUNTED: u32 = 200;
/// The most tenants of the buffer that are listed.
const TENANTS: usize = 50;
/// Pages of deliveries that are searched for runs.
const PAGES: usize = 10;
const NONE_CHOSEN: &str = "no run was chosen, and nothing was cancelled: tick the runs in the list";
/// The states with a tab, besides all and buffered.
const TABS: [DeliveryState; 8] = [
    DeliveryState::Queued,
    DeliveryState::Running,
    DeliveryState::RetryWait,
    DeliveryState::Idle,
    DeliveryState::Done,
    DeliveryState::Dlq,
    DeliveryState::Blocked,
    DeliveryState::Cancelled,
];

#[derive(Deserialize)]
pub(super) struct RunQuery {
    #[serde(default)]
    state: String,
    #[serde(default)]
    target: String,
    #[serde(default)]
    tenant: String,
    /// Set for the buffered runs that have no tenant.
    #[serde(default)]
    untenanted: String,
    #[serde(default)]
    tag: String,
    #[serde(default)]
    cursor: String,
    did: Option<String>,
}

struct RunRow {
    id: String,
    target: String,
    tenant: String,
    state: String,
    key: String,
    tags: Vec<String>,
    accepted: Html,
    can_cancel: bool,
}

/// The buffer, tenant by tenant.
#[derive(Default)]
struct BufferView {
    tenants: Vec<TenantRow>,
    /// Tenants that are not listed.
    more: usize,
    /// The first runs of the chosen tenant; true if there are more.
    runs: Option<(Vec<String>, bool)>,
}

struct TenantRow {
    tenant: String,
    queued: u64,
    in_transit: u64,
    oldest: String,
}

#[derive(Template)]
#[template(path = "runs.html")]
struct RunsPage {
    page: Page,
    query: RunQuery,
    /// All runs, counted as far as they are.
    all: TabCount,
    tabs: Vec<(&'static str, TabCount)>,
    rows: Vec<RunRow>,
    buffer: Option<BufferView>,
    next: Next,
    may_cancel: bool,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(query): Query<RunQuery>,
) -> Response {
    answer(&admin, &visitor, async {
        let pipeline = admin.pipeline()?;
        let page = Page::new(&admin, &visitor, Section::Runs, "Runs").await;
        let (mut rows, mut next, mut buffer) = (Vec::new(), None, None);
        match query.state.as_str() {
            "" => (rows, next) = all(pipeline, &query).await?,
            "buffered" => buffer = Some(in_buffer(pipeline, &query).await?),
            name => {
                let state = DeliveryState::from_name(name)
                    .ok_or_else(|| Refusal::bad(format!("state: there is no state {name:?}")))?;
                (rows, next) = in_state(pipeline, &query, state).await?;
            }
        }
        let pairs = [
            ("state", query.state.as_str()),
            ("target", &query.target),
            ("tenant", &query.tenant),
            ("tag", &query.tag),
        ];
        let message = query.did.clone();
        Ok(show_page(&RunsPage {
            all: count_all(pipeline).await?,
            tabs: tabs(pipeline, &page.strip.totals).await?,
            page: page.with_message(message.as_deref()),
            rows,
            buffer,
            next: Next::new("/runs", &pairs, next.as_deref()),
            query,
            may_cancel: visitor.may(&actions::CANCEL_RUNS),
        }))
    })
    .await
}

type Listed = (Vec<RunRow>, Option<String>);

fn some(text: &str) -> Option<String> {
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

async fn all(pipeline: &Pipeline, query: &RunQuery) -> Result<Listed, Refusal> {
    let filter = EventFilter {
        kind: Some(EventKind::Run),
        tenant: some(&query.tenant),
        event_type: some(&query.target),
        tag: some(&query.tag),
    };
    let page = ledger::Page { after: some(&query.cursor), limit: PAGE };
    let found = pipeline.ledger.events(filter, page).await?;
    let mut rows = Vec::new();
    for event in &found.items {
        let filter = DeliveryFilter { event: Some(event.new.id), ..DeliveryFilter::default() };
        let deliveries = pipeline.ledger.deliveries(filter, ledger::Page { after: None, limit: 1 }).await?;
        rows.push(RunRow::new(event, deliveries.items.first().map(|delivery| delivery.state)));
    }
    Ok((rows, found.next))
}

/// Runs in one state: a delivery has the state, and its event is a run.
async fn in_state(pipeline: &Pipeline, query: &RunQuery, state: DeliveryState) -> Result<Listed, Refusal> {
    let filter = DeliveryFilter {
        event: None,
        target: some(&query.target),
        tenant: some(&query.tenant),
        states: vec![state],
    };
    let (mut rows, mut after) = (Vec::new(), some(&query.cursor));
    for _ in 0..PAGES {
        let page = ledger::Page { after, limit: PAGE };
        let found = pipeline.ledger.deliveries(filter.clone(), page).await?;
        for delivery in found.items.iter().filter(|delivery| delivery.event.kind() == EventKind::Run) {
            if let Some(event) = pipeline.ledger.event(delivery.event).await?
                && (query.tag.is_empty() || event.new.notes.tags.contains(&query.tag))
            {
                rows.push(RunRow::new(&event, Some(delivery.state)));
            }
        }
        after = found.next;
        if after.is_none() || rows.len() >= PAGE as usize {
            break;
        }
    }
    Ok((rows, after))
}

async fn in_buffer(pipeline: &Pipeline, query: &RunQuery) -> Result<BufferView, Refusal> {
    let Some(burst) = pipeline.intake.triggers.connected_burst()? else { return Ok(BufferView::default()) };
    let all = burst.buffer.tenants().await?;
    let mut view = BufferView { more: all.len().saturating_sub(TENANTS), ..BufferView::default() };
    for tenant in all.into_iter().take(TENANTS) {
        let depth = burst.buffer.depth(&tenant).await?;
        view.tenants.push(TenantRow {
            tenant,
            queued: depth.queued,
            in_transit: depth.leased,
            oldest: html::duration(depth.oldest),
        });
    }
    let chosen = if query.untenanted.is_empty() { some(&query.tenant) } else { Some(String::new()) };
    if let Some(tenant) = chosen {
        let (runs, next) = burst.buffer.list(&tenant, None, PAGE).await?;
        // A small hash of Redis comes whole, whatever the limit.
        let has_more = next.is_some() || runs.len() > PAGE as usize;
        view.runs = Some((runs.iter().take(PAGE as usize).map(ToString::to_string).collect(), has_more));
    }
    Ok(view)
}

/// The number of runs of a tab; true if there are more than were counted.
struct TabCount(u64, bool);

impl TabCount {
    /// `None` if nothing is known: none was counted, and there may be more.
    fn text(&self) -> Option<String> {
        let Self(number, is_partial) = *self;
        let more = if is_partial { "+" } else { "" };
        (number > 0 || !is_partial).then(|| format!("{}{more}", html::count(number)))
    }
}

async fn count_all(pipeline: &Pipeline) -> Result<TabCount, Refusal> {
    let filter = EventFilter { kind: Some(EventKind::Run), ..EventFilter::default() };
    let found = pipeline.ledger.events(filter, ledger::Page { after: None, limit: COUNTED }).await?;
    Ok(TabCount(found.items.len() as u64, found.next.is_some()))
}

/// The tabs with the number of runs in each state, as far as it was counted.
async fn tabs(pipeline: &Pipeline, totals: &Totals) -> Result<Vec<(&'static str, TabCount)>, Refusal> {
    let mut tabs = Vec::new();
    for state in TABS {
        let known = totals.deliveries.iter().any(|(_, known, count)| *known == state && *count > 0);
        // Deliveries that ended well are not in the totals.
        let count = if state == DeliveryState::Done || known {
            let filter = DeliveryFilter { states: vec![state], ..DeliveryFilter::default() };
            let page = ledger::Page { after: None, limit: COUNTED };
            let found = pipeline.ledger.deliveries(filter, page).await?;
            let runs = found.items.iter().filter(|delivery| delivery.event.kind() == EventKind::Run).count();
            TabCount(runs as u64, found.next.is_some())
        } else {
            TabCount(0, false)
        };
        tabs.push((state.as_str(), count));
    }
    if pipeline.intake.triggers.burst().is_some() {
        tabs.push(("buffered", TabCount(pipeline.intake.depth.lock().queued, false)));
    }
    Ok(tabs)
}

impl RunRow {
    fn new(event: &Event, state: Option<DeliveryState>) -> Self {
        let new = &event.new;
        Self {
            id: new.id.to_string(),
            target: new.event_type.clone(),
            tenant: new.tenant.clone(),
            state: state.map_or("queued", DeliveryState::as_str).to_owned(),
            key: new.dedupe.as_ref().map(|dedupe| html::hint(&dedupe.hint)).unwrap_or_default(),
            tags: new.notes.tags.clone(),
            accepted: html::when(event.accepted_at),
            can_cancel: state.is_none_or(can_cancel),
        }
    }
}

fn can_cancel(state: DeliveryState) -> bool {
    matches!(
        state,
        DeliveryState::Idle | DeliveryState::Queued | DeliveryState::RetryWait | DeliveryState::Blocked
    )
}

#[derive(Template)]
#[template(path = "run.html")]
struct RunDetailsPage {
    page: Page,
    id: String,
    state: String,
    is_buffered: bool,
    facts: Vec<(&'static str, Html)>,
    deliveries: Vec<DeliveryView>,
    payload: Option<String>,
    may_see: bool,
    may_cancel: bool,
}

#[derive(Deserialize)]
pub(super) struct RunDetailsQuery {
    #[serde(default)]
    payload: String,
    did: Option<String>,
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
    Query(shown): Query<RunDetailsQuery>,
) -> Response {
    answer(&admin, &visitor, async {
        let pipeline = admin.pipeline()?;
        let id: EventId = id_of(&id)?;
        let missing = || Refusal::not_found(format!("there is no run {id}"));
        let may_see = visitor.sees_payloads();
        let text = |run: &NewEvent| (may_see && shown.payload == "show").then(|| preview_of(&run.payload));
        let page = Page::new(&admin, &visitor, Section::Runs, format!("Run {id}")).await;
        let page = page.with_message(shown.did.as_deref());
        let may = visitor.may(&actions::CANCEL_RUNS);
        match pipeline.intake.triggers.locate(id).await.map_err(run_error)? {
            RunLocation::Ledger(event) => {
                let deliveries: Vec<DeliveryHistory> = pipeline.ledger.deliveries_of(id).await?;
                let state = deliveries.last().map(|told| told.delivery.state);
                let held = HeldTargets::read(&admin);
                Ok(show_page(&RunDetailsPage {
                    page,
                    id: id.to_string(),
                    state: state.map_or("queued", DeliveryState::as_str).to_owned(),
                    is_buffered: false,
                    facts: facts(&event),
                    payload: text(&event.new),
                    deliveries: deliveries.iter().map(|told| DeliveryView::new(told, &held)).collect(),
                    may_see,
                    may_cancel: may && state.is_none_or(can_cancel),
                }))
            }
            RunLocation::Buffer { buffered, version } => {
                let now = semel::time::Timestamp::default();
                let (run, cancelled) = (buffered.run.clone(), buffered.cancelled);
                let payload = text(&run);
                let event = Event { new: run, accepted_at: now, version, changes: 0 };
                let facts = facts(&event).into_iter().filter(|(name, _)| *name != "Accepted").collect();
                Ok(show_page(&RunDetailsPage {
                    page,
                    id: id.to_string(),
                    state: if cancelled { "cancelled" } else { "buffered" }.to_owned(),
                    is_buffered: true,
                    facts,
                    payload,
                    deliveries: Vec::new(),
                    may_see,
                    may_cancel: may && !cancelled,
                }))
            }
            RunLocation::Missing => Err(missing()),
        }
    })
    .await
}

/// The runs that were chosen in the list, or named in the address.
pub(super) async fn cancel_form(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let ids: Vec<String> = pairs.into_iter().filter(|(name, _)| name == "id").map(|(_, id)| id).collect();
    answer(&admin, &visitor, cancel_page(&admin, &visitor, &ids, None, "")).await
}

/// The chosen runs, each once. Every id is read first: one that is none cancels nothing.
fn chosen(ids: &[String]) -> Result<Vec<EventId>, Refusal> {
    let mut runs = ids.iter().map(|id| id_of(id)).collect::<Result<Vec<EventId>, _>>()?;
    runs.sort_unstable();
    runs.dedup();
    Ok(runs)
}

async fn cancel_page(
    admin: &Arc<Admin>,
    visitor: &Visitor,
    ids: &[String],
    problem: Option<String>,
    reason: &str,
) -> Result<Response, Refusal> {
    if ids.is_empty() {
        return Err(Refusal::bad(NONE_CHOSEN));
    }
    let ids: Vec<String> = chosen(ids)?.iter().map(ToString::to_string).collect();
    let number = ids.len();
    let noun = if number == 1 { "run" } else { "runs" };
    Ok(show_page(&Confirm {
        page: Page::new(admin, visitor, Section::Runs, "Cancel runs").await,
        heading: format!("Cancel {number} {noun}"),
        effects: vec![format!(
            "{number} {noun} that have not started are not delivered. A run that has started meanwhile is left as it is."
        )],
        facts: vec![("Runs", Html::text(ids.join(", ")))],
        fields: Html::trusted(ids.iter().map(|id| hidden("id", id)).collect::<String>()),
        path: actions::CANCEL_RUNS.path.to_owned(),
        button: format!("Cancel {number} {noun}"),
        is_dangerous: true,
        back: "/runs".to_owned(),
        command: match ids.as_slice() {
            [id] => format!("{} {id} --reason …", actions::CANCEL_RUNS.command),
            // The command takes one run.
            _ => format!(
                "for run in {}; do {} \"$run\" --reason …; done",
                ids.join(" "),
                actions::CANCEL_RUNS.command
            ),
        },
        problem,
        reason: reason.to_owned(),
    }))
}

pub(super) async fn cancel(State(admin): State<Arc<Admin>>, form: Submission) -> Response {
    let visitor = form.visitor.clone();
    answer(&admin, &visitor, async {
        let ids = form.all("id");
        let reason = form.get("reason");
        if ids.is_empty() {
            return Err(Refusal::bad(NONE_CHOSEN));
        }
        if let Err(refusal) = crate::admin::answer::reason(reason) {
            return cancel_page(&admin, &visitor, &ids, Some(refusal.detail().to_owned()), reason).await;
        }
        let runs = chosen(&ids)?;
        let number = runs.len();
        let (own, caller, reason) = (Arc::clone(&admin), visitor.caller.clone(), reason.to_owned());
        let problems = run_to_completion(async move {
            let mut problems = Vec::new();
            for id in runs {
                let asked = CancelRequest { reason: reason.clone() };
                if let Err(refusal) = cancel_run(&own, &caller, id, asked).await {
                    problems.push(format!("{id}: {}", refusal.detail()));
                }
            }
            Ok(problems)
        })
        .await?;
        match problems.as_slice() {
            [] => Ok(go("/runs", "cancelled")),
            problems => Err(Refusal::new(
                axum::http::StatusCode::CONFLICT,
                "refused",
                format!(
                    "{} of {} runs are cancelled. Not cancelled: {}",
                    number - problems.len(),
                    number,
                    problems.join("; ")
                ),
            )),
        }
    })
    .await
}
