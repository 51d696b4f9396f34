//! What waiters and wakers do at the same time. Shuttle runs each function once per schedule.

use std::sync::Arc;
use std::task::{Context, Waker};

use semel::key::KeyId;
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;

use super::registry::Registry;

const KEY: KeyId = KeyId::from_bytes([1; 16]);
/// In the same shard of the registry as `KEY`, and in another one.
const NEIGHBOUR: KeyId = KeyId::from_bytes([17; 16]);
const STRANGER: KeyId = KeyId::from_bytes([2; 16]);

/// A record that is changed and announced, and waiters that subscribe, look and wait.
struct Scene<R> {
    registry: R,
    changes: Arc<AtomicUsize>,
}

impl<R: Registry> Scene<R> {
    fn new() -> Self {
        Self { registry: R::new(), changes: Arc::new(AtomicUsize::new(0)) }
    }

    fn share(&self) -> Self {
        Self { registry: self.registry.clone(), changes: Arc::clone(&self.changes) }
    }

    fn change(&self, id: KeyId) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.registry.wake(id);
    }

    /// Waits on `watch` until `count` changes happened.
    fn wait_for(&self, watch: &mut R::Watch, count: usize) {
        block_on(async {
            while self.changes.load(Ordering::SeqCst) < count {
                R::changed(watch).await;
            }
        });
    }
}

/// Two waiters, one change at any moment around their look and their wait.
pub(super) fn a_change_after_the_look_wakes<R: Registry>() {
    let scene = Scene::<R>::new();
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let scene = scene.share();
            thread::spawn(move || {
                let mut watch = scene.registry.watch(KEY);
                scene.wait_for(&mut watch, 1);
            })
        })
        .collect();
    scene.change(KEY);
    for waiter in waiters {
        waiter.join().expect("the waiter ends");
    }
    assert_eq!(scene.registry.watched(), 0);
}

/// A slot comes and goes while another waiter takes its place: changes after its subscription reach it.
pub(super) fn a_late_watch_sees_what_follows<R: Registry>() {
    let scene = Scene::<R>::new();
    let passer_by = thread::spawn({
        let scene = scene.share();
        move || {
            for _ in 0..2 {
                drop(scene.registry.watch(KEY));
            }
        }
    });
    let waiter = thread::spawn({
        let scene = scene.share();
        move || {
            let mut watch = scene.registry.watch(KEY);
            scene.wait_for(&mut watch, 2);
        }
    });
    scene.change(KEY);
    scene.change(KEY);
    passer_by.join().expect("it passes by");
    waiter.join().expect("the waiter ends");
}

/// Two owners change the key one after the other; a waiter that waits for both is woken for the second too.
pub(super) fn every_change_wakes_in_turn<R: Registry>() {
    let scene = Scene::<R>::new();
    let mut watch = scene.registry.watch(KEY);
    let owners: Vec<_> = (0..3)
        .map(|_| {
            let scene = scene.share();
            thread::spawn(move || scene.change(KEY))
        })
        .collect();
    scene.wait_for(&mut watch, 1);
    scene.wait_for(&mut watch, 3);
    for owner in owners {
        owner.join().expect("the owner ends");
    }
}

/// A wait that was given up, before or after the change, leaves the change to the next wait.
pub(super) fn a_dropped_wait_loses_nothing<R: Registry>() {
    let scene = Scene::<R>::new();
    let mut watch = scene.registry.watch(KEY);
    let owner = thread::spawn({
        let scene = scene.share();
        move || scene.change(KEY)
    });
    let seen = poll_once::<R>(&mut watch);
    if !seen {
        block_on(R::changed(&mut watch));
    }
    owner.join().expect("the owner ends");
    assert!(!poll_once::<R>(&mut watch), "one change is reported once");
}

/// The same watch is waited on by one task and then by another: the second is woken.
pub(super) fn a_wait_may_move_to_another_task<R: Registry>() {
    let scene = Scene::<R>::new();
    let mut watch = scene.registry.watch(KEY);
    let first_look = poll_once::<R>(&mut watch);
    assert!(!first_look);
    let waiter = thread::spawn({
        let scene = scene.share();
        move || scene.wait_for(&mut watch, 1)
    });
    scene.change(KEY);
    waiter.join().expect("the waiter ends");
}

/// After a gap in the notifications everybody is woken, whatever key they wait for.
pub(super) fn waking_all_wakes_all<R: Registry>() {
    let scene = Scene::<R>::new();
    let waiters: Vec<_> = [KEY, NEIGHBOUR, STRANGER]
        .map(|id| {
            let scene = scene.share();
            thread::spawn(move || {
                let mut watch = scene.registry.watch(id);
                scene.wait_for(&mut watch, 1);
            })
        })
        .into();
    scene.changes.fetch_add(1, Ordering::SeqCst);
    scene.registry.wake_all();
    for waiter in waiters {
        waiter.join().expect("the waiter ends");
    }
    assert_eq!(scene.registry.watched(), 0);
}

/// Waiters that come, wait and leave while the key changes: nobody's place is left over, and nobody's is taken.
pub(super) fn leaving_frees_the_place<R: Registry>() {
    let scene = Scene::<R>::new();
    let leavers: Vec<_> = [KEY, KEY, NEIGHBOUR]
        .map(|id| {
            let scene = scene.share();
            thread::spawn(move || {
                let mut watch = scene.registry.watch(id);
                poll_once::<R>(&mut watch);
                drop(watch);
            })
        })
        .into();
    let stays = thread::spawn({
        let scene = scene.share();
        move || {
            let mut watch = scene.registry.watch(KEY);
            scene.wait_for(&mut watch, 1);
            assert!(scene.registry.watched() >= 1, "its own place, at least");
        }
    });
    scene.change(KEY);
    for waiter in leavers.into_iter().chain([stays]) {
        waiter.join().expect("the waiter ends");
    }
    assert_eq!(scene.registry.watched(), 0, "places left over");
}

/// Polls a wait once, with a waker that wakes nobody, and gives it up. Says whether it was ready.
fn poll_once<R: Registry>(watch: &mut R::Watch) -> bool {
    let wait = std::pin::pin!(R::changed(watch));
    wait.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}
