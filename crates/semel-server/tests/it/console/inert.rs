//! Stored scripts stay inert: 100 payloads in keys, paths, request ids, payloads, headers, answers of targets, tags and reasons.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use semel_testbed::wait;
use serde_json::{Value, json};

use super::{Person, Tokens, World, browse};
use crate::kit::{Answer, PATIENCE};

/// Texts that run a script where a page does not escape them: each calls `alert`.
fn payloads() -> Vec<String> {
    let shapes = [
        "<script>alert(N)</script>",
        "\"><script>alert(N)</script>",
        "'><script>alert(N)</script>",
        "<img src=x onerror=alert(N)>",
        "\"><img src=x onerror=alert(N)>",
        "<svg onload=alert(N)>",
        "<svg/onload=alert(N)//",
        "</textarea><script>alert(N)</script>",
        "</title><script>alert(N)</script>",
        "</pre><script>alert(N)</script>",
        "\" onmouseover=alert(N) x=\"",
        "' onfocus=alert(N) autofocus='",
        "\" autofocus onfocus=alert(N) \"",
        "javascript:alert(N)",
        "<a href=javascript:alert(N)>x</a>",
        "<iframe srcdoc='<script>alert(N)</script>'>",
        "<body onload=alert(N)>",
        "<details open ontoggle=alert(N)>",
        "--><script>alert(N)</script>",
        "<!--<img src=--><img src=x onerror=alert(N)>",
        "&lt;script&gt;alert(N)&lt;/script&gt;",
        "{{constructor.constructor('alert(N)')()}}",
        "\u{2028}<script>alert(N)</script>",
        "<math><mtext></math><script>alert(N)</script>",
        "data: x\n\nevent: tick\ndata: <script>alert(N)</script>",
    ];
    (0..100).map(|number| shapes[number % shapes.len()].replace('N', &number.to_string())).collect()
}

