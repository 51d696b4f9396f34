//! What cannot be used: clear errors, nothing lost.

use super::{Bench, event, target};
use crate::kit::{Semel, Sink, run};

#[test]
fn bad_events_are_refused_with_a_reason() {
    let sink = Sink::start();
    let bench =
        Bench::new(&format!("[limits]\npayload = \"1KiB\"\n{}", target("all", &sink, "events = [\"a\"]")));
    let semel = bench.start();
    let admin = semel.admin();
    let large = format!(r#"{{"type": "a", "dedupe_key": "k", "payload": "{}"}}"#, "x".repeat(1_100));
    let larger = format!(r#"{{"type": "a", "dedupe_key": "k", "payload": "{}"}}"#, "x".repeat(100_000));
    let long_key = format!(r#"{{"type": "a", "dedupe_key": "{}", "payload": 1}}"#, "k".repeat(2_000));
    for (body, status, expected) in [
        ("", 400, "type"),
        ("{", 400, "EOF"),
        ("[]", 400, "the body cannot be used: expected a JSON object"),
        ("hello", 400, "expected a JSON object"),
        (r#"{"type": "a", "payload": 1}"#, 400, "dedupe_key"),
        (r#"{"type": "a", "dedupe_key": "", "payload": 1}"#, 400, "dedupe_key: is empty"),
        (r#"{"type": "a", "dedupe_key": "k"}"#, 400, "payload"),
        (r#"{"type": "", "dedupe_key": "k", "payload": 1}"#, 400, "type: expected"),
        (r#"{"type": "a b", "dedupe_key": "k", "payload": 1}"#, 400, "type: expected"),
        (r#"{"type": "a", "dedupe_key": "k", "payload": {"x": }}"#, 400, "the body cannot be used"),
        (r#"{"type": "a", "dedupe_key": "k", "payload": 1, "target": "x"}"#, 400, "unknown field `target`"),
        (r#"{"type": "a", "dedupe_key": "k", "payload": 1, "order_key": ""}"#, 400, "order_key"),
        (
            r#"{"type": "a", "dedupe_key": "k", "payload": 1, "delay": "soon"}"#,
            400,
            "delay: expected a duration",
        ),
        (
            r#"{"type": "a", "dedupe_key": "k", "payload": 1, "delay": "99999999999d"}"#,
            400,
            "delay: expected at most",
        ),
        (&long_key, 400, "dedupe_key"),
        (&large, 413, "larger than 1024 bytes"),
        (&larger, 413, "larger than 1024 bytes"),
    ] {
        let answer = admin.post("/v1/events", body).expect(status);
        assert!(answer["detail"].as_str().unwrap().contains(expected), "{expected} in {answer}");
    }
    for (path, status, expected) in [
        ("/v1/events/evt_x", 400, "expected `evt_` or `run_`"),
        ("/v1/events/evt_00000000000000000000000000", 404, "there is no event"),
        ("/v1/deliveries/evt_00000000000000000000000000", 400, "expected `dlv_`"),
        ("/v1/deliveries/dlv_00000000000000000000000000", 404, "there is no delivery"),
        ("/v1/dead-letters/dlq_00000000000000000000000000", 404, "there is no dead letter"),
        ("/v1/dead-letters/17", 400, "expected `dlq_`"),
        ("/v1/deliveries?state=lost", 400, "state: expected some of idle"),
        ("/v1/dead-letters?status=x", 400, "status: expected one of pending"),
        ("/v1/events?limit=0", 400, "limit: expected"),
        ("/v1/events?nope=1", 400, "is not known here"),
        ("/v1/events?dedupe_key=k", 400, "give `type` too"),
        ("/v1/story/nobody", 404, "nothing is known"),
        ("/v1/story/%ff", 400, "no UTF-8"),
    ] {
        let answer = admin.get(path).expect(status);
        assert!(answer["detail"].as_str().unwrap().contains(expected), "{expected} in {answer}");
    }
    let gone = "/v1/dead-letters/dlq_00000000000000000000000000/discard";
    assert_eq!(admin.post(gone, r#"{"reason": "x"}"#).status, 404);
    // An event that nobody wants is kept, and says so.
    let unwanted = admin.post("/v1/events", &event("b", "k").to_string()).expect(201);
    assert_eq!(unwanted["targets"], serde_json::json!([]));
    assert_eq!(sink.calls(), 0);
}

// Tokens: who may publish, look and discard; a confined one stays in its tenant.
#[test]
fn roles_hold_for_events_too() {
    let sink = Sink::start();
    let token = |name: &str, role: &str, more: &str| {
        format!(
            "[[token]]\nname = \"{name}\"\nrole = \"{role}\"\nvalue = {{ env = \"{}\" }}\n{more}\n",
            name.to_uppercase()
        )
    };
    let config = [
        token("shop", "producer", "tenant = \"acme\""),
        token("eye", "viewer", ""),
        token("hand", "operator", ""),
        target("all", &sink, ""),
    ]
    .concat();
    let bench = Bench::new(&config);
    let value = |token: &str| format!("{token}-of-more-than-32-bytes-in-all");
    let semel = bench.start_with(&[
        ("SHOP", &value("shop-token")),
        ("EYE", &value("eye-token")),
        ("HAND", &value("hand-token")),
    ]);
    let of = |token: &str| semel.admin().with("authorization", &format!("Bearer {}", value(token)));
    let mut body = event("a", "1");
    assert_eq!(of("eye-token").post("/v1/events", &body.to_string()).status, 403);
    assert_eq!(of("hand-token").post("/v1/events", &body.to_string()).status, 403);
    let id = of("shop-token").post("/v1/events", &body.to_string()).expect(201)["id"].clone();
    body["tenant"] = "other".into();
    assert_eq!(of("shop-token").post("/v1/events", &body.to_string()).expect(403)["code"], "forbidden");
    let path = format!("/v1/events/{}", id.as_str().unwrap());
    assert_eq!(of("shop-token").get(&path).status, 403);
    let seen = of("eye-token").get(&path).expect(200);
    assert_eq!((&seen["tenant"], seen.get("payload")), (&serde_json::json!("acme"), None));
    assert!(of("hand-token").get(&path).expect(200).get("payload").is_some());
    let discard = "/v1/dead-letters/dlq_00000000000000000000000000/discard";
    assert_eq!(of("eye-token").post(discard, "{}").status, 403);
    assert_eq!(of("hand-token").post(discard, r#"{"reason": "x"}"#).status, 404);
}

#[test]
fn without_a_ledger_events_name_the_setting() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    for path in ["/v1/events", "/v1/deliveries", "/v1/dead-letters", "/v1/audit"] {
        let answer = admin.get(path).expect(501);
        assert!(answer["detail"].as_str().unwrap().contains("[ledger]"), "{answer}");
    }
    assert_eq!(admin.post("/v1/events", &event("a", "1").to_string()).status, 501);
}

#[test]
fn bad_targets_stop_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    std::fs::write(&file, "[[target]]\nname = \"x\"\nurl = \"http://h\"\nsecret = { env = \"PATH\" }\n")
        .unwrap();
    let output = run(&["serve", "--config", file.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("semel.toml:4:10: secret: expected `whsec_`"), "{told}");
}
