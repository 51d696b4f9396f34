//! Pages show what is so, keep what was typed, and say why there is nothing to do.

use std::io::Read as _;

use rustix::process::Signal;
use semel_testbed::wait;
use serde_json::{Value, json};

use super::{Person, Tokens, World};
use crate::kit::PATIENCE;

/// The words of a page, without its elements.
fn words(page: &str) -> String {
    let mut text = String::new();
    for part in page.split('<') {
        text.push_str(part.split_once('>').map_or(part, |(_, rest)| rest));
        text.push(' ');
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The entries of a story at one place, oldest first.
fn entries(world: &World, id: &str, place: &str) -> Vec<Value> {
    let story = world.api().get(&format!("/v1/story/{id}")).expect(200);
    let all = story["timeline"].as_array().unwrap().iter();
    all.filter(|entry| entry["place"] == place).cloned().collect()
}

// A settled answer with the content-length 3 and a body of 24 bytes could be read by no client, and no settlement is undone.
// Headers of a connection are refused now, and headers that are never stored are named.
#[test]
fn an_answer_with_headers_of_the_connection_is_refused() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let person = Person::local(&world);
    let settle = format!("/keys/{}/settle", filled.doubt);
    let api = |path: &str, header: &str| {
        let outcome = json!({ "status": 201, "headers": { header: "3" }, "body": { "id": "ch_9" } });
        let asked = json!({ "reason": "asked the bank", "outcome": outcome }).to_string();
        world.api().post(&format!("/v1/keys/{}/{path}", filled.doubt), &asked)
    };
    for header in [
        "Content-Length",
        "connection",
        "transfer-encoding",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "proxy-x",
    ] {
        for path in ["preview", "settle"] {
            let refused = api(path, header).expect(400);
            let detail = refused["detail"].as_str().unwrap();
            assert!(
                detail.contains("leave out the header") && detail.contains(&header.to_ascii_lowercase()),
                "{detail}"
            );
        }
        let headers = format!("{header}: 3");
        let fields = [
            ("happened", "done"),
            ("status", "201"),
            ("headers", headers.as_str()),
            ("body", "{}"),
            ("reason", "asked the bank"),
            ("step", "settle"),
        ];
        let refused = person.submit_form(&settle, &fields);
        assert!(
            refused.status == 200 && refused.text().contains("leave out the header"),
            "{}",
            refused.text()
        );
    }
    let shown = api("preview", "Set-Cookie").expect(200);
    assert_eq!(shown["not_stored"], json!(["Set-Cookie"]), "{shown:#}");
    let fields = [
        ("happened", "done"),
        ("status", "201"),
        ("headers", "Date: now\nLocation: /x"),
        ("reason", "asked the bank"),
    ];
    let preview = words(&person.submit_form(&settle, &fields).text());
    assert!(preview.contains("Left out, because it is never stored: date ."), "{preview}");
    let phase = world.api().get(&format!("/v1/keys/{}", filled.doubt)).expect(200)["phase"].clone();
    assert_eq!(phase, "in_doubt", "nothing was changed");
}

// The console read a typed body as JSON and lost its quotes and its last line.
#[test]
fn a_settled_answer_has_the_typed_body() {
    let world = World::start(Tokens::None);
    world.fill();
    let person = Person::local(&world);
    for (number, body, media) in
        [(1, "\"one\"", Some("application/json")), (2, " {\"a\":1}\n", Some("application/json"))]
    {
        let found = world.api().get("/v1/keys?phase=in_doubt").expect(200);
        let of_number = |item: &&Value| item["request"]["path"] == format!("/lost/{number}");
        let id = found["items"].as_array().unwrap().iter().find(of_number).unwrap()["id"]
            .as_str()
            .unwrap()
            .to_owned();
        let typed = body.replace('\n', "\r\n");
        let fields = [
            ("happened", "done"),
            ("status", "201"),
            ("body", typed.as_str()),
            ("reason", "r"),
            ("step", "settle"),
        ];
        let settled = person.submit_form(&format!("/keys/{id}/settle"), &fields);
        assert_eq!(settled.status, 303, "{}", settled.text());
        let answered =
            world.client(&format!("lost-{number}"), "again").post(&format!("/lost/{number}"), "{}");
        assert_eq!((answered.text().as_str(), answered.header("content-type")), (body, media));
    }
}

// An open page delayed the stop of the server by the whole drain timeout, with a warning about remaining requests.
#[test]
fn an_open_page_does_not_delay_the_stop() {
    let mut world = World::start(Tokens::None);
    let mut stream = Person::local(&world).listen(&world);
    world.semel.signal(Signal::TERM);
    stream.read_to_end(&mut Vec::new()).expect("the stream ends");
    assert!(world.semel.wait().success());
    assert!(!world.semel.log().contains("drain timeout"), "{}", world.semel.log());
}

// The record has the last claim only, with the fence of its last change. Earlier claims, and why a key went in doubt, are known from
// the requests.
#[test]
fn a_timeline_keeps_what_happened() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let person = Person::local(&world);
    let id = filled.doubt.as_str();
    let claims = || entries(&world, id, "claim");
    let whats = || -> Vec<String> {
        claims().iter().map(|entry| entry["what"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(whats(), ["claimed", "in_doubt"]);
    let error = claims()[1]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("may or may not have taken effect"), "{error}");
    assert!(claims()[0]["fence"].is_number());
    let first = claims()[1]["request_id"].as_str().unwrap().to_owned();

    // It did not happen, the next request runs it, and its answer is lost too.
    let settle = |what: Value| {
        let mut asked = what;
        asked["reason"] = "asked the bank".into();
        world.api().post(&format!("/v1/keys/{id}/settle"), &asked.to_string()).expect(200);
    };
    let attempt = format!("attempt 1 of {}", claims()[0]["at"].as_str().unwrap());
    settle(json!({ "run": true }));
    // The record forgets the attempt with the next claim; the audit log does not.
    let audited = world.api().get(&format!("/v1/audit?subject={id}")).expect(200);
    assert_eq!(audited["items"][0]["attempt"], attempt);
    let number = first.trim_start_matches("lost-");
    assert!(world.client(&first, "second").post(&format!("/lost/{number}"), "{}").status >= 500);
    assert_eq!(whats(), ["claimed", "in_doubt", "claimed", "in_doubt"]);
    let of = |name: &str| -> Vec<Value> { claims().iter().map(|entry| entry[name].clone()).collect() };
    assert_eq!(of("request_id"), [first.as_str(), &first, "second", "second"]);
    assert_eq!(of("attempt")[2], 2);

    settle(json!({ "outcome": { "status": 201 } }));
    assert_eq!(whats(), ["claimed", "in_doubt", "claimed", "in_doubt", "done"]);
    assert_eq!(of("fence"), vec![Value::Null; 5], "the fence is that of the settlement");
    let page = words(&person.get(&format!("/keys/{id}")).text());
    assert!(page.contains("claim in doubt") && page.contains("may or may not have taken effect"), "{page}");
}

// A search that goes on shows what its earlier parts have found, and does not deny it at the end.
#[test]
fn a_search_that_goes_on_keeps_its_hits() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let person = Person::local(&world);
    let progress = format!("cursor={}&searched=5400&found={}", "f".repeat(32), filled.done);
    for path in ["/keys?hint=zzz", "/search?q=zzz"] {
        let page = person.get(&format!("{path}&{progress}")).text();
        assert!(page.contains(&filled.done) && page.contains("order-77…"), "{page}");
        for denial in ["No keys match", "Nothing found", "No match so far", "Search on"] {
            assert!(!page.contains(denial), "{denial} on {path}");
        }
    }
    // Keys in doubt are first.
    let doubtful = person.get("/keys?hint=lost").text();
    assert!(doubtful.find(&filled.doubt).is_some(), "{doubtful}");
    assert_eq!(person.get("/keys?hint=lost&cursor=nonsense").status, 400);
}

// A target that gets its deliveries was offered to be resumed, and said so afterwards.
#[test]
fn what_is_not_paused_is_not_resumed() {
    let crm = "[[target]]\nname = \"crm\"\nurl = \"http://127.0.0.1:9/\"\nevents = [\"crm.*\"]\nretry = { max_attempts = 5 }\n\
               breaker = { failure_calls = 1, failure_percent = 1, rest = \"60s\", longest_rest = \"60s\" }\n";
    let world = World::with_config(Tokens::None, crm);
    world.fill();
    let person = Person::local(&world);
    let lines = || world.api().get("/v1/audit").expect(200)["items"].as_array().unwrap().len();
    let form = person.get("/targets/billing/resume");
    assert_eq!(form.status, 200);
    assert!(form.text().contains("The target billing is not paused"), "{}", form.text());
    assert!(!form.text().contains("name=\"reason\""), "{}", form.text());
    let resumed = person.submit("/", "/targets/billing/resume", &[("reason", "r")]);
    assert!(resumed.status == 200 && resumed.text().contains("is not paused"), "{}", resumed.text());
    assert_eq!(lines(), 0, "nothing was done");

    let event = |kind: &str, key: &str| {
        let event = json!({ "type": kind, "dedupe_key": key, "payload": {} }).to_string();
        world.api().post("/v1/events", &event).expect(201)["id"].as_str().unwrap().to_owned()
    };
    event("crm.lead", "lead-1");
    let breaker = || {
        let targets = world.api().get("/v1/targets").expect(200);
        let crm = targets["items"]
            .as_array()
            .unwrap()
            .iter()
            .find(|target| target["name"] == "crm")
            .unwrap()
            .clone();
        crm["breaker"] == "open"
    };
    wait::until("the breaker is open", PATIENCE, breaker).unwrap();
    for target in ["crm", "billing"] {
        let paused =
            person.submit("/", &format!("/targets/{target}/pause"), &[("reason", "they move house")]);
        assert_eq!(paused.status, 303, "{}", paused.text());
    }
    let again = person.get("/targets/billing/pause").text();
    assert!(
        again.contains("The target billing is already paused") && again.contains("they move house"),
        "{again}"
    );
    let late = event("order.paid", "late");
    let page = words(&person.get("/targets/billing").text());
    assert!(page.contains("after the target is resumed"), "{page}");
    let delivery = world.api().get(&format!("/v1/events/{late}")).expect(200);
    let ids = delivery["deliveries"].as_array().unwrap().iter();
    let waiting =
        ids.filter(|one| one["target"] == "billing").map(|one| one["id"].as_str().unwrap()).next().unwrap();
    let page = words(&person.get(&format!("/deliveries/{waiting}")).text());
    assert!(page.contains("Next attempt after the target is resumed"), "{page}");
    let form = person.get("/targets/billing/resume").text();
    assert!(form.contains("name=\"reason\"") && !form.contains("circuit breaker is open"), "{form}");
    wait::until("the resume form names the breaker", PATIENCE, || {
        breaker()
            && person
                .get("/targets/crm/resume")
                .text()
                .contains("deliveries wait until the breaker allows the next call")
    })
    .unwrap();
}

// The form to settle was open for keys that cannot be settled.
#[test]
fn only_a_key_in_doubt_has_the_form_to_settle() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let person = Person::local(&world);
    let page = person.get(&format!("/keys/{}/settle", filled.done)).text();
    assert!(words(&page).contains("It is done. Only a key in doubt can be settled."), "{page}");
    assert!(!page.contains("name=\"happened\""), "{page}");
    let fields = [("happened", "run"), ("reason", "r")];
    let refused = person.submit("/", &format!("/keys/{}/settle", filled.done), &fields).text();
    assert!(refused.contains("is not in doubt") && !refused.contains("name=\"happened\""), "{refused}");
    assert!(person.get(&format!("/keys/{}/settle", filled.doubt)).text().contains("name=\"happened\""));
}

