//! Triggers in a burst: the process knows that the gate holds, and puts a run into the buffer without a claim beforehand. The ledger
//! changes between its look into it and its put.

use serde_json::{Value, json};

use semel_testbed::wait;

use super::{
    BUFFER_NONE, Deployment, NO_DRAINERS, buffer, dead_letters, id_of, post, post_and_wait, reset, runs,
    trigger,
};
use crate::kit::{Action, Direction, HoldingProxy, Http, PATIENCE, Semel, metric};

/// Every run is buffered, and a process knows that after its first one.
const BURST: &str = "mode = \"on\"\nthreshold = 0\nhold = \"1h\"\n";

/// A server that knows that the gate holds, and when Redis last answered it.
fn in_burst(deployment: &Deployment, proxy: &HoldingProxy, gate: &[&str]) -> Semel {
    let server = deployment.serve_by_redis(proxy, &[&[BURST, NO_DRAINERS], gate].concat());
    for key in ["warm-1", "warm-2"] {
        buffer(&server.admin(), &trigger(key, "warm"));
    }
    server
}

fn claims(admin: &Http, outcome: &str) -> f64 {
    metric(admin, &format!("semel_trigger_claims_total{{outcome=\"{outcome}\"}}"))
}

/// One trigger is about to put its run. Meanwhile `other` happens and answers with the run of the key. Answers what both were told.
fn held_put(
    late: &Semel,
    proxy: &HoldingProxy,
    key: &str,
    other: impl FnOnce() -> Value,
) -> (Value, u16, Value) {
    proxy.trap("marker", Direction::ToServer, Action::Hold);
    let admin = late.admin();
    std::thread::scope(|scope| {
        let late = scope.spawn(move || post(&admin, &trigger(key, "marker")));
        proxy.caught("the late one has read the ledger, and is about to put its run");
        let other = other();
        proxy.release();
        let late = late.join().unwrap();
        (late.json(), late.status, other)
    })
}

#[test]
fn a_put_in_a_burst_finds_the_run_that_was_drained_meanwhile() {
    let deployment = Deployment::new();
    let proxy = deployment.redis_proxy();
    let late = in_burst(&deployment, &proxy, &[]);
    let other = deployment.serve(&[BURST]);
    let admin = other.admin();
    wait::until("the first runs are drained", PATIENCE, || deployment.buffered() == 0).unwrap();
    for (key, payload) in [("k1", "marker"), ("k2", "another payload")] {
        let (late, status, first) = held_put(&late, &proxy, key, || {
            let first = post(&admin, &trigger(key, payload)).expect(202);
            wait::until("the run is drained", PATIENCE, || deployment.buffered() == 0).unwrap();
            first
        });
        if payload == "marker" {
            assert_eq!((&late["id"], &late["cached"]), (&first["id"], &json!(true)), "{late}");
        } else {
            assert_eq!((status, &late["code"]), (422, &json!("conflict")), "{late}");
        }
    }
    deployment.settle(&admin);
    assert_eq!((runs(&admin).len(), deployment.executed().len()), (4, 4));
    assert_eq!(dead_letters(&admin), Vec::<Value>::new());
}

#[test]
fn a_put_in_a_burst_finds_the_run_that_was_written_to_the_ledger_meanwhile() {
    let deployment = Deployment::new();
    let proxy = deployment.redis_proxy();
    let late = in_burst(&deployment, &proxy, &[]);
    let direct = deployment.serve(&[BUFFER_NONE]);
    let admin = direct.admin();
    let (told, _, first) = held_put(&late, &proxy, "k", || post(&admin, &trigger("k", "marker")).expect(201));
    assert_eq!((&told["id"], &told["cached"]), (&first["id"], &json!(true)), "{told}");
    let (told, _, first) =
        held_put(&late, &proxy, "w", || post_and_wait(&admin, &trigger("w", "marker")).expect(201));
    assert_eq!((&told["id"], &told["cached"]), (&first["id"], &json!(true)), "{told}");
    deployment.settle(&admin);
    assert_eq!((runs(&admin).len(), deployment.executed().len()), (4, 4));
    assert_eq!(dead_letters(&admin), Vec::<Value>::new());
}

// The owner of the reservation may write to the ledger at any time, so nobody may buffer a run of the key until then.
#[test]
fn a_trigger_in_a_burst_waits_for_a_run_that_is_about_to_be_written() {
    let deployment = Deployment::new();
    let (to_redis, to_postgres) = (deployment.redis_proxy(), deployment.postgres_proxy());
    let burst = in_burst(&deployment, &to_redis, &[]);
    let direct = deployment.serve_by_postgres(&to_postgres, &[BUFFER_NONE]);
    let (burst, admin) = (burst.admin(), direct.admin());
    let resolved = claims(&burst, "resolved");
    to_postgres.trap("marker", Direction::ToServer, Action::Hold);
    let (first, second) = std::thread::scope(|scope| {
        let writing = admin.clone();
        let first = scope.spawn(move || post(&writing, &trigger("k", "marker")).expect(201));
        to_postgres.caught("the run is about to be written to the ledger");
        let asked = burst.clone();
        let second = scope.spawn(move || post(&asked, &trigger("k", "marker")));
        let waits = || second.is_finished() || metric(&burst, "semel_trigger_waiters") > 0.5;
        wait::until("the second waits for the first, or is answered", PATIENCE, waits).unwrap();
        to_postgres.release();
        (first.join().unwrap(), second.join().unwrap().expect(200))
    });
    assert_eq!((&second["id"], &second["cached"]), (&first["id"], &json!(true)), "{second}");
    assert!((claims(&burst, "resolved") - resolved - 1.0).abs() < f64::EPSILON, "it is counted");
    // The reservation has ended: the next key is buffered again, and so is this one after a reset.
    assert_eq!(reset(&admin, "k")["id"], first["id"]);
    wait::until("a run of the key is buffered", PATIENCE, || {
        let told = post(&burst, &trigger("k", "marker"));
        told.status == 202 || told.status == 200
    })
    .unwrap();
    deployment.settle(&admin);
    assert_eq!((runs(&admin).len(), deployment.executed().len()), (4, 4));
}

