//! Classifies the answer to a tool call, and formats stored answers and refusals.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use semel::canonical::to_canonical;
use semel::record::Terms;
use serde::Serialize;
use serde_json::value::RawValue;

use super::json::{Object, raw, text_of};
use super::release::Release;
use super::sse;
use super::tools::CallFacts;
use crate::body::Body;
use crate::problem::{Problem, RetryAdvice, Situation, seconds};
use crate::profile::Profile;

/// What the answer to a message depends on.
#[derive(Clone, Debug)]
pub(crate) struct McpCall {
    /// `None` if nobody expects an answer, or if it could not be parsed.
    pub(crate) id: Option<Box<RawValue>>,
    /// The caller's context, which every answer repeats.
    pub(crate) context: Option<Box<RawValue>>,
    pub(crate) accepts: Accepts,
    pub(crate) form: Form,
    /// Terms of the called tool, where they differ from those of the route.
    pub(crate) terms: Option<Arc<Terms>>,
    /// What the agent told this caller.
    pub(crate) facts: CallFacts,
    pub(crate) results: ResultForm,
}

/// Whether a result names its type, which protocol versions without sessions require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultForm {
    Plain,
    Typed,
}

impl ResultForm {
    fn result_type(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Typed => Some("complete"),
        }
    }
}

/// The answer formats that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepts {
    Json,
    Events,
    Both,
}

/// How the caller gets a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As the result of the tool.
    ToolResult,
    /// As a JSON-RPC error with this code.
    Error(i32),
}

impl Form {
    pub(crate) const PARSE_ERROR: Self = Self::Error(-32700);
    pub(crate) const INVALID_REQUEST: Self = Self::Error(-32600);
    pub(crate) const INVALID_PARAMS: Self = Self::Error(-32602);
}

/// The meaning of an answer for the record of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JudgedAnswer {
    /// The answer is the outcome.
    Success,
    /// The call had no effect.
    Failure,
}

/// An AdCP error: one of few codes, and what to do about it.
#[derive(Serialize)]
struct AdcpError<'a> {
    code: &'a str,
    message: &'a str,
    recovery: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
}

/// Where older clients look for the hint.
#[derive(Serialize)]
struct Details {
    retry_after: u64,
}

#[derive(Serialize)]
struct McpPayload<'a> {
    adcp_error: &'a AdcpError<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct TextContent<'a> {
    r#type: &'static str,
    text: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult<'a> {
    content: [TextContent<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_error: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
}

#[derive(Serialize)]
struct RpcError<'a> {
    code: i32,
    message: &'a str,
    data: &'a AdcpError<'a>,
}

