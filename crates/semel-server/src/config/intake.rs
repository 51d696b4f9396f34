//! Intake: streams (`[[source]]`), and the gate for triggers (`[gate]`).

use std::time::Duration;

use semel_triggers::gate::{GateMode, Limit};

use super::problem::Problems;
use super::reader::Table;
use super::secrets::{self, Environment};
use super::values::{choice, count, duration, text};

/// Streams and the gate.
#[derive(Clone, Debug, Default)]
pub(crate) struct IntakeConfig {
    pub(crate) sources: Vec<SourceConfig>,
    pub(crate) gate: GateConfig,
}

/// A stream of events.
#[derive(Clone)]
pub(crate) struct SourceConfig {
    /// It may contain a password.
    pub(crate) url: String,
    pub(crate) stream: String,
    pub(crate) group: String,
    pub(crate) at_once: usize,
    pub(crate) min_idle: Duration,
    pub(crate) ca: Option<Vec<u8>>,
}

impl std::fmt::Debug for SourceConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL is only compared when the config is reloaded, and never shown.
        let url = blake3::hash(self.url.as_bytes());
        let Self { stream, group, at_once, min_idle, .. } = self;
        f.debug_struct("Source").field("url", &url).field("of", &(stream, group, at_once, min_idle)).finish()
    }
}

/// The gate for triggers, and its buffer.
#[derive(Clone)]
pub(crate) struct GateConfig {
    pub(crate) mode: GateMode,
    pub(crate) tenant: Limit,
    pub(crate) global: Option<Limit>,
    /// The Redis server of the buffer. The URL may contain a password.
    pub(crate) buffer: Option<String>,
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) prefix: String,
    /// Maximum number of buffered runs per tenant.
    pub(crate) capacity: u64,
    /// How long a trigger waits for another one with the same key.
    pub(crate) wait: Duration,
    /// How long a claim on a key is valid without a heartbeat.
    pub(crate) lease: Duration,
    /// Number of replicas of the buffer's Redis that must have a run before it is answered with 202.
    pub(crate) require_replicas: usize,
    pub(crate) drainers: usize,
    pub(crate) batch: u32,
    pub(crate) rest: Duration,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            mode: GateMode::Off,
            tenant: Limit::default(),
            global: None,
            buffer: None,
            ca: None,
            prefix: "semel:burst".to_owned(),
            capacity: 100_000,
            wait: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            require_replicas: 0,
            drainers: 2,
            batch: 100,
            rest: Duration::ZERO,
        }
    }
}

impl std::fmt::Debug for GateConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let buffer = self.buffer.as_ref().map(|url| blake3::hash(url.as_bytes()));
        let Self { mode, tenant, global, prefix, capacity, require_replicas, .. } = self;
        let Self { wait, lease, drainers, batch, rest, .. } = self;
        let limits = (mode, tenant, global, prefix, capacity, require_replicas);
        f.debug_struct("Gate")
            .field("buffer", &buffer)
            .field("limits", &limits)
            .field("pace", &(wait, lease, drainers, batch, rest))
            .finish()
    }
}

impl IntakeConfig {
    /// Reads both. `ledger` says whether there is a ledger, which they need.
    pub(super) fn read(root: &mut Table<'_>, ledger: bool, environment: &Environment<'_>) -> Self {
        let problems = root.problems();
        let sources = sources(root, environment);
        if !ledger && !sources.is_empty() {
            problems.whole(
                "[[source]] needs a ledger, which a memory or Redis store cannot contain: set `url` in [ledger] to \
                 embedded:PATH or postgres://…"
                    .to_owned(),
            );
        }
        Self { sources, gate: GateConfig::read(root, environment) }
    }

    /// The settings that a reload cannot change, in a form that is only compared.
    pub(super) fn fixed(&self) -> String {
        format!("{self:?}")
    }
}

/// Maximum duration of a claim on a trigger's key, and so of a wait for it.
const LONGEST_CLAIM: Duration = Duration::from_secs(60);

/// Maximum number of runs that a drainer moves in a turn: one transaction of the ledger, and one script that blocks Redis
/// for some milliseconds.
const MAX_BATCH: u64 = 1_000;

