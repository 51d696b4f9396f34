//! The crate from outside: every store held to the contract.

mod atomic;
mod fault;
mod memory;
