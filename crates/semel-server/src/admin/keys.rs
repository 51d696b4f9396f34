//! `/v1/keys`: list, show, forget, settle. Whatever changes a record by hand goes into the audit log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use semel::key::{Key, KeyId};
use semel::outcome::Outcome;
use semel::record::{Fence, Force, Phase, Ruling, Settlement};
use semel::store::{self, Scan, Snapshot, Store};
use semel::{Engine, record};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Admin;
use super::access::{Caller, Right};
use super::answer::{self, Answer, JsonBody, PathId, Refusal};
use super::api::{Api, Needs};
use super::audit::{self, AuditPlace, States, run_to_completion};
use super::listing::{Filters, ListQuery, ListRequest, Page, Parameter};
use super::records::{AnswerContent, KeyDetails, OutcomeContent, PHASES, phase_name, time};
use super::schema::OneOf;

const MAX_PAGE: usize = 1_000;
/// Pages that one request reads where some of the records do not match.
const PAGES: usize = 20;
/// No index holds the beginnings of keys: how many records are read at once to find some, and for how long.
const READ: usize = 200;
const SEARCH: Duration = Duration::from_millis(150);

pub(super) fn routes(api: &mut Api) {
    let missing = "No key has this ID.";
    let mut group = api.group("keys", "ID of the key: 32 hexadecimal characters.", Needs::Store);
    group.get("/v1/keys", list, "List keys, or find one by namespace, scope and key.");
    group.get("/v1/keys/{id}", show, "Show a key. Operators also see its outcome.").problem(404, missing);
    group
        .post(
            "/v1/keys/{id}/forget",
            forget,
            "Forget a key: the next call with it runs the effect again. A key that is claimed or in doubt is forgotten only \
             with `force`, which requires the role admin.",
        )
        .problem(404, missing)
        .problem(409, "Code `refused`: `phase` is the phase of the key. Code `stale`: the key has another `fence`.");
    group
        .post("/v1/keys/{id}/settle", settle, "Settle a key in doubt.")
        .problem(404, missing)
        .problem(409, "Code `refused`: the key is not in doubt. Code `stale`: the key has another `fence`.");
    group
        .post(
            "/v1/keys/{id}/preview",
            preview,
            "Show the answer that a settlement would give to clients. Changes nothing.",
        )
        .problem(404, missing)
        .problem(409, "Code `refused`: the key is not in doubt.");
    group
        .post(
            "/v1/keys/find",
            find_sent,
            "Find a key of the gateway by the key that a client sent. The server hashes it as the gateway does.",
        )
        .problem(501, "This server has no gateway.");
}

struct KeyFilters;

impl Filters for KeyFilters {
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::one_of::<Phase>("phase", "Only keys in this phase."),
        Parameter::text(
            "hint",
            "Only keys whose value starts with this; at most eight characters are compared.",
        ),
        Parameter::text("namespace", "Namespace of the key to find."),
        Parameter::text("scope", "Scope of the key to find; repeat it for each part."),
        Parameter::text("key", "Value of the key to find."),
    ];
}

async fn list(
    State(admin): State<Arc<Admin>>,
    query: ListQuery<KeyFilters>,
) -> Result<Answer<Page<KeyDetails>>, Refusal> {
    let FoundKeys { items, next, .. } = KeyQuery::read(query.read()?)?.find(&admin).await?;
    Page::answer(items.iter().map(KeyDetails::new).collect(), next.map(|id| id.to_string()))
}

/// What a list is asked for.
#[derive(Default)]
pub(crate) struct KeyQuery {
    pub(crate) phase: Option<Phase>,
    pub(crate) hint: Option<String>,
    pub(crate) key: Option<Key>,
    pub(crate) after: Option<KeyId>,
    pub(crate) limit: usize,
}

