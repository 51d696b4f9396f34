//! Reads a message.
//!
//! The whole message is validated first. A message that two parsers could understand differently (such as a member name that occurs
//! twice) is refused, so that the upstream acts on the same content that was checked here.

use http::HeaderMap;
use http::header::ACCEPT;
use semel::canonical::to_canonical;
use serde_json::value::RawValue;

use super::call::{Accepts, Form, McpCall, ResultForm};
use super::json::Object;
use super::tools::CallFacts;

const METHOD_CALL: &str = "tools/call";
const METHOD_LIST: &str = "tools/list";

/// The content of a body.
#[derive(Debug)]
pub(crate) enum McpMessage {
    /// Not relevant for the guard: another method, a notification, or a response of the client.
    Other,
    /// `tools/list`.
    List { id: Box<RawValue> },
    /// `tools/call`.
    Call(ToolCall),
    /// A batch of messages, which calls these tools.
    Batch(Vec<ToolCall>),
}

/// A tool call.
#[derive(Debug)]
pub(crate) struct ToolCall {
    /// `None` if the caller wants no answer.
    pub(crate) id: Option<Box<RawValue>>,
    pub(crate) tool: String,
    /// `None` if there are none, or if they are not an object.
    pub(crate) arguments: Option<Box<RawValue>>,
    /// Protocol version and capabilities of the client, where every request carries them.
    pub(crate) meta: Option<Box<RawValue>>,
}

/// Why a body is not a message. The text quotes nothing.
#[derive(Debug)]
pub(crate) struct MessageRefusal {
    pub(crate) reason: String,
    form: Form,
    id: Option<Box<RawValue>>,
}

/// Reads a body.
pub(crate) fn read(body: &[u8]) -> Result<McpMessage, MessageRefusal> {
    if let Err(error) = to_canonical(body) {
        let mut refusal = refuse(error.to_string(), Form::PARSE_ERROR);
        // If the message can be parsed at all, the caller gets the error in the format that it expects.
        if let Some(message) = Object::read_bytes(body) {
            refusal.form = Form::INVALID_REQUEST;
            refusal.id = message.get("id").and_then(as_id);
            if refusal.id.is_some() && message.text("method").as_deref() == Some(METHOD_CALL) {
                refusal.form = Form::ToolResult;
            }
        }
        return Err(refusal);
    }
    if let Some(message) = Object::read_bytes(body) {
        return one(&message);
    }
    match serde_json::from_slice::<Vec<&RawValue>>(body) {
        Ok(batch) => several(&batch),
        Err(_) => {
            Err(refuse("a message is a JSON object, or a list of them".to_owned(), Form::INVALID_REQUEST))
        }
    }
}

fn refuse(reason: String, form: Form) -> MessageRefusal {
    MessageRefusal { reason, form, id: None }
}

/// Returns the value if it can be an id: a string or a number.
fn as_id(value: &RawValue) -> Option<Box<RawValue>> {
    let first = value.get().as_bytes().first()?;
    matches!(first, b'"' | b'-' | b'0'..=b'9').then(|| value.to_owned())
}

fn one(message: &Object<'_>) -> Result<McpMessage, MessageRefusal> {
    let Some(method) = message.get("method") else { return Ok(McpMessage::Other) };
    let id = message.get("id").and_then(as_id);
    let wrong = |reason: &str, form| Err(MessageRefusal { reason: reason.to_owned(), form, id: id.clone() });
    let Some(method) = super::json::text_of(method) else {
        return wrong("the method of a message is a string", Form::INVALID_REQUEST);
    };
    match (&*method, id.clone()) {
        (METHOD_LIST, Some(id)) => Ok(McpMessage::List { id }),
        (METHOD_CALL, id) => {
            let params = message.object("params").unwrap_or_default();
            let Some(tool) = params.text("name") else {
                return wrong("params.name of tools/call is the name of a tool", Form::INVALID_PARAMS);
            };
            let arguments = params.get("arguments").filter(|arguments| arguments.get().starts_with('{'));
            let arguments = arguments.map(RawValue::to_owned);
            let meta = params.get("_meta").map(RawValue::to_owned);
            Ok(McpMessage::Call(ToolCall { id, tool: tool.into_owned(), arguments, meta }))
        }
        _ => Ok(McpMessage::Other),
    }
}

fn several(batch: &[&RawValue]) -> Result<McpMessage, MessageRefusal> {
    let mut calls = Vec::new();
    for message in batch {
        let Some(message) = Object::read(message.get()) else {
            return Err(refuse("a list of messages holds JSON objects".to_owned(), Form::INVALID_REQUEST));
        };
        if let McpMessage::Call(call) = one(&message)? {
            calls.push(call);
        }
    }
    Ok(McpMessage::Batch(calls))
}

impl ToolCall {
    /// True if the caller sent a key.
    pub(crate) fn has_key(&self) -> bool {
        let arguments = self.arguments.as_ref().and_then(|arguments| Object::read(arguments.get()));
        arguments.is_some_and(|arguments| arguments.has(super::KEY))
    }

