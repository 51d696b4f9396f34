//! An answer and its parts: the payload, the error, the time to retry.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use serde::Serialize;
use serde_json::{Value, json};

use crate::path::Path;
use crate::wire::ReceivedAnswer;

/// Where a payload was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Extraction {
    /// MCP's structured content; over HTTP, the JSON body.
    StructuredContent,
    /// JSON in MCP's text content.
    TextFallback,
    /// The answer is a protocol error.
    Error,
    /// There is no payload.
    None,
}

/// The code of a call that is in progress.
pub(crate) const IN_FLIGHT: &str = "IDEMPOTENCY_IN_FLIGHT";

/// One answer.
#[derive(Clone, Debug)]
pub(crate) struct TargetAnswer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The document that paths refer to; null if there is none.
    pub(crate) payload: Value,
    /// The document around the payload.
    pub(crate) envelope: Value,
    pub(crate) extraction: Extraction,
    pub(crate) error: Option<ErrorForm>,
    /// True if the API said that a call with this key is in progress, and not when to ask again.
    pub(crate) without_hint: bool,
    /// True if the API had answered this request with `IDEMPOTENCY_IN_FLIGHT` before.
    pub(crate) was_in_flight: bool,
}

/// A call with the same key is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InFlight {
    /// Ask again after this time.
    Until(Duration),
    /// The answer does not say when. It may also be a conflict.
    WithoutHint,
}

/// How an answer reports an error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ErrorForm {
    pub(crate) code: Option<String>,
    pub(crate) retry_after: Option<f64>,
}

impl TargetAnswer {
    /// For a step that sends no request.
    pub(crate) fn none() -> Self {
        Self::http(ReceivedAnswer { status: 0, headers: HeaderMap::new(), body: Bytes::new() })
    }

    /// A plain HTTP answer.
    pub(crate) fn http(received: ReceivedAnswer) -> Self {
        let ReceivedAnswer { status, headers, body } = received;
        let payload: Option<Value> = serde_json::from_slice(&body).ok();
        let extraction = if payload.is_some() { Extraction::StructuredContent } else { Extraction::None };
        let payload = payload.unwrap_or(Value::Null);
        let error = (status >= 400).then(|| {
            let found = ["adcp_error", "errors[0]", "", "error"].iter();
            let objects = found.filter_map(|path| Path::parse(path).get(&payload));
            let fault = objects.map(|found| fault_of(&found)).find(|fault| fault.code.is_some());
            fault.unwrap_or(ErrorForm { code: None, retry_after: None })
        });
        let mut answer = Self {
            status,
            headers,
            body,
            envelope: payload.clone(),
            payload,
            extraction,
            error,
            without_hint: false,
            was_in_flight: false,
        };
        answer.hint_from_header();
        answer
    }

    /// An answer to a JSON-RPC call: `message` is the response object, if there was one.
    pub(crate) fn mcp(received: ReceivedAnswer, message: Option<Value>) -> Self {
        let ReceivedAnswer { status, headers, body } = received;
        let envelope = message.unwrap_or(Value::Null);
        let result = envelope.get("result").cloned().unwrap_or(Value::Null);
        let text = text_json(&result);
        let (payload, extraction) = if let Some(error) = envelope.get("error") {
            (error.clone(), Extraction::Error)
        } else if let Some(structured) = result.get("structuredContent").filter(|found| found.is_object()) {
            (structured.clone(), Extraction::StructuredContent)
        } else if let Some(text) = &text {
            (text.clone(), Extraction::TextFallback)
        } else {
            (Value::Null, Extraction::None)
        };
        let failed = status >= 400
            || envelope.is_null()
            || envelope.get("error").is_some()
            || result.get("isError") == Some(&Value::Bool(true));
        let error = find_fault(&envelope, &result, text.as_ref(), &payload);
        let error = match (error, failed) {
            (Some(fault), _) => Some(fault),
            (None, true) => Some(ErrorForm { code: problem_code(&body), retry_after: None }),
            (None, false) => None,
        };
        let mut answer = Self {
            status,
            headers,
            body,
            payload,
            envelope: result,
            extraction,
            error,
            without_hint: false,
            was_in_flight: false,
        };
        answer.hint_from_header();
        answer
    }

