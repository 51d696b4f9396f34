//! Nothing is lost on the way from the buffer to the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_pipeline::event::{Accepted, NewEvent, Notes};
use semel_pipeline::ledger::{Change, DrainedRun, LetterFilter, Page};
use semel_pipeline::letter::Cause;
use semel_pipeline::replay::{ReplayAction, ReplayMode, Selection};
use semel_testbed::Redis;
use semel_triggers::buffer::BufferedRun;
use semel_triggers::drainer::{DrainCounters, DrainPace, DrainTurn, Drainer};
use semel_triggers::trigger::RunLocation;

use super::{Deployment, SHUT, request, run};

// Another run got the key while Redis did not answer: the buffered one keeps its id and everything that was acknowledged, and can be
// replayed
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lost_its_key_is_a_dead_letter_that_can_be_replayed() {
    let redis = Redis::start().expect("a Redis");
    for payload in ["{}", "[]"] {
        redis.tell(&["FLUSHALL"]).expect("it forgets");
        let deployment = Deployment::new(&redis, SHUT).await;
        let asked = request("t", Some("k"), "{}");
        let buffered = deployment.triggers.trigger(&asked).await.expect("it is triggered");
        let change = Change {
            add_tags: vec!["late".to_owned()],
            increment: vec![("n".to_owned(), "2".to_owned())],
            ..Change::default()
        };
        deployment.triggers.change(buffered.id, &change, None).await.expect("it is changed");
        let winner = NewEvent {
            notes: Notes { tags: Vec::new(), metadata: BTreeMap::from([("n".to_owned(), "3".to_owned())]) },
            ..run("t", Some("k"), payload, None)
        };
        let accepted = deployment.ledger.accept(vec![winner.clone()]).await.expect("it is accepted");
        assert_eq!(accepted, [Accepted::First(winner.id)]);
        let of_buffered =
            async || deployment.triggers.trigger(&asked).await.expect("its retry is answered").id;
        let expected = if payload == "{}" { winner.id } else { buffered.id };
        assert_eq!(of_buffered().await, expected, "while it is buffered");
        deployment.drain().await;
        assert_eq!(of_buffered().await, expected, "after it was drained");
        let located = deployment.triggers.locate(buffered.id).await.expect("it answers");
        let RunLocation::Ledger(event) = located else { panic!("{located:?}") };
        assert_eq!((event.new.id, event.new.notes.tags.as_slice()), (buffered.id, &["late".to_owned()][..]));
        assert_eq!(event.new.notes.metadata.get("n").map(String::as_str), Some("2"));
        let untouched = deployment.ledger.event(winner.id).await.expect("it answers").expect("it is there");
        assert_eq!(untouched.new.notes, winner.notes, "nothing of the other is written over the winner's");
        let page = Page { after: None, limit: 10 };
        let letters = deployment.ledger.letters(LetterFilter::default(), page).await.expect("it lists").items;
        assert_eq!(letters.iter().map(|letter| letter.event).collect::<Vec<_>>(), [Some(buffered.id)]);
        assert_eq!((letters[0].target.as_deref(), letters[0].payload.as_ref()), (Some("crm"), &b"{}"[..]));
        let selection = Selection::Letters(vec![letters[0].id]);
        let targets = vec!["crm".to_owned()];
        let plan =
            deployment.ledger.plan(selection, ReplayMode::Resume, targets).await.expect("it is planned");
        assert_eq!(plan.iter().map(|planned| planned.action).collect::<Vec<_>>(), [ReplayAction::Run]);
    }
}

// terminal failure writes a dead letter before the entry leaves the buffer
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_drained_is_a_dead_letter_and_strands_nobody() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let bad = deployment.triggers.trigger(&request("t", None, "{}")).await.expect("it is triggered");
    let good = deployment.triggers.trigger(&request("t", None, "{}")).await.expect("it is triggered");
    let keys = redis.tell(&["KEYS", "*:runs"]).expect("it runs").text();
    redis.tell(&["HSET", &keys, &bad.id.to_string(), "rubbish"]).expect("it runs");
    deployment.drain().await;
    let runs: Vec<_> = deployment.runs().await.iter().map(|event| event.new.id).collect();
    assert_eq!(runs, [good.id]);
    let page = Page { after: None, limit: 10 };
    let letters = deployment.ledger.letters(LetterFilter::default(), page).await.expect("it lists").items;
    let of = |id: semel_pipeline::id::EventId| {
        letters
            .iter()
            .find(|letter| letter.source.as_ref().is_some_and(|source| source.message == id.to_string()))
            .expect("there is one")
    };
    assert_eq!((of(bad.id).cause, of(bad.id).payload.as_ref()), (Cause::Undecodable, &b"rubbish"[..]));
}

