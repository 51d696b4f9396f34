//! SIGHUP: other routes without a restart.

use rustix::process::Signal;
use semel_testbed::wait;

use crate::kit::{PATIENCE, Semel, Upstream, metric};

#[test]
fn routes_are_read_anew_and_a_bad_file_is_refused() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let write = |profile: &str| {
        let text = format!(
            "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nprofile = \"{profile}\"\nscope = \"single-tenant\"\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n",
            upstream.url()
        );
        std::fs::write(&file, text).unwrap();
    };
    write("ietf");
    let semel = Semel::with_config(&file, &[]);
    let gateway = semel.gateway().with("idempotency-key", "k");
    assert_eq!(gateway.post("/pay", "a").status, 201);
    assert_eq!(gateway.post("/pay", "b").status, 422, "as ietf has it");

    write("no-such-profile");
    semel.signal(Signal::HUP);
    semel.logged("configuration reload refused");
    assert_eq!(gateway.post("/pay", "b").status, 422, "the old one stays in force");

    write("stripe");
    semel.signal(Signal::HUP);
    wait::until("another profile", PATIENCE, || gateway.post("/pay", "b").status == 400).unwrap();
    assert_eq!(
        gateway.post("/pay", "a").header("idempotent-replayed"),
        Some("true"),
        "records outlive a reload"
    );
    assert_eq!(metric(&semel.admin(), "semel_reloads_total{result=\"refused\"}"), 1.0);
    assert_eq!(metric(&semel.admin(), "semel_reloads_total{result=\"taken\"}"), 1.0);
}

// What cannot be changed is not overheard.
#[test]
fn a_change_that_needs_a_restart_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let write = |store: &str| {
        std::fs::write(&file, format!("[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n"))
            .unwrap();
    };
    write("memory:");
    let semel = Semel::with_config(&file, &[]);
    write("embedded:elsewhere");
    semel.signal(Signal::HUP);
    semel.logged("the new configuration changes settings that require a restart");
    assert!(!folder.path().join("elsewhere").exists());
}
