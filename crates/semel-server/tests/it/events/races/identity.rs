//! Which run a key names: one id for each generation of a key, and no id for two runs.

use std::sync::Barrier;

use rustix::process::Signal;
use semel_testbed::wait;
use serde_json::{Value, json};

use super::{
    BUFFER_ALL, BUFFER_NONE, Deployment, NO_DRAINERS, buffer, dead_letters, id_of, post, post_and_wait,
    reset, runs, show, trigger,
};
use crate::kit::{Action, Direction, PATIENCE, metric, run};

const WAITERS: &str = "semel_trigger_waiters";

/// LeaseResult where a claim is asked for: by script, or without one.
const CLAIM: [&str; 2] = ["$5\r\nclaim\r\n", "$2\r\nNX\r\n$3\r\nGET\r\n"];

// A caller that waits for its run wrote to the ledger without a claim: the run of another caller, which was about to be buffered, was a
// second one.
#[test]
fn a_waiting_trigger_gets_the_run_that_another_is_about_to_buffer() {
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let buffering = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL, NO_DRAINERS]);
    let waiting = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    to_redis.trap("marker", Direction::ToServer, Action::Hold);
    let (one, other) = (buffering.admin(), waiting.admin());
    let told = std::thread::scope(|scope| {
        let first = scope.spawn(move || post(&one, &trigger("k", "marker")).json());
        to_redis.caught("the run is about to be buffered");
        let asked = other.clone();
        let second = scope.spawn(move || post_and_wait(&asked, &trigger("k", "marker")).json());
        let waits = || second.is_finished() || metric(&other, WAITERS) > 0.5;
        wait::until("the second waits for the first, or is answered", PATIENCE, waits).unwrap();
        to_redis.release();
        [first.join().unwrap(), second.join().unwrap()]
    });
    assert_eq!(told[0]["id"], told[1]["id"], "one id: {told:?}");
    assert_eq!(told.iter().filter(|told| told["cached"] == false).count(), 1, "one was first: {told:?}");
    assert_eq!(told[1]["status"], "done", "{told:?}");
    assert_eq!((runs(&other).len(), deployment.executed().len()), (1, 1));
}

