//! The steps of writing calls, each one statement for all the rows that it concerns.

use std::time::Duration;

use semel::key::KeyId;
use semel::time::{Clock as _, SystemClock, Timestamp};

use super::database::Db;
use super::fault::Fault;
use super::intake::{self, Batch};
use super::settle::{END_ITEMS, NEXT_IN_LANES_OF};
use super::values::{check_text, integer, micros, plain};
use crate::event::{Event, Generation, NewEvent};
use crate::id::{DeliveryId, EventId, JobId, LetterId};
use crate::ledger::rules::{self, Cancelled};
use crate::ledger::sql::writing::{ItemResult, Writing};
use crate::ledger::sql::{Database as _, Value, bigint, jobs, to_json};
use crate::ledger::{Arrival, Error, KeyState};
use crate::letter::{Cause, NewLetter, Signature, Status};
use crate::replay::{ItemState, NewJob, Planned, ReplayMode};

/// Ends the generation of a key, and the one that `$2` names only where it still lasts. Answers the one that lasts now.
const END_GENERATION: &str = r"
INSERT INTO ledger_generation AS k (dedupe, generation, changed_at)
VALUES ($1, greatest($2 + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), statement_timestamp())
ON CONFLICT (dedupe) DO UPDATE SET generation = CASE WHEN k.generation > $2 THEN k.generation ELSE excluded.generation END,
  changed_at = CASE WHEN k.generation > $2 THEN k.changed_at ELSE excluded.changed_at END
RETURNING generation";

const ARRIVE_CANCELLED: &str = r"
UPDATE ledger_delivery SET state = 'cancelled', waits = false, completed_at = statement_timestamp() WHERE event = $1";

const PUT_OFF: &str = r"
UPDATE ledger_delivery SET due_at = statement_timestamp() + $2 * interval '1 microsecond' WHERE event = $1";

const MAKE_DUE: &str = r"
UPDATE ledger_delivery SET due_at = statement_timestamp()
WHERE id = ANY($1) AND state = 'retry_wait' AND due_at > statement_timestamp()";

const SAVE_NOTES: &str = r"
UPDATE ledger_event SET tags = $2, metadata = $3::json, changes = $4, version = version + 1 WHERE id = $1";

const CANCEL: &str = r"
WITH cancelled AS (
  UPDATE ledger_delivery SET state = 'cancelled', waits = false, completed_at = statement_timestamp() WHERE id = ANY($1)
  RETURNING letter
)
UPDATE ledger_dead_letter AS l SET status = 'discarded', updated_at = statement_timestamp()
FROM cancelled AS c WHERE l.id = c.letter";

const PUT: &str = r"
INSERT INTO ledger_dead_letter (id, tenant, stream, message, payload, content_type, headers, cause, error, signature, status,
  attempts, last_attempt_at, created_at, updated_at)
SELECT l.id, l.tenant, l.stream, l.message, l.payload, l.content_type, l.headers::json, l.cause, l.error, l.signature,
  'pending', l.attempts, CASE WHEN l.attempts > 0 THEN statement_timestamp() END, statement_timestamp(),
  statement_timestamp()
FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[], $8::text[], $9::text[],
  $10::text[], $11::integer[]) AS l(id, tenant, stream, message, payload, content_type, headers, cause, error, signature,
  attempts)
ON CONFLICT DO NOTHING";

const PUT_AS: &str = r"
SELECT l.id FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS m(stream, message, n)
  JOIN ledger_dead_letter AS l
    ON l.stream = m.stream AND l.message = m.message AND l.stream IS NOT NULL AND l.delivery IS NULL
ORDER BY m.n";

const SET_LETTER: &str = r"
UPDATE ledger_dead_letter SET status = $2, updated_at = statement_timestamp(),
  failed_replays = CASE $2 WHEN 'pending' THEN 0 ELSE failed_replays END
WHERE id = $1";

/// The deliveries of an event that is not to be delivered are set aside before anybody has seen them.
const SET_ASIDE: &str = r"
UPDATE ledger_delivery SET state = 'dlq', waits = false, error = $2, completed_at = statement_timestamp()
WHERE event = $1 RETURNING id, target";

