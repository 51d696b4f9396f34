//! A server that stands still for longer than its lease, between taking a delivery and sending it. In full form:
//! `./scripts/prove delivery-kill`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use semel_testbed::{Direction, FaultProxy, Postgres, wait};
use serde_json::json;

use super::count;
use crate::kit::{Http, PATIENCE, Semel, Sink};

/// What the settler logs when the ledger refuses the end of an attempt: the paused server has learnt that it lost.
const GIVEN_UP: &str = "the lease expired before the attempt ended";

/// The config of one of two servers: what it sees of the ledger and of the target may lead through a proxy.
fn config(folder: &Path, name: &str, ledger: &str, url: &str, more: &str) -> PathBuf {
    let file = folder.join(name);
    let text = format!(
        "secret = {{ env = \"SECRET\" }}\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n\
         [ledger]\nurl = \"{ledger}\"\nlease = \"3s\"\n\
         [[target]]\nname = \"all\"\nurl = \"{url}\"\nretry = {{ timeout = \"20s\" }}\n{more}\n[log]\nlevel = \"debug\"\n",
    );
    std::fs::write(&file, text).unwrap();
    file
}

fn start(file: &Path) -> Semel {
    Semel::with_config(file, &[("SECRET", "a secret of the deployment")])
}

/// Publishes an event of the one order key.
fn publish(admin: &Http, number: usize, delay: Option<&str>) {
    let mut event =
        json!({ "type": "a", "dedupe_key": number.to_string(), "payload": number, "order_key": "o" });
    if let Some(delay) = delay {
        event["delay"] = json!(delay);
    }
    admin.post("/v1/events", &event.to_string()).expect(201);
}

fn running(postgres: &Postgres) -> usize {
    let sql = "SELECT count(*) FROM semel.ledger_delivery WHERE state = 'running'";
    postgres.sql(sql).unwrap().parse().unwrap()
}

/// The rest of both tests: `paused` holds the first of ten deliveries and stands still; the other server delivers all ten;
/// then the paused one goes on.
fn goes_on_after_the_others(paused: &Semel, other: &Path, sink: &Sink) {
    let other = start(other);
    let admin = other.admin();
    for number in 2..=10 {
        publish(&admin, number, None);
    }
    wait::until("the other one delivers all", PATIENCE, || count(&admin, "done") == 10).unwrap();
    paused.signal(Signal::CONT);
    paused.logged(GIVEN_UP);
    let order: Vec<usize> = sink.seen().iter().map(|one| one.body.parse().unwrap()).collect();
    assert_eq!(order, (1..=10).collect::<Vec<_>>(), "nothing is sent under a lease that is over");
    // It is well otherwise.
    publish(&paused.admin(), 11, None);
    wait::until("the next one is delivered", PATIENCE, || count(&admin, "done") == 11).unwrap();
    assert_eq!((sink.calls(), sink.effects().len()), (11, 11));
}

