//! A target that is down for a while: its breaker keeps deliveries away, and nothing is burned.

use semel_testbed::wait;

use super::{Bench, count, event, publish, target};
use crate::kit::{PATIENCE, Sink, metric};

const EVENTS: usize = 400;

/// A target that is tried more often, and later.
fn patient(name: &str, sink: &Sink, attempts: u32, base: &str) -> String {
    let usual = target(name, sink, "concurrency = 8");
    let kept: Vec<&str> = usual.lines().filter(|line| !line.starts_with("retry")).collect();
    let retry = format!("retry = {{ max_attempts = {attempts}, base = \"{base}\", cap = \"1s\" }}");
    format!("{}\n{retry}\n", kept.join("\n"))
}

// A target that is stopped and started again: what waits is delivered, under the same key.
#[test]
fn a_target_that_comes_back_gets_what_waits() {
    let mut sink = Sink::start();
    let bench = Bench::new(&patient("all", &sink, 50, "20ms"));
    let semel = bench.start();
    let admin = semel.admin();
    sink.stop();
    publish(&admin, &event("a", "1"));
    let failed = "semel_deliveries_total{target=\"all\",class=\"transient\"}";
    let tried = || admin.get("/metrics").text().contains(failed) && metric(&admin, failed) >= 2.0;
    wait::until("it was tried", PATIENCE, tried).unwrap();
    sink.restart();
    wait::until("it is delivered", PATIENCE, || count(&admin, "done") == 1).unwrap();
    let seen = sink.seen();
    assert_eq!(seen.len(), 1);
    assert!(seen[0].header("semel-attempt").parse::<u32>().unwrap() >= 3);
}

// Attempts are not burned while the breaker is open; an outage amplifies load by no more than a fifth.
#[test]
fn an_outage_burns_no_attempts_and_amplifies_little() {
    let sink = Sink::start();
    sink.answer_with(503);
    // The first ones must not be out of attempts before the breaker has seen enough.
    let bench = Bench::new(&patient("all", &sink, 5, "500ms"));
    let semel = bench.start();
    let admin = semel.admin();
    for number in 0..EVENTS {
        publish(&admin, &event("a", &number.to_string()));
    }
    let open = "semel_breaker_state{target=\"all\",state=\"open\"}";
    wait::until("the breaker is open", PATIENCE, || metric(&admin, open) > 0.5).unwrap();
    wait::until("nothing is in hand", PATIENCE, || metric(&admin, "semel_deliveries_in_hand") < 0.5).unwrap();
    let calls = sink.calls();
    assert!(calls < EVENTS / 5, "{calls} calls while it was down");
    sink.answer_with(200);
    wait::until("all are delivered", PATIENCE * 2, || count(&admin, "done") == EVENTS).unwrap();
    assert_eq!(count(&admin, "dlq"), 0, "nothing ran out of attempts");
    assert_eq!(sink.effects().len(), EVENTS);
    let amplified = sink.calls() as f64 / EVENTS as f64;
    assert!(amplified <= 1.2, "{amplified}");
}

/// Five events to a target that fails, with three attempts each in quick succession.
fn short_outage(more: &str) -> (Sink, Bench, crate::kit::Semel) {
    let sink = Sink::start();
    sink.answer_with(503);
    let bench = Bench::new(&target("all", &sink, &format!("concurrency = 1\n{more}")));
    let semel = bench.start();
    for number in 0..5 {
        publish(&semel.admin(), &event("a", &number.to_string()));
    }
    (sink, bench, semel)
}

// With few events and quick retries the usual breaker has too little to judge by; one that is told so has enough.
#[test]
fn a_breaker_that_judges_by_less_saves_the_first_events_of_an_outage() {
    let (sink, _bench, semel) = short_outage("");
    let admin = semel.admin();
    wait::until("all are set aside", PATIENCE, || count(&admin, "dlq") == 5).unwrap();
    assert_eq!(sink.calls(), 15, "fewer than the twenty that it takes by default");

    let (sink, bench, semel) = short_outage("breaker = { failure_calls = 2, rest = \"1s\", probes = 1 }");
    let admin = semel.admin();
    let opened = "semel_breaker_opened_total{target=\"all\"}";
    wait::until("the breaker has opened", PATIENCE, || metric(&admin, opened) > 0.5).unwrap();
    wait::until("nothing is in hand", PATIENCE, || metric(&admin, "semel_deliveries_in_hand") < 0.5).unwrap();
    assert!(sink.calls() < 5, "{} calls", sink.calls());
    sink.answer_with(200);
    wait::until("all are delivered", PATIENCE, || count(&admin, "done") == 5).unwrap();
    assert_eq!(count(&admin, "dlq"), 0, "nothing ran out of attempts");
    assert_eq!(sink.effects().len(), 5);
    drop((semel, bench));
}
