//! File descriptors: their limit, and how many each part may use.
//!
//! A call through the gateway needs two, one to the client and one to the upstream. If clients could take all of them, none would be
//! left for the store, or for the admin listener, whose health checks decide whether the process is restarted. So each part has a
//! share, and the listeners accept no more connections than theirs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use semel_http::proxy::ConnectionLimit;

use crate::config::{Config, LedgerPlace, StoreUrl};

/// For the process itself: standard streams, event queues of the runtimes, the listeners, logs.
const PROCESS: u64 = 24;
/// For an embedded store or ledger: writer, readers and their write-ahead log.
const EMBEDDED: u64 = 16;
/// For a store, a buffer or a stream on a server, in addition to the configured connections.
const SERVER: u64 = 8;
/// Minimum share of the admin listener, the gateway and the deliveries.
const LEAST: u64 = 8;
/// Maximum share of the admin listener.
const MOST_ADMIN: u64 = 1_024;
/// A limit of this size counts as unlimited.
const UNLIMITED: u64 = 1 << 30;

/// The shares.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorBudget {
    /// The limit of the process.
    pub(crate) limit: u64,
    /// Connections of the admin listener.
    pub(crate) admin: u32,
    /// Connections of the gateway's clients. Calls to its upstreams get the same number.
    pub(crate) gateway: u32,
    /// Idle connections to all upstreams.
    idle: u32,
    /// All connections to upstreams. HTTP/2 streams make calls without connections of their own, so the limit on client connections is
    /// not enough.
    upstreams: ConnectionLimit,
    /// Deliveries in progress.
    pub(crate) deliveries: u32,
}

/// Raises the soft limit to the hard one, and returns the resulting limit.
pub(crate) fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err() {
        // Some systems report an infinite hard limit and then refuse it.
        return current.unwrap_or(UNLIMITED);
    }
    maximum.unwrap_or(UNLIMITED)
}

impl DescriptorBudget {
    /// Divides the limit among the parts that a config starts.
    pub(crate) fn new(limit: u64, config: &Config) -> Self {
        let rest = limit.saturating_sub(reserved(config));
        let admin = (rest / 8).clamp(LEAST, MOST_ADMIN);
        let rest = rest.saturating_sub(admin);
        let delivers = !config.pipeline.targets.is_empty();
        let deliveries = match (delivers, config.gateway.is_some()) {
            (false, _) => 0,
            (true, true) => (rest / 4).clamp(LEAST, u64::from(config.pipeline.in_all).max(LEAST)),
            (true, false) => rest.max(LEAST),
        };
        let rest = rest.saturating_sub(deliveries);
        let as_u32 = |number| u32::try_from(number).unwrap_or(u32::MAX);
        let (gateway, idle) = match &config.gateway {
            Some(_) => ((rest / 5 * 2).max(LEAST), rest / 5),
            None => (0, 0),
        };
        let upstreams = usize::try_from(gateway + idle).unwrap_or(usize::MAX);
        Self {
            limit,
            admin: as_u32(admin),
            gateway: as_u32(gateway),
            idle: as_u32(idle),
            upstreams: ConnectionLimit::new(upstreams),
            deliveries: as_u32(deliveries),
        }
    }

    /// Lowers limits of a config that would need more.
    pub(crate) fn apply(&self, config: &mut Config) {
        if let Some(gateway) = &mut config.gateway {
            gateway.limits.connections = self.gateway_connections(gateway.limits.connections);
            let upstreams = u32::try_from(gateway.upstreams.len()).unwrap_or(u32::MAX).saturating_add(1);
            let idle = usize::try_from(self.idle / upstreams).unwrap_or(usize::MAX).max(1);
            gateway.proxy.idle_connections = gateway.proxy.idle_connections.min(idle);
            gateway.proxy.connections = Some(self.upstreams.clone());
            // A call without a connection to its upstream would wait for one, and then fail.
            let calls = usize::try_from(self.gateway).unwrap_or(usize::MAX).max(1);
            gateway.capacity.calls = gateway.capacity.calls.min(calls);
        }
        config.pipeline.in_all = self.deliveries_at_once(config.pipeline.in_all);
    }

