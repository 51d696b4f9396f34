//! Log lines about answered requests: failures at level `info` or above, the rest at `debug`.
//!
//! A request that is refused because the store is unavailable is no line of its own: the store logs its outage once, and the
//! metrics count the refusals.

use std::time::Duration;

use parking_lot::Mutex;
use semel_http::Situation;
use semel_http::observe::{AnswerObserver, AnswerOutcome, Exchange};
use tokio::time::Instant;

use crate::telemetry::millis;

/// Maximum number of refusals logged per second. A flood of them must not fill the disk.
const REFUSALS_PER_SECOND: u32 = 20;

/// Logs answers with the pattern of their route, which comes from the operator and not from a caller.
pub(super) struct AccessLog {
    patterns: Vec<String>,
    refusals: Mutex<Refusals>,
}

/// The refusals of the current second.
#[derive(Default)]
struct Refusals {
    since: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl Refusals {
    /// True if one more may be logged. Logs the number of suppressed ones at the end of each second.
    fn is_logged(&mut self) -> bool {
        let now = Instant::now();
        let is_over = |since| now.saturating_duration_since(since) >= Duration::from_secs(1);
        if self.since.is_none_or(is_over) {
            if self.left_out > 0 {
                let count = self.left_out;
                tracing::info!(target: "semel::gateway", count, "refused requests were not logged");
            }
            *self = Self { since: Some(now), logged: 0, left_out: 0 };
        }
        let is_logged = self.logged < REFUSALS_PER_SECOND;
        if is_logged {
            self.logged += 1;
        } else {
            self.left_out += 1;
        }
        is_logged
    }
}

impl AccessLog {
    pub(super) fn new(patterns: Vec<String>) -> Self {
        Self { patterns, refusals: Mutex::default() }
    }
}

impl AnswerObserver for AccessLog {
    fn answered(&self, exchange: &Exchange<'_>) {
        let operation = exchange.route.and_then(|route| self.patterns.get(route)).map_or("*", String::as_str);
        let outcome = exchange.outcome.name();
        let http_status = exchange.status.as_u16();
        let latency_ms = millis(exchange.took);
        let key = exchange.key.map(tracing::field::display);
        macro_rules! say {
            ($level:ident) => {
                tracing::$level!(target: "semel::gateway", operation, outcome, http_status, latency_ms, key)
            };
        }
        match exchange.outcome {
            AnswerOutcome::Doubtful | AnswerOutcome::NotStored | AnswerOutcome::Unprotected => say!(warn),
            AnswerOutcome::Refused(Situation::StoreUnavailable) => say!(debug),
            AnswerOutcome::Refused(_) | AnswerOutcome::VerifyRefused | AnswerOutcome::Tombstone
                if self.refusals.lock().is_logged() =>
            {
                say!(info);
            }
            _ => say!(debug),
        }
    }
}
