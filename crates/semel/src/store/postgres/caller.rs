//! Commands inside the caller's transaction: the record and the caller's rows commit together.

use std::sync::Arc;

use sqlx::PgConnection;

use super::PostgresStore;
use super::columns::{Swap, SwapColumns};
use super::row::{self, PgRowError, Stored};
use crate::key::KeyId;
use crate::record::{self, Command, Fence, Ruling};
use crate::store::Error;
use crate::time::Timestamp;

impl PostgresStore {
    /// Executes a command on a record inside an open transaction, and locks the record until that ends. `None` if the
    /// transaction does not see the record.
    pub(crate) async fn apply_in(
        &self,
        transaction: &mut PgConnection,
        id: KeyId,
        command: &Command,
    ) -> Result<Option<Ruling>, Error> {
        let settings = Arc::clone(&self.shared.settings);
        let explain = |error: PgRowError| Error::from(settings.explain_row(&error));
        let Some(Stored { record, version, now, .. }) =
            self.lock_record(transaction, id).await.map_err(explain)?
        else {
            return Ok(None);
        };
        let mut changed = Some(record.clone());
        let ruling = record::apply(&mut changed, command, now, Fence::default());
        // The read has already locked it: an unchanged record needs no write.
        if let (Ruling::Won(_) | Ruling::Accepted { .. }, Some(changed)) = (&ruling, changed)
            && changed != record
        {
            let swap = Swap {
                id,
                seen: version,
                // It is locked, so no other process can judge it meanwhile.
                judged_until: Timestamp::from_micros(i64::MAX as u64),
                version: rand::random(),
                record: changed,
                wake: super::StoreShared::wakes_waiters(command),
                invalidate: false,
            };
            let mut columns = SwapColumns::default();
            columns.push(&swap);
            let query = columns
                .bind(settings.query(&settings.statements.swap))
                .bind(self.shared.channel())
                .bind(self.shared.name());
            let rows = query.fetch_all(transaction).await.map_err(|error| explain(error.into()))?;
            if rows.len() != 1 {
                return Ok(Some(Ruling::Lost { winner: None }));
            }
        }
        Ok(Some(ruling))
    }

    async fn lock_record(
        &self,
        transaction: &mut PgConnection,
        id: KeyId,
    ) -> Result<Option<Stored>, PgRowError> {
        let query =
            self.shared.settings.query(&self.shared.settings.statements.lock).bind(id.as_bytes().as_slice());
        let row = query.fetch_optional(transaction).await?;
        row.as_ref().map(row::stored).transpose()
    }

    /// Translates the error of Semel's statement in the caller's transaction.
    pub(crate) fn explain(&self, error: &sqlx::Error) -> Error {
        self.shared.settings.explain(error).into()
    }
}
