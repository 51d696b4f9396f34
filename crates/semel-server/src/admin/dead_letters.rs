//! `/v1/dead-letters`: list, show, groups, discard, restore; and the audit log.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::event::{NewEvent, Notes, Origin, Trace};
use semel_pipeline::id::{DeliveryId, EventId, EventKind, LetterId};
use semel_pipeline::ledger::{AuditLine, Audited, LetterFilter};
use semel_pipeline::letter::{Cause, FailureGroup, FailureGroups, Letter, SourceMessage, Status};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::Admin;
use super::access::{Caller, Right};
use super::answer::{self, Answer, JsonBody, PathId, Refusal};
use super::api::{Api, Needs};
use super::audit::{self, States};
use super::deliveries::AttemptDetails;
use super::events::PayloadContent;
use super::listing::{Filters, ListQuery, ListRequest, Page, Parameter, id_of};
use super::records::time;
use super::schema::OneOf;

pub(super) fn routes(api: &mut Api) {
    let (missing, tag) = ("No dead letter has this ID.", "dead letters");
    let mut group = api.group(tag, "ID of the dead letter: dlq_….", Needs::Ledger);
    group.get("/v1/dead-letters", list, "List dead letters, the newest first.");
    group.get(
        "/v1/dead-letters/groups",
        groups,
        "Group dead letters by failure signature, the largest group first.",
    );
    group
        .get(
            "/v1/dead-letters/{id}",
            show,
            "Show a dead letter with its attempts. Operators also see its payload.",
        )
        .problem(404, missing);
    group
        .post("/v1/dead-letters/{id}/discard", discard, "Discard a dead letter. It can be restored.")
        .problem(404, missing)
        .problem(409, "Code `refused`: the status of the dead letter does not allow it.");
    group
        .post(
            "/v1/dead-letters/{id}/restore",
            restore,
            "Make a discarded or parked dead letter pending again.",
        )
        .problem(404, missing)
        .problem(409, "Code `refused`: the status of the dead letter does not allow it.");
    group
        .post(
            "/v1/dead-letters/{id}/edit",
            edit,
            "Copy a dead letter with another payload. The copy is an event of its own; nothing is sent until it is replayed.",
        )
        .success(&[(201, "The copy.")])
        .problem(404, missing);
    group.get("/v1/audit", audit_log, "List changes by operators, the newest first.");
}

/// A dead letter.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeadLetter")]
pub(super) struct DeadLetterDetails {
    /// dlq_…
    #[schemars(with = "String")]
    id: LetterId,
    #[schemars(with = "OneOf<Status>")]
    status: Status,
    #[schemars(with = "OneOf<Cause>")]
    cause: Cause,
    /// The last failure.
    error: String,
    /// Groups dead letters with the same kind of failure.
    signature: String,
    #[schemars(with = "Option<String>")]
    event_id: Option<EventId>,
    #[schemars(with = "Option<String>")]
    delivery_id: Option<DeliveryId>,
    target: Option<String>,
    r#type: Option<String>,
    tenant: String,
    source: Option<MessageSource>,
    content_type: String,
    /// Size of the payload.
    bytes: usize,
    headers: Vec<(String, String)>,
    attempts_made: u32,
    last_attempt_at: Option<String>,
    failed_replays: u32,
    /// The dead letter of which this is a copy.
    #[schemars(with = "Option<String>")]
    copy_of: Option<LetterId>,
    created_at: String,
    updated_at: String,
    /// Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<Vec<AttemptDetails>>,
    /// Copies of this dead letter. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Vec<String>>")]
    copies: Option<Vec<LetterId>>,
    #[serde(flatten)]
    payload: PayloadContent,
}

/// Stream and message that a dead letter came from.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct MessageSource {
    stream: String,
    message: String,
}

impl DeadLetterDetails {
    /// The dead letter without its attempts, copies and payload.
    fn new(letter: &Letter) -> Self {
        Self {
            id: letter.id,
            status: letter.status,
            cause: letter.cause,
            error: letter.error.clone(),
            signature: letter.signature.as_str().to_owned(),
            event_id: letter.event,
            delivery_id: letter.delivery,
            target: letter.target.clone(),
            r#type: letter.event_type.clone(),
            tenant: letter.tenant.clone(),
            source: letter
                .source
                .clone()
                .map(|SourceMessage { stream, message }| MessageSource { stream, message }),
            content_type: letter.content_type.clone(),
            bytes: letter.payload.len(),
            headers: letter.headers.clone(),
            attempts_made: letter.attempts,
            last_attempt_at: letter.last_attempt_at.map(time),
            failed_replays: letter.failed_replays,
            copy_of: letter.copy_of,
            created_at: time(letter.created_at),
            updated_at: time(letter.updated_at),
            attempts: None,
            copies: None,
            payload: PayloadContent::default(),
        }
    }
}

