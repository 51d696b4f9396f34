//! A store has an outage under load: two log lines, no refused request waits for a timeout once the outage is known, the
//! server recovers by itself, no outcome is lost and no effect happens twice. In full form, a minute each:
//! `./scripts/prove outage`.

mod full;
mod load;

use std::time::Duration;

use semel_testbed::{FaultProxy, Postgres, Redis, wait};

use self::load::{Load, OutageLog};
use crate::kit::{PATIENCE, Semel, Sink, Upstream, durable_redis, metric};

/// The timeout of every call to a store or ledger.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// The same where the outage is known without it. No busy machine reaches it by itself.
const LONG_TIMEOUT: Duration = Duration::from_secs(10);

/// For how long the requests are judged that begin in a known outage.
const JUDGED: Duration = Duration::from_secs(2);

/// Deliveries whose take had no answer are taken again soon.
const LEDGER: &str = "[ledger]\nlease = \"3s\"";

/// What becomes of keyed requests during the outage.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Requests {
    Refused,
    Served,
}

/// A server of the test's, and what it calls.
struct Stage {
    name: &'static str,
    upstream: Upstream,
    sink: Sink,
    /// Holds the config, and a ledger where the store has none.
    folder: tempfile::TempDir,
    requests: Requests,
    /// The same for events and runs, which go to the ledger.
    events: Requests,
    /// The timeout of calls to the store and to the ledger.
    timeout: Duration,
}

impl Stage {
    fn new(name: &'static str, requests: Requests, events: Requests) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (upstream, sink) = (Upstream::start(), Sink::start());
        Self { name, upstream, sink, folder, requests, events, timeout: STORE_TIMEOUT }
    }

    fn with_long_timeout(self) -> Self {
        Self { timeout: LONG_TIMEOUT, ..self }
    }

    /// How long an outage lasts after it is known: longer than a request that waits for the store.
    fn length(&self) -> Duration {
        let is_proof = std::env::var_os("SEMEL_PROVE").is_some();
        if is_proof { Duration::from_secs(60) } else { self.timeout + JUDGED }
    }

    /// `config` has the tables `[store]`, `[ledger]` and `[gate]`. A ledger in the store gets [`LEDGER`].
    fn start(&self, config: &str) -> Semel {
        let file = self.folder.path().join("semel.toml");
        let ledger = if config.contains("[ledger]") { "" } else { LEDGER };
        let timeout = format!("[store]\ntimeout = \"{}s\"\n", self.timeout.as_secs());
        let config = config.replacen("[store]\n", &timeout, 1);
        // A minute without the store is longer than a call may be in progress by default.
        let text = format!(
            "secret = {{ env = \"SEMEL_SECRET\" }}\n\
             [gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n{config}\n{ledger}\n\
             [[route]]\nmatch = \"POST /pay\"\nin_flight_max = \"10m\"\n\
             [[target]]\nname = \"all\"\nurl = \"{}\"\n",
            self.upstream.url(),
            self.sink.url(),
        );
        std::fs::write(&file, text).unwrap();
        Semel::with_config(&file, &[("SEMEL_SECRET", "a long and random text for this test")])
    }

    fn embedded_ledger(&self) -> String {
        format!("{LEDGER}\nurl = \"embedded:{}\"", self.folder.path().join("ledger").display())
    }

