//! The crate from outside: every store held to the contract.

mod fault;
mod memory;
