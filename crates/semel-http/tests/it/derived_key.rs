//! Mode `keyed`: the upstream gets a derived key, and the client's own goes no further, wherever it stands.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use semel::Mode;
use semel::store::ErrorKind;
use semel::testkit::fault::{InjectedFault, StoreCall, When};
use semel_http::call::CallError;
use semel_http::policy::{Ambiguous, KeyRequired, PolicyBuilder, StoreDown};
use semel_http::{Body, KeySource, Profile, RoutePolicy};

use crate::kit::{Kit, Seen, Upstream, post_body, with};

/// The client's own key. It occurs nowhere else.
const OWN: &str = "client-key-0123456789";

/// Cuts its first call, and answers the second.
fn cut_once() -> Upstream {
    Upstream::new(|number, _| async move {
        if number == 1 { Err(CallError::unknown("cut").into()) } else { Ok(Response::new(Body::from("ok"))) }
    })
}

fn keyed_json(pointer: &str) -> impl FnOnce(PolicyBuilder) -> PolicyBuilder {
    let source = KeySource::json(pointer).unwrap();
    move |route| route.mode(Mode::Keyed).key(source, KeyRequired::Required)
}

fn request(body: impl Into<Body>) -> Request<Body> {
    let mut request = post_body("k", body);
    request.headers_mut().remove("idempotency-key");
    request
}

