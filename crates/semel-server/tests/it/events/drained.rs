//! Bursts of many tenants are buffered and drained while servers are killed: every accepted run arrives once, with all its
//! changes. In full form: `./scripts/prove drain`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use semel_testbed::{Postgres, Redis, wait};
use serde_json::json;

use super::target;
use crate::kit::{Http, PATIENCE, Semel, Sink};

fn in_full() -> bool {
    std::env::var_os("SEMEL_PROVE").is_some()
}

/// What callers were told.
#[derive(Default)]
struct Told {
    accepted: BTreeSet<String>,
    /// How often `n` of a run was raised, and acknowledged.
    raised: BTreeMap<String, u64>,
}

// G12, G13: 200,000 triggers of 50 tenants, drainers killed.
#[test]
fn every_accepted_run_arrives_once_with_all_its_changes() {
    let (runs, tenants, servers) = if in_full() { (200_000, 50, 3) } else { (1_200, 6, 2) };
    let (redis, postgres, sink) = (Redis::start().unwrap(), Postgres::start().unwrap(), Sink::start());
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "drain = \"2s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\n[ledger]\nlease = \"2s\"\n{}\n\
         [gate]\nmode = \"on\"\nthreshold = 5\nwindow = \"1s\"\nhold = \"1s\"\nbuffer = \"{}\"\nlease = \"2s\"\nbatch = 50\n\
         capacity = 1000000\n",
        postgres.url(),
        target("crm", &sink, ""),
        redis.url(),
    );
    let file = folder.path().join("semel.toml");
    std::fs::write(&file, text).unwrap();
    let running: Vec<Mutex<Semel>> =
        (0..servers).map(|_| Mutex::new(Semel::with_config(&file, &[]))).collect();
    let told = Mutex::new(Told::default());
    let threads = 16;
    let done = &Mutex::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (running, told) = (&running, &told);
            scope.spawn(move || {
                for number in (thread..runs).step_by(threads) {
                    burst(&running[number % servers], number, number % tenants, told);
                }
                *done.lock() += 1;
            });
        }
        // One is killed every two seconds, in turn.
        let mut next = 0;
        while wait::until("all are triggered", Duration::from_secs(2), || *done.lock() == threads).is_err() {
            let mut victim = running[next % servers].lock();
            next += 1;
            std::mem::replace(&mut *victim, Semel::with_config(&file, &[])).kill();
        }
        println!("{next} kills while {runs} runs were triggered");
    });
    let Told { accepted, raised } = told.into_inner();
    assert!(accepted.len() > runs / 2, "most were accepted: {}", accepted.len());
    let admin = running[0].lock().admin();
    let empty = || admin.get("/v1/runs?buffered=true").expect(200)["tenants"].as_array().unwrap().is_empty();
    wait::until("all are drained", PATIENCE * 20, empty).unwrap();
    let mut seen = BTreeSet::new();
    let mut page = admin.get("/v1/runs?limit=1000").expect(200);
    loop {
        for run in page["items"].as_array().unwrap() {
            assert!(seen.insert(run["id"].as_str().unwrap().to_owned()), "{run} is there twice");
        }
        let Some(next) = page["next"].as_str() else { break };
        page = admin.get(&format!("/v1/runs?limit=1000&cursor={next}")).expect(200);
    }
    let missing: Vec<&String> = accepted.difference(&seen).take(3).collect();
    assert!(missing.is_empty(), "{missing:?} of {} accepted, {} seen", accepted.len(), seen.len());
    for (run, raised) in raised {
        let shown = admin.get(&format!("/v1/runs/{run}")).expect(200);
        let stands = shown["metadata"]["n"].as_u64().unwrap_or(0);
        assert!(stands >= raised, "{run}: {stands} instead of {raised}");
    }
}

/// Triggers one run, and changes some of them.
fn burst(server: &Mutex<Semel>, number: usize, tenant: usize, told: &Mutex<Told>) {
    let body = json!({
        "target": "crm", "payload": number, "tenant": format!("tenant-{tenant}"),
        "idempotency_key": format!("run-{number}"), "delay": "1h",
    });
    let ask = |method: &str, path: &str, body: &str| {
        let admin: Http = server.lock().admin();
        let answer =
            admin.try_send(method, path, body).ok().filter(|answer| (200..300).contains(&answer.status))?;
        let status = answer.status;
        Some(answer.expect(status))
    };
    // The answer may be lost with its server: then whether it was accepted is not known, and not asked.
    let Some(answer) = ask("POST", "/v1/runs", &body.to_string()) else { return };
    let id = answer["id"].as_str().unwrap().to_owned();
    told.lock().accepted.insert(id.clone());
    if number.is_multiple_of(50) {
        for _ in 0..3 {
            if ask("PATCH", &format!("/v1/runs/{id}"), r#"{"increment":{"n":1}}"#).is_some() {
                *told.lock().raised.entry(id.clone()).or_default() += 1;
            }
        }
    }
}
