//! Replay jobs: making them, looking at them, and what people want of them.

use super::PostgresLedger;
use super::database::Db;
use super::fault::Fault;
use super::link::Shape;
use super::release;
use super::settle::END_JOBS;
use super::values::{integer, plain};
use crate::id::{JobId, LetterId};
use crate::ledger::sql::plan::plan;
use crate::ledger::sql::reading::audit;
use crate::ledger::sql::{Database as _, jobs, not_found, to_json};
use crate::ledger::{Answer, AuditLine, Error, Page, Paged, Replays, rules};
use crate::replay::{JobItem, JobOrder, JobRecord, NewJob, Planned, ReplayMode, ReplayPace, Selection};

impl Replays for PostgresLedger {
    fn plan(&self, selection: Selection, mode: ReplayMode, targets: Vec<String>) -> Answer<'_, Vec<Planned>> {
        self.call(Shape::Read, (selection, mode, targets), |db, (selection, mode, targets)| {
            Box::pin(plan(db, selection, *mode, targets))
        })
    }

    fn create(&self, job: NewJob, targets: Vec<String>) -> Answer<'_, JobRecord> {
        self.call(Shape::Transaction, (job, targets), |db, (job, targets)| Box::pin(create(db, job, targets)))
    }

    fn job(&self, id: JobId) -> Answer<'_, Option<JobRecord>> {
        self.call(Shape::Read, id, |db, id| Box::pin(jobs::find(db, *id)))
    }

    fn jobs(&self, page: Page) -> Answer<'_, Paged<JobRecord>> {
        self.call(Shape::Read, page, |db, page| Box::pin(jobs::jobs(db, page)))
    }

    fn items(&self, job: JobId, page: Page) -> Answer<'_, Paged<JobItem>> {
        self.call(Shape::Read, (job, page), |db, (job, page)| Box::pin(jobs::items(db, *job, page)))
    }

    fn running(&self) -> Answer<'_, Vec<JobId>> {
        self.call(Shape::Read, (), |db, ()| Box::pin(jobs::running(db)))
    }

    fn order(&self, job: JobId, order: JobOrder, note: String, line: AuditLine) -> Answer<'_, JobRecord> {
        self.call(Shape::Transaction, (job, order, note, line), |db, (job, order, note, line)| {
            Box::pin(self::order(db, *job, *order, note, line))
        })
    }

    fn release(&self, job: JobId, limit: u32) -> Answer<'_, JobRecord> {
        Box::pin(self.release_some(job, None, limit))
    }

    fn release_after(&self, job: JobId, started: u64, limit: u32) -> Answer<'_, JobRecord> {
        Box::pin(self.release_some(job, Some(started), limit))
    }
}

impl PostgresLedger {
    async fn release_some(&self, job: JobId, started: Option<u64>, limit: u32) -> Result<JobRecord, Error> {
        let released = self.call(Shape::Transaction, (job, started, limit), |db, (job, started, limit)| {
            Box::pin(release::release(db, *job, *started, *limit))
        });
        let released = released.await?;
        self.shared.news.tell();
        Ok(released)
    }
}

const HOLD: &str = "SELECT 1 FROM ledger_job WHERE id = $1 FOR UPDATE";

/// A job that must be there; nobody else changes it until the transaction ends.
pub(super) async fn hold(db: &mut Db<'_>, id: JobId) -> Result<JobRecord, Fault> {
    if db.first::<()>(HOLD, &[id.to_bytes().into()]).await?.is_none() {
        // Not read either: it may come about now, and then nobody holds it.
        return Err(not_found("replay job", id).into());
    }
    // A statement of its own: it sees what the one before it waited for.
    jobs::job(db, id).await
}

const ADD_JOB: &str = r"
INSERT INTO ledger_job (id, selection, mode, reason, asked_by, rate, concurrency, canary, pause_above, state, created_at, updated_at)
VALUES ($1, $2::json, $3, $4, $5, $6, $7, $8, $9, 'running', statement_timestamp(), statement_timestamp())
ON CONFLICT (id) DO NOTHING RETURNING 1";

const ADD_ITEMS: &str = r"
INSERT INTO ledger_item (job, position, delivery, letter, event, kind, target, state, error)
SELECT $1, w.n - 1, w.delivery, w.letter, w.event, w.kind, w.target, w.state, w.error
FROM unnest($2::bytea[], $3::bytea[], $4::bytea[], $5::text[], $6::text[], $7::text[], $8::text[]) WITH ORDINALITY
  AS w(delivery, letter, event, kind, target, state, error, n)
ON CONFLICT DO NOTHING";

async fn create(db: &mut Db<'_>, new: &NewJob, targets: &[String]) -> Result<JobRecord, Fault> {
    if let Some(there) = jobs::find(db, new.id).await? {
        return Ok(there);
    }
    rules::check_job(new).map_err(Error::Refused)?;
    let ReplayPace { rate, concurrency, canary, pause_above } = new.pace;
    let query = db
        .query(ADD_JOB)
        .bind(new.id.to_bytes())
        .bind(to_json(&new.selection))
        .bind(new.mode.as_str())
        .bind(new.reason.as_deref().map(plain))
        .bind(plain(&new.by))
        .bind(rate)
        .bind(integer(concurrency))
        .bind(integer(canary))
        .bind(pause_above);
    if db.execute(query).await? == 0 {
        // Another process made it at the same moment.
        return jobs::job(db, new.id).await;
    }
    let planned = plan(db, &new.selection, new.mode, targets).await?;
    let (states, errors): (Vec<_>, Vec<_>) =
        planned.iter().map(rules::first_state).map(|(state, why)| (state.as_str(), why)).unzip();
    let query = db
        .query(ADD_ITEMS)
        .bind(new.id.to_bytes())
        .bind(planned.iter().map(|item| item.delivery.to_bytes()).collect::<Vec<_>>())
        .bind(planned.iter().map(|item| item.letter.map(LetterId::to_bytes)).collect::<Vec<_>>())
        .bind(planned.iter().map(|item| item.event.to_bytes()).collect::<Vec<_>>())
        .bind(planned.iter().map(|item| item.event.kind().as_str()).collect::<Vec<_>>())
        .bind(planned.iter().map(|item| item.target.as_str()).collect::<Vec<_>>())
        .bind(states)
        .bind(errors);
    db.execute(query).await?;
    db.execute(db.query(END_JOBS).bind(vec![new.id.to_bytes()])).await?;
    jobs::job(db, new.id).await
}

const SET_STATE: &str =
    "UPDATE ledger_job SET state = $2, note = $3, updated_at = statement_timestamp() WHERE id = $1";
const SET_PACE: &str =
    "UPDATE ledger_job SET rate = $2, concurrency = $3, canary = $4, pause_above = $5 WHERE id = $1";

async fn order(
    db: &mut Db<'_>,
    id: JobId,
    order: JobOrder,
    note: &str,
    line: &AuditLine,
) -> Result<JobRecord, Fault> {
    let held = hold(db, id).await?;
    let Some((state, pace)) = rules::order(&held, order)? else { return Ok(held) };
    if let Some(ReplayPace { rate, concurrency, canary, pause_above }) = pace {
        let query = db
            .query(SET_PACE)
            .bind(id.to_bytes())
            .bind(rate)
            .bind(integer(concurrency))
            .bind(integer(canary))
            .bind(pause_above);
        db.execute(query).await?;
    }
    db.execute(db.query(SET_STATE).bind(id.to_bytes()).bind(state.as_str()).bind(plain(note))).await?;
    audit(db, line).await?;
    jobs::job(db, id).await
}
