//! `semel dlq`: inspects and changes dead letters of a running server.

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use super::deliveries::print_attempts;
use super::listing::{Pages, Paging, Watch};
use super::remote::{QueryString, cell, encode, get, members, print, read_payload, send, totals};
use super::screen::{confirm, moment, printable, write_line};
use super::table::table;
use super::targets::warn_if_unknown;
use crate::admin::dead_letters::{
    ChangeRequest, DiscardRequest, DiscardableStatus, EditRequest, MOST_DISCARDED,
};
use crate::cli::Remote;
use crate::client::AdminClient;

#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, newest first; those that are pending, unless --status names others
    List {
        #[command(flatten)]
        filter: DlqFilter,
        #[command(flatten)]
        paging: Paging,
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
        watch: Watch,
        #[command(flatten)]
        remote: Remote,
    },
    /// Discard a dead letter, or all that match; they can be restored
    #[command(group = clap::ArgGroup::new("which").required(true).multiple(true).args(["id", "status", "target", "tenant", "signature"]))]
    Discard {
        /// dlq_…
        #[arg(conflicts_with_all = ["status", "target", "tenant", "signature", "expected"])]
        id: Option<String>,
        /// All with this status; without it, pending ones
        #[arg(long, value_parser = [PENDING, "parked"])]
        status: Option<String>,
        /// All of this target
        #[arg(long)]
        target: Option<String>,
        /// All of this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// All with this failure signature, as printed by `dlq groups`
        #[arg(long)]
        signature: Option<String>,
        /// Discard nothing if another number matches
        #[arg(long, value_name = "N")]
        expected: Option<usize>,
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
        /// Target of the copy, if the dead letter has none or the copy is for another one
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
    /// Only this status; or all
    #[arg(long, value_parser = ["pending", "replaying", "replayed", "discarded", "parked", "all"])]
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
/// The server counts at most this number of dead letters.
const NOT_COUNTED: &str = "there are more than 100000 dead letters; only the newest 100000 are counted";

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
        DlqCommand::List { mut filter, paging, remote } => {
            filter.status.get_or_insert_with(|| PENDING.to_owned());
            warn_if_unknown(&remote, filter.target.as_deref()).await?;
            let row = |item: &Value| {
                let [id, status, target, cause, event_type, attempts, error] =
                    ["id", "status", "target", "cause", "type", "attempts_made", "error"]
                        .map(|name| cell(item, name));
                let created = moment(&cell(item, "created_at"));
                [id, status, target, cause, event_type, attempts, created, error]
            };
            let titles = ["ID", "STATUS", "TARGET", "CAUSE", "TYPE", "ATTEMPTS", "CREATED", "ERROR"];
            let show = |items: &[Value]| table(titles, &items.iter().map(row).collect::<Vec<_>>());
            paging.show(&remote, PATH, query(&filter), show).await
        }
        DlqCommand::Groups { filter, watch, remote } => {
            let client = &AdminClient::of(&remote)?;
            let fetch = || groups(client, &filter);
            watch.show(&remote, fetch, |groups| show_groups(&remote, &groups)).await
        }
        DlqCommand::Show { id, remote } => {
            let shown = get(&AdminClient::of(&remote)?, &format!("{PATH}/{}", encode(&id))).await?;
            if remote.json { print(&shown) } else { show(&shown) }
        }
        DlqCommand::Edit { id, payload, reason, target, remote } => {
            let request =
                EditRequest { payload: read_payload(&payload).await?, reason, target, r#type: None };
            let path = format!("{PATH}/{}/edit", encode(&id));
            let made = send(&AdminClient::of(&remote)?, Method::POST, &path, &request).await?;
            if remote.json {
                return print(&made);
            }
            let copy = cell(&made, "id");
            write_line(&format!(
                "{copy}: an edited copy of {id}; `semel replay --dlq --id {copy}` sends it"
            ))?;
            write_line(&format!(
                "{id} stays as it was: if it is pending, a replay of all failures sends both, unless `semel dlq discard {id}` removes it"
            ))
        }
        DlqCommand::Discard { id: Some(id), reason, remote, .. } => {
            change(&remote, &id, "discard", reason).await
        }
        DlqCommand::Discard {
            id: None,
            status,
            target,
            tenant,
            signature,
            expected,
            reason,
            yes,
            remote,
        } => {
            warn_if_unknown(&remote, target.as_deref()).await?;
            let status = status.unwrap_or_else(|| PENDING.to_owned());
            let filter = DlqFilter { status: Some(status), target, tenant, signature };
            discard_all(&remote, &filter, &reason, expected, yes).await
        }
        DlqCommand::Restore { id, reason, remote } => change(&remote, &id, "restore", reason).await,
    }
}

