//! Nothing secret leaves in a report.

use http::HeaderMap;
use serde_json::{Map, Value};

/// What stands for a secret.
pub(crate) const REDACTED: &str = "[redacted]";

/// Anything shorter would be found by chance.
pub(crate) const SHORTEST_SECRET: usize = 6;

/// Parts of names whose values are secret, as they are written without `-` and `_`.
const SECRET_NAMES: &[&str] = &[
    "authorization",
    "credential",
    "token",
    "apikey",
    "password",
    "passwd",
    "secret",
    "cookie",
    "privatekey",
];

/// Names that merely sound secret.
const HARMLESS: &[&str] = &["tokencount", "maxtokens", "tokentype", "nextpagetoken"];

/// Headers of an answer that may be shown.
const SHOWN_HEADERS: &[&str] = &[
    "content-type",
    "content-length",
    "content-encoding",
    "cache-control",
    "date",
    "etag",
    "idempotency-replayed",
    "idempotency-stored",
    "idempotent-replayed",
    "location",
    "original-request",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "request-id",
    "retry-after",
    "stripe-should-retry",
    "x-request-id",
];

/// Whether a member or header of this name is secret.
pub(crate) fn is_secret(name: &str) -> bool {
    let name: String =
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    SECRET_NAMES.iter().any(|secret| name.contains(secret)) && !HARMLESS.contains(&name.as_str())
}

/// Takes secrets out, at any depth: by the name they stand under, and wherever a known one occurs.
pub(crate) fn redact(value: &mut Value, known: &[String]) {
    match value {
        Value::String(text) => {
            for secret in known {
                if text.contains(secret.as_str()) {
                    *text = text.replace(secret.as_str(), REDACTED);
                }
            }
            if let Some(inner) = inner_json(text) {
                let mut inner = inner;
                redact(&mut inner, known);
                *text = inner.to_string();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(item, known)),
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                if is_secret(name) && !member.is_null() {
                    *member = Value::String(REDACTED.to_owned());
                } else {
                    redact(member, known);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// JSON written into a text, as MCP's text content is.
fn inner_json(text: &str) -> Option<Value> {
    let looks = text.trim_start().starts_with(['{', '[']);
    serde_json::from_str(text).ok().filter(|_| looks)
}

/// The values of a request that must not come back: those under secret names.
pub(crate) fn secrets_in(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if is_secret(name) {
                    every_text(member, found);
                } else {
                    secrets_in(member, found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| secrets_in(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn every_text(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text.len() >= SHORTEST_SECRET => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| every_text(item, found)),
        Value::Object(members) => members.values().for_each(|member| every_text(member, found)),
        _ => {}
    }
}

/// The headers of an answer that may be shown.
pub(crate) fn response_headers(headers: &HeaderMap) -> Map<String, Value> {
    let mut shown = Map::new();
    for (name, value) in headers {
        let text = if SHOWN_HEADERS.contains(&name.as_str()) {
            String::from_utf8_lossy(value.as_bytes()).into_owned()
        } else {
            continue;
        };
        shown.insert(name.as_str().to_owned(), Value::String(text));
    }
    shown
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use serde_json::json;

    use super::{redact, response_headers, secrets_in};

    #[test]
    fn secrets_go_at_any_depth() {
        let mut value = json!({
            "a": [{"push": {"authentication": {"credentials": "c-12345"}}, "Api-Key": "x", "text": "Bearer tok-123456 here"}],
            "headers": {"Authorization": "Bearer q", "Set-Cookie": "s=1", "x-client-secret": ["a", "b"]},
            "content": [{"text": "{\"password\": \"hunter2\", \"id\": 1}"}],
            "id": "stays"
        });
        redact(&mut value, &["tok-123456".to_owned()]);
        let text = value.to_string();
        for gone in ["c-12345", "\"x\"", "tok-123456", "Bearer q", "s=1", "hunter2", "\"a\",\"b\""] {
            assert!(!text.contains(gone), "{gone} in {text}");
        }
        assert!(text.contains("stays") && text.contains("\\\"id\\\":1"), "{text}");
    }

    #[test]
    fn response_headers_are_an_allow_list() {
        let mut headers = HeaderMap::new();
        headers.insert("set-cookie", HeaderValue::from_static("s=1"));
        headers.insert("x-internal", HeaderValue::from_static("1"));
        headers.insert("retry-after", HeaderValue::from_static("2"));
        let shown = response_headers(&headers);
        assert_eq!(json!(shown), json!({"retry-after": "2"}));
    }

    #[test]
    fn secrets_of_a_request_are_found() {
        let mut found = Vec::new();
        secrets_in(
            &json!({"a": {"credentials": {"user": "me-and-i", "short": "x"}}, "b": "open text"}),
            &mut found,
        );
        assert_eq!(found, ["me-and-i"]);
    }
}
