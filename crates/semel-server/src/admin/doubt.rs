//! The number of keys in doubt, counted in the background.

use semel::Engine;
use semel::record::Phase;
use semel::store::{self, Scan};
use tokio::time::Instant;

use crate::telemetry::metrics::Metrics;

/// Keys of one page.
const MAX_PAGE: usize = 1_000;
/// The maximum number of keys in doubt that are counted.
const COUNT_TO: u64 = 100_000;

/// Counts the keys in doubt for the metric and the console.
#[derive(Default)]
pub(crate) struct DoubtCounter {
    /// Held while it counts, so that many callers cause one count. From when on it may count again.
    next: tokio::sync::Mutex<Option<Instant>>,
}

/// Counting uses at most a twentieth of the time: Redis has no index of keys in doubt, and reads all of them.
const COUNT_SHARE: u32 = 19;

impl DoubtCounter {
    /// Counts them, unless the last count was expensive and is recent.
    pub(crate) async fn refresh(&self, engine: &Engine, metrics: &Metrics) {
        let mut next = self.next.lock().await;
        let begun = Instant::now();
        if next.is_some_and(|next| begun < next) {
            return;
        }
        match count_in_doubt(engine).await {
            Ok(count) => metrics.in_doubt(count),
            Err(error) => tracing::debug!(target: "semel", %error, "cannot count keys in doubt"),
        }
        *next = Some(Instant::now() + begun.elapsed() * COUNT_SHARE);
    }
}

/// How many keys are in doubt, up to [`COUNT_TO`].
async fn count_in_doubt(engine: &Engine) -> Result<u64, store::Error> {
    let (mut count, mut after) = (0, None);
    loop {
        let page = engine.store().scan(Scan { phase: Some(Phase::InDoubt), after, limit: MAX_PAGE }).await?;
        count += page.items.len() as u64;
        after = page.next;
        if after.is_none() || count >= COUNT_TO {
            return Ok(count);
        }
    }
}
