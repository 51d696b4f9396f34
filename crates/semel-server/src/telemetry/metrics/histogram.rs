//! Histograms of durations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::text::MetricsText;

/// Upper bounds of the buckets, in seconds.
const BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// A histogram of durations.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    /// Counts a duration.
    pub(crate) fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[at].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Writes a metric that has this histogram only.
    pub(super) fn write(&self, text: &mut MetricsText, metric: &str, help: &str) {
        text.head(metric, "histogram", help);
        self.write_series(text, metric, [], []);
    }

    /// Writes the series of one histogram with one label or none.
    pub(super) fn write_series<const N: usize>(
        &self,
        text: &mut MetricsText,
        metric: &str,
        labels: [&str; N],
        values: [&str; N],
    ) {
        let count = self.count.load(Ordering::Relaxed);
        let mut below = 0;
        let bucket = format!("{metric}_bucket");
        let mut write = |bound: &str, below: u64| match (labels.first(), values.first()) {
            (Some(label), Some(value)) => text.series(&bucket, [*label, "le"], [([*value, bound], below)]),
            _ => text.series(&bucket, ["le"], [([bound], below)]),
        };
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            below += bucket.load(Ordering::Relaxed);
            write(&bound.to_string(), below.min(count));
        }
        write("+Inf", count);
        let seconds = Duration::from_micros(self.micros.load(Ordering::Relaxed)).as_secs_f64();
        text.series(&format!("{metric}_sum"), labels, [(values, seconds)]);
        text.series(&format!("{metric}_count"), labels, [(values, count)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_cumulative() {
        let histogram = Histogram::default();
        for millis in [1, 3, 700, 60_000] {
            histogram.add(Duration::from_millis(millis));
        }
        let mut text = MetricsText::new();
        histogram.write(&mut text, "x", "help");
        histogram.write_series(&mut text, "y", ["target"], ["t"]);
        let text = text.into_string();
        for line in [
            "x_bucket{le=\"0.001\"} 1",
            "x_bucket{le=\"0.005\"} 2",
            "x_bucket{le=\"1\"} 3",
            "x_bucket{le=\"30\"} 3",
            "x_bucket{le=\"+Inf\"} 4",
            "x_count 4",
            "y_bucket{target=\"t\",le=\"+Inf\"} 4",
            "y_sum{target=\"t\"} 60.704",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