    /// Runs the load over an outage, and judges everything.
    fn play(&self, semel: &Semel, store: &str, begin: impl FnOnce(), end: impl FnOnce()) {
        let available = format!("semel_store_available{{store=\"{store}\"}}");
        assert_eq!(metric(&semel.admin(), &available), 1.0);
        let load = Load::start(semel);
        load.wait_for_answers(20);
        let log = OutageLog::begin(semel);
        begin();
        load.wait_until_refused(self.requests == Requests::Refused);
        semel.logged("store unavailable");
        let known = tokio::time::Instant::now();
        assert_eq!(metric(&semel.admin(), &available), 0.0);
        // The outage itself, under load.
        pass(self.length());
        let over = tokio::time::Instant::now();
        end();
        semel.logged("store available again");
        let recovered = tokio::time::Instant::now();
        load.wait_for_success_after(recovered);
        let calls = load.stop();

        log.judge(semel, store);
        for (what, fate) in [("pay", self.requests), ("events", self.events), ("runs", self.events)] {
            // The outage lasted longer than a store timeout after each of them.
            let last = over - self.timeout;
            let during: Vec<_> = calls
                .iter()
                .filter(|call| call.what == what && call.began >= known && call.began <= last)
                .collect();
            let refused: Vec<_> = during.iter().filter(|call| call.status == Some(503)).collect();
            if fate == Requests::Served {
                assert_eq!(refused.len(), 0, "{}: {what} need no store that is unavailable", self.name);
                assert!(during.iter().any(|call| call.is_done()), "{}: {what} are served", self.name);
                continue;
            }
            assert!(!refused.is_empty(), "{}: {what} are refused", self.name);
            assert!(refused.iter().all(|call| call.has_retry_after), "{}: {what}", self.name);
            // Of all: a request that waits until the end of the outage is not refused.
            let mut times: Vec<_> = during.iter().map(|call| call.ended - call.began).collect();
            times.sort_unstable();
            let (of_hundred, slowest) = (times[times.len() * 99 / 100], times[times.len() - 1]);
            println!(
                "{}: {} {what} of {} refused once the outage was known, 99 % answered within {of_hundred:.1?}, all within {slowest:.1?}",
                self.name,
                refused.len(),
                times.len()
            );
            // The aim is 50 ms, and the machine may be busy. None waits for the store, which would take this long.
            assert!(slowest < self.timeout, "{}: {what} waited {slowest:?}", self.name);
        }
        self.repeat_until_done(semel, &calls);
        assert_eq!(metric(&semel.admin(), &available), 1.0);
        assert_eq!(metric(&semel.admin(), &format!("semel_outages_total{{store=\"{store}\"}}")), 1.0);
        log.judge(semel, store);
    }

    /// Every client repeats its request until it is done: one effect each.
    fn repeat_until_done(&self, semel: &Semel, calls: &[load::Call]) {
        let events = calls.iter().filter(|call| call.what != "pay").count();
        // All that were not done, and some that were.
        for (number, call) in calls.iter().enumerate() {
            if !call.is_done() || number.is_multiple_of(10) {
                wait::until(&format!("{} is done", call.key), PATIENCE, || call.is_repeated(semel)).unwrap();
            }
        }
        for call in calls.iter().filter(|call| call.what == "pay") {
            assert_eq!(self.upstream.calls(&call.key), 1, "{}: {} has one effect", self.name, call.key);
        }
        let sent = || self.sink.effects().len();
        wait::until("every event is delivered", PATIENCE, || sent() >= events).unwrap();
        assert_eq!(sent(), events, "{}: one effect for every event and run", self.name);
    }
}

#[test]
fn postgres_killed() {
    let stage = Stage::new("PostgreSQL killed", Requests::Refused, Requests::Refused).with_long_timeout();
    let server = postgres();
    let semel = stage.start(&format!("[store]\nurl = \"{}\"", server.url()));
    stage.play(&semel, &name_of(&server), || server.kill(), || server.restart().unwrap());
}

// The server accepts connections and never answers.
#[test]
fn postgres_paused() {
    let (stage, server) = (Stage::new("PostgreSQL paused", Requests::Refused, Requests::Refused), postgres());
    let semel = stage.start(&format!("[store]\nurl = \"{}\"", server.url()));
    stage.play(&semel, &name_of(&server), || server.pause().unwrap(), || server.resume().unwrap());
}

