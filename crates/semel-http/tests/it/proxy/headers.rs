//! What an upstream is told, and what a client is told back.

use semel_http::proxy::{Forwarded, Host, ProxyOptions};

use crate::edge_kit::{Gateway, Seen, Upstream, ok, send, small, status};

async fn sent_with(options: ProxyOptions, head: &str) -> Seen {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::with(&upstream.url(), small(), options).await;
    let answer = gateway.ask(format!("{head}\r\nConnection: close\r\n\r\n")).await;
    assert_eq!(status(&answer), 200, "{answer}");
    upstream.seen().remove(0)
}

async fn sent(head: &str) -> Seen {
    sent_with(ProxyOptions::default(), head).await
}

// hop_by_hop
#[tokio::test]
async fn hop_by_hop_to_the_upstream() {
    let seen = sent(
        "GET /x HTTP/1.1\r\nHost: a\r\nConnection: x-one, X-Two\r\nX-One: 1\r\nx-two: 2\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\n\
         TE: gzip\r\nUpgrade: h2c\r\nProxy-Authorization: Basic x\r\nX-Three: 3",
    )
    .await;
    let gone = [
        "connection",
        "x-one",
        "x-two",
        "keep-alive",
        "proxy-connection",
        "te",
        "upgrade",
        "proxy-authorization",
    ];
    for name in gone {
        assert!(seen.values(name).is_empty(), "{name}: {}", seen.head);
    }
    assert_eq!(seen.values("x-three"), ["3"]);
}

// hop_by_hop
#[tokio::test]
async fn hop_by_hop_to_the_client() {
    let upstream = Upstream::start(|_| {
        vec![send(
            "HTTP/1.1 200 OK\r\nconnection: x-one\r\nx-one: 1\r\nkeep-alive: timeout=5\r\nproxy-authenticate: Basic\r\nx-two: 2\r\n\
             set-cookie: a=1\r\nset-cookie: b=2\r\ncontent-length: 2\r\n\r\nok",
        )]
    })
    .await;
    let gateway = Gateway::before(&upstream).await;
    let mut client = gateway.connect().await;
    client.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let answer = client.until("\r\n\r\nok").await;
    for gone in ["connection:", "x-one", "keep-alive", "proxy-authenticate"] {
        assert!(!answer.contains(gone), "{gone}: {answer}");
    }
    assert!(answer.contains("x-two: 2\r\n"), "{answer}");
    let cookies: Vec<&str> = answer.lines().filter(|line| line.starts_with("set-cookie")).collect();
    assert_eq!(cookies, ["set-cookie: a=1", "set-cookie: b=2"]);
}

#[tokio::test]
async fn host_is_the_upstreams_own() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::before(&upstream).await;
    gateway.ask("GET /x HTTP/1.1\r\nHost: client.example\r\nConnection: close\r\n\r\n").await;
    let seen = upstream.seen().remove(0);
    assert_eq!(seen.values("host"), [upstream.address.to_string()]);
    assert_eq!(seen.values("x-forwarded-host"), ["client.example"]);
    let seen = sent_with(
        ProxyOptions { host: Host::Client, ..ProxyOptions::default() },
        "GET /x HTTP/1.1\r\nHost: client.example",
    )
    .await;
    assert_eq!(seen.values("host"), ["client.example"]);
}

