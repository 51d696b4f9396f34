//! Delivery to a local target on PostgreSQL, against bare loops of the same SQL and the same HTTP calls.
//!
//! `cargo bench -p semel-pipeline --all-features --bench deliver` prints, `-- --check` also fails where the goal is missed.
//! Two bare loops: one takes 32, sends them together, writes all 32; the other is 32 loops that take, send and write one
//! each. Neither renews a lease, asks a breaker, waits for a retry or counts anything. All take turns on one server.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

mod local;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use semel::secret::Secret;
use semel::time::{Clock as _, SystemClock};
use semel_client::client::{Client, Request, Sent};
use semel_pipeline::delivery::{AttemptClass, Ending, Settle, Work};
use semel_pipeline::ledger::{Intake as _, PostgresLedger, Take, Working};
use semel_pipeline::publish::Publication;
use semel_pipeline::target::{TargetRegistry, delivery_key};
use semel_pipeline::worker::{DeliveryObserver, Worker, WorkerSettings};
use semel_testbed::Postgres;
use tokio::runtime::Runtime;

use self::local::{Done, Turn, client, cpu_of_this_process, registry, serve};

const REPEATS: usize = 5;
const EVENTS: u64 = 3_000;
const TOGETHER: u32 = 32;
const GOAL: f64 = 0.6;

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let server = Postgres::start().expect("a PostgreSQL server can be started");
    let target = serve();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let bench = Arc::new(runtime.block_on(Bench::new(&server, target)));
    println!(
        "{EVENTS} events to one local target on PostgreSQL, {TOGETHER} at once: deliveries a second, CPU each"
    );
    let mut ratios: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..REPEATS {
        let batches = bench.measure(&runtime, &server, batches(Arc::clone(&bench)));
        let ours = bench.measure(&runtime, &server, worker(Arc::clone(&bench)));
        let lone = bench.measure(&runtime, &server, lone(Arc::clone(&bench)));
        println!("  ours {ours}   batches {batches}   lone loops {lone}");
        ratios[0].push(ours.rate / batches.rate);
        ratios[1].push(ours.rate / lone.rate);
    }
    let mut met = true;
    for (name, ratios) in ["batches", "lone loops"].into_iter().zip(&mut ratios) {
        ratios.sort_by(f64::total_cmp);
        let median = ratios[REPEATS / 2];
        println!(
            "  {median:.2} x the bare {name} ({:.2} to {:.2}, goal at least {GOAL} x)",
            ratios[0],
            ratios[REPEATS - 1]
        );
        met &= median >= GOAL;
    }
    if check && !met { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

struct Bench {
    ledger: Arc<PostgresLedger>,
    secret: Arc<Secret>,
    registry: TargetRegistry,
    client: Client,
    numbers: AtomicU64,
}

impl Bench {
    async fn new(server: &Postgres, target: SocketAddr) -> Self {
        let ledger = PostgresLedger::open(server.url()).await.expect("the ledger can be opened");
        Self {
            ledger: Arc::new(ledger),
            secret: Arc::new(Secret::random()),
            registry: registry(target, TOGETHER),
            client: client(target),
            numbers: AtomicU64::new(0),
        }
    }

    /// Publishes, then lets one side deliver everything.
    fn measure(&self, runtime: &Runtime, server: &Postgres, side: impl Future<Output = ()>) -> Turn {
        runtime.block_on(self.publish());
        let before = (server.cpu_time().expect("a running server"), cpu_of_this_process());
        let began = Instant::now();
        runtime.block_on(side);
        let seconds = began.elapsed().as_secs_f64();
        let after = (server.cpu_time().expect("a running server"), cpu_of_this_process());
        let cpu = (after.0 - before.0) + (after.1 - before.1);
        Turn { rate: EVENTS as f64 / seconds, cpu: cpu.as_secs_f64() * 1e6 / EVENTS as f64 }
    }

    async fn publish(&self) {
        for _ in 0..EVENTS / 100 {
            let events = (0..100).map(|_| {
                let key = self.numbers.fetch_add(1, Ordering::Relaxed).to_string();
                let paid = Publication::new("order.paid", key, r#"{"cents": 1200}"#);
                paid.into_event(&self.secret, &self.registry.current(), SystemClock.now()).expect("an event")
            });
            self.ledger.accept(events.collect()).await.expect("they are accepted");
        }
    }

    async fn take(&self, limit: u32) -> Vec<Work> {
        let take = Take {
            worker: "bare".into(),
            targets: vec![("t".into(), limit)],
            limit,
            lease: Duration::from_secs(30),
        };
        self.ledger.take(take).await.expect("work is given out")
    }

    async fn send(&self, work: &Work) {
        let key = delivery_key(&self.secret, work.event, &work.target, work.epoch).to_string();
        let request = Request::post("/hook").bytes(work.payload.clone()).key(key).expect("a key");
        let sent = self.client.send_once(&request).await;
        assert!(matches!(sent, Sent::Answered(answer) if answer.status.is_success()));
    }
}

async fn worker(bench: Arc<Bench>) {
    let done = Arc::new(Done::default());
    let worker = Worker::start(
        Arc::clone(&bench.ledger) as Arc<dyn Working>,
        bench.registry.clone(),
        Arc::clone(&bench.secret),
        WorkerSettings::default(),
        Arc::clone(&done) as Arc<dyn DeliveryObserver>,
    )
    .expect("a worker");
    while done.count() < EVENTS || worker.in_hand() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    worker.stop(Duration::from_secs(10)).await;
}

/// Takes many, sends them together, writes all of them.
async fn batches(bench: Arc<Bench>) {
    loop {
        let taken = bench.take(TOGETHER).await;
        if taken.is_empty() {
            return;
        }
        let sending = taken.into_iter().map(|work| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move {
                bench.send(&work).await;
                (work.holding, done())
            })
        });
        let mut settled = Vec::new();
        for one in sending.collect::<Vec<_>>() {
            settled.push(one.await.expect("it ends"));
        }
        bench.ledger.settle(settled).await.expect("they are written");
    }
}

/// Many loops that take, send and write one each.
async fn lone(bench: Arc<Bench>) {
    let loops = (0..TOGETHER).map(|_| {
        let bench = Arc::clone(&bench);
        tokio::spawn(async move {
            while let Some(work) = bench.take(1).await.pop() {
                bench.send(&work).await;
                bench.ledger.settle(vec![(work.holding, done())]).await.expect("it is written");
            }
        })
    });
    for one in loops.collect::<Vec<_>>() {
        one.await.expect("it ends");
    }
}

fn done() -> Settle {
    let (error, excerpt) = (String::new(), String::new());
    Settle::Done(Ending {
        class: AttemptClass::Success,
        status: Some(200),
        error,
        excerpt,
        retry_after: None,
    })
}
