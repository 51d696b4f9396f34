//! Dead letters: looking at them, and what people do with them.

use sqlx::PgConnection;

use super::PostgresLedger;
use super::fault::Fault;
use super::intake::{self, Batch};
use super::link::{Shape, Shared};
use super::reading::{self, limit_of, paged, position, rows_of};
use super::rows::{self, letter_columns};
use super::values::{Columns, check_text, integer, pairs_to_json, plain};
use crate::delivery::State;
use crate::event::NewEvent;
use crate::id::{DeliveryId, LetterId};
use crate::ledger::{Answer, AuditLine, Error, LetterFilter, Letters, Page, Paged};
use crate::letter::{Cause, Group, Letter, LetterStory, NewLetter, Signature, Status};

impl Letters for PostgresLedger {
    fn put(&self, letters: Vec<NewLetter>) -> Answer<'_, Vec<LetterId>> {
        Box::pin(async move {
            for letter in &letters {
                check_text("the tenant", &letter.tenant)?;
                check_text("the name of a stream", &letter.source.stream)?;
                check_text("the id of a message", &letter.source.message)?;
            }
            self.shared.call(Shape::Transaction, letters.as_slice(), |s, c, l| Box::pin(put(s, c, l))).await
        })
    }

    fn letter(&self, id: LetterId) -> Answer<'_, Option<LetterStory>> {
        Box::pin(
            async move { self.shared.call(Shape::Read, &id, |s, c, id| Box::pin(story(s, c, *id))).await },
        )
    }

    fn letters(&self, filter: LetterFilter, page: Page) -> Answer<'_, Paged<Letter>> {
        Box::pin(async move {
            let asked = (filter, page);
            self.shared.call(Shape::Read, &asked, |s, c, a| Box::pin(letters(s, c, &a.0, &a.1))).await
        })
    }

    fn groups(&self, filter: LetterFilter) -> Answer<'_, Vec<Group>> {
        Box::pin(
            async move { self.shared.call(Shape::Read, &filter, |s, c, f| Box::pin(groups(s, c, f))).await },
        )
    }

    fn discard(&self, id: LetterId, line: AuditLine) -> Answer<'_, ()> {
        Box::pin(async move {
            let asked = (id, line);
            self.shared.call(Shape::Transaction, &asked, |s, c, a| Box::pin(discard(s, c, a.0, &a.1))).await
        })
    }

    fn restore(&self, id: LetterId, line: AuditLine) -> Answer<'_, ()> {
        Box::pin(async move {
            let asked = (id, line);
            self.shared.call(Shape::Transaction, &asked, |s, c, a| Box::pin(restore(s, c, a.0, &a.1))).await
        })
    }

    fn edit(&self, id: LetterId, copy: NewEvent, line: AuditLine) -> Answer<'_, LetterId> {
        Box::pin(async move {
            intake::check(&copy)?;
            let asked = (id, copy, line);
            self.shared
                .call(Shape::Transaction, &asked, |s, c, a| Box::pin(edit(s, c, a.0, &a.1, &a.2)))
                .await
        })
    }

    fn unmirrored(&self, stream: String, limit: u32) -> Answer<'_, Vec<Letter>> {
        Box::pin(async move {
            let asked = (stream, limit);
            self.shared
                .call(Shape::Read, &asked, |s, c, a| {
                    Box::pin(async move {
                        let query = s.query(UNMIRRORED).bind(plain(&a.0)).bind(i64::from(a.1));
                        let rows = rows_of(s, c, query).await?;
                        rows.iter().map(|row| rows::letter(Columns::new(s, row))).collect()
                    })
                })
                .await
        })
    }

    fn mirrored(&self, letters: Vec<LetterId>) -> Answer<'_, ()> {
        Box::pin(async move {
            let ids: Vec<[u8; 16]> = letters.into_iter().map(LetterId::to_bytes).collect();
            self.shared
                .call(Shape::Statement, &ids, |s, c, ids| {
                    Box::pin(async move { rows_of(s, c, s.query(MIRRORED).bind(ids)).await.map(drop) })
                })
                .await
        })
    }
}

const LETTER: &str = concat!("SELECT ", letter_columns!(), " WHERE l.id = $1");
const UNMIRRORED: &str = concat!(
    "SELECT ",
    letter_columns!(),
    " WHERE l.stream = $1 AND l.stream IS NOT NULL AND NOT l.mirrored ORDER BY l.seq LIMIT $2"
);
const MIRRORED: &str = "UPDATE letter SET mirrored = true WHERE id = ANY($1)";
const COPIES: &str = "SELECT id FROM letter WHERE copy_of = $1 AND copy_of IS NOT NULL ORDER BY seq";

