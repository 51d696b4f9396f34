//! What an operator types about dead letters, replays and targets, and what is printed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use semel_testbed::wait;
use serde_json::Value;

use super::{Bench, event, publish, target};
use crate::kit::{PATIENCE, Semel, Sink, semel};

fn command(server: &Semel, args: &[&str]) -> std::process::Command {
    let mut command = semel();
    command.args(args).args(["--admin", server.admin_url()]).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command: whether it succeeded, standard output, standard error.
fn run(server: &Semel, args: &[&str]) -> (bool, String, String) {
    told(&command(server, args).output().unwrap())
}

fn told(output: &Output) -> (bool, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// A server whose target refused this many deliveries for good.
fn dead(bench: &Bench, sink: &Sink, letters: usize) -> Semel {
    let semel = bench.start();
    let admin = semel.admin();
    sink.answer_with(400);
    for number in 0..letters {
        publish(&admin, &event("a", &number.to_string()));
    }
    let count = || admin.get("/v1/dead-letters?limit=1000").expect(200)["items"].as_array().unwrap().len();
    wait::until("all are dead letters", PATIENCE, || count() == letters).unwrap();
    semel
}

#[test]
fn a_list_of_dead_letters_reads_on_and_groups_count_by_status() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = dead(&bench, &sink, 5);
    let (_, all, _) = run(&semel, &["dlq", "list", "--json"]);
    let all: Value = serde_json::from_str(&all).unwrap();
    let ids: Vec<&str> =
        all["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap()).collect();
    assert_eq!((ids.len(), &all["next"]), (5, &Value::Null));
    // Page by page, by the cursor that is printed.
    let (_, first, hint) = run(&semel, &["dlq", "list", "--limit", "2"]);
    assert!(first.contains(ids[0]) && first.contains(ids[1]) && !first.contains(ids[2]), "{first}");
    let cursor = hint.split("--cursor ").nth(1).expect("how to read on").trim();
    let (_, rest, end) = run(&semel, &["dlq", "list", "--cursor", cursor]);
    assert!(rest.contains(ids[2]) && rest.contains(ids[4]) && !rest.contains(ids[1]), "{rest}");
    assert!(end.is_empty(), "{end}");
    let (_, _, refused) = run(&semel, &["dlq", "list", "--cursor", "abc"]);
    assert!(refused.contains("not one of this listing"), "{refused}");
    assert!(!semel.log().contains("store unavailable"), "a refusal is not an outage");
    // Pending by default; the rest by its status.
    assert!(run(&semel, &["dlq", "discard", ids[0], "--reason", "a test"]).0);
    assert!(!run(&semel, &["dlq", "list"]).1.contains(ids[0]));
    assert!(run(&semel, &["dlq", "list", "--status", "all"]).1.contains(ids[0]));
    let (_, groups, _) = run(&semel, &["dlq", "groups"]);
    assert!(groups.contains("4 pending") && groups.contains("1 discarded"), "{groups}");
    let (_, shown, _) = run(&semel, &["dlq", "show", ids[1]]);
    assert!(shown.contains("The target's answer to attempt 1 begins with:"), "{shown}");
}

#[test]
fn many_dead_letters_are_discarded_after_they_were_counted() {
    let (one, other) = (Sink::start(), Sink::start());
    let config = [target("one", &one, ""), target("other", &other, "")].concat();
    let bench = Bench::new(&config);
    other.answer_with(400);
    let semel = bench.start();
    let admin = semel.admin();
    one.answer_with(400);
    for number in 0..4 {
        publish(&admin, &event("a", &number.to_string()));
    }
    let pending = |target: &str| {
        let page = admin.get(&format!("/v1/dead-letters?status=pending&target={target}")).expect(200);
        page["items"].as_array().unwrap().len()
    };
    wait::until("all are dead", PATIENCE, || pending("one") + pending("other") == 8).unwrap();
    let discard = ["dlq", "discard", "--target", "one", "--reason", "a test"];
    let (done, _, said) = run(&semel, &discard);
    assert!(!done && said.contains("add --yes"), "{said}");
    assert_eq!(pending("one"), 4, "nothing was changed");
    let (done, said, _) = run(&semel, &[&discard[..], &["--yes"]].concat());
    assert!(done && said.contains("4 discarded"), "{said}");
    assert_eq!((pending("one"), pending("other")), (0, 4));
    let (done, said, _) = run(&semel, &[&discard[..], &["--yes"]].concat());
    assert!(done && said.contains("no pending dead letter matches"), "{said}");
    let (done, _, said) = run(&semel, &["dlq", "discard", "--target", "onr", "--reason", "r", "--yes"]);
    assert!(
        done && said.contains("there is no target \"onr\" in the configuration; there are one, other"),
        "{said}"
    );
    let (done, said, why) = run(&semel, &["deliveries", "list", "--target", "onr"]);
    assert!(done && !said.contains("dlv_") && why.contains("there is no target \"onr\""), "{said} {why}");
    let (done, _, said) = run(&semel, &["deliveries", "list", "--limit", "0"]);
    assert!(!done && said.contains("at least 1"), "{said}");
    let (done, _, said) = run(&semel, &["dlq", "discard", "--reason", "everything"]);
    assert!(!done && said.contains("--target"), "a filter is required: {said}");
}

#[test]
fn a_replay_names_its_job_and_what_its_limit_left_out() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = dead(&bench, &sink, 5);
    let (_, plan, _) = run(&semel, &["replay", "--status", "failed", "--limit", "2", "--dry-run"]);
    assert!(plan.contains("3 more match"), "{plan}");
    let (done, _, err) = run(&semel, &["replay", "--status", "failed", "--limit", "0"]);
    assert!(!done && err.contains("--limit <N>': expected a number, at least 1"), "{err}");
    for control in ["--pause", "--resume", "--cancel"] {
        let (done, _, err) = run(&semel, &["replay", "--status", "failed", control]);
        assert!(!done && err.contains("cannot be used with"), "{control} belongs to a job: {err}");
    }
    assert_eq!(
        semel.admin().get("/v1/replays").expect(200)["items"],
        serde_json::json!([]),
        "none of them starts a job"
    );
    sink.answer_with(200);
    let (done, out, err) = run(&semel, &["replay", "--status", "failed", "--limit", "2"]);
    assert!(done && err.contains("3 more match") && err.contains(": 2 to replay"), "{out}{err}");
    let (done, jobs, _) = run(&semel, &["replay", "--list"]);
    assert!(done && jobs.contains("rpl_") && jobs.contains("2/2"), "{jobs}");
    let (done, _, err) = run(&semel, &["replay", "--status", "failed", "--limit", "3"]);
    assert!(done && !err.contains("more match"), "{err}");
}

// Ctrl-C ends the command, not the job.
#[test]
fn an_interrupted_replay_says_that_its_job_goes_on() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = dead(&bench, &sink, 3);
    sink.answer_with(200);
    let mut following = command(&semel, &["replay", "--status", "failed", "--rate", "0.1"]).spawn().unwrap();
    let running = || semel.admin().get("/v1/replays").expect(200)["items"][0]["state"] == "running";
    let mut said = BufReader::new(following.stderr.take().unwrap());
    let mut first = String::new();
    said.read_line(&mut first).unwrap();
    assert!(first.starts_with("rpl_") && first.contains(": 3 to replay"), "{first}");
    let pid = Pid::from_raw(i32::try_from(following.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    let (done, said) = (following.wait().unwrap().success(), rest);
    assert!(!done && said.contains("is still running on the server") && said.contains("--cancel"), "{said}");
    assert!(running(), "the job goes on");
}

// One screen, the targets, the deliveries and the audit log, of a target that fails and one that works.
#[test]
fn the_state_of_a_server_is_seen_at_a_glance() {
    let (crm, bank) = (Sink::start(), Sink::start());
    let config = [
        target("crm", &crm, "breaker = { failure_calls = 2, rest = \"60s\", longest_rest = \"60s\" }"),
        target("bank", &bank, ""),
    ]
    .concat();
    let bench = Bench::new(&config);
    let semel = bench.start();
    let (done, idle, _) = run(&semel, &["status"]);
    assert!(done && idle.contains("ready") && idle.contains("all closed"), "{idle}");
    let parts = [
        "in doubt      none",
        "deliveries    none",
        "dead letters  none",
        "gateway       none",
        "paused        none",
    ];
    for part in parts {
        assert!(idle.contains(part), "{part}: {idle}");
    }
    crm.answer_with(503);
    let admin = semel.admin();
    for number in 0..3 {
        publish(&admin, &event("a", &number.to_string()));
    }
    let targets = || run(&semel, &["targets"]).1;
    wait::until("the breaker is open", PATIENCE, || targets().contains("open")).unwrap();
    wait::until("the bank has all", PATIENCE, || bank.effects().len() == 3).unwrap();
    let shown = targets();
    let line = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("crm").contains("open") && line("crm").contains("in "), "half-opens when: {shown}");
    assert!(line("bank").contains("closed") && line("bank").contains("100% of 3"), "{shown}");
    let (_, busy, _) = run(&semel, &["status"]);
    assert!(busy.contains("crm open until "), "{busy}");
    let (_, json, _) = run(&semel, &["status", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["ready"], &json["pipeline"]["open_breakers"][0]), (&true.into(), &"crm".into()));
    assert_eq!(json["pipeline"]["breakers"][0]["state"], "open");
    let (_, waits, _) = run(&semel, &["deliveries", "list", "--target", "crm"]);
    let (_, waits, _) =
        run(&semel, &["deliveries", "show", waits.lines().nth(1).unwrap().split(' ').next().unwrap()]);
    assert!(waits.contains("the circuit breaker of crm is open until "), "{waits}");
    let (_, resumed, _) = run(&semel, &["targets", "resume", "crm", "--reason", "a test"]);
    assert!(resumed.contains("nothing is sent now: the circuit breaker of crm is open until "), "{resumed}");
    let (_, listed, _) = run(&semel, &["deliveries", "list", "--target", "bank", "--state", "done"]);
    assert_eq!(listed.matches("dlv_").count(), 3, "{listed}");
    let id = listed.lines().nth(1).unwrap().split(' ').next().unwrap();
    let (_, shown, _) = run(&semel, &["deliveries", "show", id]);
    assert!(shown.contains("bank") && shown.contains("ATTEMPT"), "{shown}");
    let (_, events, _) = run(&semel, &["events", "list"]);
    assert!(events.lines().nth(1).unwrap().contains("done"), "{events}");
    let (done, wrong, said) = run(&semel, &["deliveries", "list", "--state", "nope"]);
    assert!(!done && wrong.is_empty() && said.contains("possible values: idle, queued"), "{said}");
    let (_, none, said) = run(&semel, &["audit", "--subject", "nobody"]);
    assert!(none.starts_with("WHEN") && said.contains("nothing found"), "{none}{said}");
}

#[test]
fn changes_by_operators_are_listed() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = dead(&bench, &sink, 1);
    let letter =
        semel.admin().get("/v1/dead-letters").expect(200)["items"][0]["id"].as_str().unwrap().to_owned();
    assert!(run(&semel, &["dlq", "discard", &letter, "--reason", "not needed"]).0);
    let (_, audit, _) = run(&semel, &["audit", "--subject", &letter]);
    assert!(audit.contains("discard") && audit.contains("not needed") && audit.contains("local"), "{audit}");
}

// Scripts see by the exit code whether the run that they waited for is done.
#[test]
fn a_run_that_failed_ends_its_command_with_an_error() {
    let sink = Sink::start();
    let bench = Bench::new(&target("crm", &sink, ""));
    let semel = bench.start();
    let (done, out, err) = run(&semel, &["runs", "trigger", "crm", "--wait"]);
    assert!(done && out.contains("done"), "{out}{err}");
    sink.answer_with(400);
    let (done, out, err) = run(&semel, &["runs", "trigger", "crm", "--wait"]);
    assert!(!done && out.contains("dlq") && err.contains("the run failed"), "{out}{err}");
    let (done, out, _) = run(&semel, &["runs", "trigger", "crm", "--wait", "--json"]);
    assert!(!done && serde_json::from_str::<Value>(&out).unwrap()["status"] == "dlq", "{out}");
    let (_, listed, _) = run(&semel, &["runs", "list"]);
    assert!(listed.contains("STATE") && listed.contains("dlq") && listed.contains("done"), "{listed}");
}