// A mistyped number lost the plan and everything else that was typed.
#[test]
fn a_typing_error_keeps_the_plan_and_what_was_typed() {
    let world = World::start(Tokens::None);
    world.fill();
    let person = Person::local(&world);
    let plan = person.get("/replays/new?status=failed&targets=warehouse").text();
    let fingerprint = super::actions::hidden(&plan, "fingerprint");
    let fields = |rate: &'static str, concurrency: &'static str| {
        [
            ("status", "failed"),
            ("targets", "warehouse"),
            ("planned", "6"),
            ("fingerprint", fingerprint.as_str()),
            ("canary", "2"),
            ("rate", rate),
            ("concurrency", concurrency),
            ("reason", "warehouse is back"),
        ]
    };
    for (rate, concurrency, problem) in [
        ("fast", "4", "Items a second: expected a number, found \"fast\""),
        ("-1", "4", "Items a second: expected items a second"),
        ("2", "0", "In progress at most: expected at least 1"),
    ] {
        let page = person.submit("/", "/replays", &fields(rate, concurrency)).text();
        let text = page.replace("&quot;", "\"").replace("&#34;", "\"");
        assert!(text.contains(problem), "{problem} in {text}");
        assert!(text.contains("Approve and replay 6"), "the plan is kept: {text}");
        for (name, value) in
            [("canary", "2"), ("rate", rate), ("concurrency", concurrency), ("reason", "warehouse is back")]
        {
            let field =
                text.split("<input ").find(|input| input.starts_with(&format!("id=\"{name}\""))).unwrap();
            assert!(field.contains(&format!("value=\"{value}\"")), "{name} is kept: {field}");
        }
    }
    assert_eq!(world.api().get("/v1/replays").expect(200)["items"], json!([]), "nothing was started");
}

