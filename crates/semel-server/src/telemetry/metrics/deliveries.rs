//! Metrics of deliveries. Names of targets come from the operator, so they may be labels.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use semel_pipeline::delivery::AttemptClass;
use semel_pipeline::ledger::Totals;
use semel_pipeline::worker::{Attempted, DeliveryObserver};

use super::histogram::Histogram;
use super::text::MetricsText;
use crate::pipeline::Pipeline;

/// Counters of deliveries.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    targets: RwLock<BTreeMap<String, Arc<OfTarget>>>,
    /// The last counts of the ledger.
    totals: Mutex<Totals>,
}

#[derive(Debug, Default)]
struct OfTarget {
    classes: [AtomicU64; AttemptClass::ALL.len()],
    took: Histogram,
}

impl Deliveries {
    /// Stores the counts of the ledger.
    pub(crate) fn counted(&self, totals: Totals) {
        *self.totals.lock() = totals;
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
        let help = "Delivery attempts, by result.";
        text.counters("semel_deliveries_total", help, ["target", "class"], attempts);
        text.head("semel_attempt_seconds", "histogram", "Duration of delivery attempts.");
        for (target, counted) in targets.iter() {
            counted.took.write_series(text, "semel_attempt_seconds", ["target"], [target]);
        }
        let totals = self.totals.lock();
        let states =
            totals.deliveries.iter().map(|(target, state, count)| ([target.as_str(), state.as_str()], count));
        let help = "Deliveries in the ledger that have not ended, by state.";
        text.gauges("semel_deliveries", help, ["target", "state"], states);
        let oldest = totals.oldest_due.unwrap_or_default().as_secs_f64();
        text.gauge("semel_deliveries_oldest_due_seconds", "Age of the oldest due delivery.", oldest);
        let letters = totals.letters.iter().map(|(status, count)| ([status.as_str()], count));
        text.gauges("semel_dead_letters", "Dead letters, by status.", ["status"], letters);
        let help = "Deliveries in progress in this process.";
        text.gauge("semel_deliveries_in_hand", help, pipeline.in_hand());
        let breakers = pipeline.destinations.states();
        let states = breakers.iter().flat_map(|breaker| {
            let is = |name| u8::from(breaker.circuit.name() == name);
            ["closed", "half_open", "open"].map(|name| ([&*breaker.name, name], is(name)))
        });
        let help = "State of a target's circuit breaker: 1 for the current state.";
        text.gauges("semel_breaker_state", help, ["target", "state"], states);
        let opened = breakers.iter().map(|breaker| ([&*breaker.name], breaker.opened));
        let help = "Times that a target's circuit breaker opened.";
        text.counters("semel_breaker_opened_total", help, ["target"], opened);
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
        }
    }
}
