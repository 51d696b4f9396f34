//! Metrics of the intake: triggers, their gate and buffer, drainers, streams.

use std::sync::atomic::{AtomicU64, Ordering};

use semel_triggers::gate::GateReason;

use super::text::MetricsText;
use crate::intake::RunningIntake;
use crate::pipeline::RunWaiters;

/// Writes counters with one label.
fn family(text: &mut MetricsText, metric: &str, help: &str, label: &str, counts: &[(&str, &AtomicU64)]) {
    let counts = counts.iter().map(|(value, count)| ([*value], count.load(Ordering::Relaxed)));
    text.counters(metric, help, [label], counts);
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
    family(
        text,
        "semel_trigger_claims_total",
        "Claims on the keys of triggers, by result; a claim that waited is also counted by its final result.",
        "outcome",
        &claims,
    );
    let ways = [("ledger", &triggers.direct), ("buffer", &triggers.buffered)];
    family(text, "semel_triggers_total", "Triggers, by destination.", "to", &ways);
    if let Some(burst) = intake.triggers.burst() {
        let decisions = GateReason::ALL
            .into_iter()
            .map(|reason| ([reason.as_str()], burst.gate.counters().count(reason)));
        let help = "Decisions of the gate, by reason.";
        text.counters("semel_gate_decisions_total", help, ["reason"], decisions);
        let help = "Triggers waiting for another one with the same key.";
        text.gauge("semel_trigger_waiters", help, burst.claims.waiters());
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
        family(text, "semel_buffer_drained_total", "Buffered runs, by result.", "outcome", &ends);
        let depth = *intake.depth.lock();
        text.gauge("semel_buffer_queued", "Runs waiting in the buffer.", depth.queued);
        let help = "Runs being moved from the buffer to the ledger.";
        text.gauge("semel_buffer_in_transit", help, depth.leased);
        let oldest = depth.oldest.as_secs_f64();
        text.gauge("semel_buffer_oldest_seconds", "Age of the oldest buffered run.", oldest);
        if let Some(redis) = intake.claims.get() {
            let lost = u8::from(redis.has_lost_data());
            let help = "1 if the Redis server of the buffer has lost data: runs that were answered with 202 may be lost.";
            text.gauge("semel_buffer_lost_data", help, lost);
        }
    }
    if !intake.sources.is_empty() {
        text.head("semel_source_messages_total", "counter", "Messages of streams, by result.");
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
        text.series("semel_source_messages_total", ["stream", "outcome"], counts);
    }
}

/// Callers that wait for runs, and their limits.
pub(super) fn write_run_waiters(text: &mut MetricsText, waiters: &RunWaiters) {
    text.gauge("semel_run_waiters", "Callers waiting for a run to end.", waiters.waiting());
    text.gauge("semel_run_waiters_max", "Maximum number of callers waiting for runs.", waiters.most());
    let longest = waiters.longest().as_secs_f64();
    text.gauge("semel_run_wait_max_seconds", "Maximum time that a caller may wait for a run.", longest);
    let help = "Callers refused because too many were waiting for runs.";
    text.counter("semel_run_waiters_refused_total", help, waiters.refused());
    let help = "Reads of the ledger for callers waiting for a run.";
    text.counter("semel_run_waiter_reads_total", help, waiters.reads());
}
