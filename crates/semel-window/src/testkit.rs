//! The suite for a [`MarkStore`]: one function per guarantee, which panics if the store breaks it.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::{MarkId, MarkStore};

/// How long a healthy store may take to answer.
const TIMEOUT: Duration = Duration::from_secs(120);

fn fresh_mark() -> MarkId {
    MarkId::of_session(&rand::random::<[u8; 16]>())
}

async fn read(store: &dyn MarkStore, mark: MarkId) -> Option<u64> {
    let answer = tokio::time::timeout(TIMEOUT, store.read_mark(mark)).await;
    answer.expect("a healthy store answers").expect("a healthy store")
}

async fn raise(store: &dyn MarkStore, mark: MarkId, value: u64) -> u64 {
    let answer = tokio::time::timeout(TIMEOUT, store.raise_mark(mark, value)).await;
    answer.expect("a healthy store answers").expect("a healthy store")
}

/// A mark rises to the highest value that any caller gave, and never goes down. Marks are independent.
///
/// # Panics
/// The store breaks the guarantee. `handles` are one or more openings of the same data.
pub async fn marks_never_go_down(handles: &[Arc<dyn MarkStore>]) {
    let (mark, other, store) = (fresh_mark(), fresh_mark(), &*handles[0]);
    assert_eq!(read(store, mark).await, None);
    let mut raises = JoinSet::new();
    for number in 0..32 {
        let handle = Arc::clone(&handles[number % handles.len()]);
        let value = 1 + (number as u64 * 7) % 32;
        raises.spawn(async move { (value, raise(&*handle, mark, value).await) });
    }
    for (value, stands) in raises.join_all().await {
        assert!((value..=32).contains(&stands), "raised to {value}, told that it stands at {stands}");
    }
    assert_eq!(raise(store, mark, 5).await, 32);
    assert_eq!(read(store, mark).await, Some(32));
    assert_eq!(read(store, other).await, None);
    for value in [0, u64::from(u32::MAX) + 1, 1 << 53, (1 << 53) + 1, u64::MAX >> 1] {
        assert_eq!(raise(store, other, value).await, value);
        assert_eq!(read(store, other).await, Some(value));
    }
}

/// An acknowledged mark survives closing and opening the store, twice. Not for stores in memory.
///
/// # Panics
/// The store breaks the guarantee. `open` opens the same data each time; no other handle is open.
pub async fn acknowledged_marks_survive(open: impl AsyncFn() -> Arc<dyn MarkStore>) {
    let mark = fresh_mark();
    raise(&*open().await, mark, 41).await;
    for _ in 0..2 {
        assert_eq!(read(&*open().await, mark).await, Some(41), "after opening again");
    }
}

/// A call that is dropped at any stage leaves no lock behind: the store still answers, also for the same mark.
///
/// # Panics
/// The store breaks the guarantee.
pub async fn dropped_calls_leave_no_lock_behind(store: &dyn MarkStore) {
    for polls in 0..3 {
        let mark = fresh_mark();
        drop_after(polls, store.raise_mark(mark, 1)).await;
        drop_after(polls, store.read_mark(mark)).await;
        assert_eq!(raise(store, mark, 2).await, 2);
    }
}

/// Polls a call `polls` times, letting others run in between, and drops it.
async fn drop_after<T>(polls: usize, call: impl Future<Output = T>) {
    let mut call = std::pin::pin!(call);
    for _ in 0..polls {
        if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}
