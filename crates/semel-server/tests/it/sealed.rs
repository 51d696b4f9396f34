//! Outcomes sealed at rest, and a key that is changed while the server runs.

use std::path::Path;

use rustix::process::Signal;

use crate::kit::{Semel, Upstream};

const OLD: (&str, &str) = ("SEAL_OLD", "0123456789abcdef0123456789abcdef");
const NEW: (&str, &str) = ("SEAL_NEW", "fedcba9876543210fedcba9876543210");

fn config(folder: &Path, upstream: &str, keys: &[(&str, &str)]) -> std::path::PathBuf {
    let mut text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{upstream}\"\nscope = \"single-tenant\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n",
        folder.join("data").display()
    );
    for (name, _) in keys {
        text += &format!("[[store.encryption.key]]\nid = \"{name}\"\nvalue = {{ env = \"{name}\" }}\n");
    }
    let file = folder.join("semel.toml");
    std::fs::write(&file, text).unwrap();
    file
}

/// Whether any file of the store holds these bytes.
fn on_disk(folder: &Path, canary: &str) -> bool {
    std::fs::read_dir(folder.join("data")).unwrap().map_while(Result::ok).any(|file| {
        let bytes = std::fs::read(file.path()).unwrap();
        bytes.windows(canary.len()).any(|window| window == canary.as_bytes())
    })
}

// pii_at_rest: no answer in the store's files; keys change without a restart.
#[test]
fn answers_are_sealed_and_keys_rotate() {
    let (upstream, folder) = (Upstream::start(), tempfile::tempdir().unwrap());
    let file = config(folder.path(), &upstream.url(), &[OLD]);
    let semel = Semel::with_config(&file, &[OLD, NEW]);
    let answered = |semel: &Semel, key: &str| semel.gateway().with("idempotency-key", key).post("/pay", "{}");
    assert_eq!(answered(&semel, "one").text(), "{\"call\": 1}");
    config(folder.path(), &upstream.url(), &[NEW, OLD]);
    semel.signal(Signal::HUP);
    semel.logged("encrypting outcomes with this key");
    answered(&semel, "two").expect(201);
    semel.kill();
    assert!(!on_disk(folder.path(), "{\"call\": 1}") && !on_disk(folder.path(), "content-type"));
    assert!(on_disk(folder.path(), "SEAL_OLD") && on_disk(folder.path(), "SEAL_NEW"), "each names its key");

    let semel = Semel::with_config(&file, &[OLD, NEW]);
    for key in ["one", "two"] {
        let again = answered(&semel, key);
        assert_eq!(
            (again.header("idempotent-replayed"), again.text().as_str()),
            (Some("true"), "{\"call\": 1}")
        );
        assert_eq!(upstream.calls(key), 1);
    }
}
