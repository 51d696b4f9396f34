//! Calls that are messages: which of them are claimed, and what is learned from the answers to others.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap, HeaderValue, TRANSFER_ENCODING,
};
use http::request::Parts;
use http::{Method, Request, Response};
use semel::canonical::{CanonicalError, Exclusions, Limits, canonicalize, to_canonical};
use semel::fingerprint::{Payload, PayloadHasher};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::admit::{Admission, Admitted, declared_length, key_to_replace, read_request, too_large};
use super::hear::{Hearing, Until, hear};
use super::{Inner, name_upstream};
use crate::body::Body;
use crate::codec::Asked;
use crate::key_source::check;
use crate::mcp::call::{Form, Judged, changed, judge};
use crate::mcp::json::{Object, raw, text_of};
use crate::mcp::request::{self, Message, ToolCall};
use crate::mcp::tools::{Endpoint, Needs, Page, Told, Tools};
use crate::mcp::{CAPABILITIES, KEY};
use crate::policy::RoutePolicy;
use crate::problem::{Problem, Situation};
use crate::profile::KeyLength;
use crate::scope::Principal;
use crate::well_known;

/// How long the upstream may take to list its tools.
const ASK: Duration = Duration::from_secs(5);
/// How many pages of tools are read.
const PAGES: usize = 64;
/// The id of the guard's own question.
const OWN_ID: &str = "\"semel-tools-list\"";

/// What differs between two tries of one call.
static VOLATILE: LazyLock<Exclusions> = LazyLock::new(|| {
    Exclusions::new([
        "/idempotency_key",
        "/context",
        "/governance_context",
        "/push_notification_config/authentication/credentials",
    ])
    .expect("pointers of our own")
});

/// What is looked for in the answer to a message that is passed on.
pub(super) enum Watch {
    Nothing,
    /// Which tools need a key.
    Tools {
        id: Box<RawValue>,
        path: String,
    },
    /// Where an agent says what it can do, it is said what the guard does for it.
    Capabilities {
        id: Box<RawValue>,
    },
}

impl Watch {
    pub(super) fn prepare(&self, request: &mut Request<Body>) {
        if let Self::Capabilities { .. } = self {
            // What is to be added to has to be readable.
            request.headers_mut().remove(ACCEPT_ENCODING);
        }
    }
}

/// Whether a request can be a message, by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Message,
    /// Its first byte says: some clients name no type, or the wrong one, and some upstreams do not mind.
    Perhaps,
    /// Files and the like go to other doors of the same house.
    Other,
}

fn kind(headers: &HeaderMap) -> Kind {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Kind::Perhaps };
    let value = value.as_bytes().to_ascii_lowercase();
    if value.windows(4).any(|window| window == b"json") {
        Kind::Message
    } else if value.starts_with(b"text/") || value.starts_with(b"application/x-www-form-urlencoded") {
        Kind::Perhaps
    } else {
        Kind::Other
    }
}

fn begins_as_message(data: &[u8]) -> bool {
    matches!(data.trim_ascii_start().first(), Some(b'{' | b'['))
}

impl Inner {
    /// Everything that is checked of a message before the store is touched (R1).
    pub(super) async fn admit_message(
        &self,
        tools: &Tools,
        policy: &RoutePolicy,
        parts: &Parts,
        body: Body,
    ) -> Admission {
        let kind = kind(&parts.headers);
        if kind == Kind::Other {
            return Admission::Watched(body, Watch::Nothing);
        }
        let unread =
            |problem| Admission::Refused(Asked::Message(Arc::new(request::unread(&parts.headers))), problem);
        if declared_length(parts).is_some_and(|length| length > policy.request_limit as u64) {
            return unread(too_large(policy));
        }
        let (data, trailers) = match read_request(policy, body).await {
            Ok(whole) => whole.join(),
            Err(problem) => return unread(problem),
        };
        let message = match request::read(&data) {
            // What does not even begin as one is the upstream's to refuse.
            _ if data.is_empty() || (kind == Kind::Perhaps && !begins_as_message(&data)) => Message::Other,
            Ok(message) => message,
            Err(refusal) => {
                let asked = Asked::Message(Arc::new(refusal.call(&parts.headers)));
                return Admission::Refused(asked, Problem::new(Situation::BodyMalformed, refusal.reason));
            }
        };
        let body = Body::with_trailers(data.clone(), trailers);
        match message {
            Message::Other => Admission::Watched(body, Watch::Nothing),
            Message::List { id } if tools.is_learning() => {
                Admission::Watched(body, Watch::Tools { id, path: parts.uri.path().to_owned() })
            }
            Message::List { .. } => Admission::Watched(body, Watch::Nothing),
            Message::Batch(calls) => {
                for call in &calls {
                    if self.is_keyed(tools, policy, parts, call).await {
                        let reason = "a call that needs an idempotency_key is sent alone, not in a batch";
                        return unread(Problem::new(Situation::BodyMalformed, reason));
                    }
                }
                Admission::Watched(body, Watch::Nothing)
            }
            Message::Call(call) if call.tool == CAPABILITIES => {
                let watch = call.id.map_or(Watch::Nothing, |id| Watch::Capabilities { id });
                Admission::Watched(body, watch)
            }
            Message::Call(call) => {
                if !self.is_keyed(tools, policy, parts, &call).await {
                    return Admission::Watched(body, Watch::Nothing);
                }
                let form = if call.id.is_some() { Form::ToolResult } else { Form::INVALID_REQUEST };
                let asked = Asked::Message(Arc::new(call.call(&parts.headers, form)));
                match self.admit_call(policy, parts, &data, &call, asked.clone()) {
                    Ok(admitted) => Admission::Keyed(admitted, body),
                    Err(problem) => Admission::Refused(asked, problem),
                }
            }
        }
    }

