//! Replay jobs: looking at them.

use super::page::{after, before, exactly};
use super::{Database, not_found};
use crate::id::JobId;
use crate::ledger::{Page, Paged};
use crate::replay::{ItemState, JobItem, JobRecord, JobState};

pub(crate) async fn find<D: Database>(db: &mut D, id: JobId) -> Result<Option<JobRecord>, D::Fault> {
    let found: Option<(i64, JobRecord)> = db.first(D::SQL.job, &[id.to_bytes().into()]).await?;
    Ok(found.map(|(_, job)| job))
}

/// A job that must be there.
pub(crate) async fn job<D: Database>(db: &mut D, id: JobId) -> Result<JobRecord, D::Fault> {
    Ok(find(db, id).await?.ok_or_else(|| not_found("replay job", id))?)
}

pub(crate) async fn jobs<D: Database>(db: &mut D, page: &Page) -> Result<Paged<JobRecord>, D::Fault> {
    let with = [before(page)?.into(), exactly(page).into()];
    db.page(D::SQL.jobs, &with, page, |number, _| number.to_string(), |_| true).await
}

pub(crate) async fn running<D: Database>(db: &mut D) -> Result<Vec<JobId>, D::Fault> {
    db.rows(D::SQL.running, &[]).await
}

pub(crate) async fn items<D: Database>(
    db: &mut D,
    id: JobId,
    page: &Page,
) -> Result<Paged<JobItem>, D::Fault> {
    let state = job(db, id).await?.state;
    let with = [id.to_bytes().into(), after(page)?.into(), exactly(page).into()];
    let mut found: Paged<JobItem> =
        db.page(D::SQL.items, &with, page, |position, _| position.to_string(), |_| true).await?;
    for item in &mut found.items {
        item.state = seen_in(state, item.state);
    }
    Ok(found)
}

/// Cancelling a job is one row, however many items it leaves.
pub(crate) fn seen_in(job: JobState, item: ItemState) -> ItemState {
    match (job, item) {
        (JobState::Cancelled, ItemState::Pending) => ItemState::Cancelled,
        (_, item) => item,
    }
}
