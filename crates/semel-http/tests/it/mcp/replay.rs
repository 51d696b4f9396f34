//! What is replayed, and how it looks.

use http::Response;
use semel_http::Body;
use semel_http::observe::AnswerOutcome;
use semel_http::policy::{InsertLimits, Rate};
use serde_json::{Value, json};

use super::{
    Bench, EVENTS, FORMS, JSON, buy, error_of, message, payload, profile, said, scripted, tool_calls,
    with_argument,
};
use crate::kit::Kit;

fn answer(form: &str, message: &Value) -> Response<Body> {
    let (content_type, body) = if form == EVENTS {
        ("text/event-stream", format!(": hello\n\nevent: message\nid: 7\ndata: {message}\n\n"))
    } else {
        ("application/json", message.to_string())
    };
    Response::builder().header("content-type", content_type).body(Body::from(body)).unwrap()
}

// A replay carries the new id, the current context, and replayed: true, in both places and in either form.
#[tokio::test]
async fn a_replay_is_an_answer_to_its_own_call() {
    for first_form in FORMS {
        for then_form in [JSON, EVENTS, "application/json", "text/event-stream"] {
            let bench = Bench::new();
            let context = |n: i32| json!({ "correlation_id": format!("c-{n}"), "n": n });
            let call = |id: Value, n: i32| with_argument(buy(id, "a"), "context", context(n));
            let first = bench.kit.send(message(&call(json!(1), 1), first_form)).await;
            assert!(first.is_stored() && !first.is_replay());
            let first = said(&first);
            assert_eq!(payload(&first).get("replayed"), None, "R4");
            for (id, n) in [(json!(2), 2), (json!("three"), 3)] {
                let again = bench.kit.send(message(&call(id.clone(), n), then_form)).await;
                assert_eq!(again.status, 200);
                // As it was stored, unless the client does not take that.
                let expected = match (first_form, then_form) {
                    (_, "application/json") | (JSON, JSON | EVENTS) => "application/json",
                    _ => "text/event-stream",
                };
                assert_eq!(again.header("content-type"), Some(expected), "{first_form} then {then_form}");
                assert!(again.is_replay());
                assert_eq!(again.header("mcp-session-id"), None);
                let mut again = said(&again);
                assert_eq!(again["id"], id);
                assert_eq!(payload(&again)["context"], context(n));
                assert_eq!(payload(&again)["replayed"], true);
                // But for these it is the first answer.
                let structured = &mut again["result"]["structuredContent"];
                structured.as_object_mut().unwrap().remove("replayed");
                structured["context"] = context(1);
                assert_eq!(*structured, first["result"]["structuredContent"]);
            }
            assert_eq!(bench.agent.buys(), 1);
        }
    }
}

// Without a context of its own, a replay shows nobody else's.
#[tokio::test]
async fn a_context_is_never_anothers() {
    let bench = Bench::new();
    bench
        .call(message(&with_argument(buy(1, "a"), "context", json!({ "secret": "of the first" })), JSON))
        .await;
    let again = bench.kit.send(message(&buy(2, "a"), JSON)).await;
    assert!(
        !again.text().contains("of the first")
            && said(&again)["result"]["structuredContent"].get("context").is_none()
    );
}