/// A target that answers with these texts, one after the other, in its reason phrase, a header and its body.
fn hostile_target(texts: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for (stream, text) in listener.incoming().zip(texts.iter().cycle()) {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 8192]);
            let line: String = text.chars().filter(|c| c.is_ascii() && !c.is_control()).collect();
            let answer = format!(
                "HTTP/1.1 400 {line}\r\nx-error: {line}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            );
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

#[test]
fn stored_xss_stays_inert() {
    let hostile = hostile_target(payloads());
    let more = format!(
        "[[target]]\nname = \"hostile\"\nurl = \"{hostile}\"\nevents = [\"hostile.*\"]\nretry = {{ max_attempts = 1 }}\nschedule = []\n\
         breaker = {{ failure_calls = 1000 }}\n"
    );
    let world = World::with_config(Tokens::None, &more);
    world.warehouse.answer_with(503);
    let (api, person) = (world.api(), Person::local(&world));
    let payloads = payloads();
    // What is refused cannot be shown: each kind must get in often enough to prove something.
    let mut accepted = [0_usize; 5];
    let mut count = |kind: usize, answer: &Answer| accepted[kind] += usize::from(answer.status < 300);
    for (number, payload) in payloads.iter().enumerate() {
        let line: String =
            payload.chars().map(|c| if c.is_ascii() && !c.is_control() { c } else { '.' }).collect();
        // The gateway: key and request id. Not every text can be a key; each can be the id of a request.
        let client = world.semel.gateway().with("authorization", "Bearer shop").with("x-request-id", &line);
        let plain = format!("plain-{number}");
        for (kind, key) in [(0, &line), (4, &plain)] {
            count(kind, &client.with("idempotency-key", key).post(&format!("/pay/{number}"), "{}"));
        }
        // Events: key, type, tenant, payload; a failing target makes dead letters of them.
        let event = json!({
            "type": format!("order.{number}"), "dedupe_key": payload, "tenant": payload, "payload": { "x": payload },
            "order_key": payload,
        });
        count(1, &api.post("/v1/events", &event.to_string()));
        // The target of this one answers with a script. An envelope's attributes are headers.
        let hostile =
            json!({ "type": "hostile.event", "dedupe_key": format!("hostile-{number}"), "payload": payload });
        api.post("/v1/events", &hostile.to_string()).expect(201);
        let envelope = json!({
            "specversion": "1.0", "id": format!("envelope-{number}"), "source": "/shop", "subject": payload, "note": payload,
            "type": "hostile.event", "data": { "x": payload },
        });
        let envelopes = api.with("content-type", "application/cloudevents+json");
        count(2, &envelopes.post("/v1/events", &envelope.to_string()));
        let run = json!({
            "target": "billing", "idempotency_key": payload, "delay": "1h", "tags": [payload], "tenant": payload,
            "metadata": { "m": payload }, "payload": payload,
        });
        count(3, &api.post("/v1/runs", &run.to_string()));
    }
    // Keys, events, envelopes, runs, request ids.
    let enough = [40, 90, 90, 90, 100];
    assert!(accepted.iter().zip(enough).all(|(number, enough)| *number >= enough), "{accepted:?}");
    let letters = || api.get("/v1/dead-letters?limit=1000").expect(200)["items"].as_array().unwrap().clone();
    wait::until("dead letters", PATIENCE, || letters().len() >= 50).unwrap();
    let refused = || {
        api.get("/v1/dead-letters?target=hostile&limit=1000").expect(200)["items"].as_array().unwrap().clone()
    };
    wait::until("answers of the hostile target", PATIENCE, || refused().len() >= 50).unwrap();
    let letter = letters()[0]["id"].as_str().unwrap().to_owned();
    let event = letters()[0]["event_id"].as_str().unwrap().to_owned();
    for payload in &payloads[..5] {
        person.submit("/", &format!("/dead-letters/{letter}/discard"), &[("reason", payload)]);
        person.submit("/", &format!("/dead-letters/{letter}/restore"), &[("reason", payload)]);
    }
    let keys = api.get("/v1/keys?limit=1000").expect(200);
    let key = keys["items"][0]["id"].as_str().unwrap().to_owned();
    let run = api.get("/v1/runs").expect(200)["items"][0]["id"].as_str().unwrap().to_owned();
    let encoded = |text: &str| super::encoded(&[("q", text)]);
    let mut pages: Vec<String> = [
        "/",
        "/keys",
        "/dead-letters",
        "/dead-letters/list",
        "/events",
        "/runs",
        "/audit",
        "/targets",
        "/targets/warehouse",
        "/replays/new?status=failed",
    ]
    .map(str::to_owned)
    .to_vec();
    pages.extend([
        format!("/keys/{key}"),
        format!("/keys/{key}/forget"),
        format!("/dead-letters/{letter}?payload=show"),
        format!("/dead-letters/{letter}/edit"),
        format!("/events/{event}?payload=show"),
        format!("/story/{event}"),
        format!("/runs/{run}?payload=show"),
    ]);
    for one in &refused()[..25] {
        let text = |name: &str| one[name].as_str().unwrap().to_owned();
        pages.push(format!("/dead-letters/{}?payload=show", text("id")));
        pages.push(format!("/deliveries/{}", text("delivery_id")));
        pages.push(format!("/events/{}?payload=show", text("event_id")));
    }
    pages.extend(
        [
            "/dead-letters/list?target=hostile",
            "/targets/hostile",
            "/replays/new?status=failed&targets=hostile",
        ]
        .map(str::to_owned),
    );
    // What comes back from an address.
    for payload in &payloads[..25] {
        pages.push(format!("/search?{}", encoded(payload)));
        pages.push(format!("/keys?{}", encoded(payload).replacen('q', "hint", 1)));
    }
    for path in &pages {
        let text = person.get(path).text();
        for broken in
            ["<script>alert", "<img src=x", "<svg onload", "<iframe", "<body onload=", "<details open on"]
        {
            assert!(!text.contains(broken), "{broken} on {path}");
        }
        assert!(!text.contains("href=\"javascript:"), "{path}");
    }
    let is_sampled = |at: &usize| *at < 40 || at.is_multiple_of(4);
    let pages: Vec<Value> = pages
        .iter()
        .enumerate()
        .filter(|(at, _)| is_sampled(at))
        .map(|(at, path)| json!({ "name": format!("inert-{at}"), "path": path, "refused": true }))
        .collect();
    let found = browse(&json!({
        "url": world.semel.admin_url(), "pages": pages, "variants": ["light"], "quick": true,
    }));
    assert_eq!(found["dialogs"], json!([]));
    let blocked = |one: &Value| one.as_str().unwrap().contains("Content Security Policy");
    assert!(!found["complaints"].as_array().unwrap().iter().any(blocked), "nothing even tried: {found:#}");
}
