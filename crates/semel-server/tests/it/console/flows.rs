//! What a newcomer does, click by click, in Chromium.

use semel_testbed::wait;
use serde_json::{Value, json};

use super::{Tokens, World, browse, screenshots, token, with_tokens};
use crate::kit::{PATIENCE, Semel};

fn play(world: &World, name: &str, steps: &Value) -> Value {
    let out = screenshots().join(name);
    browse(&json!({ "url": world.semel.admin_url(), "out": out, "variants": ["light"], "steps": steps }))
}

// Why was the order charged once, although three requests came? The customer quotes a request id.
#[test]
fn a_quoted_request_id_explains_why_an_order_was_charged_once() {
    let world = World::start(Tokens::None);
    world.fill();
    let steps = json!([
        ["goto", "/"],
        ["press", "/"],
        ["focused", "#search"],
        ["type", "third"],
        ["press", "Enter"],
        ["url", "/story/third"],
        ["expect", "3 requests, 2 of them answered from the record without running again"],
        ["click", "third"],
        ["goto", "/search?q=order-77"],
        ["url", "/keys/"],
        ["expect", "3 requests came with this key"],
        ["expect", "The effect ran once."],
        ["shot", "charged-once"],
    ]);
    play(&world, "flows", &steps);
    assert_eq!(world.upstream.calls("order-77"), 1);
}

#[test]
fn a_key_in_doubt_is_settled_after_a_preview() {
    let world = World::start(Tokens::None);
    world.fill();
    let steps = json!([
        ["goto", "/"],
        ["click", "In doubt"],
        ["expect", "The oldest is first"],
        ["click", "Settle…"],
        ["choose", "happened – clients"],
        ["fill", "Status of the answer", "201"],
        ["fill", "Body of the answer", "{\"id\": \"ch_from_the_bank\"}"],
        ["fill", "Reason", "the bank has the charge"],
        ["click", "Preview"],
        ["expect", "Every later request with this key gets this answer"],
        ["absent", "The answer has no body"],
        // What is settled is what was shown: after an edit it is shown again first.
        ["fill", "Body of the answer", "{\"id\": \"ch_edited\"}"],
        ["sees", "#preview button:disabled"],
        ["expect", "The form below was changed since."],
        ["fill", "Body of the answer", "{\"id\": \"ch_from_the_bank\"}"],
        ["click", "Preview"],
        ["sees", "#preview button:enabled"],
        ["shot", "settle-preview"],
        ["click", "Settle this key"],
        ["expect", "Settled."],
        ["expect", "ch_from_the_bank"],
    ]);
    play(&world, "flows", &steps);
    let answered = world.client("lost-1", "again").post("/lost/1", "{}");
    assert!(answered.status == 201 && answered.text().contains("ch_from_the_bank"), "{}", answered.text());
}

// Yesterday's failures of one target, with a canary; the page follows the replay by itself.
#[test]
fn failures_of_a_target_are_replayed_with_a_canary() {
    let world = World::start(Tokens::None);
    world.fill();
    world.warehouse.answer_with(200);
    let steps = json!([
        ["goto", "/targets/warehouse"],
        ["click", "… of the last 24 h"],
        ["expect", "Plan: nothing is sent yet"],
        ["expect", "What had failed, by kind:"],
        ["fill", "At most, the oldest first", "1"],
        ["sees", "#preview button:disabled"],
        ["click", "Show the plan"],
        ["expect", "Approve and replay 1"],
        ["fill", "At most, the oldest first", ""],
        ["click", "Show the plan"],
        ["fill", "Canary size", "2"],
        ["fill", "Items a second", "3"],
        ["fill", "Reason", "the warehouse is back"],
        ["click", "Approve and replay 6"],
        ["expect", "The replay has started."],
        ["expect", "6 of 6 ended"],
        ["expect", "Report"],
        ["shot", "replayed"],
        ["goto", "/dead-letters"],
        ["expect", "6 replayed"],
    ]);
    play(&world, "flows", &steps);
    wait::until("all arrived", PATIENCE, || world.warehouse.effects().len() == 6).unwrap();
    assert_eq!(world.billing.effects().len(), 6, "the other target got nothing twice");
}

