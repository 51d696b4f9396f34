//! Dead letters: looking at them, and what people do with them.

use super::PostgresLedger;
use super::database::Db;
use super::fault::Fault;
use super::intake::{self, Batch};
use super::link::Shape;
use super::values::{check_text, integer, plain};
use crate::delivery::DeliveryState;
use crate::event::NewEvent;
use crate::id::LetterId;
use crate::ledger::sql::{Database as _, letters, not_found, reading, to_json};
use crate::ledger::{Answer, AuditLine, Error, LetterFilter, Letters, Page, Paged, rules};
use crate::letter::{Cause, FailureGroup, Letter, LetterStory, NewLetter, Signature, Status};

impl Letters for PostgresLedger {
    fn put(&self, letters: Vec<NewLetter>) -> Answer<'_, Vec<LetterId>> {
        Box::pin(async move {
            for letter in &letters {
                check_text("the tenant", &letter.tenant)?;
                check_text("the name of a stream", &letter.source.stream)?;
                check_text("the id of a message", &letter.source.message)?;
            }
            self.call(Shape::Transaction, letters, |db, letters| Box::pin(put(db, letters))).await
        })
    }

    fn letter(&self, id: LetterId) -> Answer<'_, Option<LetterStory>> {
        self.call(Shape::Read, id, |db, id| Box::pin(letters::story(db, *id)))
    }

    fn letters(&self, filter: LetterFilter, page: Page) -> Answer<'_, Paged<Letter>> {
        self.call(Shape::Read, (filter, page), |db, (filter, page)| {
            Box::pin(letters::letters(db, filter, page))
        })
    }

    fn groups(&self, filter: LetterFilter) -> Answer<'_, Vec<FailureGroup>> {
        self.call(Shape::Read, filter, |db, filter| Box::pin(letters::groups(db, filter)))
    }

    fn discard(&self, id: LetterId, line: AuditLine) -> Answer<'_, ()> {
        self.call(Shape::Transaction, (id, line), |db, (id, line)| Box::pin(discard(db, *id, line)))
    }

    fn restore(&self, id: LetterId, line: AuditLine) -> Answer<'_, ()> {
        self.call(Shape::Transaction, (id, line), |db, (id, line)| Box::pin(restore(db, *id, line)))
    }

    fn edit(&self, id: LetterId, copy: NewEvent, line: AuditLine) -> Answer<'_, LetterId> {
        Box::pin(async move {
            intake::check(&copy)?;
            let asked = (id, copy, line);
            self.call(Shape::Transaction, asked, |db, (id, copy, line)| Box::pin(edit(db, *id, copy, line)))
                .await
        })
    }

    fn unmirrored(&self, stream: String, limit: u32) -> Answer<'_, Vec<Letter>> {
        self.call(Shape::Read, (stream, limit), |db, (stream, limit)| {
            Box::pin(letters::unmirrored(db, stream, *limit))
        })
    }

    fn mirrored(&self, letters: Vec<LetterId>) -> Answer<'_, ()> {
        self.call(Shape::Statement, letters, |db, letters| Box::pin(letters::mirrored(db, letters)))
    }
}

const PUT: &str = r"
INSERT INTO ledger_dead_letter (id, tenant, stream, message, payload, content_type, headers, cause, error, signature, status, attempts,
  last_attempt_at, created_at, updated_at)
SELECT l.id, l.tenant, l.stream, l.message, l.payload, l.content_type, l.headers::json, l.cause, l.error, l.signature,
  'pending', l.attempts, CASE WHEN l.attempts > 0 THEN statement_timestamp() END, statement_timestamp(),
  statement_timestamp()
FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[], $9::text[],
  $10::text[], $11::integer[]) AS l(id, tenant, stream, message, payload, content_type, headers, cause, error, signature,
  attempts)
ON CONFLICT DO NOTHING";

const PUT_AS: &str = r"
SELECT l.id FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS m(stream, message, n)
  JOIN ledger_dead_letter AS l ON l.stream = m.stream AND l.message = m.message AND l.stream IS NOT NULL AND l.delivery IS NULL
ORDER BY m.n";

pub(super) async fn put(db: &mut Db<'_>, letters: &[NewLetter]) -> Result<Vec<LetterId>, Fault> {
    let each = |read: fn(&NewLetter) -> &str| letters.iter().map(read).collect::<Vec<_>>();
    let errors: Vec<String> = letters.iter().map(|letter| plain(&letter.error)).collect();
    let signatures: Vec<Signature> = letters
        .iter()
        .zip(&errors)
        .map(|(letter, error)| Signature::of(None, letter.cause, None, error))
        .collect();
    let query = db
        .query(PUT)
        .bind(letters.iter().map(|letter| letter.id.to_bytes()).collect::<Vec<_>>())
        .bind(each(|letter| &letter.tenant))
        .bind(each(|letter| &letter.source.stream))
        .bind(each(|letter| &letter.source.message))
        .bind(letters.iter().map(|letter| letter.payload.as_ref()).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| plain(&letter.content_type)).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| to_json(&letter.headers)).collect::<Vec<_>>())
        .bind(each(|letter| letter.cause.as_str()))
        .bind(errors.as_slice())
        .bind(signatures.iter().map(Signature::as_str).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| integer(letter.attempts)).collect::<Vec<_>>());
    db.execute(query).await?;
    // A statement of its own: it sees what another one wrote meanwhile.
    let query = db
        .query(PUT_AS)
        .bind(each(|letter| &letter.source.stream))
        .bind(each(|letter| &letter.source.message));
    let ids: Vec<LetterId> = db.fetch(query).await?;
    if ids.len() != letters.len() {
        let why = "the id of a dead letter is another one's already: mint a new one";
        return Err(Error::Refused(why.to_owned()).into());
    }
    Ok(ids)
}

