//! A small MCP agent that sells media, with or without idempotency.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Response;
use http_body_util::Full;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::kit::{Asked, Reply, Server, reply};

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    Events,
    /// Only JSON in the text content.
    Text,
}

/// What it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knows {
    Idempotency,
    Nothing,
    /// Idempotency, in a style of its own.
    Style(Style),
    /// Idempotency, with one flaw.
    Flaw(Flaw),
}

/// How a correct agent behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// A duplicate waits for the first request.
    Waits,
    /// A duplicate gets SERVICE_UNAVAILABLE, as before AdCP 3.1.
    Unavailable,
    /// It announces AdCP 4.0 and its limit.
    Release4,
}

/// The single flaw of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Stores the payload with the answer: until then, another request is told to wait.
    ConflictAfterInFlight,
    /// Takes a duplicate in progress for a conflict.
    ConflictForSameRequest,
    /// Compares payloads only after the first request has ended: others wait and get its answer.
    AnswersOtherRequest,
    /// The payload of the last request replaces the first one until the answer is stored.
    LastRequestWins,
    /// Announces AdCP 4.0 without a limit.
    NoInFlightLimit,
    /// Its limit is above the time for which it stores answers.
    LimitAboveRetention,
}

type Buy = (Value, Arc<tokio::sync::Mutex<Option<Value>>>);

pub(crate) struct Agent {
    form: Form,
    knows: Knows,
    made: AtomicUsize,
    /// Fingerprint, and the answer once it is there.
    buys: Mutex<HashMap<String, Buy>>,
    /// Fresh keys before the limiter trips; then it trips once.
    left: AtomicUsize,
    pub(crate) log: Mutex<Vec<Value>>,
}

pub(crate) async fn start(form: Form, knows: Knows, before_limit: usize) -> (Server, Arc<Agent>) {
    let agent = Arc::new(Agent {
        form,
        knows,
        made: AtomicUsize::new(0),
        buys: Mutex::default(),
        left: AtomicUsize::new(before_limit),
        log: Mutex::default(),
    });
    let of_server = Arc::clone(&agent);
    let server = Server::start(move |asked| {
        let agent = Arc::clone(&of_server);
        async move { agent.answer(asked).await }
    })
    .await;
    (server, agent)
}

