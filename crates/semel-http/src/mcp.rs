//! The Model Context Protocol: tool calls as JSON-RPC messages over streamable HTTP.
//!
//! - [`json`]: objects whose members keep their text.
//! - [`sse`]: event streams.
//! - [`request`]: reads a message.
//! - [`call`]: classifies answers, and formats stored answers and refusals.
//! - [`tools`]: which tools need a key.
//! - [`release`]: the release of AdCP that an agent announces.

pub(crate) mod call;
#[cfg(test)]
mod fuzz;
pub(crate) mod json;
pub(crate) mod release;
pub(crate) mod request;
pub(crate) mod sse;
pub(crate) mod tools;

pub(crate) use self::call::McpCall;
use self::json::{Object, raw};
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

/// Header with the method of a message, in protocol versions without sessions.
pub(crate) const METHOD: http::HeaderName = http::HeaderName::from_static("mcp-method");

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

/// Announces the published policy in an agent's capabilities. Other members of `adcp.idempotency` are the agent's and stay.
pub(crate) fn announce(policy: &RoutePolicy, capabilities: &mut Object<'_>) {
    let replay_ttl_seconds = policy.terms.retention.as_secs();
    let in_flight_max_seconds = seconds(policy.longest_in_flight()).min(replay_ttl_seconds);
    let adcp = {
        let mut adcp = capabilities.object("adcp").unwrap_or_default();
        let idempotency = {
            let mut idempotency = adcp.object("idempotency").unwrap_or_default();
            idempotency.set("supported", raw(&true));
            idempotency.set("replay_ttl_seconds", raw(&replay_ttl_seconds));
            idempotency.set("in_flight_max_seconds", raw(&in_flight_max_seconds));
            idempotency.to_raw()
        };
        adcp.set("idempotency", idempotency);
        adcp.to_raw()
    };
    capabilities.set("adcp", adcp);
}
