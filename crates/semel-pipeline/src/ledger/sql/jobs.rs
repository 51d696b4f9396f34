//! Replay jobs: making them, looking at them, and what people want of them.

use super::page::{after, before};
use super::plan::plan;
use super::reading::audit;
use super::writing::Writing;
use super::{Database, Value, not_found, to_json};
use crate::id::JobId;
use crate::ledger::{AuditLine, Error, Page, Paged, rules};
use crate::replay::{ItemState, JobItem, JobOrder, JobRecord, JobState, NewJob, ReplayPace};

pub(crate) async fn find<D: Database>(db: &mut D, id: JobId) -> Result<Option<JobRecord>, D::Fault> {
    let found: Option<(i64, JobRecord)> = db.first(D::SQL.job, &[id.to_bytes().into()]).await?;
    Ok(found.map(|(_, job)| job))
}

/// A job that must be there.
pub(crate) async fn job<D: Database>(db: &mut D, id: JobId) -> Result<JobRecord, D::Fault> {
    Ok(find(db, id).await?.ok_or_else(|| not_found("replay job", id))?)
}

pub(crate) async fn jobs<D: Database>(db: &mut D, page: &Page) -> Result<Paged<JobRecord>, D::Fault> {
    db.page(D::SQL.jobs, (before(page)?.into(), &[]), page, |number, _| number.to_string()).await
}

pub(crate) async fn running<D: Database>(db: &mut D) -> Result<Vec<JobId>, D::Fault> {
    db.rows(super::RUNNING, &[]).await
}

pub(crate) async fn items<D: Database>(
    db: &mut D,
    id: JobId,
    page: &Page,
) -> Result<Paged<JobItem>, D::Fault> {
    let state = job(db, id).await?.state;
    let with = (after(page)?.into(), &[id.to_bytes().into()][..]);
    let mut found: Paged<JobItem> =
        db.page(super::ITEMS, with, page, |position, _| position.to_string()).await?;
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

/// Targets of the items that have not ended.
pub(crate) async fn unfinished_targets<D: Database>(db: &mut D, id: JobId) -> Result<Vec<String>, D::Fault> {
    if job(db, id).await?.state.is_over() {
        return Ok(Vec::new());
    }
    db.rows(D::SQL.unfinished_targets, &[id.to_bytes().into()]).await
}

/// A job that must be there; nobody else changes it until the transaction ends.
pub(crate) async fn hold<D: Database>(db: &mut D, id: JobId) -> Result<JobRecord, D::Fault> {
    if db.first::<()>(D::SQL.hold_job, &[id.to_bytes().into()]).await?.is_none() {
        // Not read either: it may be made now, and then nobody holds it.
        return Err(not_found("replay job", id).into());
    }
    // A statement of its own: it sees what the one before it waited for.
    job(db, id).await
}

/// Ends jobs whose items have all ended.
pub(crate) async fn end<D: Database>(db: &mut D, jobs: Vec<[u8; 16]>) -> Result<(), D::Fault> {
    db.run(D::SQL.end_jobs, &[Value::Ids(jobs)]).await.map(drop)
}

pub(crate) async fn create<D: Writing>(
    db: &mut D,
    new: &NewJob,
    targets: &[String],
) -> Result<JobRecord, D::Fault> {
    if let Some(there) = find(db, new.id).await? {
        return Ok(there);
    }
    rules::check_job(new).map_err(Error::Refused)?;
    let (id, selection) = (new.id.to_bytes(), to_json(&new.selection));
    let ReplayPace { rate, concurrency, canary, pause_above } = new.pace;
    let with = [
        id.into(),
        selection.as_str().into(),
        new.mode.as_str().into(),
        (&new.reason).into(),
        new.by.as_str().into(),
        rate.into(),
        i64::from(concurrency).into(),
        i64::from(canary).into(),
        pause_above.into(),
    ];
    if db.run(D::SQL.add_job, &with).await? == 0 {
        // Another process made it at the same moment.
        return job(db, new.id).await;
    }
    let planned = plan(db, &new.selection, new.mode, targets).await?;
    db.add_items(new.id, &planned).await?;
    end(db, vec![id]).await?;
    job(db, new.id).await
}

pub(crate) async fn order<D: Database>(
    db: &mut D,
    id: JobId,
    order: JobOrder,
    note: &str,
    line: &AuditLine,
) -> Result<JobRecord, D::Fault> {
    let held = hold(db, id).await?;
    let Some((state, pace)) = rules::order(&held, order)? else { return Ok(held) };
    let id_bytes = id.to_bytes();
    if let Some(ReplayPace { rate, concurrency, canary, pause_above }) = pace {
        let (concurrency, canary) = (i64::from(concurrency), i64::from(canary));
        let with = [id_bytes.into(), rate.into(), concurrency.into(), canary.into(), pause_above.into()];
        db.run(super::SET_PACE, &with).await?;
    }
    db.run(D::SQL.set_job_state, &[id_bytes.into(), state.as_str().into(), note.into()]).await?;
    audit(db, line).await?;
    job(db, id).await
}
