//! Samples of the counters in memory: one task takes them, every console shows them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use semel_pipeline::delivery::AttemptClass;
use tokio::time::Instant;

use crate::admin::Admin;
use crate::telemetry::metrics::{BUCKETS, percentile};

/// How often a sample is taken, and how many are kept: ten minutes.
pub(super) const EVERY: Duration = Duration::from_secs(3);
const KEPT: usize = 200;

/// The outcomes that are drawn, in the order of the chart.
pub(super) const OUTCOMES: [(&str, &str); 4] = [
    ("First runs", "ran for the first time"),
    ("From the record", "answered without running again"),
    ("Refused", "conflicts and unusable requests"),
    ("Doubt and errors", "in doubt, upstream or store failed"),
];

/// The counters at one moment.
#[derive(Clone, Debug)]
struct Sample {
    at: Instant,
    outcomes: [u64; OUTCOMES.len()],
    waited: u64,
    effects: [u64; BUCKETS],
    targets: BTreeMap<String, TargetCounts>,
}

/// The attempts of a target.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TargetCounts {
    pub(super) delivered: u64,
    pub(super) failed: u64,
}

/// The samples of the last minutes.
#[derive(Default)]
pub(crate) struct Samples {
    kept: Mutex<VecDeque<Sample>>,
}

/// The traffic of the last minutes.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    /// Rates a second by outcome, the oldest first.
    pub(super) rates: Vec<[f64; OUTCOMES.len()]>,
    /// The rates of the last samples.
    pub(super) now: [f64; OUTCOMES.len()],
    pub(super) waits: f64,
    /// The share of calls that were answered from the record.
    pub(super) replay_share: Option<f64>,
    /// The calls that this share is of.
    pub(super) calls: u64,
    /// Durations of effects at the 50th, 95th and 99th percentile; `None` without effects.
    pub(super) percentiles: Option<[Duration; 3]>,
}

/// Attempts of a target a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttemptRates {
    pub(super) delivered: f64,
    pub(super) failed: f64,
}

/// The attempts of a target in the last minutes.
#[derive(Clone, Debug, Default)]
pub(super) struct TargetTraffic {
    /// The oldest first.
    pub(super) rates: Vec<AttemptRates>,
    pub(super) delivered: u64,
    pub(super) failed: u64,
}

impl Samples {
    /// Takes a sample.
    pub(super) fn take(&self, admin: &Admin) {
        let sample = Sample {
            at: Instant::now(),
            outcomes: outcomes(admin),
            waited: admin.engine.stats().count("waited"),
            effects: admin.metrics.effect_counts(),
            targets: admin
                .metrics
                .deliveries()
                .attempts()
                .into_iter()
                .map(|(target, classes)| (target, TargetCounts::of(&classes)))
                .collect(),
        };
        let mut kept = self.kept.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(sample);
    }

    /// The traffic of the last minutes.
    pub(super) fn traffic(&self) -> Traffic {
        let kept = self.kept.lock();
        let (Some(first), Some(last)) = (kept.front(), kept.back()) else { return Traffic::default() };
        let between = |one: &Sample, other: &Sample| {
            let seconds = other.at.duration_since(one.at).as_secs_f64().max(0.001);
            std::array::from_fn(|at| other.outcomes[at].saturating_sub(one.outcomes[at]) as f64 / seconds)
        };
        let rates = kept.iter().zip(kept.iter().skip(1)).map(|(one, other)| between(one, other)).collect();
        // A single sample jumps; three are calm and still recent.
        let recent = &kept[kept.len().saturating_sub(4)];
        let seconds = last.at.duration_since(recent.at).as_secs_f64().max(0.001);
        let [ran, replayed, ..]: [u64; OUTCOMES.len()] =
            std::array::from_fn(|at| last.outcomes[at].saturating_sub(first.outcomes[at]));
        let effects: [u64; BUCKETS] =
            std::array::from_fn(|at| last.effects[at].saturating_sub(first.effects[at]));
        let percentiles = [0.5, 0.95, 0.99].map(|share| percentile(&effects, share));
        Traffic {
            rates,
            now: between(recent, last),
            waits: last.waited.saturating_sub(recent.waited) as f64 / seconds,
            calls: ran + replayed,
            replay_share: (ran + replayed > 0).then(|| replayed as f64 / (ran + replayed) as f64),
            percentiles: match percentiles {
                [Some(half), Some(most), Some(nearly_all)] => Some([half, most, nearly_all]),
                _ => None,
            },
        }
    }

    /// The attempts of one target.
    pub(super) fn target(&self, name: &str) -> TargetTraffic {
        let kept = self.kept.lock();
        let of = |sample: &Sample| sample.targets.get(name).copied().unwrap_or_default();
        let rates = kept.iter().zip(kept.iter().skip(1)).map(|(one, other)| {
            let seconds = other.at.duration_since(one.at).as_secs_f64().max(0.001);
            let (before, after) = (of(one), of(other));
            let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
            AttemptRates {
                delivered: rate(before.delivered, after.delivered),
                failed: rate(before.failed, after.failed),
            }
        });
        let (first, last) =
            (kept.front().map(&of).unwrap_or_default(), kept.back().map(&of).unwrap_or_default());
        TargetTraffic {
            rates: rates.collect(),
            delivered: last.delivered.saturating_sub(first.delivered),
            failed: last.failed.saturating_sub(first.failed),
        }
    }
}

impl TargetCounts {
    fn of(classes: &[(AttemptClass, u64)]) -> Self {
        let mut counts = Self::default();
        for (class, count) in classes {
            match class {
                AttemptClass::Success => counts.delivered += count,
                AttemptClass::Deferred => {}
                AttemptClass::Transient
                | AttemptClass::Permanent
                | AttemptClass::Unknown
                | AttemptClass::Crashed => counts.failed += count,
            }
        }
        counts
    }
}

/// Calls by outcome. Requests of the gateway, where there is one; otherwise claims of any kind.
fn outcomes(admin: &Admin) -> [u64; OUTCOMES.len()] {
    let mut counts = [0; OUTCOMES.len()];
    match &admin.gateway {
        Some(gateway) => {
            for (name, count) in gateway.counters().iter() {
                let at = match name {
                    "ran" | "released" | "tombstone" => 0,
                    "replayed" => 1,
                    "doubtful"
                    | "in_doubt"
                    | "not_stored"
                    | "unprotected"
                    | "store_unavailable"
                    | "upstream_unreachable"
                    | "upstream_unknown"
                    | "verify_unavailable"
                    | "overloaded" => 3,
                    "passed_on" | "unkeyed" | "well_known" => continue,
                    _ => 2,
                };
                counts[at] += count;
            }
        }
        None => {
            let stats = admin.engine.stats();
            counts[0] = stats.count("won");
            counts[1] = stats.count("replayed");
            counts[2] = ["conflict", "in_flight", "expired", "too_many_waiters"]
                .map(|name| stats.count(name))
                .iter()
                .sum();
            counts[3] =
                ["in_doubt", "store_failed", "complete_failed"].map(|name| stats.count(name)).iter().sum();
        }
    }
    counts
}
