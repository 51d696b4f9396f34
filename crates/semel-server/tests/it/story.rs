//! The story of one action, by every id that a person can have.

use semel_testbed::{Redis, wait};
use serde_json::{Value, json};

use crate::kit::{Answer, Http, PATIENCE, Semel, Sink, Upstream, run};

fn story(admin: &Http, id: &str) -> Answer {
    admin.get(&format!("/v1/story/{id}"))
}

/// What a story is about, as pairs of kind and state.
fn found(story: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    story["found"].as_array().unwrap().iter().map(|one| (text(&one["kind"]), text(&one["state"]))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(kind, state)| ((*kind).to_owned(), (*state).to_owned())).collect()
}

/// The one thing of this kind in a story.
fn id_of(story: &Value, kind: &str) -> String {
    let found: Vec<&Value> =
        story["found"].as_array().unwrap().iter().filter(|one| one["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind} in {story:#}");
    found[0]["id"].as_str().unwrap().to_owned()
}

/// A gateway over this store.
fn gateway(folder: &tempfile::TempDir, upstream: &Upstream, store: &str) -> Semel {
    let file = folder.path().join("semel.toml");
    let text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n",
        upstream.url()
    );
    std::fs::write(&file, text).unwrap();
    Semel::with_config(&file, &[])
}

// The id that a caller sent, the one that the gateway made and the upstream saw, and those of retries that were answered from
// the record.
#[test]
fn a_gateway_request_is_found_by_its_id() {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let store = format!("embedded:{}", folder.path().join("data").display());
    let semel = gateway(&folder, &upstream, &store);
    let (admin, client) = (semel.admin(), semel.gateway());
    let pay = |key: &str, request: &str| {
        client.with("idempotency-key", key).with("x-request-id", request).post("/pay", "{}")
    };
    assert_eq!(pay("other", "req-other").status, 201);
    assert_eq!(pay("k", "req-first").status, 201);
    for retry in ["req-second", "req-third"] {
        assert_eq!(pay("k", retry).header("idempotent-replayed"), Some("true"));
    }
    let refused =
        client.with("idempotency-key", "k").with("x-request-id", "req-refused").post("/pay", "{\"a\":1}");
    assert_eq!(refused.status, 422);
    let first = story(&admin, "req-first").expect(200);
    assert_eq!(found(&first), pairs(&[("request", ""), ("key", "done")]), "{first:#}");
    let key = id_of(&first, "key");
    assert_eq!(story(&admin, &key).expect(200)["found"][0]["kind"], "key", "by the key's id too");
    for request in ["req-second", "req-third", "req-refused"] {
        let told = story(&admin, request).expect(200);
        assert_eq!((id_of(&told, "key"), id_of(&told, "request")), (key.clone(), request.to_owned()));
        assert_eq!(told["timeline"], first["timeline"]);
    }
    // Each says what became of it, and how long it took.
    let told = story(&admin, &key).expect(200)["timeline"].clone();
    let answers: Vec<&Value> =
        told.as_array().unwrap().iter().filter(|entry| entry["place"] == "gateway").collect();
    let whats: Vec<&Value> = answers.iter().map(|answer| &answer["what"]).collect();
    assert_eq!(whats, ["answered", "answered from the record", "answered from the record", "refused"]);
    assert!(answers.iter().all(|answer| answer["took_ms"].is_u64()), "{told:#}");
    assert_eq!((&answers[3]["why"], &answers[3]["http_status"]), (&json!("conflict"), &json!(422)));
    let note = |semel: &Semel, id: &str| {
        let told = run(&["events", "show", id, "--admin", semel.admin_url()]);
        String::from_utf8_lossy(&told.stderr).into_owned()
    };
    assert_eq!(note(&semel, &key), "", "nothing is left out");
    assert_ne!(id_of(&story(&admin, "req-other").expect(200), "key"), key);
    // Without an id of the caller's: what the upstream saw.
    assert_eq!(client.with("idempotency-key", "unnamed").post("/pay", "{}").status, 201);
    let made = upstream.request_id();
    assert_eq!(made.len(), 32, "{made}");
    assert_eq!(found(&story(&admin, &made).expect(200)), pairs(&[("request", ""), ("key", "done")]));
    let unknown = story(&admin, "req-nobody");
    assert!(unknown.status == 404 && unknown.text().contains("nothing is known"), "{}", unknown.text());
    // By command, and after a restart: the record shows the request that claimed it.
    semel.kill();
    let semel = gateway(&folder, &upstream, &store);
    let admin = semel.admin();
    for (request, known) in [("req-first", key.as_str()), (made.as_str(), "")] {
        let told = story(&admin, request).expect(200);
        assert_eq!(found(&told), pairs(&[("request", ""), ("key", "done")]), "{told:#}");
        assert!(known.is_empty() || id_of(&told, "key") == known);
        let told = run(&["events", "show", request, "--admin", semel.admin_url()]);
        assert!(String::from_utf8_lossy(&told.stdout).contains("claimed"), "{told:?}");
    }
    assert!(note(&semel, &key).contains("what it answered before is not listed"), "{}", note(&semel, &key));
    let page = admin.get(&format!("/story/{key}")).text();
    assert!(page.contains("Answers that this server gave before"), "{page}");
    assert_eq!(story(&admin, "req-second").status, 404, "what only the process remembered is gone with it");
    // The request of a forgotten key is in the audit log alone.
    admin.post(&format!("/v1/keys/{key}/forget"), r#"{"reason": "tidy"}"#).expect(200);
    let audited = admin.get(&format!("/v1/audit?subject={key}")).expect(200);
    assert!(
        audited["items"][0]["attempt"].as_str().unwrap().ends_with(" for request req-first"),
        "{audited:#}"
    );
}

// Through another server of the same store, while the call is in flight and after its server is gone: when the story is wanted
// most.
#[test]
fn a_request_without_an_answer_is_found_through_any_server() {
    let (upstream, redis) = (Upstream::start(), Redis::start().unwrap());
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [one, other] = folders.each_ref().map(|folder| gateway(folder, &upstream, &redis.url()));
    let client = one.gateway().with("idempotency-key", "k").with("x-request-id", "req-slow");
    let call = std::thread::spawn(move || client.try_send("POST", "/slow", "{}").is_ok());
    wait::until("it is at the upstream", PATIENCE, || upstream.total() == 1).unwrap();
    let told = story(&other.admin(), "req-slow").expect(200);
    assert_eq!(found(&told), pairs(&[("request", ""), ("key", "begun")]), "{told:#}");
    let key = id_of(&told, "key");
    one.kill();
    assert!(!call.join().unwrap(), "its answer is lost");
    let told = story(&other.admin(), "req-slow").expect(200);
    assert_eq!(id_of(&told, "key"), key);
    upstream.open();
}

/// A server with a target and a buffer.
struct Runs {
    folder: tempfile::TempDir,
    sink: Sink,
    redis: Redis,
}

impl Runs {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), sink: Sink::start(), redis: Redis::start().unwrap() }
    }

    /// Everything is buffered, and drained by this many drainers.
    fn start(&self, drainers: usize) -> Semel {
        let file = self.folder.path().join("semel.toml");
        let text = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n\
             [[target]]\nname = \"crm\"\nurl = \"{}\"\n\
             [gate]\nmode = \"on\"\nthreshold = 0\nhold = \"1h\"\nbuffer = \"{}\"\ndrainers = {drainers}\n",
            self.folder.path().join("data").display(),
            self.sink.url(),
            self.redis.url(),
        );
        std::fs::write(&file, text).unwrap();
        Semel::with_config(&file, &[])
    }
}

