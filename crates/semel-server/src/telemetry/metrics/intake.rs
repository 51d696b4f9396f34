//! Metrics of the intake: triggers, their gate and buffer, drainers, streams.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use semel_triggers::gate::GateReason;

use super::{gauge, head};
use crate::intake::RunningIntake;
use crate::pipeline::RunWaiters;

/// Writes counters with one label.
fn family(text: &mut String, metric: &str, help: &str, label: &str, counts: &[(&str, &AtomicU64)]) {
    head(text, metric, "counter", help);
    for (value, count) in counts {
        let _ = writeln!(text, "{metric}{{{label}=\"{value}\"}} {}", count.load(Ordering::Relaxed));
    }
}

/// All metrics in the text format of Prometheus.
pub(super) fn write(text: &mut String, intake: &RunningIntake) {
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
        head(text, "semel_gate_decisions_total", "counter", "Decisions of the gate, by reason.");
        for why in GateReason::ALL {
            let count = burst.gate.counters().count(why);
            let _ = writeln!(text, "semel_gate_decisions_total{{reason=\"{}\"}} {count}", why.as_str());
        }
        let waiters = burst.claims.waiters();
        head(text, "semel_trigger_waiters", "gauge", "Triggers waiting for another one with the same key.");
        let _ = writeln!(text, "semel_trigger_waiters {waiters}");
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
        for (metric, help, value) in [
            ("semel_buffer_queued", "Runs waiting in the buffer.", depth.queued as f64),
            (
                "semel_buffer_in_transit",
                "Runs being moved from the buffer to the ledger.",
                depth.leased as f64,
            ),
            ("semel_buffer_oldest_seconds", "Age of the oldest buffered run.", depth.oldest.as_secs_f64()),
        ] {
            head(text, metric, "gauge", help);
            let _ = writeln!(text, "{metric} {value}");
        }
        if let Some(redis) = intake.claims.get() {
            let lost = u8::from(redis.has_lost_data());
            let help = "1 if the Redis server of the buffer has lost data: runs that were answered with 202 may be lost.";
            head(text, "semel_buffer_lost_data", "gauge", help);
            let _ = writeln!(text, "semel_buffer_lost_data {lost}");
        }
    }
    if !intake.sources.is_empty() {
        head(text, "semel_source_messages_total", "counter", "Messages of streams, by result.");
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
        for (outcome, count) in counts {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(
                text,
                "semel_source_messages_total{{stream=\"{stream}\",outcome=\"{outcome}\"}} {count}"
            );
        }
    }
}

/// Callers that wait for runs, and their limits.
pub(super) fn write_run_waiters(text: &mut String, waiters: &RunWaiters) {
    gauge(text, "semel_run_waiters", "Callers waiting for a run to end.", waiters.waiting());
    gauge(text, "semel_run_waiters_max", "Maximum number of callers waiting for runs.", waiters.most());
    let longest = waiters.longest().as_secs_f64();
    gauge(text, "semel_run_wait_max_seconds", "Maximum time that a caller may wait for a run.", longest);
    head(
        text,
        "semel_run_waiters_refused_total",
        "counter",
        "Callers refused because too many were waiting for runs.",
    );
    let _ = writeln!(text, "semel_run_waiters_refused_total {}", waiters.refused());
    head(
        text,
        "semel_run_waiter_reads_total",
        "counter",
        "Reads of the ledger for callers waiting for a run.",
    );
    let _ = writeln!(text, "semel_run_waiter_reads_total {}", waiters.reads());
}
