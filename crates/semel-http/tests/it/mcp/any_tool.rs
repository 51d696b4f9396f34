//! A key in a call guards it, whatever the agent lists and the config names; and who may send a call without one.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use semel_http::policy::StoreDown;
use semel_http::profile::ADCP_MUTATING_TOOLS;
use semel_http::{Body, Codec, KeyedTools, RoutePolicy};
use serde_json::{Value, json};

use super::{
    Bench, FORMS, JSON, agent_upstream, buy, call_of, error_of, key, message, payload, profile, said,
    tool_calls, with_argument,
};
use crate::agent::Agent;
use crate::kit::{Kit, Upstream};

/// What an agent lists, by the caller's credential.
type Listing = fn(&str) -> Option<Value>;

/// An agent whose every tool acts, and that lists its tools as it is told. None: it does not answer the question.
fn acting(listing: Listing) -> Upstream {
    let agent = Arc::new(Agent::new(Duration::ZERO));
    Upstream::new(move |number, seen| {
        let agent = Arc::clone(&agent);
        async move {
            let asked: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
            let who = seen.headers.get("authorization").map_or("", |who| who.to_str().unwrap());
            let result = match asked["method"].as_str() {
                Some("tools/list") => match listing(who) {
                    Some(tools) => json!({ "tools": tools }),
                    None => return Ok(Response::builder().status(500).body(Body::empty()).unwrap()),
                },
                Some("tools/call") => {
                    let payload = json!({ "effect": number });
                    json!({ "content": [{ "type": "text", "text": payload.to_string() }], "structuredContent": payload })
                }
                _ => return Ok(Response::new(Body::from(agent.answer(&asked).await.unwrap().to_string()))),
            };
            let said = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result });
            Ok(Response::builder()
                .header("content-type", "application/json")
                .body(Body::from(said.to_string()))
                .unwrap())
        }
    })
}

