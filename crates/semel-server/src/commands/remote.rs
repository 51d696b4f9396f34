//! Shared by commands that talk to a running server: requests, pages, and printing.

use anyhow::{Context as _, bail};
use http::{HeaderValue, Method, header};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::screen::write_line;
use crate::cli::Remote;
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
    if response.status.is_success() {
        return Ok(answer);
    }
    refuse_gateway(client).await?;
    match answer["detail"].as_str() {
        Some(detail) => bail!("{detail} ({})", response.status.as_u16()),
        None => bail!("the server answered {}", response.status),
    }
}

/// An error if the address is that of a gateway, which publishes its policy.
async fn refuse_gateway(client: &AdminClient) -> anyhow::Result<()> {
    let policy = client.send(&Request::new(Method::GET, "/.well-known/idempotency")).await;
    let policy = policy.ok().filter(|response| response.status.is_success());
    let body = policy.and_then(|response| serde_json::from_slice::<Value>(&response.body).ok());
    if body.is_some_and(|body| body.get("profile").is_some() && body.get("supported").is_some()) {
        bail!(
            "{} is a gateway, not an admin address; `semel serve` prints both, use --admin with the other one",
            client.address()
        );
    }
    Ok(())
}

/// The pages of a list.
pub(crate) struct Pages {
    client: AdminClient,
    path: String,
    query: QueryString,
    next: NextPage,
}

/// The items of a list, and how to read on.
pub(crate) struct Listed {
    pub(crate) items: Vec<Value>,
    /// Cursor of the item after the last one.
    pub(crate) next: Option<String>,
}

impl Listed {
    /// Prints the list as JSON, or by `table`; and on standard error how to read on.
    pub(crate) fn show(
        self,
        remote: &Remote,
        table: impl FnOnce(&[Value]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if remote.json {
            return print(&serde_json::json!({ "items": self.items, "next": self.next }));
        }
        table(&self.items)?;
        if let Some(next) = self.next {
            eprintln!("there are more: add --cursor {next}");
        }
        Ok(())
    }
}

/// The longest page of the server.
const LONGEST_PAGE: usize = 1_000;

/// The next page.
enum NextPage {
    First,
    After(String),
    None,
}

impl Pages {
    /// The items up to `limit`, and the cursor of those after them.
    pub(crate) async fn collect(mut self, limit: usize) -> anyhow::Result<Listed> {
        let mut items = Vec::new();
        while items.len() < limit
            && let Some(page) = self.next_up_to(Some(limit - items.len())).await?
        {
            items.extend(page);
        }
        let next = match self.next {
            NextPage::After(cursor) => Some(cursor),
            NextPage::First | NextPage::None => None,
        };
        Ok(Listed { items, next })
    }

    /// Begins at a cursor that an earlier list ended with.
    pub(crate) fn after(mut self, cursor: Option<String>) -> Self {
        if let Some(cursor) = cursor {
            self.next = NextPage::After(cursor);
        }
        self
    }

    /// The pages of the list at `path`.
    ///
    /// # Errors
    /// An invalid URL.
    pub(crate) fn new(remote: &Remote, path: impl Into<String>, query: QueryString) -> anyhow::Result<Self> {
        Ok(Self { client: AdminClient::of(remote)?, path: path.into(), query, next: NextPage::First })
    }

    /// The next page; `None` after the last.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Vec<Value>>> {
        self.next_up_to(None).await
    }

    /// The next page with at most so many items, so that its cursor is that of the item after them.
    async fn next_up_to(&mut self, limit: Option<usize>) -> anyhow::Result<Option<Vec<Value>>> {
        let mut query = self.query.clone();
        if let Some(limit) = limit {
            query.add("limit", Some(&limit.clamp(1, LONGEST_PAGE).to_string()));
        }
        match &self.next {
            NextPage::First => {}
            NextPage::After(cursor) => query.add("cursor", Some(cursor)),
            NextPage::None => return Ok(None),
        }
        let page = get(&self.client, &format!("{}{}", self.path, query.0)).await?;
        self.next = page["next"].as_str().map_or(NextPage::None, |next| NextPage::After(next.to_owned()));
        let Some(items) = page["items"].as_array() else {
            refuse_gateway(&self.client).await?;
            bail!(
                "{} did not answer with a list: is it the admin address of a semel?",
                self.client.address()
            );
        };
        Ok(Some(items.clone()))
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
pub(crate) fn read_payload(payload: &str) -> anyhow::Result<Box<RawValue>> {
    let text = match (payload, payload.strip_prefix('@')) {
        ("-", _) => std::io::read_to_string(std::io::stdin()).context("standard input")?,
        (_, Some(path)) => std::fs::read_to_string(path).with_context(|| Misused::new(path))?,
        (payload, None) => payload.to_owned(),
    };
    serde_json::from_str(text.trim()).context(Misused::new("--payload is not JSON"))
}

/// A member as text; empty if it is absent.
pub(crate) fn cell(item: &Value, member: impl serde_json::value::Index) -> String {
    match &item[member] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Counts by name, without those that are zero: `3 done, 1 dlq`. One alone is its name.
pub(crate) fn counts(counted: &Value) -> String {
    let counted: Vec<_> =
        counted.as_object().into_iter().flatten().filter(|(_, count)| **count != 0).collect();
    match counted.as_slice() {
        [(name, count)] if **count == 1 => (*name).clone(),
        several => {
            let words: Vec<String> = several.iter().map(|(name, count)| format!("{count} {name}")).collect();
            words.join(", ")
        }
    }
}

/// Prints an object member by member.
pub(crate) fn members(shown: &Value) -> anyhow::Result<()> {
    for (name, value) in shown.as_object().into_iter().flatten() {
        match value {
            Value::Null => {}
            Value::String(text) => write_line(&format!("{name:<16}  {text}"))?,
            other => write_line(&format!("{name:<16}  {other}"))?,
        }
    }
    Ok(())
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
