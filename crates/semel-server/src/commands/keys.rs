//! `semel keys`: inspects keys of a running server and settles those in doubt.

use anyhow::Context as _;
use clap::Subcommand;
use http::Method;
use serde::Serialize;
use serde_json::{Value, json};

use super::remote::{Pages, QueryString, encode, get, members, print, send, write_line};
use crate::admin::keys::{ForgetRequest, SettleRequest};
use crate::cli::Remote;
use crate::client::AdminClient;
use crate::misused::Misused;

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List keys, or find one by namespace, scope and value
    List {
        /// Only keys in this phase: claimed, begun, lapsed, in_doubt, done, bound, expired, vacant
        #[arg(long)]
        phase: Option<String>,
        /// Only keys whose value begins with this; eight characters are stored
        #[arg(long)]
        hint: Option<String>,
        /// Find one key: its namespace
        #[arg(long, requires = "key")]
        namespace: Option<String>,
        /// Find one key: its scope; repeat it for several parts
        #[arg(long, requires = "key")]
        scope: Vec<String>,
        /// Find one key: its value
        #[arg(long, requires = "namespace")]
        key: Option<String>,
        /// Maximum number of keys
        #[arg(long, default_value_t = 100)]
        limit: usize,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show one key
    Show {
        /// The key's id, 32 hex characters
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Remove a record: the next call with its key runs again
    Forget {
        /// The key's id, 32 hex characters
        id: String,
        /// Reason, for the audit log
        #[arg(long)]
        reason: String,
        /// Even if it is claimed or in doubt
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Settle a key in doubt
    #[command(group = clap::ArgGroup::new("fate").required(true).args(["run", "outcome"]))]
    Settle {
        /// The key's id, 32 hex characters
        id: String,
        /// The effect did not happen: the same request may run again
        #[arg(long)]
        run: bool,
        /// The effect happened, with this outcome: JSON; {"status": 201, "body": …} for a gateway's answer
        #[arg(long, value_name = "JSON")]
        outcome: Option<String>,
        /// Reason, for the audit log
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Write every key as one line of JSON
    Export {
        /// Only keys in this phase
        #[arg(long)]
        phase: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
}

const PATH: &str = "/v1/keys";

/// Runs the command.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn run(command: KeysCommand) -> anyhow::Result<()> {
    match command {
        KeysCommand::List { phase, hint, namespace, scope, key, limit, remote } => {
            let mut query = QueryString::default();
            query.add("phase", phase.as_deref());
            query.add("hint", hint.as_deref());
            query.add("namespace", namespace.as_deref());
            for part in &scope {
                query.add("scope", Some(part));
            }
            query.add("key", key.as_deref());
            let items = Pages::new(&remote, PATH, query)?.collect(limit).await?;
            if remote.json { print(&json!({ "items": items })) } else { table(&items) }
        }
        KeysCommand::Show { id, remote } => {
            let shown = get(&AdminClient::of(&remote)?, &format!("/v1/keys/{}", encode(&id))).await?;
            if remote.json { print(&shown) } else { members(&shown) }
        }
        KeysCommand::Forget { id, reason, force, remote } => {
            change(&remote, &id, "forget", &ForgetRequest { reason, force }).await
        }
        KeysCommand::Settle { id, run, outcome, reason, remote } => {
            let outcome = outcome.map(|outcome| serde_json::from_str(&outcome)).transpose();
            let outcome = outcome.context(Misused::new("--outcome is not JSON"))?;
            let body = SettleRequest { reason, run: run && outcome.is_none(), outcome };
            change(&remote, &id, "settle", &body).await
        }
        KeysCommand::Export { phase, remote } => {
            let mut query = QueryString::default();
            query.add("phase", phase.as_deref());
            query.add("limit", Some("1000"));
            let mut pages = Pages::new(&remote, PATH, query)?;
            while let Some(page) = pages.next().await? {
                for item in page {
                    print(&item)?;
                }
            }
            Ok(())
        }
    }
}

async fn change(remote: &Remote, id: &str, action: &str, body: &impl Serialize) -> anyhow::Result<()> {
    let path = format!("/v1/keys/{}/{action}", encode(id));
    let done = send(&AdminClient::of(remote)?, Method::POST, &path, body).await?;
    if remote.json {
        return print(&done);
    }
    let text = |name: &str| done[name].as_str().unwrap_or_default().to_owned();
    write_line(&format!("{}: {} -> {}", text("id"), text("before"), text("after")))
}

fn table(items: &[Value]) -> anyhow::Result<()> {
    write_line(&format!(
        "{:<32}  {:<8}  {:<8}  {:<6}  {:>7}  CHANGED",
        "ID", "KEY", "PHASE", "MODE", "ATTEMPT"
    ))?;
    for item in items {
        let text = |name: &str| item[name].as_str().unwrap_or_default();
        write_line(&format!(
            "{:<32}  {:<8}  {:<8}  {:<6}  {:>7}  {}",
            text("id"),
            text("key"),
            text("phase"),
            text("mode"),
            item["attempt"],
            text("changed_at"),
        ))?;
    }
    Ok(())
}
