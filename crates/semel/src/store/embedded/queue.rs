//! The writer's queue: the writer takes all waiting commands in one batch.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// A bounded queue with one consumer. There is no timer: a single command is executed alone, and commands that arrive
/// during one sync share the next.
#[derive(Debug)]
pub(super) struct JobQueue<T> {
    inner: Mutex<QueueInner<T>>,
    arrived: Condvar,
    limit: usize,
}

#[derive(Debug)]
struct QueueInner<T> {
    waiting: VecDeque<T>,
    open: bool,
    idle: bool,
}

/// Why a job was refused.
#[derive(Debug)]
pub(super) enum Refused {
    /// The limit of waiting jobs is reached.
    Overloaded(usize),
    /// The writer has ended.
    Closed,
}

impl<T> JobQueue<T> {
    pub(super) fn new(limit: usize) -> Self {
        let inner = QueueInner { waiting: VecDeque::new(), open: true, idle: false };
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

    /// Waits for a job, then moves up to `most` into `batch`. With a `patience` it returns after that time.
    pub(super) fn take(&self, batch: &mut Vec<T>, most: usize, patience: Option<Duration>) -> TakenJobs {
        let mut inner = self.inner.lock();
        while inner.waiting.is_empty() {
            if !inner.open {
                return TakenJobs::Ended;
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
                return TakenJobs::Nothing;
            }
        }
        let count = most.min(inner.waiting.len());
        batch.extend(inner.waiting.drain(..count));
        TakenJobs::Jobs
    }

    /// Drops the waiting jobs; each job's answer says so.
    pub(super) fn clear(&self) {
        let dropped = std::mem::take(&mut self.inner.lock().waiting);
        // Outside the lock: it wakes the callers.
        drop(dropped);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.inner.lock().waiting.len()
    }

    /// Waiting jobs are still taken, new ones are refused.
    pub(super) fn close(&self) {
        self.inner.lock().open = false;
        self.arrived.notify_all();
    }
}

/// The result of `take`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakenJobs {
    /// At least one job.
    Jobs,
    /// No job arrived in time.
    Nothing,
    /// The queue is closed and empty.
    Ended,
}
