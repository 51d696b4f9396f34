//! Replay jobs: making them, looking at them, and what people want of them.

use sqlx::PgConnection;

use super::PostgresLedger;
use super::fault::Fault;
use super::letters::not_found;
use super::link::{Shape, Shared};
use super::plan::plan;
use super::reading::{audit, limit_of, paged, position, rows_of};
use super::release;
use super::settle::END_JOBS;
use super::values::{Columns, integer, plain};
use crate::id::{DeliveryId, EventId, EventKind, JobId, LetterId};
use crate::ledger::rules::{check_job, check_pace};
use crate::ledger::{Answer, AuditLine, Error, Page, Paged, Replays};
use crate::replay::{
    Action, Counts, Item, ItemState, Job, JobState, Mode, NewJob, Order, Pace, Planned, Selection,
};

impl Replays for PostgresLedger {
    fn plan(&self, selection: Selection, mode: Mode, targets: Vec<String>) -> Answer<'_, Vec<Planned>> {
        Box::pin(async move {
            let asked = (selection, mode, targets);
            self.shared.call(Shape::Read, &asked, |s, c, a| Box::pin(plan(s, c, &a.0, a.1, &a.2))).await
        })
    }

    fn create(&self, job: NewJob, targets: Vec<String>) -> Answer<'_, Job> {
        Box::pin(async move {
            let asked = (job, targets);
            self.shared.call(Shape::Transaction, &asked, |s, c, a| Box::pin(create(s, c, &a.0, &a.1))).await
        })
    }

    fn job(&self, id: JobId) -> Answer<'_, Option<Job>> {
        Box::pin(
            async move { self.shared.call(Shape::Read, &id, |s, c, id| Box::pin(find(s, c, *id))).await },
        )
    }

    fn jobs(&self, page: Page) -> Answer<'_, Paged<Job>> {
        Box::pin(async move { self.shared.call(Shape::Read, &page, |s, c, p| Box::pin(jobs(s, c, p))).await })
    }

    fn items(&self, job: JobId, page: Page) -> Answer<'_, Paged<Item>> {
        Box::pin(async move {
            let asked = (job, page);
            self.shared.call(Shape::Read, &asked, |s, c, a| Box::pin(items(s, c, a.0, &a.1))).await
        })
    }

    fn running(&self) -> Answer<'_, Vec<JobId>> {
        Box::pin(async move {
            self.shared
                .call(Shape::Read, &(), |s, c, ()| {
                    Box::pin(async move {
                        let rows = rows_of(s, c, s.query(RUNNING)).await?;
                        rows.iter().map(|row| Columns::new(s, row).bytes(0).map(JobId::from_bytes)).collect()
                    })
                })
                .await
        })
    }

    fn order(&self, job: JobId, order: Order, note: String, line: AuditLine) -> Answer<'_, Job> {
        Box::pin(async move {
            let asked = (job, order, note, line);
            self.shared
                .call(Shape::Transaction, &asked, |s, c, a| Box::pin(self::order(s, c, a.0, a.1, &a.2, &a.3)))
                .await
        })
    }

    fn release(&self, job: JobId, limit: u32) -> Answer<'_, Job> {
        Box::pin(self.release_some(job, None, limit))
    }

    fn release_after(&self, job: JobId, started: u64, limit: u32) -> Answer<'_, Job> {
        Box::pin(self.release_some(job, Some(started), limit))
    }
}

impl PostgresLedger {
    async fn release_some(&self, job: JobId, started: Option<u64>, limit: u32) -> Result<Job, Error> {
        let asked = (job, started, limit);
        let released = self
            .shared
            .call(Shape::Transaction, &asked, |s, c, a| Box::pin(release::release(s, c, a.0, a.1, a.2)))
            .await?;
        self.shared.news.tell();
        Ok(released)
    }
}

macro_rules! job_columns {
    () => {
        "j.seq, j.id, j.selection::text, j.mode, j.reason, j.asked_by, j.rate, j.concurrency, j.canary, j.pause_above, \
         j.state, j.note, j.created_at, j.updated_at, \
         (SELECT json_object_agg(i.state, i.number) FROM \
           (SELECT state, count(*) AS number FROM item WHERE job = j.id GROUP BY state) AS i)::text FROM job AS j"
    };
}

const RUNNING: &str = "SELECT id FROM job WHERE state = 'running' ORDER BY seq";
const JOB: &str = concat!("SELECT ", job_columns!(), " WHERE j.id = $1");
const JOBS: &str = concat!("SELECT ", job_columns!(), " WHERE j.seq < $1 ORDER BY j.seq DESC LIMIT $2");
const HOLD: &str = "SELECT 1 FROM job WHERE id = $1 FOR UPDATE";

