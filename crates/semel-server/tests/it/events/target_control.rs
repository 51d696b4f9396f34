//! Targets that a person pauses, resumes, and retries.

use std::path::Path;
use std::time::Duration;

use semel_testbed::{Postgres, wait};
use serde_json::{Value, json};

use super::{Bench, count, event, publish, scheduled_target, target};
use crate::kit::{Http, PATIENCE, Semel, Sink, metric, run};

/// Runs a command that must succeed, and answers what it printed.
#[track_caller]
fn command(server: &Semel, args: &[&str]) -> String {
    let output = run(&[args, &["--admin", server.admin_url()]].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn change(admin: &Http, name: &str, action: &str) -> Value {
    let body = json!({ "reason": "a test" }).to_string();
    admin.post(&format!("/v1/targets/{name}/{action}"), &body).expect(200)
}

fn paused_gauge(admin: &Http, name: &str) -> f64 {
    metric(admin, &format!("semel_target_paused{{target=\"{name}\"}}"))
}

// What an operator types and reads: who paused it, when and why, what waits; and after a restart too.
#[test]
fn a_paused_target_is_seen_and_gets_nothing() {
    let (crm, bank) = (Sink::start(), Sink::start());
    let bench = Bench::new(&[target("crm", &crm, ""), target("bank", &bank, "")].concat());
    let semel = bench.start();
    let said = command(&semel, &["targets", "pause", "crm", "--reason", "a migration"]);
    assert!(
        said.starts_with("crm: paused by local ") && said.contains(" ago: ") && said.contains("a migration"),
        "{said}"
    );
    let admin = semel.admin();
    assert!(paused_gauge(&admin, "crm") > 0.5 && paused_gauge(&admin, "bank") < 0.5);
    let id = publish(&admin, &event("a", "1"));
    wait::until("the bank has it", PATIENCE, || bank.effects().len() == 1).unwrap();
    let listed = command(&semel, &["targets"]);
    let line = |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("crm ").contains("paused") && line("crm ").contains("queued"), "{listed}");
    assert!(line("bank").contains("active"), "{listed}");
    assert!(listed.contains("crm is paused by local ") && listed.contains(": a migration"), "{listed}");
    let status = command(&semel, &["status"]);
    assert!(status.contains("paused        crm by local "), "{status}");
    let story = command(&semel, &["events", "show", &id]);
    assert!(story.contains("crm is paused by local since") && story.contains(": a migration"), "{story}");

    // It is in the ledger, not in the process.
    drop(semel);
    let semel = bench.start();
    let admin = semel.admin();
    publish(&admin, &event("a", "2"));
    wait::until("the bank has both", PATIENCE, || bank.effects().len() == 2).unwrap();
    assert_eq!((crm.calls(), count(&admin, "queued")), (0, 2));
    let said = command(&semel, &["targets", "resume", "crm", "--reason", "it is done"]);
    assert_eq!(said.trim(), "crm: active");
    wait::until("the crm has both", PATIENCE, || crm.effects().len() == 2).unwrap();
    assert!(paused_gauge(&admin, "crm") < 0.5);
    let audit = command(&semel, &["audit", "--subject", "crm"]);
    let lines: Vec<&str> = audit.lines().skip(1).collect();
    assert_eq!(lines.len(), 2, "{audit}");
    assert!(lines[0].contains("resume") && lines[1].contains("pause"), "{audit}");
    assert!(command(&semel, &["status"]).contains("paused        none"));
}

// Two people pause a target at the same moment: one pause is in force, both are told which, and only one changed something.
#[test]
fn two_pauses_at_once_are_one() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = bench.start();
    for round in 0..20 {
        let start = std::sync::Barrier::new(2);
        let pause = |who: &str| {
            let (admin, body) = (semel.admin(), json!({ "reason": format!("{who} {round}") }).to_string());
            start.wait();
            admin.post("/v1/targets/crm/pause", &body).expect(200)
        };
        let pauses: Vec<Value> = std::thread::scope(|scope| {
            let both = ["ann", "bob"].map(|who| scope.spawn(move || pause(who)));
            both.map(|one| one.join().unwrap()).into()
        });
        assert_eq!(pauses[0]["paused"], pauses[1]["paused"]);
        assert_eq!(pauses.iter().filter(|pause| pause["unchanged"] == false).count(), 1, "{pauses:?}");
        let first = pauses.iter().find(|pause| pause["unchanged"] == false).unwrap();
        let reason = first["paused"]["reason"].as_str().unwrap();
        assert!(reason == format!("ann {round}") || reason == format!("bob {round}"), "{reason}");
        let resumed = change(&semel.admin(), "crm", "resume");
        assert_eq!((&resumed["unchanged"], &resumed["paused"]), (&json!(false), &Value::Null));
        assert_eq!(change(&semel.admin(), "crm", "resume")["unchanged"], true);
    }
    let audit = command(&semel, &["audit", "--subject", "crm", "--limit", "1000"]);
    assert_eq!(audit.lines().skip(1).count(), 40, "each change once: {audit}");
}

