//! Releasing the items of a replay job, never more than its concurrency allows: a release holds the job's row, so
//! no number of processes exceeds it.

use std::collections::HashMap;

use semel::time::{Clock as _, SystemClock};

use super::database::Db;
use super::fault::Fault;
use super::intake::{self, Batch};
use super::jobs::hold;
use super::settle::END_JOBS;
use super::statements::NEXT_ITEMS;
use crate::delivery::DeliveryState;
use crate::id::{EventId, JobId, LetterId};
use crate::ledger::rules::{self, verdict};
use crate::ledger::sql::{Database as _, Value, bigint, jobs, reading};
use crate::letter::Status;
use crate::replay::{ItemState, JobItem, JobRecord, JobState, ReplayAction, ReplayMode};

/// How often more items are looked at in one call, where those before were skipped.
const LOOKS: usize = 16;

/// How the deliveries of items stand. They and their letters are held, and their events are not swept meanwhile.
const STANDING: &str = r"
SELECT d.id, d.state FROM ledger_delivery AS d JOIN ledger_event AS e ON e.id = d.event
WHERE d.id = ANY($1) ORDER BY d.id FOR UPDATE OF d FOR KEY SHARE OF e";

const LETTERS: &str = "SELECT id, status FROM ledger_dead_letter WHERE id = ANY($1) ORDER BY id FOR UPDATE";

const REPLAY: &str = r"
UPDATE ledger_delivery AS d SET state = 'replaying', waits = true, epoch = d.epoch + $4, attempts = 0, crashes = 0,
  due_at = statement_timestamp(), deliver_until = NULL, completed_at = NULL, token = NULL, job = $1, item = r.position
FROM unnest($2::bytea[], $3::bigint[]) AS r(id, position) WHERE d.id = r.id";

/// Another delivery of the same event to the same target, one epoch up.
const EXECUTE_AGAIN: &str = r"
INSERT INTO ledger_delivery (id, event, target, tenant, lane, state, waits, epoch, due_at, job, item, created_at)
SELECT r.fresh, d.event, d.target, d.tenant, d.lane, 'queued', true, d.epoch + 1, statement_timestamp(), $1, r.position,
  statement_timestamp()
FROM unnest($2::bytea[], $3::bigint[], $4::bytea[]) WITH ORDINALITY AS r(id, position, fresh, n)
  JOIN ledger_delivery AS d ON d.id = r.id ORDER BY r.n";

const OF_JOB: &str = r"
UPDATE ledger_delivery AS d SET job = $1, item = r.position FROM unnest($2::bytea[], $3::bigint[]) AS r(event, position)
WHERE d.event = r.event";

const LETTERS_ARE: &str = r"
UPDATE ledger_dead_letter AS l SET status = r.status, updated_at = statement_timestamp()
FROM unnest($1::bytea[], $2::text[]) AS r(id, status) WHERE l.id = r.id AND l.status <> 'replayed'";

const ITEMS_ARE: &str = r"
UPDATE ledger_item AS i SET state = r.state, new_event = r.new_event, error = r.error
FROM unnest($2::bigint[], $3::text[], $4::bytea[], $5::text[]) AS r(position, state, new_event, error)
WHERE i.job = $1 AND i.position = r.position";

/// What becomes of an item.
struct Fate {
    place: i64,
    state: ItemState,
    error: Option<&'static str>,
    new_event: Option<EventId>,
    letter: Option<(LetterId, Status)>,
}

pub(super) async fn release(
    db: &mut Db<'_>,
    id: JobId,
    started: Option<u64>,
    limit: u32,
) -> Result<JobRecord, Fault> {
    let job = hold(db, id).await?;
    if job.state != JobState::Running || started.is_some_and(|started| started != job.counts.started()) {
        return Ok(job);
    }
    let room = u64::from(job.new.pace.concurrency).saturating_sub(job.counts.released);
    let mut room = room.min(u64::from(limit));
    for _ in 0..LOOKS {
        if room == 0 {
            break;
        }
        let items = db.rows(NEXT_ITEMS, &[id.to_bytes().into(), bigint(room).into()]).await?;
        if items.is_empty() {
            break;
        }
        room -= release_some(db, &job, &items).await?;
    }
    db.execute(db.query(END_JOBS).bind(vec![id.to_bytes()])).await?;
    jobs::job(db, id).await
}

