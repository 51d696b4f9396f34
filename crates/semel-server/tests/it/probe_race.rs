//! Two gateways and one key in doubt, on real stores: every caller gets the answer that is stored.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rustix::process::Signal;
use semel_testbed::{Postgres, Redis, wait};

use crate::kit::{Answer, PATIENCE, Semel};

/// An API that holds every request until the test lets it go, and answers each with another body.
#[derive(Default)]
struct Held {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    arrived: usize,
    released: BTreeSet<usize>,
}

impl Held {
    fn start() -> (Arc<Self>, String) {
        let held = Arc::new(Self::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let of_thread = Arc::clone(&held);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let held = Arc::clone(&of_thread);
                std::thread::spawn(move || held.answer(&stream));
            }
        });
        (held, url)
    }

    /// One request a connection: its head ends with an empty line, its body is not looked at.
    fn answer(&self, mut stream: &TcpStream) -> Option<()> {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let request = lines.next()?;
        let _ = lines.find(String::is_empty)?;
        let mut state = self.state.lock();
        state.arrived += 1;
        let number = state.arrived;
        while !state.released.contains(&number) {
            if self.changed.wait_for(&mut state, PATIENCE).timed_out() {
                return None;
            }
        }
        drop(state);
        if request.starts_with("POST /cut ") {
            return stream.shutdown(Shutdown::Both).ok();
        }
        let body = format!("{{\"answered\": {number}}}");
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
        let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).ok()
    }

    fn release(&self, number: usize) {
        self.state.lock().released.insert(number);
        self.changed.notify_all();
    }

    /// Waits until this many requests have arrived.
    fn arrived(&self, number: usize) {
        wait::until("a request is held", PATIENCE, || self.state.lock().arrived == number).unwrap();
    }
}

/// Two gateways over one store, before an API that is asked what became of a call.
struct Bench {
    api: Arc<Held>,
    gateways: [Semel; 2],
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new(store: &str) -> Self {
        let (api, url) = Held::start();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("semel.toml");
        let text = format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{url}\"\nscope = \"single-tenant\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\n{store}\n\
             [[route]]\nmatch = \"POST /**\"\nlease = \"1s\"\non_doubt = \"probe\"\nprobe = \"GET /by-key/{{key}}\"\n",
        );
        std::fs::write(&file, text).unwrap();
        let gateways = [Semel::with_config(&file, &[]), Semel::with_config(&file, &[])];
        Self { api, gateways, _folder: folder }
    }

    fn send(&self, gateway: usize, path: &'static str) -> JoinHandle<Answer> {
        let gateway = self.gateways[gateway].gateway().with("idempotency-key", "k");
        std::thread::spawn(move || gateway.post(path, "{}"))
    }

    fn in_doubt(&self, gateway: usize) {
        wait::until("the key is in doubt", PATIENCE, || {
            let found = self.gateways[gateway].admin().get("/v1/keys?phase=in_doubt").expect(200);
            found["items"].as_array().is_some_and(|items| items.len() == 1)
        })
        .unwrap();
    }
}

#[track_caller]
fn assert_stored(answer: JoinHandle<Answer>, number: usize) {
    let answer = answer.join().unwrap();
    assert_eq!(answer.expect(200), serde_json::json!({ "answered": number }), "the stored outcome");
}

/// Two probes are held at once, and answered one after the other, each with another body.
fn two_probes(store: &str) {
    let bench = Bench::new(store);
    let first = bench.send(0, "/cut");
    bench.api.arrived(1);
    bench.api.release(1);
    assert_eq!(first.join().unwrap().expect(502)["code"], "upstream_unknown");
    bench.in_doubt(1);
    let one = bench.send(0, "/cut");
    bench.api.arrived(2);
    let other = bench.send(1, "/cut");
    bench.api.arrived(3);
    bench.api.release(3);
    assert_stored(other, 3);
    bench.api.release(2);
    assert_stored(one, 3);
    for gateway in 0..2 {
        assert_stored(bench.send(gateway, "/cut"), 3);
    }
}

/// The owner is paused past its lease, and completes while the other gateway's probe is held.
fn owner_returns(store: &str) {
    let bench = Bench::new(store);
    let owning = bench.send(0, "/pay");
    bench.api.arrived(1);
    bench.gateways[0].signal(Signal::STOP);
    bench.in_doubt(1);
    let asking = bench.send(1, "/pay");
    bench.api.arrived(2);
    bench.api.release(1);
    bench.gateways[0].signal(Signal::CONT);
    assert_stored(owning, 1);
    bench.api.release(2);
    assert_stored(asking, 1);
    assert_stored(bench.send(1, "/pay"), 1);
}

fn on_redis(race: fn(&str)) {
    let redis = Redis::start().unwrap();
    race(&format!("url = \"{}\"", redis.url()));
}

fn on_postgres(race: fn(&str)) {
    let postgres = Postgres::start().unwrap();
    race(&format!("url = \"{}\"", postgres.url()));
}

fn on_both(race: fn(&str)) {
    let (postgres, redis) = (Postgres::start().unwrap(), Redis::start().unwrap());
    race(&format!("url = \"{}\"\ncoordinate = \"{}\"", postgres.url(), redis.url()));
}

#[test]
fn two_probes_give_one_answer_on_redis() {
    on_redis(two_probes);
}

#[test]
fn two_probes_give_one_answer_on_postgres() {
    on_postgres(two_probes);
}

#[test]
fn two_probes_give_one_answer_on_a_tiered_store() {
    on_both(two_probes);
}

#[test]
fn an_owner_that_returns_during_a_probe_decides_on_redis() {
    on_redis(owner_returns);
}

#[test]
fn an_owner_that_returns_during_a_probe_decides_on_postgres() {
    on_postgres(owner_returns);
}

#[test]
fn an_owner_that_returns_during_a_probe_decides_on_a_tiered_store() {
    on_both(owner_returns);
}
