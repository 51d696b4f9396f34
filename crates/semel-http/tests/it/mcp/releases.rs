//! The releases of AdCP, and limits of single tools.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use semel_http::{Body, RoutePolicy};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{
    JSON, buy, call_of, capabilities, error_of, key, message, payload, profile, said, with_argument,
};
use crate::kit::{Kit, Upstream, eventually};

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
    for (agent, expected) in [
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
        let kit =
            Kit::route_of(&profile(), waiting(agent.clone(), &gate), |route| route.wait(Duration::ZERO));
        let announced = said(&kit.send(message(&capabilities(), JSON)).await);
        assert_eq!(payload(&announced)["adcp"]["idempotency"]["in_flight_max_seconds"], 60, "{agent}");
        let first = tokio::spawn({
            let kit = kit.clone();
            async move { kit.send(message(&buy(1, "a"), JSON)).await }
        });
        eventually("the first call is held", || kit.upstream.calls() == 2).await;
        let busy = said(&kit.send(message(&buy(2, "a"), JSON)).await);
        let error = error_of(&busy);
        assert_eq!((&error["code"], &error["recovery"]), (&json!(expected), &json!("transient")), "{agent}");
        assert!(error["retry_after"].as_u64().is_some_and(|after| (1..=3).contains(&after)), "{agent}");
        // Another payload is a conflict in every release, also while the first call is in progress.
        let other = with_argument(buy(3, "a"), "packages", json!([{ "budget": 101 }]));
        let conflict = said(&kit.send(message(&other, JSON)).await);
        assert_eq!(error_of(&conflict)["code"], "IDEMPOTENCY_CONFLICT", "{agent}");
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
        assert_eq!(error_of(&said(&kit.send(of_bob).await))["code"], own, "{agent}");
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
        let announced = said(&kit.send(message(&capabilities(), JSON)).await);
        let idempotency = &announced["result"]["structuredContent"]["adcp"]["idempotency"];
        assert_eq!(idempotency["in_flight_max_seconds"], 300);
        let well_known = Request::get("/.well-known/idempotency").body(Body::empty()).unwrap();
        assert_eq!(kit.send(well_known).await.json()["routes"][0]["in_flight_max_seconds"], 300);
        let call = |id: i32| message(&call_of(id, tool, json!({ "idempotency_key": key("a") })), JSON);
        let first = said(&kit.send(call(1)).await);
        assert_eq!(error_of(&first)["retry_after"], seconds, "{tool}");
        kit.guard.engine().drain().await;
        kit.clock.advance(Duration::from_secs(seconds - 1));
        let early = said(&kit.send(call(2)).await);
        assert_eq!(error_of(&early)["retry_after"], 1, "{tool}");
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
            assert_eq!(error_of(&answer)["code"], "SERVICE_UNAVAILABLE", "{tool}");
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