impl McpCall {
    /// A problem in the caller's format: the result of its tool, or a JSON-RPC error.
    pub(crate) fn tell(&self, profile: &Profile, problem: &Problem) -> Response<Body> {
        let telling = profile.text(problem.situation);
        let retry_after = problem.retry_after.map(|after| {
            let (least, most) = telling.hint_within.unwrap_or((1, u64::MAX));
            seconds(after).clamp(least, most)
        });
        let recovery = match problem.retry {
            Some(RetryAdvice::Useful) => "transient",
            Some(RetryAdvice::Useless) | None => telling.recovery,
        };
        // Before it had a code of its own, a call in progress was a service that is unavailable for a moment.
        let is_coded = self.facts.release.is_none_or(|release| release >= Release::WITH_IN_FLIGHT);
        let code = match problem.situation {
            Situation::InFlight if !is_coded => profile.text(Situation::StoreUnavailable).kind,
            _ => telling.kind,
        };
        let error = AdcpError {
            code,
            message: problem.detail.as_deref().unwrap_or_else(|| words(problem.situation)),
            recovery,
            retry_after,
            details: retry_after.map(|retry_after| Details { retry_after }),
        };
        match self.form {
            Form::ToolResult => {
                let payload = raw(&McpPayload { adcp_error: &error, context: self.context.as_deref() });
                let content = [TextContent { r#type: "text", text: payload.get() }];
                let result = ToolResult {
                    content,
                    structured_content: (!self.facts.result.excludes_errors).then_some(&payload),
                    is_error: Some(true),
                    result_type: self.results.result_type(),
                };
                self.answer(StatusCode::OK, &self.message("result", raw(&result)), AnswerFormat::Json)
            }
            Form::Error(code) => {
                let status = problem.status.unwrap_or(telling.status);
                let error = RpcError { code, message: error.message, data: &error };
                self.answer(status, &self.message("error", raw(&error)), AnswerFormat::Json)
            }
        }
    }

    /// A stored answer for this call: with its id, its context, and the mark of an answer from the record.
    pub(crate) fn replay(&self, kept: Response<Body>) -> Option<Response<Body>> {
        let (parts, body) = kept.into_parts();
        let body = body.into_bytes()?;
        let kept = Object::read_bytes(&body)?;
        let wrapped;
        let mut result = match kept.object("result") {
            Some(result) if kept.has("jsonrpc") => result,
            // The outcome of a probe or of an operator's settlement is the tool's own result, without a message around it.
            _ => {
                wrapped = wrap(&kept, self.results);
                Object::read(wrapped.get())?
            }
        };
        edit(&mut result, |payload, place| {
            // Clients reject a structured result with members that the agent's list does not declare.
            let is_closed = place == PayloadPlace::Structured && self.facts.result.is_closed;
            match &self.context {
                Some(context) if !is_closed || payload.has("context") => {
                    payload.set("context", context.clone());
                }
                Some(_) => {}
                None => payload.remove("context"),
            }
            if !is_closed {
                payload.set("replayed", raw(&true));
            }
        });
        let format = if is_events(&parts.headers) { AnswerFormat::Events } else { AnswerFormat::Json };
        let mut answer = self.answer(StatusCode::OK, &self.message("result", result.to_raw()), format);
        for (name, value) in &parts.headers {
            if !is_of_one_answer(name) {
                answer.headers_mut().append(name, value.clone());
            }
        }
        Some(answer)
    }

    fn message(&self, member: &'static str, value: Box<RawValue>) -> Box<RawValue> {
        let mut message = Object::default();
        message.set("jsonrpc", raw("2.0"));
        message.set("id", self.id.clone().unwrap_or_else(|| raw(&())));
        message.set(member, value);
        message.to_raw()
    }

    /// A message in the requested format, if the client accepts it.
    fn answer(&self, status: StatusCode, message: &RawValue, format: AnswerFormat) -> Response<Body> {
        let format = match self.accepts {
            Accepts::Json => AnswerFormat::Json,
            // A transport error is always JSON, whatever the client accepts: no stream was opened.
            Accepts::Events if status == StatusCode::OK => AnswerFormat::Events,
            Accepts::Events | Accepts::Both => format,
        };
        let (content_type, body) = match format {
            AnswerFormat::Json => ("application/json", Bytes::copy_from_slice(message.get().as_bytes())),
            AnswerFormat::Events => ("text/event-stream", sse::event(message.get().as_bytes()).into()),
        };
        let mut answer = Response::new(Body::from(body));
        *answer.status_mut() = status;
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        answer
    }
}

/// The two formats of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerFormat {
    Json,
    Events,
}

/// True if an answer is an event stream.
pub(crate) fn is_events(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        let (value, start) = (value.as_bytes(), b"text/event-stream");
        value.len() >= start.len() && value[..start.len()].eq_ignore_ascii_case(start)
    })
}

/// True if a header belongs to the bytes of one answer or to one session. Such headers are not stored.
pub(crate) fn is_of_one_answer(name: &HeaderName) -> bool {
    *name == CONTENT_LENGTH
        || *name == CONTENT_TYPE
        || *name == super::SESSION
        || matches!(
            name.as_str(),
            "content-encoding"
                | "content-digest"
                | "repr-digest"
                | "digest"
                | "content-md5"
                | "etag"
                | "accept-ranges"
        )
}

/// Texts for callers without headers, methods or paths. They reveal nothing about other calls.
fn words(situation: Situation) -> &'static str {
    match situation {
        Situation::KeyMissing => {
            "this tool needs the argument idempotency_key: a new one for every new operation, the same one for its retries"
        }
        Situation::Conflict => {
            "the idempotency_key was used with other arguments; use a new one for a new operation"
        }
        Situation::BodyMalformed => "the message must be valid JSON in which every member name occurs once",
        Situation::BodyTooLarge => "the message is too large",
        Situation::InFlight => "a call with this idempotency_key is in progress; send the same call again",
        other => other.detail(),
    }
}

