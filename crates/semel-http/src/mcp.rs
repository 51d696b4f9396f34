//! The Model Context Protocol: calls of tools as JSON-RPC messages over streamable HTTP.
//!
//! - [`json`]: objects whose members keep their text.
//! - [`sse`]: streams of events.
//! - [`request`]: what a message asks.
//! - [`call`]: what an answer says, and how replays and refusals are shaped.
//! - [`tools`]: which tools need a key.

pub(crate) mod call;
#[cfg(test)]
mod fuzz;
pub(crate) mod json;
pub(crate) mod request;
pub(crate) mod sse;
pub(crate) mod tools;

pub(crate) use self::call::Call;

/// The argument that is the key.
pub(crate) const KEY: &str = "idempotency_key";
/// The same, from the top of a message.
pub(crate) const KEY_POINTER: &str = "/params/arguments/idempotency_key";
/// The tool that says what an agent can do.
pub(crate) const CAPABILITIES: &str = "get_adcp_capabilities";
/// By which client and upstream know a session. Passed through, never kept.
pub(crate) const SESSION: http::HeaderName = http::HeaderName::from_static("mcp-session-id");
