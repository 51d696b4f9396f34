//! Opens the ledger that the config names.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use semel::secret::Secret;
use semel::store::EmbeddedStore;
use semel_pipeline::ledger::{EmbeddedLedger, Ledger, PostgresLedger};
use semel_pipeline::outbox;
use semel_pipeline::publish::Publication;
use semel_pipeline::target::TargetRegistry;

use crate::config::{Config, LedgerPlace, StoreUrl};

/// How often the outbox is polled without a notification.
const RELAY_EVERY: Duration = Duration::from_millis(200);

/// An open ledger.
pub(crate) enum OpenLedger {
    Embedded(Arc<EmbeddedLedger>),
    Postgres(Arc<PostgresLedger>),
}

impl OpenLedger {
    /// The ledger of either kind.
    pub(crate) fn ledger(&self) -> Arc<dyn Ledger> {
        match self {
            Self::Embedded(ledger) => Arc::clone(ledger) as Arc<dyn Ledger>,
            Self::Postgres(ledger) => Arc::clone(ledger) as Arc<dyn Ledger>,
        }
    }

    /// Moves events from the outbox of callers' transactions into the ledger, until it is dropped.
    pub(crate) async fn relay(self, secret: Secret, registry: TargetRegistry) {
        let route = move |event: &Publication| registry.current().wanting(&event.event_type);
        match self {
            Self::Embedded(ledger) => {
                outbox::embedded::EmbeddedRelay::new(ledger, secret, route).run(RELAY_EVERY).await;
            }
            Self::Postgres(ledger) => {
                outbox::postgres::PostgresRelay::new(ledger, secret, route).run(RELAY_EVERY * 5).await;
            }
        }
    }
}

/// Opens the ledger; `None` if there is none. `embedded` is the store, if that is embedded.
///
/// # Errors
/// The cause, with a hint how to fix it.
pub(crate) async fn open(
    config: &Config,
    embedded: Option<Arc<EmbeddedStore>>,
) -> anyhow::Result<Option<OpenLedger>> {
    let Some(place) = &config.pipeline.ledger else { return Ok(None) };
    let timeout = config.records.timeout.unwrap_or(Duration::from_secs(5));
    let ledger = match (place, &config.records.place, embedded) {
        (LedgerPlace::Store, _, Some(store)) => OpenLedger::Embedded(Arc::new(
            EmbeddedLedger::open(store).await.context("the ledger in the embedded store")?,
        )),
        (LedgerPlace::Store, StoreUrl::Postgres { url, schema, pooling, async_commit, .. }, None) => {
            let builder = PostgresLedger::builder(url)
                .schema(schema.clone())
                .pooling(*pooling)
                .async_commit(*async_commit)
                .timeout(timeout);
            OpenLedger::Postgres(Arc::new(
                builder.open().await.context("the ledger in the PostgreSQL store")?,
            ))
        }
        // The config puts the ledger into the store only if the store supports it.
        (LedgerPlace::Store, ..) => return Ok(None),
        // Opening the same folder twice would fail on our own lock.
        (LedgerPlace::Embedded(folder), StoreUrl::Embedded { folder: of_store, .. }, Some(store))
            if same(folder, of_store) =>
        {
            OpenLedger::Embedded(Arc::new(
                EmbeddedLedger::open(store).await.context("the ledger in the embedded store")?,
            ))
        }
        (LedgerPlace::Embedded(folder), ..) => {
            let builder = EmbeddedStore::builder(folder);
            let store = tokio::task::spawn_blocking(move || builder.open()).await?;
            let store = store.with_context(|| format!("the ledger embedded:{}", folder.display()))?;
            OpenLedger::Embedded(Arc::new(
                EmbeddedLedger::open(Arc::new(store)).await.context("the embedded ledger")?,
            ))
        }
        (LedgerPlace::Postgres { url, schema }, ..) => {
            let builder = PostgresLedger::builder(url).schema(schema.clone()).timeout(timeout);
            OpenLedger::Postgres(Arc::new(builder.open().await.context("the PostgreSQL ledger")?))
        }
    };
    Ok(Some(ledger))
}

fn same(one: &std::path::Path, other: &std::path::Path) -> bool {
    one == other || one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}
