//! Streams in which others speak before the answer.

use http::Response;
use http_body_util::BodyExt as _;
use semel_http::Body;
use semel_http::policy::InFlight;
use serde_json::{Value, json};

use super::bodies::told;
use super::{EVENTS, JSON, buy, error_of, message, profile, said, scripted, tool_calls};
use crate::kit::Kit;

const QUESTION: &str =
    "data: {\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"elicitation/create\",\"params\":{}}\n\n";

fn event(result: &Value) -> String {
    format!("id: 5\ndata: {}\n\n", json!({ "jsonrpc": "2.0", "id": 1, "result": result }))
}

fn kit(body: Body) -> Kit {
    let answer = Response::builder().header("content-type", "text/event-stream").body(body).unwrap();
    Kit::route_of(&profile(), scripted([answer]), |route| route.in_flight(InFlight::Reject))
}

async fn next(body: &mut Body) -> String {
    let frame =
        tokio::time::timeout(std::time::Duration::from_secs(10), body.frame()).await.expect("in time");
    String::from_utf8(frame.expect("a frame").unwrap().into_data().unwrap().to_vec()).unwrap()
}

// A tool that asks its client something gets its answer; only the tool's own answer waits for the record.
#[tokio::test]
async fn what_comes_before_the_answer_is_heard_at_once() {
    let (tell, body) = told();
    let kit = kit(body);
    tell.send(QUESTION.to_owned()).unwrap();
    let answer = kit.begin(message(&buy(1, "a"), EVENTS)).await.unwrap();
    let mut body = answer.into_body();
    assert_eq!(next(&mut body).await, QUESTION);
    let meanwhile = said(&kit.send(message(&buy(2, "a"), JSON)).await);
    assert_eq!(error_of(&meanwhile)["code"], "IDEMPOTENCY_IN_FLIGHT");
    let ours = event(&json!({ "structuredContent": { "media_buy_id": "mb" } }));
    let (half, rest) = ours.split_at(30);
    tell.send(": ping\n\n".to_owned()).unwrap();
    assert_eq!(next(&mut body).await, ": ping\n\n", "signs of life pass, too");
    tell.send(half.to_owned()).unwrap();
    tell.send(rest.to_owned()).unwrap();
    assert_eq!(next(&mut body).await, ours, "as it came");
    // A client that has seen it knows that it is stored.
    let again = said(&kit.send(message(&buy(3, "a"), JSON)).await);
    assert_eq!(again["result"]["structuredContent"], json!({ "media_buy_id": "mb", "replayed": true }));
    tell.send(": bye\n\n".to_owned()).unwrap();
    drop(tell);
    assert_eq!(next(&mut body).await, ": bye\n\n");
    assert!(body.frame().await.is_none());
    assert_eq!(tool_calls(&kit.upstream), 1);
}

// A client that goes away in the middle changes nothing.
#[tokio::test]
async fn a_client_that_leaves_a_stream_changes_nothing() {
    let (tell, body) = told();
    let kit = kit(body);
    tell.send(QUESTION.to_owned()).unwrap();
    drop(kit.begin(message(&buy(1, "a"), EVENTS)).await.unwrap());
    tell.send(event(&json!({ "structuredContent": { "media_buy_id": "mb" } }))).unwrap();
    kit.guard.engine().drain().await;
    let again = said(&kit.send(message(&buy(2, "a"), JSON)).await);
    assert_eq!(again["result"]["structuredContent"]["replayed"], true);
}

// An error at the end of a stream releases as any other.
#[tokio::test]
async fn an_error_at_the_end_of_a_stream_is_not_pinned() {
    let (tell, body) = told();
    let first = Response::builder().header("content-type", "text/event-stream").body(body).unwrap();
    let good = json!({ "jsonrpc": "2.0", "id": 1, "result": { "structuredContent": { "ok": true } } });
    let kit = Kit::profile(&profile(), scripted([first, Response::new(Body::from(good.to_string()))]));
    tell.send(QUESTION.to_owned()).unwrap();
    let answer = kit.begin(message(&buy(1, "a"), EVENTS)).await.unwrap();
    tell.send(event(&json!({ "isError": true, "content": [] }))).unwrap();
    drop(tell);
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&text).contains("isError"));
    kit.guard.engine().drain().await;
    assert_eq!(said(&kit.send(message(&buy(1, "a"), JSON)).await), good);
}

// More than the limit before the answer: a tombstone, and the client gets all of it.
#[tokio::test]
async fn a_stream_over_the_limit_leaves_a_tombstone() {
    let (tell, body) = told();
    let answer = Response::builder().header("content-type", "text/event-stream").body(body).unwrap();
    let kit = Kit::route_of(&profile(), scripted([answer]), |route| route.response_limit(2000));
    tell.send(QUESTION.to_owned()).unwrap();
    let answer = kit.begin(message(&buy(1, "a"), EVENTS)).await.unwrap();
    let (large, ours) =
        (format!("data: {}\n\n", "x".repeat(3000)), event(&json!({ "structuredContent": {} })));
    tell.send(large.clone()).unwrap();
    tell.send(ours.clone()).unwrap();
    drop(tell);
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, format!("{QUESTION}{large}{ours}"));
    let again = said(&kit.send(message(&buy(2, "a"), JSON)).await);
    assert_eq!(error_of(&again)["code"], "OUTCOME_NOT_KEPT");
}