// poisoning
#[tokio::test]
async fn what_a_client_says_of_itself_is_not_believed() {
    let lies = "GET /x HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nForwarded: for=9.9.9.9";
    let seen = sent(lies).await;
    assert_eq!(seen.values("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen.values("x-forwarded-proto"), ["http"]);
    assert_eq!(seen.values("x-forwarded-host"), ["a"]);
    assert!(seen.values("forwarded").is_empty());

    let seen =
        sent_with(ProxyOptions { forwarded: Forwarded::Append, ..ProxyOptions::default() }, lies).await;
    assert_eq!(seen.values("x-forwarded-for"), ["9.9.9.9, 127.0.0.1"]);
    assert_eq!(seen.values("x-forwarded-proto"), ["https"]);
    assert_eq!(seen.values("x-forwarded-host"), ["evil"]);
    assert_eq!(seen.values("forwarded"), ["for=9.9.9.9, for=127.0.0.1;proto=http"]);

    let seen =
        sent_with(ProxyOptions { forwarded: Forwarded::Remove, ..ProxyOptions::default() }, lies).await;
    for name in ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "forwarded"] {
        assert!(seen.values(name).is_empty(), "{name}");
    }
}

#[tokio::test]
async fn via_is_added_where_asked_for() {
    let upstream = Upstream::start(|_| ok()).await;
    let options = ProxyOptions { via: Some("semel".to_owned()), ..ProxyOptions::default() };
    let gateway = Gateway::with(&upstream.url(), small(), options).await;
    let answer =
        gateway.ask("GET /x HTTP/1.1\r\nHost: a\r\nVia: 1.0 fred\r\nConnection: close\r\n\r\n").await;
    assert!(answer.contains("via: 1.1 semel\r\n"), "{answer}");
    assert_eq!(upstream.seen()[0].values("via"), ["1.0 fred, 1.1 semel"]);
    assert!(sent("GET /x HTTP/1.1\r\nHost: a").await.values("via").is_empty());
}

#[tokio::test]
async fn the_target_is_passed_on_as_it_is() {
    for target in ["/", "/a//b/../c?x=%2F&y", "/%e2%82%ac", "/x?", "/{id}|", "/x;y=z@:1"] {
        let seen = sent(&format!("GET {target} HTTP/1.1\r\nHost: a")).await;
        assert_eq!(seen.request_line(), format!("GET {target} HTTP/1.1"));
    }
    assert_eq!(sent("GET http://a/y?z HTTP/1.1\r\nHost: a").await.request_line(), "GET /y?z HTTP/1.1");
    assert_eq!(sent("OPTIONS * HTTP/1.1\r\nHost: a").await.request_line(), "OPTIONS * HTTP/1.1");
    assert_eq!(sent("GET /x HTTP/1.0\r\nHost: a").await.request_line(), "GET /x HTTP/1.1");
}

#[tokio::test]
async fn an_upstream_may_have_a_prefix() {
    let upstream = Upstream::start(|_| ok()).await;
    let gateway = Gateway::with(&format!("{}/base/", upstream.url()), small(), ProxyOptions::default()).await;
    gateway.ask("GET /x?y HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert_eq!(upstream.seen()[0].request_line(), "GET /base/x?y HTTP/1.1");
}

// redirect
#[tokio::test]
async fn redirect() {
    let upstream = Upstream::start(|_| {
        vec![send("HTTP/1.1 307 Go\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n")]
    })
    .await;
    let gateway = Gateway::before(&upstream).await;
    let answer =
        gateway.ask("POST /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1\r\n\r\na").await;
    assert_eq!(status(&answer), 307);
    assert!(answer.contains("location: /elsewhere\r\n"), "{answer}");
    assert_eq!(upstream.seen().len(), 1);
}

// get_head_options
#[tokio::test]
async fn an_answer_to_head_keeps_its_length_and_has_no_body() {
    let upstream = Upstream::start(|_| vec![send("HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n")]).await;
    let gateway = Gateway::before(&upstream).await;
    let answer = gateway.ask("HEAD /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(answer.contains("content-length: 1234\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn a_length_beside_chunks_is_not_passed_on() {
    let upstream = Upstream::start(|_| {
        vec![send(
            "HTTP/1.1 200 OK\r\ncontent-length: 90\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        )]
    })
    .await;
    let gateway = Gateway::before(&upstream).await;
    let answer = gateway.ask("GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(!answer.contains("content-length"), "{answer}");
    assert!(answer.ends_with("2\r\nok\r\n0\r\n\r\n"), "{answer}");
}
