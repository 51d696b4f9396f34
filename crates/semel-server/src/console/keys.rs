//! Keys: the list with its filters, the queue of keys in doubt, one key with its timeline, and forget.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use semel::record::{Phase, State as RecordState};
use semel::store::Snapshot;
use serde::Deserialize;

use super::html::{self, Html};
use super::key_search::{self, FoundByHint, SearchProgress};
use super::page::{Confirm, Next, Page, Section, answer, go, message_of, show as show_page};
use super::story::Timeline;
use super::strip::Strip;
use super::visitor::{Submission, Visitor, is_refresh};
use super::{Did, actions};
use crate::admin::audit::run_to_completion;
use crate::admin::keys::{ForgetRequest, check_fence, find, forget_key};
use crate::admin::records::{AnswerContent, PHASES, mode_name, phase_name};
use crate::admin::story::Story;
use crate::admin::{Admin, Refusal, Right};
use crate::config::show_duration;

const PAGE: usize = 50;
/// The most keys in doubt that are sorted by age.
const QUEUE: usize = 1_000;

#[derive(Deserialize)]
pub(super) struct KeysQuery {
    #[serde(default)]
    phase: String,
    #[serde(default)]
    hint: String,
    #[serde(flatten)]
    progress: SearchProgress,
    did: Option<String>,
}

/// A key in a list.
pub(super) struct KeyRow {
    pub(super) id: String,
    pub(super) hint: String,
    pub(super) phase: &'static str,
    pub(super) request: String,
    pub(super) request_id: String,
    pub(super) caller: String,
    pub(super) claimed: Html,
    changed: Html,
}

impl KeyRow {
    pub(super) fn new(snapshot: &Snapshot) -> Self {
        let (record, origin) = (&snapshot.record, snapshot.record.hint.origin());
        let part = |part: Option<&str>| part.unwrap_or_default().to_owned();
        let method = part(origin.and_then(|origin| origin.method()));
        let path = part(origin.and_then(|origin| origin.path()));
        Self {
            id: snapshot.id.to_string(),
            hint: html::hint(&record.hint),
            phase: phase_name(snapshot.phase()),
            request: format!("{method} {path}").trim().to_owned(),
            request_id: part(origin.and_then(|origin| origin.request_id())),
            caller: part(origin.and_then(|origin| origin.caller())),
            claimed: html::when(record.claimed_at),
            changed: html::when(record.changed_at),
        }
    }
}

