//! key_syntax: what is a key, and what is not.

use bytes::Bytes;
use http::{HeaderValue, Request};
use proptest::prelude::*;
use semel_http::policy::KeyRequired;
use semel_http::{Body, KeySource, Profile, RoutePolicy};

use crate::kit::{Kit, Upstream, post, post_body};

fn raw(key: &[u8]) -> Request<Body> {
    let mut request = post("k");
    request.headers_mut().insert("idempotency-key", HeaderValue::from_bytes(key).unwrap());
    request
}

#[tokio::test]
async fn corpus() {
    let long = "x".repeat(255);
    let longer = "x".repeat(256);
    let quoted_long = format!("\"{long}\"");
    let good: [&[u8]; 9] = [
        b"k",
        b"\"k\"",
        b"8e03978e-40d5-43e8-bc93-6894a57f9324",
        b"\"8e03978e-40d5-43e8-bc93-6894a57f9324\"",
        b"!#$%&'()*+-./:;<=>?@[]^_`{|}~",
        b"\"a,b\"",
        br#""with \"quotes\" and \\""#,
        long.as_bytes(),
        quoted_long.as_bytes(),
    ];
    for key in good {
        // A space inside quotes is not visible.
        let expected = !key.contains(&b' ');
        let kit = Kit::new(Upstream::counting());
        let answer = kit.send(raw(key)).await;
        assert_eq!(answer.status == 200, expected, "{}", String::from_utf8_lossy(key));
    }
    let bad: [&[u8]; 18] = [
        b"",
        b" ",
        b"\"\"",
        b"\"",
        b"\"a",
        b"a\"",
        b"a\"b",
        b"a,b",
        b"a, b",
        b"\"a\", \"b\"",
        b"\"a\";q=1",
        b"a b",
        b"a\tb",
        b"\"\\n\"",
        b"caf\xc3\xa9",
        b"\xff",
        b"\"\xff\"",
        longer.as_bytes(),
    ];
    for key in bad {
        let kit = Kit::new(Upstream::counting());
        kit.send(raw(key)).await.assert_problem(400, "key_malformed");
        assert_eq!((kit.upstream.calls(), kit.store.all_calls()), (0, 0), "R1");
    }
}

// One line exactly, whatever the lines say.
#[tokio::test]
async fn two_lines_are_refused() {
    let kit = Kit::new(Upstream::counting());
    for second in ["k", "other"] {
        let mut request = post("k");
        request.headers_mut().append("idempotency-key", HeaderValue::from_static(second));
        kit.send(request).await.assert_problem(400, "key_malformed");
    }
    assert_eq!((kit.upstream.calls(), kit.store.all_calls()), (0, 0));
}

#[tokio::test]
async fn quoted_and_bare_are_one_key() {
    let kit = Kit::new(Upstream::counting());
    assert_eq!(kit.send(raw(b"abc-1")).await.text(), "call 1");
    assert!(kit.send(raw(b"\"abc-1\"")).await.is_replay());
    assert!(kit.send(raw(b" \"abc-1\" ")).await.is_replay());
    assert_eq!(kit.send(raw(b"\"abc-2\"")).await.text(), "call 2");
}

// No key, well or ill formed, is ever quoted back.
#[tokio::test]
async fn a_malformed_key_is_not_quoted() {
    let kit = Kit::new(Upstream::counting());
    let answer = kit.send(raw(b"secret-key, <script>")).await;
    answer.assert_problem(400, "key_malformed");
    assert!(!answer.text().contains("secret-key") && !answer.text().contains("script"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // Every visible key, in either form, is itself; nothing else is a key.
    #[test]
    fn any_header_value(key in proptest::collection::vec(prop_oneof![32_u8..127, 128_u8..=255], 0..300)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let kit = Kit::new(Upstream::counting());
            let answer = kit.send(raw(&key)).await;
            let trimmed = key.trim_ascii();
            let bare = (1..=255).contains(&trimmed.len())
                && trimmed.iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b'"'));
            if bare {
                assert_eq!(answer.text(), "call 1");
                let mut quoted = vec![b'"'];
                for byte in trimmed {
                    if *byte == b'\\' { quoted.push(b'\\'); }
                    quoted.push(*byte);
                }
                quoted.push(b'"');
                assert!(kit.send(raw(&quoted)).await.is_replay());
            } else if trimmed.first() != Some(&b'"') {
                answer.assert_problem(400, "key_malformed");
                assert_eq!(kit.store.all_calls(), 0);
            }
        });
    }
}

