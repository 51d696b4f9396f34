//! A target is gone: retries, dead letters, and what people do about them.

use semel_testbed::wait;
use serde_json::{Value, json};

use super::{Bench, count, event, publish, target};
use crate::kit::{Http, PATIENCE, Semel, Sink, metric, run};

fn letters(admin: &Http, query: &str) -> Vec<Value> {
    admin.get(&format!("/v1/dead-letters{query}")).expect(200)["items"].as_array().unwrap().clone()
}

fn semel_dlq(semel: &Semel, args: &[&str]) -> (bool, String) {
    let output = run(&[&["dlq"], args, &["--admin", semel.admin_url()]].concat());
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

// Every attempt is kept, the letters are grouped, given up, restored, and all of it is in the audit log.
#[test]
fn a_stopped_target_leaves_dead_letters() {
    let (mut gone, there) = (Sink::start(), Sink::start());
    let bench = Bench::new(&[target("gone", &gone, ""), target("there", &there, "")].concat());
    let semel = bench.start();
    let admin = semel.admin();
    gone.stop();
    let ids: Vec<String> = (0..3).map(|number| publish(&admin, &event("a", &number.to_string()))).collect();
    wait::until("all are dead letters", PATIENCE, || letters(&admin, "").len() == 3).unwrap();
    // The other target is not held up.
    wait::until("the other target has all", PATIENCE, || there.effects().len() == 3).unwrap();
    let letter = &letters(&admin, "?status=pending&target=gone")[0];
    assert_eq!(
        (&letter["cause"], &letter["attempts_made"], &letter["target"]),
        (&json!("exhausted"), &json!(3), &json!("gone"))
    );
    let id = letter["id"].as_str().unwrap();
    let shown = admin.get(&format!("/v1/dead-letters/{id}")).expect(200);
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 3);
    assert!(shown["error"].as_str().unwrap().contains("not sent"), "{shown}");
    assert!(ids.contains(&shown["event_id"].as_str().unwrap().to_owned()));
    assert!(shown["payload"]["key"].is_string(), "{shown}");
    let groups = admin.get("/v1/dead-letters/groups").expect(200);
    assert_eq!((groups["items"].as_array().unwrap().len(), &groups["items"][0]["count"]), (1, &json!(3)));

    let discard = format!("/v1/dead-letters/{id}/discard");
    assert_eq!(admin.post(&discard, "{}").status, 400);
    assert_eq!(admin.post(&discard, r#"{"reason": " "}"#).status, 400);
    assert_eq!(admin.post(&discard, r#"{"reason": "a test"}"#).expect(200)["status"], "discarded");
    assert_eq!(letters(&admin, "?status=discarded").len(), 1);
    let (done, told) = semel_dlq(&semel, &["restore", id, "--reason", "a mistake"]);
    assert!(done && told.contains("pending"), "{told}");
    let audit = admin.get(&format!("/v1/audit?subject={id}")).expect(200);
    let actions: Vec<&str> =
        audit["items"].as_array().unwrap().iter().filter_map(|line| line["action"].as_str()).collect();
    assert_eq!(actions, ["restore", "discard"]);
    for (args, expected) in [
        (&["list", "--target", "gone"][..], "exhausted"),
        (&["groups"], "SIGNATURE"),
        (&["show", id], "transient"),
    ] {
        let (done, told) = semel_dlq(&semel, args);
        assert!(done && told.contains(expected), "{expected} in {told}");
    }
    let story = run(&["events", "show", id, "--admin", semel.admin_url()]);
    let story = String::from_utf8_lossy(&story.stdout).into_owned();
    assert!(story.contains("a mistake") && story.contains("dead letter"), "{story}");
    assert!(metric(&admin, "semel_deliveries_total{target=\"gone\",class=\"transient\"}") >= 9.0);
    assert_eq!(count(&admin, "dlq"), 3);
}

// What would be refused again is not tried again.
#[test]
fn a_refusal_is_not_retried() {
    let sink = Sink::start();
    sink.answer_with(422);
    let bench = Bench::new(&target("all", &sink, ""));
    let semel = bench.start();
    let admin = semel.admin();
    publish(&admin, &event("a", "1"));
    wait::until("it is a dead letter", PATIENCE, || letters(&admin, "").len() == 1).unwrap();
    let letter = &letters(&admin, "")[0];
    assert_eq!((&letter["cause"], &letter["attempts_made"]), (&json!("non_retryable"), &json!(1)));
    let shown = admin.get(&format!("/v1/dead-letters/{}", letter["id"].as_str().unwrap())).expect(200);
    assert_eq!(
        (&shown["attempts"][0]["http_status"], &shown["attempts"][0]["excerpt"]),
        (&json!(422), &json!("hello"))
    );
    assert_eq!(sink.calls(), 1);
}

// `blocked` keeps whatever comes later with the same order key.
#[test]
fn a_blocked_delivery_holds_its_order_key() {
    let sink = Sink::start();
    sink.answer_with(503);
    let bench = Bench::new(&target("all", &sink, "on_exhausted = \"blocked\""));
    let semel = bench.start();
    let admin = semel.admin();
    let ordered = |key: &str, order: &str| json!({ "type": "a", "dedupe_key": key, "payload": key, "order_key": order });
    publish(&admin, &ordered("1", "x"));
    wait::until("it is blocked", PATIENCE, || count(&admin, "blocked") == 1).unwrap();
    sink.answer_with(200);
    publish(&admin, &ordered("2", "x"));
    publish(&admin, &ordered("3", "y"));
    wait::until("the other order key goes on", PATIENCE, || count(&admin, "done") == 1).unwrap();
    assert_eq!((count(&admin, "blocked"), count(&admin, "queued")), (1, 1));
    assert!(letters(&admin, "").is_empty());
}