const PUT: &str = r"
INSERT INTO letter (id, tenant, stream, message, payload, content_type, headers, cause, error, signature, status, attempts,
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
  JOIN letter AS l ON l.stream = m.stream AND l.message = m.message AND l.stream IS NOT NULL AND l.delivery IS NULL
ORDER BY m.n";

pub(super) async fn put(
    shared: &Shared,
    connection: &mut PgConnection,
    letters: &[NewLetter],
) -> Result<Vec<LetterId>, Fault> {
    let each = |read: fn(&NewLetter) -> &str| letters.iter().map(read).collect::<Vec<_>>();
    let errors: Vec<String> = letters.iter().map(|letter| plain(&letter.error)).collect();
    let signatures: Vec<Signature> = letters
        .iter()
        .zip(&errors)
        .map(|(letter, error)| Signature::of(None, letter.cause, None, error))
        .collect();
    let query = shared
        .query(PUT)
        .bind(letters.iter().map(|letter| letter.id.to_bytes()).collect::<Vec<_>>())
        .bind(each(|letter| &letter.tenant))
        .bind(each(|letter| &letter.source.stream))
        .bind(each(|letter| &letter.source.message))
        .bind(letters.iter().map(|letter| letter.payload.as_ref()).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| plain(&letter.content_type)).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| pairs_to_json(&letter.headers)).collect::<Vec<_>>())
        .bind(each(|letter| letter.cause.as_str()))
        .bind(errors.as_slice())
        .bind(signatures.iter().map(Signature::as_str).collect::<Vec<_>>())
        .bind(letters.iter().map(|letter| integer(letter.attempts)).collect::<Vec<_>>());
    rows_of(shared, connection, query).await?;
    // A statement of its own: it sees what another one wrote meanwhile.
    let query = shared
        .query(PUT_AS)
        .bind(each(|letter| &letter.source.stream))
        .bind(each(|letter| &letter.source.message));
    let rows = rows_of(shared, connection, query).await?;
    if rows.len() != letters.len() {
        return Err(Fault::Answer(Error::Refused(
            "the id of a dead letter is another one's already: mint a new one".to_owned(),
        )));
    }
    rows.iter().map(|row| Columns::new(shared, row).bytes(0).map(LetterId::from_bytes)).collect()
}

async fn story(
    shared: &Shared,
    connection: &mut PgConnection,
    id: LetterId,
) -> Result<Option<LetterStory>, Fault> {
    let rows = rows_of(shared, connection, shared.query(LETTER).bind(id.to_bytes())).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let letter = rows::letter(Columns::new(shared, row))?;
    let attempts = match letter.delivery {
        Some(delivery) => reading::attempts(shared, connection, delivery).await?,
        None => Vec::new(),
    };
    let rows = rows_of(shared, connection, shared.query(COPIES).bind(id.to_bytes())).await?;
    let copies = rows.iter().map(|row| Columns::new(shared, row).bytes(0).map(LetterId::from_bytes));
    Ok(Some(LetterStory { letter, attempts, copies: copies.collect::<Result<_, _>>()? }))
}

macro_rules! letters {
    ($more:literal) => {
        concat!(
            "SELECT ",
            letter_columns!(),
            " WHERE l.seq < $1 AND ($3::text IS NULL OR l.tenant = $3) AND ($4::text IS NULL OR l.target = $4) \
               AND ($5::text IS NULL OR l.status = $5) AND ($6::text IS NULL OR l.signature = $6)",
            $more,
            " ORDER BY l.seq DESC LIMIT $2"
        )
    };
}

const LETTERS: &str = letters!("");
const LETTERS_WITH_STATUS: &str = letters!(" AND l.status = $5");
const LETTERS_WITH_SIGNATURE: &str = letters!(" AND l.signature = $6");

async fn letters(
    shared: &Shared,
    connection: &mut PgConnection,
    filter: &LetterFilter,
    page: &Page,
) -> Result<Paged<Letter>, Fault> {
    let statement = match (&filter.signature, filter.status) {
        (Some(_), _) => LETTERS_WITH_SIGNATURE,
        (None, Some(_)) => LETTERS_WITH_STATUS,
        (None, None) => LETTERS,
    };
    let query = shared
        .query(statement)
        .bind(position(page)?)
        .bind(limit_of(page))
        .bind(filter.tenant.as_deref().map(plain))
        .bind(filter.target.as_deref().map(plain))
        .bind(filter.status.map(Status::as_str))
        .bind(filter.signature.as_deref().map(plain));
    let rows = rows_of(shared, connection, query).await?;
    let found = rows.iter().map(|row| {
        let columns = Columns::new(shared, row);
        Ok((columns.get::<i64>(0)?.to_string(), rows::letter(columns)?))
    });
    Ok(paged(page, found.collect::<Result<_, Fault>>()?))
}

