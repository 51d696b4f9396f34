//! Targets: their cards, the deliveries of one target, one delivery with its attempts; pause, resume, retry.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::http::Uri;
use axum::response::Response;
use semel::time::Timestamp;
use semel_pipeline::delivery::{Delivery, DeliveryState};
use semel_pipeline::id::DeliveryId;
use semel_pipeline::ledger::{self, DeliveryFilter};
use serde::Deserialize;

use super::dead_letters::Attempts;
use super::html::{self, Html};
use super::overview::TargetCard;
use super::page::{Confirm, Next, Notice, Page, Section, answer, go, show as show_page};
use super::strip::Strip;
use super::visitor::{Submission, Visitor};
use super::{Did, actions};
use crate::admin::audit::run_to_completion;
use crate::admin::dead_letters::ChangeRequest;
use crate::admin::listing::id_of;
use crate::admin::targets::{TargetAction, change_target};
use crate::admin::{Admin, Refusal};

const PAGE: u32 = 50;

#[derive(Template)]
#[template(path = "targets.html")]
struct TargetsPage {
    page: Page,
    targets: Vec<TargetCard>,
    may_pause: bool,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(did): Query<Did>,
) -> Response {
    answer(&admin, &visitor, async {
        admin.pipeline()?;
        let page = Page::new(&admin, &visitor, Section::Targets, "Targets").await.with_message(did.code());
        let targets = TargetCard::all(&admin).unwrap_or_default();
        // The message stays while the page follows its targets.
        let shown = html::query(&[("did", did.code().unwrap_or_default())]);
        Ok(show_page(&TargetsPage {
            page: page.refreshed_from(format!("/targets{shown}")),
            targets,
            may_pause: visitor.may(&actions::PAUSE_TARGET),
        }))
    })
    .await
}

/// A delivery in a list.
pub(super) struct DeliveryRow {
    pub(super) id: String,
    pub(super) event: String,
    pub(super) event_type: String,
    pub(super) tenant: String,
    pub(super) state: &'static str,
    pub(super) attempts: u32,
    pub(super) error: String,
    pub(super) letter: Option<String>,
    pub(super) created: Html,
    /// When the next attempt starts, or what it waits for.
    pub(super) due: Option<Html>,
}

/// Targets that get nothing at present: a delivery to one of them waits, also if it is due.
#[derive(Default)]
pub(super) struct HeldTargets {
    paused: Vec<String>,
    /// Targets whose circuit breaker is open, and until when.
    open: Vec<(String, Timestamp)>,
}

impl HeldTargets {
    pub(super) fn read(admin: &Admin) -> Self {
        let cards = TargetCard::all(admin).unwrap_or_default();
        let mut held = Self::default();
        for card in cards {
            held.open.extend(card.breaker_open_until.map(|until| (card.name.clone(), until)));
            held.paused.extend(Some(card.name).filter(|_| card.is_paused));
        }
        held
    }

    /// When the next attempt of a delivery starts.
    fn due(&self, delivery: &Delivery) -> Html {
        let open = self.open.iter().find(|(target, _)| *target == delivery.target);
        if self.paused.contains(&delivery.target) {
            Html::trusted("after the target is resumed")
        } else if open.is_some_and(|(_, until)| delivery.due_at < *until) {
            Html::trusted("when the circuit breaker allows")
        } else {
            html::when(delivery.due_at)
        }
    }
}

