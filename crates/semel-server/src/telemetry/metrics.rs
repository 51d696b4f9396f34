//! Metrics in the text format of Prometheus. No label contains data of a caller.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use semel::Engine;
use semel::engine::{Event, Observer, Subject};
use semel::store::{LimitedStore, RedisStore};
use semel_http::capacity::Capacity;
use semel_http::observe::AnswerCounters;

use crate::descriptors::{self, DescriptorBudget};
use crate::pipeline::Pipeline;
use crate::telemetry::logs;
use crate::telemetry::otlp::Exporter;

mod deliveries;
mod histogram;
mod intake;
mod process;
mod text;

pub(crate) use self::deliveries::Deliveries;
use self::histogram::Histogram;
use self::text::MetricsText;

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
    /// Connections that the listeners closed at their limits.
    closed_by_admin: Arc<AtomicU64>,
    closed_by_gateway: Arc<AtomicU64>,
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

    fn write(&self, text: &mut MetricsText, names: [&str; N], metric: &str, label: &str, help: &str) {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        text.counters(metric, help, [label], names.into_iter().map(|name| [name]).zip(counts));
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

    /// Counts the connections that the admin listener closes at its limit.
    pub(crate) fn closed_by_admin(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.closed_by_admin)
    }

    /// Counts the connections that the gateway closes at its limit.
    pub(crate) fn closed_by_gateway(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.closed_by_gateway)
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

    /// Keys in doubt at the last count.
    pub(crate) fn keys_in_doubt(&self) -> u64 {
        self.in_doubt.load(Ordering::Relaxed)
    }

    /// Records whether the last claim round trip succeeded.
    pub(crate) fn store_up(&self, up: Result<(), ()>) {
        self.store_up.store(u64::from(up.is_ok()), Ordering::Relaxed);
    }

    /// All metrics in the text format of Prometheus.
    pub(crate) fn render(&self, engine: &Engine, pipeline: Option<&Pipeline>) -> String {
        let mut text = MetricsText::new();
        let stats = engine.stats();
        let signals = stats.iter().map(|(name, count)| ([name], count));
        text.counters("semel_events_total", "Signals of the engine.", ["event"], signals);
        let (runs, replays) = (stats.count("won"), stats.count("replayed"));
        let share = ratio(replays, runs + replays);
        text.gauge("semel_replay_ratio", "Share of calls that were answered from the record.", share);
        text.gauge("semel_in_flight", "Claims held by this process.", engine.in_flight());
        text.gauge("semel_waiters", "Callers waiting for an effect.", engine.waiters());
        let in_doubt = self.in_doubt.load(Ordering::Relaxed);
        text.gauge("semel_in_doubt_keys", "Keys in doubt at the last count.", in_doubt);
        let up = self.store_up.load(Ordering::Relaxed);
        text.gauge("semel_store_up", "1 if the last claim round trip succeeded.", up);
        if let Some(redis) = self.redis.get() {
            let lost = u8::from(redis.has_lost_data());
            text.gauge("semel_store_lost_data", "1 if the Redis server has lost data.", lost);
        }
        if let Some(limits) = self.limits.get() {
            write_limits(&mut text, limits);
        }
        if let Some((gateway, capacity)) = self.gateway.get() {
            let answers = gateway.iter().map(|(outcome, count)| ([outcome], count));
            text.counters(
                "semel_requests_total",
                "Answers of the gateway, by outcome.",
                ["outcome"],
                answers,
            );
            text.counter(
                "semel_rotated_credentials_total",
                "First runs whose key and payload another credential sent before: retries that ran again, if credentials rotate.",
                gateway.rotated_credentials(),
            );
            write_capacity(&mut text, capacity);
        }
        let help = "Time from the claim until the outcome was stored.";
        self.held.write(&mut text, "semel_effect_seconds", help);
        self.waited.write(&mut text, "semel_wait_seconds", "Time that callers waited for an effect.");
        self.claims.write(&mut text, CLAIMS, "semel_claims_total", "status", "Answers of the claims API.");
        let help = "Answers of the admin API.";
        self.admin.write(&mut text, CLASSES, "semel_admin_requests_total", "class", help);
        let help = "Refused requests to the admin API: no token, a wrong token, or an address that sent too many wrong ones.";
        self.logins.write(&mut text, LOGINS, "semel_admin_logins_refused_total", "reason", help);
        let help = "Reloads of the configuration.";
        self.reloads.write(&mut text, RELOADS, "semel_reloads_total", "result", help);
        if let Some(pipeline) = pipeline {
            self.deliveries.write(&mut text, pipeline);
            intake::write(&mut text, &pipeline.intake);
            intake::write_run_waiters(&mut text, &pipeline.waiters);
        }
        if let Some((budget, gateway)) = self.descriptors.get() {
            text.gauge("process_max_fds", "Maximum number of open file descriptors.", budget.limit);
            if let Some(open) = descriptors::open() {
                text.gauge("process_open_fds", "Number of open file descriptors.", open);
            }
            let limits = [(["admin"], Some(budget.admin)), (["gateway"], *gateway)];
            let limits = limits.into_iter().filter_map(|(listener, limit)| Some((listener, limit?)));
            let help = "Maximum number of open connections of a listener.";
            text.gauges("semel_connections_max", help, ["listener"], limits);
            let closed = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let (admin, at_gateway) = (closed(&self.closed_by_admin), closed(&self.closed_by_gateway));
            let counts = [(["admin"], Some(admin)), (["gateway"], gateway.map(|_| at_gateway))];
            let counts = counts.into_iter().filter_map(|(listener, count)| Some((listener, count?)));
            let help =
                "Connections closed at the connection limit because they waited longest for their client.";
            text.counters("semel_connections_closed_at_limit_total", help, ["listener"], counts);
        }
        process::write(&mut text);
        let help = "Log lines dropped because the output was too slow.";
        text.counter("semel_log_lines_dropped_total", help, logs::dropped());
        if let Some(exporter) = self.exporter.get() {
            let help = "Spans dropped because the queue was full.";
            text.counter("semel_spans_dropped_total", help, exporter.dropped());
        }
        let version = [([env!("CARGO_PKG_VERSION")], 1)];
        text.gauges("semel_build_info", "The version of this binary.", ["version"], version);
        text.into_string()
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

fn write_capacity(text: &mut MetricsText, capacity: &Capacity) {
    let calls = capacity.calls_in_flight();
    text.gauge("semel_gateway_calls_in_flight", "Guarded calls in progress at upstreams.", calls);
    let refused = capacity.calls_refused().into_iter().map(|(limit, count)| ([limit], count));
    let help = "Requests refused by a limit on guarded calls.";
    text.counters("semel_gateway_calls_refused_total", help, ["limit"], refused);
    let buffered = capacity.buffered_bytes();
    text.gauge("semel_gateway_request_bytes_buffered", "Bytes of request bodies in memory.", buffered);
    let help = "Requests refused by the memory limit for bodies.";
    text.counter("semel_gateway_bodies_refused_total", help, capacity.bodies_refused());
}

fn write_limits(text: &mut MetricsText, limits: &LimitedStore) {
    if let Some(bytes) = limits.bytes() {
        text.gauge("semel_store_bytes", "Size of the store at the last measurement.", bytes);
    }
    if let Some(most) = limits.limits().max_bytes {
        text.gauge("semel_store_max_bytes", "Maximum size of the store.", most);
        let full = u8::from(limits.is_full());
        text.gauge("semel_store_full", "1 if new keys are refused because the store is full.", full);
    }
    let refused = [(["bytes"], limits.refused_for_bytes()), (["rate"], limits.refused_for_rate())];
    let help = "New keys refused by a limit of the store.";
    text.counters("semel_new_keys_refused_total", help, ["reason"], refused);
}

fn ratio(part: u64, whole: u64) -> f64 {
    // Exact up to 2^52 calls, which is enough for a ratio.
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
