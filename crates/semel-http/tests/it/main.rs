//! The HTTP surface, from outside: one binary.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

#[cfg(feature = "mcp")]
#[path = "../../examples/naive_agent/agent.rs"]
mod agent;
mod conflict;
mod derived_key;
mod disconnect;
mod doubt;
mod edge;
mod edge_kit;
mod embedded;
mod keys;
mod kit;
mod layer;
mod limits;
#[cfg(feature = "mcp")]
mod mcp;
mod pinning;
mod policy;
mod probe_race;
mod profiles;
mod proxy;
mod replay;
mod scope;
mod store;
mod tenants;
mod tombstone;
mod waiters;
mod well_known;
