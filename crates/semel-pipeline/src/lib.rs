#![doc = include_str!("../README.md")]
//!
//! # Layout
//!
//! - [`id`]: the ids of events, deliveries, dead letters and replay jobs.
//! - [`event`]: events and their ids.
//! - [`envelope`]: messages between services, with the ids that connect them.
//! - [`delivery`]: one event for one target, and the only definition of its states and transitions.
//! - [`letter`]: dead letters.
//! - [`replay`]: jobs that send dead letters again.
//! - [`replayer`]: runs these jobs.
//! - [`outbox`]: events published inside the caller's transaction.
//! - [`source`]: sources of messages: Redis Streams, and the pump into the ledger.
//! - [`target`]: receivers of events; [`worker`]: the loop that delivers; [`publish`]: events published through the
//!   API.
//! - [`ledger`]: the database of all of this: one trait per part, one contract suite for every ledger (feature
//!   `testkit`).

mod decimal;
pub mod delivery;
pub mod envelope;
pub mod event;
pub mod id;
pub mod ledger;
pub mod letter;
mod names;
pub mod outbox;
pub mod publish;
pub mod replay;
pub mod replayer;
pub mod source;
pub mod target;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod worker;
