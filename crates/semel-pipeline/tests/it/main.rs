//! The crate from outside: every ledger held to the contract.

#[cfg(feature = "embedded")]
mod embedded;
#[cfg(feature = "postgres")]
mod postgres;
