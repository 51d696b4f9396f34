//! Changes of buffered runs: each acknowledged change is applied once, whichever process moves the run into the ledger.

use rustix::process::Signal;
use semel_testbed::{FaultProxy, wait};
use serde_json::{Value, json};

use super::{
    BUFFER_ALL, Deployment, NO_DRAINERS, buffer, cancel, dead_letters, id_of, increment, post, post_and_wait,
    runs, show, trigger,
};
use crate::kit::{Action, Direction, Http, PATIENCE};

/// Increments `n` of a run `times` times; every one must be acknowledged.
fn increments(admin: &Http, id: &str, count: usize) {
    for _ in 0..count {
        increment(admin, id).expect(200);
    }
}

// Promotion ignored that the run was cancelled.
#[test]
fn a_waiting_trigger_does_not_run_a_cancelled_run() {
    let deployment = Deployment::new();
    let server = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = server.admin();
    let id = buffer(&admin, &trigger("k", "cancelled"));
    assert_eq!(cancel(&admin, &id).expect(200)["status"], "cancelled");
    let told = post_and_wait(&admin, &trigger("k", "cancelled")).expect(200);
    assert_eq!(
        (&told["id"], &told["cached"], &told["status"]),
        (&json!(id), &json!(true), &json!("cancelled")),
        "{told}"
    );
    deployment.settle(&admin);
    assert_eq!(show(&admin, &id)["status"], "cancelled");
    assert_eq!(deployment.executed(), Vec::<String>::new());
}

// Promotion read the run, wrote it to the ledger and took it out of the buffer, with the changes that had come in between.
#[test]
fn a_change_during_a_promotion_is_not_lost() {
    let deployment = Deployment::new();
    let to_postgres = deployment.postgres_proxy();
    let promoting = deployment.serve_by_postgres(&to_postgres, &[BUFFER_ALL, NO_DRAINERS]);
    let other = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = other.admin();
    let id = buffer(&admin, &trigger("k", "marker"));
    increments(&admin, &id, 3);
    to_postgres.trap("marker", Direction::ToServer, Action::Hold);
    let asked = promoting.admin();
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(move || post_and_wait(&asked, &trigger("k", "marker")).json());
        to_postgres.caught("the run was read, and is about to be written to the ledger");
        increments(&admin, &id, 4);
        to_postgres.release();
        told.join().unwrap()
    });
    assert_eq!((&told["id"], &told["status"]), (&json!(id), &json!("done")), "{told}");
    deployment.settle(&admin);
    assert_eq!(show(&admin, &id)["metadata"]["n"], 7);
    assert_eq!(deployment.executed().len(), 1);
}

// A drainer held the run. Promotion wrote it to the ledger all the same, with its changes, and the drainer applied them again.
#[test]
fn a_promotion_while_a_drainer_holds_the_run_doubles_no_change() {
    let deployment = Deployment::new();
    let (drainer_proxy, promoter_proxy) = (deployment.redis_proxy(), deployment.redis_proxy());
    let promoting = deployment.serve_by_redis(&promoter_proxy, &[BUFFER_ALL, NO_DRAINERS]);
    let admin = promoting.admin();
    let id = buffer(&admin, &trigger("k", "marker"));
    increments(&admin, &id, 3);
    drainer_proxy.trap("marker", Direction::ToClient, Action::Hold);
    let _drainer = deployment.serve_by_redis(&drainer_proxy, &[BUFFER_ALL]);
    drainer_proxy.caught("the drainer has leased the run");
    promoter_proxy.trap("$4\r\nheld\r\n", Direction::ToClient, Action::Pass);
    let asked = admin.clone();
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(move || post_and_wait(&asked, &trigger("k", "marker")).json());
        let waits = || told.is_finished() || promoter_proxy.is_caught();
        wait::until("the caller waits for the drainer, or is answered", PATIENCE, waits).unwrap();
        drainer_proxy.release();
        told.join().unwrap()
    });
    assert_eq!((&told["id"], &told["status"]), (&json!(id), &json!("done")), "{told}");
    deployment.settle(&admin);
    assert_eq!(show(&admin, &id)["metadata"]["n"], 3);
    assert_eq!(deployment.executed().len(), 1);
}

