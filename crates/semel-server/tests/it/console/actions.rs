//! Every action of the console works without its script, is in the audit log, and has a command and a path of the API.

use std::time::Duration;

use semel_testbed::wait;
use serde_json::json;
use tokio::time::Instant;

use super::{Person, Tokens, World};
use crate::kit::{PATIENCE, semel};

/// The value of a hidden field.
pub(super) fn hidden(page: &str, name: &str) -> String {
    let (_, rest) = page
        .split_once(&format!("name=\"{name}\" value=\""))
        .unwrap_or_else(|| panic!("a field {name} in {page}"));
    rest.split_once('"').unwrap().0.to_owned()
}

/// An action of the console.
pub(super) struct Listed {
    /// Where its form is submitted to, and the page with the form.
    pub(super) path: &'static str,
    pub(super) form: &'static str,
    pub(super) api: &'static str,
    pub(super) command: &'static str,
}

/// Every action, read from the list that the console uses: a new action is in every test that walks over them.
pub(super) fn listed() -> Vec<Listed> {
    let source = include_str!("../../../src/console/actions.rs");
    let list = source.split_once("\nactions! {").unwrap().1.split_once("\n}").unwrap().0;
    let action = |line: &'static str| {
        let texts: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
        let [path, form, api, command] = texts[..] else { panic!("four texts in {line}") };
        Listed { path, form, api, command: command.strip_prefix("semel ").unwrap() }
    };
    let actions: Vec<Listed> = list.lines().filter(|line| !line.trim().is_empty()).map(action).collect();
    assert!(actions.len() >= 15, "the list is read");
    actions
}

#[test]
fn every_action_has_a_command_and_a_path_of_the_api() {
    let world = World::start(Tokens::None);
    let document = world.api().get("/openapi.json").expect(200);
    for Listed { form, api, command, .. } in listed() {
        assert!(document["paths"][api]["post"].is_object(), "{form}: {api} is documented");
        let command: Vec<&str> = command.split(' ').take_while(|word| !word.starts_with("--")).collect();
        let help = semel().args(&command).arg("--help").output().unwrap();
        assert!(help.status.success(), "{form}: semel {command:?}");
    }
}

