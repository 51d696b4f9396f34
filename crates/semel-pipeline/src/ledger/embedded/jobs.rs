//! Replay jobs: making them, looking at them, and what people want of them.

use semel::store::rusqlite::{self, Connection, OptionalExtension as _, params};

use super::EmbeddedLedger;
use super::columns::{Columns, json, micros};
use super::page::{Listing, cursor, position};
use super::plan::plan;
use super::work::{Done, Work, not_found, refused};
use crate::id::{DeliveryId, EventId, EventKind, JobId, LetterId};
use crate::ledger::rules::{check_job, check_pace};
use crate::ledger::{Answer, AuditLine, Page, Paged, Replays};
use crate::replay::{
    Action, Counts, Item, ItemState, Job, JobState, Mode, NewJob, Order, Pace, Planned, Selection,
};

impl Replays for EmbeddedLedger {
    fn plan(&self, selection: Selection, mode: Mode, targets: Vec<String>) -> Answer<'_, Vec<Planned>> {
        Box::pin(async move { self.read(|connection| plan(connection, &selection, mode, &targets)) })
    }

    fn create(&self, job: NewJob, targets: Vec<String>) -> Answer<'_, Job> {
        Box::pin(self.write(move |work, _| work.create(&job, &targets)))
    }

    fn job(&self, id: JobId) -> Answer<'_, Option<Job>> {
        Box::pin(async move { self.read(|connection| Ok(find(connection, id)?)) })
    }

    fn jobs(&self, page: Page) -> Answer<'_, Paged<Job>> {
        Box::pin(async move { self.read(|connection| jobs(connection, &page)) })
    }

    fn items(&self, job: JobId, page: Page) -> Answer<'_, Paged<Item>> {
        Box::pin(async move { self.read(|connection| items(connection, job, &page)) })
    }

    fn running(&self) -> Answer<'_, Vec<JobId>> {
        Box::pin(async move {
            self.read(|connection| {
                let mut statement = connection
                    .prepare_cached("SELECT id FROM ledger_jobs WHERE state = 'running' ORDER BY number")?;
                let found = statement.query_map([], |row| row.get(0).map(JobId::from_bytes))?;
                Ok(found.collect::<rusqlite::Result<_>>()?)
            })
        })
    }

    fn order(&self, job: JobId, order: Order, note: String, line: AuditLine) -> Answer<'_, Job> {
        Box::pin(self.write(move |work, _| work.order(job, order, &note, &line)))
    }

    fn release(&self, job: JobId, limit: u32) -> Answer<'_, Job> {
        Box::pin(self.write(move |work, _| work.release(job, None, limit)))
    }

    fn release_after(&self, job: JobId, started: u64, limit: u32) -> Answer<'_, Job> {
        Box::pin(self.write(move |work, _| work.release(job, Some(started), limit)))
    }
}

const JOB: &str = "number, id, selection, mode, reason, asked_by, rate, concurrency, canary, pause_above, state, note, total, pending, released, replayed, skipped_completed, skipped_inflight, failed_again, cancelled, created_at, updated_at FROM ledger_jobs";

fn read_job(row: &rusqlite::Row<'_>) -> rusqlite::Result<(i64, Job)> {
    let mut columns = Columns::of(row);
    let number = columns.get()?;
    let new = NewJob {
        id: JobId::from_bytes(columns.get()?),
        selection: columns.json()?,
        mode: columns.name(Mode::from_name)?,
        reason: columns.get()?,
        by: columns.get()?,
        pace: Pace {
            rate: columns.get()?,
            concurrency: columns.get()?,
            canary: columns.get()?,
            pause_above: columns.get()?,
        },
    };
    let (state, note) = (columns.name(JobState::from_name)?, columns.get()?);
    let counts = Counts {
        total: columns.count()?,
        pending: columns.count()?,
        released: columns.count()?,
        replayed: columns.count()?,
        skipped_completed: columns.count()?,
        skipped_inflight: columns.count()?,
        failed_again: columns.count()?,
        cancelled: columns.count()?,
    };
    let job = Job { new, state, note, counts, created_at: columns.time()?, updated_at: columns.time()? };
    Ok((number, job))
}

pub(super) fn find(connection: &Connection, id: JobId) -> rusqlite::Result<Option<Job>> {
    connection
        .prepare_cached(&format!("SELECT {JOB} WHERE id = ?1"))?
        .query_row([id.to_bytes()], |row| read_job(row).map(|(_, job)| job))
        .optional()
}

fn jobs(connection: &Connection, page: &Page) -> Done<Paged<Job>> {
    let mut statement = connection
        .prepare_cached(&format!("SELECT {JOB} WHERE number < ?1 ORDER BY number DESC LIMIT ?2"))?;
    let mut listing = Listing::of(page);
    for row in statement.query_map(params![position(page)?, listing.exactly()], read_job)? {
        let (number, job) = row?;
        if !listing.look(number, Some(job)) {
            break;
        }
    }
    Ok(listing.end())
}

