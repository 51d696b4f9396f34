//! Answers that are too large or have no end: response_too_large, streaming, sse, upstream_cut_mid_body.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::BodyExt;
use semel::Mode;
use semel::store::ErrorKind;
use semel::testkit::fault::{FaultGate, InjectedFault, StoreCall, When};
use semel_http::observe::AnswerOutcome;
use semel_http::{Body, BoxError};
use tokio::sync::mpsc;

use crate::kit::{Answered, Kit, Upstream, post};

/// A body of pieces that a test sends.
struct Pieces(mpsc::UnboundedReceiver<Result<Bytes, BoxError>>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

fn pieces(pieces: Vec<Result<&'static str, &'static str>>) -> Body {
    let (sender, receiver) = mpsc::unbounded_channel();
    for piece in pieces {
        sender.send(piece.map(|piece| Bytes::from_static(piece.as_bytes())).map_err(Into::into)).unwrap();
    }
    Body::stream(Pieces(receiver))
}

// Response_too_large: the caller gets it all, the key says that it was not kept, and nothing runs again.
#[tokio::test]
async fn too_large() {
    let large: Bytes = vec![b'x'; 10 << 20].into();
    for declared in [true, false] {
        let body = large.clone();
        let kit = Kit::new(Upstream::new(move |_, _| {
            let whole = body.clone();
            async move {
                Ok(Response::new(if declared {
                    Body::from(whole)
                } else {
                    let (sender, receiver) = mpsc::unbounded_channel();
                    for piece in whole.chunks(100_000) {
                        sender.send(Ok(Bytes::copy_from_slice(piece))).unwrap();
                    }
                    Body::stream(Pieces(receiver))
                }))
            }
        }));
        let first = kit.send(post("k")).await;
        assert_eq!((&first.body, first.is_stored()), (&large, false));
        for _ in 0..2 {
            kit.send(post("k")).await.assert_problem(409, "outcome_not_kept");
        }
        assert_eq!((kit.upstream.calls(), kit.count(AnswerOutcome::Tombstone)), (1, 1));
    }
}

#[tokio::test]
async fn exactly_the_limit_is_kept() {
    let kit = Kit::route(Upstream::counting(), |route| route.response_limit(6));
    kit.send(post("k")).await;
    assert!(kit.send(post("k")).await.is_replay());
}

// Anybody can cause refusals: a large one is not kept, is not run again, and a retry learns its status.
#[tokio::test]
async fn a_large_refusal_leaves_a_tombstone_that_names_its_status() {
    let page = |bytes: usize| {
        Upstream::new(move |_, _| async move {
            Ok(Response::builder().status(404).body(Body::from("x".repeat(bytes))).unwrap())
        })
    };
    let kit = Kit::new(page(5_000));
    let first = kit.send(post("k")).await;
    assert_eq!((first.status.as_u16(), first.body.len(), first.is_stored()), (404, 5_000, false));
    let again = kit.send(post("k")).await;
    again.assert_problem(409, "outcome_not_kept");
    assert!(again.text().contains("a 404 of"), "{}", again.text());
    assert_eq!((kit.upstream.calls(), kit.count(AnswerOutcome::Tombstone)), (1, 1));

    for kit in [Kit::new(page(3_000)), Kit::route(page(5_000), |route| route.refusal_limit(8_000))] {
        kit.send(post("k")).await;
        assert!(kit.send(post("k")).await.is_replay());
    }
}

// sse: the first event reaches the client while the stream goes on; the tombstone stands before it.
#[tokio::test]
async fn event_streams_are_passed_on_as_they_come() {
    let (sender, receiver) = mpsc::unbounded_channel();
    let receiver = Arc::new(parking_lot::Mutex::new(Some(receiver)));
    let kit = Kit::new(Upstream::new(move |_, _| {
        let stream = Pieces(receiver.lock().take().expect("called once"));
        async move {
            let answer = Response::builder().header("content-type", "Text/Event-Stream; charset=utf-8");
            Ok(answer.body(Body::stream(stream)).unwrap())
        }
    }));
    let mut answer = kit.begin(post("k")).await.unwrap();
    kit.send(post("k")).await.assert_problem(409, "outcome_not_kept");
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        sender.send(Ok(Bytes::from_static(event.as_bytes()))).unwrap();
        let frame = answer.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
    }
    drop(sender);
    assert!(answer.frame().await.is_none());
}

