//! A queue whose consumer takes everything that waits.

#[cfg(feature = "embedded")]
use std::time::Duration;

use tokio::sync::Notify;

use crate::sync::Mutex;
#[cfg(feature = "embedded")]
use crate::time::instant;

/// A bounded queue with one consumer, which takes all waiting items in one batch.
#[derive(Debug)]
pub(crate) struct BatchQueue<T> {
    state: Mutex<QueueState<T>>,
    arrived: Notify,
    limit: usize,
}

#[derive(Debug)]
struct QueueState<T> {
    waiting: Vec<T>,
    open: bool,
}

/// Why an item was refused.
#[derive(Debug)]
pub(crate) enum QueueRefusal {
    /// The limit of waiting items is reached.
    Overloaded(usize),
    /// The consumer has ended.
    Closed,
}

impl<T> BatchQueue<T> {
    pub(crate) fn new(limit: usize) -> Self {
        let state = Mutex::new(QueueState { waiting: Vec::new(), open: true });
        Self { state, arrived: Notify::new(), limit }
    }

    pub(crate) fn push(&self, item: T) -> Result<(), QueueRefusal> {
        {
            let mut state = self.state.lock();
            if !state.open {
                return Err(QueueRefusal::Closed);
            }
            if state.waiting.len() >= self.limit {
                return Err(QueueRefusal::Overloaded(state.waiting.len()));
            }
            state.waiting.push(item);
        }
        self.arrived.notify_one();
        Ok(())
    }

    /// Adds waiting items to `batch`, up to `most` in total. False if the queue is closed.
    pub(crate) fn take(&self, batch: &mut Vec<T>, most: usize) -> bool {
        let mut state = self.state.lock();
        let room = most.saturating_sub(batch.len()).min(state.waiting.len());
        if batch.is_empty() && room == state.waiting.len() {
            std::mem::swap(batch, &mut state.waiting);
        } else {
            batch.extend(state.waiting.drain(..room));
        }
        state.open
    }

    /// Refuses new items. Waiting ones can still be taken.
    pub(crate) fn close(&self) {
        self.state.lock().open = false;
        self.arrived.notify_one();
    }

    /// Drops the waiting items; each item's answer says so.
    pub(crate) fn clear(&self) {
        let dropped = std::mem::take(&mut self.state.lock().waiting);
        // Outside the lock: it wakes the callers, which may send again.
        drop(dropped);
    }

    #[cfg(any(test, feature = "postgres"))]
    pub(crate) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Returns when an item may have arrived.
    pub(crate) async fn arrival(&self) {
        self.arrived.notified().await;
    }
}

/// The result of waiting for a batch.
#[cfg(feature = "embedded")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchWait {
    /// At least one item.
    Items,
    /// No item arrived in time.
    Nothing,
    /// The queue is closed and empty.
    Ended,
}

#[cfg(feature = "embedded")]
impl<T> BatchQueue<T> {
    /// Blocks the thread until there is an item, then moves up to `most` into `batch`. With a `patience` it returns
    /// after that time.
    pub(crate) fn wait(&self, batch: &mut Vec<T>, most: usize, patience: Option<Duration>) -> BatchWait {
        let deadline = patience.map(|patience| instant() + patience);
        let mut in_time = true;
        loop {
            let open = self.take(batch, most);
            if !batch.is_empty() {
                return BatchWait::Items;
            }
            if !open {
                return BatchWait::Ended;
            }
            if !in_time {
                return BatchWait::Nothing;
            }
            in_time = crate::block_on::block_on_until(self.arrival(), deadline).is_some();
        }
    }
}