const GROUPS: &str = r"
SELECT g.signature, g.target, g.cause, g.status, g.number, g.first_at, g.last_at, s.id, s.error, g.newest
FROM (
  SELECT signature, target, cause, status, count(*) AS number, min(created_at) AS first_at, max(created_at) AS last_at,
    max(seq) AS newest
  FROM letter WHERE ($1::text IS NULL OR status = $1) AND ($2::text IS NULL OR tenant = $2)
    AND ($3::text IS NULL OR target = $3) AND ($4::text IS NULL OR signature = $4)
  GROUP BY signature, target, cause, status
) AS g JOIN letter AS s ON s.seq = g.newest
ORDER BY g.signature, g.target, g.cause, g.status";

async fn groups(
    shared: &Shared,
    connection: &mut PgConnection,
    filter: &LetterFilter,
) -> Result<Vec<Group>, Fault> {
    let query = shared
        .query(GROUPS)
        .bind(filter.status.map(Status::as_str))
        .bind(filter.tenant.as_deref().map(plain))
        .bind(filter.target.as_deref().map(plain))
        .bind(filter.signature.as_deref().map(plain));
    // Each with the number of its newest letter.
    let mut groups: Vec<(i64, Group)> = Vec::new();
    for row in &rows_of(shared, connection, query).await? {
        let columns = Columns::new(shared, row);
        let one = Group {
            signature: Signature::from_kept(columns.get::<String>(0)?),
            target: columns.get(1)?,
            cause: columns.word(2, Cause::from_name)?,
            counts: vec![(
                columns.word(3, Status::from_name)?,
                u64::try_from(columns.get::<i64>(4)?).unwrap_or(0),
            )],
            first_at: columns.time(5)?,
            last_at: columns.time(6)?,
            sample: LetterId::from_bytes(columns.bytes(7)?),
            error: columns.get(8)?,
        };
        let newest: i64 = columns.get(9)?;
        match groups.last_mut() {
            Some((seen, group))
                if (&group.signature, &group.target, group.cause)
                    == (&one.signature, &one.target, one.cause) =>
            {
                group.counts.extend(one.counts);
                group.first_at = group.first_at.min(one.first_at);
                group.last_at = group.last_at.max(one.last_at);
                if newest > *seen {
                    (*seen, group.sample, group.error) = (newest, one.sample, one.error);
                }
            }
            _ => groups.push((newest, one)),
        }
    }
    let mut groups: Vec<Group> = groups.into_iter().map(|(_, group)| group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.counts.iter().map(|(_, count)| *count).sum::<u64>()));
    Ok(groups)
}

fn refused(why: String) -> Fault {
    Fault::Answer(Error::Refused(why))
}

pub(super) fn not_found(what: &'static str, id: impl std::fmt::Display) -> Fault {
    Fault::Answer(Error::NotFound { what, id: id.to_string() })
}

/// A letter's status and the state of its delivery, both held until the transaction ends.
const HOLD: &str = r"
SELECT l.status, (SELECT d.state FROM delivery AS d WHERE d.id = l.delivery) FROM letter AS l WHERE l.id = $1 FOR UPDATE";

async fn hold(
    shared: &Shared,
    connection: &mut PgConnection,
    id: LetterId,
) -> Result<(Status, Option<State>), Fault> {
    let rows = rows_of(shared, connection, shared.query(HOLD).bind(id.to_bytes())).await?;
    let row = rows.first().ok_or_else(|| not_found("dead letter", id))?;
    let columns = Columns::new(shared, row);
    let state = columns.get::<Option<&str>>(1)?.and_then(State::from_name);
    Ok((columns.word(0, Status::from_name)?, state))
}

const DISCARD: &str =
    "UPDATE letter SET status = 'discarded', updated_at = statement_timestamp() WHERE id = $1";
const RESTORE: &str = "UPDATE letter SET status = 'pending', failed_replays = 0, updated_at = statement_timestamp() \
     WHERE id = $1";

