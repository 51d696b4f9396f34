//! Everything at once: triggers with and without waiting, conflicting payloads, changes, cancellations and resets of the same keys,
//! through three processes that are killed. In full form: `./scripts/prove mixed`.
//!
//! Every client keeps what it was told. At the end that history is compared with the ledger, the dead letters and what the target
//! took. The comparison is exact: only an operation whose answer was lost, or was 503, may have happened or not.

mod history;

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use semel_testbed::wait;
use serde_json::{Value, json};

use self::history::{History, Operation, Reply, Request};
use super::Deployment;
use crate::kit::{Http, PATIENCE, Semel};

const SERVERS: usize = 3;
const CLIENTS: usize = 8;
/// How many operations a key gets before clients go on to the next ones.
const OPERATIONS_PER_KEY: usize = 12;

/// The gate trips and recovers all the time.
const GATE: &[&str] = &[
    "mode = \"on\"\nthreshold = 1\nwindow = \"400ms\"\nhold = \"200ms\"\n",
    "lease = \"2s\"\nwait = \"10s\"\nbatch = 20\ndrainers = 1\n",
];

fn in_full() -> bool {
    std::env::var_os("SEMEL_PROVE").is_some()
}

struct Workload {
    servers: Vec<Mutex<Semel>>,
    history: History,
    operations: usize,
    begun: AtomicUsize,
}

#[test]
fn mixed_operations_over_three_processes_with_kills_are_exact() {
    let (operations, kills) = if in_full() { (20_000, 100) } else { (480, 4) };
    let deployment = Deployment::new();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let workload = Workload {
        servers: (0..SERVERS).map(|_| Mutex::new(deployment.serve(GATE))).collect(),
        history: History::default(),
        operations,
        begun: AtomicUsize::new(0),
    };
    std::thread::scope(|scope| {
        let workload = &workload;
        for client in 0..CLIENTS as u64 {
            scope.spawn(move || workload.act(StdRng::seed_from_u64(seed ^ client)));
        }
        for kill in 1..=kills {
            let due = || workload.begun.load(Ordering::SeqCst) >= operations * kill / (kills + 1);
            wait::until("the next kill is due", PATIENCE * 10, due).unwrap();
            let successor = deployment.serve(GATE);
            let victim = std::mem::replace(&mut *workload.servers[kill % SERVERS].lock(), successor);
            without_redis(&victim);
            victim.kill();
        }
    });
    // What is promised here holds while Redis answers.
    workload.servers.iter().for_each(|server| without_redis(&server.lock()));
    let admin = workload.servers[0].lock().admin();
    deployment.settle(&admin);
    let told = workload.history.check(&deployment, &admin);
    println!("{kills} kills, {told}");
}

/// Fails where a trigger of this server had to go on without Redis.
fn without_redis(server: &Semel) {
    let log = server.log();
    let told: Vec<&str> = log.lines().filter(|line| line.contains("continues without Redis")).collect();
    assert!(told.is_empty(), "Redis did not answer: {told:?}");
}

impl Workload {
    /// One client: acts until all operations are begun.
    fn act(&self, mut random: StdRng) {
        loop {
            let number = self.begun.fetch_add(1, Ordering::SeqCst);
            if number >= self.operations {
                return;
            }
            let key = number / OPERATIONS_PER_KEY + random.random_range(0..3);
            let server: Http = self.servers[random.random_range(0..SERVERS)].lock().admin();
            let known = self.history.a_run_of(key, random.random_range(0..1000));
            let request = match (random.random_range(0..100), known) {
                (38..50, _) => Request::Trigger { key, variant: 0, waits: true },
                (50..60, _) => Request::Trigger { key, variant: 1, waits: random.random_ratio(1, 4) },
                (60..82, Some(run)) => Request::Increment { run, number },
                (82..90, Some(run)) => Request::Cancel { run },
                (90..100, Some(_)) => Request::Reset { key },
                _ => Request::Trigger { key, variant: 0, waits: false },
            };
            let start = self.history.now();
            let reply = send(&server, &request);
            self.history.add(Operation { request, start, end: self.history.now(), reply });
        }
    }
}

/// What a run of a key does; every third waits before it starts, so that it can be cancelled.
fn body_of(key: usize, variant: usize) -> Value {
    let delay = if key.is_multiple_of(3) { "1s" } else { "0s" };
    json!({
        "target": "crm", "payload": { "key": key, "variant": variant }, "delay": delay,
        "idempotency_key": format!("k{key}"), "tenant": format!("tenant-{}", key % 2),
    })
}

fn send(server: &Http, request: &Request) -> Reply {
    let answer = match request {
        Request::Trigger { key, variant, waits } => {
            let path = if *waits { "/v1/runs?wait=true&timeout=300ms" } else { "/v1/runs" };
            server.try_send("POST", path, &body_of(*key, *variant).to_string())
        }
        Request::Increment { run, number } => {
            let change = json!({ "increment": { "n": 1, format!("op{number}"): 1 } });
            server.try_send("PATCH", &format!("/v1/runs/{run}"), &change.to_string())
        }
        Request::Cancel { run } => server.try_send("POST", &format!("/v1/runs/{run}/cancel"), "{}"),
        Request::Reset { key } => {
            let body =
                json!({ "target": "crm", "key": format!("k{key}"), "tenant": format!("tenant-{}", key % 2) });
            server.try_send("POST", "/v1/runs/reset-key", &body.to_string())
        }
    };
    match answer {
        // Nobody listened: it was not sent.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Reply::NotSent,
        Err(_) => Reply::Unknown,
        Ok(answer) if answer.status == 503 => {
            assert!(answer.header("retry-after").is_some(), "{}", answer.text());
            Reply::Unknown
        }
        Ok(answer) => Reply::Received { status: answer.status, body: answer.json() },
    }
}
