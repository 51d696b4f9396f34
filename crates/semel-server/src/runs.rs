//! `semel runs`: triggers, inspects and changes runs on a running server.

use std::collections::BTreeMap;

use http::Method;
use serde_json::json;

use crate::admin::runs::{CancelRequest, PatchRequest, ResetRequest, TriggerRequest};
use crate::cli::{Remote, RunsCommand};
use crate::client::AdminClient;
use crate::remote::{
    Pages, QueryString, cell, encode, get, members, print, read_payload, send, table, write_line,
};

/// Runs the command.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) fn run(command: RunsCommand) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(execute(command))
}

async fn execute(command: RunsCommand) -> anyhow::Result<()> {
    match command {
        RunsCommand::Trigger { target, payload, key, tenant, tag, delay, ttl, wait, remote } => {
            let request = TriggerRequest {
                target,
                payload: read_payload(&payload)?,
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
                return print(&done);
            }
            let how = match (done["cached"] == true, done["buffered"] == true) {
                (true, _) => "already triggered",
                (false, true) => "triggered, buffered",
                (false, false) => "triggered",
            };
            let status = cell(&done, "status");
            write_line(format!("{}  {how}  {status}", cell(&done, "id")).trim_end())
        }
        RunsCommand::List { target, tenant, tag, buffered, limit, remote } => {
            list(&remote, (target, tenant, tag), buffered, limit).await
        }
        RunsCommand::Show { id, remote } => {
            let shown = get(&AdminClient::of(&remote)?, &format!("/v1/runs/{}", encode(&id))).await?;
            if remote.json { print(&shown) } else { members(&shown) }
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

async fn list(
    remote: &Remote,
    (target, tenant, tag): (Option<String>, Option<String>, Option<String>),
    buffered: bool,
    limit: usize,
) -> anyhow::Result<()> {
    let mut query = QueryString::default();
    query.add("tenant", tenant.as_deref());
    if buffered {
        query.add("buffered", Some("true"));
        let page = get(&AdminClient::of(remote)?, &format!("/v1/runs{}", query.as_str())).await?;
        if remote.json {
            return print(&page);
        }
        let counted = page["tenants"].as_array().into_iter().flatten();
        let names = ["tenant", "queued", "in_transit", "oldest_seconds"];
        let rows: Vec<[String; 4]> = counted.map(|item| names.map(|name| cell(item, name))).collect();
        return table(["TENANT", "QUEUED", "IN TRANSIT", "OLDEST (S)"], &rows);
    }
    query.add("target", target.as_deref());
    query.add("tag", tag.as_deref());
    let items = Pages::new(remote, "/v1/runs", query)?.collect(limit).await?;
    if remote.json {
        return print(&json!({ "items": items }));
    }
    let names = ["id", "type", "tenant", "dedupe_key", "tags", "accepted_at"];
    let rows: Vec<[String; 6]> = items.iter().map(|item| names.map(|name| cell(item, name))).collect();
    table(["ID", "TARGET", "TENANT", "KEY", "TAGS", "ACCEPTED"], &rows)
}
