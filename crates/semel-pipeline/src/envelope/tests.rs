use proptest::prelude::*;

use super::*;

/// Text of all kinds of characters, without control characters.
fn text(longest: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(any::<char>().prop_filter("no control", |c| !c.is_control()), 1..=longest)
        .prop_map(|chars| chars.into_iter().collect())
}

fn maybe(longest: usize) -> impl Strategy<Value = Option<String>> {
    proptest::option::of(text(longest))
}

fn data() -> impl Strategy<Value = (String, Bytes)> {
    let json = prop_oneof![
        Just(r#"{ "n": 1.10, "big": 12345678901234567890123 }"#.to_owned()),
        Just("null".to_owned()),
        Just(" [1] ".to_owned()),
        Just("\"a\\u0000\"".to_owned()),
        Just(String::new()),
        text(20),
    ];
    let types = prop_oneof![Just("application/json"), Just("text/plain; charset=utf-8"), Just("image/png")];
    let bytes = prop_oneof![
        json.prop_map(Bytes::from),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from),
    ];
    (types.prop_map(str::to_owned), bytes)
}

prop_compose! {
    fn envelope()(
        id in text(60),
        source in "[!-~]{1,40}",
        message_type in "[a-z]{1,8}(\\.[a-z0-9_]{1,8}){0,3}",
        (content_type, data) in data(),
        (idempotency_key, user, tenant) in (maybe(60), maybe(60), maybe(60)),
        (correlation_id, causation_id) in (maybe(60), maybe(60)),
        traceparent in proptest::option::of("00-[1-9a-f][0-9a-f]{31}-[1-9a-f][0-9a-f]{15}-0[01]"),
        (version, order_key) in (maybe(10), maybe(60)),
        time in proptest::option::of("20[0-9]{2}-0[1-9]-[0-2][1-9]T[01][0-9]:[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]0[0-9]:[0-5][0-9])"),
        extensions in proptest::collection::btree_map("x[a-z0-9]{1,10}", text(30), 0..5),
    ) -> Envelope {
        Envelope {
            id, source, message_type, data, content_type, idempotency_key, user, tenant, correlation_id,
            causation_id, traceparent, version, order_key, time, extensions,
        }
    }
}

fn through_headers(envelope: &Envelope) -> Envelope {
    let headers = envelope.to_headers();
    for (name, value) in &headers {
        assert!(name.is_ascii() && value.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{name}: {value}");
    }
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    Envelope::from_headers(headers, envelope.data.clone()).unwrap()
}

proptest! {
    #[test]
    fn json_and_headers_hold_the_same(envelope in envelope()) {
        let json = envelope.to_json();
        prop_assert_eq!(&Envelope::from_json(json.as_bytes()).unwrap(), &envelope, "{}", json);
        prop_assert_eq!(&through_headers(&envelope), &envelope);
    }

    #[test]
    fn a_publication_keeps_all_but_the_key(envelope in envelope()) {
        let publication = envelope.clone().into_publication(Origin::Outbox).unwrap();
        prop_assert!(publication.headers.iter().all(|(name, _)| name != "ce-idempotencykey"));
        let headers = publication.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let headers = headers.chain([("content-type", publication.content_type.as_str())]);
        let read = Envelope::from_headers(headers, publication.payload.clone()).unwrap();
        prop_assert_eq!(read, Envelope { idempotency_key: None, ..envelope.clone() });
        let tags = tags(&publication.headers, &publication.trace);
        prop_assert_eq!(EnvelopeId::Message.find(&tags), Some(envelope.id.as_str()));
        prop_assert_eq!(EnvelopeId::Correlation.find(&tags), envelope.correlation_id.as_deref());
        prop_assert_eq!(EnvelopeId::Causation.find(&tags), envelope.causation_id.as_deref());
        prop_assert_eq!(EnvelopeId::User.find(&tags), envelope.user.as_deref());
        prop_assert_eq!(EnvelopeId::Trace.find(&tags), envelope.traceparent.as_deref().map(|trace| &trace[3..35]));
    }

    #[test]
    fn any_bytes_are_read_or_refused(json in proptest::collection::vec(any::<u8>(), 0..100), value in ".*") {
        let _ = Envelope::from_json(&json);
        let _ = Envelope::from_headers([("ce-specversion", "1.0"), ("ce-id", value.as_str())], Bytes::new());
    }
}

// Texts of other CloudEvents producers.
#[test]
fn what_others_write_is_read() {
    let json = br#"{"specversion":"1.0","id":"A234-1234-1234","source":"https://github.com/cloudevents/spec/pull",
        "type":"com.github.pull_request.opened","subject":"123","time":"2018-04-05T17:31:00Z","comexampleextension1":"value",
        "comexampleothervalue":5,"flag":true,"unset":null,"datacontenttype":"text/xml","data":"<much wow=\"xml\"/>"}"#;
    let read = Envelope::from_json(json).unwrap();
    assert_eq!(&read.data[..], b"<much wow=\"xml\"/>");
    let extensions: Vec<_> = read.extensions.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(
        extensions,
        ["comexampleextension1=value", "comexampleothervalue=5", "flag=true", "subject=123"]
    );
    let headers = [
        ("CE-SpecVersion", "1.0"),
        ("ce-id", "\"a \\\"b\\\"\""),
        ("ce-source", "/a"),
        ("ce-type", "t"),
        ("ce-user", "Euro%20%E2%82%ac%20%F0%9F%98%80"),
        ("host", "example"),
    ];
    let read = Envelope::from_headers(headers, Bytes::new()).unwrap();
    assert_eq!((read.id.as_str(), read.user.as_deref()), ("a \"b\"", Some("Euro € 😀")));
    assert_eq!(read.content_type, "application/json");
}