// "The replay has started." stayed above a finished replay, and the bar of one that had sent nothing looked full.
#[test]
fn a_replay_shows_its_state() {
    let world = World::start(Tokens::None);
    world.fill();
    let person = Person::local(&world);
    let bar = |page: &str| {
        let (_, rest) = page.split_once("<svg class=\"bar\"").expect("a bar");
        rest.split_once("</svg>").unwrap().0.contains("<rect")
    };
    world.warehouse.answer_with(200);
    world.api().post("/v1/targets/warehouse/pause", r#"{"reason": "wait"}"#).expect(200);
    let start = r#"{"status": "failed", "targets": ["warehouse"], "reason": "back"}"#;
    let job = world.api().post("/v1/replays", start).expect(201)["id"].as_str().unwrap().to_owned();
    let path = format!("/replays/{job}?did=started");
    let state = || world.api().get(&format!("/v1/replays/{job}")).expect(200);
    let page = person.get(&path).text();
    if state()["counts"]["released"] == 0 {
        assert!(!bar(&page), "nothing was sent: {page}");
    }
    assert!(page.contains("The replay has started."), "{page}");
    assert!(page.contains(&format!("data-refresh=\"{path}\"")), "the message stays while it is so: {page}");
    world.api().post("/v1/targets/warehouse/resume", r#"{"reason": "go on"}"#).expect(200);
    wait::until("it is done", PATIENCE, || state()["state"] == "done").unwrap();
    let page = person.get(&path).text();
    assert!(!page.contains("The replay has started.") && bar(&page), "{page}");
}

// A browser got the JSON of the API at an address that does not exist.
#[test]
fn an_unknown_address_has_a_page() {
    let world = World::start(Tokens::Some);
    let admin = world.semel.admin();
    let browser = |person: &Person| person.http.with("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    let viewer = Person::log_in(&world, "viewer");
    for path in ["/keyz", "/dead-letters/x/y/z", "/v2/keys"] {
        let page = browser(&viewer).get(path);
        assert_eq!((page.status, page.header("content-type")), (404, Some("text/html; charset=utf-8")));
        assert!(
            page.text().contains("there is no page at this address") && page.text().contains("<nav"),
            "{}",
            page.text()
        );
        assert!(page.header("content-security-policy").is_some());
        // Nobody else sees the frame, and programs get the document.
        assert_eq!(browser(&Person::local(&world)).get(path).status, 303);
        assert_eq!(admin.get(path).status, 401);
        assert_eq!(world.api().get(path).expect(404)["code"], "not_found");
    }
    assert_eq!(
        world.api().with("accept", "text/html").get("/v1/keys/x").header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(browser(&viewer).with("host", "evil.example").get("/keyz").status, 403);
}

// The second form for the same dead letters answered with a list of ten refusals.
#[test]
fn dead_letters_that_were_discarded_before_are_one_sentence() {
    let world = World::start(Tokens::None);
    world.fill();
    let person = Person::local(&world);
    let form = person.get("/dead-letters/discard?status=pending&target=warehouse").text();
    let ids = super::actions::hidden(&form, "ids");
    let fields =
        [("status", "pending"), ("target", "warehouse"), ("ids", ids.as_str()), ("reason", "test data")];
    assert_eq!(person.submit("/", "/dead-letters/discard", &fields).status, 303);
    let again = person.submit("/", "/dead-letters/discard", &fields);
    assert_eq!(again.status, 200, "{}", again.text());
    assert!(words(&again.text()).contains("All 6 were already discarded."), "{}", again.text());
    let back = "href=\"/dead-letters/list?status=pending&#38;target=warehouse\"";
    let page = again.text().replace("&amp;", "&#38;");
    assert!(page.contains(back) && !page.contains("dlq_"), "{page}");
}

// Eight characters of a key are stored. An ellipsis marks a key that may go on, and no other.
#[test]
fn an_ellipsis_marks_a_key_that_goes_on() {
    let world = World::start(Tokens::None);
    world.fill();
    let event = json!({ "type": "order.paid", "dedupe_key": "order-1000", "payload": {} }).to_string();
    world.api().post("/v1/events", &event).expect(201);
    let person = Person::local(&world);
    let events = person.get("/events").text();
    assert!(events.contains(">order-10…</td>") && events.contains(">order-1</td>"), "{events}");
    let keys = person.get("/keys").text();
    assert!(keys.contains(">order-77…</a>") && keys.contains(">lost-1</a>"), "{keys}");
}

// What the search box takes: of a key, eight characters are stored, so a longer text leads to no key by itself.
#[test]
fn a_search_leads_to_a_page_only_where_the_text_can_name_no_other() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let person = Person::local(&world);
    let hexadecimal = "0123456789abcdef0123456789abcdef";
    assert_eq!(world.client("hex-1", hexadecimal).post("/pay", "{}").status, 201);
    let search = |text: &str| person.get(&format!("/search?{}", super::encoded(&[("q", text)])));
    let leads = |text: &str| {
        let answer = search(text);
        assert_eq!(answer.status, 303, "{text}: {}", words(&answer.text()));
        answer.header("location").unwrap().to_owned()
    };
    assert_eq!(leads("order-77"), format!("/keys/{}", filled.done));
    assert_eq!(leads(&filled.done), format!("/keys/{}", filled.done));
    assert_eq!(leads(hexadecimal), format!("/story/{hexadecimal}"));
    assert_eq!(leads("third"), "/story/third");
    for (id, folder) in [
        (&filled.event, "events"),
        (&filled.run, "runs"),
        (&filled.letter, "dead-letters"),
        (&filled.delivery, "deliveries"),
    ] {
        assert_eq!(leads(id), format!("/{folder}/{id}"));
    }
    // One character more: the key that is found can be another one.
    let longer = search("order-778");
    let text = words(&longer.text());
    assert_eq!(longer.status, 200);
    assert!(text.contains("each of these can be another key") && text.contains("order-77…"), "{text}");
    let several = words(&search("lost-").text());
    assert!(several.contains("Keys that begin with it"), "{several}");
    assert!(words(&search("zebra").text()).contains("Nothing found"));
}

// The audit page of a server without a ledger says where the lines are, and how to keep them.
#[test]
fn without_a_ledger_the_audit_page_names_the_log() {
    let semel = crate::kit::Semel::start(&["--store", "memory:"]);
    let page = semel.admin().get("/audit");
    assert_eq!(page.status, 200);
    let text = words(&page.text());
    assert!(
        text.contains("the audit lines are in the log of the server") && text.contains("[ledger]"),
        "{text}"
    );
}

// Many keys begin with the same eight characters. The whole one is found as the command finds it, and is in no address.
#[test]
fn a_whole_key_is_found_among_those_that_begin_like_it() {
    let world = World::start(Tokens::Some);
    for key in ["order-7701", "order-7702"] {
        assert_eq!(world.client(key, key).post("/pay", "{}").status, 201);
    }
    let person = Person::log_in(&world, "operator");
    let many = person.get("/search?q=order-7702").text();
    assert!(many.contains("can be another key") && many.contains("href=\"/keys/find\""), "{many}");
    let find = |headers: &str| {
        person.submit("/keys/find", "/keys/find", &[("key", "order-7702"), ("headers", headers)])
    };
    let found = find("Authorization: Bearer shop");
    let ids: Vec<String> = world.api().get("/v1/keys?hint=order-77").expect(200)["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|key| key["request"]["request_id"].is_null() || key["request"]["request_id"] == "order-7702")
        .map(|key| key["id"].as_str().unwrap().to_owned())
        .collect();
    let shown: Vec<&String> =
        ids.iter().filter(|id| found.text().contains(&format!("/keys/{id}\""))).collect();
    assert_eq!((found.status, shown.len()), (200, 1), "{}", found.text());
    let story = world.api().get(&format!("/v1/story/{}", shown[0])).expect(200).to_string();
    assert!(story.contains("\"order-7702\""), "{story}");
    assert!(find("").text().contains("give the header that names the caller"), "{}", find("").text());
    assert!(find("Bearer shop").text().contains("expected Name: value"), "{}", find("Bearer shop").text());
    assert!(find("Authorization: Bearer other").text().contains("No key was found"));
    let log = world.semel.log();
    assert!(!log.contains("order-7702") && !log.contains("Bearer shop"), "{log}");
    let viewer = Person::log_in(&world, "viewer");
    assert_eq!(
        (viewer.get("/keys/find").status, viewer.submit("/", "/keys/find", &[("key", "x")]).status),
        (403, 403)
    );
    assert!(!viewer.get("/keys").text().contains("/keys/find"));
}

// What is seldom meant is said before it is done: a settled key cannot be settled again.
#[test]
fn a_settlement_warns_of_likely_mistakes() {
    let world = World::start(Tokens::Some);
    let filled = world.fill();
    let person = Person::log_in(&world, "operator");
    let path = format!("/keys/{}/settle", filled.doubt);
    let preview = |fields: &[(&str, &str)]| {
        person.submit_form(&path, &[fields, &[("reason", "asked the bank")]].concat()).text()
    };
    assert!(
        person.get(&path).text().contains("name=\"status\" inputmode=\"numeric\" value=\"\""),
        "no default"
    );
    let empty = preview(&[("happened", "done"), ("status", "")]);
    assert!(empty.contains("give a number such as 201"), "{empty}");
    let refused = preview(&[("happened", "done"), ("status", "500")]);
    assert!(
        refused.contains("clients take the request for failed")
            && refused.contains("The answer has no body.")
    );
    let usual = preview(&[("happened", "done"), ("status", "201"), ("body", "{}")]);
    assert!(!usual.contains("note-box warn") && usual.contains("Settle this key"), "{usual}");
    assert!(!preview(&[("happened", "done"), ("status", "204")]).contains("has no body"));
    let run = preview(&[("happened", "run")]);
    assert!(run.contains("note-box bad") && run.contains(">Let it run again</button>"), "{run}");
    // Only an admin forgets what may have happened.
    for (role, may) in [("operator", false), ("admin", true)] {
        let page = Person::log_in(&world, role).get(&format!("/keys/{}", filled.doubt)).text();
        assert_eq!(page.contains("Forget…"), may, "{role}");
    }
}

// The tabs of a filtered list showed the numbers of all dead letters.
#[test]
fn tabs_count_what_their_lists_show() {
    let world = World::start(Tokens::None);
    world.fill();
    let page = |path: &str| world.semel.admin().get(path).text();
    let tab = |path: &str| {
        let page = page(path);
        let (_, tab) = page.split_once(">Pending").unwrap_or_else(|| panic!("a tab in {page}"));
        words(tab.split_once("</a>").unwrap().0)
    };
    assert_eq!(
        (tab("/dead-letters/list"), tab("/dead-letters/list?target=billing")),
        ("6".into(), String::new())
    );
    assert!(page("/dead-letters/list?target=billing&status=pending").contains("No dead letters match"));
}

// The page of a key with many requests said that 50 had come.
#[test]
fn requests_are_counted_beyond_those_that_are_listed() {
    let world = World::start(Tokens::None);
    for number in 0..60 {
        assert_eq!(world.client("order-77", &format!("r-{number}")).post("/pay", "{}").status, 201);
    }
    let id = world.api().get("/v1/keys").expect(200)["items"][0]["id"].as_str().unwrap().to_owned();
    let story = world.api().get(&format!("/v1/story/{id}")).expect(200);
    assert_eq!(story["requests_left_out"], 10);
    let person = Person::local(&world);
    let key = words(&person.get(&format!("/keys/{id}")).text());
    assert!(key.contains("60 requests came with this key while this server ran."), "{key}");
    assert!(
        key.contains("The effect ran once. The newest 50 are listed. 50 of these got the stored answer"),
        "{key}"
    );
    let story = words(&person.get(&format!("/story/{id}")).text());
    assert!(story.contains("60 requests, the newest 50 listed, 50 of these answered"), "{story}");
    let args = ["events", "show", "--admin", world.semel.admin_url(), &id];
    let shown = crate::kit::semel().args(args).output().unwrap();
    let errors = String::from_utf8_lossy(&shown.stderr).into_owned();
    assert!(errors.contains("10 earlier requests with the key are not listed"), "{errors}");
}

// A replay was offered for dead letters that no replay can send, and the plan was empty.
#[test]
fn what_cannot_be_replayed_is_not_offered() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(super::scale::fill(&data, 1, 4));
    runtime.shutdown_timeout(std::time::Duration::from_secs(10));
    let semel = crate::kit::Semel::start(&["--store", &format!("embedded:{}", data.display())]);
    let admin = semel.admin();
    let letter = admin.get("/v1/dead-letters").expect(200)["items"][0]["id"].as_str().unwrap().to_owned();
    for path in ["/dead-letters".to_owned(), format!("/dead-letters/{letter}")] {
        let page = admin.get(&path).text();
        assert!(!page.contains("Replay…"), "{path}: {page}");
        assert!(
            words(&page).contains("A message without a target cannot be replayed: edit it as a copy"),
            "{page}"
        );
    }
    assert!(admin.get(&format!("/dead-letters/{letter}")).text().contains("Edit as a copy…"));
}

// The target of a dead letter can be gone from the configuration, and still be paused.
#[test]
fn nothing_is_replayed_to_a_target_that_was_removed() {
    let sink = crate::kit::Sink::start();
    sink.answer_with(503);
    let crm = format!(
        "[[target]]\nname = \"crm\"\nurl = \"{}\"\nevents = [\"crm.*\"]\nretry = {{ max_attempts = 1 }}\nschedule = []\n",
        sink.url()
    );
    let World { mut semel, _folder: folder, .. } = World::with_config(Tokens::None, &crm);
    let admin = semel.admin();
    let event = r#"{"type": "crm.lead", "dedupe_key": "lead-1", "payload": {}}"#;
    admin.post("/v1/events", event).expect(201);
    let letters = || admin.get("/v1/dead-letters").expect(200)["items"].as_array().unwrap().clone();
    wait::until("a dead letter", PATIENCE, || letters().len() == 1).unwrap();
    let letter = letters()[0]["id"].as_str().unwrap().to_owned();
    assert!(admin.get("/dead-letters").text().contains("Replay…"));
    assert!(admin.get(&format!("/dead-letters/{letter}")).text().contains("Replay…"));
    admin.post("/v1/targets/crm/pause", r#"{"reason": "it goes away"}"#).expect(200);
    semel.signal(Signal::TERM);
    assert!(semel.wait().success());
    let file = folder.path().join("semel.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(&crm, "")).unwrap();
    let semel = super::with_tokens(&file);
    let person = Person { http: semel.admin(), cookie: String::new() };
    for path in ["/", "/targets/crm", "/dead-letters", &format!("/dead-letters/{letter}")] {
        let page = person.get(path).text();
        assert!(
            page.contains("crm") && !page.contains("Replay…") && !page.contains("Replay failed…"),
            "{path}: {page}"
        );
    }
    let groups = words(&person.get("/dead-letters").text());
    assert!(groups.contains("The target is not in the configuration"), "{groups}");
    // It has no page after it was resumed, and nothing is sent to it.
    let resumed = person.submit("/", "/targets/crm/resume", &[("reason", "gone for good")]);
    let to = resumed.header("location").unwrap();
    assert!(to.starts_with("/targets?"), "{to}");
    let page = words(&person.get(to).text());
    assert!(page.contains("It is not in the configuration, so nothing is sent to it."), "{page}");
}

// One event, two targets: each shows its own attempts and answers.
#[test]
fn attempts_are_shown_for_each_target() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let person = Person::local(&world);
    let event = person.get(&format!("/events/{}", filled.event)).text();
    let of = |target: &str| {
        let (_, rest) = event.split_once(&format!("aria-label=\"Delivery to {target}\"")).unwrap();
        words(rest.split_once("</section>").unwrap().0)
    };
    let (billing, warehouse) = (of("billing"), of("warehouse"));
    assert!(billing.contains("delivered") && !billing.contains("503"), "{billing}");
    assert!(warehouse.contains("failed, may pass") && warehouse.contains("503"), "{warehouse}");
    let delivery = words(&person.get(&format!("/deliveries/{}", filled.delivery)).text());
    assert!(delivery.contains("failed, may pass") && delivery.contains("503"), "{delivery}");
    let target = || words(&person.get("/targets/warehouse").text());
    assert!(target().contains("order.paid eu 1 answered with 503"), "{}", target());
    // The counters are read every few seconds.
    wait::until("the failed attempts", PATIENCE, || target().contains("0 delivered, 6 failed attempts"))
        .unwrap();
}

// The form counted a run twice that was named twice.
#[test]
fn a_run_that_is_named_twice_is_cancelled_once() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    let page = Person::local(&world).get(&format!("/runs/cancel?id={0}&id={0}", filled.run)).text();
    assert!(page.contains("Cancel 1 run<"), "{page}");
    assert_eq!(page.matches("name=\"id\"").count(), 1, "{page}");
}
