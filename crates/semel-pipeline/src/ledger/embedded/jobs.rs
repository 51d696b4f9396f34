//! Replay jobs: making them, looking at them, and what people want of them.

use semel::store::rusqlite::{self, params};

use super::EmbeddedLedger;
use super::columns::micros;
use super::database::now;
use super::work::{Done, Work};
use crate::id::{JobId, LetterId};
use crate::ledger::sql::plan::plan;
use crate::ledger::sql::{bigint, jobs, to_json};
use crate::ledger::{Answer, AuditLine, Error, Page, Paged, Replays, rules};
use crate::replay::{
    Counts, JobItem, JobOrder, JobRecord, JobState, NewJob, Planned, ReplayMode, ReplayPace, Selection,
};

impl Replays for EmbeddedLedger {
    fn plan(&self, selection: Selection, mode: ReplayMode, targets: Vec<String>) -> Answer<'_, Vec<Planned>> {
        Box::pin(async move { self.read(|db| now(plan(db, &selection, mode, &targets))) })
    }

    fn create(&self, job: NewJob, targets: Vec<String>) -> Answer<'_, JobRecord> {
        Box::pin(self.write(move |work, _| work.create(&job, &targets)))
    }

    fn job(&self, id: JobId) -> Answer<'_, Option<JobRecord>> {
        Box::pin(async move { self.read(|db| now(jobs::find(db, id))) })
    }

    fn jobs(&self, page: Page) -> Answer<'_, Paged<JobRecord>> {
        Box::pin(async move { self.read(|db| now(jobs::jobs(db, &page))) })
    }

    fn items(&self, job: JobId, page: Page) -> Answer<'_, Paged<JobItem>> {
        Box::pin(async move { self.read(|db| now(jobs::items(db, job, &page))) })
    }

    fn running(&self) -> Answer<'_, Vec<JobId>> {
        Box::pin(async move { self.read(|db| now(jobs::running(db))) })
    }

    fn order(&self, job: JobId, order: JobOrder, note: String, line: AuditLine) -> Answer<'_, JobRecord> {
        Box::pin(self.write(move |work, _| work.order(job, order, &note, &line)))
    }

    fn release(&self, job: JobId, limit: u32) -> Answer<'_, JobRecord> {
        Box::pin(self.write(move |work, _| work.release(job, None, limit)))
    }

    fn release_after(&self, job: JobId, started: u64, limit: u32) -> Answer<'_, JobRecord> {
        Box::pin(self.write(move |work, _| work.release(job, Some(started), limit)))
    }
}

impl Work<'_> {
    /// A job that must be there.
    pub(super) fn job(&self, id: JobId) -> Done<JobRecord> {
        now(jobs::job(&mut self.reader(), id))
    }

    fn create(&self, job: &NewJob, targets: &[String]) -> Done<JobRecord> {
        if let Some(there) = now(jobs::find(&mut self.reader(), job.id))? {
            return Ok(there);
        }
        rules::check_job(job).map_err(Error::Refused)?;
        let planned = now(plan(&mut self.reader(), &job.selection, job.mode, targets))?;
        let mut counts = Counts::default();
        let mut statement = self.sql.prepare_cached(
            "INSERT INTO ledger_item (job, position, delivery, letter, event, kind, target, state, error)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?;
        for (position, item) in (0_i64..).zip(&planned) {
            let (state, error) = rules::first_state(item);
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
        let ReplayPace { rate, concurrency, canary, pause_above } = job.pace;
        self.sql
            .prepare_cached(
                "INSERT INTO ledger_job (id, selection, mode, reason, asked_by, rate, concurrency, canary, pause_above,
                        state, note, total, pending, released, replayed, skipped_completed, skipped_inflight,
                        failed_again, cancelled, created_at, updated_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, '', ?11, ?12, 0, 0, ?13, ?14, 0, 0, ?15, ?15)",
            )?
            .execute(params![
                job.id.to_bytes(),
                to_json(&job.selection),
                job.mode.as_str(),
                job.reason,
                job.by,
                rate,
                concurrency,
                canary,
                pause_above,
                JobState::Running.as_str(),
                bigint(counts.total),
                bigint(counts.pending),
                bigint(counts.skipped_completed),
                bigint(counts.skipped_inflight),
                micros(self.now),
            ])
            .map(drop)
    }

    fn order(&self, id: JobId, order: JobOrder, note: &str, line: &AuditLine) -> Done<JobRecord> {
        let job = self.job(id)?;
        let Some((state, pace)) = rules::order(&job, order)? else { return Ok(job) };
        if let Some(ReplayPace { rate, concurrency, canary, pause_above }) = pace {
            self.sql
                .prepare_cached(
                    "UPDATE ledger_job SET rate = ?2, concurrency = ?3, canary = ?4, pause_above = ?5 WHERE id = ?1",
                )?
                .execute(params![id.to_bytes(), rate, concurrency, canary, pause_above])?;
        }
        self.sql
            .prepare_cached("UPDATE ledger_job SET state = ?2, note = ?3, updated_at = ?4 WHERE id = ?1")?
            .execute(params![id.to_bytes(), state.as_str(), note, micros(self.now)])?;
        if state == JobState::Cancelled {
            self.sql
                .prepare_cached(
                    "UPDATE ledger_job SET cancelled = cancelled + pending, pending = 0 WHERE id = ?1",
                )?
                .execute([id.to_bytes()])?;
        }
        self.audit(line)?;
        self.job(id)
    }
}
