//! An API that orders things, correct or with one flaw.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::kit::{Asked, Reply, Server, reply};

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// Knows nothing of keys.
    Naive,
    /// Keeps a 500 like any other answer.
    CachesErrors,
    /// Looks at the key only.
    IgnoresPayloads,
    /// Looks, then acts.
    Races,
    /// The same key of two principals is one.
    LeaksAcrossScopes,
    /// Tells the first answer in a conflict.
    LeaksInConflicts,
    /// Keeps everything in memory.
    Forgets,
    /// Two equal bodies are one operation.
    DeduplicatesContent,
    /// Keeps a refusal by the limiter.
    CachesRateLimits,
    /// Throws keys away early.
    ExpiresEarly,
    /// Says the caller's credential back.
    EchoesSecrets,
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
    made: AtomicUsize,
    entries: Mutex<HashMap<Key, Entry>>,
    /// Keys whose flaky call has failed once.
    failed: Mutex<HashSet<String>>,
    /// New keys since the limiter was last reset, and when it tripped.
    window: Mutex<(usize, Option<Instant>)>,
}

/// How long an answer of `/brief` is kept.
const KEPT: Duration = Duration::from_secs(4);
/// New keys before the limiter trips, however fast they come; a second later it is reset.
const LIMIT: usize = 40;

/// Starts one.
pub(crate) async fn start(flaw: Flaw) -> Server {
    let state = Arc::new(State {
        flaw,
        made: AtomicUsize::new(0),
        entries: Mutex::default(),
        failed: Mutex::default(),
        window: Mutex::default(),
    });
    Server::start(move |asked| answer(Arc::clone(&state), asked)).await
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
    let Some(key) = asked.header("idempotency-key").map(|key| key.trim_matches('"').to_owned()) else {
        return perform(&state, &asked, "").await.reply(&[]);
    };
    if state.flaw == Flaw::Naive {
        return perform(&state, &asked, &key).await.reply(&[]);
    }
    if key.is_empty() || key.len() > 255 {
        return problem(400, "key_malformed", &json!({}), &[]);
    }
    let scope = match state.flaw {
        Flaw::LeaksAcrossScopes => String::new(),
        _ => asked.header("authorization").unwrap_or_default(),
    };
    let key = match state.flaw {
        Flaw::DeduplicatesContent => format!("{} {}", asked.path, String::from_utf8_lossy(&asked.body)),
        _ => key,
    };
    keyed(&state, &asked, scope, key).await
}

async fn keyed(state: &State, asked: &Asked, scope: String, key: String) -> Reply {
    let fingerprint = format!("{} {} {}", asked.method, asked.path, String::from_utf8_lossy(&asked.body));
    let raced =
        state.flaw == Flaw::Races && !state.entries.lock().contains_key(&(scope.clone(), key.clone()));
    if raced {
        let stored = perform(state, asked, &key).await;
        let answer = stored.reply(&[]);
        let entry = Entry { fingerprint, outcome: Arc::new(tokio::sync::Mutex::new(stored.kept())) };
        state.entries.lock().insert((scope, key), entry);
        return answer;
    }
    let (outcome, known) = {
        let mut entries = state.entries.lock();
        if !entries.contains_key(&(scope.clone(), key.clone())) && limited(state) {
            if state.flaw == Flaw::CachesRateLimits {
                let refusal = json!({"code": "rate_limited", "status": 429});
                let stored = Stored { status: 429, body: refusal, at: Instant::now() };
                let entry = Entry { fingerprint, outcome: Arc::new(tokio::sync::Mutex::new(Some(stored))) };
                entries.insert((scope, key), entry);
            }
            return problem(429, "rate_limited", &json!({}), &[("retry-after", "1")]);
        }
        let entry = entries.entry((scope, key.clone())).or_default();
        if entry.fingerprint.is_empty() {
            entry.fingerprint.clone_from(&fingerprint);
        }
        (Arc::clone(&entry.outcome), entry.fingerprint.clone())
    };
    if known != fingerprint && state.flaw != Flaw::IgnoresPayloads {
        let first = outcome.lock().await.clone();
        let told = match (state.flaw, first) {
            (Flaw::LeaksInConflicts, Some(first)) => json!({"original": first.body}),
            _ => json!({}),
        };
        return problem(422, "conflict", &told, &[]);
    }
    let mut held = outcome.lock().await;
    if let Some(stored) = &*held {
        let kept = if state.flaw == Flaw::ExpiresEarly { Duration::from_secs(1) } else { KEPT };
        if asked.path != "/brief" || stored.at.elapsed() < kept {
            let hint: &[(&str, &str)] = if stored.status == 429 { &[("retry-after", "1")] } else { &[] };
            let headers: Vec<(&str, &str)> =
                [("idempotent-replayed", "true")].into_iter().chain(hint.iter().copied()).collect();
            return stored.reply(&headers);
        }
        if state.flaw != Flaw::ExpiresEarly {
            return problem(410, "expired", &json!({}), &[]);
        }
    }
    let stored = perform(state, asked, &key).await;
    let answer = stored.reply(&[]);
    *held = if state.flaw == Flaw::CachesErrors { Some(stored) } else { stored.kept() };
    answer
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

/// The effect.
async fn perform(state: &State, asked: &Asked, key: &str) -> Stored {
    sleep(Duration::from_millis(20)).await;
    let at = Instant::now();
    if asked.path == "/flaky" && state.failed.lock().insert(key.to_owned()) {
        return Stored { status: 500, body: json!({"code": "oops"}), at };
    }
    if asked.json().get("invalid").is_some() {
        return Stored { status: 422, body: json!({"code": "invalid_order"}), at };
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
        reply(self.status, headers, &self.body)
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