// A delivery in progress ends; the next one waits.
#[test]
fn a_delivery_in_progress_ends() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, "concurrency = 1"));
    let semel = bench.start();
    let admin = semel.admin();
    sink.be_slow(Duration::from_secs(2));
    for key in ["1", "2"] {
        publish(&admin, &event("a", key));
    }
    wait::until("the first is in progress", PATIENCE, || count(&admin, "running") == 1).unwrap();
    change(&admin, "crm", "pause");
    wait::until("it is done", PATIENCE, || count(&admin, "done") == 1).unwrap();
    sink.be_slow(Duration::ZERO);
    assert_eq!(count(&admin, "queued"), 1, "the second waits");
    change(&admin, "crm", "resume");
    wait::until("both are done", PATIENCE, || count(&admin, "done") == 2).unwrap();
    assert_eq!(sink.calls(), 2);
}

fn on_postgres(folder: &Path, url: &str, sink: &Sink) -> Semel {
    let file = folder.join("semel.toml");
    let text = format!(
        "secret = {{ env = \"SECRET\" }}\n[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{url}\"\n{}",
        target("crm", sink, "")
    );
    std::fs::write(&file, text).unwrap();
    Semel::with_config(&file, &[("SECRET", "a secret of the deployment")])
}

// A pause in one process holds in the other at once.
#[test]
fn a_pause_holds_in_every_process() {
    let (postgres, sink, folder) = (Postgres::start().unwrap(), Sink::start(), tempfile::tempdir().unwrap());
    let servers = [(), ()].map(|()| on_postgres(folder.path(), &postgres.url(), &sink));
    let [one, other] = [servers[0].admin(), servers[1].admin()];
    for round in 0..3 {
        change(&one, "crm", "pause");
        for number in 0..10 {
            let admin = if number % 2 == 0 { &one } else { &other };
            publish(admin, &event("a", &format!("{round}-{number}")));
        }
        assert_eq!(other.get("/v1/targets").expect(200)["items"][0]["paused"]["by"], "local");
        assert_eq!((sink.calls(), count(&other, "queued")), (round * 10, 10), "nothing is sent");
        change(&other, "crm", "resume");
        let all = || sink.effects().len() == (round + 1) * 10;
        wait::until("all are delivered", PATIENCE, all).unwrap();
        assert_eq!(sink.calls(), (round + 1) * 10);
    }
}

// A replay job says that it waits for a paused target.
#[test]
fn a_replay_job_says_that_its_target_is_paused() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = bench.start();
    let admin = semel.admin();
    sink.answer_with(422);
    publish(&admin, &event("a", "1"));
    wait::until("it is a dead letter", PATIENCE, || count(&admin, "dlq") == 1).unwrap();
    sink.answer_with(200);
    change(&admin, "crm", "pause");
    let letter = admin.get("/v1/dead-letters").expect(200)["items"][0]["id"].clone();
    let job = admin.post("/v1/replays", &json!({ "ids": [letter] }).to_string()).expect(201);
    let path = format!("/v1/replays/{}", job["id"].as_str().unwrap());
    let waiting = || admin.get(&path).expect(200)["waiting"].as_str().unwrap_or_default().to_owned();
    wait::until("it waits", PATIENCE, || waiting().starts_with("crm is paused by local since")).unwrap();
    change(&admin, "crm", "resume");
    wait::until("it is done", PATIENCE, || admin.get(&path).expect(200)["state"] == "done").unwrap();
    assert!(admin.get(&path).expect(200).get("waiting").is_none());
}

