//! The status strip of every page: store, readiness, keys in doubt, pending dead letters, the oldest due delivery. Read with it:
//! what the cards of targets show from the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use askama::Template;
use parking_lot::Mutex;
use semel_pipeline::ledger::{LetterFilter, TargetPause, Totals};
use semel_pipeline::letter::Status;
use tokio::time::Instant;

use super::html;
use crate::admin::{Admin, FULL_STORE};
use crate::pipeline::Pipeline;

/// A strip of this age is read again before a page is shown.
const FRESH: Duration = Duration::from_secs(2);
/// A page does not wait longer for the state of a store that does not answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Counting dead letters by target uses at most a hundredth of the time: a large number of them takes long.
const COUNT_SHARE: u32 = 99;

/// The state of the server in one line.
#[derive(Clone, Debug, Default, Template)]
#[template(path = "strip.html")]
pub(super) struct Strip {
    pub(super) store: String,
    pub(super) is_ready: bool,
    /// Why the server is not ready, or takes no new keys.
    pub(super) why: Option<String>,
    pub(super) claim: Option<Duration>,
    pub(super) in_doubt: u64,
    /// `None` without a ledger.
    pub(super) pending_letters: Option<u64>,
    pub(super) oldest_due: Option<Duration>,
    pub(super) totals: Arc<Totals>,
    /// The paused targets, of all processes.
    pub(super) pauses: Arc<Vec<TargetPause>>,
    pub(super) letters: Arc<PendingLetters>,
}

/// The pending dead letters of each target.
#[derive(Debug, Default)]
pub(super) struct PendingLetters {
    by_target: BTreeMap<String, u64>,
    /// True if there are too many to count all.
    is_partial: bool,
    /// The totals of the ledger that this count belongs to: while they stay the same, so does the count.
    totals: Vec<(Status, u64)>,
    /// From when on it may be counted again.
    next: Option<Instant>,
}

impl PendingLetters {
    /// The pending dead letters of a target; the second is true if there are more than could be counted.
    pub(super) fn of(&self, target: &str) -> (u64, bool) {
        (self.by_target.get(target).copied().unwrap_or(0), self.is_partial)
    }

    /// Counts again if the totals have changed and the last count was not expensive.
    async fn refresh(last: &Arc<Self>, pipeline: &Pipeline, totals: &Totals) -> Arc<Self> {
        let begun = Instant::now();
        if last.totals == totals.letters || last.next.is_some_and(|next| begun < next) {
            return Arc::clone(last);
        }
        let filter = LetterFilter { status: Some(Status::Pending), ..LetterFilter::default() };
        let Ok(found) = pipeline.ledger.groups(filter).await else { return Arc::clone(last) };
        let mut by_target = BTreeMap::new();
        for group in found.groups {
            let pending: u64 = group.counts.iter().map(|(_, count)| count).sum();
            *by_target.entry(group.target.unwrap_or_default()).or_default() += pending;
        }
        Arc::new(Self {
            by_target,
            is_partial: found.is_partial,
            totals: totals.letters.clone(),
            next: Some(Instant::now() + begun.elapsed() * COUNT_SHARE),
        })
    }
}

/// The last strip, for all visitors.
#[derive(Default)]
pub(crate) struct LastStrip {
    strip: Mutex<Strip>,
    /// Held while it is read, so that many visitors cause one read.
    reading: tokio::sync::Mutex<Option<StripReading>>,
    /// Number of actions. An action does not wait for a read in progress: a store can take long.
    actions: AtomicU64,
}

/// The last read.
struct StripReading {
    ended: Instant,
    /// Number of actions when it began: it may not show later ones.
    actions: u64,
}

impl LastStrip {
    /// A read that begins now.
    fn begin(&self) -> u64 {
        self.actions.load(Ordering::Acquire)
    }

    /// True if a read is recent and began after the last action.
    fn is_fresh(&self, last: Option<&StripReading>, fresh: Duration) -> bool {
        last.is_some_and(|last| last.ended.elapsed() < fresh && last.actions == self.begin())
    }

    /// The last read is no longer fresh.
    fn forget(&self) {
        self.actions.fetch_add(1, Ordering::Release);
    }
}

impl Strip {
    /// The state now, or a few seconds ago. A store that does not answer delays no page.
    pub(super) async fn read(admin: &Arc<Admin>) -> Self {
        let task = {
            let admin = Arc::clone(admin);
            tokio::spawn(async move { Self::refresh(&admin, FRESH).await })
        };
        let _ = tokio::time::timeout(PATIENCE, task).await;
        Self::last(admin)
    }

