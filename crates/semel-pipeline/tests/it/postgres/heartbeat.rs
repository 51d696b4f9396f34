//! Heartbeats of a worker on PostgreSQL wait for nobody: not for a runtime that is busy, not for a free connection.

use std::sync::Arc;
use std::time::Duration;

use semel::secret::Secret;
use semel_client::retry::{Destinations, Limits};
use semel_pipeline::ledger::{Intake as _, PostgresLedger, Working};
use semel_pipeline::target::{DeliveryOutcome, EventTypes, Handler, Policy, TargetRegistry, Targets};
use semel_pipeline::worker::{Silent, Stopped, Worker, WorkerSettings};
use semel_testbed::{Postgres, wait};

use super::event;

const PATIENCE: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(1);

/// How long the one lease still stands, in ms; `None` where nothing is taken.
fn lease_left(server: &Postgres) -> Option<i64> {
    let sql = "SELECT (extract(epoch FROM lease_until - clock_timestamp()) * 1000)::bigint \
               FROM semel.ledger_delivery WHERE state = 'running'";
    server.sql(sql).expect("a number").parse().ok()
}

/// Whether the lease still stands after twice its length. A worker whose heartbeats stopped has lost it by then.
fn outlives_its_lease(server: &Postgres) -> bool {
    let begun = tokio::time::Instant::now();
    let mut stands = true;
    wait::until("two leases have passed", PATIENCE, || {
        stands &= lease_left(server).is_some_and(|left| left > 0);
        !stands || begun.elapsed() > 2 * LEASE
    })
    .expect("time passes");
    stands
}

fn start(ledger: &Arc<PostgresLedger>, handler: Handler) -> Worker {
    let targets = Targets::new()
        .with(
            "crm",
            Arc::new(handler),
            EventTypes::all(),
            Policy { timeout: PATIENCE, ..Policy::default() },
            &Destinations::new(Limits::default()),
        )
        .expect("one target");
    let settings = WorkerSettings { name: "w".to_owned(), lease: LEASE, in_all: 8 };
    let ledger = Arc::clone(ledger) as Arc<dyn Working>;
    let secret = Arc::new(Secret::from_bytes([1; 32]));
    Worker::start(ledger, TargetRegistry::new(targets), secret, settings, Arc::new(Silent)).expect("a thread")
}

// A handler computes for longer than a lease, on the only thread of the runtime.
#[test]
fn a_busy_runtime_does_not_lose_leases() {
    let server = Arc::new(Postgres::start().expect("a server"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let ledger = Arc::new(super::open(&server.url()).await);
        let busy = Arc::clone(&server);
        let (tell, told) = tokio::sync::oneshot::channel();
        let tell = parking_lot::Mutex::new(Some(tell));
        let handler = Handler::new(move |_| {
            let stands = outlives_its_lease(&busy);
            if let Some(tell) = tell.lock().take() {
                tell.send(stands).expect("the test listens");
            }
            async { DeliveryOutcome::done() }
        });
        let worker = start(&ledger, handler);
        ledger.accept(vec![event("crm", "")]).await.expect("it is accepted");
        assert!(told.await.expect("it is made"), "its lease is over while it works");
        assert_eq!(worker.stop(PATIENCE).await, Stopped::Drained);
    });
}

// Everybody else holds the pool's connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_is_used_up_does_not_lose_leases() {
    let server = Arc::new(Postgres::start().expect("a server"));
    let ledger = PostgresLedger::builder(server.url()).connections(2).open().await.expect("it opens");
    let ledger = Arc::new(ledger);
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let closed = Arc::clone(&gate);
    let handler = Handler::new(move |_| {
        let closed = Arc::clone(&closed);
        async move {
            let _open = closed.acquire().await;
            DeliveryOutcome::done()
        }
    });
    let worker = start(&ledger, handler);
    ledger.accept(vec![event("crm", "")]).await.expect("it is accepted");
    wait::until("it is taken", PATIENCE, || lease_left(&server).is_some()).expect("it is taken");
    // Accepts wait for a table that somebody has locked, each with its connection.
    let lock = "BEGIN; LOCK TABLE semel.ledger_event IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)";
    let locker = Arc::clone(&server);
    let locked = tokio::task::spawn_blocking(move || locker.sql(lock));
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    wait::until("it is locked", PATIENCE, || server.sql(asleep).expect("a count") == "1")
        .expect("it is locked");
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let ledger = Arc::clone(&ledger);
            tokio::spawn(async move { drop(ledger.find(semel::key::KeyId::from_bytes([7; 16])).await) })
        })
        .chain((0..8).map(|_| {
            let ledger = Arc::clone(&ledger);
            tokio::spawn(async move { drop(ledger.accept(vec![event("erp", "")]).await) })
        }))
        .collect();
    let watched = Arc::clone(&server);
    let stands = tokio::task::spawn_blocking(move || outlives_its_lease(&watched)).await.expect("it looks");
    assert!(stands, "its lease is over because others wait for the database");
    server.terminate_backends("wait_event = 'PgSleep'").expect("the lock is gone");
    let _ = locked.await.expect("it ends");
    for caller in callers {
        caller.await.expect("it ends");
    }
    gate.add_permits(10);
    assert_eq!(worker.stop(PATIENCE).await, Stopped::Drained);
}