/// A key with two runs: one was buffered, the other went to the ledger while Redis was down. Answers their ids.
fn two_runs_of_a_key(deployment: &Deployment, admin: &Http) -> (String, String) {
    let first = buffer(admin, &trigger("k", "marker"));
    increments(admin, &first, 3);
    deployment.redis.kill();
    let second = post(admin, &trigger("k", "marker")).expect(201);
    let second = id_of(&second);
    increments(admin, &second, 5);
    deployment.redis.restart().unwrap();
    let path = format!("/v1/runs/{first}");
    wait::until("Redis is used again", PATIENCE, || admin.get(&path).status == 200).unwrap();
    (first, second)
}

// The values of the run that lost its key were written over those of the winner: 5 increments acknowledged, 3 present.
#[test]
fn a_run_that_loses_its_key_leaves_the_winner_as_it_is() {
    let deployment = Deployment::new();
    let producer = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = producer.admin();
    let (first, second) = two_runs_of_a_key(&deployment, &admin);
    let drainer = deployment.serve(&[BUFFER_ALL]);
    deployment.settle(&drainer.admin());
    assert_eq!(show(&admin, &second)["metadata"], json!({ "n": 5 }), "the winner");
    let shown = show(&admin, &first);
    assert_eq!((&shown["id"], &shown["metadata"]), (&json!(first), &json!({ "n": 3 })), "the loser");
    assert_eq!((dead_letters(&admin).len(), deployment.executed().len()), (1, 1));
}

// Changes that came during such a collision had no numbers: when the drainer died before its acknowledgement, they were made again.
#[test]
fn changes_during_a_collision_are_made_once_though_the_drainer_dies() {
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let producer = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = producer.admin();
    let (first, second) = two_runs_of_a_key(&deployment, &admin);
    to_redis.trap("marker", Direction::ToClient, Action::Hold);
    let drainer = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL, "drainers = 1\n", "lease = \"2s\"\n"]);
    to_redis.caught("the drainer has leased the run");
    increments(&admin, &first, 1);
    to_redis.trap("$7\r\nchanged\r\n", Direction::ToClient, Action::Hold);
    to_redis.release();
    to_redis.caught("the drainer learns that the run was changed meanwhile");
    to_redis.trap(&first, Direction::ToServer, Action::Hold);
    to_redis.release();
    to_redis.caught("it has made the change, and is about to acknowledge it");
    drainer.kill();
    let successor = deployment.serve(&[BUFFER_ALL, "lease = \"2s\"\n"]);
    deployment.settle(&successor.admin());
    assert_eq!(show(&admin, &second)["metadata"]["n"], 5, "the winner");
    let shown = show(&admin, &first);
    assert_eq!((&shown["id"], &shown["metadata"]["n"]), (&json!(first), &json!(4)), "the loser");
    assert_eq!(runs(&admin).len(), 2);
}

// A change that comes while the run is on its way is kept in the buffer until the drainer takes it along. Its caller was shown the run
// of the ledger without it.
#[test]
fn a_change_is_seen_at_once_though_the_run_is_on_its_way() {
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let producer = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = producer.admin();
    let id = buffer(&admin, &trigger("k", "payload"));
    to_redis.trap(&id, Direction::ToServer, Action::Hold);
    let drainer = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL, "drainers = 1\n"]);
    to_redis.caught("the run is in the ledger, and is about to be acknowledged");
    for sum in 1..=3 {
        let told = increment(&admin, &id).expect(200);
        assert_eq!((&told["metadata"]["n"], &told["version"]), (&json!(sum), &json!(sum)), "{told}");
        assert_eq!(show(&admin, &id)["metadata"]["n"], sum);
    }
    to_redis.release();
    deployment.settle(&drainer.admin());
    let shown = show(&admin, &id);
    assert_eq!((&shown["metadata"]["n"], &shown["version"]), (&json!(3), &json!(3)), "{shown}");
}

