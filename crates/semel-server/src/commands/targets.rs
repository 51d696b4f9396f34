//! `semel targets`: lists the targets of a running server, pauses and resumes them.

use std::time::Duration;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::Value;

use super::remote::{cell, encode, get, print, send, totals};
use super::screen::{age, readable, write_line};
use super::status::{StatusArgs, watch};
use super::table::table;
use crate::admin::dead_letters::ChangeRequest;
use crate::cli::Remote;
use crate::client::AdminClient;

/// Without a command, lists targets.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct TargetsArgs {
    #[command(subcommand)]
    command: Option<TargetsCommand>,
    #[command(flatten)]
    list: StatusArgs,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum TargetsCommand {
    /// List targets, as without a command
    List(StatusArgs),
    /// Pause a target: nothing more is sent to it, by any process, until it is resumed; events are accepted
    Pause(ChangeArgs),
    /// Resume a paused target
    Resume(ChangeArgs),
    /// Retry now what waits for its next attempt
    Retry(ChangeArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ChangeArgs {
    /// Name of the target
    name: String,
    /// Reason, for the audit log
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    remote: Remote,
}

/// Runs the command.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn run(args: TargetsArgs) -> anyhow::Result<()> {
    match args.command {
        None => list(&args.list).await,
        Some(TargetsCommand::List(args)) => list(&args).await,
        Some(TargetsCommand::Pause(args)) => change(args, "pause").await,
        Some(TargetsCommand::Resume(args)) => change(args, "resume").await,
        Some(TargetsCommand::Retry(args)) => change(args, "retry").await,
    }
}

async fn change(args: ChangeArgs, action: &str) -> anyhow::Result<()> {
    let ChangeArgs { name, reason, remote } = args;
    let path = format!("/v1/targets/{}/{action}", encode(&name));
    let done = send(&AdminClient::of(&remote)?, Method::POST, &path, &ChangeRequest { reason }).await?;
    if remote.json {
        return print(&done);
    }
    let paused = match paused(&done["paused"]) {
        paused if paused.is_empty() => "active".to_owned(),
        paused => format!("paused {paused}"),
    };
    if done["unchanged"] == true {
        eprintln!(
            "nothing was changed: {name} was {} already",
            if action == "pause" { "paused" } else { "active" }
        );
    }
    match done["retried"].as_u64() {
        Some(retried) => write_line(&format!("{name}: {paused}; {retried} deliveries became due"))?,
        None => write_line(&format!("{name}: {paused}"))?,
    }
    match done["waiting"].as_str() {
        Some(why) => write_line(&format!("nothing is sent now: {why}")),
        None => Ok(()),
    }
}

async fn list(args: &StatusArgs) -> anyhow::Result<()> {
    watch(args, "/v1/targets", |page| {
        let rows: Vec<[String; 9]> = page["items"].as_array().into_iter().flatten().map(row).collect();
        let titles = [
            "TARGET",
            "STATE",
            "BREAKER",
            "HALF-OPENS",
            "SUCCEEDED",
            "BACKLOG",
            "OLDEST DUE",
            "NEXT DUE",
            "EVENTS",
        ];
        table(titles, &rows)?;
        let items = page["items"].as_array().into_iter().flatten();
        for item in items.filter(|item| item["paused"].is_object()) {
            write_line(&format!("{} is paused {}", cell(item, "name"), paused(&item["paused"])))?;
        }
        Ok(())
    })
    .await
}

/// Says on standard error that no target has this name: the list of what belongs to it is empty, or that of a removed target.
pub(super) async fn warn_if_unknown(remote: &Remote, target: Option<&str>) -> anyhow::Result<()> {
    let Some(target) = target else { return Ok(()) };
    let known = get(&AdminClient::of(remote)?, "/v1/targets").await?;
    let names: Vec<String> =
        known["items"].as_array().into_iter().flatten().map(|item| cell(item, "name")).collect();
    if !names.iter().any(|name| name == target) {
        eprintln!("there is no target {target:?} in the configuration; there are {}", names.join(", "));
    }
    Ok(())
}

/// Who paused a target, when and why; empty if it is not paused.
pub(crate) fn paused(pause: &Value) -> String {
    if !pause.is_object() {
        return String::new();
    }
    let [since, by, reason] = ["since", "by", "reason"].map(|name| cell(pause, name));
    format!("by {by} {} ago: {reason}", age(&since))
}

/// A share as a percentage. Neither all nor nothing by rounding.
fn percent(share: f64) -> String {
    let rounded = (share * 100.0).round();
    match share {
        share if share > 0.0 && rounded < 1.0 => "<1%".to_owned(),
        share if share < 1.0 && rounded > 99.0 => ">99%".to_owned(),
        _ => format!("{rounded:.0}%"),
    }
}

fn row(item: &Value) -> [String; 9] {
    let attempts = item["attempts"].as_u64().unwrap_or(0);
    let succeeded = item["success_rate"].as_f64().map(|rate| format!("{} of {attempts}", percent(rate)));
    let seconds = |name: &str| item[name].as_f64().map(Duration::from_secs_f64);
    // Nothing is sent before the breaker allows it.
    let due = seconds("next_due_seconds").max(seconds("next_due_seconds").and(seconds("open_seconds")));
    let within = |time: Duration| match time {
        time if time < Duration::from_secs(1) => "now".to_owned(),
        time => format!("in {}", readable(time)),
    };
    let for_long = |time: Duration| format!("for {}", readable(time));
    [
        cell(item, "name"),
        if item["paused"].is_object() { "paused" } else { "active" }.to_owned(),
        cell(item, "breaker"),
        seconds("open_seconds").map(within).unwrap_or_default(),
        succeeded.unwrap_or_default(),
        totals(&item["backlog"]),
        seconds("oldest_due_seconds").map(for_long).unwrap_or_default(),
        due.map(within).unwrap_or_default(),
        cell(item, "events"),
    ]
}
