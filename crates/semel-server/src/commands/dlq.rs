//! `semel dlq`: inspects and changes dead letters of a running server.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use super::remote::{Pages, QueryString, cell, counts, encode, get, members, print, read_payload, send};
use super::screen::{confirm, printable, table, write_line};
use crate::admin::dead_letters::{ChangeRequest, EditRequest};
use crate::cli::Remote;
use crate::client::AdminClient;

#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, newest first; those that are pending, unless --status names others
    List {
        #[command(flatten)]
        filter: DlqFilter,
        /// Maximum number of dead letters
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// Continue an earlier list
        #[arg(long)]
        cursor: Option<String>,
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
    /// Discard a dead letter, or all pending ones that match; they can be restored
    #[command(group = clap::ArgGroup::new("which").required(true).multiple(true).args(["id", "target", "tenant", "signature"]))]
    Discard {
        /// dlq_…
        #[arg(conflicts_with_all = ["target", "tenant", "signature"])]
        id: Option<String>,
        /// All pending ones of this target
        #[arg(long)]
        target: Option<String>,
        /// All pending ones of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// All pending ones with this failure signature, as printed by `dlq groups`
        #[arg(long)]
        signature: Option<String>,
        /// Reason, for the audit log
        #[arg(long)]
        reason: String,
        /// Discard all that match without a question
        #[arg(long)]
        yes: bool,
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
    /// Only this status: pending, replaying, replayed, discarded, parked; or all
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
/// The status of dead letters that wait for a decision.
const PENDING: &str = "pending";
const GROUPS: &str = "/v1/dead-letters/groups";

fn query(filter: &DlqFilter) -> QueryString {
    let mut query = QueryString::default();
    query.add("status", filter.status.as_deref().filter(|status| *status != "all"));
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
        DlqCommand::List { mut filter, limit, cursor, remote } => {
            filter.status.get_or_insert_with(|| PENDING.to_owned());
            let listed = Pages::new(&remote, PATH, query(&filter))?.after(cursor).collect(limit).await?;
            let names = ["id", "status", "target", "cause", "type", "attempts_made", "created_at", "error"];
            let titles = ["ID", "STATUS", "TARGET", "CAUSE", "TYPE", "ATTEMPTS", "CREATED", "ERROR"];
            listed.show(&remote, |items| table(titles, &rows(items, names)))
        }
        DlqCommand::Groups { filter, remote } => {
            let listed = Pages::new(&remote, GROUPS, query(&filter))?.next().await?.unwrap_or_default();
            if remote.json {
                return print(&json!({ "items": listed }));
            }
            let row = |item: &Value| {
                let [count, target, cause, last, sample, signature] =
                    ["count", "target", "cause", "last_at", "sample", "signature"]
                        .map(|name| cell(item, name));
                [count, counts(&item["by_status"]), target, cause, last, sample, signature]
            };
            let titles = ["COUNT", "STATUS", "TARGET", "CAUSE", "LAST", "SAMPLE", "SIGNATURE"];
            table(titles, &listed.iter().map(row).collect::<Vec<_>>())
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
        DlqCommand::Discard { id: Some(id), reason, remote, .. } => {
            change(&remote, &id, "discard", reason).await
        }
        DlqCommand::Discard { id: None, target, tenant, signature, reason, yes, remote } => {
            let filter = DlqFilter { status: Some(PENDING.to_owned()), target, tenant, signature };
            discard_all(&remote, &filter, &reason, yes).await
        }
        DlqCommand::Restore { id, reason, remote } => change(&remote, &id, "restore", reason).await,
    }
}

fn rows<const N: usize>(items: &[Value], names: [&str; N]) -> Vec<[String; N]> {
    items.iter().map(|item| names.map(|name| cell(item, name))).collect()
}

/// Discards every pending dead letter that matches, after it was said how many these are.
async fn discard_all(remote: &Remote, filter: &DlqFilter, reason: &str, yes: bool) -> anyhow::Result<()> {
    let client = AdminClient::of(remote)?;
    let groups = Pages::new(remote, GROUPS, query(filter))?.next().await?.unwrap_or_default();
    let count: u64 = groups.iter().filter_map(|group| group["count"].as_u64()).sum();
    if count > 0 {
        confirm(&format!("{count} pending dead letters match. Discard them?"), yes)?;
    }
    let request = ChangeRequest { reason: reason.to_owned() };
    let (mut discarded, mut pages) = (0_u64, Pages::new(remote, PATH, query(filter))?);
    while discarded < count
        && let Some(page) = pages.next().await?
    {
        for letter in page {
            let path = format!("{PATH}/{}/discard", encode(&cell(&letter, "id")));
            send(&client, Method::POST, &path, &request)
                .await
                .with_context(|| format!("{discarded} of {count} were discarded"))?;
            discarded += 1;
        }
    }
    if remote.json {
        return print(&json!({ "discarded": discarded }));
    }
    write_line(&format!("{discarded} discarded; `semel dlq list --status discarded` shows them"))
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
    table(["ATTEMPT", "STARTED", "MS", "OUTCOME", "STATUS", "REQUEST", "ERROR"], &rows)?;
    let told = attempts.iter().rev().find(|attempt| attempt["excerpt"].is_string());
    if let Some(attempt) = told {
        write_line("")?;
        write_line(&format!("The target's answer to attempt {} begins with:", cell(attempt, "attempt")))?;
        cell(attempt, "excerpt").lines().try_for_each(|line| write_line(&printable(line)))?;
    }
    Ok(())
}
