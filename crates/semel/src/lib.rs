//! Makes effects happen once.

pub mod canonical;
pub mod fingerprint;
mod hex;
pub mod key;
pub mod secret;
