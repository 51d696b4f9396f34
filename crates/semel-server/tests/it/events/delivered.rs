//! Published, delivered, shown.

use rustix::process::Signal;
use semel_testbed::wait;
use serde_json::{Value, json};

use super::{Bench, count, event, publish, target};
use crate::kit::{PATIENCE, Sink, metric, run};

// Once for each target that wants it, with every header of the contract.
#[test]
fn events_are_delivered_to_those_that_want_them() {
    let (orders, all) = (Sink::start(), Sink::start());
    let signed = "events = [\"order.*\"]\nsecret = { env = \"HOOK_SECRET\" }";
    let bench = Bench::new(&[target("orders", &orders, signed), target("all", &all, "")].concat());
    let semel = bench.start_with(&[("HOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]);
    let admin = semel
        .admin()
        .with("x-request-id", "req-17")
        .with("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    // Byte for byte: spaces, decimals and large numbers as they were given.
    let payload = r#"{ "cents": 1.10,  "big": 12345678901234567890123 }"#;
    let body =
        format!(r#"{{"type": "order.paid", "dedupe_key": "o-1", "tenant": "acme", "payload": {payload}}}"#);
    let first = admin.post("/v1/events", &body);
    assert_eq!(first.header("x-request-id"), Some("req-17"));
    let first = first.expect(201);
    assert_eq!((&first["cached"], &first["targets"]), (&json!(false), &json!(["all", "orders"])));
    let id = first["id"].as_str().unwrap();
    assert!(id.starts_with("evt_"));
    let again = admin.post("/v1/events", &body).expect(200);
    assert_eq!(again, json!({ "id": id, "cached": true }));
    let other = body.replace("1.10", "1.1");
    assert_eq!(admin.post("/v1/events", &other).expect(422)["code"], "conflict");
    publish(&admin, &event("user.new", "u-1"));

    wait::until("all are delivered", PATIENCE, || count(&admin, "done") == 3).unwrap();
    assert_eq!((orders.calls(), all.calls()), (1, 2));
    let seen = &orders.seen()[0];
    assert_eq!((seen.body.as_str(), seen.path.as_str()), (payload, "/hook"));
    for (name, value) in [
        ("semel-event-id", id),
        ("semel-event-type", "order.paid"),
        ("semel-attempt", "1"),
        ("content-type", "application/json"),
        ("webhook-id", id),
    ] {
        assert_eq!(seen.header(name), value, "{name}");
    }
    assert!(seen.header("traceparent").starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"));
    assert!(seen.header("webhook-signature").starts_with("v1,"));
    assert!(seen.header("webhook-timestamp").parse::<u64>().is_ok());
    assert!(seen.key().len() == 64 && seen.key() != all.seen()[0].key(), "each target has its own key");
    assert!(all.seen()[0].header("webhook-signature").is_empty());

    shown(&semel, id, seen.header("x-request-id"));
    let admin = semel.admin();
    assert!(metric(&admin, "semel_deliveries_total{target=\"all\",class=\"success\"}") >= 2.0);
    assert!(metric(&admin, "semel_attempt_seconds_count{target=\"orders\"}") >= 1.0);
    assert!((metric(&admin, "semel_breaker_state{target=\"all\",state=\"closed\"}") - 1.0).abs() < 0.1);
}

/// The story of an action, by each of its ids.
fn shown(semel: &crate::kit::Semel, id: &str, attempt_request: &str) {
    let admin = semel.admin();
    let event = admin.get(&format!("/v1/events/{id}")).expect(200);
    assert_eq!(event["request_id"], "req-17");
    let deliveries = event["deliveries"].as_array().unwrap();
    assert_eq!(deliveries.len(), 2);
    for delivery in deliveries {
        assert_eq!((&delivery["state"], &delivery["attempts_made"]), (&json!("done"), &json!(1)));
        let attempt = &delivery["attempts"][0];
        assert_eq!((&attempt["outcome"], &attempt["http_status"]), (&json!("success"), &json!(200)));
        let one = admin.get(&format!("/v1/deliveries/{}", delivery["id"].as_str().unwrap())).expect(200);
        assert_eq!(one["target"], delivery["target"]);
    }
    let delivery = deliveries[0]["id"].as_str().unwrap();
    let key = event["key_id"].as_str().unwrap();
    for any in [id, delivery, key, "req-17", attempt_request] {
        let output = run(&["events", "show", any, "--admin", semel.admin_url()]);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{any}: {}", String::from_utf8_lossy(&output.stderr));
        for expected in [id, "accepted", "attempt started", "attempt ended", "http_status=200", "req-17"] {
            assert!(told.contains(expected), "{expected} by {any} in\n{told}");
        }
    }
    let by_key = admin.get("/v1/events?tenant=acme&type=order.paid&dedupe_key=o-1").expect(200);
    assert_eq!(by_key["items"][0]["id"], id);
    let listed: Value = admin.get("/v1/events?tenant=acme").expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
}

#[test]
fn events_are_published_and_listed_by_command() {
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, ""));
    let semel = bench.start();
    let publish = |more: &[&str]| {
        let args = [
            "events",
            "publish",
            "--type",
            "order.paid",
            "--dedupe-key",
            "k-1",
            "--admin",
            semel.admin_url(),
        ];
        run(&[&args, more].concat())
    };
    let payload = r#"{"n":  1.50}"#;
    let first = publish(&["--payload", payload]);
    let told = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(told.contains("accepted: all"), "{told} {}", String::from_utf8_lossy(&first.stderr));
    let again = publish(&["--payload", payload, "--json"]);
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["cached"], true);
    let other = publish(&["--payload", "2"]);
    assert!(!other.status.success() && String::from_utf8_lossy(&other.stderr).contains("(422)"));
    let wrong = publish(&["--payload", "{"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("--payload is not JSON"));
    wait::until("it is delivered", PATIENCE, || sink.calls() == 1).unwrap();
    assert_eq!(sink.seen()[0].body, payload);
    let list = run(&["events", "list", "--admin", semel.admin_url()]);
    assert!(String::from_utf8_lossy(&list.stdout).contains("order.paid"));
}

// Order keys: one after the other, whatever fails in between.
#[test]
fn order_keys_are_kept() {
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, ""));
    let semel = bench.start();
    let admin = semel.admin();
    for number in 0..30 {
        let order = format!("order-{}", number % 3);
        let event = json!({ "type": "t", "dedupe_key": format!("k-{number}"), "payload": number, "order_key": order });
        publish(&admin, &event);
    }
    wait::until("all are delivered", PATIENCE, || count(&admin, "done") == 30).unwrap();
    let bodies: Vec<u32> = sink.seen().iter().map(|one| one.body.parse().unwrap()).collect();
    for order in 0..3 {
        let of_order: Vec<u32> = bodies.iter().copied().filter(|number| number % 3 == order).collect();
        assert!(of_order.is_sorted(), "{of_order:?}");
    }
}

#[test]
fn a_reload_adds_a_target() {
    let (one, two) = (Sink::start(), Sink::start());
    let bench = Bench::new(&target("one", &one, ""));
    let semel = bench.start();
    let admin = semel.admin();
    publish(&admin, &event("a", "1"));
    bench.configure(&[target("one", &one, ""), target("two", &two, "")].concat());
    semel.signal(Signal::HUP);
    semel.logged("configuration reloaded");
    let answer = admin.post("/v1/events", &event("a", "2").to_string()).expect(201);
    assert_eq!(answer["targets"], json!(["one", "two"]));
    wait::until("both have it", PATIENCE, || one.calls() == 2 && two.calls() == 1).unwrap();
}

// sigterm_drain: what was sent is finished and written.
#[test]
fn a_stop_drains() {
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, ""));
    let mut semel = bench.start();
    let admin = semel.admin();
    for number in 0..50 {
        publish(&admin, &event("a", &number.to_string()));
    }
    semel.signal(Signal::TERM);
    assert!(semel.wait().success());
    let semel = bench.start();
    let admin = semel.admin();
    wait::until("all are delivered", PATIENCE, || count(&admin, "done") == 50).unwrap();
    // Nothing was cut: each was sent once.
    assert_eq!((sink.calls(), sink.effects().len()), (50, 50));
}