/// The groups, largest first. The server returns all of them on one page.
async fn groups(client: &AdminClient, filter: &DlqFilter) -> anyhow::Result<Value> {
    get(client, &format!("{GROUPS}{}", query(filter).as_str())).await
}

fn show_groups(remote: &Remote, groups: &Value) -> anyhow::Result<()> {
    if remote.json {
        return print(groups);
    }
    if groups["partial"] == true {
        eprintln!("{NOT_COUNTED}");
    }
    let row = |item: &Value| {
        let [count, target, cause, sample, signature] =
            ["count", "target", "cause", "sample", "signature"].map(|name| cell(item, name));
        let last = moment(&cell(item, "last_at"));
        [count, totals(&item["by_status"]), target, cause, last, sample, signature]
    };
    let titles = ["COUNT", "STATUS", "TARGET", "CAUSE", "LAST", "SAMPLE", "SIGNATURE"];
    table(titles, &groups["items"].as_array().into_iter().flatten().map(row).collect::<Vec<_>>())
}

/// Discards the dead letters that match when the command starts, after it said how many these are.
async fn discard_all(
    remote: &Remote,
    filter: &DlqFilter,
    reason: &str,
    expected: Option<usize>,
    yes: bool,
) -> anyhow::Result<()> {
    let client = AdminClient::of(remote)?;
    let name = filter.status.as_deref().unwrap_or(PENDING);
    let status =
        DiscardableStatus::of(name).with_context(|| format!("{name} dead letters cannot be discarded"))?;
    let (mut ids, mut pages) = (Vec::new(), Pages::new(&client, PATH, query(filter)));
    while let Some(page) = pages.next_longest().await? {
        ids.extend(page.iter().map(|letter| cell(letter, "id")));
    }
    let count = ids.len();
    if expected.is_some_and(|expected| expected != count) {
        bail!("{count} {name} dead letters match; nothing was discarded");
    }
    if count > 0 {
        confirm(&format!("{count} {name} dead letters match. Discard them?"), yes).await?;
    }
    let (mut discarded, mut refused) = (0, Vec::new());
    for ids in ids.chunks(MOST_DISCARDED) {
        let request = DiscardRequest {
            status,
            target: None,
            tenant: None,
            signature: None,
            ids: Some(ids.to_vec()),
            expected: ids.len() as u64,
            reason: reason.to_owned(),
        };
        let done = send(&client, Method::POST, &format!("{PATH}/discard"), &request).await;
        let done = done.with_context(|| format!("{discarded} of {count} were discarded before"))?;
        discarded += done["discarded"].as_u64().unwrap_or(0);
        let left = done["refused"].as_array().into_iter().flatten();
        refused.extend(left.map(|one| json!({ "id": one["id"], "error": one["error"] })));
    }
    if remote.json {
        print(&json!({ "discarded": discarded, "refused": refused }))?;
    } else {
        if count == 0 {
            write_line(&format!("no {name} dead letter matches; nothing was discarded"))?;
        } else {
            write_line(&format!("{discarded} discarded; `semel dlq list --status discarded` shows them"))?;
        }
        for one in &refused {
            eprintln!("{} was not discarded: {}", cell(one, "id"), printable(&cell(one, "error")));
        }
    }
    match refused.len() {
        0 => Ok(()),
        number => bail!("{number} dead letters were not discarded: others changed them meanwhile"),
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
    let attempts = shown["attempts"].as_array().map_or(&[][..], Vec::as_slice);
    if attempts.is_empty() {
        return Ok(());
    }
    write_line("")?;
    print_attempts(attempts)?;
    let told = attempts.iter().rev().find(|attempt| attempt["excerpt"].is_string());
    if let Some(attempt) = told {
        write_line("")?;
        write_line(&format!("The target's answer to attempt {} begins with:", cell(attempt, "attempt")))?;
        cell(attempt, "excerpt").lines().try_for_each(|line| write_line(&printable(line)))?;
    }
    Ok(())
}
