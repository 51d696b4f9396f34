//! Four gateways on one Redis, in front of an upstream that is the witness. They are killed and stopped, Redis is killed, and 30 % of the
//! clients leave before their answer.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::process::Signal;
use semel_proof::chaos::checker::{ChaosChecker, ChaosVerdict};
use semel_proof::chaos::history::{self, HistoryEvent, HistoryRow, HistoryWriter};
use semel_proof::chaos::schedule::{ChaosFault, FaultSchedule};
use semel_proof::chaos::upstream::{self, WitnessUpstream};
use semel_proof::chaos::{KeyKind, witness};
use semel_proof::victim::{VictimJob, VictimReport};
use semel_testbed::redis::Persistence;
use semel_testbed::{Redis, Storage, wait};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::serve::Served;
use crate::crash::supervisor::Victim;
use crate::crash::{Form, PATIENCE, folder, seed};

const GATEWAYS: usize = 4;
const CLIENTS: usize = 32;
/// The share of clients that leave before their answer.
const LEAVING: f64 = 0.3;
const STOPPED_FOR: Duration = Duration::from_millis(2_700);
const LONGEST_PAUSE: Duration = Duration::from_millis(1_500);
/// How far behind the newest key an old one is at most.
const LONG_AGO: u64 = 10_000;
/// How often the audit asks for a key. Far more than it needs, unless nothing is granted any more.
const AUDIT_TRIES: usize = 100;

/// What clients share.
struct Clients {
    gateways: Vec<Mutex<Gateway>>,
    history: HistoryWriter,
    audit: HistoryWriter,
    keys: AtomicU64,
    calls: AtomicU64,
    goal: u64,
    seed: u64,
}

#[derive(Clone, Copy)]
struct Gateway {
    addr: SocketAddr,
    process: u32,
}

/// Whether a client waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientPatience {
    Waits,
    /// It leaves after this time.
    Leaves(Duration),
}

impl Clients {
    async fn call_again_and_again(self: Arc<Self>, client: u64) {
        let mut rng = StdRng::seed_from_u64(self.seed ^ (client << 32));
        let mut connections: [Option<(u32, TcpStream)>; GATEWAYS] = [const { None }; GATEWAYS];
        while self.calls.load(Ordering::Relaxed) < self.goal {
            let key = match rng.random_range(0..100) {
                0..50 => self.keys.fetch_add(1, Ordering::SeqCst),
                50..85 => self.keys.load(Ordering::SeqCst).saturating_sub(rng.random_range(0..48)),
                _ => self.keys.load(Ordering::SeqCst).saturating_sub(rng.random_range(0..LONG_AGO)),
            };
            let patience = match rng.random_bool(LEAVING) {
                true => ClientPatience::Leaves(Duration::from_micros(rng.random_range(0..4_000))),
                false => ClientPatience::Waits,
            };
            let gateway = rng.random_range(0..GATEWAYS);
            self.call(key, gateway, &mut connections[gateway], patience, &self.history).await;
        }
    }

