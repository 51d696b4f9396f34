//! `semel runs`: triggers, inspects and changes runs on a running server.

use anyhow::Context as _;
use http::Method;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::cli::{Remote, RunsCommand};
use crate::client::Client;
use crate::misused::Misused;
use crate::remote::{
    Pages, Query, ask, ask_raw, cell, encode, members, print, read_payload, table, write_line,
};

/// Runs the command.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) fn run(command: RunsCommand) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(execute(command))
}

/// The body of a trigger. The payload is sent byte for byte.
#[derive(Serialize)]
struct Trigger<'a> {
    target: &'a str,
    payload: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: &'a Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<&'a str>,
}

async fn execute(command: RunsCommand) -> anyhow::Result<()> {
    match command {
        RunsCommand::Trigger { target, payload, key, tenant, tag, delay, ttl, wait, remote } => {
            let payload: Box<RawValue> = serde_json::from_str(read_payload(&payload)?.trim())
                .context(Misused::new("--payload is not JSON"))?;
            let body = serde_json::to_string(&Trigger {
                target: &target,
                payload: &payload,
                tenant: tenant.as_deref(),
                idempotency_key: key.as_deref(),
                tags: &tag,
                delay: delay.as_deref(),
                ttl: ttl.as_deref(),
            })?;
            let client = Client::of(&remote)?;
            let path = if wait { "/v1/runs?wait=true" } else { "/v1/runs" };
            let done = ask_raw(&client, Method::POST, path, body).await?;
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
            let shown = ask(&remote, Method::GET, &format!("/v1/runs/{}", encode(&id)), None).await?;
            if remote.json { print(&shown) } else { members(&shown) }
        }
        RunsCommand::Cancel { id, reason, remote } => {
            let path = format!("/v1/runs/{}/cancel", encode(&id));
            let done = ask(&remote, Method::POST, &path, Some(&json!({ "reason": reason }))).await?;
            if remote.json {
                return print(&done);
            }
            write_line(&format!("{}: {}", cell(&done, "id"), cell(&done, "status")))
        }
        RunsCommand::Tag { id, tags, remote } => {
            let path = format!("/v1/runs/{}", encode(&id));
            let done = ask(&remote, Method::PATCH, &path, Some(&json!({ "add_tags": tags }))).await?;
            if remote.json {
                return print(&done);
            }
            write_line(&format!("{}: {}", cell(&done, "id"), cell(&done, "tags")))
        }
        RunsCommand::ResetKey { target, key, tenant, principal, reason, remote } => {
            let mut body = json!({ "target": target, "key": key, "reason": reason });
            for (name, value) in [("tenant", tenant), ("principal", principal)] {
                if let Some(value) = value {
                    body[name] = Value::String(value);
                }
            }
            let done = ask(&remote, Method::POST, "/v1/runs/reset-key", Some(&body)).await?;
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
    let mut query = Query::default();
    query.add("tenant", tenant.as_deref());
    if buffered {
        query.add("buffered", Some("true"));
        let page = ask(remote, Method::GET, &format!("/v1/runs{}", query.as_str()), None).await?;
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
