//! An API that orders things: correct in one of several styles, or with one flaw.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::kit::{Asked, Excess, Reply, Server, reply};

/// The single flaw of an API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// Ignores keys.
    Naive,
    /// Stores a 500 like any other answer.
    CachesErrors,
    /// Compares keys only, and answers another request with the first answer.
    IgnoresPayloads,
    /// Executes another request under a used key.
    ExecutesConflicts,
    /// Stores the refusal of a conflict as the answer of the key.
    ConflictReplacesAnswer,
    /// Compares payloads only after the first request has ended.
    IgnoresPayloadsInFlight,
    /// Reads, then writes.
    Races,
    /// As `Races`, but only while many requests are in progress.
    RacesUnderLoad,
    /// Fails requests that meet one in progress with 500.
    FailsLosers,
    /// Refuses every retry, also after the first request has ended.
    RefusesRetries,
    /// The same key of two principals is one.
    LeaksAcrossScopes,
    /// Shows the first answer in a conflict.
    LeaksInConflicts,
    /// Loses all keys in a restart.
    Forgets,
    /// Keeps the five newest keys.
    RemembersFew,
    /// Two equal bodies are one operation.
    DeduplicatesContent,
    /// Stores a refusal by the rate limiter.
    CachesRateLimits,
    /// Drops keys early.
    ExpiresEarly,
    /// Returns answers after their retention.
    NeverExpires,
    /// Returns the caller's credential.
    EchoesSecrets,
    /// Answers 200 to a retry of a request that was answered 201.
    ReplaysOtherStatus,
    /// Drops Location from stored answers.
    LosesLocation,
    /// Sends stored answers as text/plain.
    LosesContentType,
    /// Adds the current time to a stored answer.
    ChangesBody,
    /// Compares keys in lower case.
    IgnoresCase,
    /// Keeps the first 64 characters of a key.
    TruncatesAt64,
    /// Keeps the first 255 characters of a key.
    TruncatesAt255,
    /// Does not compare the query string.
    IgnoresQuery,
    /// Does not compare the path.
    IgnoresPath,
    /// Validates an invalid request again, with another answer each time.
    RevalidatesErrors,
}

/// How a correct API behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// A duplicate waits for the first request.
    Waits,
    /// A duplicate gets 409 with Retry-After.
    Conflict409WithHint,
    /// A duplicate gets 409 without Retry-After.
    Conflict409,
    /// A duplicate gets 425.
    TooEarly425,
    /// Keys in quotes are refused.
    BareKeysOnly,
    /// Keys are UUIDs without quotes.
    UuidsOnly,
    /// Keys have at most 32 characters.
    ShortKeys,
    /// Another payload is refused with 417.
    Conflict417,
    /// The tenant is in a header.
    ScopedByHeader,
    /// The same key on another path is another key.
    ScopedByPath,
    /// Keys are in the header X-Request-Key, bodies are forms.
    FormWithOtherHeader,
    /// Connections beyond 40 at the same time get no answer.
    SmallBacklog,
    /// Connections beyond 40 at the same time are closed.
    ClosesExcess,
    /// Every query string is refused with 404.
    RefusesQueries,
}

type Key = (String, String);

#[derive(Clone, Debug)]
struct Stored {
    status: u16,
    body: Value,
    at: Instant,
}

#[derive(Debug, Default)]
struct Entry {
    fingerprint: String,
    /// Locked while the operation runs.
    outcome: Arc<tokio::sync::Mutex<Option<Stored>>>,
}

#[derive(Debug)]
struct State {
    flaw: Flaw,
    style: Style,
    made: AtomicUsize,
    running: AtomicUsize,
    entries: Mutex<HashMap<Key, Entry>>,
    /// Keys in the order of their first use.
    order: Mutex<Vec<Key>>,
    /// Keys whose flaky call has failed once.
    failed: Mutex<HashSet<String>>,
    /// New keys since the limiter was last reset, and when it tripped.
    window: Mutex<(usize, Option<Instant>)>,
}

/// A request that is being served.
struct Running<'a> {
    state: &'a State,
    /// How many were being served before it.
    before: usize,
}

