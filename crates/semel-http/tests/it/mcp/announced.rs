//! What `get_adcp_capabilities` announces is what keyed calls meet: for every way in which agents list their tools and write
//! their answers, with no setting but the profile. The releases of AdCP, and limits of single tools.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use semel_http::policy::StoreDown;
use semel_http::{Body, RoutePolicy};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{JSON, buy, call_of, key, message, payload, profile, said, with_argument};
use crate::kit::{Kit, Upstream, eventually};

/// How an agent lists the tool that is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    KeyRequired,
    EmptyProperties,
    WithoutKey,
    Not,
}

/// How it sends an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sends {
    Json,
    Events,
    /// After another event.
    LateEvents,
}

/// Whether it wants the id of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Session {
    Required,
    No,
}

/// Where its answer holds the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    Both,
    Structured,
    Text,
    /// As libraries for Python write an undeclared object.
    WrappedObject,
    /// And a text.
    WrappedText,
}

/// What it says of keys itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claims {
    Support,
    NoSupport,
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    listed: Listed,
    sends: Sends,
    session: Session,
    writes: Writes,
    claims: Claims,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

fn rows() -> impl Iterator<Item = Row> {
    let listed = [Listed::KeyRequired, Listed::EmptyProperties, Listed::WithoutKey, Listed::Not];
    listed.into_iter().flat_map(|listed| {
        [Sends::Json, Sends::Events, Sends::LateEvents].into_iter().flat_map(move |sends| {
            [Session::Required, Session::No].into_iter().flat_map(move |session| {
                let writes = [
                    Writes::Both,
                    Writes::Structured,
                    Writes::Text,
                    Writes::WrappedObject,
                    Writes::WrappedText,
                ];
                writes.into_iter().flat_map(move |writes| {
                    let claims = [Claims::Support, Claims::NoSupport, Claims::Nothing];
                    claims.into_iter().map(move |claims| Row { listed, sends, session, writes, claims })
                })
            })
        })
    })
}