// The network drops packets. Connections from before never answer again: those of pools must not keep their places.
#[test]
fn postgres_cut_off() {
    let (stage, server) =
        (Stage::new("PostgreSQL cut off", Requests::Refused, Requests::Refused), postgres());
    let proxy = FaultProxy::before(server.addr()).unwrap();
    let semel = stage.start(&format!("[store]\nurl = \"{}\"", server.url_at(proxy.addr(), "postgres")));
    let name = format!("postgres://{}/postgres", proxy.addr());
    stage.play(&semel, &name, || proxy.half_open(), || proxy.heal());
}

#[test]
fn redis_killed() {
    let stage = Stage::new("Redis killed", Requests::Refused, Requests::Served).with_long_timeout();
    let server = durable_redis();
    let semel = stage.start(&format!("[store]\nurl = \"{}\"\n{}", server.url(), stage.embedded_ledger()));
    stage.play(&semel, &server.url(), || server.kill(), || server.restart().unwrap());
}

#[test]
fn redis_paused() {
    let (stage, server) = (Stage::new("Redis paused", Requests::Refused, Requests::Served), durable_redis());
    let semel = stage.start(&format!("[store]\nurl = \"{}\"\n{}", server.url(), stage.embedded_ledger()));
    stage.play(&semel, &server.url(), || server.pause().unwrap(), || server.resume().unwrap());
}

#[test]
fn tiered_without_redis() {
    let stage = Stage::new("tiered, Redis killed", Requests::Served, Requests::Served);
    let (server, redis) = (postgres(), Redis::start().unwrap());
    let semel = stage.start(&tiered(&server, &redis));
    stage.play(&semel, &redis.url(), || redis.kill(), || redis.restart().unwrap());
}

#[test]
fn tiered_without_postgres() {
    let stage = Stage::new("tiered, PostgreSQL killed", Requests::Refused, Requests::Refused);
    let (server, redis) = (postgres(), Redis::start().unwrap());
    let semel = stage.start(&tiered(&server, &redis));
    stage.play(&semel, &name_of(&server), || server.kill(), || server.restart().unwrap());
}

// Triggers go to the ledger while the buffer is unavailable.
#[test]
fn buffer_killed() {
    let stage = Stage::new("buffer killed", Requests::Served, Requests::Served);
    let (server, redis) = (postgres(), durable_redis());
    let gate = format!("[gate]\nmode = \"on\"\nbuffer = \"{}\"", redis.url());
    let semel = stage.start(&format!("[store]\nurl = \"{}\"\n{gate}", server.url()));
    stage.play(&semel, &redis.url(), || redis.kill(), || redis.restart().unwrap());
}

// The first command of an operator must not fail with what it is asked about.
#[test]
fn status_tells_of_a_ledger_that_is_unavailable() {
    let (server, folder) = (postgres(), tempfile::tempdir().unwrap());
    let file = folder.path().join("semel.toml");
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n[ledger]\nurl = \"{}\"\n",
        server.url()
    );
    std::fs::write(&file, text).unwrap();
    let semel = Semel::with_config(&file, &[]);
    server.kill();
    let down = wait::for_some("the status names the ledger", PATIENCE, || {
        let status = semel.admin().get("/v1/status").expect(200);
        Ok(status["pipeline_why"].is_string().then_some(status))
    });
    let down = down.unwrap();
    assert_eq!((&down["ready"], down["pipeline"].is_null()), (&serde_json::json!(true), true), "{down}");
    let shown = crate::kit::run(&["status", "--admin", semel.admin_url()]);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success() && text.contains("the ledger does not answer: "), "{text}");
}

fn postgres() -> Postgres {
    Postgres::start().unwrap()
}

fn name_of(server: &Postgres) -> String {
    format!("postgres://{}/postgres", server.addr())
}

fn tiered(server: &Postgres, redis: &Redis) -> String {
    format!("[store]\nurl = \"{}\"\ncoordinate = \"{}\"", server.url(), redis.url())
}

#[expect(clippy::disallowed_methods, reason = "an outage and its load last for real time")]
fn pass(time: Duration) {
    std::thread::sleep(time);
}
