//! Dead letters get another try. In full form: `./scripts/prove replay-kill`.

use std::time::Duration;

use semel_testbed::{Redis, wait};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Bench, count, event, publish, target};
use crate::kit::{Http, PATIENCE, Semel, Sink, metric, run};

fn in_full() -> bool {
    std::env::var_os("SEMEL_PROVE").is_some()
}

fn replay(semel: &Semel, args: &[&str]) -> (bool, String) {
    let output = run(&[&["replay"], args, &["--admin", semel.admin_url()]].concat());
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

fn letters(admin: &Http, status: &str) -> Vec<Value> {
    let page = admin.get(&format!("/v1/dead-letters?status={status}&limit=1000")).expect(200);
    page["items"].as_array().unwrap().clone()
}

/// A server with dead letters of a target that is well again.
fn dead(bench: &Bench, sink: &Sink, letters: usize) -> Semel {
    let semel = bench.start();
    let admin = semel.admin();
    sink.answer_with(422);
    for number in 0..letters {
        publish(&admin, &event("a", &format!("key-{number}")));
    }
    let all = || metric_of(&admin, letters);
    wait::until("all are dead letters", PATIENCE + Duration::from_secs(600), all).unwrap();
    sink.answer_with(200);
    semel
}

/// Whether this number of deliveries are dead letters.
fn metric_of(admin: &Http, letters: usize) -> bool {
    let groups = admin.get("/v1/dead-letters/groups?status=pending").expect(200);
    let counts = groups["items"].as_array().unwrap().iter().filter_map(|group| group["count"].as_u64());
    counts.sum::<u64>() == letters as u64
}

// A plan first, then a canary, then the rest; the original key is kept.
#[test]
fn what_failed_is_replayed_with_a_plan() {
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, ""));
    let semel = dead(&bench, &sink, 5);
    let admin = semel.admin();
    let before = sink.calls();
    let (done, told) = replay(&semel, &["--status", "failed", "--limit", "100", "--dry-run"]);
    assert!(done && told.contains("5 in total: 5 to run, 0 to skip, 0 in conflict"), "{told}");
    assert_eq!(sink.calls(), before, "a plan sends nothing");
    let (done, told) = replay(&semel, &["--status", "failed", "--limit", "100"]);
    assert!(done && told.contains("done: 5 of 5 replayed (every item has ended)"), "{told}");
    assert_eq!(letters(&admin, "replayed").len(), 5);
    assert_eq!(sink.effects().len(), 5);
    // The same key as before: a receiver that accepted it then would recognise it.
    let keys: std::collections::BTreeSet<String> =
        sink.seen().iter().map(|one| one.key().to_owned()).collect();
    assert_eq!(keys.len(), 5);
    assert_eq!(count(&admin, "done"), 5);
    let (done, told) = replay(&semel, &["--status", "failed", "--limit", "100"]);
    assert!(done && told.contains("0 of 0 replayed"), "{told}");
}

// By id, by event and target; what is done is skipped; re-execute wants a reason; as-new is an event of its own.
#[test]
fn letters_and_events_are_replayed_by_name_in_every_mode() {
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, ""));
    let semel = dead(&bench, &sink, 2);
    let admin = semel.admin();
    let pending = letters(&admin, "pending");
    let (one, other) = (pending[0]["id"].as_str().unwrap(), pending[1]["id"].as_str().unwrap());
    let (done, told) = replay(&semel, &["--dlq", "--id", one]);
    assert!(done && told.contains("1 of 1 replayed"), "{told}");
    let event = pending[0]["event_id"].as_str().unwrap();
    let (done, told) = replay(&semel, &["--event-id", event, "--targets", "all", "--dry-run"]);
    assert!(done && told.contains("0 to run, 1 to skip"), "it is done: {told}");
    let (done, told) = replay(&semel, &["--event-id", event, "--targets", "all", "--mode", "re-execute"]);
    assert!(!done && told.contains("a reason is required"), "{told}");
    let args =
        ["--event-id", event, "--targets", "all", "--mode", "re-execute", "--reason", "lost at the target"];
    let (done, told) = replay(&semel, &args);
    assert!(done && told.contains("1 of 1 replayed"), "{told}");
    let effects = sink.effects().len();
    assert_eq!(effects, 2, "a new epoch is a new key");
    let (done, told) = replay(&semel, &["--dlq", "--id", other, "--mode", "as-new"]);
    assert!(done && told.contains("1 of 1 replayed"), "{told}");
    assert_eq!(letters(&admin, "replayed").len(), 2);
    let audit = admin.get("/v1/audit").expect(200).to_string();
    assert!(audit.contains("lost at the target"), "{audit}");
}

