#![doc = include_str!("../README.md")]
//!
//! # Layout
//!
//! - [`engine`]: the interface for callers. Claim, run, wait, answer from the record.
//! - [`record`]: the rules, one pure function that everything else executes or calls.
//! - [`store`]: stores of records: memory, embedded disk, or your own.
//! - [`key`], [`fingerprint`], [`canonical`], [`secret`]: the name of an effect, and its payload.
//! - [`outcome`], [`time`]: stored outcomes, and the clocks.
//!
//! # Features
//!
//! | feature | contents | default |
//! |---|---|---|
//! | `embedded` | the embedded disk store and `run_in` (SQLite, bundled) | yes |
//! | `encryption` | outcomes sealed at rest, over any store (XChaCha20-Poly1305) | no |
//! | `postgres` | the PostgreSQL store and `run_in_transaction` (sqlx, rustls) | no |
//! | `redis` | the Redis store; with `postgres`, the tiered store as well | no |
//! | `testkit` | the contract suite and the fault-injecting store, for authors of stores and tests of handlers | no |

/// For the other crates of Semel; not part of the public interface.
#[doc(hidden)]
pub mod backoff;
/// For the other crates of Semel; not part of the public interface.
#[cfg(any(feature = "embedded", feature = "postgres", feature = "redis"))]
#[doc(hidden)]
pub mod batch;
/// For the other crates of Semel; not part of the public interface.
#[doc(hidden)]
pub mod block_on;
pub mod canonical;
pub mod engine;
pub mod fingerprint;
mod hex;
pub mod key;
#[doc(hidden)]
pub mod mutant;
/// For the other crates of Semel; not part of the public interface.
#[doc(hidden)]
pub mod outage;
pub mod outcome;
pub mod record;
pub mod secret;
pub mod store;
mod sync;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod time;

pub use engine::{Answer, AnyError, Attempt, Engine, Failure, FailureExt, RunError};
pub use key::Key;
pub use record::Mode;