    /// The effective number of client connections: as configured, or lower if the limit requires it.
    fn gateway_connections(&self, configured: u32) -> u32 {
        configured.min(self.gateway)
    }

    /// The effective number of deliveries in progress.
    fn deliveries_at_once(&self, configured: u32) -> u32 {
        if self.deliveries == 0 { configured } else { configured.min(self.deliveries) }
    }

    /// Warnings about configured values that the limit is too low for.
    pub(crate) fn warnings(&self, config: &Config) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut warn = |what: &str, configured: u32, allowed: u32| {
            if allowed < configured {
                warnings.push(format!(
                    "the process may open {} files, which is enough for {allowed} {what} and not for {configured}: raise \
                     the hard limit (LimitNOFILE in systemd, --ulimit nofile in Docker, ulimit -Hn in a shell)",
                    self.limit
                ));
            }
        };
        if let Some(gateway) = &config.gateway {
            let configured = gateway.limits.connections;
            warn("client connections", configured, self.gateway_connections(configured));
        }
        let configured = config.pipeline.in_all;
        warn("concurrent deliveries", configured, self.deliveries_at_once(configured));
        warnings
    }
}

/// The descriptors that neither the listeners nor the deliveries may use.
fn reserved(config: &Config) -> u64 {
    let store = match &config.records.place {
        StoreUrl::Memory => 0,
        StoreUrl::Embedded { .. } => EMBEDDED,
        StoreUrl::Redis { .. } => SERVER,
        StoreUrl::Postgres { connections, coordinate, .. } => {
            let redis = if coordinate.is_some() { SERVER } else { 0 };
            u64::from(*connections) + SERVER + redis
        }
    };
    let ledger = match &config.pipeline.ledger {
        None => 0,
        Some(LedgerPlace::Store | LedgerPlace::Embedded(_)) => EMBEDDED,
        Some(LedgerPlace::Postgres { .. }) => 2 * SERVER,
    };
    let buffer = if config.intake.gate.buffer.is_some() { 2 * SERVER } else { 0 };
    let sources = u64::try_from(config.intake.sources.len()).unwrap_or(u64::MAX).saturating_mul(SERVER);
    PROCESS.saturating_add(store + ledger + buffer).saturating_add(sources)
}

/// Number of open descriptors; `None` if the system does not report it.
pub(crate) fn open() -> Option<usize> {
    std::fs::read_dir("/proc/self/fd").ok().map(Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ServeArgs;
    use crate::config::Environment;

    fn config(text: &str) -> Config {
        Config::parse("semel.toml", text, &ServeArgs::default(), &Environment(&|_| None)).unwrap()
    }

    #[test]
    fn shares_stay_within_the_limit() {
        let gateway = "[gateway]\nupstream = \"http://127.0.0.1:1\"\n";
        let target = "[[target]]\nname = \"t\"\nurl = \"http://127.0.0.1:1\"\n";
        for text in [gateway.to_owned(), target.to_owned(), format!("{gateway}{target}")] {
            let config = config(&text);
            for limit in [128, 256, 1_024, 65_536, 1 << 20, UNLIMITED] {
                let budget = DescriptorBudget::new(limit, &config);
                let in_use = u64::from(budget.admin)
                    + 2 * u64::from(budget.gateway)
                    + u64::from(budget.idle)
                    + u64::from(budget.deliveries);
                assert!(in_use + reserved(&config) <= limit, "{limit}: {budget:?} for {text}");
                assert!(budget.admin >= 8, "{limit}: {budget:?}");
                assert!(config.gateway.is_none() || budget.gateway >= 8, "{limit}: {budget:?}");
            }
        }
        let enough = DescriptorBudget::new(65_536, &config(gateway));
        assert_eq!(enough.gateway_connections(10_000), 10_000);
        assert!(enough.warnings(&config(gateway)).is_empty());
        let scarce = DescriptorBudget::new(256, &config(gateway)).warnings(&config(gateway));
        assert!(
            scarce[0].contains("may open 256 files") && scarce[0].contains("not for 10000"),
            "{scarce:?}"
        );
    }
}
