//! The process's view of the copies: their generation, and PostgreSQL's clock.

use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::key::KeyId;
use crate::store::postgres::{Copies, CopyGeneration};
use crate::store::{Invalidate, Trust};
use crate::sync::Mutex;
use crate::time::{Timestamp, instant};

/// The maximum age of a view. Shorter than the time that a forget waits for a process that does not answer (10 s): a
/// process that was paused checks this first.
const AGE: Duration = Duration::from_secs(8);

/// How often it is read again.
pub(super) const READ_EVERY: Duration = Duration::from_secs(3);

/// The data read from PostgreSQL.
#[derive(Clone, Copy, Debug)]
pub(super) struct TieredView {
    copies: Copies,
    asked: Instant,
    answered: Instant,
}

impl TieredView {
    /// The stamp of a valid entry.
    pub(super) fn generation(&self) -> CopyGeneration {
        self.copies.generation
    }

    /// PostgreSQL's time at a local time, or earlier.
    pub(super) fn earliest(&self, here: Instant) -> Timestamp {
        self.copies.now.after(here.saturating_duration_since(self.answered))
    }

    /// PostgreSQL's time at a local time, or later.
    pub(super) fn latest(&self, here: Instant) -> Timestamp {
        self.copies.now.after(here.saturating_duration_since(self.asked))
    }
}

/// Holds the view, and drops it when it may no longer be true.
#[derive(Debug)]
pub(super) struct Views {
    store: [u8; 16],
    state: Mutex<ViewState>,
    wanted: Notify,
}

#[derive(Debug)]
struct ViewState {
    trust: Trust,
    view: Option<TieredView>,
    /// Counts the invalidations. A view that was read before one and arrives after it is rejected.
    heard: u64,
}

/// A read that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartedRead {
    heard: u64,
    asked: Instant,
}

impl Views {
    /// Starts without a view. Only views of `store` are accepted.
    pub(super) fn new(store: [u8; 16]) -> Self {
        let state = ViewState { trust: Trust::Unconfirmed, view: None, heard: 0 };
        Self { store, state: Mutex::new(state), wanted: Notify::new() }
    }

    /// The view that is certain now.
    pub(super) fn current(&self) -> Option<TieredView> {
        let state = self.state.lock();
        let fresh = |view: &TieredView| instant().saturating_duration_since(view.asked) < AGE;
        state.view.filter(|view| state.trust == Trust::Confirmed && fresh(view))
    }

    /// Call it before PostgreSQL is asked. `None` while a view would not be used anyway.
    pub(super) fn begin(&self) -> Option<StartedRead> {
        let state = self.state.lock();
        (state.trust == Trust::Confirmed).then(|| StartedRead { heard: state.heard, asked: instant() })
    }

    /// Accepts PostgreSQL's answer.
    pub(super) fn take(&self, reading: StartedRead, copies: Copies) {
        let mut state = self.state.lock();
        if state.heard != reading.heard {
            return self.wanted.notify_one();
        }
        if copies.store != self.store {
            if state.view.take().is_some() {
                tracing::warn!(
                    "PostgreSQL has other records than at the start: copies in Redis are disabled until a restart"
                );
            }
            return;
        }
        state.view = Some(TieredView { copies, asked: reading.asked, answered: instant() });
    }

    pub(super) fn drop_view(&self) {
        let mut state = self.state.lock();
        state.heard += 1;
        state.view = None;
        self.wanted.notify_one();
    }

    /// There is a newer view; the current one was true at its time.
    pub(super) fn read_again(&self) {
        self.wanted.notify_one();
    }

    /// Returns when a view is needed.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }
}

impl Invalidate for Views {
    /// A forget begins a new generation, so the key does not matter.
    fn invalidate(&self, _: KeyId) {
        self.drop_view();
    }

    fn trust(&self, trust: Trust) {
        self.state.lock().trust = trust;
        self.drop_view();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies(generation: i64) -> Copies {
        Copies {
            store: [1; 16],
            generation: CopyGeneration(generation),
            now: Timestamp::from_micros(1_000_000_000),
        }
    }

    fn confirmed() -> Views {
        let views = Views::new([1; 16]);
        views.trust(Trust::Confirmed);
        views
    }

    #[test]
    fn nothing_is_known_while_forgets_may_go_unheard() {
        let views = Views::new([1; 16]);
        assert!(views.begin().is_none());
        views.trust(Trust::Confirmed);
        views.take(views.begin().expect("trusted"), copies(7));
        assert_eq!(views.current().map(|view| view.generation()), Some(CopyGeneration(7)));
        views.trust(Trust::Unconfirmed);
        assert!(views.current().is_none());
        views.trust(Trust::Confirmed);
        assert!(views.current().is_none(), "what was known before the gap is not known after it");
    }

    #[test]
    fn what_was_read_before_a_forget_is_not_taken_after_it() {
        let views = confirmed();
        let reading = views.begin().expect("trusted");
        views.invalidate(KeyId::from_bytes([9; 16]));
        views.take(reading, copies(7));
        assert!(views.current().is_none());
    }

    // A process that was paused for longer than a forget waits for it must not use its old view.
    #[test]
    fn an_old_view_is_none() {
        let views = confirmed();
        let reading = views.begin().expect("trusted");
        views.take(StartedRead { asked: reading.asked - AGE, ..reading }, copies(7));
        assert!(views.current().is_none());
        views.take(reading, copies(7));
        assert!(views.current().is_some());
    }

    #[test]
    fn another_database_is_not_taken() {
        let views = confirmed();
        views.take(views.begin().expect("trusted"), Copies { store: [2; 16], ..copies(7) });
        assert!(views.current().is_none());
    }

    #[test]
    fn the_clock_errs_to_the_safe_side() {
        let asked = instant();
        let answered = asked + Duration::from_secs(1);
        let view = TieredView { copies: copies(7), asked, answered };
        let here = answered + Duration::from_secs(5);
        assert_eq!(view.earliest(here), Timestamp::from_micros(1_005_000_000));
        assert_eq!(view.latest(here), Timestamp::from_micros(1_006_000_000));
    }
}
