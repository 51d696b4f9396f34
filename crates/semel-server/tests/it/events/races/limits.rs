//! What is bounded and counted: waits, retry rounds, and the numbers that operators read.

use rustix::process::Signal;
use semel_testbed::wait;
use serde_json::{Value, json};

use super::{BUFFER_ALL, Deployment, NO_DRAINERS, buffer, cancel, id_of, post, runs, show, trigger};
use crate::kit::{Action, Direction, Http, PATIENCE, metric, run, semel};

fn claims(admin: &Http, outcome: &str) -> f64 {
    metric(admin, &format!("semel_trigger_claims_total{{outcome=\"{outcome}\"}}"))
}

// Longer than a claim can last, every wait failed with an error that was taken for an outage of Redis, and the trigger went on without a
// claim.
#[test]
fn a_wait_longer_than_a_claim_is_refused_by_the_config_check() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let text = |wait: &str| {
        format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n\
             [gate]\nmode = \"on\"\nbuffer = \"redis://127.0.0.1:1\"\nwait = \"{wait}\"\n",
            folder.path().join("data").display()
        )
    };
    std::fs::write(&file, text("1m")).unwrap();
    let path = file.display().to_string();
    assert!(run(&["config", "check", &path]).status.success(), "the longest that a claim can last");
    for wait in ["61s", "2m"] {
        std::fs::write(&file, text(wait)).unwrap();
        let told_by = |output: &std::process::Output| {
            let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{wait}: {told}");
            assert!(told.contains("wait: expected at most 60s"), "{wait}: {told}");
        };
        told_by(&run(&["config", "check", &path]));
        told_by(&semel().arg("serve").arg("--config").arg(&file).output().unwrap());
    }
}

// It is told to come back, and the claim is not bypassed: there is one run.
#[test]
fn a_wait_that_ends_is_answered_with_503_and_counted() {
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let owner = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL, NO_DRAINERS]);
    let waiting = deployment.serve(&[BUFFER_ALL, "wait = \"200ms\"\n"]);
    let (owner, admin) = (owner.admin(), waiting.admin());
    to_redis.trap("marker", Direction::ToServer, Action::Hold);
    let first = std::thread::scope(|scope| {
        let first = scope.spawn(move || post(&owner, &trigger("k", "marker")).expect(202));
        to_redis.caught("the owner of the claim is about to buffer its run");
        for path in ["/v1/runs", "/v1/runs?wait=true"] {
            let told = admin.post(path, &trigger("k", "marker").to_string());
            let problem = told.expect(503);
            assert_eq!(problem["code"], "in_flight", "{path}: {problem}");
            assert_eq!(problem["detail"], "idempotency claim resolution timed out", "{path}");
            let after = told.header("retry-after").unwrap().parse::<u64>().unwrap();
            assert!((1..=60).contains(&after), "{path}: {after}");
        }
        to_redis.release();
        first.join().unwrap()
    });
    let counted = ["timed_out", "waited", "won", "failed_open"].map(|outcome| claims(&admin, outcome));
    assert_eq!(counted, [2.0, 2.0, 0.0, 0.0], "timed_out, waited, won, failed_open");
    assert_eq!(post(&admin, &trigger("k", "marker")).expect(200)["id"], first["id"]);
    deployment.settle(&admin);
    assert_eq!((runs(&admin).len(), deployment.executed().len()), (1, 1));
}

// A trigger that started again and again went to the ledger without the claim in the end, and nothing counted it.
#[test]
fn a_trigger_that_never_gets_the_claim_does_not_bypass_it() {
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let server = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL, NO_DRAINERS]);
    let admin = server.admin();
    buffer(&admin, &trigger("k", "payload"));
    // Redis loses the run and not its claim, and the claim comes back whenever it is forgotten.
    let [claim] = &deployment.redis_keys("*claims:{*")[..] else { panic!("one claim") };
    deployment.redis.tell(&["COPY", claim, "a-copy"]).unwrap();
    for key in deployment.redis_keys("semel:burst:{*") {
        deployment.redis.tell(&["DEL", &key]).unwrap();
    }
    let asked = admin.clone();
    let told = std::thread::scope(|scope| {
        to_redis.trap("forget\r\n", Direction::ToServer, Action::HoldReply);
        let told = scope.spawn(move || post(&asked, &trigger("k", "payload")));
        loop {
            let goes_on = || told.is_finished() || to_redis.is_caught();
            wait::until("the claim is forgotten, or the trigger is answered", PATIENCE, goes_on).unwrap();
            if told.is_finished() {
                return told.join().unwrap();
            }
            deployment.redis.tell(&["COPY", "a-copy", claim, "REPLACE"]).unwrap();
            to_redis.trap("forget\r\n", Direction::ToServer, Action::HoldReply);
            to_redis.release();
        }
    });
    let problem = told.expect(503);
    assert_eq!(problem["detail"], "idempotency claim resolution timed out", "{problem}");
    assert!(told.header("retry-after").is_some());
    let counted = ["timed_out", "failed_open"].map(|outcome| claims(&admin, outcome));
    assert_eq!(counted, [1.0, 0.0], "timed_out, failed_open");
    assert!(claims(&admin, "lost") >= 1.0, "the lost run is counted");
    assert_eq!(runs(&admin), Vec::<Value>::new(), "nothing went past the claim");
}

