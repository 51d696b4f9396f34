//! What only runs have: changes, cancelling, keys that are reset.

use semel::fingerprint::Fingerprint;
use semel::key::KeyId;
use semel::store::rusqlite::{OptionalExtension as _, params};

use super::EmbeddedLedger;
use super::columns::{Columns, integer, json, micros};
use super::intake::key_state;
use super::reading;
use super::work::{Done, Fault, Work, not_found, refused};
use crate::delivery::{Impossible, State, Step};
use crate::event::{Event, Generation};
use crate::id::{EventId, EventKind};
use crate::ledger::{Answer, AuditLine, Change, Error, Ledger, Reset, Runs};
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
        Box::pin(std::future::ready(self.read(|connection| {
            let winner = connection
                .prepare_cached("SELECT winner FROM ledger_aliases WHERE ghost = ?1")?
                .query_row([ghost.to_bytes()], |row| row.get(0))
                .optional()?;
            Ok(winner.map(|winner| EventId::from_bytes(EventKind::Run, winner)))
        })))
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
        Box::pin(std::future::ready(self.read(|connection| {
            let found = connection
                .prepare_cached(
                    "SELECT kind, id FROM ledger_events AS e
                     WHERE dedupe = ?1 AND generation = ?2 AND fingerprint = ?3 AND NOT EXISTS (
                         SELECT 1 FROM ledger_dedupe AS d WHERE d.id = e.dedupe AND d.event = e.id)
                     ORDER BY number LIMIT 1",
                )?
                .query_row(
                    params![dedupe.as_bytes(), integer(generation.get()), fingerprint.as_bytes()],
                    |row| {
                        let mut columns = Columns::of(row);
                        let kind = columns.name(EventKind::from_name)?;
                        Ok(EventId::from_bytes(kind, columns.get()?))
                    },
                )
                .optional()?;
            Ok(found)
        })))
    }
}

impl Work<'_> {
    pub(super) fn change(&mut self, id: EventId, change: &Change, version: Option<u64>) -> Done<Event> {
        let (number, mut event) = reading::event(self.sql, id)?.ok_or_else(|| not_found("event", id))?;
        if version.is_some_and(|version| version != event.version) {
            return Err(Fault::Told(Error::Stale));
        }
        // Before anything is written: a caller may go on after a refusal.
        event.new.notes.apply(change).map_err(refused)?;
        if let Some(delay) = change.delay {
            let rows = self.rows_of(number)?;
            if let Some(started) = rows.iter().find(|row| !has_not_started(row.state)) {
                return Err(Impossible { state: started.state, step: Step::Enqueue }.into());
            }
            for mut row in rows {
                row.due_at = self.now.after(delay);
                self.save(&mut row)?;
            }
        }
        event.version += 1;
        self.sql
            .prepare_cached(
                "UPDATE ledger_events SET tags = ?2, metadata = ?3, changes = ?4, version = version + 1
                 WHERE number = ?1",
            )?
            .execute(params![
                number,
                json(&event.new.notes.tags),
                json(&event.new.notes.metadata),
                integer(event.changes)
            ])?;
        for tag in &change.add_tags {
            self.add_tag(number, tag)?;
        }
        Ok(event)
    }

    pub(super) fn cancel(&mut self, id: EventId, line: &AuditLine) -> Done<u32> {
        let (number, _) = reading::event(self.sql, id)?.ok_or_else(|| not_found("event", id))?;
        let (mut cancelled, mut first) = (0, None);
        for mut row in self.rows_of(number)? {
            first = first.or(Some(row.state));
            if row.state.after(Step::Cancel).is_err() {
                continue;
            }
            self.step(&mut row, Step::Cancel)?;
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
            Some(state) if cancelled == 0 => Err(Impossible { state, step: Step::Cancel }.into()),
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
        self.sql.prepare_cached("DELETE FROM ledger_dedupe WHERE id = ?1")?.execute([dedupe.as_bytes()])?;
        self.sql
            .prepare_cached(
                "INSERT OR REPLACE INTO ledger_generations (id, generation, changed_at) VALUES (?1, ?2, ?3)",
            )?
            .execute(params![dedupe.as_bytes(), integer(next.get()), micros(self.now)])?;
        Ok(next)
    }
}

/// Whether a delivery can still be put off.
fn has_not_started(state: State) -> bool {
    matches!(state, State::Idle | State::Queued)
}
