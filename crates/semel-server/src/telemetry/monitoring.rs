//! What Prometheus and Grafana need: alert rules and a dashboard. Both are made from the definitions of the metrics, so a metric that
//! is renamed or removed changes them or does not compile.

mod alerts;
mod dashboard;

pub(crate) use self::alerts::{alerts, rules};
pub(crate) use self::dashboard::dashboard;
