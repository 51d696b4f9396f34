//! Dead letters: groups of similar failures first, then letters, then one letter with its attempts.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use semel_pipeline::delivery::DeliveryAttempt;
use semel_pipeline::ledger::{self, LetterFilter};
use semel_pipeline::letter::{FailureGroup, Letter, Status};
use serde::Deserialize;

use super::actions;
use super::html::{self, Html};
use super::page::{Next, Page, Section, answer, show as show_page};
use super::visitor::Visitor;
use crate::admin::dead_letters::DiscardableStatus;
use crate::admin::listing::id_of;
use crate::admin::{Admin, Refusal};

const PAGE: u32 = 50;

/// The filters of dead letters, as they are in an address.
#[derive(Clone, Default, Deserialize)]
pub(super) struct LetterQuery {
    #[serde(default)]
    pub(super) status: String,
    #[serde(default)]
    pub(super) target: String,
    #[serde(default)]
    pub(super) tenant: String,
    #[serde(default)]
    pub(super) signature: String,
    #[serde(default)]
    pub(super) cursor: String,
    /// The action that the page before did.
    pub(super) did: Option<String>,
}

impl LetterQuery {
    /// True if only some dead letters of a status are shown: the counts of all would not be those of the list.
    fn is_filtered(&self) -> bool {
        [&self.target, &self.tenant, &self.signature].into_iter().any(|text| !text.is_empty())
    }

    /// The filter of the ledger.
    pub(super) fn filter(&self) -> Result<LetterFilter, Refusal> {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let status = match self.status.as_str() {
            "" => None,
            name => {
                let known = Status::ALL.into_iter().find(|status| status.as_str() == name);
                Some(known.ok_or_else(|| Refusal::bad(format!("status: there is no status {name:?}")))?)
            }
        };
        Ok(LetterFilter {
            status,
            target: some(&self.target),
            tenant: some(&self.tenant),
            signature: some(&self.signature),
        })
    }

    /// The status, if all that matches can be discarded.
    pub(super) fn discardable(&self) -> Option<DiscardableStatus> {
        DiscardableStatus::of(&self.status)
    }

    /// The filter in words: exactly what an action applies to.
    pub(super) fn words(&self) -> String {
        let parts = [
            ("status", &self.status),
            ("target", &self.target),
            ("tenant", &self.tenant),
            ("failure", &self.signature),
        ];
        let parts = parts.iter().filter(|(_, value)| !value.is_empty());
        let words: Vec<String> = parts.map(|(name, value)| format!("{name} {value}")).collect();
        if words.is_empty() { "all dead letters".to_owned() } else { words.join(", ") }
    }

    /// The address of another page with the same filter.
    pub(super) fn at(&self, path: &str) -> String {
        let pairs = [
            ("status", self.status.as_str()),
            ("target", &self.target),
            ("tenant", &self.tenant),
            ("signature", &self.signature),
        ];
        format!("{path}{}", html::query(&pairs))
    }

    /// The address of the same list with another status.
    fn tab(&self, path: &str, status: &str) -> String {
        self.with_status(status).at(path)
    }

    fn with_status(&self, status: &str) -> Self {
        Self { status: status.to_owned(), cursor: String::new(), ..self.clone() }
    }
}

/// Why dead letters cannot be replayed, whatever their status; `None` if they can. `targets` are those of the configuration.
fn why_not_replayed(target: Option<&str>, targets: &[String]) -> Option<&'static str> {
    match target {
        None => {
            Some("A message without a target cannot be replayed: edit it as a copy, and replay the copy.")
        }
        Some(target) if targets.iter().any(|known| known == target) => None,
        Some(_) => Some("The target is not in the configuration: its dead letters cannot be replayed."),
    }
}

struct GroupRow {
    query: LetterQuery,
    target: String,
    cause: &'static str,
    error: String,
    count: u64,
    pending: u64,
    by_status: Vec<(&'static str, u64)>,
    why_not_replayed: Option<&'static str>,
    first: Html,
    last: Html,
}

impl GroupRow {
    fn new(group: &FailureGroup, query: &LetterQuery, targets: &[String]) -> Self {
        let of = |status: Status| {
            group.counts.iter().find(|(known, _)| *known == status).map_or(0, |(_, count)| *count)
        };
        Self {
            query: LetterQuery { signature: group.signature.as_str().to_owned(), ..query.clone() },
            target: group.target.clone().unwrap_or_default(),
            cause: group.cause.as_str(),
            error: group.error.clone(),
            count: group.counts.iter().map(|(_, count)| count).sum(),
            pending: of(Status::Pending),
            why_not_replayed: why_not_replayed(group.target.as_deref(), targets),
            by_status: group.counts.iter().map(|(status, count)| (status.as_str(), *count)).collect(),
            first: html::when(group.first_at),
            last: html::when(group.last_at),
        }
    }

