//! Reading and filling a PostgreSQL store, and its state in the table `meta`.

use std::collections::BTreeSet;
use std::sync::Arc;

use semel_postgres::{PostgresError, PostgresErrorKind};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::PostgresStore;
use super::columns::{Swap, SwapColumns};
use super::row::{self, PgRowError};
use super::secret;
use super::shared::StoreShared;
use super::sweep::raise_floor;
use crate::key::KeyId;
use crate::record::{Command, DecodeError, Fence, Record, Ruling};
use crate::secret::Secret;
use crate::store::transfer::{
    BATCH, RecordWalk, ScanWalk, TransferRun, TransferSource, TransferState, TransferStore, not_filled,
};
use crate::store::{BoxFuture, Error, MarkId};
use crate::time::{Timestamp, instant};

impl StoreShared {
    /// Reads whether the store grants claims, and remembers it.
    pub(super) async fn read_transfer(&self) -> Result<TransferState, PostgresError> {
        let asked = instant();
        let rows = self.fetch(self.settings.query(&self.settings.statements.read_transfer)).await?;
        let stored = rows.first().map(|row| row.try_get::<Vec<u8>, _>(0)).transpose();
        let stored = stored.map_err(|error| self.settings.explain(&error))?;
        self.transfer
            .saw(stored.as_deref(), asked, &self.settings.target)
            .map_err(|error| PostgresError::new(PostgresErrorKind::Incompatible, error.to_string()))
    }

    async fn change_transfer(
        &self,
        seen: &TransferState,
        next: &TransferState,
    ) -> Result<bool, PostgresError> {
        let query = self.settings.query(&self.settings.statements.change_transfer);
        let query = query.bind(seen.to_stored().into_bytes()).bind(next.to_stored().into_bytes());
        let is_changed = !self.fetch(query).await?.is_empty();
        self.read_transfer().await?;
        Ok(is_changed)
    }

    /// The keys of records that were not written; `None` if the store is not being filled by `run`.
    async fn import(
        &self,
        run: TransferRun,
        records: Vec<(KeyId, Record)>,
    ) -> Result<Option<Vec<KeyId>>, PostgresError> {
        let state = self.read_transfer().await?;
        if !state.is_filled_by(run) {
            return Ok(None);
        }
        let mut ahead: BTreeSet<KeyId> = records.iter().map(|(id, _)| *id).collect();
        let mut columns = SwapColumns::default();
        for (id, record) in records {
            columns.push(&Swap {
                id,
                seen: 0,
                judged_until: Timestamp::default(),
                version: rand::random(),
                record,
                wake: false,
                invalidate: false,
            });
        }
        let query = columns.bind(self.settings.query(&self.settings.statements.import));
        let rows = self.fetch(query.bind(state.to_stored().into_bytes())).await?;
        // A row for each record, and one that says that the store is being filled.
        let mut is_filling = false;
        for row in &rows {
            match row::id(row) {
                Ok(id) => drop(ahead.remove(&id)),
                Err(_) => is_filling = true,
            }
        }
        Ok(is_filling.then(|| ahead.into_iter().collect()))
    }

    async fn numbers(&self) -> Result<(Timestamp, Fence), PostgresError> {
        let rows = self.fetch(self.settings.query(&self.settings.statements.clock_and_floor)).await?;
        let read = rows.first().ok_or(sqlx::Error::RowNotFound);
        let read = read.and_then(|row| Ok((row.try_get::<i64, _>(0)?, row.try_get::<i64, _>(1)?)));
        let (now, floor) = read.map_err(|error| self.settings.explain(&error))?;
        let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
        Ok((Timestamp::from_micros(unsigned(now)), Fence::new(unsigned(floor))))
    }

    async fn open_transactions(&self) -> Result<BTreeSet<String>, PostgresError> {
        let rows = self.fetch(self.settings.query(&self.settings.statements.open_transactions)).await?;
        let names: Result<BTreeSet<String>, _> = rows.iter().map(|row| row.try_get(0)).collect();
        names.map_err(|error| self.settings.explain(&error))
    }