/// A page of keys.
pub(crate) struct FoundKeys {
    pub(crate) items: Vec<Snapshot>,
    /// Where the search goes on; `None` if there are no more records.
    pub(crate) next: Option<KeyId>,
    /// Records that were read for this page.
    pub(crate) searched: usize,
    limit: usize,
}

impl FoundKeys {
    /// True if the search stopped before the page was full: further records may match.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.next.is_some() && self.items.len() < self.limit
    }

    /// Adds the records of a page that match, up to the limit.
    fn add(&mut self, page: store::Page, matches: impl Fn(&Snapshot) -> bool) {
        self.next = page.next;
        let mut records = page.items.into_iter();
        for snapshot in records.by_ref() {
            self.searched += 1;
            if matches(&snapshot) {
                self.items.push(snapshot);
            }
            if self.items.len() >= self.limit {
                break;
            }
        }
        // The next page begins after the last record that is in this one.
        if let (Some(last), true) = (self.items.last(), records.next().is_some()) {
            self.next = Some(last.id);
        }
    }
}

impl KeyQuery {
    /// A page of the keys that match.
    pub(crate) async fn find(&self, admin: &Admin) -> Result<FoundKeys, Refusal> {
        self.find_within(admin, SEARCH).await
    }

    /// A page of the keys that match. A search by the beginning of a key ends after this time.
    pub(crate) async fn find_within(&self, admin: &Admin, time: Duration) -> Result<FoundKeys, Refusal> {
        let store = admin.engine.store();
        let Some(key) = &self.key else { return Ok(self.search(store.as_ref(), time).await?) };
        let id = key.id(&admin.secret).map_err(|error| Refusal::bad(error.to_string()))?;
        let mut found = self.nothing_yet();
        let items = store.get(id).await?.into_iter().collect();
        found.add(store::Page { items, next: None }, |snapshot| self.matches(snapshot));
        Ok(found)
    }

    fn nothing_yet(&self) -> FoundKeys {
        FoundKeys { items: Vec::new(), next: self.after, searched: 0, limit: self.limit }
    }

    /// Reads records until the page is full, or the time is over.
    async fn search(&self, store: &dyn Store, time: Duration) -> Result<FoundKeys, store::Error> {
        let (mut found, begun, mut pages) = (self.nothing_yet(), Instant::now(), 0);
        loop {
            let limit = if self.hint.is_some() { READ } else { self.limit - found.items.len() };
            let scan = Scan { phase: self.phase, after: found.next, limit };
            found.add(store.scan(scan).await?, |snapshot| self.matches(snapshot));
            pages += 1;
            let is_enough = if self.hint.is_some() { begun.elapsed() >= time } else { pages >= PAGES };
            if found.next.is_none() || found.items.len() >= self.limit || is_enough {
                return Ok(found);
            }
        }
    }

    fn read(mut asked: ListRequest) -> Result<Self, Refusal> {
        let after = asked.page.after.take().map(|cursor| cursor.parse()).transpose();
        let mut scopes = Vec::new();
        while let Some(scope) = asked.take("scope") {
            scopes.push(scope);
        }
        let key = match (asked.take("namespace"), asked.take("key")) {
            (Some(namespace), Some(value)) => {
                let key = scopes.iter().fold(Key::new(namespace), |key, scope| key.scope(scope));
                Some(key.value(value))
            }
            (None, None) if scopes.is_empty() => None,
            _ => {
                return Err(Refusal::bad(
                    "to find one key give namespace and key, and scope where it has one",
                ));
            }
        };
        Ok(Self {
            phase: asked.choice("phase", &PHASES)?,
            hint: asked.take("hint"),
            key,
            after: after.map_err(|_| Refusal::bad("cursor: expected the `next` of a page"))?,
            limit: usize::try_from(asked.page.limit).unwrap_or(MAX_PAGE),
        })
    }

