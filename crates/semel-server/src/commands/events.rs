//! `semel events`: publishes and lists events of a running server, and shows the history of an action.

use clap::Subcommand;
use http::Method;
use serde_json::Value;

use super::remote::{Pages, QueryString, cell, counts, encode, get, print, read_payload, send};
use super::screen::{table, write_line};
use crate::admin::events::PublishRequest;
use crate::cli::Remote;
use crate::client::AdminClient;

#[derive(Debug, Subcommand)]
pub(crate) enum EventsCommand {
    /// Publish one event, accepted once per type, deduplication key and tenant
    Publish {
        /// Type, such as order.paid
        #[arg(long = "type", value_name = "TYPE")]
        event_type: String,
        /// Deduplication key
        #[arg(long, value_name = "KEY")]
        dedupe_key: String,
        /// Payload: JSON, delivered byte for byte; @FILE reads it from a file, - from standard input
        #[arg(long, value_name = "JSON")]
        payload: String,
        /// Tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Deliveries with the same order key are made one after the other
        #[arg(long, value_name = "KEY")]
        order_key: Option<String>,
        /// Delay of the first attempt
        #[arg(long, value_name = "DURATION")]
        delay: Option<String>,
        /// Expire after this time: it is not delivered any more
        #[arg(long, value_name = "DURATION")]
        ttl: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// List events, newest first
    List {
        /// Only this type
        #[arg(long = "type", value_name = "TYPE")]
        event_type: Option<String>,
        /// Only this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only events with this request id
        #[arg(long, value_name = "ID")]
        request_id: Option<String>,
        /// Maximum number of events
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// Continue an earlier list
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show the history of an action by any of its ids: an event, run, delivery, dead letter, replay, key or request
    Show {
        /// evt_…, run_…, dlv_…, dlq_…, the id of a key, or a request id
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
}

/// Runs the command.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn run(command: EventsCommand) -> anyhow::Result<()> {
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
        EventsCommand::List { event_type, tenant, request_id, limit, cursor, remote } => {
            let mut query = QueryString::default();
            query.add("type", event_type.as_deref());
            query.add("tenant", tenant.as_deref());
            query.add("request_id", request_id.as_deref());
            let listed = Pages::new(&remote, "/v1/events", query)?.after(cursor).collect(limit).await?;
            let names = ["id", "type", "tenant", "dedupe_key", "accepted_at"];
            listed.show(&remote, |items| {
                let row = |item: &Value| {
                    let [id, event_type, tenant, key, accepted] = names.map(|name| cell(item, name));
                    [id, counts(&item["states"]), event_type, tenant, key, accepted]
                };
                let titles = ["ID", "STATE", "TYPE", "TENANT", "KEY", "ACCEPTED"];
                table(titles, &items.iter().map(row).collect::<Vec<_>>())
            })
        }
        EventsCommand::Show { id, remote } => {
            let story = get(&AdminClient::of(&remote)?, &format!("/v1/story/{}", encode(&id))).await?;
            if remote.json { print(&story) } else { print_story(&story) }
        }
    }
}

fn print_story(story: &Value) -> anyhow::Result<()> {
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
