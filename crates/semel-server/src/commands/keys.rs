//! `semel keys`: inspects keys of a running server and settles those in doubt.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::IsTerminal as _;

use anyhow::Context as _;
use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser};
use http::Method;
use semel::key::KeyId;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::listing::{Listed, Pages, Paging};
use super::remote::{QueryString, cell, encode, get, members, print, read_input, send, texts};
use super::screen::{age, confirm, moment, printable, write_line};
use super::table::table;
use crate::admin::keys::{FindRequest, ForgetRequest, SettleRequest};
use crate::admin::records::PHASES;
use crate::cli::Remote;
use crate::client::AdminClient;
use crate::misused::Misused;

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List keys: those in doubt with the oldest first, others by id, page by page; or find one by namespace, scope and value
    List {
        /// Only keys in this phase
        #[arg(long, visible_alias = "state", value_parser = phases())]
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
        #[command(flatten)]
        paging: Paging,
        #[command(flatten)]
        remote: Remote,
    },
    /// Find a key of the gateway by the key that a client sent
    Find {
        /// The idempotency key; - reads it from standard input, so that it is not in the shell's history
        #[arg(long)]
        key: String,
        /// Header that names the caller, such as 'Authorization: Bearer …'; can be repeated
        #[arg(long, value_name = "NAME: VALUE")]
        header: Vec<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show one key with the answer that its clients get
    Show {
        /// The key's id, 32 hex characters
        id: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Remove a record: the next call with its key runs again, so a client that retries has a second effect
    Forget {
        /// The key's id, 32 hex characters
        id: String,
        /// Reason, for the audit log
        #[arg(long)]
        reason: String,
        /// Even if it is claimed or in doubt
        #[arg(long)]
        force: bool,
        /// Do not ask on a terminal
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Settle a key in doubt, after a look at the answer that clients will get
    #[command(group = clap::ArgGroup::new("fate").required(true).args(["run", "outcome", "status"]))]
    Settle {
        /// The key's id, 32 hex characters
        id: String,
        /// The effect did not happen: the same request may run again
        #[arg(long)]
        run: bool,
        /// The effect happened, with this outcome: JSON; {"status": 201, "body": …} for a gateway's answer
        #[arg(long, value_name = "JSON")]
        outcome: Option<String>,
        /// The effect happened, and clients of the gateway get this status
        #[arg(long, value_name = "N")]
        status: Option<u16>,
        /// Body of that answer: JSON or text
        #[arg(long, requires = "status")]
        body: Option<String>,
        /// Reason, for the audit log
        #[arg(long, required_unless_present = "dry_run")]
        reason: Option<String>,
        /// Only show the request and the answer that its clients will get
        #[arg(long)]
        dry_run: bool,
        /// Do not ask. Only a key of the gateway is asked about, on a terminal
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// Write every key as one line of JSON
    Export {
        /// Only keys in this phase
        #[arg(long, value_parser = phases())]
        phase: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
}

/// The phases that the command line accepts.
fn phases() -> PossibleValuesParser {
    PHASES.map(|(name, _)| PossibleValue::new(name)).to_vec().into()
}

const PATH: &str = "/v1/keys";
const FIND: &str = "/v1/keys/find";

/// Runs the command.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub(crate) async fn run(command: KeysCommand) -> anyhow::Result<()> {
    match command {
        KeysCommand::List { phase, hint, namespace, scope, key, paging, remote } => {
            let mut query = QueryString::default();
            query.add("phase", phase.as_deref());
            query.add("hint", hint.as_deref());
            query.add("namespace", namespace.as_deref());
            for part in &scope {
                query.add("scope", Some(part));
            }
            query.add("key", key.as_deref());
            let client = &AdminClient::of(&remote)?;
            let after = paging.cursor.as_deref();
            if phase.as_deref() == Some("in_doubt") {
                let after = after.map(ClaimPlace::read).transpose()?;
                let fetch = || read_oldest(client, query.clone(), after.as_ref(), paging.limit);
                let show = |(listed, left_out): (Listed, usize)| {
                    if left_out > 0 && !remote.json {
                        eprintln!("{left_out} more are in doubt; --limit shows them");
                    }
                    listed.show(&remote, list)
                };
                return paging.watch.show(&remote, fetch, show).await;
            }
            let fetch = || read_newest(client, query.clone(), &paging);
            paging.watch.show(&remote, fetch, |listed| listed.show(&remote, list)).await
        }
        KeysCommand::Find { key, header, remote } => {
            let request = find_request(key, &header).await?;
            let found = send(&AdminClient::of(&remote)?, Method::POST, FIND, &request).await?;
            if remote.json {
                return print(&found);
            }
            let found = found["items"].as_array().map_or(&[][..], Vec::as_slice);
            list(found)?;
            match found {
                [] => eprintln!(
                    "a key belongs to the credential that it came with: give the client's own header with --header"
                ),
                [one] => next_steps(one),
                _ => {}
            }
            Ok(())
        }
        KeysCommand::Show { id, remote } => {
            let shown = get(&AdminClient::of(&remote)?, &format!("/v1/keys/{}", encode(&id))).await?;
            if remote.json {
                return print(&shown);
            }
            show(shown.clone())?;
            next_steps(&shown);
            Ok(())
        }
        KeysCommand::Forget { id, reason, force, yes, remote } => {
            // Scripts cannot answer. They have said what they want, with a reason.
            let question = "The next call with this key runs again. Forget it?";
            confirm(question, yes || !std::io::stdin().is_terminal()).await?;
            change(&remote, &id, "forget", &ForgetRequest { reason, force, fence: None }).await
        }
        KeysCommand::Settle { id, run, outcome, status, body, reason, dry_run, yes, remote } => {
            let outcome = match (outcome, status) {
                (Some(outcome), _) => {
                    Some(serde_json::from_str(&outcome).context(Misused::new("--outcome is not JSON"))?)
                }
                (None, Some(status)) => Some(given_answer(status, body)?),
                (None, None) => None,
            };
            let reason = reason.unwrap_or_default();
            let mut request = SettleRequest { reason, run: run && outcome.is_none(), outcome, fence: None };
            let client = AdminClient::of(&remote)?;
            let path = format!("{PATH}/{}/preview", encode(&id));
            let preview = send(&client, Method::POST, &path, &request).await?;
            // Only the attempt that is shown is settled.
            request.fence = preview["key"]["fence"].as_u64();
            // The keys of workers have no clients that would be surprised.
            if preview["key"]["request"].is_object() {
                explain(&preview)?;
            }
            if dry_run {
                return if remote.json { print(&preview) } else { Ok(()) };
            }
            if preview["key"]["request"].is_object() {
                // Scripts cannot answer. They have said what they want, with a reason.
                confirm("Settle it?", yes || !std::io::stdin().is_terminal()).await?;
            }
            change(&remote, &id, "settle", &request).await
        }
        KeysCommand::Export { phase, remote } => {
            let mut query = QueryString::default();
            query.add("phase", phase.as_deref());
            query.add("limit", Some("1000"));
            let client = AdminClient::of(&remote)?;
            let mut pages = Pages::new(&client, PATH, query);
            while let Some(page) = pages.next().await? {
                for item in page {
                    print(&item)?;
                }
            }
            Ok(())
        }
    }
}

/// The keys to list: a page in the order of the store, which lists by id, with the newest first.
async fn read_newest(client: &AdminClient, query: QueryString, paging: &Paging) -> anyhow::Result<Listed> {
    let pages = Pages::new(client, PATH, query).after(paging.cursor.clone());
    let mut listed = pages.collect(paging.limit).await?;
    listed.items.sort_by_cached_key(|item| Reverse(cell(item, "claimed_at")));
    Ok(listed)
}

/// The place of a key in the list of those in doubt.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClaimPlace {
    claimed_at: String,
    id: String,
}

impl ClaimPlace {
    fn of(item: &Value) -> Self {
        Self { claimed_at: cell(item, "claimed_at"), id: cell(item, "id") }
    }

    /// The place that a list ended with.
    fn read(cursor: &str) -> anyhow::Result<Self> {
        match cursor.split_once('_') {
            Some((claimed_at, id)) if id.parse::<KeyId>().is_ok() => {
                Ok(Self { claimed_at: claimed_at.to_owned(), id: id.to_owned() })
            }
            _ => {
                Err(Misused::new("--cursor: expected the `next` of an earlier list of keys in doubt").into())
            }
        }
    }

    fn cursor(&self) -> String {
        format!("{}_{}", self.claimed_at, self.id)
    }
}

/// The keys in doubt after a place, the oldest of all first: the oldest waits longest for a person. Also returns how many
/// follow. The store lists by id, so each list reads all of them, and keeps only those that it shows.
async fn read_oldest(
    client: &AdminClient,
    query: QueryString,
    after: Option<&ClaimPlace>,
    limit: usize,
) -> anyhow::Result<(Listed, usize)> {
    let mut pages = Pages::new(client, PATH, query);
    let (mut oldest, mut left_out) = (BTreeMap::new(), 0);
    while let Some(page) = pages.next_longest().await? {
        for item in page {
            let place = ClaimPlace::of(&item);
            if after.is_some_and(|after| place <= *after) {
                continue;
            }
            oldest.insert(place, item);
            if oldest.len() > limit {
                oldest.pop_last();
                left_out += 1;
            }
        }
    }
    let last = oldest.last_key_value().filter(|_| left_out > 0);
    let next = last.map(|(place, _)| place.cursor());
    let items = oldest.into_values().collect();
    Ok((Listed { items, next, is_cut_short: false }, left_out))
}

async fn change(remote: &Remote, id: &str, action: &str, body: &impl Serialize) -> anyhow::Result<()> {
    let path = format!("/v1/keys/{}/{action}", encode(id));
    let done = send(&AdminClient::of(remote)?, Method::POST, &path, body).await?;
    if remote.json {
        return print(&done);
    }
    let text = |name: &str| done[name].as_str().unwrap_or_default().to_owned();
    let means = match text("after").as_str() {
        "bound" => "; the next request with this key runs",
        "vacant" => "; the next request with this key runs as if none had come",
        _ => "",
    };
    write_line(&format!("{}: {} -> {}{means}", text("id"), text("before"), text("after")))
}

/// The answer that an operator gives on the command line.
fn given_answer(status: u16, body: Option<String>) -> anyhow::Result<Box<RawValue>> {
    let body = body.map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text)));
    let answer = match body {
        Some(body) => json!({ "status": status, "body": body }),
        None => json!({ "status": status }),
    };
    Ok(RawValue::from_string(answer.to_string())?)
}

