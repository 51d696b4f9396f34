//! Forms of messages that libraries for agents and clients write.

use http::Response;
use semel_http::Body;
use serde_json::{Value, json};

use super::{JSON, book, call_of, key, message, profile, said, with_argument};
use crate::kit::{Kit, Upstream};

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

// Clients compare a structured result with the output schema of the list that they got: the mark of an answer from the record
// and an error are then only where they are accepted.
#[tokio::test]
async fn results_fit_the_output_schema_that_the_caller_got() {
    let schema = json!({ "type": "object", "properties": { "effect": {} }, "required": ["effect"], "additionalProperties": false });
    for listed_before in [false, true] {
        let schema = schema.clone();
        let kit = Kit::profile(
            &profile(),
            Upstream::new(move |_, seen| {
                let asked: Value = serde_json::from_slice(&seen.body).unwrap();
                let result = if asked["method"] == "tools/list" {
                    json!({ "tools": [{ "name": "book_slot", "inputSchema": {}, "outputSchema": schema }] })
                } else {
                    let text = json!([{ "type": "text", "text": "{\"effect\":1}" }]);
                    json!({ "content": text, "structuredContent": { "effect": 1 } })
                };
                let message = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result });
                async move { Ok(Response::new(Body::from(message.to_string()))) }
            }),
        );
        if listed_before {
            kit.send(message(&json!({ "jsonrpc": "2.0", "id": 0, "method": "tools/list" }), JSON)).await;
        }
        kit.send(message(&book(1, "a"), JSON)).await;
        let context = json!({ "correlation_id": "c" });
        let again = with_argument(book(2, "a"), "context", context.clone());
        let replay = said(&kit.send(message(&again, JSON)).await)["result"].clone();
        let marked = json!({ "effect": 1, "context": context, "replayed": true });
        let text: Value = serde_json::from_str(replay["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text, marked);
        let structured = if listed_before { json!({ "effect": 1 }) } else { marked };
        assert_eq!(replay["structuredContent"], structured);
        let other = with_argument(book(3, "a"), "n", json!(2));
        let conflict = said(&kit.send(message(&other, JSON)).await)["result"].clone();
        assert_eq!(
            (&conflict["isError"], conflict.get("structuredContent").is_none()),
            (&json!(true), listed_before)
        );
        let text: Value = serde_json::from_str(conflict["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text["adcp_error"]["code"], "IDEMPOTENCY_CONFLICT");
    }
}

// Protocol versions without sessions: every request names its method in a header and its version in `_meta`, and every result
// names its type. A question of the agent to its client is not the result of the call.
#[tokio::test]
async fn requests_that_stand_alone_are_guarded_alike() {
    let kit = Kit::profile(
        &profile(),
        Upstream::new(|number, seen| async move {
            let asked: Value = serde_json::from_slice(&seen.body).unwrap();
            let method = asked["method"].as_str().unwrap();
            assert_eq!(seen.headers["mcp-method"], method);
            assert_eq!(seen.headers.contains_key("mcp-name"), method == "tools/call");
            assert_eq!(asked["params"]["_meta"]["version"], "2026-07-28");
            let result = match method {
                "tools/list" => {
                    let schema = json!({ "required": ["idempotency_key"] });
                    json!({ "resultType": "complete", "tools": [{ "name": "book_slot", "inputSchema": schema }] })
                }
                _ if number == 2 => json!({ "resultType": "input_required", "inputRequests": {} }),
                _ => {
                    json!({ "resultType": "complete", "content": [], "structuredContent": { "effect": number } })
                }
            };
            let message = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result });
            Ok(Response::new(Body::from(message.to_string())))
        }),
    );
    let call = async |id: i32, arguments: Value| {
        let mut call = call_of(id, "book_slot", arguments);
        call["params"]["_meta"] = json!({ "version": "2026-07-28", "progressToken": 1 });
        let mut request = message(&call, JSON);
        request.headers_mut().remove("mcp-session-id");
        request.headers_mut().insert("mcp-method", "tools/call".parse().unwrap());
        request.headers_mut().insert("mcp-name", "book_slot".parse().unwrap());
        said(&kit.send(request).await)["result"].clone()
    };
    let keyed = |n: i32| json!({ "idempotency_key": key("a"), "n": n });
    // The upstream is asked in the same form, and the refusal names its type.
    let missing = call(1, json!({})).await;
    assert_eq!(
        (&missing["structuredContent"]["adcp_error"]["code"], &missing["resultType"]),
        (&json!("INVALID_REQUEST"), &json!("complete"))
    );
    assert_eq!(call(2, keyed(1)).await["resultType"], "input_required");
    assert_eq!(
        call(3, keyed(1)).await["structuredContent"],
        json!({ "effect": 3 }),
        "the question was not stored"
    );
    let again = call(4, keyed(1)).await;
    assert_eq!(
        (&again["structuredContent"], &again["resultType"]),
        (&json!({ "effect": 3, "replayed": true }), &json!("complete"))
    );
    let conflict = call(5, keyed(2)).await;
    assert_eq!((&conflict["isError"], &conflict["resultType"]), (&json!(true), &json!("complete")));
    assert_eq!(kit.upstream.calls(), 3);
}
