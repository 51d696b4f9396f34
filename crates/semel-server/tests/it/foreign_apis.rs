//! Published idempotency packages, each in a small orders API in its own language, judged by `semel check --suite ietf`.
//!
//! The verdicts are pinned here and explained in `docs/howto/check-an-api.md`. `scripts/clients` installs the packages;
//! `tests/clients/apis` holds the servers. Each server counts its effects, so that the races have a second witness.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use serde_json::Value;

use crate::kit::{Http, PATIENCE, run};
use crate::real_clients::installed;

/// An orders API.
pub(crate) struct OrdersApi {
    child: Child,
    url: String,
}

impl OrdersApi {
    /// Starts `orders.py` or `orders.mjs` with this package, and waits until it listens.
    fn start(script: &str, package: &str) -> Self {
        let folder = installed();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/apis").join(script);
        let mut command = if script == "orders.py" {
            let mut python = Command::new(folder.join("venv/bin/python"));
            python.arg(path);
            python
        } else {
            let mut node = Command::new("node");
            node.arg(path).arg(folder);
            node
        };
        command.arg(package);
        Self::spawn(command)
    }

    /// Starts an orders API by this command, and waits until it listens.
    pub(crate) fn spawn(mut command: Command) -> Self {
        // It ends when its standard input does, so it ends even when the test is killed.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut api = Self { child, url: String::new() };
        let (tell, lines) = mpsc::channel();
        // Nobody listens after the first line.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        api.url = lines.recv_timeout(PATIENCE).expect("it starts within a minute");
        api
    }

    /// How often the request with the most effects took effect.
    fn most_effects(&self) -> u64 {
        let effects: Value =
            serde_json::from_str(&Http::new(&self.url).get("/effects").text()).expect("an object of numbers");
        let counts = effects.as_object().expect("an object").values();
        counts.map(|count| count.as_u64().expect("a number")).max().expect("orders were created")
    }
}

impl Drop for OrdersApi {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The steps with this grade, as `case/step`.
fn steps(report: &Value, grade: &str) -> Vec<String> {
    let steps = report["storyboards"][0]["steps"].as_array().expect("a list of steps");
    let name = |step: &Value, member: &str| step[member].as_str().expect("a name").to_owned();
    let graded = steps.iter().filter(|step| step["grade"] == grade);
    graded.map(|step| format!("{}/{}", name(step, "phase"), name(step, "step"))).collect()
}

/// Runs the suite against a package and compares the failed required steps (`failed`) and the other failed ones (`not_met`).
/// Returns how often the request with the most effects took effect.
fn judge(script: &str, package: &str, failed: &[&str], not_met: &[&str]) -> u64 {
    judge_api(&OrdersApi::start(script, package), package, failed, not_met)
}

/// As [`judge`], for an API that runs already.
pub(crate) fn judge_api(api: &OrdersApi, package: &str, failed: &[&str], not_met: &[&str]) -> u64 {
    let output = run(&[
        "check",
        "--suite",
        "ietf",
        "--target",
        &api.url,
        "--auth",
        "one",
        "--other-auth",
        "two",
        "--set",
        "flaky_path=/fails-once",
        "--set",
        "invalid_body={\"amount\": -1}",
        "--set",
        "other_path=/refunds",
        "--format",
        "json",
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(steps(&report, "failed"), failed, "{package}, required: {text}");
    assert_eq!(steps(&report, "not_met"), not_met, "{package}, recommended and optional: {text}");
    assert_eq!(output.status.code(), Some(i32::from(!failed.is_empty())), "{package}");
    api.most_effects()
}

// The control: without a package every request takes effect, and both witnesses see it.
#[test]
fn no_package() {
    let failed = [
        "replay/again",
        "conflict/refused",
        "race_10/racing",
        "race_100/racing",
        "conflict_in_flight/racing",
        "scope_isolation/own_conflict",
    ];
    for script in ["orders.py", "orders.mjs"] {
        let not_met =
            ["other_endpoint/refused", "bare_key/bare", "malformed_key/too_long", "policy/well_known"];
        assert_eq!(judge(script, "none", &failed, &not_met), 100, "{script}");
    }
}

// It keeps keys per client address unless it is told who calls.
#[test]
fn fastapi_idempotency() {
    let not_met = ["conflict/status", "bare_key/bare", "malformed_key/status", "policy/well_known"];
    let package = "fastapi-idempotency";
    assert_eq!(judge("orders.py", package, &["scope_isolation/same_request"], &not_met), 1);
    assert_eq!(judge("orders.py", "fastapi-idempotency, by caller", &[], &not_met), 1);
}

// It has no setting for the caller, so two callers share a key.
#[test]
fn fastapi_idempotency_key() {
    let not_met =
        ["replay/marked", "conflict/status", "bare_key/bare", "malformed_key/too_long", "policy/well_known"];
    let package = "fastapi-idempotency-key";
    assert_eq!(judge("orders.py", package, &["scope_isolation/same_request"], &not_met), 1);
}

// It stores the status and the JSON of an answer under the key alone: no headers, no request to compare with.
#[test]
fn asgi_idempotency_header() {
    let failed =
        ["replay/again", "conflict/refused", "conflict_in_flight/racing", "scope_isolation/same_request"];
    let not_met = [
        "other_query/queried",
        "other_endpoint/separate",
        "bare_key/bare",
        "error_release/retried",
        "malformed_key/too_long",
        "policy/well_known",
    ];
    assert_eq!(judge("orders.py", "asgi-idempotency-header", &failed, &not_met), 1);
}

// The application decides what it stores of an answer, and may give each caller a prefix; the README's example does neither.
#[test]
fn node_idempotency_core() {
    let package = "@node-idempotency/core";
    let failed = ["replay/again", "scope_isolation/same_request"];
    let not_met = [
        "conflict/status",
        "other_query/queried",
        "other_endpoint/refused",
        "bare_key/bare",
        "error_release/retried",
        "policy/well_known",
    ];
    assert_eq!(judge("orders.mjs", package, &failed, &not_met), 1);
    let package = "@node-idempotency/core, by caller, with Location";
    assert_eq!(judge("orders.mjs", package, &[], &[&["replay/marked"], &not_met[..]].concat()), 1);
}

// It stores only the content type of an answer's headers, and compares everything of a request but its caller.
#[test]
fn express_idempotency() {
    let failed = ["replay/again", "scope_isolation/same_request"];
    let not_met = [
        "conflict/status",
        "other_endpoint/refused",
        "bare_key/bare",
        "malformed_key/too_long",
        "policy/well_known",
    ];
    assert_eq!(judge("orders.mjs", "express-idempotency", &failed, &not_met), 1);
}
