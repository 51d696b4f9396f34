//! Releasing the items of a replay job, never more than its concurrency allows: a release holds the job's row, so
//! no number of processes exceeds it.

use std::collections::HashMap;

use super::writing::{ItemResult, Writing};
use super::{Value, bigint, jobs, not_found, reading};
use crate::delivery::DeliveryState;
use crate::id::{DeliveryId, JobId, LetterId};
use crate::ledger::rules::{self, verdict};
use crate::letter::Status;
use crate::replay::{ItemState, JobItem, JobRecord, JobState, ReplayAction, ReplayMode};

/// How often more items are looked at in one call, where those before were skipped.
const LOOKS: usize = 16;

pub(crate) async fn release<D: Writing>(
    db: &mut D,
    id: JobId,
    started: Option<u64>,
    limit: u32,
) -> Result<JobRecord, D::Fault> {
    let job = jobs::hold(db, id).await?;
    if job.state != JobState::Running || started.is_some_and(|started| started != job.counts.started()) {
        return Ok(job);
    }
    let room = u64::from(job.new.pace.concurrency).saturating_sub(job.counts.released);
    let mut room = room.min(u64::from(limit));
    for _ in 0..LOOKS {
        if room == 0 {
            break;
        }
        let with = [id.to_bytes().into(), bigint(room).into()];
        let items: Vec<(i64, JobItem)> = db.rows(D::SQL.next_items, &with).await?;
        if items.is_empty() {
            break;
        }
        room -= release_items(db, &job, &items).await?;
    }
    jobs::end(db, vec![id.to_bytes()]).await?;
    jobs::job(db, id).await
}

/// Releases these items, or says why not. Answers how many were released.
async fn release_items<D: Writing>(
    db: &mut D,
    job: &JobRecord,
    items: &[(i64, JobItem)],
) -> Result<u64, D::Fault> {
    let ids = items.iter().map(|(_, item)| item.delivery.to_bytes()).collect();
    let states: HashMap<DeliveryId, DeliveryState> =
        db.rows(D::SQL.hold_items, &[Value::Ids(ids)]).await?.into_iter().collect();
    let ids = items.iter().filter_map(|(_, item)| item.letter.map(LetterId::to_bytes)).collect();
    let letters: HashMap<LetterId, Status> =
        db.rows(D::SQL.hold_letters, &[Value::Ids(ids)]).await?.into_iter().collect();
    let mut results = Vec::with_capacity(items.len());
    let (mut replayed, mut again, mut as_new) = (Vec::new(), Vec::new(), Vec::new());
    for (position, item) in items {
        let letter = item.letter.and_then(|id| letters.get(&id).map(|status| (id, *status)));
        let mut result = ItemResult::skipped(*position, "it is gone");
        if let Some(state) = states.get(&item.delivery) {
            let letter_is =
                |next| letter.filter(|(_, now)| *now != Status::Replayed).map(|(id, now)| (id, now, next));
            match verdict(*state, letter.map(|(_, status)| status), job.new.mode) {
                (ReplayAction::Conflict, why) => result.error = Some(why),
                (ReplayAction::Skip, _) => {
                    result =
                        ItemResult::new(*position, ItemState::SkippedCompleted, letter_is(Status::Replayed));
                }
                (ReplayAction::Run, _) => {
                    result = ItemResult::new(*position, ItemState::Released, letter_is(Status::Replaying));
                    match (job.new.mode, state) {
                        (ReplayMode::AsNew, _) => as_new.push((results.len(), item)),
                        (_, DeliveryState::Done) => again.push((item.delivery, *position)),
                        _ => replayed.push((item.delivery, *position)),
                    }
                }
            }
        }
        results.push(result);
    }
    if !replayed.is_empty() {
        db.replay(&job.new, &replayed).await?;
    }
    if !again.is_empty() {
        db.execute_again(job.new.id, &again).await?;
    }
    if !as_new.is_empty() {
        repeat_as_new(db, job.new.id, &as_new, &mut results).await?;
    }
    db.save_items(job.new.id, &results).await?;
    Ok(results.iter().filter(|result| result.state == ItemState::Released).count() as u64)
}

/// Accepts events that repeat those of `items` for their targets, each under a key of its own.
async fn repeat_as_new<D: Writing>(
    db: &mut D,
    job: JobId,
    items: &[(usize, &JobItem)],
    results: &mut [ItemResult],
) -> Result<(), D::Fault> {
    let mut events = Vec::with_capacity(items.len());
    for (at, item) in items {
        let original = reading::event(db, item.event).await?;
        let original = original.ok_or_else(|| not_found("event", item.event))?.new;
        events.push((rules::repeat_as_new(original, job, item, db.now()), results[*at].position));
    }
    let accepted = db.accept_items(job, &events).await?;
    for ((at, _), (event, position)) in items.iter().zip(&events) {
        if accepted.contains(&event.id.to_bytes()) {
            results[*at].new_event = Some(event.id);
        } else {
            results[*at] = ItemResult::skipped(*position, "this job has repeated it before");
        }
    }
    Ok(())
}
