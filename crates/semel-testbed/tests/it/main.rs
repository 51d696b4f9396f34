//! Proves that the harness does what tests rely on.
#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod cluster;
mod leftovers;
mod postgres;
mod proxy;
mod redis;