    /// The state as it was read last.
    pub(super) fn last(admin: &Admin) -> Self {
        admin.console.strip.strip.lock().clone()
    }

    /// Reads the state, unless somebody did so a moment ago.
    pub(super) async fn refresh(admin: &Admin, fresh: Duration) {
        let mut last = admin.console.strip.reading.lock().await;
        if admin.console.strip.is_fresh(last.as_ref(), fresh) {
            return;
        }
        let actions = admin.console.strip.begin();
        let probed = admin.health.probe().await;
        admin.count_in_doubt().await;
        let totals = match admin.pipeline.as_ref() {
            None => None,
            Some(pipeline) => match pipeline.totals().await {
                Ok(totals) => {
                    admin.metrics.deliveries().counted(Arc::clone(&totals));
                    Some(totals)
                }
                Err(_) => Some(admin.metrics.deliveries().totals()),
            },
        };
        let last_strip = Self::last(admin);
        let (mut pauses, mut letters) = (last_strip.pauses, last_strip.letters);
        if let (Some(pipeline), Some(totals)) = (admin.pipeline.as_ref(), &totals) {
            if let Ok(read) = pipeline.ledger.paused_targets().await {
                pauses = Arc::new(read);
            }
            letters = PendingLetters::refresh(&letters, pipeline, totals).await;
        }
        let pending = |totals: &Arc<Totals>| {
            totals
                .letters
                .iter()
                .find(|(status, _)| *status == Status::Pending)
                .map_or(0, |(_, count)| *count)
        };
        let full = admin.metrics.store_is_full().then(|| FULL_STORE.to_owned());
        let strip = Self {
            store: admin.engine.store().to_string(),
            is_ready: probed.is_ok(),
            why: probed.as_ref().err().cloned().or(full),
            claim: probed.ok(),
            in_doubt: admin.metrics.keys_in_doubt(),
            pending_letters: totals.as_ref().map(pending),
            oldest_due: totals.as_ref().and_then(|totals| totals.oldest_due()),
            totals: totals.unwrap_or_default(),
            pauses,
            letters,
        };
        *admin.console.strip.strip.lock() = strip;
        *last = Some(StripReading { ended: Instant::now(), actions });
    }

    /// The numbers of the navigation.
    pub(super) fn counts(&self) -> String {
        let letters = self.pending_letters.map(|letters| html::nav_count("/dead-letters", letters));
        let counts = [Some(html::nav_count("/keys", self.in_doubt)), letters];
        counts.iter().flatten().map(ToString::to_string).collect()
    }

    /// Called after an action: the next page shows its result.
    pub(super) fn forget(admin: &Admin) {
        admin.console.strip.forget();
    }

    /// The kind of the store: the part of its name before the address.
    pub(super) fn store_kind(&self) -> &str {
        self.store.split([':', ' ', '(']).next().unwrap_or_default()
    }

    pub(super) fn claim_time(&self) -> String {
        self.claim.map(html::duration).unwrap_or_default()
    }

    pub(super) fn due_time(&self) -> String {
        self.oldest_due.map_or_else(|| "none".to_owned(), html::duration)
    }

    /// True if a delivery has been due for longer than workers need.
    pub(super) fn is_late(&self) -> bool {
        self.oldest_due.is_some_and(|age| age > Duration::from_secs(60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // An action waited for a read of the strip, which can walk over a whole Redis.
    #[tokio::test(start_paused = true)]
    async fn an_action_waits_for_no_read_and_the_next_page_shows_it() {
        let strip = LastStrip::default();
        let mut last = strip.reading.lock().await;
        assert!(!strip.is_fresh(last.as_ref(), FRESH), "nothing was read");
        let actions = strip.begin();
        *last = Some(StripReading { ended: Instant::now(), actions });
        assert!(strip.is_fresh(last.as_ref(), FRESH));
        // A read is in progress when the action is done.
        let actions = strip.begin();
        strip.forget();
        *last = Some(StripReading { ended: Instant::now(), actions });
        assert!(!strip.is_fresh(last.as_ref(), FRESH), "it may not show the action");
        let actions = strip.begin();
        *last = Some(StripReading { ended: Instant::now(), actions });
        assert!(strip.is_fresh(last.as_ref(), FRESH));
        tokio::time::advance(FRESH).await;
        assert!(!strip.is_fresh(last.as_ref(), FRESH), "it is old");
    }
}
