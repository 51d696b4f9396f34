//! A client that goes away changes nothing: disconnect_mid_effect, disconnect_mid_upload, slow_body.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::{Body as _, Frame};
use semel::testkit::fault::{FaultGate, InjectedFault, StoreCall, When};
use semel_http::observe::AnswerOutcome;
use semel_http::{Body, BoxError};

use crate::kit::{Kit, Upstream, eventually, gated, post, post_body};

// Gone while the effect runs.
#[tokio::test]
async fn gone_mid_effect() {
    let (upstream, gate) = gated();
    let kit = Kit::new(upstream);
    let client = tokio::spawn({
        let kit = kit.clone();
        async move { kit.begin(post("k")).await.map(drop) }
    });
    eventually("the effect runs", || kit.upstream.calls() == 1).await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    gate.add_permits(1);
    let retry = kit.send(post("k")).await;
    assert_eq!((retry.text(), retry.is_replay()), ("call 1", true));
    assert_eq!(kit.upstream.calls(), 1);
}

// Gone at every single step, from the first poll to the last.
#[tokio::test]
async fn gone_at_any_poll() {
    let mut polls = 0;
    loop {
        let kit = Kit::new(Upstream::new(|number, _| async move {
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            Ok(Response::new(Body::from(format!("call {number}"))))
        }));
        let done = {
            let mut call = Box::pin(kit.begin(post("k")));
            let mut done = false;
            for _ in 0..=polls {
                done = polled(&mut call).await;
                if done {
                    break;
                }
                tokio::task::yield_now().await;
            }
            done
        };
        kit.guard.engine().drain().await;
        let retry = kit.send(post("k")).await;
        assert_eq!(retry.text(), "call 1", "after {polls} polls");
        assert_eq!(kit.upstream.calls(), 1, "after {polls} polls");
        if done {
            break;
        }
        polls += 1;
    }
    assert!(polls > 3, "it was dropped at several moments");
}

/// Polls once; true when it is over.
async fn polled<F: Future + Unpin>(call: &mut F) -> bool {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *call).poll(context).is_ready())).await
}

// Gone while the outcome is being written.
#[tokio::test]
async fn gone_mid_complete() {
    let kit = Kit::new(Upstream::counting());
    let gate = FaultGate::closed();
    kit.store.script(StoreCall::Complete, When::First(1), InjectedFault::HoldRequest(gate.clone()));
    let client = tokio::spawn({
        let kit = kit.clone();
        async move { kit.begin(post("k")).await.map(drop) }
    });
    gate.reached_by(1).await;
    client.abort();
    gate.open();
    let retry = kit.send(post("k")).await;
    assert_eq!((retry.text(), retry.is_replay(), kit.upstream.calls()), ("call 1", true, 1));
}

/// A body that sends one piece and then nothing.
struct Stuck(Option<Bytes>);

impl http_body::Body for Stuck {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.0.take() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None => Poll::Pending,
        }
    }
}

fn stuck() -> Body {
    let body = Stuck(Some(Bytes::from_static(b"{\"amo")));
    assert!(!body.is_end_stream());
    Body::stream(body)
}

// disconnect_mid_upload: no claim before the whole body is read.
#[tokio::test]
async fn gone_mid_upload() {
    let kit = Kit::new(Upstream::counting());
    let client = tokio::spawn({
        let kit = kit.clone();
        async move { kit.begin(post_body("k", stuck())).await.map(drop) }
    });
    tokio::task::yield_now().await;
    client.abort();
    let _ = client.await;
    assert_eq!((kit.store.all_calls(), kit.upstream.calls()), (0, 0));
}

// slow_body: read until a deadline, then refused; nothing was claimed.
#[tokio::test(start_paused = true)]
async fn slow_body() {
    let kit = Kit::route(Upstream::counting(), |route| route.body_timeout(Duration::from_secs(3)));
    let answer = kit.send(post_body("k", stuck())).await;
    answer.assert_problem(408, "body_timeout");
    assert_eq!((kit.store.all_calls(), kit.upstream.calls()), (0, 0));
    assert_eq!(kit.count(AnswerOutcome::Refused(semel_http::Situation::BodyTimeout)), 1);
}

// oversize
#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_it_is_read() {
    let kit = Kit::route(Upstream::counting(), |route| route.request_limit(10));
    kit.send(post_body("k", "0123456789")).await;
    assert_eq!(kit.upstream.calls(), 1);
    let declared = crate::kit::with(post_body("l", stuck()), "content-length", "11");
    kit.send(declared).await.assert_problem(413, "body_too_large");
    kit.send(post_body("l", "0123456789a")).await.assert_problem(413, "body_too_large");
    let streamed = Body::stream(Stuck(Some(Bytes::from_static(b"0123456789a"))));
    kit.send(post_body("l", streamed)).await.assert_problem(413, "body_too_large");
    assert_eq!(kit.upstream.calls(), 1);
    let mut unkeyed = post_body("k", "0123456789abcdef");
    unkeyed.headers_mut().remove("idempotency-key");
    assert_eq!(kit.send(unkeyed).await.text(), "call 2", "without a key there is no limit");
}
