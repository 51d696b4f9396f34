//! The whole gateway: listener, guard and proxy together.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use semel_http::policy::KeyRequired;
use semel_http::{KeySource, Profile, RoutePolicy};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::edge_kit::{Gateway, Step, Upstream, eventually, ok, send, status};

fn post(key: &str) -> String {
    format!(
        "POST /pay HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: {key}\r\nContent-Length: 3\r\n\r\nabc"
    )
}

fn slow() -> Vec<Step> {
    [vec![Step::Pause(Duration::from_millis(100))], ok()].concat()
}

fn is_replay(answer: &str) -> bool {
    status(answer) == 200 && answer.contains("idempotent-replayed: true") && answer.ends_with("ok")
}

#[tokio::test]
async fn one_effect_for_many_at_once() {
    let upstream = Upstream::start(|_| slow()).await;
    let gateway = Gateway::guarded(&upstream.url(), None).await;
    let mut clients = Vec::new();
    for _ in 0..50 {
        let mut client = gateway.connect().await;
        client.send(post("many")).await;
        clients.push(client);
    }
    for client in &mut clients {
        let answer = client.rest().await;
        assert!(status(&answer) == 200 && answer.ends_with("ok"), "{answer}");
    }
    assert_eq!(upstream.count(), 1);
}

// get_head_options: on a safe method a key says nothing, whatever it looks like.
#[tokio::test]
async fn get_head_options() {
    let upstream = Upstream::start(|seen| {
        let body = if seen.request_line().starts_with("HEAD") { "" } else { "ok" };
        vec![send(format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{body}"))]
    })
    .await;
    let gateway = Gateway::guarded(&upstream.url(), None).await;
    let keys =
        ["Idempotency-Key: a\r\n", "Idempotency-Key:\r\n", "Idempotency-Key: a\r\nIdempotency-Key: b\r\n"];
    for (number, key) in keys.into_iter().enumerate() {
        let ask = |method: &str| {
            gateway.ask(format!("{method} /pay HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{key}\r\n"))
        };
        for method in ["GET", "HEAD", "OPTIONS", "GET", "HEAD", "OPTIONS"] {
            let before = upstream.count();
            let answer = ask(method).await;
            assert_eq!(status(&answer), 200, "{method} {key}: {answer}");
            assert!(!answer.contains("idempotent-replayed"), "{method} {key}");
            assert_eq!(upstream.count(), before + 1, "each is passed on: {method} {key}");
        }
        assert_eq!(status(&ask("POST").await), if number == 0 { 200 } else { 400 }, "{key}");
    }
}

/// How a client goes away.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Close,
    Reset,
    HalfClose,
}

// disconnect_mid_effect, half_close
#[tokio::test]
async fn disconnect_mid_effect() {
    let upstream = Upstream::start(|_| slow()).await;
    let gateway = Gateway::guarded(&upstream.url(), None).await;
    for (number, leave) in [Leave::Close, Leave::Reset, Leave::HalfClose].into_iter().enumerate() {
        let key = format!("leave-{number}");
        let mut client = gateway.connect().await;
        client.send(post(&key)).await;
        eventually("the effect is in progress", || upstream.count() == number + 1).await;
        match leave {
            Leave::Close => drop(client),
            Leave::Reset => {
                client.stream.set_zero_linger().unwrap();
                drop(client);
            }
            Leave::HalfClose => {
                client.stream.shutdown().await.unwrap();
                assert_eq!(status(&client.rest().await), 200);
            }
        }
        let answer = gateway.ask(post(&key)).await;
        assert!(is_replay(&answer), "{leave:?}: {answer}");
        assert_eq!(upstream.count(), number + 1, "{leave:?}");
    }
}

// h2_reset
#[tokio::test]
async fn a_reset_stream_does_not_cut_its_effect() {
    let upstream = Upstream::start(|_| slow()).await;
    let gateway = Gateway::guarded(&upstream.url(), None).await;
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for number in 0..5 {
        let key = format!("reset-{number}");
        let request = Request::post("http://a/pay").header("idempotency-key", &key);
        let request = request.body(Full::new(Bytes::from("abc"))).unwrap();
        sender.ready().await.unwrap();
        let asked = tokio::spawn(sender.send_request(request));
        eventually("the effect is in progress", || upstream.count() == number + 1).await;
        asked.abort();
        let answer = gateway.ask(post(&key)).await;
        assert!(is_replay(&answer), "{answer}");
        assert_eq!(upstream.count(), number + 1);
    }
}

// disconnect_mid_upload
#[tokio::test]
async fn disconnect_mid_upload() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::guarded(&upstream.url(), None).await;
    let mut client = gateway.connect().await;
    client.send(&post("upload").as_bytes()[..post("upload").len() - 1]).await;
    client.stream.shutdown().await.unwrap();
    assert_eq!(status(&client.rest().await), 400);
    assert_eq!(upstream.begun(), 0, "nothing is passed on before the whole body is there");
    let answer = gateway.ask(post("upload")).await;
    assert!(status(&answer) == 200 && !is_replay(&answer), "{answer}");
}

