//! One call: prepares a request, sends it, and reads the answer.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::answer::TargetAnswer;
use crate::mcp::{self, McpSession};
use crate::path::same;
use crate::run::{BodyFormat, RunOptions};
use crate::wire::{CheckedTarget, Connection, Outgoing, ReceivedAnswer, WireError};

/// Makes calls: the target, and the sessions with it.
#[derive(Debug)]
pub(crate) struct TargetCaller {
    target: Arc<CheckedTarget>,
    ids: AtomicU64,
    /// MCP sessions, by credential.
    sessions: Mutex<HashMap<Option<String>, McpSession>>,
}

/// A prepared request, which can be sent repeatedly.
#[derive(Clone, Debug)]
pub(crate) struct CheckCall {
    outgoing: Outgoing,
    /// The id of a JSON-RPC call.
    id: Option<u64>,
    /// The content of the request, for reports and for the search for secrets.
    pub(crate) asked: Value,
    /// The correlation id that was sent, and the original one, if it was changed to be unique.
    correlation: Option<(Value, Value)>,
}

impl TargetCaller {
    pub(crate) fn new(target: CheckedTarget) -> Self {
        Self { target: Arc::new(target), ids: AtomicU64::new(1), sessions: Mutex::default() }
    }

    pub(crate) fn target(&self) -> &Arc<CheckedTarget> {
        &self.target
    }

    /// Prepares a JSON-RPC call. The credential must have a session, except to begin one.
    pub(crate) fn rpc(
        &self,
        method: &str,
        params: &Value,
        credential: Option<&str>,
    ) -> Result<CheckCall, String> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut call = self.message(&message, credential)?;
        call.id = Some(id);
        Ok(call)
    }

    fn message(&self, message: &Value, credential: Option<&str>) -> Result<CheckCall, String> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(USER_AGENT, HeaderValue::from_static("semel-check"));
        authorize(&mut headers, credential)?;
        if let Some(session) = self.sessions.lock().get(&credential.map(str::to_owned)) {
            session.add(&mut headers);
        }
        let body = Bytes::from(message.to_string());
        let outgoing = Outgoing { method: Method::POST, path: String::new(), headers, body };
        Ok(CheckCall { outgoing, id: None, asked: message.clone(), correlation: None })
    }

    /// Prepares a tool call.
    pub(crate) fn tool(
        &self,
        name: &str,
        arguments: &Value,
        credential: Option<&str>,
    ) -> Result<CheckCall, String> {
        let mut call = self.rpc("tools/call", &json!({"name": name, "arguments": arguments}), credential)?;
        call.asked = json!({"tool": name, "arguments": arguments});
        Ok(call)
    }

    /// Begins a session, unless there is one.
    pub(crate) async fn begin(&self, credential: Option<&str>) -> Result<Begun, WireError> {
        let whose = credential.map(str::to_owned);
        if self.sessions.lock().contains_key(&whose) {
            return Ok(Begun::Session);
        }
        let call = self.rpc("initialize", &mcp::initialize(), credential).map_err(WireError::Request)?;
        let (received, message) = self.exchange(&call).await?;
        let answer = TargetAnswer::mcp(received, message);
        if answer.error.is_some() {
            return Ok(Begun::Refused(Box::new(answer)));
        }
        let session = McpSession::begun(&answer);
        self.sessions.lock().insert(whose, session);
        let done = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let call = self.message(&done, credential).map_err(WireError::Request)?;
        // Its answer has no content. A server that refuses it will refuse the next call too.
        self.exchange(&call).await?;
        Ok(Begun::Session)
    }

    /// Forgets all sessions: the target was restarted.
    pub(crate) fn forget_sessions(&self) {
        self.sessions.lock().clear();
    }

    /// Sends a call over a new connection.
    pub(crate) async fn send(&self, call: &CheckCall) -> Result<TargetAnswer, WireError> {
        let (received, message) = self.exchange(call).await?;
        Ok(call.answer(received, message))
    }

    async fn exchange(&self, call: &CheckCall) -> Result<(ReceivedAnswer, Option<Value>), WireError> {
        let id = call.id;
        let complete = move |headers: &HeaderMap, bytes: &[u8]| mcp::complete(id, headers, bytes);
        let received = self.target.send(call.outgoing.clone(), &complete).await?;
        let message = mcp::message(id, &received);
        Ok((received, message))
    }
}

/// The result of beginning a session.
#[derive(Debug)]
pub(crate) enum Begun {
    Session,
    Refused(Box<TargetAnswer>),
}

