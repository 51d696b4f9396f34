//! `semel dlq`: inspects and changes dead letters of a running server.

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};

use super::deliveries::print_attempts;
use super::listing::{Pages, Paging, Watch};
use super::remote::{QueryString, cell, encode, get, members, print, read_payload, send, totals};
use super::screen::{confirm, moment, printable, write_line};
use super::table::table;
use super::targets::warn_if_unknown;
use crate::admin::dead_letters::{ChangeRequest, EditRequest};
use crate::cli::Remote;
use crate::client::{AdminClient, Request};

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
        DlqCommand::Discard { id: None, target, tenant, signature, reason, yes, remote } => {
            warn_if_unknown(&remote, target.as_deref()).await?;
            let filter = DlqFilter { status: Some(PENDING.to_owned()), target, tenant, signature };
            discard_all(&remote, &filter, &reason, yes).await
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

/// Discards every pending dead letter that matches, after it was said how many these are.
async fn discard_all(remote: &Remote, filter: &DlqFilter, reason: &str, yes: bool) -> anyhow::Result<()> {
    let client = AdminClient::of(remote)?;
    let counted = groups(&client, filter).await?;
    let items = counted["items"].as_array().into_iter().flatten();
    let count =
        match (items.filter_map(|group| group["count"].as_u64()).sum::<u64>(), counted["partial"] == true) {
            (0, false) => None,
            (count, true) => Some(format!("at least {count}")),
            (count, false) => Some(count.to_string()),
        };
    if let Some(count) = &count {
        confirm(&format!("{count} pending dead letters match. Discard them?"), yes).await?;
    }
    let request = ChangeRequest { reason: reason.to_owned() };
    let (mut discarded, mut refused) = (0_u64, Vec::new());
    let mut pages = Pages::new(&client, PATH, query(filter));
    if let Some(count) = &count {
        // Those that become pending meanwhile are newer than the first page.
        while let Some(page) = pages.next().await? {
            for letter in page {
                let id = cell(&letter, "id");
                let change = discard(&client, &id, &request).await;
                match change.with_context(|| format!("{discarded} of {count} were discarded"))? {
                    Change::Made => discarded += 1,
                    Change::Refused(error) => refused.push(json!({ "id": id, "error": error })),
                }
            }
        }
    }
    if remote.json {
        print(&json!({ "discarded": discarded, "refused": refused }))?;
    } else {
        match count {
            None => write_line("no pending dead letter matches; nothing was discarded")?,
            Some(_) => {
                write_line(&format!(
                    "{discarded} discarded; `semel dlq list --status discarded` shows them"
                ))?;
            }
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

/// The result of a change of one dead letter among many.
enum Change {
    Made,
    /// Its state does not permit it, with the server's words: another operator or a replay was faster.
    Refused(String),
}

/// Discards one dead letter.
async fn discard(client: &AdminClient, id: &str, request: &ChangeRequest) -> anyhow::Result<Change> {
    let path = format!("{PATH}/{}/discard", encode(id));
    let json = HeaderValue::from_static("application/json");
    let request = Request::new(Method::POST, &path).bytes(serde_json::to_string(request)?);
    let response = client.send(&request.header(header::CONTENT_TYPE, json)).await?;
    let answer: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    match (response.status, answer["detail"].as_str()) {
        (status, _) if status.is_success() => Ok(Change::Made),
        (StatusCode::CONFLICT | StatusCode::NOT_FOUND, Some(detail)) => {
            Ok(Change::Refused(detail.to_owned()))
        }
        (status, Some(detail)) => bail!("{detail} ({})", status.as_u16()),
        (status, None) => bail!("{} answered {status}", client.address()),
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