/// As agents that are built with `@adcp/sdk` list their tools: no property is named, none is required.
fn empty_schemas(_: &str) -> Option<Value> {
    let schema = json!({ "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {}, "additionalProperties": {} });
    let tool = |name| json!({ "name": name, "inputSchema": schema });
    Some(json!([
        tool("get_products"),
        tool("create_media_buy"),
        tool("book_slot"),
        tool("get_adcp_capabilities")
    ]))
}

fn requiring(required: &[&str]) -> Value {
    json!([{ "name": "book_slot", "inputSchema": { "type": "object", "required": required } }])
}

fn listings() -> [(&'static str, Listing); 5] {
    [
        ("empty schemas", empty_schemas),
        ("no tools", |_| Some(json!([]))),
        ("no answer", |_| None),
        ("a key that is not required", |_| Some(requiring(&["packages"]))),
        ("a key that is required", |_| Some(requiring(&["idempotency_key"]))),
    ]
}

fn list() -> Value {
    json!({ "jsonrpc": "2.0", "id": 0, "method": "tools/list" })
}

fn of(who: &str, mut request: Request<Body>) -> Request<Body> {
    request.headers_mut().insert("authorization", format!("Bearer {who}").parse().unwrap());
    request
}

fn code(said: &Value) -> Option<&str> {
    said["result"]["structuredContent"]["adcp_error"]["code"].as_str()
}

// unguarded_mcp_key: two identical keyed calls are one effect, listed or not, whatever the schema requires.
#[tokio::test]
async fn a_key_guards_every_call_whatever_the_agent_lists() {
    for (what, listing) in listings() {
        for listed_before in [false, true] {
            for tool in ["create_media_buy", "book_slot", "get_products", "unheard_of"] {
                let kit = Kit::profile(&profile(), acting(listing));
                if listed_before {
                    kit.send(message(&list(), JSON)).await;
                }
                let call = |id: i32| call_of(id, tool, json!({ "idempotency_key": key("a"), "n": 1 }));
                let first = said(&kit.send(message(&call(1), JSON)).await);
                let again = said(&kit.send(message(&call(2), JSON)).await);
                assert_eq!(tool_calls(&kit.upstream), 1, "{what}, {tool}: one effect");
                assert_eq!(payload(&again)["effect"], payload(&first)["effect"], "{what}, {tool}");
                assert_eq!(
                    (&again["id"], &payload(&again)["replayed"]),
                    (&json!(2), &json!(true)),
                    "{what}, {tool}"
                );
                let other = with_argument(call(3), "n", json!(2));
                let conflict = said(&kit.send(message(&other, JSON)).await);
                assert_eq!(error_of(&conflict)["code"], "IDEMPOTENCY_CONFLICT", "{what}, {tool}");
                let malformed = call_of(4, tool, json!({ "idempotency_key": "short" }));
                let refused = said(&kit.send(message(&malformed, JSON)).await);
                assert_eq!(error_of(&refused)["code"], "INVALID_REQUEST", "{what}, {tool}");
                assert_eq!(tool_calls(&kit.upstream), 1, "{what}, {tool}");
            }
        }
    }
}

// The config says which tools need a key. It does not say that a key is ignored.
#[tokio::test]
async fn a_key_guards_a_call_that_the_config_does_not_name() {
    let mut named = profile();
    named.codec = Codec::Mcp { tools: KeyedTools::Named(vec!["get_products".to_owned()]) };
    let kit = Kit::profile(&named, acting(empty_schemas));
    for id in 1..=2 {
        kit.send(message(&buy(id, "a"), JSON)).await;
    }
    assert_eq!((tool_calls(&kit.upstream), kit.upstream.calls()), (1, 1), "one effect, and nobody was asked");
    let refused = said(&kit.send(message(&call_of(3, "get_products", json!({})), JSON)).await);
    assert_eq!(error_of(&refused)["code"], "INVALID_REQUEST");
    // In place of the usual ones: this one needs none here.
    let passed = said(&kit.send(message(&call_of(4, "create_media_buy", json!({})), JSON)).await);
    assert_eq!(code(&passed), None, "{passed}");
}

// A message under a content type for files is still a call, if an agent takes it for one.
#[tokio::test]
async fn a_key_guards_a_call_under_any_content_type() {
    for kind in ["application/octet-stream", "multipart/form-data", "image/png"] {
        let kit = Kit::profile(&profile(), acting(empty_schemas));
        for id in 1..=2 {
            let mut request = message(&buy(id, "a"), JSON);
            request.headers_mut().insert("content-type", kind.parse().unwrap());
            kit.send(request).await;
        }
        assert_eq!(tool_calls(&kit.upstream), 1, "{kind}");
    }
}

// AdCP's mutating tools need a key by their names: nobody is asked, nothing is sent, no record is left.
#[tokio::test]
async fn mutating_tools_of_adcp_need_a_key_by_name() {
    assert!(ADCP_MUTATING_TOOLS.contains(&"create_media_buy") && ADCP_MUTATING_TOOLS.is_sorted());
    for (what, listing) in listings() {
        let kit = Kit::profile(&profile(), acting(listing));
        for tool in ADCP_MUTATING_TOOLS {
            for arguments in [json!({}), json!({ "idempotency_key": null })] {
                let refused = said(&kit.send(message(&call_of(1, tool, arguments), JSON)).await);
                assert_eq!(error_of(&refused)["code"], "INVALID_REQUEST", "{what}, {tool}");
            }
        }
        assert_eq!((kit.upstream.calls(), kit.store.all_calls()), (0, 0), "{what}");
    }
}

// The docs name the same tools.
#[test]
fn the_docs_list_the_tools_that_need_a_key() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/adcp-mcp.md");
    let text = std::fs::read_to_string(docs).unwrap();
    let start = text.find("The mutating tools of AdCP").expect("the list");
    let list = &text[start..start + text[start..].find(". In Rust").expect("its end")];
    let named: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    assert_eq!(named, ADCP_MUTATING_TOOLS);
}

// One principal's tools/list does not decide for another: asked or passing by, first or second.
#[tokio::test]
async fn a_list_decides_for_its_own_principal_alone() {
    // The key is required of alice.
    fn listing(who: &str) -> Option<Value> {
        Some(requiring(if who == "Bearer alice" { &["idempotency_key"] } else { &[] }))
    }
    let book = |id: i32| message(&call_of(id, "book_slot", json!({})), JSON);
    for passing_by in [false, true] {
        for order in [["alice", "bob"], ["bob", "alice"]] {
            let kit = Kit::profile(&profile(), acting(listing));
            for who in order {
                if passing_by {
                    kit.send(of(who, message(&list(), JSON))).await;
                }
                let answer = said(&kit.send(of(who, book(1))).await);
                let expected = (who == "alice").then_some("INVALID_REQUEST");
                assert_eq!(code(&answer), expected, "{who} of {order:?}, passing by: {passing_by}");
            }
            assert_eq!(tool_calls(&kit.upstream), 1, "bob's call alone is passed on");
            // What each has learned stays.
            for who in order {
                let answer = said(&kit.send(of(who, book(2))).await);
                assert_eq!(code(&answer), (who == "alice").then_some("INVALID_REQUEST"), "{who}");
            }
            assert_eq!(kit.upstream.calls(), 4, "two lists and bob's two calls");
        }
    }
}

// The same where the scope tells nobody apart, or there is none: the credential does.
#[tokio::test]
async fn a_list_decides_for_its_own_credential_where_all_are_one_principal() {
    fn listing(who: &str) -> Option<Value> {
        Some(requiring(if who == "Bearer alice" { &["idempotency_key"] } else { &[] }))
    }
    let kit =
        Kit::with(acting(listing), |guard| guard.profile(profile()).scope(semel_http::Scope::SingleTenant));
    let book = |id: i32| message(&call_of(id, "book_slot", json!({})), JSON);
    let mut anonymous = book(1);
    anonymous.headers_mut().remove("authorization");
    assert_eq!(code(&said(&kit.send(anonymous).await)), None);
    assert_eq!(code(&said(&kit.send(of("alice", book(2))).await)), Some("INVALID_REQUEST"));
    assert_eq!(code(&said(&kit.send(of("bob", book(3))).await)), None);
}

fn capabilities(supported: &Value) -> Upstream {
    let adcp = json!({ "major_versions": [3], "idempotency": supported });
    Upstream::new(move |_, seen| {
        let adcp = adcp.clone();
        async move {
            let asked: Value = serde_json::from_slice(&seen.body).unwrap();
            let payload = json!({ "adcp": adcp });
            let result = json!({ "content": [{ "type": "text", "text": payload.to_string() }], "structuredContent": payload });
            let said = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result });
            Ok(Response::new(Body::from(said.to_string())))
        }
    })
}

