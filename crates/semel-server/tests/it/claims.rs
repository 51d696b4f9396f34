//! The claims API: its life cycle, repeated at every step, across crashes of the server.

use semel_testbed::wait;
use serde_json::{Value, json};

use crate::kit::{Http, PATIENCE, Semel};

fn claim(admin: &Http, more: &Value) -> Value {
    let mut body =
        json!({ "namespace": "charge", "scope": "acct_1", "key": "order-42", "payload": { "cents": 1200 } });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    admin.post("/v1/claims", &body.to_string()).expect(200)
}

fn step(admin: &Http, claim: &Value, step: &str, body: &str) -> crate::kit::Answer {
    let id = claim["claim_id"].as_str().unwrap();
    admin.post(&format!("/v1/claims/{id}/{step}"), body)
}

#[test]
fn a_claim_lives_and_is_replayed() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    let won = claim(&admin, &json!({}));
    assert_eq!(won["status"], "won");
    assert!(won["fence"].as_u64() > Some(0) && won["owner"].as_str().map(str::len) == Some(32), "{won}");
    assert_eq!(claim(&admin, &json!({}))["status"], "busy");
    assert_eq!(step(&admin, &won, "begin", "").expect(200)["status"], "begun");
    assert_eq!(step(&admin, &won, "renew", "").expect(200)["status"], "renewed");
    let outcome = r#"{"receipt": "r-1", "cents": 1200.50, "big": 123456789012345678901234567890}"#;
    let done = step(&admin, &won, "complete", &format!("{{\"outcome\": {outcome}}}"));
    assert_eq!(done.expect(200)["status"], "done");
    // The payload is compared as JSON: spelling does not count, values do.
    let body = r#"{"namespace":"charge","scope":"acct_1","key":"order-42","payload":{ "cents" : 1.2e3 }}"#;
    let replay = admin.post("/v1/claims", body);
    assert_eq!(replay.expect(200)["status"], "replay");
    assert!(replay.text().contains(outcome), "byte for byte: {}", replay.text());
    assert_eq!(claim(&admin, &json!({ "payload": { "cents": 1201 } }))["status"], "conflict");
    // Another scope is another key.
    assert_eq!(claim(&admin, &json!({ "scope": ["acct_1", "sub"] }))["status"], "won");
}

// Every step is repeated after kill -9 of the server, whose worker knows nothing of it.
#[test]
fn every_step_survives_a_crash_of_the_server_and_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().join("data").display());
    let start = || Semel::start(&["--store", &store]);
    let owner = json!({ "owner": "0f8fad5b-d9cb-469f-a165-70867728950e", "lease": "10m" });

    let semel = start();
    let first = claim(&semel.admin(), &owner);
    semel.kill();
    let semel = start();
    let again = claim(&semel.admin(), &owner);
    assert_eq!(
        (again["status"].as_str(), &again["fence"]),
        (Some("won"), &first["fence"]),
        "it knows itself"
    );
    assert_eq!(claim(&semel.admin(), &json!({}))["status"], "busy", "another owner does not");

    semel.kill();
    for (name, body, status) in [
        ("begin", "", "begun"),
        ("renew", "", "renewed"),
        ("complete", r#"{"outcome": {"receipt": "r-1"}}"#, "done"),
    ] {
        for time in ["first", "again"] {
            let semel = start();
            assert_eq!(
                step(&semel.admin(), &first, name, body).expect(200)["status"],
                status,
                "{name}, {time}"
            );
            semel.kill();
        }
    }
    let semel = start();
    let replay = claim(&semel.admin(), &json!({}));
    assert_eq!(
        (replay["status"].as_str(), &replay["outcome"]),
        (Some("replay"), &json!({ "receipt": "r-1" }))
    );
    // Another outcome under the same claim is refused, with the one that stands.
    let other = step(&semel.admin(), &first, "complete", r#"{"outcome": "other"}"#).expect(409);
    assert_eq!((other["code"].as_str(), &other["outcome"]), (Some("lost"), &json!({ "receipt": "r-1" })));
}

#[test]
fn a_release_frees_the_key_and_can_be_repeated() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    let owner = json!({ "owner": "0f8fad5bd9cb469fa16570867728950e" });
    let won = claim(&admin, &owner);
    for _ in 0..2 {
        assert_eq!(step(&admin, &won, "release", "").expect(200)["status"], "released");
    }
    // A late packet of that owner does not claim again.
    let body = json!({ "namespace": "charge", "scope": "acct_1", "key": "order-42", "payload": { "cents": 1200 },
                       "owner": "0f8fad5bd9cb469fa16570867728950e" });
    assert_eq!(admin.post("/v1/claims", &body.to_string()).expect(409)["code"], "lost");
    let next = claim(&admin, &json!({ "payload": "anything" }));
    assert_eq!(next["status"], "won");
    assert_eq!(step(&admin, &won, "release", "").expect(409)["code"], "lost");
    assert_eq!(step(&admin, &won, "begin", "").expect(409)["code"], "lost");
}

