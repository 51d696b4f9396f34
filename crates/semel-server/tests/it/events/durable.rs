//! How durable a 202 is: replicas that must have it, and data that Redis has lost.

use semel_testbed::{Redis, wait};
use serde_json::{Value, json};

use super::{Bench, target};
use crate::kit::{Http, PATIENCE, Sink, metric};

fn trigger(admin: &Http, key: &str) -> (u16, Value) {
    let body = json!({ "target": "crm", "payload": { "of": key }, "idempotency_key": key, "delay": "1h" });
    let answer = admin.post("/v1/runs", &body.to_string());
    (answer.status, answer.json())
}

fn gate(redis: &Redis, more: &str) -> String {
    format!("[gate]\nmode = \"on\"\nthreshold = 0\nbuffer = \"{}\"\ndrainers = 0\n{more}\n", redis.url())
}

// A run that too few replicas have is not answered with 202: the ledger takes it, under the same id.
#[test]
fn a_202_waits_for_the_replicas_that_it_needs() {
    let (primary, replica) = (Redis::start().unwrap(), Redis::start().unwrap());
    replica.replica_of(&primary).unwrap();
    let sink = Sink::start();
    // The process knows that the gate holds: a trigger buffers its run first, and claims its key if that fails.
    let settings = gate(&primary, "require_replicas = 1\nhold = \"1h\"");
    let bench = Bench::new(&[target("crm", &sink, ""), settings].concat());
    let semel = bench.start();
    let admin = semel.admin();
    let (status, replicated) = trigger(&admin, "replicated");
    assert_eq!(status, 202, "{replicated}");
    let about = replica.tell(&["KEYS", "semel:burst:*:about"]).unwrap().text();
    let there = replica.tell(&["HEXISTS", &about, replicated["id"].as_str().unwrap()]).unwrap().text();
    assert_eq!(there, "1", "the replica has it");
    replica.kill();
    let (status, alone) = trigger(&admin, "alone");
    assert_eq!((status, &alone["cached"]), (201, &json!(false)), "{alone}");
    let (status, again) = trigger(&admin, "alone");
    assert_eq!((status, &again["id"]), (200, &alone["id"]));
    let failed = metric(&admin, "semel_trigger_claims_total{outcome=\"failed_open\"}");
    assert_eq!(failed, 2.0, "too few replicas had the buffered run, and then its claim");
    // The run that only the primary has, and the one in the ledger, are one.
    drop(semel);
    bench.configure(
        &[target("crm", &sink, ""), gate(&primary, "").replace("drainers = 0", "drainers = 1")].concat(),
    );
    let semel = bench.start();
    let admin = semel.admin();
    let drained = || {
        let buffered = admin.get("/v1/runs?buffered=true").expect(200);
        buffered["tenants"].as_array().unwrap().is_empty()
    };
    wait::until("the buffer is drained", PATIENCE, drained).unwrap();
    assert_eq!(admin.get("/v1/runs").expect(200)["items"].as_array().unwrap().len(), 2);
    assert_eq!(metric(&admin, "semel_buffer_drained_total{outcome=\"collided\"}"), 0.0);
}

// A 202 is as durable as the Redis of the buffer. The warning spoke of claims and outcomes.
#[test]
fn a_buffer_that_can_lose_runs_is_reported_at_the_start() {
    let sink = Sink::start();
    let message = "the Redis server can lose data";
    let mut cases = Vec::new();
    for (save, appendonly, appendfsync) in
        [("", "no", "everysec"), ("3600 1", "no", "everysec"), ("", "yes", "everysec"), ("", "yes", "always")]
    {
        let redis = Redis::start().unwrap();
        for (name, value) in [("save", save), ("appendonly", appendonly), ("appendfsync", appendfsync)] {
            redis.config_set(name, value).unwrap();
        }
        let bench = Bench::new(&[target("crm", &sink, ""), gate(&redis, "")].concat());
        let semel = bench.start();
        // After Redis has answered.
        semel.logged("buffering bursts of triggers");
        let log = semel.log();
        let mut warnings: Vec<String> = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["message"] == message)
            .map(|line| line["warning"].as_str().unwrap().to_owned())
            .collect();
        assert!(warnings.len() <= 1, "once: {warnings:?}");
        cases.push(warnings.pop().unwrap_or_default());
    }
    assert_eq!(
        cases,
        [
            "Redis keeps nothing on disk: a restart loses all buffered runs that were answered with 202, and lost runs never \
             start",
            "Redis keeps snapshots only: a crash loses all buffered runs that were answered with 202 since the last one, and \
             lost runs never start",
            "Redis syncs its log once a second: a crash can lose the last seconds of buffered runs that were answered with \
             202",
            "",
        ]
    );
}

// The buffer's Redis comes back empty: that is seen, and a retry of the trigger starts a run that is not lost.
#[test]
fn lost_buffer_data_is_noticed() {
    let redis = Redis::start().unwrap();
    let sink = Sink::start();
    let bench = Bench::new(&[target("crm", &sink, ""), gate(&redis, "")].concat());
    let semel = bench.start();
    let admin = semel.admin();
    let (status, first) = trigger(&admin, "key");
    assert_eq!((status, metric(&admin, "semel_buffer_lost_data")), (202, 0.0));
    redis.tell(&["FLUSHALL"]).unwrap();
    wait::until("the loss is noticed", PATIENCE * 2, || metric(&admin, "semel_buffer_lost_data") == 1.0)
        .unwrap();
    let (status, second) = trigger(&admin, "key");
    assert_eq!((status, &second["cached"]), (202, &json!(false)), "{second}");
    assert_ne!(first["id"], second["id"]);
    assert_eq!(admin.get(&format!("/v1/runs/{}", first["id"].as_str().unwrap())).status, 404);
}
