//! The servers that snapshots are taken of: one with a bit of everything, an empty one, and one that does not answer.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use semel_testbed::wait;
use serde_json::{Value, json};

use crate::kit::{Http, PATIENCE, Semel, Sink, Upstream};

const ADMIN: &str = "token-of-an-admin-0123456789abcdef";
const VIEWER: &str = "token-of-a-viewer-0123456789abcdef";
const PRODUCER: &str = "token-of-a-producer-0123456789abcdef";

/// A token, by its role.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Admin,
    Viewer,
    Producer,
}

impl Token {
    pub(super) fn value(self) -> &'static str {
        match self {
            Self::Admin => ADMIN,
            Self::Viewer => VIEWER,
            Self::Producer => PRODUCER,
        }
    }
}

/// The servers, and the ids of what the first one holds.
pub(super) struct World {
    full: Semel,
    empty: Semel,
    hanging: HangingServer,
    /// Done and in doubt, the oldest first.
    pub(super) keys: Vec<String>,
    pub(super) doubts: Vec<String>,
    pub(super) event: String,
    pub(super) delivery: String,
    /// Pending, the oldest first; and discarded.
    pub(super) letters: Vec<String>,
    pub(super) discarded: Vec<String>,
    /// Done; and those that start in an hour.
    pub(super) run: String,
    pub(super) delayed: Vec<String>,
    _sink: Sink,
    _upstream: Upstream,
    folder: tempfile::TempDir,
}

impl World {
    pub(super) fn new() -> Self {
        let (sink, upstream) = (Sink::start(), Upstream::start());
        sink.refuse("bad");
        let folder = tempfile::tempdir().unwrap();
        let start = |name: &str| {
            let config = format!(
                "secret = {{ env = \"SECRET\" }}\n[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n\
                 [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n\
                 [[token]]\nname = \"ada\"\nrole = \"admin\"\nvalue = {{ env = \"ADMIN\" }}\n\
                 [[token]]\nname = \"vic\"\nrole = \"viewer\"\nvalue = {{ env = \"VIEWER\" }}\n\
                 [[token]]\nname = \"pat\"\nrole = \"producer\"\nvalue = {{ env = \"PRODUCER\" }}\n\
                 [[target]]\nname = \"crm\"\nurl = \"{}\"\nevents = [\"order.*\"]\n\
                 schedule = []\nbreaker = {{ window = \"10m\" }}\n",
                upstream.url(),
                folder.path().join(name).display(),
                sink.url(),
            );
            let file = folder.path().join(format!("{name}.toml"));
            std::fs::write(&file, config).unwrap();
            let secret = ("SECRET", "a secret of the deployment");
            Semel::with_config(&file, &[secret, ("ADMIN", ADMIN), ("VIEWER", VIEWER), ("PRODUCER", PRODUCER)])
        };
        let (full, empty) = (start("full"), start("empty"));
        let mut world = Self {
            full,
            empty,
            hanging: HangingServer::start(),
            keys: Vec::new(),
            doubts: Vec::new(),
            event: String::new(),
            delivery: String::new(),
            letters: Vec::new(),
            discarded: Vec::new(),
            run: String::new(),
            delayed: Vec::new(),
            _sink: sink,
            _upstream: upstream,
            folder,
        };
        world.fill_keys();
        world.fill_ledger();
        world
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Waits until the server has counted the keys in doubt, which it does every 15 seconds.
    pub(super) fn wait_for_counts(&self) {
        let is_counted = || self.admin().get("/v1/status").expect(200)["in_doubt"] == 3;
        wait::until("the keys in doubt are counted", PATIENCE, is_counted).unwrap();
    }

    pub(super) fn full_url(&self) -> &str {
        self.full.admin_url()
    }

    pub(super) fn empty_url(&self) -> &str {
        self.empty.admin_url()
    }

    pub(super) fn hanging(&self) -> &HangingServer {
        &self.hanging
    }

    fn admin(&self) -> Http {
        self.full.admin().with("authorization", &format!("Bearer {ADMIN}"))
    }

    /// The items of a list, the oldest first.
    fn ids(&self, path: &str) -> Vec<String> {
        let page = self.admin().get(path).expect(200);
        let ids =
            page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned());
        ids.rev().collect()
    }

