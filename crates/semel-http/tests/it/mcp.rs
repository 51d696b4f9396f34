//! The profile `adcp-mcp` before an agent that knows nothing of idempotency: every line of its description.

mod announced;
mod any_tool;
mod bodies;
mod doubt;
mod errors;
mod keyed;
mod libraries;
mod live;
mod malformed;
mod race;
mod releases;
mod replay;
mod scope;

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use parking_lot::Mutex;
use semel_http::guard::GuardBuilder;
use semel_http::policy::PolicyBuilder;
use semel_http::{Body, Profile, RoutePolicy};
use serde_json::{Value, json};
use tower_service::Service as _;

use crate::agent::{Agent, router};
use crate::kit::{Answered, Kit, Upstream};

pub(super) const JSON: &str = "application/json, text/event-stream";
pub(super) const EVENTS: &str = "text/event-stream, application/json";
/// The forms of an answer that a client can prefer, and whether the agent streams then.
pub(super) const FORMS: [&str; 2] = [JSON, EVENTS];

/// A guard before the agent.
pub(super) struct Bench {
    pub(super) kit: Kit,
    pub(super) agent: Arc<Agent>,
}

pub(super) fn profile() -> Profile {
    Profile::named("adcp-mcp").expect("it is built in")
}

impl Bench {
    pub(super) fn new() -> Self {
        Self::route(|route| route)
    }

    pub(super) fn route(settings: impl FnOnce(PolicyBuilder) -> PolicyBuilder) -> Self {
        let route = settings(RoutePolicy::builder(&profile(), "* /**")).build().unwrap();
        Self::with(|guard| guard.route(route))
    }

    pub(super) fn with(settings: impl FnOnce(GuardBuilder) -> GuardBuilder) -> Self {
        let agent = Arc::new(Agent::new(Duration::from_millis(5)));
        let upstream = agent_upstream(&agent);
        let kit = Kit::with(upstream, |guard| settings(guard.profile(profile())));
        Self { kit, agent }
    }

    /// Sends a call and reads what its answer says.
    pub(super) async fn call(&self, request: Request<Body>) -> Value {
        said(&self.kit.send(request).await)
    }
}

pub(super) fn agent_upstream(agent: &Arc<Agent>) -> Upstream {
    let router = router(Arc::clone(agent));
    Upstream::new(move |_, seen| {
        let mut router = router.clone();
        async move {
            let mut request = Request::new(axum::body::Body::from(seen.body));
            (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) =
                (seen.method, seen.uri, seen.headers);
            Ok(router.call(request).await?.map(Body::stream))
        }
    })
}

/// An upstream whose tool answers as it is told, in turn; `tools/list` is answered as the agent does.
pub(super) fn scripted(answers: impl IntoIterator<Item = Response<Body>>) -> Upstream {
    let agent = Agent::new(Duration::ZERO);
    let (agent, answers) = (Arc::new(agent), Arc::new(Mutex::new(answers.into_iter().collect::<Vec<_>>())));
    answers.lock().reverse();
    Upstream::new(move |_, seen| {
        let (agent, answers) = (Arc::clone(&agent), Arc::clone(&answers));
        async move {
            let message: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
            if message["method"] == "tools/call" {
                return Ok(answers
                    .lock()
                    .pop()
                    .expect("it is called no more often than it is told what to say"));
            }
            let said = agent.answer(&message).await.unwrap_or_default();
            Ok(Response::builder()
                .header("content-type", "application/json")
                .body(said.to_string().into())
                .unwrap())
        }
    })
}

/// The tool calls that an upstream saw.
pub(super) fn tool_calls(upstream: &Upstream) -> usize {
    let is_call = |body: &[u8]| {
        serde_json::from_slice::<Value>(body).is_ok_and(|message| message["method"] == "tools/call")
    };
    upstream.seen().iter().filter(|seen| is_call(&seen.body)).count()
}

/// The message that an answer holds, whichever form it has.
#[track_caller]
pub(super) fn said(answer: &Answered) -> Value {
    if !answer.header("content-type").is_some_and(|form| form.starts_with("text/event-stream")) {
        return answer.json();
    }
    let last = answer.text().split("\n\n").filter(|event| !event.is_empty()).last().expect("an event");
    let data: String = last.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    serde_json::from_str(&data).unwrap()
}

/// A message of alice's.
pub(super) fn message(message: &Value, accept: &str) -> Request<Body> {
    raw_message(message.to_string(), accept)
}

pub(super) fn raw_message(text: impl Into<Body>, accept: &str) -> Request<Body> {
    Request::post("/mcp")
        .header("authorization", "Bearer alice")
        .header("content-type", "application/json")
        .header("accept", accept)
        .header("mcp-session-id", "session-1")
        .body(text.into())
        .unwrap()
}

pub(super) fn key(name: &str) -> String {
    format!("key-0123456789-{name}")
}

/// A media buy with a key.
pub(super) fn buy(id: impl Into<Value>, name: &str) -> Value {
    call_of(id, "create_media_buy", json!({ "idempotency_key": key(name), "packages": [{ "budget": 100 }] }))
}

pub(super) fn call_of(id: impl Into<Value>, tool: &str, arguments: Value) -> Value {
    let mut call =
        json!({ "jsonrpc": "2.0", "id": id.into(), "method": "tools/call", "params": { "name": tool } });
    call["params"]["arguments"] = arguments;
    call
}

/// A call with a key of a tool that AdCP does not know.
pub(super) fn book(id: i32, name: &str) -> Value {
    call_of(id, "book_slot", json!({ "idempotency_key": key(name), "n": 1 }))
}

/// A question for the agent's capabilities.
pub(super) fn capabilities() -> Value {
    call_of(0, "get_adcp_capabilities", json!({}))
}

/// The same call with another argument.
pub(super) fn with_argument(mut call: Value, name: &str, value: Value) -> Value {
    call["params"]["arguments"][name] = value;
    call
}

/// The structured result, after it was found to be the same as the text.
#[track_caller]
pub(super) fn payload(said: &Value) -> &Value {
    let (structured, text) = (&said["result"]["structuredContent"], &said["result"]["content"][0]["text"]);
    let text: Value =
        serde_json::from_str(text.as_str().unwrap_or_else(|| panic!("a text in {said}"))).unwrap();
    assert_eq!(*structured, text, "the text says the same");
    structured
}

/// A tool's error of ours: the code, after its form was checked.
#[track_caller]
pub(super) fn error_of(said: &Value) -> &Value {
    assert_eq!(said["result"]["isError"], true, "{said}");
    let error = &payload(said)["adcp_error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{said}");
    assert!(error["recovery"].is_string(), "{said}");
    assert_eq!(error["retry_after"], error["details"]["retry_after"], "{said}");
    error
}
