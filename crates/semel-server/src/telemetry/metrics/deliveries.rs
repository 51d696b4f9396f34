//! Metrics of deliveries. Names of targets come from the operator, so they may be labels.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use semel_pipeline::delivery::AttemptClass;
use semel_pipeline::ledger::{TargetPause, Totals};
use semel_pipeline::letter::Status;
use semel_pipeline::worker::{Attempted, DeliveryObserver};
use tokio::time::Instant;

use super::definitions as metric;
use super::histogram::Histogram;
use super::recent::{AttemptCounts, RecentAttempts};
use super::text::MetricsText;
use crate::pipeline::Pipeline;

/// Counters of deliveries.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    targets: RwLock<BTreeMap<String, Arc<OfTarget>>>,
    /// The last counts of the ledger.
    totals: Mutex<Arc<Totals>>,
    /// The paused targets, when they were last read.
    pauses: Mutex<Vec<TargetPause>>,
}

#[derive(Debug, Default)]
struct OfTarget {
    classes: [AtomicU64; AttemptClass::ALL.len()],
    took: Histogram,
    recent: Mutex<RecentAttempts>,
}

impl Deliveries {
    /// Stores the counts of the ledger.
    pub(crate) fn counted(&self, totals: Arc<Totals>) {
        *self.totals.lock() = totals;
    }

    /// The last counts of the ledger.
    pub(crate) fn totals(&self) -> Arc<Totals> {
        Arc::clone(&self.totals.lock())
    }

    /// The attempts of this process by target and class.
    pub(crate) fn attempts(&self) -> Vec<(String, Vec<(AttemptClass, u64)>)> {
        let counts = |counted: &OfTarget| {
            let counts = counted.classes.iter().map(|count| count.load(Ordering::Relaxed));
            AttemptClass::ALL.into_iter().zip(counts).collect()
        };
        self.targets.read().iter().map(|(target, counted)| (target.clone(), counts(counted))).collect()
    }

    /// The attempts of this process for a target that were sent in the last minutes, [`RECENT_MINUTES`] at most.
    pub(crate) fn recent(&self, target: &str) -> AttemptCounts {
        let known = self.targets.read().get(target).map(Arc::clone);
        known.map_or_else(AttemptCounts::default, |counted| counted.recent.lock().counts(Instant::now()))
    }

    /// Stores the pauses of the ledger.
    pub(crate) fn set_pauses(&self, pauses: Vec<TargetPause>) {
        *self.pauses.lock() = pauses;
    }

    fn of(&self, target: &str) -> Arc<OfTarget> {
        if let Some(known) = self.targets.read().get(target) {
            return Arc::clone(known);
        }
        Arc::clone(self.targets.write().entry(target.to_owned()).or_default())
    }

    pub(super) fn write(&self, text: &mut MetricsText, pipeline: &Pipeline) {
        let targets = self.targets.read();
        let attempts = targets.iter().flat_map(|(target, counted)| {
            let counts = counted.classes.iter().map(|count| count.load(Ordering::Relaxed));
            AttemptClass::ALL.iter().map(move |class| [target.as_str(), class.as_str()]).zip(counts)
        });
        text.values(&metric::ATTEMPTS, attempts);
        text.head(&metric::ATTEMPT_SECONDS);
        for (target, counted) in targets.iter() {
            counted.took.write_series(text, &metric::ATTEMPT_SECONDS, [target]);
        }
        let totals = self.totals.lock();
        let states =
            totals.deliveries.iter().map(|(target, state, count)| ([target.as_str(), state.as_str()], count));
        text.values(&metric::DELIVERIES, states);
        text.value(&metric::OLDEST_DUE, totals.oldest_due().unwrap_or_default().as_secs_f64());
        // Also those that no dead letter has: a series that is absent looks like a server that is down.
        let letters = Status::ALL.map(|status| {
            let counted = totals.letters.iter().find(|(known, _)| *known == status);
            ([status.as_str()], counted.map_or(0, |(_, count)| *count))
        });
        text.values(&metric::DEAD_LETTERS, letters);
        text.value(&metric::DELIVERIES_IN_HAND, pipeline.in_hand());
        let (names, pauses) = (pipeline.registry.current().names(), self.pauses.lock());
        let paused = names
            .iter()
            .map(|name| ([name.as_str()], u8::from(pauses.iter().any(|pause| pause.target == *name))));
        text.values(&metric::TARGET_PAUSED, paused);
        let breakers = pipeline.destinations.states();
        let states = breakers.iter().flat_map(|breaker| {
            let is = |name| u8::from(breaker.circuit.name() == name);
            ["closed", "half_open", "open"].map(|name| ([&*breaker.name, name], is(name)))
        });
        text.values(&metric::BREAKER_STATE, states);
        let opened = breakers.iter().map(|breaker| ([&*breaker.name], breaker.opened));
        text.values(&metric::BREAKER_OPENED, opened);
    }
}

impl DeliveryObserver for Deliveries {
    fn attempted(&self, attempted: &Attempted<'_>) {
        let counted = self.of(&attempted.work.target);
        let class = attempted.class();
        if let Some(at) = AttemptClass::ALL.iter().position(|known| *known == class) {
            counted.classes[at].fetch_add(1, Ordering::Relaxed);
        }
        if attempted.took > Duration::ZERO {
            counted.took.add(attempted.took);
            counted.recent.lock().add(class, Instant::now());
        }
    }
}