// Why does a target get nothing? The card says who paused it and why; resuming it sends what waits.
#[test]
fn a_paused_target_says_why_and_is_resumed() {
    let world = World::start(Tokens::None);
    world.fill();
    let steps = json!([
        ["goto", "/targets/billing"],
        ["click", "Pause…"],
        ["expect", "Nothing more is sent to billing"],
        ["fill", "Reason", "they move <b>house</b>"],
        ["click", "Pause this target"],
        ["expect", "The target is paused. Its deliveries wait."],
        ["expect", "Paused by local"],
        ["shot", "paused"],
    ]);
    play(&world, "flows", &steps);
    for number in 0..3 {
        let event = json!({ "type": "order.paid", "dedupe_key": format!("late-{number}"), "payload": {} });
        world.api().post("/v1/events", &event.to_string()).expect(201);
    }
    let before = world.billing.effects().len();
    let steps = json!([
        ["goto", "/"],
        ["expect", "they move <b>house</b>"],
        ["click", "Resume…"],
        ["expect", "Deliveries to billing are sent again"],
        ["expect", "they move <b>house</b>"],
        ["fill", "Reason", "they have moved"],
        ["click", "Resume this target"],
        ["expect", "The target is resumed. Its circuit breaker decides when waiting deliveries are sent."],
        ["expect", "delivering"],
        ["absent", "Paused by"],
        ["goto", "/audit"],
        ["expect", "they have moved"],
    ]);
    play(&world, "flows", &steps);
    wait::until("what waited arrived", PATIENCE, || world.billing.effects().len() == before + 3).unwrap();
}

// Every action is possible without the script.
#[test]
fn pages_work_without_the_script() {
    let world = World::start(Tokens::None);
    world.fill();
    let steps = json!([
        ["goto", "/dead-letters"],
        ["click", "Discard 6…"],
        ["fill", "Reason", "test data"],
        ["click", "Discard 6 dead letters"],
        ["expect", "6 dead letters are discarded."],
        ["expect", "6 discarded"],
        ["click", "Theme: auto"],
        ["expect", "Theme: light"],
    ]);
    let orders = json!({
        "url": world.semel.admin_url(), "out": screenshots(), "variants": ["light"], "script": false, "steps": steps,
    });
    browse(&orders);
}

#[test]
fn an_open_page_shows_new_numbers_by_itself() {
    let world = World::start(Tokens::None);
    let folder = tempfile::tempdir().unwrap();
    let told = &folder.path().join("told");
    let steps = json!([["goto", "/"], ["mark", "live"], ["tell", told], ["expect", "In doubt 2"]]);
    std::thread::scope(|scope| {
        let page = scope.spawn(|| play(&world, "flows", &steps));
        wait::until("the page listens", PATIENCE, || told.exists()).unwrap();
        world.fill();
        page.join().unwrap();
    });
}

// Consoles connect again by themselves after the server was restarted. Until then the page says that it is old.
#[test]
fn an_open_page_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().join("data").display());
    let first = Semel::start(&["--store", &store]);
    let url = first.admin_url().to_owned();
    let (address, told) = (url.strip_prefix("http://").unwrap(), &folder.path().join("told"));
    let seen = &folder.path().join("seen");
    std::thread::scope(|scope| {
        let page = scope.spawn(|| {
            let steps = json!([
                ["goto", "/"],
                ["mark", "live"],
                ["tell", told],
                ["mark", "reconnecting …"],
                ["expect", "No connection to the server since"],
                ["sees", "body.is-offline"],
                ["tell", seen],
                ["mark", "live"],
                ["sees", "body:not(.is-offline)"],
                ["absent", "No connection to the server"],
            ]);
            browse(&json!({ "url": url, "variants": ["light"], "steps": steps }))
        });
        wait::until("the page listens", PATIENCE, || told.exists()).unwrap();
        assert!(first.admin().get("/metrics").text().contains("semel_console_streams 1"));
        first.kill();
        wait::until("the page says that it is old", PATIENCE, || seen.exists()).unwrap();
        let mut command = crate::kit::semel();
        command.args(["serve", "--admin", address, "--store", &store]);
        let _second = Semel::spawn(command);
        page.join().unwrap();
    });
}

