//! The demo: it runs, its numbers add up, and it leaves nothing behind.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::kit::semel;

#[test]
fn the_demo_charges_every_key_once() {
    let temporary = tempfile::tempdir().unwrap();
    let output =
        semel().args(["demo", "--for", "4s", "--json"]).env("TMPDIR", temporary.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let numbers: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |name: &str| numbers[name].as_u64().unwrap_or_else(|| panic!("{name} in {numbers}"));
    assert!(of("keys") > 0, "{numbers}");
    assert_eq!((of("charges"), of("keys_charged_twice"), of("unexpected")), (of("keys"), 0, 0), "{numbers}");
    assert_eq!(of("requests"), of("first") + of("replays") + of("conflicts") + of("hung_up"), "{numbers}");
    // A client that hung up made a charge too, and saw it as a replay later.
    assert!(of("charges") <= of("first") + of("hung_up"), "{numbers}");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "its data is gone");
}

#[test]
fn the_demo_says_what_to_try() {
    let output = semel().args(["demo", "--for", "0s"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    for expected in ["curl -i http://127.0.0.1:", "Idempotency-Key: my-order-1", "one charge per key"] {
        assert!(said.contains(expected), "{expected} in {said}");
    }
}

#[test]
fn ctrl_c_ends_the_demo_and_removes_its_data() {
    let temporary = tempfile::tempdir().unwrap();
    let mut demo = semel();
    demo.arg("demo").env("TMPDIR", temporary.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut demo = demo.spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The first numbers: it runs.
    assert!(lines.any(|line| line.contains("requests")), "it shows numbers until it is told to stop");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 1);
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    assert!(lines.any(|line| line.contains("one charge per key")), "it ends with the verdict");
    assert!(demo.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "its data is gone");
}
