//! `/v1/keys`: list, show, forget, settle. Whatever changes a record by hand goes into the audit log.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use semel::key::{Key, KeyId};
use semel::outcome::Outcome;
use semel::record::{Force, Phase, Ruling, Settlement};
use semel::store::{self, Scan, Snapshot};
use semel::{Engine, record};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Admin;
use super::access::{Caller, Right};
use super::answer::{self, Answer, JsonBody, PathId, Refusal};
use super::api::{Api, Needs};
use super::audit::{self, AuditPlace, run_to_completion};
use super::listing::{Filters, ListQuery, ListRequest, Page, Parameter};
use super::records::{AnswerContent, KeyDetails, OutcomeContent, PHASES, phase_name};
use super::schema::OneOf;

const MAX_PAGE: usize = 1_000;
/// Pages that one request looks through for keys that fit a filter of ours.
const PAGES: usize = 20;
/// The maximum number of keys in doubt that are counted.
const COUNT_TO: u64 = 100_000;

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
        .problem(409, "Code `refused`: `phase` is the phase of the key.");
    group
        .post("/v1/keys/{id}/settle", settle, "Settle a key in doubt.")
        .problem(404, missing)
        .problem(409, "Code `refused`: the key is not in doubt.");
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
    let wanted = KeyQuery::read(query.read()?)?;
    if let Some(key) = &wanted.key {
        let id = key.id(&admin.secret).map_err(|error| Refusal::bad(error.to_string()))?;
        let found = admin.engine.store().get(id).await?;
        let found = found.iter().filter(|snapshot| wanted.matches(snapshot));
        return Page::answer(found.map(KeyDetails::new).collect(), None);
    }
    let mut items = Vec::new();
    let mut after = wanted.after;
    for _ in 0..PAGES {
        let scan = Scan { phase: wanted.phase, after, limit: wanted.limit - items.len() };
        let page = admin.engine.store().scan(scan).await?;
        items.extend(page.items.iter().filter(|snapshot| wanted.matches(snapshot)).map(KeyDetails::new));
        after = page.next;
        if after.is_none() || items.len() >= wanted.limit {
            break;
        }
    }
    Page::answer(items, after.map(|id| id.to_string()))
}

/// What a list is asked for.
struct KeyQuery {
    phase: Option<Phase>,
    hint: Option<String>,
    key: Option<Key>,
    after: Option<KeyId>,
    limit: usize,
}

impl KeyQuery {
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
    let FindRequest { key, headers } = body.read()?;
    let gateway = admin.gateway.as_ref().ok_or_else(|| {
        let detail = "this server has no gateway, so it does not know how a client's key is hashed; ask a server of the \
                      same store that has one, or use `semel keys list --namespace … --key …`";
        Refusal::new(StatusCode::NOT_IMPLEMENTED, "not_configured", detail)
    })?;
    let headers = header_map(&headers, "headers")?;
    let keys = gateway
        .possible_keys(&key, &headers)
        .map_err(|reason| Refusal::bad(format!("headers: these name no caller of the gateway: {reason}")))?;
    let mut items = Vec::new();
    for key in keys {
        let id = key.id(&admin.secret).map_err(|error| Refusal::bad(format!("key: {error}")))?;
        items.extend(admin.engine.store().get(id).await?.as_ref().map(KeyDetails::new));
    }
    Page::answer(items, None)
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
}

async fn forget(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    body: JsonBody<ForgetRequest>,
) -> Result<Answer<KeyChange>, Refusal> {
    let asked = body.read()?;
    run_to_completion(async move { forget_key(&admin, &caller, &id, asked).await }).await
}