fn read_job(row: Columns<'_>) -> Result<Job, Fault> {
    let new = NewJob {
        id: JobId::from_bytes(row.bytes(1)?),
        selection: row.json(2)?,
        mode: row.word(3, Mode::from_name)?,
        reason: row.get(4)?,
        by: row.get(5)?,
        pace: Pace {
            rate: row.get(6)?,
            concurrency: row.count(7)?,
            canary: row.count(8)?,
            pause_above: row.get(9)?,
        },
    };
    let state = row.word(10, JobState::from_name)?;
    let mut counts = Counts::default();
    if row.get::<Option<&str>>(14)?.is_some() {
        for (name, number) in row.json::<std::collections::BTreeMap<String, u64>>(14)? {
            let item =
                ItemState::from_name(&name).ok_or_else(|| row.corrupt("an item of another version"))?;
            *counts.of(seen_in(state, item)) += number;
            counts.total += number;
        }
    }
    Ok(Job { new, state, note: row.get(11)?, counts, created_at: row.time(12)?, updated_at: row.time(13)? })
}

/// Cancelling a job is one row, however many items it leaves.
fn seen_in(job: JobState, item: ItemState) -> ItemState {
    match (job, item) {
        (JobState::Cancelled, ItemState::Pending) => ItemState::Cancelled,
        (_, item) => item,
    }
}

async fn find(shared: &Shared, connection: &mut PgConnection, id: JobId) -> Result<Option<Job>, Fault> {
    let rows = rows_of(shared, connection, shared.query(JOB).bind(id.to_bytes())).await?;
    rows.first().map(|row| read_job(Columns::new(shared, row))).transpose()
}

/// A job that must be there.
pub(super) async fn job(shared: &Shared, connection: &mut PgConnection, id: JobId) -> Result<Job, Fault> {
    find(shared, connection, id).await?.ok_or_else(|| not_found("replay job", id))
}

/// A job that must be there; nobody else changes it until the transaction ends.
pub(super) async fn hold(shared: &Shared, connection: &mut PgConnection, id: JobId) -> Result<Job, Fault> {
    if rows_of(shared, connection, shared.query(HOLD).bind(id.to_bytes())).await?.is_empty() {
        // Not read either: it may come about now, and then nobody holds it.
        return Err(not_found("replay job", id));
    }
    // A statement of its own: it sees what the one before it waited for.
    job(shared, connection, id).await
}

async fn jobs(shared: &Shared, connection: &mut PgConnection, page: &Page) -> Result<Paged<Job>, Fault> {
    let query = shared.query(JOBS).bind(position(page)?).bind(limit_of(page));
    let rows = rows_of(shared, connection, query).await?;
    let found = rows.iter().map(|row| {
        let columns = Columns::new(shared, row);
        Ok((columns.get::<i64>(0)?.to_string(), read_job(columns)?))
    });
    Ok(paged(page, found.collect::<Result<_, Fault>>()?))
}

macro_rules! item_columns {
    () => {
        "i.place, i.delivery, i.letter, i.event, i.kind, i.target, i.state, i.new_event, i.error FROM item AS i"
    };
}
pub(super) use item_columns;

const ITEMS: &str =
    concat!("SELECT ", item_columns!(), " WHERE i.job = $1 AND i.place > $2 ORDER BY i.place LIMIT $3");

/// An item with its place.
pub(super) fn read_item(row: Columns<'_>) -> Result<(i32, Item), Fault> {
    let kind = row.word(4, EventKind::from_name)?;
    let item = Item {
        delivery: DeliveryId::from_bytes(row.bytes(1)?),
        letter: row.bytes_or_none(2)?.map(LetterId::from_bytes),
        event: EventId::from_bytes(kind, row.bytes(3)?),
        target: row.get(5)?,
        state: row.word(6, ItemState::from_name)?,
        // A new event is of the kind of the one that it repeats.
        new_event: row.bytes_or_none(7)?.map(|id| EventId::from_bytes(kind, id)),
        error: row.get(8)?,
    };
    Ok((row.get(0)?, item))
}

async fn items(
    shared: &Shared,
    connection: &mut PgConnection,
    id: JobId,
    page: &Page,
) -> Result<Paged<Item>, Fault> {
    let state = job(shared, connection, id).await?.state;
    let after = match &page.after {
        None => -1,
        Some(_) => i32::try_from(position(page)?).unwrap_or(i32::MAX),
    };
    let query = shared.query(ITEMS).bind(id.to_bytes()).bind(after).bind(limit_of(page));
    let rows = rows_of(shared, connection, query).await?;
    let found = rows.iter().map(|row| {
        let (place, mut item) = read_item(Columns::new(shared, row))?;
        item.state = seen_in(state, item.state);
        Ok((place.to_string(), item))
    });
    Ok(paged(page, found.collect::<Result<_, Fault>>()?))
}

