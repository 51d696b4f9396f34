//! Semel's own errors are results of the tool: every code of the table, in JSON and as a stream.

use std::time::Duration;

use semel::store::ErrorKind;
use semel::testkit::fault::{InjectedFault, StoreCall, When};
use semel_http::call::CallError;
use semel_http::policy::{InFlight, InsertLimits, Rate};
use serde_json::{Value, json};

use super::{Bench, FORMS, buy, call_of, error_of, key, message, payload, said, with_argument};
use crate::kit::{Answered, Kit, Upstream, eventually};

const ONLY: [(&str, &str); 2] =
    [("application/json", "application/json"), ("text/event-stream", "text/event-stream")];

fn with_context(id: i32, name: &str) -> Value {
    with_argument(buy(id, name), "context", json!({ "correlation_id": "mine" }))
}

/// The error, after everything that all of them share was checked.
#[track_caller]
fn told(answer: &Answered, id: i32, code: &str, recovery: &str) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(!answer.is_stored() && !answer.is_replay());
    let said = said(answer);
    assert_eq!((&said["jsonrpc"], &said["id"]), (&json!("2.0"), &json!(id)));
    assert_eq!(payload(&said)["context"], json!({ "correlation_id": "mine" }), "the context is echoed");
    let error = error_of(&said).clone();
    assert_eq!((&error["code"], &error["recovery"]), (&json!(code), &json!(recovery)));
    error
}

// correctable, and nothing else is said: neither of the stored request nor of its answer.
#[tokio::test]
async fn a_conflict_leaks_nothing() {
    for (accept, form) in ONLY {
        let bench = Bench::new();
        let first = with_argument(with_context(1, "a"), "brand", json!("canary-in-request"));
        bench.call(message(&first, accept)).await;
        let answer = bench.kit.send(message(&with_context(2, "a"), accept)).await;
        assert_eq!(answer.header("content-type"), Some(form), "in the form the client takes");
        let error = told(&answer, 2, "IDEMPOTENCY_CONFLICT", "correctable");
        let members: Vec<&str> = error.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(members, ["code", "message", "recovery"]);
        for canary in ["canary", "mb_1", &key("a"), "active"] {
            assert!(!answer.text().contains(canary), "{canary} in {}", answer.text());
        }
        // In flight and done, it is told in the same words.
        assert_eq!(error["message"], told(&answer, 2, "IDEMPOTENCY_CONFLICT", "correctable")["message"]);
    }
}

// A conflict is found while the first call runs, too.
#[tokio::test]
async fn in_flight_and_conflict_while_it_runs() {
    for (accept, _) in ONLY {
        let (opened, gate) = tokio::sync::watch::channel(false);
        let upstream = Upstream::new(move |_, seen| {
            let mut gate = gate.clone();
            async move {
                let asked: Value = serde_json::from_slice(&seen.body).unwrap();
                gate.wait_for(|open| *open).await.unwrap();
                let result = json!({ "structuredContent": { "ok": true } });
                let said = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result });
                Ok(http::Response::new(semel_http::Body::from(said.to_string())))
            }
        });
        for (in_flight, lease) in [(InFlight::Reject, 30), (InFlight::Wait, 2)] {
            opened.send_replace(false);
            let mut named = super::profile();
            named.codec = semel_http::Codec::Mcp {
                tools: semel_http::KeyedTools::Named(vec!["create_media_buy".to_owned()]),
            };
            let kit = Kit::route_of(&named, upstream.clone(), |route| {
                route.in_flight(in_flight).wait(Duration::from_millis(30)).lease(Duration::from_secs(lease))
            });
            let before = kit.upstream.calls();
            let first = tokio::spawn({
                let (kit, call) = (kit.clone(), with_context(1, "a"));
                async move { kit.send(message(&call, accept)).await }
            });
            eventually("the first is in progress", || kit.upstream.calls() == before + 1).await;
            let error = told(
                &kit.send(message(&with_context(2, "a"), accept)).await,
                2,
                "IDEMPOTENCY_IN_FLIGHT",
                "transient",
            );
            assert!((1..=3).contains(&error["retry_after"].as_u64().unwrap()), "{error}");
            let other = with_argument(with_context(3, "a"), "packages", json!([]));
            told(&kit.send(message(&other, accept)).await, 3, "IDEMPOTENCY_CONFLICT", "correctable");
            opened.send_replace(true);
            assert_eq!(said(&first.await.unwrap())["result"]["structuredContent"]["ok"], true);
            assert_eq!(kit.upstream.calls(), before + 1);
        }
    }
}