    fn letters(&self) -> String {
        self.query.at("/dead-letters/list")
    }

    fn replay(&self) -> String {
        let pairs = [
            ("status", "failed"),
            ("signature", self.query.signature.as_str()),
            ("tenant", &self.query.tenant),
        ];
        format!("/replays/new{}", html::query(&pairs))
    }

    fn discard(&self) -> String {
        self.query.with_status("pending").at(actions::DISCARD_MATCHING.path)
    }
}

#[derive(Template)]
#[template(path = "groups.html")]
struct GroupsPage {
    page: Page,
    query: LetterQuery,
    statuses: Vec<(&'static str, u64)>,
    rows: Vec<GroupRow>,
    /// True if the oldest dead letters are not counted.
    is_partial: bool,
    may_replay: bool,
    may_discard: bool,
}

pub(super) async fn groups(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(query): Query<LetterQuery>,
) -> Response {
    answer(&admin, &visitor, async {
        let pipeline = admin.pipeline()?;
        let found = pipeline.ledger.groups(query.filter()?).await?;
        let targets = pipeline.registry.current().names();
        let page = Page::new(&admin, &visitor, Section::DeadLetters, "Dead letters").await;
        let page = page.with_message(query.did.as_deref());
        Ok(show_page(&GroupsPage {
            statuses: statuses(&page),
            page,
            is_partial: found.is_partial,
            rows: found.groups.iter().map(|group| GroupRow::new(group, &query, &targets)).collect(),
            query,
            may_replay: visitor.may(&actions::START_REPLAY),
            may_discard: visitor.may(&actions::DISCARD_MATCHING),
        }))
    })
    .await
}

/// Every status with its count.
fn statuses(page: &Page) -> Vec<(&'static str, u64)> {
    let count = |status: Status| {
        let counted = page.strip.totals.letters.iter().find(|(known, _)| *known == status);
        counted.map_or(0, |(_, count)| *count)
    };
    Status::ALL.into_iter().map(|status| (status.as_str(), count(status))).collect()
}

struct LetterView {
    id: String,
    status: &'static str,
    target: String,
    event_type: String,
    tenant: String,
    error: String,
    attempts: u32,
    created: Html,
}

impl LetterView {
    fn new(letter: &Letter) -> Self {
        Self {
            id: letter.id.to_string(),
            status: letter.status.as_str(),
            target: letter.target.clone().unwrap_or_default(),
            event_type: letter.event_type.clone().unwrap_or_default(),
            tenant: letter.tenant.clone(),
            error: letter.error.clone(),
            attempts: letter.attempts,
            created: html::when(letter.created_at),
        }
    }
}

#[derive(Template)]
#[template(path = "letters.html")]
struct LettersPage {
    page: Page,
    query: LetterQuery,
    statuses: Vec<(&'static str, u64)>,
    rows: Vec<LetterView>,
    next: Next,
    may_discard: bool,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(query): Query<LetterQuery>,
) -> Response {
    answer(&admin, &visitor, async {
        let after = Some(query.cursor.clone()).filter(|cursor| !cursor.is_empty());
        let found =
            admin.pipeline()?.ledger.letters(query.filter()?, ledger::Page { after, limit: PAGE }).await?;
        let pairs = [
            ("status", query.status.as_str()),
            ("target", &query.target),
            ("tenant", &query.tenant),
            ("signature", &query.signature),
        ];
        let next = Next::new("/dead-letters/list", &pairs, found.next.as_deref());
        let page = Page::new(&admin, &visitor, Section::DeadLetters, "Dead letters").await;
        Ok(show_page(&LettersPage {
            statuses: statuses(&page),
            page,
            rows: found.items.iter().map(LetterView::new).collect(),
            next,
            may_discard: query.discardable().is_some() && visitor.may(&actions::DISCARD_MATCHING),
            query,
        }))
    })
    .await
}

/// An attempt as tables show it.
pub(super) struct AttemptRow {
    number: u32,
    started: Html,
    took: String,
    outcome: &'static str,
    status: String,
    error: String,
    excerpt: String,
    request_id: String,
    job: Option<String>,
}

impl AttemptRow {
    pub(super) fn new(attempt: &DeliveryAttempt) -> Self {
        let ending = attempt.ending.as_ref();
        Self {
            number: attempt.number,
            started: html::when(attempt.started_at),
            took: attempt
                .ended_at
                .map(|ended| html::duration(ended.left(attempt.started_at)))
                .unwrap_or_default(),
            outcome: ending.map_or("running", |ending| ending.class.as_str()),
            status: ending
                .and_then(|ending| ending.status)
                .map(|status| status.to_string())
                .unwrap_or_default(),
            error: ending.map(|ending| ending.error.clone()).unwrap_or_default(),
            excerpt: ending.map(|ending| ending.excerpt.clone()).unwrap_or_default(),
            request_id: attempt.request_id.clone(),
            job: attempt.job.map(|job| job.to_string()),
        }
    }
}

/// The attempts of a delivery.
#[derive(Template)]
#[template(path = "attempts.html")]
pub(super) struct Attempts {
    rows: Vec<AttemptRow>,
}

impl Attempts {
    pub(super) fn new(attempts: &[DeliveryAttempt]) -> Self {
        Self { rows: attempts.iter().map(AttemptRow::new).collect() }
    }
}

#[derive(Template)]
#[template(path = "letter.html")]
struct LetterPage {
    page: Page,
    row: LetterView,
    facts: Vec<(&'static str, Html)>,
    headers: Vec<(String, String)>,
    attempts: Attempts,
    /// Shown only when it was asked for.
    payload: Option<String>,
    may_see: bool,
    may_replay: bool,
    why_not_replayed: Option<&'static str>,
    may_discard: bool,
    may_restore: bool,
    may_edit: bool,
}

#[derive(Deserialize)]
pub(super) struct LetterDetailsQuery {
    #[serde(default)]
    payload: String,
    did: Option<String>,
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
    Query(shown): Query<LetterDetailsQuery>,
) -> Response {
    answer(&admin, &visitor, async {
        let id = id_of(&id)?;
        let pipeline = admin.pipeline()?;
        let story = pipeline.ledger.letter(id).await?;
        let story = story.ok_or_else(|| Refusal::not_found(format!("there is no dead letter {id}")))?;
        let letter = &story.letter;
        let target = letter.target.as_deref().filter(|_| letter.delivery.is_some());
        let why_not = why_not_replayed(target, &pipeline.registry.current().names());
        let page = Page::new(&admin, &visitor, Section::DeadLetters, format!("Dead letter {id}")).await;
        let may_see = visitor.sees_payloads();
        let payload = (may_see && shown.payload == "show").then(|| preview_of(&letter.payload));
        let is_open = matches!(letter.status, Status::Pending | Status::Parked);
        Ok(show_page(&LetterPage {
            page: page.with_message(shown.did.as_deref()),
            row: LetterView::new(letter),
            facts: facts(letter, &story.copies.iter().map(ToString::to_string).collect::<Vec<_>>()),
            headers: letter.headers.clone(),
            attempts: Attempts::new(&story.attempts),
            payload,
            may_see,
            may_replay: is_open && why_not.is_none() && visitor.may(&actions::START_REPLAY),
            why_not_replayed: why_not.filter(|_| is_open),
            may_discard: is_open && visitor.may(&actions::DISCARD),
            may_restore: matches!(letter.status, Status::Discarded | Status::Parked)
                && visitor.may(&actions::RESTORE),
            may_edit: visitor.may(&actions::EDIT),
        }))
    })
    .await
}

fn facts(letter: &Letter, copies: &[String]) -> Vec<(&'static str, Html)> {
    let link = |folder: &str, id: &str| {
        let id = html::escape(id);
        Html::trusted(format!("<a class=\"id\" href=\"/{folder}/{id}\">{id}</a>"))
    };
    let mut facts =
        vec![("Error", Html::text(&letter.error)), ("Cause", Html::text(html::word(letter.cause.as_str())))];
    if let Some(target) = &letter.target {
        let path = format!("targets/{}", html::encode(target));
        let shown = format!("<a href=\"/{path}\">{}</a>", html::escape(target));
        facts.push(("Target", Html::trusted(shown)));
    }
    if let Some(event_type) = &letter.event_type {
        facts.push(("Type", Html::text(event_type)));
    }
    if !letter.tenant.is_empty() {
        facts.push(("Tenant", Html::text(&letter.tenant)));
    }
    if let Some(event) = letter.event {
        facts.push(("Event", link("events", &event.to_string())));
    }
    if let Some(delivery) = letter.delivery {
        facts.push(("Delivery", link("deliveries", &delivery.to_string())));
    }
    if let Some(source) = &letter.source {
        facts.push(("Source", Html::text(format!("stream {}, message {}", source.stream, source.message))));
    }
    facts.push(("Attempts", Html::text(letter.attempts)));
    facts.push(("Last attempt", html::when_some(letter.last_attempt_at)));
    if letter.failed_replays > 0 {
        facts.push(("Failed replays", Html::text(letter.failed_replays)));
    }
    if let Some(of) = letter.copy_of {
        facts.push(("Copy of", link("dead-letters", &of.to_string())));
    }
    for copy in copies {
        facts.push(("Copied as", link("dead-letters", copy)));
    }
    facts.push(("Created", html::when(letter.created_at)));
    facts.push(("Changed", html::when(letter.updated_at)));
    facts
}

/// A payload as people read it: JSON with indents where that changes nothing, other text as it is, bytes in hexadecimal.
pub(super) fn text_of(payload: &[u8]) -> String {
    match std::str::from_utf8(payload) {
        Ok(text) => pretty(text).unwrap_or_else(|| text.to_owned()),
        Err(_) => payload.chunks(16).map(hex_line).collect::<Vec<_>>().join("\n"),
    }
}

/// The most bytes of a payload that a page shows.
const SHOWN: usize = 64 << 10;

/// The beginning of a payload for a page, with a line that says how much is missing.
pub(super) fn preview_of(payload: &[u8]) -> String {
    if payload.len() <= SHOWN {
        return text_of(payload);
    }
    // Not within a character.
    let cut = std::str::from_utf8(payload).map_or(SHOWN, |text| text.floor_char_boundary(SHOWN));
    let text = text_of(&payload[..cut]);
    format!("{text}\n… the first {} of {} are shown", html::bytes(cut), html::bytes(payload.len()))
}

fn hex_line(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// The characters that JSON allows between its tokens. No other space may be touched: it is a part of a string.
const fn is_json_space(character: char) -> bool {
    matches!(character, ' ' | '\n' | '\r' | '\t')
}

/// JSON with indents. Strings and numbers keep their text: only spaces between tokens change.
fn pretty(text: &str) -> Option<String> {
    serde_json::from_str::<&serde_json::value::RawValue>(text).ok()?;
    let (mut out, mut depth, mut in_string, mut escaped) =
        (String::with_capacity(text.len() * 2), 0_usize, false, false);
    let mut characters = text.chars().peekable();
    let indent = |out: &mut String, depth: usize| {
        out.push('\n');
        out.push_str(&"  ".repeat(depth.min(40)));
    };
    while let Some(character) = characters.next() {
        if in_string {
            out.push(character);
            in_string = escaped || character != '"';
            escaped = !escaped && character == '\\';
            continue;
        }
        match character {
            space if is_json_space(space) => {}
            '"' => {
                in_string = true;
                out.push(character);
            }
            '{' | '[' => {
                out.push(character);
                while characters.next_if(|next| is_json_space(*next)).is_some() {}
                if matches!(characters.peek(), Some('}' | ']')) {
                    out.extend(characters.next());
                } else {
                    depth += 1;
                    indent(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                indent(&mut out, depth);
                out.push(character);
            }
            ',' => {
                out.push(character);
                indent(&mut out, depth);
            }
            ':' => out.push_str(": "),
            character => out.push(character),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_readable_and_the_same() {
        let text = r#"{"a":[1.10,{}, []],"big":12345678901234567890123,"s":"x, {\"y\": 1} \\"}"#;
        let shown = text_of(text.as_bytes());
        assert!(shown.contains("\n  \"big\": 12345678901234567890123,"), "{shown}");
        assert!(shown.contains(r#""s": "x, {\"y\": 1} \\""#), "{shown}");
        assert!(shown.contains("{},\n    []"), "{shown}");
        assert_eq!(text_of(b"plain, text"), "plain, text");
        assert_eq!(text_of(&[0xff, 0]), "ff 00");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&shown), value(text));
    }

    #[test]
    fn a_long_payload_is_cut_between_characters() {
        let text = format!("x{}", "é".repeat(SHOWN));
        let shown = preview_of(text.as_bytes());
        assert!(
            shown.ends_with("é\n… the first 64 KiB of 128 KiB are shown"),
            "{}",
            &shown[shown.len() - 80..]
        );
        assert_eq!(preview_of(b"{}"), "{}");
        assert!(preview_of(&vec![0xff; SHOWN + 1]).starts_with("ff ff"));
    }

    // A copy is made of the text that the form shows: every space inside a string must survive.
    #[test]
    fn every_character_of_a_string_is_kept() {
        let spaces: String =
            (1..=0x3000).filter_map(char::from_u32).filter(|c| c.is_whitespace() && *c >= ' ').collect();
        assert!(spaces.contains('\u{a0}') && spaces.contains('\u{3000}') && spaces.contains('\u{2028}'));
        let text = format!(
            "{{\r\n\t\"name{spaces}\" :\t[ \"Zoë{spaces}東京\u{3000}1 \\u00a0\\\\\" , \t{{\n}} ]\n}}"
        );
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&text_of(text.as_bytes())), value(&text));
        let shown = text_of(text.as_bytes());
        assert_eq!(text_of(shown.as_bytes()), shown, "the text that comes back has no difference");
    }
}