/// Dead letters with the same failure signature.
#[derive(Serialize, JsonSchema)]
pub(super) struct DeadLetterGroup {
    signature: String,
    target: Option<String>,
    #[schemars(with = "OneOf<Cause>")]
    cause: Cause,
    count: u64,
    /// Number of dead letters by status.
    by_status: Map<String, Value>,
    first_at: String,
    last_at: String,
    /// ID of a dead letter of the group.
    #[schemars(with = "String")]
    sample: LetterId,
    error: String,
}

impl DeadLetterGroup {
    fn new(group: &FailureGroup) -> Self {
        let by_status =
            group.counts.iter().map(|(status, count)| (status.as_str().to_owned(), (*count).into()));
        Self {
            signature: group.signature.as_str().to_owned(),
            target: group.target.clone(),
            cause: group.cause,
            count: group.counts.iter().map(|(_, count)| count).sum(),
            by_status: by_status.collect(),
            first_at: time(group.first_at),
            last_at: time(group.last_at),
            sample: group.sample,
            error: group.error.clone(),
        }
    }
}

/// Groups of dead letters, the largest first.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct GroupPage {
    items: Vec<DeadLetterGroup>,
    /// Always null: all groups are in one page.
    next: Option<String>,
    /// True if there are more than 100,000 dead letters, or that many with this `status`: the oldest are not counted.
    partial: bool,
}

struct DeadLetterFilters;

impl Filters for DeadLetterFilters {
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::one_of::<Status>("status", "Only dead letters with this status."),
        Parameter::text("tenant", "Only dead letters of this tenant."),
        Parameter::text("target", "Only dead letters of this target."),
        Parameter::text("signature", "Only dead letters with this failure signature."),
    ];
}

fn filter(asked: &mut ListRequest) -> Result<LetterFilter, Refusal> {
    Ok(LetterFilter {
        status: asked.choice("status", &Status::ALL.map(|status| (status.as_str(), status)))?,
        tenant: asked.take("tenant"),
        target: asked.take("target"),
        signature: asked.take("signature"),
    })
}

async fn list(
    State(admin): State<Arc<Admin>>,
    query: ListQuery<DeadLetterFilters>,
) -> Result<Answer<Page<DeadLetterDetails>>, Refusal> {
    let pipeline = admin.pipeline()?;
    let mut asked = query.read()?;
    let filter = filter(&mut asked)?;
    Page::of(pipeline.ledger.letters(filter, asked.page).await?, DeadLetterDetails::new)
}

async fn groups(
    State(admin): State<Arc<Admin>>,
    query: ListQuery<DeadLetterFilters>,
) -> Result<Answer<GroupPage>, Refusal> {
    let pipeline = admin.pipeline()?;
    let FailureGroups { groups, is_partial } = pipeline.ledger.groups(filter(&mut query.read()?)?).await?;
    let items = groups.iter().map(DeadLetterGroup::new).collect();
    Answer::ok(GroupPage { items, next: None, partial: is_partial })
}

async fn show(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Answer<DeadLetterDetails>, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: LetterId = id_of(&id)?;
    let story = pipeline.ledger.letter(id).await?;
    let story = story.ok_or_else(|| Refusal::not_found(format!("there is no dead letter {id}")))?;
    let mut shown = DeadLetterDetails::new(&story.letter);
    shown.attempts = Some(story.attempts.iter().map(AttemptDetails::new).collect());
    shown.copies = Some(story.copies);
    if caller.may(Right::Operate).is_ok() {
        shown.payload = PayloadContent::new(&story.letter.payload);
    }
    Answer::ok(shown)
}

/// Why an operator changes something.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct ChangeRequest {
    /// Why; for the audit log.
    pub(crate) reason: String,
}

/// A change of a dead letter. It is in the audit log.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct DeadLetterChange {
    #[schemars(with = "String")]
    id: LetterId,
    action: &'static str,
    #[schemars(with = "Option<OneOf<Status>>")]
    status: Option<Status>,
}

async fn discard(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    body: JsonBody<ChangeRequest>,
) -> Result<Answer<DeadLetterChange>, Refusal> {
    Answer::ok(change(&admin, &caller, id_of(&id)?, &body.read()?, LetterAction::Discard).await?)
}

async fn restore(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    body: JsonBody<ChangeRequest>,
) -> Result<Answer<DeadLetterChange>, Refusal> {
    Answer::ok(change(&admin, &caller, id_of(&id)?, &body.read()?, LetterAction::Restore).await?)
}

/// What an operator does with a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LetterAction {
    Discard,
    Restore,
}

