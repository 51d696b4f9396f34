//! What a call costs through the claims API, next to the library, on one Redis.
//!
//! `cargo bench -p semel-server --bench claims` prints a table of calls per second for one caller and for 64, which is in docs/reference/claims-api.md. A first call is a claim that begins,
//! and its completion; a replay is a claim of a done key. All sides take turns.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the real clock")]
#![expect(clippy::unwrap_used, reason = "a benchmark that fails ends")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use semel::store::RedisStore;
use semel::{Engine, Key};
use semel_testbed::Redis;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(1);
/// Keys to replay. The hot cache has room for them.
const DONE: u64 = 500;

/// Keys that were never used.
static NEXT: AtomicU64 = AtomicU64::new(DONE);

#[derive(Clone, Copy)]
enum Call {
    First,
    Replay,
}

impl Call {
    fn key(self) -> String {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        match self {
            Self::First => format!("order-{number}"),
            Self::Replay => format!("order-{}", number % DONE),
        }
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A kept connection to the claims API.
struct Api {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Api {
    async fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::new() }
    }

    async fn post(&mut self, path: &str, body: &Value) -> Value {
        let body = body.to_string();
        let length = body.len();
        let request =
            format!("POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {length}\r\n\r\n{body}");
        self.stream.write_all(request.as_bytes()).await.unwrap();
        self.buffer.clear();
        loop {
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "an open connection");
            let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.buffer[..end]).unwrap();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let body = end + 4..end + 4 + length.parse::<usize>().unwrap();
            if let Some(body) = self.buffer.get(body) {
                return serde_json::from_slice(body).unwrap();
            }
        }
    }

    async fn call(&mut self, call: Call) {
        let claimed = self.post("/v1/claims", &claim(&call.key())).await;
        if let Some(id) = claimed["claim_id"].as_str() {
            self.post(&format!("/v1/claims/{id}/complete"), &json!({ "outcome": { "receipt": 1 } })).await;
        }
    }

    /// As many first calls in two requests.
    async fn batch(&mut self, calls: usize) {
        let claims: Vec<Value> = (0..calls).map(|_| json!({ "claim": claim(&Call::First.key()) })).collect();
        let claimed = self.post("/v1/claims/batch", &json!({ "operations": claims })).await;
        let complete = |one: &Value| json!({ "complete": { "claim_id": one["result"]["claim_id"], "outcome": { "receipt": 1 } } });
        let completions: Vec<Value> = claimed["results"].as_array().unwrap().iter().map(complete).collect();
        self.post("/v1/claims/batch", &json!({ "operations": completions })).await;
    }
}

fn claim(key: &str) -> Value {
    json!({ "namespace": "api", "key": key, "payload": { "cents": 1200 }, "begin": true })
}

async fn library_call(engine: &Engine, call: Call) {
    let key = Key::new("library").value(call.key());
    let run = engine.once(key).fingerprint(&1200).run(async || Ok::<_, semel::Failure>(1));
    run.await.unwrap();
}

/// Calls per second of callers that each run `call` again and again.
async fn rate<F: Future<Output = u64> + Send + 'static>(callers: usize, call: impl Fn(Instant) -> F) -> f64 {
    let began = Instant::now();
    let running: Vec<_> = (0..callers).map(|_| tokio::spawn(call(began + ROUND))).collect();
    let mut calls = 0;
    for caller in running {
        calls += caller.await.unwrap();
    }
    calls as f64 / began.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// The median, with separators, for a table in Markdown.
fn per_second(rates: Vec<f64>) -> String {
    let digits = format!("{:.0}", median(rates));
    let groups: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    groups.iter().map(|group| String::from_utf8_lossy(group)).collect::<Vec<_>>().join(",")
}

fn main() {
    let redis = Redis::options().config("save", "\"\"").config("appendonly", "no").start().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["serve", "--admin", "127.0.0.1:0", "--store", &redis.url()])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let _server = Server(child);
    let address: Arc<str> = ready.trim().rsplit("http://").next().unwrap().into();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let engine = Engine::builder(RedisStore::connect(&redis.url()).await.unwrap()).build().unwrap();
        let mut api = Api::connect(&address).await;
        for _ in 0..DONE {
            api.call(Call::Replay).await;
            library_call(&engine, Call::Replay).await;
        }
        println!("| | library | API | API, batches of 64 |\n|---|---|---|---|");
        for (name, call) in [("first call", Call::First), ("replay", Call::Replay)] {
            for callers in [1, 64] {
                let (mut library, mut api, mut batches) = (Vec::new(), Vec::new(), Vec::new());
                for _ in 0..ROUNDS {
                    library.push(rate(callers, |until| by_library(engine.clone(), call, until)).await);
                    api.push(rate(callers, |until| by_api(Arc::clone(&address), call, until)).await);
                    if callers == 1 && matches!(call, Call::First) {
                        batches.push(rate(1, |until| by_batch(Arc::clone(&address), until)).await);
                    }
                }
                let batched = if batches.is_empty() { String::new() } else { per_second(batches) };
                let plural = if callers == 1 { "" } else { "s" };
                println!(
                    "| {name}, {callers} caller{plural} | {} | {} | {batched} |",
                    per_second(library),
                    per_second(api)
                );
            }
        }
    });
}

async fn by_library(engine: Engine, call: Call, until: Instant) -> u64 {
    let mut calls = 0;
    while Instant::now() < until {
        library_call(&engine, call).await;
        calls += 1;
    }
    calls
}

async fn by_api(address: Arc<str>, call: Call, until: Instant) -> u64 {
    let (mut api, mut calls) = (Api::connect(&address).await, 0);
    while Instant::now() < until {
        api.call(call).await;
        calls += 1;
    }
    calls
}

async fn by_batch(address: Arc<str>, until: Instant) -> u64 {
    let (mut api, mut calls) = (Api::connect(&address).await, 0);
    while Instant::now() < until {
        api.batch(64).await;
        calls += 64;
    }
    calls
}