    async fn marks(&self) -> Result<Vec<(MarkId, u64)>, PostgresError> {
        let mut marks: Vec<(MarkId, u64)> = Vec::new();
        loop {
            let after = marks.last().map(|(mark, _)| mark.as_bytes().to_vec()).unwrap_or_default();
            let query = self.settings.query(&self.settings.statements.list_marks);
            let limit = i64::try_from(BATCH).unwrap_or(i64::MAX);
            let rows = self.fetch(query.bind(after).bind(limit)).await?;
            if rows.is_empty() {
                return Ok(marks);
            }
            for row in &rows {
                marks.push(read_mark(row).map_err(|error| self.settings.explain_row(&error))?);
            }
        }
    }
}

fn read_mark(row: &PgRow) -> Result<(MarkId, u64), PgRowError> {
    let (id, value): (&[u8], i64) = (row.try_get(0)?, row.try_get(1)?);
    let id = id.try_into().map_err(|_| DecodeError::Damaged("mark"))?;
    Ok((MarkId::from_bytes(id), u64::try_from(value).unwrap_or(0)))
}

impl PostgresStore {
    /// Checks that a claim or a begin mark counts, now that it was written. See [`crate::store::transfer`].
    pub(super) async fn confirm_open(&self, id: KeyId, ruling: Ruling) -> Result<Ruling, Error> {
        let shared = Arc::clone(&self.shared);
        let read = self.run_on_thread(async move { shared.read_transfer().await }).await;
        let refusal = match read {
            Ok(state) => state.refusal(self),
            Err(error) => Some(error),
        };
        let Some(refusal) = refusal else { return Ok(ruling) };
        if let Ruling::Won(win) = ruling {
            // If it fails, the claim expires with its lease.
            let _ = self.run_in_lane(&self.writes, id, Command::Release(win.grant)).await;
        }
        Err(refusal)
    }
}

impl TransferSource for PostgresStore {
    fn address(&self) -> String {
        format!("{self} (schema {})", self.shared.settings.schema.name())
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move { shared.numbers().await.map(|(now, _)| now) }))
    }

    fn state(&self) -> BoxFuture<'_, Result<TransferState, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move { shared.read_transfer().await }))
    }

    fn stored_secret(&self) -> BoxFuture<'_, Result<Option<Secret>, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move { secret::stored(&shared).await }))
    }

    fn fence_floor(&self) -> BoxFuture<'_, Result<Fence, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move { shared.numbers().await.map(|(_, floor)| floor) }))
    }

    fn marks(&self) -> BoxFuture<'_, Result<Vec<(MarkId, u64)>, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move { shared.marks().await }))
    }

    fn open_transactions(&self) -> BoxFuture<'_, Result<BTreeSet<String>, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move { shared.open_transactions().await }))
    }

    fn records(&self) -> Box<dyn RecordWalk + '_> {
        Box::new(ScanWalk::new(self))
    }
}

impl TransferStore for PostgresStore {
    fn import(
        &self,
        run: TransferRun,
        records: Vec<(KeyId, Record)>,
    ) -> BoxFuture<'_, Result<Vec<KeyId>, Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let ahead = self.run_on_thread(async move { shared.import(run, records).await }).await?;
            ahead.ok_or_else(|| not_filled(&self.address()))
        })
    }

    fn raise_fence_floor(&self, floor: Fence) -> BoxFuture<'_, Result<(), Error>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(self.run_on_thread(async move {
            let raise = async |connection: &mut PgConnection| {
                let raised: Result<(), PgRowError> = async {
                    let begin = AssertSqlSafe(shared.settings.begin.clone());
                    let mut transaction = connection.begin_with(begin).await?;
                    raise_floor(&shared, &mut transaction, floor).await?;
                    Ok(transaction.commit().await?)
                }
                .await;
                raised.map_err(|error| shared.settings.explain_row(&error))
            };
            shared.on_side(raise).await
        }))
    }

    fn change_state<'a>(
        &'a self,
        seen: &'a TransferState,
        next: &'a TransferState,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        let (shared, seen, next) = (Arc::clone(&self.shared), seen.clone(), next.clone());
        Box::pin(self.run_on_thread(async move { shared.change_transfer(&seen, &next).await }))
    }
}
