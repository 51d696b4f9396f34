//! The Model Context Protocol: tool calls as JSON-RPC messages over streamable HTTP.
//!
//! - [`json`]: objects whose members keep their text.
//! - [`sse`]: event streams.
//! - [`request`]: reads a message.
//! - [`call`]: classifies answers, and formats stored answers and refusals.
//! - [`tools`]: which tools need a key.

pub(crate) mod call;
#[cfg(test)]
mod fuzz;
pub(crate) mod json;
pub(crate) mod request;
pub(crate) mod sse;
pub(crate) mod tools;

pub(crate) use self::call::McpCall;

/// The name of the argument that contains the key.
pub(crate) const KEY: &str = "idempotency_key";
/// JSON pointer to the key in a message.
pub(crate) const KEY_POINTER: &str = "/params/arguments/idempotency_key";
/// The tool that lists an agent's capabilities.
pub(crate) const CAPABILITIES: &str = "get_adcp_capabilities";
/// Header that identifies a session between client and upstream. Passed through, never stored.
pub(crate) const SESSION: http::HeaderName = http::HeaderName::from_static("mcp-session-id");
