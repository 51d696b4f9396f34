//! Changes by hand leave a durable line.

use rustix::process::Signal;
use semel_testbed::wait;
use serde_json::Value;

use crate::kit::{Http, PATIENCE, Semel};

fn done_key(admin: &Http) -> String {
    let claim = admin.post("/v1/claims", r#"{"namespace": "n", "key": "k"}"#).expect(200);
    let id = claim["claim_id"].as_str().unwrap();
    admin.post(&format!("/v1/claims/{id}/begin"), "").expect(200);
    admin.post(&format!("/v1/claims/{id}/complete"), r#"{"outcome": {"paid": true}}"#).expect(200);
    claim["key_id"].as_str().unwrap().to_owned()
}

fn actions(admin: &Http, subject: &str) -> Vec<(String, String, String)> {
    let page = admin.get(&format!("/v1/audit?subject={subject}")).expect(200);
    let text = |line: &Value, name: &str| line[name].as_str().unwrap().to_owned();
    let lines = page["items"].as_array().unwrap().iter();
    lines.map(|line| (text(line, "who"), text(line, "action"), text(line, "reason"))).collect()
}

#[test]
fn a_forgotten_key_is_still_in_the_audit_log_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let store = folder.path().join("data");
    let text =
        format!("[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n", store.display());
    std::fs::write(&file, text).unwrap();
    let semel = Semel::with_config(&file, &[]);
    let admin = semel.admin();
    let key = done_key(&admin);
    let line = |action: &str, reason: &str| ("local".to_owned(), action.to_owned(), reason.to_owned());

    let settle = format!("/v1/keys/{key}/settle");
    assert_eq!(admin.post(&settle, r#"{"run": true, "reason": "run it again"}"#).status, 409);
    let refused = [line("settle_run refused", "run it again"), line("settle_run", "run it again")];
    assert_eq!(actions(&admin, &key), refused);

    let forgotten = admin.post(&format!("/v1/keys/{key}/forget"), r#"{"reason": "cover it up"}"#).expect(200);
    assert_eq!(forgotten["audit"], "ledger", "{forgotten}");
    semel.kill();
    let semel = Semel::with_config(&file, &[]);
    let admin = semel.admin();
    assert_eq!(actions(&admin, &key)[0], line("forget", "cover it up"));
    let story = admin.get(&format!("/v1/story/{key}")).expect(200);
    let told = story["timeline"].as_array().unwrap().iter().any(|moment| moment["what"] == "forget");
    assert!(told, "{story}");
}

// A reload can change tokens, targets and addresses. Its line had no state before and after.
#[test]
fn a_reload_names_the_settings_that_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let write = |more: &str| {
        let store = folder.path().join("data");
        let text = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n{more}",
            store.display()
        );
        std::fs::write(&file, text).unwrap();
    };
    let target = |token: &str| {
        format!(
            "[[target]]\nname = \"crm\"\nurl = \"http://127.0.0.1:9/{token}?key={token}\"\nevents = [\"crm.*\"]\n"
        )
    };
    write("");
    let semel = Semel::with_config(&file, &[]);
    let admin = semel.admin();
    let lines = || admin.get("/v1/audit?subject=config").expect(200)["items"].as_array().unwrap().clone();
    let reload = |text: &str, number: usize| {
        write(text);
        semel.signal(Signal::HUP);
        wait::until("the reload is in the audit log", PATIENCE, || lines().len() == number).unwrap();
        let line = lines()[0].clone();
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        assert_eq!((text("who").as_str(), text("reason").as_str()), ("signal", "SIGHUP"));
        [text("action"), text("before"), text("after")]
    };
    let [action, empty, after] = reload(&target("hunter2"), 1);
    assert_eq!(action, "reload");
    let (full, changed) = after.split_once("; ").unwrap();
    assert_eq!(changed, "changed: target 1.events, target 1.name, target 1.url");
    assert!(
        empty.starts_with("settings ") && full.starts_with("settings ") && empty != full,
        "{empty} {after}"
    );
    // The same settings have the same hash, and the states of two lines fit together.
    assert_eq!(reload(&target("hunter2"), 2), ["reload", full, &format!("{full}; no setting changed")]);
    // What is refused changes nothing.
    assert_eq!(reload("nonsense = 1\n", 3), ["reload refused", full, full]);
    assert_eq!(reload("", 4)[2], format!("{empty}; {changed}"));
    // Values are not in the log: a path can be a secret too.
    assert!(!format!("{:?}", lines()).contains("hunter2"));
}

#[test]
fn without_a_ledger_the_answer_says_where_the_line_is() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    let key = done_key(&admin);
    let forgotten = admin.post(&format!("/v1/keys/{key}/forget"), r#"{"reason": "test data"}"#).expect(200);
    assert_eq!(forgotten["audit"], "log", "{forgotten}");
    semel.logged("test data");
}