/// A letter's status and the state of its delivery, both held until the transaction ends.
const HOLD: &str = r"
SELECT l.status, (SELECT d.state FROM ledger_delivery AS d WHERE d.id = l.delivery) FROM ledger_dead_letter AS l WHERE l.id = $1 FOR UPDATE";

async fn hold(db: &mut Db<'_>, id: LetterId) -> Result<(Status, Option<DeliveryState>), Fault> {
    Ok(db.first(HOLD, &[id.to_bytes().into()]).await?.ok_or_else(|| not_found("dead letter", id))?)
}

const DISCARD: &str =
    "UPDATE ledger_dead_letter SET status = 'discarded', updated_at = statement_timestamp() WHERE id = $1";
const RESTORE: &str = "UPDATE ledger_dead_letter SET status = 'pending', failed_replays = 0, updated_at = statement_timestamp() \
     WHERE id = $1";

async fn discard(db: &mut Db<'_>, id: LetterId, line: &AuditLine) -> Result<(), Fault> {
    let (status, _) = hold(db, id).await?;
    if rules::discard(id, status)?.is_none() {
        return Ok(());
    }
    db.execute(db.query(DISCARD).bind(id.to_bytes())).await?;
    reading::audit(db, line).await
}

async fn restore(db: &mut Db<'_>, id: LetterId, line: &AuditLine) -> Result<(), Fault> {
    let (status, state) = hold(db, id).await?;
    if rules::restore(id, status, state)?.is_none() {
        return Ok(());
    }
    db.execute(db.query(RESTORE).bind(id.to_bytes())).await?;
    reading::audit(db, line).await
}

const COPY_OF_EVENT: &str = r"
SELECT (SELECT l.id FROM ledger_dead_letter AS l WHERE l.event = e.id AND l.event IS NOT NULL AND l.copy_of = $2)
FROM ledger_event AS e WHERE e.id = $1";

/// The copy's delivery goes where its letter says it is, before anybody has seen it.
const SET_ASIDE: &str = r"
UPDATE ledger_delivery SET state = 'dlq', waits = false, error = $3, letter = $2, completed_at = statement_timestamp()
WHERE event = $1 RETURNING id";

const COPY: &str = r"
INSERT INTO ledger_dead_letter (id, tenant, event, delivery, target, event_type, stream, message, content_type, headers, cause, error,
  signature, status, attempts, copy_of, created_at, updated_at)
SELECT $2, e.tenant, e.id, $3, $4, e.event_type, CASE WHEN e.origin = 'stream' THEN e.origin_name END,
  CASE WHEN e.origin = 'stream' THEN e.origin_message END, e.content_type, e.headers, 'manual', $5, $6, 'pending', 0, $7,
  statement_timestamp(), statement_timestamp()
FROM ledger_event AS e WHERE e.id = $1";

const TOUCH: &str = "UPDATE ledger_dead_letter SET updated_at = statement_timestamp() WHERE id = $1";

async fn edit(db: &mut Db<'_>, id: LetterId, copy: &NewEvent, line: &AuditLine) -> Result<LetterId, Fault> {
    hold(db, id).await?;
    let target = rules::target_of_copy(copy)?;
    let batch = Batch::new(db.shared, std::slice::from_ref(copy));
    if intake::write(db, &batch).await?.is_empty() {
        let found: Option<Option<[u8; 16]>> =
            db.first(COPY_OF_EVENT, &[copy.id.to_bytes().into(), id.to_bytes().into()]).await?;
        let made = found.ok_or_else(rules::key_of_copy_is_taken)?.map(LetterId::from_bytes);
        return made.ok_or_else(|| rules::id_of_copy_is_taken(copy.id).into());
    }
    let made = db.shared.ids.letter();
    let error = rules::error_of_copy(id);
    let query = db.query(SET_ASIDE).bind(copy.id.to_bytes()).bind(made.to_bytes()).bind(error.as_str());
    let delivery: Option<[u8; 16]> = db.fetch(query).await?.pop();
    let signature = Signature::of(Some(target), Cause::Manual, None, &error);
    let query = db
        .query(COPY)
        .bind(copy.id.to_bytes())
        .bind(made.to_bytes())
        .bind(delivery.ok_or_else(|| db.shared.corrupt("an event without its delivery"))?)
        .bind(target)
        .bind(error.as_str())
        .bind(signature.as_str())
        .bind(id.to_bytes());
    db.execute(query).await?;
    db.execute(db.query(TOUCH).bind(id.to_bytes())).await?;
    reading::audit(db, line).await?;
    Ok(made)
}
