//! `semel bench`: every store is measured, and nothing is left behind.

use rustix::process::{Pid, Signal, kill_process};
use semel_testbed::{Redis, wait};
use serde_json::Value;

use crate::kit::{PATIENCE, run, semel};

fn bench(args: &[&str]) -> Vec<Value> {
    let output = run(&[&["bench"], args, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_store_is_measured() {
    let measured = bench(&["all", "--keys", "400", "--bytes", "2000", "--callers", "8"]);
    let stores: Vec<&str> = measured.iter().map(|one| one["store"].as_str().unwrap()).collect();
    assert_eq!(stores, ["memory", "embedded", "redis", "postgres", "tiered"]);
    for one in &measured {
        for name in ["first_per_second", "answers_per_second", "first_p99_ms", "answer_p99_ms"] {
            assert!(one[name].as_f64().unwrap() > 0.0, "{name} in {one}");
        }
        // The outcome and the record around it.
        let bytes = one["bytes_per_key"].as_u64().unwrap();
        assert!((2_000..10_000).contains(&bytes), "{one}");
    }
    let table = run(&["bench", "memory", "--keys", "100"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(
        table.starts_with("STORE") && table.contains("100 keys, outcomes of 1024 bytes, 64 callers"),
        "{table}"
    );
}

#[test]
fn an_interrupted_bench_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().unwrap();
    let args = ["bench", "redis", "--redis", &redis.url(), "--keys", "100000000"];
    let mut child = semel().args(args).env("TMPDIR", folder.path()).spawn().unwrap();
    let keys = || redis.tell(&["DBSIZE"]).unwrap().text().parse::<u64>().unwrap();
    wait::until("keys are written", PATIENCE, || keys() > 10).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // A process of its own removes them, also after a kill.
    wait::until("the keys are removed", PATIENCE, || keys() == 0).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