#[tokio::test]
async fn expired() {
    for (accept, _) in ONLY {
        let bench = Bench::new();
        bench.call(message(&with_context(1, "a"), accept)).await;
        bench.kit.clock.advance(Duration::from_secs(86_400 + 59));
        assert!(bench.kit.send(message(&with_context(2, "a"), accept)).await.is_replay());
        bench.kit.clock.advance(Duration::from_secs(1));
        told(
            &bench.kit.send(message(&with_context(3, "a"), accept)).await,
            3,
            "IDEMPOTENCY_EXPIRED",
            "correctable",
        );
        assert_eq!(bench.agent.buys(), 1);
    }
}

// A limit is told with a hint and is never pinned: the same key runs when there is room again.
#[tokio::test]
async fn rate_limited_is_not_pinned() {
    for (accept, _) in ONLY {
        let rate = |per_second, burst| Rate { per_second, burst };
        let limits = InsertLimits { writes: rate(20, 1), reads: rate(100, 100) };
        let bench = Bench::route(|route| route.limits(limits));
        bench.call(message(&with_context(1, "a"), accept)).await;
        let error = told(
            &bench.kit.send(message(&with_context(2, "b"), accept)).await,
            2,
            "RATE_LIMITED",
            "transient",
        );
        assert_eq!((&error["retry_after"], &error["details"]["retry_after"]), (&json!(1), &json!(1)));
        assert!(
            bench.kit.send(message(&with_context(3, "a"), accept)).await.is_replay(),
            "what is known is replayed"
        );
        tokio::time::sleep(Duration::from_millis(60)).await;
        let ran = bench.kit.send(message(&with_context(4, "b"), accept)).await;
        assert_eq!(payload(&said(&ran))["media_buy_id"], "mb_2");
        assert_eq!(bench.agent.buys(), 2);
    }
}

// The profile bounds what one principal may cause without being told to.
#[tokio::test]
async fn there_is_a_limit_by_default() {
    let bench = Bench::new();
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..1000 {
        let (kit, call) = (bench.kit.clone(), with_context(number, &number.to_string()));
        callers.spawn(async move { said(&kit.send(message(&call, "application/json")).await) });
    }
    let answers = callers.join_all().await;
    let (limited, ran): (Vec<_>, Vec<_>) = answers.iter().partition(|said| said["result"]["isError"] == true);
    assert!(!limited.is_empty() && ran.len() >= 300, "{} ran", ran.len());
    assert!(limited.iter().all(|said| error_of(said)["code"] == "RATE_LIMITED"));
    assert_eq!(bench.agent.buys(), ran.len());
}

#[tokio::test]
async fn store_down_is_told_and_nothing_happens() {
    for (accept, _) in ONLY {
        let bench = Bench::new();
        bench.kit.store.script(StoreCall::Claim, When::Always, InjectedFault::Refuse(ErrorKind::Unavailable));
        let error = told(
            &bench.kit.send(message(&with_context(1, "a"), accept)).await,
            1,
            "SERVICE_UNAVAILABLE",
            "transient",
        );
        assert_eq!(error["retry_after"], 1);
        assert_eq!(bench.agent.buys(), 0);
    }
}

// Nobody to ask: nothing happened, and a retry is useful.
#[tokio::test]
async fn unreachable_is_told_and_released() {
    for (accept, _) in ONLY {
        let upstream = Upstream::new(|_, _| async { Err(CallError::undelivered("refused").into()) });
        let kit = Kit::profile(&super::profile(), upstream);
        for id in 1..3 {
            told(
                &kit.send(message(&with_context(id, "a"), accept)).await,
                id,
                "SERVICE_UNAVAILABLE",
                "transient",
            );
        }
        assert!(kit.upstream.calls() >= 2);
    }
}

// Without a credential there is no scope, and it is said how to do without.
#[tokio::test]
async fn scope_missing() {
    for accept in FORMS {
        let bench = Bench::new();
        let mut request = message(&with_context(1, "a"), accept);
        request.headers_mut().remove("authorization");
        let error = told(&bench.kit.send(request).await, 1, "INVALID_REQUEST", "correctable");
        assert!(error["message"].as_str().unwrap().contains("--scope single-tenant"));
        assert_eq!((bench.agent.buys(), bench.kit.store.all_calls()), (0, 0));
        let mut open = message(&call_of(2, "get_products", json!({})), accept);
        open.headers_mut().remove("authorization");
        assert!(
            payload(&bench.call(open).await)["products"].is_array(),
            "what needs no key needs no principal"
        );
    }
}
