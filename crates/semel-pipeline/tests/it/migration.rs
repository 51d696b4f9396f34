//! Ledgers that earlier versions wrote are migrated, and everything in them works.

mod data;
#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "postgres")]
mod postgres;

use std::process::{Child, Command, Stdio};

use semel_pipeline::ledger::Ledger;

/// Everything in a fixture reads as it did in the version that wrote it, and can be worked on.
async fn check(ledger: &dyn Ledger, written: &str) {
    let found = data::describe(ledger).await;
    let written: Vec<&str> = written.lines().collect();
    for (found, written) in found.iter().zip(&written) {
        assert_eq!(found, written);
    }
    assert_eq!(found.len(), written.len());
    data::work(ledger).await;
}

/// Starts one of the ignored tests as a process of its own.
fn process(test: &str, place: &str) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env("SEMEL_PLACE", place)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process can be started")
}

/// The folder or URL that a process was started for.
fn place() -> String {
    std::env::var("SEMEL_PLACE").expect("the place is named")
}
