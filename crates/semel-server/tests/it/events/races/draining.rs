//! Runs on their way from the buffer to the ledger, while they are cancelled or their keys are reset, and while processes die.

use rustix::process::Signal;
use semel_testbed::wait;
use serde_json::json;

use super::{
    BUFFER_ALL, BUFFER_NONE, Deployment, NO_DRAINERS, buffer, cancel, dead_letters, id_of, post, reset, runs,
    show, trigger,
};
use crate::kit::{Action, Direction, PATIENCE, metric};

// A drainer took cancelled runs into the ledger as live ones and cancelled them one by one afterwards: 294 of 300 were delivered.
#[test]
fn a_run_cancelled_in_the_buffer_is_never_delivered() {
    let deployment = Deployment::new();
    let producer = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = producer.admin();
    let ids: Vec<String> = (0..60).map(|n| buffer(&admin, &trigger(&format!("k{n}"), "cancelled"))).collect();
    for id in &ids {
        assert_eq!(cancel(&admin, id).expect(200)["status"], "cancelled");
    }
    let last = buffer(&admin, &trigger("last", "not cancelled"));
    let drainer = deployment.serve(&[BUFFER_ALL]);
    deployment.settle(&drainer.admin());
    let cancelled = ids.iter().filter(|id| show(&admin, id)["status"] == "cancelled").count();
    assert_eq!((cancelled, deployment.executed()), (ids.len(), vec!["\"not cancelled\"".to_owned()]));
    assert_eq!(show(&admin, &last)["status"], "done");
    assert_eq!(runs(&admin).len(), ids.len() + 1);
}

// The key was taken from the buffered run, but the drainer had read it with its key: whichever run came second to the ledger was
// an alias of the other, or a dead letter.
#[test]
fn a_reset_while_a_drainer_holds_the_run_lets_both_runs_execute() {
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let producer = deployment.serve(&[BUFFER_NONE, NO_DRAINERS]);
    let buffering = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = producer.admin();
    let first = buffer(&buffering.admin(), &trigger("k", "marker"));
    to_redis.trap("marker", Direction::ToClient, Action::Hold);
    let drainer = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL]);
    to_redis.caught("the drainer has leased the run");
    assert_eq!(deployment.leased(), 1);
    assert_eq!(reset(&admin, "k")["id"], json!(first));
    // It reaches the ledger before the first.
    let second = post(&admin, &trigger("k", "marker")).expect(201);
    assert_eq!(second["cached"], false);
    assert_ne!(second["id"], json!(first));
    to_redis.release();
    deployment.settle(&drainer.admin());
    assert_eq!(deployment.executed().len(), 2, "both runs execute");
    assert_eq!(dead_letters(&admin), Vec::<serde_json::Value>::new());
    for id in [first, id_of(&second)] {
        let shown = show(&admin, &id);
        assert_eq!((&shown["id"], &shown["status"]), (&json!(id), &json!("done")));
    }
    assert_eq!(post(&admin, &trigger("k", "marker")).expect(200)["id"], second["id"]);
}

// The other order: the drainer took the run in with its key after the reset, and a trigger before its acknowledgement was answered
// with the run that had lost the key.
#[test]
fn a_trigger_after_a_reset_never_gets_the_run_from_before_it() {
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let producer = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = producer.admin();
    let first = buffer(&admin, &trigger("k", "marker"));
    to_redis.trap("marker", Direction::ToClient, Action::Hold);
    let drainer = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL]);
    to_redis.caught("the drainer has leased the run");
    assert_eq!(reset(&admin, "k")["id"], json!(first));
    // The acknowledgement is the first that this process says of the run.
    to_redis.trap(&first, Direction::ToServer, Action::Hold);
    to_redis.release();
    to_redis.caught("the run is in the ledger, and is about to be acknowledged");
    assert_eq!(runs(&admin).len(), 1);
    let second = post(&admin, &trigger("k", "marker")).expect(202);
    assert_eq!(second["cached"], false);
    assert_ne!(second["id"], json!(first));
    // And once more, after it was taken in.
    assert_eq!(reset(&admin, "k")["id"], second["id"]);
    let third = post(&admin, &trigger("k", "marker")).expect(202);
    assert_eq!(third["cached"], false);
    to_redis.release();
    deployment.settle(&drainer.admin());
    assert_eq!(deployment.executed().len(), 3, "all three execute");
    assert_eq!(dead_letters(&admin), Vec::<serde_json::Value>::new());
    for id in [first, id_of(&second), id_of(&third)] {
        assert_eq!(show(&admin, &id)["id"], json!(id));
    }
    assert_eq!(post(&admin, &trigger("k", "marker")).expect(200)["id"], third["id"]);
}

