//! MCP over streamable HTTP: sessions, and answers as JSON or as a stream of events.

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use serde_json::{Value, json};

use crate::answer::TargetAnswer;
use crate::wire::ReceivedAnswer;

/// The offered version of the protocol.
const VERSION: &str = "2025-06-18";
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// A session that a server began.
#[derive(Clone, Debug)]
pub(crate) struct McpSession {
    id: Option<HeaderValue>,
    version: Option<HeaderValue>,
}

impl McpSession {
    pub(crate) fn begun(answer: &TargetAnswer) -> Self {
        let version = answer.envelope.get("protocolVersion").and_then(Value::as_str).unwrap_or(VERSION);
        Self { id: answer.headers.get(&SESSION).cloned(), version: HeaderValue::from_str(version).ok() }
    }

    /// Adds the headers of the session.
    pub(crate) fn add(&self, headers: &mut HeaderMap) {
        for (name, value) in [(SESSION, &self.id), (PROTOCOL, &self.version)] {
            if let Some(value) = value {
                headers.insert(name, value.clone());
            }
        }
    }
}

/// The parameters of `initialize`.
pub(crate) fn initialize() -> Value {
    json!({
        "protocolVersion": VERSION,
        "capabilities": {},
        "clientInfo": {"name": "semel-check", "version": env!("CARGO_PKG_VERSION")}
    })
}

fn is_stream(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    content_type.trim_start().to_ascii_lowercase().starts_with("text/event-stream")
}

/// True if the answer to a call has arrived, even if its stream continues.
pub(crate) fn complete(id: Option<u64>, headers: &HeaderMap, bytes: &[u8]) -> bool {
    id.is_some() && is_stream(headers) && in_stream(id, bytes).is_some()
}

/// The response object to a call.
pub(crate) fn message(id: Option<u64>, received: &ReceivedAnswer) -> Option<Value> {
    if is_stream(&received.headers) {
        return in_stream(id, &received.body);
    }
    match serde_json::from_slice(&received.body).ok()? {
        Value::Array(messages) => messages.into_iter().find(|message| answers(message, id)),
        message => answers(&message, id).then_some(message),
    }
}

/// Finds the response among events, each terminated by an empty line.
fn in_stream(id: Option<u64>, bytes: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n").replace('\r', "\n");
    text.split("\n\n").find_map(|event| {
        let data = event.lines().filter_map(|line| line.strip_prefix("data:"));
        let data: Vec<&str> = data.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        let message: Value = serde_json::from_str(&data.join("\n")).ok()?;
        answers(&message, id).then_some(message)
    })
}

/// True if it is the response to this call. An error may have no id, if the server could not parse the request.
fn answers(message: &Value, id: Option<u64>) -> bool {
    let same = id.is_some() && message.get("id").and_then(Value::as_u64) == id;
    let nobody = message.get("id").is_none_or(Value::is_null) && message.get("error").is_some();
    let response = message.get("result").is_some() || message.get("error").is_some();
    (same && response) || nobody
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderMap;
    use http::header::{CONTENT_TYPE, HeaderValue};
    use serde_json::json;

    use super::{complete, message};
    use crate::wire::ReceivedAnswer;

    #[test]
    fn the_response_is_found_in_json_and_in_a_stream() {
        let mut headers = HeaderMap::new();
        let received = |headers: &HeaderMap, body: &str| ReceivedAnswer {
            status: 200,
            headers: headers.clone(),
            body: Bytes::from(body.to_owned()),
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let json = received(&headers, r#"{"jsonrpc": "2.0", "id": 3, "result": {"a": 1}}"#);
        assert_eq!(message(Some(3), &json).unwrap()["result"], json!({"a": 1}));
        assert_eq!(message(Some(4), &json), None, "somebody else's");
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        let events = ": hello\r\n\r\nevent: message\r\ndata: {\"jsonrpc\": \"2.0\", \"method\": \"notifications/progress\"}\r\n\r\n\
                      id: 9\r\ndata: {\"jsonrpc\": \"2.0\",\r\ndata: \"id\": 3, \"result\": {\"b\": 2}}\r\n\r\n";
        let stream = received(&headers, events);
        assert_eq!(message(Some(3), &stream).unwrap()["result"], json!({"b": 2}));
        assert!(complete(Some(3), &headers, events.as_bytes()));
        assert!(!complete(Some(3), &headers, &events.as_bytes()[..60]));
    }
}
