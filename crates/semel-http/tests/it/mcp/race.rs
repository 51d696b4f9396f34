//! Many at once: one effect, one answer.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Response};
use semel_http::policy::{Absent, CallTemplate, Probe};
use semel_http::{Body, RoutePolicy};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Bench, EVENTS, FORMS, JSON, buy, message, payload, profile, said, with_argument};
use crate::kit::{Kit, Upstream, eventually};

// Ten at once, in both forms mixed: one effect, and answers that are equal but for id, context and replayed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_at_once_are_one_effect() {
    for count in [10, 100] {
        let bench = Bench::new();
        let mut callers = JoinSet::new();
        for n in 0..count {
            let call = with_argument(buy(n, "a"), "context", json!({ "correlation_id": n }));
            let (kit, accept) = (bench.kit.clone(), FORMS[n as usize % 2]);
            callers.spawn(async move { (n, kit.send(message(&call, accept)).await) });
        }
        let (mut firsts, mut replays) = (0, 0);
        let mut bodies = Vec::new();
        while let Some(answer) = callers.join_next().await {
            let (n, answer) = answer.unwrap();
            let mut said = said(&answer);
            assert_eq!(said["id"], n);
            assert_eq!(payload(&said)["context"], json!({ "correlation_id": n }));
            match payload(&said).get("replayed") {
                None => firsts += 1,
                Some(replayed) => {
                    assert_eq!((replayed, answer.is_replay()), (&json!(true), true));
                    replays += 1;
                }
            }
            let payload = said["result"]["structuredContent"].as_object_mut().unwrap();
            payload.remove("replayed");
            payload.remove("context");
            bodies.push(payload.clone());
        }
        assert_eq!((firsts, replays, bench.agent.buys()), (1, count - 1, 1));
        assert!(bodies.iter().all(|body| *body == bodies[0]));
    }
}

// A client that hangs up changes nothing: the call ends, and its retry is given the answer.
#[tokio::test]
async fn a_client_that_hangs_up_changes_nothing() {
    for accept in [JSON, EVENTS] {
        let bench = Bench::new();
        {
            let sent = bench.kit.send(message(&buy(1, "a"), accept));
            let late = tokio::time::timeout(std::time::Duration::from_millis(2), sent).await;
            assert!(late.is_err() || bench.agent.buys() == 1);
        }
        bench.kit.guard.engine().drain().await;
        let again = bench.call(message(&buy(2, "a"), accept)).await;
        assert_eq!(payload(&again)["media_buy_id"], "mb_1");
        assert_eq!(bench.agent.buys(), 1);
    }
}

// A tool's error that comes after the key was settled by another gateway's probe: its caller gets the stored result.
#[tokio::test]
async fn a_late_error_of_a_tool_gives_way_to_the_stored_result() {
    let error = json!({ "jsonrpc": "2.0", "id": 1, "result": { "isError": true, "content": [] } });
    let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": {} });
    let streamed = format!("data: {progress}\n\ndata: {error}\n\n");
    for (content_type, body) in [("application/json", error.to_string()), ("text/event-stream", streamed)] {
        let gate = Arc::new(Semaphore::new(0));
        let of_upstream = Arc::clone(&gate);
        let upstream = Upstream::new(move |_, seen| {
            let (gate, body) = (Arc::clone(&of_upstream), body.clone());
            async move {
                if seen.method == Method::GET {
                    return Ok(Response::new(Body::from(json!({ "media_buy_id": "found" }).to_string())));
                }
                if !String::from_utf8_lossy(&seen.body).contains("tools/call") {
                    return Ok(Response::builder().status(404).body(Body::empty()).unwrap());
                }
                gate.acquire().await.unwrap().forget();
                Ok(Response::builder().header("content-type", content_type).body(Body::from(body)).unwrap())
            }
        });
        let route = || {
            let call = CallTemplate::parse("GET /by-key/{key}").unwrap();
            let route = RoutePolicy::builder(&profile(), "* /**");
            route.probe(Probe { call, absent: Absent::Unknown }).build().unwrap()
        };
        let owner = Kit::with(upstream.clone(), |guard| guard.profile(profile()).route(route()));
        let other = owner.beside(|guard| guard.profile(profile()).route(route()));
        let owning = tokio::spawn({
            let owner = owner.clone();
            async move { owner.send(message(&buy(1, "a"), EVENTS)).await }
        });
        let calls = || super::tool_calls(&upstream);
        eventually("the owner's call is held", || calls() == 1).await;
        owner.clock.advance(Duration::from_secs(31));
        let settled = said(&other.send(message(&buy(2, "a"), JSON)).await);
        assert_eq!(payload(&settled)["media_buy_id"], "found");
        gate.add_permits(1);
        let late = said(&owning.await.unwrap());
        assert_eq!(late["id"], 1);
        assert_eq!(*payload(&late), json!({ "media_buy_id": "found", "replayed": true }), "{content_type}");
    }
}
