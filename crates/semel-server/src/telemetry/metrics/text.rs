//! The text format of Prometheus, version 0.0.4.
//!
//! `prometheus-client` writes only OpenMetrics, whose `# TYPE` names counters without `_total`: a scraper of this format would lose the
//! type of every counter.

use std::fmt::{Display, Write as _};

use super::definitions::Metric;

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

    /// A metric without labels.
    pub(super) fn value(&mut self, metric: &Metric, value: impl Display) {
        self.values(metric, [([], value)]);
    }

    /// A metric with a value for each set of label values.
    pub(super) fn values<'a, const N: usize, V: Display>(
        &mut self,
        metric: &Metric,
        series: impl IntoIterator<Item = ([&'a str; N], V)>,
    ) {
        self.head(metric);
        self.series(metric, series);
    }

    /// The head of a metric. Its series follow.
    pub(super) fn head(&mut self, metric: &Metric) {
        let Metric { name, help, kind, .. } = metric;
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
    }

    /// Series of the metric whose head was written last.
    pub(super) fn series<'a, const N: usize, V: Display>(
        &mut self,
        metric: &Metric,
        series: impl IntoIterator<Item = ([&'a str; N], V)>,
    ) {
        for (values, value) in series {
            self.line(metric.name, "", metric.labels.iter().copied().zip(values), value);
        }
    }

    /// One series. `ending` is that of a part of a histogram.
    pub(super) fn line<'a>(
        &mut self,
        name: &str,
        ending: &str,
        labels: impl IntoIterator<Item = (&'a str, &'a str)>,
        value: impl Display,
    ) {
        self.0.push_str(name);
        self.0.push_str(ending);
        let mut separator = '{';
        for (label, text) in labels {
            let _ = write!(self.0, "{separator}{label}=\"{text}\"");
            separator = ',';
        }
        let _ = writeln!(self.0, "{} {value}", if separator == '{' { "" } else { "}" });
    }
}
