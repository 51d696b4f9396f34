//! The store of the records.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use semel::record::Terms;
use semel::store::{AsyncCommit, NewKeyRate, OnCorruption, Pooling, StoreLimits};
use semel_http::profile::StoreLoss;

use super::problem::Problems;
use super::reader::{Located, Table};
use super::sealing::Sealing;
use super::values::{choice, count, duration, size, text};
use super::{Environment, GatewayConfig, secrets};
use crate::cli::ServeArgs;

/// The store, and the engine's limits.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    pub(crate) place: StoreUrl,
    /// Timeout for a server of the store.
    pub(crate) timeout: Option<Duration>,
    /// Maximum size of done records in the cache of this process.
    pub(crate) hot_cache: u64,
    pub(crate) waiters: Waiters,
    /// Maximum size of a stored outcome.
    pub(crate) max_outcome: usize,
    /// Limits on the new keys of all callers.
    pub(crate) limits: StoreLimits,
}

/// Maximum number of waiting callers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiters {
    pub(crate) per_key: usize,
    pub(crate) per_scope: usize,
    pub(crate) in_all: usize,
}

/// A store, by its URL.
#[derive(Clone, Debug)]
pub(crate) enum StoreUrl {
    Memory,
    Embedded {
        folder: PathBuf,
        on_corruption: OnCorruption,
    },
    Redis {
        url: String,
        prefix: String,
        ca: Option<Vec<u8>>,
        require_replicas: usize,
        on_store_loss: Loss,
        /// The longest retention: new claims are refused for this time after a loss of data.
        retention: Duration,
    },
    Postgres {
        url: String,
        schema: String,
        pooling: Pooling,
        async_commit: AsyncCommit,
        connections: u32,
        coordinate: Option<Coordinate>,
    },
}

/// A Redis in front of PostgreSQL.
#[derive(Clone, Debug)]
pub(crate) struct Coordinate {
    pub(crate) url: String,
    pub(crate) prefix: String,
    pub(crate) ca: Option<Vec<u8>>,
}

/// What to do when a Redis server has lost data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    Alarm,
    /// Grant no new claims for one retention.
    Refuse,
}

const DEFAULT: &str = "embedded:./semel-data";
/// What the URL of a store looks like.
pub(crate) const EXPECTED_STORES: &str = "expected memory:, embedded:PATH, redis://HOST:PORT, rediss://…, redis-cluster://…, \
                        redis-sentinel://…/NAME or postgres://USER:PASSWORD@HOST:PORT/DATABASE";
const REDIS: [&str; 8] = [
    "redis",
    "rediss",
    "redis-cluster",
    "rediss-cluster",
    "redis-sentinel",
    "rediss-sentinel",
    "redis+unix",
    "unix",
];

/// Settings of particular stores, with their positions.
struct Extras {
    prefix: Option<Located<String>>,
    ca: Option<Located<Vec<u8>>>,
    require_replicas: Option<Located<usize>>,
    on_store_loss: Option<Located<Loss>>,
    schema: Option<Located<String>>,
    pooling: Option<Located<Pooling>>,
    async_commit: Option<Located<AsyncCommit>>,
    connections: Option<Located<u32>>,
    on_corruption: Option<Located<OnCorruption>>,
}

