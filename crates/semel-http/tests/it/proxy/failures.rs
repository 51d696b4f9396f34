//! What is sent once, and what is said when there is no answer.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use semel_http::CallFate;
use semel_http::proxy::{Error, Protocol, Proxy, ProxyOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::edge_kit::{Gateway, Step, Upstream, eventually, ok, send, small, status};

const POST: &str = "POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc";
const GET: &str = "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// A port that nobody listens on.
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn quick() -> ProxyOptions {
    ProxyOptions {
        read: Duration::from_millis(200),
        connect: Duration::from_secs(2),
        ..ProxyOptions::default()
    }
}

fn post() -> Request<Full<Bytes>> {
    Request::post("/x").header("host", "a").body(Full::from("abc")).unwrap()
}

// hidden_retry
#[tokio::test]
async fn hidden_retry() {
    let upstream = Upstream::start(|_| vec![Step::Close]).await;
    let gateway = Gateway::before(&upstream).await;
    let answer = gateway.ask(POST).await;
    assert_eq!(status(&answer), 502, "{answer}");
    assert!(answer.contains("upstream_unknown"), "{answer}");
    assert_eq!(upstream.seen().len(), 1);
}

// hidden_retry
#[tokio::test]
async fn hidden_retry_on_a_reused_connection() {
    // The classic: the second request goes out on a connection that served before, and is cut after it was read.
    let upstream =
        Upstream::start(|seen| if seen.request_line().starts_with("GET") { ok() } else { vec![Step::Close] });
    let upstream = upstream.await;
    let gateway = Gateway::before(&upstream).await;
    assert_eq!(status(&gateway.ask(GET).await), 200);
    assert_eq!(status(&gateway.ask(POST).await), 502);
    let seen = upstream.seen();
    assert_eq!(seen.len(), 2, "the request was sent again");
    assert_eq!(seen[0].connection, seen[1].connection, "the connection was not reused, so nothing is shown");
}

// hidden_retry
#[tokio::test]
async fn a_connection_found_closed_is_replaced_before_a_byte_is_sent() {
    let upstream = Upstream::start(|_| [ok(), vec![Step::Close]].concat()).await;
    let gateway = Gateway::before(&upstream).await;
    for round in 1..=20 {
        // The upstream closes after every answer without saying so. The proxy learns of it between the requests, or
        // at the latest before it writes.
        assert_eq!(status(&gateway.ask(GET).await), 200);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(upstream.seen().len(), round);
    }
}

#[tokio::test]
async fn refused_connections_were_not_delivered() {
    let proxy = Proxy::new(nobody().await.parse().unwrap(), quick()).unwrap();
    let error = proxy.forward(post()).await.unwrap_err();
    assert_eq!((error.fate(), error.status()), (CallFate::Undelivered, StatusCode::BAD_GATEWAY), "{error}");
}

#[tokio::test]
async fn unknown_names_were_not_delivered() {
    let proxy = Proxy::new("http://nobody.invalid".parse().unwrap(), quick()).unwrap();
    let error = proxy.forward(post()).await.unwrap_err();
    assert_eq!(error.fate(), CallFate::Undelivered, "{error}");
}

#[tokio::test]
async fn failed_tls_was_not_delivered() {
    // Speaks plain HTTP where TLS is expected.
    let upstream = Upstream::start(|_| ok()).await;
    let proxy = Proxy::new(format!("https://{}", upstream.address).parse().unwrap(), quick()).unwrap();
    let error = proxy.forward(post()).await.unwrap_err();
    assert_eq!(error.fate(), CallFate::Undelivered, "{error}");
    assert_eq!(upstream.seen().len(), 0);
}

#[tokio::test]
async fn a_backlog_that_is_never_accepted_is_unknown_once_written() {
    // The kernel accepts for a process that does not: the bytes are gone, so nobody knows.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let proxy = Proxy::new(url.parse().unwrap(), quick()).unwrap();
    let error = proxy.forward(post()).await.unwrap_err();
    assert_eq!((error.fate(), error.status()), (CallFate::Unknown, StatusCode::GATEWAY_TIMEOUT), "{error}");
}

// upstream_timeout
#[tokio::test]
async fn upstream_timeout() {
    let upstream = Upstream::start(|_| [vec![Step::Pause(Duration::from_secs(60))], ok()].concat()).await;
    let gateway = Gateway::with(&upstream.url(), small(), quick()).await;
    let answer = gateway.ask(POST).await;
    assert_eq!(status(&answer), 504, "{answer}");
    assert!(answer.contains("upstream_unknown") && answer.contains("\"retryable\":false"), "{answer}");
    assert_eq!(upstream.seen().len(), 1);
}

#[tokio::test]
async fn the_total_time_ends_an_answer_that_trickles() {
    let trickle = std::iter::repeat_n([send("a"), Step::Pause(Duration::from_millis(50))], 100).flatten();
    let steps: Vec<Step> =
        [send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n")].into_iter().chain(trickle).collect();
    let upstream = Upstream::start(move |_| steps.clone()).await;
    let options = ProxyOptions { total: Some(Duration::from_millis(400)), ..quick() };
    let proxy = Proxy::new(upstream.url().parse().unwrap(), options).unwrap();
    let answer = proxy.forward(post()).await.unwrap();
    let error = answer.into_body().collect().await.unwrap_err();
    assert_eq!(error.fate(), CallFate::Unknown, "{error}");
}

// upstream_cut_mid_body
#[tokio::test]
async fn upstream_cut_mid_body() {
    let upstream =
        Upstream::start(|_| vec![send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"), Step::Close]).await;
    let gateway = Gateway::before(&upstream).await;
    let answer = gateway.ask(GET).await;
    // The client is told by a body that is too short.
    assert!(
        answer.contains("content-length: 9") && answer.ends_with("\r\n\r\nabc") || answer.is_empty(),
        "{answer}"
    );
    let proxy = Proxy::new(upstream.url().parse().unwrap(), quick()).unwrap();
    let error = proxy.forward(post()).await.unwrap().into_body().collect().await.unwrap_err();
    assert_eq!(error.fate(), CallFate::Unknown, "{error}");
}

#[tokio::test]
async fn answers_that_are_not_http_are_unknown() {
    for nonsense in [
        "",
        "\r\n",
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
    ] {
        let upstream = Upstream::start(move |_| vec![send(nonsense), Step::Close]).await;
        let gateway = Gateway::before(&upstream).await;
        let answer = gateway.ask(POST).await;
        assert_eq!(status(&answer), 502, "{nonsense:?}: {answer}");
        assert_eq!(upstream.seen().len(), 1, "{nonsense:?}");
    }
}

#[tokio::test]
async fn a_client_that_breaks_off_its_body_is_not_passed_on_whole() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::before(&upstream).await;
    let mut client = gateway.connect().await;
    client.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc").await;
    eventually("the head is passed on", || upstream.begun() == 1).await;
    drop(client);
    let good = gateway.ask(GET).await;
    assert_eq!(status(&good), 200);
    assert_eq!(upstream.seen().len(), 1, "half a body was taken for a whole one");
}

#[tokio::test]
async fn a_name_that_no_upstream_has_is_refused() {
    let upstream = Upstream::start(|_| ok()).await;
    let proxy = Proxy::new(upstream.url().parse().unwrap(), quick()).unwrap();
    let mut request = post();
    request.extensions_mut().insert(semel_http::call::UpstreamName("other".into()));
    assert_eq!(proxy.forward(request).await.unwrap_err().fate(), CallFate::Undelivered);
    let other = Upstream::start(|_| ok()).await;
    let proxy = proxy.with("other", other.url().parse().unwrap(), quick()).unwrap();
    let mut request = post();
    request.extensions_mut().insert(semel_http::call::UpstreamName("other".into()));
    proxy.forward(request).await.unwrap();
    assert_eq!((upstream.seen().len(), other.seen().len()), (0, 1));
}

/// An HTTP/2 server that answers the head of its first request with these bytes, and nothing else ever.
async fn says(frame: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // No settings of its own.
        stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.unwrap();
        loop {
            let mut head = [0; 9];
            if stream.read_exact(&mut head).await.is_err() {
                return;
            }
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            stream.read_exact(&mut vec![0; length]).await.unwrap();
            if head[3] == 1 {
                stream.write_all(frame).await.unwrap();
            }
        }
    });
    format!("http://{address}")
}

// goaway: what an HTTP/2 upstream says it has not looked at, it has not; anything else is doubt.
#[tokio::test]
async fn refused_streams_never_reached_anybody() {
    // RST_STREAM of stream 1, and GOAWAY whose last stream is 0.
    const REFUSED: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7];
    const CANCELLED: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8];
    const GONE: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    const FAILED: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    for (name, frame, fate) in [
        ("refused", REFUSED, CallFate::Undelivered),
        ("gone", GONE, CallFate::Undelivered),
        ("cancelled", CANCELLED, CallFate::Unknown),
        ("failed", FAILED, CallFate::Unknown),
    ] {
        let options = ProxyOptions { protocol: Protocol::Http2, ..quick() };
        let proxy = Proxy::new(says(frame).await.parse().unwrap(), options).unwrap();
        let error = proxy.forward(post()).await.err().unwrap();
        assert_eq!(error.fate(), fate, "{name}: {error}");
        assert_eq!(matches!(error, Error::Refused(_)), fate == CallFate::Undelivered, "{name}: {error}");
    }
}

// An upstream that closes its unused connections takes them all: none is met by a later request, and none is kept.
#[tokio::test]
async fn unused_connections_that_are_closed_are_let_go() {
    let upstream = Upstream::start(|_| {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        vec![send(answer), Step::Pause(Duration::from_millis(50)), Step::Close]
    })
    .await;
    let proxy = Proxy::new(upstream.url().parse().unwrap(), ProxyOptions::default()).unwrap();
    let all = (0..10).map(|_| proxy.forward(post()));
    let mut answers = Vec::new();
    for answer in all.map(tokio::spawn).collect::<Vec<_>>() {
        answers.push(answer.await.unwrap().unwrap().into_body().collect().await.unwrap());
    }
    assert!(proxy.unused() > 0, "they are kept for reuse");
    eventually("they are closed on this side too", || proxy.unused() == 0).await;
    let next = proxy.forward(post()).await.unwrap();
    assert_eq!(next.status(), StatusCode::OK);
}
