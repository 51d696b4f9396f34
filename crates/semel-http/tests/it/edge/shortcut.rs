//! Replays that take the short way: the same answers, byte for byte, as the usual way gives.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel::Engine;
use semel::store::MemoryStore;
use semel_http::edge::{EdgeOptions, PlainRequest, Shortcut, Taken};
use semel_http::layer::Guarded;
use semel_http::observe::{AnswerCounters, AnswerOutcome};
use semel_http::policy::{InsertLimits, Rate};
use semel_http::proxy::{self, Proxy};
use semel_http::{Guard, Profile, Scope};

use crate::edge_kit::{Gateway, Seen, Step, Upstream, send, small, status};

/// A guard's shortcut that counts how often it answered.
#[derive(Debug)]
struct Counted(Guard, AtomicUsize);

impl Shortcut for Counted {
    fn answer(&self, request: &PlainRequest<'_>, answer: &mut Vec<u8>) -> Taken {
        let taken = self.0.answer(request, answer);
        self.1.fetch_add(usize::from(taken == Taken::Yes), Ordering::SeqCst);
        taken
    }
}

/// One guard behind two listeners, with the shortcut and without.
struct Two {
    short: Gateway,
    usual: Gateway,
    shortcut: Arc<Counted>,
    counters: Arc<AnswerCounters>,
}

impl Two {
    async fn before(upstream: &Upstream, scope: Scope) -> Self {
        Self::with_profile(upstream, scope, Profile::ietf()).await
    }

    async fn with_profile(upstream: &Upstream, scope: Scope, profile: Profile) -> Self {
        let engine = Engine::builder(MemoryStore::new()).build().unwrap();
        let counters = Arc::new(AnswerCounters::new());
        let guard = Guard::builder(engine).profile(profile).scope(scope);
        let guard = guard.observe(Arc::clone(&counters) as _).build().unwrap();
        let proxy = Proxy::new(upstream.url().parse().unwrap(), proxy::ProxyOptions::default()).unwrap();
        let service = Guarded::new(guard.clone(), proxy);
        let shortcut = Arc::new(Counted(guard, AtomicUsize::new(0)));
        let options = EdgeOptions { shortcut: Some(Arc::clone(&shortcut) as _), ..small() };
        Self {
            short: Gateway::of(service.clone(), options).await,
            usual: Gateway::of(service, small()).await,
            shortcut,
            counters,
        }
    }

    fn taken(&self) -> usize {
        self.shortcut.1.load(Ordering::SeqCst)
    }
}

