//! The story of one action as a vertical timeline: from the request to the effect.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Redirect, Response};
use serde::Deserialize;
use serde_json::Value;

use super::html::{self, Html, Tone};
use super::page::{Page, Section, answer, show as show_page};
use super::search::page_of;
use super::visitor::Visitor;
use crate::admin::Admin;
use crate::admin::story::{Story, StoryEntry};

/// The timeline of a story.
#[derive(Template)]
#[template(path = "timeline.html")]
pub(super) struct Timeline {
    entries: Vec<TimelineEntry>,
}

struct TimelineEntry {
    date: Option<String>,
    time: Html,
    tone: Tone,
    place: &'static str,
    what: String,
    details: Vec<(String, Html)>,
}

impl Timeline {
    pub(super) fn new(story: &Story) -> Self {
        let mut entries: Vec<TimelineEntry> = Vec::new();
        let mut day = String::new();
        for entry in &story.timeline {
            let date = entry.at.get(..10).unwrap_or_default();
            let is_new_day = date != day;
            day = date.to_owned();
            entries.push(TimelineEntry::new(entry, is_new_day.then(|| date.to_owned())));
        }
        Self { entries }
    }
}

impl TimelineEntry {
    fn new(entry: &StoryEntry, date: Option<String>) -> Self {
        let outcome = entry.details.get("outcome").and_then(Value::as_str);
        let tone = match (entry.place, entry.what.as_str()) {
            ("downstream", _) => match outcome {
                Some("success") => Tone::Ok,
                _ => Tone::Bad,
            },
            ("delivery", "attempt started") | ("claim" | "trigger", "claimed") => Tone::Run,
            ("delivery", "due") | ("buffer", _) => Tone::Wait,
            ("dead letter", "written") => Tone::Bad,
            ("claim", "result unknown") | ("gateway", "refused" | "answered, answer not stored") => {
                Tone::Warn
            }
            ("gateway" | "event", _) => Tone::Ok,
            ("audit", _) => Tone::Mute,
            (_, state) => Tone::of(state),
        };
        let time = entry.at.get(11..23).unwrap_or_default();
        let at = html::escape(&entry.at);
        Self {
            date,
            time: Html::trusted(format!(
                "<time datetime=\"{at}\" title=\"{at}\">{}</time>",
                html::escape(time)
            )),
            tone,
            place: entry.place,
            what: html::word(&entry.what),
            details: entry.details.iter().filter_map(|(name, value)| detail(name, value)).collect(),
        }
    }
}

/// A detail of an entry. Ids lead to their pages.
fn detail(name: &str, value: &Value) -> Option<(String, Html)> {
    let text = match value {
        Value::Null => return None,
        Value::String(text) if text.is_empty() => return None,
        Value::String(text) => text.clone(),
        Value::Number(number) if matches!(name, "latency_ms" | "took_ms") => {
            html::duration(std::time::Duration::from_secs_f64(number.as_f64().unwrap_or(0.0).max(0.0) / 1e3))
        }
        Value::Object(members) => {
            let parts = members.iter().map(|(name, value)| match value {
                Value::String(text) => format!("{name} {text}"),
                other => format!("{name} {other}"),
            });
            parts.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    };
    let shown = match name {
        "request_id" | "message_id" | "correlation_id" | "causation_id" | "trace_id" => {
            link(&format!("/story/{}", html::encode(&text)), &text)
        }
        "replay_id" => link(&format!("/replays/{}", html::encode(&text)), &text),
        "target" => link(&format!("/targets/{}", html::encode(&text)), &text),
        _ => Html::text(&text),
    };
    Some((html::word(name), shown))
}

fn link(path: &str, text: &str) -> Html {
    Html::trusted(format!("<a class=\"wrap\" href=\"{}\">{}</a>", html::escape(path), html::escape(text)))
}

#[derive(Template)]
#[template(path = "story.html")]
struct StoryPage {
    page: Page,
    id: String,
    /// Kind, link and state of each thing.
    found: Vec<(&'static str, Html, Option<Html>)>,
    timeline: Timeline,
    summary: String,
    /// From when on answers are listed, if the server gave some before.
    answers_begin_at: Option<String>,
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Response {
    answer(&admin, &visitor, async {
        let story = Story::tell(&admin, id.clone()).await?;
        let found = story.found.iter().map(|subject| {
            let own = subject.key_id.as_ref().unwrap_or(&subject.id);
            let shown = page_of(own).map_or_else(|| Html::text(&subject.id), |path| link(&path, &subject.id));
            (subject.kind, shown, subject.state.map(html::named))
        });
        let mut page = Page::new(&admin, &visitor, Section::Story, format!("Story of {id}")).await;
        page.search.clone_from(&id);
        Ok(show_page(&StoryPage {
            page,
            found: found.collect(),
            timeline: Timeline::new(&story),
            summary: summary(&story),
            answers_begin_at: story.answers_begin_at().map(str::to_owned),
            id,
        }))
    })
    .await
}

/// The story in a sentence.
fn summary(story: &Story) -> String {
    let count = |place: &str, what: &str| {
        story.timeline.iter().filter(|entry| entry.place == place && entry.what.starts_with(what)).count()
    };
    let (requests, replayed) = (count("gateway", ""), count("gateway", "answered from the record"));
    let refused = count("gateway", "refused");
    let attempts = count("delivery", "attempt started");
    let mut parts = Vec::new();
    if requests > 0 {
        let number = match story.requests_left_out {
            0 if requests == 1 => "1 request".to_owned(),
            0 => format!("{requests} requests"),
            left_out => format!("{} requests, the newest {requests} listed", requests + left_out),
        };
        let them = if story.requests_left_out > 0 { "these" } else { "them" };
        parts.push(format!("{number}, {replayed} of {them} answered from the record without running again"));
        if refused > 0 {
            parts.push(format!("{refused} refused without running"));
        }
    }
    if attempts > 0 {
        parts.push(format!("{attempts} {} to deliver", if attempts == 1 { "attempt" } else { "attempts" }));
    }
    parts.join("; ")
}

#[derive(Deserialize)]
pub(super) struct StoryQuery {
    #[serde(default)]
    id: String,
}

#[derive(Template)]
#[template(path = "story_ask.html")]
struct AskPage {
    page: Page,
}

/// The form for an id.
pub(super) async fn ask(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(StoryQuery { id }): Query<StoryQuery>,
) -> Response {
    let id = id.trim();
    if !id.is_empty() {
        return Redirect::to(&format!("/story/{}", html::encode(id))).into_response();
    }
    show_page(&AskPage { page: Page::new(&admin, &visitor, Section::Story, "Story").await })
}
