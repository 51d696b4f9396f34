//! What the version before key generations wrote still works: ledgers, buffered runs, claims.

use std::collections::{BTreeMap, BTreeSet};

use semel_testbed::{Postgres, Redis, wait};
use serde_json::{Value, json};

use super::target;
use crate::kit::{Http, PATIENCE, Semel, Sink};

const EMBEDDED: &[u8] = include_bytes!("../../fixtures/format-1/embedded.db");
const POSTGRES: &str = include_str!("../../fixtures/format-1/postgres.sql");

/// The runs of a fixture by their names. What it holds of Redis is put there.
fn restore(text: &str, redis: &Redis) -> BTreeMap<String, String> {
    let fixture: Value = serde_json::from_str(text).unwrap();
    let script = "local bytes = string.gsub(ARGV[2], '..', function(hex) return string.char(tonumber(hex, 16)) end) \
                  return redis.call('RESTORE', KEYS[1], ARGV[1], bytes)";
    for entry in fixture["redis"].as_array().unwrap() {
        let (key, ttl) = (entry[0].as_str().unwrap(), entry[1].to_string());
        redis.tell(&["EVAL", script, "1", key, &ttl, entry[2].as_str().unwrap()]).unwrap();
    }
    let runs = fixture["runs"].as_object().unwrap();
    runs.iter().map(|(name, id)| (name.clone(), id.as_str().unwrap().to_owned())).collect()
}

fn trigger(admin: &Http, key: &str) -> (u16, Value) {
    // The payload is compared byte for byte.
    let body = format!(r#"{{"target":"crm","payload":{{"of": "{key}"}},"idempotency_key":"{key}"}}"#);
    let answer = admin.post("/v1/runs", &body);
    (answer.status, answer.expect(answer.status))
}

fn check(store: &str, redis: &Redis, runs: &BTreeMap<String, String>) {
    let sink = Sink::start();
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = {store:?}\n[ledger]\nretention = \"36500d\"\n\
         [gate]\nmode = \"on\"\nthreshold = 0\nbuffer = \"{}\"\n{}",
        redis.url(),
        target("crm", &sink, ""),
    );
    let path = folder.path().join("semel.toml");
    std::fs::write(&path, config).unwrap();
    let semel = Semel::with_config(&path, &[]);
    let admin = semel.admin();
    let id = |name: &str| runs[name].as_str();
    let run = |name: &str| admin.get(&format!("/v1/runs/{}", id(name))).expect(200);
    let over = || {
        let buffered = admin.get("/v1/runs?buffered=true").expect(200);
        buffered["tenants"].as_array().unwrap().is_empty()
    };
    wait::until("the buffer is drained", PATIENCE, over).unwrap();

    // Keys name the same runs as before.
    for (key, name) in [
        ("direct", "direct"),
        ("reset", "reset"),
        ("drained", "drained"),
        ("alias", "alias_winner"),
        ("buffered", "buffered"),
        ("cancelled", "cancelled"),
        ("buffered-reset", "buffered_reset"),
    ] {
        let (status, told) = trigger(&admin, key);
        assert_eq!((status, &told["id"]), (200, &json!(id(name))), "{key}");
    }
    // Expired keys are free, wherever their runs were.
    for (key, name) in [("expired", "expired"), ("buffered-expired", "buffered_expired")] {
        let (status, told) = trigger(&admin, key);
        assert_eq!((status, &told["cached"]), (202, &json!(false)), "{key}");
        assert_ne!(told["id"], json!(id(name)), "{key}");
        assert_eq!(run(name)["id"], json!(id(name)), "the run stays");
    }
    // Changes are there once, cancelled runs are not delivered, ids that were led to others still are.
    assert_eq!(
        (&run("drained")["metadata"], &run("buffered")["metadata"]),
        (&json!({ "n": 2 }), &json!({ "n": 3 }))
    );
    assert_eq!(run("buffered")["tags"], json!(["x"]));
    assert!(admin.get(&format!("/v1/runs/{}", id("keyless"))).text().contains("9007199254740993"));
    assert_eq!(run("alias")["id"], json!(id("alias_winner")));
    let delivered = ["buffered", "buffered_reset_first", "buffered_reset", "keyless", "buffered_expired"];
    wait::until("all are delivered", PATIENCE, || {
        delivered.iter().all(|name| run(name)["status"] == "done")
            && sink.effects().len() == delivered.len() + 2
    })
    .unwrap();
    assert_eq!(run("cancelled")["status"], "cancelled");
    let more = admin.send("PATCH", &format!("/v1/runs/{}", id("drained")), r#"{"increment":{"n":1}}"#);
    assert_eq!(more.expect(200)["metadata"], json!({ "n": 3 }));
    let ids: BTreeSet<&str> = runs.values().map(String::as_str).collect();
    assert_eq!(ids.len(), runs.len(), "no id is two runs");
}

#[test]
fn an_embedded_ledger_and_a_buffer_of_format_1_still_work() {
    let redis = Redis::start().unwrap();
    let runs = restore(include_str!("../../fixtures/format-1/embedded.json"), &redis);
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("semel.db"), EMBEDDED).unwrap();
    check(&format!("embedded:{}", data.display()), &redis, &runs);
}

#[test]
fn a_postgres_ledger_and_a_buffer_of_format_1_still_work() {
    let (redis, postgres) = (Redis::start().unwrap(), Postgres::start().unwrap());
    let runs = restore(include_str!("../../fixtures/format-1/postgres.json"), &redis);
    postgres.sql(POSTGRES).unwrap();
    check(&postgres.url(), &redis, &runs);
}