#[track_caller]
fn derived(seen: &Seen, header: &str) -> String {
    let key = seen.headers[header].to_str().unwrap().to_owned();
    assert!(key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");
    key
}

/// Nothing that the upstream saw holds the client's key.
#[track_caller]
fn assert_kept_back(seen: &Seen) {
    let shown = format!("{} {:?} {}", seen.uri, seen.headers, String::from_utf8_lossy(&seen.body));
    assert!(!shown.contains(OWN), "the client's key crosses: {shown}");
}

// The member's value is replaced, and not a byte beside it: white space, order, escapes and digits stay.
#[tokio::test]
async fn a_key_in_the_body_is_replaced_and_the_rest_stays_as_it_is() {
    // ☃ stands for the key.
    for (pointer, body) in [
        ("/key", "{\"key\":\"☃\"}"),
        ("/key", "  {\r\n\t\"n\" : 1.50e+1 , \"key\"  :\t\"☃\" ,\"z\":12345678901234567890123}\n\n"),
        ("/meta/key", r#"{"key":"another","meta":{"a":[{"key":1}],"key":"☃","b":"\u00e9\/é"},"m":{}}"#),
        ("/a~1b/~0c", r#"{"a\/b":{"\u007ec": "☃", "c":"~c"},"a":{"b":null}}"#),
        ("/list/1/key", r#"{"list":[{"key":"zero"},{"key":"☃"},{"key":"two"}]}"#),
        ("/1", r#"["x","☃",[]]"#),
    ] {
        let kit = Kit::route(cut_once(), keyed_json(pointer));
        let sent = body.replace('☃', OWN);
        let send = || with(request(sent.clone()), "content-length", &sent.len().to_string());
        kit.send(send()).await.assert_problem(502, "upstream_unknown");
        kit.guard.engine().drain().await;
        assert_eq!(kit.send(send()).await.text(), "ok");
        let seen = kit.upstream.seen();
        assert_eq!(seen.len(), 2);
        let key = derived(&seen[0], "idempotency-key");
        for seen in &seen {
            assert_eq!(String::from_utf8_lossy(&seen.body), body.replace('☃', &key), "{pointer}");
            assert_eq!(derived(seen, "idempotency-key"), key, "the same on every attempt");
            assert_eq!(seen.headers["content-length"], seen.body.len().to_string());
            assert_kept_back(seen);
        }
        // What counts as the same request is what the client sent.
        assert!(kit.send(send()).await.is_replay(), "{pointer}");
        let other = sent.replacen(OWN, &format!("{OWN}x"), 1);
        assert_eq!(kit.send(request(other)).await.text(), "ok", "another key");
        assert_ne!(derived(&kit.upstream.last(), "idempotency-key"), key);
        kit.send(request(format!("{sent} "))).await.assert_problem(422, "conflict");
        assert_eq!(kit.upstream.calls(), 3);
    }
}

// A key with escapes in it is one key, and all of its text is replaced.
#[tokio::test]
async fn a_key_that_is_spelled_with_escapes_is_replaced() {
    let kit = Kit::route(Upstream::counting(), keyed_json("/key"));
    let spelled = OWN.replacen('c', "\\u0063", 1).replace('-', "\\u002d");
    kit.send(request(format!("{{\"key\":\"{spelled}\",\"n\":1}}"))).await;
    let seen = kit.upstream.last();
    let key = derived(&seen, "idempotency-key");
    assert_eq!(String::from_utf8_lossy(&seen.body), format!("{{\"key\":\"{key}\",\"n\":1}}"));
}

// Trailers stay; a digest of the body that was sent would be wrong now, and goes.
#[tokio::test]
async fn trailers_stay_and_digests_of_the_body_go() {
    let digests = ["content-digest", "repr-digest", "digest", "content-md5"];
    let kit = Kit::route(Upstream::counting(), keyed_json("/key"));
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checked", HeaderValue::from_static("yes"));
    trailers.insert("content-digest", HeaderValue::from_static("sha-256=:x:"));
    let body = format!("{{\"key\":\"{OWN}\"}}");
    let mut sent = request(Body::with_trailers(body.into(), Some(trailers)));
    for name in digests {
        sent = with(sent, name, "x");
    }
    kit.send(sent).await;
    let seen = kit.upstream.last();
    for name in digests {
        assert!(!seen.headers.contains_key(name), "{name}");
    }
    let trailers = seen.trailers.as_ref().expect("the trailers");
    assert_eq!((&trailers["x-checked"], trailers.len()), (&HeaderValue::from_static("yes"), 1));
    // Where the key stands in a header, nothing of the body changes.
    let kit = Kit::route(Upstream::counting(), |route| route.mode(Mode::Keyed));
    kit.send(with(post_body(OWN, "{}"), "content-digest", "x")).await;
    assert_eq!(kit.upstream.last().headers["content-digest"], "x");
    assert_kept_back(&kit.upstream.last());
}

// A key in another header than the profile's, and the derived one in a third: neither of the client's passes.
#[tokio::test]
async fn a_key_in_another_header_goes_no_further() {
    for derived_header in ["idempotency-key", "x-order", "x-payment-token"] {
        let header = HeaderName::from_static(derived_header);
        let kit = Kit::route(Upstream::counting(), |route| {
            let source = KeySource::header("X-Order").unwrap();
            let route = route.mode(Mode::Keyed).key(source, KeyRequired::Required);
            route.derived_key(header, "acquirer")
        });
        // A client that sends its key in the profile's header as well.
        kit.send(with(post_body(OWN, "{}"), "x-order", OWN)).await;
        let seen = kit.upstream.last();
        derived(&seen, derived_header);
        assert_kept_back(&seen);
        let keys = ["idempotency-key", "x-order", "x-payment-token"];
        let passed = keys.iter().filter(|name| seen.headers.contains_key(**name)).count();
        assert_eq!(passed, 1, "the derived one alone: {:?}", seen.headers);
    }
    // The same where the key stands in the body.
    let header = HeaderName::from_static("x-payment-token");
    let kit =
        Kit::route(Upstream::counting(), |route| keyed_json("/key")(route).derived_key(header, "acquirer"));
    kit.send(post_body(OWN, format!("{{\"key\":\"{OWN}\"}}"))).await;
    derived(&kit.upstream.last(), "x-payment-token");
    assert_kept_back(&kit.upstream.last());
}

// A key that is made of the content or of the path is no secret of the client's: the request itself goes on unchanged.
#[tokio::test]
async fn keys_made_of_the_request_leave_it_as_it_is() {
    let kit = Kit::route(Upstream::counting(), |route| {
        route.mode(Mode::Keyed).key(KeySource::content(["/at"]).unwrap(), KeyRequired::Required)
    });
    let body = "{ \"n\": 1, \"at\": 2 }";
    kit.send(request(body)).await;
    let of_content = derived(&kit.upstream.last(), "idempotency-key");
    assert_eq!(kit.upstream.last().body, body);

    let route = RoutePolicy::builder(&Profile::ietf(), "POST /orders/{id}")
        .key(KeySource::route("order-{id}"), KeyRequired::Required)
        .mode(Mode::Keyed)
        .ambiguous(Ambiguous::Allow)
        .build()
        .unwrap();
    let kit = Kit::with(Upstream::counting(), |guard| guard.route(route));
    let mut sent = request(body);
    *sent.uri_mut() = "/orders/a%2Fb?x=1".parse().unwrap();
    kit.send(sent).await;
    let seen = kit.upstream.last();
    assert_eq!((seen.uri.to_string().as_str(), seen.body.as_ref()), ("/orders/a%2Fb?x=1", body.as_bytes()));
    assert_ne!(derived(&seen, "idempotency-key"), of_content);
}

// store_down = open: unprotected by the record, and still under the derived key, so that a receiver which honours it
// sees one key during the outage and after it.
#[tokio::test]
async fn the_clients_key_stays_back_while_the_store_is_away() {
    let short = Duration::from_millis(100);
    let kit = Kit::route(Upstream::counting(), |route| {
        keyed_json("/key")(route).store_down(StoreDown::Open).lease(short).wait(short)
    });
    let body = format!("{{\"key\":\"{OWN}\"}}");
    // The deployment's secret is known from an earlier request.
    kit.send(request("{\"key\":\"earlier-0123456789\"}")).await;
    kit.store.script(StoreCall::Claim, When::Always, InjectedFault::Refuse(ErrorKind::Unavailable));
    let away = kit.send(request(body.clone())).await;
    assert_eq!((away.text(), away.is_stored()), ("call 2", false));
    let during = kit.upstream.last();
    assert_kept_back(&during);
    kit.store.heal();
    kit.guard.engine().drain().await;
    assert_eq!(kit.send(request(body)).await.text(), "call 3");
    let after = kit.upstream.last();
    assert_eq!(
        (derived(&during, "idempotency-key"), &during.body),
        (derived(&after, "idempotency-key"), &after.body)
    );
    // Without the secret there is no derived key, and the client's own does not pass in its place.
    let kit = Kit::route(Upstream::counting(), |route| route.mode(Mode::Keyed).store_down(StoreDown::Open));
    kit.store.script(StoreCall::Secret, When::Always, InjectedFault::Refuse(ErrorKind::Unavailable));
    kit.send(post_body(OWN, "{}")).await.assert_problem(503, "store_unavailable");
    assert_eq!(kit.upstream.calls(), 0);
}
