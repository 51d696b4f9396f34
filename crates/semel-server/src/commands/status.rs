//! `semel status` and `semel targets`: what an operator looks at first.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::remote::{cell, counts, get, print};
use super::screen::{readable, table, write_line};
use crate::cli::Remote;
use crate::client::AdminClient;

/// How often `--watch` looks.
const EVERY: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Args)]
pub(crate) struct StatusArgs {
    /// Repeat every two seconds, until Ctrl-C
    #[arg(long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

/// Runs `semel status`. It succeeds if the server answers.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn status(args: &StatusArgs) -> anyhow::Result<()> {
    watch(args, "/v1/status", |status| lines(status).iter().try_for_each(|line| write_line(line))).await
}

/// Runs `semel targets`.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn targets(args: &StatusArgs) -> anyhow::Result<()> {
    watch(args, "/v1/targets", |page| {
        let rows: Vec<[String; 7]> = page["items"].as_array().into_iter().flatten().map(target).collect();
        table(["TARGET", "BREAKER", "OPEN UNTIL", "SUCCEEDED", "BACKLOG", "NEXT DUE", "EVENTS"], &rows)
    })
    .await
}

async fn watch(
    args: &StatusArgs,
    path: &str,
    show: impl Fn(&Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let client = AdminClient::of(&args.remote)?;
    loop {
        let seen = get(&client, path).await?;
        if args.remote.json {
            print(&seen)?;
        } else {
            show(&seen)?;
        }
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(EVERY).await;
        if !args.remote.json {
            write_line("")?;
        }
    }
}

fn lines(status: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |name: &str, text: String| lines.push(format!("{name:<12}  {text}"));
    let ready = match (status["ready"] == true, status["why"].as_str()) {
        (true, None) => format!("ready, a claim takes {:.1} ms", status["claim_ms"].as_f64().unwrap_or(0.0)),
        (true, Some(why)) => format!("ready: {why}"),
        (false, why) => format!("not ready: {}", why.unwrap_or("the server does not say why")),
    };
    add("server", format!("semel {}, {ready}", cell(status, "version")));
    add("store", cell(status, "store"));
    add("gateway", if status["gateway"] == true { "yes" } else { "none" }.to_owned());
    let doubt = match cell(status, "in_doubt").as_str() {
        "0" => "none".to_owned(),
        count => format!("{count}; `semel keys list --phase in_doubt` lists them"),
    };
    add("in doubt", doubt);
    add("in progress", cell(status, "in_flight"));
    let pipeline = &status["pipeline"];
    if pipeline.is_null() {
        add("deliveries", "no ledger".to_owned());
        return lines;
    }
    let oldest = pipeline["oldest_due_seconds"].as_f64().filter(|age| *age >= 1.0);
    let oldest =
        oldest.map(|age| format!("; the oldest is due since {}", readable(Duration::from_secs_f64(age))));
    let deliveries = none_or(counts(&pipeline["deliveries"]));
    add("deliveries", format!("{deliveries}{}", oldest.unwrap_or_default()));
    add("dead letters", none_or(counts(&pipeline["dead_letters"])));
    add("buffer", format!("{} runs", cell(pipeline, "buffered_runs")));
    let open: Vec<&str> =
        pipeline["open_breakers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    add(
        "breakers",
        if open.is_empty() { "all closed".to_owned() } else { format!("not closed: {}", open.join(", ")) },
    );
    lines
}

fn none_or(counts: String) -> String {
    if counts.is_empty() { "none".to_owned() } else { counts }
}

fn target(item: &Value) -> [String; 7] {
    let calls = item["calls"].as_u64().unwrap_or(0);
    let succeeded = item["success_rate"].as_f64().map(|rate| format!("{:.0}% of {calls}", rate * 100.0));
    let due = match item["next_due_seconds"].as_f64() {
        None => String::new(),
        Some(seconds) if seconds < 1.0 => "now".to_owned(),
        Some(seconds) => format!("in {}", readable(Duration::from_secs_f64(seconds))),
    };
    [
        cell(item, "name"),
        cell(item, "breaker"),
        cell(item, "open_until"),
        succeeded.unwrap_or_default(),
        counts(&item["backlog"]),
        due,
        cell(item, "events"),
    ]
}
