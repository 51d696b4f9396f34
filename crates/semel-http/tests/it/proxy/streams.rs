//! Bodies, trailers, interim answers and tunnels.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel_http::proxy::ProxyOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::edge_kit::{Gateway, Step, Upstream, eventually, ok, send, small, status};

// trailers
#[tokio::test]
async fn trailers() {
    let upstream = Upstream::start(|_| {
        vec![send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n")]
    })
    .await;
    let gateway = Gateway::before(&upstream).await;
    let answer = gateway
        .ask(
            "POST /x HTTP/1.1\r\nHost: a\r\nConnection: close, te\r\nTE: trailers\r\nTrailer: x-check\r\n\
             Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Check: 9\r\n\r\n",
        )
        .await;
    assert_eq!(status(&answer), 200);
    assert!(answer.ends_with("0\r\nx-sum: 7\r\n\r\n"), "{answer}");
    let seen = upstream.seen().remove(0);
    assert_eq!((seen.body.as_slice(), seen.trailers.as_str()), (b"abc".as_slice(), "x-check: 9\n"));
    assert_eq!(seen.values("te"), ["trailers"]);
}

// 100_continue
#[tokio::test]
async fn continue_is_sent_once() {
    // The upstream sends interim answers of its own; they are not the client's.
    let upstream = Upstream::start(|_| {
        vec![
            send("HTTP/1.1 100 Continue\r\n\r\n"),
            send("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"),
            ok().remove(0),
        ]
    })
    .await;
    let gateway = Gateway::before(&upstream).await;
    let mut client = gateway.connect().await;
    client.send("POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\nConnection: close\r\n\r\n").await;
    assert_eq!(client.until("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("abc").await;
    let answer = client.rest().await;
    assert_eq!(status(&answer), 200, "{answer}");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    let seen = upstream.seen().remove(0);
    assert_eq!(seen.body, b"abc");
    assert!(seen.values("expect").is_empty(), "{}", seen.head);
}

// upgrade
#[tokio::test]
async fn upgrade() {
    let upstream = Upstream::start(|seen| {
        assert_eq!(seen.values("upgrade"), ["websocket"]);
        assert_eq!(seen.values("sec-websocket-key"), ["x"]);
        vec![
            send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: y\r\n\r\nhello"),
            Step::Echo,
        ]
    })
    .await;
    let gateway = Gateway::before(&upstream).await;
    let mut client = gateway.connect().await;
    client
        .send("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n")
        .await;
    let answer = client.until("\r\n\r\n").await;
    assert_eq!(status(&answer), 101);
    assert!(answer.contains("sec-websocket-accept: y"), "{answer}");
    assert_eq!(client.until("hello").await, "hello");
    // Nothing in a tunnel is HTTP, whatever it looks like.
    for bytes in
        ["\x01\x02\0\n\n\r\n\r\n", "get / HTTP/1.1\n\n", "Content-Length: 1\r\nContent-Length: 2\r\n\r\n"]
    {
        client.send(bytes).await;
        assert_eq!(client.until(bytes).await, bytes);
    }
    client.stream.shutdown().await.unwrap();
    assert_eq!(client.rest().await, "");
    assert_eq!(upstream.seen().len(), 1);
}

// upgrade
#[tokio::test]
async fn a_refused_upgrade_goes_on_in_http() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::before(&upstream).await;
    let mut client = gateway.connect().await;
    // The next request comes before the answer to the first, and must be inspected none the less.
    client
        .send(
            "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\
             GET /next HTTP/1.1\r\nHost: a\r\n\r\nGET /bad HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        )
        .await;
    let answer = client.rest().await;
    let statuses: Vec<&str> = answer.split("HTTP/1.1 ").skip(1).map(|rest| &rest[..3]).collect();
    assert_eq!(statuses, ["200", "200", "400"], "{answer}");
    assert_eq!(upstream.seen().len(), 2);
}

// upgrade
#[tokio::test]
async fn an_unasked_switch_is_not_passed_on() {
    let upstream = Upstream::start(|_| {
        vec![
            send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"),
            Step::Echo,
        ]
    })
    .await;
    let gateway = Gateway::before(&upstream).await;
    // A body, another method and an unlisted Upgrade: none of them may switch.
    for head in [
        "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close",
        "GET /x HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: close",
        "POST /x HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: upgrade, close",
    ] {
        assert_eq!(status(&gateway.ask(format!("{head}\r\n\r\n")).await), 502, "{head}");
    }
}

// streaming
#[tokio::test]
async fn answers_stream_as_they_come() {
    let upstream = Upstream::start(|_| {
        vec![
            send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n7\r\ndata: 1\r\n"),
            Step::Pause(Duration::from_millis(100)),
            send("7\r\ndata: 2\r\n0\r\n\r\n"),
        ]
    })
    .await;
    let gateway = Gateway::before(&upstream).await;
    let mut client = gateway.connect().await;
    client.send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(!client.until("data: 1").await.contains("data: 2"));
    assert!(client.rest().await.contains("data: 2"));
}

// streaming
#[tokio::test]
async fn requests_stream_as_they_come() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::before(&upstream).await;
    let mut client = gateway.connect().await;
    client.send("POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 6\r\n\r\nabc").await;
    eventually("the head is there before the body", || upstream.begun() == 1).await;
    assert_eq!(upstream.seen().len(), 0);
    client.send("def").await;
    assert_eq!(status(&client.rest().await), 200);
    assert_eq!(upstream.seen()[0].body, b"abcdef");
}

/// An upstream that answers with `length` bytes and counts how many it got rid of.
async fn flood(length: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let written = Arc::clone(&count);
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 1024];
        let _ = stream.read(&mut head).await.unwrap();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let piece = vec![b'x'; 64 * 1024];
        while written.load(Ordering::SeqCst) < length {
            stream.write_all(&piece).await.unwrap();
            written.fetch_add(piece.len(), Ordering::SeqCst);
        }
    });
    (url, count)
}

