//! A timer that costs nothing while data arrives.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Measures a wait. The timer is armed at the first wait and then left running: a wait that ends early does not reset it. At many
/// thousand requests a second, resetting timers would be a large part of the cost.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    since: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Ends the wait.
    pub(crate) fn clear(&mut self) -> Option<Instant> {
        self.since.take()
    }

    /// When the current wait started.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Continues or starts the wait. True once it has lasted `limit`; otherwise the task is woken at that time.
    pub(crate) fn overdue(&mut self, context: &mut Context<'_>, limit: Duration) -> bool {
        let deadline = *self.since.get_or_insert_with(Instant::now) + limit;
        self.overdue_at(context, deadline)
    }

    /// Continues or starts the wait. True once it has lasted `limit`, or `latest` has passed.
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
                // An expired timer must not be polled again.
                self.sleep = None;
                return true;
            }
            sleep.as_mut().reset(deadline);
        }
        false
    }
}