// The reason is that of the targets that unfinished items are for: in the answer, in the list, and in the command.
#[test]
fn a_replay_job_says_that_the_breaker_of_its_target_is_open() {
    let (crm, bank) = (Sink::start(), Sink::start());
    let breaker =
        "breaker = { failure_calls = 1, failure_percent = 1, rest = \"60s\", longest_rest = \"60s\" }";
    let bench = Bench::new(&[target("crm", &crm, breaker), target("bank", &bank, "")].concat());
    let semel = bench.start();
    let admin = semel.admin();
    let breaker_of_crm = || {
        let targets = admin.get("/v1/targets").expect(200)["items"].clone();
        targets.as_array().unwrap().iter().find(|one| one["name"] == "crm").unwrap().clone()
    };
    // A call that succeeds, one that is refused, and the calls that open the breaker.
    publish(&admin, &event("a", "1"));
    wait::until("both have it", PATIENCE, || count(&admin, "done") == 2).unwrap();
    for sink in [&crm, &bank] {
        sink.answer_with(422);
    }
    publish(&admin, &event("a", "2"));
    wait::until("both refused it", PATIENCE, || count(&admin, "dlq") == 2).unwrap();
    let listed = command(&semel, &["targets"]);
    assert!(listed.lines().any(|line| line.starts_with("bank") && line.contains(" 50% of 2 ")), "{listed}");
    bank.answer_with(200);
    crm.answer_with(503);
    publish(&admin, &event("a", "3"));
    wait::until("the breaker is open", PATIENCE, || breaker_of_crm()["breaker"] == "open").unwrap();
    let (rate, attempts) =
        (breaker_of_crm()["success_rate"].as_f64().unwrap(), breaker_of_crm()["attempts"].clone());
    assert!(rate < 0.5 && attempts.as_u64().unwrap() >= 3, "{rate} of {attempts}");

    let start = |target: &str| {
        let asked = json!({ "status": "failed", "targets": [target], "reason": "it is back" }).to_string();
        admin.post("/v1/replays", &asked).expect(201)["id"].as_str().unwrap().to_owned()
    };
    let (waits, runs) = (start("crm"), start("bank"));
    let job = |id: &str| admin.get(&format!("/v1/replays/{id}")).expect(200);
    let why = "the circuit breaker of crm is open until ";
    let waiting = || job(&waits)["waiting"].as_str().unwrap_or_default().to_owned();
    wait::until("it waits", PATIENCE, || waiting().starts_with(why)).unwrap();
    wait::until("the other one ends", PATIENCE, || job(&runs)["state"] == "done").unwrap();
    let listed = command(&semel, &["replay", "--list"]);
    let line = |id: &str| listed.lines().find(|line| line.contains(id)).unwrap().to_owned();
    assert!(line(&waits).contains(why) && !line(&runs).contains("breaker"), "{listed}");

    // Who follows the job reads it; Ctrl-C leaves the job as it is.
    let stderr = tempfile::tempfile().unwrap();
    let mut follows = crate::kit::semel();
    follows
        .args(["replay", "--job", &waits, "--admin", semel.admin_url()])
        .stderr(stderr.try_clone().unwrap());
    let mut follows = follows.stdout(std::process::Stdio::null()).spawn().unwrap();
    let said = || {
        let mut text = vec![0; 64 * 1024];
        let length = std::os::unix::fs::FileExt::read_at(&stderr, &mut text, 0).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    wait::until("it says why", PATIENCE, || said().contains(&format!("waiting: {why}"))).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&follows), rustix::process::Signal::INT)
        .unwrap();
    assert_eq!(follows.wait().unwrap().code(), Some(130));
    assert!(said().contains(&format!("{waits} is still running on the server; stop it with")), "{}", said());
    assert_eq!(job(&waits)["state"], "running");
}

