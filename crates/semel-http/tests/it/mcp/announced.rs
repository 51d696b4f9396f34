//! What `get_adcp_capabilities` announces is what keyed calls meet: for every way in which agents list their tools and write
//! their answers, with no setting but the profile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use semel_http::Body;
use semel_http::policy::StoreDown;
use serde_json::{Value, json};

use super::{JSON, book, capabilities, message, profile, said, with_argument};
use crate::kit::{Kit, Upstream};

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

// A row each: the announcement, a pair of identical calls, and the ends of both durations.
#[tokio::test]
async fn the_announcement_is_what_keyed_calls_meet() {
    for row in rows() {
        let effects = Arc::new(AtomicUsize::new(0));
        let kit = Kit::profile(&profile(), row.agent(&effects));
        let call = async |call: Value| row.read(&said(&kit.send(row.send(&call)).await));
        let announced = call(capabilities()).await["adcp"]["idempotency"].clone();
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
        assert_eq!(row.read(&said(&kit.send(row.send(&capabilities())).await)), row.capabilities(), "{row}");
    }
}