async fn discard(
    shared: &Shared,
    connection: &mut PgConnection,
    id: LetterId,
    line: &AuditLine,
) -> Result<(), Fault> {
    match hold(shared, connection, id).await?.0 {
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
    rows_of(shared, connection, shared.query(DISCARD).bind(id.to_bytes())).await?;
    reading::audit(shared, connection, line).await
}

async fn restore(
    shared: &Shared,
    connection: &mut PgConnection,
    id: LetterId,
    line: &AuditLine,
) -> Result<(), Fault> {
    let (status, state) = hold(shared, connection, id).await?;
    match status {
        Status::Pending => return Ok(()),
        Status::Discarded | Status::Parked => {}
        Status::Replaying => return Err(refused(format!("{id} is being replayed: it is not given up"))),
        Status::Replayed => {
            return Err(refused(format!("{id} was delivered after all: there is nothing to restore")));
        }
    }
    if state == Some(State::Cancelled) {
        return Err(refused(format!("the delivery of {id} was cancelled: publish its event anew")));
    }
    rows_of(shared, connection, shared.query(RESTORE).bind(id.to_bytes())).await?;
    reading::audit(shared, connection, line).await
}

const COPY_OF_EVENT: &str = r"
SELECT (SELECT l.id FROM letter AS l WHERE l.event = e.id AND l.event IS NOT NULL AND l.copy_of = $2)
FROM event AS e WHERE e.id = $1";

/// The copy's delivery goes where its letter says it is, before anybody has seen it.
const SET_ASIDE: &str = r"
UPDATE delivery SET state = 'dlq', waits = false, error = $3, letter = $2, completed_at = statement_timestamp()
WHERE event = $1 RETURNING id";

const COPY: &str = r"
INSERT INTO letter (id, tenant, event, delivery, target, event_type, stream, message, content_type, headers, cause, error,
  signature, status, attempts, copy_of, created_at, updated_at)
SELECT $2, e.tenant, e.id, $3, $4, e.event_type, CASE WHEN e.origin = 'stream' THEN e.origin_name END,
  CASE WHEN e.origin = 'stream' THEN e.origin_message END, e.content_type, e.headers, 'manual', $5, $6, 'pending', 0, $7,
  statement_timestamp(), statement_timestamp()
FROM event AS e WHERE e.id = $1";

const TOUCH: &str = "UPDATE letter SET updated_at = statement_timestamp() WHERE id = $1";

async fn edit(
    shared: &Shared,
    connection: &mut PgConnection,
    id: LetterId,
    copy: &NewEvent,
    line: &AuditLine,
) -> Result<LetterId, Fault> {
    hold(shared, connection, id).await?;
    let [target] = &copy.targets[..] else {
        return Err(refused(
            "an edited copy is for one target: name the one that the letter was for".to_owned(),
        ));
    };
    let batch = Batch::new(shared, std::slice::from_ref(copy));
    if intake::write(shared, connection, &batch).await?.is_empty() {
        let query = shared.query(COPY_OF_EVENT).bind(copy.id.to_bytes()).bind(id.to_bytes());
        let rows = rows_of(shared, connection, query).await?;
        let Some(row) = rows.first() else {
            return Err(refused(
                "the dedupe key of the copy is taken: give the copy a key of its own, or none".to_owned(),
            ));
        };
        let made = Columns::new(shared, row).bytes_or_none(0)?.map(LetterId::from_bytes);
        return made.ok_or_else(|| {
            refused(format!("{} is another event already: give the copy an id of its own", copy.id))
        });
    }
    let made = shared.ids.letter();
    let error = format!("an edited copy of {id}, not sent yet");
    let signature = Signature::of(Some(target), Cause::Manual, None, &error);
    let query = shared.query(SET_ASIDE).bind(copy.id.to_bytes()).bind(made.to_bytes()).bind(error.as_str());
    let rows = rows_of(shared, connection, query).await?;
    let row = rows.first().ok_or_else(|| shared.corrupt("an event without its delivery"))?;
    let delivery = DeliveryId::from_bytes(Columns::new(shared, row).bytes(0)?);
    let query = shared
        .query(COPY)
        .bind(copy.id.to_bytes())
        .bind(made.to_bytes())
        .bind(delivery.to_bytes())
        .bind(target.as_str())
        .bind(error.as_str())
        .bind(signature.as_str())
        .bind(id.to_bytes());
    rows_of(shared, connection, query).await?;
    rows_of(shared, connection, shared.query(TOUCH).bind(id.to_bytes())).await?;
    reading::audit(shared, connection, line).await?;
    Ok(made)
}
