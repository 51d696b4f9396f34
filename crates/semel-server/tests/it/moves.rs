//! Records move to another store under traffic: no key runs twice, none is lost. In full form 200,000 records:
//! `./scripts/prove store-copy`.

mod commands;
mod secrets;
mod traffic;
mod transactions;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::Signal;
use semel_testbed::{Postgres, Redis, wait};
use serde_json::Value;

use self::traffic::{Clients, Gateways};
use crate::kit::{PATIENCE, Semel, Upstream, run, semel};

/// Keys before the copy begins.
fn keys() -> usize {
    if std::env::var_os("SEMEL_PROVE").is_some() { 200_000 } else { 2_000 }
}

/// Calls that the upstream does not answer while the store is switched.
const HUNG: usize = 7;

/// How long a whole copy may take.
const COPY: Duration = Duration::from_secs(900);

/// A running `semel store copy`.
struct Copying {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Copying {
    fn start(from: &str, to: &str) -> Self {
        let mut command = semel();
        command.args(["store", "copy", from, to, "--switch", "--json", "--every", "100ms"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (stderr, told) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                told.lock().push(line);
            }
        });
        Self { child, lines }
    }

    /// Waits until it has said this.
    fn said(&self, text: &str) {
        wait::until(text, COPY, || self.lines.lock().iter().any(|line| line.contains(text)))
            .unwrap_or_else(|_| panic!("{text} in {:?}", self.lines.lock()));
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its result.
    fn end(mut self) -> Value {
        let status = wait::for_some("the end of the copy", COPY, || Ok(self.child.try_wait().ok().flatten()));
        let mut printed = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        assert!(status.unwrap().success(), "{printed} {:?}", self.lines.lock());
        // What a person reads while it works.
        for line in self.lines.lock().iter() {
            println!("{line}");
        }
        println!("{printed}");
        serde_json::from_str(&printed).unwrap()
    }
}

/// Servers of one store, with short leases, so that calls without an answer end soon.
fn server(folder: &std::path::Path, upstream: &Upstream, store: &str, name: &str) -> Semel {
    let config = folder.join(format!("{name}.toml"));
    let text = format!(
        "drain = \"1s\"\n[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\nnew_keys_per_second = 0\n\
         [[route]]\nmatch = \"POST /slow\"\nlease = \"3s\"\nin_flight_max = \"6s\"\nwait = \"0s\"\n\
         [[route]]\nmatch = \"POST /pay\"\nlease = \"10s\"\nwait = \"5s\"\n",
        upstream.url(),
    );
    std::fs::write(&config, text).unwrap();
    Semel::with_config(&config, &[])
}

/// What holds after every move.
fn nothing_ran_twice(clients: &Clients, new: &[Semel], upstream: &Upstream) {
    let before = upstream.total();
    assert_eq!(clients.replay_all(), clients.answered(), "every answer is given again, byte for byte");
    assert_eq!(upstream.total(), before, "by nobody but the store");
    for key in clients.keys() {
        assert_eq!(upstream.calls(&key), 1, "{key}");
    }
    let admin = new[0].admin();
    let in_doubt =
        || admin.get("/v1/keys?phase=in_doubt&limit=1000").expect(200)["items"].as_array().unwrap().len();
    wait::until("the calls without an answer are in doubt", PATIENCE, || in_doubt() == HUNG).unwrap();
    for number in 0..HUNG {
        let key = hung(number);
        let answer = new[0].gateway().with("idempotency-key", &key).post("/slow", "{}");
        assert_eq!(answer.expect(409)["code"], "in_doubt", "{key}");
        assert_eq!(upstream.calls(&key), 1, "{key}");
    }
}

fn hung(number: usize) -> String {
    format!("hung-{number}")
}

/// Sends calls that the upstream receives and does not answer.
fn hang(server: &Semel, upstream: &Upstream) {
    for number in 0..HUNG {
        let gateway = server.gateway().with("idempotency-key", &hung(number));
        std::thread::spawn(move || gateway.try_send("POST", "/slow", "{}"));
    }
    let arrived = || (0..HUNG).all(|number| upstream.calls(&hung(number)) == 1);
    wait::until("the upstream has them", PATIENCE, arrived).unwrap();
}

#[test]
fn from_embedded_to_postgresql() {
    let (upstream, folder, postgres) =
        (Upstream::start(), tempfile::tempdir().unwrap(), Postgres::start().unwrap());
    let (old_url, new_url) = (format!("embedded:{}", folder.path().join("data").display()), postgres.url());
    let mut old = server(folder.path(), &upstream, &old_url, "old");
    let gateways = Gateways::new([&old]);
    let clients = Clients::start(&gateways);
    clients.fill(keys());
    clients.begin_traffic();

    // A copy that is killed while it works leaves nothing that is in the way.
    let killed = Copying::start(&old_url, &new_url);
    killed.said("pass 1");
    killed.kill();
    let copying = Copying::start(&old_url, &new_url);
    copying.said("stop the server");
    hang(&old, &upstream);
    old.signal(Signal::TERM);
    old.wait();
    let result = copying.end();
    assert!(result["records"].as_u64().unwrap() >= keys() as u64, "{result}");

    let new = [
        server(folder.path(), &upstream, &new_url, "new-1"),
        server(folder.path(), &upstream, &new_url, "new-2"),
    ];
    gateways.replace(new.iter());
    clients.go_on_for_a_while();
    clients.end_traffic();
    // The server has ended. The leases of its claims may still be valid.
    let held = result["in_doubt"].as_u64().unwrap() + result["in_progress"].as_u64().unwrap();
    assert_eq!(held, HUNG as u64, "{result}");
    nothing_ran_twice(&clients, &new, &upstream);

    let refused = run(&["serve", "--store", &old_url, "--admin", "127.0.0.1:0"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("were moved to postgres://"), "{said}");
}

#[test]
fn from_redis_to_postgresql() {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let (redis, postgres) = (Redis::start().unwrap(), Postgres::start().unwrap());
    let (old_url, new_url) = (redis.url(), postgres.url());
    let old = [
        server(folder.path(), &upstream, &old_url, "old-1"),
        server(folder.path(), &upstream, &old_url, "old-2"),
    ];
    let gateways = Gateways::new(old.iter());
    let clients = Clients::start(&gateways);
    clients.fill(keys());
    clients.begin_traffic();
    hang(&old[0], &upstream);

    let killed = Copying::start(&old_url, &new_url);
    killed.said("is closed");
    killed.kill();
    // Nothing serves new keys now: the old store is closed, and the new one is not complete.
    let too_early = run(&["serve", "--store", &new_url, "--admin", "127.0.0.1:0"]);
    let said = String::from_utf8_lossy(&too_early.stderr).into_owned();
    assert!(!too_early.status.success() && said.contains("being filled from redis://"), "{said}");
    let result = Copying::start(&old_url, &new_url).end();
    assert!(result["records"].as_u64().unwrap() >= keys() as u64, "{result}");

    let new = [
        server(folder.path(), &upstream, &new_url, "new-1"),
        server(folder.path(), &upstream, &new_url, "new-2"),
    ];
    // Some clients still find the old servers: these give stored answers and refuse everything else.
    gateways.replace(old.iter().chain(&new));
    clients.go_on_for_a_while();
    let refused = old[1].gateway().with("idempotency-key", "new-on-old").post("/pay", "{}");
    assert_eq!(refused.expect(503)["code"], "store_unavailable");
    assert!(refused.text().contains("were moved to another store"), "{}", refused.text());
    assert_eq!(old[1].admin().get("/readyz").status, 503);
    old[1].logged("the store was moved");
    clients.end_traffic();
    assert_eq!(result["in_doubt"], HUNG, "the copy waited for their leases: {result}");
    // Every key is read from the new store.
    gateways.replace(new.iter());
    nothing_ran_twice(&clients, &new, &upstream);
}
