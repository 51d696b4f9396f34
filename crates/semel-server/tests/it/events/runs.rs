//! Runs over HTTP and by the command, on the embedded store without Redis, and with a buffer.

use std::time::Duration;

use semel_testbed::{Redis, wait};
use serde_json::{Value, json};

use super::{Bench, target};
use crate::kit::{Http, PATIENCE, Sink, metric, run};

fn trigger(admin: &Http, body: &Value) -> (u16, Value) {
    let answer = admin.post("/v1/runs", &body.to_string());
    let status = answer.status;
    (status, answer.expect(status))
}

// Works on the embedded store without Redis too.
#[test]
fn a_run_is_triggered_once_and_delivered() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = bench.start();
    let admin = semel.admin();
    let payload = r#"{"empty":[],"n":9007199254740993}"#;
    let body = format!(
        r#"{{"target":"crm","payload":{payload},"idempotency_key":"k","tags":["vip","vip"],"metadata":{{"big":12345678901234567890123,"list":[]}}}}"#
    );
    let first = admin.post("/v1/runs", &body);
    assert_eq!(first.status, 201);
    let first = first.expect(201);
    assert_eq!((&first["cached"], &first["buffered"]), (&json!(false), &json!(false)));
    let id = first["id"].as_str().unwrap();
    assert!(id.starts_with("run_"), "{id}");
    let again = admin.post("/v1/runs", &body).expect(200);
    assert_eq!((&again["id"], &again["cached"]), (&first["id"], &json!(true)));
    let with_header = admin.with("idempotency-key", "k");
    let plain = body.replace(r#""idempotency_key":"k","#, "");
    assert_eq!(with_header.post("/v1/runs", &plain).expect(200)["id"], first["id"]);
    let (status, conflict) =
        trigger(&admin, &json!({ "target": "crm", "payload": 1, "idempotency_key": "k" }));
    assert_eq!((status, &conflict["code"]), (422, &json!("conflict")));
    wait::until("it is delivered", PATIENCE, || sink.effects().len() == 1).unwrap();
    assert_eq!(sink.seen()[0].body, payload, "byte for byte");
    let shown = admin.get(&format!("/v1/runs/{id}"));
    let text = shown.text();
    assert!(
        text.contains(r#""big":12345678901234567890123"#) && text.contains(r#""tags":["vip"]"#),
        "{text}"
    );
    let done = || admin.get(&format!("/v1/runs/{id}")).expect(200)["status"] == "done";
    wait::until("it is done", PATIENCE, done).unwrap();
    let listed = admin.get("/v1/runs?tag=vip").expect(200);
    assert_eq!(listed["items"][0]["id"], first["id"]);
    // The key is freed, and the next trigger is another run.
    let reset = admin.post("/v1/runs/reset-key", r#"{"target":"crm","key":"k"}"#).expect(200);
    assert_eq!(reset["id"], first["id"]);
    let next = admin.post("/v1/runs", &body).expect(201);
    assert_ne!(next["id"], first["id"]);
}

#[test]
fn what_cannot_be_triggered_is_refused_in_plain_words() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = bench.start();
    let admin = semel.admin();
    for (body, status, expected) in [
        (json!({ "payload": {} }), 400, "missing field `target`"),
        (json!({ "target": "crm" }), 400, "missing field `payload`"),
        (json!({ "target": "nobody", "payload": {} }), 422, "there is no target"),
        (json!({ "target": "crm", "payload": {}, "delay": "soon" }), 400, "delay: expected a duration"),
        (json!({ "target": "crm", "payload": {}, "ttl": 5 }), 400, "invalid type"),
        (json!({ "target": "crm", "payload": {}, "idempotency_key": "" }), 400, "idempotency_key"),
        (json!({ "target": "crm", "payload": {}, "tags": [""] }), 400, "tags: expected"),
        (json!({ "target": "crm", "payload": {}, "color": 1 }), 400, "unknown field"),
    ] {
        let answer = admin.post("/v1/runs", &body.to_string());
        let text = answer.text();
        assert!(answer.status == status && text.contains(expected), "{body}: {} {text}", answer.status);
    }
    let both = admin.with("idempotency-key", "a");
    let body = json!({ "target": "crm", "payload": {}, "idempotency_key": "b" });
    assert_eq!(both.post("/v1/runs", &body.to_string()).status, 400);
    assert_eq!(admin.post("/v1/runs", "{").status, 400);
    assert_eq!(admin.post("/v1/runs?wait=perhaps", r#"{"target":"crm","payload":1}"#).status, 400);
    assert_eq!(admin.get("/v1/runs/nonsense").status, 400);
    assert_eq!(admin.get("/v1/runs/run_00000000000000000000000000").status, 404);
    assert_eq!(sink.calls(), 0);
}

// Changed, rescheduled and cancelled, in the ledger and in the buffer, by API and command.
#[test]
fn runs_are_full_citizens_in_the_buffer_too() {
    let (redis, sink) = (Redis::start().unwrap(), Sink::start());
    // Everything is buffered, and nothing is drained.
    let gate = format!("[gate]\nmode = \"on\"\nthreshold = 0\nbuffer = \"{}\"\ndrainers = 0\n", redis.url());
    let bench = Bench::new(&[target("crm", &sink, ""), gate].concat());
    let semel = bench.start();
    let admin = semel.admin();
    let (status, first) =
        trigger(&admin, &json!({ "target": "crm", "payload": { "a": [] }, "idempotency_key": "k" }));
    assert_eq!((status, &first["buffered"]), (202, &json!(true)), "{first}");
    let id = first["id"].as_str().unwrap().to_owned();
    let (status, again) =
        trigger(&admin, &json!({ "target": "crm", "payload": { "a": [] }, "idempotency_key": "k" }));
    assert_eq!((status, &again["id"]), (200, &first["id"]));
    assert_eq!(
        admin.get("/v1/runs").expect(200)["items"].as_array().unwrap().len(),
        0,
        "not mixed into lists"
    );
    let view = admin.get("/v1/runs?buffered=true&tenant=").expect(200);
    assert_eq!((&view["items"][0]["id"], &view["tenants"][0]["queued"]), (&first["id"], &json!(1)), "{view}");
    let path = format!("/v1/runs/{id}");
    let patch = r#"{"add_tags":["x"],"metadata":{"n":9007199254740993,"e":[]}}"#;
    let patched = admin.send("PATCH", &path, patch);
    assert!(patched.text().contains("9007199254740993"), "{}", patched.text());
    let more = admin.send("PATCH", &path, r#"{"increment":{"n":1}}"#).text();
    assert!(more.contains("9007199254740994") && more.contains(r#""e":[]"#), "{more}");
    assert_eq!(admin.send("PATCH", &path, r#"{"increment":{"e":1}}"#).status, 409);
    assert_eq!(admin.send("PATCH", &path, r#"{"version":77}"#).status, 409);
    let told = run(&["runs", "tag", &id, "y", "--admin", semel.admin_url()]);
    assert!(String::from_utf8_lossy(&told.stdout).contains("[\"x\",\"y\"]"), "{told:?}");
    let told = run(&["runs", "list", "--buffered", "--admin", semel.admin_url()]);
    assert!(String::from_utf8_lossy(&told.stdout).contains("QUEUED"), "{told:?}");
    assert_eq!(metric(&admin, "semel_triggers_total{to=\"buffer\"}"), 1.0);
    // Nothing drains here. What must not come too late moves the run into the ledger, with all its changes.
    let version = admin.get(&path).expect(200)["version"].as_u64().unwrap();
    let delayed = admin.send("PATCH", &path, r#"{"delay":"1h"}"#).expect(200);
    assert_eq!(
        (&delayed["buffered"], &delayed["version"]),
        (&json!(false), &json!(version + 1)),
        "{delayed}"
    );
    let text = admin.get(&path).text();
    assert!(text.contains("9007199254740994") && text.contains(r#""tags":["x","y"]"#), "{text}");
    assert_eq!(admin.get(&path).expect(200)["status"], "idle", "its delay is kept");
    let cancelled = admin.post(&format!("{path}/cancel"), r#"{"reason":"a test"}"#).expect(200);
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(admin.post(&format!("{path}/cancel"), "{}").status, 409);
    assert_eq!(sink.calls(), 0);
}

#[test]
fn a_caller_may_wait_for_its_run() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = bench.start();
    let admin = semel.admin();
    let done =
        admin.post("/v1/runs?wait=true", r#"{"target":"crm","payload":1,"idempotency_key":"k"}"#).expect(201);
    assert_eq!((&done["status"], &done["cached"]), (&json!("done"), &json!(false)), "{done}");
    assert_eq!(sink.calls(), 1);
    let told = run(&[
        "runs",
        "trigger",
        "crm",
        "--payload",
        "1",
        "--key",
        "k",
        "--wait",
        "--admin",
        semel.admin_url(),
    ]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("already triggered") && told.contains("done"), "{told}");
    sink.be_slow(Duration::from_secs(5));
    let late = admin.post("/v1/runs?wait=true&timeout=50ms", r#"{"target":"crm","payload":2}"#).expect(201);
    assert_ne!(late["status"], "done", "{late}");
}

// A server starts without the buffer's Redis, and begins to buffer when it is there
#[test]
fn a_redis_that_is_away_at_the_start_holds_nobody_up() {
    let (redis, sink) = (Redis::start().unwrap(), Sink::start());
    redis.kill();
    let gate = format!(
        "[gate]\nmode = \"on\"\nthreshold = 1\nwindow = \"1s\"\nhold = \"1m\"\nbuffer = \"{}\"\n",
        redis.url()
    );
    let bench = Bench::new(&format!("{}{gate}", target("crm", &sink, "")));
    let semel = bench.start();
    let admin = semel.admin();
    let body = |key: &str| json!({ "target": "crm", "payload": 1, "idempotency_key": key, "delay": "1h" });
    for key in ["a", "b", "c"] {
        let (status, answer) = trigger(&admin, &body(key));
        assert_eq!((status, &answer["buffered"]), (201, &json!(false)), "{answer}");
    }
    assert_eq!(trigger(&admin, &body("a")).0, 200, "the ledger decides alone");
    let unknown = admin.get("/v1/runs/run_01M7GBM2Y1383HH4YKYPMJEJS6");
    assert_eq!(unknown.status, 503, "it may be in the buffer");
    let reset = || admin.post("/v1/runs/reset-key", r#"{"target":"crm","key":"a"}"#);
    let refused = reset();
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (503, Some("1")),
        "its run may be in the buffer"
    );
    assert!(refused.text().contains("the buffer does not answer"), "{}", refused.text());
    redis.restart().unwrap();
    let mut number = 0;
    wait::until("bursts are buffered", PATIENCE, || {
        number += 1;
        trigger(&admin, &body(&format!("n{number}"))).1["buffered"] == json!(true)
    })
    .unwrap();
    assert_eq!(admin.get("/v1/runs/run_01M7GBM2Y1383HH4YKYPMJEJS6").status, 404);
    assert_eq!(reset().expect(200)["reset"], true, "the refused reset has changed nothing");
}
