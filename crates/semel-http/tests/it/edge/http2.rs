//! HTTP/2, in plain text with prior knowledge: the same rules, and its own ways to flood.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use semel_http::edge::DrainResult;
use semel_http::proxy::{Protocol, ProxyOptions};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::edge_kit::{DEADLINE, Gateway, Step, Upstream, eventually, ok, small, status};

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// These frames, one after the other.
fn frames(frames: Vec<Frame<Bytes>>) -> Body {
    Frames(frames.into_iter()).boxed_unsync()
}

struct Frames(std::vec::IntoIter<Frame<Bytes>>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}

async fn connect(gateway: &Gateway) -> SendRequest<Body> {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(path: &str) -> http::request::Builder {
    Request::builder().method("POST").uri(format!("http://a{path}"))
}

async fn answer(sender: &mut SendRequest<Body>, request: Request<Body>) -> Response<Incoming> {
    let sent = async {
        sender.ready().await.unwrap();
        sender.send_request(request).await.unwrap()
    };
    tokio::time::timeout(DEADLINE, sent).await.expect("an answer")
}

#[tokio::test]
async fn http2_to_an_http1_upstream() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::before(&upstream).await;
    let mut sender = connect(&gateway).await;
    let response = answer(&mut sender, request("/x?y").body(full("abc")).unwrap()).await;
    assert_eq!((response.status(), response.version()), (StatusCode::OK, http::Version::HTTP_2));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    let seen = upstream.seen().remove(0);
    assert_eq!((seen.request_line(), seen.body.as_slice()), ("POST /x?y HTTP/1.1", b"abc".as_slice()));
    assert_eq!(seen.values("host"), [upstream.address.to_string()]);
    assert_eq!(seen.values("x-forwarded-host"), ["a"]);
}

#[tokio::test]
async fn http2_on_both_sides() {
    // A gateway as the upstream of a gateway: it takes HTTP/2 and counts behind itself.
    let upstream = Upstream::start(|_| ok()).await;
    let inner = Gateway::before(&upstream).await;
    let options = ProxyOptions { protocol: Protocol::Http2, ..ProxyOptions::default() };
    let outer = Gateway::with(&format!("http://{}", inner.address), small(), options).await;
    let mut sender = connect(&outer).await;
    for _ in 0..10 {
        let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "9".parse().unwrap())]);
        let body = frames(vec![Frame::data("abc".into()), Frame::trailers(trailers)]);
        let asked = request("/x").header("trailer", "x-sum").body(body).unwrap();
        let response = answer(&mut sender, asked).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    }
    assert_eq!(status(&outer.ask("GET /y HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await), 200);
    let seen = upstream.seen();
    assert_eq!(seen.len(), 11);
    assert_eq!(seen[0].trailers, "x-sum: 9\n");
}

/// Sends a body only when its request is answered, and says with what status, and whether the stream was reset.
async fn answered_before_its_body(gateway: &Gateway, key: &str, body: usize) -> (StatusCode, bool) {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut sender = sender.ready().await.unwrap();
    let asked = request("/x").header("idempotency-key", key).body(()).unwrap();
    let (answer, mut sending) = sender.send_request(asked, false).unwrap();
    let answer = tokio::time::timeout(DEADLINE, answer).await.expect("an answer").unwrap();
    let status = answer.status();
    let mut told = answer.into_body();
    while let Some(data) = told.data().await {
        let _ = told.flow_control().release_capacity(data.unwrap().len());
    }
    // Whatever was to come after the answer has come.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let sent = sending.send_data(Bytes::from(vec![b'x'; body]), true);
    let reset = sent.is_err()
        || tokio::time::timeout(
            Duration::from_millis(100),
            std::future::poll_fn(|context| sending.poll_reset(context)),
        )
        .await
        .is_ok_and(|reset| reset.is_ok());
    connection.abort();
    (status, reset)
}

// A refusal is not taken for a lost answer: some clients do where their stream is reset.
#[tokio::test]
async fn a_refused_request_may_finish_its_body() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::before(&upstream).await;
    let refused = answered_before_its_body(&gateway, "", 3).await;
    assert_eq!(refused, (StatusCode::BAD_REQUEST, false));
    assert!(upstream.seen().is_empty());
}

// smuggling_set, key_syntax
#[tokio::test]
async fn ambiguous_requests_are_refused_on_http2_too() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::before(&upstream).await;
    let post = || request("/x");
    let empty = || full("");
    let key = |value: &[u8]| http::HeaderValue::from_bytes(value).unwrap();
    let cases = [
        ("two keys", post().header("idempotency-key", "a").header("idempotency-key", "b").body(empty()), 400),
        ("empty key", post().header("idempotency-key", "").body(empty()), 400),
        ("key with 0xFF", post().header("idempotency-key", key(b"a\xFF")).body(empty()), 400),
        ("long key", post().header("idempotency-key", "k".repeat(600)).body(empty()), 400),
        ("underscore key", post().header("idempotency_key", "a").body(empty()), 400),
        ("underscore length", post().header("content_length", "1").body(empty()), 400),
        ("other host", post().header("host", "b").body(empty()), 400),
        ("lower-case method", post().method("post").body(empty()), 400),
        ("connect", Request::builder().method("CONNECT").uri("a:80").body(empty()), 405),
        ("long target", request(&format!("/{}", "a".repeat(9_000))).body(empty()), 414),
        ("other expectation", post().header("expect", "x").body(empty()), 417),
        ("too large", post().body(full(vec![0; 300_000])), 413),
        ("good", post().header("idempotency-key", "a").body(empty()), 200),
    ];
    for (name, request, status) in cases {
        let mut sender = connect(&gateway).await;
        let mut request = request.unwrap();
        request.headers_mut().insert("x-request-id", "order-20410".parse().unwrap());
        let response = answer(&mut sender, request).await;
        assert_eq!(response.status(), status, "{name}");
        if status != 200 {
            assert_eq!(response.headers()["x-request-id"], "order-20410", "{name}: the customer quotes it");
        }
    }
    assert_eq!(upstream.seen().len(), 1);
}