#[derive(Template)]
#[template(path = "keys.html")]
struct KeysPage {
    page: Page,
    filters: KeysQuery,
    /// The order of the keys in doubt, in words.
    order: Option<String>,
    /// When the keys in doubt were read.
    read_at: Option<Html>,
    phases: Vec<(&'static str, String)>,
    rows: Vec<KeyRow>,
    /// How far a search has come that did not read all records.
    searched: Option<String>,
    may_find: bool,
    /// The address of its next part.
    next_part: Option<String>,
    next: Next,
    may_settle: bool,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(filters): Query<KeysQuery>,
    headers: HeaderMap,
) -> Response {
    answer(&admin, &visitor, async {
        let phase = match filters.phase.as_str() {
            "" => None,
            name => Some(named_phase(name)?),
        };
        let is_queue = phase == Some(Phase::InDoubt) && filters.progress.is_first();
        let hint = filters.hint.trim();
        let mut read_at = None;
        let found = if is_queue {
            let read = queue(&admin, hint, &filters.progress);
            let reading = if is_refresh(&headers) {
                // Only a complete list may replace one: somebody may have searched further than this reading did.
                let reading = admin.console.doubt_queue.refresh(hint, read).await?;
                match reading.filter(|reading| !reading.found.is_cut_short()) {
                    Some(reading) => reading,
                    None => return Ok(StatusCode::NO_CONTENT.into_response()),
                }
            } else {
                admin.console.doubt_queue.read(hint, read).await?
            };
            read_at = Some(html::when(reading.at));
            reading.found
        } else {
            Arc::new(key_search::search(&admin, phase, hint, PAGE, &filters.progress).await?)
        };
        let pairs = [("phase", filters.phase.as_str()), ("hint", filters.hint.as_str())];
        let order = (phase == Some(Phase::InDoubt)).then(|| order_of(is_queue, found.next.is_none()));
        let next_part = found.next_part("/keys", &pairs);
        let searched = next_part.as_ref().map(|_| found.progress());
        let title = if is_queue { "Keys in doubt" } else { "Keys" };
        let mut page = Page::new(&admin, &visitor, Section::Keys, title).await;
        // A search that is not over goes on by itself, and a refresh would begin it again.
        if is_queue && !found.is_cut_short() {
            page = page.refreshed_from(format!("/keys{}", html::query(&pairs)));
        }
        let cursor = found.next.as_ref().map(|next| next.to_string());
        let next = Next::new("/keys", &pairs, cursor.as_deref());
        let phases = PHASES.iter().filter(|(name, _)| *name != "vacant");
        Ok(show_page(&KeysPage {
            page: page.with_message(filters.did.as_deref()),
            phases: phases.map(|(name, _)| (*name, html::label(name))).collect(),
            rows: found.items.iter().map(KeyRow::new).collect(),
            order,
            read_at,
            searched,
            next_part,
            next,
            filters,
            may_settle: visitor.may(&actions::SETTLE_KEY),
            may_find: visitor.may(&actions::FIND_KEY),
        }))
    })
    .await
}

/// The keys in doubt, the oldest first. The store sorts by id; who waits longest is settled first.
async fn queue(admin: &Admin, hint: &str, progress: &SearchProgress) -> Result<FoundByHint, Refusal> {
    let mut found = key_search::search(admin, Some(Phase::InDoubt), hint, QUEUE, progress).await?;
    found.items.sort_by_key(|snapshot| snapshot.record.claimed_at);
    Ok(found)
}

/// The order of a list of keys in doubt. The store sorts them by id; the first page is sorted by age after it was read.
fn order_of(is_first: bool, is_all: bool) -> String {
    match (is_first, is_all) {
        (true, true) => "The oldest is first.".to_owned(),
        (true, false) => "More match than this page shows. The oldest of those on this page is first; further pages are in the order of ids, \
                          and an older key can be among them."
            .to_owned(),
        (false, _) => "This is a further page, in the order of ids: the oldest is not first.".to_owned(),
    }
}

fn named_phase(name: &str) -> Result<Phase, Refusal> {
    let found = PHASES.iter().find(|(known, _)| *known == name).map(|(_, phase)| *phase);
    found.ok_or_else(|| Refusal::bad(format!("phase: there is no phase {name:?}")))
}

impl KeysPage {
    fn is_queue(&self) -> bool {
        self.filters.phase == "in_doubt"
    }
}

#[derive(Template)]
#[template(path = "key.html")]
struct KeyPage {
    page: Page,
    row: KeyRow,
    explanation: String,
    facts: Vec<(&'static str, Html)>,
    /// The requests that came with the key, if more than one did.
    requests: Option<KeyRequestsView>,
    outcome: Option<AnswerContent>,
    outcome_text: Option<String>,
    timeline: Timeline,
    /// From when on answers are listed, if the server gave some before.
    answers_begin_at: Option<String>,
    may_settle: bool,
    may_forget: bool,
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
    Query(did): Query<Did>,
) -> Response {
    answer(&admin, &visitor, async {
        let (key, snapshot) = find(&admin.engine, &id).await?;
        let story = Story::tell(&admin, key.to_string()).await?;
        let (record, phase) = (&snapshot.record, snapshot.phase());
        let requests = KeyRequestsView::new(&admin, &story, &snapshot);
        let row = KeyRow::new(&snapshot);
        let outcome = visitor.sees_payloads().then(|| record.outcome(snapshot.now)).flatten();
        let outcome_text =
            outcome.filter(|outcome| outcome.kind() == "json").map(|outcome| match outcome.body() {
                semel::outcome::OutcomeBody::Kept(body) => String::from_utf8_lossy(body).into_owned(),
                semel::outcome::OutcomeBody::Tombstone(reason) => format!("not kept: {reason}"),
            });
        let page = Page::new(&admin, &visitor, Section::Keys, format!("Key {}", row.hint)).await;
        Ok(show_page(&KeyPage {
            page: page.with_message(did.code()),
            explanation: explain(phase, record.attempt),
            facts: facts(&snapshot, &row),
            requests,
            outcome: outcome.filter(|outcome| outcome.kind() != "json").and_then(AnswerContent::new),
            outcome_text,
            timeline: Timeline::new(&story),
            answers_begin_at: story.answers_begin_at().map(str::to_owned),
            may_settle: phase == Phase::InDoubt && visitor.may(&actions::SETTLE_KEY),
            may_forget: may_forget(&visitor, phase),
            row,
        }))
    })
    .await
}

/// True if the visitor may forget a key in this phase. Where its effect may be running or have happened, only an admin may.
fn may_forget(visitor: &Visitor, phase: Phase) -> bool {
    phase != Phase::Vacant
        && visitor.may(&actions::FORGET_KEY)
        && (!phase.is_in_progress() || visitor.caller.may(Right::Administrate).is_ok())
}

/// The requests that came with a key, and what became of them.
struct KeyRequestsView {
    all: usize,
    /// Since when they are counted.
    period: Html,
    what_ran: String,
}

impl KeyRequestsView {
    /// `None` for a key with one request.
    fn new(admin: &Admin, story: &Story, snapshot: &Snapshot) -> Option<Self> {
        let requests = story.timeline.iter().filter(|entry| entry.place == "gateway");
        let from_record = requests.clone().filter(|entry| entry.what == "answered from the record").count();
        let listed = requests.count();
        let all = listed + story.requests_left_out;
        let newest = (all > listed).then_some(listed);
        let period = if admin.requests.are_complete() {
            Html::trusted("while this server ran")
        } else {
            Html::trusted(format!(
                "among the last 65,536 of this server, the first {}",
                html::when(admin.requests.since())
            ))
        };
        (all > 1).then(|| Self { all, period, what_ran: what_ran(snapshot, from_record, newest) })
    }
}

/// How often the effect ran for several requests, as far as the record says. `newest` is the number of those that are listed, if there
/// are more.
fn what_ran(snapshot: &Snapshot, from_record: usize, newest: Option<usize>) -> String {
    let record = &snapshot.record;
    // Only a finished effect of a key that was claimed once, and never forgotten, is known to have run once.
    let is_over = matches!(snapshot.phase(), Phase::Done | Phase::Expired);
    let mut text = String::new();
    if is_over && record.attempt <= 1 && record.epoch.get() == 0 {
        text.push_str("The effect ran once. ");
    }
    let them = match newest {
        Some(newest) => {
            text.push_str(&format!("The newest {newest} are listed. "));
            "these"
        }
        None => "them",
    };
    match from_record {
        0 => {}
        1 => text.push_str(&format!("1 of {them} got the stored answer, and nothing ran for it.")),
        number => {
            text.push_str(&format!("{number} of {them} got the stored answer, and nothing ran for them."));
        }
    }
    text
}

/// What a phase means for the next request.
fn explain(phase: Phase, attempt: u32) -> String {
    let text = match phase {
        Phase::Vacant => "Nothing is stored under this key: the next request runs the effect.",
        Phase::Bound => {
            "The effect has not run. The next request with the same payload runs it; another payload is refused."
        }
        Phase::Claimed => "A request holds this key, and its effect has not started.",
        Phase::Begun => {
            "A request holds this key, and its effect is running. Duplicates wait for its answer or are told to retry."
        }
        Phase::Lapsed => {
            "The request that held this key is gone, and running the effect again is safe: the next request runs it."
        }
        Phase::InDoubt => {
            "The effect began, and its result is unknown: its process was lost, the upstream did not answer, or it answered with an \
             error that leaves the result open. Requests with this key are refused until a \
             probe or a person settles it. Ask the upstream with the request id below."
        }
        Phase::Done => {
            "The effect has happened. Every later request with this key gets the stored answer, and nothing runs again."
        }
        Phase::Expired => {
            "The stored answer has expired. The key is still known, and requests with it are refused."
        }
    };
    match attempt {
        0 | 1 => text.to_owned(),
        attempts => format!("{text} It was claimed {attempts} times."),
    }
}

fn facts(snapshot: &Snapshot, row: &KeyRow) -> Vec<(&'static str, Html)> {
    let (record, phase) = (&snapshot.record, snapshot.phase());
    let code = |text: &str| Html::trusted(format!("<code>{}</code>", html::escape(text)));
    let mut facts = vec![("Key ID", code(&row.id)), ("Key begins with", code(&row.hint))];
    if !row.request.is_empty() {
        facts.push(("Request", Html::text(&row.request)));
    }
    if !row.request_id.is_empty() {
        let link = format!(
            "<a class=\"id\" href=\"/story/{}\">{}</a>",
            html::encode(&row.request_id),
            html::escape(&row.request_id)
        );
        facts.push(("Request ID", Html::trusted(link)));
    }
    if !row.caller.is_empty() {
        facts.push(("Caller", code(&row.caller)));
    }
    facts.push(("Claimed", row.claimed.clone()));
    facts.push(("Changed", row.changed.clone()));
    if matches!(phase, Phase::Claimed | Phase::Begun) {
        facts.push(("Lease ends", html::when(record.lease_until)));
    }
    if matches!(phase, Phase::Done | Phase::Bound | Phase::Lapsed) {
        facts.push(("Expires", html::when(record.expires_at)));
    }
    let numbers = format!(
        "mode {}, fence {}, attempt {}, epoch {}, kept for {}",
        mode_name(record.terms.mode),
        record.fence.get(),
        record.attempt,
        record.epoch.get(),
        show_duration(record.terms.retention)
    );
    facts.push(("Record", Html::text(numbers)));
    if let RecordState::Done(outcome) = &record.state {
        facts.push(("Outcome", Html::text(format!("{}, {}", outcome.kind(), html::bytes(outcome.size())))));
    }
    facts
}

pub(super) async fn forget_form(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Response {
    answer(&admin, &visitor, forget_page(&admin, &visitor, &id, None, "")).await
}

async fn forget_page(
    admin: &Arc<Admin>,
    visitor: &Visitor,
    id: &str,
    problem: Option<String>,
    reason: &str,
) -> Result<Response, Refusal> {
    let (key, snapshot) = find(&admin.engine, id).await?;
    let row = KeyRow::new(&snapshot);
    let needs_force = snapshot.phase().is_in_progress();
    let mut effects = vec![
        "The record and its stored answer are removed. The next request with this key runs the effect again: if it charged a card, \
         it charges it a second time."
            .to_owned(),
    ];
    // The record that is shown: no other one is forgotten.
    let mut fields = format!(
        "<input type=\"hidden\" name=\"fence\" value=\"{}\"><input type=\"hidden\" name=\"phase\" value=\"{}\">",
        snapshot.record.fence.get(),
        row.phase
    );
    if needs_force {
        effects.push(format!(
            "The key is {}: its effect may be running or may have happened. Only the role admin can forget it.",
            html::word(row.phase)
        ));
        if visitor.caller.may(Right::Administrate).is_ok() {
            fields.push_str(
                "<div><label class=\"choice\"><input type=\"checkbox\" name=\"force\" value=\"yes\" required> I know that the effect \
                 can happen twice</label></div>",
            );
        }
    }
    let page = Page::new(admin, visitor, Section::Keys, "Forget a key").await;
    Ok(show_page(&Confirm {
        page,
        heading: format!("Forget the key {}", row.hint),
        effects,
        facts: vec![
            ("State", html::named(row.phase)),
            ("Request", Html::text(&row.request)),
            ("Key ID", Html::text(key)),
        ],
        fields: Html::trusted(fields),
        path: format!("/keys/{key}/forget"),
        button: "Forget this key".to_owned(),
        is_dangerous: true,
        back: format!("/keys/{key}"),
        command: format!(
            "{} {key} {}--reason …",
            actions::FORGET_KEY.command,
            if needs_force { "--force " } else { "" }
        ),
        problem,
        reason: reason.to_owned(),
    }))
}

pub(super) async fn forget(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    form: Submission,
) -> Response {
    let visitor = form.visitor.clone();
    answer(&admin, &visitor, async {
        let (_, snapshot) = find(&admin.engine, &id).await?;
        let fence = form.get("fence").parse().ok();
        if fence.is_none()
            || check_fence(&snapshot, fence).is_err()
            || form.get("phase") != phase_name(snapshot.phase())
        {
            let problem =
                Some("The key changed since it was shown. Nothing was removed. Look at it again.".to_owned());
            return forget_page(&admin, &visitor, &id, problem, form.get("reason")).await;
        }
        let asked =
            ForgetRequest { reason: form.get("reason").to_owned(), force: form.get("force") == "yes", fence };
        let (own, caller, key) = (Arc::clone(&admin), visitor.caller.clone(), id.clone());
        let done = run_to_completion(async move { forget_key(&own, &caller, &key, asked).await }).await;
        Strip::forget(&admin);
        match done {
            Ok(change) => Ok(go("/keys", &message_of("forgotten", &change))),
            Err(refusal) => {
                let problem = Some(refusal.detail().to_owned());
                forget_page(&admin, &visitor, &id, problem, form.get("reason")).await
            }
        }
    })
    .await
}
