//! Dead letters: looking at them, and what people do with them.

use bytes::Bytes;
use semel::store::rusqlite::{self, Connection, OptionalExtension as _, params};

use super::EmbeddedLedger;
use super::columns::{Columns, micros};
use super::page::{Listing, look_at, position};
use super::reading;
use super::work::{Done, Work, not_found, refused};
use crate::delivery::{Class, Ending, State};
use crate::event::{Accepted, NewEvent};
use crate::id::{DeliveryId, EventId, EventKind, LetterId};
use crate::ledger::{Answer, AuditLine, LetterFilter, Letters, Page, Paged};
use crate::letter::{Cause, Group, Letter, LetterStory, NewLetter, Signature, SourceMessage, Status};

impl Letters for EmbeddedLedger {
    fn put(&self, letters: Vec<NewLetter>) -> Answer<'_, Vec<LetterId>> {
        Box::pin(self.write(move |work, _| letters.iter().map(|letter| work.put(letter)).collect()))
    }

    fn letter(&self, id: LetterId) -> Answer<'_, Option<LetterStory>> {
        Box::pin(async move { self.read(|connection| Ok(story(connection, id)?)) })
    }

    fn letters(&self, filter: LetterFilter, page: Page) -> Answer<'_, Paged<Letter>> {
        Box::pin(async move { self.read(|connection| letters(connection, &filter, &page)) })
    }

    fn groups(&self, filter: LetterFilter) -> Answer<'_, Vec<Group>> {
        Box::pin(async move { self.read(|connection| Ok(groups(connection, &filter)?)) })
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
        Box::pin(async move {
            self.read(|connection| {
                let mut statement = connection.prepare_cached(&format!(
                    "SELECT {LETTER} WHERE l.number IN (
                         SELECT number FROM ledger_letters INDEXED BY ledger_letters_unmirrored
                         WHERE stream = ?1 AND stream IS NOT NULL AND mirrored = 0 ORDER BY number LIMIT ?2)
                     ORDER BY l.number"
                ))?;
                let found = statement.query_map(params![stream, limit], read_letter)?;
                Ok(found.map(|row| row.map(|(_, _, letter)| letter)).collect::<rusqlite::Result<_>>()?)
            })
        })
    }

    fn mirrored(&self, letters: Vec<LetterId>) -> Answer<'_, ()> {
        Box::pin(self.write(move |work, _| {
            let mut statement =
                work.sql.prepare_cached("UPDATE ledger_letters SET mirrored = 1 WHERE id = ?1")?;
            for letter in letters {
                statement.execute([letter.to_bytes()])?;
            }
            Ok(())
        }))
    }
}

const LETTER: &str = "l.number, l.delivery, l.id, l.tenant, e.kind, e.id, d.id, l.target, l.type, l.stream, l.message, coalesce(l.payload, p.payload), coalesce(l.content_type, e.content_type), coalesce(l.headers, e.headers), l.cause, l.error, l.signature, l.status, l.attempts, l.last_attempt_at, l.failed_replays, l.copy_of, l.created_at, l.updated_at FROM ledger_letters AS l LEFT JOIN ledger_events AS e ON e.number = l.event LEFT JOIN ledger_deliveries AS d ON d.number = l.delivery LEFT JOIN ledger_payloads AS p ON p.event = l.event";

/// A letter with its own number and its delivery's.
fn read_letter(row: &rusqlite::Row<'_>) -> rusqlite::Result<(i64, Option<i64>, Letter)> {
    let mut columns = Columns::of(row);
    let (number, delivery) = (columns.get()?, columns.get()?);
    let (id, tenant) = (LetterId::from_bytes(columns.get()?), columns.get()?);
    let kind = columns.maybe_name(EventKind::from_name)?;
    let event = kind.zip(columns.get()?).map(|(kind, id)| EventId::from_bytes(kind, id));
    let delivery_id = columns.get::<Option<[u8; 16]>>()?.map(DeliveryId::from_bytes);
    let (target, event_type) = (columns.get()?, columns.get()?);
    let stream: Option<String> = columns.get()?;
    let source = stream.zip(columns.get()?).map(|(stream, message)| SourceMessage { stream, message });
    let letter = Letter {
        id,
        tenant,
        event,
        delivery: delivery_id,
        target,
        event_type,
        source,
        payload: Bytes::from(columns.get::<Vec<u8>>()?),
        content_type: columns.get()?,
        headers: columns.json()?,
        cause: columns.name(Cause::from_name)?,
        error: columns.get()?,
        signature: Signature::from_kept(columns.get::<String>()?),
        status: columns.name(Status::from_name)?,
        attempts: columns.get()?,
        last_attempt_at: columns.maybe_time()?,
        failed_replays: columns.get()?,
        copy_of: columns.get::<Option<[u8; 16]>>()?.map(LetterId::from_bytes),
        created_at: columns.time()?,
        updated_at: columns.time()?,
    };
    Ok((number, delivery, letter))
}

