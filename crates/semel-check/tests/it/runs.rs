//! The suite `runs`, against the trigger API as it is designed, and against one that starts a new run each time.

use std::collections::HashMap;
use std::sync::Arc;

use http::Method;
use parking_lot::Mutex;
use semel_check::{Report, RunOptions, Runner, suite};
use serde_json::{Value, json};

use crate::kit::{Asked, Reply, Server, reply};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    Honoured,
    Ignored,
}

#[derive(Debug, Default)]
struct Runs {
    made: usize,
    /// What was asked, and the run it became.
    by_key: HashMap<String, (Value, String)>,
}

fn answer(runs: &Mutex<Runs>, keys: Keys, asked: &Asked) -> Reply {
    let body = asked.json();
    let mut runs = runs.lock();
    let problem =
        |status: u16, code: &str| reply(status, &[], &json!({"status": status, "code": code, "title": code}));
    if asked.method == Method::GET {
        let id = asked.path.rsplit('/').next().unwrap();
        return reply(200, &[], &json!({"id": id}));
    }
    if asked.path == "/v1/runs/reset-key" {
        runs.by_key.remove(body["key"].as_str().unwrap());
        return reply(200, &[], &json!({}));
    }
    let (header, inside) =
        (asked.header("idempotency-key"), body["idempotency_key"].as_str().map(str::to_owned));
    if header.is_some() && inside.is_some() && header != inside {
        return problem(400, "key_malformed");
    }
    let what = json!([body["target"], body["payload"]]);
    let key = header.or(inside).filter(|_| keys == Keys::Honoured);
    if let Some((known, id)) = key.as_ref().and_then(|key| runs.by_key.get(key)) {
        if *known != what {
            return problem(422, "conflict");
        }
        return reply(200, &[], &json!({"id": id, "cached": true, "buffered": false}));
    }
    runs.made += 1;
    let id = format!("run_{}", runs.made);
    if let Some(key) = key {
        runs.by_key.insert(key, (what, id.clone()));
    }
    reply(201, &[], &json!({"id": id, "cached": false, "buffered": false}))
}

async fn run(keys: Keys) -> Report {
    let runs = Arc::new(Mutex::new(Runs::default()));
    let server = Server::start(move |asked| {
        let runs = Arc::clone(&runs);
        async move { answer(&runs, keys, &asked) }
    })
    .await;
    let mut options = RunOptions::new(server.url());
    options.restart = Some("true".to_owned());
    Runner::new(options).unwrap().run(&[suite("runs").unwrap()], &|_| {}).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trigger_api_as_designed_passes() {
    let report = run(Keys::Honoured).await;
    assert_eq!(report.failed_cases(), Vec::<&str>::new(), "{}", semel_check::json(&report));
    assert_eq!(report.summary.skipped, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_ignores_keys_fails() {
    let report = run(Keys::Ignored).await;
    assert_eq!(report.failed_cases(), ["replay", "conflict", "key_in_body", "race_100", "crash_durability"]);
}