impl Records {
    pub(super) fn read(
        root: &mut Table<'_>,
        args: &ServeArgs,
        environment: &Environment<'_>,
        gateway: Option<&GatewayConfig>,
    ) -> (Self, Option<Sealing>) {
        let problems = root.problems();
        let mut table = root.table("store").unwrap_or_else(|| Table::empty("[store]", problems));
        let url = url(&mut table, "url", ("--store", args.store.as_deref()), environment);
        let url = url.unwrap_or_else(|| Url { text: DEFAULT.to_owned(), from: From::Default });
        let coordinate = url_of_redis(&mut table, ("--coordinate", args.coordinate.as_deref()), environment);
        let file = |value: &toml::de::DeValue<'_>| {
            let path = text(value)?;
            std::fs::read(&path).map_err(|error| format!("{path}: {error}"))
        };
        let extras = Extras {
            prefix: table.located("prefix", text),
            ca: table.located("ca", file),
            require_replicas: table.located("require_replicas", count(0, 100)),
            on_store_loss: table
                .located("on_store_loss", choice(&[("alarm", Loss::Alarm), ("refuse", Loss::Refuse)])),
            schema: table.located("schema", text),
            pooling: table.located(
                "pooling",
                choice(&[("direct", Pooling::Direct), ("transaction", Pooling::Transaction)]),
            ),
            async_commit: table.located(
                "async_commit",
                choice(&[("refuse", AsyncCommit::Refuse), ("accept", AsyncCommit::Accept)]),
            ),
            connections: table.located("connections", count(1, 1_000)),
            on_corruption: table.located(
                "on_corruption",
                choice(&[("refuse", OnCorruption::Refuse), ("quarantine", OnCorruption::Quarantine)]),
            ),
        };
        let timeout = table.get("timeout", duration);
        let hot_cache = table.get("hot_cache", size).unwrap_or(16 << 20);
        let max_outcome = table.get("max_outcome", size).unwrap_or(1 << 20);
        let waiters = Waiters {
            per_key: table.get("waiters_per_key", count(1, 1_000_000)).unwrap_or(10_000),
            per_scope: table.get("waiters_per_scope", count(1, 1_000_000)).unwrap_or(20_000),
            in_all: table.get("waiters", count(1, 10_000_000)).unwrap_or(50_000),
        };
        let max_bytes = table.get("max_bytes", size);
        let new_keys = new_keys(&mut table);
        let sealing = Sealing::read(&mut table, environment);
        table.done();
        let place = place(&url, coordinate, extras, gateway, problems);
        let max_bytes = max_bytes.unwrap_or_else(|| usual_max_bytes(&place));
        let limits = StoreLimits { max_bytes: (max_bytes > 0).then_some(max_bytes), new_keys };
        (Self { place, timeout, hot_cache, waiters, max_outcome, limits }, sealing)
    }
}

/// A URL and its origin.
struct Url {
    text: String,
    from: From,
}

enum From {
    File(Range<usize>),
    Flag(&'static str),
    Default,
}

impl Url {
    fn scheme(&self) -> &str {
        self.text.split_once(':').map_or("", |(scheme, _)| scheme)
    }

