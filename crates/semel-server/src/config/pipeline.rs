//! Events and deliveries: the ledger, its limits, and the targets.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use super::reader::Table;
use super::records::{Records, StoreUrl};
use super::secrets::{self, Environment};
use super::targets::{self, TargetConfig};
use super::values::{count, duration, size, text};

/// Maximum of `run_wait`: every waiter costs memory and a connection.
const LONGEST_RUN_WAIT: Duration = Duration::from_secs(3600);

/// The settings of the pipeline.
#[derive(Clone, Debug)]
pub(crate) struct PipelineConfig {
    /// Where the ledger is; `None` if there is none.
    pub(crate) ledger: Option<LedgerPlace>,
    /// True if the file has a `[ledger]`. Otherwise the ledger is in the store, if the store supports it.
    pub(crate) is_asked_for: bool,
    /// How long ended events are stored.
    pub(crate) retention: Duration,
    /// How long lines of the audit log are stored.
    pub(crate) audit_retention: Duration,
    /// How long a delivery stays with its worker without a heartbeat.
    pub(crate) lease: Duration,
    /// Maximum number of deliveries in progress.
    pub(crate) in_all: u32,
    /// Maximum size of a payload.
    pub(crate) max_payload: usize,
    /// How long a caller may wait for a run to end.
    pub(crate) run_wait: Duration,
    /// Maximum number of callers that wait for runs.
    pub(crate) run_waiters: usize,
    pub(crate) targets: Vec<TargetConfig>,
}

/// Where the ledger is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum LedgerPlace {
    /// In the store's own file or database.
    Store,
    /// In a folder of its own.
    Embedded(PathBuf),
    /// In a database of its own.
    Postgres {
        /// It may contain a password.
        url: String,
        schema: String,
    },
}

impl std::fmt::Debug for LedgerPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store => f.write_str("Store"),
            Self::Embedded(folder) => f.debug_tuple("Embedded").field(folder).finish(),
            // The URL is only compared when the config is reloaded, and never shown.
            Self::Postgres { url, schema } => f
                .debug_struct("Postgres")
                .field("schema", schema)
                .field("url", &blake3::hash(url.as_bytes()))
                .finish(),
        }
    }
}

impl PipelineConfig {
    pub(super) fn read(root: &mut Table<'_>, records: &Records, environment: &Environment<'_>) -> Self {
        let problems = root.problems();
        let is_asked_for = root.has("ledger");
        let mut table = root.table("ledger").unwrap_or_else(|| Table::empty("[ledger]", problems));
        let url = secrets::read_url(&mut table, "url", environment);
        let schema = table.located("schema", text);
        let retention = table.get("retention", duration).unwrap_or(Duration::from_secs(7 * 24 * 60 * 60));
        let audit_retention =
            table.get("audit_retention", duration).unwrap_or(Duration::from_secs(365 * 24 * 60 * 60));
        let lease = table.located("lease", duration);
        table.done();
        if let Some(lease) = lease.as_ref().filter(|lease| lease.value < Duration::from_millis(100)) {
            problems.at(&lease.span, "lease: expected at least \"100ms\": it has to survive a heartbeat");
        }
        let ledger = match url {
            Some((url, span)) => place(&url, &span, schema.map(|found| found.value), problems),
            None => {
                if let Some(schema) = &schema {
                    problems.at(&schema.span, "schema: goes with a postgres:// url in [ledger]");
                }
                matches!(records.place, StoreUrl::Embedded { .. } | StoreUrl::Postgres { .. })
                    .then_some(LedgerPlace::Store)
            }
        };
        let mut limits = root.table("limits").unwrap_or_else(|| Table::empty("[limits]", problems));
        let payload = limits.located("payload", size);
        let in_all = limits.get("deliveries", count(1, 100_000)).unwrap_or(256);
        let crashes = limits.get("crashes", count(1, 1_000)).unwrap_or(5);
        let run_wait = limits.located("run_wait", duration);
        let run_waiters = limits.get("run_waiters", count(1, 100_000)).unwrap_or(256);
        limits.done();
        if let Some(wait) =
            run_wait.as_ref().filter(|wait| wait.value.is_zero() || wait.value > LONGEST_RUN_WAIT)
        {
            problems.at(&wait.span, "run_wait: expected a duration above 0s and at most \"1h\"");
        }
        if let Some(payload) = payload.as_ref().filter(|payload| !(1..=1 << 30).contains(&payload.value)) {
            problems.at(&payload.span, "payload: expected a size from \"1B\" to \"1GiB\"");
        }
        let targets = targets::read(root, crashes, environment);
        if ledger.is_none() && !targets.is_empty() {
            problems.whole(
                "[[target]] needs a ledger, which a memory or Redis store cannot contain: set `url` in [ledger] to \
                 embedded:PATH or postgres://…"
                    .to_owned(),
            );
        }
        Self {
            ledger,
            is_asked_for,
            retention,
            audit_retention,
            lease: lease.map_or(Duration::from_secs(30), |lease| lease.value),
            in_all,
            max_payload: payload.map_or(1 << 20, |payload| payload.value),
            run_wait: run_wait.map_or(Duration::from_secs(300), |wait| wait.value),
            run_waiters,
            targets,
        }
    }

    /// The settings that a reload cannot change, in a form that is only compared.
    pub(super) fn fixed(&self) -> String {
        let limits = (self.in_all, self.max_payload, self.run_wait, self.run_waiters);
        format!("{:?}", (&self.ledger, self.retention, self.audit_retention, self.lease, limits))
    }
}

fn place(
    url: &str,
    span: &Range<usize>,
    schema: Option<String>,
    problems: &super::problem::Problems<'_>,
) -> Option<LedgerPlace> {
    match url.split_once(':') {
        Some(("embedded", folder)) if !folder.is_empty() && schema.is_none() => {
            Some(LedgerPlace::Embedded(folder.into()))
        }
        Some(("postgres" | "postgresql", _)) => Some(LedgerPlace::Postgres {
            url: url.to_owned(),
            schema: schema.unwrap_or_else(|| "semel".to_owned()),
        }),
        Some(("embedded", folder)) if !folder.is_empty() => {
            problems.at(span, "url: an embedded ledger has no schema");
            None
        }
        _ => {
            problems.at(span, "url: expected embedded:PATH or postgres://USER:PASSWORD@HOST:PORT/DATABASE");
            None
        }
    }
}
