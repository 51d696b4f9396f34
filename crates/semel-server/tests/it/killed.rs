//! The gateway is killed between the upstream's call and the record. In full form, 500 times: `./scripts/prove
//! gateway-kill`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use semel_testbed::wait;
use serde_json::{Value, json};

use crate::kit::{Answer, Http, LARGE, PATIENCE, Semel, Upstream, semel};

/// Calls in progress at each kill.
const TOGETHER: usize = 2;
/// Kills before what they left is looked at.
const IN_A_ROW: usize = 10;
/// Keys that a row leaves.
const LEFT: usize = TOGETHER * IN_A_ROW;

/// Series of kills: this number in full form, one otherwise.
fn rows(full: usize) -> usize {
    if std::env::var_os("SEMEL_PROVE").is_some() { full } else { 1 }
}

struct Bench {
    upstream: Upstream,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(route: &str) -> Self {
        let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
        let text = format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n\
             [[route]]\nmatch = \"POST /slow\"\nlease = \"500ms\"\nwait = \"0s\"\n{route}\n",
            upstream.url(),
            folder.path().join("data").display(),
        );
        std::fs::write(folder.path().join("semel.toml"), text).unwrap();
        Self { upstream, folder }
    }

    fn start(&self) -> Semel {
        Semel::with_config(&self.folder.path().join("semel.toml"), &[])
    }

    /// Kills the gateway again and again, each time with calls in progress, and starts it once more.
    fn kill_in_a_row(&self, keys: &[String]) -> Semel {
        self.upstream.close();
        for keys in keys.chunks(TOGETHER) {
            self.kill_under_way(keys);
        }
        self.upstream.open();
        self.start()
    }

    fn kill_under_way(&self, keys: &[String]) {
        let before = self.upstream.total();
        let semel = self.start();
        let calls: Vec<_> = keys
            .iter()
            .map(|key| {
                let gateway = semel.gateway().with("idempotency-key", key);
                std::thread::spawn(move || gateway.try_send("POST", "/slow", "{}"))
            })
            .collect();
        let arrived = || self.upstream.total() == before + keys.len();
        wait::until("all have reached the upstream", PATIENCE, arrived).unwrap();
        semel.kill();
        for call in calls {
            assert!(call.join().unwrap().is_err(), "nobody was answered");
        }
    }
}

fn names(round: usize) -> Vec<String> {
    (0..LEFT).map(|number| format!("k-{round}-{number}")).collect()
}

fn retry(semel: &Semel, key: &str) -> Answer {
    semel.gateway().with("idempotency-key", key).post("/slow", "{}")
}

/// All keys in doubt, once there are this many.
fn in_doubt(admin: &Http) -> Vec<Value> {
    wait::for_some("the keys are in doubt", PATIENCE, || {
        let items =
            admin.get("/v1/keys?phase=in_doubt").expect(200)["items"].as_array().cloned().unwrap_or_default();
        Ok((items.len() == LEFT).then_some(items))
    })
    .unwrap()
}

// marked: never two calls; what is in doubt is listed, and settled by API and by command.
#[test]
fn marked_never_calls_twice() {
    let bench = Bench::new("");
    for round in 0..rows(20) {
        let keys = names(round);
        let semel = bench.kill_in_a_row(&keys);
        let admin = semel.admin();
        let items = in_doubt(&admin);
        for key in &keys {
            assert_eq!(retry(&semel, key).expect(409)["code"], "in_doubt");
            assert_eq!(bench.upstream.calls(key), 1);
        }
        for (number, item) in items.iter().enumerate() {
            let id = item["id"].as_str().unwrap();
            let outcome = json!({ "status": 201, "body": { "settled": id } });
            if number % 2 == 0 {
                let body = json!({ "reason": "looked it up", "outcome": outcome });
                admin.post(&format!("/v1/keys/{id}/settle"), &body.to_string()).expect(200);
            } else {
                let command = semel_keys(
                    &semel,
                    &["settle", id, "--reason", "looked it up", "--outcome", &outcome.to_string()],
                );
                assert!(command, "the command settles");
            }
        }
        for key in &keys {
            let answer = retry(&semel, key);
            assert_eq!(
                (answer.status, answer.header("idempotent-replayed")),
                (201, Some("true")),
                "{}",
                answer.text()
            );
            assert_eq!(bench.upstream.calls(key), 1);
        }
        semel.kill();
    }
}

