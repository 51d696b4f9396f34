//! Histograms of durations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::definitions::Metric;
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

/// Number of buckets of a histogram, the one above all bounds included.
pub(crate) const BUCKETS: usize = BOUNDS.len() + 1;

/// The duration at or below which this share of the counted ones lies, estimated within its bucket; `None` without any.
pub(crate) fn percentile(counts: &[u64; BUCKETS], share: f64) -> Option<Duration> {
    let all: u64 = counts.iter().sum();
    let wanted = all as f64 * share;
    let (mut below, mut from) = (0.0, 0.0);
    for (at, count) in counts.iter().enumerate() {
        let count = *count as f64;
        // What lies above the last bound is at least that long.
        let to = BOUNDS.get(at).copied().unwrap_or(from);
        if count > 0.0 && below + count >= wanted {
            let within = (wanted - below) / count;
            return Some(Duration::from_secs_f64(from + (to - from) * within));
        }
        below += count;
        from = to;
    }
    None
}

impl Histogram {
    /// The number of durations in each bucket.
    pub(crate) fn counts(&self) -> [u64; BUCKETS] {
        let mut counts = [0; BUCKETS];
        let mut bounded = 0;
        for (count, bucket) in counts.iter_mut().zip(&self.buckets) {
            *count = bucket.load(Ordering::Relaxed);
            bounded += *count;
        }
        counts[BUCKETS - 1] = self.count.load(Ordering::Relaxed).saturating_sub(bounded);
        counts
    }

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
    pub(super) fn write(&self, text: &mut MetricsText, metric: &Metric) {
        text.head(metric);
        self.write_series(text, metric, []);
    }

    /// Writes the series of one histogram with these label values.
    pub(super) fn write_series<const N: usize>(
        &self,
        text: &mut MetricsText,
        metric: &Metric,
        values: [&str; N],
    ) {
        let labels = || metric.labels.iter().copied().zip(values);
        let count = self.count.load(Ordering::Relaxed);
        let mut below = 0;
        let mut write = |bound: &str, below: u64| {
            text.line(metric.name, "_bucket", labels().chain([("le", bound)]), below);
        };
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            below += bucket.load(Ordering::Relaxed);
            write(&bound.to_string(), below.min(count));
        }
        write("+Inf", count);
        let seconds = Duration::from_micros(self.micros.load(Ordering::Relaxed)).as_secs_f64();
        text.line(metric.name, "_sum", labels(), seconds);
        text.line(metric.name, "_count", labels(), count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::definitions::{ATTEMPT_SECONDS, WAIT_SECONDS};
    use super::*;

    #[test]
    fn percentiles_are_estimated_within_a_bucket() {
        let histogram = Histogram::default();
        assert_eq!(percentile(&histogram.counts(), 0.5), None);
        for _ in 0..90 {
            histogram.add(Duration::from_millis(8));
        }
        for _ in 0..10 {
            histogram.add(Duration::from_secs(60));
        }
        let counts = histogram.counts();
        let half = percentile(&counts, 0.5).unwrap();
        assert!(half > Duration::from_millis(5) && half <= Duration::from_millis(10), "{half:?}");
        assert_eq!(percentile(&counts, 0.99), Some(Duration::from_secs(30)), "at least the last bound");
    }

    #[test]
    fn a_histogram_is_cumulative() {
        let histogram = Histogram::default();
        for millis in [1, 3, 700, 60_000] {
            histogram.add(Duration::from_millis(millis));
        }
        let mut text = MetricsText::new();
        histogram.write(&mut text, &WAIT_SECONDS);
        histogram.write_series(&mut text, &ATTEMPT_SECONDS, ["t"]);
        let text = text.into_string();
        for line in [
            "semel_wait_seconds_bucket{le=\"0.001\"} 1",
            "semel_wait_seconds_bucket{le=\"0.005\"} 2",
            "semel_wait_seconds_bucket{le=\"1\"} 3",
            "semel_wait_seconds_bucket{le=\"30\"} 3",
            "semel_wait_seconds_bucket{le=\"+Inf\"} 4",
            "semel_wait_seconds_count 4",
            "semel_attempt_seconds_bucket{target=\"t\",le=\"+Inf\"} 4",
            "semel_attempt_seconds_sum{target=\"t\"} 60.704",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
