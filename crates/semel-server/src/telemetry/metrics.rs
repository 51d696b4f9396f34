//! Metrics in the text format of Prometheus. No label contains data of a caller.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use semel::Engine;
use semel::engine::{Event, Observer, Subject};
use semel::outage;
use semel::store::{LimitedStore, RedisStore};
use semel::time::{Clock as _, SystemClock, Timestamp};
use semel_http::capacity::Capacity;
use semel_http::observe::AnswerCounters;

use crate::descriptors::{self, DescriptorBudget};
use crate::pipeline::Pipeline;
use crate::telemetry::logs;
use crate::telemetry::otlp::Exporter;

pub(crate) mod definitions;
mod deliveries;
mod histogram;
mod intake;
mod process;
mod recent;
mod text;

use self::definitions::{self as metric, Metric};
pub(crate) use self::deliveries::Deliveries;
use self::histogram::Histogram;
pub(crate) use self::histogram::{BUCKETS, percentile};
pub(crate) use self::recent::AttemptCounts;
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
    /// When they were counted, in microseconds since 1970; 0 before the first count.
    in_doubt_counted: AtomicU64,
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

    fn write(&self, text: &mut MetricsText, names: [&str; N], metric: &Metric) {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        text.values(metric, names.into_iter().map(|name| [name]).zip(counts));
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

    /// The durations of effects, by bucket.
    pub(crate) fn effect_counts(&self) -> [u64; BUCKETS] {
        self.held.counts()
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
        self.in_doubt_counted.store(SystemClock.now().as_micros(), Ordering::Relaxed);
    }

    /// When the keys in doubt were counted.
    pub(crate) fn in_doubt_counted(&self) -> Option<Timestamp> {
        let micros = self.in_doubt_counted.load(Ordering::Relaxed);
        (micros > 0).then(|| Timestamp::from_micros(micros))
    }

    /// Keys in doubt at the last count.
    pub(crate) fn keys_in_doubt(&self) -> u64 {
        self.in_doubt.load(Ordering::Relaxed)
    }

    /// Records whether the last claim round trip succeeded.
    pub(crate) fn store_up(&self, up: Result<(), ()>) {
        self.store_up.store(u64::from(up.is_ok()), Ordering::Relaxed);
    }

    /// All metrics in the text format of Prometheus. `consoles` is the number of open consoles.
    pub(crate) fn render(&self, engine: &Engine, pipeline: Option<&Pipeline>, consoles: usize) -> String {
        let mut text = MetricsText::new();
        let stats = engine.stats();
        let signals = stats.iter().map(|(name, count)| ([name], count));
        text.values(&metric::EVENTS, signals);
        let (runs, replays) = (stats.count("won"), stats.count("replayed"));
        text.value(&metric::REPLAY_RATIO, ratio(replays, runs + replays));
        text.value(&metric::IN_FLIGHT, engine.in_flight());
        text.value(&metric::WAITERS, engine.waiters());
        text.value(&metric::IN_DOUBT_KEYS, self.in_doubt.load(Ordering::Relaxed));
        text.value(&metric::STORE_UP, self.store_up.load(Ordering::Relaxed));
        write_servers(&mut text);
        if let Some(redis) = self.redis.get() {
            text.value(&metric::STORE_LOST_DATA, u8::from(redis.has_lost_data()));
        }
        if let Some(limits) = self.limits.get() {
            write_limits(&mut text, limits);
        }
        if let Some((gateway, capacity)) = self.gateway.get() {
            let answers = gateway.iter().map(|(outcome, count)| ([outcome], count));
            text.values(&metric::REQUESTS, answers);
            text.value(&metric::ROTATED_CREDENTIALS, gateway.rotated_credentials());
            write_capacity(&mut text, capacity);
        }
        self.held.write(&mut text, &metric::EFFECT_SECONDS);
        self.waited.write(&mut text, &metric::WAIT_SECONDS);
        self.claims.write(&mut text, CLAIMS, &metric::CLAIMS);
        self.admin.write(&mut text, CLASSES, &metric::ADMIN_REQUESTS);
        text.value(&metric::CONSOLE_STREAMS, consoles);
        self.logins.write(&mut text, LOGINS, &metric::LOGINS_REFUSED);
        self.reloads.write(&mut text, RELOADS, &metric::RELOADS);
        if let Some(pipeline) = pipeline {
            self.deliveries.write(&mut text, pipeline);
            intake::write(&mut text, &pipeline.intake);
            intake::write_run_waiters(&mut text, &pipeline.waiters);
        }
        if let Some((budget, gateway)) = self.descriptors.get() {
            text.value(&metric::PROCESS_MAX_FDS, budget.limit);
            if let Some(open) = descriptors::open() {
                text.value(&metric::PROCESS_OPEN_FDS, open);
            }
            let limits = [(["admin"], Some(budget.admin)), (["gateway"], *gateway)];
            let limits = limits.into_iter().filter_map(|(listener, limit)| Some((listener, limit?)));
            text.values(&metric::CONNECTIONS_MAX, limits);
            let closed = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let (admin, at_gateway) = (closed(&self.closed_by_admin), closed(&self.closed_by_gateway));
            let counts = [(["admin"], Some(admin)), (["gateway"], gateway.map(|_| at_gateway))];
            let counts = counts.into_iter().filter_map(|(listener, count)| Some((listener, count?)));
            text.values(&metric::CONNECTIONS_CLOSED, counts);
        }
        process::write(&mut text);
        text.value(&metric::LOG_LINES_DROPPED, logs::dropped());
        if let Some(exporter) = self.exporter.get() {
            text.value(&metric::SPANS_DROPPED, exporter.dropped());
        }
        text.values(&metric::BUILD_INFO, [([env!("CARGO_PKG_VERSION")], 1)]);
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
    text.value(&metric::GATEWAY_CALLS, capacity.calls_in_flight());
    let refused = capacity.calls_refused().into_iter().map(|(limit, count)| ([limit], count));
    text.values(&metric::GATEWAY_CALLS_REFUSED, refused);
    text.value(&metric::GATEWAY_BYTES, capacity.buffered_bytes());
    text.value(&metric::GATEWAY_BODIES_REFUSED, capacity.bodies_refused());
}

/// The servers and folders of stores, ledgers, buffers and sources.
fn write_servers(text: &mut MetricsText) {
    // The operator chooses their names.
    let servers: Vec<_> = outage::servers()
        .into_iter()
        .map(|server| (server.name.replace(['"', '\\', '\n'], "_"), server))
        .collect();
    let available = servers.iter().map(|(name, server)| ([name.as_str()], u8::from(server.is_available)));
    text.values(&metric::STORE_AVAILABLE, available);
    let outages = servers.iter().map(|(name, server)| ([name.as_str()], server.outages));
    text.values(&metric::OUTAGES, outages);
    let lengths = servers.iter().map(|(name, server)| ([name.as_str()], server.length.as_secs_f64()));
    text.values(&metric::OUTAGE_SECONDS, lengths);
}

fn write_limits(text: &mut MetricsText, limits: &LimitedStore) {
    if let Some(bytes) = limits.bytes() {
        text.value(&metric::STORE_BYTES, bytes);
    }
    if let Some(most) = limits.limits().max_bytes {
        text.value(&metric::STORE_MAX_BYTES, most);
        text.value(&metric::STORE_FULL, u8::from(limits.is_full()));
    }
    let refused = [(["bytes"], limits.refused_for_bytes()), (["rate"], limits.refused_for_rate())];
    text.values(&metric::NEW_KEYS_REFUSED, refused);
}

fn ratio(part: u64, whole: u64) -> f64 {
    // Exact up to 2^52 calls, which is enough for a ratio.
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
