//! Sources of messages, and the pump that turns messages into events.
//!
//! ```text
//! source ── next ──► read ──┬── an event ──► ledger.accept ──► source.done
//!                           └── unreadable ─► ledger.put ────► source.reject   (dead-letter stream and ack in one)
//! ```
//!
//! A message is acknowledged only once its event and its deliveries are in the ledger, or it is a dead letter there.
//! A message that was read and not acknowledged comes again, to this process or another; the ledger recognises it by
//! its deduplication key. Therefore nothing is lost, and nothing is delivered twice.

mod decode;
mod pump;
#[cfg(feature = "redis")]
mod redis_stream;

use std::fmt;

use bytes::Bytes;
use semel::store::{BoxFuture, Error};

pub use self::pump::{EventRoutes, Pump, SourceCounters};
#[cfg(feature = "redis")]
pub use self::redis_stream::{RedisStream, RedisStreamBuilder};
use crate::id::LetterId;
use crate::letter::Letter;

/// A source of messages.
///
/// # Contract
/// - A message that was given out and not acknowledged is given out again, after a while, to some consumer.
/// - `done` and `reject` may be repeated, and may come late: a message that is already gone is not an error.
/// - Dropped futures lose nothing.
pub trait Source: fmt::Debug + Send + Sync + 'static {
    /// Its name in dead letters and events.
    fn name(&self) -> &str;

    /// The next messages; none after a short wait without any.
    fn next(&mut self) -> BoxFuture<'_, Result<MessageBatch, Error>>;

    /// Keeps messages from being given to other consumers while they are processed. Only those that this consumer
    /// still holds.
    fn renew(&mut self, messages: Vec<String>) -> BoxFuture<'_, Result<(), Error>>;

    /// Acknowledges messages: each is stored elsewhere.
    fn done(&mut self, messages: Vec<String>) -> BoxFuture<'_, Result<(), Error>>;

    /// Moves messages to the source's own dead letters and acknowledges them, in one step.
    fn reject(&mut self, rejected: Vec<Rejected>) -> BoxFuture<'_, Result<(), Error>>;

    /// Copies later dead letters to the source's own dead letters, each once. Returns once they are there; may be
    /// repeated until `forget` is called for them.
    fn mirror(&mut self, letters: Vec<Letter>) -> BoxFuture<'_, Result<(), Error>>;

    /// The ledger has recorded that these dead letters are mirrored: the source may drop its own record of them soon.
    fn forget(&mut self, letters: Vec<LetterId>) -> BoxFuture<'_, Result<(), Error>>;
}

/// The messages that a source gave out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageBatch {
    /// The messages.
    pub messages: Vec<Message>,
    /// Messages that were given out before, never acknowledged, and then trimmed or deleted. They are lost.
    pub lost: Vec<String>,
    /// How many of the messages were taken over from a consumer that did not acknowledge them.
    pub reclaimed: usize,
    /// True if the source had lost its position and started again from the beginning.
    pub began_anew: bool,
}

/// A message of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its id in the source.
    pub id: String,
    /// Its fields, in order.
    pub fields: Vec<(Bytes, Bytes)>,
    /// How often it was given out, this time included.
    pub given_out: u32,
}

/// A message that becomes a dead letter in its raw form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The message.
    pub message: Message,
    /// Its dead letter in the ledger.
    pub letter: LetterId,
    /// The reason.
    pub error: String,
}