#[test]
fn what_is_no_envelope_says_why() {
    let whole = r#""specversion":"1.0","id":"1","source":"/a","type":"t""#;
    for (json, expected) in [
        ("[]".to_owned(), "JSON object"),
        ("{".to_owned(), "JSON object"),
        (whole.replace("\"id\":\"1\",", ""), "id: required"),
        (whole.replace("\"source\":\"/a\",", ""), "source: required"),
        (whole.replace(",\"type\":\"t\"", ""), "type: required"),
        (whole.replace("\"specversion\":\"1.0\",", ""), "specversion: required"),
        (whole.replace("1.0", "0.3"), "specversion: expected"),
        (whole.replace("/a", "a b"), "source: expected"),
        (whole.replace("\"t\"", "\"a b\""), "type: expected"),
        (whole.replace("\"1\"", "\"\""), "id: expected a text"),
        (whole.replace("\"1\"", "\"a\\nb\""), "id: expected a text"),
        (whole.replace("\"1\"", "{}"), "id: expected a string"),
        (whole.replace("\"1\"", "1.5"), "id: expected a string"),
        (whole.replace("\"1\"", &format!("{:?}", "x".repeat(256))), "id: expected at most 255"),
        (format!("{whole},\"id\":\"2\""), "id: given twice"),
        (format!("{whole},\"correlationId\":\"2\""), "attribute \"correlationId\""),
        (format!("{whole},\"data\":1,\"data_base64\":\"\""), "not both"),
        (format!("{whole},\"data_base64\":\"?\""), "data_base64: expected base64"),
        (format!("{whole},\"datacontenttype\":\"image/png\",\"data\":{{}}"), "data: expected a string"),
        (format!("{whole},\"datacontenttype\":\"ä\""), "datacontenttype: expected"),
        (format!("{whole},\"time\":\"yesterday\""), "time: expected"),
        (format!("{whole},\"time\":\"2024-13-01T00:00:00Z\""), "time: expected"),
        (format!("{whole},\"time\":\"2024-12-01T00:00:00.Z\""), "time: expected"),
        (format!("{whole},\"traceparent\":\"00-1\""), "traceparent: expected"),
    ] {
        let json = if json.starts_with('"') { format!("{{{json}}}") } else { json };
        let error = Envelope::from_json(json.as_bytes()).expect_err(&json).to_string();
        assert!(error.contains(expected), "{json}: {error}");
    }
    let with = |name: &'static str, value: &'static str| {
        let headers =
            [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/a"), ("ce-type", "t"), (name, value)];
        Envelope::from_headers(headers, Bytes::new()).expect_err(value).to_string()
    };
    for (name, value, expected) in [
        ("ce-user", "%2", "ce-user: expected"),
        ("ce-user", "%zz", "ce-user: expected"),
        ("ce-user", "%ff", "ce-user: expected"),
        ("ce-user", "%00", "user: expected a text"),
        ("CE-ID", "2", "given twice"),
        ("ce-a_b", "2", "attribute \"a_b\""),
        ("ce-data", "2", "data: given twice"),
    ] {
        let error = with(name, value);
        assert!(error.contains(expected), "{name}: {error}");
    }
    let mut many = Envelope::new("1", "/a", "t", "");
    many.extensions = (0..33).map(|n| (format!("x{n}"), "y".to_owned())).collect();
    assert_eq!(many.check(), Err(EnvelopeError::TooMany));
    // The value of an attribute may be a person's name.
    let long = Envelope { user: Some("secret".repeat(60)), ..Envelope::new("1", "/a", "t", "") };
    assert!(!long.check().unwrap_err().to_string().contains("secret"));
}

// No two messages share the key that an envelope without one gets.
#[test]
fn source_and_id_are_the_key_of_an_envelope_without_one() {
    let key = |source: &str, id: &str| {
        Envelope::new(id, source, "t", "{}").into_publication(Origin::Outbox).unwrap().dedupe_key
    };
    assert_eq!(key("/shop", "1"), "/shop 1");
    assert_ne!(key("/a", "b c"), key("/a%20b", "c"));
    let named = Envelope { idempotency_key: Some("k".into()), ..Envelope::new("1", "/a", "t", "{}") };
    assert_eq!(named.into_publication(Origin::Outbox).unwrap().dedupe_key, "k");
}
