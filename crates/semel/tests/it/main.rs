//! The crate from outside: every store held to the contract.

#[cfg(feature = "embedded")]
mod atomic;
#[cfg(feature = "redis")]
mod by_hand;
#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "encryption")]
mod encrypted;
mod ergonomics;
#[cfg(all(feature = "postgres", feature = "redis"))]
mod examples;
mod fault;
mod memory;
mod mutants;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(all(feature = "postgres", feature = "redis"))]
mod tiered;
#[cfg(all(feature = "embedded", feature = "postgres", feature = "redis"))]
mod transfer;
