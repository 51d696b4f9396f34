//! Another request under the same key: a conflict, or poisoning of another tenant.

use http::{Method, Request};
use semel::canonical::Exclusions;
use semel_http::Body;
use semel_http::policy::{Ambiguous, Fingerprinting, HeaderRules};

use crate::kit::{Kit, Upstream, post, post_body, with};

fn json_kit() -> Kit {
    Kit::route(Upstream::counting(), |route| route.fingerprint(Fingerprinting::Json(Exclusions::none())))
}

/// Whether two requests with one key are the same to the guard.
async fn same(kit: &Kit, one: Request<Body>, other: Request<Body>) -> bool {
    kit.send(one).await;
    let answer = kit.send(other).await;
    if !answer.is_replay() {
        answer.assert_problem(422, "conflict");
    }
    answer.is_replay()
}

fn variants() -> Vec<(&'static str, Request<Body>)> {
    let change = |what, change: fn(&mut Request<Body>)| {
        let mut request = post("k");
        change(&mut request);
        (what, request)
    };
    vec![
        change("method", |request| *request.method_mut() = Method::PATCH),
        change("path", |request| *request.uri_mut() = "/v1/refunds".parse().unwrap()),
        change("path's spelling", |request| *request.uri_mut() = "/v1/%70ayments".parse().unwrap()),
        change("query", |request| *request.uri_mut() = "/v1/payments?a=1".parse().unwrap()),
        change("empty query", |request| *request.uri_mut() = "/v1/payments?".parse().unwrap()),
        change("body", |request| *request.body_mut() = Body::from("{\"amount\":2}")),
        change("longer body", |request| *request.body_mut() = Body::from("{\"amount\":1} ")),
        change("no body", |request| *request.body_mut() = Body::empty()),
        change("host in the address", |request| {
            *request.uri_mut() = "http://elsewhere/v1/payments".parse().unwrap();
        }),
    ]
}

// Every part of the request counts, and two endpoints under one key are a conflict.
#[tokio::test]
async fn every_part_of_a_request_counts() {
    for (what, request) in variants() {
        assert!(!same(&Kit::new(Upstream::counting()), post("k"), request).await, "{what}");
    }
    assert!(same(&Kit::new(Upstream::counting()), post("k"), post("k")).await);
    let to = |address: &str| {
        let mut request = post("k");
        *request.uri_mut() = address.parse().unwrap();
        request
    };
    for (one, other) in [("/a?x=1", "/a?x=2"), ("/a?x=1&y=2", "/a?y=2&x=1"), ("/a/b", "/a?b"), ("/a", "/a/")]
    {
        assert!(!same(&Kit::new(Upstream::counting()), to(one), to(other)).await, "{one} {other}");
    }
}

// The whole body, not a prefix of it.
#[tokio::test]
async fn the_last_byte_of_a_large_body_counts() {
    let body = |last: u8| {
        let mut body = vec![b'x'; 700_000];
        body.push(last);
        body
    };
    let kit = Kit::new(Upstream::counting());
    assert!(!same(&kit, post_body("k", body(1)), post_body("k", body(2))).await);
    assert!(same(&kit, post_body("l", body(1)), post_body("l", body(1))).await);
}

// poisoning: a header that can change the answer is compared or does not reach the handler, each for itself.
#[tokio::test]
async fn poisoning_pairwise() {
    let headers = [
        ("host", "a.example", "b.example"),
        ("x-forwarded-host", "a", "b"),
        ("x-forwarded-proto", "http", "https"),
        ("x-forwarded-port", "80", "443"),
        ("x-forwarded-prefix", "/a", "/b"),
        ("x-forwarded-for", "10.0.0.1", "10.0.0.2"),
        ("x-real-ip", "10.0.0.1", "10.0.0.2"),
        ("forwarded", "for=10.0.0.1", "for=10.0.0.2"),
        ("accept", "application/json", "text/html"),
        ("accept-language", "de", "en"),
        ("accept-charset", "utf-8", "latin1"),
        ("accept-encoding", "gzip", "br"),
        ("prefer", "return=minimal", "return=representation"),
        ("content-type", "text/plain", "text/html"),
        ("content-encoding", "gzip", "br"),
        ("x-http-method-override", "PUT", "DELETE"),
        ("x-original-url", "/a", "/b"),
        ("x-rewrite-url", "/a", "/b"),
        ("x-method-override", "PUT", "DELETE"),
        ("true-client-ip", "10.0.0.1", "10.0.0.2"),
        ("cookie", "session=a", "session=b"),
        ("x-api-key", "a", "b"),
        ("stripe-account", "a", "b"),
        ("x-tenant-id", "a", "b"),
    ];
    let kit = || Kit::route(Upstream::counting(), |route| route.ambiguous(Ambiguous::Allow));
    for (name, one, other) in headers {
        for pair in [(Some(one), Some(other)), (Some(one), None), (None, Some(other))] {
            let request = |value: Option<&str>| match value {
                Some(value) => with(post("k"), name, value),
                None => post("k"),
            };
            let replayed = same(&kit(), request(pair.0), request(pair.1)).await;
            let kit = kit();
            kit.send(with(post("k"), name, one)).await;
            let reaches = kit.upstream.last().headers.get_all(name).iter().any(|value| value == one);
            assert_eq!(replayed, !reaches, "{name} {pair:?}: compared, or it does not reach the handler");
        }
    }
}

