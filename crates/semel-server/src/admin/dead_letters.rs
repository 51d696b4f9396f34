//! `/v1/dead-letters`: list, show, groups, discard, restore; and the audit log.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use semel::time::{Clock as _, SystemClock};
use semel_pipeline::event::{NewEvent, Notes, Origin, Trace};
use semel_pipeline::id::{DeliveryId, EventId, EventKind, LetterId};
use semel_pipeline::ledger::{self, AuditLine, Audited, LetterFilter};
use semel_pipeline::letter::{Cause, FailureGroup, FailureGroups, Letter, SourceMessage, Status};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::Admin;
use super::access::{Caller, Right};
use super::answer::{self, Answer, JsonBody, PathId, Refusal};
use super::api::{Api, Needs};
use super::audit::{self, States, run_to_completion};
use super::deliveries::AttemptDetails;
use super::events::PayloadContent;
use super::listing::{Filters, ListQuery, ListRequest, Page, Parameter, id_of, read_in_parts};
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
        .post(
            "/v1/dead-letters/discard",
            discard_matching,
            "Discard the dead letters that match, or those with these IDs, if they are as many as expected. Each can be restored.",
        )
        .problem(409, "Code `stale`: another number of dead letters matches; nothing is discarded.");
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
    let page = read_in_parts(asked.page, |part| {
        let filter = filter.clone();
        async move {
            let found = pipeline.ledger.letters(filter, part).await?;
            Ok(Page::with(found.items.iter().map(DeadLetterDetails::new).collect(), found.next))
        }
    });
    Answer::ok(page.await?)
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

/// The most dead letters that one call discards.
pub(crate) const MOST_DISCARDED: usize = 1_000;
/// How many dead letters are read at once.
const AT_ONCE: u32 = 200;

/// A status of dead letters that can be discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum DiscardableStatus {
    Pending,
    Parked,
}

impl DiscardableStatus {
    /// The status of this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        [Self::Pending, Self::Parked].into_iter().find(|status| status.status().as_str() == name)
    }

    pub(crate) const fn status(self) -> Status {
        match self {
            Self::Pending => Status::Pending,
            Self::Parked => Status::Parked,
        }
    }
}

/// Dead letters to discard.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct DiscardRequest {
    /// Only dead letters with this status. One that has another status by then is left as it is.
    pub(crate) status: DiscardableStatus,
    /// Only dead letters of this target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    /// Only dead letters of this tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    /// Only dead letters with this failure signature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signature: Option<String>,
    /// Exactly these dead letters, instead of `target`, `tenant` and `signature`. At most 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ids: Option<Vec<String>>,
    /// Number of dead letters to discard, at most 1000. If another number matches, nothing is discarded.
    pub(crate) expected: u64,
    /// Why; for the audit log.
    pub(crate) reason: String,
}

/// What became of dead letters that were to be discarded.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct DiscardResult {
    pub(crate) discarded: u64,
    /// Dead letters that were left as they are: their status changed meanwhile.
    pub(crate) refused: Vec<RefusedDiscard>,
}

/// A dead letter that was not discarded.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct RefusedDiscard {
    #[schemars(with = "String")]
    pub(crate) id: LetterId,
    /// Its status now; null if it was removed.
    #[schemars(with = "Option<OneOf<Status>>")]
    pub(crate) status: Option<Status>,
    pub(crate) error: String,
}

async fn discard_matching(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    body: JsonBody<DiscardRequest>,
) -> Result<Answer<DiscardResult>, Refusal> {
    let asked = body.read()?;
    Answer::ok(run_to_completion(async move { discard_many(&admin, &caller, asked).await }).await?)
}

/// The dead letters of a filter, newest first, at most [`MOST_DISCARDED`]; true if there are more.
pub(crate) async fn matching(admin: &Admin, filter: &LetterFilter) -> Result<(Vec<LetterId>, bool), Refusal> {
    let ledger = &admin.pipeline()?.ledger;
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = ledger.letters(filter.clone(), ledger::Page { after, limit: AT_ONCE }).await?;
        found.extend(page.items.iter().map(|letter| letter.id));
        after = page.next;
        let has_more = found.len() > MOST_DISCARDED;
        if has_more || after.is_none() {
            found.truncate(MOST_DISCARDED);
            return Ok((found, has_more));
        }
    }
}