impl Agent {
    async fn answer(&self, asked: Asked) -> Reply {
        let message = asked.json();
        self.log.lock().push(message.clone());
        let id = message.get("id").cloned();
        if message["method"] == "initialize" {
            let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "a", "version": "1"}});
            return self.say(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
        }
        if asked.header("mcp-session-id").as_deref() != Some("session-1") {
            return reply(
                400,
                &[],
                &json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "no session"}}),
            );
        }
        let Some(id) = id else { return reply(202, &[], &json!(null)) };
        let result = match message["method"].as_str() {
            Some("tools/list") => json!({"tools": [
                {"name": "get_adcp_capabilities", "inputSchema": {"type": "object"}},
                {"name": "create_media_buy", "inputSchema": {"type": "object", "required": ["idempotency_key"]}},
                {"name": "comply_test_controller", "inputSchema": {"type": "object"}}
            ]}),
            Some("tools/call") => {
                let arguments = message["params"]["arguments"].clone();
                let scope = asked.header("authorization").unwrap_or_default();
                let mut content = match message["params"]["name"].as_str() {
                    Some("get_adcp_capabilities") => self.capabilities(),
                    Some("comply_test_controller") => controller(&arguments),
                    _ => self.buy(&scope, &arguments).await,
                };
                if let Some(context) = arguments.get("context") {
                    content["context"] = context.clone();
                }
                self.content(&content)
            }
            _ => return self.say(
                &json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}}),
            ),
        };
        self.say(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
    }

    fn content(&self, content: &Value) -> Value {
        let text = json!([{"type": "text", "text": content.to_string()}]);
        let failed = content.get("adcp_error").is_some();
        match self.form {
            Form::Text => json!({"content": text, "isError": failed}),
            Form::Json | Form::Events => {
                json!({"content": text, "structuredContent": content, "isError": failed})
            }
        }
    }

    fn say(&self, message: &Value) -> Reply {
        let session = ("mcp-session-id", "session-1");
        match self.form {
            Form::Json | Form::Text => reply(200, &[session], message),
            Form::Events => {
                let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}});
                let events = format!(
                    ": hi\n\nevent: message\ndata: {progress}\n\nevent: message\ndata: {message}\n\n"
                );
                let built = Response::builder()
                    .header("content-type", "text/event-stream")
                    .header(session.0, session.1);
                built.body(Full::from(events)).unwrap()
            }
        }
    }

    fn capabilities(&self) -> Value {
        match self.knows {
            Knows::Idempotency
            | Knows::Style(Style::Waits | Style::Unavailable)
            | Knows::Flaw(
                Flaw::ConflictAfterInFlight
                | Flaw::ConflictForSameRequest
                | Flaw::AnswersOtherRequest
                | Flaw::LastRequestWins,
            ) => {
                json!({"adcp": {"idempotency": {"supported": true, "replay_ttl_seconds": 86400}}})
            }
            Knows::Nothing => json!({"adcp": {}}),
            Knows::Style(Style::Release4) => with_limit(&["3.1", "4.0"], json!(60)),
            Knows::Flaw(Flaw::NoInFlightLimit) => with_limit(&["4.0"], json!(null)),
            Knows::Flaw(Flaw::LimitAboveRetention) => with_limit(&["3.1"], json!(86_401)),
        }
    }

    async fn buy(&self, scope: &str, arguments: &Value) -> Value {
        if self.knows == Knows::Nothing {
            return self.make(arguments).await;
        }
        let Some(key) = arguments.get("idempotency_key").and_then(Value::as_str) else {
            return error("INVALID_REQUEST", &json!({}));
        };
        let mut fingerprint = arguments.clone();
        for name in ["idempotency_key", "context"] {
            fingerprint.as_object_mut().unwrap().remove(name);
        }
        let (known, outcome) = {
            let mut buys = self.buys.lock();
            let at = format!("{scope} {key}");
            if !buys.contains_key(&at) {
                // Once, then it is refilled.
                if self.left.load(Ordering::SeqCst) == 0 {
                    self.left.store(usize::MAX, Ordering::SeqCst);
                    return error("RATE_LIMITED", &json!({"retry_after": 1}));
                }
                self.left.fetch_sub(1, Ordering::SeqCst);
            }
            let entry = buys.entry(at).or_insert_with(|| (fingerprint.clone(), Arc::default()));
            let is_running = entry.1.try_lock().is_err();
            if is_running && self.knows == Knows::Flaw(Flaw::LastRequestWins) {
                entry.0.clone_from(&fingerprint);
            }
            (entry.0.clone(), Arc::clone(&entry.1))
        };
        let conflict = || error("IDEMPOTENCY_CONFLICT", &json!({"recovery": "correctable"}));
        let is_running = outcome.try_lock().is_err();
        let compares = match self.knows {
            Knows::Flaw(Flaw::ConflictAfterInFlight | Flaw::AnswersOtherRequest) => !is_running,
            _ => true,
        };
        if compares && known != fingerprint {
            return conflict();
        }
        let held = match (outcome.try_lock(), self.knows) {
            (Ok(held), _) => Ok(held),
            (Err(_), Knows::Style(Style::Waits) | Knows::Flaw(Flaw::AnswersOtherRequest)) => {
                Ok(outcome.lock().await)
            }
            (Err(_), Knows::Style(Style::Unavailable)) => Err("SERVICE_UNAVAILABLE"),
            (Err(_), Knows::Flaw(Flaw::ConflictForSameRequest)) => return conflict(),
            // A duplicate is told that the first request is in progress.
            (Err(_), _) => Err("IDEMPOTENCY_IN_FLIGHT"),
        };
        let mut held = match held {
            Ok(held) => held,
            Err(code) => return error(code, &json!({"retry_after": 1})),
        };
        if let Some(stored) = &*held {
            let mut replay = stored.clone();
            replay["replayed"] = json!(true);
            return replay;
        }
        let made = self.make(arguments).await;
        if made.get("adcp_error").is_none() {
            *held = Some(made.clone());
        } else {
            self.buys.lock().remove(&format!("{scope} {key}"));
        }
        made
    }

    async fn make(&self, arguments: &Value) -> Value {
        // Long enough that others meet it, where that is what the test is about.
        let takes = if matches!(self.knows, Knows::Flaw(_)) { 200 } else { 20 };
        sleep(Duration::from_millis(takes)).await;
        if arguments["packages"][0]["product_id"] == "no-such-product" {
            return error("PRODUCT_NOT_FOUND", &json!({}));
        }
        json!({"media_buy_id": format!("mb-{}", self.made.fetch_add(1, Ordering::SeqCst)), "status": "active"})
    }
}

fn with_limit(releases: &[&str], limit: Value) -> Value {
    let mut idempotency = json!({"supported": true, "replay_ttl_seconds": 86400});
    if !limit.is_null() {
        idempotency["in_flight_max_seconds"] = limit;
    }
    json!({"adcp": {"supported_versions": releases, "idempotency": idempotency}})
}

fn controller(arguments: &Value) -> Value {
    match arguments["scenario"].as_str() {
        Some("list_scenarios") => {
            json!({"success": true, "scenarios": ["seed_product", "seed_pricing_option"]})
        }
        Some("seed_product" | "seed_pricing_option") => json!({"success": true}),
        _ => json!({"success": false, "error": "UNKNOWN_SCENARIO"}),
    }
}

fn error(code: &str, more: &Value) -> Value {
    let mut error = json!({"code": code, "message": "no"});
    for (name, value) in more.as_object().unwrap() {
        error[name] = value.clone();
    }
    json!({"adcp_error": error})
}
