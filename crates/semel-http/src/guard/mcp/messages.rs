//! MCP messages: decides which of them are claimed, and learns from the answers to others.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as _;
use semel::canonical::{CanonicalError, CanonicalLimits, Exclusions, canonicalize, to_canonical};
use semel::fingerprint::{Payload, PayloadHasher};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::super::Inner;
use super::super::admit::{
    Admission, Admitted, declared_length, keep_room, key_to_replace, no_room, too_large,
};
use super::super::read::{Read, ReadDecision, ReadStop, read_until};
use super::hear::{Hearing, Until, read_answer};
use crate::body::Body;
use crate::capacity::BodyRoom;
use crate::codec::CallForm;
use crate::key_source::check;
use crate::mcp::call::{Form, JudgedAnswer, changed, judge};
use crate::mcp::json::{Object, text_of};
use crate::mcp::release::Release;
use crate::mcp::request::{self, McpMessage, ToolCall};
use crate::mcp::tools::{Learned, List, Tools};
use crate::mcp::{CAPABILITIES, KEY, announce};
use crate::policy::{FORM_HEADERS, RoutePolicy, StoreDown};
use crate::problem::{Problem, Situation};
use crate::profile::KeyLength;
use crate::scope::Principal;

/// Members that differ between two attempts of one call.
static VOLATILE: LazyLock<Exclusions> = LazyLock::new(|| {
    Exclusions::new([
        "/idempotency_key",
        "/context",
        "/governance_context",
        "/push_notification_config/authentication/credentials",
    ])
    .expect("pointers of our own")
});

/// What the guard looks for in the answer to a message that is passed on.
pub(in crate::guard) enum WatchedReply {
    Nothing,
    /// The list of tools that the caller gets: the guard learns which of them need a key.
    Tools {
        id: Box<RawValue>,
        list: Arc<List>,
    },
    /// The capabilities of an agent: the guard adds its own idempotency support.
    Capabilities {
        id: Box<RawValue>,
        list: Arc<List>,
    },
}

impl WatchedReply {
    pub(in crate::guard) fn prepare(&self, request: &mut Request<Body>) {
        if let Self::Capabilities { .. } = self {
            // The guard can extend an answer only if the answer is not compressed.
            request.headers_mut().remove(ACCEPT_ENCODING);
        }
    }
}

/// Whether a request can be a message, judged by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentKind {
    Message,
    /// The first byte decides: some clients send no content type or a wrong one, and some upstreams accept that.
    Perhaps,
    /// A file or similar, for another path of the same upstream. If the body parses as a call, it is treated as a call.
    File,
}

fn kind(headers: &HeaderMap) -> ContentKind {
    let Some(value) = headers.get(CONTENT_TYPE) else { return ContentKind::Perhaps };
    let value = value.as_bytes().to_ascii_lowercase();
    if value.windows(4).any(|window| window == b"json") {
        ContentKind::Message
    } else if value.starts_with(b"text/") || value.starts_with(b"application/x-www-form-urlencoded") {
        ContentKind::Perhaps
    } else {
        ContentKind::File
    }
}

fn begins_as_message(data: &[u8]) -> bool {
    // Lenient readers skip a byte order mark.
    let data = data.strip_prefix(b"\xef\xbb\xbf").unwrap_or(data);
    matches!(data.trim_ascii_start().first(), Some(b'{' | b'['))
}

/// Reads a file that may be a message; stops at the first byte if it is not. A body of unknown length is not read, because its client
/// may wait for an answer before it sends the first byte.
async fn read_if_message(
    policy: &RoutePolicy,
    parts: &Parts,
    body: Body,
    mut room: BodyRoom,
) -> Result<(Bytes, Option<HeaderMap>), Unread> {
    let length = declared_length(parts).or_else(|| body.size_hint().exact());
    if length.is_none_or(|length| length > policy.request_limit as u64) {
        return Err(Unread::File(body));
    }
    let mut begun = false;
    let look = |piece: &[u8]| {
        begun = begun || begins_as_message(piece);
        // White space alone does not decide.
        if begun || piece.trim_ascii().is_empty() { ReadDecision::On } else { ReadDecision::Found }
    };
    let deadline = Instant::now() + policy.body_timeout;
    match read_until(body, policy.request_limit, deadline, Some(&mut room), look).await {
        Read::Whole(whole) => keep_room(room, whole).map_err(Unread::Refused),
        Read::Partly(_, ReadStop::NoRoom) => Err(Unread::Refused(no_room(&room))),
        Read::Partly(rest, _) => Err(Unread::File(rest.into_body())),
        Read::Cut(error) => Err(Unread::File(Body::broken(error))),
    }
}