// marked, with a probe: the upstream is asked what became of the call.
#[test]
fn a_probe_settles_doubt() {
    let bench = Bench::new("on_doubt = \"probe\"\nprobe = \"GET /by-key/{key}\"");
    for round in 0..rows(10) {
        let keys = names(round);
        let semel = bench.kill_in_a_row(&keys);
        in_doubt(&semel.admin());
        for key in &keys {
            let mut answer = retry(&semel, key);
            wait::until("it is settled", PATIENCE, || {
                answer = retry(&semel, key);
                answer.status == 201
            })
            .unwrap_or_else(|_| panic!("{}", answer.text()));
            assert_eq!(bench.upstream.calls(key), 1);
        }
        semel.kill();
    }
}

// keyed: a lost call is made again, with the same derived key, so that a receiver that honours it acts once.
#[test]
fn keyed_calls_again_with_the_same_derived_key() {
    let bench = Bench::new("mode = \"keyed\"");
    let mut seen = 0;
    for round in 0..rows(20) {
        let keys = names(round);
        let semel = bench.kill_in_a_row(&keys);
        seen += LEFT;
        assert_eq!(bench.upstream.keys(), seen, "each call has a key of its own, and none is the client's");
        for key in &keys {
            let mut answer = retry(&semel, key);
            wait::until("it is taken over", PATIENCE, || {
                answer = retry(&semel, key);
                answer.status == 201
            })
            .unwrap_or_else(|_| panic!("{}", answer.text()));
            assert_eq!(answer.json(), json!({ "call": 2 }), "the second call of the same derived key");
            assert_eq!(bench.upstream.calls(key), 0, "the client's key never crosses");
        }
        assert_eq!(bench.upstream.keys(), seen, "no further key was ever sent");
        semel.kill();
    }
}

// crash_mid_reply: the gateway dies while it sends the answer. Its client has a part of it and no connection; a retry gets the whole
// answer, and the upstream is not called again.
#[test]
fn crash_mid_reply() {
    let bench = Bench::new("[[route]]\nmatch = \"POST /large\"\nresponse_limit = \"32MiB\"");
    for round in 0..rows(20) {
        let key = format!("k-{round}");
        let semel = bench.start();
        let mut stream = TcpStream::connect(semel.gateway_url().trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "POST /large HTTP/1.1\r\nhost: a\r\nidempotency-key: {key}\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut received = vec![0; 64 << 10];
        stream.read_exact(&mut received).unwrap();
        semel.kill();
        // What the kernel still holds, then the end of the connection.
        let _ = stream.read_to_end(&mut received);
        assert!(received.len() < LARGE, "the answer was sent whole before the kill");
        assert!(
            stream.write_all(head.as_bytes()).is_err() || !stream.read(&mut [0]).is_ok_and(|bytes| bytes > 0),
            "nothing more comes over this connection"
        );

        let semel = bench.start();
        let answer = semel.gateway().with("idempotency-key", &key).post("/large", "{}");
        assert_eq!((answer.status, answer.header("idempotent-replayed")), (201, Some("true")));
        let body = received.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        assert!(answer.body.starts_with(&received[body..]), "the retry gets the answer that had begun");
        assert_eq!(answer.json()["fill"].as_str().map(str::len), Some(LARGE));
        assert_eq!(bench.upstream.calls(&key), 1);
        semel.kill();
    }
}

fn semel_keys(server: &Semel, args: &[&str]) -> bool {
    semel().arg("keys").args(args).args(["--admin", server.admin_url()]).output().unwrap().status.success()
}
