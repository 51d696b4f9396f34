//! `/v1/keys`: list, show, forget, settle. Whatever changes a record by hand goes into the audit log.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use semel::key::{Key, KeyId};
use semel::outcome::Outcome;
use semel::record::{Force, Phase, Ruling, Settlement};
use semel::store::{self, Scan, Snapshot};
use semel::{Engine, record};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Admin;
use super::access::{Caller, Right};
use super::answer::{self, Named, Refusal};
use super::audit::{self, to_the_end};
use super::shown::{self, PHASES, Returned, phase_name};

const MOST: usize = 1_000;
/// Pages that one request looks through for keys that fit a filter of ours.
const PAGES: usize = 20;
/// Beyond so many keys in doubt, the number no longer matters.
const COUNT_TO: u64 = 100_000;

/// Lists keys page by page, or finds one by namespace, scope and value.
pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let mut wanted = Wanted::read(query)?;
    if let Some(key) = wanted.key.take() {
        let id = key.id(&admin.secret).map_err(|error| Refusal::bad(error.to_string()))?;
        let found = admin.engine.store().get(id).await?;
        let items: Vec<Value> =
            found.iter().filter(|snapshot| wanted.fits(snapshot)).map(shown::record).collect();
        return answer::json(&json!({ "items": items, "next": null }));
    }
    let mut items = Vec::new();
    let mut after = wanted.after;
    for _ in 0..PAGES {
        let scan = Scan { phase: wanted.phase, after, limit: wanted.limit - items.len() };
        let page = admin.engine.store().scan(scan).await?;
        items.extend(page.items.iter().filter(|snapshot| wanted.fits(snapshot)).map(shown::record));
        after = page.next;
        if after.is_none() || items.len() >= wanted.limit {
            break;
        }
    }
    answer::json(&json!({ "items": items, "next": after.map(|id| id.to_string()) }))
}

/// What a list is asked for.
struct Wanted {
    phase: Option<Phase>,
    hint: Option<String>,
    key: Option<Key>,
    after: Option<KeyId>,
    limit: usize,
}

impl Wanted {
    fn read(query: Vec<(String, String)>) -> Result<Self, Refusal> {
        let mut wanted = Self { phase: None, hint: None, key: None, after: None, limit: 100 };
        let (mut namespace, mut value, mut scopes) = (None, None, Vec::new());
        for (name, given) in query {
            match name.as_str() {
                "phase" => {
                    let known: HashMap<_, _> = PHASES.into_iter().collect();
                    let phase = known.get(given.as_str()).copied();
                    wanted.phase = Some(phase.ok_or_else(|| {
                        let names = PHASES.map(|(name, _)| name).join(", ");
                        Refusal::bad(format!("phase: expected one of {names}"))
                    })?);
                }
                "hint" => wanted.hint = Some(given),
                "namespace" => namespace = Some(given),
                "scope" => scopes.push(given),
                "key" => value = Some(given),
                "cursor" => {
                    let id =
                        given.parse().map_err(|_| Refusal::bad("cursor: expected the `next` of a page"))?;
                    wanted.after = Some(id);
                }
                "limit" => {
                    let limit = given.parse().ok().filter(|limit| (1..=MOST).contains(limit));
                    wanted.limit = limit
                        .ok_or_else(|| Refusal::bad(format!("limit: expected a number from 1 to {MOST}")))?;
                }
                other => {
                    let known = "phase, hint, namespace, scope, key, cursor, limit";
                    return Err(Refusal::bad(format!("{other:?} is not known here; there are {known}")));
                }
            }
        }
        match (namespace, value) {
            (Some(namespace), Some(value)) => {
                let key = scopes.iter().fold(Key::new(namespace), |key, scope| key.scope(scope));
                wanted.key = Some(key.value(value));
            }
            (None, None) if scopes.is_empty() => {}
            _ => {
                return Err(Refusal::bad(
                    "to find one key give namespace and key, and scope where it has one",
                ));
            }
        }
        Ok(wanted)
    }

    fn fits(&self, snapshot: &Snapshot) -> bool {
        let phase = snapshot.phase();
        // What was given back or forgotten leaves a stub; nobody looks for those unless they say so.
        self.phase.map_or(phase != Phase::Vacant, |wanted| wanted == phase)
            && self.hint.as_ref().is_none_or(|hint| {
                let cut: String = hint.chars().take(semel::key::Hint::LENGTH).collect();
                snapshot.record.hint.as_str().starts_with(&cut)
            })
    }
}

/// One key. Whoever may settle it also sees what it returned.
pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
) -> Result<Response, Refusal> {
    let (_, snapshot) = find(&admin.engine, &id).await?;
    let shown = shown::record(&snapshot);
    let returned = match (snapshot.record.outcome(snapshot.now), caller.may(Right::Operate)) {
        (Some(outcome), Ok(())) => Some(Returned::of(outcome)),
        _ => None,
    };
    answer::json(&Shown { shown: &shown, returned })
}