    /// The properties that the answer depends on.
    pub(crate) fn call(&self, headers: &HeaderMap, form: Form) -> McpCall {
        let context = self.arguments.as_ref().and_then(|arguments| {
            let arguments = Object::read(arguments.get())?;
            arguments.get("context").map(RawValue::to_owned)
        });
        McpCall { context, ..answerable(self.id.clone(), headers, form) }
    }
}

impl MessageRefusal {
    /// The properties that the answer depends on.
    pub(crate) fn call(&self, headers: &HeaderMap) -> McpCall {
        answerable(self.id.clone(), headers, self.form)
    }
}

/// The properties that an answer depends on if the message was not parsed.
pub(crate) fn unread(headers: &HeaderMap) -> McpCall {
    answerable(None, headers, Form::INVALID_REQUEST)
}

fn answerable(id: Option<Box<RawValue>>, headers: &HeaderMap, form: Form) -> McpCall {
    let results = if headers.contains_key(super::METHOD) { ResultForm::Typed } else { ResultForm::Plain };
    let (accepts, facts) = (accepts(headers), CallFacts::default());
    McpCall { id, context: None, accepts, form, terms: None, facts, results }
}

/// The answer formats that the client accepts. Without an `Accept` header, both.
fn accepts(headers: &HeaderMap) -> Accepts {
    let (mut json, mut events, mut said) = (false, false, false);
    for range in headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
    {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let refused = parts.any(|part| {
            let (name, weight) = part.split_once('=').unwrap_or_default();
            name.trim().eq_ignore_ascii_case("q") && weight.trim().parse() == Ok(0.0_f32)
        });
        said = true;
        json |= !refused && matches!(&*kind, "application/json" | "application/*" | "*/*");
        events |= !refused && matches!(&*kind, "text/event-stream" | "text/*" | "*/*");
    }
    match (json, events) {
        (true, false) => Accepts::Json,
        (false, true) => Accepts::Events,
        (true, true) => Accepts::Both,
        (false, false) if said => Accepts::Json,
        (false, false) => Accepts::Both,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn messages_are_told_apart() {
        let call =
            r#"{"jsonrpc":"2.0","id":7,"method":"tools\/call","params":{"name":"buy","arguments":{"a":1}}}"#;
        let Ok(McpMessage::Call(call)) = read(call.as_bytes()) else { panic!("a call") };
        assert_eq!((call.tool.as_str(), call.id.unwrap().get()), ("buy", "7"));
        assert_eq!(call.arguments.unwrap().get(), r#"{"a":1}"#);
        for other in [
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            r#"{"jsonrpc":"2.0","method":"tools/list"}"#,
        ] {
            assert!(matches!(read(other.as_bytes()), Ok(McpMessage::Other)), "{other}");
        }
        let list = r#"{"jsonrpc":"2.0","id":"x","method":"tools/list"}"#;
        assert!(matches!(read(list.as_bytes()), Ok(McpMessage::List { .. })));
        let batch = r#"[{"id":1,"method":"tools/call","params":{"name":"buy"}},{"id":2,"method":"ping"}]"#;
        assert!(
            matches!(read(batch.as_bytes()), Ok(McpMessage::Batch(calls)) if calls.len() == 1 && calls[0].tool == "buy")
        );
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for (body, form, id) in [
            ("{", Form::PARSE_ERROR, None),
            ("", Form::PARSE_ERROR, None),
            ("nonsense", Form::PARSE_ERROR, None),
            ("\"text\"", Form::INVALID_REQUEST, None),
            ("[1]", Form::INVALID_REQUEST, None),
            (r#"{"id":1,"method":5}"#, Form::INVALID_REQUEST, Some("1")),
            (r#"{"id":1,"method":"ping","method":"tools/call"}"#, Form::INVALID_REQUEST, Some("1")),
            (r#"{"id":1,"method":"tools/call","params":{"name":5}}"#, Form::INVALID_PARAMS, Some("1")),
            (r#"{"id":1,"method":"tools/call","params":[]}"#, Form::INVALID_PARAMS, Some("1")),
            (
                r#"{"id":"a","method":"tools/call","params":{"name":"buy","arguments":{"x":1,"x":2}}}"#,
                Form::ToolResult,
                Some("\"a\""),
            ),
        ] {
            let refusal = read(body.as_bytes()).expect_err(body);
            assert_eq!((refusal.form, refusal.id.as_ref().map(|id| id.get())), (form, id), "{body}");
        }
    }

    #[test]
    fn what_a_client_takes() {
        for (accept, expected) in [
            (None, Accepts::Both),
            (Some("application/json, text/event-stream"), Accepts::Both),
            (Some("*/*"), Accepts::Both),
            (Some("Application/JSON"), Accepts::Json),
            (Some("text/event-stream"), Accepts::Events),
            (Some("application/json;q=0, text/event-stream"), Accepts::Events),
            (Some("image/png"), Accepts::Json),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(ACCEPT, HeaderValue::from_static(accept));
            }
            assert_eq!(accepts(&headers), expected, "{accept:?}");
        }
    }
}
