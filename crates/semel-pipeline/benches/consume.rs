//! Consuming a Redis stream, against bare XREADGROUP/XACK loops with the same handler: an HTTP call to a local target.
//!
//! `cargo bench -p semel-pipeline --all-features --bench consume` prints, `-- --check` also fails where the goal is missed.
//! The bare loop reads 500, as ours does, then handles and acknowledges one after the other. It writes nothing down: a duplicate is
//! handled again, and a call that fails stops it. Ours puts every message into a ledger that survives a power cut, knows
//! duplicates, retries, and handles 32 at once. A bare loop that handles 32 at once is printed beside it and not counted:
//! it shows what the ledger costs where the handler costs next to nothing. All take turns.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]

mod local;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use semel::secret::Secret;
use semel::store::redis_driver::{Cmd, Value, cmd};
use semel::store::{Effect, EmbeddedStore, RedisClient};
use semel_client::client::{Client, Request, Sent};
use semel_pipeline::ledger::{EmbeddedLedger, Ledger, PostgresLedger, Working};
use semel_pipeline::source::{Pump, RedisStream, SourceCounters};
use semel_pipeline::target::TargetRegistry;
use semel_pipeline::worker::{DeliveryObserver, Worker, WorkerSettings};
use semel_testbed::{Postgres, Redis};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use self::local::{Done, Turn, client, cpu_of_this_process, registry, serve};

