//! What is replayed is what was answered: replay_marked, compression, trailers.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use semel_http::Body;
use semel_http::observe::AnswerOutcome;

use crate::kit::{Kit, Upstream, post, with};

#[tokio::test]
async fn repeated_headers_and_binary_bodies_survive() {
    let binary: Vec<u8> = (0..=255).cycle().take(3000).collect();
    let body = binary.clone();
    let upstream = Upstream::new(move |_, _| {
        let body = body.clone();
        async move {
            let answer = Response::builder()
                .status(201)
                .header("link", "<a>; rel=next")
                .header("x-list", "a, b")
                .header("link", "<b>; rel=prev")
                .header("x-list", "c")
                .header("content-type", "application/octet-stream")
                .header("set-cookie", "session=alice")
                .header("set-cookie", "other=1")
                .header("x-bytes", HeaderValue::from_bytes(b"caf\xe9").unwrap())
                .header("date", "Sun, 01 Mar 2026 10:00:00 GMT");
            Ok(answer.body(Body::from(body)).unwrap())
        }
    });
    let kit = Kit::new(upstream);
    let first = kit.send(post("k")).await;
    assert_eq!(first.headers.get_all("set-cookie").iter().count(), 2, "its own client gets its cookies");
    let again = kit.send(post("k")).await;
    assert_eq!((again.status, &again.body), (first.status, &Bytes::from(binary)));
    for name in ["link", "x-list", "content-type", "x-bytes"] {
        let values = |headers: &HeaderMap| headers.get_all(name).iter().cloned().collect::<Vec<_>>();
        assert_eq!(values(&again.headers), values(&first.headers), "{name}");
    }
    for name in ["set-cookie", "date"] {
        assert!(!again.headers.contains_key(name), "{name}");
    }
    assert!(again.is_replay() && kit.upstream.calls() == 1);
}

#[tokio::test]
async fn empty_bodies_and_trailers() {
    let kit = Kit::new(Upstream::new(|_, _| async {
        Ok(Response::builder().status(204).body(Body::empty()).unwrap())
    }));
    kit.send(post("k")).await;
    let again = kit.send(post("k")).await;
    assert_eq!((again.status.as_u16(), again.body.len(), again.is_replay()), (204, 0, true));

    for body in ["", "body"] {
        let kit = Kit::new(Upstream::new(move |_, _| async move {
            let mut trailers = HeaderMap::new();
            trailers.append("grpc-status", HeaderValue::from_static("0"));
            Ok(Response::new(Body::with_trailers(Bytes::from_static(body.as_bytes()), Some(trailers))))
        }));
        let first = kit.send(post("k")).await;
        assert_eq!(first.trailers.as_ref().unwrap()["grpc-status"], "0");
        let again = kit.send(post("k")).await;
        assert_eq!((&again.trailers, again.text()), (&first.trailers, body));
    }
}

// An upstream that marks its own replays does not mark ours.
#[tokio::test]
async fn the_mark_is_never_stored() {
    let kit = Kit::new(Upstream::new(|_, _| async {
        Ok(Response::builder().header("idempotent-replayed", "false").body(Body::from("x")).unwrap())
    }));
    kit.send(post("k")).await;
    let again = kit.send(post("k")).await;
    assert_eq!(again.headers.get_all("idempotent-replayed").iter().collect::<Vec<_>>(), ["true"]);
}

// compression: the upstream is not asked for gzip, so every client can read a replay; what it compresses all the same
// is kept byte for byte, with its Content-Encoding.
#[tokio::test]
async fn compression() {
    let kit = Kit::new(Upstream::counting());
    kit.send(with(post("k"), "accept-encoding", "gzip, br")).await;
    assert!(!kit.upstream.last().headers.contains_key("accept-encoding"));
    assert!(kit.send(post("k")).await.is_replay(), "a client without gzip gets the same");
    let kit = Kit::new(Upstream::new(|_, _| async {
        let answer = Response::builder().header("content-encoding", "gzip");
        Ok(answer.body(Body::from(b"\x1f\x8b\x08binary".to_vec())).unwrap())
    }));
    kit.send(post("k")).await;
    let again = kit.send(post("k")).await;
    assert_eq!(
        (again.header("content-encoding"), &again.body[..]),
        (Some("gzip"), &b"\x1f\x8b\x08binary"[..])
    );
}

// get_head_options: passed through, the key ignored; HEAD is never stored as GET.
#[tokio::test]
async fn safe_methods_pass_through() {
    let kit = Kit::new(Upstream::counting());
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::CONNECT] {
        for _ in 0..2 {
            let mut request = with(post("k, malformed"), "accept-encoding", "gzip");
            *request.method_mut() = method.clone();
            let answer = kit.send(request).await;
            assert!(answer.status == 200 && !answer.is_replay() && answer.is_stored());
            let seen = kit.upstream.last();
            assert_eq!(seen.headers["idempotency-key"], "k, malformed", "untouched");
            assert!(seen.headers.contains_key("accept-encoding"));
        }
    }
    assert_eq!(kit.upstream.calls(), 10);
    assert_eq!((kit.store.all_calls(), kit.count(AnswerOutcome::PassedOn)), (0, 10));
}

// An upgrade is offered by some clients on any request; a guarded one stays what it is.
#[tokio::test]
async fn a_guarded_request_is_not_upgraded() {
    let kit = Kit::new(Upstream::counting());
    let request = || with(with(post("k"), "connection", "upgrade"), "upgrade", "h2c");
    kit.send(request()).await;
    assert!(!kit.upstream.last().headers.contains_key("upgrade"));
    assert!(kit.send(request()).await.is_replay());
    let upgrade = Request::get("/socket").header("upgrade", "websocket").header("connection", "upgrade");
    kit.send(upgrade.body(Body::empty()).unwrap()).await;
    assert_eq!(kit.upstream.last().headers["upgrade"], "websocket");
}

// What a request is, its handler sees: method, path, query, body, the client's key unchanged.
#[tokio::test]
async fn the_handler_sees_the_request() {
    let kit = Kit::new(Upstream::counting());
    let mut request = with(post("\"quoted\""), "x-forwarded-for", "10.0.0.1");
    *request.uri_mut() = "/v1/payments?a=1&b=2".parse().unwrap();
    kit.send(with(request, "expect", "100-continue")).await;
    let seen = kit.upstream.last();
    assert_eq!((seen.method, seen.uri.to_string().as_str()), (Method::POST, "/v1/payments?a=1&b=2"));
    assert_eq!(seen.headers["idempotency-key"], "\"quoted\"");
    assert_eq!(seen.headers["authorization"], "Bearer alice");
    assert_eq!(seen.body, Bytes::from_static(b"{\"amount\":1}"));
    for stripped in ["x-forwarded-for", "expect"] {
        assert!(!seen.headers.contains_key(stripped), "{stripped}");
    }
}
