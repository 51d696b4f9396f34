//! The crate from outside: every ledger held to the contract, sources with real servers.

#[cfg(all(feature = "embedded", feature = "testkit"))]
mod embedded;
#[cfg(any(feature = "embedded", feature = "postgres"))]
mod migration;
#[cfg(all(feature = "postgres", feature = "testkit"))]
mod postgres;
#[cfg(feature = "redis")]
mod streams;
