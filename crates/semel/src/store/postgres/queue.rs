//! The queue of a lane.

use std::time::Duration;

use semel_postgres::PostgresError;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::error::ambiguous;
use crate::key::KeyId;
use crate::record::{Command, Fence, Ruling};
use crate::store::{Error, ErrorKind};
use crate::sync::Mutex;

/// The most commands that may wait for one lane: far more than can be answered in time.
const MOST: usize = 100_000;

/// A command and the channel for its ruling.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) id: KeyId,
    pub(super) command: Command,
    pub(super) deadline: Instant,
    pub(super) answer: oneshot::Sender<Result<Ruling, Error>>,
    /// A statement with it was sent, and its result is unknown.
    pub(super) unheard: bool,
    /// The fast path (of a single claim, of an owner's write) was tried and refused.
    pub(super) refused: bool,
    /// A write of it that may have happened.
    pub(super) attempt: Option<UncertainWrite>,
    /// The version of the record that another transaction has locked, and since when.
    pub(super) held: Option<(i64, Instant)>,
    /// It was granted below the floor; only a fence above this one is valid.
    pub(super) above: Option<Fence>,
}

/// A write with an unknown result.
#[derive(Clone, Debug)]
pub(super) struct UncertainWrite {
    pub(super) seen: i64,
    pub(super) version: i64,
    pub(super) ruling: Ruling,
}

impl Item {
    pub(super) fn new(
        id: KeyId,
        command: Command,
        deadline: Instant,
        answer: oneshot::Sender<Result<Ruling, Error>>,
    ) -> Self {
        Self {
            id,
            command,
            deadline,
            answer,
            unheard: false,
            refused: false,
            attempt: None,
            held: None,
            above: None,
        }
    }

    /// Records that this version of the record could not be written, and returns for how long that has been so.
    pub(super) fn note_held(&mut self, version: i64) -> Duration {
        let now = Instant::now();
        let since = match self.held {
            Some((seen, since)) if seen == version => since,
            _ => now,
        };
        self.held = Some((version, since));
        now - since
    }

    /// Answers with an error, which is ambiguous if the command may have been executed.
    pub(super) fn fail(self, error: &PostgresError) {
        let error = if self.unheard { ambiguous(error) } else { error.clone().into() };
        self.tell(Err(error));
    }

    pub(super) fn tell(self, result: Result<Ruling, Error>) {
        // The caller may have been dropped; the command is valid anyway.
        drop(self.answer.send(result));
    }
}

/// Commands in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct CommandQueue {
    state: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    items: Vec<Item>,
    closed: bool,
    pace: Pace,
}

/// The load of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pace {
    /// Busy, or used to batches.
    #[default]
    Busy,
    /// Idle since its last command, which was a single claim of a new key.
    Lone,
}

impl CommandQueue {
    pub(super) fn push(&self, item: Item) -> Result<(), Error> {
        {
            let mut state = self.state.lock();
            if state.closed {
                return Err(Error::new(ErrorKind::Closed, "the PostgreSQL store was closed"));
            }
            if state.items.len() >= MOST {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "{MOST} commands wait for PostgreSQL already; nothing was changed, try again later"
                    ),
                ));
            }
            state.items.push(item);
            state.pace = Pace::Busy;
        }
        self.arrived.notify_one();
        Ok(())
    }

    /// Adds waiting commands to `into`, up to `most` in total. No timer: it takes what came during the last batch.
    pub(super) fn take(&self, into: &mut Vec<Item>, most: usize) {
        let mut state = self.state.lock();
        let room = most.saturating_sub(into.len()).min(state.items.len());
        if into.is_empty() && room == state.items.len() {
            std::mem::swap(into, &mut state.items);
        } else {
            into.extend(state.items.drain(..room));
        }
    }

    /// Records the result of the last round, before the lane waits for more.
    pub(super) fn rest(&self, pace: Pace) {
        let mut state = self.state.lock();
        if state.items.is_empty() && !state.closed {
            state.pace = pace;
        }
    }

    pub(super) fn pace(&self) -> Pace {
        self.state.lock().pace
    }

    /// Returns when a command may have arrived.
    pub(super) async fn arrival(&self) {
        self.arrived.notified().await;
    }

    pub(super) fn close(&self) {
        let items = {
            let mut state = self.state.lock();
            state.closed = true;
            state.pace = Pace::Busy;
            std::mem::take(&mut state.items)
        };
        // Dropped outside the lock: a woken task may send again.
        drop(items);
        self.arrived.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}
