//! Metrics of deliveries. Names of targets come from the operator, so they may be labels.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use semel_pipeline::delivery::AttemptClass;
use semel_pipeline::ledger::Totals;
use semel_pipeline::worker::{Attempted, DeliveryObserver};

use super::{Histogram, gauge, head};
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

    pub(super) fn write(&self, text: &mut String, pipeline: &Pipeline) {
        let targets = self.targets.read();
        head(text, "semel_deliveries_total", "counter", "Delivery attempts, by result.");
        for (target, counted) in targets.iter() {
            for (class, count) in AttemptClass::ALL.iter().zip(&counted.classes) {
                let (class, count) = (class.as_str(), count.load(Ordering::Relaxed));
                let _ =
                    writeln!(text, "semel_deliveries_total{{target=\"{target}\",class=\"{class}\"}} {count}");
            }
        }
        head(text, "semel_attempt_seconds", "histogram", "Duration of delivery attempts.");
        for (target, counted) in targets.iter() {
            counted.took.write_lines(text, "semel_attempt_seconds", &format!("target=\"{target}\""));
        }
        let totals = self.totals.lock();
        head(text, "semel_deliveries", "gauge", "Deliveries in the ledger that have not ended, by state.");
        for (target, state, count) in &totals.deliveries {
            let _ = writeln!(text, "semel_deliveries{{target=\"{target}\",state=\"{state}\"}} {count}");
        }
        let oldest = totals.oldest_due.unwrap_or_default().as_secs_f64();
        gauge(text, "semel_deliveries_oldest_due_seconds", "Age of the oldest due delivery.", oldest);
        head(text, "semel_dead_letters", "gauge", "Dead letters, by status.");
        for (status, count) in &totals.letters {
            let _ = writeln!(text, "semel_dead_letters{{status=\"{}\"}} {count}", status.as_str());
        }
        gauge(
            text,
            "semel_deliveries_in_hand",
            "Deliveries in progress in this process.",
            pipeline.in_hand(),
        );
        head(
            text,
            "semel_breaker_state",
            "gauge",
            "State of a target's circuit breaker: 1 for the current state.",
        );
        for state in pipeline.destinations.states() {
            for name in ["closed", "half_open", "open"] {
                let stands = u8::from(state.circuit.name() == name);
                let _ = writeln!(
                    text,
                    "semel_breaker_state{{target=\"{}\",state=\"{name}\"}} {stands}",
                    state.name
                );
            }
        }
        head(text, "semel_breaker_opened_total", "counter", "Times that a target's circuit breaker opened.");
        for state in pipeline.destinations.states() {
            let _ =
                writeln!(text, "semel_breaker_opened_total{{target=\"{}\"}} {}", state.name, state.opened);
        }
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