impl DeliveryRow {
    pub(super) fn new(delivery: &Delivery, held: &HeldTargets) -> Self {
        Self {
            id: delivery.id.to_string(),
            event: delivery.event.to_string(),
            event_type: delivery.event_type.clone(),
            tenant: delivery.tenant.clone(),
            state: delivery.state.as_str(),
            attempts: delivery.attempts,
            error: delivery.error.clone().unwrap_or_default(),
            letter: delivery.letter.map(|letter| letter.to_string()),
            created: html::when(delivery.created_at),
            due: delivery.state.is_takeable().then(|| held.due(delivery)),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct DeliveryQuery {
    #[serde(default)]
    state: String,
    #[serde(default)]
    tenant: String,
    #[serde(default)]
    cursor: String,
    did: Option<String>,
}

#[derive(Template)]
#[template(path = "target.html")]
struct TargetPage {
    page: Page,
    card: TargetCard,
    query: DeliveryQuery,
    states: Vec<(&'static str, Option<u64>)>,
    rows: Vec<DeliveryRow>,
    next: Next,
    may_replay: bool,
    may_pause: bool,
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(name): Path<String>,
    Query(query): Query<DeliveryQuery>,
) -> Response {
    answer(&admin, &visitor, async {
        let ledger = &admin.pipeline()?.ledger;
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let page = Page::new(&admin, &visitor, Section::Targets, name.clone()).await;
        let card = TargetCard::of(&admin, &name)?;
        let states = match query.state.as_str() {
            "" => Vec::new(),
            name => {
                let state = DeliveryState::from_name(name);
                vec![state.ok_or_else(|| Refusal::bad(format!("state: there is no state {name:?}")))?]
            }
        };
        let filter =
            DeliveryFilter { event: None, target: Some(name.clone()), tenant: some(&query.tenant), states };
        let found =
            ledger.deliveries(filter, ledger::Page { after: some(&query.cursor), limit: PAGE }).await?;
        let totals = &page.strip.totals.deliveries;
        // Deliveries that ended well are not counted.
        let count = |state: DeliveryState| {
            let counted = totals.iter().find(|(target, known, _)| *target == name && *known == state);
            (state != DeliveryState::Done).then(|| counted.map_or(0, |(_, _, count)| *count))
        };
        let pairs = [("state", query.state.as_str()), ("tenant", &query.tenant)];
        let next = Next::new(&card.path(), &pairs, found.next.as_deref());
        let message = query.did.clone();
        let held = HeldTargets::read(&admin);
        Ok(show_page(&TargetPage {
            states: DeliveryState::ALL.into_iter().map(|state| (state.as_str(), count(state))).collect(),
            page: page.with_message(message.as_deref()),
            card,
            query,
            rows: found.items.iter().map(|delivery| DeliveryRow::new(delivery, &held)).collect(),
            next,
            may_replay: visitor.may(&actions::START_REPLAY),
            may_pause: visitor.may(&actions::PAUSE_TARGET),
        }))
    })
    .await
}

#[derive(Template)]
#[template(path = "delivery.html")]
struct DeliveryPage {
    page: Page,
    row: DeliveryRow,
    target: String,
    attempts: Attempts,
}

pub(super) async fn delivery(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Response {
    answer(&admin, &visitor, async {
        let id: DeliveryId = id_of(&id)?;
        let found = admin.pipeline()?.ledger.delivery(id).await?;
        let found = found.ok_or_else(|| Refusal::not_found(format!("there is no delivery {id}")))?;
        let page = Page::new(&admin, &visitor, Section::Targets, format!("Delivery {id}")).await;
        Ok(show_page(&DeliveryPage {
            page,
            row: DeliveryRow::new(&found.delivery, &HeldTargets::read(&admin)),
            target: found.delivery.target.clone(),
            attempts: Attempts::new(&found.attempts),
        }))
    })
    .await
}

/// The action that a path names.
fn action_of(uri: &Uri) -> TargetAction {
    let name = uri.path().rsplit('/').next().unwrap_or_default();
    let all = [TargetAction::Pause, TargetAction::Resume, TargetAction::Retry];
    all.into_iter().find(|action| action.name() == name).unwrap_or(TargetAction::Pause)
}

pub(super) async fn change_form(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(name): Path<String>,
    uri: Uri,
) -> Response {
    answer(&admin, &visitor, change_page(&admin, &visitor, &name, action_of(&uri), None, "")).await
}

async fn change_page(
    admin: &Arc<Admin>,
    visitor: &Visitor,
    name: &str,
    action: TargetAction,
    problem: Option<String>,
    reason: &str,
) -> Result<Response, Refusal> {
    admin.pipeline()?;
    // The form shows the state as it is now, not as it was some seconds ago.
    Strip::forget(admin);
    let page = Page::new(admin, visitor, Section::Targets, "Change a target").await;
    let card = TargetCard::of(admin, name)?;
    if let Some(heading) = nothing_to_change(admin, name, action).await? {
        return Ok(show_page(&Notice {
            page,
            heading,
            sentences: vec![format!("There is nothing to {}.", action.name())],
            facts: facts(&card),
            links: vec![("Show the target", card.path())],
        }));
    }
    let waiting: u64 = card.backlog.iter().map(|(_, count)| count).sum();
    let retry_wait = DeliveryState::RetryWait.as_str();
    let retrying: u64 =
        card.backlog.iter().filter(|(state, _)| *state == retry_wait).map(|(_, count)| count).sum();
    let (verb, effect, command) = match action {
        TargetAction::Pause => (
            "Pause",
            format!(
                "Nothing more is sent to {name}, by any process, until somebody resumes it. Deliveries in progress end. Events \
                 for it are still accepted and wait; {} wait now.",
                html::count(waiting)
            ),
            actions::PAUSE_TARGET.command,
        ),
        TargetAction::Resume => (
            "Resume",
            format!(
                "Deliveries to {name} are sent again, within its limits; {} wait now.",
                html::count(waiting)
            ),
            actions::RESUME_TARGET.command,
        ),
        TargetAction::Retry => (
            "Retry",
            format!(
                "{} to {name} that {} for the next attempt {} due now. The circuit breaker, the retry budget and the concurrency of \
                 the target still apply.",
                deliveries(retrying),
                if retrying == 1 { "waits" } else { "wait" },
                if retrying == 1 { "becomes" } else { "become" },
            ),
            actions::RETRY_TARGET.command,
        ),
    };
    let mut effects = vec![effect];
    if action == TargetAction::Resume && card.breaker_open_until.is_some() {
        let sentence = "Its circuit breaker is open: deliveries wait until the breaker allows the next call.";
        effects.push(sentence.to_owned());
    }
    Ok(show_page(&Confirm {
        page,
        heading: format!("{verb} the target {name}"),
        effects,
        facts: facts(&card),
        fields: Html::default(),
        path: format!("{}/{}", card.path(), action.name()),
        button: format!("{verb} this target"),
        is_dangerous: action == TargetAction::Pause,
        back: card.path(),
        command: format!("{command} {name} --reason …"),
        problem,
        reason: reason.to_owned(),
    }))
}

fn deliveries(number: u64) -> String {
    format!("{} {}", html::count(number), if number == 1 { "delivery" } else { "deliveries" })
}

/// The state of a target, and why it is so.
fn facts(card: &TargetCard) -> Vec<(&'static str, Html)> {
    let mut facts = vec![("State", card.state.clone())];
    if !card.explanation.is_empty() {
        facts.push(("Why", card.explanation.clone()));
    }
    if let Some(until) = card.breaker_open_until.filter(|_| card.is_paused) {
        let text = format!("open, the next call is possible {}", html::when(until));
        facts.push(("Circuit breaker", Html::trusted(text)));
    }
    facts
}

/// Why an action would change nothing.
async fn nothing_to_change(
    admin: &Admin,
    name: &str,
    action: TargetAction,
) -> Result<Option<String>, Refusal> {
    let is_paused = admin.pipeline()?.ledger.paused_targets().await?.iter().any(|pause| pause.target == name);
    Ok(match action {
        TargetAction::Resume if !is_paused => Some(format!("The target {name} is not paused")),
        TargetAction::Pause if is_paused => Some(format!("The target {name} is already paused")),
        TargetAction::Pause | TargetAction::Resume | TargetAction::Retry => None,
    })
}

/// Pauses, resumes or retries a target.
pub(super) async fn change(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
    uri: Uri,
    form: Submission,
) -> Response {
    let visitor = form.visitor.clone();
    let action = action_of(&uri);
    answer(&admin, &visitor, async {
        if nothing_to_change(&admin, &name, action).await?.is_some() {
            return change_page(&admin, &visitor, &name, action, None, "").await;
        }
        let asked = ChangeRequest { reason: form.get("reason").to_owned() };
        let (own, caller, target) = (Arc::clone(&admin), visitor.caller.clone(), name.clone());
        let change = async move { change_target(&own, &caller, target, &asked, action).await };
        let done = run_to_completion(change).await;
        Strip::forget(&admin);
        match done {
            Ok(_) => {
                // A target that is not in the configuration has no page after it was resumed.
                let is_known = admin.pipeline()?.registry.current().names().contains(&name);
                if is_known || action != TargetAction::Resume {
                    let path = format!("/targets/{}", html::encode(&name));
                    Ok(go(&path, &format!("target-{}", action.name())))
                } else {
                    Ok(go("/targets", "target-removed"))
                }
            }
            Err(refusal) => {
                let problem = Some(refusal.detail().to_owned());
                change_page(&admin, &visitor, &name, action, problem, form.get("reason")).await
            }
        }
    })
    .await
}
