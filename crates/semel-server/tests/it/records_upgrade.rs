//! Records that an earlier version wrote still answer: after an upgrade no key runs again, and nothing that was stored is lost.

use std::path::Path;

use rustix::process::Signal;
use semel_testbed::{Postgres, Redis, wait};
use serde_json::{Value, json};

use crate::kit::{Answer, PATIENCE, Semel, Upstream, semel};

const EMBEDDED: &[u8] = include_bytes!("../fixtures/records-1/embedded.db");
pub(crate) const POSTGRES: &str = include_str!("../fixtures/records-1/postgres.sql");
const POSTGRES_2: &str = include_str!("../fixtures/records-2/postgres.sql");
const EXPORT: &str = include_str!("../fixtures/records-2/export-1.jsonl");
const SECRET: &str = "the secret of the fixtures";
const REDIS: &str = include_str!("../fixtures/records-1/redis.json");

fn serve(folder: &Path, store: &str, upstream: &Upstream) -> Semel {
    let config = format!(
        "secret = {{ env = \"SECRET\" }}\n[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n\
         [[route]]\nmatch = \"POST /**\"\nkey = {{ header = \"Idempotency-Key\", required = true }}\n\
         lease = \"1s\"\nretention = \"3650d\"\nmemory = \"3650d\"\n",
        upstream.url()
    );
    let file = folder.join("semel.toml");
    std::fs::write(&file, config).unwrap();
    Semel::with_config(&file, &[("SECRET", SECRET)])
}

/// A request as the fixtures have it.
fn send(semel: &Semel, key: &str, path: &str, body: &str) -> Answer {
    let client = semel.gateway().with("authorization", "Bearer shop").with("accept", "*/*");
    client.with("content-type", "application/json").with("idempotency-key", key).post(path, body)
}

fn check(folder: &Path, store: &str) {
    let upstream = Upstream::start();
    let semel = serve(folder, store, &upstream);
    let send = |key: &str, path: &str, body: &str| send(&semel, key, path, body);
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
fn postgres_tables_of_format_2_still_answer() {
    let (folder, postgres) = (tempfile::tempdir().unwrap(), Postgres::start().unwrap());
    postgres.sql(POSTGRES_2).unwrap();
    assert_eq!(postgres.sql("SELECT number FROM semel.meta WHERE name = 'format'").unwrap(), "2");
    check(folder.path(), &postgres.url());
}

#[test]
fn an_export_of_format_1_can_be_imported() {
    let (folder, redis) = (tempfile::tempdir().unwrap(), Redis::start().unwrap());
    let file = folder.path().join("export.jsonl");
    std::fs::write(&file, EXPORT).unwrap();
    let config = store_config(folder.path(), &redis.url());
    move_records(&["store", "import", file.to_str().unwrap(), &config]);
    check(folder.path(), &redis.url());
}

/// Writes the records of the table in the README of `records-1`.
fn fill(folder: &Path, store: &str) {
    let upstream = Upstream::start();
    let mut semel = serve(folder, store, &upstream);
    let requests = [
        ("order-1", "/v1/orders", "r-1"),
        ("order-2", "/v1/orders", "r-2"),
        ("doubt-1", "/lost", "r-3"),
        ("doubt-2", "/lost", "r-4"),
    ];
    for (key, path, request_id) in requests {
        let client = semel.gateway().with("authorization", "Bearer shop").with("accept", "*/*");
        let client = client.with("content-type", "application/json").with("idempotency-key", key);
        client.with("x-request-id", request_id).post(path, r#"{"amount": 42}"#);
    }
    let admin = semel.admin();
    for key in ["w-1", "w-2"] {
        let claim = json!({ "namespace": "charge", "scope": "acct_1", "key": key, "lease": "1s" });
        let won = admin.post("/v1/claims", &claim.to_string()).expect(200);
        let step = |name: &str, body: &str| {
            let id = won["claim_id"].as_str().unwrap();
            admin.post(&format!("/v1/claims/{id}/{name}"), body).expect(200);
        };
        step("begin", "");
        if key == "w-2" {
            step("complete", r#"{"outcome": {"receipt": "r-1"}, "retention": "3650d"}"#);
        }
    }
    let in_doubt = || admin.get("/v1/keys?phase=in_doubt").expect(200)["items"].as_array().unwrap().clone();
    wait::until("three keys are in doubt", PATIENCE, || in_doubt().len() == 3).unwrap();
    let lost = in_doubt().into_iter().find(|item| item["key"] == "doubt-2").unwrap();
    let settled =
        json!({ "reason": "looked it up", "outcome": { "status": 201, "body": { "id": "settled" } } });
    admin
        .post(&format!("/v1/keys/{}/settle", lost["id"].as_str().unwrap()), &settled.to_string())
        .expect(200);
    semel.signal(Signal::TERM);
    assert!(semel.wait().success());
}

#[test]
#[ignore = "writes the fixtures of the present version into the folder SEMEL_PLACE"]
fn write_fixtures() {
    let place = std::env::var("SEMEL_PLACE").expect("the place is named");
    let (folder, postgres) = (tempfile::tempdir().unwrap(), Postgres::start().unwrap());
    fill(folder.path(), &postgres.url());
    let dump = std::process::Command::new("pg_dump")
        .args(["--inserts", "--no-owner", "--no-comments", "--schema=semel", "-f"])
        .args([format!("{place}/postgres.sql"), postgres.url()])
        .status();
    assert!(dump.expect("pg_dump runs").success());
    let config = store_config(folder.path(), &postgres.url());
    move_records(&["store", "export", &config, &format!("{place}/export-1.jsonl")]);
}

/// The config file of a store with the secret of the fixtures.
fn store_config(folder: &Path, store: &str) -> String {
    let file = folder.join("store.toml");
    std::fs::write(&file, format!("secret = {{ env = \"SECRET\" }}\n[store]\nurl = \"{store}\"\n")).unwrap();
    file.to_str().unwrap().to_owned()
}

fn move_records(args: &[&str]) {
    let moved = semel().args(args).env("SECRET", SECRET).output().unwrap();
    assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
}

/// Puts the records of format 1 into a Redis.
pub(crate) fn restore_redis(redis: &Redis) {
    let fixture: Value = serde_json::from_str(REDIS).unwrap();
    let script = "local bytes = string.gsub(ARGV[2], '..', function(hex) return string.char(tonumber(hex, 16)) end) \
                  return redis.call('RESTORE', KEYS[1], ARGV[1], bytes)";
    for entry in fixture["redis"].as_array().unwrap() {
        let (key, ttl) = (entry[0].as_str().unwrap(), entry[1].to_string());
        redis.tell(&["EVAL", script, "1", key, &ttl, entry[2].as_str().unwrap()]).unwrap();
    }
}

#[test]
fn redis_records_of_format_1_still_answer() {
    let (folder, redis) = (tempfile::tempdir().unwrap(), Redis::start().unwrap());
    restore_redis(&redis);
    check(folder.path(), &redis.url());
}