// A drainer found the tenant empty. A run came, and announced a tenant that was still on the list. The drainer took the tenant off the
// list and died before it looked again: the run stayed where nobody looked until the tenant's next trigger.
#[test]
fn a_drainer_that_dies_while_a_tenant_leaves_the_list_strands_no_run() {
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let producer = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = producer.admin();
    let of_tenant = |key: &str| json!({ "target": "crm", "payload": key, "idempotency_key": key, "tenant": "tenant-of-the-race" });
    let drainer = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL, "drainers = 1\n", "lease = \"2s\"\n"]);
    // Once without a fault, so that Redis knows all scripts.
    buffer(&admin, &of_tenant("first"));
    let listed = || admin.get("/v1/runs?buffered=true").expect(200)["tenants"].as_array().unwrap().len();
    wait::until("the tenant has left the list", PATIENCE, || deployment.buffered() == 0 && listed() == 0)
        .unwrap();
    // The drainer names the tenant only where it takes it off the list.
    to_redis.trap("tenant-of-the-race", Direction::ToServer, Action::Hold);
    buffer(&admin, &of_tenant("second"));
    to_redis.caught("the drainer has found the tenant empty");
    assert_eq!(deployment.buffered(), 0);
    let third = buffer(&admin, &of_tenant("third"));
    // It cannot look again: Redis does what it said, and it does not hear of it.
    drainer.signal(Signal::STOP);
    to_redis.trap("", Direction::ToClient, Action::Hold);
    to_redis.release();
    to_redis.caught("Redis has answered");
    drainer.kill();
    let successor = deployment.serve(&[BUFFER_ALL, "lease = \"2s\"\n"]);
    let arrived = || show(&admin, &third)["buffered"] == false;
    wait::until("the run is drained without another trigger", PATIENCE / 4, arrived).unwrap();
    deployment.settle(&successor.admin());
    assert_eq!(deployment.executed(), ["\"first\"", "\"second\"", "\"third\""]);
}

// The run was written, and its tenant announced afterwards: a producer that died in between left a run that no drainer saw.
#[test]
fn a_producer_that_dies_around_its_announcement_strands_no_run() {
    let deployment = Deployment::new();
    // Each of its own tenant: another trigger would announce it.
    let of_tenant = |key: &str| {
        json!({ "target": "crm", "payload": key, "idempotency_key": key, "tenant": key }).to_string()
    };
    // The tenant, said after one of these, is announced. The last is said where the id is published, when the run is in the buffer.
    let announced = [":turns", ":announced"].map(|list| format!("{list}\r\n$15\r\nat-announcement\r\n"));
    let [turns, announced] = announced.each_ref().map(String::as_str);
    for (words, key) in [(&[turns, announced][..], "at-announcement"), (&["\"buffered\":"], "at-publication")]
    {
        let to_redis = deployment.redis_proxy();
        let producer = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL, NO_DRAINERS, "lease = \"1s\"\n"]);
        to_redis.trap_any(words, Direction::ToServer, Action::Hold);
        let (admin, body) = (producer.admin(), of_tenant(key));
        let asked = std::thread::spawn(move || admin.try_send("POST", "/v1/runs", &body).is_err());
        to_redis.caught("the moment has come");
        producer.kill();
        assert!(asked.join().unwrap(), "its caller has no answer");
    }
    let drainer = deployment.serve(&[BUFFER_ALL, "lease = \"1s\"\n"]);
    wait::until("all that was buffered is drained", PATIENCE / 4, || deployment.buffered() == 0).unwrap();
    let admin = drainer.admin();
    deployment.settle(&admin);
    // Who asks again gets a run in any case, and each key has one.
    for key in ["at-announcement", "at-publication"] {
        let told = admin.post("/v1/runs", &of_tenant(key));
        // 201 where the claim of the dead producer is taken over.
        assert!(matches!(told.status, 200..=202), "{} {}", told.status, told.text());
    }
    deployment.settle(&admin);
    assert_eq!(deployment.executed(), ["\"at-announcement\"", "\"at-publication\""]);
    assert_eq!(runs(&admin).len(), 2);
}

// drainer_stall: a drainer stands still with runs in its hands. The lag shows it, another one takes over after the lease, and the
// changes of a run keep their order. The first one goes on later and doubles nothing.
#[test]
fn drainer_stall_ends_with_its_lease_and_keeps_the_order_of_changes() {
    const LEASE: &str = "lease = \"2s\"\n";
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let producer = deployment.serve(&[BUFFER_ALL, LEASE, NO_DRAINERS]);
    let admin = producer.admin();
    let ids: Vec<String> =
        (0..5).map(|number| buffer(&admin, &trigger(&format!("k{number}"), "marker"))).collect();
    to_redis.trap("marker", Direction::ToClient, Action::Hold);
    let stalled = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL, LEASE]);
    to_redis.caught("the drainer has leased the runs");
    stalled.signal(Signal::STOP);
    assert!(deployment.leased() > 0);
    for value in 1..=5 {
        let change = json!({ "metadata": { "n": value } }).to_string();
        admin.send("PATCH", &format!("/v1/runs/{}", ids[0]), &change).expect(200);
    }
    let lag = || metric(&admin, "semel_buffer_oldest_seconds");
    wait::until("the lag is seen", PATIENCE, || lag() >= 1.0).unwrap();

    let other = deployment.serve(&[BUFFER_ALL, LEASE]);
    deployment.settle(&other.admin());
    assert_eq!(deployment.sink.calls(), ids.len(), "each run is sent once");
    assert_eq!(show(&admin, &ids[0])["metadata"], json!({ "n": 5 }), "the last change is the last");
    wait::until("the lag has ended", PATIENCE, || lag() == 0.0).unwrap();

    other.kill();
    stalled.signal(Signal::CONT);
    to_redis.release();
    let late = buffer(&admin, &trigger("late", "late"));
    deployment.settle(&stalled.admin());
    assert_eq!(show(&admin, &late)["status"], "done", "the stalled drainer works again");
    assert_eq!(deployment.sink.calls(), ids.len() + 1, "what it held is not sent again");
    assert_eq!(dead_letters(&admin), Vec::<serde_json::Value>::new());
}
