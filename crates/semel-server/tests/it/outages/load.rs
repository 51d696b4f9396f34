//! Keyed requests, events and runs at a steady rate, each on its own connection, and the log of the server meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use semel_testbed::wait;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::kit::{Answer, Http, PATIENCE, Semel};

/// The pause between two calls of one kind.
const EVERY: Duration = Duration::from_millis(80);

/// A call and its answer.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) what: &'static str,
    pub(super) key: String,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    /// `None` if no answer came.
    pub(super) status: Option<u16>,
    pub(super) has_retry_after: bool,
}

impl Call {
    pub(super) fn is_done(&self) -> bool {
        self.status.is_some_and(is_done)
    }

    /// Sends it again; true once it is done.
    pub(super) fn is_repeated(&self, semel: &Semel) -> bool {
        send(&semel.gateway(), &semel.admin(), self.what, &self.key)
            .is_ok_and(|answer| is_done(answer.status))
    }
}

fn is_done(status: u16) -> bool {
    (200..300).contains(&status)
}

fn send(gateway: &Http, admin: &Http, what: &str, key: &str) -> std::io::Result<Answer> {
    match what {
        "pay" => gateway.with("idempotency-key", key).try_send("POST", "/pay", "{}"),
        "events" => {
            let event = json!({ "type": "a", "dedupe_key": key, "payload": key });
            admin.try_send("POST", "/v1/events", &event.to_string())
        }
        _ => {
            let run = json!({ "target": "all", "payload": key });
            admin.with("idempotency-key", key).try_send("POST", "/v1/runs", &run.to_string())
        }
    }
}

/// The running load.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    calls: Arc<Mutex<Vec<Call>>>,
    senders: Vec<JoinHandle<()>>,
}

impl Load {
    pub(super) fn start(semel: &Semel) -> Self {
        let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let sender = |what: &'static str| {
            let (gateway, admin) = (semel.gateway(), semel.admin());
            let (stop, calls) = (Arc::clone(&stop), Arc::clone(&calls));
            std::thread::spawn(move || {
                let mut open = Vec::new();
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let (gateway, admin, calls) = (gateway.clone(), admin.clone(), Arc::clone(&calls));
                    // A call that waits for its answer must not hold up the next one.
                    open.push(std::thread::spawn(move || {
                        let (key, began) = (format!("{what}-{number}"), Instant::now());
                        let answer = send(&gateway, &admin, what, &key).ok();
                        calls.lock().push(Call {
                            what,
                            key,
                            began,
                            ended: Instant::now(),
                            has_retry_after: answer
                                .as_ref()
                                .is_some_and(|got| got.header("retry-after").is_some()),
                            status: answer.map(|answer| answer.status),
                        });
                    }));
                    super::pass(EVERY);
                }
                open.into_iter().for_each(|call| call.join().unwrap());
            })
        };
        let senders = ["pay", "events", "runs"].map(sender).into();
        Self { stop, calls, senders }
    }

    fn wait_for(&self, what: &str, holds: impl Fn(&[Call]) -> bool) {
        wait::until(what, PATIENCE, || holds(&self.calls.lock())).unwrap();
    }

    pub(super) fn wait_for_answers(&self, number: usize) {
        self.wait_for("answers before the outage", |calls| {
            ["pay", "events", "runs"].iter().all(|what| {
                calls.iter().filter(|call| call.what == *what && call.is_done()).count() >= number
            })
        });
    }

    /// Waits for the first refused request, if there will be any.
    pub(super) fn wait_until_refused(&self, will_be: bool) {
        if will_be {
            self.wait_for("a refused request", |calls| calls.iter().any(|call| call.status == Some(503)));
        }
    }

    pub(super) fn wait_for_success_after(&self, moment: Instant) {
        self.wait_for("requests are served again", |calls| {
            ["pay", "events", "runs"].iter().all(|what| {
                calls.iter().any(|call| call.what == *what && call.began > moment && call.is_done())
            })
        });
    }

    /// Ends the load and waits for all answers.
    pub(super) fn stop(self) -> Vec<Call> {
        self.stop.store(true, Ordering::Relaxed);
        self.senders.into_iter().for_each(|sender| sender.join().unwrap());
        std::mem::take(&mut *self.calls.lock())
    }
}

/// What the server logs from now on.
pub(super) struct OutageLog {
    length: usize,
}

impl OutageLog {
    pub(super) fn begin(semel: &Semel) -> Self {
        Self { length: semel.log().len() }
    }

    /// Exactly two lines are about the outage: its begin and its end. All others are about accepted events and runs.
    pub(super) fn judge(&self, semel: &Semel, store: &str) {
        let log = semel.log();
        let lines: Vec<Value> = log[self.length..]
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}")))
            .collect();
        let about: Vec<&Value> = lines.iter().filter(|line| !is_accepted(line)).collect();
        let shown = || about.iter().map(|line| format!("{line}\n")).collect::<String>();
        assert_eq!(about.len(), 2, "{}", shown());
        let [begin, end] = about[..] else { panic!("{}", shown()) };
        assert_eq!((&begin["level"], &begin["message"]), (&json!("WARN"), &json!("store unavailable")));
        assert_eq!((&end["level"], &end["message"]), (&json!("INFO"), &json!("store available again")));
        assert_eq!((&begin["store"], &end["store"]), (&json!(store), &json!(store)));
        assert!(begin["error"].as_str().is_some_and(|error| error.len() > 10), "{begin}");
        assert!(begin["used_for"].is_string() && end["duration_ms"].as_u64() >= Some(1_000), "{end}");
    }
}

/// A line about an accepted event or run, or about the request that brought it.
fn is_accepted(line: &Value) -> bool {
    let is_operation = matches!(line["operation"].as_str(), Some("publish" | "trigger"));
    let is_request = line["http_status"].as_u64().is_some_and(|status| (200..300).contains(&status));
    line["level"] == "INFO" && (is_operation || is_request)
}
