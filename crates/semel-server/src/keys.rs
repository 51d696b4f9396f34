//! `semel keys`: inspects keys of a running server and settles those in doubt.

use anyhow::Context as _;
use http::Method;
use serde::Serialize;
use serde_json::{Value, json};

use crate::admin::keys::{ForgetRequest, SettleRequest};
use crate::cli::{KeysCommand, Remote};
use crate::client::AdminClient;
use crate::misused::Misused;
use crate::remote::{Pages, QueryString, encode, get, members, print, send, write_line};

const PATH: &str = "/v1/keys";

/// Runs the command.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) fn run(command: KeysCommand) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(execute(command))
}

async fn execute(command: KeysCommand) -> anyhow::Result<()> {
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
