//! Records that an earlier version wrote still answer: after an upgrade no key runs again, and nothing that was stored is lost.

use std::path::Path;

use semel_testbed::{Postgres, Redis};
use serde_json::{Value, json};

use crate::kit::{Semel, Upstream};

const EMBEDDED: &[u8] = include_bytes!("../fixtures/records-1/embedded.db");
const POSTGRES: &str = include_str!("../fixtures/records-1/postgres.sql");
const REDIS: &str = include_str!("../fixtures/records-1/redis.json");

fn check(folder: &Path, store: &str) {
    let upstream = Upstream::start();
    let config = format!(
        "secret = {{ env = \"SECRET\" }}\n[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n\
         [[route]]\nmatch = \"POST /**\"\nkey = {{ header = \"Idempotency-Key\", required = true }}\n\
         retention = \"3650d\"\nmemory = \"3650d\"\n",
        upstream.url()
    );
    let file = folder.join("semel.toml");
    std::fs::write(&file, config).unwrap();
    let semel = Semel::with_config(&file, &[("SECRET", "the secret of the fixtures")]);
    let send = |key: &str, path: &str, body: &str| {
        let client = semel.gateway().with("authorization", "Bearer shop").with("accept", "*/*");
        client.with("content-type", "application/json").with("idempotency-key", key).post(path, body)
    };
    let (same, other) = (r#"{"amount": 42}"#, r#"{"amount": 43}"#);

    for key in ["order-1", "order-2"] {
        let answer = send(key, "/v1/orders", same);
        assert_eq!(answer.header("idempotent-replayed"), Some("true"), "{key}: {}", answer.text());
        assert!(answer.expect(201)["id"].as_str().unwrap().starts_with("ch_"), "{}", answer.text());
        let refused = send(key, "/v1/orders", other);
        assert_eq!(
            (refused.status, &refused.json()["code"]),
            (422, &json!("conflict")),
            "{}",
            refused.text()
        );
    }
    let refused = send("doubt-1", "/lost", same);
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("in_doubt")), "{}", refused.text());
    assert_eq!(send("doubt-2", "/lost", same).expect(201), json!({ "id": "settled" }));
    let claim = |key: &str| {
        let claim = json!({ "namespace": "charge", "scope": "acct_1", "key": key });
        semel.admin().post("/v1/claims", &claim.to_string()).json()
    };
    let replayed = claim("w-2");
    assert_eq!((&replayed["status"], &replayed["outcome"]), (&json!("replay"), &json!({ "receipt": "r-1" })));
    assert_eq!(claim("w-1")["status"], "in_doubt");
    assert_eq!(upstream.total(), 0, "nothing ran again");

    // What operators see of them.
    let page = semel.admin().get("/v1/keys?limit=100").expect(200);
    let mut shown: Vec<(&str, &str)> = page["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (item["key"].as_str().unwrap(), item["phase"].as_str().unwrap()))
        .filter(|(key, _)| key.contains('-'))
        .collect();
    shown.sort_unstable();
    let expected = [
        ("doubt-1", "in_doubt"),
        ("doubt-2", "done"),
        ("order-1", "done"),
        ("order-2", "done"),
        ("w-1", "in_doubt"),
        ("w-2", "done"),
    ];
    assert_eq!(shown, expected);
    let request = |key: &str| {
        let items = page["items"].as_array().unwrap();
        items.iter().find(|item| item["key"] == key).unwrap()["request"]["request_id"].clone()
    };
    assert_eq!((request("order-1"), request("doubt-1")), (json!("r-1"), json!("r-3")));
}

#[test]
fn embedded_records_of_format_1_still_answer() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("semel.db"), EMBEDDED).unwrap();
    check(folder.path(), &format!("embedded:{}", data.display()));
}

#[test]
fn postgres_records_of_format_1_still_answer() {
    let (folder, postgres) = (tempfile::tempdir().unwrap(), Postgres::start().unwrap());
    postgres.sql(POSTGRES).unwrap();
    check(folder.path(), &postgres.url());
}

#[test]
fn redis_records_of_format_1_still_answer() {
    let (folder, redis) = (tempfile::tempdir().unwrap(), Redis::start().unwrap());
    let fixture: Value = serde_json::from_str(REDIS).unwrap();
    let script = "local bytes = string.gsub(ARGV[2], '..', function(hex) return string.char(tonumber(hex, 16)) end) \
                  return redis.call('RESTORE', KEYS[1], ARGV[1], bytes)";
    for entry in fixture["redis"].as_array().unwrap() {
        let (key, ttl) = (entry[0].as_str().unwrap(), entry[1].to_string());
        redis.tell(&["EVAL", script, "1", key, &ttl, entry[2].as_str().unwrap()]).unwrap();
    }
    check(folder.path(), &redis.url());
}
