//! How attempts end, and what else that ends: dead letters, items of replay jobs.

use std::time::Duration;

use semel::store::rusqlite::{self, params};
use semel::time::Timestamp;

use super::broken;
use super::columns::{length, micros};
use super::database::now;
use super::rows::Row;
use super::work::{Done, Work};
use crate::delivery::{AttemptClass, DeliveryState, Ending, Holding, LeaseResult, Settle};
use crate::id::{JobId, LetterId};
use crate::ledger::sql::{Columns as _, jobs};
use crate::letter::Status;
use crate::replay::ItemState;

impl Work<'_> {
    pub(super) fn settle(&mut self, held: Holding, settle: Settle) -> Done<LeaseResult> {
        let Some(mut row) = self.find_row(held.delivery)? else { return Ok(LeaseResult::Lost) };
        if row.token != Some(held.token) {
            return Ok(LeaseResult::Lost);
        }
        let step = settle.step();
        if row.state != DeliveryState::Running {
            // Its own word, a second time.
            return Ok(if row.state == step.to() { LeaseResult::Kept } else { LeaseResult::Lost });
        }
        self.step(&mut row, step)?;
        row.lease_until = None;
        match settle {
            Settle::Done(ending) => {
                self.end_attempt(&row, &ending)?;
                row.error = None;
                row.completed_at = Some(self.now);
                self.delivered(&mut row)?;
            }
            Settle::Retry(ending, after) => {
                self.end_attempt(&row, &ending)?;
                row.error = Some(ending.error);
                row.due_at = self.next_due(&row, after);
            }
            Settle::Defer(after) => {
                self.end_attempt(&row, &Ending::deferred(String::new()))?;
                row.attempts -= 1;
                row.total_attempts -= 1;
                row.due_at = self.next_due(&row, after);
            }
            Settle::Block(ending) => {
                self.end_attempt(&row, &ending)?;
                row.error = Some(ending.error.clone());
                row.completed_at = Some(self.now);
                if let Some(letter) = row.letter {
                    self.bury_again(letter, &row, &ending, None)?;
                }
                self.end_item(&mut row, ItemState::FailedAgain, Some(&ending.error), Status::Discarded)?;
            }
            Settle::Bury(ending, cause) => {
                self.end_attempt(&row, &ending)?;
                if ending.class == AttemptClass::Deferred {
                    row.attempts -= 1;
                    row.total_attempts -= 1;
                }
                row.error = Some(ending.error.clone());
                row.completed_at = Some(self.now);
                let copy_of =
                    self.end_item(&mut row, ItemState::FailedAgain, Some(&ending.error), Status::Discarded)?;
                match row.letter {
                    Some(letter) => self.bury_again(letter, &row, &ending, Some(cause))?,
                    None => row.letter = Some(self.bury(&row, &ending, cause, copy_of)?.0),
                }
            }
        }
        self.save(&mut row)?;
        Ok(LeaseResult::Kept)
    }

    /// When a delivery that waits is due: after this delay, or when its time to be delivered ends. Then it becomes a
    /// dead letter.
    fn next_due(&self, row: &Row, after: Duration) -> Timestamp {
        let due = self.now.after(after);
        row.deliver_until.map_or(due, |until| due.min(until))
    }

    /// It is done: so is its letter, and the item that released it.
    fn delivered(&mut self, row: &mut Row) -> Done<()> {
        if let Some(letter) = row.letter {
            self.set_letter_status(letter, Status::Replayed)?;
        }
        self.end_item(row, ItemState::Replayed, None, Status::Replayed)?;
        self.unsettle(row.event, -1)?;
        Ok(())
    }

    /// Writes how the present attempt ended.
    pub(super) fn end_attempt(&self, row: &Row, ending: &Ending) -> rusqlite::Result<()> {
        self.execute(
            "UPDATE ledger_attempt SET ended_at = ?3, class = ?4, status = ?5, error = ?6, excerpt = ?7,
                        retry_after = ?8
                 WHERE delivery = ?1 AND number = ?2",
            params![
                row.number,
                row.last_attempt,
                micros(self.now),
                ending.class.as_str(),
                ending.status,
                ending.error,
                ending.excerpt,
                ending.retry_after.map(length),
            ],
        )
        .map(drop)
    }

    /// Ends the item that released this delivery, if one did. Where the delivery is the new event of an item, the letter
    /// it was made of ends as `original`; that letter's id is answered.
    pub(super) fn end_item(
        &mut self,
        row: &mut Row,
        state: ItemState,
        error: Option<&str>,
        original: Status,
    ) -> Done<Option<LetterId>> {
        let Some((job, position)) = row.item.take() else { return Ok(None) };
        let found = self.one(
            "UPDATE ledger_item SET state = ?3, error = ?4 WHERE job = ?1 AND position = ?2
             RETURNING letter, new_event IS NOT NULL",
            params![job.to_bytes(), position, state.as_str(), error],
            |columns| Ok((columns.id_or_none()?.map(LetterId::from_bytes), columns.flag()?)),
        )?;
        let (letter, is_new) = found.ok_or_else(|| broken(&format!("job {job} has no item {position}")))?;
        self.count_item(job, ItemState::Released, state)?;
        let Some(letter) = letter.filter(|_| is_new) else { return Ok(None) };
        self.end_original(letter, original)?;
        Ok(Some(letter))
    }

    /// Counts an item from one state to another. A job whose last item has ended is done.
    pub(super) fn count_item(&mut self, job: JobId, from: ItemState, to: ItemState) -> Done<()> {
        let (from, to) = (from.as_str(), to.as_str());
        self.execute(
            &format!(
                "UPDATE ledger_job SET {from} = {from} - 1, {to} = {to} + 1, updated_at = ?2 WHERE id = ?1"
            ),
            params![job.to_bytes(), micros(self.now)],
        )?;
        now(jobs::end(self, vec![job.to_bytes()]))
    }
}
