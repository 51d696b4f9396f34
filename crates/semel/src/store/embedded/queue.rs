//! Where commands wait for the writer: everything that waits is taken at once.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// A bounded queue with one taker. There is no timer: whoever is alone is served alone, and a crowd that
/// gathered during one sync shares the next.
#[derive(Debug)]
pub(super) struct Queue<T> {
    inner: Mutex<Inner<T>>,
    arrived: Condvar,
    limit: usize,
}

#[derive(Debug)]
struct Inner<T> {
    waiting: VecDeque<T>,
    open: bool,
    idle: bool,
}

/// Why a job was not taken in.
#[derive(Debug)]
pub(super) enum Refused {
    /// As many as the limit allows wait already.
    Overloaded(usize),
    /// Nobody takes jobs any more.
    Closed,
}

impl<T> Queue<T> {
    pub(super) fn new(limit: usize) -> Self {
        let inner = Inner { waiting: VecDeque::new(), open: true, idle: false };
        Self { inner: Mutex::new(inner), arrived: Condvar::new(), limit }
    }

    pub(super) fn push(&self, job: T) -> Result<(), Refused> {
        let wake = {
            let mut inner = self.inner.lock();
            if !inner.open {
                return Err(Refused::Closed);
            }
            if inner.waiting.len() >= self.limit {
                return Err(Refused::Overloaded(inner.waiting.len()));
            }
            inner.waiting.push_back(job);
            inner.idle
        };
        if wake {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Waits for a job, then moves up to `most` into `batch`. With a `patience` it gives up after that.
    pub(super) fn take(&self, batch: &mut Vec<T>, most: usize, patience: Option<Duration>) -> Taken {
        let mut inner = self.inner.lock();
        while inner.waiting.is_empty() {
            if !inner.open {
                return Taken::Ended;
            }
            inner.idle = true;
            let gave_up = match patience {
                Some(patience) => self.arrived.wait_for(&mut inner, patience).timed_out(),
                None => {
                    self.arrived.wait(&mut inner);
                    false
                }
            };
            inner.idle = false;
            if gave_up && inner.waiting.is_empty() {
                return Taken::Nothing;
            }
        }
        let count = most.min(inner.waiting.len());
        batch.extend(inner.waiting.drain(..count));
        Taken::Jobs
    }

    /// Drops what waits; each job's answer says so.
    pub(super) fn clear(&self) {
        let dropped = std::mem::take(&mut self.inner.lock().waiting);
        // Outside the lock: it wakes whoever waits.
        drop(dropped);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.inner.lock().waiting.len()
    }

    /// What waits is still taken, nothing new gets in.
    pub(super) fn close(&self) {
        self.inner.lock().open = false;
        self.arrived.notify_all();
    }
}

/// What the taker got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// At least one job.
    Jobs,
    /// Nobody came in time.
    Nothing,
    /// There will be no more.
    Ended,
}
