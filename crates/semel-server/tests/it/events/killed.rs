//! The server is killed while it delivers. In full form: `./scripts/prove delivery-kill`.

use std::time::Duration;

use semel_testbed::wait;
use serde_json::json;

use super::{Bench, count, target};
use crate::kit::{PATIENCE, Sink};

fn rounds() -> usize {
    if std::env::var_os("SEMEL_PROVE").is_some() { 30 } else { 4 }
}

const EVENTS: usize = 60;

// crash_effect_before_ack, backoff_order: every event ends delivered, effects by key equal events, order is kept.
#[test]
fn killed_servers_lose_and_double_nothing() {
    let sink = Sink::start();
    let limits = "[ledger]\nlease = \"400ms\"\n[limits]\ncrashes = 1000\n";
    let bench = Bench::new(&format!("{limits}{}", target("all", &sink, "concurrency = 4")));
    let mut published = 0;
    for round in 0..rounds() {
        let semel = bench.start();
        let admin = semel.admin();
        let before = sink.calls();
        for number in 0..EVENTS {
            let event = json!({
                "type": "a", "dedupe_key": format!("{round}-{number}"), "payload": published,
                "order_key": if number % 2 == 0 { json!(format!("order-{}", number % 4)) } else { json!(null) },
            });
            // The answer may be lost with the server, the event not: it is published again under the same key.
            admin.post("/v1/events", &event.to_string()).expect(201);
            published += 1;
        }
        wait::until("it is at work", PATIENCE, || sink.calls() > before + 2 * (round + 1)).unwrap();
        semel.kill();
    }
    let semel = bench.start();
    let admin = semel.admin();
    let ended = || {
        count(&admin, "done") == published.min(1_000) && count(&admin, "queued,retry_wait,running,idle") == 0
    };
    wait::until("all are delivered", PATIENCE + Duration::from_secs(60), ended).unwrap();
    assert_eq!(count(&admin, "dlq,blocked"), 0);
    assert_eq!(sink.effects().len(), published, "one effect for each event, and no other");
    let mut last: std::collections::BTreeMap<usize, u64> = std::collections::BTreeMap::new();
    let mut keys = std::collections::BTreeSet::new();
    for one in sink.seen() {
        let number: u64 = one.body.parse().unwrap();
        let of_round = usize::try_from(number).unwrap() % EVENTS;
        // A repeat of what was delivered comes before anything later of its order key.
        if of_round.is_multiple_of(2) && keys.insert(one.key().to_owned()) {
            let before = last.insert(of_round % 4, number);
            assert!(before < Some(number), "{before:?} before {number}");
        }
    }
}
