//! For authors of stores and tests of handlers: the contract suite, and a store that fails on demand.
//!
//! - [`contract`]: the contract of a store, as cases that run over any [`Store`](crate::store::Store).
//! - [`fault`]: a wrapper that loses replies, holds calls and counts them, by script.

pub mod contract;
pub mod fault;
