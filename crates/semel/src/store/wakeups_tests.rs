//! The registry of waiters, one thread at a time; shuttle proves its interleavings. Not inside the source file,
//! because those proofs compile the source with another lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::{Wakeups, Watch};
use crate::key::KeyId;
use crate::sync::Mutex;

const KEY: KeyId = KeyId::from_bytes([1; 16]);
/// In the same shard of the registry as `KEY`.
const NEIGHBOUR: KeyId = KeyId::from_bytes([17; 16]);

fn poll(watch: &mut Watch, waker: &Waker) -> Poll<()> {
    std::pin::pin!(watch.changed()).poll(&mut Context::from_waker(waker))
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn changes_are_reported_once_and_together() {
    let wakeups = Wakeups::new();
    let mut watch = wakeups.watch(KEY);
    assert!(poll(&mut watch, Waker::noop()).is_pending());
    wakeups.wake(KEY);
    wakeups.wake(KEY);
    assert!(poll(&mut watch, Waker::noop()).is_ready());
    assert!(poll(&mut watch, Waker::noop()).is_pending());
    wakeups.wake(NEIGHBOUR);
    assert!(poll(&mut watch, Waker::noop()).is_pending(), "another key's change");
    wakeups.wake_all();
    assert!(poll(&mut watch, Waker::noop()).is_ready());
}

#[test]
fn a_watch_starts_at_its_making() {
    let wakeups = Wakeups::new();
    let _first = wakeups.watch(KEY);
    wakeups.wake(KEY);
    let mut late = wakeups.watch(KEY);
    assert!(poll(&mut late, Waker::noop()).is_pending(), "what happened before is not news");
}

#[test]
fn each_waiter_is_woken_once_per_wait() {
    let wakeups = Wakeups::new();
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut watch = wakeups.watch(KEY);
    for _ in 0..5 {
        assert!(poll(&mut watch, &waker).is_pending());
    }
    wakeups.wake(KEY);
    wakeups.wake(KEY);
    assert_eq!(count.0.load(Ordering::SeqCst), 1, "polling often is waiting once");
}

#[test]
fn places_are_freed() {
    let wakeups = Wakeups::new();
    let mut watches: Vec<_> = (0..10_000_u32).map(|number| wakeups.watch(key(number / 2))).collect();
    for watch in &mut watches {
        assert!(poll(watch, Waker::noop()).is_pending());
    }
    assert_eq!(wakeups.watched(), 5_000);
    watches.truncate(1);
    assert_eq!(wakeups.watched(), 1);
    drop(watches);
    assert_eq!(wakeups.watched(), 0);
    assert_eq!(format!("{wakeups:?}"), "Wakeups { watched: 0 }");
}

fn key(number: u32) -> KeyId {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    KeyId::from_bytes(bytes)
}

/// A waker that holds its own watch, like the waker of a task whose future waits too.
struct WatchingWaker {
    _held: Watch,
}

impl Wake for WatchingWaker {
    fn wake(self: Arc<Self>) {}
}

/// A waker that watches when it is woken, like an executor that runs the task immediately.
struct Watcher {
    wakeups: Wakeups,
    made: Mutex<Option<Watch>>,
}

impl Wake for Watcher {
    fn wake(self: Arc<Self>) {
        *self.made.lock() = Some(self.wakeups.watch(KEY));
    }
}

// Wakers must not be dropped under the registry's lock. Dropping one may end a task, and so a watch, which needs the
// same lock: the thread would wait for itself.
#[test]
fn wakers_are_dropped_and_woken_outside_the_lock() {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let wakeups = Wakeups::new();
        let holder = |id| Waker::from(Arc::new(WatchingWaker { _held: wakeups.watch(id) }));
        let mut watch = wakeups.watch(KEY);
        // Replaced by another waker, dropped with its watch, dropped by a wake-up.
        assert!(poll(&mut watch, &holder(NEIGHBOUR)).is_pending());
        assert!(poll(&mut watch, &holder(KEY)).is_pending());
        drop(watch);
        let mut watch = wakeups.watch(KEY);
        assert!(poll(&mut watch, &holder(KEY)).is_pending());
        wakeups.wake(KEY);
        assert!(poll(&mut watch, Waker::noop()).is_ready());

        let watcher = Arc::new(Watcher { wakeups: wakeups.clone(), made: Mutex::default() });
        assert!(poll(&mut watch, &Waker::from(Arc::clone(&watcher))).is_pending());
        wakeups.wake(KEY);
        assert!(watcher.made.lock().take().is_some());
        drop(watch);
        assert_eq!(wakeups.watched(), 0);
        done.send(()).expect("the test waits");
    });
    ended.recv_timeout(Duration::from_secs(10)).expect("the registry does not wait for itself");
}