// A restart ends the sessions. The page says so, and a login leads back to it.
#[test]
fn an_open_page_asks_to_log_in_again() {
    let World { semel, _folder: folder, .. } = World::start(Tokens::Some);
    let (file, told) = (folder.path().join("semel.toml"), &folder.path().join("told"));
    let url = semel.admin_url().to_owned();
    let address = url.strip_prefix("http://").unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("[admin]\nlisten = \"127.0.0.1:0\"", &format!("[admin]\nlisten = \"{address}\""));
    std::fs::write(&file, text).unwrap();
    std::thread::scope(|scope| {
        let page = scope.spawn(|| {
            let steps = json!([
                ["goto", "/keys?phase=done"],
                ["mark", "live"],
                ["tell", told],
                ["mark", "Log in again"],
                ["expect", "Your session has ended; what you see is older."],
                ["sees", "body.is-offline"],
                ["click", "Log in again"],
                ["fill", "Token", token("viewer")],
                ["click", "Log in"],
                ["url", "/keys"],
                ["mark", "live"],
            ]);
            browse(&json!({ "url": url, "variants": ["light"], "login": token("viewer"), "steps": steps }))
        });
        wait::until("the page listens", PATIENCE, || told.exists()).unwrap();
        semel.kill();
        let _second = with_tokens(&file);
        page.join().unwrap();
    });
}

// The other actions, click by click.
#[test]
fn forget_edit_pace_and_cancel_work_in_the_browser() {
    let world = World::start(Tokens::None);
    let filled = world.fill();
    // A replay whose canary fails pauses itself.
    world.warehouse.answer_with(200);
    let steps = json!([
        ["goto", format!("/keys/{}", filled.done)],
        ["click", "Forget…"],
        ["expect", "The next request with this key runs the effect again"],
        ["fill", "Reason", "test order"],
        ["click", "Forget this key"],
        ["expect", "Forgotten."],
        ["goto", format!("/dead-letters/{}", filled.letter)],
        ["click", "Edit as a copy…"],
        ["fill", "Payload, as JSON", "{\"order\": 5, \"name\": \"Zoë\u{a0}東京\"}"],
        ["fill", "Reason", "typo"],
        ["click", "Show the difference"],
        ["expect", "nothing is copied yet"],
        ["click", "Create 1 copy"],
        ["expect", "Copied with the new payload."],
        ["goto", "/replays/new?status=failed&targets=warehouse"],
        ["fill", "Items a second", "0.2"],
        ["fill", "Reason", "try slowly"],
        ["click", "Approve and replay 7"],
        ["expect", "The replay has started."],
        ["click", "Pace…"],
        ["fill", "Items a second", "0.1"],
        ["fill", "Reason", "slower"],
        ["click", "Change the limits of this replay"],
        ["expect", "The replay has its new limits."],
        ["click", "Pause…"],
        ["fill", "Reason", "wait"],
        ["click", "Pause this replay"],
        ["expect", "The replay is paused."],
        ["click", "Cancel…"],
        ["fill", "Reason", "enough"],
        ["click", "Cancel this replay"],
        ["expect", "The replay is cancelled."],
    ]);
    play(&world, "flows", &steps);
    let copies =
        world.api().get(&format!("/v1/dead-letters/{}", filled.letter)).expect(200)["copies"].clone();
    let copy = world.api().get(&format!("/v1/dead-letters/{}", copies[0].as_str().unwrap())).expect(200);
    assert_eq!(copy["payload"]["name"], "Zoë\u{a0}東京");
}

