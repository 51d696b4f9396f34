//! Shutdown: calls in progress finish, and a second signal does not wait for them.

use rustix::process::Signal;
use semel_testbed::wait;
use serde_json::json;

use crate::kit::{PATIENCE, Semel, Upstream};

/// Calls in progress at the signal.
fn many() -> usize {
    if std::env::var_os("SEMEL_PROVE").is_some() { 400 } else { 50 }
}

// sigterm_drain: no new call is accepted, calls in progress are answered and stored, nothing is in doubt.
#[test]
fn what_is_under_way_finishes() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", folder.path().join("data").display());
    let args = ["--store", &store, "--upstream", &upstream.url(), "--scope", "single-tenant"];
    let mut semel = Semel::start(&args);
    let many = many();
    let calls: Vec<_> = (0..many)
        .map(|number| {
            let gateway = semel.gateway().with("idempotency-key", &format!("k{number}"));
            std::thread::spawn(move || gateway.post("/slow", "{}"))
        })
        .collect();
    let under_way = || (0..many).filter(|number| upstream.calls(&format!("k{number}")) == 1).count();
    wait::until("all are in progress", PATIENCE, || under_way() == many).unwrap();
    semel.signal(Signal::TERM);
    semel.logged("stopping");
    let late = semel.gateway();
    wait::until("nothing new is taken", PATIENCE, || late.try_send("GET", "/x", "").is_err()).unwrap();
    upstream.open();
    for call in calls {
        assert_eq!(call.join().unwrap().status, 201);
    }
    assert!(semel.wait().success());

    let semel = Semel::start(&args);
    assert_eq!(semel.admin().get("/v1/keys?phase=in_doubt").expect(200)["items"], json!([]));
    let again = semel.gateway().with("idempotency-key", "k0").post("/slow", "{}");
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(upstream.calls("k0"), 1);
}

// kill_in_drain: a process that is killed while it drains leaves what a crash leaves. What had ended is replayed, what had begun is
// in doubt, and nothing runs a second time.
#[test]
fn kill_in_drain_is_a_crash() {
    const MANY: usize = 20;
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (folder.path().join("semel.toml"), folder.path().join("data"));
    let text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [store]\nurl = \"embedded:{}\"\n[[route]]\nmatch = \"POST /**\"\nlease = \"1s\"\nwait = \"0s\"\n",
        upstream.url(),
        data.display()
    );
    std::fs::write(&file, text).unwrap();
    let semel = Semel::with_config(&file, &[]);
    assert_eq!(semel.gateway().with("idempotency-key", "ended").post("/quick", "{}").status, 201);
    let keys: Vec<String> = (0..MANY).map(|number| format!("k{number}")).collect();
    let calls: Vec<_> = keys
        .iter()
        .map(|key| {
            let gateway = semel.gateway().with("idempotency-key", key);
            std::thread::spawn(move || gateway.try_send("POST", "/slow", "{}"))
        })
        .collect();
    let begun = || keys.iter().all(|key| upstream.calls(key) == 1);
    wait::until("all are in progress", PATIENCE, begun).unwrap();
    semel.signal(Signal::TERM);
    semel.logged("stopping");
    semel.kill();
    for call in calls {
        assert!(call.join().unwrap().is_err(), "its connection was cut");
    }
    upstream.open();

    let semel = Semel::with_config(&file, &[]);
    let admin = semel.admin();
    let in_doubt = || admin.get("/v1/keys?phase=in_doubt").expect(200)["items"].as_array().unwrap().len();
    wait::until("every key is in doubt", PATIENCE, || in_doubt() == MANY).unwrap();
    for key in &keys {
        let retry = semel.gateway().with("idempotency-key", key).post("/slow", "{}");
        assert_eq!(retry.expect(409)["code"], "in_doubt");
        assert_eq!(upstream.calls(key), 1);
    }
    let ended = semel.gateway().with("idempotency-key", "ended").post("/quick", "{}");
    assert_eq!((ended.status, ended.header("idempotent-replayed")), (201, Some("true")));
    assert_eq!(upstream.calls("ended"), 1);
}

// second_signal: a forced end is a crash, with its semantics: in doubt, never a second effect.
#[test]
fn a_second_signal_does_not_wait() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (folder.path().join("semel.toml"), folder.path().join("data"));
    let text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [store]\nurl = \"embedded:{}\"\n[[route]]\nmatch = \"POST /slow\"\nlease = \"1s\"\nwait = \"0s\"\n",
        upstream.url(),
        data.display()
    );
    std::fs::write(&file, text).unwrap();
    let mut semel = Semel::with_config(&file, &[]);
    let gateway = semel.gateway().with("idempotency-key", "k");
    let call = std::thread::spawn(move || gateway.try_send("POST", "/slow", "{}"));
    wait::until("it is in progress", PATIENCE, || upstream.calls("k") == 1).unwrap();
    semel.signal(Signal::TERM);
    semel.logged("stopping");
    semel.signal(Signal::INT);
    assert_eq!(semel.wait().code(), Some(1));
    assert!(call.join().unwrap().is_err(), "its connection was cut");

    let semel = Semel::with_config(&file, &[]);
    let admin = semel.admin();
    let in_doubt = || admin.get("/v1/keys?phase=in_doubt").expect(200)["items"].as_array().unwrap().len();
    wait::until("the key is in doubt", PATIENCE, || in_doubt() == 1).unwrap();
    let retry = semel.gateway().with("idempotency-key", "k").post("/slow", "{}").expect(409);
    assert_eq!((retry["code"].as_str(), retry["retryable"].as_bool()), (Some("in_doubt"), Some(false)));
    assert_eq!(upstream.calls("k"), 1);

    // Settled by the API, as an answer of the gateway: the retry replays it.
    let id = admin.get("/v1/keys?phase=in_doubt").expect(200)["items"][0]["id"].as_str().unwrap().to_owned();
    let body = json!({ "reason": "looked it up", "outcome": { "status": 202, "headers": { "x-by": "hand" }, "body": { "ok": 1 } } });
    admin.post(&format!("/v1/keys/{id}/settle"), &body.to_string()).expect(200);
    let retry = semel.gateway().with("idempotency-key", "k").post("/slow", "{}");
    assert_eq!((retry.status, retry.header("x-by"), retry.json()), (202, Some("hand"), json!({ "ok": 1 })));
    assert_eq!(retry.header("idempotent-replayed"), Some("true"));
    assert_eq!(upstream.calls("k"), 1);
}
