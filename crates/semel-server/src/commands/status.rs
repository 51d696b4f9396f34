//! `semel status`: what an operator looks at first.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::listing::Watch;
use super::remote::{cell, get, print, totals};
use super::screen::{age, readable};
use super::table::fields;
use super::targets::paused;
use crate::cli::Remote;
use crate::client::AdminClient;

#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) watch: Watch,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

/// Runs `semel status`. It succeeds if the server answers.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn status(args: &StatusArgs) -> anyhow::Result<()> {
    watch(args, "/v1/status", |status| {
        let lines = lines(status);
        let shown: Vec<_> =
            lines.iter().map(|(title, text, state)| (*title, text.as_str(), *state)).collect();
        fields(&shown)
    })
    .await
}

/// Shows what the server answers at `path`, once or until Ctrl-C.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn watch(
    args: &StatusArgs,
    path: &str,
    show: impl Fn(&Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let client = &AdminClient::of(&args.remote)?;
    let show = |seen: Value| if args.remote.json { print(&seen) } else { show(&seen) };
    args.watch.show(&args.remote, || get(client, path), show).await
}

/// Titles and texts, each with the state that gives it its colour.
fn lines(status: &Value) -> Vec<(&'static str, String, &'static str)> {
    let mut lines = Vec::new();
    let mut add = |title, state, text| lines.push((title, text, state));
    let (state, ready) = match (status["ready"] == true, status["why"].as_str()) {
        (true, None) => {
            ("ready", format!("ready, a claim takes {:.1} ms", status["claim_ms"].as_f64().unwrap_or(0.0)))
        }
        (true, Some(why)) => ("pending", format!("ready: {why}")),
        (false, why) => ("down", format!("not ready: {}", why.unwrap_or("the server does not say why"))),
    };
    add("server", state, ready);
    add("versions", "", versions(&cell(status, "version")));
    add("store", "", cell(status, "store"));
    add("gateway", "", if status["gateway"] == true { "yes" } else { "none" }.to_owned());
    let counted = match age(&cell(status, "in_doubt_counted_at")) {
        empty if empty.is_empty() => "not counted yet".to_owned(),
        age => format!("counted {age} ago"),
    };
    match cell(status, "in_doubt").as_str() {
        "0" => add("in doubt", "", format!("none, {counted}")),
        count => {
            add(
                "in doubt",
                "in_doubt",
                format!("{count}, {counted}; `semel keys list --phase in_doubt` lists them"),
            );
        }
    }
    add("in progress", "", cell(status, "in_flight"));
    let pipeline = &status["pipeline"];
    if pipeline.is_null() {
        match status["pipeline_why"].as_str() {
            Some(why) => add("deliveries", "down", format!("the ledger does not answer: {why}")),
            None => add("deliveries", "", "no ledger".to_owned()),
        }
        return lines;
    }
    let oldest = pipeline["oldest_due_seconds"].as_f64().filter(|age| *age >= 1.0);
    let oldest =
        oldest.map(|age| format!("; the oldest has been due for {}", readable(Duration::from_secs_f64(age))));
    let deliveries = none_or(totals(&pipeline["deliveries"]));
    add("deliveries", "", format!("{deliveries}{}", oldest.unwrap_or_default()));
    let is_pending = pipeline["dead_letters"]["pending"].as_u64().is_some_and(|count| count > 0);
    let letters = none_or(totals(&pipeline["dead_letters"]));
    add("dead letters", if is_pending { "dead" } else { "" }, letters);
    let replays: Vec<String> = pipeline["replays"].as_array().into_iter().flatten().map(replay).collect();
    let is_paused = pipeline["replays"].as_array().into_iter().flatten().any(|job| job["state"] == "paused");
    add("replays", if is_paused { "paused" } else { "" }, none_or(replays.join("; ")));
    add("buffer", "", format!("{} runs", cell(pipeline, "buffered_runs")));
    let open: Vec<String> = pipeline["breakers"].as_array().into_iter().flatten().map(breaker).collect();
    match open.join("; ").as_str() {
        "" => add("breakers", "", "all closed".to_owned()),
        open => add("breakers", "open", open.to_owned()),
    }
    let pauses = pipeline["paused_targets"].as_array().into_iter().flatten();
    let pauses: Vec<String> =
        pauses.map(|pause| format!("{} {}", cell(pause, "target"), paused(pause))).collect();
    match pauses.join("; ").as_str() {
        "" => add("paused", "", "none".to_owned()),
        pauses => add("paused", "paused", pauses.to_owned()),
    }
    lines
}

/// A circuit breaker that is not closed.
fn breaker(open: &Value) -> String {
    let [target, state, until] = ["target", "state", "open_until"].map(|name| cell(open, name));
    match until.as_str() {
        "" => format!("{target} {state}"),
        until => format!("{target} {state} until {until}"),
    }
}

/// A replay job that has not ended.
fn replay(job: &Value) -> String {
    let [id, state, pending, note] = ["id", "state", "pending", "note"].map(|name| cell(job, name));
    format!("{id} {state}, {pending} to go: {note}")
}

/// The version of the server, and that of this command if it is another one.
fn versions(server: &str) -> String {
    match env!("CARGO_PKG_VERSION") {
        own if own == server => format!("semel {server}"),
        own => format!("server {server}, this command {own}"),
    }
}

fn none_or(counts: String) -> String {
    if counts.is_empty() { "none".to_owned() } else { counts }
}