/// Releases these items, or says why not. Answers how many were released.
async fn release_some(db: &mut Db<'_>, job: &JobRecord, items: &[(i64, JobItem)]) -> Result<u64, Fault> {
    let ids = items.iter().map(|(_, item)| item.delivery.to_bytes()).collect();
    let states: HashMap<[u8; 16], DeliveryState> =
        db.rows(STANDING, &[Value::Ids(ids)]).await?.into_iter().collect();
    let ids = items.iter().filter_map(|(_, item)| item.letter.map(LetterId::to_bytes)).collect();
    let letters: HashMap<[u8; 16], Status> =
        db.rows(LETTERS, &[Value::Ids(ids)]).await?.into_iter().collect();
    let mut fates = Vec::with_capacity(items.len());
    let (mut replays, mut again, mut as_new) = (Vec::new(), Vec::new(), Vec::new());
    for (place, item) in items {
        let letter = item.letter.and_then(|id| letters.get(&id.to_bytes()).map(|status| (id, *status)));
        let mut fate = Fate {
            place: *place,
            state: ItemState::SkippedInflight,
            error: None,
            new_event: None,
            letter: None,
        };
        let Some(state) = states.get(&item.delivery.to_bytes()) else {
            fate.error = Some("it is gone");
            fates.push(fate);
            continue;
        };
        match verdict(*state, letter.map(|(_, status)| status), job.new.mode) {
            (ReplayAction::Conflict, why) => fate.error = Some(why),
            (ReplayAction::Skip, _) => {
                fate.state = ItemState::SkippedCompleted;
                fate.letter = letter.map(|(id, _)| (id, Status::Replayed));
            }
            (ReplayAction::Run, _) => {
                fate.state = ItemState::Released;
                fate.letter = letter.map(|(id, _)| (id, Status::Replaying));
                match (job.new.mode, state) {
                    (ReplayMode::AsNew, _) => as_new.push((fates.len(), item)),
                    (_, DeliveryState::Done) => again.push((item.delivery.to_bytes(), *place)),
                    _ => replays.push((item.delivery.to_bytes(), *place)),
                }
            }
        }
        fates.push(fate);
    }
    if !replays.is_empty() {
        let (ids, places): (Vec<_>, Vec<_>) = replays.into_iter().unzip();
        let epochs = i32::from(job.new.mode == ReplayMode::ReExecute);
        let query = db.query(REPLAY).bind(job.new.id.to_bytes()).bind(ids).bind(places).bind(epochs);
        db.execute(query).await?;
    }
    if !again.is_empty() {
        let fresh: Vec<[u8; 16]> = again.iter().map(|_| db.shared.ids.delivery().to_bytes()).collect();
        let (ids, places): (Vec<_>, Vec<_>) = again.into_iter().unzip();
        let query = db.query(EXECUTE_AGAIN).bind(job.new.id.to_bytes()).bind(ids).bind(places).bind(fresh);
        db.execute(query).await?;
    }
    if !as_new.is_empty() {
        repeat_as_new(db, job.new.id, &as_new, &mut fates).await?;
    }
    write(db, job.new.id, &fates).await?;
    Ok(fates.iter().filter(|fate| fate.state == ItemState::Released).count() as u64)
}

/// Accepts events that repeat those of `items` for their targets, each under a key of its own.
async fn repeat_as_new(
    db: &mut Db<'_>,
    job: JobId,
    items: &[(usize, &JobItem)],
    fates: &mut [Fate],
) -> Result<(), Fault> {
    let mut events = Vec::with_capacity(items.len());
    for (_, item) in items {
        let original = reading::event(db, item.event).await?;
        let original = original.ok_or_else(|| db.shared.corrupt("a delivery without an event"))?.new;
        events.push(rules::repeat_as_new(original, job, item, SystemClock.now()));
    }
    let kept = intake::write(db, &Batch::new(db.shared, &events)).await?;
    let (mut ids, mut places) = (Vec::new(), Vec::new());
    for ((at, _), event) in items.iter().zip(&events) {
        let fate = &mut fates[*at];
        if kept.contains(&event.id.to_bytes()) {
            fate.new_event = Some(event.id);
            ids.push(event.id.to_bytes());
            places.push(fate.place);
        } else {
            fate.state = ItemState::SkippedInflight;
            fate.error = Some("this job has repeated it before");
            fate.letter = None;
        }
    }
    db.execute(db.query(OF_JOB).bind(job.to_bytes()).bind(ids).bind(places)).await.map(drop)
}

async fn write(db: &mut Db<'_>, job: JobId, fates: &[Fate]) -> Result<(), Fault> {
    let letters: Vec<(LetterId, Status)> = fates.iter().filter_map(|fate| fate.letter).collect();
    if !letters.is_empty() {
        let query = db
            .query(LETTERS_ARE)
            .bind(letters.iter().map(|(id, _)| id.to_bytes()).collect::<Vec<_>>())
            .bind(letters.iter().map(|(_, status)| status.as_str()).collect::<Vec<_>>());
        db.execute(query).await?;
    }
    let query = db
        .query(ITEMS_ARE)
        .bind(job.to_bytes())
        .bind(fates.iter().map(|fate| fate.place).collect::<Vec<_>>())
        .bind(fates.iter().map(|fate| fate.state.as_str()).collect::<Vec<_>>())
        .bind(fates.iter().map(|fate| fate.new_event.map(EventId::to_bytes)).collect::<Vec<_>>())
        .bind(fates.iter().map(|fate| fate.error).collect::<Vec<_>>());
    db.execute(query).await.map(drop)
}