// What is not changed keeps its digits, and what is no JSON text stays as it is.
#[tokio::test]
async fn numbers_keep_their_digits() {
    for form in FORMS {
        let result = r#"{"structuredContent":{"big":12345678901234567890123,"one":1.0},"content":[{"type":"image","data":"x"},{"type":"text","text":"not JSON"}]}"#;
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        let body = if form == EVENTS { format!("data: {text}\n\n") } else { text };
        let content_type = if form == EVENTS { "text/event-stream" } else { "application/json" };
        let upstream = scripted([Response::builder()
            .header("content-type", content_type)
            .body(Body::from(body))
            .unwrap()]);
        let kit = Kit::profile(&profile(), upstream);
        kit.send(message(&buy(1, "a"), form)).await;
        let again = kit.send(message(&buy(2, "a"), form)).await;
        assert!(
            again.text().contains(r#""big":12345678901234567890123,"one":1.0,"replayed":true"#),
            "{}",
            again.text()
        );
        assert!(again.text().contains("not JSON"));
    }
}

// Success is judged on content: isError, adcp_error, errors[] and JSON-RPC error are not pinned; submitted is.
#[tokio::test]
async fn errors_are_not_pinned_and_submitted_is() {
    let result = |result: Value| json!({ "jsonrpc": "2.0", "id": 1, "result": result });
    for form in FORMS {
        for (failure, what) in [
            (result(json!({ "isError": true, "content": [] })), "isError"),
            (
                result(json!({ "structuredContent": { "adcp_error": { "code": "RATE_LIMITED" } } })),
                "adcp_error",
            ),
            (result(json!({ "structuredContent": { "errors": [{ "code": "X" }] } })), "errors[]"),
            (
                result(json!({ "content": [{ "type": "text", "text": "{\"errors\":[{}]}" }] })),
                "errors[] in the text",
            ),
            (json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32000, "message": "no" } }), "error"),
        ] {
            let success = result(json!({ "structuredContent": { "status": "submitted", "task_id": "t-1" } }));
            let kit = Kit::profile(&profile(), scripted([answer(form, &failure), answer(form, &success)]));
            let first = kit.send(message(&buy(1, "a"), form)).await;
            assert_eq!((said(&first), first.is_stored()), (failure, false), "{what}: given as it came");
            assert_eq!(kit.count(AnswerOutcome::Released), 1);
            let second = kit.send(message(&buy(1, "a"), form)).await;
            assert_eq!(said(&second), success, "{what}: the same key runs again");
            let third = said(&kit.send(message(&buy(1, "a"), form)).await);
            assert_eq!(third["result"]["structuredContent"]["replayed"], true, "submitted is pinned");
            assert_eq!(third["result"]["structuredContent"]["task_id"], "t-1");
            assert_eq!(tool_calls(&kit.upstream), 2);
        }
    }
}

// An agent's own HTTP errors are given as they come, and nothing is kept of them.
#[tokio::test]
async fn statuses_of_the_transport_are_not_pinned() {
    for status in [401, 404, 429, 500, 503] {
        let failed = Response::builder().status(status).body(Body::from("no")).unwrap();
        let success = json!({ "jsonrpc": "2.0", "id": 1, "result": { "structuredContent": { "ok": true } } });
        let kit = Kit::profile(&profile(), scripted([failed, answer(JSON, &success)]));
        let first = kit.send(message(&buy(1, "a"), JSON)).await;
        assert_eq!((first.status.as_u16(), first.text()), (status, "no"));
        assert_eq!(said(&kit.send(message(&buy(1, "a"), JSON)).await), success, "{status}");
    }
}

// The upstream's answer stands in a stream of several events, in any pieces.
#[tokio::test]
async fn the_answer_is_found_among_events() {
    let ours =
        json!({ "jsonrpc": "2.0", "id": 1, "result": { "structuredContent": { "media_buy_id": "mb" } } });
    let other =
        json!({ "jsonrpc": "2.0", "id": 99, "result": { "structuredContent": { "media_buy_id": "other" } } });
    let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": {} });
    let stream = format!(
        "data: {progress}\r\n\r\nid: 1\r\ndata: {other}\r\n\r\n: ping\r\n\r\nevent: message\r\ndata: {ours}\r\n\r\n: bye\r\n\r\n"
    );
    for size in [1, 7, 4096] {
        let pieces: Vec<_> = stream.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
        let body = super::bodies::pieces(pieces);
        let upstream = scripted([Response::builder()
            .header("content-type", "text/event-stream; charset=utf-8")
            .body(body)
            .unwrap()]);
        let kit = Kit::profile(&profile(), upstream);
        let first = kit.send(message(&buy(1, "a"), EVENTS)).await;
        assert_eq!(first.text(), stream, "every event of it reaches the first caller");
        let again = said(&kit.send(message(&buy(2, "a"), JSON)).await);
        assert_eq!(again["result"]["structuredContent"], json!({ "media_buy_id": "mb", "replayed": true }));
    }
}

// An answer over the limit leaves a tombstone: never a second run, told as a tool's error.
#[tokio::test]
async fn an_answer_that_is_too_large_is_not_kept() {
    for form in FORMS {
        let bench = Bench::route(|route| route.response_limit(100).limits(wide()));
        // The tools are learned under the same limit, so they are not; but the call has a key.
        let first = bench.call(message(&buy(1, "a"), form)).await;
        assert_eq!(payload(&first)["media_buy_id"], "mb_1");
        let again = bench.call(message(&buy(2, "a"), form)).await;
        assert_eq!(
            (&error_of(&again)["code"], &error_of(&again)["recovery"]),
            (&json!("OUTCOME_NOT_KEPT"), &json!("terminal"))
        );
        assert_eq!(bench.agent.buys(), 1);
    }
}

fn wide() -> InsertLimits {
    let rate = Rate { per_second: 1000, burst: 1000 };
    InsertLimits { writes: rate, reads: rate }
}
