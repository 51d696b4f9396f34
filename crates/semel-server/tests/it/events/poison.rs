//! Messages that kill the process which handles them. In full form: `./scripts/prove streams`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use semel_testbed::{Postgres, Redis, wait};
use serde_json::{Value, json};

use super::count;
use crate::kit::{PATIENCE, Semel};

/// How many attempts that end with their process make a delivery poison: the default of `crashes` in `[limits]`.
const LIMIT: usize = 5;

/// How long a request is handled: long enough for all of them to be in flight when a poison kills.
const TOGETHER: Duration = Duration::from_millis(600);

/// A target that kills the server which sends it poison, and is in no hurry otherwise.
struct Killer {
    url: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
}

#[derive(Default)]
struct Seen {
    /// How often each body came.
    calls: BTreeMap<String, usize>,
    /// How many requests are being handled.
    at_hand: usize,
    /// The server that sends; nobody while there is none.
    server: Option<Semel>,
    /// How many other messages are in flight when a poison message kills, where there are as many.
    neighbours: usize,
}

impl Killer {
    fn start(neighbours: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let shared = Arc::new(Shared::default());
        shared.seen.lock().neighbours = neighbours;
        let of_target = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&of_target);
                std::thread::spawn(move || while shared.answer(&stream).is_some() {});
            }
        });
        Self { url, shared }
    }

    fn calls(&self, body: &str) -> usize {
        self.shared.seen.lock().calls.get(body).copied().unwrap_or_default()
    }

    /// Whether the server has been killed.
    fn is_killed(&self) -> bool {
        self.shared.seen.lock().server.is_none()
    }

    fn put(&self, server: Semel) {
        self.shared.seen.lock().server = Some(server);
    }
}

// The threads of the target hold the server too, and never end.
impl Drop for Killer {
    fn drop(&mut self) {
        self.shared.seen.lock().server = None;
    }
}

impl Shared {
    fn answer(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let Some((name, value)) = header.split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let body = String::from_utf8(body).unwrap();
        let mut seen = self.seen.lock();
        *seen.calls.entry(body.clone()).or_default() += 1;
        seen.at_hand += 1;
        self.changed.notify_all();
        if body.contains("poison") {
            // With as many as possible: all of them are in flight when the process ends.
            let all = seen.neighbours;
            self.changed.wait_while_for(&mut seen, |seen| seen.at_hand <= all, TOGETHER);
            if let Some(server) = seen.server.take() {
                server.kill();
            }
            seen.at_hand -= 1;
            self.changed.notify_all();
            return None;
        }
        self.changed.wait_while_for(&mut seen, |seen| seen.server.is_some(), TOGETHER);
        seen.at_hand -= 1;
        drop(seen);
        (&mut &*stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()
    }
}

// One message kills every process that handles it, and others are in flight each time. It is sent as often as the
// limit says, becomes one dead letter, and takes nobody with it.
#[test]
fn a_message_that_kills_its_worker_is_set_aside_alone() {
    let (poisons, others) = if std::env::var_os("SEMEL_PROVE").is_some() { (10, 120) } else { (1, 3) };
    let (redis, postgres, target) =
        (Redis::start().unwrap(), Postgres::start().unwrap(), Killer::start(others.min(31)));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\n[ledger]\nlease = \"500ms\"\n\
         [[target]]\nname = \"all\"\nurl = \"{}\"\nretry = {{ timeout = \"20s\" }}\n\
         [[source]]\nkind = \"redis-stream\"\nurl = \"{}\"\nstream = \"orders\"\nmin_idle = \"500ms\"\n",
        postgres.url(),
        target.url,
        redis.url(),
    );
    std::fs::write(&file, text).unwrap();
    let poison = |number: usize| json!({ "poison": number }).to_string();
    let other = |number: usize| json!({ "n": number }).to_string();
    let mut connection = redis.connect().unwrap();
    let mut add = |key: &str, payload: &str| {
        let fields = ["XADD", "orders", "*", "type", "order.paid", "dedupe_key", key, "payload", payload];
        connection.tell(&fields).unwrap();
    };
    for number in 0..others {
        add(&format!("n-{number}"), &other(number));
        if number % (others / poisons) == others / poisons / 2 {
            add(&format!("p-{number}"), &poison(number * poisons / others));
        }
    }
    target.put(Semel::with_config(&file, &[]));
    let (mut restarts, most) = (0, 1 + LIMIT * poisons);
    let ended = |restarts: &mut usize| {
        if target.is_killed() {
            *restarts += 1;
            assert!(*restarts <= most, "it is killed again and again");
            target.put(Semel::with_config(&file, &[]));
        }
        let sql = "SELECT count(*) FROM semel.ledger_delivery WHERE state IN ('done', 'dlq')";
        postgres.sql(sql).unwrap() == (poisons + others).to_string()
    };
    let patience = PATIENCE + Duration::from_secs(5) * u32::try_from(others).unwrap();
    wait::until("all have ended", patience, || ended(&mut restarts)).unwrap();
    let last = Semel::with_config(&file, &[]);
    let admin = last.admin();
    let letters = admin.get("/v1/dead-letters?limit=1000").expect(200)["items"].as_array().unwrap().clone();
    let dead = |letter: &Value| {
        let shown = admin.get(&format!("/v1/dead-letters/{}", letter["id"].as_str().unwrap())).expect(200);
        (shown["cause"].as_str().unwrap().to_owned(), shown["payload"].to_string())
    };
    let mut found: Vec<(String, String)> = letters.iter().map(dead).collect();
    found.sort();
    let mut expected: Vec<_> = (0..poisons).map(|number| ("poison".to_owned(), poison(number))).collect();
    expected.sort();
    assert_eq!(found, expected, "one dead letter for each message that kills, and no other");
    for letter in &letters {
        assert_eq!(letter["attempts_made"], LIMIT, "{letter:#}");
        let shown = admin.get(&format!("/v1/dead-letters/{}", letter["id"].as_str().unwrap())).expect(200);
        let crashed = shown["attempts"].as_array().unwrap().iter().filter(|one| one["outcome"] == "crashed");
        assert_eq!(crashed.count(), LIMIT, "{shown:#}");
    }
    let sent: Vec<usize> = (0..poisons).map(|number| target.calls(&poison(number))).collect();
    if poisons == 1 {
        assert_eq!(
            (sent[0], restarts),
            (LIMIT, LIMIT),
            "it is sent as often as the limit says, and kills as often"
        );
    } else {
        // Two of them may be in flight when one kills: that ends an attempt of both.
        assert!(sent.iter().all(|sent| (3..=LIMIT).contains(sent)), "{sent:?}");
        assert!(restarts <= LIMIT * poisons, "{restarts}");
    }
    assert_eq!(count(&admin, "done").min(1000), others.min(1000));
    for number in 0..others {
        assert!(target.calls(&other(number)) >= 1, "{number} is delivered");
    }
    let mirrored = || redis.tell(&["XLEN", "orders.dlq"]).unwrap().text() == poisons.to_string();
    wait::until("the dead-letter stream has them", PATIENCE, mirrored).unwrap();
}
