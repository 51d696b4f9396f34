//! What is passed on, what is guarded, and what is fingerprinted.

use http::{Method, Request};
use semel_http::observe::AnswerOutcome;
use semel_http::{Body, Codec, KeyedTools};
use serde_json::{Value, json};

use super::{
    Bench, EVENTS, FORMS, JSON, buy, call_of, error_of, key, message, payload, profile, said, tool_calls,
    with_argument,
};
use crate::kit::with;

// initialize, tools/list, notifications, answers of the client, GET and DELETE pass untouched; sessions too.
#[tokio::test]
async fn what_is_no_keyed_call_passes_untouched() {
    for accept in FORMS {
        let bench = Bench::new();
        let messages = [
            json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": "2025-06-18" } }),
            json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
            json!({ "jsonrpc": "2.0", "id": "a", "method": "tools/list" }),
            json!({ "jsonrpc": "2.0", "id": 2, "method": "ping" }),
            json!({ "jsonrpc": "2.0", "id": 9, "result": {} }),
            call_of(3, "get_products", json!({ "brief": "x" })),
            call_of(4, "no_such_tool", json!({})),
        ];
        for sent in &messages {
            let answer = bench.kit.send(message(sent, accept)).await;
            let seen = bench.kit.upstream.last();
            assert_eq!(seen.body, sent.to_string(), "not a byte is changed");
            assert_eq!(seen.headers["mcp-session-id"], "session-1");
            assert!(answer.is_stored() && !answer.is_replay(), "{sent}: nothing is said of keys");
            if sent["method"] == "initialize" {
                assert_eq!(answer.header("mcp-session-id"), Some("session-1"));
            }
            if accept == EVENTS && sent["method"] == "tools/list" {
                assert_eq!(answer.text().matches("event: message").count(), 2, "all events of a stream pass");
            }
        }
        for (method, status) in [(Method::GET, 405), (Method::DELETE, 200)] {
            let request =
                Request::builder().method(method.clone()).uri("/mcp").header("mcp-session-id", "session-1");
            let answer = bench.kit.send(request.body(Body::empty()).unwrap()).await;
            assert_eq!((answer.status.as_u16(), answer.is_stored()), (status, true));
            assert_eq!(bench.kit.upstream.last().method, method);
        }
        assert_eq!(bench.kit.store.all_calls(), 0, "the store hears nothing of it");
        assert_eq!(bench.kit.count(AnswerOutcome::PassedOn), messages.len() as u64 + 2);
    }
}

// A file or a form at another door of the same house is nobody's message; a message under another name is one.
#[tokio::test]
async fn what_is_no_message_passes_and_what_is_one_does_not() {
    let bench = Bench::new();
    for (kind, body) in [
        ("application/x-www-form-urlencoded", "grant_type=x"),
        ("text/plain", "hello"),
        ("application/octet-stream", "{\"not\": a message"),
        ("multipart/form-data; boundary=x", "--x--"),
    ] {
        let request = Request::post("/token").header("content-type", kind).body(Body::from(body)).unwrap();
        bench.kit.send(request).await;
        assert_eq!(bench.kit.upstream.last().body, body, "{kind}");
    }
    for kind in ["application/x-www-form-urlencoded", "text/plain;charset=UTF-8", "Application/JSON", ""] {
        for _ in 0..2 {
            let mut request = message(&buy(1, "a"), JSON);
            request.headers_mut().remove("content-type");
            if !kind.is_empty() {
                request = with(request, "content-type", kind);
            }
            assert_eq!(payload(&bench.call(request).await)["media_buy_id"], "mb_1", "{kind}");
        }
    }
    assert_eq!(bench.agent.buys(), 1);
}

// JSON-RPC batches: none keyed, untouched; else refused before anything happens.
#[tokio::test]
async fn batches_pass_or_are_refused_as_a_whole() {
    let bench = Bench::new();
    let harmless =
        json!([call_of(1, "get_products", json!({})), { "jsonrpc": "2.0", "id": 2, "method": "ping" }]);
    let answer = bench.kit.send(message(&harmless, JSON)).await;
    assert_eq!(answer.json().as_array().map(Vec::len), Some(2));
    assert_eq!(bench.kit.upstream.last().body, harmless.to_string());
    let calls = bench.kit.upstream.calls();
    let keyed = json!([{ "jsonrpc": "2.0", "id": 2, "method": "ping" }, buy(1, "a")]);
    let answer = bench.kit.send(message(&keyed, JSON)).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["error"]["code"], -32600);
    assert!(
        answer.json()["error"]["message"].as_str().unwrap().contains("not in a batch"),
        "{}",
        answer.text()
    );
    assert_eq!((bench.kit.upstream.calls(), bench.agent.buys(), bench.kit.store.all_calls()), (calls, 0, 0));
}