// streaming
#[tokio::test]
async fn a_client_that_does_not_read_holds_the_upstream_back() {
    const LENGTH: usize = 256 * 1024 * 1024;
    let (url, written) = flood(LENGTH).await;
    let gateway = Gateway::with(&url, small(), ProxyOptions::default()).await;
    let mut client = gateway.connect().await;
    client.send("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    let mut last = 0;
    // Settles when every buffer on the way is full.
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = written.load(Ordering::SeqCst);
        if now == last {
            break;
        }
        last = now;
    }
    assert!(last < LENGTH / 8, "{last} bytes were taken from the upstream and read by nobody");
    let mut left = vec![0; 1024 * 1024];
    let mut read = 0;
    while let Ok(count @ 1..) = client.stream.read(&mut left).await {
        read += count;
    }
    assert!(read > LENGTH, "the rest comes when the client reads: {read}");
}

#[tokio::test]
async fn bodies_arrive_byte_by_byte_the_same() {
    let upstream = Upstream::start(|seen| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", seen.body.len());
        vec![send([head.as_bytes(), &seen.body].concat())]
    })
    .await;
    let gateway = Gateway::before(&upstream).await;
    for length in [0_usize, 1, 2, 100, 4095, 8191, 8192, 8193, 16_384, 65_537, 200_000] {
        let body: Vec<u8> = (0..length).map(|index| b'a' + u8::try_from(index * 7 % 26).unwrap()).collect();
        let head =
            format!("POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        let answer = gateway.ask([head.as_bytes(), &body].concat()).await;
        assert!(answer.split_once("\r\n\r\n").unwrap().1.as_bytes() == body, "{length}");
        let mut chunks =
            b"POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                .to_vec();
        for chunk in body.chunks(1_000) {
            chunks.extend(
                format!("{:X}\r\n", chunk.len()).bytes().chain(chunk.iter().copied()).chain(*b"\r\n"),
            );
        }
        chunks.extend(b"0\r\n\r\n");
        let answer = gateway.ask(chunks).await;
        assert!(answer.split_once("\r\n\r\n").unwrap().1.as_bytes() == body, "{length} in chunks");
    }
}
