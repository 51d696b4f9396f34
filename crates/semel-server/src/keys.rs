//! `semel keys`: looks at keys of a running server and settles what is in doubt.

use std::io::Write as _;

use anyhow::{Context as _, bail};
use http::Method;
use serde_json::{Value, json};

use crate::cli::{KeysCommand, Remote};
use crate::client::Client;

/// Runs the command.
///
/// # Errors
/// The server cannot be reached, or says no.
pub(crate) fn run(command: KeysCommand) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(execute(command))
}

async fn execute(command: KeysCommand) -> anyhow::Result<()> {
    match command {
        KeysCommand::List { phase, hint, namespace, scope, key, limit, remote } => {
            let mut query = Query::default();
            query.add("phase", phase.as_deref());
            query.add("hint", hint.as_deref());
            query.add("namespace", namespace.as_deref());
            for part in &scope {
                query.add("scope", Some(part));
            }
            query.add("key", key.as_deref());
            let mut pages = Pages::new(&remote, query)?;
            let mut items = Vec::new();
            while items.len() < limit
                && let Some(page) = pages.next().await?
            {
                items.extend(page);
            }
            items.truncate(limit);
            if remote.json { print(&json!({ "items": items })) } else { table(&items) }
        }
        KeysCommand::Show { id, remote } => {
            let shown = ask(&remote, Method::GET, &format!("/v1/keys/{}", encode(&id)), None).await?;
            if remote.json { print(&shown) } else { members(&shown) }
        }
        KeysCommand::Forget { id, reason, force, remote } => {
            let body = json!({ "reason": reason, "force": force });
            change(&remote, &id, "forget", &body).await
        }
        KeysCommand::Settle { id, run, outcome, reason, remote } => {
            let mut body = json!({ "reason": reason });
            match outcome {
                Some(outcome) => {
                    body["outcome"] = serde_json::from_str(&outcome).context("--outcome is not JSON")?;
                }
                None => body["run"] = run.into(),
            }
            change(&remote, &id, "settle", &body).await
        }
        KeysCommand::Export { phase, remote } => {
            let mut query = Query::default();
            query.add("phase", phase.as_deref());
            query.add("limit", Some("1000"));
            let mut pages = Pages::new(&remote, query)?;
            while let Some(page) = pages.next().await? {
                for item in page {
                    print(&item)?;
                }
            }
            Ok(())
        }
    }
}

async fn change(remote: &Remote, id: &str, action: &str, body: &Value) -> anyhow::Result<()> {
    let path = format!("/v1/keys/{}/{action}", encode(id));
    let done = ask(remote, Method::POST, &path, Some(body)).await?;
    if remote.json {
        return print(&done);
    }
    let text = |name: &str| done[name].as_str().unwrap_or_default().to_owned();
    write_line(&format!("{}: {} -> {}", text("id"), text("before"), text("after")))
}

/// Asks for JSON.
async fn ask(remote: &Remote, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
    let mut client = Client::new(&remote.admin, remote.token.clone())?;
    ask_with(&mut client, method, path, body).await
}

async fn ask_with(
    client: &mut Client,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> anyhow::Result<Value> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let headers = [("content-type", "application/json")];
    let reply = client.send(method, path, &headers, body).await?;
    let answer: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    if reply.status.is_success() {
        return Ok(answer);
    }
    match answer["detail"].as_str() {
        Some(detail) => bail!("{detail} ({})", reply.status.as_u16()),
        None => bail!("the server answered {}", reply.status),
    }
}

/// The pages of a list, one after the other.
struct Pages {
    client: Client,
    query: Query,
    next: Next,
}

/// Which page comes next.
enum Next {
    First,
    After(String),
    None,
}

impl Pages {
    fn new(remote: &Remote, query: Query) -> anyhow::Result<Self> {
        Ok(Self { client: Client::new(&remote.admin, remote.token.clone())?, query, next: Next::First })
    }

    async fn next(&mut self) -> anyhow::Result<Option<Vec<Value>>> {
        let mut query = self.query.clone();
        match &self.next {
            Next::First => {}
            Next::After(cursor) => query.add("cursor", Some(cursor)),
            Next::None => return Ok(None),
        }
        let page = ask_with(&mut self.client, Method::GET, &format!("/v1/keys{}", query.0), None).await?;
        self.next = page["next"].as_str().map_or(Next::None, |next| Next::After(next.to_owned()));
        Ok(Some(page["items"].as_array().cloned().unwrap_or_default()))
    }
}

/// A query string.
#[derive(Clone, Debug, Default)]
struct Query(String);

impl Query {
    fn add(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.0.push(if self.0.is_empty() { '?' } else { '&' });
            self.0.push_str(name);
            self.0.push('=');
            self.0.push_str(&encode(value));
        }
    }
}

/// Percent-encodes whatever is not plain.
fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

fn print(value: &Value) -> anyhow::Result<()> {
    write_line(&value.to_string())
}

/// A reader that has seen enough (`| head`) is no failure of ours, but the end.
fn write_line(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{line}").context("standard output is closed")
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

fn members(shown: &Value) -> anyhow::Result<()> {
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
        let mut query = Query::default();
        query.add("key", Some("a b&c=ä"));
        query.add("phase", None);
        query.add("scope", Some("x"));
        assert_eq!(query.0, "?key=a%20b%26c%3D%C3%A4&scope=x");
    }
}