fn json_kit(required: KeyRequired) -> Kit {
    Kit::route(Upstream::counting(), |route| route.key(KeySource::json("/meta/key").unwrap(), required))
}

#[tokio::test]
async fn key_in_the_body() {
    let kit = json_kit(KeyRequired::Required);
    let body = |text: &str| post_body("ignored", text.to_owned());
    assert_eq!(kit.send(body(r#"{"meta":{"key":"a"},"n":1}"#)).await.text(), "call 1");
    assert!(kit.send(body(r#"{"meta":{"key":"a"},"n":1}"#)).await.is_replay());
    kit.send(body(r#"{"meta":{"key":"a"},"n":2}"#)).await.assert_problem(422, "conflict");
    for missing in [r#"{"meta":{}}"#, r#"{"meta":{"key":null}}"#, "[]", "1"] {
        kit.send(body(missing)).await.assert_problem(400, "key_missing");
    }
    for malformed in [r#"{"meta":{"key":7}}"#, r#"{"meta":{"key":""}}"#, r#"{"meta":{"key":"a b"}}"#] {
        kit.send(body(malformed)).await.assert_problem(400, "key_malformed");
    }
    // Two readers could read two keys.
    let twice = r#"{"meta":{"key":"a","key":"b"}}"#;
    for malformed in ["", "{", "not json", twice] {
        kit.send(body(malformed)).await.assert_problem(400, "body_malformed");
    }
    assert_eq!(kit.upstream.calls(), 1);
    let kit = json_kit(KeyRequired::Optional);
    let answer = kit.send(body(r#"{"meta":{}}"#)).await;
    assert_eq!((answer.text(), answer.is_stored()), ("call 1", false));
    assert_eq!(kit.upstream.last().body, Bytes::from_static(br#"{"meta":{}}"#), "passed on whole");
}

// What changes with every try does not count.
#[tokio::test]
async fn key_from_content() {
    let exclude = semel::canonical::Exclusions::new(["/sent_at"]).unwrap();
    let kit = Kit::route(Upstream::counting(), |route| {
        route
            .key(KeySource::content(["/sent_at"]).unwrap(), KeyRequired::Required)
            .fingerprint(semel_http::policy::Fingerprinting::Json(exclude))
    });
    let body = |text: &str| {
        let mut request = post_body("k", text.to_owned());
        request.headers_mut().remove("idempotency-key");
        request
    };
    assert_eq!(kit.send(body(r#"{"n":1,"sent_at":1}"#)).await.text(), "call 1");
    assert!(kit.send(body(r#"{ "sent_at": 2, "n": 1.0 }"#)).await.is_replay());
    assert_eq!(kit.send(body(r#"{"n":2,"sent_at":1}"#)).await.text(), "call 2");
    kit.send(body("{")).await.assert_problem(400, "body_malformed");
}

#[tokio::test]
async fn key_from_the_route() {
    let profile = Profile::ucp();
    let route = RoutePolicy::builder(&profile, "PUT /orders/{id}")
        .key(KeySource::route("order-{id}"), KeyRequired::Required)
        .build()
        .unwrap();
    let kit = Kit::with(Upstream::counting(), |guard| guard.profile(profile.clone()).route(route));
    let put = |path: &str, body: &'static str| {
        Request::put(path).header("authorization", "a").body(Body::from(body)).unwrap()
    };
    assert_eq!(kit.send(put("/orders/7", "x")).await.text(), "call 1");
    assert!(kit.send(put("/orders/7", "x")).await.is_replay());
    kit.send(put("/orders/7", "y")).await.assert_problem(409, "conflict");
    assert_eq!(kit.send(put("/orders/8", "x")).await.text(), "call 2");
    // The same order by another spelling is the same key, and another request: never a second run.
    kit.send(put("/orders/%37", "x")).await.assert_problem(409, "conflict");
}
