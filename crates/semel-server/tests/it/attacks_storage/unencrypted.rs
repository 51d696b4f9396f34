//! Somebody with the disk reads what encryption at rest left out; and keys that are lost must not make records unmanageable.

use std::path::{Path, PathBuf};

use crate::kit::{Semel, Upstream, semel};

const OLD: (&str, &str) = ("SEAL_OLD", "0123456789abcdef0123456789abcdef");
const NEW: (&str, &str) = ("SEAL_NEW", "fedcba9876543210fedcba9876543210");

fn config(folder: &Path, (key, _): (&str, &str), encryption: &str, more: &str) -> PathBuf {
    let file = folder.join("semel.toml");
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n[store.encryption]\n{encryption}\n\
         [[store.encryption.key]]\nid = \"{key}\"\nvalue = {{ env = \"{key}\" }}\n{more}\n",
        folder.join("data").display()
    );
    std::fs::write(&file, text).unwrap();
    file
}

// Events were kept in plain beside sealed outcomes, and nothing said so.
#[test]
fn a_plain_ledger_beside_sealed_outcomes_has_to_be_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let target = "[[target]]\nname = \"crm\"\nurl = \"http://127.0.0.1:9/\"";
    let file = config(folder.path(), OLD, "", target);
    let refused = semel().arg("serve").arg("--config").arg(&file).env(OLD.0, OLD.1).output().unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("[[target]] would store events"), "{told}");
    assert!(told.contains("ledger = \"plain\""), "the way out: {told}");

    let accepted = config(folder.path(), OLD, "ledger = \"plain\"", target);
    let event = r#"{"type": "a", "dedupe_key": "1", "payload": {}}"#;
    let running = Semel::with_config(&accepted, &[OLD]);
    running.admin().post("/v1/events", event).expect(201);
    running.kill();

    // Nothing asks for a ledger: there is none, so nothing is kept in plain unnoticed.
    let running = Semel::with_config(&config(folder.path(), OLD, "", ""), &[OLD]);
    let answer = running.admin().post("/v1/events", event);
    assert!(answer.status >= 400, "{} {}", answer.status, answer.text());
}

#[test]
fn records_under_a_lost_key_are_listed_shown_and_forgotten() {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let gateway = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"",
        upstream.url()
    );
    let pay = |semel: &Semel, key: &str| semel.gateway().with("idempotency-key", key).post("/pay", "{}");
    let semel = Semel::with_config(&config(folder.path(), OLD, "", &gateway), &[OLD]);
    assert_eq!(pay(&semel, "lost").status, 201);
    semel.kill();

    let semel = Semel::with_config(&config(folder.path(), NEW, "", &gateway), &[NEW]);
    assert_eq!(pay(&semel, "lost").status, 503, "it is not run again");
    assert_eq!(pay(&semel, "other").status, 201);
    let admin = semel.admin();
    let listed = admin.get("/v1/keys?phase=done").expect(200);
    let items = listed["items"].as_array().unwrap();
    assert_eq!(items.len(), 2, "{listed}");
    let lost = items.iter().find(|item| item["key"] == "lost").unwrap();
    assert_eq!(lost["outcome"]["kept"], false, "{lost}");
    let id = lost["id"].as_str().unwrap();
    let shown = admin.get(&format!("/v1/keys/{id}")).expect(200);
    assert!(shown["returned"]["not_kept"].as_str().unwrap().contains(OLD.0), "{shown}");
    let forget = r#"{"reason": "its key is lost"}"#;
    admin.post(&format!("/v1/keys/{id}/forget"), forget).expect(200);
    assert_eq!((pay(&semel, "lost").status, upstream.calls("lost")), (201, 2));
}