/// Discards or restores a dead letter.
///
/// # Errors
/// There is no such dead letter, or its status does not allow it.
pub(crate) async fn change(
    admin: &Admin,
    caller: &Caller,
    id: LetterId,
    asked: &ChangeRequest,
    change: LetterAction,
) -> Result<DeadLetterChange, Refusal> {
    let pipeline = admin.pipeline()?;
    let reason = &asked.reason;
    let action = match change {
        LetterAction::Discard => "discard",
        LetterAction::Restore => "restore",
    };
    let reason_given = answer::reason(reason)?;
    let story = pipeline.ledger.letter(id).await?;
    let before =
        story.ok_or_else(|| Refusal::not_found(format!("there is no dead letter {id}")))?.letter.status;
    let after = match change {
        LetterAction::Discard => Status::Discarded,
        LetterAction::Restore => Status::Pending,
    };
    let states = States::new(before.as_str(), after.as_str());
    let line = audit::line(caller, action, id.to_string(), reason_given, &states);
    // The ledger writes the change and its line in one transaction.
    match change {
        LetterAction::Discard => pipeline.ledger.discard(id, line).await?,
        LetterAction::Restore => pipeline.ledger.restore(id, line).await?,
    }
    tracing::info!(
        target: "semel::audit", audit = true,
        user = caller.name,
        operation = action,
        dlq_id = %id,
        reason,
        outcome = "done",
        "dead letter changed by an operator"
    );
    let status = pipeline.ledger.letter(id).await?.map(|story| story.letter.status);
    Ok(DeadLetterChange { id, action, status })
}

/// Another payload for a copy of a dead letter.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct EditRequest {
    pub(crate) payload: Box<RawValue>,
    /// Why; for the audit log.
    pub(crate) reason: String,
    /// Required if the dead letter has no target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    /// Required if the dead letter has no type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) r#type: Option<String>,
}

/// An edited copy of a dead letter.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct EditResult {
    /// ID of the copy: dlq_….
    #[schemars(with = "String")]
    pub(crate) id: LetterId,
    #[schemars(with = "String")]
    copy_of: LetterId,
    #[schemars(with = "String")]
    event_id: EventId,
    #[schemars(with = "OneOf<Status>")]
    status: Status,
}

async fn edit(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    body: JsonBody<EditRequest>,
) -> Result<Answer<EditResult>, Refusal> {
    let result = copy_edited(&admin, &caller, id_of(&id)?, body.read()?).await?;
    Ok(Answer::new(StatusCode::CREATED, result))
}

/// Copies a dead letter with another payload.
///
/// # Errors
/// The payload or the target cannot be used.
pub(crate) async fn copy_edited(
    admin: &Admin,
    caller: &Caller,
    id: LetterId,
    asked: EditRequest,
) -> Result<EditResult, Refusal> {
    let pipeline = admin.pipeline()?;
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
        // Two copies are never the same: an edit means this one.
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
    // The letter itself does not change.
    let before = letter.status.as_str();
    let states = States::new(before, format!("{before}, copied as {event}"));
    let line = audit::line(caller, "edit", id.to_string(), &reason, &states);
    let made = pipeline.ledger.edit(id, copy, line).await?;
    tracing::info!(
        target: "semel::audit", audit = true,
        user = caller.name,
        operation = "edit",
        dlq_id = %id,
        copy = %made,
        reason,
        outcome = "done",
        "edited copy of a dead letter created"
    );
    Ok(EditResult { id: made, copy_of: id, event_id: event, status: Status::Pending })
}

struct AuditFilters;

impl Filters for AuditFilters {
    const PARAMETERS: &'static [Parameter] =
        &[Parameter::text("subject", "Only changes of the thing with this ID.")];
}

/// A line of the audit log.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Audited")]
struct AuditEntry {
    at: String,
    /// Name of the token.
    who: String,
    action: String,
    /// ID of the changed thing.
    subject: String,
    reason: String,
    /// State before the change; null in entries of earlier versions.
    before: Option<String>,
    /// State after the change.
    after: Option<String>,
}

impl AuditEntry {
    fn new(audited: &Audited) -> Self {
        let AuditLine { who, action, subject, .. } = audited.line.clone();
        let (reason, states) = audit::read(&audited.line);
        let (before, after) = states.map(|states| (states.before, states.after)).unzip();
        Self { at: time(audited.at), who, action, subject, reason: reason.to_owned(), before, after }
    }
}

async fn audit_log(
    State(admin): State<Arc<Admin>>,
    query: ListQuery<AuditFilters>,
) -> Result<Answer<Page<AuditEntry>>, Refusal> {
    let pipeline = admin.pipeline()?;
    let mut asked = query.read()?;
    let subject = asked.take("subject");
    Page::of(pipeline.ledger.audit_log(subject, asked.page).await?, AuditEntry::new)
}
