//! The queue of a lane.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_postgres::PostgresError;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::error::ambiguous;
use crate::batch::{BatchQueue, QueueRefusal};
use crate::key::KeyId;
use crate::record::{Command, Fence, Ruling};
use crate::store::{Error, ErrorKind};

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
        self.answer(Err(error));
    }

    pub(super) fn answer(self, result: Result<Ruling, Error>) {
        // The caller may have been dropped; the command is valid anyway.
        drop(self.answer.send(result));
    }
}

/// Commands in the order of their arrival.
#[derive(Debug)]
pub(super) struct CommandQueue {
    pub(super) items: BatchQueue<Item>,
    /// True while the pace is [`Pace::Lone`].
    lone: AtomicBool,
}

/// The load of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Busy, or used to batches.
    Busy,
    /// Idle since its last command, which was a single claim of a new key.
    Lone,
}

impl CommandQueue {
    pub(super) fn new() -> Self {
        Self { items: BatchQueue::new(MOST), lone: AtomicBool::new(false) }
    }

    pub(super) fn push(&self, item: Item) -> Result<(), Error> {
        let pushed = self.items.push(item).map_err(|refusal| match refusal {
            QueueRefusal::Closed => Error::new(ErrorKind::Closed, "the PostgreSQL store was closed"),
            QueueRefusal::Overloaded(waiting) => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{waiting} commands wait for PostgreSQL already; nothing was changed, try again later"
                ),
            ),
        });
        self.lone.store(false, Ordering::SeqCst);
        pushed
    }

    /// Records the result of the last round, before the lane waits for more.
    pub(super) fn note_pace(&self, pace: Pace) {
        self.lone.store(pace == Pace::Lone, Ordering::SeqCst);
        // A command that came before is seen here; a later one resets the pace itself.
        if self.items.len() > 0 {
            self.lone.store(false, Ordering::SeqCst);
        }
    }

    pub(super) fn pace(&self) -> Pace {
        if self.lone.load(Ordering::SeqCst) { Pace::Lone } else { Pace::Busy }
    }

    pub(super) fn close(&self) {
        self.items.close();
        self.items.clear();
        self.lone.store(false, Ordering::SeqCst);
    }
}
