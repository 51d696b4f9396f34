//! The steps of writing calls, row by row: each keeps the counts, the turns and the fronts of what it changes.

use std::time::Duration;

use semel::key::KeyId;
use semel::store::rusqlite::params;
use semel::time::Timestamp;

use super::broken;
use super::columns::micros;
use super::intake::targets;
use super::rows::Row;
use super::work::{Done, Fault, Work};
use crate::delivery::{DeliveryState, DeliveryStep};
use crate::event::{Event, Generation, NewEvent};
use crate::id::{DeliveryId, EventId, JobId, LetterId};
use crate::ledger::rules::{self, Cancelled};
use crate::ledger::sql::writing::{ItemResult, Writing};
use crate::ledger::sql::{bigint, to_json};
use crate::ledger::{Arrival, Error, KeyState};
use crate::letter::{Cause, NewLetter, Status};
use crate::replay::{Counts, ItemState, NewJob, Planned, ReplayMode};

impl Writing for Work<'_> {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn refusal(fault: Fault) -> Result<Error, Fault> {
        match fault {
            Fault::Answer(error) => Ok(error),
            fault @ Fault::Sql(_) => Err(fault),
        }
    }

    fn wake_workers(&mut self) {
        self.news = true;
    }

    async fn key_state(&mut self, dedupe: KeyId) -> Done<KeyState> {
        Ok(self.find_key(dedupe)?)
    }

    async fn end_generation(&mut self, dedupe: KeyId, ended: Generation) -> Done<Generation> {
        let lasts = self.find_key(dedupe)?.generation;
        if lasts > ended {
            return Ok(lasts);
        }
        let next = ended.next(self.now);
        self.execute("DELETE FROM ledger_key WHERE dedupe = ?1", [dedupe.as_bytes()])?;
        self.execute(
            "INSERT OR REPLACE INTO ledger_generation (dedupe, generation, changed_at) VALUES (?1, ?2, ?3)",
            params![dedupe.as_bytes(), bigint(next.get()), micros(self.now)],
        )?;
        Ok(next)
    }

    async fn add_run(
        &mut self,
        run: &NewEvent,
        changes: u64,
        cancelled: Cancelled,
        arrival: Arrival,
    ) -> Done<bool> {
        let number = self.add_keyless_event(run, changes)?;
        if let (Arrival::New, Some(dedupe)) = (arrival, &run.dedupe) {
            self.hold_key(dedupe, run.id)?;
        }
        for target in targets(run) {
            let mut row = self.first_row(run, number, target);
            match (cancelled, arrival) {
                (Cancelled::Yes, _) => {
                    row.state = DeliveryState::Cancelled;
                    row.completed_at = Some(self.now);
                    self.add_row(row)?;
                    self.unsettle(number, -1)?;
                }
                (Cancelled::No, Arrival::LostKey(winner)) => {
                    self.add_dead_row(row, rules::lost_key(winner), Cause::NonRetryable, None)?;
                }
                (Cancelled::No, _) => drop(self.add_row(row)?),
            }
        }
        Ok(true)
    }

    async fn put_off(&mut self, event: EventId, delay: Duration) -> Done<()> {
        for mut row in self.rows_of(event)? {
            row.due_at = self.now.after(delay);
            self.save(&mut row)?;
        }
        Ok(())
    }

    async fn save_notes(&mut self, event: &Event) -> Done<()> {
        let (id, notes) = (event.new.id.to_bytes(), &event.new.notes);
        self.execute(
            "UPDATE ledger_event SET tags = ?2, metadata = ?3, changes = ?4, version = version + 1 WHERE id = ?1",
            params![id, to_json(&notes.tags), to_json(&notes.metadata), bigint(event.changes)],
        )?;
        self.execute(
            "INSERT OR IGNORE INTO ledger_tag (tag, event)
             SELECT t.value, e.number FROM ledger_event AS e, json_each(e.tags) AS t WHERE e.id = ?1",
            [id],
        )?;
        Ok(())
    }

    async fn cancel_deliveries(&mut self, deliveries: &[DeliveryId]) -> Done<()> {
        for id in deliveries {
            let mut row = self.existing_row(*id)?;
            self.step(&mut row, DeliveryStep::Cancel)?;
            row.completed_at = Some(self.now);
            self.end_item(&mut row, ItemState::Cancelled, Some("it was cancelled"), Status::Discarded)?;
            if let Some(letter) = row.letter {
                self.set_letter_status(letter, Status::Discarded)?;
            }
            self.save(&mut row)?;
            self.unsettle(row.event, -1)?;
        }
        Ok(())
    }

    async fn make_due(&mut self, deliveries: &[DeliveryId]) -> Done<u64> {
        let mut made = 0;
        for id in deliveries {
            let Some(mut row) = self.find_row(*id)? else { continue };
            if row.state == DeliveryState::RetryWait && row.due_at > self.now {
                row.due_at = self.now;
                self.save(&mut row)?;
                made += 1;
            }
        }
        Ok(made)
    }

    async fn put_letters(&mut self, letters: &[NewLetter]) -> Done<Vec<LetterId>> {
        letters.iter().map(|letter| self.put(letter)).collect()
    }

    async fn set_letter(&mut self, id: LetterId, from: Status, to: Status) -> Done<()> {
        let Some(letter) = self.find_letter(id)? else { return Ok(()) };
        self.set_letter_status(letter.number, to)?;
        match (from, to) {
            (_, Status::Discarded) => self.letter_settles(letter, -1)?,
            (Status::Discarded, _) => self.letter_settles(letter, 1)?,
            _ => {}
        }
        self.execute(
            "UPDATE ledger_dead_letter SET failed_replays = 0 WHERE id = ?1 AND status = 'pending'",
            [id.to_bytes()],
        )?;
        Ok(())
    }

    async fn copy_letter(&mut self, of: LetterId, copy: &NewEvent, target: &str) -> Done<Option<LetterId>> {
        if self.known(copy)?.is_some() {
            return Ok(None);
        }
        let number = self.add_event(copy)?;
        let row = self.first_row(copy, number, target);
        self.add_dead_row(row, rules::error_of_copy(of), Cause::Manual, Some(of)).map(Some)
    }

    async fn add_items(&mut self, job: JobId, items: &[Planned]) -> Done<()> {
        let mut counts = Counts::default();
        for (position, item) in (0_i64..).zip(items) {
            let (state, error) = rules::first_state(item);
            *counts.of(state) += 1;
            self.execute(
                "INSERT INTO ledger_item (job, position, delivery, letter, event, kind, target, state, error)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                params![
                    job.to_bytes(),
                    position,
                    item.delivery.to_bytes(),
                    item.letter.map(LetterId::to_bytes),
                    item.event.to_bytes(),
                    item.event.kind().as_str(),
                    item.target,
                    state.as_str(),
                    error,
                ],
            )?;
        }
        let (pending, completed) = (bigint(counts.pending), bigint(counts.skipped_completed));
        self.execute(
            "UPDATE ledger_job SET total = ?2, pending = ?3, skipped_completed = ?4, skipped_inflight = ?5 WHERE id = ?1",
            params![job.to_bytes(), bigint(items.len() as u64), pending, completed, bigint(counts.skipped_inflight)],
        )?;
        Ok(())
    }

    async fn replay(&mut self, job: &NewJob, items: &[(DeliveryId, i64)]) -> Done<()> {
        for (id, position) in items {
            let mut row = self.existing_row(*id)?;
            self.step(&mut row, DeliveryStep::Replay)?;
            row.epoch += u32::from(job.mode == ReplayMode::ReExecute);
            (row.attempts, row.crashes, row.token) = (0, 0, None);
            (row.due_at, row.deliver_until, row.completed_at) = (self.now, None, None);
            row.item = Some((job.id, *position));
            self.save(&mut row)?;
        }
        Ok(())
    }

    async fn execute_again(&mut self, job: JobId, items: &[(DeliveryId, i64)]) -> Done<()> {
        for (id, position) in items {
            let done = self.existing_row(*id)?;
            let (event, epoch) = (done.event, done.epoch + 1);
            self.add_row(Row { epoch, item: Some((job, *position)), ..done.begun(self.now) })?;
            self.unsettle(event, 1)?;
        }
        Ok(())
    }

    async fn accept_items(&mut self, job: JobId, events: &[(NewEvent, i64)]) -> Done<Vec<[u8; 16]>> {
        let mut accepted = Vec::with_capacity(events.len());
        for (event, position) in events {
            if self.known(event)?.is_some() {
                continue;
            }
            let number = self.add_event(event)?;
            for target in targets(event) {
                let row = self.first_row(event, number, target);
                self.add_row(Row { item: Some((job, *position)), ..row })?;
            }
            accepted.push(event.id.to_bytes());
        }
        Ok(accepted)
    }

    async fn save_items(&mut self, job: JobId, results: &[ItemResult]) -> Done<()> {
        for result in results {
            let ItemResult { position, state, error, new_event, letter } = result;
            self.execute(
                "UPDATE ledger_item SET state = ?3, new_event = ?4, error = ?5 WHERE job = ?1 AND position = ?2",
                params![job.to_bytes(), position, state.as_str(), new_event.map(EventId::to_bytes), error],
            )?;
            self.count_item(job, ItemState::Pending, *state)?;
            if let Some((id, _, next)) = letter
                && let Some(found) = self.find_letter(*id)?
            {
                self.set_letter_status(found.number, *next)?;
            }
        }
        Ok(())
    }
}

impl Work<'_> {
    /// A delivery that another row names.
    fn existing_row(&self, id: DeliveryId) -> Done<Row> {
        self.find_row(id)?.ok_or_else(|| broken(&format!("there is no delivery {id}")))
    }
}
