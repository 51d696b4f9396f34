//! What waits for a lane.

use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::key::KeyId;
use crate::record::{Command, Fence, Ruling};
use crate::store::{Error, ErrorKind};
use crate::sync::Mutex;

/// The most commands that may wait for one lane: far beyond what can be answered in time.
const MOST: usize = 100_000;

/// A command with somebody who waits for its ruling.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) id: KeyId,
    pub(super) command: Command,
    pub(super) deadline: Instant,
    pub(super) answer: oneshot::Sender<Result<Ruling, Error>>,
    /// A statement with it was sent, and nobody said what became of it.
    pub(super) unheard: bool,
    /// The short way (of a lone claim, of an owner's write) was tried, and refused.
    pub(super) refused: bool,
    /// A write of it that may have happened.
    pub(super) attempt: Option<Attempt>,
    /// The record could not be written because somebody holds it, and which version of it since when.
    pub(super) held: Option<(i64, Instant)>,
    /// It was granted below the floor; it is told only a fence above this one.
    pub(super) above: Option<Fence>,
}

/// A write whose fate is unknown.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
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

    /// Notes that this version of the record could not be written, and says for how long that has been so.
    pub(super) fn note_held(&mut self, version: i64) -> Duration {
        let now = Instant::now();
        let since = match self.held {
            Some((seen, since)) if seen == version => since,
            _ => now,
        };
        self.held = Some((version, since));
        now - since
    }

    pub(super) fn tell(self, result: Result<Ruling, Error>) {
        // Whoever asked may be gone; the command stands all the same.
        drop(self.answer.send(result));
    }
}

/// Commands in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    items: Vec<Item>,
    closed: bool,
    pace: Pace,
}

/// How a lane is going.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pace {
    /// At work, or used to crowds.
    #[default]
    Busy,
    /// At rest since its last command, which was alone and a claim of a fresh key.
    Lone,
}

impl Queue {
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

    /// Adds what waits to `into`, up to `most` in all. No timer: whatever came while the last batch ran.
    pub(super) fn take(&self, into: &mut Vec<Item>, most: usize) {
        let mut state = self.state.lock();
        let room = most.saturating_sub(into.len()).min(state.items.len());
        if into.is_empty() && room == state.items.len() {
            std::mem::swap(into, &mut state.items);
        } else {
            into.extend(state.items.drain(..room));
        }
    }

    /// Says how the last round went, before the lane waits for more.
    pub(super) fn rest(&self, pace: Pace) {
        let mut state = self.state.lock();
        if state.items.is_empty() && !state.closed {
            state.pace = pace;
        }
    }

    pub(super) fn pace(&self) -> Pace {
        self.state.lock().pace
    }

    /// Returns when something may have come.
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
        // Dropped outside the lock: a woken task may ask again.
        drop(items);
        self.arrived.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }
}
