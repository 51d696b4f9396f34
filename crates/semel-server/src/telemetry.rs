//! What an operator sees of a running server: logs, metrics, and spans for an OpenTelemetry collector.

pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod monitoring;
pub(crate) mod otlp;

use std::time::Duration;

/// Milliseconds, to the microsecond: `260.648`, not `260.64799999999997`.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}
