//! The text format of Prometheus, version 0.0.4.
//!
//! `prometheus-client` writes only OpenMetrics, whose `# TYPE` names counters without `_total`: a scraper of this format would lose the
//! type of every counter.

use std::fmt::{Display, Write as _};

/// Metrics as text. Values of labels must not need escapes.
#[derive(Debug)]
pub(super) struct MetricsText(String);

impl MetricsText {
    pub(super) fn new() -> Self {
        Self(String::with_capacity(8 << 10))
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }

    /// A gauge without labels.
    pub(super) fn gauge(&mut self, metric: &str, help: &str, value: impl Display) {
        self.gauges(metric, help, [], [([], value)]);
    }

    /// A counter without labels.
    pub(super) fn counter(&mut self, metric: &str, help: &str, value: impl Display) {
        self.counters(metric, help, [], [([], value)]);
    }

    /// A gauge for each set of label values.
    pub(super) fn gauges<'a, const N: usize, V: Display>(
        &mut self,
        metric: &str,
        help: &str,
        labels: [&str; N],
        series: impl IntoIterator<Item = ([&'a str; N], V)>,
    ) {
        self.head(metric, "gauge", help);
        self.series(metric, labels, series);
    }

    /// A counter for each set of label values.
    pub(super) fn counters<'a, const N: usize, V: Display>(
        &mut self,
        metric: &str,
        help: &str,
        labels: [&str; N],
        series: impl IntoIterator<Item = ([&'a str; N], V)>,
    ) {
        self.head(metric, "counter", help);
        self.series(metric, labels, series);
    }

    /// The head of a metric. Its series follow.
    pub(super) fn head(&mut self, metric: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
    }

    /// Series of the metric whose head was written last.
    pub(super) fn series<'a, const N: usize, V: Display>(
        &mut self,
        metric: &str,
        labels: [&str; N],
        series: impl IntoIterator<Item = ([&'a str; N], V)>,
    ) {
        for (values, value) in series {
            self.0.push_str(metric);
            for (at, (label, text)) in labels.iter().zip(values).enumerate() {
                let _ = write!(self.0, "{}{label}=\"{text}\"", if at == 0 { '{' } else { ',' });
            }
            let _ = writeln!(self.0, "{} {value}", if N == 0 { "" } else { "}" });
        }
    }
}
