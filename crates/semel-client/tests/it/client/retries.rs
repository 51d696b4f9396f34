//! Retries of the client over real sockets.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use semel::time::{ManualClock, Timestamp};
use semel_client::client::{Client, Error, Lost, Request, TryFailure};
use semel_client::retry::{Circuit, Destinations, Limits, Stop, TryFate};

use super::server::{Act, Server, answer, ok, say};
use super::{bare, brisk, builder, client, keyed, ms};

fn stopped(result: Result<semel_client::client::Response, Error>) -> semel_client::retry::Error<TryFailure> {
    match result {
        Err(Error::Call(error)) => error,
        other => panic!("expected to be given up: {other:?}"),
    }
}

// 503 once, then well; both with the same key and the same id, and told apart by their number.
#[tokio::test]
async fn a_503_is_tried_again_with_the_same_key() {
    let server = Server::script([say(503, &[], ""), ok()]).await;
    assert_eq!(client(&server).send(&keyed()).await.unwrap().status, 200);
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].header("idempotency-key"), seen[1].header("idempotency-key"));
    assert_eq!(seen[0].header("x-request-id"), seen[1].header("x-request-id"));
    assert_eq!(seen[0].body, seen[1].body);
    assert_eq!((seen[0].header("semel-attempt"), seen[1].header("semel-attempt")), (Some("1"), Some("2")));
}

// The answer of the first try is cut. With a key it is asked for again; without, it is not, and that is said.
#[tokio::test]
async fn a_cut_answer_is_asked_for_again_only_with_a_key() {
    let cut = || Act::Cut(answer(200, &[], "0123456789")[..30].to_owned());
    let server = Server::script([cut(), ok()]).await;
    assert_eq!(client(&server).send(&keyed()).await.unwrap().status, 200);
    assert_eq!(server.count(), 2);

    let server = Server::script([cut(), ok()]).await;
    let error = stopped(client(&server).send(&bare()).await);
    assert_eq!((error.stop, error.attempts, error.fate), (Stop::Unknown, 1, TryFate::Unknown));
    assert_eq!(server.count(), 1);

    let server = Server::script([cut(), ok()]).await;
    assert_eq!(client(&server).send(&Request::get("/v1/charges")).await.unwrap().status, 200);
    let server = Server::script([cut(), ok()]).await;
    let put = Request::new(Method::PUT, "/v1/things/1");
    assert_eq!(stopped(client(&server).send(&put).await).stop, Stop::Unknown);
    assert_eq!(client(&server).send(&put.repeatable()).await.unwrap().status, 200);
}

// The answer comes late. The first try is cancelled at its timeout, the next has the same key.
#[tokio::test]
async fn a_late_answer_is_asked_for_again_only_with_a_key() {
    let late = || Act::Late(Duration::from_secs(30), answer(200, &[], "late"));
    let server = Server::script([late(), ok()]).await;
    assert_eq!(client(&server).send(&keyed()).await.unwrap().status, 200);
    assert_eq!(server.count(), 2);

    let server = Server::script([late(), ok()]).await;
    let error = stopped(client(&server).send(&bare()).await);
    assert_eq!((error.stop, error.fate), (Stop::Unknown, TryFate::Unknown));
    assert!(matches!(error.last, Some(TryFailure::Unknown(Lost::Timeout))));
    assert_eq!(server.count(), 1);
}

// A date two seconds ahead of the answer's own is two seconds, whatever this machine's clock says.
#[tokio::test]
async fn retry_after_as_a_date_is_waited_for() {
    let dated = say(
        503,
        &[("date", "Sun, 06 Nov 1994 08:49:37 GMT"), ("retry-after", "Sunday, 06-Nov-94 08:49:38 GMT")],
        "",
    );
    let server = Server::script([dated, ok()]).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(client(&server).send(&bare()).await.unwrap().status, 200, "503 with a date was not processed");
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(server.count(), 2);
}

// Without a date of its own it is counted by the client's clock; beyond the deadline it fails fast and says so.
#[tokio::test]
async fn retry_after_beyond_the_deadline_is_passed_on() {
    let clock = ManualClock::at(Timestamp::from_micros(784_111_777_000_000));
    let server = Server::script([say(429, &[("retry-after", "Sun, 06 Nov 1994 08:59:37 GMT")], "")]).await;
    let client = builder(&server).clock(Arc::new(clock)).build().unwrap();
    let begun = tokio::time::Instant::now();
    let error = stopped(client.send(&keyed()).await);
    assert_eq!((error.stop, error.retry_after), (Stop::Later, Some(Duration::from_secs(600))));
    assert!(error.is_retryable() && begun.elapsed() < Duration::from_secs(10));
    assert_eq!(server.count(), 1);
}

// Somebody works on the same key: asked again after the hint, with that key.
#[tokio::test]
async fn in_flight_is_asked_for_again_with_the_same_key() {
    let problem = r#"{"code":"in_flight","retryable":true}"#;
    let busy = say(409, &[("content-type", "application/problem+json"), ("retry-after-ms", "300")], problem);
    let server = Server::script([busy, ok()]).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(client(&server).send(&keyed()).await.unwrap().status, 200);
    assert!(begun.elapsed() >= ms(300));
    let keys: Vec<_> =
        server.seen().iter().map(|seen| seen.header("idempotency-key").map(str::to_owned)).collect();
    assert_eq!(keys, [Some("derived-key-1".to_owned()), Some("derived-key-1".to_owned())]);
}

// A server's own word beats its status.
#[tokio::test]
async fn should_retry_is_obeyed() {
    let server = Server::script([say(503, &[("x-should-retry", "false")], "")]).await;
    assert_eq!(stopped(client(&server).send(&keyed()).await).stop, Stop::Fatal);
    assert_eq!(server.count(), 1);
    let server = Server::script([say(400, &[("stripe-should-retry", "true")], ""), ok()]).await;
    assert_eq!(client(&server).send(&keyed()).await.unwrap().status, 200);
}

// A destination that is down is left alone, and the client says when to come back.
#[tokio::test]
async fn a_destination_that_is_down_is_left_alone() {
    let server = Server::script([say(500, &[], "")]).await;
    let destinations = Destinations::new(Limits { failure_calls: 6, ..Limits::default() });
    let destination = destinations.get("acquirer");
    let client = builder(&server).destination(&destination).build().unwrap();
    while destination.state().circuit == Circuit::Closed {
        let _ = client.send(&keyed()).await;
    }
    let before = server.count();
    let error = stopped(client.send(&keyed()).await);
    assert_eq!((error.stop, error.attempts), (Stop::Open, 0));
    assert!(error.retry_after.is_some());
    assert_eq!(server.count(), before, "nothing was sent");
}

// What was surely not sent is tried again without a key too.
#[tokio::test]
async fn a_refused_connection_is_tried_again() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let client =
        Client::builder(&format!("http://127.0.0.1:{port}")).unwrap().retry(brisk()).build().unwrap();
    let error = stopped(client.send(&bare()).await);
    assert_eq!((error.stop, error.attempts, error.fate), (Stop::Exhausted, 3, TryFate::Undone));
    assert!(matches!(semel::Failure::<semel::AnyError>::from(Error::from(error)), semel::Failure::Failed(_)));
}
