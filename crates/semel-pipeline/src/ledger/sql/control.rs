//! Pausing targets, and retrying their deliveries at once.

use super::reading::audit;
use super::writing::Writing;
use super::{Columns, Database, FromRow};
use crate::id::DeliveryId;
use crate::ledger::{AuditLine, Error, TargetPause};

/// The columns of a pause.
macro_rules! pauses {
    ($which:literal) => {
        concat!("SELECT target, paused_at, who, reason FROM ledger_pause ", $which)
    };
}

const PAUSES: &str = pauses!("ORDER BY target");

/// `$1` target.
const PAUSE_OF: &str = pauses!("WHERE target = $1");

/// How often a pause is tried while others resume the target.
const TRIES: usize = 5;

/// `$1` target.
const RESUME: &str = "DELETE FROM ledger_pause WHERE target = $1";

impl FromRow for TargetPause {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        Ok(Self {
            target: columns.text()?,
            since: columns.time()?,
            by: columns.text()?,
            reason: columns.text()?,
        })
    }
}

pub(crate) async fn paused<D: Database>(db: &mut D) -> Result<Vec<TargetPause>, D::Fault> {
    db.rows(PAUSES, &[]).await
}

async fn find<D: Database>(db: &mut D, target: &str) -> Result<Option<TargetPause>, D::Fault> {
    db.first(PAUSE_OF, &[target.into()]).await
}

pub(crate) async fn pause<D: Writing>(
    db: &mut D,
    target: &str,
    line: &AuditLine,
) -> Result<TargetPause, D::Fault> {
    D::check_text("the name of a target", target)?;
    let with = [target.into(), line.who.as_str().into(), line.reason.as_str().into()];
    for _ in 0..TRIES {
        if db.run(D::SQL.pause, &with).await? > 0 {
            audit(db, line).await?;
        }
        if let Some(pause) = find(db, target).await? {
            return Ok(pause);
        }
        // The pause that was met has ended at the same moment, so this one is the next.
    }
    Err(Error::Stale.into())
}

pub(crate) async fn resume<D: Writing>(
    db: &mut D,
    target: &str,
    line: &AuditLine,
) -> Result<Option<TargetPause>, D::Fault> {
    D::check_text("the name of a target", target)?;
    let Some(pause) = find(db, target).await? else { return Ok(None) };
    if db.run(RESUME, &[target.into()]).await? == 0 {
        return Ok(None);
    }
    audit(db, line).await?;
    db.wake_workers();
    Ok(Some(pause))
}

pub(crate) async fn retry_now<D: Writing>(db: &mut D, deliveries: &[DeliveryId]) -> Result<u64, D::Fault> {
    db.make_due(deliveries).await
}