// A run is told while it waits in the buffer, and after it was drained: by its id, by its trigger's claim, by its trigger's
// request.
#[test]
fn a_buffered_run_and_the_claim_of_its_trigger_are_found() {
    let runs = Runs::new();
    let semel = runs.start(0);
    let admin = semel.admin();
    let trigger = |request: &str, body: Value| {
        let answer = admin.with("x-request-id", request).post("/v1/runs", &body.to_string()).expect(202);
        answer["id"].as_str().unwrap().to_owned()
    };
    let keyed = trigger("req-trigger", json!({ "target": "crm", "payload": 1, "idempotency_key": "k" }));
    let plain = trigger("req-plain", json!({ "target": "crm", "payload": 2 }));
    let claim = admin.get(&format!("/v1/runs/{keyed}")).expect(200)["key_id"].as_str().unwrap().to_owned();
    let whole = pairs(&[("run", "buffered"), ("trigger claim", "done")]);
    for id in [keyed.as_str(), "req-trigger"] {
        let told = story(&admin, id).expect(200);
        assert_eq!(found(&told), whole, "{id}: {told:#}");
        assert_eq!((id_of(&told, "run"), id_of(&told, "trigger claim")), (keyed.clone(), claim.clone()));
        let last = told["timeline"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["place"], &last["what"]), (&json!("buffer"), &json!("waiting")), "{told:#}");
        assert_eq!(last["request_id"], "req-trigger");
    }
    let told = story(&admin, &claim).expect(200);
    assert_eq!(found(&told), pairs(&[("trigger claim", "done"), ("run", "buffered")]), "{told:#}");
    assert_eq!(id_of(&told, "run"), keyed, "the claim names its run");
    // In a burst the run has no claim besides its entry in the buffer.
    let burst = trigger("req-burst", json!({ "target": "crm", "payload": 1, "idempotency_key": "burst" }));
    let key = admin.get(&format!("/v1/runs/{burst}")).expect(200)["key_id"].as_str().unwrap().to_owned();
    for id in [burst.as_str(), "req-burst", &key] {
        let told = story(&admin, id).expect(200);
        assert_eq!(
            (found(&told), id_of(&told, "run")),
            (pairs(&[("run", "buffered")]), burst.clone()),
            "{id}"
        );
    }
    for id in [plain.as_str(), "req-plain"] {
        let told = story(&admin, id).expect(200);
        assert_eq!((found(&told), id_of(&told, "run")), (pairs(&[("run", "buffered")]), plain.clone()));
    }
    // Cancelled, it is in the ledger. The story says so, and why.
    admin.post(&format!("/v1/runs/{plain}/cancel"), r#"{"reason":"a test"}"#).expect(200);
    let told = story(&admin, &plain).expect(200);
    assert_eq!(found(&told), pairs(&[("event", ""), ("delivery", "cancelled")]));
    assert!(told["timeline"].to_string().contains("a test"), "{told:#}");
    drop(semel);
    // Drained: the same ids find the event and its delivery.
    let semel = runs.start(1);
    let admin = semel.admin();
    wait::until("it is delivered", PATIENCE, || runs.sink.calls() >= 1).unwrap();
    let done = || admin.get(&format!("/v1/runs/{keyed}")).expect(200)["status"] == "done";
    wait::until("it is done", PATIENCE, done).unwrap();
    for id in [keyed.as_str(), claim.as_str(), "req-trigger"] {
        let told = story(&admin, id).expect(200);
        assert_eq!(id_of(&told, "event"), keyed, "{id}: {told:#}");
        assert!(found(&told).contains(&("delivery".to_owned(), "done".to_owned())), "{id}: {told:#}");
    }
}