const WRITE_LETTER: &str = r"
WITH aside AS (UPDATE ledger_delivery SET letter = $2 WHERE id = $3)
INSERT INTO ledger_dead_letter (id, tenant, event, delivery, target, event_type, stream, message, content_type, headers,
  cause, error, signature, status, attempts, copy_of, created_at, updated_at)
SELECT $2, e.tenant, e.id, $3, $4, e.event_type, CASE WHEN e.origin = 'stream' THEN e.origin_name END,
  CASE WHEN e.origin = 'stream' THEN e.origin_message END, e.content_type, e.headers, $5, $6, $7, 'pending', 0, $8,
  statement_timestamp(), statement_timestamp()
FROM ledger_event AS e WHERE e.id = $1";

const ADD_ITEMS: &str = r"
INSERT INTO ledger_item (job, position, delivery, letter, event, kind, target, state, error)
SELECT $1, w.n - 1, w.delivery, w.letter, w.event, w.kind, w.target, w.state, w.error
FROM unnest($2::bytea[], $3::bytea[], $4::bytea[], $5::text[], $6::text[], $7::text[], $8::text[]) WITH ORDINALITY
  AS w(delivery, letter, event, kind, target, state, error, n)
ON CONFLICT DO NOTHING";

const REPLAY: &str = r"
UPDATE ledger_delivery AS d SET state = 'replaying', waits = true, epoch = d.epoch + $4, attempts = 0, crashes = 0,
  due_at = statement_timestamp(), deliver_until = NULL, completed_at = NULL, token = NULL, job = $1, item = r.position
FROM unnest($2::bytea[], $3::bigint[]) AS r(id, position) WHERE d.id = r.id";

/// Another delivery of the same event to the same target, one epoch up.
const EXECUTE_AGAIN: &str = r"
INSERT INTO ledger_delivery (id, event, target, tenant, lane, state, waits, epoch, due_at, job, item, created_at)
SELECT r.fresh, d.event, d.target, d.tenant, d.lane, 'queued', true, d.epoch + 1, statement_timestamp(), $1, r.position,
  statement_timestamp()
FROM unnest($2::bytea[], $3::bigint[], $4::bytea[]) WITH ORDINALITY AS r(id, position, fresh, n)
  JOIN ledger_delivery AS d ON d.id = r.id ORDER BY r.n";

const OF_JOB: &str = r"
UPDATE ledger_delivery AS d SET job = $1, item = r.position FROM unnest($2::bytea[], $3::bigint[]) AS r(event, position)
WHERE d.event = r.event";

const SAVE_LETTERS: &str = r"
UPDATE ledger_dead_letter AS l SET status = r.status, updated_at = statement_timestamp()
FROM unnest($1::bytea[], $2::text[]) AS r(id, status) WHERE l.id = r.id";

const SAVE_ITEMS: &str = r"
UPDATE ledger_item AS i SET state = r.state, new_event = r.new_event, error = r.error
FROM unnest($2::bigint[], $3::text[], $4::bytea[], $5::text[]) AS r(position, state, new_event, error)
WHERE i.job = $1 AND i.position = r.position";

