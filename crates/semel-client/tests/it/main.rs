//! The crate from outside.

mod client;