/// The dead letters that a request is for.
async fn to_discard(admin: &Admin, asked: &DiscardRequest) -> Result<Vec<LetterId>, Refusal> {
    let has_filter = [&asked.target, &asked.tenant, &asked.signature].iter().any(|part| part.is_some());
    if let Some(ids) = &asked.ids {
        if has_filter {
            return Err(Refusal::bad("ids: give ids, or target, tenant and signature"));
        }
        let mut ids = ids.iter().map(|id| id_of(id)).collect::<Result<Vec<LetterId>, _>>()?;
        let mut seen = BTreeSet::new();
        ids.retain(|id| seen.insert(*id));
        if ids.len() > MOST_DISCARDED {
            return Err(Refusal::bad(format!("ids: expected at most {MOST_DISCARDED}")));
        }
        if ids.len() as u64 != asked.expected {
            return Err(Refusal::bad(format!(
                "expected: there are {} ids, not {}",
                ids.len(),
                asked.expected
            )));
        }
        return Ok(ids);
    }
    if asked.expected > MOST_DISCARDED as u64 {
        return Err(Refusal::bad(format!(
            "expected: at most {MOST_DISCARDED} at once; name a narrower filter, or ids"
        )));
    }
    let filter = LetterFilter {
        status: Some(asked.status.status()),
        tenant: asked.tenant.clone(),
        target: asked.target.clone(),
        signature: asked.signature.clone(),
    };
    let (found, has_more) = matching(admin, &filter).await?;
    if has_more || found.len() as u64 != asked.expected {
        let number = if has_more { format!("more than {MOST_DISCARDED}") } else { found.len().to_string() };
        let detail = format!("{number} dead letters match, not {}; nothing was discarded", asked.expected);
        return Err(Refusal::new(StatusCode::CONFLICT, "stale", detail));
    }
    Ok(found)
}

/// Discards the dead letters that were shown, as long as they have the status that was shown.
///
/// # Errors
/// The request does not say what was shown, or the ledger fails; then it says how many were discarded.
pub(crate) async fn discard_many(
    admin: &Admin,
    caller: &Caller,
    asked: DiscardRequest,
) -> Result<DiscardResult, Refusal> {
    answer::reason(&asked.reason)?;
    let ids = to_discard(admin, &asked).await?;
    let (number, reason) = (ids.len(), ChangeRequest { reason: asked.reason });
    let mut result = DiscardResult { discarded: 0, refused: Vec::new() };
    for id in ids {
        match discard_shown(admin, caller, id, asked.status.status(), &reason).await {
            Ok(None) => result.discarded += 1,
            Ok(Some(refused)) => result.refused.push(refused),
            Err(refusal) => {
                let detail = format!(
                    "{} of {number} dead letters were discarded, then: {}",
                    result.discarded,
                    refusal.detail()
                );
                return Err(Refusal::new(refusal.status(), "store_unavailable", detail)
                    .with_retry_after(Duration::from_secs(1)));
            }
        }
    }
    Ok(result)
}

/// Discards a dead letter that still has the status that was shown. Returns why not.
async fn discard_shown(
    admin: &Admin,
    caller: &Caller,
    id: LetterId,
    shown: Status,
    asked: &ChangeRequest,
) -> Result<Option<RefusedDiscard>, Refusal> {
    let refused = |status, error: String| Ok(Some(RefusedDiscard { id, status, error }));
    let Some(story) = admin.pipeline()?.ledger.letter(id).await? else {
        return refused(None, format!("there is no dead letter {id}"));
    };
    let now = story.letter.status;
    if now != shown {
        return refused(Some(now), format!("it is {} now", now.as_str()));
    }
    match change(admin, caller, id, asked, LetterAction::Discard).await {
        Ok(_) => Ok(None),
        // Changed or removed since it was read.
        Err(refusal) if refusal.status().is_client_error() => {
            let now = admin.pipeline()?.ledger.letter(id).await?.map(|story| story.letter.status);
            refused(now, refusal.detail().to_owned())
        }
        Err(refusal) => Err(refusal),
    }
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
    /// Attempt of the key that was settled or forgotten: its number, time and request. Null for other changes.
    attempt: Option<String>,
}

impl AuditEntry {
    fn new(audited: &Audited) -> Self {
        let AuditLine { who, action, subject, .. } = audited.line.clone();
        let (reason, states) = audit::read(&audited.line);
        let attempt =
            states.as_ref().map(|states| states.attempt.clone()).filter(|attempt| !attempt.is_empty());
        let (before, after) = states.map(|states| (states.before, states.after)).unzip();
        Self { at: time(audited.at), who, action, subject, reason: reason.to_owned(), before, after, attempt }
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