    /// Reports a mistake in it. The URL may contain a password and is not repeated.
    fn refuse(&self, problems: &Problems<'_>, key: &str, why: &str) {
        match &self.from {
            From::File(span) => problems.at(span, format!("{key}: {why}")),
            From::Flag(flag) => problems.flag(flag, why),
            From::Default => problems.whole(format!("{key}: {why}")),
        }
    }
}

/// A URL from the flag, else from the file: a string, or a secret if it contains a password.
fn url(
    table: &mut Table<'_>,
    key: &'static str,
    (flag, given): (&'static str, Option<&str>),
    environment: &Environment<'_>,
) -> Option<Url> {
    let written = secrets::read_url(table, key, environment);
    let written = written.map(|(text, span)| Url { text, from: From::File(span) });
    given.map(|given| Url { text: given.to_owned(), from: From::Flag(flag) }).or(written)
}

fn url_of_redis(
    table: &mut Table<'_>,
    flag: (&'static str, Option<&str>),
    environment: &Environment<'_>,
) -> Option<Url> {
    let url = url(table, "coordinate", flag, environment)?;
    if REDIS.contains(&url.scheme()) {
        return Some(url);
    }
    url.refuse(table.problems(), "coordinate", "expected the URL of a Redis, as in redis://127.0.0.1:6379");
    None
}

/// A setting that was given, and its position.
fn position<T>(key: &'static str, found: &Option<Located<T>>) -> Option<(&'static str, Range<usize>)> {
    found.as_ref().map(|found| (key, found.span.clone()))
}

/// The store of the URL. A setting that this store does not have is a mistake.
fn place(
    url: &Url,
    coordinate: Option<Url>,
    extras: Extras,
    gateway: Option<&GatewayConfig>,
    problems: &Problems<'_>,
) -> StoreUrl {
    let scheme = url.scheme();
    let is_postgres = matches!(scheme, "postgres" | "postgresql");
    let is_redis = REDIS.contains(&scheme);
    let misplaced = |setting: Option<(&'static str, Range<usize>)>, only: &str| {
        if let Some((key, span)) = setting {
            problems.at(&span, format!("{key}: is a setting of {only}; this store is {scheme}"));
        }
    };
    if !is_redis {
        misplaced(position("require_replicas", &extras.require_replicas), "Redis stores");
        misplaced(position("on_store_loss", &extras.on_store_loss), "Redis stores");
        if coordinate.is_none() {
            misplaced(position("prefix", &extras.prefix), "Redis stores");
            misplaced(position("ca", &extras.ca), "Redis stores");
        }
    }
    if !is_postgres {
        misplaced(position("schema", &extras.schema), "PostgreSQL stores");
        misplaced(position("pooling", &extras.pooling), "PostgreSQL stores");
        misplaced(position("async_commit", &extras.async_commit), "PostgreSQL stores");
        misplaced(position("connections", &extras.connections), "PostgreSQL stores");
        if let Some(coordinate) = &coordinate {
            let why = "goes with a postgres:// store only: Redis then stands in front of PostgreSQL";
            coordinate.refuse(problems, "coordinate", why);
        }
    }
    if scheme != "embedded" {
        misplaced(position("on_corruption", &extras.on_corruption), "embedded stores");
    }
    let prefix = extras.prefix.map_or_else(|| "semel".to_owned(), |found| found.value);
    let ca = extras.ca.map(|found| found.value);
    match scheme {
        "memory" if url.text == "memory:" => StoreUrl::Memory,
        "embedded" if url.text.len() > "embedded:".len() => StoreUrl::Embedded {
            folder: url.text["embedded:".len()..].into(),
            on_corruption: extras.on_corruption.map(|found| found.value).unwrap_or_default(),
        },
        _ if is_redis => StoreUrl::Redis {
            url: url.text.clone(),
            prefix,
            ca,
            require_replicas: extras.require_replicas.map_or(0, |found| found.value),
            on_store_loss: extras.on_store_loss.map_or_else(|| usual_loss(gateway), |found| found.value),
            retention: gateway.map_or(Terms::default().retention, GatewayConfig::longest_retention),
        },
        _ if is_postgres => StoreUrl::Postgres {
            url: url.text.clone(),
            schema: extras.schema.map_or_else(|| "semel".to_owned(), |found| found.value),
            pooling: extras.pooling.map(|found| found.value).unwrap_or_default(),
            async_commit: extras.async_commit.map(|found| found.value).unwrap_or_default(),
            connections: extras.connections.map_or(4, |found| found.value),
            coordinate: coordinate.map(|url| Coordinate { url: url.text, prefix, ca }),
        },
        _ => {
            url.refuse(problems, "url", EXPECTED_STORES);
            StoreUrl::Memory
        }
    }
}

/// The rate limit on new keys of all callers. A client can invent principals, so limits per principal are not enough.
fn new_keys(table: &mut Table<'_>) -> Option<NewKeyRate> {
    let most = u64::from(u32::MAX);
    let per_second: u32 = table.get("new_keys_per_second", count(0, most)).unwrap_or(10_000);
    let burst = table.get("new_keys_burst", count(1, most)).unwrap_or(per_second.saturating_mul(2));
    (per_second > 0).then_some(NewKeyRate { per_second, burst })
}

/// Default of the maximum size of a store. A database server has limits of its own.
fn usual_max_bytes(place: &StoreUrl) -> u64 {
    match place {
        StoreUrl::Memory => 256 << 20,
        StoreUrl::Embedded { .. } => 8 << 30,
        StoreUrl::Redis { .. } | StoreUrl::Postgres { .. } => 0,
    }
}

/// Default of the profile after a loss of data.
fn usual_loss(gateway: Option<&GatewayConfig>) -> Loss {
    match gateway.map(|gateway| gateway.profile.store_loss) {
        Some(StoreLoss::Refuse) => Loss::Refuse,
        Some(StoreLoss::Alarm) | None => Loss::Alarm,
    }
}