    fn matches(&self, snapshot: &Snapshot) -> bool {
        let phase = snapshot.phase();
        // What was given back or forgotten leaves a stub; nobody looks for those unless they say so.
        self.phase.map_or(phase != Phase::Vacant, |wanted| wanted == phase)
            && self.hint.as_ref().is_none_or(|hint| {
                let cut: String = hint.chars().take(semel::key::Hint::LENGTH).collect();
                snapshot.record.hint.as_str().starts_with(&cut)
            })
    }
}

async fn show(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Answer<KeyDetails>, Refusal> {
    let (_, snapshot) = find(&admin.engine, &id).await?;
    let mut shown = KeyDetails::new(&snapshot);
    if caller.may(Right::Operate).is_ok() {
        let outcome = snapshot.record.outcome(snapshot.now);
        shown.returned = outcome.map(|outcome| OutcomeContent::new(outcome));
        shown.answer = outcome.filter(|outcome| outcome.kind() != "json").and_then(AnswerContent::new);
    }
    Answer::ok(shown)
}

/// A key as a client sent it.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct FindRequest {
    /// The idempotency key.
    pub(crate) key: String,
    /// The headers that name the caller, such as `Authorization`.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
}

async fn find_sent(
    State(admin): State<Arc<Admin>>,
    body: JsonBody<FindRequest>,
) -> Result<Answer<Page<KeyDetails>>, Refusal> {
    let found = find_by_sent_key(&admin, body.read()?).await?;
    Page::answer(found.iter().map(KeyDetails::new).collect(), None)
}

/// The records of a key as a client sent it: the gateway may know it under several rules.
///
/// # Errors
/// The headers name no caller, or this server has no gateway.
pub(crate) async fn find_by_sent_key(admin: &Admin, asked: FindRequest) -> Result<Vec<Snapshot>, Refusal> {
    let FindRequest { key, headers } = asked;
    let gateway = admin.gateway.as_ref().ok_or_else(|| {
        let detail = "this server has no gateway, so it does not know how a client's key is hashed; ask a server of the \
                      same store that has one, or use `semel keys list --namespace … --key …`";
        Refusal::new(StatusCode::NOT_IMPLEMENTED, "not_configured", detail)
    })?;
    let headers = header_map(&headers, "headers")?;
    let keys = gateway.possible_keys(&key, &headers).map_err(|reason| {
        Refusal::bad(match headers.is_empty() {
            true => "headers: a key belongs to the caller that sent it: give the header that names the caller, such as \
                     --header 'authorization: …'; `semel keys list --hint` finds keys by their first characters"
                .to_owned(),
            false => format!("headers: these name no caller of the gateway: {reason}"),
        })
    })?;
    let mut items = Vec::new();
    for key in keys {
        let id = key.id(&admin.secret).map_err(|error| Refusal::bad(format!("key: {error}")))?;
        items.extend(admin.engine.store().get(id).await?);
    }
    Ok(items)
}

/// Headers that somebody gives by hand.
fn header_map(given: &BTreeMap<String, String>, member: &str) -> Result<HeaderMap, Refusal> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
        else {
            return Err(Refusal::bad(format!("{member}: expected names and values of HTTP headers")));
        };
        headers.append(name, value);
    }
    Ok(headers)
}

/// Why a key is forgotten.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct ForgetRequest {
    /// Why; for the audit log.
    pub(crate) reason: String,
    /// Forget also a key that is claimed or in doubt.
    #[serde(default)]
    pub(crate) force: bool,
    /// The `fence` of the key when it was looked at. Nothing is changed if the key has another one now: it was claimed
    /// or settled since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<u64>,
}

async fn forget(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    body: JsonBody<ForgetRequest>,
) -> Result<Answer<KeyChange>, Refusal> {
    let asked = body.read()?;
    Answer::ok(run_to_completion(async move { forget_key(&admin, &caller, &id, asked).await }).await?)
}

