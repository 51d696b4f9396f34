//! `semel deliveries` and `semel audit`: lists of a running server.

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Subcommand};
use semel_pipeline::delivery::DeliveryState;
use serde_json::Value;

use super::listing::Paging;
use super::remote::{QueryString, cell, encode, get, members, print};
use super::screen::{moment, readable, write_line};
use super::table::table;
use super::targets::warn_if_unknown;
use crate::cli::Remote;
use crate::client::AdminClient;

#[derive(Debug, Subcommand)]
pub(crate) enum DeliveriesCommand {
    /// List deliveries, newest first
    List {
        /// Only deliveries of this event or run
        #[arg(long, value_name = "ID")]
        event_id: Option<String>,
        /// Only this target
        #[arg(long)]
        target: Option<String>,
        /// Only this tenant
        #[arg(long)]
        tenant: Option<String>,
        /// Only these states, separated by commas
        #[arg(long, value_name = "STATES", value_delimiter = ',', value_parser = states())]
        state: Vec<String>,
        #[command(flatten)]
        paging: Paging,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show a delivery with every attempt
    Show {
        /// dlv_…
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AuditArgs {
    /// Only changes of this: the id of a key, dead letter, replay job or run
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    #[command(flatten)]
    paging: Paging,
    #[command(flatten)]
    remote: Remote,
}

fn states() -> PossibleValuesParser {
    DeliveryState::ALL.map(|state| PossibleValue::new(state.as_str())).to_vec().into()
}

/// Runs `semel deliveries`.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn run(command: DeliveriesCommand) -> anyhow::Result<()> {
    match command {
        DeliveriesCommand::List { event_id, target, tenant, state, paging, remote } => {
            warn_if_unknown(&remote, target.as_deref()).await?;
            let mut query = QueryString::default();
            query.add("event_id", event_id.as_deref());
            query.add("target", target.as_deref());
            query.add("tenant", tenant.as_deref());
            query.add("state", (!state.is_empty()).then(|| state.join(",")).as_deref());
            let titles = ["ID", "STATE", "TARGET", "TYPE", "ATTEMPTS", "DUE", "CREATED", "EVENT", "ERROR"];
            let show = |items: &[Value]| table(titles, &items.iter().map(row).collect::<Vec<_>>());
            paging.show(&remote, "/v1/deliveries", query, show).await
        }
        DeliveriesCommand::Show { id, remote } => {
            let shown = get(&AdminClient::of(&remote)?, &format!("/v1/deliveries/{}", encode(&id))).await?;
            if remote.json { print(&shown) } else { show(shown) }
        }
    }
}

/// Runs `semel audit`.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn audit(args: AuditArgs) -> anyhow::Result<()> {
    let AuditArgs { subject, paging, remote } = args;
    let mut query = QueryString::default();
    query.add("subject", subject.as_deref());
    let names = ["who", "action", "subject", "before", "after", "reason"];
    let row = |item: &Value| {
        let [who, action, subject, before, after, reason] = names.map(|name| cell(item, name));
        [moment(&cell(item, "at")), who, action, subject, before, after, reason]
    };
    let titles = ["WHEN", "WHO", "ACTION", "SUBJECT", "BEFORE", "AFTER", "REASON"];
    let show = |items: &[Value]| table(titles, &items.iter().map(row).collect::<Vec<_>>());
    paging.show(&remote, "/v1/audit", query, show).await
}

fn row(item: &Value) -> [String; 9] {
    let [id, state, target, event_type, attempts, event, error] =
        ["id", "state", "target", "type", "attempts_made", "event_id", "error"].map(|name| cell(item, name));
    let [due, created] = ["due_at", "created_at"].map(|name| moment(&cell(item, name)));
    [id, state, target, event_type, attempts, due, created, event, error]
}

/// Prints the attempts of a delivery or a dead letter.
pub(super) fn print_attempts(attempts: &[Value]) -> anyhow::Result<()> {
    let row = |item: &Value| {
        let [attempt, started, outcome, status, request, error] =
            ["attempt", "started_at", "outcome", "http_status", "request_id", "error"]
                .map(|name| cell(item, name));
        let took = item["latency_ms"].as_f64().map(|millis| readable(Duration::from_secs_f64(millis / 1e3)));
        [attempt, started, took.unwrap_or_default(), outcome, status, request, error]
    };
    let titles = ["ATTEMPT", "STARTED", "TOOK", "OUTCOME", "STATUS", "REQUEST", "ERROR"];
    table(titles, &attempts.iter().map(row).collect::<Vec<_>>())
}

fn show(mut shown: Value) -> anyhow::Result<()> {
    let attempts = shown.as_object_mut().and_then(|shown| shown.shift_remove("attempts"));
    members(&shown)?;
    let attempts = attempts.as_ref().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if attempts.is_empty() {
        return Ok(());
    }
    write_line("")?;
    print_attempts(attempts)
}
