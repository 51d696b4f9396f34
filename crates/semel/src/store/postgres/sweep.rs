//! Removes expired records, a bounded number of rows in each short transaction.

use semel_postgres::PostgresError;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::columns::moment;
use super::row::{self, PgRowError, Stored};
use super::shared::StoreShared;
use crate::key::KeyId;
use crate::record::{Fence, Sweep};
use crate::store::Swept;

/// Rows in one transaction: short enough that no other statement waits for them.
const STEP: usize = 500;

pub(super) async fn sweep(shared: &StoreShared, limit: usize) -> Result<Swept, PostgresError> {
    // Processes that crashed.
    shared.fetch(shared.settings.query(&shared.settings.statements.tidy)).await?;
    let mut swept = Swept::default();
    let mut left = limit;
    while left > 0 {
        let asked = left.min(STEP);
        let (found, step) = shared
            .on_side(async |connection| {
                let step = step(shared, connection, asked).await;
                step.map_err(|error| shared.settings.explain_row(&error))
            })
            .await?;
        swept.shrunk += step.shrunk;
        swept.removed += step.removed;
        if found < asked {
            return Ok(swept);
        }
        left -= found;
    }
    let rows = shared.fetch(shared.settings.query(&shared.settings.statements.more_due)).await?;
    swept.more = match rows.first() {
        Some(row) => row.try_get(0).map_err(|error| shared.settings.explain(&error))?,
        None => false,
    };
    Ok(swept)
}

async fn step(
    shared: &StoreShared,
    connection: &mut PgConnection,
    limit: usize,
) -> Result<(usize, Swept), PgRowError> {
    let statements = &shared.settings.statements;
    let mut transaction = connection.begin_with(AssertSqlSafe(shared.settings.begin.clone())).await?;
    let rows = shared
        .settings
        .query(&statements.due)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&mut *transaction)
        .await?;
    let (mut removed, mut shrunk) = (Vec::new(), Vec::new());
    for row in &rows {
        let (id, stored) = (row::id(row)?, row::stored(row)?);
        match stored.record.sweep(stored.now) {
            Sweep::Keep => {}
            Sweep::Shrink(record) => shrunk.push((id, Stored { record, ..stored })),
            Sweep::Remove => removed.push((id, stored)),
        }
    }
    let swept = Swept { shrunk: shrunk.len(), removed: removed.len(), more: false };
    if let Some(highest) = removed.iter().map(|(_, stored)| stored.record.fence).max() {
        raise_floor(shared, &mut transaction, highest).await?;
        let (ids, versions) = columns(&removed);
        shared.settings.query(&statements.remove).bind(ids).bind(versions).execute(&mut *transaction).await?;
    }
    if !shrunk.is_empty() {
        let (ids, versions) = columns(&shrunk);
        let fresh: Vec<i64> = shrunk.iter().map(|_| rand::random()).collect();
        let sweep_at: Vec<Option<i64>> =
            shrunk.iter().map(|(_, stored)| stored.record.sweep_at().map(moment)).collect();
        shared
            .settings
            .query(&statements.shrink)
            .bind(ids)
            .bind(versions)
            .bind(fresh)
            .bind(sweep_at)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok((rows.len(), swept))
}

fn columns(rows: &[(KeyId, Stored)]) -> (Vec<&[u8]>, Vec<i64>) {
    rows.iter().map(|(id, stored)| (id.as_bytes().as_slice(), stored.version)).unzip()
}

/// Must be called before the rows are removed. A sequence is raised immediately, whatever the result of the
/// transaction, and its position in the log is before the removal's: no crash preserves the removal and loses the
/// floor.
pub(super) async fn raise_floor(
    shared: &StoreShared,
    transaction: &mut PgConnection,
    floor: Fence,
) -> Result<(), PgRowError> {
    let statements = &shared.settings.statements;
    shared.settings.query(&statements.guard_floor).execute(&mut *transaction).await?;
    shared
        .settings
        .query(&statements.raise_floor)
        .bind(i64::try_from(floor.get()).unwrap_or(i64::MAX))
        .execute(transaction)
        .await?;
    Ok(())
}