#[test]
fn every_action_works_and_is_in_the_audit_log() {
    let world = World::start(Tokens::Some);
    let filled = world.fill();
    let person = Person::log_in(&world, "admin");
    let api = world.api();
    let submit = |path: &str, fields: &[(&str, &str)]| {
        let answer = match path.ends_with("/settle") || path.ends_with("/forget") {
            true => person.submit_form(path, fields),
            false => person.submit("/", path, fields),
        };
        assert_eq!(answer.status, 303, "{path}: {}", answer.text());
        let to = answer.header("location").unwrap().to_owned();
        assert_eq!(person.get(&to).status, 200, "{path} leads to {to}");
        to
    };
    let letter = |path: &str| format!("/dead-letters/{}/{path}", filled.letter);
    let status = |id: &str| api.get(&format!("/v1/dead-letters/{id}")).expect(200)["status"].clone();

    // A preview changes nothing.
    let settle = format!("/keys/{}/settle", filled.doubt);
    let fields = [
        ("happened", "done"),
        ("status", "201"),
        ("body", "{\"id\": \"ch_9\"}"),
        ("reason", "asked the bank"),
    ];
    let preview = person.submit_form(&settle, &fields);
    assert!(preview.status == 200 && preview.text().contains("nothing is changed yet"), "{}", preview.text());
    let phase = |id: &str| api.get(&format!("/v1/keys/{id}")).expect(200)["phase"].clone();
    assert_eq!(phase(&filled.doubt), "in_doubt");
    let to = submit(&settle, &[&fields[..], &[("step", "settle")]].concat());
    assert!(person.get(&to).text().contains("ch_9"), "the answer that clients get");
    assert_eq!(phase(&filled.doubt), "done");
    let to = submit(&format!("/keys/{}/forget", filled.done), &[("reason", "test")]);
    assert!(person.get(&to).text().contains("Forgotten. The next request"), "{to}");
    assert_eq!(phase(&filled.done), "vacant");

    submit(&letter("discard"), &[("reason", "not needed")]);
    assert_eq!(status(&filled.letter), "discarded");
    submit(&letter("restore"), &[("reason", "needed after all")]);
    assert_eq!(status(&filled.letter), "pending");
    let fields = [("payload", "{\"order\": 5}"), ("reason", "typo")];
    let diff = person.submit("/", &letter("edit"), &fields);
    assert!(
        diff.text().contains("nothing is copied yet") && diff.text().contains("ann@example.com"),
        "{}",
        diff.text()
    );
    let copy = submit(&letter("edit"), &[&fields[..], &[("step", "copy")]].concat());
    let copy = copy.trim_start_matches("/dead-letters/").split('?').next().unwrap().to_owned();
    assert_eq!(api.get(&format!("/v1/dead-letters/{copy}")).expect(200)["copy_of"], filled.letter);

    // The plan says how many; a form for another plan is refused.
    let plan = person.get("/replays/new?status=failed&targets=warehouse").text();
    assert!(plan.contains("Approve and replay 7"), "{plan}");
    let fingerprint = hidden(&plan, "fingerprint");
    let replay =
        [("status", "failed"), ("targets", "warehouse"), ("canary", "1"), ("reason", "warehouse is back")];
    let with = |planned: &'static str, fingerprint| [("planned", planned), ("fingerprint", fingerprint)];
    for (planned, fingerprint) in [("6", fingerprint.as_str()), ("7", "another")] {
        let stale = person.submit("/", "/replays", &[&replay[..], &with(planned, fingerprint)].concat());
        assert!(
            stale.status == 200 && stale.text().contains("The plan has changed meanwhile"),
            "{}",
            stale.text()
        );
    }
    world.warehouse.be_slow(Duration::from_millis(300));
    let job = submit("/replays", &[&replay[..], &with("7", &fingerprint)].concat());
    let job = job.split('?').next().unwrap().to_owned();
    submit(&format!("{job}/pause"), &[("reason", "wait")]);
    submit(&format!("{job}/pace"), &[("rate", "2"), ("concurrency", "1"), ("reason", "gently")]);
    submit(&format!("{job}/resume"), &[("reason", "go on")]);
    submit(&format!("{job}/cancel"), &[("reason", "enough")]);
    let id = job.trim_start_matches("/replays/");
    let ended = api.get(&format!("/v1/replays/{id}")).expect(200);
    assert_eq!((ended["state"].as_str(), ended["rate"].as_f64()), (Some("cancelled"), Some(2.0)));

    let pending =
        || api.get("/v1/dead-letters?status=pending").expect(200)["items"].as_array().unwrap().len();
    semel_testbed::wait::until("all are pending again", crate::kit::PATIENCE, || pending() == 7).unwrap();
    let form = person.get("/dead-letters/discard?target=warehouse&status=pending").text();
    assert!(form.contains("Discard 7 dead letters"), "{form}");
    let ids = hidden(&form, "ids");
    let fields = [("target", "warehouse"), ("status", "pending"), ("reason", "gone for good")];
    let nothing = person.submit("/", "/dead-letters/discard", &fields);
    assert!(nothing.status == 400 && nothing.text().contains("nothing is selected"), "{}", nothing.text());
    let to = submit("/dead-letters/discard", &[&fields[..], &[("ids", &ids)]].concat());
    assert!(person.get(&to).text().contains("7 dead letters are discarded."), "{to}");
    assert_eq!(pending(), 0);
    let paused = || api.get("/v1/targets").expect(200)["items"][1]["paused"].clone();
    submit("/targets/warehouse/pause", &[("reason", "they move house")]);
    assert_eq!(
        (paused()["by"].as_str(), paused()["reason"].as_str()),
        (Some("the-admin"), Some("they move house"))
    );
    submit("/targets/warehouse/retry", &[("reason", "try them now")]);
    submit("/targets/warehouse/resume", &[("reason", "they have moved")]);
    assert!(paused().is_null());
    submit("/runs/cancel", &[("id", &filled.run), ("reason", "not tonight")]);
    assert_eq!(api.get(&format!("/v1/runs/{}", filled.run)).expect(200)["status"], "cancelled");

    let log = api.get("/v1/audit?limit=100").expect(200);
    for (action, reason) in [
        ("settle_done", "asked the bank"),
        ("forget", "test"),
        ("discard", "not needed"),
        ("restore", "needed after all"),
        ("edit", "typo"),
        ("replay resume", "warehouse is back"),
        ("pause", "wait"),
        ("pace", "gently"),
        ("resume", "go on"),
        ("cancel", "enough"),
        ("discard", "gone for good"),
        ("cancel", "not tonight"),
        ("pause", "they move house"),
        ("retry", "try them now"),
        ("resume", "they have moved"),
    ] {
        let found =
            log["items"].as_array().unwrap().iter().any(|line| {
                line["action"] == action && line["reason"] == reason && line["who"] == "the-admin"
            });
        assert!(found, "{action}, {reason} in {log:#}");
    }
    // Who, when, why, and the state before and after: for every action.
    for line in log["items"].as_array().unwrap() {
        let known =
            ["who", "at", "reason", "before", "after"].map(|name| line[name].as_str().unwrap_or_default());
        assert!(known.iter().all(|text| !text.is_empty()), "{line:#}");
    }
    let states = |action: &str, reason: &str| {
        let lines = log["items"].as_array().unwrap().iter();
        let line =
            lines.into_iter().find(|line| line["action"] == action && line["reason"] == reason).unwrap();
        ["before", "after"].map(|name| line[name].as_str().unwrap().to_owned())
    };
    assert_eq!(states("settle_done", "asked the bank"), ["in_doubt", "done"]);
    assert_eq!(states("forget", "test"), ["done", "vacant"]);
    assert_eq!(states("restore", "needed after all"), ["discarded", "pending"]);
    assert_eq!(states("pause", "wait"), ["running", "paused"]);
    assert_eq!(states("pause", "they move house"), ["delivering", "paused"]);
    assert_eq!(states("pace", "gently")[1], "rate 2, concurrency 1");
    assert_eq!(states("cancel", "not tonight")[1], "cancelled");
    let page = person.get("/audit").text();
    assert!(page.contains("asked the bank") && page.contains(">in doubt</td>"), "{page}");
    let story = api.get(&format!("/v1/story/{}", filled.doubt)).expect(200).to_string();
    assert!(story.contains(r#""reason":"asked the bank""#), "the reason alone: {story}");
}

// Without a reason nothing is done.
#[test]
fn an_action_needs_a_reason() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let person = Person::local(&world);
    let plan = hidden(&person.get("/replays/new?status=failed").text(), "fingerprint");
    for (path, fields) in [
        (format!("/keys/{}/forget", filled.done), vec![]),
        (format!("/dead-letters/{}/discard", filled.letter), vec![]),
        ("/replays".to_owned(), vec![("status", "failed"), ("planned", "6"), ("fingerprint", plan.as_str())]),
        ("/dead-letters/discard".to_owned(), vec![("status", "pending"), ("ids", filled.letter.as_str())]),
        ("/targets/warehouse/pause".to_owned(), vec![]),
        ("/runs/cancel".to_owned(), vec![("id", filled.run.as_str())]),
        (format!("/keys/{}/settle", filled.doubt), vec![("happened", "run"), ("step", "settle")]),
    ] {
        let answer = match path.starts_with("/keys/") {
            true => person.submit_form(&path, &fields),
            false => person.submit("/", &path, &fields),
        };
        assert!(
            answer.status != 303 && answer.text().to_lowercase().contains("reason: "),
            "{path}: {}",
            answer.text()
        );
    }
    assert_eq!(world.api().get("/v1/audit").expect(200)["items"].as_array().unwrap().len(), 0);
}

// Two people have the same form open, and the first one settles the key: the attempt of a retry is not what the second one saw.
#[test]
fn a_form_settles_and_forgets_only_the_attempt_that_it_showed() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let person = Person::local(&world);
    let key = || world.api().get(&format!("/v1/keys/{}", filled.doubt)).expect(200);
    let (settle, forget) =
        (format!("/keys/{}/settle", filled.doubt), format!("/keys/{}/forget", filled.doubt));
    let [seen_settling, seen_forgetting] =
        [&settle, &forget].map(|path| super::hidden_fields(&person.get(path).text(), path));
    let first = key()["fence"].as_u64().unwrap();
    let ours = [("happened", "run"), ("reason", "asked the bank")];
    assert_eq!(person.submit_form(&settle, &[&ours[..], &[("step", "settle")]].concat()).status, 303);
    // The retry is in doubt again.
    let number = key()["request"]["path"].as_str().unwrap().trim_start_matches("/lost/").to_owned();
    let retry = world.client(&format!("lost-{number}"), "retry");
    assert!(retry.post(&format!("/lost/{number}"), "{}").status >= 500);
    wait::until("it is in doubt again", PATIENCE, || key()["phase"] == "in_doubt").unwrap();
    let second = key()["fence"].as_u64().unwrap();
    assert!(second > first);

    let as_seen = |seen: &[(String, String)], path: &str, fields: &[(&str, &str)]| {
        let seen = seen.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        person.http.post(path, &super::encoded(&seen.chain(fields.iter().copied()).collect::<Vec<_>>()))
    };
    let done = [("happened", "done"), ("status", "201"), ("reason", "the first one"), ("step", "settle")];
    let refused = as_seen(&seen_settling, &settle, &done);
    assert!(
        refused.status == 200 && refused.text().contains("The key changed since it was shown"),
        "{}",
        refused.text()
    );
    let refused = as_seen(&seen_forgetting, &forget, &[("reason", "test"), ("force", "yes")]);
    assert!(
        refused.status == 200 && refused.text().contains("The key changed since it was shown"),
        "{}",
        refused.text()
    );
    // A form that names no attempt was not shown by anybody.
    let refused = person.submit("/", &settle, &done);
    assert!(refused.text().contains("The key changed since it was shown"), "{}", refused.text());
    assert_eq!((key()["phase"].as_str(), key()["fence"].as_u64()), (Some("in_doubt"), Some(second)));
    // The API and the command line have the same check.
    let api = |action: &str, body: serde_json::Value| {
        world.api().post(&format!("/v1/keys/{}/{action}", filled.doubt), &body.to_string())
    };
    let asked = json!({ "run": true, "reason": "r", "fence": first });
    assert_eq!(api("settle", asked).expect(409)["code"], "stale");
    let asked = json!({ "force": true, "reason": "r", "fence": first });
    assert_eq!(api("forget", asked).expect(409)["code"], "stale");
    assert_eq!(key()["fence"], second);
    // What the second form shows now is settled.
    assert_eq!(person.submit_form(&settle, &done).status, 303);
    assert_eq!(key()["phase"], "done");
}

