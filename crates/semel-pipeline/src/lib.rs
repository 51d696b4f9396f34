//! The asynchronous surface of Semel: what is accepted once is delivered once per target, tried again, set aside as a
//! dead letter, and replayed.
//!
//! # Layout
//!
//! - [`id`]: the ids of events, deliveries, dead letters and replay jobs.
//! - [`event`]: what is accepted.
//! - [`delivery`]: one event for one target, and the only place where its states and their steps are written down.
//! - [`letter`]: dead letters.
//! - [`replay`]: jobs that give dead letters another try.
//! - [`outbox`]: events published inside a transaction of the caller's own.
//! - [`ledger`]: where all of this is kept: one trait per room, one contract suite over every ledger (feature
//!   `testkit`).

mod decimal;
pub mod delivery;
pub mod event;
pub mod id;
pub mod ledger;
pub mod letter;
pub mod outbox;
pub mod replay;
#[cfg(feature = "testkit")]
pub mod testkit;
