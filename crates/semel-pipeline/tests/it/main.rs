//! The crate from outside, with real servers.

#[cfg(feature = "redis")]
mod burst;
#[cfg(feature = "redis")]
mod streams;
