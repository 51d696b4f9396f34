//! Events: the list, and one event with its deliveries.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use semel_pipeline::delivery::DeliveryHistory;
use semel_pipeline::event::{Event, Origin};
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::{self, EventFilter};
use serde::Deserialize;

use super::actions;
use super::dead_letters::{Attempts, preview_of};
use super::html::{self, Html};
use super::page::{Next, Page, Section, answer, show as show_page};
use super::targets::{DeliveryRow, HeldTargets};
use super::visitor::Visitor;
use crate::admin::listing::id_of;
use crate::admin::{Admin, Refusal};

const PAGE: u32 = 50;

#[derive(Deserialize)]
pub(super) struct EventQuery {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    tenant: String,
    #[serde(default)]
    cursor: String,
}

struct EventRow {
    id: String,
    event_type: String,
    tenant: String,
    key: String,
    targets: String,
    bytes: String,
    accepted: Html,
}

impl EventRow {
    fn new(event: &Event) -> Self {
        let new = &event.new;
        Self {
            id: new.id.to_string(),
            event_type: new.event_type.clone(),
            tenant: new.tenant.clone(),
            key: new.dedupe.as_ref().map(|dedupe| html::hint(&dedupe.hint)).unwrap_or_default(),
            targets: new.targets.join(", "),
            bytes: html::bytes(new.payload.len()),
            accepted: html::when(event.accepted_at),
        }
    }
}

#[derive(Template)]
#[template(path = "events.html")]
struct EventsPage {
    page: Page,
    query: EventQuery,
    rows: Vec<EventRow>,
    next: Next,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(query): Query<EventQuery>,
) -> Response {
    answer(&admin, &visitor, async {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let filter = EventFilter {
            kind: Some(EventKind::Event),
            tenant: some(&query.tenant),
            event_type: some(&query.r#type),
            tag: None,
        };
        let page = ledger::Page { after: some(&query.cursor), limit: PAGE };
        let found = admin.pipeline()?.ledger.events(filter, page).await?;
        let pairs = [("type", query.r#type.as_str()), ("tenant", &query.tenant)];
        Ok(show_page(&EventsPage {
            page: Page::new(&admin, &visitor, Section::Events, "Events").await,
            rows: found.items.iter().map(EventRow::new).collect(),
            next: Next::new("/events", &pairs, found.next.as_deref()),
            query,
        }))
    })
    .await
}

/// A delivery with its attempts.
pub(super) struct DeliveryView {
    pub(super) row: DeliveryRow,
    pub(super) target: String,
    pub(super) attempts: Attempts,
}

impl DeliveryView {
    pub(super) fn new(told: &DeliveryHistory, held: &HeldTargets) -> Self {
        Self {
            row: DeliveryRow::new(&told.delivery, held),
            target: told.delivery.target.clone(),
            attempts: Attempts::new(&told.attempts),
        }
    }
}

/// What an event or run is, in rows.
pub(super) fn facts(event: &Event) -> Vec<(&'static str, Html)> {
    let new = &event.new;
    let origin = match &new.origin {
        Origin::Api { principal } => format!("published by {principal}"),
        Origin::Stream { stream, message } => format!("stream {stream}, message {message}"),
        Origin::Outbox => "outbox of the application".to_owned(),
        Origin::Replay { of } => format!("replay of {of}"),
    };
    let mut facts = vec![("Type", Html::text(&new.event_type))];
    if !new.tenant.is_empty() {
        facts.push(("Tenant", Html::text(&new.tenant)));
    }
    if let Some(dedupe) = &new.dedupe {
        facts.push(("Key begins with", Html::text(html::hint(&dedupe.hint))));
    }
    if let Some(order) = &new.order_key {
        facts.push(("Order key", Html::text(order)));
    }
    facts.push(("Origin", Html::text(origin)));
    facts.push(("Accepted", html::when(event.accepted_at)));
    facts.push(("Payload", Html::text(format!("{}, {}", new.content_type, html::bytes(new.payload.len())))));
    if let Some(request) = &new.trace.request_id {
        let link = format!(
            "<a class=\"wrap\" href=\"/story/{}\">{}</a>",
            html::encode(request),
            html::escape(request)
        );
        facts.push(("Request ID", Html::trusted(link)));
    }
    if !new.notes.tags.is_empty() {
        let chips: String = new
            .notes
            .tags
            .iter()
            .map(|tag| format!("<span class=\"chip\">{}</span>", html::escape(tag)))
            .collect();
        facts.push(("Tags", Html::trusted(chips)));
    }
    for (name, value) in &new.notes.metadata {
        facts.push(("Metadata", Html::text(format!("{name} = {value}"))));
    }
    facts
}

#[derive(Template)]
#[template(path = "event.html")]
struct EventPage {
    page: Page,
    id: String,
    facts: Vec<(&'static str, Html)>,
    headers: Vec<(String, String)>,
    deliveries: Vec<DeliveryView>,
    payload: Option<String>,
    may_see: bool,
    may_replay: bool,
}

#[derive(Deserialize)]
pub(super) struct EventDetailsQuery {
    #[serde(default)]
    payload: String,
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
    Query(shown): Query<EventDetailsQuery>,
) -> Response {
    answer(&admin, &visitor, async {
        let ledger = &admin.pipeline()?.ledger;
        let id: EventId = id_of(&id)?;
        let event = ledger.event(id).await?;
        let event = event.ok_or_else(|| Refusal::not_found(format!("there is no event {id}")))?;
        let deliveries = ledger.deliveries_of(id).await?;
        let may_see = visitor.sees_payloads();
        let has_failed =
            deliveries.iter().any(|told| matches!(told.delivery.state.as_str(), "dlq" | "blocked"));
        let page = Page::new(&admin, &visitor, Section::Events, format!("Event {id}")).await;
        let held = HeldTargets::read(&admin);
        Ok(show_page(&EventPage {
            page,
            id: id.to_string(),
            facts: facts(&event),
            headers: event.new.headers.clone(),
            deliveries: deliveries.iter().map(|told| DeliveryView::new(told, &held)).collect(),
            payload: (may_see && shown.payload == "show").then(|| preview_of(&event.new.payload)),
            may_see,
            may_replay: has_failed && visitor.may(&actions::START_REPLAY),
        }))
    })
    .await
}
