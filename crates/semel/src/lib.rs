//! Makes effects happen once.

pub mod fingerprint;
mod hex;
pub mod key;
pub mod outcome;
pub mod record;
pub mod secret;
pub mod store;
mod sync;
pub mod time;
pub mod window;
