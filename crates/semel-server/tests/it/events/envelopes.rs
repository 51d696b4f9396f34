//! Messages in envelopes: published as JSON and as headers, delivered with their ids, and found by each of them.

use semel_testbed::{Redis, wait};
use serde_json::{Value, json};

use super::{Bench, publish, target};
use crate::kit::{PATIENCE, Sink, run};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn envelope(id: &str, more: &Value) -> Value {
    let mut envelope = json!({
        "specversion": "1.0", "id": id, "source": "/shop", "type": "order.pay", "tenant": "acme",
        "idempotencykey": format!("key-of-{id}"), "correlationid": "checkout 9", "data": { "n": 1 },
    });
    envelope.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    envelope
}

#[test]
fn a_message_is_delivered_with_its_ids_and_found_by_each() {
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, ""));
    let semel = bench.start();
    let admin = semel.admin();
    let json = admin.with("content-type", "application/cloudevents+json; charset=utf-8");
    let more = json!({
        "causationid": "msg-0", "user": "zoë", "traceparent": TRACE, "dataversion": 2, "subject": "order/17",
    });
    let message = envelope("msg-1", &more).to_string();
    let first = json.post("/v1/events", &message).expect(201);
    let id = first["id"].as_str().unwrap();
    assert_eq!(json.post("/v1/events", &message).expect(200), json!({ "id": id, "cached": true }));

    // The same message as headers, and the same fact without an envelope.
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-id", "msg-1"),
        ("ce-source", "/shop"),
        ("ce-type", "order.pay"),
        ("ce-tenant", "acme"),
        ("ce-idempotencykey", "key-of-msg-1"),
        ("content-type", "application/json"),
    ];
    let binary = headers.into_iter().fold(semel.admin(), |admin, (name, value)| admin.with(name, value));
    assert_eq!(binary.post("/v1/events", r#"{"n":1}"#).expect(200)["id"], id);
    let plain =
        json!({ "type": "order.pay", "tenant": "acme", "dedupe_key": "key-of-msg-1", "payload": { "n": 1 } });
    assert_eq!(admin.post("/v1/events", &plain.to_string()).expect(200)["id"], id);
    assert_eq!(binary.post("/v1/events", "other bytes").expect(422)["code"], "conflict");
    publish(&admin, &json!({ "type": "order.pay", "dedupe_key": "other", "payload": 1 }));

    wait::until("both are delivered", PATIENCE, || sink.calls() == 2).unwrap();
    let seen = sink.seen();
    let seen = seen.iter().find(|seen| seen.header("semel-event-id") == id).unwrap();
    assert_eq!(seen.body, r#"{"n":1}"#);
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", "msg-1"),
        ("ce-source", "/shop"),
        ("ce-type", "order.pay"),
        ("ce-tenant", "acme"),
        ("ce-correlationid", "checkout%209"),
        ("ce-causationid", "msg-0"),
        ("ce-user", "zo%C3%AB"),
        ("ce-traceparent", TRACE),
        ("ce-dataversion", "2"),
        ("ce-subject", "order/17"),
        ("ce-idempotencykey", ""),
        ("content-type", "application/json"),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
    assert!(seen.header("traceparent").starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"));

    let shown = admin.get(&format!("/v1/events/{id}")).expect(200);
    assert_eq!(
        ["message_id", "correlation_id", "causation_id", "user", "dedupe_key"].map(|name| &shown[name]),
        ["msg-1", "checkout 9", "msg-0", "zoë", "key-of-m"].map(Value::from).each_ref(),
    );
    assert!(!shown.to_string().contains("key-of-msg-1"), "only the hash of a key is kept");
    let trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
    for name in ["msg-1", "checkout%209", "msg-0", trace_id] {
        let story = admin.get(&format!("/v1/story/{name}")).expect(200);
        assert_eq!(story["found"][0]["id"], id, "{name}");
        assert_eq!(story["timeline"][0]["correlation_id"], "checkout 9");
    }
    for filter in [
        ["--message-id", "msg-1"],
        ["--correlation-id", "checkout 9"],
        ["--causation-id", "msg-0"],
        ["--trace-id", trace_id],
        ["--user", "zoë"],
    ] {
        let list = ["events", "list", "--json", "--tenant", "acme", "--admin", semel.admin_url()];
        let listed = run(&[&list[..], &filter].concat());
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(
            (&listed["items"][0]["id"], &listed["items"][1]),
            (&json!(id), &Value::Null),
            "{filter:?}"
        );
    }
    let by_key =
        ["events", "list", "--tenant", "acme", "--type", "order.pay", "--dedupe-key", "key-of-msg-1"];
    let listed = run(&[&by_key[..], &["--admin", semel.admin_url()]].concat());
    assert!(String::from_utf8_lossy(&listed.stdout).contains(id));
    let two = admin.get("/v1/events?user=a&correlation_id=b").expect(400);
    assert!(two["detail"].as_str().unwrap().contains("only one of"), "{two}");
}

#[test]
fn what_is_no_envelope_is_refused_with_the_reason() {
    let bench = Bench::new(&target("all", &Sink::start(), ""));
    let semel = bench.start();
    let post = |content_type: &str, body: &str| {
        let admin = semel.admin().with("content-type", content_type);
        admin.post("/v1/events", body).expect(400)["detail"].as_str().unwrap().to_owned()
    };
    let json = "application/cloudevents+json";
    let no_id = envelope("1", &json!({ "id": null })).to_string();
    for (content_type, body, expected) in [
        (json, "{}", "specversion: required"),
        (json, "", "JSON object"),
        (json, no_id.as_str(), "id: required"),
        (json, &envelope("1", &json!({ "type": "a b" })).to_string(), "type: expected letters"),
        (json, &envelope("1", &json!({ "time": "now" })).to_string(), "time: expected a time"),
        (
            json,
            &envelope("1", &json!({ "idempotencykey": "k".repeat(2000) })).to_string(),
            "idempotencykey: expected",
        ),
        ("application/cloudevents-batch+json", "[]", "content-type: expected one envelope"),
    ] {
        let detail = post(content_type, body);
        assert!(detail.contains(expected), "{body}: {detail}");
    }
    let headers = semel.admin().with("ce-specversion", "1.0").with("ce-id", "%zz");
    let detail = headers.post("/v1/events", "{}").expect(400);
    assert!(detail["detail"].as_str().unwrap().starts_with("ce-id: expected"), "{detail}");
}

#[test]
fn envelopes_come_from_the_command_line_and_from_streams() {
    let (redis, sink) = (Redis::start().unwrap(), Sink::start());
    let source =
        format!("[[source]]\nkind = \"redis-stream\"\nurl = \"{}\"\nstream = \"orders\"\n", redis.url());
    let bench = Bench::new(&[target("all", &sink, ""), source].concat());
    let semel = bench.start();
    let message = envelope("cli", &json!({})).to_string();
    let publish = ["events", "publish", "--admin", semel.admin_url(), "--envelope"];
    let published = run(&[&publish[..], &[&message]].concat());
    assert!(String::from_utf8_lossy(&published.stdout).contains("accepted: all"), "{published:?}");
    let both = run(&[&publish[..], &[&message, "--type", "t"]].concat());
    assert_eq!(both.status.code(), Some(2), "{both:?}");

    let mut connection = redis.connect().unwrap();
    let json = envelope("json", &json!({})).to_string();
    let fields = ["content_type", "application/cloudevents+json", "payload", &json];
    connection.tell(&[&["XADD", "orders", "*"][..], &fields].concat()).unwrap();
    let fields = [
        "ce-specversion",
        "1.0",
        "ce-id",
        "fields",
        "ce-source",
        "/shop",
        "ce-type",
        "order.pay",
        "payload",
        "{}",
    ];
    connection
        .tell(&[&["XADD", "orders", "*", "ce-correlationid", "checkout%209"][..], &fields].concat())
        .unwrap();
    wait::until("all are delivered", PATIENCE, || sink.calls() == 3).unwrap();
    let mut ids: Vec<String> = sink.seen().iter().map(|seen| seen.header("ce-id").to_owned()).collect();
    ids.sort();
    assert_eq!(ids, ["cli", "fields", "json"]);
    let listed = semel.admin().get("/v1/events?correlation_id=checkout%209").expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 3);
}
