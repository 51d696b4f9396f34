//! Every store by its URL: several servers over one of them make one effect.

mod loss;

use semel_testbed::{Postgres, Redis, wait};
use serde_json::json;

use crate::kit::{Answer, PATIENCE, Semel, Upstream};

const GATEWAYS: usize = 3;
const CALLS: usize = 200;

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
    wait::until("it is in progress", PATIENCE, || upstream.calls("same") == 1).unwrap();
    upstream.open();
    let answers: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
    for answer in &answers {
        assert_eq!((answer.status, answer.json()), (201, json!({ "call": 1 })), "{}", answer.text());
        assert_eq!(lasting(answer), lasting(&answers[0]), "byte for byte the same");
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

/// An answer without what belongs to its moment.
fn lasting(answer: &Answer) -> Answer {
    let mut lasting = answer.clone();
    lasting
        .headers
        .retain(|(name, _)| !["date", "idempotent-replayed", "x-request-id"].contains(&name.as_str()));
    lasting
}

/// The same where duplicates do not wait: one call upstream, and all others are refused as documented; once it is
/// done, everybody has its answer.
fn duplicates_are_refused(store: &str) {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let config = folder.path().join("semel.toml");
    let text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\n{store}\n\
         [[route]]\nmatch = \"POST /slow\"\nin_flight = \"reject\"\n",
        upstream.url(),
    );
    std::fs::write(&config, text).unwrap();
    let gateways: Vec<Semel> = (0..GATEWAYS).map(|_| Semel::with_config(&config, &[])).collect();
    let call = |number: usize| {
        let gateway = gateways[number % GATEWAYS].gateway().with("idempotency-key", "same");
        std::thread::spawn(move || gateway.post("/slow", "{}"))
    };
    let calls: Vec<_> = (0..CALLS).map(call).collect();
    // All but the one that runs come back while it runs.
    let refused = || calls.iter().filter(|call| call.is_finished()).count();
    wait::until("all others are refused", PATIENCE, || refused() == CALLS - 1).unwrap();
    // Refused as soon as the key was claimed, which is before the call.
    wait::until("the one that runs is at the upstream", PATIENCE, || upstream.calls("same") == 1).unwrap();
    upstream.open();
    let answers: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
    let (ran, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 201);
    assert_eq!(ran.len(), 1);
    for answer in &refused {
        assert_eq!(answer.expect(409)["code"], "in_flight");
        let seconds: u64 = answer.header("retry-after").expect("a Retry-After").parse().unwrap();
        assert!((1..=60).contains(&seconds), "{seconds}");
    }
    let again: Vec<_> = (0..CALLS).map(call).collect();
    for answer in again.into_iter().map(|call| call.join().unwrap()) {
        assert_eq!(answer.header("idempotent-replayed"), Some("true"));
        assert_eq!(lasting(&answer), lasting(&ran[0]), "byte for byte the same");
    }
    assert_eq!(upstream.calls("same"), 1);
}

#[test]
fn redis() {
    let redis = Redis::start().unwrap();
    one_effect_through_several_gateways(&["--store", &redis.url()]);
    let redis = Redis::start().unwrap();
    duplicates_are_refused(&format!("url = \"{}\"", redis.url()));
}

#[test]
fn postgres() {
    let postgres = Postgres::start().unwrap();
    one_effect_through_several_gateways(&["--store", &postgres.url()]);
    let postgres = Postgres::start().unwrap();
    duplicates_are_refused(&format!("url = \"{}\"", postgres.url()));
}

#[test]
fn tiered() {
    let (postgres, redis) = (Postgres::start().unwrap(), Redis::start().unwrap());
    one_effect_through_several_gateways(&["--store", &postgres.url(), "--coordinate", &redis.url()]);
    let (postgres, redis) = (Postgres::start().unwrap(), Redis::start().unwrap());
    duplicates_are_refused(&format!("url = \"{}\"\ncoordinate = \"{}\"", postgres.url(), redis.url()));
}
