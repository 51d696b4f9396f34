//! `/v1/dead-letters`: list, show, groups, discard, restore; and the audit log.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::event::{NewEvent, Notes, Origin, Trace};
use semel_pipeline::id::{EventId, EventKind, LetterId};
use semel_pipeline::ledger::{AuditLine, LetterFilter};
use semel_pipeline::letter::Status;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::Admin;
use super::access::{Caller, Right};
use super::answer::{self, Named, Refusal};
use super::listing::{Asked, id_of, items};
use super::{shown, told};

const FILTERS: [&str; 4] = ["status", "tenant", "target", "signature"];

fn filter(asked: &mut Asked) -> Result<LetterFilter, Refusal> {
    Ok(LetterFilter {
        status: asked.choice("status", &Status::ALL.map(|status| (status.as_str(), status)))?,
        tenant: asked.take("tenant"),
        target: asked.take("target"),
        signature: asked.take("signature"),
    })
}

/// Lists dead letters, the newest first.
pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let mut asked = Asked::read(query, &FILTERS)?;
    let filter = filter(&mut asked)?;
    let page = pipeline.ledger.letters(filter, asked.page()).await?;
    items(page.items.iter().map(told::letter), page.next)
}

/// Dead letters that failed alike, the largest group first.
pub(super) async fn groups(
    State(admin): State<Arc<Admin>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let mut asked = Asked::read(query, &FILTERS)?;
    let groups = pipeline.ledger.groups(filter(&mut asked)?).await?;
    items(groups.iter().map(told::group), None)
}

/// One dead letter with every attempt. Whoever may operate also sees its payload.
pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: LetterId = id_of(&id)?;
    let story = pipeline.ledger.letter(id).await?;
    let story = story.ok_or_else(|| Refusal::not_found(format!("there is no dead letter {id}")))?;
    let payload = caller.may(Right::Operate).is_ok().then_some(&story.letter.payload);
    let text = told::with_payload(&told::letter_story(&story), payload)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reason {
    reason: String,
}

/// Gives a letter up. It can be restored.
pub(super) async fn discard(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
    body: Bytes,
) -> Result<Response, Refusal> {
    change(&admin, &caller, &id, &body, Change::Discard).await
}

/// Takes that back.
pub(super) async fn restore(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
    body: Bytes,
) -> Result<Response, Refusal> {
    change(&admin, &caller, &id, &body, Change::Restore).await
}

#[derive(Clone, Copy)]
enum Change {
    Discard,
    Restore,
}

async fn change(
    admin: &Admin,
    caller: &Caller,
    id: &str,
    body: &[u8],
    change: Change,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: LetterId = id_of(id)?;
    let Reason { reason } = answer::body(body)?;
    let action = match change {
        Change::Discard => "discard",
        Change::Restore => "restore",
    };
    let line = AuditLine {
        who: caller.name.clone(),
        action: action.to_owned(),
        subject: id.to_string(),
        reason: answer::reason(&reason)?.to_owned(),
    };
    // The ledger writes the change and its line in one transaction.
    match change {
        Change::Discard => pipeline.ledger.discard(id, line).await?,
        Change::Restore => pipeline.ledger.restore(id, line).await?,
    }
    tracing::info!(
        target: "semel::audit", audit = true,
        user = caller.name,
        operation = action,
        dlq_id = %id,
        reason,
        outcome = "done",
        "a dead letter was changed by hand"
    );
    let status = pipeline.ledger.letter(id).await?.map(|story| story.letter.status);
    answer::json(&json!({ "id": id, "action": action, "status": status }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    payload: Box<RawValue>,
    reason: String,
    target: Option<String>,
    r#type: Option<String>,
}

/// Makes a copy of a letter with another payload: an event of its own, linked both ways, to be replayed as any other. Nothing is
/// sent yet, and the letter stays as it is.
pub(super) async fn edit(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
    body: Bytes,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: LetterId = id_of(&id)?;
    let asked: Edit = answer::body(&body)?;
    let reason = answer::reason(&asked.reason)?.to_owned();
    if asked.payload.get().len() > pipeline.max_payload {
        return Err(Refusal::bad("payload: it is larger than `payload` in [limits] allows"));
    }
    let story = pipeline.ledger.letter(id).await?;
    let letter = story.ok_or_else(|| Refusal::not_found(format!("there is no dead letter {id}")))?.letter;
    let needed = |what: &str, given: Option<String>, own: Option<&String>| {
        let missing = || Refusal::bad(format!("{what}: the letter has none, so name one"));
        given.or_else(|| own.cloned()).ok_or_else(missing)
    };
    let target = needed("target", asked.target, letter.target.as_ref())?;
    if !pipeline.registry.current().names().contains(&target) {
        return Err(Refusal::bad(format!("target: there is no target {target:?}")));
    }
    let now = SystemClock.now();
    let copy = NewEvent {
        id: EventId::new(EventKind::Event, now),
        tenant: letter.tenant.clone(),
        event_type: needed("type", asked.r#type, letter.event_type.as_ref())?,
        // A copy is never the same as another: whoever edits means this one.
        dedupe: None,
        payload: asked.payload.get().to_owned().into(),
        content_type: "application/json".to_owned(),
        headers: letter.headers.clone(),
        order_key: None,
        origin: match letter.event {
            Some(of) => Origin::Replay { of },
            None => Origin::Api { principal: caller.name.clone() },
        },
        targets: vec![target],
        delay: Duration::ZERO,
        deliver_within: None,
        notes: Notes::default(),
        trace: Trace::default(),
    };
    let event = copy.id;
    let line = AuditLine {
        who: caller.name.clone(),
        action: "edit".to_owned(),
        subject: id.to_string(),
        reason: reason.clone(),
    };
    let made = pipeline.ledger.edit(id, copy, line).await?;
    tracing::info!(
        target: "semel::audit", audit = true,
        user = caller.name,
        operation = "edit",
        dlq_id = %id,
        copy = %made,
        reason,
        outcome = "done",
        "an edited copy of a dead letter was made"
    );
    let mut response =
        answer::json(&json!({ "id": made, "copy_of": id, "event_id": event, "status": "pending" }))?;
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

/// The audit log, the newest line first.
pub(super) async fn audit(
    State(admin): State<Arc<Admin>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let mut asked = Asked::read(query, &["subject"])?;
    let subject = asked.take("subject");
    let page = pipeline.ledger.audit_log(subject, asked.page()).await?;
    let shown = page.items.iter().map(|audited| {
        let line = &audited.line;
        json!({
            "at": shown::time(audited.at),
            "who": line.who,
            "action": line.action,
            "subject": line.subject,
            "reason": line.reason,
        })
    });
    items(shown, page.next)
}