/// Says what a settlement does, before it is done. On standard error: standard output is for the result.
fn explain(preview: &Value) -> anyhow::Result<()> {
    let (key, answer) = (&preview["key"], &preview["answer"]);
    let request = &key["request"];
    let mut parts = vec![format!("{} {}", cell(request, "method"), cell(request, "path"))];
    for (name, member) in [("request", "request_id"), ("caller", "caller")] {
        let text = cell(request, member);
        // The id of a request that contains its key is not stored.
        parts.extend((!text.is_empty()).then(|| format!("{name} {text}")));
    }
    eprintln!("{}, claimed {} ago", parts.join(", "), age(&cell(key, "claimed_at")));
    if answer.is_null() {
        eprintln!("The next request with this key is sent to the upstream again.");
    } else {
        eprintln!("Every request with this key will get:");
        answer_lines(answer).iter().for_each(|line| eprintln!("  {line}"));
        let left_out = texts(&preview["not_stored"]);
        if !left_out.is_empty() {
            eprintln!("Not stored, as with every answer: {left_out}");
        }
    }
    Ok(())
}

/// An answer as people read it.
fn answer_lines(answer: &Value) -> Vec<String> {
    let mut lines = vec![format!("HTTP {}", cell(answer, "status"))];
    for header in answer["headers"].as_array().into_iter().flatten() {
        lines.push(format!("{}: {}", cell(header, 0), cell(header, 1)));
    }
    let body = match (answer["body"].as_str(), answer["body_base64"].as_str()) {
        (Some(text), _) => match serde_json::from_str::<Value>(text) {
            Ok(json) => serde_json::to_string_pretty(&json).unwrap_or_else(|_| text.to_owned()),
            Err(_) => text.to_owned(),
        },
        (None, Some(base64)) => format!("(not text, in base64) {base64}"),
        (None, None) => String::new(),
    };
    if !body.is_empty() {
        lines.push(String::new());
        lines.extend(body.lines().map(printable));
    }
    lines
}

