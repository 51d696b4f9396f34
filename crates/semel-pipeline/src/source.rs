//! Sources: where messages come from, and the pump that turns them into events.
//!
//! ```text
//! source ── next ──► read ──┬── an event ──► ledger.accept ──► source.done
//!                           └── unreadable ─► ledger.put ────► source.reject   (dead-letter stream and ack in one)
//! ```
//!
//! A message is acknowledged only once its event and its deliveries are in the ledger, or it is a dead letter there
//! (P8). What was read and not acknowledged comes again, to this process or another; the ledger knows it by its
//! dedupe key. So nothing is lost, and nothing is delivered twice.

mod decode;
mod pump;
#[cfg(feature = "redis")]
mod redis_stream;

use std::fmt;

use bytes::Bytes;
use semel::store::{BoxFuture, Error};

pub use self::pump::{Pump, Routes, SourceCounters};
#[cfg(feature = "redis")]
pub use self::redis_stream::{RedisStream, RedisStreamBuilder};
use crate::id::LetterId;
use crate::letter::Letter;

/// Where messages come from.
///
/// # Contract
/// - A message that was given out and not acknowledged is given out again, after a while, to somebody.
/// - `done` and `reject` may be repeated, and may come late: a message that is gone already is no error.
/// - Dropped futures lose nothing.
pub trait Source: fmt::Debug + Send + Sync + 'static {
    /// Its name: what dead letters and events call it.
    fn name(&self) -> &str;

    /// The next messages; none after a short while without any.
    fn next(&mut self) -> BoxFuture<'_, Result<Batch, Error>>;

    /// Keeps messages from being given to others while they are worked on. Only those that are still ours.
    fn renew(&mut self, messages: Vec<String>) -> BoxFuture<'_, Result<(), Error>>;

    /// Acknowledges messages: each is safe elsewhere.
    fn done(&mut self, messages: Vec<String>) -> BoxFuture<'_, Result<(), Error>>;

    /// Moves messages to the source's own place for dead letters and acknowledges them, in one step.
    fn reject(&mut self, rejected: Vec<Rejected>) -> BoxFuture<'_, Result<(), Error>>;

    /// Copies letters that came about later into the source's own place for dead letters, each once. Answers once they are
    /// there; may be repeated until `forget` is called for them.
    fn mirror(&mut self, letters: Vec<Letter>) -> BoxFuture<'_, Result<(), Error>>;

    /// The ledger knows that these letters are mirrored: what was kept to tell is not needed much longer.
    fn forget(&mut self, letters: Vec<LetterId>) -> BoxFuture<'_, Result<(), Error>>;
}

/// What a source gave out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The messages.
    pub messages: Vec<Message>,
    /// Messages that were given out before, never acknowledged, and are gone: trimmed, or deleted. They are lost.
    pub lost: Vec<String>,
    /// How many of the messages were taken over from somebody who did not acknowledge them.
    pub reclaimed: usize,
    /// Set where the source had lost its place and began anew.
    pub began_anew: bool,
}

/// A message as its source gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its id in the source.
    pub id: String,
    /// Its fields, in order.
    pub fields: Vec<(Bytes, Bytes)>,
    /// How often it was given out, this time included.
    pub given_out: u32,
}

/// A message that becomes a dead letter as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The message.
    pub message: Message,
    /// The letter under which the ledger keeps it.
    pub letter: LetterId,
    /// Why.
    pub error: String,
}
