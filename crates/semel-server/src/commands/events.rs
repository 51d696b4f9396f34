//! `semel events`: publishes and lists events of a running server, and shows the history of an action.

use clap::Subcommand;
use http::{HeaderValue, Method, header};
use semel_pipeline::envelope::ENVELOPE_JSON;
use serde_json::Value;

use super::listing::Paging;
use super::remote::{QueryString, ask, cell, encode, get, next_attempt, print, read_payload, send, states};
use super::screen::{moment, write_line};
use super::table::{table, table_of_texts};
use crate::admin::events::PublishRequest;
use crate::cli::Remote;
use crate::client::{AdminClient, Request};

#[derive(Debug, Subcommand)]
pub(crate) enum EventsCommand {
    /// Publish one event, accepted once per type, deduplication key and tenant
    Publish {
        /// Type, such as order.paid
        #[arg(long = "type", value_name = "TYPE", required_unless_present = "envelope")]
        event_type: Option<String>,
        /// Deduplication key
        #[arg(long, value_name = "KEY", required_unless_present = "envelope")]
        dedupe_key: Option<String>,
        /// Payload: JSON, delivered byte for byte; @FILE reads it from a file, - from standard input
        #[arg(long, value_name = "JSON", required_unless_present = "envelope")]
        payload: Option<String>,
        /// Message in an envelope, as CloudEvents JSON, instead of all other options; @FILE reads it from a file, - from
        /// standard input
        #[arg(long, value_name = "JSON", conflicts_with_all = [
            "event_type", "dedupe_key", "payload", "tenant", "order_key", "delay", "ttl",
        ])]
        envelope: Option<String>,
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
        /// Only the event with this deduplication key; requires --type, and --tenant if it has one
        #[arg(long, value_name = "KEY", requires = "event_type")]
        dedupe_key: Option<String>,
        /// Only messages whose envelope has this id
        #[arg(long, value_name = "ID")]
        message_id: Option<String>,
        /// Only messages whose envelope has this correlation id
        #[arg(long, value_name = "ID")]
        correlation_id: Option<String>,
        /// Only messages whose envelope has this causation id
        #[arg(long, value_name = "ID")]
        causation_id: Option<String>,
        /// Only messages whose envelope has this trace id
        #[arg(long, value_name = "ID")]
        trace_id: Option<String>,
        /// Only messages whose envelope has this user
        #[arg(long)]
        user: Option<String>,
        #[command(flatten)]
        paging: Paging,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show the history of an action by any of its ids: an event, run, delivery, dead letter, replay, key, request or envelope
    Show {
        /// evt_…, run_…, dlv_…, dlq_…, the id of a key, a request id, or an id of an envelope
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
        EventsCommand::Publish {
            event_type,
            dedupe_key,
            payload,
            envelope,
            tenant,
            order_key,
            delay,
            ttl,
            remote,
        } => {
            let client = AdminClient::of(&remote)?;
            let done = if let Some(envelope) = envelope {
                let envelope = read_payload(&envelope).await?.get().to_owned();
                let json = HeaderValue::from_static(ENVELOPE_JSON);
                let request = Request::post("/v1/events").bytes(envelope);
                ask(&client, request.header(header::CONTENT_TYPE, json)).await?
            } else {
                // Required by the command line without an envelope.
                let payload = read_payload(&payload.unwrap_or_default()).await?;
                let (r#type, dedupe_key) = (event_type.unwrap_or_default(), dedupe_key.unwrap_or_default());
                let event = PublishRequest { r#type, dedupe_key, payload, tenant, order_key, delay, ttl };
                send(&client, Method::POST, "/v1/events", &event).await?
            };
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
        EventsCommand::List {
            event_type,
            tenant,
            request_id,
            dedupe_key,
            message_id,
            correlation_id,
            causation_id,
            trace_id,
            user,
            paging,
            remote,
        } => {
            let mut query = QueryString::default();
            for (name, value) in [
                ("type", event_type),
                ("tenant", tenant),
                ("request_id", request_id),
                ("dedupe_key", dedupe_key),
                ("message_id", message_id),
                ("correlation_id", correlation_id),
                ("causation_id", causation_id),
                ("trace_id", trace_id),
                ("user", user),
            ] {
                query.add(name, value.as_deref());
            }
            let row = |item: &Value| {
                let [id, event_type, tenant, key] =
                    ["id", "type", "tenant", "dedupe_key"].map(|name| cell(item, name));
                let accepted = moment(&cell(item, "accepted_at"));
                [id, states(&item["states"]), event_type, tenant, key, accepted]
            };
            let titles = ["ID", "STATE", "TYPE", "TENANT", "KEY", "ACCEPTED"];
            let show = |items: &[Value]| table(titles, &items.iter().map(row).collect::<Vec<_>>());
            paging.show(&remote, "/v1/events", query, show).await
        }
        EventsCommand::Show { id, remote } => {
            let story = get(&AdminClient::of(&remote)?, &format!("/v1/story/{}", encode(&id))).await?;
            if remote.json { print(&story) } else { print_story(&story) }
        }
    }
}

fn print_story(story: &Value) -> anyhow::Result<()> {
    let found = story["found"].as_array().into_iter().flatten();
    let rows: Vec<[String; 6]> = found
        .map(|found| ["id", "kind", "state", "target", "type", "cause"].map(|name| cell(found, name)))
        .collect();
    table(["ID", "KIND", "STATE", "TARGET", "TYPE", "CAUSE"], &rows)?;
    for found in story["found"].as_array().into_iter().flatten() {
        let more: Vec<String> = [next_attempt(found), cell(found, "waiting")]
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect();
        if !more.is_empty() {
            write_line(&format!("{}: {}", cell(found, "id"), more.join("; ")))?;
        }
    }
    write_line("")?;
    let rows: Vec<[String; 4]> = story["timeline"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|moment| [cell(moment, "at"), cell(moment, "place"), cell(moment, "what"), details(moment)])
        .collect();
    table_of_texts(["WHEN", "WHERE", "WHAT", ""], &rows)?;
    // What was answered before, by this process, is nowhere.
    if let (Some(since), Some(first)) = (story["answers_since"].as_str(), story["timeline"][0]["at"].as_str())
        && first < since
    {
        eprintln!(
            "this server lists its answers since {since}: what it answered before is not listed, except by the request that claimed \
             the key last"
        );
    }
    if let Some(left_out @ 1..) = story["requests_left_out"].as_u64() {
        eprintln!("{left_out} earlier requests with the key are not listed");
    }
    Ok(())
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
