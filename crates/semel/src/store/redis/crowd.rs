//! How callers that come together share a packet.
//!
//! The answers of one packet wake many callers, and the connection writes as soon as the first of them has its next
//! command ready. A caller that steps back once, behind those who were woken with it, lets all of them become ready; then
//! they send in one breath. The server reads fewer and fuller packets, which is what makes a command cheap for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

/// From so many calls under way on, stepping back pays: below, there is hardly anybody to wait for.
const MANY: usize = 8;

/// Calls under way.
#[derive(Debug, Default)]
pub(super) struct Crowd(AtomicUsize);

/// One call that is under way.
pub(super) struct Member<'a>(&'a Crowd);

impl Crowd {
    pub(super) fn join(&self) -> Member<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Member(self)
    }

    /// Lets the other tasks of the caller's runtime go first, once, where there is a crowd. No timer: a task that nobody
    /// else is ahead of goes on at once.
    pub(super) async fn gather(&self) {
        let mut back = self.0.load(Ordering::Relaxed) >= MANY;
        std::future::poll_fn(|context| {
            if !std::mem::take(&mut back) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
