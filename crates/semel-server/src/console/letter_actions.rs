//! What can be done with dead letters: discard, restore, discard all that match, copy with another payload.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use semel_pipeline::id::LetterId;
use semel_pipeline::letter::{Letter, Status};
use serde_json::value::RawValue;

use super::actions;
use super::dead_letters::{LetterQuery, text_of};
use super::diff::Diff;
use super::html::{self, Html};
use super::page::{Confirm, Notice, Page, Section, answer, go, hidden, respond, show};
use super::strip::Strip;
use super::visitor::{Submission, Visitor};
use crate::admin::audit::run_to_completion;
use crate::admin::dead_letters::{
    ChangeRequest, DiscardRequest, DiscardResult, EditRequest, LetterAction, MOST_DISCARDED, RefusedDiscard,
    change, copy_edited, discard_many, matching,
};
use crate::admin::listing::id_of;
use crate::admin::{Admin, Refusal};

/// The most refusals that are named one by one.
const NAMED: usize = 10;

async fn letter(admin: &Admin, id: LetterId) -> Result<Letter, Refusal> {
    let story = admin.pipeline()?.ledger.letter(id).await?;
    Ok(story.ok_or_else(|| Refusal::not_found(format!("there is no dead letter {id}")))?.letter)
}

pub(super) async fn discard_form(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Response {
    answer(&admin, &visitor, change_page(&admin, &visitor, &id, LetterAction::Discard, None, "")).await
}

pub(super) async fn restore_form(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Response {
    answer(&admin, &visitor, change_page(&admin, &visitor, &id, LetterAction::Restore, None, "")).await
}

async fn change_page(
    admin: &Arc<Admin>,
    visitor: &Visitor,
    id: &str,
    action: LetterAction,
    problem: Option<String>,
    reason: &str,
) -> Result<Response, Refusal> {
    let id: LetterId = id_of(id)?;
    let letter = letter(admin, id).await?;
    let (verb, name, effect, action) = match action {
        LetterAction::Discard => (
            "Discard",
            "discard",
            "The dead letter is set aside: it is not replayed with others. Nothing is deleted, and it can be restored until it is swept.",
            actions::DISCARD,
        ),
        LetterAction::Restore => (
            "Restore",
            "restore",
            "The dead letter is pending again, and its failed replays are forgotten. Nothing is sent until it is replayed.",
            actions::RESTORE,
        ),
    };
    Ok(show(&Confirm {
        page: Page::new(admin, visitor, Section::DeadLetters, format!("{verb} a dead letter")).await,
        heading: format!("{verb} 1 dead letter"),
        effects: vec![effect.to_owned()],
        facts: vec![
            ("Dead letter", Html::text(id)),
            ("Status", html::named(letter.status.as_str())),
            ("Target", Html::text(letter.target.as_deref().unwrap_or("–"))),
            ("Error", Html::text(&letter.error)),
        ],
        fields: Html::default(),
        path: format!("/dead-letters/{id}/{name}"),
        button: format!("{verb} 1 dead letter"),
        is_dangerous: false,
        back: format!("/dead-letters/{id}"),
        command: format!("{} {id} --reason …", action.command),
        problem,
        reason: reason.to_owned(),
    }))
}

pub(super) async fn discard(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    form: Submission,
) -> Response {
    change_letter(&admin, &id, &form, LetterAction::Discard, "discarded").await
}

pub(super) async fn restore(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    form: Submission,
) -> Response {
    change_letter(&admin, &id, &form, LetterAction::Restore, "restored").await
}

async fn change_letter(
    admin: &Arc<Admin>,
    id: &str,
    form: &Submission,
    action: LetterAction,
    message: &str,
) -> Response {
    let visitor = &form.visitor;
    answer(admin, visitor, async {
        let letter: LetterId = id_of(id)?;
        let asked = ChangeRequest { reason: form.get("reason").to_owned() };
        let done = change(admin, &visitor.caller, letter, &asked, action).await;
        Strip::forget(admin);
        match done {
            Ok(_) => Ok(go(&format!("/dead-letters/{letter}"), message)),
            Err(refusal) => {
                change_page(admin, visitor, id, action, Some(refusal.detail().to_owned()), form.get("reason"))
                    .await
            }
        }
    })
    .await
}

pub(super) async fn discard_matching_form(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Query(query): Query<LetterQuery>,
) -> Response {
    answer(&admin, &visitor, discard_matching_page(&admin, &visitor, &query, None, None, "")).await
}

async fn discard_matching_page(
    admin: &Arc<Admin>,
    visitor: &Visitor,
    query: &LetterQuery,
    chosen: Option<Vec<LetterId>>,
    problem: Option<String>,
    reason: &str,
) -> Result<Response, Refusal> {
    let (found, has_more) = match chosen {
        Some(chosen) => (chosen, false),
        None if query.discardable().is_some() => matching(admin, &query.filter()?).await?,
        None => {
            let detail =
                "only dead letters that are pending or parked can be discarded: choose one of these states";
            return Err(Refusal::bad(detail));
        }
    };
    if found.is_empty() {
        return Err(Refusal::bad("no dead letter matches: nothing is discarded"));
    }
    let number = found.len();
    let noun = if number == 1 { "dead letter" } else { "dead letters" };
    let mut effects = vec![format!(
        "{number} {noun} with the status {} are set aside and not replayed with others. Nothing is deleted; each can be restored \
         until it is swept.",
        query.status
    )];
    if has_more {
        effects.push(format!(
            "More match: one form discards {MOST_DISCARDED}, the newest first. Repeat it for the rest."
        ));
    }
    let ids: Vec<String> = found.iter().map(ToString::to_string).collect();
    // The form has the ids: what is discarded is what was counted here, whatever matches the filter by then.
    let fields = [
        ("status", query.status.as_str()),
        ("target", &query.target),
        ("tenant", &query.tenant),
        ("signature", &query.signature),
        ("ids", &ids.join(",")),
    ];
    let fields: String = fields.iter().map(|(name, value)| hidden(name, value)).collect();
    let flags = [("--target", &query.target), ("--tenant", &query.tenant), ("--signature", &query.signature)];
    let flags = flags.iter().filter(|(_, value)| !value.is_empty());
    let mut flags: String = flags.map(|(flag, value)| format!("{flag} {} ", html::shell(value))).collect();
    // The command discards all that match.
    if !has_more {
        flags.push_str(&format!("--expected {number} "));
    }
    Ok(show(&Confirm {
        page: Page::new(admin, visitor, Section::DeadLetters, "Discard dead letters").await,
        heading: format!("Discard {number} {noun}"),
        effects,
        facts: vec![("Filter", Html::text(query.words()))],
        fields: Html::trusted(fields),
        path: actions::DISCARD_MATCHING.path.to_owned(),
        button: format!("Discard {number} {noun}"),
        is_dangerous: true,
        back: query.at("/dead-letters/list"),
        command: format!("{} {} {flags}--reason …", actions::DISCARD_MATCHING.command, query.status),
        problem,
        reason: reason.to_owned(),
    }))
}

pub(super) async fn discard_matching(State(admin): State<Arc<Admin>>, form: Submission) -> Response {
    let visitor = form.visitor.clone();
    answer(&admin, &visitor, async {
        let query = LetterQuery {
            status: form.get("status").to_owned(),
            target: form.get("target").to_owned(),
            tenant: form.get("tenant").to_owned(),
            signature: form.get("signature").to_owned(),
            ..LetterQuery::default()
        };
        let ids = form.get("ids").split(',').filter(|id| !id.is_empty());
        let ids = ids.map(id_of).collect::<Result<Vec<LetterId>, _>>()?;
        let status = query.discardable().filter(|_| !ids.is_empty() && ids.len() <= MOST_DISCARDED);
        let Some(status) = status else {
            return Err(Refusal::bad("nothing is selected: open the form from a list of dead letters"));
        };
        let reason = form.get("reason").to_owned();
        if let Err(refusal) = crate::admin::answer::reason(&reason) {
            let problem = Some(refusal.detail().to_owned());
            return discard_matching_page(&admin, &visitor, &query, Some(ids), problem, "").await;
        }
        let all = ids.len();
        let asked = DiscardRequest {
            status,
            target: None,
            tenant: None,
            signature: None,
            ids: Some(ids.iter().map(ToString::to_string).collect()),
            expected: all as u64,
            reason,
        };
        let (own, caller) = (Arc::clone(&admin), visitor.caller.clone());
        let result = run_to_completion(async move { discard_many(&own, &caller, asked).await }).await;
        Strip::forget(&admin);
        let DiscardResult { discarded, refused } = result?;
        let (already, refused): (Vec<_>, Vec<_>) =
            refused.into_iter().partition(|one| one.status == Some(Status::Discarded));
        let named = |all: Vec<RefusedDiscard>| -> Vec<String> {
            all.into_iter().map(|one| format!("{}: {}", one.id, one.error)).collect()
        };
        let (mut already, mut refused) = (named(already), named(refused));
        let shown = LetterQuery { status: "discarded".to_owned(), ..query.clone() };
        if discarded == all as u64 {
            return Ok(go(&shown.at("/dead-letters"), &format!("discarded:{all}")));
        }
        let mut links = vec![("Back to the list", query.at("/dead-letters/list"))];
        links.push(("Show the discarded ones", shown.at("/dead-letters/list")));
        let (status, heading, sentences) = if already.len() == all {
            let noun = if all == 1 { "The dead letter was" } else { "The dead letters were" };
            let sentence = match all {
                1 => "It was already discarded.".to_owned(),
                all => format!("All {all} were already discarded."),
            };
            (StatusCode::OK, format!("{noun} discarded before"), vec![sentence])
        } else {
            already.append(&mut refused);
            let named: Vec<&str> = already.iter().take(NAMED).map(String::as_str).collect();
            let more = already.len() - named.len();
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            let sentence = format!(
                "{discarded} of {all} dead letters are discarded. Not discarded: {}{more}",
                named.join("; ")
            );
            (StatusCode::CONFLICT, "Not all are discarded".to_owned(), vec![sentence])
        };
        let page = Page::new(&admin, &visitor, Section::DeadLetters, "Discard dead letters").await;
        Ok(respond(status, &Notice { page, heading, sentences, facts: Vec::new(), links }))
    })
    .await
}

#[derive(Template)]
#[template(path = "edit.html")]
struct EditPage {
    page: Page,
    id: String,
    error: String,
    payload: String,
    target: String,
    event_type: String,
    needs_target: bool,
    needs_type: bool,
    reason: String,
    diff: Option<Diff>,
    problem: Option<String>,
    command: &'static str,
}

pub(super) async fn edit_form(
    State(admin): State<Arc<Admin>>,
    visitor: Visitor,
    Path(id): Path<String>,
) -> Response {
    answer(&admin, &visitor, async {
        let letter = letter(&admin, id_of(&id)?).await?;
        let page = EditPage::new(&admin, &visitor, &letter, text_of(&letter.payload)).await;
        Ok(show(&page))
    })
    .await
}

impl EditPage {
    async fn new(admin: &Arc<Admin>, visitor: &Visitor, letter: &Letter, payload: String) -> Self {
        Self {
            page: Page::new(admin, visitor, Section::DeadLetters, "Edit as a copy").await,
            id: letter.id.to_string(),
            error: letter.error.clone(),
            payload,
            target: letter.target.clone().unwrap_or_default(),
            event_type: letter.event_type.clone().unwrap_or_default(),
            needs_target: letter.target.is_none(),
            needs_type: letter.event_type.is_none(),
            reason: String::new(),
            diff: None,
            problem: None,
            command: actions::EDIT.command,
        }
    }
}

/// Shows the difference first; the second form makes the copy.
pub(super) async fn edit(
    State(admin): State<Arc<Admin>>,
    Path(id): Path<String>,
    form: Submission,
) -> Response {
    let visitor = form.visitor.clone();
    answer(&admin, &visitor, async {
        let id: LetterId = id_of(&id)?;
        let letter = letter(&admin, id).await?;
        // Browsers send lines of a text area with a carriage return.
        let payload = form.get("payload").replace("\r\n", "\n");
        let mut page = EditPage::new(&admin, &visitor, &letter, payload.clone()).await;
        page.reason = form.get("reason").to_owned();
        let given = |name: &str| form.some(name);
        if page.needs_target {
            page.target = given("target").unwrap_or_default();
        }
        if page.needs_type {
            page.event_type = given("type").unwrap_or_default();
        }
        let diff = Diff::new(&text_of(&letter.payload), &text_of(payload.as_bytes()));
        let raw = match RawValue::from_string(payload) {
            Ok(raw) => raw,
            Err(error) => {
                page.problem = Some(format!("The payload is not JSON: {error}."));
                return Ok(show(&page));
            }
        };
        if form.get("step") != "copy" {
            if diff.is_empty() {
                page.problem = Some("The payload is the same as before.".to_owned());
            } else {
                page.diff = Some(diff);
            }
            return Ok(show(&page));
        }
        let asked = EditRequest {
            payload: raw,
            reason: page.reason.clone(),
            target: page.needs_target.then(|| page.target.clone()),
            r#type: page.needs_type.then(|| page.event_type.clone()),
        };
        let (own, caller) = (Arc::clone(&admin), visitor.caller.clone());
        let made = run_to_completion(async move { copy_edited(&own, &caller, id, asked).await }).await;
        Strip::forget(&admin);
        match made {
            Ok(made) => Ok(go(&format!("/dead-letters/{}", made.id), "edited")),
            Err(refusal) => {
                page.problem = Some(refusal.detail().to_owned());
                Ok(show(&page))
            }
        }
    })
    .await
}