pub(crate) async fn forget_key(
    admin: &Admin,
    caller: &Caller,
    id: &str,
    asked: ForgetRequest,
) -> Result<KeyChange, Refusal> {
    let ForgetRequest { reason, force, fence } = asked;
    let force = match fence.map(Fence::new) {
        _ if !force => Force::No,
        None => Force::Yes,
        // The store compares it in the same step.
        Some(fence) => Force::Attempt(fence),
    };
    if force != Force::No {
        caller.may(Right::Administrate)?;
    }
    let (id, before) = find(&admin.engine, id).await?;
    check_fence(&before, fence)?;
    let action = Action { admin, caller, name: "forget", reason: answer::reason(&reason)?, before: &before };
    let kept = action.announce().await?;
    let ruling = admin.engine.forget(id, force).await?;
    if let Ruling::Lost { .. } = ruling {
        action.note_refused().await;
        return Err(stale());
    }
    if let Ruling::Refused { phase } = ruling {
        let name = phase_name(phase);
        let detail =
            format!("the key is {name}: its effect may be running or have happened; only --force removes it");
        action.note_refused().await;
        return Err(Refusal::new(StatusCode::CONFLICT, "refused", detail).with_phase(phase));
    }
    action.done(kept).await
}

/// What became of the effect of a key in doubt: either `outcome` or `run`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct SettleRequest {
    /// Why; for the audit log.
    pub(crate) reason: String,
    /// The effect did not happen: the next call with the key runs it.
    #[serde(default)]
    pub(crate) run: bool,
    /// The effect happened, with this outcome. For a key of the gateway: {status, headers?, body?}, of which `status` is
    /// required; for any other key: any JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<Box<RawValue>>,
    /// The `fence` of the key when it was looked at. Nothing is changed if the key has another one now: somebody settled
    /// it, and another attempt is in doubt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<u64>,
}

async fn settle(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    body: JsonBody<SettleRequest>,
) -> Result<Answer<KeyChange>, Refusal> {
    let asked = body.read()?;
    Answer::ok(run_to_completion(async move { settle_key(&admin, &caller, &id, asked).await }).await?)
}

pub(crate) async fn settle_key(
    admin: &Admin,
    caller: &Caller,
    id: &str,
    asked: SettleRequest,
) -> Result<KeyChange, Refusal> {
    let (id, before) = find(&admin.engine, id).await?;
    let settlement = asked.settlement(&before)?;
    asked.check_shown(&before)?;
    let reason = asked.reason.as_str();
    let name = if settlement == Settlement::Run { "settle_run" } else { "settle_done" };
    let action = Action { admin, caller, name, reason: answer::reason(reason)?, before: &before };
    let kept = action.announce().await?;
    let ruling = match asked.fence {
        // The store compares it in the same step.
        Some(fence) => admin.engine.settle_attempt(id, Fence::new(fence), settlement).await?,
        None => admin.engine.settle(id, settlement).await?,
    };
    if let Ruling::Lost { .. } = ruling {
        action.note_refused().await;
        return Err(stale());
    }
    if let Ruling::Refused { phase } = ruling {
        action.note_refused().await;
        return Err(not_in_doubt(phase));
    }
    action.done(kept).await
}

impl SettleRequest {
    /// Refuses a key that is not in doubt, or whose attempt is not the one that was looked at.
    fn check_shown(&self, before: &Snapshot) -> Result<(), Refusal> {
        match before.phase() {
            Phase::InDoubt => check_fence(before, self.fence),
            // The ruling of the store names the phase.
            _ => Ok(()),
        }
    }

    fn settlement(&self, before: &Snapshot) -> Result<Settlement, Refusal> {
        match (self.run, &self.outcome) {
            (true, None) => Ok(Settlement::Run),
            (false, Some(outcome)) => Ok(Settlement::Done(Arc::new(settled(outcome, before)?))),
            _ => Err(Refusal::bad("give either `outcome` (it happened) or `run: true` (it did not)")),
        }
    }
}

