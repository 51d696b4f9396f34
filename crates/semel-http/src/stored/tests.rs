use http_body_util::BodyExt;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn all() -> StoredHeaders {
    StoredHeaders::All
}

fn through(
    status: u16,
    headers: &HeaderMap,
    body: &[Bytes],
    trailers: Option<&HeaderMap>,
    rule: &StoredHeaders,
) -> (StatusCode, HeaderMap, Bytes, Option<HeaderMap>) {
    let status = StatusCode::from_u16(status).unwrap();
    let Replay::Answer(answer) = replay(&Arc::new(keep(status, headers, body, trailers, rule))) else {
        panic!("what was kept is replayed");
    };
    let (parts, body) = answer.into_parts();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let collected = runtime.block_on(body.collect()).unwrap();
    let trailers = collected.trailers().cloned();
    (parts.status, parts.headers, collected.to_bytes(), trailers)
}

fn name() -> impl Strategy<Value = HeaderName> {
    prop_oneof![
        proptest::sample::select(vec!["content-type", "etag", "vary", "x-a", "x-b", "location"])
            .prop_map(HeaderName::from_static),
        "[a-z][a-z0-9-]{0,20}".prop_map(|name| HeaderName::from_bytes(name.as_bytes()).unwrap()),
    ]
}

fn value() -> impl Strategy<Value = HeaderValue> {
    // Every byte that a value may have, high ones too.
    vec(prop_oneof![32_u8..127, 128_u8..=255, Just(b'\t')], 0..40)
        .prop_map(|bytes| HeaderValue::from_bytes(&bytes).unwrap())
}

fn headers() -> impl Strategy<Value = HeaderMap> {
    vec((name(), value()), 0..12).prop_map(|fields| {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(name, value);
        }
        map
    })
}

/// Names and values of stored headers, in order.
fn kept(headers: &HeaderMap) -> Vec<(String, Vec<Vec<u8>>)> {
    let mut names: Vec<String> =
        headers.keys().filter(|name| !is_never_kept(name)).map(ToString::to_string).collect();
    names.sort_unstable();
    names
        .into_iter()
        .map(|name| {
            let values = headers.get_all(&name).iter().map(|value| value.as_bytes().to_vec()).collect();
            (name, values)
        })
        .collect()
}

proptest! {
    // Answers are byte-identical, with repeated headers in order and binary bodies.
    #[test]
    fn what_is_kept_comes_back(
        status in 200_u16..=599,
        fields in headers(),
        trailing in proptest::option::of(headers()),
        body in vec(vec(any::<u8>(), 0..64), 0..5),
    ) {
        let body: Vec<Bytes> = body.into_iter().map(Bytes::from).collect();
        let (back, back_fields, data, back_trailing) =
            through(status, &fields, &body, trailing.as_ref(), &all());
        prop_assert_eq!(back.as_u16(), status);
        prop_assert_eq!(kept(&back_fields), kept(&fields));
        prop_assert_eq!(data, Bytes::from(body.concat()));
        let trailing = trailing.as_ref().map(kept).filter(|trailing| !trailing.is_empty());
        prop_assert_eq!(back_trailing.as_ref().map(kept), trailing);
    }

    // Bytes from a store are never trusted.
    #[test]
    fn damaged_metadata_is_never_an_answer_nor_a_panic(metadata in vec(any::<u8>(), 0..80)) {
        let mut metadata = metadata;
        if let Some(first) = metadata.first_mut() { *first = VERSION; }
        let _ = replay(&Arc::new(Outcome::new(KIND, "body").with_metadata(metadata)));
    }

    #[test]
    fn cut_metadata_is_never_an_answer(fields in headers(), cut in 1_usize..200) {
        let whole = keep(StatusCode::OK, &fields, &[], None, &all());
        let length = whole.metadata().len().saturating_sub(cut);
        let cut = Outcome::new(KIND, "").with_metadata(whole.metadata()[..length].to_vec());
        prop_assert!(matches!(replay(&Arc::new(cut)), Replay::NotKept(_)));
    }
}

// Stored answers outlive the version that wrote them.
#[test]
fn the_format_never_changes() {
    let mut headers = HeaderMap::new();
    headers.insert("etag", HeaderValue::from_static("v1"));
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("9"));
    let kept = keep(StatusCode::CREATED, &headers, &[Bytes::from_static(b"body")], Some(&trailers), &all());
    let expected: &[u8] = b"\x01\xc9\x00\x01\x00\x01\x00\
        \x04\x00\x02\x00\x00\x00etagv1\
        \x05\x00\x01\x00\x00\x00x-sum9";
    assert_eq!(kept.metadata(), expected);
    let Replay::Answer(answer) = replay(&Arc::new(Outcome::new(KIND, "body").with_metadata(expected))) else {
        panic!("what an earlier version has stored is an answer");
    };
    assert_eq!((answer.status(), &answer.headers()["etag"]), (StatusCode::CREATED, &headers["etag"]));
}

// Sensitive and hop-by-hop headers, and the mark of an answer from the record, are not stored.
#[test]
fn what_belongs_to_one_client_or_moment_is_not_kept() {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("set-cookie", "session=1"),
        ("date", "Sun, 01 Mar 2026 10:00:00 GMT"),
        ("authorization", "Bearer x"),
        ("www-authenticate", "Basic"),
        ("connection", "close, X-Listed"),
        ("connection", "x-other"),
        ("keep-alive", "timeout=5"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("x-listed", "1"),
        ("x-other", "1"),
        ("ratelimit-remaining", "3"),
        ("x-ratelimit-reset", "3"),
        ("idempotent-replayed", "true"),
        ("idempotency-store", "yes"),
        ("content-type", "text/plain"),
        ("x-kept", "1"),
    ] {
        headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    let (_, back, _, _) = through(200, &headers, &[], None, &all());
    let mut names: Vec<&str> = back.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["content-type", "x-kept"]);
    let only = StoredHeaders::Only(vec![HeaderName::from_static("x-kept"), header::SET_COOKIE]);
    let (_, back, _, _) = through(200, &headers, &[], None, &only);
    assert_eq!(back.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-kept"]);
}

#[test]
fn bodies_are_kept_to_their_exact_size() {
    let mut large = Vec::with_capacity(10_000);
    large.push(7);
    let outcome = keep(StatusCode::OK, &HeaderMap::new(), &[Bytes::from(large)], None, &all());
    let OutcomeBody::Kept(body) = outcome.body() else { panic!("it is kept") };
    assert_eq!((body.len(), body.capacity()), (1, 1));
}

// A change here makes every stored answer unreadable.
#[test]
fn the_bytes_never_change() {
    let mut headers = HeaderMap::new();
    headers.append("x-a", HeaderValue::from_static("1"));
    let outcome = keep(StatusCode::CREATED, &headers, &[], None, &all());
    assert_eq!(outcome.metadata(), b"\x01\xc9\x00\x01\x00\x00\x00\x03\x00\x01\x00\x00\x00x-a1");
}
