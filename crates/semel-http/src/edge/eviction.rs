//! Chooses the connections to close when the listener has no slot left for a new one.
//!
//! Clients that connect and send nothing, or one byte at a time, must not keep others out until they time out. So the listener closes
//! the connections that have waited longest for their client. A client that sends its request immediately is never among them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::link::ConnectionLink;

/// How often the listener logs that it closes connections.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The connections of one listener.
#[derive(Debug, Default)]
pub(super) struct OpenConnections {
    links: Vec<Weak<ConnectionLink>>,
    /// When to remove the closed ones next.
    prune_at: usize,
    logged: Option<Instant>,
    /// Closed since the last log line.
    evicted: u64,
    /// All that were closed.
    closed_at_limit: Arc<AtomicU64>,
}

impl OpenConnections {
    pub(super) fn new(closed_at_limit: Arc<AtomicU64>) -> Self {
        Self { closed_at_limit, ..Self::default() }
    }

    pub(super) fn add(&mut self, link: &Arc<ConnectionLink>) {
        if self.links.len() >= self.prune_at {
            self.links.retain(|link| link.strong_count() > 0);
            self.prune_at = 64.max(2 * self.links.len());
        }
        self.links.push(Arc::downgrade(link));
    }

    /// Closes the connections that have waited longest for their client: a sixty-fourth of all slots, so that a flood of new
    /// connections does not sort the list for each of them.
    pub(super) fn evict_longest_waiting(&mut self, slots: u32) {
        let now = Instant::now();
        let mut waiting: Vec<(Duration, Arc<ConnectionLink>)> = (self.links.iter())
            .filter_map(Weak::upgrade)
            .filter_map(|link| Some((link.evictable_for(now)?, link)))
            .collect();
        let count = (slots as usize / 64).clamp(1, waiting.len().max(1));
        if waiting.len() > count {
            waiting.select_nth_unstable_by_key(count - 1, |(waited, _)| std::cmp::Reverse(*waited));
            waiting.truncate(count);
        }
        for (_, link) in &waiting {
            link.evict();
        }
        self.evicted += waiting.len() as u64;
        self.closed_at_limit.fetch_add(waiting.len() as u64, Ordering::Relaxed);
        if self.evicted > 0 && self.logged.is_none_or(|logged| now - logged > LOG_EVERY) {
            tracing::warn!(
                connections = slots,
                closed = self.evicted,
                "connection limit reached: closing connections that wait for their client"
            );
            (self.logged, self.evicted) = (Some(now), 0);
        }
    }
}