// A caller that cancels a run that a drainer holds is told to retry, and the run is not cancelled behind its back.
#[test]
fn a_cancellation_of_a_run_in_transit_is_answered_with_503() {
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let producer = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = producer.admin();
    let id = buffer(&admin, &trigger("k", "marker"));
    to_redis.trap("marker", Direction::ToClient, Action::Hold);
    // What is held for longer than Redis may take is lost: the run is drained when the lease has expired.
    let drainer = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL, "drainers = 1\n", "lease = \"4s\"\n"]);
    to_redis.caught("the drainer has leased the run");
    drainer.signal(Signal::STOP);
    let told = cancel(&admin, &id);
    assert_eq!(told.expect(503)["code"], "in_transit");
    assert!(told.header("retry-after").is_some());
    drainer.signal(Signal::CONT);
    to_redis.release();
    deployment.settle(&admin);
    assert_eq!((show(&admin, &id)["status"].clone(), deployment.executed().len()), (json!("done"), 1));
}

// Callers come one after the other, so every number is known.
#[test]
fn buffer_gauges_and_claim_counters_are_exact() {
    let deployment = Deployment::new();
    let to_postgres = deployment.postgres_proxy();
    let server = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = server.admin();
    let of = |tenant: &str, key: &str| json!({ "target": "crm", "payload": "marker", "idempotency_key": key, "tenant": tenant });
    let mut ids = Vec::new();
    for (tenant, count) in [("a", 4), ("b", 3)] {
        ids.extend((0..count).map(|n| buffer(&admin, &of(tenant, &format!("k{n}")))));
    }
    for again in 0..2 {
        assert_eq!(id_of(&post(&admin, &of("a", "k0")).expect(200)), ids[0], "retry {again}");
    }
    let conflict = json!({ "target": "crm", "payload": 2, "idempotency_key": "k0", "tenant": "a" });
    assert_eq!(post(&admin, &conflict).status, 422);
    let claimed = ["won", "resolved", "waited", "timed_out", "failed_open", "unpublished", "lost"]
        .map(|outcome| claims(&admin, outcome));
    assert_eq!(claimed, [7.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let placed =
        ["buffer", "ledger"].map(|to| metric(&admin, &format!("semel_triggers_total{{to=\"{to}\"}}")));
    assert_eq!(placed, [7.0, 0.0]);
    let decided = ["tenant", "room", "global", "failed_open"]
        .map(|why| metric(&admin, &format!("semel_gate_decisions_total{{reason=\"{why}\"}}")));
    assert_eq!(decided, [7.0, 0.0, 0.0, 0.0]);
    // A server counts what is buffered when it starts, and then now and then.
    let depth_is = |expected: [f64; 2]| {
        let server = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
        let watching = server.admin();
        let depth =
            || ["queued", "in_transit"].map(|part| metric(&watching, &format!("semel_buffer_{part}")));
        wait::until("the buffer is counted", PATIENCE, || depth() == expected)
            .unwrap_or_else(|_| panic!("{:?} instead of {expected:?}", depth()));
        metric(&watching, "semel_buffer_oldest_seconds")
    };
    assert!(depth_is([7.0, 0.0]) > 0.0);
    // A drainer holds a batch of the tenant whose turn it is.
    to_postgres.trap("marker", Direction::ToServer, Action::Hold);
    let drainer = deployment.serve_by_postgres(&to_postgres, &[BUFFER_ALL, "drainers = 1\n", "batch = 2\n"]);
    to_postgres.caught("the drainer has leased a batch");
    assert!(depth_is([5.0, 2.0]) > 0.0);
    to_postgres.release();
    deployment.settle(&admin);
    let drains = ["drained", "collided", "dead", "given_back", "reclaimed", "refused_change", "failure"].map(
        |outcome| metric(&drainer.admin(), &format!("semel_buffer_drained_total{{outcome=\"{outcome}\"}}")),
    );
    assert_eq!(drains, [7.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert!(depth_is([0.0, 0.0]).abs() < f64::EPSILON);
    assert_eq!(deployment.executed().len(), 7);
}