// What fails again pauses the job by itself; after k failed replays a letter is parked.
#[test]
fn a_job_whose_canary_fails_pauses_itself_and_letters_are_parked() {
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, ""));
    let semel = dead(&bench, &sink, 4);
    let admin = semel.admin();
    sink.answer_with(422);
    let (done, told) = replay(&semel, &["--status", "failed", "--canary", "2"]);
    assert!(!done && told.contains("paused") && told.contains("2 of the last 2 failed again"), "{told}");
    let jobs = admin.get("/v1/replays").expect(200);
    let job = jobs["items"][0]["id"].as_str().unwrap();
    assert_eq!(jobs["items"][0]["counts"]["pending"], 2, "the rest was not sent");
    // The next person on call sees that it waits.
    let status = admin.get("/v1/status").expect(200)["pipeline"]["replays"].clone();
    assert_eq!(
        (&status[0]["id"], &status[0]["state"], &status[0]["pending"]),
        (&job.into(), &"paused".into(), &2.into())
    );
    let shown = run(&["status", "--admin", semel.admin_url()]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(&format!("{job} paused, 2 to go: 2 of the last 2 failed again")), "{shown}");
    let page = admin.get(&format!("/replays/{job}")).text();
    assert!(
        page.contains("2 of the last 2 failed again") && page.contains("Nothing more is sent until"),
        "{page}"
    );
    sink.answer_with(200);
    let (done, told) = replay(&semel, &["--job", job, "--resume"]);
    assert!(!done && told.contains("2 of 4 replayed"), "{told}");
    // The two that failed are letters still.
    sink.answer_with(422);
    let failing = letters(&admin, "pending")[0]["id"].as_str().unwrap().to_owned();
    for _ in 0..2 {
        replay(&semel, &["--dlq", "--id", &failing, "--canary", "0"]);
    }
    let shown = admin.get(&format!("/v1/dead-letters/{failing}")).expect(200);
    assert_eq!((&shown["status"], &shown["failed_replays"]), (&json!("parked"), &json!(3)), "{shown}");
    sink.answer_with(200);
    let (_, told) = replay(&semel, &["--status", "failed", "--canary", "0"]);
    assert!(told.contains("1 of 1 replayed"), "a parked one is replayed by its id alone: {told}");
    let (done, told) = replay(&semel, &["--dlq", "--id", &failing]);
    assert!(done && told.contains("1 of 1 replayed"), "{told}");
}

// replay_storm: rate and concurrency are kept, and it stops within a second.
#[test]
fn a_job_keeps_its_pace_and_stops_when_told() {
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, "concurrency = 64"));
    let semel = dead(&bench, &sink, 200);
    let admin = semel.admin();
    sink.be_slow(Duration::from_millis(30));
    sink.most_at_once();
    let body = json!({ "status": "failed", "limit": 1000, "canary": 0, "concurrency": 3 });
    let job = admin.post("/v1/replays", &body.to_string()).expect(201)["id"].as_str().unwrap().to_owned();
    let before = sink.effects().len();
    wait::until("it is at work", PATIENCE, || sink.effects().len() > before + 10).unwrap();
    admin.post(&format!("/v1/replays/{job}/pause"), "{}").expect(200);
    // What was released by then may end; nothing else is sent.
    let released = || admin.get(&format!("/v1/replays/{job}")).expect(200)["counts"]["released"] == 0;
    wait::until("what was released has ended", Duration::from_secs(10), released).unwrap();
    let stands = sink.calls();
    assert!(sink.most_at_once() <= 3, "no more than three at once");
    let pace = json!({ "rate": 1000, "concurrency": 8 });
    admin.post(&format!("/v1/replays/{job}/pace"), &pace.to_string()).expect(200);
    assert_eq!(sink.calls(), stands, "it is paused");
    let (done, told) = replay(&semel, &["--job", &job, "--resume"]);
    assert!(done && told.contains("200 of 200 replayed"), "{told}");
    assert!(sink.most_at_once() <= 8);
}

/// A job over all that failed, followed until it is not running any more. Answers its id, and how it then stands.
fn follow(admin: &Http, wanted: &Value) -> (String, Value) {
    let job = admin.post("/v1/replays", &wanted.to_string()).expect(201)["id"].as_str().unwrap().to_owned();
    let stands = stopped(admin, &job);
    (job, stands)
}

