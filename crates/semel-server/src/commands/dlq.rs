//! `semel dlq`: inspects and changes dead letters of a running server.

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use super::remote::{Pages, QueryString, cell, encode, get, members, print, read_payload, send};
use super::screen::{table, write_line};
use crate::admin::dead_letters::{ChangeRequest, EditRequest};
use crate::cli::Remote;
use crate::client::AdminClient;

#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, newest first
    List {
        #[command(flatten)]
        filter: DlqFilter,
        /// Maximum number of dead letters
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show one dead letter with every attempt
    Show {
        /// dlq_…
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show groups of similar failures, largest first
    Groups {
        #[command(flatten)]
        filter: DlqFilter,
        #[command(flatten)]
        remote: Remote,
    },
    /// Discard a dead letter; it can be restored
    Discard {
        /// dlq_…
        id: String,
        /// Reason, for the audit log
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Create a copy with another payload, which can be replayed
    Edit {
        /// dlq_…
        id: String,
        /// Payload: JSON; @FILE reads a file, - standard input
        #[arg(long)]
        payload: String,
        /// Reason, for the audit log
        #[arg(long)]
        reason: String,
        /// Tenant, if the dead letter has none
        #[arg(long)]
        target: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Restore a discarded dead letter; a parked one becomes pending again
    Restore {
        /// dlq_…
        id: String,
        /// Reason, for the audit log
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
}

/// A filter for dead letters.
#[derive(Clone, Debug, Args)]
pub(crate) struct DlqFilter {
    /// Only this status: pending, replaying, replayed, discarded, parked
    #[arg(long)]
    pub(crate) status: Option<String>,
    /// Only this target
    #[arg(long)]
    pub(crate) target: Option<String>,
    /// Only this tenant
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Only this failure signature, as printed by `dlq groups`
    #[arg(long)]
    pub(crate) signature: Option<String>,
}

const PATH: &str = "/v1/dead-letters";
const GROUPS: &str = "/v1/dead-letters/groups";

fn query(filter: &DlqFilter) -> QueryString {
    let mut query = QueryString::default();
    query.add("status", filter.status.as_deref());
    query.add("target", filter.target.as_deref());
    query.add("tenant", filter.tenant.as_deref());
    query.add("signature", filter.signature.as_deref());
    query
}

/// Runs the command.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn run(command: DlqCommand) -> anyhow::Result<()> {
    match command {
        DlqCommand::List { filter, limit, remote } => {
            let items = Pages::new(&remote, PATH, query(&filter))?.collect(limit).await?;
            if remote.json {
                return print(&json!({ "items": items }));
            }
            let names = ["id", "status", "target", "cause", "type", "attempts_made", "created_at", "error"];
            let rows: Vec<[String; 8]> =
                items.iter().map(|item| names.map(|name| cell(item, name))).collect();
            table(["ID", "STATUS", "TARGET", "CAUSE", "TYPE", "ATTEMPTS", "CREATED", "ERROR"], &rows)
        }
        DlqCommand::Groups { filter, remote } => {
            let items = Pages::new(&remote, GROUPS, query(&filter))?.collect(usize::MAX).await?;
            if remote.json {
                return print(&json!({ "items": items }));
            }
            let names = ["count", "target", "cause", "last_at", "sample", "signature"];
            let rows: Vec<[String; 6]> =
                items.iter().map(|item| names.map(|name| cell(item, name))).collect();
            table(["COUNT", "TARGET", "CAUSE", "LAST", "SAMPLE", "SIGNATURE"], &rows)
        }
        DlqCommand::Show { id, remote } => {
            let shown = get(&AdminClient::of(&remote)?, &format!("{PATH}/{}", encode(&id))).await?;
            if remote.json { print(&shown) } else { show(&shown) }
        }
        DlqCommand::Edit { id, payload, reason, target, remote } => {
            let request = EditRequest { payload: read_payload(&payload)?, reason, target, r#type: None };
            let path = format!("{PATH}/{}/edit", encode(&id));
            let made = send(&AdminClient::of(&remote)?, Method::POST, &path, &request).await?;
            if remote.json {
                return print(&made);
            }
            let copy = cell(&made, "id");
            write_line(&format!("{copy}: an edited copy of {id}; `semel replay --dlq --id {copy}` sends it"))
        }
        DlqCommand::Discard { id, reason, remote } => change(&remote, &id, "discard", reason).await,
        DlqCommand::Restore { id, reason, remote } => change(&remote, &id, "restore", reason).await,
    }
}

async fn change(remote: &Remote, id: &str, action: &str, reason: String) -> anyhow::Result<()> {
    let path = format!("{PATH}/{}/{action}", encode(id));
    let done = send(&AdminClient::of(remote)?, Method::POST, &path, &ChangeRequest { reason }).await?;
    if remote.json {
        return print(&done);
    }
    write_line(&format!("{}: {}", cell(&done, "id"), cell(&done, "status")))
}

fn show(shown: &Value) -> anyhow::Result<()> {
    let mut head = shown.clone();
    if let Value::Object(head) = &mut head {
        head.shift_remove("attempts");
    }
    members(&head)?;
    let attempts: Vec<&Value> = shown["attempts"].as_array().into_iter().flatten().collect();
    if attempts.is_empty() {
        return Ok(());
    }
    write_line("")?;
    let names = ["attempt", "started_at", "latency_ms", "outcome", "http_status", "request_id", "error"];
    let rows: Vec<[String; 7]> = attempts.iter().map(|item| names.map(|name| cell(item, name))).collect();
    table(["ATTEMPT", "STARTED", "MS", "OUTCOME", "STATUS", "REQUEST", "ERROR"], &rows)
}