impl CheckCall {
    /// Prepares an HTTP request.
    pub(crate) fn request(
        request: &Value,
        credential: Option<&str>,
        options: &RunOptions,
    ) -> Result<Self, String> {
        let text = |name: &str| request.get(name).and_then(Value::as_str);
        let method = text("method").unwrap_or("POST");
        let method =
            Method::from_bytes(method.as_bytes()).map_err(|_| format!("{method:?} is not an HTTP method"))?;
        let path = text("path").ok_or("the request's path is not a string")?.to_owned();
        if !path.starts_with('/') {
            return Err(format!("the path {path:?} does not begin with /"));
        }
        let mut headers = HeaderMap::new();
        let body = match (request.get("body_raw"), request.get("body")) {
            (Some(Value::String(raw)), _) => Bytes::from(raw.clone()),
            (Some(other), _) => Bytes::from(other.to_string()),
            (None, Some(body)) => {
                let (kind, body) = written(body, &options.body_format)?;
                headers.insert(CONTENT_TYPE, kind);
                body
            }
            (None, None) => Bytes::new(),
        };
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        for (name, value) in &options.headers {
            let (name, value) = header(name, value)?;
            headers.insert(name, value);
        }
        authorize(&mut headers, credential)?;
        for (name, value) in request.get("headers").and_then(Value::as_object).into_iter().flatten() {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Null => continue,
                other => other.to_string(),
            };
            let (name, value) = header(name, &text)?;
            headers.insert(name, value);
        }
        let outgoing = Outgoing { method, path, headers, body };
        Ok(Self { outgoing, id: None, asked: request.clone(), correlation: None })
    }

    /// Sends it over an open connection.
    pub(crate) async fn send_over(
        &self,
        connection: Connection,
        target: &CheckedTarget,
    ) -> Result<TargetAnswer, WireError> {
        let id = self.id;
        let complete = move |headers: &HeaderMap, bytes: &[u8]| mcp::complete(id, headers, bytes);
        let received = connection.send(target, self.outgoing.clone(), &complete).await?;
        let message = mcp::message(id, &received);
        Ok(self.answer(received, message))
    }

    fn answer(&self, received: ReceivedAnswer, message: Option<Value>) -> TargetAnswer {
        let mut answer = match self.id {
            None => TargetAnswer::http(received),
            Some(_) => TargetAnswer::mcp(received, message),
        };
        // The id is unique on the wire and the original one in checks.
        if let Some((sent, written)) = &self.correlation
            && let Some(echoed) = answer.payload.pointer_mut("/context/correlation_id")
            && same(echoed, sent)
        {
            *echoed = written.clone();
        }
        answer
    }

    /// Records that the correlation id was changed from `written` to `sent`.
    pub(crate) fn correlated(mut self, sent: Value, written: Value) -> Self {
        self.correlation = Some((sent, written));
        self
    }
}

/// The content type and the bytes of a body.
fn written(body: &Value, format: &BodyFormat) -> Result<(HeaderValue, Bytes), String> {
    Ok(match format {
        BodyFormat::Json => (HeaderValue::from_static("application/json"), Bytes::from(body.to_string())),
        BodyFormat::Form => {
            let mut pairs = Vec::new();
            form_pairs(body, "", &mut pairs);
            let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
            (kind, Bytes::from(pairs.join("&")))
        }
        BodyFormat::Raw(kind) => {
            let kind = HeaderValue::from_str(kind).map_err(|_| format!("{kind:?} is not a content type"))?;
            let body = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
            (kind, Bytes::from(body))
        }
    })
}

/// `a=1&b[c]=2&d[0]=3`.
fn form_pairs(value: &Value, name: &str, pairs: &mut Vec<String>) {
    let inside = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}[{part}]") };
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(part, member)| form_pairs(member, &inside(part), pairs));
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, item)| form_pairs(item, &inside(&index.to_string()), pairs)),
        Value::Null => {}
        Value::String(text) => pairs.push(format!("{}={}", form_encoded(name), form_encoded(text))),
        other => pairs.push(format!("{}={other}", form_encoded(name))),
    }
}

fn form_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'*' | b'-' | b'.' | b'_' => encoded.push(byte.into()),
            b' ' => encoded.push('+'),
            other => {
                // Writing to a string cannot fail.
                let _ = write!(encoded, "%{other:02X}");
            }
        }
    }
    encoded
}

/// Adds a credential: unchanged if it names its scheme, else as a bearer token.
fn authorize(headers: &mut HeaderMap, credential: Option<&str>) -> Result<(), String> {
    let Some(credential) = credential else { return Ok(()) };
    let text = if credential.contains(' ') { credential.to_owned() } else { format!("Bearer {credential}") };
    let mut value =
        HeaderValue::from_str(&text).map_err(|_| "the credential cannot be sent in a header".to_owned())?;
    value.set_sensitive(true);
    headers.insert(AUTHORIZATION, value);
    Ok(())
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let name =
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is not a header name"))?;
    let value = HeaderValue::from_bytes(value.as_bytes())
        .map_err(|_| format!("the header {name} has an invalid value"))?;
    Ok((name, value))
}

/// Merges members into a mapping, one level deep.
pub(crate) fn overlay(base: &Value, over: &Value) -> Value {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            let mut both: Map<String, Value> = base.clone();
            for (name, value) in over {
                both.insert(name.clone(), value.clone());
            }
            Value::Object(both)
        }
        _ => base.clone(),
    }
}
