//! `semel demo` in the console: there is what its text names, and each click works. The pictures of the documentation come from here.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use semel_testbed::wait;
use serde_json::json;

use super::{browse, screenshots};
use crate::kit::{Http, PATIENCE, semel};

/// Ends the demo with the test.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_demo_shows_what_its_text_says() {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = semel();
    command.arg("demo").env("TMPDIR", temporary.path()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut demo = Demo(command.spawn().unwrap());
    let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let text: Vec<String> =
        lines.by_ref().take_while(|line| !line.starts_with("Ctrl-C ends the demo")).collect();
    let after = |start: &str| {
        let found = text.iter().find_map(|line| line.strip_prefix(start).map(str::to_owned));
        found.unwrap_or_else(|| panic!("{start} in {text:#?}"))
    };
    let url = after("Open the console in a browser: ");
    let gateway = after("The gateway in front of it, at ");
    let gateway = gateway.split_once(',').unwrap().0;
    // What its text names is what is clicked below.
    let tour: Vec<(&str, &str)> = text
        .iter()
        .skip_while(|line| !line.starts_with("Open the console"))
        .skip(2)
        .take_while(|line| !line.is_empty())
        .map(|line| line.trim_start().split_once("  ").unwrap())
        .collect();
    let [(doubt, settle), (letters, replay), (target, pause), (search, story)] = tour[..] else {
        panic!("four places in {tour:#?}")
    };
    for (says, word) in [
        (settle, "click Settle, preview the client's answer, settle it"),
        (replay, "click Replay, look at the plan, approve it"),
        (pause, "when the next one is tried; pause it and resume it"),
        (search, "the search box"),
        (story, "paste the X-Request-Id of an answer: the story of that request"),
    ] {
        assert!(says.contains(word), "{word} in {tour:#?}");
    }
    let (targets, target) = target.split_once(", ").unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    let admin = Http::new(&url);
    let failed = |target: &str| {
        let found = admin.get(&format!("/v1/dead-letters?status=pending&target={target}")).expect(200);
        found["items"].as_array().unwrap().len()
    };
    wait::until("failures of the warehouse and the CRM", PATIENCE, || {
        failed("warehouse") >= 3 && failed("crm") >= 3
    })
    .unwrap();
    // The pictures of the documentation show a server that has run for a while.
    if std::env::var_os("SEMEL_PROVE").is_some() {
        let events = || admin.get("/v1/events?limit=1000").expect(200)["items"].as_array().unwrap().len();
        wait::until("two minutes of events", PATIENCE * 5, || events() >= 180).unwrap();
    }
    let client = Http::new(gateway).with("authorization", "Bearer me");
    let charged = client.with("idempotency-key", "my-order-1").post("/v1/charges", r#"{"amount": 1200}"#);
    let request = charged.header("x-request-id").expect("an id to quote");
    let steps = json!([
        ["goto", "/"],
        ["expect", "live"],
        ["expect", "breaker open"],
        ["shot", "overview"],
        ["click", doubt],
        ["click", "Settle…"],
        ["choose", "happened – clients"],
        ["fill", "Status of the answer", "201"],
        ["fill", "Body of the answer", "{\"refund\": \"re_17\", \"status\": \"succeeded\"}"],
        ["fill", "Reason", "the acquirer has the refund"],
        ["click", "Preview"],
        ["expect", "Every later request with this key gets this answer"],
        ["shot", "settle"],
        ["click", "Settle this key"],
        ["expect", "Settled."],
        ["click", targets],
        ["clickin", target, target],
        ["expect", "breaker"],
        ["expect", "The next call is tried"],
        ["click", "Pause…"],
        ["fill", "Reason", "the CRM is down until noon"],
        ["click", "Pause this target"],
        ["expect", "Paused by local"],
        ["shot", "paused"],
        ["click", "Resume…"],
        ["fill", "Reason", "it is up again"],
        ["click", "Resume this target"],
        ["expect", "The target is resumed."],
        ["click", letters],
        ["shot", "dead-letters"],
        ["clickin", "warehouse", "Replay"],
        ["fill", "Reason", "the shelf is free again"],
        ["click", "Approve and replay"],
        ["expect", "The replay has started."],
        ["sees", "li[aria-current=step]:has-text('Report')"],
        ["shot", "replay"],
        ["press", "/"],
        ["focused", "#search"],
        ["type", request],
        ["press", "Enter"],
        ["url", "/story/"],
        ["expect", "1 request, 0 of them answered from the record"],
    ]);
    browse(&json!({ "url": url, "out": screenshots().join("docs"), "variants": ["light"], "steps": steps }));
}
