//! Makes effects happen once.
//!
//! An effect is named by a [`Key`]. Whoever claims the key runs the effect; its outcome is kept; everybody else gets
//! that outcome: retries, duplicates, concurrent callers, after a crash too.
//!
//! ```
//! use semel::store::MemoryStore;
//! use semel::{Engine, FailureExt, Key};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # async fn charge_card(cents: u64, key: String) -> Result<String, std::io::Error> { Ok("receipt".into()) }
//! let engine = Engine::builder(MemoryStore::new()).build()?;
//! let (account, order_id, cents) = ("acct_1", "order-42", 1200);
//!
//! let answer = engine
//!     .once(Key::new("charge").scope(account).value(order_id))
//!     .fingerprint(&cents)
//!     .run(async move |attempt| charge_card(cents, attempt.derived_key("acquirer").to_string()).await.unknown())
//!     .await?;
//!
//! assert_eq!((answer.value.as_str(), answer.replayed), ("receipt", false));
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! - [`engine`]: what a caller uses. Claim, run, wait, replay.
//! - [`record`]: the rules, one pure function that everything else executes or calls.
//! - [`store`]: where records live: memory, embedded disk, or your own.
//! - [`key`], [`fingerprint`], [`canonical`], [`secret`]: what names an effect, and what was asked.
//! - [`outcome`], [`time`]: what is kept, and by which clock.
//!
//! # Features
//!
//! | feature | what you get | default |
//! |---|---|---|
//! | `embedded` | the embedded disk store and `run_in` (SQLite, bundled) | yes |
//! | `encryption` | outcomes sealed at rest, over any store (XChaCha20-Poly1305) | no |
//! | `postgres` | the PostgreSQL store and `run_in_transaction` (sqlx, rustls) | no |
//! | `redis` | the Redis store; with `postgres`, the tiered store as well | no |
//! | `testkit` | the contract suite and the fault-injecting store, for whoever writes a store or tests a handler | no |

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
/// For the other crates of Semel; no part of the interface.
#[cfg(any(feature = "postgres", feature = "redis"))]
#[doc(hidden)]
pub mod together;

pub use engine::{Answer, Attempt, Engine, Failure, FailureExt, RunError};
pub use key::Key;
pub use record::Mode;
