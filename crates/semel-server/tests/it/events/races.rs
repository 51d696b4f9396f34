//! Races of triggers, drainers, cancellations and resets, each at its exact moment: a proxy holds what a process says to Redis or to
//! PostgreSQL, and the others go on meanwhile.
//!
//! All of them ask the binary over HTTP, so that a test tells what callers see, whatever the code behind it looks like.

mod burst;
mod changes;
mod draining;
mod identity;
mod limits;
mod mixed;

use std::cell::Cell;

use semel_testbed::resp::Reply;
use semel_testbed::{Postgres, Redis, wait};
use serde_json::{Value, json};

use super::target;
use crate::kit::{Answer, HoldingProxy, Http, PATIENCE, Semel, Sink};

/// Every run is buffered, unless its caller waits for it.
const BUFFER_ALL: &str = "mode = \"on\"\nthreshold = 0\nhold = \"1ms\"\n";

/// No run is buffered. Claims are made all the same.
const BUFFER_NONE: &str = "mode = \"off\"\n";

/// This process drains nothing.
const NO_DRAINERS: &str = "drainers = 0\n";

/// Redis, PostgreSQL and a target that several servers share.
struct Deployment {
    redis: Redis,
    postgres: Postgres,
    sink: Sink,
    folder: tempfile::TempDir,
    servers: Cell<usize>,
}

impl Deployment {
    fn new() -> Self {
        Self {
            redis: crate::kit::durable_redis(),
            postgres: Postgres::start().unwrap(),
            sink: Sink::start(),
            folder: tempfile::tempdir().unwrap(),
            servers: Cell::new(0),
        }
    }

    /// Starts a server; `gate` are settings of `[gate]`, one a line.
    fn serve(&self, gate: &[&str]) -> Semel {
        self.serve_at(&self.redis.url(), &self.postgres.url(), gate)
    }

    /// The same, with a proxy before Redis.
    fn serve_by_redis(&self, redis: &HoldingProxy, gate: &[&str]) -> Semel {
        self.serve_at(&format!("redis://{}", redis.addr()), &self.postgres.url(), gate)
    }

    /// The same, with a proxy before PostgreSQL.
    fn serve_by_postgres(&self, postgres: &HoldingProxy, gate: &[&str]) -> Semel {
        self.serve_at(&self.redis.url(), &self.postgres.url_at(postgres.addr(), "postgres"), gate)
    }

    fn serve_at(&self, redis: &str, postgres: &str, gate: &[&str]) -> Semel {
        let number = self.servers.replace(self.servers.get() + 1);
        let file = self.folder.path().join(format!("semel-{number}.toml"));
        let text = format!(
            "drain = \"1s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{postgres}\"\n\
             [ledger]\nlease = \"2s\"\n{}\n[gate]\nbuffer = \"{redis}\"\n{}",
            target("crm", &self.sink, ""),
            gate.concat(),
        );
        std::fs::write(&file, text).unwrap();
        Semel::with_config(&file, &[])
    }

    fn redis_proxy(&self) -> HoldingProxy {
        HoldingProxy::before(self.redis.addr())
    }

    fn postgres_proxy(&self) -> HoldingProxy {
        HoldingProxy::before(self.postgres.addr())
    }

    /// The keys of Redis that match a pattern.
    fn redis_keys(&self, pattern: &str) -> Vec<String> {
        let Reply::Array(keys) = self.redis.tell(&["KEYS", pattern]).unwrap() else { return Vec::new() };
        keys.iter().map(Reply::text).collect()
    }

    /// How many runs are in the buffer, on the list of tenants or not.
    fn buffered(&self) -> i64 {
        self.redis_keys("*:about").iter().map(|key| self.size(&["HLEN", key])).sum()
    }

    /// How many runs a drainer holds.
    fn leased(&self) -> i64 {
        self.redis_keys("*:leased").iter().map(|key| self.size(&["ZCARD", key])).sum()
    }

    fn size(&self, command: &[&str]) -> i64 {
        match self.redis.tell(command).unwrap() {
            Reply::Int(size) => size,
            other => panic!("{command:?}: {other:?}"),
        }
    }

    /// Waits until nothing is buffered and nothing is left to deliver.
    #[track_caller]
    fn settle(&self, admin: &Http) {
        wait::until("the buffer is empty", PATIENCE, || self.buffered() == 0).unwrap();
        let open = "/v1/deliveries?state=idle,queued,running,retry_wait,replaying&limit=1";
        let none = || admin.get(open).expect(200)["items"].as_array().unwrap().is_empty();
        wait::until("nothing is left to deliver", PATIENCE, none).unwrap();
    }

    /// What the target took, sorted: each once, however often it was sent.
    fn executed(&self) -> Vec<String> {
        let seen = self.sink.seen();
        let mut taken: Vec<(String, String)> =
            seen.into_iter().map(|one| (one.key().to_owned(), one.body)).collect();
        taken.sort();
        taken.dedup();
        let mut bodies: Vec<String> = taken.into_iter().map(|(_, body)| body).collect();
        bodies.sort();
        bodies
    }
}

/// A trigger of a key with a payload.
fn trigger(key: &str, payload: &str) -> Value {
    json!({ "target": "crm", "payload": payload, "idempotency_key": key })
}

fn post(admin: &Http, run: &Value) -> Answer {
    admin.post("/v1/runs", &run.to_string())
}

/// The same, for a caller that waits for the run.
fn post_and_wait(admin: &Http, run: &Value) -> Answer {
    admin.post("/v1/runs?wait=true", &run.to_string())
}

/// Buffers a run, and answers its id.
#[track_caller]
fn buffer(admin: &Http, run: &Value) -> String {
    let answer = post(admin, run);
    let told = answer.expect(202);
    assert_eq!(told["cached"], false, "{told}");
    id_of(&told)
}

fn id_of(told: &Value) -> String {
    told["id"].as_str().unwrap_or_else(|| panic!("an id in {told}")).to_owned()
}

fn show(admin: &Http, id: &str) -> Value {
    admin.get(&format!("/v1/runs/{id}")).expect(200)
}

fn increment(admin: &Http, id: &str) -> Answer {
    admin.send("PATCH", &format!("/v1/runs/{id}"), r#"{"increment":{"n":1}}"#)
}

fn cancel(admin: &Http, id: &str) -> Answer {
    admin.post(&format!("/v1/runs/{id}/cancel"), "{}")
}

fn reset(admin: &Http, key: &str) -> Value {
    admin.post("/v1/runs/reset-key", &json!({ "target": "crm", "key": key }).to_string()).expect(200)
}

/// All runs in the ledger.
fn runs(admin: &Http) -> Vec<Value> {
    let (mut all, mut page) = (Vec::new(), admin.get("/v1/runs?limit=1000").expect(200));
    loop {
        all.extend(page["items"].as_array().unwrap().iter().cloned());
        let Some(next) = page["next"].as_str() else { return all };
        page = admin.get(&format!("/v1/runs?limit=1000&cursor={next}")).expect(200);
    }
}

fn dead_letters(admin: &Http) -> Vec<Value> {
    admin.get("/v1/dead-letters?status=pending&limit=1000").expect(200)["items"].as_array().unwrap().clone()
}