// The same at moments of chance: 42 of 150 pairs had two ids.
#[test]
fn pairs_of_triggers_with_and_without_waiting_are_one_run_each() {
    const PAIRS: usize = 60;
    let deployment = Deployment::new();
    let servers = [deployment.serve(&[BUFFER_ALL]), deployment.serve(&[BUFFER_ALL])];
    let admins = servers.each_ref().map(crate::kit::Semel::admin);
    for pair in 0..PAIRS {
        let body = trigger(&format!("k{pair}"), &format!("pair {pair}"));
        let barrier = Barrier::new(2);
        let told: Vec<Value> = std::thread::scope(|scope| {
            let asked = ["/v1/runs", "/v1/runs?wait=true"].map(|path| {
                let admin = &admins[(pair + usize::from(path.ends_with("true"))) % 2];
                let (body, barrier) = (body.to_string(), &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    admin.post(path, &body).json()
                })
            });
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        assert_eq!(told[0]["id"], told[1]["id"], "pair {pair}: one id: {told:?}");
        let first = told.iter().filter(|told| told["cached"] == false).count();
        assert_eq!(first, 1, "pair {pair}: one was first: {told:?}");
    }
    deployment.settle(&admins[0]);
    assert_eq!((runs(&admins[0]).len(), deployment.executed().len()), (PAIRS, PAIRS));
}

// While Redis was down the key got another payload. The run that had been acknowledged before became a dead letter that could not be
// replayed, its id was unknown, and retries of its trigger were told of a conflict.
#[test]
fn a_run_that_lost_its_key_while_redis_was_down_is_found_and_can_be_replayed() {
    let deployment = Deployment::new();
    let producer = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let admin = producer.admin();
    let first = buffer(&admin, &trigger("k", "first"));
    deployment.redis.kill();
    // For a moment the process still knows the first run from its own cache: that is a conflict, as it should be.
    let second = wait::for_some("the process misses Redis", PATIENCE, || {
        let answer = post(&admin, &trigger("k", "second"));
        assert!([201, 422].contains(&answer.status), "{}", answer.text());
        Ok((answer.status == 201).then(|| answer.json()))
    })
    .unwrap();
    assert_eq!(second["cached"], false);
    deployment.redis.restart().unwrap();
    let path = format!("/v1/runs/{first}");
    wait::until("Redis is used again", PATIENCE, || admin.get(&path).status == 200).unwrap();
    let retries_are_answered = || {
        for (payload, id) in [("first", json!(first)), ("second", second["id"].clone())] {
            let told = post(&admin, &trigger("k", payload)).expect(200);
            assert_eq!((&told["id"], &told["cached"]), (&id, &json!(true)), "the retry of {payload}");
        }
    };
    retries_are_answered();
    let drainer = deployment.serve(&[BUFFER_ALL]);
    deployment.settle(&drainer.admin());
    retries_are_answered();
    let shown = show(&admin, &first);
    assert_eq!((&shown["id"], &shown["status"]), (&json!(first), &json!("dlq")), "{shown}");
    assert_eq!(deployment.executed(), ["\"second\""]);
    let letters = dead_letters(&admin);
    assert_eq!(letters.len(), 1, "{letters:?}");
    let letter = id_of(&letters[0]);
    let told = run(&["replay", "--dlq", "--id", &letter, "--admin", producer.admin_url()]);
    assert!(told.status.success(), "{told:?}");
    deployment.settle(&admin);
    assert_eq!(deployment.executed(), ["\"first\"", "\"second\""]);
    assert_eq!(show(&admin, &first)["status"], "done");
    retries_are_answered();
}

// The buffer freed an expired key, its run kept it, and the ledger counted its lifetime from the drain: the next run of the key was an
// alias, or the first one was.
#[test]
fn a_key_that_expires_before_its_run_is_drained_swallows_no_run() {
    let deployment = Deployment::new();
    let buffering = deployment.serve(&[BUFFER_ALL, NO_DRAINERS]);
    let direct = deployment.serve(&[BUFFER_NONE, NO_DRAINERS]);
    let admin = buffering.admin();
    let mut all = Vec::new();
    // The second run of the key is buffered too, or goes straight to the ledger.
    for (key, second_by, status) in [("k1", &buffering, 202), ("k2", &direct, 201)] {
        let with_ttl = |ttl: &str| {
            let mut body = trigger(key, key);
            body["ttl"] = json!(ttl);
            body
        };
        let first = buffer(&admin, &with_ttl("400ms"));
        let again = post(&admin, &with_ttl("400ms"));
        let second_by = second_by.admin();
        let mut second = again.json();
        // Until then it is the first run, and its answer says so.
        wait::until("the key has expired", PATIENCE, || {
            let answer = post(&second_by, &with_ttl("1h"));
            second = answer.json();
            assert_eq!(answer.status, if id_of(&second) == first { 200 } else { status }, "{second}");
            id_of(&second) != first
        })
        .unwrap();
        assert_eq!(second["cached"], false, "{second}");
        let third = post(&admin, &with_ttl("1h")).expect(200);
        assert_eq!(third["id"], second["id"], "the key is the second run's");
        all.extend([first, id_of(&second)]);
    }
    let drainer = deployment.serve(&[BUFFER_ALL]);
    deployment.settle(&drainer.admin());
    assert_eq!(deployment.executed(), ["\"k1\"", "\"k1\"", "\"k2\"", "\"k2\""], "every run executes");
    for id in &all {
        let shown = show(&admin, id);
        assert_eq!((&shown["id"], &shown["status"]), (&json!(id), &json!("done")));
    }
    for (key, second) in [("k1", &all[1]), ("k2", &all[3])] {
        assert_eq!(
            post(&admin, &trigger(key, key)).expect(200)["id"],
            json!(second),
            "still the second run's"
        );
    }
    assert_eq!(dead_letters(&admin), Vec::<Value>::new());
}

// A reset did not fence the owner of a claim: paused before it buffered its run, it went on afterwards and made a second run of the
// key, which became an alias or, with another payload, a dead letter.
#[test]
fn an_owner_that_is_paused_over_a_reset_makes_no_second_run() {
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let buffering = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL, NO_DRAINERS]);
    let other = deployment.serve(&[BUFFER_ALL]);
    let admin = other.admin();
    for (key, payload) in [("k1", "marker"), ("k2", "another payload")] {
        to_redis.trap("marker", Direction::ToServer, Action::Hold);
        let owner = buffering.admin();
        let (paused, second) = std::thread::scope(|scope| {
            let paused = scope.spawn(move || post(&owner, &trigger(key, "marker")));
            to_redis.caught("the owner of the claim is about to buffer its run");
            assert_eq!(reset(&admin, key)["reset"], false, "nobody has seen a run of the key");
            let second = post_and_wait(&admin, &trigger(key, payload)).expect(201);
            to_redis.release();
            (paused.join().unwrap(), second)
        });
        if payload == "marker" {
            let paused = paused.expect(200);
            assert_eq!((&paused["id"], &paused["cached"]), (&second["id"], &json!(true)), "{paused}");
        } else {
            // Held for longer than Redis may take, its put is unconfirmed, and only a retry can know of the conflict.
            let paused =
                if paused.status == 503 { post(&buffering.admin(), &trigger(key, "marker")) } else { paused };
            assert_eq!(paused.expect(422)["code"], "conflict");
        }
        deployment.settle(&admin);
        assert_eq!(post(&admin, &trigger(key, payload)).expect(200)["id"], second["id"]);
    }
    assert_eq!((runs(&admin).len(), deployment.executed().len()), (2, 2));
    assert_eq!(dead_letters(&admin), Vec::<Value>::new());
}

