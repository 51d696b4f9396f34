//! Work of a store's own runtime that its caller polls.
//!
//! A hop to the store's thread and back costs two wake-ups, some tens of microseconds. Sockets and timers may be
//! polled by any task: they belong to the runtime in whose context they were created, and its thread reports when
//! they are ready. The caller's task therefore sends and reads itself, on any runtime or none.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use super::BoxFuture;

/// Polls `work` in the context of the store's runtime. If it is dropped after it has begun, the runtime completes it:
/// no exchange with a server stays half done.
///
/// Not for work that holds a lock while it waits: a caller may stop polling for any time.
pub(super) struct Inline<T: Send + 'static> {
    work: InlineWork<T>,
    runtime: Handle,
}

enum InlineWork<T> {
    New(BoxFuture<'static, T>),
    Begun(BoxFuture<'static, T>),
    Over,
}

impl<T: Send + 'static> Inline<T> {
    pub(super) fn new(runtime: Handle, work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { work: InlineWork::New(Box::pin(work)), runtime }
    }
}

impl<T: Send + 'static> Future for Inline<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        let mut work = match std::mem::replace(&mut this.work, InlineWork::Over) {
            InlineWork::New(work) | InlineWork::Begun(work) => work,
            InlineWork::Over => panic!("polled again after it was over"),
        };
        let inside = this.runtime.enter();
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            this.work = InlineWork::Begun(work);
        }
        drop(inside);
        polled
    }
}

impl<T: Send + 'static> Drop for Inline<T> {
    fn drop(&mut self) {
        if let InlineWork::Begun(work) = std::mem::replace(&mut self.work, InlineWork::Over) {
            drop(self.runtime.spawn(work));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::runtime::Builder;
    use tokio::sync::{Notify, oneshot};

    use super::*;
    use crate::block_on::block_on;

    /// A runtime on its own thread, as a store has one.
    fn runtime() -> (Handle, oneshot::Sender<()>) {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let handle = runtime.handle().clone();
        let (running, stopped) = oneshot::channel::<()>();
        std::thread::spawn(move || runtime.block_on(async { drop(stopped.await) }));
        (handle, running)
    }

    #[test]
    fn timers_work_on_a_thread_without_a_runtime() {
        let (handle, _running) = runtime();
        let slept = Inline::new(handle, async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            7
        });
        assert_eq!(block_on(slept), 7);
    }

    #[test]
    fn dropped_halfway_it_still_ends() {
        let (handle, _running) = runtime();
        let go_on = Arc::new(Notify::new());
        let (told, heard) = oneshot::channel();
        let gate = Arc::clone(&go_on);
        let mut work = Inline::new(handle, async move {
            gate.notified().await;
            told.send("done").expect("somebody listens");
        });
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut work).poll(&mut context).is_pending());
        drop(work);
        go_on.notify_one();
        assert_eq!(block_on(heard), Ok("done"));
    }

    #[test]
    fn dropped_before_it_began_it_never_does() {
        let (handle, _running) = runtime();
        let (told, heard) = oneshot::channel::<()>();
        drop(Inline::new(handle, async move {
            let _ = told.send(());
        }));
        assert!(block_on(heard).is_err());
    }
}