#[tokio::test]
async fn what_was_not_delivered_is_released() {
    let upstream = Upstream::start(|_| ok()).await;
    let address = upstream.address;
    drop(upstream);
    let gateway = Gateway::guarded(&format!("http://{address}"), None).await;
    let wait = async {
        // The port is closed as soon as the task of the dropped upstream is gone.
        loop {
            let answer = gateway.ask(post("refused")).await;
            if answer.contains("upstream_unreachable") {
                assert_eq!(status(&answer), 502, "{answer}");
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), wait).await.expect("nobody listens any more");
    let answer = gateway.ask(post("refused")).await;
    assert!(status(&answer) == 502 && answer.contains("upstream_unreachable"), "not in doubt: {answer}");
}

// upstream_timeout, hidden_retry
#[tokio::test]
async fn what_was_cut_off_is_in_doubt_and_not_sent_again() {
    let upstream = Upstream::start(|_| vec![Step::Close]).await;
    let gateway = Gateway::guarded(&upstream.url(), None).await;
    assert_eq!(status(&gateway.ask(post("cut")).await), 502);
    for _ in 0..3 {
        let answer = gateway.ask(post("cut")).await;
        assert!(status(&answer) == 409 && answer.contains("in_doubt"), "{answer}");
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn replays_are_the_same_byte_for_byte() {
    let upstream = Upstream::start(|_| {
        vec![send(
            "HTTP/1.1 201 Created\r\nx-b: 2\r\nx-a: 1\r\nx-b: 3\r\nconnection: x-hop\r\nx-hop: 1\r\ntransfer-encoding: chunked\r\n\r\n\
             4\r\n\0\u{1}\n\r\r\n2\r\nok\r\n0\r\n\r\n",
        )]
    })
    .await;
    let gateway = Gateway::guarded(&upstream.url(), None).await;
    let request = "POST /pay HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: chunks\r\nTransfer-Encoding: chunked\r\n\r\n\
                   2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    let (first, second) = (gateway.ask(request).await, gateway.ask(request).await);
    let body = |answer: &str| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    let own = |answer: &str| {
        answer.lines().filter(|line| line.starts_with("x-")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!((status(&first), status(&second)), (201, 201), "{first}\n{second}");
    assert_eq!(body(&first), "\0\u{1}\n\rok");
    assert_eq!(body(&first), body(&second));
    assert_eq!(own(&first), own(&second));
    assert_eq!(upstream.seen()[0].body, b"abc");
    assert_eq!(upstream.count(), 1);
}

// key_syntax
#[tokio::test]
async fn bad_keys_never_reach_the_upstream() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::guarded(&upstream.url(), None).await;
    let long = "k".repeat(256);
    for key in ["", "a, b", "\"a\", \"b\"", "\"open", "\"a\" b", "a b", &long, "\"\"", "ä", "\"a\\x\""] {
        let answer = gateway.ask(post(key)).await;
        assert!(status(&answer) == 400 && answer.contains("key_malformed"), "{key:?}: {answer}");
    }
    assert_eq!(upstream.begun(), 0);
    // The quoted form and the bare form are the same key.
    assert_eq!(status(&gateway.ask(post("same")).await), 200);
    assert!(is_replay(&gateway.ask(post("\"same\"")).await));
}

// depth_size, dup_members, bad JSON
#[tokio::test]
async fn bad_json_never_reaches_the_upstream() {
    let upstream = Upstream::start(|_| ok()).await;
    let route = RoutePolicy::builder(&Profile::ietf(), "POST /rpc")
        .key(KeySource::json("/params/key").unwrap(), KeyRequired::Required)
        .build()
        .unwrap();
    let gateway = Gateway::guarded(&upstream.url(), Some(route)).await;
    let ask = async |body: &[u8]| {
        let head = format!(
            "POST /rpc HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        gateway.ask([head.as_bytes(), body].concat()).await
    };
    let deep = "[".repeat(100_000);
    let bad: [&[u8]; 14] = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{\"params\":{}}",
        b"{\"params\":{\"key\":1}}",
        b"{\"params\":{\"key\":null}}",
        b"{\"params\":{\"key\":\"\"}}",
        b"{\"params\":{\"key\":\"a\"}",
        b"{\"params\":{\"key\":\"a\"}}x",
        b"{\"params\":{\"key\":\"a\xFF\"}}",
        b"\xEF\xBB\xBF{}",
        b"{'params':{'key':'a'}}",
        deep.as_bytes(),
    ];
    for body in bad {
        let answer = ask(body).await;
        assert_eq!(status(&answer), 400, "{:.60?}: {answer}", String::from_utf8_lossy(body));
    }
    assert_eq!(upstream.begun(), 0);
    assert_eq!(status(&ask(b"{\"params\":{\"key\":\"a\"}}").await), 200);
    assert!(is_replay(&ask(b"{\"params\":{\"key\":\"a\"}}").await));
}