// A reset ends the generation that the late one has read.
#[test]
fn a_put_in_a_burst_starts_again_after_a_reset() {
    let deployment = Deployment::new();
    let proxy = deployment.redis_proxy();
    let late = in_burst(&deployment, &proxy, &[]);
    let other = deployment.serve(&[BURST, NO_DRAINERS]);
    let admin = other.admin();
    let (told, status, second) = held_put(&late, &proxy, "k", || {
        assert_eq!(reset(&admin, "k")["reset"], false, "nobody has seen a run of the key");
        post(&admin, &trigger("k", "marker")).expect(202)
    });
    assert_eq!((status, &told["id"], &told["cached"]), (200, &second["id"], &json!(true)), "{told}");
    let drainer = deployment.serve(&[BURST]);
    deployment.settle(&drainer.admin());
    assert_eq!((runs(&admin).len(), deployment.executed().len()), (3, 3));
}

// Redis has the run, and its answer is lost: the run goes to the ledger under the same id.
#[test]
fn a_put_in_a_burst_without_an_answer_is_one_run() {
    let deployment = Deployment::new();
    let proxy = deployment.redis_proxy();
    let server = in_burst(&deployment, &proxy, &[]);
    let admin = server.admin();
    proxy.trap("marker", Direction::ToServer, Action::HoldReply);
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(move || post(&admin, &trigger("k", "marker")).json());
        proxy.caught("the run is buffered");
        wait::until("the process no longer waits for Redis", PATIENCE, || told.is_finished()).unwrap();
        proxy.release();
        told.join().unwrap()
    });
    assert_eq!(told["cached"], false, "{told}");
    let drainer = deployment.serve(&[BURST]);
    let admin = drainer.admin();
    deployment.settle(&admin);
    assert_eq!(deployment.executed().iter().filter(|body| body.contains("marker")).count(), 1);
    assert_eq!(runs(&admin).len(), 3);
    assert_eq!(id_of(&post(&admin, &trigger("k", "marker")).expect(200)), id_of(&told));
}

// The run of a put whose answer is lost moves to the ledger, and then its key is reset. If the trigger put its run again,
// under the new generation of the key, later triggers would be answered with a run from before the reset.
#[test]
fn a_put_without_an_answer_stays_in_its_generation() {
    // The trigger goes to the buffer again, or to the ledger, depending on how fast it has a new connection.
    for _ in 0..3 {
        let deployment = Deployment::new();
        let proxy = deployment.redis_proxy();
        let server = in_burst(&deployment, &proxy, &[]);
        let other = deployment.serve(&[BURST, NO_DRAINERS]);
        let (admin, other) = (server.admin(), other.admin());
        proxy.trap("marker", Direction::ToServer, Action::HoldReply);
        let (told, before) = std::thread::scope(|scope| {
            let told = scope.spawn(move || post(&admin, &trigger("k", "marker")).json());
            proxy.caught("the run is buffered");
            let before = post_and_wait(&other, &trigger("k", "marker")).expect(200);
            assert_eq!(reset(&other, "k")["id"], before["id"]);
            assert!(!told.is_finished(), "the trigger knows nothing yet");
            proxy.cut();
            (told.join().unwrap(), before)
        });
        assert_eq!((&told["id"], &told["cached"]), (&before["id"], &json!(false)), "{told}");
        let next = post(&other, &trigger("k", "marker")).expect(202);
        assert_eq!(next["cached"], false, "the first trigger after the reset: {next}");
        let drainer = deployment.serve(&[BURST]);
        deployment.settle(&drainer.admin());
        assert_eq!(deployment.executed().iter().filter(|body| body.contains("marker")).count(), 2);
        assert_eq!((runs(&other).len(), dead_letters(&other)), (4, Vec::new()));
    }
}

// It costs one call to Redis, and makes no claim.
#[test]
fn triggers_in_a_burst_are_counted_as_claims_and_make_none() {
    let deployment = Deployment::new();
    let proxy = deployment.redis_proxy();
    let server = in_burst(&deployment, &proxy, &[]);
    let admin = server.admin();
    let before =
        (claims(&admin, "won"), claims(&admin, "resolved"), deployment.redis_keys("*claims:{*").len());
    let ids: Vec<String> = (0..3).map(|n| buffer(&admin, &trigger(&format!("k{n}"), "payload"))).collect();
    assert_eq!(id_of(&post(&admin, &trigger("k0", "payload")).expect(200)), ids[0]);
    assert_eq!(post(&admin, &trigger("k0", "another payload")).status, 422);
    let after =
        (claims(&admin, "won"), claims(&admin, "resolved"), deployment.redis_keys("*claims:{*").len());
    assert_eq!(after, (before.0 + 3.0, before.1 + 1.0, before.2));
}
