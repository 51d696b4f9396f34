//! Runs a future on a thread that belongs to no runtime. Unlike a runtime's own `block_on` it never panics, wherever
//! it is called.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use crate::time::instant;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    block_on_until(future, None).expect("without a deadline it runs to its end")
}

/// Runs a future on this thread. `None` if the deadline comes first.
pub(crate) fn block_on_until<F: Future>(future: F, deadline: Option<Instant>) -> Option<F::Output> {
    // Inside a task the runtime's budget for that task would run out, because it is only filled up between polls
    // of the task, and everything here would seem to wait for ever.
    let mut future = pin!(tokio::task::unconstrained(future));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let Some(deadline) = deadline else {
            std::thread::park();
            continue;
        };
        let left = deadline.saturating_duration_since(instant());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}
