//! The data that a store in front of this one needs: which copies of outcomes are still valid.
//!
//! The row `copies` of `meta` contains the id of this database's records (`bytes`) and the generation of copies
//! (`number`). Every forget and re-execute begins a new generation in its own transaction, in every process, with or
//! without copies. Without a store in front there is no row and no cost.

use semel_postgres::PostgresError;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::row::PgRowError;
use super::shared::StoreShared;
use crate::record::DecodeError;
use crate::store::{Error, Wakeups};
use crate::time::Timestamp;

/// Grows with every forget and re-execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) struct CopyGeneration(pub(in crate::store) i64);

/// The state of copies at a time of the server's clock.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Copies {
    /// Identifies the records of this database.
    pub(in crate::store) store: [u8; 16],
    pub(in crate::store) generation: CopyGeneration,
    pub(in crate::store) now: Timestamp,
}

impl PostgresStore {
    /// Reads the generation of copies; the first call creates it.
    pub(in crate::store) async fn copies(&self) -> Result<Copies, Error> {
        let shared = std::sync::Arc::clone(&self.shared);
        self.run_on_thread(async move {
            let read = async || {
                let query = shared.settings.query(&shared.settings.statements.read_copies);
                first(&shared.fetch(query).await?)
            };
            let found = match read().await {
                Ok(None) => {
                    keep(&shared).await?;
                    read().await
                }
                found => found,
            };
            require_copies(&shared, found)
        })
        .await
    }

    /// Begins a new generation: every existing copy becomes outdated.
    pub(in crate::store) async fn begin_generation(&self) -> Result<Copies, Error> {
        let shared = std::sync::Arc::clone(&self.shared);
        self.run_on_thread(async move {
            keep(&shared).await?;
            let query = shared.settings.query(&shared.settings.statements.renew_copies);
            let rows = shared.fetch(query).await?;
            require_copies(&shared, first(&rows))
        })
        .await
    }

    /// The waiters of this store, for another source of change notifications.
    pub(in crate::store) fn wakeups(&self) -> Wakeups {
        self.shared.wakeups.clone()
    }
}

async fn keep(shared: &StoreShared) -> Result<(), PostgresError> {
    let id: [u8; 16] = rand::random();
    let query = shared.settings.query(&shared.settings.statements.keep_copies);
    shared.fetch(query.bind(id.as_slice())).await.map(drop)
}

fn first(rows: &[PgRow]) -> Result<Option<Copies>, PgRowError> {
    let Some(row) = rows.first() else { return Ok(None) };
    let store: &[u8] = row.try_get(1)?;
    Ok(Some(Copies {
        store: store.try_into().map_err(|_| DecodeError::Damaged("copies"))?,
        generation: CopyGeneration(row.try_get(0)?),
        now: Timestamp::from_micros(u64::try_from(row.try_get::<i64, _>(2)?).unwrap_or(0)),
    }))
}

fn require_copies(
    shared: &StoreShared,
    found: Result<Option<Copies>, PgRowError>,
) -> Result<Copies, PostgresError> {
    let found = found.map_err(|error| explain(shared, &error))?;
    found.ok_or_else(|| explain(shared, &sqlx::Error::RowNotFound.into()))
}

fn explain(shared: &StoreShared, error: &PgRowError) -> PostgresError {
    shared.settings.explain_row(error)
}
