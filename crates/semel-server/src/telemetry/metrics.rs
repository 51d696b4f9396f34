//! Metrics in the text format of Prometheus. No label contains data of a caller.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use semel::Engine;
use semel::engine::{Event, Observer, Subject};
use semel::store::{LimitedStore, RedisStore};
use semel_http::capacity::Capacity;
use semel_http::observe::AnswerCounters;

use crate::descriptors::{self, DescriptorBudget};
use crate::pipeline::Pipeline;
use crate::telemetry::otlp::Exporter;

mod deliveries;
mod intake;

pub(crate) use self::deliveries::Deliveries;

/// Upper bounds of the buckets, in seconds.
const BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Counters of one server.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Time from a claim until its outcome was stored.
    held: Histogram,
    /// Time that callers waited for an effect of another caller.
    waited: Histogram,
    /// Answers of the claims API, by status.
    claims: Family<8>,
    /// Answers of the admin API, by status class.
    admin: Family<5>,
    /// Keys in doubt at the last count.
    in_doubt: AtomicU64,
    store_up: AtomicU64,
    reloads: Family<2>,
    /// Refused logins, by reason.
    logins: Family<3>,
    /// Answers of the gateway, if there is one.
    gateway: OnceLock<(Arc<AnswerCounters>, Capacity)>,
    redis: OnceLock<Arc<RedisStore>>,
    limits: OnceLock<Arc<LimitedStore>>,
    /// With the maximum number of connections of the gateway, if there is one.
    descriptors: OnceLock<(DescriptorBudget, Option<u32>)>,
    exporter: OnceLock<Arc<Exporter>>,
    deliveries: Arc<Deliveries>,
}

