//! Opens the ledger that the config names.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use semel::store::EmbeddedStore;
use semel_pipeline::ledger::{EmbeddedLedger, Ledger, PostgresLedger};

use crate::config::{Config, LedgerPlace, Place};

/// Opens it; `None` where there is no place for one. `embedded` is the store, where that is embedded.
///
/// # Errors
/// Says what is wrong with it and what to do.
pub(crate) async fn open(
    config: &Config,
    embedded: Option<Arc<EmbeddedStore>>,
) -> anyhow::Result<Option<Arc<dyn Ledger>>> {
    let Some(place) = &config.pipeline.ledger else { return Ok(None) };
    let patience = config.records.timeout.unwrap_or(Duration::from_secs(5));
    let ledger: Arc<dyn Ledger> = match (place, &config.records.place, embedded) {
        (LedgerPlace::Store, _, Some(store)) => {
            Arc::new(EmbeddedLedger::open(store).await.context("the ledger in the embedded store")?)
        }
        (LedgerPlace::Store, Place::Postgres { url, schema, pooling, async_commit, .. }, None) => {
            let builder = PostgresLedger::builder(url)
                .schema(schema.clone())
                .pooling(*pooling)
                .async_commit(*async_commit)
                .patience(patience);
            Arc::new(builder.open().await.context("the ledger in the PostgreSQL store")?)
        }
        // The config puts it into the store only where the store can hold it.
        (LedgerPlace::Store, ..) => return Ok(None),
        // The same folder once more would be locked by ourselves.
        (LedgerPlace::Embedded(folder), Place::Embedded { folder: of_store, .. }, Some(store))
            if same(folder, of_store) =>
        {
            Arc::new(EmbeddedLedger::open(store).await.context("the ledger in the embedded store")?)
        }
        (LedgerPlace::Embedded(folder), ..) => {
            let builder = EmbeddedStore::builder(folder);
            let store = tokio::task::spawn_blocking(move || builder.open()).await?;
            let store = store.with_context(|| format!("the ledger embedded:{}", folder.display()))?;
            Arc::new(EmbeddedLedger::open(Arc::new(store)).await.context("the embedded ledger")?)
        }
        (LedgerPlace::Postgres { url, schema }, ..) => {
            let builder = PostgresLedger::builder(url).schema(schema.clone()).patience(patience);
            Arc::new(builder.open().await.context("the PostgreSQL ledger")?)
        }
    };
    Ok(Some(ledger))
}

fn same(one: &std::path::Path, other: &std::path::Path) -> bool {
    one == other || one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}