fn story(connection: &Connection, id: LetterId) -> rusqlite::Result<Option<LetterStory>> {
    let found = connection
        .prepare_cached(&format!("SELECT {LETTER} WHERE l.id = ?1"))?
        .query_row([id.to_bytes()], read_letter)
        .optional()?;
    let Some((_, delivery, letter)) = found else { return Ok(None) };
    let attempts = match delivery.zip(letter.delivery) {
        Some((number, id)) => reading::attempts(connection, number, id)?,
        None => Vec::new(),
    };
    let copies = connection
        .prepare_cached("SELECT id FROM ledger_letters WHERE copy_of = ?1 ORDER BY number")?
        .query_map([id.to_bytes()], |row| row.get(0).map(LetterId::from_bytes))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Some(LetterStory { letter, attempts, copies }))
}

fn letters(connection: &Connection, filter: &LetterFilter, page: &Page) -> Done<Paged<Letter>> {
    let LetterFilter { status, tenant, target, signature } = filter;
    let status_name = status.map(Status::as_str);
    let (by, with) = match (signature, status_name) {
        (Some(signature), _) => ("l.signature = ?3 AND", Some(signature.as_str())),
        (None, Some(status)) => ("l.status = ?3 AND", Some(status)),
        (None, None) => ("?3 IS NULL AND", None),
    };
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {LETTER} WHERE {by} l.number < ?1 ORDER BY l.number DESC LIMIT ?2"
    ))?;
    let mut listing = Listing::of(page);
    for row in statement.query_map(params![position(page)?, look_at(), with], read_letter)? {
        let (number, _, letter) = row?;
        let wanted = status.is_none_or(|status| status == letter.status)
            && tenant.as_ref().is_none_or(|tenant| *tenant == letter.tenant)
            && target.as_ref().is_none_or(|target| Some(target) == letter.target.as_ref());
        if !listing.look(number, wanted.then_some(letter)) {
            break;
        }
    }
    Ok(listing.end())
}

fn groups(connection: &Connection, filter: &LetterFilter) -> rusqlite::Result<Vec<Group>> {
    let LetterFilter { status, tenant, target, signature } = filter;
    let mut statement = connection.prepare_cached(
        "SELECT signature, target, cause, status, count(*), min(created_at), max(created_at), max(number)
         FROM ledger_letters
         WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR tenant = ?2) AND (?3 IS NULL OR target = ?3)
           AND (?4 IS NULL OR signature = ?4)
         GROUP BY signature, target, cause, status",
    )?;
    let mut rows = statement.query(params![status.map(Status::as_str), tenant, target, signature])?;
    // Each with the number of its newest letter.
    let mut groups: Vec<(i64, Group)> = Vec::new();
    while let Some(row) = rows.next()? {
        let mut columns = Columns::of(row);
        let signature = Signature::from_kept(columns.get::<String>()?);
        let target: Option<String> = columns.get()?;
        let cause = columns.name(Cause::from_name)?;
        let count = (columns.name(Status::from_name)?, columns.count()?);
        let (first_at, last_at) = (columns.time()?, columns.time()?);
        let newest: i64 = columns.get()?;
        match groups.last_mut() {
            Some((seen, group))
                if group.signature == signature && group.target == target && group.cause == cause =>
            {
                group.counts.push(count);
                group.first_at = group.first_at.min(first_at);
                group.last_at = group.last_at.max(last_at);
                *seen = newest.max(*seen);
            }
            _ => {
                let (sample, error) = (LetterId::from_bytes([0; 16]), String::new());
                let counts = vec![count];
                let group = Group { signature, target, cause, counts, first_at, last_at, sample, error };
                groups.push((newest, group));
            }
        }
    }
    let mut newest = connection.prepare_cached("SELECT id, error FROM ledger_letters WHERE number = ?1")?;
    let mut told = Vec::with_capacity(groups.len());
    for (number, mut group) in groups {
        (group.sample, group.error) =
            newest.query_row([number], |row| Ok((LetterId::from_bytes(row.get(0)?), row.get(1)?)))?;
        told.push(group);
    }
    told.sort_by_key(|group| std::cmp::Reverse(group.counts.iter().map(|(_, count)| *count).sum::<u64>()));
    Ok(told)
}

