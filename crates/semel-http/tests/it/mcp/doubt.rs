//! Calls whose end nobody knows: run again at `in_flight_max`, or looked up by a probe.

use std::time::Duration;

use http::Response;
use semel::Mode;
use semel_http::Body;
use semel_http::policy::{Absent, CallTemplate, OnDoubt, Probe};
use serde_json::{Value, json};

use super::bodies::{cut_after, cut_after_each, endless, pieces};
use super::{
    EVENTS, FORMS, JSON, buy, error_of, key, message, payload, profile, raw_message, said, scripted,
    tool_calls,
};
use crate::kit::{Kit, Upstream};

fn good() -> Response<Body> {
    let said =
        json!({ "jsonrpc": "2.0", "id": 1, "result": { "structuredContent": { "media_buy_id": "mb" } } });
    Response::new(Body::from(said.to_string()))
}

fn events(body: Body) -> Response<Body> {
    Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
}

const PROGRESS: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n";

/// Answers that leave it open whether something happened.
fn doubtful() -> Vec<(&'static str, Response<Body>)> {
    vec![
        (
            "a stream that is cut mid-event",
            events(cut_after("event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"resu")),
        ),
        (
            "progress, then a cut mid-event",
            events(cut_after_each(&[PROGRESS, "data: {\"jsonrpc\":\"2.0\",\"id\":1,"])),
        ),
        ("progress, then the end", events(pieces(vec![PROGRESS.into(), PROGRESS.into()]))),
        (
            "a stream that ends mid-event",
            events(Body::from("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n")),
        ),
        (
            "a stream without the answer",
            events(Body::from("data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n")),
        ),
        ("an empty stream", events(Body::empty())),
        ("JSON that is cut", Response::new(cut_after("{\"jsonrpc\""))),
        ("half of it", Response::new(Body::from("{\"jsonrpc\":\"2.0\",\"id\":1,"))),
        ("something else", Response::new(Body::from("<html>"))),
        ("another's answer", Response::new(Body::from("{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}"))),
        ("nothing", Response::builder().status(202).body(Body::empty()).unwrap()),
        ("a wrong type", Response::new(Body::from("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":5}"))),
    ]
}

// At least once: not before in_flight_max, and then again.
#[tokio::test]
async fn doubt_is_run_again_at_in_flight_max() {
    for accept in FORMS {
        for (what, answer) in doubtful() {
            let kit = Kit::profile(&profile(), scripted([answer, good()]));
            let first = kit.send(message(&buy(1, "a"), accept)).await;
            assert_eq!(first.status, 200, "{what}");
            let error = error_of(&said(&first)).clone();
            assert_eq!(
                (&error["code"], &error["recovery"], &error["retry_after"]),
                (&json!("SERVICE_UNAVAILABLE"), &json!("transient"), &json!(60)),
                "{what}"
            );
            kit.guard.engine().drain().await;
            kit.clock.advance(Duration::from_secs(50));
            let early = said(&kit.send(message(&buy(2, "a"), accept)).await);
            assert_eq!(
                (&error_of(&early)["code"], &error_of(&early)["retry_after"]),
                (&json!("SERVICE_UNAVAILABLE"), &json!(10)),
                "{what}"
            );
            assert_eq!(tool_calls(&kit.upstream), 1, "{what}: not yet");
            kit.clock.advance(Duration::from_secs(10));
            let ran = said(&kit.send(message(&buy(1, "a"), accept)).await);
            assert_eq!(ran["result"]["structuredContent"]["media_buy_id"], "mb", "{what}");
            let again = said(&kit.send(message(&buy(4, "a"), accept)).await);
            assert_eq!(again["result"]["structuredContent"]["replayed"], true, "{what}");
            assert_eq!(tool_calls(&kit.upstream), 2, "{what}");
        }
    }
}

// A stream that never says it: in doubt at in_flight_max, and waiting callers are told.
#[tokio::test(start_paused = true)]
async fn a_stream_that_never_answers_is_in_doubt() {
    let kit = Kit::route_of(&profile(), scripted([events(endless(": ping\n\n"))]), |route| {
        route.in_flight_max(Duration::from_secs(2)).lease(Duration::from_secs(1)).wait(Duration::ZERO)
    });
    let answer = said(&kit.send(message(&buy(1, "a"), EVENTS)).await);
    assert_eq!(error_of(&answer)["code"], "SERVICE_UNAVAILABLE");
}

// hold: at most once, until somebody settles it.
#[tokio::test]
async fn held_doubt_is_never_run_again() {
    let (_, answer) = doubtful().swap_remove(0);
    let kit = Kit::route_of(&profile(), scripted([answer]), |route| route.on_doubt(OnDoubt::Hold));
    kit.send(message(&buy(1, "a"), JSON)).await;
    kit.guard.engine().drain().await;
    kit.clock.advance(Duration::from_secs(3600));
    let again = said(&kit.send(message(&buy(2, "a"), JSON)).await);
    assert_eq!(error_of(&again)["code"], "SERVICE_UNAVAILABLE");
    assert_eq!(tool_calls(&kit.upstream), 1);
}

// A probe is asked before anything runs again, without being told to; what it finds is the tool's result.
#[tokio::test]
async fn a_probe_settles_doubt() {
    for wrapped in [false, true] {
        let result = json!({ "media_buy_id": "found" });
        let found = if wrapped {
            let text = result.to_string();
            let result =
                json!({ "structuredContent": result, "content": [{ "type": "text", "text": text }] });
            json!({ "jsonrpc": "2.0", "id": "p", "result": result })
        } else {
            result
        };
        let upstream = Upstream::new(move |_, seen| {
            let found = found.clone();
            async move {
                if seen.method == http::Method::GET {
                    assert_eq!(seen.uri.path(), format!("/by-key/{}", key("a").replace(':', "%3A")));
                    return Ok(Response::new(Body::from(found.to_string())));
                }
                let (_, answer) = doubtful().swap_remove(0);
                Ok(answer)
            }
        });
        let kit = Kit::route_of(&profile(), upstream, |route| {
            let call = CallTemplate::parse("GET /by-key/{key}").unwrap();
            route.probe(Probe { call, absent: Absent::Unknown })
        });
        kit.send(message(&buy(1, "a"), JSON)).await;
        kit.guard.engine().drain().await;
        for id in 2..4 {
            let settled = said(&kit.send(message(&buy(id, "a"), JSON)).await);
            assert_eq!((&settled["id"], &payload(&settled)["media_buy_id"]), (&json!(id), &json!("found")));
            assert_eq!(payload(&settled)["replayed"], true);
        }
        assert_eq!(tool_calls(&kit.upstream), 1);
    }
}

// keyed: the agent gets a derived key in the arguments, the same on every attempt, and never the caller's.
#[tokio::test]
async fn a_derived_key_takes_the_place_of_the_callers() {
    let (_, answer) = doubtful().swap_remove(0);
    let kit = Kit::route_of(&profile(), scripted([answer, good()]), |route| route.mode(Mode::Keyed));
    // With white space, which stays as it is.
    let sent = serde_json::to_string_pretty(&buy(1, "a")).unwrap();
    kit.send(raw_message(sent.clone(), JSON)).await;
    kit.guard.engine().drain().await;
    let ran = said(&kit.send(raw_message(sent.clone(), JSON)).await);
    assert_eq!(ran["result"]["structuredContent"]["media_buy_id"], "mb", "taken over at once");
    let keys: Vec<Value> = kit
        .upstream
        .seen()
        .iter()
        .filter_map(|seen| {
            assert!(
                !String::from_utf8_lossy(&seen.body).contains(&key("a")),
                "the caller's key goes no further"
            );
            let message: Value = serde_json::from_slice(&seen.body).unwrap();
            (message["method"] == "tools/call")
                .then(|| message["params"]["arguments"]["idempotency_key"].clone())
        })
        .collect();
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], keys[1]);
    let derived = keys[0].as_str().unwrap();
    assert_eq!(derived.len(), 64);
    let received = kit.upstream.last().body;
    assert_eq!(
        String::from_utf8_lossy(&received),
        sent.replace(&key("a"), derived),
        "not a byte beside it changes"
    );
}