impl Writing for Db<'_> {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn refusal(fault: Fault) -> Result<Error, Fault> {
        match fault {
            Fault::Answer(error) => Ok(error),
            fault @ Fault::Database(_) => Err(fault),
        }
    }

    fn check_text(what: &str, text: &str) -> Result<(), Error> {
        check_text(what, text)
    }

    fn check_event(event: &NewEvent) -> Result<(), Error> {
        intake::check(event)
    }

    async fn key_state(&mut self, dedupe: KeyId) -> Result<KeyState, Fault> {
        Ok(intake::find_in(self, &[dedupe]).await?.pop().unwrap_or_default())
    }

    async fn end_generation(&mut self, dedupe: KeyId, ended: Generation) -> Result<Generation, Fault> {
        let with = [(*dedupe.as_bytes()).into(), bigint(ended.get()).into()];
        let generation: Option<u64> = self.first(END_GENERATION, &with).await?;
        let generation = generation.ok_or_else(|| self.shared.corrupt("a generation without its row"))?;
        Ok(Generation::new(generation))
    }

    async fn add_run(
        &mut self,
        run: &NewEvent,
        changes: u64,
        cancelled: Cancelled,
        arrival: Arrival,
    ) -> Result<bool, Fault> {
        let batch = Batch::drained(self.shared, std::slice::from_ref(run), vec![bigint(changes)]);
        let batch = if arrival == Arrival::New { batch } else { batch.keyless() };
        if intake::write(self, &batch).await?.is_empty() {
            return Ok(false);
        }
        match (cancelled, arrival) {
            (Cancelled::Yes, _) => drop(self.run(ARRIVE_CANCELLED, &[run.id.to_bytes().into()]).await?),
            (Cancelled::No, Arrival::LostKey(winner)) => {
                set_aside(self, run, &rules::lost_key(winner), Cause::NonRetryable, None).await?;
            }
            (Cancelled::No, _) => {}
        }
        Ok(true)
    }

    async fn put_off(&mut self, event: EventId, delay: Duration) -> Result<(), Fault> {
        self.run(PUT_OFF, &[event.to_bytes().into(), micros(delay).into()]).await.map(drop)
    }

    async fn save_notes(&mut self, event: &Event) -> Result<(), Fault> {
        let (id, metadata) = (event.new.id.to_bytes(), to_json(&event.new.notes.metadata));
        let query = self.query(SAVE_NOTES).bind(id).bind(event.new.notes.tags.as_slice()).bind(metadata);
        self.execute(query.bind(bigint(event.changes))).await.map(drop)
    }

    async fn cancel_deliveries(&mut self, deliveries: &[DeliveryId]) -> Result<(), Fault> {
        let ids: Vec<[u8; 16]> = deliveries.iter().map(|id| id.to_bytes()).collect();
        self.execute(self.query(CANCEL).bind(ids.as_slice())).await?;
        let query = self
            .query(END_ITEMS)
            .bind(ids.as_slice())
            .bind(vec![ItemState::Cancelled.as_str(); ids.len()])
            .bind(vec!["it was cancelled"; ids.len()]);
        let ended = self.fetch(query).await?;
        jobs::end(self, ended).await?;
        self.execute(self.query(NEXT_IN_LANES_OF).bind(ids)).await.map(drop)
    }

    async fn make_due(&mut self, deliveries: &[DeliveryId]) -> Result<u64, Fault> {
        let ids = deliveries.iter().map(|id| id.to_bytes()).collect();
        self.run(MAKE_DUE, &[Value::Ids(ids)]).await
    }

    async fn put_letters(&mut self, letters: &[NewLetter]) -> Result<Vec<LetterId>, Fault> {
        let each = |read: fn(&NewLetter) -> &str| letters.iter().map(read).collect::<Vec<_>>();
        let errors: Vec<String> = letters.iter().map(|letter| plain(&letter.error)).collect();
        let signatures: Vec<Signature> = letters
            .iter()
            .zip(&errors)
            .map(|(letter, error)| Signature::of(None, letter.cause, None, error))
            .collect();
        let query = self
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
        self.execute(query).await?;
        // A statement of its own: it sees what another one wrote meanwhile.
        let query = self
            .query(PUT_AS)
            .bind(each(|letter| &letter.source.stream))
            .bind(each(|letter| &letter.source.message));
        let ids: Vec<LetterId> = self.fetch(query).await?;
        if ids.len() != letters.len() {
            let why = "the id of a dead letter is another one's already: mint a new one";
            return Err(Error::Refused(why.to_owned()).into());
        }
        Ok(ids)
    }

    async fn set_letter(&mut self, id: LetterId, _: Status, to: Status) -> Result<(), Fault> {
        self.run(SET_LETTER, &[id.to_bytes().into(), to.as_str().into()]).await.map(drop)
    }

    async fn copy_letter(
        &mut self,
        of: LetterId,
        copy: &NewEvent,
        _: &str,
    ) -> Result<Option<LetterId>, Fault> {
        let batch = Batch::new(self.shared, std::slice::from_ref(copy));
        if intake::write(self, &batch).await?.is_empty() {
            return Ok(None);
        }
        let made = set_aside(self, copy, &rules::error_of_copy(of), Cause::Manual, Some(of)).await?;
        made.map(Some).ok_or_else(|| self.shared.corrupt("an event without its delivery"))
    }

    async fn add_items(&mut self, job: JobId, items: &[Planned]) -> Result<(), Fault> {
        let (states, errors): (Vec<_>, Vec<_>) =
            items.iter().map(rules::first_state).map(|(state, why)| (state.as_str(), why)).unzip();
        let query = self
            .query(ADD_ITEMS)
            .bind(job.to_bytes())
            .bind(items.iter().map(|item| item.delivery.to_bytes()).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.letter.map(LetterId::to_bytes)).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.event.to_bytes()).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.event.kind().as_str()).collect::<Vec<_>>())
            .bind(items.iter().map(|item| item.target.as_str()).collect::<Vec<_>>())
            .bind(states)
            .bind(errors);
        self.execute(query).await.map(drop)
    }

    async fn replay(&mut self, job: &NewJob, items: &[(DeliveryId, i64)]) -> Result<(), Fault> {
        let (ids, positions) = columns(items);
        let epochs = i32::from(job.mode == ReplayMode::ReExecute);
        let query = self.query(REPLAY).bind(job.id.to_bytes()).bind(ids).bind(positions).bind(epochs);
        self.execute(query).await.map(drop)
    }

    async fn execute_again(&mut self, job: JobId, items: &[(DeliveryId, i64)]) -> Result<(), Fault> {
        let (ids, positions) = columns(items);
        let fresh: Vec<[u8; 16]> = items.iter().map(|_| self.shared.ids.delivery().to_bytes()).collect();
        let query = self.query(EXECUTE_AGAIN).bind(job.to_bytes()).bind(ids).bind(positions).bind(fresh);
        self.execute(query).await.map(drop)
    }

    async fn accept_items(&mut self, job: JobId, events: &[(NewEvent, i64)]) -> Result<Vec<[u8; 16]>, Fault> {
        let (events, positions): (Vec<NewEvent>, Vec<i64>) = events.iter().cloned().unzip();
        let accepted = intake::write(self, &Batch::new(self.shared, &events)).await?;
        // The events that were not accepted are not there.
        let ids: Vec<[u8; 16]> = events.iter().map(|event| event.id.to_bytes()).collect();
        self.execute(self.query(OF_JOB).bind(job.to_bytes()).bind(ids).bind(positions)).await?;
        Ok(accepted)
    }

    async fn save_items(&mut self, job: JobId, results: &[ItemResult]) -> Result<(), Fault> {
        let (letters, statuses): (Vec<_>, Vec<_>) = results
            .iter()
            .filter_map(|result| result.letter)
            .map(|(id, _, next)| (id.to_bytes(), next.as_str()))
            .unzip();
        if !letters.is_empty() {
            self.execute(self.query(SAVE_LETTERS).bind(letters).bind(statuses)).await?;
        }
        let query = self
            .query(SAVE_ITEMS)
            .bind(job.to_bytes())
            .bind(results.iter().map(|result| result.position).collect::<Vec<_>>())
            .bind(results.iter().map(|result| result.state.as_str()).collect::<Vec<_>>())
            .bind(results.iter().map(|result| result.new_event.map(EventId::to_bytes)).collect::<Vec<_>>())
            .bind(results.iter().map(|result| result.error).collect::<Vec<_>>());
        self.execute(query).await.map(drop)
    }
}

/// Deliveries and positions as columns.
fn columns(items: &[(DeliveryId, i64)]) -> (Vec<[u8; 16]>, Vec<i64>) {
    items.iter().map(|(id, position)| (id.to_bytes(), *position)).unzip()
}

/// Makes dead letters of the deliveries of an event. Answers the last one.
async fn set_aside(
    db: &mut Db<'_>,
    event: &NewEvent,
    error: &str,
    cause: Cause,
    copy_of: Option<LetterId>,
) -> Result<Option<LetterId>, Fault> {
    let mut made = None;
    let aside = db.rows::<([u8; 16], String)>(SET_ASIDE, &[event.id.to_bytes().into(), error.into()]).await?;
    for (delivery, target) in aside {
        let (letter, signature) = (db.shared.ids.letter(), Signature::of(Some(&target), cause, None, error));
        let with = [
            event.id.to_bytes().into(),
            letter.to_bytes().into(),
            delivery.into(),
            target.as_str().into(),
            cause.as_str().into(),
            error.into(),
            signature.as_str().into(),
            copy_of.map(LetterId::to_bytes).into(),
        ];
        db.run(WRITE_LETTER, &with).await?;
        made = Some(letter);
    }
    Ok(made)
}