#[derive(serde::Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    shown: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    returned: Option<Returned>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Forget {
    reason: String,
    #[serde(default)]
    force: bool,
}

/// Takes a record away.
pub(super) async fn forget(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
    body: Bytes,
) -> Result<Response, Refusal> {
    let asked = answer::body(&body)?;
    to_the_end(async move { forget_key(&admin, &caller, &id, asked).await }).await
}

async fn forget_key(admin: &Admin, caller: &Caller, id: &str, asked: Forget) -> Result<Response, Refusal> {
    let Forget { reason, force } = asked;
    let force = if force { Force::Yes } else { Force::No };
    if force == Force::Yes {
        caller.may(Right::Administrate)?;
    }
    let (id, before) = find(&admin.engine, id).await?;
    let action = Action { admin, caller, name: "forget", reason: answer::reason(&reason)?, before: &before };
    let kept = action.announce().await?;
    let ruling = admin.engine.forget(id, force).await?;
    if let Ruling::Refused { phase } = ruling {
        let phase = phase_name(phase);
        let detail =
            format!("the key is {phase}: its effect may be running or have happened; force takes it away");
        return Err(action.refused(detail).await.with("phase", phase.into()));
    }
    action.done(kept).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settle {
    reason: String,
    #[serde(default)]
    run: bool,
    outcome: Option<Box<RawValue>>,
}

/// Says what became of an effect in doubt.
pub(super) async fn settle(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    Named(id): Named,
    body: Bytes,
) -> Result<Response, Refusal> {
    let asked = answer::body(&body)?;
    to_the_end(async move { settle_key(&admin, &caller, &id, asked).await }).await
}

async fn settle_key(admin: &Admin, caller: &Caller, id: &str, asked: Settle) -> Result<Response, Refusal> {
    let Settle { reason, run, outcome } = asked;
    let settlement = match (run, outcome) {
        (true, None) => Settlement::Run,
        (false, Some(outcome)) => Settlement::Done(Arc::new(settled(&outcome)?)),
        _ => return Err(Refusal::bad("give either `outcome` (it happened) or `run: true` (it did not)")),
    };
    let (id, before) = find(&admin.engine, id).await?;
    let name = if settlement == Settlement::Run { "settle_run" } else { "settle_done" };
    let action = Action { admin, caller, name, reason: answer::reason(&reason)?, before: &before };
    let kept = action.announce().await?;
    let ruling = admin.engine.settle(id, settlement).await?;
    if let Ruling::Refused { phase } = ruling {
        let phase = phase_name(phase);
        let detail = format!("the key is {phase}; only what is in doubt can be settled");
        return Err(action.refused(detail).await.with("phase", phase.into()));
    }
    action.done(kept).await
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

/// The outcome that somebody gives by hand: an answer where it looks like one, any other JSON as it is.
fn settled(outcome: &RawValue) -> Result<Outcome, Refusal> {
    let Ok(HandMade { status, headers, body }) = serde_json::from_str(outcome.get()) else {
        return Ok(Outcome::new("json", outcome.get()));
    };
    let status =
        StatusCode::from_u16(status).map_err(|_| Refusal::bad("outcome: status is no status of HTTP"))?;
    let mut fields = HeaderMap::new();
    for (name, value) in &headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) else {
            return Err(Refusal::bad("outcome: headers holds what cannot be a header"));
        };
        fields.append(name, value);
    }
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
    async fn announce(&self) -> Result<audit::Kept, Refusal> {
        audit::write(self.admin, self.caller, self.name, self.before.id.to_string(), self.reason).await
    }

    async fn done(self, kept: audit::Kept) -> Result<Response, Refusal> {
        let id = self.before.id;
        // It is done, whether or not we can look at it.
        let after = self.admin.engine.store().get(id).await.ok().flatten();
        let phase = after.as_ref().map_or("unknown", |after| phase_name(after.phase()));
        self.log(phase, "done");
        answer::json(&json!({
            "id": id.to_string(),
            "action": self.name,
            "before": phase_name(self.before.phase()),
            "after": phase,
            "audit": kept.as_str(),
        }))
    }

    async fn refused(&self, detail: String) -> Refusal {
        let subject = self.before.id.to_string();
        audit::write_refused(self.admin, self.caller, self.name, subject, self.reason).await;
        self.log(phase_name(self.before.phase()), "refused");
        Refusal::new(StatusCode::CONFLICT, "refused", detail)
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
            "a record was changed by hand"
        );
    }
}

/// How many keys are in doubt.
pub(super) async fn count_in_doubt(engine: &Engine) -> Result<u64, store::Error> {
    let (mut count, mut after) = (0, None);
    loop {
        let page = engine.store().scan(Scan { phase: Some(Phase::InDoubt), after, limit: MOST }).await?;
        count += page.items.len() as u64;
        after = page.next;
        if after.is_none() || count >= COUNT_TO {
            return Ok(count);
        }
    }
}