const ADD_JOB: &str = r"
INSERT INTO job (id, selection, mode, reason, asked_by, rate, concurrency, canary, pause_above, state, created_at, updated_at)
VALUES ($1, $2::json, $3, $4, $5, $6, $7, $8, $9, 'running', statement_timestamp(), statement_timestamp())
ON CONFLICT (id) DO NOTHING RETURNING 1";

const ADD_ITEMS: &str = r"
INSERT INTO item (job, place, delivery, letter, event, kind, target, state, error)
SELECT $1, w.n - 1, w.delivery, w.letter, w.event, w.kind, w.target, w.state, w.error
FROM unnest($2::bytea[], $3::bytea[], $4::bytea[], $5::text[], $6::text[], $7::text[], $8::text[]) WITH ORDINALITY
  AS w(delivery, letter, event, kind, target, state, error, n)
ON CONFLICT DO NOTHING";

async fn create(
    shared: &Shared,
    connection: &mut PgConnection,
    new: &NewJob,
    targets: &[String],
) -> Result<Job, Fault> {
    if let Some(there) = find(shared, connection, new.id).await? {
        return Ok(there);
    }
    let refuse = |why: String| Fault::Answer(Error::Refused(why));
    check_job(new).map_err(refuse)?;
    let Pace { rate, concurrency, canary, pause_above } = new.pace;
    let query = shared
        .query(ADD_JOB)
        .bind(new.id.to_bytes())
        .bind(serde_json::to_string(&new.selection).expect("a selection is plain data"))
        .bind(new.mode.as_str())
        .bind(new.reason.as_deref().map(plain))
        .bind(plain(&new.by))
        .bind(rate)
        .bind(integer(concurrency))
        .bind(integer(canary))
        .bind(pause_above);
    if rows_of(shared, connection, query).await?.is_empty() {
        // Another process made it at the same moment.
        return job(shared, connection, new.id).await;
    }
    let planned = plan(shared, connection, &new.selection, new.mode, targets).await?;
    let states = planned.iter().map(|item| match item.action {
        Action::Run => (ItemState::Pending, None),
        Action::Skip => (ItemState::SkippedCompleted, None),
        Action::Conflict => (ItemState::SkippedInflight, Some(item.why.as_str())),
    });
    let (states, errors): (Vec<_>, Vec<_>) = states.map(|(state, why)| (state.as_str(), why)).unzip();
    let query = shared
        .query(ADD_ITEMS)
        .bind(new.id.to_bytes())
        .bind(planned.iter().map(|item| item.delivery.to_bytes()).collect::<Vec<_>>())
        .bind(planned.iter().map(|item| item.letter.map(LetterId::to_bytes)).collect::<Vec<_>>())
        .bind(planned.iter().map(|item| item.event.to_bytes()).collect::<Vec<_>>())
        .bind(planned.iter().map(|item| item.event.kind().as_str()).collect::<Vec<_>>())
        .bind(planned.iter().map(|item| item.target.as_str()).collect::<Vec<_>>())
        .bind(states)
        .bind(errors);
    rows_of(shared, connection, query).await?;
    let ended = shared.query(END_JOBS).bind(vec![new.id.to_bytes()]);
    rows_of(shared, connection, ended).await?;
    job(shared, connection, new.id).await
}

const SET_STATE: &str =
    "UPDATE job SET state = $2, note = $3, updated_at = statement_timestamp() WHERE id = $1";
const SET_PACE: &str =
    "UPDATE job SET rate = $2, concurrency = $3, canary = $4, pause_above = $5 WHERE id = $1";

async fn order(
    shared: &Shared,
    connection: &mut PgConnection,
    id: JobId,
    order: Order,
    note: &str,
    line: &AuditLine,
) -> Result<Job, Fault> {
    let refuse = |why: String| Fault::Answer(Error::Refused(why));
    let held = hold(shared, connection, id).await?;
    let state = match (held.state, order) {
        (JobState::Cancelled, Order::Cancel) => return Ok(held),
        (state, _) if state.is_over() => {
            return Err(refuse(format!("{id} is {}: make another job", state.as_str())));
        }
        (_, Order::Cancel) => JobState::Cancelled,
        (_, Order::Pause) => JobState::Paused,
        (_, Order::Resume) => JobState::Running,
        (state, Order::Pace(pace)) => {
            check_pace(&pace).map_err(refuse)?;
            let query = shared
                .query(SET_PACE)
                .bind(id.to_bytes())
                .bind(pace.rate)
                .bind(integer(pace.concurrency))
                .bind(integer(pace.canary))
                .bind(pace.pause_above);
            rows_of(shared, connection, query).await?;
            state
        }
    };
    let query = shared.query(SET_STATE).bind(id.to_bytes()).bind(state.as_str()).bind(plain(note));
    rows_of(shared, connection, query).await?;
    audit(shared, connection, line).await?;
    job(shared, connection, id).await
}