/// Wraps a bare result as the result of a tool.
fn wrap(payload: &Object<'_>, form: ResultForm) -> Box<RawValue> {
    let payload = payload.to_raw();
    let content = [TextContent { r#type: "text", text: payload.get() }];
    let result_type = form.result_type();
    raw(&ToolResult { content, structured_content: Some(&payload), is_error: None, result_type })
}

/// Where a result holds a copy of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadPlace {
    Structured,
    Text,
}

/// Changes a result in both places where clients look for it: the structured content, and the JSON in the text.
pub(crate) fn edit(result: &mut Object<'_>, change: impl Fn(&mut Object<'_>, PayloadPlace)) {
    let structured = result.object("structuredContent").map(|mut structured| {
        match unwrapped(&structured, text_payload(result).as_deref()) {
            Some((text, form)) => {
                let mut payload = Object::read(&text).unwrap_or_default();
                change(&mut payload, PayloadPlace::Structured);
                let payload = payload.to_raw();
                structured.set("result", if form == Wrapped::Text { raw(payload.get()) } else { payload });
            }
            None => change(&mut structured, PayloadPlace::Structured),
        }
        structured.to_raw()
    });
    if let Some(structured) = structured {
        result.set("structuredContent", structured);
    }
    let Some(content) = result.get("content") else { return };
    let Ok(mut items) = serde_json::from_str::<Vec<Object<'_>>>(content.get()) else { return };
    let is_changed = items.iter_mut().any(|item| {
        let Some(text) = json_text(item) else { return false };
        let Some(mut payload) = Object::read(&text) else { return false };
        change(&mut payload, PayloadPlace::Text);
        item.set("text", raw(payload.to_raw().get()));
        true
    });
    if is_changed {
        let items = raw(&items);
        result.set("content", items);
    }
}

/// How a library put a payload into the only member `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrapped {
    Object,
    Text,
}

/// The payload in `{"result": …}`: libraries write so what a tool does not declare as an object. The text of the content has it bare.
fn unwrapped(structured: &Object<'_>, text: Option<&str>) -> Option<(String, Wrapped)> {
    let (inner, text) = (structured.only("result")?, text?);
    if text_of(inner).is_some_and(|inner| inner == text) {
        return Some((text.to_owned(), Wrapped::Text));
    }
    (inner.get().starts_with('{') && is_same(inner, &RawValue::from_string(text.to_owned()).ok()?))
        .then(|| (text.to_owned(), Wrapped::Object))
}

/// The text of a content item, if it is text.
fn json_text(item: &Object<'_>) -> Option<String> {
    if item.text("type")? != "text" {
        return None;
    }
    item.text("text").map(std::borrow::Cow::into_owned)
}

/// Classifies a message as the answer to this id. `None` if the message is not that answer.
pub(crate) fn judge(message: &[u8], id: &RawValue) -> Option<JudgedAnswer> {
    let message = Object::read_bytes(message)?;
    if message.has("method") {
        return None;
    }
    let failed = message.has("error");
    match message.get("id") {
        Some(answered) if is_same(answered, id) => {}
        // A server that could not parse the request does not know its id.
        None if failed => {}
        Some(answered) if failed && answered.get() == "null" => {}
        _ => return None,
    }
    if failed {
        return Some(JudgedAnswer::Failure);
    }
    let result = message.object("result")?;
    Some(if is_failure(&result) { JudgedAnswer::Failure } else { JudgedAnswer::Success })
}

fn is_same(one: &RawValue, other: &RawValue) -> bool {
    one.get() == other.get()
        || matches!(
            (to_canonical(one.get().as_bytes()), to_canonical(other.get().as_bytes())),
            (Ok(one), Ok(other)) if one == other
        )
}

fn is_failure(result: &Object<'_>) -> bool {
    let says_error = result.get("isError").is_some_and(|value| !matches!(value.get(), "false" | "null"));
    // The agent asks its client something before it acts.
    let asks = result.text("resultType").is_some_and(|kind| kind == "input_required");
    if says_error || asks || holds_errors(result) {
        return true;
    }
    let text = text_payload(result);
    match result.object("structuredContent") {
        Some(payload) if unwrapped(&payload, text.as_deref()).is_none() => holds_errors(&payload),
        _ => text.is_some_and(|text| Object::read(&text).is_some_and(|it| holds_errors(&it))),
    }
}

/// The first JSON object in the text of a result.
fn text_payload(result: &Object<'_>) -> Option<String> {
    let items = serde_json::from_str::<Vec<Object<'_>>>(result.get("content")?.get()).ok()?;
    items.iter().filter_map(json_text).find(|text| Object::read(text).is_some())
}

fn holds_errors(payload: &Object<'_>) -> bool {
    let errors =
        payload.get("errors").and_then(|errors| serde_json::from_str::<Vec<&RawValue>>(errors.get()).ok());
    payload.has("adcp_error") || errors.is_some_and(|errors| !errors.is_empty())
}

