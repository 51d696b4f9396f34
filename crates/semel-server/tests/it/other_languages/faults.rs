//! Faults of the network, of applications and of processes, and the limits of the claims API behind them.

use semel_testbed::wait;
use serde_json::{Value, json};

use super::{Compiled, python, repository, succeed, with_server};
use crate::kit::{Http, PATIENCE, Semel};
use crate::real_clients::installed;

#[test]
fn python_survives_faults() {
    let semel = Semel::start(&["--store", "memory:"]);
    let mut tests = with_server(python(), &semel);
    succeed(tests.args(["-m", "unittest", "faults"]).current_dir(repository("clients/python/tests")));
}

#[test]
fn typescript_survives_faults() {
    let (semel, compiled) = (Semel::start(&["--store", "memory:"]), Compiled::new());
    let mut tests = with_server(compiled.node(), &semel);
    tests.env("FOLDER", installed()).arg("--test").arg(repository("clients/typescript/tests/faults.mjs"));
    succeed(&mut tests);
}

/// A server that keeps outcomes of up to 1 KiB.
fn small_server(folder: &tempfile::TempDir) -> Semel {
    let config = folder.path().join("semel.toml");
    let text = "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\nmax_outcome = \"1KiB\"\n";
    std::fs::write(&config, text).unwrap();
    Semel::with_config(&config, &[])
}

#[track_caller]
fn claim(admin: &Http, body: &Value) -> Value {
    let mut body = body.clone();
    body["namespace"] = json!("limits");
    admin.post("/v1/claims", &body.to_string()).expect(200)
}

fn path(won: &Value, step: &str) -> String {
    format!("/v1/claims/{}/{step}", won["claim_id"].as_str().unwrap())
}

// The limit of a body follows that of an outcome, and a thousand claim ids were larger: all heartbeats of a busy worker failed.
#[test]
fn a_thousand_claims_are_renewed_in_one_call_whatever_the_limit_of_outcomes_is() {
    let folder = tempfile::tempdir().unwrap();
    let semel = small_server(&folder);
    let won = claim(&semel.admin(), &json!({ "key": "k" }));
    let ids = vec![&won["claim_id"]; 1_000];
    let renewed =
        semel.admin().post("/v1/claims/renew", &json!({ "claim_ids": ids }).to_string()).expect(200);
    let results = renewed["results"].as_array().unwrap();
    assert_eq!(results.len(), 1_000);
    assert!(results.iter().all(|one| one["result"]["status"] == "renewed"), "{}", results[0]);
}

#[test]
fn a_body_over_the_limit_is_a_problem_document_and_the_outcome_can_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let semel = small_server(&folder);
    let admin = semel.admin();
    let won = claim(&admin, &json!({ "key": "k", "mode": "keyed" }));
    assert_eq!(won["max_outcome"], 1024);
    let large = json!({ "outcome": "x".repeat(2 << 20) }).to_string();
    let problem = admin.post(&path(&won, "complete"), &large).expect(413);
    assert_eq!((problem["code"].as_str(), &problem["retryable"]), (Some("payload_too_large"), &json!(false)));
    let both = json!({ "outcome": 1, "not_kept": "it was streamed" }).to_string();
    admin.post(&path(&won, "complete"), &both).expect(400);
    let long = json!({ "not_kept": "x".repeat(1_001) }).to_string();
    admin.post(&path(&won, "complete"), &long).expect(400);
    let none = json!({ "not_kept": "it was streamed" }).to_string();
    for _ in 0..2 {
        assert_eq!(admin.post(&path(&won, "complete"), &none).expect(200)["status"], "done");
    }
    let replay = claim(&admin, &json!({ "key": "k", "mode": "keyed" }));
    assert_eq!(
        (replay["status"].as_str(), replay["not_kept"].as_str()),
        (Some("replay"), Some("it was streamed"))
    );
}

// `wait=false` answered 202 to every worker. One whose lease was over kept its own value while another one's was stored.
#[test]
fn a_completion_that_does_not_wait_is_refused_once_the_lease_is_over() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    let asked = json!({ "key": "k", "mode": "rerun", "begin": true, "lease": "100ms" });
    let late = claim(&admin, &asked);
    let mut again = asked;
    again["wait"] = json!("30s");
    again["lease"] = json!("30s");
    let winner = claim(&admin, &again);
    assert_eq!(winner["status"], "won", "{winner}");
    let done = admin.post(&path(&winner, "complete?wait=false"), r#"{"outcome": "winner"}"#).expect(202);
    assert_eq!(done["status"], "accepted");
    let stored = || claim(&admin, &json!({ "key": "k", "mode": "rerun" }))["status"] == "replay";
    wait::until("the outcome is stored", PATIENCE, stored).unwrap();
    let lost = admin.post(&path(&late, "complete?wait=false"), r#"{"outcome": "late"}"#).expect(409);
    assert_eq!((lost["code"].as_str(), lost["outcome"].as_str()), (Some("lost"), Some("winner")));
}

// Another server of the same store knows nothing of the lease: it asks the store, and says so with 200.
#[test]
fn a_server_that_did_not_grant_the_lease_stores_before_it_answers() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().join("data").display());
    let semel = Semel::start(&["--store", &store]);
    let won = claim(&semel.admin(), &json!({ "key": "k", "begin": true }));
    drop(semel);
    let semel = Semel::start(&["--store", &store]);
    let done = semel.admin().post(&path(&won, "complete?wait=false"), r#"{"outcome": 1}"#).expect(200);
    assert_eq!(done["status"], "done");
    // A renewal tells it.
    let won = claim(&semel.admin(), &json!({ "key": "other", "begin": true }));
    assert_eq!(
        semel.admin().post(&path(&won, "complete?wait=false"), r#"{"outcome": 1}"#).expect(202)["status"],
        "accepted"
    );
}
