//! `semel runs`: triggers, inspects and changes runs on a running server.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use clap::Subcommand;
use http::Method;
use serde_json::Value;

use super::listing::Paging;
use super::remote::{
    QueryString, cell, encode, get, members, next_attempt, print, read_payload, send, states, texts,
};
use super::screen::{moment, readable, write_line};
use super::table::table;
use crate::admin::runs::{CancelRequest, PatchRequest, ResetRequest, TriggerRequest};
use crate::cli::Remote;
use crate::client::AdminClient;

#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// Trigger a run of a target
    Trigger {
        /// Name of the target in the config
        target: String,
        /// Payload: JSON; @FILE reads a file, - standard input
        #[arg(long, default_value = "{}")]
        payload: String,
        /// Key of the run: another trigger with the same key is the same run
        #[arg(long)]
        key: Option<String>,
        /// Tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Tag to find it by; can be repeated
        #[arg(long)]
        tag: Vec<String>,
        /// Delay before the run starts
        #[arg(long, value_name = "DURATION")]
        delay: Option<String>,
        /// How long the key is remembered
        #[arg(long, value_name = "DURATION")]
        ttl: Option<String>,
        /// Wait until the run has ended, at most 30s; fails unless it is done
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// List runs, newest first
    List {
        /// Only this target
        #[arg(long)]
        target: Option<String>,
        /// Only this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only this tag
        #[arg(long)]
        tag: Option<String>,
        /// Show the number of buffered runs instead
        #[arg(long, conflicts_with_all = ["target", "tag", "cursor"])]
        buffered: bool,
        #[command(flatten)]
        paging: Paging,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show a run, buffered or not
    Show {
        /// run_…
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Cancel a run that has not started
    Cancel {
        /// run_…
        id: String,
        /// Reason, for the audit log
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Add tags to a run
    Tag {
        /// run_…
        id: String,
        /// Tags to add
        #[arg(required = true)]
        tags: Vec<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Reset a key: the next trigger with it is a new run
    ResetKey {
        /// Name of the target in the config
        target: String,
        /// The key
        key: String,
        /// Tenant of the run
        #[arg(long)]
        tenant: Option<String>,
        /// Name of the token that triggered it, if it was another one
        #[arg(long)]
        principal: Option<String>,
        /// Reason, for the audit log
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
}

/// Runs the command.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn run(command: RunsCommand) -> anyhow::Result<()> {
    match command {
        RunsCommand::Trigger { target, payload, key, tenant, tag, delay, ttl, wait, remote } => {
            let request = TriggerRequest {
                target,
                payload: read_payload(&payload).await?,
                tenant,
                tags: tag,
                metadata: BTreeMap::new(),
                delay,
                ttl,
                idempotency_key: key,
            };
            let path = if wait { "/v1/runs?wait=true" } else { "/v1/runs" };
            let done = send(&AdminClient::of(&remote)?, Method::POST, path, &request).await?;
            if remote.json {
                print(&done)?;
                return is_done(&done);
            }
            let how = match (done["cached"] == true, done["buffered"] == true) {
                (true, _) => "already triggered",
                (false, true) => "triggered, buffered",
                (false, false) => "triggered",
            };
            let status = cell(&done, "status");
            write_line(format!("{}  {how}  {status}", cell(&done, "id")).trim_end())?;
            is_done(&done)
        }
        RunsCommand::List { tenant, buffered: true, paging, remote, .. } => {
            let mut query = QueryString::default();
            query.add("tenant", tenant.as_deref());
            query.add("buffered", Some("true"));
            let (client, path) = (&AdminClient::of(&remote)?, &format!("/v1/runs{}", query.as_str()));
            paging.watch.show(&remote, || get(client, path), |page| show_buffered(&remote, &page)).await
        }
        RunsCommand::List { target, tenant, tag, buffered: false, paging, remote } => {
            let mut query = QueryString::default();
            query.add("tenant", tenant.as_deref());
            query.add("target", target.as_deref());
            query.add("tag", tag.as_deref());
            let row = |item: &Value| {
                let [id, target, tenant, key] =
                    ["id", "type", "tenant", "dedupe_key"].map(|name| cell(item, name));
                let (tags, accepted) = (texts(&item["tags"]), moment(&cell(item, "accepted_at")));
                [id, states(&item["states"]), target, tenant, key, tags, accepted]
            };
            let titles = ["ID", "STATE", "TARGET", "TENANT", "KEY", "TAGS", "ACCEPTED"];
            let show = |items: &[Value]| table(titles, &items.iter().map(row).collect::<Vec<_>>());
            paging.show(&remote, "/v1/runs", query, show).await
        }
        RunsCommand::Show { id, remote } => {
            let shown = get(&AdminClient::of(&remote)?, &format!("/v1/runs/{}", encode(&id))).await?;
            if remote.json { print(&shown) } else { show(shown) }
        }
        RunsCommand::Cancel { id, reason, remote } => {
            let path = format!("/v1/runs/{}/cancel", encode(&id));
            let done =
                send(&AdminClient::of(&remote)?, Method::POST, &path, &CancelRequest { reason }).await?;
            if remote.json {
                return print(&done);
            }
            write_line(&format!("{}: {}", cell(&done, "id"), cell(&done, "status")))
        }
        RunsCommand::Tag { id, tags, remote } => {
            let path = format!("/v1/runs/{}", encode(&id));
            let change = PatchRequest { add_tags: tags, ..PatchRequest::default() };
            let done = send(&AdminClient::of(&remote)?, Method::PATCH, &path, &change).await?;
            if remote.json {
                return print(&done);
            }
            write_line(&format!("{}: {}", cell(&done, "id"), cell(&done, "tags")))
        }
        RunsCommand::ResetKey { target, key, tenant, principal, reason, remote } => {
            let request = ResetRequest { target, key, tenant, principal, reason };
            let done = send(&AdminClient::of(&remote)?, Method::POST, "/v1/runs/reset-key", &request).await?;
            if remote.json {
                return print(&done);
            }
            match done["reset"] == true {
                true => write_line(&format!("the key of {} is free", cell(&done, "id"))),
                false => write_line("no run had this key"),
            }
        }
    }
}

/// An error unless the run that was waited for is done, so that scripts notice.
fn is_done(triggered: &Value) -> anyhow::Result<()> {
    let id = cell(triggered, "id");
    match triggered["status"].as_str() {
        None | Some("done") => Ok(()),
        Some("dlq" | "blocked" | "cancelled") => {
            bail!("the run failed; `semel events show {id}` says why")
        }
        Some(status) => {
            let next = next_attempt(triggered);
            let next = if next.is_empty() { next } else { format!(", {next}") };
            bail!("the run has not ended: it is {status}{next}; `semel runs show {id}` shows its state")
        }
    }
}

fn show(mut shown: Value) -> anyhow::Result<()> {
    let deliveries = shown.as_object_mut().and_then(|shown| shown.shift_remove("deliveries"));
    members(&shown)?;
    let row = |item: &Value| {
        let [id, state, attempts, error] =
            ["id", "state", "attempts_made", "error"].map(|name| cell(item, name));
        let [due, completed] = ["due_at", "completed_at"].map(|name| moment(&cell(item, name)));
        [id, state, attempts, due, completed, error]
    };
    let deliveries: Vec<_> =
        deliveries.as_ref().and_then(Value::as_array).into_iter().flatten().map(row).collect();
    if deliveries.is_empty() {
        return Ok(());
    }
    write_line("")?;
    table(["DELIVERY", "STATE", "ATTEMPTS", "DUE", "COMPLETED", "ERROR"], &deliveries)
}

fn show_buffered(remote: &Remote, page: &Value) -> anyhow::Result<()> {
    if remote.json {
        return print(page);
    }
    let row = |item: &Value| {
        let [tenant, queued, in_transit] = ["tenant", "queued", "in_transit"].map(|name| cell(item, name));
        let oldest = item["oldest_seconds"].as_f64().map(|age| readable(Duration::from_secs_f64(age)));
        // The tenant of a run without one is an empty text.
        let tenant = if tenant.is_empty() { "-".to_owned() } else { tenant };
        [tenant, queued, in_transit, oldest.unwrap_or_default()]
    };
    let counted = page["tenants"].as_array().into_iter().flatten();
    table(["TENANT", "QUEUED", "IN TRANSIT", "OLDEST"], &counted.map(row).collect::<Vec<_>>())
}
