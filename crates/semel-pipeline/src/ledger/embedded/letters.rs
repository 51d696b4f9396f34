//! Dead letters: looking at them, and what people do with them.

use semel::store::rusqlite::{OptionalExtension as _, params};

use super::EmbeddedLedger;
use super::columns::micros;
use super::database::now;
use super::work::{Done, Work};
use crate::event::{Accepted, NewEvent};
use crate::id::LetterId;
use crate::ledger::sql::{letters, not_found};
use crate::ledger::{Answer, AuditLine, LetterFilter, Letters, Page, Paged, rules};
use crate::letter::{Cause, FailureGroup, Letter, LetterStory, NewLetter, Status};

impl Letters for EmbeddedLedger {
    fn put(&self, letters: Vec<NewLetter>) -> Answer<'_, Vec<LetterId>> {
        Box::pin(self.write(move |work, _| letters.iter().map(|letter| work.put(letter)).collect()))
    }

    fn letter(&self, id: LetterId) -> Answer<'_, Option<LetterStory>> {
        Box::pin(async move { self.read(|db| now(letters::story(db, id))) })
    }

    fn letters(&self, filter: LetterFilter, page: Page) -> Answer<'_, Paged<Letter>> {
        Box::pin(async move { self.read(|db| now(letters::letters(db, &filter, &page))) })
    }

    fn groups(&self, filter: LetterFilter) -> Answer<'_, Vec<FailureGroup>> {
        Box::pin(async move { self.read(|db| now(letters::groups(db, &filter))) })
    }

    fn discard(&self, id: LetterId, line: AuditLine) -> Answer<'_, ()> {
        Box::pin(self.write(move |work, _| work.discard(id, &line)))
    }

    fn restore(&self, id: LetterId, line: AuditLine) -> Answer<'_, ()> {
        Box::pin(self.write(move |work, _| work.restore(id, &line)))
    }

    fn edit(&self, id: LetterId, copy: NewEvent, line: AuditLine) -> Answer<'_, LetterId> {
        Box::pin(self.write(move |work, _| work.edit(id, &copy, &line)))
    }

    fn unmirrored(&self, stream: String, limit: u32) -> Answer<'_, Vec<Letter>> {
        Box::pin(async move { self.read(|db| now(letters::unmirrored(db, &stream, limit))) })
    }

    fn mirrored(&self, letters: Vec<LetterId>) -> Answer<'_, ()> {
        Box::pin(self.write(move |work, _| now(letters::mirrored(&mut work.reader(), &letters))))
    }
}

impl Work<'_> {
    fn discard(&mut self, id: LetterId, line: &AuditLine) -> Done<()> {
        let row = self.find_letter(id)?.ok_or_else(|| not_found("dead letter", id))?;
        let Some(status) = rules::discard(id, row.status)? else { return Ok(()) };
        self.set_letter_status(row.number, status)?;
        self.letter_settles(row, -1)?;
        self.audit(line)
    }

    fn restore(&mut self, id: LetterId, line: &AuditLine) -> Done<()> {
        let row = self.find_letter(id)?.ok_or_else(|| not_found("dead letter", id))?;
        let state = row.delivery.map(|delivery| self.row(delivery)).transpose()?.map(|row| row.state);
        let Some(status) = rules::restore(id, row.status, state)? else { return Ok(()) };
        if row.status == Status::Discarded {
            self.letter_settles(row, 1)?;
        }
        self.set_letter_status(row.number, status)?;
        self.sql
            .prepare_cached("UPDATE ledger_dead_letter SET failed_replays = 0 WHERE number = ?1")?
            .execute([row.number])?;
        self.audit(line)
    }

    fn edit(&mut self, id: LetterId, copy: &NewEvent, line: &AuditLine) -> Done<LetterId> {
        if self.find_letter(id)?.is_none() {
            return Err(not_found("dead letter", id).into());
        }
        let target = rules::target_of_copy(copy)?;
        match self.known(copy)? {
            None => {}
            Some(Accepted::Cached(there)) if there == copy.id => {
                let made: Option<[u8; 16]> = self
                    .sql
                    .prepare_cached(
                        "SELECT l.id FROM ledger_dead_letter AS l JOIN ledger_event AS e ON e.number = l.event
                         WHERE e.id = ?1 AND l.copy_of = ?2",
                    )?
                    .query_row([copy.id.to_bytes(), id.to_bytes()], |row| row.get(0))
                    .optional()?;
                return made
                    .map(LetterId::from_bytes)
                    .ok_or_else(|| rules::id_of_copy_is_taken(copy.id).into());
            }
            Some(_) => return Err(rules::key_of_copy_is_taken().into()),
        }
        let number = self.add_event(copy)?;
        let row = self.first_row(copy, number, target);
        let made = self.add_dead_row(row, rules::error_of_copy(id), Cause::Manual, Some(id))?;
        self.sql
            .prepare_cached("UPDATE ledger_dead_letter SET updated_at = ?2 WHERE id = ?1")?
            .execute(params![id.to_bytes(), micros(self.now)])?;
        self.audit(line)?;
        Ok(made)
    }
}