impl Work<'_> {
    fn discard(&mut self, id: LetterId, line: &AuditLine) -> Done<()> {
        let row = self.find_letter(id)?.ok_or_else(|| not_found("dead letter", id))?;
        match row.status {
            Status::Discarded => return Ok(()),
            Status::Pending | Status::Parked => {}
            Status::Replaying => {
                return Err(refused(format!(
                    "{id} is being replayed: wait for what becomes of it, or cancel its job"
                )));
            }
            Status::Replayed => {
                return Err(refused(format!("{id} was delivered after all: there is nothing to give up")));
            }
        }
        self.set_letter_status(row.number, Status::Discarded)?;
        self.letter_settles(row, -1)?;
        Ok(self.audit(line)?)
    }

    fn restore(&mut self, id: LetterId, line: &AuditLine) -> Done<()> {
        let row = self.find_letter(id)?.ok_or_else(|| not_found("dead letter", id))?;
        match row.status {
            Status::Pending => return Ok(()),
            Status::Discarded | Status::Parked => {}
            Status::Replaying => return Err(refused(format!("{id} is being replayed: it is not given up"))),
            Status::Replayed => {
                return Err(refused(format!("{id} was delivered after all: there is nothing to restore")));
            }
        }
        if let Some(delivery) = row.delivery
            && self.row(delivery)?.state == State::Cancelled
        {
            return Err(refused(format!("the delivery of {id} was cancelled: publish its event anew")));
        }
        if row.status == Status::Discarded {
            self.letter_settles(row, 1)?;
        }
        self.set_letter_status(row.number, Status::Pending)?;
        self.sql
            .prepare_cached("UPDATE ledger_letters SET failed_replays = 0 WHERE number = ?1")?
            .execute([row.number])?;
        Ok(self.audit(line)?)
    }

    fn edit(&mut self, id: LetterId, copy: &NewEvent, line: &AuditLine) -> Done<LetterId> {
        if self.find_letter(id)?.is_none() {
            return Err(not_found("dead letter", id));
        }
        let [target] = &copy.targets[..] else {
            return Err(refused("an edited copy is for one target: name the one that the letter was for"));
        };
        match self.known(copy)? {
            None => {}
            Some(Accepted::Cached(there)) if there == copy.id => {
                let made: Option<[u8; 16]> = self
                    .sql
                    .prepare_cached(
                        "SELECT l.id FROM ledger_letters AS l JOIN ledger_events AS e ON e.number = l.event
                         WHERE e.id = ?1 AND l.copy_of = ?2",
                    )?
                    .query_row([copy.id.to_bytes(), id.to_bytes()], |row| row.get(0))
                    .optional()?;
                return made.map(LetterId::from_bytes).ok_or_else(|| {
                    refused(format!("{} is another event already: give the copy an id of its own", copy.id))
                });
            }
            Some(_) => {
                return Err(refused(
                    "the dedupe key of the copy is taken: give the copy a key of its own, or none",
                ));
            }
        }
        let number = self.add_event(copy)?;
        let mut row = self.first_row(copy, number, target);
        let error = format!("an edited copy of {id}, not sent yet");
        row.state = State::Dlq;
        row.error = Some(error.clone());
        row.completed_at = Some(self.now);
        let mut row = self.add_row(row)?;
        let ending =
            Ending { class: Class::Deferred, status: None, error, excerpt: String::new(), retry_after: None };
        let (letter, made) = self.bury(&row, &ending, Cause::Manual, Some(id))?;
        row.letter = Some(letter);
        self.save(&mut row)?;
        self.sql
            .prepare_cached("UPDATE ledger_letters SET updated_at = ?2 WHERE id = ?1")?
            .execute(params![id.to_bytes(), micros(self.now)])?;
        self.audit(line)?;
        Ok(made)
    }
}