// Which tools need a key: by asking, where a call has none and nothing is known of its tool.
#[tokio::test]
async fn the_upstream_is_asked_for_its_tools_once() {
    for accept in FORMS {
        let bench = Bench::new();
        bench.call(message(&buy(1, "a"), accept)).await;
        assert_eq!(bench.kit.upstream.calls(), 1, "a call with a key is guarded, and nobody is asked");
        let look = |id: i32| message(&call_of(id, "get_products", json!({})), accept);
        bench.call(look(2)).await;
        let seen = bench.kit.upstream.seen();
        let asked: Value = serde_json::from_slice(&seen[1].body).unwrap();
        assert_eq!(asked["method"], "tools/list");
        assert_eq!(seen[1].headers["authorization"], "Bearer alice", "asked with the headers of the caller");
        assert_eq!(seen[1].headers["mcp-session-id"], "session-1");
        bench.call(look(3)).await;
        assert_eq!(bench.kit.upstream.calls(), 4);
        // A tool that nobody knows is asked for again, but not with every call.
        for _ in 0..3 {
            bench.call(message(&call_of(4, "other", json!({})), accept)).await;
        }
        assert_eq!(bench.kit.upstream.calls(), 7);
    }
}

// By watching: a list that passes by teaches what it says.
#[tokio::test]
async fn lists_that_pass_by_are_learned_from() {
    for accept in FORMS {
        let bench = Bench::new();
        bench.call(message(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }), accept)).await;
        for id in 2..=3 {
            bench.call(message(&call_of(id, "get_products", json!({})), accept)).await;
        }
        assert_eq!(bench.kit.upstream.calls(), 3, "nothing had to be asked");
    }
}

// By the config: these tools and no others.
#[tokio::test]
async fn tools_named_by_the_config() {
    let mut named = profile();
    named.codec = Codec::Mcp { tools: KeyedTools::Named(vec!["get_products".to_owned()]) };
    let bench = Bench::with(|guard| guard.profile(named));
    let refused = bench.call(message(&call_of(1, "get_products", json!({})), JSON)).await;
    assert_eq!(error_of(&refused)["code"], "INVALID_REQUEST");
    for id in 0..2 {
        bench.call(message(&call_of(id, "create_media_buy", json!({ "packages": [{}] })), JSON)).await;
    }
    assert_eq!(
        (bench.agent.buys(), bench.kit.upstream.calls()),
        (2, 2),
        "it is not among them and has no key, and nobody was asked"
    );
}

// An upstream that does not list its tools: a call with a key is guarded anyway.
#[tokio::test]
async fn a_key_is_honoured_where_nobody_knows_the_tool() {
    let bench = Bench::new();
    for id in 0..2 {
        let call = call_of(id, "unlisted", json!({ "idempotency_key": key("a") }));
        // It fails, so nothing is kept; but it was claimed.
        bench.call(message(&call, JSON)).await;
    }
    assert!(bench.kit.store.all_calls() > 0);
}

// The key: params.arguments.idempotency_key, ^[A-Za-z0-9_.:-]{16,255}$
#[tokio::test]
async fn the_syntax_of_a_key() {
    for accept in FORMS {
        let bench = Bench::new();
        let with_key = |id: i32, key: Value| with_argument(buy(id, "x"), "idempotency_key", key);
        let long = "k".repeat(256);
        for bad in [
            json!("short-15-chars.."[..15]),
            json!(long),
            json!("sixteen chars or more"),
            json!("0123456789abcdef/"),
            json!("0123456789abcdéf0"),
            json!(""),
            json!(null),
            json!(12_345_678_901_234_567_u64),
            json!({ "a": 1 }),
        ] {
            let answer = bench.kit.send(message(&with_key(7, bad.clone()), accept)).await;
            assert_eq!(answer.status, 200);
            let said = said(&answer);
            assert_eq!(
                (&said["id"], &error_of(&said)["code"]),
                (&json!(7), &json!("INVALID_REQUEST")),
                "{bad}"
            );
            assert_eq!(error_of(&said)["recovery"], "correctable");
        }
        let mut missing = with_argument(buy(8, "x"), "context", json!({ "correlation_id": "c" }));
        missing["params"]["arguments"].as_object_mut().unwrap().remove("idempotency_key");
        let said = bench.call(message(&missing, accept)).await;
        assert_eq!(error_of(&said)["code"], "INVALID_REQUEST");
        assert_eq!(payload(&said)["context"], json!({ "correlation_id": "c" }), "the context is echoed");
        assert_eq!((bench.agent.buys(), bench.kit.store.all_calls()), (0, 0), "R1");
        for (id, good) in ["0123456789abcdef".to_owned(), "k".repeat(255), "a_b.c:d-0123456789".to_owned()]
            .into_iter()
            .enumerate()
        {
            let said = bench.call(message(&with_key(id as i32, json!(good)), accept)).await;
            assert_eq!(payload(&said)["media_buy_id"], format!("mb_{}", id + 1));
        }
    }
}