impl<'a> Running<'a> {
    fn new(state: &'a State) -> Self {
        Self { state, before: state.running.fetch_add(1, Ordering::SeqCst) }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.state.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How long an answer of `/brief` is kept.
const KEPT: Duration = Duration::from_secs(4);
/// New keys before the limiter trips, at any speed; a second later it is reset.
const LIMIT: usize = 60;

/// Starts an API with a flaw.
pub(crate) async fn start(flaw: Flaw) -> Server {
    serve(flaw, Style::Waits).await
}

/// Starts a correct API.
pub(crate) async fn correct(style: Style) -> Server {
    serve(Flaw::None, style).await
}

/// Starts an API with a flaw and a style.
pub(crate) async fn serve(flaw: Flaw, style: Style) -> Server {
    let state = Arc::new(State {
        flaw,
        style,
        made: AtomicUsize::new(0),
        running: AtomicUsize::new(0),
        entries: Mutex::default(),
        order: Mutex::default(),
        failed: Mutex::default(),
        window: Mutex::default(),
    });
    let limit = match style {
        Style::SmallBacklog => Some((40, Excess::Ignored)),
        Style::ClosesExcess => Some((40, Excess::Closed)),
        _ => None,
    };
    Server::start_with(limit, move |asked| answer(Arc::clone(&state), asked)).await
}

async fn answer(state: Arc<State>, asked: Asked) -> Reply {
    if asked.path == "/.well-known/idempotency" {
        return reply(200, &[], &json!({"supported": true, "replay_ttl_seconds": 3}));
    }
    if asked.path == "/restart" {
        if state.flaw == Flaw::Forgets {
            state.entries.lock().clear();
        }
        return reply(200, &[], &json!({}));
    }
    if state.style == Style::RefusesQueries && !asked.query.is_empty() {
        return problem(404, "not_found", &json!({}), &[]);
    }
    let header = if state.style == Style::FormWithOtherHeader { "x-request-key" } else { "idempotency-key" };
    let Some(sent) = asked.header(header) else {
        return perform(&state, &asked, "").await.reply(&[]);
    };
    if state.flaw == Flaw::Naive {
        return perform(&state, &asked, &sent).await.reply(&[]);
    }
    let Some(key) = accepted(&state, &sent) else { return problem(400, "key_malformed", &json!({}), &[]) };
    let scope = match (state.flaw, state.style) {
        (Flaw::LeaksAcrossScopes, _) => String::new(),
        (_, Style::ScopedByHeader) => match asked.header("x-tenant") {
            Some(tenant) => tenant,
            None => return problem(400, "tenant_missing", &json!({}), &[]),
        },
        (_, Style::ScopedByPath) => asked.path.clone(),
        _ => asked.header("authorization").unwrap_or_default(),
    };
    let key = match state.flaw {
        Flaw::DeduplicatesContent => format!("{} {}", asked.path, String::from_utf8_lossy(&asked.body)),
        _ => key,
    };
    keyed(&state, &asked, scope, key).await
}

/// The key as this API stores it; `None` if it refuses it.
fn accepted(state: &State, sent: &str) -> Option<String> {
    let bare = sent.trim_matches('"').to_owned();
    let quoted = sent.starts_with('"');
    let longest = match (state.style, state.flaw) {
        (Style::ShortKeys, _) => 32,
        (_, Flaw::TruncatesAt255) => 1000,
        _ => 255,
    };
    let uuid = bare.len() == 36 && bare.chars().all(|one| one.is_ascii_hexdigit() || one == '-');
    let refused = match state.style {
        Style::BareKeysOnly => quoted,
        Style::UuidsOnly => quoted || !uuid,
        Style::ShortKeys => sent.len() > longest,
        _ => false,
    };
    if refused || bare.is_empty() || bare.len() > longest {
        return None;
    }
    Some(match state.flaw {
        Flaw::IgnoresCase => bare.to_ascii_lowercase(),
        Flaw::TruncatesAt64 => bare.chars().take(64).collect(),
        Flaw::TruncatesAt255 => bare.chars().take(255).collect(),
        _ => bare,
    })
}

fn fingerprint(state: &State, asked: &Asked) -> String {
    let path = if state.flaw == Flaw::IgnoresPath { "" } else { &asked.path };
    let query = if state.flaw == Flaw::IgnoresQuery { "" } else { &asked.query };
    format!("{} {path} {query} {}", asked.method, String::from_utf8_lossy(&asked.body))
}

async fn keyed(state: &State, asked: &Asked, scope: String, key: String) -> Reply {
    let fingerprint = fingerprint(state, asked);
    let name = (scope, key.clone());
    let running = Running::new(state);
    let races = state.flaw == Flaw::Races || (state.flaw == Flaw::RacesUnderLoad && running.before > 30);
    if races && state.entries.lock().get(&name).is_none_or(|entry| entry.outcome.try_lock().is_err()) {
        let stored = perform(state, asked, &key).await;
        let answer = stored.reply(&[]);
        let entry = Entry { fingerprint, outcome: Arc::new(tokio::sync::Mutex::new(stored.kept())) };
        state.entries.lock().insert(name, entry);
        return answer;
    }
    let (outcome, known) = {
        let mut entries = state.entries.lock();
        let new = !entries.contains_key(&name);
        if new {
            if limited(state) {
                if state.flaw == Flaw::CachesRateLimits {
                    let refusal = json!({"code": "rate_limited", "status": 429});
                    let stored = Stored { status: 429, body: refusal, at: Instant::now() };
                    let outcome = Arc::new(tokio::sync::Mutex::new(Some(stored)));
                    entries.insert(name, Entry { fingerprint, outcome });
                }
                return problem(429, "rate_limited", &json!({}), &[("retry-after", "1")]);
            }
            let mut order = state.order.lock();
            order.push(name.clone());
            if state.flaw == Flaw::RemembersFew && order.len() > 5 {
                entries.remove(&order.remove(0));
            }
        }
        let entry = entries.entry(name.clone()).or_default();
        if entry.fingerprint.is_empty() {
            entry.fingerprint.clone_from(&fingerprint);
        }
        (Arc::clone(&entry.outcome), entry.fingerprint.clone())
    };
    if known != fingerprint
        && let Some(refusal) = conflict(state, asked, &outcome).await
    {
        return refusal;
    }
    let mut held = match outcome.try_lock() {
        Ok(held) => held,
        Err(_) => match (state.style, state.flaw) {
            (_, Flaw::FailsLosers) => return problem(500, "oops", &json!({}), &[]),
            (Style::Conflict409WithHint, _) => {
                return problem(409, "in_progress", &json!({}), &[("retry-after", "1")]);
            }
            (Style::Conflict409, _) => return problem(409, "in_progress", &json!({}), &[]),
            (Style::TooEarly425, _) => return problem(425, "too_early", &json!({}), &[]),
            _ => outcome.lock().await,
        },
    };
    if let Some(stored) = &*held {
        let kept = if state.flaw == Flaw::ExpiresEarly { Duration::from_secs(1) } else { KEPT };
        if asked.path != "/brief" || stored.at.elapsed() < kept || state.flaw == Flaw::NeverExpires {
            return replay(state, stored);
        }
        if state.flaw != Flaw::ExpiresEarly {
            return problem(410, "expired", &json!({}), &[]);
        }
    }
    let stored = perform(state, asked, &key).await;
    let answer = stored.reply(&[]);
    let invalid = state.flaw == Flaw::RevalidatesErrors && stored.status == 422;
    *held = match state.flaw {
        Flaw::CachesErrors => Some(stored),
        _ if invalid => None,
        _ => stored.kept(),
    };
    answer
}

/// The refusal of another request under a used key; `None` if this API does not refuse it.
async fn conflict(
    state: &State,
    asked: &Asked,
    outcome: &tokio::sync::Mutex<Option<Stored>>,
) -> Option<Reply> {
    let mut told = json!({});
    match state.flaw {
        Flaw::IgnoresPayloads => return None,
        Flaw::IgnoresPayloadsInFlight if outcome.try_lock().is_err() => return None,
        Flaw::ExecutesConflicts => return Some(perform(state, asked, "").await.reply(&[])),
        Flaw::LeaksInConflicts => {
            if let Some(first) = outcome.lock().await.clone() {
                told = json!({"original": first.body});
            }
        }
        Flaw::ConflictReplacesAnswer => {
            let body = json!({"code": "conflict"});
            *outcome.lock().await = Some(Stored { status: 422, body, at: Instant::now() });
        }
        _ => {}
    }
    let status = if state.style == Style::Conflict417 { 417 } else { 422 };
    Some(problem(status, "conflict", &told, &[]))
}

/// A stored answer.
fn replay(state: &State, stored: &Stored) -> Reply {
    let mut again = stored.clone();
    let mut headers = vec![("idempotent-replayed", "true")];
    if stored.status == 429 {
        headers.push(("retry-after", "1"));
    }
    match state.flaw {
        Flaw::RefusesRetries => return problem(409, "duplicate", &json!({}), &[]),
        Flaw::ReplaysOtherStatus if again.status == 201 => again.status = 200,
        Flaw::LosesContentType => headers.push(("content-type", "text/plain")),
        Flaw::ChangesBody => again.body["answered_at"] = json!(state.made.fetch_add(1, Ordering::SeqCst)),
        _ => {}
    }
    if state.flaw == Flaw::LosesLocation {
        reply(again.status, &headers, &again.body)
    } else {
        again.reply(&headers)
    }
}

fn limited(state: &State) -> bool {
    let mut window = state.window.lock();
    if window.1.is_some_and(|tripped| tripped.elapsed() >= Duration::from_secs(1)) {
        *window = (0, None);
    }
    window.0 += 1;
    if window.0 > LIMIT {
        window.1.get_or_insert_with(Instant::now);
    }
    window.1.is_some()
}

/// Returns once no more requests arrive: those of a race are in progress together, also on a busy machine.
async fn wait_for_arrivals(state: &State) {
    let mut seen = 0;
    loop {
        let running = state.running.load(Ordering::SeqCst);
        if running <= seen {
            return;
        }
        seen = running;
        sleep(Duration::from_millis(100)).await;
    }
}

/// The effect.
async fn perform(state: &State, asked: &Asked, key: &str) -> Stored {
    sleep(Duration::from_millis(20)).await;
    if state.flaw == Flaw::RacesUnderLoad {
        wait_for_arrivals(state).await;
    }
    let at = Instant::now();
    if asked.path == "/flaky" && state.failed.lock().insert(key.to_owned()) {
        return Stored { status: 500, body: json!({"code": "oops"}), at };
    }
    if state.style == Style::FormWithOtherHeader
        && asked.header("content-type").as_deref() != Some("application/x-www-form-urlencoded")
    {
        return Stored { status: 415, body: json!({"code": "not_a_form"}), at };
    }
    if asked.json().get("invalid").is_some() {
        let number = state.made.fetch_add(1, Ordering::SeqCst);
        let body = match state.flaw {
            Flaw::RevalidatesErrors => json!({"code": "invalid_order", "number": number}),
            _ => json!({"code": "invalid_order"}),
        };
        return Stored { status: 422, body, at };
    }
    let id = state.made.fetch_add(1, Ordering::SeqCst);
    let mut body = json!({"id": format!("order-{id}")});
    if state.flaw == Flaw::EchoesSecrets {
        body["debug"] = json!(asked.header("authorization"));
    }
    Stored { status: 201, body, at }
}

impl Stored {
    fn reply(&self, headers: &[(&str, &str)]) -> Reply {
        let location = self.body.get("id").and_then(Value::as_str).map(|id| format!("/orders/{id}"));
        let mut headers = headers.to_vec();
        if let Some(location) = &location {
            headers.push(("location", location));
        }
        reply(self.status, &headers, &self.body)
    }

    /// A failure of the server is not kept.
    fn kept(self) -> Option<Self> {
        (self.status < 500).then_some(self)
    }
}

fn problem(status: u16, code: &str, more: &Value, headers: &[(&str, &str)]) -> Reply {
    let mut body = json!({"type": "about:blank", "title": code, "status": status, "code": code});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let headers: Vec<(&str, &str)> =
        [("content-type", "application/problem+json")].into_iter().chain(headers.iter().copied()).collect();
    reply(status, &headers, &body)
}
