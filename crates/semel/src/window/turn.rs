//! A lock for a few nanoseconds of work.

use std::hint;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::sync::Mutex;

/// How often a waiter looks before it goes to the waiting room.
const LOOKS: u32 = 64;

/// Lets one thread at a time at `T`, which is made of atomics and so needs no `&mut`.
///
/// The work it guards takes less time than putting a thread to sleep and waking it. So a waiter looks again
/// for a while; if the holder was interrupted, the waiters queue up asleep, and only the first of them keeps
/// looking, leaving the core to others in between.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Turn<T> {
    taken: AtomicBool,
    inner: T,
    room: Mutex<()>,
}

/// Whose turn it is; dropping it ends the turn.
pub(super) struct Holder<'a, T>(&'a Turn<T>);

impl<T> Turn<T> {
    #[inline]
    pub(super) fn take(&self) -> Holder<'_, T> {
        if !self.try_take() {
            self.wait();
        }
        Holder(self)
    }

    #[inline]
    fn try_take(&self) -> bool {
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        for look in 0..LOOKS {
            for _ in 0..1 << look.min(4) {
                hint::spin_loop();
            }
            if !self.taken.load(Ordering::Relaxed) && self.try_take() {
                return;
            }
        }
        let _one_at_a_time = self.room.lock();
        while self.taken.load(Ordering::Relaxed) || !self.try_take() {
            thread::yield_now();
        }
    }
}

impl<T> Deref for Holder<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0.inner
    }
}

impl<T> Drop for Holder<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn turns_do_not_overlap() {
        const EACH: u64 = 50_000;
        let turn = Turn::<AtomicU64>::default();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let count = turn.take();
                        // Not one atomic step: two turns at once would lose a count.
                        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(turn.take().load(Ordering::Relaxed), 8 * EACH);
    }

    #[test]
    fn a_waiter_outlasts_a_long_turn_and_a_panic_ends_one() {
        let turn = Turn::<AtomicU64>::default();
        thread::scope(|scope| {
            let held = turn.take();
            let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| drop(turn.take()))).collect();
            while turn.room.try_lock().is_some() {
                thread::yield_now(); // until a waiter has given up looking
            }
            drop(held);
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        });
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = turn.take();
            panic!("in the middle of a turn");
        }));
        assert!(panicked.is_err());
        drop(turn.take());
    }
}