    fn fill_keys(&mut self) {
        let client = self.full.gateway().with("authorization", "Bearer shop");
        let (mut keys, mut doubts) = (Vec::new(), Vec::new());
        for number in 1..=3 {
            let send = |key: &str, path: &str| {
                let client = client
                    .with("idempotency-key", key)
                    .with("x-request-id", &format!("req-{path}").replace('/', ""));
                client.post(path, r#"{"amount":5}"#)
            };
            let key = format!("order-{number}");
            send(&key, "/orders").expect(201);
            keys.push(self.key(&key));
            let key = format!("doubt-{number}");
            assert_eq!(send(&key, "/lost").status, 502);
            let is_doubt = || {
                self.admin().get("/v1/keys?phase=in_doubt").expect(200)["items"].as_array().unwrap().len()
                    == number
            };
            wait::until("the key is in doubt", PATIENCE, is_doubt).unwrap();
            doubts.push(self.key(&key));
        }
        (self.keys, self.doubts) = (keys, doubts);
    }

    /// The id of a key, by its first eight characters.
    fn key(&self, hint: &str) -> String {
        let found = self.ids(&format!("/v1/keys?hint={}", &hint[..hint.len().min(8)]));
        assert_eq!(found.len(), 1, "{hint}");
        found[0].clone()
    }

    fn fill_ledger(&mut self) {
        let admin = self.admin();
        let publish = |key: &str| {
            let event = json!({ "type": "order.paid", "dedupe_key": key, "payload": { "of": key } });
            admin.post("/v1/events", &event.to_string()).expect(201)["id"].as_str().unwrap().to_owned()
        };
        let trigger = |key: &str, delay: Option<&str>| {
            let run = json!({ "target": "crm", "idempotency_key": key, "payload": {}, "tags": ["nightly"], "delay": delay });
            admin.post("/v1/runs", &run.to_string()).expect(201)["id"].as_str().unwrap().to_owned()
        };
        let count = |path: &str| admin.get(path).expect(200)["items"].as_array().unwrap().len();
        let delivered = |count_of: usize| {
            wait::until("they are delivered", PATIENCE, || count("/v1/deliveries?state=done") == count_of)
                .unwrap();
        };
        self.event = publish("paid-1");
        delivered(1);
        self.run = trigger("run-1", None);
        delivered(2);
        self.delayed = [1, 2].map(|number| trigger(&format!("later-{number}"), Some("1h"))).into();
        for number in 1..=8 {
            publish(&format!("bad-{number}"));
            wait::until("it is a dead letter", PATIENCE, || count("/v1/dead-letters") == number).unwrap();
        }
        let mut letters = self.ids("/v1/dead-letters");
        for letter in &letters[..2] {
            let path = format!("/v1/dead-letters/{letter}/discard");
            admin.post(&path, r#"{"reason":"a test"}"#).expect(200);
        }
        // It fails again.
        let job = admin
            .post("/v1/replays", &json!({ "ids": [letters[2]], "reason": "try" }).to_string())
            .expect(201);
        let path = format!("/v1/replays/{}", job["id"].as_str().unwrap());
        wait::until("the job ends", PATIENCE, || admin.get(&path).expect(200)["state"] != "running").unwrap();
        self.discarded = letters.drain(..2).collect();
        self.letters = letters.split_off(1);
        let page: Value = admin.get(&format!("/v1/deliveries?event_id={}", self.event)).expect(200);
        page["items"][0]["id"].as_str().unwrap().clone_into(&mut self.delivery);
    }
}

/// A server that accepts requests and does not answer them.
pub(super) struct HangingServer {
    url: String,
    asked: Arc<AtomicUsize>,
}

impl HangingServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let of_thread = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let asked = Arc::clone(&of_thread);
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(&stream);
                    let mut is_first_line = true;
                    let mut is_known = false;
                    loop {
                        let mut line = String::new();
                        if reader.read_line(&mut line).ok().is_none_or(|read| read == 0) {
                            return;
                        }
                        if is_first_line {
                            // As an admin API, which has no policy.
                            is_known = line.starts_with("GET /.well-known/idempotency ");
                        }
                        is_first_line = line == "\r\n";
                        if line == "\r\n" && is_known {
                            let answer = b"HTTP/1.1 404 Not Found\r\nsemel-address: admin\r\ncontent-length: 0\r\n\r\n";
                            let _ = (&mut &stream).write_all(answer);
                        } else if line == "\r\n" {
                            asked.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        Self { url, asked }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Number of requests that wait for an answer or have waited.
    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}