/// An item with its place.
pub(super) fn read_item(row: &rusqlite::Row<'_>) -> rusqlite::Result<(i64, Item)> {
    let mut columns = Columns::of(row);
    let position = columns.get()?;
    let delivery = DeliveryId::from_bytes(columns.get()?);
    let letter = columns.get::<Option<[u8; 16]>>()?.map(LetterId::from_bytes);
    let kind: EventKind = columns.name(EventKind::from_name)?;
    let event = EventId::from_bytes(kind, columns.get()?);
    let (target, state) = (columns.get()?, columns.name(ItemState::from_name)?);
    // A new event is of the kind of the one that it repeats.
    let new_event = columns.get::<Option<[u8; 16]>>()?.map(|id| EventId::from_bytes(kind, id));
    Ok((position, Item { delivery, letter, event, target, state, new_event, error: columns.get()? }))
}

pub(super) const ITEM: &str =
    "position, delivery, letter, kind, event, target, state, new_event, error FROM ledger_items";

fn items(connection: &Connection, job: JobId, page: &Page) -> Done<Paged<Item>> {
    let state = find(connection, job)?.ok_or_else(|| not_found("replay job", job))?.state;
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {ITEM} WHERE job = ?3 AND position > ?1 ORDER BY position LIMIT ?2"
    ))?;
    let mut listing = Listing::of(page);
    let after = cursor(page)?.unwrap_or(-1);
    for row in statement.query_map(params![after, listing.exactly(), job.to_bytes()], read_item)? {
        let (position, mut item) = row?;
        // Cancelling a job is one row, however many items it leaves.
        if state == JobState::Cancelled && item.state == ItemState::Pending {
            item.state = ItemState::Cancelled;
        }
        if !listing.look(position, Some(item)) {
            break;
        }
    }
    Ok(listing.end())
}

impl Work<'_> {
    /// A job that must be there.
    pub(super) fn job(&self, id: JobId) -> Done<Job> {
        find(self.sql, id)?.ok_or_else(|| not_found("replay job", id))
    }

    fn create(&self, job: &NewJob, targets: &[String]) -> Done<Job> {
        if let Some(there) = find(self.sql, job.id)? {
            return Ok(there);
        }
        check_job(job).map_err(refused)?;
        let planned = plan(self.sql, &job.selection, job.mode, targets)?;
        let mut counts = Counts::default();
        let mut statement = self.sql.prepare_cached(
            "INSERT INTO ledger_items (job, position, delivery, letter, event, kind, target, state, error)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?;
        for (position, item) in (0_i64..).zip(&planned) {
            let (state, error) = match item.action {
                Action::Run => (ItemState::Pending, None),
                Action::Skip => (ItemState::SkippedCompleted, None),
                Action::Conflict => (ItemState::SkippedInflight, Some(&item.why)),
            };
            counts.total += 1;
            *counts.of(state) += 1;
            statement.execute(params![
                job.id.to_bytes(),
                position,
                item.delivery.to_bytes(),
                item.letter.map(LetterId::to_bytes),
                item.event.to_bytes(),
                item.event.kind().as_str(),
                item.target,
                state.as_str(),
                error,
            ])?;
        }
        self.add_job(job, counts)?;
        self.end_job_if_over(job.id)?;
        self.job(job.id)
    }

    fn add_job(&self, job: &NewJob, counts: Counts) -> rusqlite::Result<()> {
        let Pace { rate, concurrency, canary, pause_above } = job.pace;
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.sql
            .prepare_cached(
                "INSERT INTO ledger_jobs (id, selection, mode, reason, asked_by, rate, concurrency, canary, pause_above,
                        state, note, total, pending, released, replayed, skipped_completed, skipped_inflight,
                        failed_again, cancelled, created_at, updated_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, '', ?11, ?12, 0, 0, ?13, ?14, 0, 0, ?15, ?15)",
            )?
            .execute(params![
                job.id.to_bytes(),
                json(&job.selection),
                job.mode.as_str(),
                job.reason,
                job.by,
                rate,
                concurrency,
                canary,
                pause_above,
                JobState::Running.as_str(),
                number(counts.total),
                number(counts.pending),
                number(counts.skipped_completed),
                number(counts.skipped_inflight),
                micros(self.now),
            ])
            .map(drop)
    }

    fn order(&self, id: JobId, order: Order, note: &str, line: &AuditLine) -> Done<Job> {
        let job = self.job(id)?;
        let state = match (job.state, order) {
            (JobState::Cancelled, Order::Cancel) => return Ok(job),
            (state, _) if state.is_over() => {
                return Err(refused(format!("{id} is {}: make another job", state.as_str())));
            }
            (_, Order::Cancel) => JobState::Cancelled,
            (_, Order::Pause) => JobState::Paused,
            (_, Order::Resume) => JobState::Running,
            (state, Order::Pace(pace)) => {
                check_pace(&pace).map_err(refused)?;
                self.sql
                    .prepare_cached(
                        "UPDATE ledger_jobs SET rate = ?2, concurrency = ?3, canary = ?4, pause_above = ?5 WHERE id = ?1",
                    )?
                    .execute(params![id.to_bytes(), pace.rate, pace.concurrency, pace.canary, pace.pause_above])?;
                state
            }
        };
        self.sql
            .prepare_cached("UPDATE ledger_jobs SET state = ?2, note = ?3, updated_at = ?4 WHERE id = ?1")?
            .execute(params![id.to_bytes(), state.as_str(), note, micros(self.now)])?;
        if state == JobState::Cancelled {
            self.sql
                .prepare_cached(
                    "UPDATE ledger_jobs SET cancelled = cancelled + pending, pending = 0 WHERE id = ?1",
                )?
                .execute([id.to_bytes()])?;
        }
        self.audit(line)?;
        self.job(id)
    }
}