// After a reset the key has another run, in the buffer alone; its record is still that of the first one.
#[test]
fn the_run_that_has_a_key_after_a_reset_is_found() {
    let runs = Runs::new();
    let semel = runs.start(0);
    let admin = semel.admin();
    let trigger = || {
        let body = json!({ "target": "crm", "payload": 1, "idempotency_key": "k" }).to_string();
        admin.post("/v1/runs", &body).expect(202)["id"].as_str().unwrap().to_owned()
    };
    let first = trigger();
    let key = admin.get(&format!("/v1/runs/{first}")).expect(200)["key_id"].as_str().unwrap().to_owned();
    let reset = json!({ "target": "crm", "key": "k", "reason": "a test" }).to_string();
    admin.post("/v1/runs/reset-key", &reset).expect(200);
    let second = trigger();
    let told = story(&admin, &key).expect(200);
    let whole = pairs(&[("trigger claim", "done"), ("run", "buffered"), ("run", "buffered")]);
    assert_eq!(found(&told), whole, "{told:#}");
    let ids: Vec<&str> =
        told["found"].as_array().unwrap().iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(ids[1..], [&first, &second]);
}

// What cannot be looked for is not said to be nowhere.
#[test]
fn a_story_is_honest_about_what_it_cannot_see() {
    let runs = Runs::new();
    let semel = runs.start(0);
    let admin = semel.admin();
    let body = json!({ "target": "crm", "payload": 1, "idempotency_key": "k" }).to_string();
    let run = admin.post("/v1/runs", &body).expect(202)["id"].as_str().unwrap().to_owned();
    let claim = admin.get(&format!("/v1/runs/{run}")).expect(200)["key_id"].as_str().unwrap().to_owned();
    runs.redis.kill();
    for id in [run.as_str(), claim.as_str(), "some-request"] {
        let answer = story(&admin, id);
        assert_eq!(answer.status, 503, "{id}: {}", answer.text());
    }
    assert_eq!(story(&admin, "evt_00000000000000000000000000").status, 404, "no event is in the buffer");
}

// A replay job has a story too: who made it, why, and what became of it.
#[test]
fn a_replay_job_is_found_by_its_id() {
    let (sink, folder) = (Sink::start(), tempfile::tempdir().unwrap());
    let file = folder.path().join("semel.toml");
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n[[target]]\nname = \"crm\"\nurl = \"{}\"\n",
        folder.path().join("data").display(),
        sink.url()
    );
    std::fs::write(&file, text).unwrap();
    let semel = Semel::with_config(&file, &[]);
    let admin = semel.admin();
    sink.answer_with(422);
    for key in 1..=2 {
        let event = json!({ "type": "a", "dedupe_key": key.to_string(), "payload": key });
        admin.post("/v1/events", &event.to_string()).expect(201);
    }
    let dead = || admin.get("/v1/dead-letters").expect(200)["items"].as_array().unwrap().len() == 2;
    wait::until("both are dead letters", PATIENCE, dead).unwrap();
    let body = r#"{"status": "failed", "reason": "the target is well again"}"#;
    let job = admin.post("/v1/replays", body).expect(201)["id"].as_str().unwrap().to_owned();
    let paused = || story(&admin, &job).expect(200)["found"][0]["state"] == "paused";
    wait::until("it has paused itself", PATIENCE, paused).unwrap();
    let told = story(&admin, &job).expect(200);
    assert_eq!(found(&told), pairs(&[("replay", "paused")]), "{told:#}");
    let told = told["timeline"].to_string();
    for expected in ["the target is well again", "1 of the last 1 failed again", "\"what\":\"made\""] {
        assert!(told.contains(expected), "{expected} in {told}");
    }
    assert_eq!(story(&admin, "rpl_00000000000000000000000000").status, 404);
}