// A watched list repeats itself; an outage of the server does not end it.
#[test]
fn a_watched_list_goes_on_over_a_restart() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = bench.start();
    let [out, err] = [(); 2].map(|()| tempfile::tempfile().unwrap());
    let text = |file: &std::fs::File| {
        let mut text = vec![0; 256 * 1024];
        let length = std::os::unix::fs::FileExt::read_at(file, &mut text, 0).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let mut watches = crate::kit::semel();
    watches.args(["targets", "--watch", "--admin", semel.admin_url()]);
    watches.stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap());
    let mut watches = watches.spawn().unwrap();
    let tables = || text(&out).matches("TARGET ").count();
    wait::until("two tables", PATIENCE, || tables() >= 2).unwrap();
    assert!(!text(&out).contains("paused by"));
    change(&semel.admin(), "crm", "pause");
    wait::until("it shows the pause", PATIENCE, || text(&out).contains("crm is paused by local")).unwrap();
    semel.kill();
    wait::until("it says that the server is gone", PATIENCE, || text(&err).contains("semel: ")).unwrap();
    assert!(watches.try_wait().unwrap().is_none(), "{}", text(&err));
    rustix::process::kill_process(rustix::process::Pid::from_child(&watches), rustix::process::Signal::INT)
        .unwrap();
    watches.wait().unwrap();
}

// The target works again, and nobody waits for the next round.
#[test]
fn waiting_deliveries_are_retried_now() {
    let sink = Sink::start();
    sink.answer_with(503);
    let bench = Bench::new(&scheduled_target("crm", &sink, "schedule = [\"1h\"]"));
    let semel = bench.start();
    let admin = semel.admin();
    for key in ["1", "2"] {
        publish(&admin, &event("a", key));
    }
    let waits = || {
        let page = admin.get("/v1/deliveries?state=retry_wait").expect(200);
        page["items"].as_array().unwrap().iter().filter(|item| item["attempts_made"] == 3).count() == 2
    };
    wait::until("both wait for their next round", PATIENCE, waits).unwrap();
    sink.answer_with(200);
    let said = command(&semel, &["targets", "retry", "crm", "--reason", "it is back"]);
    assert_eq!(said.trim(), "crm: active; 2 deliveries became due");
    wait::until("both are delivered", PATIENCE, || count(&admin, "done") == 2).unwrap();
}

// The reason of a second pause is not stored: the command says so, and the audit log has one pause.
#[test]
fn a_second_pause_changes_nothing_and_says_so() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = bench.start();
    let pause = |reason: &str| {
        let args = ["targets", "pause", "crm", "--admin", semel.admin_url(), "--reason", reason];
        let output = crate::kit::run(&args);
        assert!(output.status.success(), "{output:?}");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    };
    let (said, why) = pause("it migrates");
    assert!(said.ends_with("ago: it migrates\n") && why.is_empty(), "{said} {why}");
    let (said, why) = pause("another reason");
    assert!(said.ends_with("ago: it migrates\n"), "{said}");
    assert_eq!(why.trim(), "nothing was changed: crm was paused already");
    let audit = semel.admin().get("/v1/audit").expect(200);
    assert_eq!(audit["items"].as_array().unwrap().len(), 1, "{audit}");
}

#[test]
fn wrong_requests_change_nothing() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = bench.start();
    let admin = semel.admin();
    let unknown = admin.post("/v1/targets/bank/pause", "{\"reason\": \"x\"}").expect(404);
    assert!(unknown["detail"].as_str().unwrap().contains("there are crm"), "{unknown}");
    let unreasoned = admin.post("/v1/targets/crm/pause", "{\"reason\": \" \"}").expect(400);
    assert!(unreasoned["detail"].as_str().unwrap().starts_with("reason:"), "{unreasoned}");
    assert!(admin.get("/v1/targets").expect(200)["items"][0]["paused"].is_null());
    // The address of the server can be in the environment, before or without a command.
    let listed =
        crate::kit::semel().args(["targets"]).env("SEMEL_ADMIN", semel.admin_url()).output().unwrap();
    assert!(listed.status.success());
    let paused = crate::kit::semel()
        .args(["targets", "pause", "crm", "--reason", "x"])
        .env("SEMEL_ADMIN", semel.admin_url())
        .output()
        .unwrap();
    assert!(paused.status.success(), "{}", String::from_utf8_lossy(&paused.stderr));
}