/// Waits until a job is not running any more and everything that was released has ended.
fn stopped(admin: &Http, job: &str) -> Value {
    let mut stands = Value::Null;
    wait::until("the job stops", PATIENCE, || {
        stands = admin.get(&format!("/v1/replays/{job}")).expect(200);
        stands["state"] != "running" && stands["counts"]["released"] == 0
    })
    .unwrap_or_else(|_| panic!("{stands:#}"));
    stands
}

fn is_paused(stands: &Value, failed: usize, ended: usize) {
    assert_eq!(stands["state"], "paused", "{stands:#}");
    let note = stands["note"].as_str().unwrap();
    assert!(note.starts_with(&format!("{failed} of the last {ended} failed again")), "{note}");
}

// The canary goes first, all of it and nothing else, and the job stops there when more than half of it fails.
#[test]
fn a_job_sends_exactly_its_canary_and_stops_when_that_fails() {
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, ""));
    let semel = dead(&bench, &sink, 12);
    let admin = semel.admin();
    let before = sink.calls();
    sink.answer_in_turn([422, 200, 422].into_iter());
    let (job, stands) = follow(&admin, &json!({ "status": "failed", "canary": 3 }));
    is_paused(&stands, 2, 3);
    assert_eq!((sink.calls() - before, &stands["counts"]["pending"]), (3, &json!(9)));
    // Half of it is not more than half.
    admin.post(&format!("/v1/replays/{job}/cancel"), "{}").expect(200);
    sink.answer_in_turn([422, 200].into_iter());
    let (_, stands) = follow(&admin, &json!({ "status": "failed", "canary": 2 }));
    assert_eq!(stands["state"], "done", "{stands:#}");
    assert_eq!((&stands["counts"]["replayed"], &stands["counts"]["failed_again"]), (&json!(10), &json!(1)));
}

// Failures are judged from the tenth item on: more than half of what ended since the start, or since it was resumed.
#[test]
fn a_job_stops_at_the_item_that_makes_it_more_than_half() {
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, ""));
    let semel = dead(&bench, &sink, 50);
    let admin = semel.admin();
    let before = sink.calls();
    sink.answer_with(422);
    let one_by_one = json!({ "status": "failed", "canary": 0, "concurrency": 1 });
    let (job, stands) = follow(&admin, &one_by_one);
    is_paused(&stands, 10, 10);
    assert_eq!(sink.calls() - before, 10, "the tenth is judged, and there is no eleventh");
    // When it is resumed, its count starts again.
    admin.post(&format!("/v1/replays/{job}/resume"), "{}").expect(200);
    is_paused(&stopped(&admin, &job), 10, 10);
    assert_eq!(sink.calls() - before, 20);
    admin.post(&format!("/v1/replays/{job}/cancel"), "{}").expect(200);
    // Five of ten are half; six of eleven are more.
    sink.answer_in_turn([422, 200, 422, 200, 422, 200, 422, 200, 422, 200, 422].into_iter());
    let (_, stands) = follow(&admin, &one_by_one);
    is_paused(&stands, 6, 11);
    assert_eq!(sink.calls() - before, 31);
    // With `pause_above` the share is another.
    let (_, stands) =
        follow(&admin, &json!({ "status": "failed", "canary": 0, "concurrency": 1, "pause_above": 1 }));
    assert_eq!(
        (&stands["state"], &stands["counts"]["failed_again"]),
        (&json!("done"), &json!(45)),
        "{stands:#}"
    );
}

// What went well long ago says nothing about now: only the last hundred count.
#[test]
fn a_job_that_went_well_for_long_stops_soon_all_the_same() {
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, ""));
    let semel = dead(&bench, &sink, 250);
    let admin = semel.admin();
    let before = sink.calls();
    sink.answer_in_turn(std::iter::repeat_n(200, 200).chain(std::iter::repeat_n(422, 50)));
    let (_, stands) =
        follow(&admin, &json!({ "status": "failed", "limit": 250, "canary": 0, "concurrency": 1 }));
    is_paused(&stands, 10, 10);
    assert_eq!(sink.calls() - before, 210);
}

// A canary that failed is not forgotten with the process that sent it.
#[test]
fn a_canary_that_failed_stops_the_job_after_a_restart_too() {
    let sink = Sink::start();
    let bench = Bench::new(&format!("[ledger]\nlease = \"500ms\"\n{}", target("all", &sink, "")));
    let semel = dead(&bench, &sink, 4);
    sink.be_slow(Duration::from_millis(700));
    let body = json!({ "status": "failed", "canary": 2 });
    let job =
        semel.admin().post("/v1/replays", &body.to_string()).expect(201)["id"].as_str().unwrap().to_owned();
    sink.answer_in_turn([422, 422, 422, 422].into_iter());
    let before = sink.calls();
    wait::until("the first has failed", PATIENCE, || sink.calls() > before).unwrap();
    semel.kill();
    sink.be_slow(Duration::ZERO);
    let semel = bench.start();
    let stands = stopped(&semel.admin(), &job);
    is_paused(&stands, 2, 2);
    assert_eq!(stands["counts"]["pending"], 2, "{stands:#}");
}

