//! The agent: a small MCP server over streamable HTTP. It answers in JSON, or as a stream where the client asks for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::routing::post;
use serde_json::{Value, json};

/// Counts media buys, in memory.
#[derive(Debug, Default)]
pub(crate) struct Agent {
    buys: AtomicUsize,
    /// How long a media buy takes.
    takes: Duration,
}

impl Agent {
    pub(crate) fn new(takes: Duration) -> Self {
        Self { buys: AtomicUsize::new(0), takes }
    }

    /// How many media buys there are.
    #[allow(dead_code, reason = "a program that includes this file may count")]
    pub(crate) fn buys(&self) -> usize {
        self.buys.load(Ordering::SeqCst)
    }

    /// Answers a message; nothing where nobody waits for an answer.
    pub(crate) async fn answer(&self, message: &Value) -> Option<Value> {
        let id = message.get("id")?;
        let params = &message["params"];
        let answer = match message["method"].as_str()? {
            "initialize" => Ok(json!({
                "protocolVersion": params["protocolVersion"].as_str().unwrap_or("2025-06-18"),
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "naive-agent", "version": "1" },
            })),
            "ping" => Ok(json!({})),
            "tools/list" => Ok(json!({ "tools": tools() })),
            "tools/call" => self.call(params).await,
            _ => Err((-32601, "no such method")),
        };
        Some(match answer {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err((code, message)) => {
                json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
            }
        })
    }

    async fn call(&self, params: &Value) -> Result<Value, (i32, &'static str)> {
        let arguments = &params["arguments"];
        match params["name"].as_str().unwrap_or_default() {
            "get_adcp_capabilities" => Ok(result(
                arguments,
                json!({ "adcp": { "major_versions": [3] }, "supported_protocols": ["media_buy"] }),
            )),
            "get_products" => Ok(result(
                arguments,
                json!({ "products": [{ "product_id": "display_1", "name": "Display, all sites" }] }),
            )),
            "create_media_buy" if arguments["packages"].as_array().is_some_and(Vec::is_empty) => {
                let error = json!({ "code": "INVALID_REQUEST", "message": "a media buy has packages", "recovery": "correctable" });
                let mut result = result(arguments, json!({ "adcp_error": error }));
                result["isError"] = json!(true);
                Ok(result)
            }
            "create_media_buy" => {
                let number = self.buys.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::time::sleep(self.takes).await;
                let status = if arguments["async"] == json!(true) { "submitted" } else { "active" };
                Ok(result(
                    arguments,
                    json!({
                        "media_buy_id": format!("mb_{number}"),
                        "status": status,
                        "packages": arguments["packages"],
                    }),
                ))
            }
            _ => Err((-32602, "no such tool")),
        }
    }
}

/// A tool's result: structured, and the same as text. The caller's context is repeated.
fn result(arguments: &Value, mut payload: Value) -> Value {
    if let Some(context) = arguments.get("context") {
        payload["context"] = context.clone();
    }
    let text = payload.to_string();
    json!({ "content": [{ "type": "text", "text": text }], "structuredContent": payload })
}

fn tools() -> Value {
    let buy = json!({
        "type": "object",
        "properties": { "idempotency_key": { "type": "string" }, "packages": { "type": "array" } },
        "required": ["idempotency_key"],
    });
    let any = json!({ "type": "object" });
    json!([
        { "name": "get_adcp_capabilities", "description": "What this agent can do", "inputSchema": any },
        { "name": "get_products", "description": "What can be bought", "inputSchema": any },
        { "name": "create_media_buy", "description": "Buys", "inputSchema": buy },
    ])
}

/// The agent as a service, under every path.
pub(crate) fn router(agent: Arc<Agent>) -> Router {
    let route =
        post(receive).get(|| async { StatusCode::METHOD_NOT_ALLOWED }).delete(|| async { StatusCode::OK });
    Router::new().fallback(route).with_state(agent)
}

async fn receive(State(agent): State<Arc<Agent>>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let Ok(message) = serde_json::from_slice::<Value>(&body) else {
        let error =
            json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32700, "message": "not JSON" } });
        return answer(StatusCode::BAD_REQUEST, "application/json", error.to_string());
    };
    let answers = match &message {
        Value::Array(messages) => {
            let mut answers = Vec::new();
            for message in messages {
                answers.extend(agent.answer(message).await);
            }
            (!answers.is_empty()).then_some(Value::Array(answers))
        }
        message => agent.answer(message).await,
    };
    let Some(said) = answers else { return answer(StatusCode::ACCEPTED, "application/json", String::new()) };
    let mut response = if wants_stream(&headers) {
        let progress = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": "done" } });
        let stream = format!("event: message\ndata: {progress}\n\nevent: message\ndata: {said}\n\n");
        answer(StatusCode::OK, "text/event-stream", stream)
    } else {
        answer(StatusCode::OK, "application/json", said.to_string())
    };
    if message["method"] == "initialize" {
        response.headers_mut().insert("mcp-session-id", header::HeaderValue::from_static("session-1"));
    }
    response
}

/// A client that names streams first, or alone, gets one.
fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    match (accept.find("text/event-stream"), accept.find("application/json")) {
        (Some(stream), Some(json)) => stream < json,
        (stream, _) => stream.is_some(),
    }
}

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}