// A page follows what it shows: the filter and the page of a list stay.
#[test]
fn a_refresh_keeps_the_filter_and_the_page() {
    let world = World::start(Tokens::None);
    world.fill();
    let person = super::Person::local(&world);
    let refreshed = |path: &str| {
        let page = person.get(path).text();
        let (_, rest) =
            page.split_once("data-refresh=\"").unwrap_or_else(|| panic!("{path} follows nothing"));
        rest.split_once('"').unwrap().0.replace("&#38;", "&").replace("&amp;", "&")
    };
    assert_eq!(refreshed("/keys?phase=in_doubt&hint=lost-1"), "/keys?phase=in_doubt&hint=lost-1");
    let job = r#"{"status": "failed", "rate": 0.1, "reason": "slowly"}"#;
    let job = world.api().post("/v1/replays", job).expect(201)["id"].as_str().unwrap().to_owned();
    let second = format!("/v1/replays/{job}/items?limit=2");
    let cursor = world.api().get(&second).expect(200)["next"].as_str().unwrap().to_owned();
    let page = format!("/replays/{job}?cursor={cursor}");
    assert_eq!(refreshed(&page), page);
    let list = format!("/replays?cursor={}", u32::MAX);
    assert_eq!(refreshed(&list), list);
}

// A search for a key reads the store in parts, until it has found it or has read all.
#[test]
fn a_search_goes_on_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(super::scale::fill(&data, 20_000, 0));
    runtime.shutdown_timeout(std::time::Duration::from_secs(10));
    let semel = Semel::start(&["--store", &format!("embedded:{}", data.display())]);
    let steps = json!([
        ["goto", "/search?q=00019998"],
        ["expect", "00019998…"],
        ["goto", "/keys?hint=0001999"],
        ["expect", "00019990…"],
        ["expect", "00019999…"],
        ["gone", "Search on"],
        ["goto", "/keys?hint=zebra"],
        ["expect", "No keys match"],
        ["absent", "No match so far"],
    ]);
    browse(&json!({ "url": semel.admin_url(), "variants": ["light"], "steps": steps }));
}

// On a phone the current entry of the navigation is visible, and the status strip has no cell of several lines.
#[test]
fn a_phone_shows_the_current_entry() {
    let world = World::start(Tokens::None);
    let steps = json!([
        ["goto", "/audit"],
        ["inview", ".nav [aria-current]"],
        ["lower", ".strip > :nth-child(2)", 36],
        ["goto", "/configuration"],
        ["inview", ".nav [aria-current]"],
    ]);
    browse(&json!({ "url": world.semel.admin_url(), "variants": ["phone"], "steps": steps }));
}