async fn forget_key(
    admin: &Admin,
    caller: &Caller,
    id: &str,
    asked: ForgetRequest,
) -> Result<Answer<KeyChange>, Refusal> {
    let ForgetRequest { reason, force } = asked;
    let force = if force { Force::Yes } else { Force::No };
    if force == Force::Yes {
        caller.may(Right::Administrate)?;
    }
    let (id, before) = find(&admin.engine, id).await?;
    let action = Action { admin, caller, name: "forget", reason: answer::reason(&reason)?, before: &before };
    let kept = action.announce().await?;
    let ruling = admin.engine.forget(id, force).await?;
    if let Ruling::Refused { phase } = ruling {
        let name = phase_name(phase);
        let detail =
            format!("the key is {name}: its effect may be running or have happened; force takes it away");
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
}

async fn settle(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    body: JsonBody<SettleRequest>,
) -> Result<Answer<KeyChange>, Refusal> {
    let asked = body.read()?;
    run_to_completion(async move { settle_key(&admin, &caller, &id, asked).await }).await
}

async fn settle_key(
    admin: &Admin,
    caller: &Caller,
    id: &str,
    asked: SettleRequest,
) -> Result<Answer<KeyChange>, Refusal> {
    let (id, before) = find(&admin.engine, id).await?;
    let settlement = asked.settlement(&before)?;
    let reason = asked.reason;
    let name = if settlement == Settlement::Run { "settle_run" } else { "settle_done" };
    let action = Action { admin, caller, name, reason: answer::reason(&reason)?, before: &before };
    let kept = action.announce().await?;
    let ruling = admin.engine.settle(id, settlement).await?;
    if let Ruling::Refused { phase } = ruling {
        action.note_refused().await;
        return Err(not_in_doubt(phase));
    }
    action.done(kept).await
}

impl SettleRequest {
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
struct SettlePreview {
    key: KeyDetails,
    /// The answer that every later request with the key gets. Null if the next one runs instead, or if no client of the
    /// gateway is answered.
    answer: Option<AnswerContent>,
}

async fn preview(
    State(admin): State<Arc<Admin>>,
    PathId(id): PathId,
    body: JsonBody<SettleRequest>,
) -> Result<Answer<SettlePreview>, Refusal> {
    let asked = body.read()?;
    answer::reason(&asked.reason)?;
    let (_, before) = find(&admin.engine, &id).await?;
    let settlement = asked.settlement(&before)?;
    if before.phase() != Phase::InDoubt {
        return Err(not_in_doubt(before.phase()));
    }
    let answer = match &settlement {
        Settlement::Done(outcome) if before.record.hint.origin().is_some() => AnswerContent::new(outcome),
        Settlement::Done(_) | Settlement::Run => None,
    };
    Answer::ok(SettlePreview { key: KeyDetails::new(&before), answer })
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
    let Ok(HandMade { status, headers, body }) = serde_json::from_str(outcome.get()) else {
        if before.record.hint.origin().is_some() {
            return Err(Refusal::bad(
                "outcome: this key belongs to the gateway, so its outcome is an answer: give {\"status\": 201, \
                 \"headers\": {…}, \"body\": …}; `status` is required",
            ));
        }
        return Ok(Outcome::new("json", outcome.get()));
    };
    let status =
        StatusCode::from_u16(status).map_err(|_| Refusal::bad("outcome: status is no status of HTTP"))?;
    let mut fields = header_map(&headers, "outcome")?;
    // A text is the body itself; anything else is JSON.
    let body = body.map(|body| match serde_json::from_str::<String>(body.get()) {
        Ok(text) => text,
        Err(_) => {
            fields.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            body.get().to_owned()
        }
    });
    Ok(semel_http::stored::outcome(status, &fields, Bytes::from(body.unwrap_or_default())))
}

async fn find(engine: &Engine, id: &str) -> Result<(KeyId, Snapshot), Refusal> {
    let id: KeyId =
        id.parse().map_err(|error: semel::key::ParseKeyIdError| Refusal::bad(error.to_string()))?;
    let snapshot = engine.store().get(id).await?;
    snapshot.map(|snapshot| (id, snapshot)).ok_or_else(|| Refusal::not_found("no key has this id"))
}

/// A change of a key by an operator. It is in the audit log.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Changed")]
struct KeyChange {
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
        audit::write(self.admin, self.caller, self.name, self.before.id.to_string(), self.reason).await
    }

    async fn done(self, kept: AuditPlace) -> Result<Answer<KeyChange>, Refusal> {
        let id = self.before.id;
        // It is done, whether or not we can look at it.
        let after = self.admin.engine.store().get(id).await.ok().flatten();
        let phase = after.as_ref().map_or("unknown", |after| phase_name(after.phase()));
        self.log(phase, "done");
        let (id, before) = (id.to_string(), phase_name(self.before.phase()));
        Answer::ok(KeyChange { id, action: self.name, before, after: phase, audit: kept })
    }

    async fn note_refused(&self) {
        let subject = self.before.id.to_string();
        audit::write_refused(self.admin, self.caller, self.name, subject, self.reason).await;
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

/// How many keys are in doubt.
pub(super) async fn count_in_doubt(engine: &Engine) -> Result<u64, store::Error> {
    let (mut count, mut after) = (0, None);
    loop {
        let page = engine.store().scan(Scan { phase: Some(Phase::InDoubt), after, limit: MAX_PAGE }).await?;
        count += page.items.len() as u64;
        after = page.next;
        if after.is_none() || count >= COUNT_TO {
            return Ok(count);
        }
    }
}