// What is discarded is what the form showed, not what matches by then; and only where the filter can apply.
#[test]
fn discarding_all_that_match_applies_to_what_was_shown() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let person = Person::local(&world);
    let form = person.get("/dead-letters/discard?status=pending").text();
    assert!(form.contains("Discard 6 dead letters"), "{form}");
    let ids = hidden(&form, "ids");
    let change = |action: &str| {
        let path = format!("/v1/dead-letters/{}/{action}", filled.letter);
        world.api().post(&path, r#"{"reason": "meanwhile"}"#).expect(200);
    };
    // One is set aside by somebody else, and another one fails: the same number matches, but not the same set.
    change("discard");
    let event = r#"{"type": "order.paid", "dedupe_key": "order-late", "payload": {}}"#;
    world.api().post("/v1/events", event).expect(201);
    let pending = || {
        let found = world.api().get("/v1/dead-letters?status=pending").expect(200);
        let ids = found["items"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<String>>()
    };
    wait::until("six are pending again", PATIENCE, || pending().len() == 6).unwrap();
    let fields = [("status", "pending"), ("ids", &ids), ("reason", "test data")];
    let answer = person.submit("/", "/dead-letters/discard", &fields);
    assert_eq!(answer.status, 409);
    assert!(answer.text().contains("5 of 6 dead letters are discarded. Not discarded:"), "{}", answer.text());
    assert!(answer.text().contains(&format!("{}: it is discarded now", filled.letter)), "{}", answer.text());
    let left = pending();
    assert!(left.len() == 1 && !ids.contains(&left[0]), "{left:?}");
    // The other tabs have no such button, and their addresses no form.
    for (status, has) in [("pending", true), ("", false), ("discarded", false), ("replayed", false)] {
        let list = person.get(&format!("/dead-letters/list?status={status}")).text();
        assert_eq!(list.contains("Discard all that match…"), has, "{status}");
    }
    assert_eq!(person.get("/dead-letters/discard?status=discarded").status, 400);
    assert_eq!(person.get("/dead-letters/discard").status, 400);
    // The card of a target counts pending letters, not deliveries that failed once.
    let shows = |text: &str| person.get("/").text().contains(text);
    wait::until("the card shows one", PATIENCE, || shows(">1 pending</a>")).unwrap();
}

// A replay is of the deliveries that the plan showed.
#[test]
fn approving_a_plan_replays_what_was_shown() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let person = Person::local(&world);
    let plan = person.get("/replays/new?status=failed&targets=warehouse").text();
    let fingerprint = hidden(&plan, "fingerprint");
    let letter = format!("/v1/dead-letters/{}", filled.letter);
    let event = r#"{"type": "order.paid", "dedupe_key": "order-late", "payload": {}}"#;
    world.api().post("/v1/events", event).expect(201);
    let all = || world.api().get("/v1/dead-letters").expect(200)["items"].as_array().unwrap().len();
    wait::until("a seventh", PATIENCE, || all() == 7).unwrap();
    let fields = [
        ("status", "failed"),
        ("targets", "warehouse"),
        ("planned", "6"),
        ("fingerprint", &fingerprint),
        ("reason", "back"),
    ];
    // One of the six is set aside: the form is not for this plan.
    world.api().post(&format!("{letter}/discard"), r#"{"reason": "meanwhile"}"#).expect(200);
    let changed = person.submit("/", "/replays", &fields);
    assert!(changed.text().contains("The plan has changed meanwhile"), "{}", changed.text());
    // With all six as they were shown, these six are replayed, and not the seventh.
    world.api().post(&format!("{letter}/restore"), r#"{"reason": "meanwhile"}"#).expect(200);
    world.warehouse.answer_with(200);
    let started = person.submit("/", "/replays", &fields);
    assert_eq!(started.status, 303, "{}", started.text());
    wait::until("six arrived", PATIENCE, || world.warehouse.effects().len() == 6).unwrap();
    let left = world.api().get("/v1/dead-letters?status=pending").expect(200);
    assert_eq!(left["items"].as_array().unwrap().len(), 1, "{left:#}");
}

// A time such as 1h went back from the approval, so letters that the plan had shown were too old, and newer ones took their place.
#[test]
fn a_plan_by_time_is_approved_while_failures_keep_coming() {
    let world = World::start(Tokens::None);
    world.fill();
    let written = Instant::now();
    let person = Person::local(&world);
    // The shortest time that has the six letters in it; the machine may be slow.
    let (mut length, mut plan) = (0, String::new());
    wait::until("a plan of six", PATIENCE, || {
        length += 2;
        plan = person.get(&format!("/replays/new?status=failed&since={length}s")).text();
        plan.contains("Approve and replay 6")
    })
    .unwrap();
    let event = r#"{"type": "order.paid", "dedupe_key": "order-late", "payload": {}}"#;
    world.api().post("/v1/events", event).expect(201);
    let all = || world.api().get("/v1/dead-letters").expect(200)["items"].as_array().unwrap().len();
    wait::until("a seventh", PATIENCE, || all() == 7).unwrap();
    wait::until("the six are older", PATIENCE, || written.elapsed() > Duration::from_secs(length)).unwrap();
    world.warehouse.answer_with(200);
    let length = format!("{length}s");
    let fingerprint = hidden(&plan, "fingerprint");
    let fields = [
        ("status", "failed"),
        ("since", &length),
        ("since_at", &hidden(&plan, "since_at")),
        ("planned", "6"),
        ("fingerprint", &fingerprint),
        ("reason", "back"),
    ];
    let started = person.submit("/", "/replays", &fields);
    assert_eq!(started.status, 303, "{}", started.text());
    wait::until("six arrived", PATIENCE, || world.warehouse.effects().len() == 6).unwrap();
    let left = world.api().get("/v1/dead-letters?status=pending").expect(200);
    assert_eq!(left["items"].as_array().unwrap().len(), 1, "{left:#}");
    // A new plan is for its own time.
    let again = person.get(&format!("/replays/new?status=failed&since=1h&since_at={}", u64::MAX)).text();
    assert!(again.contains("Approve and replay 1"), "{again}");
}

// The limit leaves out what it says it leaves out: in the plan and in the job, of the API and on the page.
#[test]
fn a_replay_by_time_says_what_its_limit_leaves_out() {
    let world = World::start(Tokens::None);
    world.fill();
    for number in 0..100 {
        let event = format!(r#"{{"type": "order.paid", "dedupe_key": "more-{number}", "payload": {{}}}}"#);
        world.api().post("/v1/events", &event).expect(201);
    }
    let letters =
        || world.api().get("/v1/dead-letters?limit=1000").expect(200)["items"].as_array().unwrap().len();
    wait::until("106 dead letters", PATIENCE, || letters() == 106).unwrap();
    let replay = |rest: &str| {
        world.api().post("/v1/replays", &format!(r#"{{"status": "failed", "since": "24h"{rest}}}"#))
    };
    let plan = replay(r#", "dry_run": true"#).expect(200);
    assert_eq!((plan["total"].as_u64(), plan["left_out"].as_u64()), (Some(100), Some(6)));
    let several =
        replay(r#", "dry_run": true, "targets": ["billing", "warehouse"], "limit": 50"#).expect(200);
    assert_eq!((several["total"].as_u64(), several["left_out"].as_u64()), (Some(50), Some(56)));
    let page = Person::local(&world).get("/replays/new?status=failed&since=24h&targets=warehouse").text();
    assert!(page.contains("6 more match and are left out by the limit of 100."), "{page}");
    let args =
        ["replay", "--admin", world.semel.admin_url(), "--status", "failed", "--since", "24h", "--dry-run"];
    let shown = semel().args(args).output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        text.contains("6 more match and are left out; raise --limit"),
        "{text} {}",
        String::from_utf8_lossy(&shown.stderr)
    );
    let job = replay(r#", "rate": 1, "reason": "back""#).expect(201);
    assert_eq!((job["counts"]["total"].as_u64(), job["left_out"].as_u64()), (Some(100), Some(6)));
}

// Nobody may read that an effect ran once while nobody knows whether it did.
#[test]
fn a_key_in_doubt_is_not_said_to_have_run_once() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let person = Person::local(&world);
    for request in ["again", "and-again"] {
        for number in 1..=2 {
            let lost = world.client(&format!("lost-{number}"), request);
            assert!(lost.post(&format!("/lost/{number}"), "{}").status >= 400);
        }
    }
    let page = person.get(&format!("/keys/{}", filled.doubt)).text();
    assert!(page.contains("3 requests came with this key"), "{page}");
    assert!(!page.contains("The effect ran once") && !page.contains("got the stored answer"), "{page}");
    let page = person.get(&format!("/keys/{}", filled.done)).text();
    assert!(page.contains("The effect ran once. 2 of them got the stored answer"), "{page}");
}

// Spaces that are not ASCII survive an edit.
#[test]
fn an_edited_copy_keeps_every_character() {
    let world = World::start(Tokens::None);
    world.fill();
    let person = Person::local(&world);
    let name = "Zoë\u{a0}Müller\u{3000}東京\u{2028}\u{202f}x";
    let event =
        json!({ "type": "order.paid", "dedupe_key": "spaces", "payload": { "name": name, "order": 1 } });
    world.api().post("/v1/events", &event.to_string()).expect(201);
    let letters = || world.api().get("/v1/dead-letters").expect(200)["items"].as_array().unwrap().clone();
    wait::until("it is a dead letter", PATIENCE, || letters().len() == 7).unwrap();
    let id = letters()[0]["id"].as_str().unwrap().to_owned();
    let form = person.get(&format!("/dead-letters/{id}/edit")).text();
    let (_, text) = form.split_once("required>").unwrap();
    let text = text.split_once("</textarea>").unwrap().0.replace("&#34;", "\"").replace("&quot;", "\"");
    assert!(text.contains(name), "{text}");
    let edited = text.replace("\"order\": 1", "\"order\": 2").replace('\n', "\r\n");
    let fields = [("payload", edited.as_str()), ("reason", "typo"), ("step", "copy")];
    let made = person.submit("/", &format!("/dead-letters/{id}/edit"), &fields);
    assert_eq!(made.status, 303, "{}", made.text());
    let copy = made.header("location").unwrap().split('?').next().unwrap().to_owned();
    let copy = world.api().get(&format!("/v1{copy}")).expect(200);
    assert_eq!(copy["payload"], json!({ "name": name, "order": 2 }), "{copy:#}");
}

/// The command that is shown beside the form of a page, with a reason.
fn command_beside(person: &Person, path: &str) -> String {
    let page = person.get(path).text();
    let (_, rest) = page.split_once("<p class=\"command\">").unwrap_or_else(|| panic!("{path}: {page}"));
    let (_, rest) = rest.split_once("<code>").unwrap();
    let command = rest.split_once("</code>").unwrap().0;
    let command =
        command.replace("&#34;", "\"").replace("&#39;", "'").replace("&quot;", "\"").replace("&amp;", "&");
    let command = command.replace("--reason …", "--reason 'as the console says'");
    assert!(!command.contains('…'), "{path}: {command}");
    command
}

// Whoever copies the command does what the form does.
#[test]
fn the_command_beside_a_form_does_the_same() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let person = Person::local(&world);
    world.warehouse.answer_with(200);
    // As a person's shell reads it.
    let copied = |path: &str| {
        let command = command_beside(&person, path);
        let binary = semel();
        let script = format!("semel() {{ \"$BINARY\" \"$@\"; }}\n{command}");
        let mut shell = std::process::Command::new("sh");
        shell
            .args(["-c", &script])
            .env("BINARY", binary.get_program())
            .env("SEMEL_ADMIN", world.semel.admin_url());
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let api = world.api();
    let letter = |form: &str| format!("/dead-letters/{}/{form}", filled.letter);
    let status = || api.get(&format!("/v1/dead-letters/{}", filled.letter)).expect(200)["status"].clone();
    copied(&letter("discard"));
    assert_eq!(status(), "discarded");
    copied(&letter("restore"));
    assert_eq!(status(), "pending");
    let paused = || api.get("/v1/targets").expect(200)["items"][1]["paused"].clone();
    copied("/targets/warehouse/pause");
    assert_eq!(paused()["reason"], "as the console says");
    copied("/targets/warehouse/resume");
    assert!(paused().is_null());
    copied(&format!("/keys/{}/forget", filled.done));
    assert_eq!(api.get(&format!("/v1/keys/{}", filled.done)).expect(200)["phase"], "vacant");
    let runs = api.get("/v1/runs").expect(200)["items"].clone();
    let ids: Vec<&str> = runs.as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap()).collect();
    let [one, other] = ids[..] else { panic!("two runs in {runs:#}") };
    copied(&format!("/runs/cancel?id={one}&id={other}"));
    for id in [one, other] {
        assert_eq!(api.get(&format!("/v1/runs/{id}")).expect(200)["status"], "cancelled");
    }
    copied("/replays/new?status=failed&targets=warehouse&limit=2");
    assert_eq!(world.warehouse.effects().len(), 2, "the limit of the form");
    copied(&format!("/replays/new?ids={}", filled.letter));
    let job =
        api.post("/v1/replays", r#"{"status": "failed", "rate": 0.1, "canary": 0, "reason": "slowly"}"#);
    let job = job.expect(201)["id"].as_str().unwrap().to_owned();
    let state = || api.get(&format!("/v1/replays/{job}")).expect(200)["state"].clone();
    copied(&format!("/replays/{job}/pause"));
    assert_eq!(state(), "paused");
    copied(&format!("/replays/{job}/cancel"));
    assert_eq!(state(), "cancelled");
}
