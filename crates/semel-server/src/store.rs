//! Opens the store that the config names.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use semel::store::transfer::TransferStore;
use semel::store::{
    EmbeddedStore, LimitedStore, MemoryStore, OnStoreLoss, PostgresStore, RedisStore, Store, StoreLimits,
    TieredStore,
};

use crate::config::{Coordinate, Loss, Records, StoreUrl};

/// An open store, and warnings about it.
pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn Store>,
    /// The same store, if its records can be copied.
    transfer: Option<Arc<dyn TransferStore>>,
    /// Set for Redis: it detects a loss of data.
    pub(crate) redis: Option<Arc<RedisStore>>,
    /// Set for embedded stores: the ledger can be in the same file.
    pub(crate) embedded: Option<Arc<EmbeddedStore>>,
    /// Set if new keys are limited: directly above the store.
    pub(crate) limited: Option<Arc<LimitedStore>>,
    /// Warnings about settings that weaken a promise.
    pub(crate) warnings: Vec<String>,
}

impl OpenStore {
    fn of(store: Arc<impl TransferStore>, warnings: Vec<String>) -> Self {
        let transfer = Arc::clone(&store) as Arc<dyn TransferStore>;
        Self { store, transfer: Some(transfer), redis: None, embedded: None, limited: None, warnings }
    }
}

/// Opens it.
///
/// # Errors
/// The cause, with a hint how to fix it.
pub(crate) async fn open(records: &Records) -> anyhow::Result<OpenStore> {
    let mut opened = open_unlimited(records).await?;
    if records.limits != StoreLimits::default() {
        let limited = Arc::new(LimitedStore::over(Arc::clone(&opened.store), records.limits));
        opened.store = Arc::clone(&limited) as Arc<dyn Store>;
        opened.limited = Some(limited);
    }
    Ok(opened)
}

/// Measures the size of the store periodically, until the runtime ends.
pub(crate) async fn measure(limited: Arc<LimitedStore>, place: StoreUrl) {
    // Measuring a file or a table in memory is cheap; a server needs a query.
    let every = match place {
        StoreUrl::Memory | StoreUrl::Embedded { .. } => Duration::from_millis(200),
        StoreUrl::Redis { .. } | StoreUrl::Postgres { .. } => Duration::from_secs(3),
    };
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = limited.measure().await {
            tracing::debug!(target: "semel", %error, "cannot measure the size of the store");
        }
    }
}

/// Opens the store itself, for a copy: without limits, encryption or Redis in front of it.
///
/// # Errors
/// As [`open`].
pub(crate) async fn open_for_transfer(records: &Records) -> anyhow::Result<Arc<dyn TransferStore>> {
    let mut records = records.clone();
    if let StoreUrl::Postgres { coordinate, .. } = &mut records.place {
        *coordinate = None;
    }
    open_unlimited(&records).await?.transfer.context("this store cannot be copied")
}

async fn open_unlimited(records: &Records) -> anyhow::Result<OpenStore> {
    match &records.place {
        StoreUrl::Memory => {
            let warning = "the store is in memory: all keys are forgotten when this process ends, and a retry \
                           after that runs its effect again";
            Ok(OpenStore::of(Arc::new(MemoryStore::new()), vec![warning.to_owned()]))
        }
        StoreUrl::Embedded { folder, on_corruption } => {
            let builder = EmbeddedStore::builder(folder).on_corruption(*on_corruption);
            // Opening reads the whole file, so it must not block a thread of the runtime.
            let store = tokio::task::spawn_blocking(move || builder.open()).await?;
            let store = store.with_context(|| format!("the store embedded:{}", folder.display()))?;
            let store = Arc::new(store);
            Ok(OpenStore { embedded: Some(Arc::clone(&store)), ..OpenStore::of(store, Vec::new()) })
        }
        StoreUrl::Redis { url, prefix, ca, require_replicas, on_store_loss, retention } => {
            let loss = match on_store_loss {
                Loss::Alarm => OnStoreLoss::Alarm,
                Loss::Refuse => OnStoreLoss::Refuse(*retention),
            };
            let mut builder = RedisStore::builder(url)
                .prefix(prefix)
                .require_replicas(*require_replicas)
                .on_store_loss(loss);
            if let Some(timeout) = records.timeout {
                builder = builder.connect_timeout(timeout).response_timeout(timeout);
            }
            if let Some(ca) = ca {
                builder = builder.root_certificate(ca.clone());
            }
            let store = Arc::new(builder.connect().await.context("the Redis store")?);
            let warnings = store.warnings();
            Ok(OpenStore { redis: Some(Arc::clone(&store)), ..OpenStore::of(store, warnings) })
        }
        StoreUrl::Postgres { url, schema, pooling, async_commit, connections, coordinate } => {
            let postgres = PostgresStore::builder(url)
                .schema(schema.clone())
                .pooling(*pooling)
                .async_commit(*async_commit)
                .connections(*connections)
                .timeout(records.timeout.unwrap_or(Duration::from_secs(5)));
            let mut opened = match coordinate {
                None => {
                    let store = postgres.open().await.context("the PostgreSQL store")?;
                    OpenStore::of(Arc::new(store), Vec::new())
                }
                Some(Coordinate { url, prefix, ca }) => {
                    let mut redis = RedisStore::builder(url).prefix(prefix);
                    if let Some(ca) = ca {
                        redis = redis.root_certificate(ca.clone());
                    }
                    let tiered = TieredStore::builder(postgres, redis).open().await;
                    let tiered = tiered.context("the PostgreSQL store with Redis in front of it")?;
                    OpenStore {
                        store: Arc::new(tiered),
                        transfer: None,
                        redis: None,
                        embedded: None,
                        limited: None,
                        warnings: Vec::new(),
                    }
                }
            };
            let warnings = &mut opened.warnings;
            if *async_commit == semel::store::AsyncCommit::Accept {
                warnings.push(
                    "async_commit = \"accept\": a crash of the PostgreSQL server may lose claims that were \
                     acknowledged, and their effects may happen twice"
                        .to_owned(),
                );
            }
            if *pooling == semel::store::Pooling::Transaction {
                warnings.push(
                    "pooling = \"transaction\": waiters poll once a second instead of being woken".to_owned(),
                );
            }
            Ok(opened)
        }
    }
}
