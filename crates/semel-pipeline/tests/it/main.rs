//! The crate from outside, with real servers: every ledger held to the contract, bursts, streams.

#[cfg(feature = "redis")]
mod burst;
#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "redis")]
mod streams;