// A caller is not told whether its change was made where Redis did not answer. It is not made a second time in the ledger.
#[test]
fn a_change_whose_answer_was_lost_is_not_made_twice() {
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let changing = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL, NO_DRAINERS]);
    let drainer = deployment.serve(&[BUFFER_ALL]);
    let admin = changing.admin();
    drainer.signal(Signal::STOP);
    let id = buffer(&admin, &trigger("k", "payload"));
    increments(&admin, &id, 1);
    to_redis.trap("marker", Direction::ToServer, Action::HoldReply);
    let path = format!("/v1/runs/{id}");
    let answer = std::thread::scope(|scope| {
        let asked =
            scope.spawn(|| admin.send("PATCH", &path, r#"{"increment":{"n":1},"metadata":{"marker":true}}"#));
        to_redis.caught("the change is on its way to the buffer");
        drainer.signal(Signal::CONT);
        wait::until("the run is drained", PATIENCE, || deployment.buffered() == 0).unwrap();
        asked.join().unwrap()
    });
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.header("retry-after").is_some());
    to_redis.release();
    deployment.settle(&drainer.admin());
    assert_eq!(show(&drainer.admin(), &id)["metadata"], json!({ "n": 2, "marker": true }));
}

// The same for a change that moves the run into the ledger: its acknowledgement may fail after the ledger has it.
#[test]
fn a_change_that_moved_its_run_is_made_once_though_the_acknowledgement_failed() {
    let deployment = Deployment::new();
    let (to_redis, to_postgres) = (deployment.redis_proxy(), deployment.postgres_proxy());
    let server = deployment.serve_at(
        &format!("redis://{}", to_redis.addr()),
        &deployment.postgres.url_at(to_postgres.addr(), "postgres"),
        &[BUFFER_ALL, NO_DRAINERS, "lease = \"1s\"\n"],
    );
    let other = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = server.admin();
    let id = buffer(&admin, &trigger("k", "marker"));
    to_postgres.trap("marker", Direction::ToServer, Action::Hold);
    let path = format!("/v1/runs/{id}");
    let answer = std::thread::scope(|scope| {
        let asked = scope.spawn(|| admin.send("PATCH", &path, r#"{"increment":{"n":1},"delay":"1h"}"#));
        to_postgres.caught("the run is about to be moved into the ledger");
        to_redis.trap(&id, Direction::ToServer, Action::HoldReply);
        to_postgres.release();
        to_redis.caught("the ledger has it, and it is about to be acknowledged");
        asked.join().unwrap()
    });
    let status = answer.status;
    assert!(matches!(status, 200 | 503), "{status} {}", answer.text());
    to_redis.release();
    assert_eq!(show(&other.admin(), &id)["metadata"]["n"], 1, "after {status}");
    let drainer = deployment.serve(&[BUFFER_ALL]);
    wait::until("the buffer is empty", PATIENCE, || deployment.buffered() == 0).unwrap();
    assert_eq!(show(&drainer.admin(), &id)["metadata"]["n"], 1);
    assert_eq!(cancel(&drainer.admin(), &id).expect(200)["status"], "cancelled", "it waits for its delay");
}

// The connection broke while PostgreSQL committed an increment, which was made a second time over the next connection.
#[test]
fn an_increment_is_made_once_though_its_commit_was_not_answered() {
    let deployment = Deployment::new();
    let to_postgres = FaultProxy::before(deployment.postgres.addr()).unwrap();
    let server = deployment.serve_at(
        &deployment.redis.url(),
        &deployment.postgres.url_at(to_postgres.addr(), "postgres"),
        &[BUFFER_ALL, NO_DRAINERS],
    );
    let other = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = server.admin();
    let mut run = trigger("k", "payload");
    run["delay"] = json!("1h");
    let id = id_of(&post_and_wait_shortly(&other.admin(), &run));
    let mut lost = 0;
    // The commit of something else may be the one that is not answered.
    for number in 0..20 {
        let dropped = to_postgres.counts().dropped_replies;
        to_postgres.drop_reply_to(b"COMMIT");
        let change = json!({ "increment": { format!("op{number}"): 1 } });
        let status = admin.send("PATCH", &format!("/v1/runs/{id}"), &change.to_string()).status;
        assert!(matches!(status, 200 | 503), "{status}");
        lost += usize::from(status == 503 && to_postgres.counts().dropped_replies > dropped);
        let made = show(&other.admin(), &id)["metadata"][format!("op{number}")].clone();
        assert!(made == json!(1) || status == 503 && made == Value::Null, "{number}: {made} after {status}");
        if lost == 3 {
            break;
        }
    }
    assert_eq!(lost, 3, "commits of increments were not answered");
}

/// A run goes into the ledger for a caller that does not wait long.
fn post_and_wait_shortly(admin: &Http, run: &Value) -> Value {
    admin.post("/v1/runs?wait=true&timeout=1ms", &run.to_string()).expect(201)
}
