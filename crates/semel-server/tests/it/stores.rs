//! Every store by its URL: several servers over one of them make one effect.

use semel_testbed::{Postgres, Redis};
use serde_json::json;

use crate::kit::{Semel, Upstream};

const GATEWAYS: usize = 3;
const CALLS: usize = 60;

/// The same request through several gateways at once: one call upstream, one answer for all.
fn one_effect_through_several_gateways(store: &[&str]) {
    let upstream = Upstream::start();
    let url = upstream.url();
    let args = [store, &["--upstream", &url, "--scope", "single-tenant"]].concat();
    let gateways: Vec<Semel> = (0..GATEWAYS).map(|_| Semel::start(&args)).collect();
    let calls: Vec<_> = (0..CALLS)
        .map(|number| {
            let gateway = gateways[number % GATEWAYS].gateway().with("idempotency-key", "same");
            std::thread::spawn(move || gateway.post("/slow", "{}"))
        })
        .collect();
    semel_testbed::wait::until("it is under way", crate::kit::PATIENCE, || upstream.calls("same") == 1)
        .unwrap();
    upstream.open();
    let answers: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
    for answer in &answers {
        assert_eq!((answer.status, answer.json()), (201, json!({ "call": 1 })), "{}", answer.text());
    }
    assert_eq!(upstream.calls("same"), 1);
    let first = answers.iter().filter(|answer| answer.header("idempotent-replayed").is_none()).count();
    assert_eq!(first, 1, "all but one are replays");
    for gateway in &gateways {
        assert_eq!(gateway.admin().get("/readyz").status, 200);
        let found = gateway.admin().get("/v1/keys?phase=done").expect(200);
        assert_eq!(found["items"].as_array().unwrap().len(), 1, "all see the one key: {found}");
    }
}

#[test]
fn redis() {
    let redis = Redis::start().unwrap();
    one_effect_through_several_gateways(&["--store", &redis.url()]);
}

#[test]
fn postgres() {
    let postgres = Postgres::start().unwrap();
    one_effect_through_several_gateways(&["--store", &postgres.url()]);
}

#[test]
fn tiered() {
    let (postgres, redis) = (Postgres::start().unwrap(), Redis::start().unwrap());
    one_effect_through_several_gateways(&["--store", &postgres.url(), "--coordinate", &redis.url()]);
}
