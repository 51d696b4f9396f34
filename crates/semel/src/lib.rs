//! Makes effects happen once.

pub mod canonical;
pub mod engine;
pub mod fingerprint;
mod hex;
pub mod key;
pub mod outcome;
pub mod record;
pub mod secret;
pub mod store;
mod sync;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod time;
pub mod window;

pub use engine::{Answer, Attempt, Engine, Failure, FailureExt, RunError};
pub use key::Key;
pub use record::Mode;