    async fn call(
        &self,
        key: u64,
        gateway: usize,
        connection: &mut Option<(u32, TcpStream)>,
        patience: ClientPatience,
        history: &HistoryWriter,
    ) -> HistoryEvent {
        let Gateway { addr, process } =
            *self.gateways[gateway].lock().unwrap_or_else(PoisonError::into_inner);
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let note = |event, entry| {
            history.add(&HistoryRow { key, call, entry, ..HistoryRow::new(process, event) });
        };
        note(HistoryEvent::Asked, 0);
        let held = connection.take().filter(|(of, _)| *of == process).map(|(_, stream)| stream);
        let asked = async {
            let mut stream = match held {
                Some(stream) => stream,
                None => TcpStream::connect(addr).await?,
            };
            let answer = ask(&mut stream, key).await?;
            std::io::Result::Ok((stream, answer))
        };
        let limit = match patience {
            ClientPatience::Waits => PATIENCE,
            ClientPatience::Leaves(after) => after,
        };
        let (event, entry) = match timeout(limit, asked).await {
            Err(_) => (HistoryEvent::Dropped, 0),
            Ok(Err(_)) => (HistoryEvent::StoreFailed, 0),
            Ok(Ok((stream, answer))) => {
                *connection = Some((process, stream));
                answer
            }
        };
        note(event, entry);
        if matches!(event, HistoryEvent::StoreFailed) {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        event
    }

    /// Asks for every key until there is a final answer.
    async fn audit(self: Arc<Self>, next: Arc<AtomicU64>) {
        let mut connection = None;
        loop {
            let key = next.fetch_add(1, Ordering::SeqCst);
            if key > self.keys.load(Ordering::SeqCst) {
                return;
            }
            let gateway = usize::try_from(key).unwrap_or_default() % GATEWAYS;
            for _ in 0..AUDIT_TRIES {
                let event =
                    self.call(key, gateway, &mut connection, ClientPatience::Waits, &self.audit).await;
                if matches!(event, HistoryEvent::Value | HistoryEvent::InDoubt) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// One request; what its answer means.
async fn ask(stream: &mut TcpStream, key: u64) -> std::io::Result<(HistoryEvent, u64)> {
    let path = if upstream::kind(key) == KeyKind::Keyed { "/keyed" } else { "/marked" };
    let body = key.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nidempotency-key: key-{key}\r\ncontent-type: text/plain"
    );
    stream.write_all(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(answer) = read_answer(&bytes) {
            return Ok(answer);
        }
    }
}

/// The meaning of an answer, once it is complete.
fn read_answer(bytes: &[u8]) -> Option<(HistoryEvent, u64)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let head = head.to_ascii_lowercase();
    let header =
        |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let length: usize = header("content-length")?.parse().ok()?;
    let body: Value = serde_json::from_str(body.get(..length)?).unwrap_or(Value::Null);
    let status = head.split(' ').nth(1).unwrap_or_default();
    Some(match (status, body["code"].as_str().unwrap_or_default()) {
        ("201", _) => {
            let stored = header("idempotency-stored") != Some("false");
            let event = if stored { HistoryEvent::Value } else { HistoryEvent::Unstored };
            (event, body["entry"].as_u64().unwrap_or_default())
        }
        (_, "in_doubt") => (HistoryEvent::InDoubt, 0),
        (_, "in_flight") => (HistoryEvent::InFlight, 0),
        (_, "store_unavailable" | "upstream_unknown" | "upstream_unreachable" | "overloaded") => {
            (HistoryEvent::StoreFailed, 0)
        }
        _ => {
            eprintln!("an unexpected answer: {text}");
            (HistoryEvent::Unexpected, 0)
        }
    })
}

/// Redis, the upstream and the gateways.
struct Deployment {
    redis: Redis,
    mutant: Option<&'static str>,
    served: Vec<Served>,
    goes_on_at: [Option<Instant>; GATEWAYS],
    processes: u32,
    _upstream: Victim,
    folder: TempDir,
}

impl Deployment {
    fn start(mutant: Option<&'static str>) -> Self {
        let folder = folder();
        let upstream =
            Victim::start(&VictimJob::Upstream(WitnessUpstream { ledger: folder.path().join("ledger") }));
        let port = upstream.wait_for("it listened", |report| match report {
            VictimReport::Listens { port } => Some(*port),
            _ => None,
        });
        let redis = Redis::options().persistence(Persistence::Always).storage(Storage::Memory).start();
        let redis = redis.expect("redis-server starts");
        let text = format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:{port}\"\nscope = \"single-tenant\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\n\
             [[route]]\nmatch = \"POST /marked\"\nlease = \"2s\"\nwait = \"1s\"\n\
             [[route]]\nmatch = \"POST /keyed\"\nmode = \"keyed\"\nlease = \"2s\"\nwait = \"1s\"\n",
            redis.url()
        );
        std::fs::write(folder.path().join("semel.toml"), text).expect("the config can be written");
        let (served, goes_on_at) = (Vec::new(), [None; GATEWAYS]);
        let mut deployment =
            Self { redis, mutant, served, goes_on_at, processes: 0, _upstream: upstream, folder };
        for _ in 0..GATEWAYS {
            let served = deployment.serve();
            deployment.served.push(served);
        }
        deployment
    }

    fn serve(&self) -> Served {
        let config = self.folder.path().join("semel.toml");
        let start = || Ok(Served::start(&config, self.mutant));
        wait::for_some("a gateway starts", PATIENCE, start).expect("a gateway starts")
    }

    fn gateway(&mut self, number: usize) -> Gateway {
        self.processes += 1;
        Gateway { addr: self.served[number].gateway(), process: self.processes }
    }

    fn inject(&mut self, fault: ChaosFault, clients: &Clients, faults: &HistoryWriter) -> u64 {
        let place = |number: usize| clients.gateways[number].lock().unwrap_or_else(PoisonError::into_inner);
        match fault {
            ChaosFault::KillProcess(number) => {
                self.served[number].kill();
                faults.add(&HistoryRow::new(place(number).process, HistoryEvent::Killed));
                self.goes_on_at[number] = None;
                self.served[number] = self.serve();
                let gateway = self.gateway(number);
                *place(number) = gateway;
                return 1;
            }
            ChaosFault::StopProcess(number) if self.goes_on_at[number].is_none() => {
                self.served[number].signal(Signal::STOP);
                faults.add(&HistoryRow::new(place(number).process, HistoryEvent::Stopped));
                self.goes_on_at[number] = Some(Instant::now() + STOPPED_FOR);
            }
            ChaosFault::KillServer => self.redis.restart().expect("redis-server starts again"),
            _ => {}
        }
        0
    }

    fn go_on(&mut self, now: Instant) {
        for (served, end) in self.served.iter().zip(&mut self.goes_on_at) {
            if end.is_some_and(|end| end <= now) {
                served.signal(Signal::CONT);
                *end = None;
            }
        }
    }
}

fn play(goal: u64, seed: u64, mutant: Option<&'static str>) -> ChaosVerdict {
    let mut deployment = Deployment::start(mutant);
    let at = |name: &str| deployment.folder.path().join(name);
    let (clients_file, audit_file, faults_file, ledger) =
        (at("clients"), at("audit"), at("faults"), at("ledger"));
    let writer = |path: &Path| HistoryWriter::open(path).expect("the history can be written");
    let faults = writer(&faults_file);
    let gateways = (0..GATEWAYS).map(|number| Mutex::new(deployment.gateway(number))).collect();
    let clients = Arc::new(Clients {
        gateways,
        history: writer(&clients_file),
        audit: writer(&audit_file),
        keys: AtomicU64::new(1),
        calls: AtomicU64::new(0),
        goal,
        seed,
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime can be started");
    let calling: Vec<_> = (0..CLIENTS)
        .map(|client| runtime.spawn(Arc::clone(&clients).call_again_and_again(client as u64)))
        .collect();
    let mut kills = 0;
    for (pause, fault) in FaultSchedule::new(seed, GATEWAYS, LONGEST_PAUSE) {
        if wait::until("the goal is reached", pause, || clients.calls.load(Ordering::SeqCst) >= goal).is_ok()
        {
            break;
        }
        deployment.go_on(Instant::now());
        kills += deployment.inject(fault, &clients, &faults);
    }
    deployment.go_on(Instant::now() + STOPPED_FOR);
    for client in calling {
        runtime.block_on(client).expect("a client does not panic");
    }
    let asked = clients.calls.load(Ordering::SeqCst);
    // Rows of the audit carry the numbers of running gateways, which it must not change: a number of their own tells them apart.
    for number in 0..GATEWAYS {
        let gateway = deployment.gateway(number);
        clients.audit.add(&HistoryRow::new(gateway.process, HistoryEvent::Audits));
        *clients.gateways[number].lock().unwrap_or_else(PoisonError::into_inner) = gateway;
    }
    let next = Arc::new(AtomicU64::new(0));
    let auditing: Vec<_> =
        (0..CLIENTS).map(|_| runtime.spawn(Arc::clone(&clients).audit(Arc::clone(&next)))).collect();
    for client in auditing {
        runtime.block_on(client).expect("a client does not panic");
    }
    let mut checker = ChaosChecker::new(upstream::kind);
    for path in [&faults_file, &clients_file, &audit_file] {
        history::read(path, |row| checker.row(row)).expect("the history can be read");
    }
    witness::read(&ledger, |entry| checker.entry(entry)).expect("the ledger can be read");
    let verdict = checker.judge();
    println!("{asked} requests, {kills} kills of gateways: {verdict}");
    verdict
}

#[test]
#[ignore = "a part of ./scripts/prove chaos"]
fn gateways() {
    let seed = seed();
    let goal = Form::asked().pick(1_500, 500_000);
    let verdict = play(goal, seed, None);
    assert!(verdict.holds(), "SEMEL_SEED={seed}: {verdict}");
    assert!(verdict.calls >= goal, "SEMEL_SEED={seed}: {verdict}");
}
