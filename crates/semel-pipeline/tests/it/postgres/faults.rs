//! The server is killed while calls are in progress: nothing acknowledged is lost, what is unknown can be repeated.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use semel_pipeline::delivery::{DeliveryState, LeaseResult, Settle};
use semel_pipeline::event::Accepted;
use semel_pipeline::ledger::{Intake as _, PostgresLedger, Reading as _, Working as _};
use semel_testbed::Postgres;

use super::{ask, event, insist, rounds, success};

async fn impatient(url: &str) -> Arc<PostgresLedger> {
    let ledger = PostgresLedger::builder(url).timeout(Duration::from_millis(300)).open().await;
    Arc::new(ledger.expect("the ledger can be opened"))
}

/// Kills and restarts the server some times, a moment apart, as long as the others work.
async fn trouble(server: Arc<Postgres>, progress: Arc<AtomicUsize>, times: usize, step: usize) {
    for time in 1..=times {
        // Each in the middle of the work, wherever that is by then.
        while progress.load(Ordering::Acquire) < time * step {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let server = Arc::clone(&server);
        tokio::task::spawn_blocking(move || {
            server.kill();
            server.restart().expect("the server comes back");
        })
        .await
        .expect("the harness goes on");
    }
}

// crash_recovery, commit_unknown
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepted_events_survive_a_killed_server() {
    const CALLERS: usize = 4;
    let (each, kills) = (rounds(60, 1_000), rounds(3, 20));
    let server = Arc::new(Postgres::start().expect("a server"));
    let ledger = impatient(&server.url()).await;
    let progress = Arc::new(AtomicUsize::new(0));
    let troubles = tokio::spawn(trouble(
        Arc::clone(&server),
        Arc::clone(&progress),
        kills,
        CALLERS * each / (kills + 1),
    ));
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        let (ledger, progress) = (Arc::clone(&ledger), Arc::clone(&progress));
        callers.push(tokio::spawn(async move {
            let mut accepted = Vec::new();
            for _ in 0..each {
                let event = event("crm", "");
                let answers = insist(|| ledger.accept(vec![event.clone()])).await;
                assert!(
                    matches!(answers[..], [Accepted::First(id) | Accepted::Cached(id)] if id == event.id),
                    "an event without a key is its own, however often it is sent: {answers:?}"
                );
                accepted.push(event.id);
                progress.fetch_add(1, Ordering::AcqRel);
            }
            accepted
        }));
    }
    let mut all = HashSet::new();
    for caller in callers {
        all.extend(caller.await.expect("a caller"));
    }
    troubles.await.expect("the server lives");
    for id in &all {
        let told = insist(|| ledger.deliveries_of(*id)).await;
        assert_eq!(told.len(), 1, "{id} has one delivery");
    }
    assert_eq!(
        server.sql("SELECT count(*) FROM semel.ledger_event").expect("a count"),
        all.len().to_string()
    );
}

// crash_recovery, backend_killed
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_survives_a_killed_server() {
    let (number, kills) = (rounds(300, 5_000), rounds(3, 20));
    let server = Arc::new(Postgres::start().expect("a server"));
    let ledger = impatient(&server.url()).await;
    let events = (0..number).map(|_| event("crm", "")).collect::<Vec<_>>();
    ledger.accept(events).await.expect("they are accepted");
    let (progress, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let troubles =
        tokio::spawn(trouble(Arc::clone(&server), Arc::clone(&progress), kills, number / (kills + 2)));
    let mut workers = Vec::new();
    for worker in 0..3 {
        let (progress, over) = (Arc::clone(&progress), Arc::clone(&over));
        let ledger = impatient(&server.url()).await;
        workers.push(tokio::spawn(async move {
            let mut kept = Vec::new();
            while !over.load(Ordering::Acquire) {
                let take = ask(&format!("w{worker}"), "crm", 5, Duration::from_secs(2));
                for work in insist(|| ledger.take(take.clone())).await {
                    let word = vec![(work.holding, Settle::Done(success()))];
                    if insist(|| ledger.settle(word.clone())).await == [LeaseResult::Kept] {
                        kept.push(work.holding.delivery);
                        progress.fetch_add(1, Ordering::AcqRel);
                    }
                }
            }
            kept
        }));
    }
    troubles.await.expect("the server lives");
    let left = "SELECT count(*) FROM semel.ledger_delivery WHERE state <> 'done'";
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while server.sql(left).expect("a count") != "0" {
        assert!(tokio::time::Instant::now() < deadline, "everything is delivered in the end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    over.store(true, Ordering::Release);
    let mut kept = Vec::new();
    for worker in workers {
        kept.extend(worker.await.expect("a worker"));
    }
    // Each was kept once, and what was kept is done.
    assert_eq!(kept.iter().collect::<HashSet<_>>().len(), kept.len(), "no delivery was kept twice");
    for id in &kept {
        let told = insist(|| ledger.delivery(*id)).await.expect("it is there");
        assert_eq!(told.delivery.state, DeliveryState::Done);
    }
    let doubles = "SELECT count(*) FROM (SELECT delivery FROM semel.ledger_attempt WHERE class = 'success' GROUP BY 1 HAVING count(*) > 1) AS d";
    assert_eq!(server.sql(doubles).expect("a count"), "0");
}