/// The most calls within any second, from the call with this number on.
fn most_in_a_second(sink: &Sink, from: usize) -> usize {
    let mut times: Vec<_> = sink.seen()[from..].iter().map(|one| one.at).collect();
    times.sort();
    let within =
        |at: usize| times[at..].iter().filter(|time| **time < times[at] + Duration::from_secs(1)).count();
    (0..times.len()).map(within).max().unwrap_or_default()
}

// The rate holds from the first item on, for the canary too, and nothing is made up for after a standstill.
#[test]
fn a_job_keeps_its_rate_whatever_happens() {
    const RATE: usize = 20;
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, "concurrency = 64"));
    let semel = dead(&bench, &sink, 100);
    let admin = semel.admin();
    let before = sink.calls();
    let wanted = json!({ "status": "failed", "limit": 100, "rate": RATE, "canary": 40, "concurrency": 64 });
    let begin = Instant::now();
    let job = admin.post("/v1/replays", &wanted.to_string()).expect(201)["id"].as_str().unwrap().to_owned();
    wait::until("half of the canary is sent", PATIENCE, || sink.calls() >= before + 20).unwrap();
    // It stands still: nobody answers for some seconds.
    sink.be_slow(Duration::from_millis(2_500));
    wait::until("the rest of the canary has ended", PATIENCE, || sink.calls() >= before + 40).unwrap();
    sink.be_slow(Duration::ZERO);
    let done = stopped(&admin, &job);
    assert_eq!((&done["state"], &done["counts"]["replayed"]), (&json!("done"), &json!(100)), "{done:#}");
    // Calls may reach the target a little later than they were released, and so closer together: half as many again is room
    // enough for that. Without the rate 20 or 60 of them come at once.
    let most = most_in_a_second(&sink, before);
    assert!(most <= RATE + RATE / 2, "{most} within a second");
    // A slow machine only delays calls. So none comes before the rate allows it, less the tenth of a second that may be made up
    // for: from the beginning, and again after the standstill, because the rest waits for the last of the canary.
    let mut times: Vec<Instant> = sink.seen()[before..].iter().map(|one| one.at).collect();
    times.sort();
    let earliest = |since: Instant, number: usize| {
        let due = Duration::from_secs_f64(number as f64 / RATE as f64);
        since + due.saturating_sub(Duration::from_millis(100))
    };
    for (number, at) in times.iter().enumerate() {
        assert!(*at >= earliest(begin, number), "call {number} came after {:?}", *at - begin);
    }
    for (number, at) in times[40..].iter().enumerate() {
        let since = times[39];
        assert!(
            *at >= earliest(since, number),
            "call {number} after the canary came after {:?}",
            *at - since
        );
    }
}

// Bad input: what is in flight, wrong ids, unknown targets, nothing to replay.
#[test]
fn what_cannot_be_replayed_is_refused_in_plain_words() {
    let sink = Sink::start();
    let bench = Bench::new(&target("all", &sink, ""));
    let semel = dead(&bench, &sink, 1);
    let admin = semel.admin();
    let no = |body: Value, expected: &str| {
        let answer = admin.post("/v1/replays", &body.to_string());
        let text = answer.text();
        assert!((400..500).contains(&answer.status) && text.contains(expected), "{body}: {text}");
    };
    no(json!({}), "say what to replay");
    no(json!({ "status": "done" }), "expected \\\"failed\\\"");
    no(json!({ "status": "failed", "ids": ["x"] }), "say what to replay");
    no(json!({ "ids": ["nonsense"] }), "not an id");
    no(json!({ "status": "failed", "targets": ["nobody"] }), "there is no target");
    no(json!({ "status": "failed", "mode": "twice" }), "expected one of resume, re-execute, as-new");
    no(json!({ "status": "failed", "rate": -1 }), "items a second");
    no(json!({ "status": "failed", "concurrency": 0 }), "at least 1");
    no(json!({ "status": "failed", "limits": 3 }), "unknown field");
    let unknown = "rpl_00000000000000000000000000";
    assert_eq!(admin.get(&format!("/v1/replays/{unknown}")).status, 404);
    assert_eq!(admin.post(&format!("/v1/replays/{unknown}/pause"), "{}").status, 404);
    // In flight: another job has it.
    sink.be_slow(Duration::from_secs(2));
    let body = json!({ "status": "failed", "canary": 0 });
    admin.post("/v1/replays", &body.to_string()).expect(201);
    wait::until("it is in flight", PATIENCE, || letters(&admin, "replaying").len() == 1).unwrap();
    let letter = letters(&admin, "replaying")[0]["id"].as_str().unwrap().to_owned();
    let (_, told) = replay(&semel, &["--dlq", "--id", &letter, "--dry-run"]);
    assert!(told.contains("0 to run") && told.contains("1 in conflict"), "{told}");
    wait::until("it ends", PATIENCE, || letters(&admin, "replayed").len() == 1).unwrap();
    assert_eq!(sink.effects().len(), 1);
}

