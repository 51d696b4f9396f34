//! A timer that costs nothing while things move.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Measures how long something has been waited for. It is armed at the first wait and left to run: a wait that ends
/// early moves no timer, which at many thousand requests a second is most of the cost of one.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    since: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// The wait is over.
    pub(crate) fn clear(&mut self) -> Option<Instant> {
        self.since.take()
    }

    /// When the wait started, while it lasts.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// The wait goes on, or starts. True once it has lasted `limit`; otherwise the task is woken then.
    pub(crate) fn overdue(&mut self, context: &mut Context<'_>, limit: Duration) -> bool {
        let deadline = *self.since.get_or_insert_with(Instant::now) + limit;
        self.overdue_at(context, deadline)
    }

    /// The wait goes on, or starts. True once it has lasted `limit`, or `latest` is past.
    pub(crate) fn overdue_or_past(
        &mut self,
        context: &mut Context<'_>,
        limit: Duration,
        latest: Option<Instant>,
    ) -> bool {
        let deadline = *self.since.get_or_insert_with(Instant::now) + limit;
        self.overdue_at(context, latest.map_or(deadline, |latest| latest.min(deadline)))
    }

    fn overdue_at(&mut self, context: &mut Context<'_>, deadline: Instant) -> bool {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(context).is_ready() {
            if Instant::now() >= deadline {
                // Left expired, it must not be polled again.
                self.sleep = None;
                return true;
            }
            sleep.as_mut().reset(deadline);
        }
        false
    }
}
