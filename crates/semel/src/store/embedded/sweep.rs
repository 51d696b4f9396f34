//! Removes expired records, a few rows at a time, so that claims never wait for a sweep.

use super::job::WriteTransaction;
use super::table::{self, RowError};
use crate::key::KeyId;
use crate::record::{Record, Sweep};
use crate::store::Swept;
use crate::time::Timestamp;

/// The most rows a sweep changes in one transaction.
pub(super) const STEP: usize = 64;

/// The most free pages that a step returns to the file system.
const GIVE_BACK: i64 = 64;

/// The position of a damaged row that a sweep skips: it must not block the sweep of the others.
pub(super) type Cursor = Option<(i64, i64)>;

/// The result of a step, and where the next one continues.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) swept: Swept,
    pub(super) looked_at: usize,
    pub(super) cursor: Cursor,
}

/// Sweeps up to `limit` rows that are due.
pub(super) fn step(
    writing: &mut WriteTransaction<'_>,
    limit: usize,
    cursor: Cursor,
) -> Result<Step, RowError> {
    let now = writing.now();
    let mut step = Step { cursor, ..Step::default() };
    let due = due(writing, now, limit, &mut step)?;
    let highest = due.iter().filter(|due| due.record.sweep(now) == Sweep::Remove);
    if let Some(fence) = highest.map(|due| due.record.fence).max() {
        writing.raise_floor(fence)?;
    }
    for Due { number, id, record } in due {
        match record.sweep(now) {
            Sweep::Keep => {}
            Sweep::Shrink(shrunk) => {
                table::replace(writing.transaction(), number, id, &shrunk)?;
                step.swept.shrunk += 1;
            }
            Sweep::Remove => {
                table::remove(writing.transaction(), number)?;
                step.swept.removed += 1;
            }
        }
    }
    if step.looked_at < limit {
        step.cursor = None;
        give_back(writing)?;
    } else {
        step.swept.more = true;
    }
    Ok(step)
}

struct Due {
    number: i64,
    id: KeyId,
    record: Record,
}

fn due(
    writing: &WriteTransaction<'_>,
    now: Timestamp,
    limit: usize,
    step: &mut Step,
) -> Result<Vec<Due>, RowError> {
    let mut statement = writing.transaction().prepare_cached(
        "SELECT id, number, sum, record, sweep_at FROM records INDEXED BY records_to_sweep
         WHERE sweep_at <= ?1 AND (sweep_at, number) > (?2, ?3) ORDER BY sweep_at, number LIMIT ?4",
    )?;
    let (at, number) = step.cursor.unwrap_or((i64::MIN, i64::MIN));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = statement.query((table::micros(now), at, number, limit))?;
    let mut due = Vec::new();
    while let Some(row) = rows.next()? {
        step.looked_at += 1;
        let number = row.get(1)?;
        let read = table::key_id(row).and_then(|id| Ok((id, table::read_record(id.as_bytes(), row, 2)?)));
        match read {
            Ok((id, record)) => due.push(Due { number, id, record }),
            Err(RowError::Damaged(bad)) => {
                tracing::error!(row = %bad, "the sweep met a damaged row and left it");
                step.cursor = Some((row.get(4)?, number));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(due)
}

/// Returns a few free pages to the file system.
fn give_back(writing: &WriteTransaction<'_>) -> Result<(), RowError> {
    let free: i64 =
        writing.transaction().prepare_cached("PRAGMA freelist_count")?.query_row([], |row| row.get(0))?;
    if free > GIVE_BACK {
        let mut statement = writing.transaction().prepare_cached("PRAGMA incremental_vacuum(64)")?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
    }
    Ok(())
}