// `supported: true` is said where every keyed call is guarded. Elsewhere the agent's own word stands.
#[tokio::test]
async fn support_is_announced_only_where_calls_are_guarded() {
    let ours = json!({ "supported": true, "replay_ttl_seconds": 86_400, "in_flight_max_seconds": 60 });
    let ask = || message(&call_of(1, "get_adcp_capabilities", json!({})), JSON);
    for said_by_agent in
        [json!({ "supported": false }), json!({ "supported": true, "replay_ttl_seconds": 3_600 })]
    {
        let announced =
            async |settings: fn(semel_http::policy::PolicyBuilder) -> semel_http::policy::PolicyBuilder| {
                let kit = Kit::route_of(&profile(), capabilities(&said_by_agent), settings);
                payload(&said(&kit.send(ask()).await))["adcp"]["idempotency"].clone()
            };
        assert_eq!(announced(|route| route).await, ours);
        assert_eq!(announced(|route| route.pass_through()).await, said_by_agent, "nothing is guarded");
        let open = announced(|route| route.store_down(StoreDown::Open)).await;
        assert_eq!(open, said_by_agent, "while the store is unavailable, nothing is guarded");
    }
}

// A question for capabilities with a key is guarded as well, and says what the gateway does when it is answered.
#[tokio::test]
async fn capabilities_with_a_key_are_guarded_and_announced() {
    for accept in FORMS {
        let bench = Bench::new();
        let ask = |id: i32| {
            message(&call_of(id, "get_adcp_capabilities", json!({ "idempotency_key": key("a") })), accept)
        };
        let first = bench.call(ask(1)).await;
        assert_eq!(payload(&first)["adcp"]["idempotency"]["supported"], true);
        let again = bench.call(ask(2)).await;
        assert_eq!(payload(&again)["replayed"], true);
        assert_eq!(payload(&again)["adcp"], payload(&first)["adcp"]);
        assert_eq!(tool_calls(&bench.kit.upstream), 1);
    }
}

// A layer without a caller cannot ask. Keys still guard, and AdCP's tools need one.
#[tokio::test]
async fn without_a_caller_keys_guard_all_the_same() {
    let agent = Arc::new(Agent::new(Duration::ZERO));
    let upstream = agent_upstream(&agent);
    let kit = Kit::with(upstream, |guard| {
        guard.profile(profile()).route(RoutePolicy::fallback(&profile()).unwrap())
    });
    let guard = semel_http::Guard::builder(kit.guard.engine().clone()).profile(profile()).build().unwrap();
    let send = async |call: Value| {
        let answer = guard.handle(kit.upstream.clone(), message(&call, JSON)).await.unwrap();
        said(&crate::kit::Answered::read(answer).await)
    };
    for id in 1..=2 {
        assert_eq!(payload(&send(buy(id, "a")).await)["media_buy_id"], "mb_1");
    }
    assert_eq!(agent.buys(), 1);
    assert_eq!(code(&send(call_of(3, "create_media_buy", json!({}))).await), Some("INVALID_REQUEST"));
    assert_eq!(kit.upstream.calls(), 1);
}