// crash_after_pop: killed at any point, nothing is lost and nothing is there twice
#[tokio::test(flavor = "multi_thread")]
async fn a_drainer_that_is_dropped_at_any_moment_loses_nothing() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let mut expected = Vec::new();
    for n in 0..60 {
        let key = format!("k{n}");
        let triggered =
            deployment.triggers.trigger(&request("t", Some(&key), "{}")).await.expect("it is triggered");
        expected.push(triggered.id);
    }
    let counters = Arc::new(DrainCounters::default());
    let pace = DrainPace { batch: 7, lease: Duration::from_millis(30), ..DrainPace::default() };
    let mut dropped = 0;
    while !deployment.buffer.tenants().await.expect("Redis answers").is_empty() {
        let drainer = Drainer::new(
            Arc::clone(&deployment.buffer),
            Arc::clone(&deployment.ledger),
            pace,
            Arc::clone(&counters),
        );
        // Longer each time, so that it is cut off at another place and gets through in the end.
        let limit = Duration::from_micros(200 + 150 * dropped);
        if tokio::time::timeout(limit, drainer.turn()).await.is_err() {
            dropped += 1;
        }
    }
    let mut runs: Vec<_> = deployment.runs().await.iter().map(|event| event.new.id).collect();
    runs.sort_unstable();
    expected.sort_unstable();
    assert_eq!(runs, expected);
    assert!(dropped > 3, "it was cut off {dropped} times");
}

// a drainer dies between the ledger and its acknowledgement, and changes come meanwhile: each arrives once
#[tokio::test(flavor = "multi_thread")]
async fn changes_that_come_while_a_drainer_dies_arrive_once() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let one = Change { increment: vec![("n".to_owned(), "1".to_owned())], ..Change::default() };
    let patch = semel_pipeline::ledger::Patch::Change(one);
    let run = deployment.triggers.trigger(&request("t", Some("k"), "{}")).await.expect("it is triggered");
    let change = async || deployment.buffer.patch("t", run.id, &patch, None).await.expect("Redis answers");
    change().await;
    // It has accepted the run with its one change, and then it is gone.
    let dead = deployment.buffer.lease(("t", 0), 1, Duration::from_millis(20)).await.expect("Redis answers");
    let BufferedRun { run: of_dead, changes } = dead.runs[0].run.clone().expect("it is whole");
    let drained = DrainedRun { run: of_dead, changes, then: None };
    deployment.ledger.drain(vec![drained]).await.expect("it is taken in");
    change().await;
    change().await;
    deployment.drain().await;
    let event = deployment.runs().await.remove(0);
    assert_eq!(event.new.notes.metadata.get("n").map(String::as_str), Some("3"), "none lost, none twice");
}

// between two turns of a tenant that waits no other has more than one, whichever process drains
#[tokio::test(flavor = "multi_thread")]
async fn turns_are_fair_over_several_drainers() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    let backlog = [("a", 30), ("b", 3), ("c", 18), ("d", 9), ("e", 24)];
    for (tenant, count) in backlog {
        for _ in 0..count {
            deployment.triggers.trigger(&request(tenant, None, "{}")).await.expect("it is triggered");
        }
    }
    // In the order in which they were given.
    let turns: Arc<tokio::sync::Mutex<Vec<String>>> = Arc::default();
    let drainers: Vec<_> = (0..4)
        .map(|_| {
            let (buffer, turns) = (Arc::clone(&deployment.buffer), Arc::clone(&turns));
            tokio::spawn(async move {
                loop {
                    let tenant = {
                        let mut turns = turns.lock().await;
                        let next = buffer.next_tenant().await.expect("Redis answers");
                        let Some((tenant, announced)) = next else { return };
                        turns.push(tenant.clone());
                        (tenant, announced)
                    };
                    let (tenant, announced) = tenant;
                    let lease = Duration::from_secs(30);
                    let leased = buffer.lease((&tenant, announced), 3, lease).await.expect("Redis answers");
                    for run in &leased.runs {
                        buffer.ack((&tenant, &leased.token), run.id, 0).await.expect("Redis answers");
                    }
                }
            })
        })
        .collect();
    for drainer in drainers {
        drainer.await.expect("it ends");
    }
    let turns = turns.lock().await;
    for (tenant, count) in backlog {
        let at: Vec<usize> = (0..turns.len()).filter(|n| turns[*n] == tenant).collect();
        // Those in which it still had something.
        let waiting = at.iter().take(count / 3);
        for (before, after) in waiting.clone().zip(waiting.skip(1)) {
            for (other, _) in backlog {
                let between = turns[before + 1..*after].iter().filter(|turn| *turn == other).count();
                assert!(between <= 1, "{other} had {between} turns between two of {tenant}: {turns:?}");
            }
        }
    }
}