impl Row {
    /// An agent that acts whenever it is called, and counts.
    fn agent(self, effects: &Arc<AtomicUsize>) -> Upstream {
        let effects = Arc::clone(effects);
        Upstream::new(move |_, seen| {
            let effects = Arc::clone(&effects);
            async move {
                let asked: Value = serde_json::from_slice(&seen.body).unwrap();
                if self.session == Session::Required && !seen.headers.contains_key("mcp-session-id") {
                    return Ok(Response::builder().status(400).body(Body::empty()).unwrap());
                }
                let tool = asked["params"]["name"].as_str();
                let result = match asked["method"].as_str() {
                    Some("tools/list") => json!({ "tools": self.tools() }),
                    _ if tool == Some("get_adcp_capabilities") => self.result(&self.capabilities()),
                    _ => {
                        let effect = effects.fetch_add(1, Ordering::SeqCst) + 1;
                        if asked["params"]["arguments"]["answer"] == "lost" && effect == 1 {
                            return Ok(Response::builder().status(202).body(Body::empty()).unwrap());
                        }
                        self.result(&json!({ "effect": effect }))
                    }
                };
                let message = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result });
                let (content_type, body) = match self.sends {
                    Sends::Json => ("application/json", message.to_string()),
                    Sends::Events => ("text/event-stream", format!("event: message\ndata: {message}\n\n")),
                    Sends::LateEvents => {
                        let log = json!({ "jsonrpc": "2.0", "method": "notifications/message" });
                        ("text/event-stream; charset=utf-8", format!("data: {log}\n\ndata: {message}\n\n"))
                    }
                };
                let mut answer = Response::builder().header("content-type", content_type);
                if self.session == Session::Required {
                    answer = answer.header("mcp-session-id", "session-1");
                }
                Ok(answer.body(Body::from(body)).unwrap())
            }
        })
    }

    fn tools(self) -> Value {
        let schema = match self.listed {
            Listed::KeyRequired => json!({ "type": "object", "required": ["idempotency_key"] }),
            Listed::EmptyProperties => {
                json!({ "type": "object", "properties": {}, "additionalProperties": {} })
            }
            Listed::WithoutKey => json!({ "type": "object", "properties": { "n": {} }, "required": ["n"] }),
            Listed::Not => return json!([]),
        };
        json!([{ "name": "book_slot", "inputSchema": schema }, { "name": "get_adcp_capabilities", "inputSchema": {} }])
    }

    fn capabilities(self) -> Value {
        match self.claims {
            Claims::Nothing => json!({ "adcp": { "major_versions": [3] } }),
            Claims::NoSupport => json!({ "adcp": { "idempotency": { "supported": false } } }),
            Claims::Support => {
                let own =
                    json!({ "supported": true, "replay_ttl_seconds": 3600, "account_id_is_opaque": true });
                json!({ "adcp": { "idempotency": own } })
            }
        }
    }

    fn result(self, payload: &Value) -> Value {
        let text = json!([{ "type": "text", "text": payload.to_string() }]);
        match self.writes {
            Writes::Both => json!({ "content": text, "structuredContent": payload }),
            Writes::Structured => json!({ "content": [], "structuredContent": payload }),
            Writes::Text => json!({ "content": text }),
            Writes::WrappedObject => json!({ "content": text, "structuredContent": { "result": payload } }),
            Writes::WrappedText => {
                json!({ "content": text, "structuredContent": { "result": payload.to_string() } })
            }
        }
    }

    /// The payload, after every copy was found to be the same.
    #[track_caller]
    fn read(self, said: &Value) -> Value {
        let result = &said["result"];
        let text = result["content"][0]["text"].as_str().map(|text| serde_json::from_str(text).unwrap());
        let structured = &result["structuredContent"];
        // An error is ours, and written in both places.
        let structured = match self.writes {
            _ if result["isError"] == true => Some(structured.clone()),
            Writes::Both | Writes::Structured => Some(structured.clone()),
            Writes::Text => None,
            Writes::WrappedObject => Some(structured["result"].clone()),
            Writes::WrappedText => {
                structured["result"].as_str().map(|text| serde_json::from_str(text).unwrap())
            }
        };
        if let (Some(text), Some(structured)) = (&text, &structured) {
            assert_eq!(text, structured, "{self}: {said}");
        }
        structured.or(text).unwrap_or_else(|| panic!("{self}: {said}"))
    }

    fn send(self, call: &Value) -> Request<Body> {
        let mut request = message(call, JSON);
        if self.session == Session::No {
            request.headers_mut().remove("mcp-session-id");
        }
        request
    }
}

fn ask() -> Value {
    call_of(0, "get_adcp_capabilities", json!({}))
}

fn book(id: i32, name: &str) -> Value {
    call_of(id, "book_slot", json!({ "idempotency_key": key(name), "n": 1 }))
}

