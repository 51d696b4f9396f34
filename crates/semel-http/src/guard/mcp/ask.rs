//! Asks the upstream which of its tools need a key.

use std::time::Duration;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap, HeaderName, HeaderValue,
    TRANSFER_ENCODING,
};
use http::request::Parts;
use http::{Method, Request};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::super::{Inner, name_upstream};
use super::hear::{Hearing, Until, read_answer};
use crate::body::Body;
use crate::mcp::json::{Object, raw};
use crate::mcp::request::ToolCall;
use crate::mcp::tools::{AskedTools, Learned, List, Needs, ToolPage, Tools};
use crate::mcp::{CAPABILITIES, METHOD};
use crate::policy::RoutePolicy;

/// Timeout for listing the tools of the upstream.
const ASK: Duration = Duration::from_secs(5);
/// Maximum number of pages of tools that are read.
const PAGES: usize = 64;
/// The id of the guard's own `tools/list` request.
const OWN_ID: &str = "\"semel-tools-list\"";

impl Inner {
    /// True if a call without a key needs one. Decided by the name of the tool, by the list that the caller got, or by asking the
    /// upstream. An unknown tool needs none.
    pub(super) async fn needs_key(
        &self,
        tools: &Tools,
        policy: &RoutePolicy,
        parts: &Parts,
        call: &ToolCall,
    ) -> bool {
        let needs = match tools.needs(&call.tool) {
            // This tool changes nothing, and every client calls it.
            Needs::Unknown if call.tool == CAPABILITIES => Needs::NoKey,
            Needs::Unknown => {
                let learned = tools.learned();
                let list = self.list_of_caller(learned, policy, parts);
                match learned.needs(&list, &call.tool) {
                    Needs::Unknown => self.ask(learned, &list, policy, parts, call).await,
                    known => known,
                }
            }
            known => known,
        };
        needs == Needs::Key
    }

    /// Asks the upstream for its tools, with the caller's headers.
    async fn ask(
        &self,
        learned: &Learned,
        list: &List,
        policy: &RoutePolicy,
        parts: &Parts,
        call: &ToolCall,
    ) -> Needs {
        let mut not_before = list.asking.lock().await;
        let known = learned.needs(list, &call.tool);
        if known != Needs::Unknown || !not_before.is_now() {
            return known;
        }
        let Some(_question) = learned.question() else { return Needs::Unknown };
        let listed = tokio::time::timeout(ASK, self.list(policy, parts, call, learned, list)).await;
        let told = listed.ok().flatten().unwrap_or(AskedTools::Nothing);
        if told == AskedTools::Nothing && learned.may_warn() {
            tracing::warn!(
                target: "semel",
                "the upstream did not list its tools: calls with an idempotency_key are guarded, and only AdCP's \
                 mutating tools need one"
            );
        }
        not_before.asked(told);
        learned.needs(list, &call.tool)
    }

    async fn list(
        &self,
        policy: &RoutePolicy,
        parts: &Parts,
        call: &ToolCall,
        learned: &Learned,
        list: &List,
    ) -> Option<AskedTools> {
        let caller = self.caller.as_ref()?;
        let id = RawValue::from_string(OWN_ID.to_owned()).ok()?;
        let mut cursor = None::<String>;
        for _ in 0..PAGES {
            let mut params = Object::default();
            if let Some(meta) = own_meta(parts, call) {
                params.set("_meta", meta);
            }
            if let Some(cursor) = &cursor {
                params.set("cursor", raw(cursor.as_str()));
            }
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
                    tracing::warn!(target: "semel", %error, "a call made by the gateway failed");
                    return None;
                }
            };
            let (head, body) = answer.into_parts();
            let deadline = Instant::now() + ASK;
            let Hearing::Heard(heard) =
                read_answer(&head.headers, body, &id, Until::Answer, policy.response_limit, deadline).await
            else {
                return None;
            };
            match learned.learn(list, &heard.message)? {
                ToolPage::Next(next) => cursor = Some(next),
                ToolPage::Last => break,
            }
        }
        Some(AskedTools::Everything)
    }
}

/// The client's headers that identify the caller and its session, for the guard's own request.
fn own_headers(of_client: &HeaderMap) -> HeaderMap {
    let mut headers = of_client.clone();
    for name in [CONTENT_LENGTH, TRANSFER_ENCODING, EXPECT, ACCEPT_ENCODING] {
        headers.remove(name);
    }
    if headers.contains_key(METHOD) {
        let of_call: Vec<HeaderName> = headers.keys().filter(|name| is_of_call(name)).cloned().collect();
        for name in of_call {
            headers.remove(name);
        }
        headers.insert(METHOD, HeaderValue::from_static("tools/list"));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    headers
}

/// True if a header repeats the name or an argument of the call.
fn is_of_call(name: &HeaderName) -> bool {
    *name == "mcp-name" || name.as_str().starts_with("mcp-param-")
}

/// Protocol version and capabilities of the client, where every request carries them.
fn own_meta(parts: &Parts, call: &ToolCall) -> Option<Box<RawValue>> {
    let meta = call.meta.as_ref().filter(|_| parts.headers.contains_key(METHOD))?;
    let mut meta = Object::read(meta.get())?;
    meta.remove("progressToken");
    Some(meta.to_raw())
}