/// The result of a settlement for clients.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Preview")]
pub(crate) struct SettlePreview {
    key: KeyDetails,
    /// The answer that every later request with the key gets. Null if the next one runs instead, or if no client of the
    /// gateway is answered.
    pub(crate) answer: Option<AnswerContent>,
    /// Names of headers that were given and are never stored, such as `set-cookie`: the answer does not have them.
    pub(crate) not_stored: Vec<String>,
}

async fn preview(
    State(admin): State<Arc<Admin>>,
    PathId(id): PathId,
    body: JsonBody<SettleRequest>,
) -> Result<Answer<SettlePreview>, Refusal> {
    let asked = body.read()?;
    let (_, before) = find(&admin.engine, &id).await?;
    Answer::ok(preview_settlement(&before, &asked)?)
}

/// The answer that a settlement would give. It needs no reason: nothing is done.
///
/// # Errors
/// The settlement cannot be used, or the key is not in doubt.
pub(crate) fn preview_settlement(before: &Snapshot, asked: &SettleRequest) -> Result<SettlePreview, Refusal> {
    let settlement = asked.settlement(before)?;
    if before.phase() != Phase::InDoubt {
        return Err(not_in_doubt(before.phase()));
    }
    asked.check_shown(before)?;
    let answer = match &settlement {
        Settlement::Done(outcome) if before.record.hint.origin().is_some() => AnswerContent::new(outcome),
        Settlement::Done(_) | Settlement::Run => None,
    };
    let not_stored = match (&answer, &asked.outcome) {
        (Some(answer), Some(outcome)) => headers_left_out(outcome, answer),
        _ => Vec::new(),
    };
    Ok(SettlePreview { key: KeyDetails::new(before), answer, not_stored })
}

/// The headers that were given and that the answer does not have.
fn headers_left_out(outcome: &RawValue, answer: &AnswerContent) -> Vec<String> {
    let given = serde_json::from_str(outcome.get()).map(|HandMade { headers, .. }| headers);
    let is_kept = |name: &str| answer.headers.iter().any(|(kept, _)| kept.eq_ignore_ascii_case(name));
    given.unwrap_or_default().into_keys().filter(|name| !is_kept(name)).collect()
}

/// Refuses a key whose fence is not the one that was looked at.
pub(crate) fn check_fence(before: &Snapshot, shown: Option<u64>) -> Result<(), Refusal> {
    match shown {
        Some(shown) if before.record.fence != Fence::new(shown) => Err(stale()),
        _ => Ok(()),
    }
}

fn stale() -> Refusal {
    let detail = "the key changed since it was shown: this is another attempt; look at it again";
    Refusal::new(StatusCode::CONFLICT, "stale", detail)
}

fn not_in_doubt(phase: Phase) -> Refusal {
    let detail = format!("the key is {}; only what is in doubt can be settled", phase_name(phase));
    Refusal::new(StatusCode::CONFLICT, "refused", detail).with_phase(phase)
}

/// An answer of the gateway, given by hand.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HandMade {
    status: u16,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<Box<RawValue>>,
}

