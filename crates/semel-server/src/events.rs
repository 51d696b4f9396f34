//! `semel events`: publishes and lists events of a running server, and shows the history of an action.

use http::Method;
use serde_json::{Value, json};

use crate::admin::events::PublishRequest;
use crate::cli::EventsCommand;
use crate::client::AdminClient;
use crate::remote::{Pages, QueryString, cell, encode, get, print, read_payload, send, table, write_line};

/// Runs the command.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) fn run(command: EventsCommand) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(execute(command))
}

async fn execute(command: EventsCommand) -> anyhow::Result<()> {
    match command {
        EventsCommand::Publish { event_type, dedupe_key, payload, tenant, order_key, delay, ttl, remote } => {
            let payload = read_payload(&payload)?;
            let event =
                PublishRequest { r#type: event_type, dedupe_key, payload, tenant, order_key, delay, ttl };
            let done = send(&AdminClient::of(&remote)?, Method::POST, "/v1/events", &event).await?;
            if remote.json {
                return print(&done);
            }
            let id = cell(&done, "id");
            if done["cached"] == true {
                return write_line(&format!("{id}  already accepted"));
            }
            let targets: Vec<&str> =
                done["targets"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let whom = if targets.is_empty() { "no target matches".to_owned() } else { targets.join(", ") };
            write_line(&format!("{id}  accepted: {whom}"))
        }
        EventsCommand::List { event_type, tenant, request_id, limit, remote } => {
            let mut query = QueryString::default();
            query.add("type", event_type.as_deref());
            query.add("tenant", tenant.as_deref());
            query.add("request_id", request_id.as_deref());
            let items = Pages::new(&remote, "/v1/events", query)?.collect(limit).await?;
            if remote.json {
                return print(&json!({ "items": items }));
            }
            let rows: Vec<[String; 5]> = items
                .iter()
                .map(|item| {
                    ["id", "type", "tenant", "dedupe_key", "accepted_at"].map(|name| cell(item, name))
                })
                .collect();
            table(["ID", "TYPE", "TENANT", "KEY", "ACCEPTED"], &rows)
        }
        EventsCommand::Show { id, remote } => {
            let story = get(&AdminClient::of(&remote)?, &format!("/v1/story/{}", encode(&id))).await?;
            if remote.json { print(&story) } else { tell(&story) }
        }
    }
}

fn tell(story: &Value) -> anyhow::Result<()> {
    for found in story["found"].as_array().into_iter().flatten() {
        let more = ["target", "type", "state", "cause"].map(|name| cell(found, name));
        let more: Vec<String> = more.into_iter().filter(|text| !text.is_empty()).collect();
        write_line(&format!("{:<12}  {}  {}", cell(found, "kind"), cell(found, "id"), more.join("  ")))?;
    }
    write_line("")?;
    let rows: Vec<[String; 4]> = story["timeline"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|moment| [cell(moment, "at"), cell(moment, "place"), cell(moment, "what"), details(moment)])
        .collect();
    table(["WHEN", "WHERE", "WHAT", ""], &rows)
}

/// All other members of an entry.
fn details(moment: &Value) -> String {
    let members = moment.as_object().into_iter().flatten();
    let told = members.filter(|(name, _)| !matches!(name.as_str(), "at" | "place" | "what"));
    let words = told.map(|(name, value)| match value {
        Value::String(text) if text.contains(' ') => format!("{name}={text:?}"),
        Value::String(text) => format!("{name}={text}"),
        other => format!("{name}={other}"),
    });
    words.collect::<Vec<_>>().join(" ")
}