// A row each: the announcement, a pair of identical calls, and the ends of both durations.
#[tokio::test]
async fn the_announcement_is_what_keyed_calls_meet() {
    for row in rows() {
        let effects = Arc::new(AtomicUsize::new(0));
        let kit = Kit::profile(&profile(), row.agent(&effects));
        let call = async |call: Value| row.read(&said(&kit.send(row.send(&call)).await));
        let announced = call(ask()).await["adcp"]["idempotency"].clone();
        let mut expected =
            json!({ "supported": true, "replay_ttl_seconds": 86_400, "in_flight_max_seconds": 60 });
        if row.claims == Claims::Support {
            expected["account_id_is_opaque"] = json!(true);
        }
        assert_eq!(announced, expected, "{row}");
        let seconds = |name: &str| Duration::from_secs(announced[name].as_u64().unwrap());

        // supported: one effect, and the retry gets its answer.
        assert_eq!(call(book(1, "a")).await, json!({ "effect": 1 }), "{row}");
        assert_eq!(call(book(2, "a")).await, json!({ "effect": 1, "replayed": true }), "{row}");
        let conflict = call(with_argument(book(3, "a"), "n", json!(2))).await;
        assert_eq!(conflict["adcp_error"]["code"], "IDEMPOTENCY_CONFLICT", "{row}");
        // replay_ttl_seconds: until its last second, and not for much longer.
        kit.clock.advance(seconds("replay_ttl_seconds") - Duration::from_secs(1));
        assert_eq!(call(book(4, "a")).await["replayed"], true, "{row}");
        kit.clock.advance(Duration::from_secs(120));
        let expired = call(book(5, "a")).await;
        assert_eq!(expired["adcp_error"]["code"], "IDEMPOTENCY_EXPIRED", "{row}");
        assert_eq!(effects.load(Ordering::SeqCst), 1, "{row}: one effect");

        // in_flight_max_seconds: how long a call blocks its key that never ends.
        effects.store(0, Ordering::SeqCst);
        let lost = |id| with_argument(book(id, "b"), "answer", json!("lost"));
        assert_eq!(call(lost(6)).await["adcp_error"]["code"], "SERVICE_UNAVAILABLE", "{row}");
        kit.guard.engine().drain().await;
        kit.clock.advance(seconds("in_flight_max_seconds") - Duration::from_secs(1));
        let early = call(lost(7)).await;
        assert_eq!(early["adcp_error"]["recovery"], "transient", "{row}");
        assert_eq!(effects.load(Ordering::SeqCst), 1, "{row}: not yet");
        kit.clock.advance(Duration::from_secs(1));
        assert_eq!(call(lost(8)).await, json!({ "effect": 2 }), "{row}");
        assert_eq!(call(lost(9)).await, json!({ "effect": 2, "replayed": true }), "{row}");
    }
}

// Where calls run unguarded while the store is unavailable, the agent's own word stands, whatever it is.
#[tokio::test]
async fn nothing_is_announced_that_does_not_always_hold() {
    for row in rows().filter(|row| row.listed == Listed::EmptyProperties) {
        let upstream = row.agent(&Arc::default());
        let kit = Kit::route_of(&profile(), upstream, |route| route.store_down(StoreDown::Open));
        assert_eq!(row.read(&said(&kit.send(row.send(&ask())).await)), row.capabilities(), "{row}");
    }
}

// An error in a wrapped payload is an error: the key is released.
#[tokio::test]
async fn wrapped_errors_release_the_key() {
    for wrapped in [json!({ "errors": [{ "code": "X" }] }), json!({ "adcp_error": { "code": "X" } })] {
        for structured in [json!({ "result": wrapped }), json!({ "result": wrapped.to_string() })] {
            let (text, structured) = (wrapped.to_string(), structured.clone());
            let kit = Kit::profile(
                &profile(),
                Upstream::new(move |_, seen| {
                    let asked: Value = serde_json::from_slice(&seen.body).unwrap();
                    let content = json!([{ "type": "text", "text": text }]);
                    let result = json!({ "content": content, "structuredContent": structured });
                    let message = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result });
                    async move { Ok(Response::new(Body::from(message.to_string()))) }
                }),
            );
            for calls in 1..=2 {
                kit.send(message(&book(calls, "a"), JSON)).await;
                assert_eq!(kit.upstream.calls(), usize::try_from(calls).unwrap(), "{wrapped}");
            }
        }
    }
}

/// An agent of a release, whose purchases wait for the gate.
fn waiting(adcp: Value, gate: &Arc<Semaphore>) -> Upstream {
    let gate = Arc::clone(gate);
    Upstream::new(move |_, seen| {
        let (adcp, gate) = (adcp.clone(), Arc::clone(&gate));
        async move {
            let asked: Value = serde_json::from_slice(&seen.body).unwrap();
            let payload = if asked["params"]["name"] == "get_adcp_capabilities" {
                adcp
            } else {
                gate.acquire().await.unwrap().forget();
                json!({ "media_buy_id": "mb" })
            };
            let text = json!([{ "type": "text", "text": payload.to_string() }]);
            let result = json!({ "content": text, "structuredContent": payload });
            let message = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result });
            Ok(Response::new(Body::from(message.to_string())))
        }
    })
}

