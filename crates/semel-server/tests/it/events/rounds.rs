//! The schedule of a target: rounds of quick attempts with growing pauses between them.

use semel_testbed::wait;
use serde_json::{Value, json};

use super::{Bench, count, event, publish, scheduled_target};
use crate::kit::{Http, PATIENCE, Sink, run};

/// The one delivery, with its attempts.
fn only_delivery(admin: &Http) -> Value {
    let page = admin.get("/v1/deliveries").expect(200);
    let id = page["items"][0]["id"].as_str().unwrap().to_owned();
    admin.get(&format!("/v1/deliveries/{id}")).expect(200)
}

// Three attempts within 88 ms had turned half of the events of a short outage into dead letters. The breaker cannot judge
// by so few calls; the schedule keeps them.
#[test]
fn a_short_outage_makes_no_dead_letters() {
    let (outage, schedule) = match std::env::var_os("SEMEL_PROVE") {
        // The default: the second round begins after 10 s.
        Some(_) => (5, ""),
        None => (5, "schedule = [\"500ms\", \"1s\", \"2s\", \"5s\", \"10s\"]"),
    };
    let sink = Sink::start();
    sink.answer_with(503);
    let bench = Bench::new(&scheduled_target("all", &sink, schedule));
    let semel = bench.start();
    let admin = semel.admin();
    for number in 0..outage {
        publish(&admin, &event("a", &number.to_string()));
    }
    wait::until("every delivery has failed a round", PATIENCE, || sink.calls() >= 3 * outage).unwrap();
    wait::until("all wait", PATIENCE, || count(&admin, "retry_wait") == outage).unwrap();
    sink.answer_with(200);
    wait::until("all are delivered", PATIENCE, || count(&admin, "done") == outage).unwrap();
    assert_eq!((count(&admin, "dlq"), sink.effects().len()), (0, outage));
}

// As often as the schedule says, and then a dead letter that says how often.
#[test]
fn a_delivery_is_a_dead_letter_after_its_last_round() {
    let sink = Sink::start();
    sink.answer_with(503);
    let bench = Bench::new(&scheduled_target("all", &sink, "schedule = [\"100ms\", \"200ms\"]"));
    let semel = bench.start();
    let admin = semel.admin();
    publish(&admin, &event("a", "1"));
    wait::until("it is a dead letter", PATIENCE, || count(&admin, "dlq") == 1).unwrap();
    let attempts: Vec<String> =
        sink.seen().iter().map(|call| call.header("semel-attempt").to_owned()).collect();
    assert_eq!(attempts, ["1", "2", "3", "4", "5", "6", "7", "8", "9"], "three rounds of three");
    let letter = admin.get("/v1/dead-letters").expect(200)["items"][0].clone();
    assert_eq!((&letter["cause"], &letter["attempts_made"]), (&json!("exhausted"), &json!(9)));
    let delivery = only_delivery(&admin);
    assert_eq!((&delivery["round"], &delivery["rounds"]), (&json!(3), &json!(3)));
}

// A refusal does not pass, however long one waits.
#[test]
fn a_refused_delivery_is_a_dead_letter_at_once() {
    let sink = Sink::start();
    sink.answer_with(422);
    let bench = Bench::new(&scheduled_target("all", &sink, ""));
    let semel = bench.start();
    publish(&semel.admin(), &event("a", "1"));
    wait::until("it is a dead letter", PATIENCE, || count(&semel.admin(), "dlq") == 1).unwrap();
    assert_eq!(sink.calls(), 1);
}

