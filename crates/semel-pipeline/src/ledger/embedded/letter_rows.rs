//! How dead letters are written: with the burial of a delivery, again when a replay failed, and when their status changes.

use semel::store::rusqlite::{self, params};

use super::broken;
use super::columns::micros;
use super::rows::Row;
use super::work::{Done, Work};
use crate::delivery::{DeliveryState, Ending};
use crate::event::Origin;
use crate::id::LetterId;
use crate::ledger::sql::{Columns as _, to_json};
use crate::letter::{Cause, NewLetter, PARKED_AFTER, Signature, SourceMessage, Status};

/// What steps need to know of a letter.
#[derive(Clone, Copy, Debug)]
pub(super) struct LetterRow {
    pub(super) number: i64,
    pub(super) delivery: Option<i64>,
    pub(super) status: Status,
}

impl Work<'_> {
    pub(super) fn find_letter(&self, id: LetterId) -> rusqlite::Result<Option<LetterRow>> {
        let sql = "SELECT number, delivery, status FROM ledger_dead_letter WHERE id = ?1";
        self.one(sql, [id.to_bytes()], |columns| {
            let (number, delivery) = (columns.get()?, columns.get()?);
            Ok(LetterRow { number, delivery, status: columns.name(Status::from_name)? })
        })
    }

    /// Adds a delivery that is dead from the start, with its letter. Answers the letter's id.
    pub(super) fn add_dead_row(
        &mut self,
        mut row: Row,
        error: String,
        cause: Cause,
        copy_of: Option<LetterId>,
    ) -> Done<LetterId> {
        row.state = DeliveryState::Dlq;
        row.error = Some(error.clone());
        row.completed_at = Some(self.now);
        let mut row = self.add_row(row)?;
        let (letter, id) = self.bury(&row, &Ending::deferred(error), cause, copy_of)?;
        row.letter = Some(letter);
        self.save(&mut row)?;
        Ok(id)
    }

    /// Writes the dead letter of a delivery. Answers its number and id.
    pub(super) fn bury(
        &mut self,
        row: &Row,
        ending: &Ending,
        cause: Cause,
        copy_of: Option<LetterId>,
    ) -> Done<(i64, LetterId)> {
        let id = LetterId::new(self.now);
        let source = self.source_of(row.event)?;
        let signature = Signature::of(Some(&row.target), cause, ending.status, &ending.error);
        self.execute(
            "INSERT INTO ledger_dead_letter (id, tenant, event, delivery, target, event_type, stream, message, cause,
                    error, signature, status, attempts, last_attempt_at, failed_replays, copy_of, mirrored, created_at,
                    updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 'pending', ?12, ?13, 0, ?14, 0, ?15, ?15)",
            params![
                id.to_bytes(),
                row.tenant,
                row.event,
                row.number,
                row.target,
                row.event_type,
                source.as_ref().map(|source| source.stream.as_str()),
                source.as_ref().map(|source| source.message.as_str()),
                cause.as_str(),
                ending.error,
                signature.as_str(),
                row.total_attempts,
                (row.last_attempt > 0).then(|| micros(self.now)),
                copy_of.map(LetterId::to_bytes),
                micros(self.now),
            ],
        )?;
        let number = self.sql.last_insert_rowid();
        self.count_letter(Status::Pending, 1);
        Ok((number, id))
    }

    /// A replay failed: the same letter is pending again, or parked.
    pub(super) fn bury_again(
        &mut self,
        letter: i64,
        row: &Row,
        ending: &Ending,
        cause: Option<Cause>,
    ) -> Done<()> {
        let sql = "SELECT cause, failed_replays FROM ledger_dead_letter WHERE number = ?1";
        let found =
            self.one(sql, [letter], |columns| Ok((columns.name(Cause::from_name)?, columns.get::<u32>()?)))?;
        let (kept, failed) = found.ok_or_else(|| broken(&format!("there is no letter {letter}")))?;
        let (cause, failed) = (cause.unwrap_or(kept), failed.saturating_add(1));
        let signature = Signature::of(Some(&row.target), cause, ending.status, &ending.error);
        let (signature, attempts, now) = (signature.as_str(), row.total_attempts, micros(self.now));
        self.execute(
            "UPDATE ledger_dead_letter SET cause = ?2, error = ?3, signature = ?4, attempts = ?5, last_attempt_at = ?6,
                    failed_replays = ?7
             WHERE number = ?1",
            params![letter, cause.as_str(), ending.error, signature, attempts, now, failed],
        )?;
        let status = if failed >= PARKED_AFTER { Status::Parked } else { Status::Pending };
        self.set_letter_status(letter, status)
    }

    /// Writes a letter that no delivery stands behind, unless its message has one. Answers the id it is kept under.
    pub(super) fn put(&mut self, letter: &NewLetter) -> Done<LetterId> {
        let sql = "SELECT id FROM ledger_dead_letter WHERE stream = ?1 AND message = ?2 AND delivery IS NULL";
        let SourceMessage { stream, message } = &letter.source;
        if let Some(id) = self.one(sql, [stream, message], |columns| columns.id())? {
            return Ok(LetterId::from_bytes(id));
        }
        let signature = Signature::of(None, letter.cause, None, &letter.error);
        self.execute(
            "INSERT INTO ledger_dead_letter (id, tenant, stream, message, payload, content_type, headers, cause, error,
                    signature, status, attempts, last_attempt_at, failed_replays, mirrored, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 'pending', ?11, ?12, 0, 0, ?13, ?13)",
            params![
                letter.id.to_bytes(),
                letter.tenant,
                stream,
                message,
                &letter.payload[..],
                letter.content_type,
                to_json(&letter.headers),
                letter.cause.as_str(),
                letter.error,
                signature.as_str(),
                letter.attempts,
                (letter.attempts > 0).then(|| micros(self.now)),
                micros(self.now),
            ],
        )?;
        self.count_letter(Status::Pending, 1);
        Ok(letter.id)
    }

    /// Gives a letter another status.
    pub(super) fn set_letter_status(&mut self, letter: i64, status: Status) -> Done<()> {
        let sql = "SELECT status FROM ledger_dead_letter WHERE number = ?1";
        let before = self.one(sql, [letter], |columns| columns.name(Status::from_name))?;
        let before = before.ok_or_else(|| broken(&format!("there is no letter {letter}")))?;
        self.execute(
            "UPDATE ledger_dead_letter SET status = ?2, updated_at = ?3 WHERE number = ?1",
            params![letter, status.as_str(), micros(self.now)],
        )?;
        self.count_letter(before, -1);
        self.count_letter(status, 1);
        Ok(())
    }

    /// The letter that was replayed as new is over: the new event carries its story on.
    pub(super) fn end_original(&mut self, letter: LetterId, status: Status) -> Done<()> {
        let Some(row) = self.find_letter(letter)? else { return Ok(()) };
        if row.status != Status::Replaying {
            return Ok(());
        }
        self.set_letter_status(row.number, status)?;
        self.letter_settles(row, -1)
    }

    /// A delivery that is in `dlq` keeps its event from being swept while its letter is not dealt with.
    pub(super) fn letter_settles(&self, letter: LetterRow, by: i64) -> Done<()> {
        let Some(delivery) = letter.delivery else { return Ok(()) };
        let row = self.row(delivery)?;
        if row.state == DeliveryState::Dlq {
            self.unsettle(row.event, by)?;
        }
        Ok(())
    }

    /// The message that an event came as, where it came from a stream.
    fn source_of(&self, event: i64) -> rusqlite::Result<Option<SourceMessage>> {
        let sql = "SELECT origin FROM ledger_event WHERE number = ?1";
        Ok(match self.one(sql, [event], |columns| columns.origin())? {
            Some(Origin::Stream { stream, message }) => Some(SourceMessage { stream, message }),
            Some(Origin::Api { .. } | Origin::Outbox | Origin::Replay { .. }) | None => None,
        })
    }
}
