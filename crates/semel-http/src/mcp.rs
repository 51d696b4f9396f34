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
use crate::KeySource;
use crate::policy::{Fingerprinting, Pin, PolicyError, RoutePolicy};
use crate::problem::seconds;

/// The name of the argument that contains the key.
pub(crate) const KEY: &str = "idempotency_key";
/// JSON pointer to the key in a message.
pub(crate) const KEY_POINTER: &str = "/params/arguments/idempotency_key";
/// The tool that lists an agent's capabilities.
pub(crate) const CAPABILITIES: &str = "get_adcp_capabilities";
/// Header that identifies a session between client and upstream. Passed through, never stored.
pub(crate) const SESSION: http::HeaderName = http::HeaderName::from_static("mcp-session-id");

/// Rejects settings of a route that messages decide.
pub(crate) fn check(policy: &RoutePolicy) -> Result<(), PolicyError> {
    let at_place = matches!(&policy.key, KeySource::Json(pointer) if pointer.to_string() == KEY_POINTER);
    let setting = if !at_place {
        "key"
    } else if policy.fingerprint != Fingerprinting::Exact {
        "fingerprint"
    } else if policy.pin != Pin::Success {
        "pin"
    } else {
        return Ok(());
    };
    Err(PolicyError::NotOfMessages { pattern: policy.pattern.to_string(), setting })
}

/// The values of the published policy as a member of an agent's capabilities.
pub(crate) fn capability(policy: &RoutePolicy) -> serde_json::Value {
    let replay_ttl_seconds = policy.terms.retention.as_secs();
    let in_flight_max_seconds = seconds(policy.terms.in_flight_max).min(replay_ttl_seconds);
    serde_json::json!({
        "supported": true,
        "replay_ttl_seconds": replay_ttl_seconds,
        "in_flight_max_seconds": in_flight_max_seconds,
    })
}