// The rest of the actions, click by click, on a phone.
#[test]
fn discard_restore_resume_retry_and_cancel_work_on_a_phone() {
    let crm = crate::kit::Sink::start();
    crm.answer_with(503);
    let more = format!(
        "[[target]]\nname = \"crm\"\nurl = \"{}\"\nevents = [\"crm.*\"]\nretry = {{ max_attempts = 1 }}\nschedule = [\"1h\"]\n\
         breaker = {{ failure_calls = 1000 }}\n",
        crm.url()
    );
    let world = World::with_config(Tokens::None, &more);
    let filled = world.fill();
    let api = world.api();
    let lead = r#"{"type": "crm.lead", "dedupe_key": "lead-1", "payload": {}}"#;
    api.post("/v1/events", lead).expect(201);
    let waits = || {
        let waiting = api.get("/v1/deliveries?state=retry_wait").expect(200);
        waiting["items"].as_array().unwrap().len() == 1
    };
    wait::until("it waits for its next round", PATIENCE, waits).unwrap();
    crm.answer_with(200);
    let job = r#"{"status": "failed", "targets": ["warehouse"], "rate": 0.1, "reason": "slowly"}"#;
    let job = api.post("/v1/replays", job).expect(201)["id"].as_str().unwrap().to_owned();
    api.post(&format!("/v1/replays/{job}/pause"), r#"{"reason": "wait"}"#).expect(200);
    let runs = api.get("/v1/runs").expect(200)["items"].clone();
    let delayed: Vec<&str> = runs
        .as_array()
        .unwrap()
        .iter()
        .filter(|run| run["status"] != "done" && run["type"] == "billing")
        .map(|run| run["id"].as_str().unwrap())
        .collect();
    assert_eq!(delayed.len(), 2, "{runs:#}");
    let letter = api.get("/v1/dead-letters?status=pending").expect(200)["items"].clone();
    let letter =
        letter.as_array().unwrap().last().map_or(filled.letter.as_str(), |one| one["id"].as_str().unwrap());
    let steps = json!([
        ["goto", format!("/dead-letters/{letter}")],
        ["click", "Discard…"],
        ["fill", "Reason", "test data"],
        ["click", "Discard 1 dead letter"],
        ["expect", "Discarded. It can be restored"],
        ["click", "Restore…"],
        ["fill", "Reason", "needed after all"],
        ["click", "Restore 1 dead letter"],
        ["expect", "Restored: the dead letter is pending again."],
        ["goto", format!("/replays/{job}")],
        ["click", "Resume…"],
        ["fill", "Reason", "go on"],
        ["click", "Resume this replay"],
        ["expect", "The replay goes on."],
        ["goto", "/targets/crm"],
        ["click", "Retry now…"],
        ["expect", "1 delivery to crm that waits for the next attempt becomes due now"],
        ["fill", "Reason", "it is back"],
        ["click", "Retry this target"],
        ["expect", "are due now"],
        ["goto", "/runs?tag=nightly"],
        ["choose", format!("Select {}", delayed[0])],
        ["choose", format!("Select {}", delayed[1])],
        ["click", "Cancel selected…"],
        ["expect", "2 runs that have not started are not delivered"],
        ["fill", "Reason", "not tonight"],
        ["click", "Cancel 2 runs"],
        ["expect", "ancelled"],
        ["shot", "cancelled-on-a-phone"],
    ]);
    let out = screenshots().join("flows");
    browse(&json!({ "url": world.semel.admin_url(), "out": out, "variants": ["phone"], "steps": steps }));
    wait::until("the lead arrived", PATIENCE, || crm.effects().len() == 1).unwrap();
    for id in delayed {
        assert_eq!(api.get(&format!("/v1/runs/{id}")).expect(200)["status"], "cancelled");
    }
    assert_eq!(api.get(&format!("/v1/dead-letters/{letter}")).expect(200)["status"], "pending");
}

// Single keys lead to pages and through lists, until they are switched off.
#[test]
fn single_keys_work_until_they_are_switched_off() {
    let world = World::start(Tokens::None);
    world.fill();
    let steps = json!([
        ["goto", "/"],
        ["press", "g"],
        ["press", "k"],
        ["url", "/keys"],
        ["press", "j"],
        ["focused", "main table tbody tr:nth-child(1) a.row"],
        ["press", "j"],
        ["focused", "main table tbody tr:nth-child(2) a.row"],
        ["press", "k"],
        ["focused", "main table tbody tr:nth-child(1) a.row"],
        ["press", "Enter"],
        ["url", "/keys/"],
        ["goto", "/runs"],
        ["choose", "Select all"],
        ["click", "Cancel selected…"],
        ["expect", "Cancel 2 runs"],
        ["click", "Shortcuts: on"],
        ["expect", "Shortcuts: off"],
        ["goto", "/keys"],
        ["press", "/"],
        ["sees", "#search:not(:focus)"],
        ["press", "j"],
        ["focused", "body"],
        ["click", "Shortcuts: off"],
        ["expect", "Shortcuts: on"],
        ["press", "/"],
        ["focused", "#search"],
    ]);
    browse(&json!({ "url": world.semel.admin_url(), "variants": ["dark"], "steps": steps }));
}