// smuggling_set
#[tokio::test]
async fn a_key_in_a_trailer_is_refused_on_http2_too() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::before(&upstream).await;
    let mut sender = connect(&gateway).await;
    let trailers = HeaderMap::from_iter([("idempotency-key".parse().unwrap(), "a".parse().unwrap())]);
    let body = frames(vec![Frame::data("abc".into()), Frame::trailers(trailers)]);
    let response = answer(&mut sender, request("/x").body(body).unwrap()).await;
    assert_eq!(response.status(), 400);
    assert_eq!(response.headers()["x-request-id"].len(), 32, "a new one");
    assert_eq!(upstream.seen().len(), 0);
}

// h2_reset
#[tokio::test]
async fn a_reset_stream_leaves_the_others_alone() {
    let upstream = Upstream::start(|_| [vec![Step::Pause(Duration::from_millis(200))], ok()].concat()).await;
    let gateway = Gateway::before(&upstream).await;
    let mut sender = connect(&gateway).await;
    for _ in 0..5 {
        let before = upstream.seen().len();
        let abandoned = tokio::spawn(sender.send_request(request("/abandoned").body(full("a")).unwrap()));
        eventually("it is in progress", || upstream.seen().len() > before).await;
        // Dropping the answer resets the stream.
        abandoned.abort();
        let response = answer(&mut sender, request("/x").body(full("abc")).unwrap()).await;
        assert_eq!(response.status(), 200);
    }
}

// goaway
#[tokio::test]
async fn goaway() {
    let upstream = Upstream::start(|_| [vec![Step::Pause(Duration::from_millis(200))], ok()].concat()).await;
    let mut gateway = Gateway::before(&upstream).await;
    let mut sender = connect(&gateway).await;
    sender.ready().await.unwrap();
    let under_way = tokio::spawn(sender.send_request(request("/x").body(full("abc")).unwrap()));
    eventually("it is in progress", || upstream.seen().len() == 1).await;
    gateway.tell_to_stop();
    let response = under_way.await.unwrap().unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    assert_eq!(gateway.stopped().await, DrainResult::Clean);
    assert!(sender.ready().await.is_err() || sender.is_closed(), "new streams are not taken");
}

// rapid_reset
#[tokio::test]
async fn rapid_reset() {
    let upstream = Upstream::start(|_| [vec![Step::Pause(Duration::from_secs(60))], ok()].concat()).await;
    let mut options = small();
    options.limits.abandoned_streams = 50;
    let gateway = Gateway::with(&upstream.url(), options, ProxyOptions::default()).await;
    let mut sender = connect(&gateway).await;
    let mut opened = 0;
    while opened < 10_000 && sender.ready().await.is_ok() {
        let asked = tokio::spawn(sender.send_request(request("/x").body(full("")).unwrap()));
        opened += 1;
        tokio::task::yield_now().await;
        asked.abort();
    }
    assert!(opened < 10_000, "the flood was never stopped");
    // Others are not touched.
    let other = Upstream::start(|_| ok()).await;
    let good = Gateway::before(&other).await;
    assert_eq!(status(&good.ask("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await), 200);
    assert_eq!(status(&gateway.ask("get bad\r\n\r\n").await), 400);
}

// rapid_reset
#[tokio::test]
async fn a_raw_flood_of_resets_is_stopped() {
    // HEADERS and RST_STREAM in one packet, before the server can look at any: what hyper's own cap is for.
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::before(&upstream).await;
    let mut client = gateway.connect().await;
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    let mut flood = Vec::new();
    for stream in (1..20_001_u32).step_by(2) {
        // :method GET, :scheme http, :path /, :authority a
        let block = b"\x82\x86\x84\x41\x01a";
        flood.extend([0, 0, u8::try_from(block.len()).unwrap(), 1, 5]);
        flood.extend(stream.to_be_bytes());
        flood.extend(block);
        flood.extend([0, 0, 4, 3, 0]);
        flood.extend(stream.to_be_bytes());
        flood.extend(8_u32.to_be_bytes());
    }
    let _ = client.stream.write_all(&flood).await;
    // Closed by the server, or this panics.
    client.rest().await;
    assert!(upstream.begun() < 2_000, "{} of 10000 went through", upstream.begun());
    assert_eq!(status(&gateway.ask("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await), 200);
}

#[tokio::test]
async fn broken_prefaces_are_closed() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::before(&upstream).await;
    // Not quite the preface: read as HTTP/1, and refused as such.
    assert_eq!(status(&gateway.ask("PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n").await), 505);
    // The preface and then nonsense: HTTP/2's own way to say so.
    gateway.ask([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0xFF; 100]].concat()).await;
    // Half a preface, and then nothing.
    assert_eq!(gateway.ask("PRI * HTTP/2.0\r\n").await, "");
    assert_eq!(upstream.begun(), 0);
}