    /// Key, principal, account and fingerprint of a call that needs a key.
    fn admit_call(
        &self,
        policy: &RoutePolicy,
        parts: &Parts,
        body: &[u8],
        call: &ToolCall,
        asked: Asked,
    ) -> Result<Admitted, Problem> {
        if call.id.is_none() {
            let reason = "a call of this tool needs an id: without one nobody could be told what came of it";
            return Err(Problem::new(Situation::BodyMalformed, reason));
        }
        let text = call.arguments.as_ref().ok_or(Situation::KeyMissing)?;
        let arguments = Object::read(text.get()).ok_or(Situation::KeyMissing)?;
        let key = match arguments.get(KEY).filter(|key| key.get() != "null") {
            None => return Err(Situation::KeyMissing.into()),
            Some(key) => key_of(key, policy.key_length)?,
        };
        let scope = policy.scope.as_ref().unwrap_or(&self.scope);
        let principal = scope.principal(&parts.headers)?;
        let malformed = |error: CanonicalError| Problem::new(Situation::BodyMalformed, error.to_string());
        let account = match arguments.get("account").filter(|account| account.get() != "null") {
            Some(account) => {
                let canonical = to_canonical(account.get().as_bytes()).map_err(malformed)?;
                Some(Principal::new(&["account"], &canonical))
            }
            None => None,
        };
        let payload = fingerprint(parts, &call.tool, text).map_err(malformed)?;
        let key_at = key_to_replace(policy, body)?;
        Ok(Admitted { principal, account, key, key_at, payload, asked })
    }

    /// Whether a call needs a key: by the config, by what was learned, by asking; and if nobody knows, by whether it
    /// has one.
    async fn is_keyed(&self, tools: &Tools, policy: &RoutePolicy, parts: &Parts, call: &ToolCall) -> bool {
        let needs = match tools.needs(parts.uri.path(), &call.tool) {
            Needs::Unknown => self.ask(tools, policy, parts, &call.tool).await,
            known => known,
        };
        match needs {
            Needs::Key => true,
            Needs::NoKey => false,
            Needs::Unknown => call.has_key(),
        }
    }

    /// Asks the upstream which tools it has, as whoever calls.
    async fn ask(&self, tools: &Tools, policy: &RoutePolicy, parts: &Parts, tool: &str) -> Needs {
        let Some(endpoint) = tools.endpoint(parts.uri.path()) else { return Needs::Unknown };
        let mut not_before = endpoint.asking.lock().await;
        let known = endpoint.needs(tool);
        if known != Needs::Unknown || !not_before.is_now() {
            return known;
        }
        let listed = tokio::time::timeout(ASK, self.list(policy, parts, &endpoint)).await;
        let told = listed.ok().flatten().unwrap_or(Told::Nothing);
        if told == Told::Nothing {
            tracing::warn!(target: "semel", "the upstream did not list its tools: calls with an idempotency_key are guarded, others are not");
        }
        not_before.asked(told);
        endpoint.needs(tool)
    }