// A loser waits, pushed, and gets the outcome.
#[test]
fn a_waiting_claim_gets_the_outcome() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    let won = claim(&admin, &json!({}));
    let waiting = {
        let admin = admin.clone();
        std::thread::spawn(move || claim(&admin, &json!({ "wait": "30s" })))
    };
    step(&admin, &won, "complete", r#"{"outcome": 7}"#).expect(200);
    let waited = waiting.join().unwrap();
    assert_eq!((waited["status"].as_str(), &waited["outcome"]), (Some("replay"), &json!(7)));
}

#[test]
fn a_worker_that_vanished_is_taken_over_or_in_doubt_as_its_mode_says() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    for (mode, after) in [("marked", "in_doubt"), ("keyed", "won"), ("rerun", "won")] {
        let more =
            json!({ "mode": mode, "key": mode, "begin": true, "lease": "200ms", "provider": "acquirer" });
        let won = claim(&admin, &more);
        let mut last = Value::Null;
        wait::until(after, PATIENCE, || {
            last = claim(&admin, &more);
            last["status"] == after
        })
        .unwrap_or_else(|_| panic!("{last}"));
        if after == "won" {
            assert!(last["fence"].as_u64() > won["fence"].as_u64());
            // The same key for the receiver.
            assert_eq!(last["derived_key"], won["derived_key"]);
            assert_eq!(last["attempt"], 2);
            assert_eq!(step(&admin, &won, "complete", r#"{"outcome": 1}"#).expect(409)["code"], "lost");
        } else {
            // It comes back after all: the rules take its word.
            step(&admin, &won, "complete", r#"{"outcome": 1}"#).expect(200);
        }
    }
}

// What cannot be used is refused before the store is touched.
#[test]
fn bad_requests_are_refused_with_a_reason() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    for (body, expected) in [
        ("", "namespace"),
        ("{", "EOF"),
        (r#"{"namespace": "n"}"#, "key"),
        (r#"{"namespace": "", "key": "k"}"#, "namespace is empty"),
        (r#"{"namespace": "n", "key": "k", "scope": ""}"#, "scope part 1 is empty"),
        (r#"{"namespace": "n", "key": "k", "lease": "5"}"#, "duration"),
        (r#"{"namespace": "n", "key": "k", "mode": "atomic"}"#, "marked, keyed or rerun"),
        (r#"{"namespace": "n", "key": "k", "owner": "me"}"#, "32 random hex"),
        (r#"{"namespace": "n", "key": "k", "payload": 1, "fingerprint": "x"}"#, "not both"),
        (r#"{"namespace": "n", "key": "k", "payload": {"a": 1, "a": 2}}"#, "payload"),
        (r#"{"namespace": "n", "key": "k", "nope": 1}"#, "nope"),
        (r#"{"namespace": "n", "key": "k", "lease": "2h", "in_flight_max": "1h"}"#, "in_flight_max"),
    ] {
        let answer = admin.post("/v1/claims", body).expect(400);
        assert!(answer["detail"].as_str().unwrap().contains(expected), "{expected} in {answer}");
    }
    assert_eq!(admin.post("/v1/claims/made-up/begin", "").expect(404)["code"], "not_found");
    assert_eq!(admin.get("/v1/keys").expect(200)["items"], json!([]));
}

// One call less: the claim is the begin mark too, also where the same owner repeats it.
#[test]
fn a_claim_can_begin() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    let more = json!({ "begin": true, "lease": "200ms", "owner": "0f8fad5bd9cb469fa16570867728950e" });
    let won = claim(&admin, &more);
    assert_eq!(claim(&admin, &more)["fence"], won["fence"]);
    let key = won["key_id"].as_str().unwrap();
    let phase = || admin.get(&format!("/v1/keys/{key}")).expect(200)["phase"].clone();
    wait::until("its owner is lost after it began", PATIENCE, || phase() == "in_doubt").unwrap();
    assert_eq!(claim(&admin, &json!({ "begin": true }))["status"], "in_doubt");
}

// Its owner does not know what happened: callers that wait learn it now, not when the lease ends.
#[test]
fn an_abandoned_claim_is_in_doubt_or_taken_over_at_once() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    for (mode, after) in [("marked", "in_doubt"), ("keyed", "won"), ("rerun", "won")] {
        let more =
            json!({ "mode": mode, "key": mode, "begin": true, "lease": "10m", "in_flight_max": "10m" });
        let won = claim(&admin, &more);
        let waiting = {
            let (admin, mut more) = (admin.clone(), more.clone());
            more["wait"] = json!("30s");
            std::thread::spawn(move || claim(&admin, &more))
        };
        for _ in 0..2 {
            let answer = step(&admin, &won, "abandon", "");
            if answer.status == 409 {
                break; // the waiting caller has won meanwhile
            }
            assert_eq!(answer.expect(200)["status"], "abandoned");
        }
        assert_eq!(waiting.join().unwrap()["status"], after, "{mode}");
    }
}

// The answer comes before the store has the outcome; a server that is told to stop stores it first.
#[test]
fn a_completion_that_is_not_waited_for_is_stored_before_the_server_ends() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().join("data").display());
    let mut semel = Semel::start(&["--store", &store]);
    let admin = semel.admin();
    let claims: Vec<Value> = (0..50).map(|key| claim(&admin, &json!({ "key": key.to_string() }))).collect();
    for (number, won) in claims.iter().enumerate() {
        let done = step(&admin, won, "complete?wait=false", &format!("{{\"outcome\": {number}}}"));
        assert_eq!(done.expect(202)["status"], "accepted");
    }
    semel.signal(rustix::process::Signal::TERM);
    assert!(semel.wait().success());
    let semel = Semel::start(&["--store", &store]);
    for number in 0..claims.len() {
        let replay = claim(&semel.admin(), &json!({ "key": number.to_string() }));
        assert_eq!((replay["status"].as_str(), &replay["outcome"]), (Some("replay"), &json!(number)));
    }
    let answer = step(&semel.admin(), &claims[0], "complete?wait=maybe", "").expect(400);
    assert!(answer["detail"].as_str().unwrap().contains("true or false"), "{answer}");
}

// Also of work that goes on in a task of its own, during the request or after its answer.
#[test]
fn log_lines_about_claims_name_their_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let text = "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n[log]\nlevel = \"debug\"\n";
    std::fs::write(&file, text).unwrap();
    let semel = Semel::with_config(&file, &[]);
    let batch = json!({ "operations": [{ "claim": { "namespace": "n", "key": "1" } }] }).to_string();
    let won = semel.admin().with("x-request-id", "req-batch").post("/v1/claims/batch", &batch).expect(200);
    let early = semel.admin().with("x-request-id", "req-early");
    step(&early, &won["results"][0]["result"], "complete?wait=false", "{\"outcome\": 1}").expect(202);
    for (outcome, request) in [("won", "req-batch"), ("completed", "req-early")] {
        let field = format!("\"outcome\":\"{outcome}\"");
        semel.logged(&field);
        let log = semel.log();
        let line = log.lines().find(|line| line.contains(&field)).unwrap();
        assert!(line.contains(&format!("\"request_id\":\"{request}\"")), "{line}");
    }
}

#[test]
fn a_batch_answers_each_operation_as_its_own_call_would() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    let batch = |operations: Value| {
        let body = json!({ "operations": operations }).to_string();
        admin.post("/v1/claims/batch", &body).expect(200)["results"].clone()
    };
    let claims: Vec<Value> = (0..100)
        .map(|key| json!({ "claim": { "namespace": "n", "key": key.to_string(), "begin": true } }))
        .collect();
    let won = batch(json!(claims));
    let ids: Vec<&str> =
        won.as_array().unwrap().iter().map(|one| one["result"]["claim_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 100);
    let renewed = admin.post("/v1/claims/renew", &json!({ "claim_ids": [ids[0], "x", ids[1]] }).to_string());
    let renewed = renewed.expect(200)["results"].clone();
    assert_eq!(renewed[0]["result"]["status"], "renewed");
    assert_eq!(renewed[1]["problem"]["code"], "not_found");
    assert_eq!(renewed[2]["result"]["status"], "renewed");
    let mixed = batch(json!([
        { "begin": { "claim_id": ids[0] } },
        { "complete": { "claim_id": ids[1], "outcome": { "n": 1.50 } } },
        { "release": { "claim_id": ids[2] } },
        { "abandon": { "claim_id": ids[3] } },
        { "renew": { "claim_id": ids[4] } },
        { "claim": { "namespace": "n", "key": "5" } },
        { "claim": { "namespace": "", "key": "5" } },
    ]));
    for (place, status) in ["begun", "done", "released", "abandoned", "renewed", "busy"].iter().enumerate() {
        assert_eq!(mixed[place]["result"]["status"], *status, "{mixed}");
    }
    assert_eq!(
        (&mixed[6]["problem"]["code"], &mixed[6]["problem"]["status"]),
        (&json!("bad_request"), &json!(400))
    );
    assert_eq!(
        batch(json!([{ "claim": { "namespace": "n", "key": "1" } }]))[0]["result"]["outcome"]["n"],
        1.5
    );
    // What came too late says what stands.
    let late = batch(json!([{ "complete": { "claim_id": ids[1], "outcome": 2 } }]));
    assert_eq!(
        (&late[0]["problem"]["code"], &late[0]["problem"]["outcome"]["n"]),
        (&json!("lost"), &json!(1.5))
    );
    let many = json!({ "operations": vec![json!({ "renew": { "claim_id": "x" } }); 1001] }).to_string();
    admin.post("/v1/claims/batch", &many).expect(400);
}

// A thousand outcomes of a megabyte each would be a gigabyte. What does not fit is repeated, and nothing is lost.
#[test]
fn the_answer_to_a_batch_is_bounded() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    let outcome = "x".repeat(1_000_000);
    for key in 0..20 {
        let won =
            claim(&admin, &json!({ "namespace": "n", "scope": [], "key": key.to_string(), "payload": null }));
        step(&admin, &won, "complete", &json!({ "outcome": outcome }).to_string()).expect(200);
    }
    let ask = |keys: &[usize]| {
        let claims: Vec<Value> =
            keys.iter().map(|key| json!({ "claim": { "namespace": "n", "key": key.to_string() } })).collect();
        let answer = admin.post("/v1/claims/batch", &json!({ "operations": claims }).to_string());
        answer.expect(200)["results"].as_array().unwrap().clone()
    };
    // Key 20 is new.
    let mut left: Vec<usize> = (0..=20).collect();
    let mut rounds = 0;
    while !left.is_empty() {
        let results = ask(&left);
        let mut repeat = Vec::new();
        for (key, result) in left.iter().zip(&results) {
            if *key == 20 {
                assert_eq!(result["result"]["status"], "won", "it has no outcome");
            } else if result["problem"].is_object() {
                let problem = &result["problem"];
                assert_eq!(
                    (&problem["code"], &problem["retryable"]),
                    (&json!("batch_too_large"), &json!(true))
                );
                repeat.push(*key);
            } else {
                assert_eq!(result["result"]["status"], "replay");
                assert_eq!(result["result"]["outcome"].as_str().map(str::len), Some(outcome.len()));
            }
        }
        rounds += 1;
        assert_eq!(repeat.len(), if rounds == 1 { 4 } else { 0 }, "16 of a little more than a megabyte fit");
        left = repeat;
    }
    assert_eq!(rounds, 2);
}

// The hot cache answers claims too. An operator's command ends that at once.
#[test]
fn a_replay_from_memory_ends_when_an_operator_forgets_the_key() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    let won = claim(&admin, &json!({ "retention": "1h" }));
    step(&admin, &won, "complete", r#"{"outcome": 7}"#).expect(200);
    for _ in 0..3 {
        let replay = claim(&admin, &json!({}));
        assert_eq!((&replay["status"], &replay["outcome"]), (&json!("replay"), &json!(7)));
        assert_ne!(replay["expires_in"], "10s", "the retention, not the age of the cache: {replay}");
        assert_eq!(claim(&admin, &json!({ "payload": 1 }))["status"], "conflict");
    }
    let path = format!("/v1/keys/{}/forget", won["key_id"].as_str().unwrap());
    admin.post(&path, r#"{"reason": "test"}"#).expect(200);
    assert_eq!(claim(&admin, &json!({ "payload": 1 }))["status"], "won");
}