// A trigger with another payload found nothing of the owner's run, which was then placed, and took its claim for one whose run is
// gone: the claim was forgotten, won again, and the second run buffered after the first had been drained.
#[test]
fn a_conflicting_trigger_leaves_the_claim_of_a_run_that_is_just_placed() {
    let deployment = Deployment::new();
    let proxies = [deployment.redis_proxy(), deployment.redis_proxy()];
    let [owner, other] =
        proxies.each_ref().map(|proxy| deployment.serve_by_redis(proxy, &[BUFFER_ALL, NO_DRAINERS]));
    let drainer = deployment.serve(&[BUFFER_ALL]);
    drainer.signal(Signal::STOP);
    proxies[0].trap("marker", Direction::ToServer, Action::Hold);
    let (owner_admin, other_admin) = (owner.admin(), other.admin());
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(move || post(&owner_admin, &trigger("k", "marker")).expect(202));
        proxies[0].caught("the owner of the claim is about to buffer its run");
        proxies[1].trap(":keys\r\n", Direction::ToServer, Action::HoldReply);
        let second = scope.spawn(move || post(&other_admin, &trigger("k", "another payload")));
        proxies[1].caught("the other has found nothing in the buffer");
        proxies[0].release();
        let first = first.join().unwrap();
        proxies[1].trap("another payload", Direction::ToServer, Action::Hold);
        proxies[1].release();
        let goes_on = || second.is_finished() || proxies[1].is_caught();
        wait::until("the other is answered, or buffers a run", PATIENCE, goes_on).unwrap();
        drainer.signal(Signal::CONT);
        wait::until("the first run is drained", PATIENCE, || deployment.buffered() == 0).unwrap();
        proxies[1].release();
        (first, second.join().unwrap())
    });
    assert_eq!(second.expect(422)["code"], "conflict");
    let admin = drainer.admin();
    deployment.settle(&admin);
    assert_eq!(deployment.executed(), ["\"marker\""]);
    assert_eq!(dead_letters(&admin), Vec::<Value>::new());
    assert_eq!(post(&admin, &trigger("k", "marker")).expect(200)["id"], first["id"]);
}

/// Loses all claims, as a failover may.
fn lose_claims(deployment: &Deployment) {
    let claims = deployment.redis_keys("*claims:{*");
    assert_eq!(claims.len(), 1, "{claims:?}");
    deployment.redis.tell(&["DEL", &claims[0]]).unwrap();
}

// A trigger read the ledger before it had the claim, and not again. When Redis lost the claim of an earlier winner, and that one's run was
// drained meanwhile, it buffered a second run, which became an alias.
#[test]
fn the_next_winner_of_a_lost_claim_finds_the_drained_run() {
    let deployment = Deployment::new();
    let to_redis = deployment.redis_proxy();
    let late = deployment.serve_by_redis(&to_redis, &[BUFFER_ALL, NO_DRAINERS]);
    let other = deployment.serve(&[BUFFER_ALL]);
    let admin = other.admin();
    to_redis.trap_any(&CLAIM, Direction::ToServer, Action::Hold);
    let late = late.admin();
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(move || post(&late, &trigger("k", "payload")).json());
        to_redis.caught("the late one asks for the claim");
        let first = post(&admin, &trigger("k", "payload")).expect(202);
        wait::until("the first run is drained", PATIENCE, || deployment.buffered() == 0).unwrap();
        lose_claims(&deployment);
        to_redis.release();
        (first, second.join().unwrap())
    });
    assert_eq!((&second["id"], &second["cached"]), (&first["id"], &json!(true)), "{second}");
    deployment.settle(&admin);
    assert_eq!((runs(&admin).len(), deployment.executed().len()), (1, 1));
    assert_eq!(dead_letters(&admin), Vec::<Value>::new());
}

// Where Redis loses a claim whose owner has not buffered its run yet, two winners may buffer one each, one after the other. Both were
// acknowledged: neither is lost, and neither is an alias. The second is a dead letter under its own id.
#[test]
fn two_winners_of_a_lost_claim_are_two_runs_under_their_own_ids() {
    let deployment = Deployment::new();
    let proxies = [deployment.redis_proxy(), deployment.redis_proxy()];
    let servers =
        proxies.each_ref().map(|proxy| deployment.serve_by_redis(proxy, &[BUFFER_ALL, NO_DRAINERS]));
    let drainer = deployment.serve(&[BUFFER_ALL]);
    let admin = drainer.admin();
    for proxy in &proxies {
        proxy.trap("marker", Direction::ToServer, Action::Hold);
    }
    let (first, second) = std::thread::scope(|scope| {
        let [first, second] = servers.each_ref().map(|server| {
            let admin = server.admin();
            move || post(&admin, &trigger("k", "marker")).json()
        });
        let first = scope.spawn(first);
        proxies[0].caught("the first has won, and is about to buffer its run");
        lose_claims(&deployment);
        let second = scope.spawn(second);
        proxies[1].caught("so has the second");
        proxies[0].release();
        let first = first.join().unwrap();
        wait::until("the first run is drained", PATIENCE, || deployment.buffered() == 0).unwrap();
        proxies[1].release();
        (first, second.join().unwrap())
    });
    deployment.settle(&admin);
    assert_eq!(deployment.executed().len(), 1);
    for told in [&first, &second] {
        assert_eq!(show(&admin, &id_of(told))["id"], told["id"], "found under its own id");
    }
    if first["id"] != second["id"] {
        assert_eq!(show(&admin, &id_of(&second))["status"], "dlq");
    }
}
