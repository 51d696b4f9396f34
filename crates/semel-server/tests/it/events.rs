//! Events and deliveries, on the real binary.

mod accepted;
mod bad;
mod dead;
mod delivered;
mod drained;
mod durable;
mod envelopes;
mod killed;
mod openapi;
mod operate;
mod outage;
mod paused;
mod poison;
mod races;
mod replays;
mod rounds;
mod runs;
mod shared;
mod streams;
mod target_control;
mod triggers;
mod upgrade;

use serde_json::{Value, json};

use crate::kit::{Http, Semel, Sink};

/// A server with targets, in a folder that outlives it.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    /// `config` is what stands behind the listeners and the store.
    fn new(config: &str) -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        bench.configure(config);
        bench
    }

    fn configure(&self, config: &str) {
        let text = format!(
            "drain = \"5s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n{config}\n",
            self.folder.path().join("data").display(),
        );
        std::fs::write(self.folder.path().join("semel.toml"), text).unwrap();
    }

    fn start(&self) -> Semel {
        self.start_with(&[])
    }

    fn start_with(&self, env: &[(&str, &str)]) -> Semel {
        Semel::with_config(&self.folder.path().join("semel.toml"), env)
    }
}

/// A `[[target]]` that gets everything, and gives up soon: after one round of attempts.
fn target(name: &str, sink: &Sink, more: &str) -> String {
    scheduled_target(name, sink, &format!("schedule = []\n{more}"))
}

/// The same with the default schedule, unless `more` has another.
fn scheduled_target(name: &str, sink: &Sink, more: &str) -> String {
    format!(
        "[[target]]\nname = \"{name}\"\nurl = \"{}\"\n\
         retry = {{ max_attempts = 3, base = \"20ms\", cap = \"100ms\", timeout = \"5s\" }}\n{more}\n",
        sink.url()
    )
}

fn event(event_type: &str, key: &str) -> Value {
    json!({ "type": event_type, "dedupe_key": key, "payload": { "key": key } })
}

fn publish(admin: &Http, event: &Value) -> String {
    let answer = admin.post("/v1/events", &event.to_string()).expect(201);
    answer["id"].as_str().unwrap().to_owned()
}

/// How many deliveries are in this state.
fn count(admin: &Http, state: &str) -> usize {
    let page = admin.get(&format!("/v1/deliveries?state={state}&limit=1000")).expect(200);
    page["items"].as_array().unwrap().len()
}