/// Counters with one label.
#[derive(Debug)]
struct Family<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Family<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> Family<N> {
    fn add(&self, names: [&str; N], name: &str) {
        if let Some(at) = names.iter().position(|known| *known == name) {
            self.0[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn write(&self, text: &mut String, names: [&str; N], metric: &str, label: &str, help: &str) {
        head(text, metric, "counter", help);
        for (name, count) in names.iter().zip(&self.0) {
            let _ = writeln!(text, "{metric}{{{label}=\"{name}\"}} {}", count.load(Ordering::Relaxed));
        }
    }
}

const CLAIMS: [&str; 8] = ["won", "replay", "busy", "conflict", "in_doubt", "expired", "lost", "accepted"];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const LOGINS: [&str; 3] = ["missing", "unknown", "throttled"];
const RELOADS: [&str; 2] = ["taken", "refused"];

impl Metrics {
    /// Reports whether this store lost data.
    pub(crate) fn watch_redis(&self, store: Arc<RedisStore>) {
        let _ = self.redis.set(store);
    }

    /// Reports the use of this store's limits.
    pub(crate) fn watch_limits(&self, store: Arc<LimitedStore>) {
        let _ = self.limits.set(store);
    }

    /// True if new keys are refused because the store is full.
    pub(crate) fn store_is_full(&self) -> bool {
        self.limits.get().is_some_and(|limits| limits.is_full())
    }

    /// Reports the limits on connections.
    pub(crate) fn watch_descriptors(&self, budget: DescriptorBudget, gateway: Option<u32>) {
        let _ = self.descriptors.set((budget, gateway));
    }

    /// Reports the number of spans that this exporter dropped.
    pub(crate) fn watch_exporter(&self, exporter: Arc<Exporter>) {
        let _ = self.exporter.set(exporter);
    }

    /// Reports these counters too.
    pub(crate) fn watch_gateway(&self, counters: Arc<AnswerCounters>, capacity: Capacity) {
        // A process has one gateway.
        let _ = self.gateway.set((counters, capacity));
    }

    /// The metrics of deliveries.
    pub(crate) fn deliveries(&self) -> &Arc<Deliveries> {
        &self.deliveries
    }

    /// Counts an answer of the claims API.
    pub(crate) fn claim(&self, status: &str) {
        self.claims.add(CLAIMS, status);
    }

    /// Counts an answer of the admin API.
    pub(crate) fn admin(&self, status: u16) {
        let class = usize::from(status / 100).saturating_sub(1).min(CLASSES.len() - 1);
        self.admin.add(CLASSES, CLASSES[class]);
    }

    /// Counts a refused login at the admin API.
    pub(crate) fn login_refused(&self, reason: &str) {
        self.logins.add(LOGINS, reason);
    }

    /// Counts a reload of the config, accepted or refused.
    pub(crate) fn reload(&self, taken: Result<(), ()>) {
        self.reloads.add(RELOADS, if taken.is_ok() { "taken" } else { "refused" });
    }

    /// Sets the number of keys in doubt.
    pub(crate) fn in_doubt(&self, count: u64) {
        self.in_doubt.store(count, Ordering::Relaxed);
    }

    /// Records whether the last claim round trip succeeded.
    pub(crate) fn store_up(&self, up: Result<(), ()>) {
        self.store_up.store(u64::from(up.is_ok()), Ordering::Relaxed);
    }

    /// All metrics in the text format of Prometheus.
    pub(crate) fn render(&self, engine: &Engine, pipeline: Option<&Pipeline>) -> String {
        let mut text = String::with_capacity(8 << 10);
        let stats = engine.stats();
        head(&mut text, "semel_events_total", "counter", "Signals of the engine.");
        for (name, count) in stats.iter() {
            let _ = writeln!(text, "semel_events_total{{event=\"{name}\"}} {count}");
        }
        let (runs, replays) = (stats.count("won"), stats.count("replayed"));
        gauge(
            &mut text,
            "semel_replay_ratio",
            "Share of calls that were answered from the record.",
            ratio(replays, runs + replays),
        );
        gauge(&mut text, "semel_in_flight", "Claims held by this process.", engine.in_flight());
        gauge(&mut text, "semel_waiters", "Callers waiting for an effect.", engine.waiters());
        let in_doubt = self.in_doubt.load(Ordering::Relaxed);
        gauge(&mut text, "semel_in_doubt_keys", "Keys in doubt at the last count.", in_doubt);
        let up = self.store_up.load(Ordering::Relaxed);
        gauge(&mut text, "semel_store_up", "1 if the last claim round trip succeeded.", up);
        if let Some(redis) = self.redis.get() {
            let lost = u8::from(redis.has_lost_data());
            gauge(&mut text, "semel_store_lost_data", "1 if the Redis server has lost data.", lost);
        }
        if let Some(limits) = self.limits.get() {
            write_limits(&mut text, limits);
        }
        if let Some((gateway, capacity)) = self.gateway.get() {
            head(&mut text, "semel_requests_total", "counter", "Answers of the gateway, by outcome.");
            for (outcome, count) in gateway.iter() {
                let _ = writeln!(text, "semel_requests_total{{outcome=\"{outcome}\"}} {count}");
            }
            write_capacity(&mut text, capacity);
        }
        self.held.write(
            &mut text,
            "semel_effect_seconds",
            "Time from the claim until the outcome was stored.",
        );
        self.waited.write(&mut text, "semel_wait_seconds", "Time that callers waited for an effect.");
        self.claims.write(&mut text, CLAIMS, "semel_claims_total", "status", "Answers of the claims API.");
        self.admin.write(
            &mut text,
            CLASSES,
            "semel_admin_requests_total",
            "class",
            "Answers of the admin API.",
        );
        self.logins.write(
            &mut text,
            LOGINS,
            "semel_admin_logins_refused_total",
            "reason",
            "Refused requests to the admin API: no token, a wrong token, or an address that sent too many wrong ones.",
        );
        self.reloads.write(
            &mut text,
            RELOADS,
            "semel_reloads_total",
            "result",
            "Reloads of the configuration.",
        );
        if let Some(pipeline) = pipeline {
            self.deliveries.write(&mut text, pipeline);
            intake::write(&mut text, &pipeline.intake);
            intake::write_run_waiters(&mut text, &pipeline.waiters);
        }
        if let Some((budget, gateway)) = self.descriptors.get() {
            gauge(&mut text, "process_max_fds", "Maximum number of open file descriptors.", budget.limit);
            if let Some(open) = descriptors::open() {
                gauge(&mut text, "process_open_fds", "Number of open file descriptors.", open);
            }
            head(
                &mut text,
                "semel_connections_max",
                "gauge",
                "Maximum number of open connections of a listener.",
            );
            let _ = writeln!(text, "semel_connections_max{{listener=\"admin\"}} {}", budget.admin);
            if let Some(gateway) = gateway {
                let _ = writeln!(text, "semel_connections_max{{listener=\"gateway\"}} {gateway}");
            }
        }
        head(
            &mut text,
            "semel_log_lines_dropped_total",
            "counter",
            "Log lines dropped because the output was too slow.",
        );
        let _ = writeln!(text, "semel_log_lines_dropped_total {}", crate::telemetry::logs::dropped());
        if let Some(exporter) = self.exporter.get() {
            head(
                &mut text,
                "semel_spans_dropped_total",
                "counter",
                "Spans dropped because the queue was full.",
            );
            let _ = writeln!(text, "semel_spans_dropped_total {}", exporter.dropped());
        }
        head(&mut text, "semel_build_info", "gauge", "The version of this binary.");
        let _ = writeln!(text, "semel_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
        text
    }
}

impl Observer for Metrics {
    fn event(&self, _: &Subject, event: &Event<'_>) {
        match event {
            Event::Completed { took } => self.held.add(*took),
            Event::Waited { waited } => self.waited.add(*waited),
            _ => {}
        }
    }
}

fn write_capacity(text: &mut String, capacity: &Capacity) {
    let calls = capacity.calls_in_flight();
    gauge(text, "semel_gateway_calls_in_flight", "Guarded calls in progress at upstreams.", calls);
    let refused = "semel_gateway_calls_refused_total";
    head(text, refused, "counter", "Requests refused by a limit on guarded calls.");
    for (limit, count) in capacity.calls_refused() {
        let _ = writeln!(text, "{refused}{{limit=\"{limit}\"}} {count}");
    }
    let buffered = capacity.buffered_bytes();
    gauge(text, "semel_gateway_request_bytes_buffered", "Bytes of request bodies in memory.", buffered);
    let refused = "semel_gateway_bodies_refused_total";
    head(text, refused, "counter", "Requests refused by the memory limit for bodies.");
    let _ = writeln!(text, "{refused} {}", capacity.bodies_refused());
}

fn write_limits(text: &mut String, limits: &LimitedStore) {
    if let Some(bytes) = limits.bytes() {
        gauge(text, "semel_store_bytes", "Size of the store at the last measurement.", bytes);
    }
    if let Some(most) = limits.limits().max_bytes {
        gauge(text, "semel_store_max_bytes", "Maximum size of the store.", most);
        let full = u8::from(limits.is_full());
        gauge(text, "semel_store_full", "1 if new keys are refused because the store is full.", full);
    }
    let metric = "semel_new_keys_refused_total";
    head(text, metric, "counter", "New keys refused by a limit of the store.");
    let _ = writeln!(
        text,
        "{metric}{{reason=\"bytes\"}} {}\n{metric}{{reason=\"rate\"}} {}",
        limits.refused_for_bytes(),
        limits.refused_for_rate()
    );
}

fn ratio(part: u64, whole: u64) -> f64 {
    // Exact up to 2^52 calls, which is enough for a ratio.
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn head(text: &mut String, metric: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
}

fn gauge(text: &mut String, metric: &str, help: &str, value: impl std::fmt::Display) {
    head(text, metric, "gauge", help);
    let _ = writeln!(text, "{metric} {value}");
}

/// A histogram of durations.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[at].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn write(&self, text: &mut String, metric: &str, help: &str) {
        head(text, metric, "histogram", help);
        self.write_lines(text, metric, "");
    }

    /// The lines of one histogram: `label` is `name="value"`, or empty.
    fn write_lines(&self, text: &mut String, metric: &str, label: &str) {
        let (comma, braces) = match label {
            "" => ("", String::new()),
            label => (",", format!("{{{label}}}")),
        };
        let count = self.count.load(Ordering::Relaxed);
        let mut below = 0;
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            below += bucket.load(Ordering::Relaxed);
            let below = below.min(count);
            let _ = writeln!(text, "{metric}_bucket{{{label}{comma}le=\"{bound}\"}} {below}");
        }
        let seconds = Duration::from_micros(self.micros.load(Ordering::Relaxed)).as_secs_f64();
        let _ = writeln!(
            text,
            "{metric}_bucket{{{label}{comma}le=\"+Inf\"}} {count}\n{metric}_sum{braces} {seconds}\n\
             {metric}_count{braces} {count}"
        );
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
        let mut text = String::new();
        histogram.write(&mut text, "x", "help");
        for line in [
            "x_bucket{le=\"0.001\"} 1",
            "x_bucket{le=\"0.005\"} 2",
            "x_bucket{le=\"1\"} 3",
            "x_bucket{le=\"30\"} 3",
            "x_bucket{le=\"+Inf\"} 4",
            "x_count 4",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