// The fingerprint: the tool and its canonical arguments, without what differs between two tries.
#[tokio::test]
async fn what_counts_as_the_same_call() {
    for accept in FORMS {
        let bench = Bench::new();
        let first = bench.call(message(&buy(1, "a"), accept)).await;
        let id_of = |said: &Value| payload(said)["media_buy_id"].clone();
        let text = |arguments: &str| {
            format!(
                r#"{{"params":{{"arguments":{arguments},"_meta":{{"progressToken":5}},"name":"create_media_buy"}},"method":"tools/call","id":"x","jsonrpc":"2.0"}}"#
            )
        };
        let same = [
            message(&with_argument(buy(2, "a"), "context", json!({ "n": 1 })), accept),
            message(&with_argument(buy("three", "a"), "governance_context", json!("g")), accept),
            with(message(&buy(4, "a"), accept), "traceparent", "00-1-1-01"),
            super::raw_message(
                text(&format!(r#"{{"packages": [{{"budget": 1.0e2}}], "idempotency_key": "{}"}}"#, key("a"))),
                accept,
            ),
        ];
        for request in same {
            let again = bench.call(request).await;
            assert_eq!((id_of(&again), &payload(&again)["replayed"]), (id_of(&first), &json!(true)));
        }
        let mut other_session = message(&buy(5, "a"), accept);
        other_session.headers_mut().insert("mcp-session-id", "session-2".parse().unwrap());
        assert_eq!(payload(&bench.call(other_session).await)["replayed"], true);
        let webhook = |credentials: &str, url: &str| {
            let config = json!({ "url": url, "authentication": { "schemes": ["Bearer"], "credentials": credentials } });
            with_argument(buy(6, "hook"), "push_notification_config", config)
        };
        let hooked = bench.call(message(&webhook("one", "https://a"), accept)).await;
        assert_eq!(id_of(&bench.call(message(&webhook("two", "https://a"), accept)).await), id_of(&hooked));
        for other in [
            webhook("one", "https://b"),
            with_argument(buy(7, "a"), "packages", json!([{ "budget": 101 }])),
            with_argument(buy(8, "a"), "po_number", json!(null)),
        ] {
            let said = bench.call(message(&other, accept)).await;
            assert_eq!(error_of(&said)["code"], "IDEMPOTENCY_CONFLICT", "{other}");
        }
        assert_eq!((bench.agent.buys(), tool_calls(&bench.kit.upstream)), (2, 2));
    }
}

// get_adcp_capabilities gains adcp.idempotency, whatever else it says.
#[tokio::test]
async fn capabilities_say_what_the_gateway_does() {
    for accept in FORMS {
        let settings = |route: semel_http::policy::PolicyBuilder| {
            route
                .retention(std::time::Duration::from_secs(7200))
                .in_flight_max(std::time::Duration::from_millis(89_500))
        };
        let bench = Bench::route(settings);
        let answer = bench
            .kit
            .send(message(&call_of(1, "get_adcp_capabilities", json!({ "context": { "a": 1 } })), accept))
            .await;
        let said = said(&answer);
        assert_eq!(said["id"], 1);
        assert_eq!(
            *payload(&said),
            json!({
                "adcp": {
                    "major_versions": [3],
                    "idempotency": { "supported": true, "replay_ttl_seconds": 7200, "in_flight_max_seconds": 90 },
                },
                "supported_protocols": ["media_buy"],
                "context": { "a": 1 },
            })
        );
        if accept == EVENTS {
            assert_eq!(answer.header("content-type"), Some("text/event-stream"));
            assert!(
                answer.text().contains("notifications/message"),
                "the other events of the stream are there"
            );
        }
        assert!(answer.header("content-length").is_none_or(|length| length == answer.body.len().to_string()));
        assert_eq!(bench.kit.store.all_calls(), 0);
    }
}

// The same is published by the gateway itself.
#[tokio::test]
async fn the_policy_is_published() {
    let bench = Bench::new();
    let request = Request::get("/.well-known/idempotency").body(Body::empty()).unwrap();
    let said = bench.kit.send(request).await.json();
    assert_eq!((&said["profile"], &said["replay_ttl_seconds"]), (&json!("adcp-mcp"), &json!(86_400)));
    assert_eq!(said["key"]["json"], "/params/arguments/idempotency_key");
    assert_eq!((&said["key"]["min_length"], &said["key"]["max_length"]), (&json!(16), &json!(255)));
}
