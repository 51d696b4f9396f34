//! What an operator sees of a running server: logs, metrics, and spans for an OpenTelemetry collector.

pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod monitoring;
pub(crate) mod otlp;
