//! The drills, as anybody runs them.

use serde_json::Value;

use crate::kit::run;

/// Runs drills. What each said.
fn drill(words: &[&str]) -> (std::process::Output, Vec<Value>) {
    let output = run(&[&["drill"], words, &["--json"]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output, told)
}

/// Runs one that must go well. Its checks.
fn passes(name: &str) -> Vec<String> {
    let (output, told) = drill(&[name]);
    assert!(output.status.success(), "{told:?}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["passed"], true, "{}", told[0]);
    // With a PostgreSQL there is nothing to be said of weaker forms.
    assert_eq!(told[0]["notes"], serde_json::json!([]), "{}", told[0]);
    let checks = told[0]["checks"].as_array().unwrap();
    checks.iter().map(|check| check["checked"].as_str().unwrap().to_owned()).collect()
}

fn has(checks: &[String], what: &str) -> bool {
    checks.iter().any(|check| check.contains(what))
}

// What needs neither exact moments nor several processes.
#[test]
fn every_plain_drill_passes_and_says_what_it_checked() {
    for name in [
        "target-down",
        "broken-credentials",
        "replay-dead-letter",
        "duplicate-messages",
        "mutations-while-buffered",
        "reset-while-buffered",
    ] {
        assert!(passes(name).len() >= 2, "{name}");
    }
}

#[test]
fn a_cold_gate_burst_goes_through_three_processes_by_default() {
    let checks = passes("cold-gate-burst");
    assert!(has(&checks, "through 3 processes") && has(&checks, "the gate closed"), "{checks:?}");
}

#[test]
fn a_drainer_is_killed_with_runs_in_its_hands() {
    assert!(has(&passes("drainer-killed"), "killed while it held runs"));
}

#[test]
fn a_winner_crashes_while_others_wait() {
    assert!(has(&passes("winner-crashes"), "were waiting for it when it was killed"));
}

#[test]
fn a_publish_is_lost_wherever_the_run_is() {
    let checks = passes("publish-lost");
    assert!(has(&checks, "in the ledger when") && has(&checks, "in the buffer when"), "{checks:?}");
}

#[test]
fn a_key_is_reset_while_its_run_is_drained() {
    assert!(has(&passes("reset-while-draining"), "a drainer holds the run"));
}

#[test]
fn redis_goes_at_claim_at_wait_and_at_accept() {
    let checks = passes("redis-down");
    for moment in
        ["at claim:", "at wait:", "at accept: the run does not reach", "at accept: the run is buffered"]
    {
        assert!(has(&checks, moment), "{moment} {checks:?}");
    }
}

#[test]
fn the_database_goes_while_it_is_drained_to() {
    assert!(has(&passes("database-down"), "no attempt was used up"));
}

// A drill that cannot take place is an error by its name, and is never said to have passed.
#[test]
fn what_is_not_installed_is_said() {
    let empty = tempfile::tempdir().unwrap();
    let output = crate::kit::semel()
        .args(["drill", "mutations-while-buffered", "--json"])
        .env("PATH", empty.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["passed"], Value::Null, "{told}");
    assert!(told["skipped"].as_str().unwrap().contains("redis-server"), "{told}");
}

// A drill can fail, and tells its caller: this Redis is a read-only replica, so nothing can be buffered.
#[test]
fn a_drill_on_a_redis_that_takes_no_writes_fails() {
    let redis = semel_testbed::Redis::start().unwrap();
    redis.tell(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let (output, told) = drill(&["reset-while-buffered", "--redis", &redis.url()]);
    assert_eq!((output.status.code(), told.len()), (Some(1), 1), "{told:?}");
    assert_eq!(told[0]["passed"], false, "{told:?}");
}

// Nothing is started for a server that does not answer, and the error shows no password.
#[test]
fn drills_and_benchmarks_ask_the_named_servers_first() {
    for (words, named) in [
        (["drill", "reset-while-buffered"], ["--redis", "redis://:hunter2@127.0.0.1:1"]),
        (["drill", "publish-lost"], ["--postgres", "postgres://ann:hunter2@127.0.0.1:1/semel"]),
        (["bench", "redis"], ["--redis", "redis://:hunter2@127.0.0.1:1"]),
        (["bench", "postgres"], ["--postgres", "postgres://ann:hunter2@127.0.0.1:1/semel"]),
    ] {
        let output = run(&[words, named].concat());
        let [out, err] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert!(!output.status.success() && out.is_empty(), "{words:?}: {out}");
        assert!(err.contains(named[0]) && err.contains("127.0.0.1:1") && !err.contains("hunter2"), "{err}");
    }
}

#[test]
fn an_unknown_drill_lists_them() {
    let output = run(&["drill", "nothing"]);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    for name in ["target-down", "cold-gate-burst", "winner-crashes", "publish-lost", "database-down"] {
        assert!(text.contains(name), "{text}");
    }
}
