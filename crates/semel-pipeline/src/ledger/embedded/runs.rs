//! What only runs have: changes, cancelling, keys that are reset.

use semel::fingerprint::Fingerprint;
use semel::key::KeyId;
use semel::store::rusqlite::params;

use super::EmbeddedLedger;
use super::columns::micros;
use super::database::now;
use super::intake::key_state;
use super::work::{Done, Work};
use crate::delivery::{DeliveryStep, Impossible};
use crate::event::{Event, Generation};
use crate::id::EventId;
use crate::ledger::sql::{bigint, not_found, reading, runs, to_json};
use crate::ledger::{Answer, AuditLine, Change, Ledger, Reset, Runs, rules};
use crate::letter::Status;
use crate::replay::ItemState;

impl Ledger for EmbeddedLedger {}

impl Runs for EmbeddedLedger {
    fn change(&self, id: EventId, change: Change, version: Option<u64>) -> Answer<'_, Event> {
        Box::pin(self.write(move |work, _| work.change(id, &change, version)))
    }

    fn cancel(&self, id: EventId, line: AuditLine) -> Answer<'_, u32> {
        Box::pin(self.write(move |work, _| work.cancel(id, &line)))
    }

    fn resolve(&self, ghost: EventId) -> Answer<'_, Option<EventId>> {
        Box::pin(async move { self.read(|db| now(runs::resolve(db, ghost))) })
    }

    fn reset(&self, dedupe: KeyId, line: AuditLine) -> Answer<'_, Reset> {
        Box::pin(self.write(move |work, _| work.reset(dedupe, &line)))
    }

    fn advance(&self, dedupe: KeyId, from: Generation) -> Answer<'_, Generation> {
        Box::pin(self.write(move |work, _| {
            let key = key_state(work.sql, dedupe, work.now)?;
            if key.generation > from { Ok(key.generation) } else { work.end_generation(dedupe, from) }
        }))
    }

    fn find_keyless(
        &self,
        dedupe: KeyId,
        generation: Generation,
        fingerprint: Fingerprint,
    ) -> Answer<'_, Option<EventId>> {
        Box::pin(async move { self.read(|db| now(runs::find_keyless(db, dedupe, generation, fingerprint))) })
    }
}

impl Work<'_> {
    /// An event that must be there, with its number.
    fn event(&self, id: EventId) -> Done<(i64, Event)> {
        let found = now(reading::numbered_event(&mut self.reader(), id))?;
        Ok(found.ok_or_else(|| not_found("event", id))?)
    }

    pub(super) fn change(&mut self, id: EventId, change: &Change, version: Option<u64>) -> Done<Event> {
        let (number, mut event) = self.event(id)?;
        // Before anything is written: a caller may go on after a refusal.
        rules::change(&mut event, change, version)?;
        if let Some(delay) = change.delay {
            let rows = self.rows_of(number)?;
            rules::check_not_started(rows.iter().map(|row| row.state))?;
            for mut row in rows {
                row.due_at = self.now.after(delay);
                self.save(&mut row)?;
            }
        }
        self.sql
            .prepare_cached(
                "UPDATE ledger_event SET tags = ?2, metadata = ?3, changes = ?4, version = version + 1
                 WHERE number = ?1",
            )?
            .execute(params![
                number,
                to_json(&event.new.notes.tags),
                to_json(&event.new.notes.metadata),
                bigint(event.changes)
            ])?;
        for tag in &change.add_tags {
            self.add_tag(number, tag)?;
        }
        Ok(event)
    }

    pub(super) fn cancel(&mut self, id: EventId, line: &AuditLine) -> Done<u32> {
        let (number, _) = self.event(id)?;
        let (mut cancelled, mut first) = (0, None);
        for mut row in self.rows_of(number)? {
            first = first.or(Some(row.state));
            if row.state.after(DeliveryStep::Cancel).is_err() {
                continue;
            }
            self.step(&mut row, DeliveryStep::Cancel)?;
            row.completed_at = Some(self.now);
            self.end_item(&mut row, ItemState::Cancelled, Some("it was cancelled"), Status::Discarded)?;
            if let Some(letter) = row.letter {
                self.set_letter_status(letter, Status::Discarded)?;
            }
            self.save(&mut row)?;
            self.unsettle(number, -1)?;
            cancelled += 1;
        }
        match first {
            Some(state) if cancelled == 0 => Err(Impossible { state, step: DeliveryStep::Cancel }.into()),
            _ => {
                self.audit(line)?;
                Ok(cancelled)
            }
        }
    }

    fn reset(&self, dedupe: KeyId, line: &AuditLine) -> Done<Reset> {
        let key = key_state(self.sql, dedupe, self.now)?;
        self.end_generation(dedupe, key.generation)?;
        self.audit(line)?;
        Ok(Reset { ended: key.generation, holder: key.live().map(|holder| holder.event) })
    }

    /// Ends a generation of a key: nothing holds the key in the next one yet.
    fn end_generation(&self, dedupe: KeyId, ended: Generation) -> Done<Generation> {
        let next = ended.next(self.now);
        self.sql.prepare_cached("DELETE FROM ledger_key WHERE dedupe = ?1")?.execute([dedupe.as_bytes()])?;
        self.sql
            .prepare_cached(
                "INSERT OR REPLACE INTO ledger_generation (dedupe, generation, changed_at) VALUES (?1, ?2, ?3)",
            )?
            .execute(params![dedupe.as_bytes(), bigint(next.get()), micros(self.now)])?;
        Ok(next)
    }
}