// 20,000 dead letters replayed while the server is killed every second: the job goes on by itself.
#[test]
fn a_job_survives_the_server() {
    let (count_of, kills) = if in_full() { (20_000, usize::MAX) } else { (400, 3) };
    let sink = Sink::start();
    let limits = "[ledger]\nlease = \"500ms\"\n[limits]\ncrashes = 1000\n";
    let bench = Bench::new(&format!("{limits}{}", target("all", &sink, "concurrency = 64")));
    let mut semel = dead(&bench, &sink, count_of);
    sink.be_slow(Duration::from_millis(5));
    sink.most_at_once();
    let body = json!({ "status": "failed", "limit": count_of, "canary": 1, "concurrency": 16 });
    let job =
        semel.admin().post("/v1/replays", &body.to_string()).expect(201)["id"].as_str().unwrap().to_owned();
    let mut killed = 0;
    loop {
        let ended = || {
            let job = semel.admin().get(&format!("/v1/replays/{job}"));
            job.status == 200 && job.expect(200)["state"] == "done"
        };
        let limit = if killed < kills { Duration::from_secs(1) } else { PATIENCE };
        if wait::until("the job is done", limit, ended).is_ok() {
            break;
        }
        assert!(killed < kills, "it does not end");
        semel.kill();
        killed += 1;
        semel = bench.start();
    }
    let done = semel.admin().get(&format!("/v1/replays/{job}")).expect(200);
    assert_eq!(done["counts"]["replayed"], count_of, "{done}");
    assert_eq!(sink.effects().len(), count_of, "no effect twice: one key each");
    let most = sink.most_at_once();
    // What a killed server had sent may still be in the target's hands when the next one begins.
    assert!(most <= 16 * 2, "{most} at once");
    println!("{count_of} dead letters replayed, the server killed {killed} times");
}

// replay_done: what has ended is answered from the record, however it comes again: published, replayed, or read from a stream.
#[test]
fn replay_done_sends_nothing_again() {
    let (sink, redis) = (Sink::start(), Redis::start().unwrap());
    let source =
        format!("[[source]]\nkind = \"redis-stream\"\nurl = \"{}\"\nstream = \"orders\"", redis.url());
    let bench = Bench::new(&format!("{}\n{source}\n", target("all", &sink, "")));
    let semel = bench.start();
    let admin = semel.admin();
    let first = publish(&admin, &event("a", "k"));
    wait::until("it is delivered", PATIENCE, || count(&admin, "done") == 1).unwrap();

    let again = admin.post("/v1/events", &event("a", "k").to_string()).expect(200);
    assert_eq!(again["id"], json!(first), "the first event answers");
    let (done, told) = replay(&semel, &["--event-id", &first, "--targets", "all", "--dry-run"]);
    assert!(done && told.contains("0 to run, 1 to skip"), "{told}");
    let (done, told) = replay(&semel, &["--event-id", &first, "--targets", "all"]);
    assert!(done, "{told}");
    let payload = event("a", "k")["payload"].to_string();
    let fields = ["XADD", "orders", "*", "type", "a", "dedupe_key", "k", "payload", &payload];
    redis.tell(&fields).unwrap();
    let duplicates = "semel_source_messages_total{stream=\"orders\",outcome=\"duplicate\"}";
    wait::until("the duplicate is counted", PATIENCE, || metric(&admin, duplicates) >= 1.0).unwrap();
    // The order of deliveries: had one of them been sent again, it would have been sent before this one.
    publish(&admin, &event("a", "later"));
    wait::until("a later one is delivered", PATIENCE, || count(&admin, "done") == 2).unwrap();
    assert_eq!((sink.calls(), sink.effects().len()), (2, 2));
}