    fn hint_from_header(&mut self) {
        let hint = self.header("retry-after").and_then(|text| text.trim().parse::<f64>().ok());
        if let Some(error) = &mut self.error
            && error.retry_after.is_none()
        {
            error.retry_after = hint;
        }
    }

    /// A header's value as text.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    }

    pub(crate) fn code(&self) -> Option<&str> {
        self.error.as_ref()?.code.as_deref()
    }

    pub(crate) fn is_rate_limited(&self) -> bool {
        self.status == 429 || self.code().is_some_and(|code| code.eq_ignore_ascii_case("RATE_LIMITED"))
    }

    /// Whether this answer says that a call with the same key is in progress.
    pub(crate) fn in_flight(&self) -> Option<InFlight> {
        let error = self.error.as_ref()?;
        let hint = error.retry_after.map(seconds);
        match error.code.as_deref() {
            Some(IN_FLIGHT | "SERVICE_UNAVAILABLE") => {
                Some(InFlight::Until(hint.unwrap_or(Duration::from_secs(1))))
            }
            // These statuses say it by themselves; the others only together with a time to retry.
            _ if matches!(self.status, 409 | 423 | 425) => {
                Some(hint.map_or(InFlight::WithoutHint, InFlight::Until))
            }
            _ if matches!(self.status, 429 | 503) => hint.map(InFlight::Until),
            _ => None,
        }
    }

    /// When to retry.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.error.as_ref()?.retry_after.map(seconds)
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// JSON in the first text content.
fn text_json(result: &Value) -> Option<Value> {
    let contents = result.get("content")?.as_array()?;
    contents.iter().find_map(|content| {
        let parsed: Value = serde_json::from_str(content.get("text")?.as_str()?).ok()?;
        parsed.is_object().then_some(parsed)
    })
}

/// Looks for an error in every possible place, in the order in which clients look.
fn find_fault(envelope: &Value, result: &Value, text: Option<&Value>, payload: &Value) -> Option<ErrorForm> {
    let at = |root: &Value, path: &str| Path::parse(path).get(root).filter(Value::is_object);
    let null = Value::Null;
    let text = text.unwrap_or(&null);
    let every = |path: &str| Path::parse(path).all(result).into_iter().find(Value::is_object);
    let data = at(envelope, "error.data.adcp_error").or_else(|| at(envelope, "error.data"));
    let found = at(result, "structuredContent.adcp_error")
        .or_else(|| every("artifacts[*].parts[*].data.adcp_error"))
        .or_else(|| every("status.message.parts[*].data.adcp_error"))
        .or(data)
        .or_else(|| at(text, "adcp_error"))
        .or_else(|| at(payload, "errors[0]"))
        .or_else(|| at(payload, "payload.errors[0]"))
        .or_else(|| at(text, "errors[0]"))?;
    Some(fault_of(&found))
}

fn fault_of(found: &Value) -> ErrorForm {
    let code = found.get("code").or_else(|| found.get("type").filter(|kind| !kind.to_string().contains(':')));
    let code = code.and_then(Value::as_str).map(str::to_owned);
    let hint = found.get("retry_after").or_else(|| found.pointer("/details/retry_after"));
    ErrorForm { code, retry_after: hint.and_then(Value::as_f64) }
}

/// The code of a problem document, if a proxy answered instead of the agent.
fn problem_code(body: &Bytes) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    body.get("code").and_then(Value::as_str).map(str::to_owned)
}

/// The answer as shown in reports.
pub(crate) fn shown(answer: &TargetAnswer) -> Value {
    let body = match serde_json::from_slice::<Value>(&answer.body) {
        Ok(body) => body,
        Err(_) => json!(String::from_utf8_lossy(&answer.body)),
    };
    json!({"status": answer.status, "headers": crate::redact::response_headers(&answer.headers), "body": body})
}
