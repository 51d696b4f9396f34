//! Shared by commands that talk to a running server: requests, and printing.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http::{HeaderValue, Method, StatusCode, header};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::screen::{left, readable, write_line};
use super::table::fields;
use crate::client::{AdminClient, Request};
use crate::misused::Misused;

/// Gets JSON.
pub(crate) async fn get(client: &AdminClient, path: &str) -> anyhow::Result<Value> {
    ask_raw(client, Method::GET, path, String::new()).await
}

/// Sends a body as JSON.
pub(crate) async fn send(
    client: &AdminClient,
    method: Method,
    path: &str,
    body: &impl Serialize,
) -> anyhow::Result<Value> {
    ask_raw(client, method, path, serde_json::to_string(body)?).await
}

/// Sends a body byte for byte.
pub(crate) async fn ask_raw(
    client: &AdminClient,
    method: Method,
    path: &str,
    body: String,
) -> anyhow::Result<Value> {
    let json = HeaderValue::from_static("application/json");
    ask(client, Request::new(method, path).bytes(body).header(header::CONTENT_TYPE, json)).await
}

/// Sends a request, and reads the JSON of its answer.
pub(crate) async fn ask(client: &AdminClient, request: Request) -> anyhow::Result<Value> {
    let response = client.send(&request).await?;
    let answer: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    if response.status.is_success() && answer.is_object() {
        return Ok(answer);
    }
    let detail = answer["detail"].as_str();
    match (response.status, detail) {
        (StatusCode::UNAUTHORIZED, Some(detail)) => bail!("{detail}; use --token or SEMEL_TOKEN (401)"),
        (status, Some(detail)) => bail!("{detail} ({})", status.as_u16()),
        (status, None) => {
            bail!("{} answered {status}, not as an admin API does; check --admin", client.address())
        }
    }
}

/// A query string.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryString(String);

impl QueryString {
    /// The text to append to a path.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Adds a parameter if it has a value.
    pub(crate) fn add(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.0.push(if self.0.is_empty() { '?' } else { '&' });
            self.0.push_str(name);
            self.0.push('=');
            self.0.push_str(&encode(value));
        }
    }
}

/// Percent-encodes all but unreserved characters.
pub(crate) fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// Prints a line of JSON.
pub(crate) fn print(value: &Value) -> anyhow::Result<()> {
    write_line(&value.to_string())
}

/// A payload in JSON: as it is, from a file (`@FILE`), or from standard input (`-`).
pub(crate) async fn read_payload(payload: &str) -> anyhow::Result<Box<RawValue>> {
    let text = match (payload, payload.strip_prefix('@')) {
        ("-", _) => read_input().await?,
        (_, Some(path)) => std::fs::read_to_string(path).with_context(|| Misused::new(path))?,
        (payload, None) => payload.to_owned(),
    };
    serde_json::from_str(text.trim()).context(Misused::new("--payload is not JSON"))
}

/// All of standard input. On a thread of its own, so that Ctrl-C ends the command.
pub(crate) async fn read_input() -> anyhow::Result<String> {
    let read = tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin())).await?;
    read.context("standard input")
}

/// A member as text; empty if it is absent.
pub(crate) fn cell(item: &Value, member: impl serde_json::value::Index) -> String {
    text_of(&item[member])
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Texts of a list, separated by commas.
pub(crate) fn texts(list: &Value) -> String {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

/// Counts by name, without those that are zero: `3 done, 1 dlq`.
pub(crate) fn totals(counted: &Value) -> String {
    let counted = counted.as_object().into_iter().flatten().filter(|(_, count)| **count != 0);
    let words: Vec<String> = counted.map(|(name, count)| format!("{count} {name}")).collect();
    words.join(", ")
}

/// As [`totals`], for the states of one item: one alone is its name.
pub(crate) fn states(counted: &Value) -> String {
    let words = totals(counted);
    words.strip_prefix("1 ").filter(|word| !word.contains(", ")).map(str::to_owned).unwrap_or(words)
}

/// When the next attempt of a delivery or run may start, and its round: `next attempt in 4m 50s, round 3 of 8`. Empty if none is to
/// come.
pub(crate) fn next_attempt(item: &Value) -> String {
    let Some(due) = item["due_at"].as_str() else { return String::new() };
    let when = match left(due) {
        Duration::ZERO => "now".to_owned(),
        left => format!("in {} at {due}", readable(left)),
    };
    match (item["round"].as_u64(), item["rounds"].as_u64()) {
        (Some(round), Some(rounds)) if rounds > 1 => {
            format!("next attempt {when}, round {round} of {rounds}")
        }
        _ => format!("next attempt {when}"),
    }
}

/// Prints an object member by member, without those that are empty.
pub(crate) fn members(shown: &Value) -> anyhow::Result<()> {
    let shown: Vec<(&str, String)> = shown
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| value.as_object().is_none_or(|members| !members.is_empty()))
        .map(|(name, value)| match value {
            Value::Array(items) if items.iter().all(Value::is_string) => (name.as_str(), texts(value)),
            value => (name.as_str(), text_of(value)),
        })
        .collect();
    fields(&shown.iter().map(|(name, text)| (*name, text.as_str(), text.as_str())).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_encoded() {
        let mut query = QueryString::default();
        query.add("key", Some("a b&c=ä"));
        query.add("phase", None);
        query.add("scope", Some("x"));
        assert_eq!(query.0, "?key=a%20b%26c%3D%C3%A4&scope=x");
    }
}