// What the guard is told to compare, it compares; what it is told to leave alone, it does.
#[tokio::test]
async fn header_rules_are_settings() {
    let rules = HeaderRules { fingerprint: vec!["x-version".parse().unwrap()], strip: Vec::new() };
    let kit = Kit::route(Upstream::counting(), |route| route.headers(rules.clone()));
    assert!(same(&kit, with(post("a"), "accept", "1"), with(post("a"), "accept", "2")).await);
    assert!(!same(&kit, with(post("b"), "x-version", "1"), with(post("b"), "x-version", "2")).await);
    kit.send(with(post("c"), "accept-encoding", "gzip")).await;
    assert_eq!(kit.upstream.last().headers["accept-encoding"], "gzip");
}

// Conflict_answer: the same words whatever the first request or its answer was.
#[tokio::test]
async fn the_answer_tells_nothing_of_the_first_request() {
    let mut answers = Vec::new();
    for status in [200, 400] {
        for body in ["{\"card\":\"4242\"}", "other"] {
            let kit = Kit::new(Upstream::status(status));
            kit.send(post_body("k", body)).await;
            let answer = kit.send(post_body("k", "{}")).await;
            answer.assert_problem(422, "conflict");
            assert!(!answer.text().contains("4242") && !answer.text().contains("call"));
            answers.push(answer);
        }
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

// On every path: hot cache, in flight, done, in doubt, bound.
#[tokio::test]
async fn on_every_path() {
    let hot = {
        let engine = semel::Engine::builder(semel::store::MemoryStore::new()).build().unwrap();
        semel_http::Guard::builder(engine).build().unwrap()
    };
    let upstream = Upstream::counting();
    hot.handle(upstream.clone(), post_body("k", "1")).await.unwrap();
    assert_eq!(
        hot.handle(upstream.clone(), post_body("k", "1")).await.unwrap().headers()["idempotent-replayed"],
        "true"
    );
    assert_eq!(hot.handle(upstream, post_body("k", "2")).await.unwrap().status(), 422, "hot cache");

    let kit = Kit::new(Upstream::new(|_, _| std::future::pending()));
    let under_way = tokio::spawn({
        let kit = kit.clone();
        async move { kit.begin(post_body("k", "1")).await.map(drop) }
    });
    crate::kit::eventually("in progress", || kit.upstream.calls() == 1).await;
    kit.send(post_body("k", "2")).await.assert_problem(422, "conflict");
    under_way.abort();

    let kit = Kit::new(Upstream::status(504));
    kit.send(post_body("k", "1")).await;
    kit.send(post_body("k", "1")).await.assert_problem(409, "in_doubt");
    kit.send(post_body("k", "2")).await.assert_problem(422, "conflict");

    let kit = Kit::route(Upstream::status(500), |route| route.mode(semel::Mode::Keyed));
    kit.send(post_body("k", "1")).await;
    kit.send(post_body("k", "2")).await.assert_problem(422, "conflict");
}

// key_order, whitespace, number_forms, escapes_vs_normalisation: compared as JSON only where the route says so.
#[tokio::test]
async fn json_compares_values_and_exact_bytes() {
    let same_value = [
        (r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#),
        (r#"{"a":1}"#, r#" { "a" : 1 } "#),
        (r#"{"a":1}"#, r#"{"a":1.0}"#),
        (r#"{"a":1}"#, r#"{"a":1e0}"#),
        (r#"{"a":0}"#, r#"{"a":-0}"#),
        ("{\"a\":\"\\u00e9\"}", "{\"a\":\"é\"}"),
    ];
    let other_value = [
        (r#"{"a":1}"#, r#"{"a":2}"#),
        (r#"{"a":null}"#, "{}"),
        (r#"{"a":9007199254740992}"#, r#"{"a":9007199254740993}"#),
        (r#"{"a":18446744073709551616}"#, r#"{"a":18446744073709551617}"#),
        ("{\"a\":\"é\"}", "{\"a\":\"e\u{301}\"}"),
        (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#),
        ("", "null"),
    ];
    for (one, other) in same_value {
        assert!(same(&json_kit(), post_body("k", one), post_body("k", other)).await, "{one} {other}");
        assert!(!same(&Kit::new(Upstream::counting()), post_body("k", one), post_body("k", other)).await);
    }
    for (one, other) in other_value {
        assert!(!same(&json_kit(), post_body("k", one), post_body("k", other)).await, "{one} {other}");
    }
}

// An envelope whose id changes with every try is the same request where the route leaves the id out.
#[tokio::test]
async fn excluded_members_do_not_count() {
    let exclude = Fingerprinting::Json(Exclusions::new(["/id", "/params/_meta"]).unwrap());
    let kit = Kit::route(Upstream::counting(), |route| route.fingerprint(exclude));
    let call = |id: u32, amount: u32| {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"params":{{"amount":{amount},"_meta":{{"try":{id}}}}}}}"#);
        post_body("k", body)
    };
    assert!(same(&kit, call(1, 5), call(2, 5)).await);
    kit.send(call(3, 6)).await.assert_problem(422, "conflict");
}

// dup_members, lone_surrogate, bom, invalid_utf8, trailing_data, depth_size: 400 as JSON, bytes as exact; no record.
#[tokio::test]
async fn what_has_no_json_form() {
    let deep = ["[", "]"].map(|bracket| bracket.repeat(200)).concat();
    let bodies: [&[u8]; 7] = [
        br#"{"a":1,"a":2}"#,
        br#"{"a":"\ud800"}"#,
        b"\xef\xbb\xbf{}",
        b"{\"a\":\"\xff\"}",
        b"{} {}",
        b"{",
        deep.as_bytes(),
    ];
    for body in bodies {
        let kit = json_kit();
        kit.send(post_body("k", body.to_vec())).await.assert_problem(400, "body_malformed");
        assert_eq!((kit.upstream.calls(), kit.store.all_calls()), (0, 0), "R1");
        assert!(
            same(
                &Kit::new(Upstream::counting()),
                post_body("k", body.to_vec()),
                post_body("k", body.to_vec())
            )
            .await
        );
    }
}

// A malformed request gets the same answer whether or not its key exists.
#[tokio::test]
async fn a_malformed_request_learns_nothing_of_the_key() {
    let kit = json_kit();
    let before = kit.send(post_body("k", "{")).await;
    kit.send(post_body("k", "{}")).await;
    assert_eq!(kit.send(post_body("k", "{")).await, before);
}

/// The same form with this boundary: what clients send that draw a new boundary for each try.
fn form(boundary: &str) -> Request<Body> {
    let body = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n42\r\n--{boundary}--\r\n"
    );
    typed(post_body("k", body), &format!("multipart/form-data; boundary={boundary}"))
}

/// The same request with another `Content-Type`.
fn typed(mut request: Request<Body>, content_type: &str) -> Request<Body> {
    request.headers_mut().insert("content-type", content_type.parse().unwrap());
    request
}

// A retry with another boundary has other bytes: it is refused as documented, and never runs the effect a second time.
#[tokio::test]
async fn multipart_boundary() {
    let kit = Kit::new(Upstream::counting());
    kit.send(form("first")).await;
    assert!(kit.send(form("first")).await.is_replay(), "a client that keeps its boundary is answered");
    kit.send(form("second")).await.assert_problem(422, "conflict");
    // The header alone counts too: a boundary in it decides how the handler reads the body.
    let mixed = typed(form("first"), "multipart/form-data; boundary=other");
    kit.send(mixed).await.assert_problem(422, "conflict");
    // A form has no JSON value: where JSON is compared, it is refused before anything happens.
    let json = json_kit();
    json.send(form("first")).await.assert_problem(400, "body_malformed");
    assert_eq!((kit.upstream.calls(), json.upstream.calls()), (1, 0));
}

/// `{"amount":42}`, compressed with `gzip -1`.
const GZIP_FAST: [u8; 33] = [
    0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0x04, 0x03, 0xab, 0x56, 0x4a, 0xcc, 0xcd, 0x2f, 0xcd, 0x2b, 0x51, 0xb2,
    0x32, 0x31, 0xaa, 0x05, 0, 0x09, 0xdf, 0x61, 0xfb, 0x0d, 0, 0, 0,
];

// A retry that compresses the same payload with another level has other bytes. The guard never inflates a body to find out.
#[tokio::test]
async fn reencoded_body() {
    // Of another level: the header of gzip names it.
    let mut best = GZIP_FAST;
    best[8] = 0x02;
    let request = |body: &[u8]| with(post_body("k", body.to_vec()), "content-encoding", "gzip");
    let kit = Kit::new(Upstream::counting());
    kit.send(request(&GZIP_FAST)).await;
    assert_eq!(kit.upstream.last().body, &GZIP_FAST[..], "the handler gets the bytes of the client");
    assert!(kit.send(request(&GZIP_FAST)).await.is_replay(), "the same bytes are the same request");
    kit.send(request(&best)).await.assert_problem(422, "conflict");
    kit.send(post_body("k", "{\"amount\":42}")).await.assert_problem(422, "conflict");
    // The bytes alone do not name the encoding: without its header they are another request.
    kit.send(post_body("k", GZIP_FAST.to_vec())).await.assert_problem(422, "conflict");
    let json = json_kit();
    json.send(request(&GZIP_FAST)).await.assert_problem(400, "body_malformed");
    assert_eq!((kit.upstream.calls(), json.upstream.calls()), (1, 0));
}