/// A body that was not read to its end.
enum Unread {
    /// It is not a message.
    File(Body),
    Refused(Problem),
}

/// True if the gateway may announce that it honours keys: every call with a key is guarded on this route, even while the store is
/// unavailable.
fn announces_support(policy: &RoutePolicy) -> bool {
    policy.store_down == StoreDown::Closed
}

impl Inner {
    /// All checks of a message that do not need the store.
    pub(in crate::guard) async fn admit_message(
        &self,
        tools: &Tools,
        policy: &RoutePolicy,
        parts: &Parts,
        body: Body,
    ) -> Admission {
        let kind = kind(&parts.headers);
        let unread = |problem| {
            Admission::Refused(CallForm::Message(Arc::new(request::unread(&parts.headers))), problem)
        };
        let is_too_large = declared_length(parts).is_some_and(|length| length > policy.request_limit as u64);
        let (data, trailers) = match kind {
            ContentKind::File => match read_if_message(policy, parts, body, self.room()).await {
                Ok(read) => read,
                Err(Unread::File(file)) => return Admission::Watched(file, WatchedReply::Nothing),
                Err(Unread::Refused(problem)) => return unread(problem),
            },
            ContentKind::Message | ContentKind::Perhaps if is_too_large => return unread(too_large(policy)),
            ContentKind::Message | ContentKind::Perhaps => match self.read_request(policy, body).await {
                Ok(read) => read,
                Err(problem) => return unread(problem),
            },
        };
        let message = match request::read(&data) {
            // A body that does not start like a message is passed on; the upstream refuses it.
            _ if data.is_empty() || (kind != ContentKind::Message && !begins_as_message(&data)) => {
                McpMessage::Other
            }
            Ok(message) => message,
            Err(_) if kind == ContentKind::File => McpMessage::Other,
            Err(refusal) => {
                let asked = CallForm::Message(Arc::new(refusal.call(&parts.headers)));
                return Admission::Refused(asked, Problem::new(Situation::BodyMalformed, refusal.reason));
            }
        };
        let body = Body::with_trailers(data.clone(), trailers);
        match message {
            McpMessage::Other => Admission::Watched(body, WatchedReply::Nothing),
            McpMessage::List { id } => {
                let list = self.list_of_caller(tools.learned(), policy, parts);
                Admission::Watched(body, WatchedReply::Tools { id, list })
            }
            McpMessage::Batch(calls) => {
                for call in &calls {
                    if call.has_key() || self.needs_key(tools, policy, parts, call).await {
                        let reason =
                            "a call that has or needs an idempotency_key must be sent alone, not in a batch";
                        return unread(Problem::new(Situation::BodyMalformed, reason));
                    }
                }
                Admission::Watched(body, WatchedReply::Nothing)
            }
            McpMessage::Call(call) => {
                if !call.has_key() && !self.needs_key(tools, policy, parts, &call).await {
                    return Admission::Watched(body, self.capabilities_of(tools, policy, parts, &call));
                }
                let form = if call.id.is_some() { Form::ToolResult } else { Form::INVALID_REQUEST };
                let mut answer = call.call(&parts.headers, form);
                answer.terms = policy.tool_terms.get(&call.tool).cloned();
                let caller = self.caller_of(policy, parts);
                answer.facts = tools.learned().facts(parts.uri.path(), &caller, &call.tool);
                let asked = CallForm::Message(Arc::new(answer));
                match self.admit_call(policy, parts, &data, &call, asked.clone()) {
                    Ok(mut admitted) => {
                        admitted.watch = self.capabilities_of(tools, policy, parts, &call);
                        Admission::Keyed(admitted, body)
                    }
                    Err(problem) => Admission::Refused(asked, problem),
                }
            }
        }
    }

