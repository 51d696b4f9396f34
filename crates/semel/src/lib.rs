//! Makes effects happen once.

pub mod fingerprint;
mod hex;
pub mod key;
pub mod outcome;
pub mod record;
pub mod secret;
pub mod store;
mod sync;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod time;
