//! `semel deliveries` and `semel audit`: lists of a running server.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::remote::{Pages, QueryString, cell, encode, get, members, print};
use super::screen::{table, write_line};
use crate::cli::Remote;
use crate::client::AdminClient;

#[derive(Debug, Subcommand)]
pub(crate) enum DeliveriesCommand {
    /// List deliveries, newest first
    List {
        /// Only deliveries of this event or run
        #[arg(long, value_name = "ID")]
        event_id: Option<String>,
        /// Only this target
        #[arg(long)]
        target: Option<String>,
        /// Only this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only these states, separated by commas
        #[arg(long)]
        state: Option<String>,
        #[command(flatten)]
        paging: Paging,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show a delivery with every attempt
    Show {
        /// dlv_…
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
}

/// The part of a list that is shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct Paging {
    /// Maximum number of lines
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Continue an earlier list
    #[arg(long)]
    cursor: Option<String>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AuditArgs {
    /// Only changes of this: the id of a key, dead letter, replay job or run
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    #[command(flatten)]
    paging: Paging,
    #[command(flatten)]
    remote: Remote,
}

/// Runs `semel deliveries`.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn run(command: DeliveriesCommand) -> anyhow::Result<()> {
    match command {
        DeliveriesCommand::List { event_id, target, tenant, state, paging, remote } => {
            let mut query = QueryString::default();
            query.add("event_id", event_id.as_deref());
            query.add("target", target.as_deref());
            query.add("tenant", tenant.as_deref());
            query.add("state", state.as_deref());
            let pages = Pages::new(&remote, "/v1/deliveries", query)?.after(paging.cursor);
            let names = [
                "id",
                "state",
                "target",
                "type",
                "attempts_made",
                "due_at",
                "created_at",
                "event_id",
                "error",
            ];
            let titles = ["ID", "STATE", "TARGET", "TYPE", "ATTEMPTS", "DUE", "CREATED", "EVENT", "ERROR"];
            pages.collect(paging.limit).await?.show(&remote, |items| table(titles, &rows(items, names)))
        }
        DeliveriesCommand::Show { id, remote } => {
            let shown = get(&AdminClient::of(&remote)?, &format!("/v1/deliveries/{}", encode(&id))).await?;
            if remote.json { print(&shown) } else { show(shown) }
        }
    }
}

/// Runs `semel audit`.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn audit(args: AuditArgs) -> anyhow::Result<()> {
    let AuditArgs { subject, paging, remote } = args;
    let mut query = QueryString::default();
    query.add("subject", subject.as_deref());
    let pages = Pages::new(&remote, "/v1/audit", query)?.after(paging.cursor);
    let names = ["at", "who", "action", "subject", "reason"];
    let titles = ["WHEN", "WHO", "ACTION", "SUBJECT", "REASON"];
    pages.collect(paging.limit).await?.show(&remote, |items| table(titles, &rows(items, names)))
}

fn rows<const N: usize>(items: &[Value], names: [&str; N]) -> Vec<[String; N]> {
    items.iter().map(|item| names.map(|name| cell(item, name))).collect()
}

fn show(mut shown: Value) -> anyhow::Result<()> {
    let attempts = shown.as_object_mut().and_then(|shown| shown.shift_remove("attempts"));
    members(&shown)?;
    let attempts = attempts.as_ref().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if attempts.is_empty() {
        return Ok(());
    }
    write_line("")?;
    let names = ["attempt", "started_at", "latency_ms", "outcome", "http_status", "request_id", "error"];
    table(["ATTEMPT", "STARTED", "MS", "OUTCOME", "STATUS", "REQUEST", "ERROR"], &rows(attempts, names))
}