    /// Key, principal, account and fingerprint of a call that has a key or needs one.
    fn admit_call(
        &self,
        policy: &RoutePolicy,
        parts: &Parts,
        body: &[u8],
        call: &ToolCall,
        asked: CallForm,
    ) -> Result<Admitted, Problem> {
        if call.id.is_none() {
            let reason =
                "a call with an idempotency_key needs an id: without one there is no answer to the caller";
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
        let payload = fingerprint(policy, parts, &call.tool, text).map_err(malformed)?;
        let key_at = key_to_replace(policy, body)?;
        let watch = WatchedReply::Nothing;
        Ok(Admitted { principal, account, key, key_at, payload, asked, watch })
    }

    /// The tools of the upstream, as listed to this caller.
    pub(super) fn list_of_caller(&self, learned: &Learned, policy: &RoutePolicy, parts: &Parts) -> Arc<List> {
        learned.list(parts.uri.path(), &self.caller_of(policy, parts))
    }

    fn caller_of(&self, policy: &RoutePolicy, parts: &Parts) -> Principal {
        Principal::of_caller(policy.scope.as_ref().unwrap_or(&self.scope), &parts.headers)
    }

    /// Inspects the answer to a call if it contains an agent's capabilities.
    fn capabilities_of(
        &self,
        tools: &Tools,
        policy: &RoutePolicy,
        parts: &Parts,
        call: &ToolCall,
    ) -> WatchedReply {
        match &call.id {
            Some(id) if call.tool == CAPABILITIES => {
                let list = self.list_of_caller(tools.learned(), policy, parts);
                WatchedReply::Capabilities { id: id.clone(), list }
            }
            _ => WatchedReply::Nothing,
        }
    }

    /// Inspects the answer to a message that was passed on.
    pub(in crate::guard) async fn watch(
        &self,
        policy: &RoutePolicy,
        watch: WatchedReply,
        answer: Response<Body>,
    ) -> Response<Body> {
        let id = match &watch {
            WatchedReply::Nothing => return answer,
            WatchedReply::Tools { id, .. } | WatchedReply::Capabilities { id, .. } => id,
        };
        if !answer.status().is_success() {
            return answer;
        }
        let (mut head, body) = answer.into_parts();
        let deadline = Instant::now() + policy.terms.in_flight_max;
        let heard = match read_answer(&head.headers, body, id, Until::Answer, policy.response_limit, deadline)
            .await
        {
            Hearing::Heard(heard) => heard,
            Hearing::Not(body, _) => return Response::from_parts(head, body),
            Hearing::Cut(error) => return Response::from_parts(head, Body::broken(error)),
        };
        match watch {
            WatchedReply::Tools { list, .. } => {
                if let Some(tools) = &self.tools {
                    tools.learned().learn(&list, &heard.message);
                }
            }
            WatchedReply::Capabilities { id, list }
                if judge(&heard.message, &id) == Some(JudgedAnswer::Success) =>
            {
                let announces = announces_support(policy);
                list.announced(None);
                let changed = changed(&heard.message, |payload| {
                    if let Some(release) = Release::announced(payload) {
                        list.announced(Some(release));
                    }
                    if announces {
                        announce(policy, payload);
                    }
                });
                if let Some(message) = changed.filter(|_| announces) {
                    head.headers.remove(CONTENT_LENGTH);
                    return Response::from_parts(head, heard.with(&message));
                }
            }
            WatchedReply::Capabilities { .. } | WatchedReply::Nothing => {}
        }
        Response::from_parts(head, heard.into_body())
    }
}

/// The key of a call: `^[A-Za-z0-9_.:-]{16,255}$`.
fn key_of(key: &RawValue, length: KeyLength) -> Result<String, Problem> {
    let malformed = |reason: String| Problem::new(Situation::KeyMalformed, reason);
    let key = text_of(key).ok_or_else(|| malformed("idempotency_key must be a string".to_owned()))?;
    check(key.as_bytes(), length).map_err(|error| malformed(error.to_string()))?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b':' | b'-');
    if !key.bytes().all(is_plain) {
        return Err(malformed("an idempotency_key consists of letters, digits and _ . : -".to_owned()));
    }
    Ok(key.into_owned())
}

/// The fingerprint of a call: its path, the compared headers other than those of its encoding, the tool, and its arguments without
/// members that differ between two attempts.
fn fingerprint(
    policy: &RoutePolicy,
    parts: &Parts,
    tool: &str,
    arguments: &RawValue,
) -> Result<Payload, CanonicalError> {
    let arguments = arguments.get().as_bytes();
    let mut canonical = Vec::with_capacity(arguments.len());
    canonicalize(arguments, CanonicalLimits::DEFAULT, &VOLATILE, &mut canonical)?;
    let path = parts.uri.path().trim_end_matches('/');
    let mut hasher = PayloadHasher::new().part("mcp").part(path).part(parts.uri.query().unwrap_or_default());
    for name in policy.headers.fingerprint.iter().filter(|name| !FORM_HEADERS.contains(&name.as_str())) {
        for value in parts.headers.get_all(name) {
            hasher = hasher.part(name).part(value);
        }
    }
    Ok(hasher.part(tool).part(&canonical).finish())
}