// The code of a call in progress is one that the announced release has. in_flight_max_seconds, which 4.0 requires, is always there.
#[tokio::test]
async fn the_announced_release_selects_the_code_of_a_call_in_progress() {
    let (own, older) = ("IDEMPOTENCY_IN_FLIGHT", "SERVICE_UNAVAILABLE");
    for (capabilities, expected) in [
        (json!({ "adcp": { "supported_versions": ["3.0"] } }), older),
        (json!({ "adcp": { "supported_versions": ["2.5", "3.0"], "major_versions": [2, 3] } }), older),
        (json!({ "adcp_version": "3.0", "adcp": { "major_versions": [3] } }), older),
        (json!({ "adcp": { "supported_versions": ["3.0", "3.1"] } }), own),
        (json!({ "adcp": { "supported_versions": ["3.1-beta.2"] } }), own),
        (json!({ "adcp": { "supported_versions": ["4.0"] } }), own),
        (json!({ "adcp": { "major_versions": [3] } }), own),
        (json!({ "adcp": {} }), own),
        (json!({ "other": 1 }), own),
    ] {
        let gate = Arc::new(Semaphore::new(0));
        let kit = Kit::route_of(&profile(), waiting(capabilities.clone(), &gate), |route| {
            route.wait(Duration::ZERO)
        });
        let announced = said(&kit.send(message(&ask(), JSON)).await);
        assert_eq!(payload(&announced)["adcp"]["idempotency"]["in_flight_max_seconds"], 60, "{capabilities}");
        let first = tokio::spawn({
            let kit = kit.clone();
            async move { kit.send(message(&buy(1, "a"), JSON)).await }
        });
        eventually("the first call is held", || kit.upstream.calls() == 2).await;
        let busy = said(&kit.send(message(&buy(2, "a"), JSON)).await);
        let error = super::error_of(&busy);
        assert_eq!(
            (&error["code"], &error["recovery"]),
            (&json!(expected), &json!("transient")),
            "{capabilities}"
        );
        assert!(
            error["retry_after"].as_u64().is_some_and(|after| (1..=3).contains(&after)),
            "{capabilities}"
        );
        // Another payload is a conflict in every release, also while the first call is in progress.
        let other = with_argument(buy(3, "a"), "packages", json!([{ "budget": 101 }]));
        let conflict = said(&kit.send(message(&other, JSON)).await);
        assert_eq!(super::error_of(&conflict)["code"], "IDEMPOTENCY_CONFLICT", "{capabilities}");
        // What was announced to one caller is not what another was told.
        let mut of_bob = message(&buy(4, "b"), JSON);
        of_bob.headers_mut().insert("authorization", "Bearer bob".parse().unwrap());
        let held = tokio::spawn({
            let kit = kit.clone();
            async move { kit.send(of_bob).await }
        });
        eventually("bob's call is held", || kit.upstream.calls() == 3).await;
        let mut of_bob = message(&buy(5, "b"), JSON);
        of_bob.headers_mut().insert("authorization", "Bearer bob".parse().unwrap());
        assert_eq!(super::error_of(&said(&kit.send(of_bob).await))["code"], own, "{capabilities}");
        gate.add_permits(2);
        first.await.unwrap();
        held.await.unwrap();
    }
}

fn limits(tools: &[(&str, u64)]) -> BTreeMap<String, Duration> {
    tools.iter().map(|(tool, seconds)| ((*tool).to_owned(), Duration::from_secs(*seconds))).collect()
}

