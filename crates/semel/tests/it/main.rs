//! The crate from outside: every store held to the contract.

mod atomic;
mod embedded;
mod fault;
mod memory;
mod mutants;