// A stream that does not end in time is passed on too: its head said that it happened.
#[tokio::test]
async fn a_stream_without_end_is_not_waited_for_beyond_in_flight_max() {
    let (sender, receiver) = mpsc::unbounded_channel();
    let receiver = Arc::new(parking_lot::Mutex::new(Some(receiver)));
    let upstream = Upstream::new(move |_, _| {
        let stream = Pieces(receiver.lock().take().expect("called once"));
        async move { Ok(Response::new(Body::stream(stream))) }
    });
    let short = Duration::from_millis(50);
    let kit = Kit::route(upstream, |route| route.lease(short).in_flight_max(short).wait(short));
    sender.send(Ok(Bytes::from_static(b"a"))).unwrap();
    let answer = kit.begin(post("k")).await.unwrap();
    assert_eq!(answer.status(), 200);
    kit.send(post("k")).await.assert_problem(409, "outcome_not_kept");
    sender.send(Ok(Bytes::from_static(b"b"))).unwrap();
    drop(sender);
    assert_eq!(Answered::read(answer).await.text(), "ab");
}

// upstream_cut_mid_body: not a success; in doubt in marked, taken over elsewhere.
#[tokio::test]
async fn cut_mid_body() {
    let cut = || {
        Upstream::new(|number, _| async move {
            Ok(Response::new(if number == 1 {
                pieces(vec![Ok("half"), Err("cut")])
            } else {
                Body::from("whole")
            }))
        })
    };
    let kit = Kit::new(cut());
    kit.send(post("k")).await.assert_problem(502, "upstream_unknown");
    kit.send(post("k")).await.assert_problem(409, "in_doubt");
    assert_eq!(kit.upstream.calls(), 1);
    for mode in [Mode::Keyed, Mode::Rerun] {
        let kit = Kit::route(cut(), |route| route.mode(mode));
        kit.send(post("k")).await.assert_problem(502, "upstream_unknown");
        assert_eq!(kit.send(post("k")).await.text(), "whole");
        assert!(kit.send(post("k")).await.is_replay());
    }
}

// The tombstone is written before the first byte: until it is, the client has nothing.
#[tokio::test]
async fn no_byte_before_the_tombstone() {
    let kit = Kit::route(Upstream::counting(), |route| route.response_limit(1));
    let gate = FaultGate::closed();
    kit.store.script(StoreCall::Complete, When::First(1), InjectedFault::HoldRequest(gate.clone()));
    let client = tokio::spawn({
        let kit = kit.clone();
        async move { kit.send(post("k")).await }
    });
    gate.reached_by(1).await;
    assert!(!client.is_finished());
    gate.open();
    assert_eq!(client.await.unwrap().text(), "call 1");
}

// A late owner whose tombstone is refused drops its body and answers with the winner's outcome.
#[tokio::test]
async fn a_refused_tombstone_answers_with_the_winner() {
    let (sender, receiver) = tokio::sync::watch::channel(false);
    let upstream = Upstream::new(move |number, _| {
        let mut first_may = receiver.clone();
        async move {
            if number == 1 {
                first_may.wait_for(|may| *may).await.unwrap();
                return Ok(Response::new(Body::from("larger than the limit")));
            }
            Ok(Response::new(Body::from("winner")))
        }
    });
    let lease = Duration::from_secs(30);
    let kit = Kit::route(upstream, |route| route.mode(Mode::Rerun).response_limit(10).lease(lease));
    let late = tokio::spawn({
        let kit = kit.clone();
        async move { kit.send(post("k")).await }
    });
    crate::kit::eventually("the first runs", || kit.upstream.calls() == 1).await;
    kit.clock.advance(lease);
    assert_eq!(kit.send(post("k")).await.text(), "winner");
    sender.send_replace(true);
    let late = late.await.unwrap();
    assert_eq!((late.text(), late.is_replay()), ("winner", true));
}

// complete never lands: the upstream's answer all the same, and it says that it is not stored.
#[tokio::test]
async fn a_tombstone_that_cannot_be_written() {
    let short = Duration::from_millis(100);
    let kit = Kit::route(Upstream::counting(), |route| route.response_limit(1).lease(short).wait(short));
    kit.store.script(StoreCall::Complete, When::Always, InjectedFault::Refuse(ErrorKind::Unavailable));
    let answer = kit.send(post("k")).await;
    assert_eq!((answer.text(), answer.is_stored()), ("call 1", false));
    assert_eq!(kit.count(AnswerOutcome::NotStored), 1);
}