// Requeue without delay does not spin: an idle drainer looks away
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_buffer_is_idle() {
    let redis = Redis::start().expect("a Redis");
    let deployment = Deployment::new(&redis, SHUT).await;
    assert_eq!(deployment.drainer().turn().await.expect("Redis answers"), DrainTurn::Idle);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let running = tokio::spawn(deployment.drainer().run(stopped));
    let before = calls(&redis);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let asked = calls(&redis) - before;
    assert!(asked < 200, "{asked} calls in half a second");
    stop.send(true).expect("it runs");
    running.await.expect("it ends");
    assert_eq!(deployment.triggers.counters().failed_open.load(Ordering::Relaxed), 0);
}

fn calls(redis: &Redis) -> u64 {
    redis.info("total_commands_processed").expect("it runs").parse().expect("a number")
}

// the database is away while it drains: attempts are not burned, nothing is lost, and it goes on by itself
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_burns_no_attempts() {
    use semel_pipeline::ledger::{Ledger, PostgresLedger};
    use semel_testbed::Postgres;

    let (redis, postgres) = (Redis::start().expect("a Redis"), Postgres::start().expect("a PostgreSQL"));
    let builder = PostgresLedger::builder(postgres.url()).timeout(Duration::from_millis(300));
    let ledger: Arc<dyn Ledger> = Arc::new(builder.open().await.expect("a ledger"));
    let (triggers, buffer) = super::triggers(&redis, &ledger, SHUT).await;
    let mut expected = Vec::new();
    for n in 0..20 {
        let asked = request("t", Some(&format!("k{n}")), "{}");
        expected.push(triggers.trigger(&asked).await.expect("it is triggered").id);
    }
    postgres.kill();
    let counters = Arc::new(DrainCounters::default());
    let pace = DrainPace { batch: 5, ..DrainPace::default() };
    let drainer = Drainer::new(Arc::clone(&buffer), Arc::clone(&ledger), pace, Arc::clone(&counters));
    for _ in 0..4 {
        // Until what was given back may be tried again it is idle; each try fails.
        while matches!(drainer.turn().await, Ok(DrainTurn::Idle)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(counters.given_back.load(Ordering::Relaxed) >= 20, "{counters:?}");
    assert_eq!(counters.dead.load(Ordering::Relaxed), 0);
    postgres.restart().expect("it comes back");
    let healed = async {
        while !buffer.tenants().await.expect("Redis answers").is_empty() {
            // The pool may still hold a connection that is dead.
            if drainer.turn().await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), healed).await.expect("it heals");
    for id in expected {
        assert!(ledger.event(id).await.expect("it answers").is_some(), "{id} arrived");
    }
}

// a lease is renewed while the ledger takes its time, so that nobody else drains the same runs
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_ledger_costs_no_lease() {
    use semel_pipeline::ledger::{Ledger, PostgresLedger};
    use semel_testbed::Postgres;

    const LEASE: Duration = Duration::from_secs(2);
    let (redis, postgres) = (Redis::start().expect("a Redis"), Postgres::start().expect("a PostgreSQL"));
    let builder = PostgresLedger::builder(postgres.url()).timeout(Duration::from_secs(60));
    let ledger: Arc<dyn Ledger> = Arc::new(builder.open().await.expect("a ledger"));
    let (triggers, buffer) = super::triggers(&redis, &ledger, SHUT).await;
    for n in 0..5 {
        triggers.trigger(&request("t", Some(&format!("k{n}")), "{}")).await.expect("it is triggered");
    }
    postgres.pause().expect("it stands still");
    let pace = DrainPace { lease: LEASE, ..DrainPace::default() };
    let drainer = Drainer::new(Arc::clone(&buffer), Arc::clone(&ledger), pace, Arc::default());
    let slow = tokio::spawn(async move { drainer.turn().await });
    while buffer.depth("t").await.expect("Redis answers").leased < 5 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let over = tokio::time::Instant::now() + LEASE.mul_f64(2.5);
    while tokio::time::Instant::now() < over {
        let others = buffer.lease(("t", 0), 10, LEASE).await.expect("Redis answers");
        assert_eq!((others.runs.len(), others.reclaimed), (0, 0));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    postgres.resume().expect("it goes on");
    assert_eq!(slow.await.expect("it ends").expect("it drains"), DrainTurn::Moved(5));
    assert_eq!(buffer.depth("t").await.expect("Redis answers").leased, 0);
}