    async fn list(&self, policy: &RoutePolicy, parts: &Parts, endpoint: &Endpoint) -> Option<Told> {
        let caller = self.caller.as_ref()?;
        let id = RawValue::from_string(OWN_ID.to_owned()).ok()?;
        let mut cursor = None::<String>;
        for _ in 0..PAGES {
            let params = cursor.as_ref().map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
            let question = json!({ "jsonrpc": "2.0", "id": &*id, "method": "tools/list", "params": params });
            let mut request = Request::new(Body::from(question.to_string()));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = parts.uri.clone();
            *request.headers_mut() = own_headers(&parts.headers);
            name_upstream(&mut request, policy);
            let answer = match caller.call(request).await {
                Ok(answer) if answer.status().is_success() => answer,
                Ok(_) => return None,
                Err(error) => {
                    tracing::warn!(target: "semel", %error, "a call of the gateway's own failed");
                    return None;
                }
            };
            let (head, body) = answer.into_parts();
            let deadline = Instant::now() + ASK;
            let Hearing::Heard(heard) =
                hear(&head.headers, body, &id, Until::Answer, policy.response_limit, deadline).await
            else {
                return None;
            };
            match endpoint.learn(&heard.message)? {
                Page::Next(next) => cursor = Some(next),
                Page::Last => break,
            }
        }
        Some(Told::Everything)
    }

    /// Looks at the answer to a message that was passed on.
    pub(super) async fn watch(
        &self,
        policy: &RoutePolicy,
        watch: Watch,
        answer: Response<Body>,
    ) -> Response<Body> {
        let id = match &watch {
            Watch::Nothing => return answer,
            Watch::Tools { id, .. } | Watch::Capabilities { id } => id,
        };
        if !answer.status().is_success() {
            return answer;
        }
        let (mut head, body) = answer.into_parts();
        let deadline = Instant::now() + policy.terms.in_flight_max;
        let heard = match hear(&head.headers, body, id, Until::Answer, policy.response_limit, deadline).await
        {
            Hearing::Heard(heard) => heard,
            Hearing::Not(body, _) => return Response::from_parts(head, body),
            Hearing::Cut(error) => return Response::from_parts(head, Body::broken(error)),
        };
        match watch {
            Watch::Tools { path, .. } => {
                if let Some(tools) = &self.tools
                    && let Some(endpoint) = tools.endpoint(&path)
                {
                    endpoint.learn(&heard.message);
                }
            }
            Watch::Capabilities { id } if judge(&heard.message, &id) == Some(Judged::Success) => {
                let said = raw(&well_known::capability(policy));
                let changed = changed(&heard.message, |payload| {
                    let mut adcp = payload.object("adcp").unwrap_or_default();
                    adcp.set("idempotency", said.clone());
                    let adcp = adcp.to_raw();
                    payload.set("adcp", adcp);
                });
                if let Some(message) = changed {
                    head.headers.remove(CONTENT_LENGTH);
                    return Response::from_parts(head, heard.with(&message));
                }
            }
            Watch::Capabilities { .. } | Watch::Nothing => {}
        }
        Response::from_parts(head, heard.into_body())
    }
}

/// The client's headers for a question of the guard's own: whoever it is, and in which session.
fn own_headers(of_client: &HeaderMap) -> HeaderMap {
    let mut headers = of_client.clone();
    for name in [CONTENT_LENGTH, TRANSFER_ENCODING, EXPECT, ACCEPT_ENCODING] {
        headers.remove(name);
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    headers
}

/// The key of a call: `^[A-Za-z0-9_.:-]{16,255}$`.
fn key_of(key: &RawValue, length: KeyLength) -> Result<String, Problem> {
    let malformed = |reason: String| Problem::new(Situation::KeyMalformed, reason);
    let key = text_of(key).ok_or_else(|| malformed("idempotency_key must be a text".to_owned()))?;
    check(key.as_bytes(), length).map_err(|error| malformed(error.to_string()))?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b':' | b'-');
    if !key.bytes().all(is_plain) {
        return Err(malformed("an idempotency_key is made of letters, digits and _ . : -".to_owned()));
    }
    Ok(key.into_owned())
}

/// What counts as the same call: where it went, the tool, and its arguments without what differs between two tries.
fn fingerprint(parts: &Parts, tool: &str, arguments: &RawValue) -> Result<Payload, CanonicalError> {
    let arguments = arguments.get().as_bytes();
    let mut canonical = Vec::with_capacity(arguments.len());
    canonicalize(arguments, Limits::DEFAULT, &VOLATILE, &mut canonical)?;
    let path = parts.uri.path().trim_end_matches('/');
    let hasher = PayloadHasher::new().part("mcp").part(path).part(parts.uri.query().unwrap_or_default());
    Ok(hasher.part(tool).part(&canonical).finish())
}
