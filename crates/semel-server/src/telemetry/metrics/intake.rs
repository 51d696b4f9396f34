//! Metrics of the intake: triggers, their gate and buffer, drainers, streams.

use std::sync::atomic::{AtomicU64, Ordering};

use semel_triggers::gate::GateReason;

use super::definitions::{self as metric, Metric};
use super::text::MetricsText;
use crate::intake::RunningIntake;
use crate::pipeline::RunWaiters;

/// Writes counters with one label.
fn family(text: &mut MetricsText, metric: &Metric, counts: &[(&str, &AtomicU64)]) {
    text.values(metric, counts.iter().map(|(value, count)| ([*value], count.load(Ordering::Relaxed))));
}

/// All metrics in the text format of Prometheus.
pub(super) fn write(text: &mut MetricsText, intake: &RunningIntake) {
    let triggers = intake.triggers.counters();
    let claims = [
        ("won", &triggers.won),
        ("waited", &triggers.waited),
        ("resolved", &triggers.resolved),
        ("timed_out", &triggers.timed_out),
        ("failed_open", &triggers.failed_open),
        ("unpublished", &triggers.unpublished),
        ("lost", &triggers.lost),
    ];
    family(text, &metric::TRIGGER_CLAIMS, &claims);
    let ways = [("ledger", &triggers.direct), ("buffer", &triggers.buffered)];
    family(text, &metric::TRIGGERS, &ways);
    if let Some(burst) = intake.triggers.burst() {
        let decisions = GateReason::ALL
            .into_iter()
            .map(|reason| ([reason.as_str()], burst.gate.counters().count(reason)));
        text.values(&metric::GATE_DECISIONS, decisions);
        text.value(&metric::TRIGGER_WAITERS, burst.claims.waiters());
        let drains = &intake.drains;
        let ends = [
            ("drained", &drains.drained),
            ("collided", &drains.collided),
            ("dead", &drains.dead),
            ("given_back", &drains.given_back),
            ("reclaimed", &drains.reclaimed),
            ("refused_change", &drains.refused_changes),
            ("failure", &drains.failures),
        ];
        family(text, &metric::BUFFER_DRAINED, &ends);
        let depth = *intake.depth.lock();
        text.value(&metric::BUFFER_QUEUED, depth.queued);
        text.value(&metric::BUFFER_IN_TRANSIT, depth.leased);
        text.value(&metric::BUFFER_OLDEST, depth.oldest.as_secs_f64());
        if let Some(redis) = intake.claims.get() {
            text.value(&metric::BUFFER_LOST_DATA, u8::from(redis.has_lost_data()));
        }
    }
    if !intake.sources.is_empty() {
        text.head(&metric::SOURCE_MESSAGES);
    }
    for (stream, counted) in &intake.sources {
        let counts = [
            ("read", &counted.read),
            ("accepted", &counted.accepted),
            ("duplicate", &counted.duplicates),
            ("rejected", &counted.rejected),
            ("reclaimed", &counted.reclaimed),
            ("lost", &counted.lost),
            ("began_anew", &counted.began_anew),
            ("failure", &counted.failures),
        ];
        // The operator chooses the stream's name.
        let stream = stream.replace(['"', '\\', '\n'], "_");
        let counts = counts.map(|(outcome, count)| ([&*stream, outcome], count.load(Ordering::Relaxed)));
        text.series(&metric::SOURCE_MESSAGES, counts);
    }
}

/// Callers that wait for runs, and their limits.
pub(super) fn write_run_waiters(text: &mut MetricsText, waiters: &RunWaiters) {
    text.value(&metric::RUN_WAITERS, waiters.waiting());
    text.value(&metric::RUN_WAITERS_MAX, waiters.most());
    text.value(&metric::RUN_WAIT_MAX, waiters.longest().as_secs_f64());
    text.value(&metric::RUN_WAITERS_REFUSED, waiters.refused());
    text.value(&metric::RUN_WAITER_READS, waiters.reads());
}
