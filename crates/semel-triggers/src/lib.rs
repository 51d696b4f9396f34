#![doc = include_str!("../README.md")]
//!
//! # Layout
//!
//! - [`trigger`]: starts runs, and finds, changes and cancels them; the diagram of a trigger.
//! - [`gate`]: decides for every trigger: ledger or buffer.
//! - [`buffer`]: runs that wait in Redis, and the keys of Redis.
//! - [`drainer`]: the loop that empties the buffer, fair to tenants; `transfer` moves a run into the ledger.

pub mod buffer;
pub mod drainer;
pub mod gate;
mod transfer;
pub mod trigger;