const REPEATS: usize = 5;
const MESSAGES: u64 = 6_000;
const TOGETHER: u32 = 32;
const AT_ONCE: u32 = 500;
const GOAL: f64 = 0.6;

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let (redis, postgres) = (Redis::start().expect("a Redis"), Postgres::start().expect("a PostgreSQL"));
    let folder = tempfile::tempdir().expect("a folder");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    let bench = Arc::new(Bench::new(&redis, serve()));
    let embedded: Arc<dyn Ledger> = Arc::new(runtime.block_on(async {
        let store = EmbeddedStore::open(folder.path()).expect("a store");
        EmbeddedLedger::open(Arc::new(store)).await.expect("a ledger")
    }));
    let shared: Arc<dyn Ledger> =
        Arc::new(runtime.block_on(PostgresLedger::open(postgres.url())).expect("a ledger"));
    println!(
        "{MESSAGES} messages to one local target, {TOGETHER} at once: messages a second, CPU of the client each"
    );
    let mut ratios: [Vec<f64>; 4] = Default::default();
    // The first one warms all.
    for repeat in 0..=REPEATS {
        let bare = bench.measure(&runtime, one_by_one);
        let embedded = bench.measure(&runtime, |bench, stream| consume(bench, stream, Arc::clone(&embedded)));
        let many = bench.measure(&runtime, batches);
        let shared = bench.measure(&runtime, |bench, stream| consume(bench, stream, Arc::clone(&shared)));
        if repeat > 0 {
            println!(
                "  embedded {embedded}   PostgreSQL {shared}   bare loop {bare}   {TOGETHER} at once {many}"
            );
            let pairs = [(&embedded, &bare), (&shared, &bare), (&embedded, &many), (&shared, &many)];
            ratios.iter_mut().zip(pairs).for_each(|(all, (ours, bare))| all.push(ours.rate / bare.rate));
        }
    }
    let mut met = true;
    let names = [("embedded", true), ("PostgreSQL", true), ("embedded", false), ("PostgreSQL", false)];
    for ((ledger, counted), ratios) in names.into_iter().zip(&mut ratios) {
        ratios.sort_by(f64::total_cmp);
        let (median, least, most) = (ratios[REPEATS / 2], ratios[0], ratios[REPEATS - 1]);
        if counted {
            println!(
                "  {ledger}: {median:.2} x the bare loop ({least:.2} to {most:.2}, goal at least {GOAL} x)"
            );
            met &= median >= GOAL;
        } else {
            println!("  {ledger}: {median:.2} x {TOGETHER} at once ({least:.2} to {most:.2}, not counted)");
        }
    }
    if check && !met { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

struct Bench {
    redis: String,
    commands: RedisClient,
    secret: Arc<Secret>,
    registry: TargetRegistry,
    client: Client,
    turns: AtomicU64,
}

impl Bench {
    fn new(redis: &Redis, target: SocketAddr) -> Self {
        Self {
            redis: redis.url(),
            commands: RedisClient::builder(redis.url()).build().expect("the URL is good"),
            secret: Arc::new(Secret::random()),
            registry: registry(target, TOGETHER),
            client: client(target),
            turns: AtomicU64::new(0),
        }
    }

    /// Fills a stream, then lets one side consume it.
    fn measure<F: Future<Output = ()>>(
        self: &Arc<Self>,
        runtime: &Runtime,
        side: impl FnOnce(Arc<Self>, String) -> F,
    ) -> Turn {
        let stream = format!("orders-{}", self.turns.fetch_add(1, Ordering::Relaxed));
        runtime.block_on(self.fill(&stream));
        let (began, cpu) = (Instant::now(), cpu_of_this_process());
        runtime.block_on(side(Arc::clone(self), stream.clone()));
        let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_of_this_process() - cpu);
        runtime.block_on(self.nothing_is_left(&stream));
        Turn { rate: MESSAGES as f64 / seconds, cpu: cpu.as_secs_f64() * 1e6 / MESSAGES as f64 }
    }

    async fn fill(&self, stream: &str) {
        self.ask(cmd("XGROUP").arg("CREATE").arg(stream).arg("g").arg("0").arg("MKSTREAM")).await;
        for number in 0..MESSAGES {
            let key = format!("{stream}-{number}");
            let mut add = cmd("XADD");
            add.arg(stream).arg("*").arg("type").arg("order.paid").arg("dedupe_key").arg(key);
            self.ask(add.arg("payload").arg(r#"{"cents": 1200}"#)).await;
        }
    }

    async fn nothing_is_left(&self, stream: &str) {
        let Value::Array(pending) = self.ask(cmd("XPENDING").arg(stream).arg("g")).await else {
            panic!("XPENDING answers with a list")
        };
        assert_eq!(pending.first(), Some(&Value::Int(0)), "everything is acknowledged");
        self.ask(cmd("DEL").arg(stream)).await;
    }

    async fn ask(&self, command: &Cmd) -> Value {
        self.commands.query(command, Effect::Writes).await.expect("Redis answers")
    }

    /// Reads some messages: the id and the payload of each.
    async fn read(&self, stream: &str, consumer: &str, count: u32) -> Vec<(String, Vec<u8>)> {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg("g").arg(consumer).arg("COUNT").arg(count).arg("STREAMS").arg(stream).arg(">");
        messages(self.ask(&read).await)
    }

    /// What is done with a message.
    async fn handle(&self, id: &str, payload: Vec<u8>) {
        let request = Request::post("/hook").bytes(payload).key(id).expect("a key");
        let sent = self.client.send_once(&request).await;
        assert!(matches!(sent, Sent::Answered(answer) if answer.status.is_success()));
    }

    async fn acknowledge(&self, stream: &str, ids: &[String]) {
        self.ask(cmd("XACK").arg(stream).arg("g").arg(ids)).await;
    }
}

/// Reads the server's answer, a map or a list of pairs.
fn messages(answer: Value) -> Vec<(String, Vec<u8>)> {
    let entries = match answer {
        Value::Map(streams) => streams.into_iter().next().map(|(_, entries)| entries),
        Value::Array(streams) => match streams.into_iter().next() {
            Some(Value::Array(pair)) => pair.into_iter().nth(1),
            _ => None,
        },
        _ => None,
    };
    let Some(Value::Array(entries)) = entries else { return Vec::new() };
    let message = |entry| {
        let Value::Array(mut pair) = entry else { panic!("an id and its fields") };
        let (Some(Value::Array(mut fields)), Some(Value::BulkString(id))) = (pair.pop(), pair.pop()) else {
            panic!("an id and its fields")
        };
        let Some(Value::BulkString(payload)) = fields.pop() else { panic!("the payload is the last field") };
        (String::from_utf8(id).expect("ids are text"), payload)
    };
    entries.into_iter().map(message).collect()
}

/// The product: from the stream into the ledger, from there to the target.
async fn consume(bench: Arc<Bench>, stream: String, ledger: Arc<dyn Ledger>) {
    let (stop, stopped) = watch::channel(false);
    let (done, counters) = (Arc::new(Done::default()), Arc::<SourceCounters>::default());
    let source = RedisStream::builder(&bench.redis, stream, "g").build().expect("a source");
    let targets = bench.registry.clone();
    let routes = Arc::new(move |event_type: &str| targets.current().wanting(event_type));
    let pump = Pump::new(source, Arc::clone(&ledger), Arc::clone(&bench.secret), routes, counters);
    let pump = tokio::spawn(pump.run(stopped));
    let worker = Worker::start(
        ledger as Arc<dyn Working>,
        bench.registry.clone(),
        Arc::clone(&bench.secret),
        WorkerSettings::default(),
        Arc::clone(&done) as Arc<dyn DeliveryObserver>,
    )
    .expect("a worker");
    while done.count() < MESSAGES || worker.in_hand() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    worker.stop(Duration::from_secs(10)).await;
    stop.send(true).expect("the pump listens");
    pump.await.expect("it ends");
}

/// Reads many, sends them together, acknowledges all of them.
async fn batches(bench: Arc<Bench>, stream: String) {
    loop {
        let read = bench.read(&stream, "bare", TOGETHER).await;
        if read.is_empty() {
            return;
        }
        let sending = read.into_iter().map(|(id, payload)| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move {
                bench.handle(&id, payload).await;
                id
            })
        });
        let mut sent = Vec::new();
        for one in sending.collect::<Vec<_>>() {
            sent.push(one.await.expect("it ends"));
        }
        bench.acknowledge(&stream, &sent).await;
    }
}

/// The loop that everybody writes first.
async fn one_by_one(bench: Arc<Bench>, stream: String) {
    loop {
        let read = bench.read(&stream, "bare", AT_ONCE).await;
        if read.is_empty() {
            return;
        }
        for (id, payload) in read {
            bench.handle(&id, payload).await;
            bench.acknowledge(&stream, &[id]).await;
        }
    }
}
