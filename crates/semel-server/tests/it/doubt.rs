//! A key of the gateway in doubt: recognised, found by the key that was sent, and settled with an answer that is shown first.

use std::collections::BTreeSet;

use semel_testbed::wait;
use serde_json::{Value, json};

use crate::kit::{Http, PATIENCE, Semel, Upstream, semel};

/// What a command wrote.
struct Output {
    code: Option<i32>,
    out: String,
    err: String,
}

fn keys(semel_at: &Semel, args: &[&str]) -> Output {
    let command = [&["keys"], args, &["--admin", semel_at.admin_url()]].concat();
    let output = semel().args(command).stdin(std::process::Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

fn gateway(upstream: &Upstream, more: &[&str]) -> Semel {
    let url = upstream.url();
    Semel::start(&[&["--store", "memory:", "--upstream", &url], more].concat())
}

/// Sends a request whose answer is lost, and waits until its key is in doubt.
fn doubt(semel: &Semel, client: &Http, path: &str) {
    let before = in_doubt(semel).len();
    let lost = client.post(path, "{}");
    assert!(lost.status >= 500, "{}", lost.text());
    wait::until("in doubt", PATIENCE, || in_doubt(semel).len() > before).unwrap();
}

fn in_doubt(semel: &Semel) -> Vec<Value> {
    semel.admin().get("/v1/keys?phase=in_doubt").expect(200)["items"].as_array().unwrap().clone()
}

// Three keys in doubt were all listed as `customer`. They have method, path, request and caller now, and the oldest is first.
#[test]
fn keys_in_doubt_are_recognised() {
    let upstream = Upstream::start();
    let semel = gateway(&upstream, &[]);
    let client = |account: &str, key: &str, request: &str| {
        let client = semel.gateway().with("authorization", &format!("Bearer {account}"));
        client.with("idempotency-key", key).with("x-request-id", request)
    };
    for (account, number) in [("a", 1), ("b", 2), ("a", 3)] {
        let (key, request) = (format!("customer-{number}"), format!("req-{number}"));
        doubt(&semel, &client(account, &key, &request), &format!("/lost/{number}?q=secret"));
    }
    let listed = keys(&semel, &["list", "--state", "in_doubt", "--json"]);
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    let items = listed["items"].as_array().unwrap();
    let of = |name: &str| -> Vec<&str> {
        items.iter().map(|item| item["request"][name].as_str().unwrap_or_default()).collect()
    };
    assert_eq!(of("path"), ["/lost/1", "/lost/2", "/lost/3"], "the oldest first, without the query");
    assert_eq!((of("method"), of("request_id")), (vec!["POST"; 3], vec!["req-1", "req-2", "req-3"]));
    let callers = of("caller");
    assert!(callers[0].len() == 8 && callers[0] == callers[2] && callers[0] != callers[1], "{callers:?}");
    let table = keys(&semel, &["list", "--state", "in_doubt"]);
    let lines: Vec<&str> = table.out.lines().collect();
    for title in ["AGE", "METHOD", "PATH", "REQUEST", "CALLER"] {
        assert!(lines[0].contains(title), "{}", table.out);
    }
    assert!(lines[1].contains("/lost/1") && lines[3].contains("req-3"), "{}", table.out);
    let few = keys(&semel, &["list", "--state", "in_doubt", "--limit", "1"]);
    assert!(few.out.contains("req-1") && !few.out.contains("req-2"), "{}", few.out);
    assert!(few.err.contains("2 more are in doubt"), "{}", few.err);
    // Neither the whole key nor the credential is in the log or in a list.
    assert!(!table.out.contains("customer-1"), "{}", table.out);
    assert!(!semel.log().contains("customer-1") && !semel.log().contains("Bearer"));
}

// A list that sorted the first ten thousand only, and went on after them, never showed what it had cut off.
#[test]
fn every_key_in_doubt_is_listed_once_and_the_oldest_first() {
    const KEYS: usize = 10_500;
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    let batch = |operations: Vec<Value>| {
        let answer = admin.post("/v1/claims/batch", &json!({ "operations": operations }).to_string());
        answer.expect(200)["results"].as_array().unwrap().clone()
    };
    let mut created = BTreeSet::new();
    for first in (0..KEYS).step_by(500) {
        let claims = (first..first + 500)
            .map(|key| json!({ "claim": { "namespace": "n", "key": key.to_string(), "begin": true } }));
        let won = batch(claims.collect());
        created.extend(won.iter().map(|won| won["result"]["key_id"].as_str().unwrap().to_owned()));
        let lost = won.iter().map(|won| json!({ "abandon": { "claim_id": won["result"]["claim_id"] } }));
        assert!(batch(lost.collect()).iter().all(|lost| lost["result"]["status"] == "abandoned"));
    }
    let mut listed: Vec<(String, String)> = Vec::new();
    let mut cursor: Option<String> = None;
    for page in 0.. {
        let mut args = vec!["list", "--phase", "in_doubt", "--limit", "4000", "--json"];
        args.extend(cursor.iter().flat_map(|cursor| ["--cursor", cursor]));
        let shown: Value = serde_json::from_str(&keys(&semel, &args).out).unwrap();
        let text = |item: &Value, name: &str| item[name].as_str().unwrap().to_owned();
        let items = shown["items"].as_array().unwrap();
        assert_eq!(items.len(), [4_000, 4_000, 2_500][page]);
        listed.extend(items.iter().map(|item| (text(item, "claimed_at"), text(item, "id"))));
        cursor = shown["next"].as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    assert!(listed.is_sorted(), "the oldest first, over all pages");
    assert_eq!(listed.len(), KEYS);
    assert!(listed.iter().map(|(_, id)| id.clone()).collect::<BTreeSet<_>>() == created, "each once");
    // A person sees the same order.
    let first = keys(&semel, &["list", "--phase", "in_doubt", "--limit", "1"]);
    assert!(first.out.contains(&listed[0].1), "{}", first.out);
    assert!(first.err.contains("10499 more are in doubt") && first.err.contains("--cursor"), "{}", first.err);
    let wrong = keys(&semel, &["list", "--phase", "in_doubt", "--cursor", &listed[0].1]);
    assert!(wrong.code == Some(2) && wrong.err.contains("--cursor: expected"), "{}", wrong.err);
}

// The key is part of the path: the record shows the pattern of the route.
#[test]
fn a_path_with_the_key_is_not_stored() {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let file = folder.path().join("semel.toml");
    let text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n\
         [[route]]\nmatch = \"POST /lost/{{id}}\"\nkey = {{ route = \"order-{{id}}\" }}\n",
        upstream.url()
    );
    std::fs::write(&file, text).unwrap();
    let semel = Semel::with_config(&file, &[]);
    doubt(&semel, &semel.gateway(), "/lost/very-secret-order");
    doubt(&semel, &semel.gateway().with("idempotency-key", "sub-secret"), "/lost-too/sub-secret/x");
    let shown = in_doubt(&semel);
    let paths: Vec<&str> = shown.iter().map(|item| item["request"]["path"].as_str().unwrap()).collect();
    assert!(!format!("{shown:?}").contains("secret-order") && !format!("{shown:?}").contains("sub-secret"));
    assert!(paths.contains(&"/lost/{id}"), "{paths:?}");
}

#[test]
fn a_key_is_found_by_what_the_client_sent() {
    let upstream = Upstream::start();
    let semel = gateway(&upstream, &[]);
    let client = semel.gateway().with("authorization", "Bearer shop");
    assert_eq!(client.with("idempotency-key", "order-20410").post("/pay", "{}").status, 201);
    let find = |key: &str, header: &[&str]| keys(&semel, &[&["find", "--key", key], header].concat());
    let found = find("order-20410", &["--header", "Authorization: Bearer shop"]);
    assert!(
        found.code == Some(0) && found.out.contains("order-20") && found.out.contains("/pay"),
        "{}",
        found.out
    );
    // Quoted, as a structured field, it is the same key.
    let quoted = find("\"order-20410\"", &["--header", "authorization: Bearer shop", "--json"]);
    let quoted: Value = serde_json::from_str(&quoted.out).unwrap();
    assert_eq!(quoted["items"].as_array().unwrap().len(), 1, "{quoted}");
    let none = find("order-20410", &["--header", "Authorization: Bearer other"]);
    assert!(none.code == Some(0) && none.err.contains("nothing found"), "{}", none.err);
    let nobody = find("order-20410", &[]);
    assert!(nobody.code == Some(1) && nobody.err.contains("authorization"), "{}", nobody.err);
    assert!(!nobody.err.contains("order-20410"), "{}", nobody.err);
    let wrong = find("k", &["--header", "Authorization"]);
    assert!(wrong.code == Some(2) && wrong.err.contains("NAME: VALUE"), "{}", wrong.err);
    assert!(!semel.log().contains("order-20410") && !semel.log().contains("Bearer shop"));
}

#[test]
fn a_settlement_is_shown_before_it_is_made() {
    let upstream = Upstream::start();
    let semel = gateway(&upstream, &["--scope", "single-tenant"]);
    let client = semel.gateway().with("idempotency-key", "order-1").with("x-request-id", "req-1");
    doubt(&semel, &client, "/lost");
    let id = in_doubt(&semel)[0]["id"].as_str().unwrap().to_owned();
    let settle = |args: &[&str]| {
        keys(&semel, &[&["settle", id.as_str(), "--reason", "asked the bank"], args].concat())
    };
    let bare = settle(&["--outcome", "{\"receipt\": 7}", "--yes"]);
    assert!(bare.code == Some(1) && bare.err.contains("`status` is required"), "{}", bare.err);
    // A settled key cannot be settled again, so an answer that no upstream gives is refused.
    for (args, why) in [
        (&["--status", "999"][..], "between 200 and 599"),
        (&["--status", "100"], "between 200 and 599"),
        (&["--status", "204", "--body", "{}"], "has no body"),
        (&["--status", "201", "--body", "{\"id\": \"pay_9\""], "looks like JSON and is not"),
        (&["--outcome", "{\"status\": 201, \"hedaers\": {}}"], "unknown field `hedaers`"),
    ] {
        let refused = settle(&[args, &["--yes"]].concat());
        assert!(refused.code != Some(0) && refused.err.contains(why), "{args:?}: {}", refused.err);
    }
    assert_eq!(in_doubt(&semel).len(), 1, "nothing was changed");
    let asked = settle(&["--status", "201", "--body", "{\"paid\": true}", "--dry-run"]);
    assert_eq!(asked.code, Some(0), "{}", asked.err);
    for part in ["POST /lost", "req-1", "HTTP 201", "content-type: application/json", "\"paid\": true"] {
        assert!(asked.err.contains(part), "{part}: {}", asked.err);
    }
    assert_eq!(in_doubt(&semel).len(), 1, "nothing was changed");
    let run = keys(&semel, &["settle", id.as_str(), "--run", "--dry-run"]);
    assert!(run.code == Some(0) && run.err.contains("sent to the upstream again"), "{}", run.err);
    assert_eq!(in_doubt(&semel).len(), 1, "nothing was changed");
    // Not a terminal: nobody can be asked.
    let settled = settle(&["--status", "201", "--body", "{\"paid\": true}"]);
    assert!(settled.err.contains("HTTP 201"), "it is shown all the same: {}", settled.err);
    assert!(
        settled.code == Some(0) && settled.out.contains("in_doubt -> done"),
        "{}{}",
        settled.out,
        settled.err
    );
    let replayed = client.post("/lost", "{}");
    assert_eq!((replayed.status, replayed.json()), (201, json!({ "paid": true })));
    assert_eq!(upstream.total(), 1);
    let shown = keys(&semel, &["show", &id]);
    for part in ["request_id        req-1", "HTTP 201", "content-type: application/json", "\"paid\": true"] {
        assert!(shown.out.contains(part), "{part}: {}", shown.out);
    }
}

// Every kind of answer has an id to quote, and the id of each request with a key finds the story.
#[test]
fn every_answer_has_an_id_that_finds_the_story() {
    let upstream = Upstream::start();
    let semel = gateway(&upstream, &["--scope", "single-tenant"]);
    let (admin, client) = (semel.admin(), semel.gateway());
    let id_of = |answer: &crate::kit::Answer| answer.header("x-request-id").expect("an id").to_owned();
    let keyed = client.with("idempotency-key", "order-1");
    let first = keyed.post("/pay", "{}");
    assert_eq!(upstream.request_id(), id_of(&first), "the upstream saw the same");
    let mut ids = vec![id_of(&first)];
    // From the record: the first by the regular path, later ones from memory.
    for _ in 0..3 {
        let replayed = keyed.post("/pay", "{}");
        assert_eq!((replayed.header("idempotent-replayed"), replayed.json()), (Some("true"), first.json()));
        ids.push(id_of(&replayed));
    }
    let conflict = keyed.post("/pay", "{\"other\": 1}");
    assert_eq!(conflict.status, 422);
    ids.push(id_of(&conflict));
    let lost = client.with("idempotency-key", "order-2").post("/lost", "{}");
    assert!(lost.status >= 500);
    ids.push(id_of(&lost));
    let named = client.with("idempotency-key", "order-3");
    for _ in 0..3 {
        let answer = named.post("/named", "{}");
        assert_eq!(id_of(&answer), "upstream-1", "an upstream's own id is kept");
        ids.push(id_of(&answer));
    }
    for id in &ids {
        let story = admin.get(&format!("/v1/story/{id}")).expect(200);
        assert_eq!(story["found"][1]["kind"], "key", "{story:#}");
        assert_eq!(story["timeline"][0]["method"], "POST", "{story:#}");
    }
    // Refused before a key was found, or not guarded: an id for the logs.
    for answer in [
        client.with("idempotency-key", &"x".repeat(300)).post("/pay", "{}"),
        client.post("/pay", "{}"),
        client.get("/x"),
    ] {
        assert_eq!(id_of(&answer).len(), 32);
    }
    let given = keyed.with("x-request-id", "mine").post("/pay", "{}");
    assert_eq!(id_of(&given), "mine");
}
