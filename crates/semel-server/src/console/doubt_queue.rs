//! The queue of keys in doubt as it was read last, for all pages that refresh themselves.
//!
//! Redis has no index of keys in doubt: each reading walks over all keys. Open pages therefore share one reading, and readings for
//! them use a small share of the time. A person who opens the page gets a reading of their own.

use std::sync::Arc;

use parking_lot::Mutex;
use semel::time::{Clock as _, SystemClock, Timestamp};
use tokio::time::Instant;

use super::key_search::FoundByHint;
use crate::admin::Refusal;

/// Reading for pages that refresh themselves uses at most a twentieth of the time.
const READ_SHARE: u32 = 19;

/// The last reading, and when the next one may begin.
#[derive(Default)]
pub(crate) struct DoubtQueue {
    state: Mutex<QueueState>,
    /// Held while it is read for pages that refresh themselves, so that many of them cause one reading.
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct QueueState {
    last: Option<QueueReading>,
    /// When a page that refreshes itself may cause the next reading.
    next: Option<Instant>,
}

/// The keys in doubt at one moment.
#[derive(Clone)]
pub(super) struct QueueReading {
    /// The filter that it was read with.
    hint: String,
    begun: Instant,
    pub(super) at: Timestamp,
    pub(super) found: Arc<FoundByHint>,
}

impl DoubtQueue {
    /// Reads the queue for a person.
    ///
    /// # Errors
    /// Those of `read`.
    pub(super) async fn read(
        &self,
        hint: &str,
        read: impl Future<Output = Result<FoundByHint, Refusal>>,
    ) -> Result<QueueReading, Refusal> {
        let (begun, at) = (Instant::now(), SystemClock.now());
        let found = read.await;
        let now = Instant::now();
        let mut state = self.state.lock();
        state.next = state.next.max(Some(now + (now - begun) * READ_SHARE));
        let reading = QueueReading { hint: hint.to_owned(), begun, at, found: Arc::new(found?) };
        // A reading that began earlier can know less.
        if state.last.as_ref().is_none_or(|last| last.begun <= begun) {
            state.last = Some(reading.clone());
        }
        Ok(reading)
    }

    /// The queue for a page that refreshes itself: of the last reading, while the next one may not begin. `None` if there is none
    /// with this filter.
    ///
    /// # Errors
    /// Those of `read`.
    pub(super) async fn refresh(
        &self,
        hint: &str,
        read: impl Future<Output = Result<FoundByHint, Refusal>>,
    ) -> Result<Option<QueueReading>, Refusal> {
        let _refreshing = self.refreshing.lock().await;
        {
            let state = self.state.lock();
            if state.next.is_some_and(|next| Instant::now() < next) {
                return Ok(state.last.clone().filter(|last| last.hint == hint));
            }
        }
        Ok(Some(self.read(hint, read).await?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    // Every open page read the whole store every three seconds.
    #[tokio::test(start_paused = true)]
    async fn open_pages_share_few_readings() {
        let (queue, readings) = (DoubtQueue::default(), AtomicU32::new(0));
        let slow = async || {
            readings.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(FoundByHint::default())
        };
        let count = || readings.load(Ordering::Relaxed);
        let refresh = async |hint: &str| queue.refresh(hint, slow()).await.unwrap();
        let (one, other) = tokio::join!(refresh(""), refresh(""));
        assert_eq!((count(), one.unwrap().at), (1, other.unwrap().at), "one reading for both");
        tokio::time::advance(Duration::from_secs(37)).await;
        assert!(refresh("").await.is_some() && refresh("order").await.is_none());
        assert_eq!(count(), 1, "two seconds of forty");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(refresh("order").await.is_some());
        assert_eq!(count(), 2);
        // A person does not wait, and open pages show what the person sees.
        let seen = queue.read("", slow()).await.unwrap();
        assert_eq!(refresh("").await.unwrap().begun, seen.begun);
        assert_eq!(count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_reading_replaces_no_newer_one() {
        let queue = DoubtQueue::default();
        let slow = async |seconds| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(FoundByHint::default())
        };
        let later = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            queue.read("", slow(1)).await.unwrap()
        };
        let (_, later) = tokio::join!(queue.refresh("", slow(5)), later);
        assert_eq!(queue.refresh("", slow(1)).await.unwrap().unwrap().begun, later.begun);
    }
}
