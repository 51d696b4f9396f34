//! Work that comes to its end whether or not anybody waits for it.
//!
//! A task of its own would do, at the price of two changes of task with every call. Nearly all callers stay, so the
//! caller's task does the work as it waits for it; where the caller leaves, a new task takes over what is left.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use crate::call::BoxFuture;

/// Resolves to what the work comes to. Dropped before, it leaves the work to the runtime.
pub(super) struct Detached<T: Send + 'static> {
    /// There until it is over.
    work: Option<BoxFuture<'static, T>>,
    runtime: Handle,
}

/// The work panicked. As in a task of its own, that is the end of the work and of nothing else.
#[derive(Debug)]
pub(super) struct Panicked;

impl<T: Send + 'static> Detached<T> {
    /// Begins with the first poll, or when this is dropped.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(super) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), runtime: Handle::current() }
    }
}

impl<T: Send + 'static> Future for Detached<T> {
    type Output = Result<T, Panicked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.work.as_mut().expect("it is not polled after its end");
        // What a panic leaves half done is the work's own, and nobody polls that again.
        let ended = match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(_) => Err(Panicked),
        };
        self.work = None;
        Poll::Ready(ended)
    }
}

impl<T: Send + 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::{Notify, oneshot};

    use super::*;

    async fn polled<F: Future + Unpin>(work: &mut F) -> bool {
        std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *work).poll(context).is_ready())).await
    }

    /// Waits for the gate, then tells that it ended.
    fn gated(gate: &Arc<Notify>) -> (Detached<u8>, oneshot::Receiver<u8>) {
        let (told, heard) = oneshot::channel();
        let gate = Arc::clone(gate);
        let work = Detached::new(async move {
            gate.notified().await;
            let _ = told.send(7);
            7
        });
        (work, heard)
    }

    #[tokio::test]
    async fn whoever_stays_does_the_work() {
        let (gate, tasks) = (Arc::new(Notify::new()), Handle::current().metrics());
        let (work, heard) = gated(&gate);
        gate.notify_one();
        assert!(matches!(work.await, Ok(7)));
        assert_eq!((heard.await, tasks.num_alive_tasks()), (Ok(7), 0));
    }

    // X1
    #[tokio::test]
    async fn whoever_leaves_changes_nothing() {
        for polls in 0..3 {
            let gate = Arc::new(Notify::new());
            let (mut work, heard) = gated(&gate);
            for _ in 0..polls {
                assert!(!polled(&mut work).await);
            }
            drop(work);
            gate.notify_one();
            assert_eq!(heard.await, Ok(7), "after {polls} polls");
        }
    }

    // X1: left on a thread that is none of the runtime's.
    #[tokio::test]
    async fn it_may_be_dropped_anywhere() {
        let gate = Arc::new(Notify::new());
        let (mut work, heard) = gated(&gate);
        assert!(!polled(&mut work).await);
        std::thread::spawn(move || drop(work)).join().expect("a drop does not panic");
        gate.notify_one();
        let limit = tokio::time::timeout(Duration::from_secs(10), heard);
        assert_eq!(limit.await.expect("it ends in time"), Ok(7));
    }

    #[tokio::test]
    async fn a_panic_ends_the_work_alone() {
        let work = Detached::new(async {
            tokio::task::yield_now().await;
            panic!("on purpose")
        });
        let ended: Result<(), Panicked> = work.await;
        assert!(ended.is_err());
    }

    #[test]
    fn a_runtime_that_ends_takes_it_along() {
        let (gate, runtime) = (Arc::new(Notify::new()), tokio::runtime::Runtime::new().expect("a runtime"));
        let (work, heard) = runtime.block_on(async { gated(&gate) });
        drop(runtime);
        drop(work);
        assert!(heard.blocking_recv().is_err());
    }
}
