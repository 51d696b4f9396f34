//! Many workers over several pools, as several processes would have them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use semel_pipeline::delivery::{LeaseResult, Settle};
use semel_pipeline::event::NewEvent;
use semel_pipeline::id::EventId;
use semel_pipeline::ledger::{Change, Error, Intake as _, Reading as _, Runs as _, Working as _};
use semel_testbed::Postgres;

use super::{ask, event, open, success};

/// What runs and what has ended of one order key.
#[derive(Default)]
struct Lane {
    running: usize,
    ended: Vec<EventId>,
}

// Order keys, across processes
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_keys_hold_across_processes() {
    const KEYS: usize = 12;
    const EACH: usize = 15;
    let server = Arc::new(Postgres::start().expect("a server"));
    let publisher = open(&server.url()).await;
    let lanes: Arc<Mutex<HashMap<String, Lane>>> = Arc::default();
    let mut expected: HashMap<String, Vec<EventId>> = HashMap::new();
    let mut workers = Vec::new();
    // Workers that find nothing go on while more may come.
    let published = Arc::new(AtomicBool::new(false));
    for number in 0..4 {
        let (ledger, lanes) = (open(&server.url()).await, Arc::clone(&lanes));
        let published = Arc::clone(&published);
        workers.push(tokio::spawn(async move {
            loop {
                let all_there = published.load(Ordering::SeqCst);
                let works = ledger
                    .take(ask(&format!("w{number}"), "crm", 3, Duration::from_secs(60)))
                    .await
                    .expect("work can be taken");
                if works.is_empty() && all_there {
                    let left = ledger.next_due(vec!["crm".to_owned()]).await.expect("an answer");
                    if left.is_none() {
                        return;
                    }
                }
                for work in &works {
                    let key = work.headers[0].1.clone();
                    let mut lanes = lanes.lock();
                    let lane = lanes.entry(key).or_default();
                    lane.running += 1;
                    assert_eq!(lane.running, 1, "two of one order key run at once");
                }
                tokio::task::yield_now().await;
                for work in works {
                    let lane = work.headers[0].1.clone();
                    {
                        let mut lanes = lanes.lock();
                        let lane = lanes.get_mut(&lane).expect("it runs");
                        lane.running -= 1;
                        lane.ended.push(work.event);
                    }
                    let said = ledger.settle(vec![(work.holding, Settle::Done(success()))]).await;
                    assert_eq!(said.expect("an answer"), [LeaseResult::Kept]);
                }
            }
        }));
    }
    for round in 0..EACH {
        let mut batch: Vec<NewEvent> = Vec::new();
        for key in 0..KEYS {
            let name = format!("key-{key}");
            let mut event = event("crm", &format!("t{}", key % 3));
            event.order_key = Some(name.clone());
            event.headers = vec![("order".to_owned(), name.clone())];
            expected.entry(name).or_default().push(event.id);
            batch.push(event);
        }
        // Some in one call, some in many.
        if round % 2 == 0 {
            publisher.accept(batch).await.expect("they are accepted");
        } else {
            for event in batch {
                publisher.accept(vec![event]).await.expect("it is accepted");
            }
        }
    }
    published.store(true, Ordering::SeqCst);
    for worker in workers {
        tokio::time::timeout(Duration::from_secs(60), worker).await.expect("an end").expect("a worker");
    }
    let lanes = lanes.lock();
    for (key, ids) in expected {
        assert_eq!(lanes[&key].ended, ids, "{key} was delivered in the order in which it came");
    }
}

// Fair, across processes
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_of_one_tenant_delays_nobody() {
    let server = Postgres::start().expect("a server");
    let (one, other) = (open(&server.url()).await, open(&server.url()).await);
    let backlog = (0..2_000).map(|_| event("crm", "big")).collect();
    one.accept(backlog).await.expect("they are accepted");
    let small: Vec<NewEvent> = (0..20).map(|number| event("crm", &format!("small-{number:02}"))).collect();
    let mut waiting: HashSet<EventId> = small.iter().map(|event| event.id).collect();
    other.accept(small).await.expect("they are accepted");
    let mut taken = 0;
    for round in 0.. {
        let ledger = if round % 2 == 0 { &one } else { &other };
        let works = ledger.take(ask("w", "crm", 5, Duration::from_secs(60))).await.expect("work");
        taken += works.len();
        for work in works {
            waiting.remove(&work.event);
        }
        if waiting.is_empty() {
            break;
        }
        assert!(taken < 60, "twenty tenants with one delivery each had their turn after {taken}");
    }
}

// A change that comes in the moment in which its run arrives is refused, or kept. It once read a run that it had not
// locked, and wrote over a change of somebody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_that_race_with_the_arrival_of_their_run_all_stand() {
    const CHANGERS: usize = 12;
    let server = Postgres::start().expect("a server");
    let ledgers = [open(&server.url()).await, open(&server.url()).await, open(&server.url()).await];
    let ledgers = ledgers.map(Arc::new);
    for round in 0..100 {
        let run = event("crm", "t");
        let id = run.id;
        let changers: Vec<_> = (0..CHANGERS)
            .map(|number| {
                let ledger = Arc::clone(&ledgers[number % ledgers.len()]);
                tokio::spawn(async move {
                    let change =
                        Change { increment: vec![("n".to_owned(), "1".to_owned())], ..Change::default() };
                    loop {
                        match ledger.change(id, change.clone(), None).await {
                            Ok(_) => return,
                            Err(Error::NotFound { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        ledgers[0].accept(vec![run]).await.expect("it is accepted");
        for changer in changers {
            changer.await.expect("it ends");
        }
        let stands = ledgers[0].event(id).await.expect("an answer").expect("it is there");
        assert_eq!(stands.new.notes.metadata["n"], CHANGERS.to_string(), "in round {round}");
    }
}
