//! For whoever writes a store or tests a handler: the contract suite, and a store that fails on demand.
//!
//! - [`contract`]: what every store must do, as cases that run over any [`Store`](crate::store::Store).
//! - [`fault`]: a wrapper that loses replies, holds calls and counts them, by script.

pub mod contract;
pub mod fault;
