//! Callers that wait for a run cost little, and there is an end to their number and their patience.

use std::time::Duration;

use semel_testbed::wait;
use serde_json::json;
use tokio::time::Instant;

use crate::kit::{PATIENCE, Semel, Upstream, metric};

/// A server whose only target answers when the upstream is opened.
fn start(upstream: &Upstream, limits: &str) -> (tempfile::TempDir, Semel) {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n[limits]\n{limits}\n\
         [[target]]\nname = \"slow\"\nurl = \"{}/slow\"\nconcurrency = 200\nretry = {{ timeout = \"60s\" }}\n",
        folder.path().join("data").display(),
        upstream.url(),
    );
    let file = folder.path().join("semel.toml");
    std::fs::write(&file, text).unwrap();
    let semel = Semel::with_config(&file, &[]);
    (folder, semel)
}

fn run(number: usize) -> String {
    json!({ "target": "slow", "payload": number }).to_string()
}

#[test]
fn a_wait_of_ten_years_is_refused_before_anything_is_triggered() {
    let upstream = Upstream::start();
    let (_folder, semel) = start(&upstream, "run_waiters = 2");
    let admin = semel.admin();
    for timeout in ["3650d", "301s"] {
        let path = format!("/v1/runs?wait=true&timeout={timeout}");
        let refused = admin.post(&path, &run(0)).expect(400);
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.contains("at most \"5m\"") && detail.contains("run_wait"), "{detail}");
    }
    assert_eq!(metric(&admin, "semel_run_wait_max_seconds"), 300.0);

    let waits: Vec<_> = (0..2)
        .map(|number| {
            let admin = admin.clone();
            std::thread::spawn(move || admin.post("/v1/runs?wait=true&timeout=1m", &run(number)))
        })
        .collect();
    wait::until("both wait", PATIENCE, || upstream.total() == 2).unwrap();
    assert_eq!(metric(&admin, "semel_run_waiters"), 2.0);
    let refused = admin.post("/v1/runs?wait=true", &run(2));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")), "{}", refused.text());
    assert_eq!(refused.json()["code"], "too_many_waiters");
    assert_eq!(metric(&admin, "semel_run_waiters_refused_total"), 1.0);
    assert_eq!(
        admin.get("/v1/runs").expect(200)["items"].as_array().unwrap().len(),
        2,
        "no run of the refused"
    );
    assert_eq!(admin.post("/v1/runs", &run(3)).status, 201, "without waiting it is taken");
    upstream.open();
    for wait in waits {
        assert_eq!(wait.join().unwrap().expect(201)["status"], "done");
    }
    wait::until("their places are free", PATIENCE, || metric(&admin, "semel_run_waiters") == 0.0).unwrap();
}

#[test]
fn a_hundred_waiters_do_not_keep_the_ledger_busy() {
    const WAITERS: usize = 100;
    const READS: &str = "semel_run_waiter_reads_total";
    let upstream = Upstream::start();
    let (_folder, semel) = start(&upstream, "");
    let admin = semel.admin();
    let waits: Vec<_> = (0..WAITERS)
        .map(|number| {
            let admin = admin.clone();
            std::thread::spawn(move || admin.post("/v1/runs?wait=true&timeout=1m", &run(number)))
        })
        .collect();
    wait::until("all are sent", PATIENCE, || upstream.total() == WAITERS).unwrap();
    let (began, before) = (Instant::now(), metric(&admin, READS));
    pass(Duration::from_secs(2));
    let reads = metric(&admin, READS) - before;
    // Pauses of 50, 100, 200, 400, 800 ms and then of a second; every 20 ms it would be 10000 reads.
    let most = WAITERS as f64 * (6.0 + began.elapsed().as_secs_f64());
    assert!(reads <= most, "{reads} reads for {WAITERS} waiters, not more than {most}");
    upstream.open();
    for wait in waits {
        assert_eq!(wait.join().unwrap().expect(201)["status"], "done");
    }
}

#[expect(clippy::disallowed_methods, reason = "reads are counted over real time")]
fn pass(time: Duration) {
    std::thread::sleep(time);
}
