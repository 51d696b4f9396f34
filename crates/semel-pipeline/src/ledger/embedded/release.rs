//! Releasing the items of a replay job, never more than its concurrency allows.

use semel::store::rusqlite::params;

use super::broken;
use super::database::now;
use super::rows::Row;
use super::statements::NEXT_ITEM;
use super::work::{Done, Work};
use crate::delivery::{DeliveryState, DeliveryStep};
use crate::id::{DeliveryId, EventId, JobId};
use crate::ledger::rules::{self, verdict};
use crate::ledger::sql::{Database as _, reading};
use crate::letter::Status;
use crate::replay::{ItemState, JobItem, JobRecord, JobState, ReplayAction, ReplayMode};

/// The most items that are looked at in one call: those that are skipped take no room, and the call shall end.
const LOOK_AT: usize = 1_024;

impl Work<'_> {
    pub(super) fn release(&mut self, id: JobId, started: Option<u64>, limit: u32) -> Done<JobRecord> {
        let job = self.job(id)?;
        if job.state != JobState::Running || started.is_some_and(|started| started != job.counts.started()) {
            return Ok(job);
        }
        let room = u64::from(job.new.pace.concurrency).saturating_sub(job.counts.released);
        let mut room = room.min(u64::from(limit));
        for _ in 0..LOOK_AT {
            if room == 0 {
                break;
            }
            let next: Option<(i64, JobItem)> = now(self.reader().first(NEXT_ITEM, &[id.to_bytes().into()]))?;
            let Some((position, item)) = next else { break };
            let (state, new_event, error) = self.release_item(&job, position, &item)?;
            self.sql
                .prepare_cached(
                    "UPDATE ledger_item SET state = ?3, new_event = ?4, error = ?5 WHERE job = ?1 AND position = ?2",
                )?
                .execute(params![
                    id.to_bytes(),
                    position,
                    state.as_str(),
                    new_event.map(EventId::to_bytes),
                    error
                ])?;
            self.count_item(id, ItemState::Pending, state)?;
            if state == ItemState::Released {
                room -= 1;
            }
        }
        self.end_job_if_over(id)?;
        self.job(id)
    }

    /// Releases an item, or says why not.
    fn release_item(
        &mut self,
        job: &JobRecord,
        position: i64,
        item: &JobItem,
    ) -> Done<(ItemState, Option<EventId>, Option<&'static str>)> {
        let mode = job.new.mode;
        let Some(mut row) = self.find_row(item.delivery)? else {
            return Ok((ItemState::SkippedInflight, None, Some("it is gone")));
        };
        let letter = match item.letter {
            Some(letter) => self.find_letter(letter)?,
            None => None,
        };
        match verdict(row.state, letter.map(|letter| letter.status), mode) {
            (ReplayAction::Conflict, why) => return Ok((ItemState::SkippedInflight, None, Some(why))),
            (ReplayAction::Skip, _) => {
                if let Some(letter) = letter.filter(|letter| letter.status != Status::Replayed) {
                    self.set_letter_status(letter.number, Status::Replayed)?;
                }
                return Ok((ItemState::SkippedCompleted, None, None));
            }
            (ReplayAction::Run, _) => {}
        }
        let whose = Some((job.new.id, position));
        let new_event = match (mode, row.state) {
            (ReplayMode::AsNew, _) => match self.repeat_as_new(item, job.new.id, whose)? {
                Some(event) => Some(event),
                None => {
                    return Ok((ItemState::SkippedInflight, None, Some("this job has repeated it before")));
                }
            },
            (_, DeliveryState::Done) => {
                let epoch = row.epoch + 1;
                self.add_row(again(&row, self.now, epoch, whose))?;
                self.unsettle(row.event, 1)?;
                None
            }
            _ => {
                self.step(&mut row, DeliveryStep::Replay)?;
                if mode == ReplayMode::ReExecute {
                    row.epoch += 1;
                }
                (row.attempts, row.crashes) = (0, 0);
                (row.due_at, row.deliver_until, row.completed_at) = (self.now, None, None);
                row.token = None;
                row.item = whose;
                self.save(&mut row)?;
                None
            }
        };
        if let Some(letter) = letter.filter(|letter| letter.status != Status::Replayed) {
            self.set_letter_status(letter.number, Status::Replaying)?;
        }
        Ok((ItemState::Released, new_event, None))
    }

    /// Accepts an event that repeats that of `item` for its target, under a key of its own.
    fn repeat_as_new(
        &mut self,
        item: &JobItem,
        job: JobId,
        whose: Option<(JobId, i64)>,
    ) -> Done<Option<EventId>> {
        let original = now(reading::event(&mut self.reader(), item.event))?
            .ok_or_else(|| broken(&format!("there is no event {}", item.event)))?;
        let event = rules::repeat_as_new(original.new, job, item, self.now);
        if self.known(&event)?.is_some() {
            return Ok(None);
        }
        let number = self.add_event(&event)?;
        let mut first = self.first_row(&event, number, &item.target);
        first.item = whose;
        self.add_row(first)?;
        Ok(Some(event.id))
    }
}

/// Another delivery of the same event to the same target.
fn again(done: &Row, now: semel::time::Timestamp, epoch: u32, item: Option<(JobId, i64)>) -> Row {
    Row {
        number: 0,
        id: DeliveryId::new(now),
        state: DeliveryState::Queued,
        due_at: now,
        deliver_until: None,
        attempts: 0,
        crashes: 0,
        total_attempts: 0,
        last_attempt: 0,
        epoch,
        token: None,
        lease_until: None,
        error: None,
        letter: None,
        item,
        created_at: now,
        started_at: None,
        completed_at: None,
        ..done.clone()
    }
}