/// The message with `change` applied to the payload of its result; `None` if it has no result.
pub(crate) fn changed(message: &[u8], change: impl Fn(&mut Object<'_>)) -> Option<Box<RawValue>> {
    let mut message = Object::read_bytes(message)?;
    let mut result = message.object("result")?;
    edit(&mut result, |payload, _| change(payload));
    let result = result.to_raw();
    message.set("result", result);
    Some(message.to_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(result: &str) -> Option<JudgedAnswer> {
        judge(format!(r#"{{"jsonrpc":"2.0","id":1,{result}}}"#).as_bytes(), &raw(&1))
    }

    #[test]
    fn content_says_whether_it_happened() {
        let (success, failure) = (Some(JudgedAnswer::Success), Some(JudgedAnswer::Failure));
        for (result, expected) in [
            (r#""result":{"structuredContent":{"media_buy_id":"mb_1"}}"#, success),
            (r#""result":{"structuredContent":{"status":"submitted","task_id":"t"}}"#, success),
            (r#""result":{"structuredContent":{"errors":[]},"isError":false}"#, success),
            (r#""result":{"content":[{"type":"text","text":"done"}]}"#, success),
            (r#""result":{}"#, success),
            (r#""result":{"isError":true}"#, failure),
            (r#""result":{"structuredContent":{"adcp_error":{"code":"X"}}}"#, failure),
            (r#""result":{"structuredContent":{"errors":[{"code":"X"}]}}"#, failure),
            (r#""result":{"content":[{"type":"text","text":"{\"errors\":[{}]}"}]}"#, failure),
            (r#""result":{"content":[{"type":"text","text":"{\"adcp_error\":{}}"}]}"#, failure),
            (r#""error":{"code":-32000,"message":"no"}"#, failure),
            (r#""result":{"resultType":"complete","content":[]}"#, success),
            (r#""result":{"resultType":"input_required","inputRequests":{}}"#, failure),
            // As libraries for Python wrap a text, and an object that is not declared as one.
            (
                r#""result":{"content":[{"type":"text","text":"{\"errors\":[{}]}"}],"structuredContent":{"result":"{\"errors\":[{}]}"}}"#,
                failure,
            ),
            (
                r#""result":{"content":[{"type":"text","text":"{\"adcp_error\": {}}"}],"structuredContent":{"result":{"adcp_error":{}}}}"#,
                failure,
            ),
            (
                r#""result":{"content":[{"type":"text","text":"{\"id\":1}"}],"structuredContent":{"result":{"id":1}}}"#,
                success,
            ),
            (r#""result":5"#, None),
            (r#""method":"notifications/progress""#, None),
        ] {
            assert_eq!(judged(result), expected, "{result}");
        }
        let other = br#"{"jsonrpc":"2.0","id":"1","result":{}}"#;
        assert_eq!(judge(other, &raw(&1)), None, "the answer to another question");
        assert_eq!(judge(br#"{"id":1.0,"result":{}}"#, &raw(&1)), success);
        assert_eq!(judge(br#"{"id":null,"error":{}}"#, &raw(&1)), failure);
        assert_eq!(judge(b"<html>", &raw(&1)), None);
    }

    #[test]
    fn a_change_reaches_every_copy_of_the_payload() {
        let item = |text: &str| format!(r#"[{{"type":"text","text":{}}}]"#, raw(text));
        let (bare, changed) = (r#"{"a":1}"#, r#"{"a":1,"b":2}"#);
        for (structured, expected) in [
            (bare.to_owned(), changed.to_owned()),
            (format!(r#"{{"result":{bare}}}"#), format!(r#"{{"result":{changed}}}"#)),
            (format!(r#"{{"result":{}}}"#, raw(bare)), format!(r#"{{"result":{}}}"#, raw(changed))),
            // A payload of the agent's own, not a wrapped one.
            (r#"{"result":{"c":3}}"#.to_owned(), r#"{"result":{"c":3},"b":2}"#.to_owned()),
        ] {
            let text = format!(r#"{{"content":{},"structuredContent":{structured}}}"#, item(bare));
            let mut result = Object::read(&text).unwrap();
            edit(&mut result, |payload, _| payload.set("b", raw(&2)));
            let expected = format!(r#"{{"content":{},"structuredContent":{expected}}}"#, item(changed));
            assert_eq!(result.to_raw().get(), expected);
        }
    }
}