// The answer to a take is on its way when the server stops. It reads it after its lease: another server has taken the
// delivery over by then, made it, and made nine later ones of the same order key.
#[test]
fn a_server_paused_before_it_sends_leaves_the_delivery_to_others() {
    let (sink, postgres) = (Sink::start(), Postgres::start().unwrap());
    let proxy = FaultProxy::before(postgres.addr()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let through = postgres.url_at(proxy.addr(), "postgres");
    let paused = start(&config(folder.path(), "paused.toml", &through, &sink.url(), ""));
    publish(&paused.admin(), 1, Some("3s"));
    // Somebody writes the same attempt, and does not commit: the take waits in the server until that is undone.
    let same = "BEGIN; INSERT INTO semel.ledger_attempt (delivery, number, worker, epoch, started_at) \
                SELECT id, 1, 'nobody', 0, now() FROM semel.ledger_delivery; SELECT pg_sleep(60)";
    std::thread::scope(|scope| {
        let written = scope.spawn(|| postgres.sql(same));
        let waits = |query: &str| {
            let sql =
                format!("SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {query}");
            wait::until("the query waits", PATIENCE, || postgres.sql(&sql).unwrap() == "1").unwrap();
        };
        waits("wait_event = 'PgSleep'");
        // Its statement gives up after two seconds, and comes again: this one is fresh.
        waits("wait_event_type = 'Lock' AND query_start > clock_timestamp() - interval '500 ms'");
        proxy.hold(Direction::ToClient);
        assert_eq!(postgres.terminate_backends("wait_event = 'PgSleep'").unwrap(), 1);
        written.join().unwrap().unwrap_err();
    });
    wait::until("it is taken", PATIENCE, || running(&postgres) == 1).unwrap();
    paused.signal(Signal::STOP);
    proxy.release();
    let direct = config(folder.path(), "other.toml", &postgres.url(), &sink.url(), "");
    goes_on_after_the_others(&paused, &direct, &sink);
}

// The same after the attempt has begun: the server stops while it connects to the target.
#[test]
fn a_server_paused_while_it_connects_leaves_the_delivery_to_others() {
    let (sink, postgres) = (Sink::start(), Postgres::start().unwrap());
    let folder = tempfile::tempdir().unwrap();
    // The target speaks TLS: connecting takes an answer, which can be held.
    crate::admin_tls::certificates(folder.path(), "IP:127.0.0.1");
    let path = folder.path().display();
    let file = folder.path().join("front.toml");
    let text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
         tls = {{ cert = \"{path}/cert.pem\", key = \"{path}/key.pem\" }}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n\
         [[route]]\nmatch = \"POST /**\"\nguard = false\n",
        sink.url().trim_end_matches("/hook"),
    );
    std::fs::write(&file, text).unwrap();
    let front = Semel::with_config(&file, &[]);
    let at = front.gateway_url().trim_start_matches("https://").parse().unwrap();
    let proxy = FaultProxy::before(at).unwrap();
    proxy.hold(Direction::ToClient);
    let ca = format!("ca = \"{path}/ca.pem\"");
    let through = format!("https://{}/hook", proxy.addr());
    let paused = start(&config(folder.path(), "paused.toml", &postgres.url(), &through, &ca));
    publish(&paused.admin(), 1, None);
    wait::until("it connects", PATIENCE, || proxy.counts().to_server > 0).unwrap();
    assert_eq!(running(&postgres), 1);
    paused.signal(Signal::STOP);
    proxy.release();
    let direct = format!("https://{at}/hook");
    let direct = config(folder.path(), "other.toml", &postgres.url(), &direct, &ca);
    goes_on_after_the_others(&paused, &direct, &sink);
}

// Two servers share the work, and one after the other stands still for longer than its lease, at any moment of it.
#[test]
fn servers_paused_at_any_moment_keep_the_order() {
    const LANES: usize = 8;
    let rounds = if std::env::var_os("SEMEL_PROVE").is_some() { 30 } else { 2 };
    let (sink, postgres) = (Sink::start(), Postgres::start().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = config(folder.path(), "semel.toml", &postgres.url(), &sink.url(), "");
    let text = std::fs::read_to_string(&file).unwrap().replace("lease = \"3s\"", "lease = \"500ms\"");
    std::fs::write(&file, format!("{text}\n[limits]\ncrashes = 1000\n")).unwrap();
    let servers = [start(&file), start(&file)];
    let mut published = 0;
    for round in 0..rounds {
        let (paused, other) = (&servers[round % 2], &servers[(round + 1) % 2]);
        let admin = other.admin();
        let before = sink.calls();
        for _ in 0..25 * LANES {
            let event = json!({
                "type": "a", "dedupe_key": published.to_string(), "payload": published,
                "order_key": (published % LANES).to_string(),
            });
            admin.post("/v1/events", &event.to_string()).expect(201);
            published += 1;
        }
        wait::until("it is at work", PATIENCE, || sink.calls() > before + round % 20).unwrap();
        paused.signal(Signal::STOP);
        #[expect(clippy::disallowed_methods, reason = "a pause takes real time")]
        std::thread::sleep(Duration::from_millis(900));
        paused.signal(Signal::CONT);
    }
    let admin = servers[0].admin();
    let left = || count(&admin, "queued,retry_wait,running,idle") == 0;
    wait::until("all are delivered", PATIENCE, left).unwrap();
    assert_eq!((sink.effects().len(), count(&admin, "dlq,blocked")), (published, 0));
    // A delivery may come twice. None comes after a later one of its order key.
    let mut last = BTreeMap::new();
    for one in sink.seen() {
        let number: usize = one.body.parse().unwrap();
        let before = last.insert(number % LANES, number);
        assert!(before <= Some(number), "{number} came after {before:?}");
    }
    println!("{published} events, {} calls, {rounds} pauses", sink.calls());
}
