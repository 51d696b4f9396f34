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
//! - [`replayer`]: runs them.
//! - [`outbox`]: events published inside a transaction of the caller's own.
//! - [`source`]: where messages come from: Redis Streams, and the pump into the ledger.
//! - `trigger`, `gate`, `buffer`, `transfer`, `drainer` (feature `redis`): runs, from their trigger into the ledger, by way of Redis while
//!   a burst lasts.
//! - [`target`]: who is delivered to; [`worker`]: the loop that delivers; [`publish`]: what is published by hand.
//! - [`ledger`]: where all of this is kept: one trait per room, one contract suite over every ledger (feature
//!   `testkit`).

#[cfg(feature = "redis")]
pub mod buffer;
mod decimal;
pub mod delivery;
#[cfg(feature = "redis")]
pub mod drainer;
pub mod event;
#[cfg(feature = "redis")]
pub mod gate;
pub mod id;
pub mod ledger;
pub mod letter;
pub mod outbox;
pub mod publish;
pub mod replay;
pub mod replayer;
pub mod source;
pub mod target;
#[cfg(feature = "testkit")]
pub mod testkit;
#[cfg(feature = "redis")]
pub mod transfer;
#[cfg(feature = "redis")]
pub mod trigger;
pub mod worker;