// A limit per tool: the announcement is the longest, and each call is blocked for its own.
#[tokio::test]
async fn tools_have_limits_of_their_own() {
    let lost = || {
        Upstream::new(|_, seen| async move {
            let asked: Value = serde_json::from_slice(&seen.body).unwrap();
            if asked["params"]["name"] != "get_adcp_capabilities" {
                return Ok(Response::builder().status(202).body(Body::empty()).unwrap());
            }
            let message =
                json!({ "jsonrpc": "2.0", "id": asked["id"], "result": { "structuredContent": {} } });
            Ok(Response::new(Body::from(message.to_string())))
        })
    };
    let tools = [("slow", 300), ("fast", 10)];
    for (tool, seconds) in [("slow", 300), ("fast", 10), ("other", 40)] {
        let kit = Kit::route_of(&profile(), lost(), |route| {
            route.in_flight_max(Duration::from_secs(40)).in_flight_max_tools(limits(&tools))
        });
        let announced = said(&kit.send(message(&ask(), JSON)).await);
        let idempotency = &announced["result"]["structuredContent"]["adcp"]["idempotency"];
        assert_eq!(idempotency["in_flight_max_seconds"], 300);
        let well_known = Request::get("/.well-known/idempotency").body(Body::empty()).unwrap();
        assert_eq!(kit.send(well_known).await.json()["routes"][0]["in_flight_max_seconds"], 300);
        let call = |id: i32| message(&call_of(id, tool, json!({ "idempotency_key": key("a") })), JSON);
        let first = said(&kit.send(call(1)).await);
        assert_eq!(super::error_of(&first)["retry_after"], seconds, "{tool}");
        kit.guard.engine().drain().await;
        kit.clock.advance(Duration::from_secs(seconds - 1));
        let early = said(&kit.send(call(2)).await);
        assert_eq!(super::error_of(&early)["retry_after"], 1, "{tool}");
        assert_eq!(kit.upstream.calls(), 2, "{tool}: not yet");
        kit.clock.advance(Duration::from_secs(1));
        kit.send(call(3)).await;
        assert_eq!(kit.upstream.calls(), 3, "{tool}: run again");
    }
}

// The call itself ends at the limit of its tool. Each in a runtime of its own: time that was skipped does not come back.
#[test]
fn a_call_is_stopped_at_the_limit_of_its_tool() {
    for (tool, seconds) in [("slow", 300), ("fast", 10), ("other", 60)] {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().start_paused(true).build().unwrap().block_on(async {
            let upstream = Upstream::new(|_, _| std::future::pending());
            let kit = Kit::route_of(&profile(), upstream, |route| {
                route.in_flight_max_tools(limits(&[("slow", 300), ("fast", 10)]))
            });
            let began = tokio::time::Instant::now();
            let call = call_of(1, tool, json!({ "idempotency_key": key("a") }));
            let answer = said(&kit.send(message(&call, JSON)).await);
            assert_eq!(super::error_of(&answer)["code"], "SERVICE_UNAVAILABLE", "{tool}");
            let took = began.elapsed().as_secs();
            assert!((seconds - 1..=seconds + 1).contains(&took), "{tool}: {took}");
        });
    }
}

#[test]
fn limits_of_tools_that_cannot_work_name_the_tool() {
    let built = |profile: &semel_http::Profile, tools: &[(&str, u64)]| {
        let route = RoutePolicy::builder(profile, "* /**").in_flight_max_tools(limits(tools));
        route.build().unwrap_err().to_string()
    };
    for (seconds, reason) in [
        (90_000, "is above the retention (86400s)"),
        (0, "lease must be at least 1ms"),
        (4, "wait (5s) is longer than in_flight_max (4s)"),
    ] {
        let error = built(&profile(), &[("create_media_buy", seconds)]);
        assert!(error.starts_with("in_flight_max_tools: create_media_buy: "), "{error}");
        assert!(error.contains(reason), "{error}");
    }
    let error = built(&semel_http::Profile::ietf(), &[("create_media_buy", 60)]);
    assert!(error.contains("calls of this profile are requests, not tool calls"), "{error}");
}