/// The outcome that somebody gives by hand: an answer where it looks like one, any other JSON as it is. A client of the
/// gateway would take a value without a status for an answer of the upstream.
fn settled(outcome: &RawValue, before: &Snapshot) -> Result<Outcome, Refusal> {
    let HandMade { status, headers, body } = match serde_json::from_str(outcome.get()) {
        Ok(answer) => answer,
        Err(error) if before.record.hint.origin().is_some() => {
            return Err(Refusal::bad(format!(
                "outcome: this key belongs to the gateway, so its outcome is an answer: give {{\"status\": 201, \
                 \"headers\": {{…}}, \"body\": …}}; `status` is required: {error}",
            )));
        }
        Err(_) => return Ok(Outcome::new("json", outcome.get())),
    };
    // Whatever is stored is given to every client, and a settled key cannot be settled again.
    let status = StatusCode::from_u16(status).ok().filter(|status| (200..600).contains(&status.as_u16()));
    let status = status.ok_or_else(|| Refusal::bad("outcome: expected a status between 200 and 599"))?;
    let mut fields = header_map(&headers, "outcome")?;
    if let Some(problem) = fields.keys().find_map(unusable_header) {
        return Err(Refusal::bad(format!("outcome: {problem}")));
    }
    // A text is the body itself; anything else is JSON.
    let body = body.map(|body| match serde_json::from_str::<String>(body.get()) {
        Ok(text) => text,
        Err(_) => {
            fields.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            body.get().to_owned()
        }
    });
    let body = body.unwrap_or_default();
    if matches!(status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED)
        && !body.is_empty()
    {
        return Err(Refusal::bad(format!("outcome: an answer with status {} has no body", status.as_u16())));
    }
    let is_typed = fields.contains_key(header::CONTENT_TYPE);
    if !is_typed
        && body.trim_start().starts_with(['{', '['])
        && serde_json::from_str::<IgnoredAny>(&body).is_err()
    {
        return Err(Refusal::bad(
            "outcome: the body looks like JSON and is not; correct it, or give a content-type header if it is another text",
        ));
    }
    Ok(semel_http::stored::outcome(status, &fields, Bytes::from(body)))
}

/// Why a stored answer cannot have this header. Every client would get it, and could not read the answer.
fn unusable_header(name: &HeaderName) -> Option<String> {
    if *name == header::CONTENT_LENGTH {
        return Some("leave out the header content-length: it follows from the body".to_owned());
    }
    let is_of_connection = matches!(
        *name,
        header::CONNECTION | header::TE | header::TRAILER | header::TRANSFER_ENCODING | header::UPGRADE
    ) || name == "keep-alive"
        || name.as_str().starts_with("proxy-");
    is_of_connection.then(|| {
        format!("leave out the header {name}: it belongs to one connection and is not part of an answer")
    })
}

pub(crate) async fn find(engine: &Engine, id: &str) -> Result<(KeyId, Snapshot), Refusal> {
    let id: KeyId =
        id.parse().map_err(|error: semel::key::ParseKeyIdError| Refusal::bad(error.to_string()))?;
    let snapshot = engine.store().get(id).await?;
    snapshot.map(|snapshot| (id, snapshot)).ok_or_else(|| Refusal::not_found("no key has this id"))
}

/// A change of a key by an operator. It is in the audit log.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Changed")]
pub(crate) struct KeyChange {
    id: String,
    action: &'static str,
    /// Phase before the change.
    #[schemars(with = "OneOf<Phase>")]
    before: &'static str,
    /// Phase after the change; `unknown` if the store could not be read.
    #[schemars(with = "OneOf<Option<Phase>>")]
    after: &'static str,
    audit: AuditPlace,
}

impl KeyChange {
    /// Where the audit line of the change is.
    pub(crate) fn audit(&self) -> AuditPlace {
        self.audit
    }
}

/// The attempt of a key, which the next claim replaces in the record: its number, when it began and its request.
fn attempt_of(before: &Snapshot) -> String {
    let record = &before.record;
    let request = record.hint.origin().and_then(|origin| origin.request_id());
    let request = request.map_or_else(String::new, |id| format!(" for request {id}"));
    format!("attempt {} of {}{request}", record.attempt, time(record.claimed_at))
}

/// A change by hand: who, what, why, before and after (audit).
struct Action<'a> {
    admin: &'a Admin,
    caller: &'a Caller,
    name: &'static str,
    reason: &'a str,
    before: &'a Snapshot,
}