/// A Redis URL, as a string or as a secret.
fn redis_url(table: &mut Table<'_>, key: &'static str, environment: &Environment<'_>) -> Option<String> {
    let (url, span) = secrets::read_url(table, key, environment)?;
    match url.split_once("://") {
        Some((
            "redis" | "rediss" | "redis-cluster" | "rediss-cluster" | "redis-sentinel" | "rediss-sentinel",
            _,
        )) => Some(url),
        _ => {
            table.problems().at(
                &span,
                format!("{key}: expected redis://…, rediss://…, redis-cluster://… or redis-sentinel://…"),
            );
            None
        }
    }
}

fn ca(table: &mut Table<'_>, problems: &Problems<'_>) -> Option<Vec<u8>> {
    let path = table.located("ca", text)?;
    match std::fs::read(&path.value) {
        Ok(pem) => Some(pem),
        Err(error) => {
            problems.at(&path.span, format!("ca: cannot read {}: {error}", path.value));
            None
        }
    }
}

fn sources(root: &mut Table<'_>, environment: &Environment<'_>) -> Vec<SourceConfig> {
    let problems = root.problems();
    let mut sources: Vec<SourceConfig> = Vec::new();
    for mut table in root.tables("source") {
        let kind = table.need("kind", choice(&[("redis-stream", ())]));
        let url = redis_url(&mut table, "url", environment);
        if url.is_none() && !table.has("url") {
            table.need("url", text);
        }
        let stream = table.need_located("stream", text);
        let group = table.get("group", text).unwrap_or_else(|| "semel".to_owned());
        let at_once = table.get("at_once", count(1, 10_000)).unwrap_or(500);
        let min_idle = table.get("min_idle", duration).unwrap_or(Duration::from_secs(30));
        let ca = ca(&mut table, problems);
        table.done();
        let (Some(()), Some(url), Some(stream)) = (kind, url, stream) else { continue };
        if sources
            .iter()
            .any(|known| (&known.url, &known.stream, &known.group) == (&url, &stream.value, &group))
        {
            problems.at(&stream.span, "stream: this stream and group are configured twice");
        }
        sources.push(SourceConfig { url, stream: stream.value, group, at_once, min_idle, ca });
    }
    sources
}

impl GateConfig {
    fn read(root: &mut Table<'_>, environment: &Environment<'_>) -> Self {
        let problems = root.problems();
        let mut gate = Self::default();
        let Some(mut table) = root.table("gate") else { return gate };
        let modes = [("off", GateMode::Off), ("shadow", GateMode::Shadow), ("on", GateMode::On)];
        let mode = table.located("mode", choice(&modes));
        gate.tenant = limit(&mut table, gate.tenant);
        gate.buffer = redis_url(&mut table, "buffer", environment);
        gate.ca = ca(&mut table, problems);
        gate.prefix = table.get("prefix", text).unwrap_or(gate.prefix);
        gate.capacity = table.get("capacity", count(1, 100_000_000)).unwrap_or(gate.capacity);
        for (name, setting) in [("wait", &mut gate.wait), ("lease", &mut gate.lease)] {
            let Some(given) = table.located(name, duration) else { continue };
            match given.value {
                Duration::ZERO if name == "lease" => problems.at(&given.span, "lease: expected more than 0s"),
                value if value > LONGEST_CLAIM => problems.at(
                    &given.span,
                    format!(
                        "{name}: expected at most {}s, the maximum duration of a claim on a key",
                        LONGEST_CLAIM.as_secs()
                    ),
                ),
                value => *setting = value,
            }
        }
        gate.require_replicas = table.get("require_replicas", count(0, 100)).unwrap_or_default();
        gate.drainers = table.get("drainers", count(0, 64)).unwrap_or(gate.drainers);
        gate.batch = table.get("batch", count(1, MAX_BATCH)).unwrap_or(gate.batch);
        gate.rest = table.get("rest", duration).unwrap_or(gate.rest);
        if let Some(mut global) = table.table("global") {
            gate.global = Some(limit(&mut global, Limit { threshold: 1000, ..Limit::default() }));
            global.done();
        }
        if let Some(mode) = mode {
            gate.mode = mode.value;
            if mode.value != GateMode::Off && gate.buffer.is_none() {
                problems.at(&mode.span, "mode: a gate needs a `buffer`, such as \"redis://127.0.0.1:6379\"");
            }
        }
        table.done();
        gate
    }
}

fn limit(table: &mut Table<'_>, usual: Limit) -> Limit {
    Limit {
        threshold: table.get("threshold", count(0, u64::from(u32::MAX))).unwrap_or(usual.threshold),
        window: table.get("window", duration).unwrap_or(usual.window),
        hold: table.get("hold", duration).unwrap_or(usual.hold),
    }
}
