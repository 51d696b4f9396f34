//! The HTTP surface, from outside.
//! The guard, from outside: one binary.
#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod edge;
mod edge_kit;
mod proxy;