fn show(mut shown: Value) -> anyhow::Result<()> {
    let Some(all) = shown.as_object_mut() else { return members(&shown) };
    let (request, answer) = (all.shift_remove("request"), all.shift_remove("answer"));
    if answer.is_some() {
        // The same in base64.
        all.shift_remove("returned");
    }
    if let Some(Value::Object(request)) = request {
        all.extend(request);
    }
    members(&shown)?;
    if let Some(answer) = answer {
        write_line("")?;
        answer_lines(&answer).iter().try_for_each(|line| write_line(line))?;
    }
    Ok(())
}

/// The commands that go on from a key.
fn next_steps(key: &Value) {
    let id = cell(key, "id");
    if cell(key, "phase") == "in_doubt" {
        eprintln!("settle it after a look at the upstream: semel keys settle {id} --help");
    }
    eprintln!("its requests and what happened: semel events show {id}");
}

/// The body of a search, so that neither key nor credential is part of a URL.
async fn find_request(key: String, header: &[String]) -> anyhow::Result<FindRequest> {
    let key = if key == "-" { read_input().await?.trim().to_owned() } else { key };
    let mut headers = BTreeMap::new();
    for line in header {
        let (name, value) = line.split_once(':').ok_or_else(|| {
            Misused::new("--header: expected 'NAME: VALUE', such as 'Authorization: Bearer …'")
        })?;
        headers.insert(name.trim().to_owned(), value.trim().to_owned());
    }
    Ok(FindRequest { key, headers })
}

fn list(items: &[Value]) -> anyhow::Result<()> {
    let row = |item: &Value| {
        let [id, key, phase, mode, attempt, changed] =
            ["id", "key", "phase", "mode", "attempt", "changed_at"].map(|name| cell(item, name));
        let [method, path, request, caller] =
            ["method", "path", "request_id", "caller"].map(|name| cell(&item["request"], name));
        [
            id,
            key,
            phase,
            mode,
            attempt,
            age(&cell(item, "claimed_at")),
            method,
            path,
            request,
            caller,
            moment(&changed),
        ]
    };
    let titles =
        ["ID", "KEY", "PHASE", "MODE", "ATTEMPT", "AGE", "METHOD", "PATH", "REQUEST", "CALLER", "CHANGED"];
    table(titles, &items.iter().map(row).collect::<Vec<_>>())
}