fn post(path: &str, headers: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// Without what differs between two moments.
fn undated(answer: &str) -> String {
    answer.split("\r\n").filter(|line| !line.starts_with("date: ")).collect::<Vec<_>>().join("\r\n")
}

fn answers(seen: &Seen) -> Vec<Step> {
    let path = seen.request_line().split(' ').nth(1).unwrap().split('?').next().unwrap().to_owned();
    vec![match path.as_str() {
        "/chunked" => send(
            "HTTP/1.1 201 Created\r\nX-A: 1\r\ntransfer-encoding: chunked\r\nX-A: 2\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ),
        "/empty" => send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nset-cookie: a=b\r\n\r\n"),
        "/none" => send("HTTP/1.1 204 No Content\r\nx-b: 3\r\n\r\n"),
        "/missing" => send("HTTP/1.1 404 Gone Astray\r\ncontent-length: 2\r\ndate: then\r\n\r\nno"),
        "/large" => send(format!("HTTP/1.1 200 OK\r\ncontent-length: 20000\r\n\r\n{}", "x".repeat(20_000))),
        _ => send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\ncontent-length: 2\r\n\r\nok"),
    }]
}

#[tokio::test]
async fn the_short_way_says_what_the_usual_way_says() {
    let upstream = Upstream::start(answers).await;
    let two = Two::before(&upstream, Scope::SingleTenant).await;
    // Which answers take it: not those without a body, and not the large ones.
    for (number, (path, takes)) in [
        ("/plain", true),
        ("/plain?", true),
        ("/plain?a=b&c", true),
        ("/chunked", true),
        ("/empty", false),
        ("/missing", true),
        ("/none", false),
        ("/large", false),
    ]
    .into_iter()
    .enumerate()
    {
        let ends = if path == "/none" { "\r\n\r\n" } else { "" };
        let request = post(path, &format!("idempotency-KEY:  key-{number} \r\n"), "abc");
        let closing = request.replace("Host: a\r\n", "Host: a\r\nConnection: close\r\n");
        assert!(status(&two.usual.ask(&closing).await) < 500, "{path} runs");
        let expected = two.usual.ask(&closing).await;
        assert!(expected.contains("idempotent-replayed: true"), "{path}: {expected}");
        let mut client = two.short.connect().await;
        // The first on a connection is looked at for its protocol, and goes the usual way.
        client.send("GET /plain HTTP/1.1\r\nHost: a\r\n\r\n").await;
        client.until("ok").await;
        let before = two.taken();
        for _ in 0..3 {
            client.send(&request).await;
            let head = client.until("\r\n\r\n").await;
            let body = expected.split_once("\r\n\r\n").unwrap().1;
            let body = if body.is_empty() { String::new() } else { client.until(body).await };
            let expected = expected.replace("connection: close\r\n", "");
            assert_eq!(undated(&format!("{head}{body}")), undated(&expected), "{path}{ends}");
        }
        assert_eq!(two.taken() - before, if takes { 3 } else { 0 }, "{path}");
        // Whatever took it, the connection goes on as any other, and ends as asked.
        client.send(&closing).await;
        assert_eq!(undated(&client.rest().await), undated(&expected), "{path}");
    }
    assert_eq!(two.counters.count(AnswerOutcome::Ran), 8, "each ran once");
    assert_eq!(
        two.counters.count(AnswerOutcome::Replayed),
        8 * 5,
        "each replay was counted, whichever way it took"
    );
}

// The short way is no way around the limits.
#[tokio::test]
async fn replays_on_the_short_way_use_the_budget_of_replays() {
    let upstream = Upstream::start(answers).await;
    let rate = |burst| Rate { per_second: 1, burst };
    let limits = Some(InsertLimits { writes: rate(10), reads: rate(3) });
    let profile = Profile { limits, ..Profile::ietf() };
    let two = Two::with_profile(&upstream, Scope::SingleTenant, profile).await;
    let mut client = two.short.connect().await;
    client.send("GET /plain HTTP/1.1\r\nHost: a\r\n\r\n").await;
    client.until("ok").await;
    let request = post("/plain", "idempotency-key: k\r\n", "abc");
    for _ in 0..4 {
        client.send(&request).await;
        client.until("\r\n\r\nok").await;
    }
    assert_eq!(two.taken(), 3);
    client.send(&request).await;
    assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 429"));
    assert_eq!(two.taken(), 3);
}

// What is not the same request, and what asks something of its connection, is not answered by it.
#[tokio::test]
async fn whatever_is_not_plainly_the_same_goes_the_usual_way() {
    let upstream = Upstream::start(answers).await;
    let two = Two::before(&upstream, Scope::default()).await;
    let mut client = two.short.connect().await;
    let key = "Idempotency-Key: the-key\r\nAuthorization: Bearer a\r\n";
    client.send(post("/plain", key, "abc")).await;
    client.until("\r\n\r\nok").await;
    client.send(post("/plain", key, "abc")).await;
    assert!(client.until("\r\n\r\nok").await.contains("idempotent-replayed: true"));
    assert_eq!(two.taken(), 1);
    for (request, expected) in [
        (post("/plain", key, "abd"), 422),
        (post("/plain?x", key, "abc"), 422),
        (post("/other", key, "abc"), 422),
        (post("/plain", key, "abc").replace("POST", "PATCH"), 422),
        (post("/plain", &key.replace("Bearer a", "Bearer b"), "abc"), 200),
        (post("/plain", &key.replace("Authorization: Bearer a\r\n", ""), "abc"), 400),
        (post("/plain", &format!("{key}Authorization: Bearer a\r\n"), "abc"), 400),
        (post("/plain", &format!("{key}Connection: close\r\n"), "abc"), 200),
        (post("/plain", &format!("{key}Expect: 100-continue\r\n"), "abc"), 100),
        (post("/plain", &format!("{key}TE: trailers\r\n"), "abc"), 200),
        (format!("POST http://a/plain HTTP/1.1\r\nHost: a\r\n{key}Content-Length: 3\r\n\r\nabc"), 200),
        (format!("POST /plain HTTP/1.0\r\nHost: a\r\n{key}Content-Length: 3\r\n\r\nabc"), 200),
        (
            format!(
                "POST /plain HTTP/1.1\r\nHost: a\r\n{key}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            ),
            200,
        ),
    ] {
        let mut client = two.short.connect().await;
        client.send("GET /plain HTTP/1.1\r\nHost: a\r\n\r\n").await;
        client.until("ok").await;
        client.send(&request).await;
        let head = client.until("\r\n\r\n").await;
        assert_eq!(status(&head), expected, "{request}\n{head}");
    }
    assert_eq!(two.taken(), 1);
}

// Requests that come together, or in pieces, are answered in their order.
#[tokio::test]
async fn many_at_once_are_answered_in_their_order() {
    let upstream = Upstream::start(answers).await;
    let two = Two::before(&upstream, Scope::SingleTenant).await;
    let of = |path: &str| post(path, &format!("Idempotency-Key: of{}\r\n", path.replace('/', "-")), "abc");
    let order = ["/plain", "/missing", "/plain", "/chunked", "/missing", "/plain"];
    let mut client = two.short.connect().await;
    for _ in 0..20 {
        client.send(order.map(of).concat()).await;
        for path in order {
            let body = match path {
                "/plain" => "\r\n\r\nok",
                "/missing" => "\r\n\r\nno",
                _ => "abc",
            };
            client.until(body).await;
        }
        let whole = of("/plain");
        let (head, tail) = whole.split_at(40);
        client.send(head).await;
        tokio::task::yield_now().await;
        client.send(tail).await;
        client.until("\r\n\r\nok").await;
        client.send(of("/plain")).await;
        client.until("\r\n\r\nok").await;
    }
    assert!(two.taken() > 0 && client.unread.is_empty());
    let effects = upstream.seen().iter().filter(|seen| seen.request_line().starts_with("POST")).count();
    assert_eq!(effects, 3);
}
