//! Commands inside the caller's transaction: the record and the caller's rows commit together.
//!
//! A transaction can stay open for longer than the lease of its claim, and a transfer reads only what is committed. So
//! a transaction joins before it begins: it takes a lock on the table that conflicts with nothing and that a transfer
//! can see, and then reads whether the store was moved. A transfer waits for the transactions that had joined when the
//! store was marked as moved; one that joins later is refused.
//!
//! `LOCK TABLE` takes no snapshot. A REPEATABLE READ transaction therefore reads the state as of a moment after the
//! lock, or has an older snapshot, which does not contain its claim, and is refused for that.

use std::sync::Arc;

use sqlx::{PgConnection, Row as _};

use super::PostgresStore;
use super::columns::{Swap, SwapColumns};
use super::row::{self, PgRowError, Stored};
use crate::key::KeyId;
use crate::record::{self, Command, Fence, Ruling};
use crate::store::Error;
use crate::store::transfer::TransferState;
use crate::time::Timestamp;

/// The last column of the statement that locks a record.
const STATE_COLUMN: usize = 24;

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
        let is_begin = matches!(command, Command::Begin(_));
        if is_begin {
            let join = sqlx::raw_sql(settings.statements.join.sql());
            join.execute(&mut *transaction).await.map_err(|error| explain(error.into()))?;
        }
        let Some((stored, state)) = self.lock_record(transaction, id).await.map_err(explain)? else {
            return Ok(None);
        };
        if is_begin && let Some(refusal) = TransferState::from_stored(state.as_deref())?.refusal(self) {
            return Err(refusal);
        }
        let Stored { record, version, now, .. } = stored;
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

    /// Locks and reads a record, and the state of the store.
    async fn lock_record(
        &self,
        transaction: &mut PgConnection,
        id: KeyId,
    ) -> Result<Option<(Stored, Option<Vec<u8>>)>, PgRowError> {
        let query =
            self.shared.settings.query(&self.shared.settings.statements.lock).bind(id.as_bytes().as_slice());
        let row = query.fetch_optional(transaction).await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some((row::stored(&row)?, row.try_get(STATE_COLUMN)?)))
    }

    /// Translates the error of Semel's statement in the caller's transaction.
    pub(crate) fn explain(&self, error: &sqlx::Error) -> Error {
        self.shared.settings.explain(error).into()
    }
}