impl Action<'_> {
    /// Writes into the audit log what is about to be done.
    async fn announce(&self) -> Result<AuditPlace, Refusal> {
        let after = match self.name {
            "forget" => Phase::Vacant,
            "settle_run" => Phase::Bound,
            _ => Phase::Done,
        };
        let mut states = States::new(phase_name(self.before.phase()), phase_name(after));
        states.attempt = attempt_of(self.before);
        let subject = self.before.id.to_string();
        audit::write(self.admin, self.caller, self.name, subject, self.reason, &states).await
    }

    async fn done(self, kept: AuditPlace) -> Result<KeyChange, Refusal> {
        let id = self.before.id;
        // It is done, whether or not we can look at it.
        let after = self.admin.engine.store().get(id).await.ok().flatten();
        let phase = after.as_ref().map_or("unknown", |after| phase_name(after.phase()));
        self.log(phase, "done");
        let (id, before) = (id.to_string(), phase_name(self.before.phase()));
        Ok(KeyChange { id, action: self.name, before, after: phase, audit: kept })
    }

    async fn note_refused(&self) {
        let subject = self.before.id.to_string();
        let before = phase_name(self.before.phase());
        audit::write_refused(self.admin, self.caller, self.name, subject, self.reason, before).await;
        self.log(phase_name(self.before.phase()), "refused");
    }

    fn log(&self, after: &str, outcome: &str) {
        let record::Record { hint, fence, attempt, .. } = &self.before.record;
        tracing::info!(
            target: "semel::audit", audit = true,
            user = self.caller.name,
            operation = self.name,
            id = %self.before.id,
            key = %hint,
            fence = fence.get(),
            attempt,
            before = phase_name(self.before.phase()),
            after,
            reason = self.reason,
            outcome,
            "record changed by an operator"
        );
    }
}

#[cfg(test)]
mod tests {
    use semel::FailureExt as _;
    use semel::store::MemoryStore;

    use super::*;

    // A client that reads such a header cannot read the answer, and a settled key cannot be settled again.
    #[test]
    fn an_answer_has_no_header_of_a_connection() {
        let unusable = |name: &'static str| unusable_header(&HeaderName::from_static(name));
        for name in
            ["connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "proxy-status"]
        {
            assert!(unusable(name).is_some_and(|problem| problem.contains(name)), "{name}");
        }
        assert!(unusable("content-length").unwrap().contains("it follows from the body"));
        for name in ["location", "content-type", "date", "set-cookie"] {
            assert_eq!(unusable(name), None);
        }
    }

    // A search that stops early says so, and the next one goes on where it stopped.
    #[tokio::test]
    async fn a_search_says_where_it_stopped() {
        let engine = Engine::builder(MemoryStore::new()).build().unwrap();
        for number in 0..450 {
            let name = if number % 100 == 7 { format!("zebra-{number}") } else { format!("apple-{number}") };
            let key = Key::new("search").value(name);
            engine.once(key).run(async || Ok::<_, std::io::Error>("done".to_owned()).failed()).await.unwrap();
        }
        let search = |hint: &str, after, limit, time| {
            let query = KeyQuery { hint: Some(hint.to_owned()), after, limit, ..KeyQuery::default() };
            let store = engine.store().as_ref();
            async move { query.search(store, time).await.unwrap() }
        };
        let long = Duration::from_secs(600);
        let all = search("zebra-", None, 20, long).await;
        assert_eq!((all.items.len(), all.searched, all.next, all.is_cut_short()), (5, 450, None, false));
        // Without time, one page of records is read.
        let (mut found, mut after, mut searched) = (0, None, 0);
        loop {
            let page = search("zebra-", after, 20, Duration::ZERO).await;
            (found, searched, after) = (found + page.items.len(), searched + page.searched, page.next);
            assert_eq!(page.is_cut_short(), after.is_some());
            if after.is_none() {
                break;
            }
            assert_eq!(page.searched, READ);
        }
        assert_eq!((found, searched), (5, 450));
        // A full page is not cut short, and nothing is left out between two pages.
        let first = search("zebra-", None, 3, long).await;
        assert_eq!((first.items.len(), first.is_cut_short()), (3, false));
        let second = search("zebra-", first.next, 3, long).await;
        assert_eq!((second.items.len(), second.next), (2, None));
    }
}