// Who waits for a run is told its state and the time of the next round when the time to wait is over.
#[test]
fn a_caller_that_waits_is_told_the_next_round() {
    let sink = Sink::start();
    sink.answer_with(503);
    let bench = Bench::new(&scheduled_target("report", &sink, "schedule = [\"1h\"]"));
    let semel = bench.start();
    let admin = semel.admin();
    let run_of = json!({ "target": "report", "payload": 1, "idempotency_key": "k" }).to_string();
    let answer = admin.post("/v1/runs?wait=true&timeout=1ms", &run_of).expect(201);
    let id = answer["id"].as_str().unwrap().to_owned();
    wait::until("its first round has failed", PATIENCE, || {
        let shown = admin.get(&format!("/v1/runs/{id}")).expect(200);
        shown["deliveries"][0]["round"] == 2
    })
    .unwrap();
    let answer = admin.post("/v1/runs?wait=true&timeout=50ms", &run_of).expect(200);
    assert_eq!(answer["status"], "retry_wait", "{answer}");
    let due = answer["due_at"].as_str().expect("the time of the next round").to_owned();
    let delivery = only_delivery(&admin);
    assert_eq!((&delivery["due_at"], &delivery["rounds"]), (&json!(due), &json!(2)), "{delivery}");

    let story = run(&["events", "show", &id, "--admin", semel.admin_url()]);
    let said = String::from_utf8_lossy(&story.stdout).into_owned();
    assert!(said.contains("next attempt in 1h") || said.contains("next attempt in 59m"), "{said}");
    assert!(said.contains(&format!("at {due}, round 2 of 2")), "{said}");

    // The command exits with an error, for scripts. Its wait ends with that of the server.
    bench.configure(&format!(
        "[limits]\nrun_wait = \"100ms\"\n{}",
        scheduled_target("report", &sink, "schedule = [\"1h\"]")
    ));
    drop(semel);
    let semel = bench.start();
    let trigger = ["runs", "trigger", "report", "--payload", "1", "--key", "k", "--wait"];
    let waited = run(&[&trigger[..], &["--admin", semel.admin_url()]].concat());
    let said = String::from_utf8_lossy(&waited.stderr).into_owned();
    assert!(!waited.status.success() && said.contains("the run has not ended"), "{said}");
    assert!(said.contains("it is retry_wait, next attempt in") && said.contains(&due), "{said}");
}

// With an order key, later deliveries wait behind the schedule of the first.
#[test]
fn an_order_key_waits_behind_the_schedule() {
    let sink = Sink::start();
    sink.answer_with(503);
    let bench = Bench::new(&scheduled_target("all", &sink, "schedule = [\"1s\", \"2s\", \"5s\", \"10s\"]"));
    let semel = bench.start();
    let admin = semel.admin();
    for number in 0..3 {
        let event =
            json!({ "type": "a", "dedupe_key": number.to_string(), "payload": number, "order_key": "o" });
        publish(&admin, &event);
    }
    wait::until("the first has failed a round", PATIENCE, || only_delivered(&sink) >= 3).unwrap();
    assert!(sink.seen().iter().all(|call| call.body == "0"), "the others wait: {:?}", sink.seen());
    sink.answer_with(200);
    wait::until("all are delivered", PATIENCE, || count(&admin, "done") == 3).unwrap();
    let taken: Vec<String> =
        sink.seen().into_iter().filter(|call| call.status == 200).map(|call| call.body).collect();
    assert_eq!(taken, ["0", "1", "2"], "in order");
}

fn only_delivered(sink: &Sink) -> usize {
    sink.seen().iter().filter(|call| call.body == "0").count()
}

// The ttl of an event ends before the next round: it is a dead letter then, and not hours later.
#[test]
fn an_event_expires_between_two_rounds() {
    let sink = Sink::start();
    sink.answer_with(503);
    let bench = Bench::new(&scheduled_target("all", &sink, "schedule = [\"1h\"]"));
    let semel = bench.start();
    let admin = semel.admin();
    let event = json!({ "type": "a", "dedupe_key": "1", "payload": 1, "ttl": "2s" });
    publish(&admin, &event);
    wait::until("it is a dead letter", PATIENCE, || count(&admin, "dlq") == 1).unwrap();
    let letter = admin.get("/v1/dead-letters").expect(200)["items"][0].clone();
    assert_eq!((&letter["cause"], &letter["attempts_made"]), (&json!("expired"), &json!(3)), "{letter}");
}

// A replay job waits for the end of its deliveries: they have a single round.
#[test]
fn a_replay_has_a_single_round() {
    let sink = Sink::start();
    sink.answer_with(422);
    let bench = Bench::new(&scheduled_target("all", &sink, "schedule = [\"1h\"]"));
    let semel = bench.start();
    let admin = semel.admin();
    publish(&admin, &event("a", "1"));
    wait::until("it is a dead letter", PATIENCE, || count(&admin, "dlq") == 1).unwrap();
    sink.answer_with(503);
    let replayed = run(&["replay", "--status", "failed", "--admin", semel.admin_url()]);
    let said = String::from_utf8_lossy(&replayed.stdout).into_owned();
    assert!(!replayed.status.success() && said.contains("1 failed again"), "{said}");
    assert_eq!(sink.calls(), 4, "one refusal, and one round");
    let delivery = only_delivery(&admin);
    assert_eq!((&delivery["round"], &delivery["rounds"]), (&json!(1), &json!(1)), "{delivery}");
}
