//! Taking events in.

use std::collections::HashSet;
use std::sync::Arc;

use semel::key::KeyId;
use sha2::{Digest as _, Sha256};

use super::database::{Db, Prepared};
use super::fault::Fault;
use super::join::copy;
use super::link::{Shape, Shared};
use super::values::{check_text, micros};
use crate::event::{Accepted, Dedupe, NewEvent, Origin};
use crate::ledger::rules::Obstacle;
use crate::ledger::sql::{Columns, FromRow, bigint, to_json};
use crate::ledger::{Error, ErrorKind, KeyState};

/// Keeps the events whose keys are free, with their deliveries, and names them. An expired key of an event that names no
/// generation is freed first: the count makes the insert come after it. An event that names a generation which has ended is not
/// kept.
macro_rules! accept {
    ($waits:literal) => {
        concat!(
            r"
WITH freed AS (
  UPDATE ledger_event SET dedupe_live = false
  WHERE dedupe = ANY($31) AND dedupe_live AND dedupe_until <= statement_timestamp()
  RETURNING 1
), kept AS (
  INSERT INTO ledger_event (id, kind, tenant, event_type, dedupe, dedupe_hint, fingerprint, dedupe_lifetime, dedupe_until,
    dedupe_live, generation, changes, version, payload, content_type, headers, order_key, origin, origin_name, origin_message, delay, deliver_within,
    targets, tags, metadata, request_id, traceparent, accepted_at)
  SELECT g.id, g.kind, g.tenant, g.event_type, g.dedupe, g.hint, g.fingerprint, g.lifetime,
    coalesce(timestamptz 'epoch' + g.expires_at * interval '1 microsecond',
      statement_timestamp() + g.lifetime * interval '1 microsecond'),
    g.dedupe IS NOT NULL AND g.live,
    coalesce(g.generation, (SELECT k.generation FROM ledger_generation AS k WHERE k.dedupe = g.dedupe), 0), g.changes, g.changes,
    g.payload, g.content_type,
    g.headers::json, g.order_key, g.origin, g.origin_name, g.origin_message, g.delay, g.deliver_within,
    g.targets::json, CASE WHEN g.tags = '[]' THEN '{}'::text[] ELSE ARRAY(SELECT json_array_elements_text(g.tags::json)) END,
    g.metadata::json, g.request_id, g.traceparent, statement_timestamp()
  FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::bytea[], $7::bytea[], $8::bigint[],
    $9::bytea[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bigint[],
    $17::bigint[], $18::text[], $19::text[], $20::text[], $21::text[], $26::text[], $27::bigint[], $28::bigint[], $29::boolean[], $30::bigint[])
    AS g(id, kind, tenant, event_type, dedupe, hint, fingerprint, lifetime, payload, content_type, headers, order_key,
      origin, origin_name, origin_message, delay, deliver_within, tags, metadata, request_id, traceparent, targets,
      generation, expires_at, live, changes)
  WHERE (SELECT count(*) FROM freed) >= 0 AND NOT (g.live AND g.generation IS NOT NULL AND EXISTS (
    SELECT FROM ledger_generation AS k WHERE k.dedupe = g.dedupe AND k.generation > g.generation))
  ON CONFLICT DO NOTHING
  RETURNING id, tenant, delay, deliver_within
), made AS (
  INSERT INTO ledger_delivery (id, event, target, tenant, lane, state, waits, due_at, deliver_until, created_at)
  SELECT d.id, d.event, d.target, k.tenant, d.lane, CASE WHEN k.delay > 0 THEN 'idle' ELSE 'queued' END, ",
            $waits,
            r",
    statement_timestamp() + k.delay * interval '1 microsecond',
    statement_timestamp() + k.deliver_within * interval '1 microsecond', statement_timestamp()
  FROM unnest($22::bytea[], $23::bytea[], $24::text[], $25::bigint[]) WITH ORDINALITY AS d(id, event, target, lane, n)
    JOIN kept AS k ON k.id = d.event
  ORDER BY d.n
)
SELECT id FROM kept"
        )
    };
}

const ACCEPT: &str = accept!("true");

/// Only the first of a lane waits to be taken; the end of one lets the next one wait. Under the lanes' locks.
const ACCEPT_IN_ORDER: &str = accept!(
    r"d.lane IS NULL OR (row_number() OVER (PARTITION BY d.lane ORDER BY d.n) = 1 AND NOT EXISTS (
      SELECT FROM ledger_delivery AS p WHERE p.lane = d.lane AND p.state NOT IN ('done', 'dlq', 'cancelled')))"
);

/// Held until the transaction ends. Sorted, so that two callers cannot wait for each other.
const LOCK_LANES: &str = "SELECT pg_advisory_xact_lock(l.lane) FROM unnest($1::bigint[]) AS l(lane)";

/// The event that holds a key `$key`, whose row in `generation` is `k`.
macro_rules! holder {
    ($key:literal) => {
        concat!(
            "LEFT JOIN ledger_generation AS k ON k.dedupe = ",
            $key,
            r" LEFT JOIN LATERAL (
  SELECT e.id, e.kind, e.fingerprint, e.generation, coalesce(e.dedupe_until <= statement_timestamp(), false) AS expired
  FROM ledger_event AS e WHERE e.dedupe = ",
            $key,
            r" AND e.dedupe_live AND e.generation >= coalesce(k.generation, 0)
  ORDER BY e.generation DESC LIMIT 1) AS h ON true"
        )
    };
}

/// What keeps events from being kept: the state of their keys, and whether they are there under their own ids.
const LOOK_UP: &str = concat!(
    r"
SELECT greatest(k.generation, h.generation, 0), h.kind, h.id, h.fingerprint, coalesce(h.expired, false), o.id IS NOT NULL
FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS g(id, dedupe, n) ",
    holder!("g.dedupe"),
    " LEFT JOIN ledger_event AS o ON o.id = g.id ORDER BY g.n"
);

const FIND: &str = concat!(
    r"
SELECT greatest(k.generation, h.generation, 0), h.kind, h.id, h.fingerprint, coalesce(h.expired, false)
FROM unnest($1::bytea[]) WITH ORDINALITY AS g(dedupe, n) ",
    holder!("g.dedupe"),
    " ORDER BY g.n"
);

/// Accepts events that were checked.
pub(super) async fn accept(shared: &Shared, events: &[NewEvent]) -> Result<Vec<Accepted>, Error> {
    let batch = Batch::new(shared, events);
    let shape = if batch.lanes.is_empty() { Shape::Statement } else { Shape::Transaction };
    let mut repeated = false;
    // The event that held the key may be gone by the time it is looked for.
    for _ in 0..10 {
        let called = shared.call_or_repeat(shape, &batch, |db, batch| Box::pin(write(db, batch))).await?;
        repeated |= called.repeated;
        let kept: HashSet<[u8; 16]> = called.answer.into_iter().collect();
        if !kept.is_empty() {
            shared.availability.wrote();
            shared.news.tell();
        }
        if let Some(accepted) = judge(shared, events, kept, repeated).await? {
            return Ok(accepted);
        }
        // What was kept is there already when it is looked for again.
        repeated = true;
    }
    Err(Error::Refused("the key of an event is taken and given back all the time; try again".to_owned()))
}

/// Which answers the events get, or `None` where one was neither kept nor found.
async fn judge(
    shared: &Shared,
    events: &[NewEvent],
    kept: HashSet<[u8; 16]>,
    repeated: bool,
) -> Result<Option<Vec<Accepted>>, Error> {
    let (mut answers, others) = first_answers(events, kept);
    if others.is_empty() {
        return Ok(answers.into_iter().collect());
    }
    let asked: Vec<&NewEvent> = others.iter().map(|at| &events[*at]).collect();
    let found = shared.call(Shape::Read, asked.as_slice(), |db, asked| Box::pin(look_up(db, asked))).await?;
    for (at, obstacle) in others.into_iter().zip(found) {
        let (event, ours) = (&events[at], Some(Accepted::First(events[at].id)));
        let answer = obstacle.answer(event);
        // Our own earlier try, whose answer was lost, was the first.
        let is_ours = repeated && answer == Some(Accepted::Cached(event.id)) && !answers.contains(&ours);
        answers[at] = if is_ours { ours } else { answer };
    }
    Ok(answers.into_iter().collect())
}

/// The answers for events that were kept, and the indexes of the others.
fn first_answers(events: &[NewEvent], mut kept: HashSet<[u8; 16]>) -> (Vec<Option<Accepted>>, Vec<usize>) {
    let answers: Vec<Option<Accepted>> = events
        .iter()
        // Removed: the same id a second time in one call is not the first.
        .map(|event| kept.remove(&event.id.to_bytes()).then_some(Accepted::First(event.id)))
        .collect();
    let others = (0..events.len()).filter(|at| answers[*at].is_none()).collect();
    (answers, others)
}

/// The most keys that are looked up together.
pub(super) const FIND_TOGETHER: usize = 256;

/// Looks a key up, together with others of this process that wait for the same.
pub(super) async fn find(shared: &Arc<Shared>, dedupe: KeyId) -> Result<KeyState, Error> {
    let carrier = Arc::clone(shared);
    let carry = move |keys: Vec<KeyId>| {
        let shared = Arc::clone(&carrier);
        async move {
            match shared.call(Shape::Read, &keys, |db, keys| Box::pin(find_in(db, keys))).await {
                Ok(found) => found.into_iter().map(Ok).collect(),
                Err(error) => keys.iter().map(|_| Err(copy(&error))).collect(),
            }
        }
    };
    shared.finds.ask(dedupe, carry).await.unwrap_or_else(|| {
        let gone = "the ledger's runtime ended before it answered";
        Err(Error::Store(semel::store::Error::new(ErrorKind::Unavailable, gone)))
    })
}

/// The state of each key, in order.
pub(super) async fn find_in(db: &mut Db<'_>, keys: &[KeyId]) -> Result<Vec<KeyState>, Fault> {
    let asked: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes().as_slice()).collect();
    db.fetch(db.query(FIND).bind(&asked)).await
}

/// The answers for these events, of which some were kept, in the transaction that kept them. `None` where the holder of a key
/// is gone by now.
pub(super) async fn answers(
    db: &mut Db<'_>,
    events: &[NewEvent],
    kept: Vec<[u8; 16]>,
) -> Result<Vec<Option<Accepted>>, Fault> {
    let (mut answers, others) = first_answers(events, kept.into_iter().collect());
    if !others.is_empty() {
        let asked: Vec<&NewEvent> = others.iter().map(|at| &events[*at]).collect();
        for (at, obstacle) in others.into_iter().zip(look_up(db, &asked).await?) {
            answers[at] = obstacle.answer(&events[at]);
        }
    }
    Ok(answers)
}

impl FromRow for Obstacle {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        Ok(Self { key: KeyState::read(columns)?, own: columns.flag()? })
    }
}

async fn look_up(db: &mut Db<'_>, asked: &[&NewEvent]) -> Result<Vec<Obstacle>, Fault> {
    let ids: Vec<[u8; 16]> = asked.iter().map(|event| event.id.to_bytes()).collect();
    let dedupes: Vec<Option<[u8; 16]>> =
        asked.iter().map(|event| event.dedupe.as_ref().map(|dedupe| *dedupe.id.as_bytes())).collect();
    db.fetch(db.query(LOOK_UP).bind(ids).bind(dedupes)).await
}

/// Writes a batch of events; answers the ids of those that were kept. For a transaction where it has lanes.
pub(super) async fn write(db: &mut Db<'_>, batch: &Batch<'_>) -> Result<Vec<[u8; 16]>, Fault> {
    let statement = if batch.lanes.is_empty() {
        ACCEPT
    } else {
        // A statement of its own: what it waited for must be seen by the next one.
        db.execute(db.query(LOCK_LANES).bind(batch.lanes.as_slice())).await?;
        ACCEPT_IN_ORDER
    };
    db.fetch(batch.bind(db.query(statement))).await
}

/// Refuses what the tables cannot hold, before anything is sent.
pub(super) fn check(event: &NewEvent) -> Result<(), Error> {
    check_text("the tenant", &event.tenant)?;
    check_text("the type of an event", &event.event_type)?;
    check_text("the content type", &event.content_type)?;
    for target in &event.targets {
        check_text("the name of a target", target)?;
    }
    for tag in &event.notes.tags {
        check_text("a tag", tag)?;
    }
    let texts = [
        ("the order key", event.order_key.as_deref()),
        ("the request id", event.trace.request_id.as_deref()),
        ("the trace context", event.trace.traceparent.as_deref()),
    ];
    for (what, text) in texts {
        check_text(what, text.unwrap_or_default())?;
    }
    match &event.origin {
        Origin::Api { principal } => check_text("the principal", principal),
        Origin::Stream { stream, message } => {
            check_text("the name of a stream", stream)?;
            check_text("the id of a message", message)
        }
        Origin::Outbox | Origin::Replay { .. } => Ok(()),
    }
}

/// Names the line in which deliveries with one target and order key stand. Two keys with one number would only wait for
/// each other.
pub(super) fn lane(target: &str, order_key: &str) -> i64 {
    let mut hasher = Sha256::new();
    for part in [target, order_key] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    i64::from_le_bytes(hasher.finalize()[..8].try_into().expect("a hash has 32 bytes"))
}

/// A delivery to be made of an event that is kept.
struct Fresh<'a> {
    id: [u8; 16],
    event: [u8; 16],
    target: &'a str,
    lane: Option<i64>,
}

/// Events as columns.
pub(super) struct Batch<'a> {
    events: &'a [NewEvent],
    headers: Vec<String>,
    targets: Vec<String>,
    tags: Vec<String>,
    metadata: Vec<String>,
    origins: Vec<(&'static str, Option<String>, Option<&'a str>)>,
    deliveries: Vec<Fresh<'a>>,
    /// To be locked: each once, sorted.
    lanes: Vec<i64>,
    /// Whether each holds its key.
    live: Vec<bool>,
    /// How many changes of the buffer each holds.
    changes: Vec<i64>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(shared: &Shared, events: &'a [NewEvent]) -> Self {
        let mut deliveries = Vec::with_capacity(events.len());
        for event in events {
            for (at, target) in event.targets.iter().enumerate() {
                if event.targets[..at].contains(target) {
                    continue;
                }
                let lane = event.order_key.as_deref().map(|key| lane(target, key));
                deliveries.push(Fresh {
                    id: shared.ids.delivery().to_bytes(),
                    event: event.id.to_bytes(),
                    target: target.as_str(),
                    lane,
                });
            }
        }
        let mut lanes: Vec<i64> = deliveries.iter().filter_map(|delivery| delivery.lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        Self {
            events,
            headers: events.iter().map(|event| to_json(&event.headers)).collect(),
            targets: events.iter().map(|event| to_json(&event.targets)).collect(),
            tags: events.iter().map(|event| to_json(&event.notes.tags)).collect(),
            metadata: events.iter().map(|event| to_json(&event.notes.metadata)).collect(),
            origins: events.iter().map(|event| origin(&event.origin)).collect(),
            deliveries,
            lanes,
            live: vec![true; events.len()],
            changes: vec![0; events.len()],
        }
    }

    /// The same of runs from the buffer; `changes` is how many changes each holds.
    pub(super) fn drained(shared: &Shared, runs: &'a [NewEvent], changes: Vec<i64>) -> Self {
        Self { changes, ..Self::new(shared, runs) }
    }

    /// The same without their keys: others hold them.
    pub(super) fn keyless(self) -> Self {
        Self { live: vec![false; self.events.len()], ..self }
    }

    fn each<T>(&self, read: impl Fn(&'a NewEvent) -> T) -> Vec<T> {
        self.events.iter().map(read).collect()
    }

    fn key<T>(&self, read: impl Fn(&'a Dedupe) -> T) -> Vec<Option<T>> {
        self.events.iter().map(|event| event.dedupe.as_ref().map(&read)).collect()
    }

    fn bind(&self, query: Prepared) -> Prepared {
        let lifetimes: Vec<Option<i64>> =
            self.each(|event| event.dedupe.as_ref().and_then(|dedupe| dedupe.lifetime).map(micros));
        let dedupes = || self.events.iter().map(|event| event.dedupe.as_ref());
        let generations: Vec<Option<i64>> =
            dedupes().map(|dedupe| dedupe?.generation.map(|generation| bigint(generation.get()))).collect();
        let expires: Vec<Option<i64>> =
            dedupes().map(|dedupe| dedupe?.expires_at.map(|at| bigint(at.as_micros()))).collect();
        let freed: Vec<[u8; 16]> = dedupes()
            .flatten()
            .filter(|dedupe| dedupe.generation.is_none())
            .map(|dedupe| *dedupe.id.as_bytes())
            .collect();
        query
            .bind(self.each(|event| event.id.to_bytes()))
            .bind(self.each(|event| event.id.kind().as_str()))
            .bind(self.each(|event| event.tenant.as_str()))
            .bind(self.each(|event| event.event_type.as_str()))
            .bind(self.key(|dedupe| *dedupe.id.as_bytes()))
            .bind(self.key(|dedupe| dedupe.hint.as_str().as_bytes()))
            .bind(self.key(|dedupe| *dedupe.fingerprint.as_bytes()))
            .bind(lifetimes)
            .bind(self.each(|event| event.payload.as_ref()))
            .bind(self.each(|event| event.content_type.as_str()))
            .bind(self.headers.as_slice())
            .bind(self.each(|event| event.order_key.as_deref()))
            .bind(self.origins.iter().map(|(kind, ..)| *kind).collect::<Vec<_>>())
            .bind(self.origins.iter().map(|(_, name, _)| name.as_deref()).collect::<Vec<_>>())
            .bind(self.origins.iter().map(|(.., message)| *message).collect::<Vec<_>>())
            .bind(self.each(|event| micros(event.delay)))
            .bind(self.each(|event| event.deliver_within.map(micros)))
            .bind(self.tags.as_slice())
            .bind(self.metadata.as_slice())
            .bind(self.each(|event| event.trace.request_id.as_deref()))
            .bind(self.each(|event| event.trace.traceparent.as_deref()))
            .bind(self.deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>())
            .bind(self.deliveries.iter().map(|delivery| delivery.event).collect::<Vec<_>>())
            .bind(self.deliveries.iter().map(|delivery| delivery.target).collect::<Vec<_>>())
            .bind(self.deliveries.iter().map(|delivery| delivery.lane).collect::<Vec<_>>())
            .bind(self.targets.as_slice())
            .bind(generations)
            .bind(expires)
            .bind(self.live.as_slice())
            .bind(self.changes.as_slice())
            .bind(freed)
    }
}

fn origin(origin: &Origin) -> (&'static str, Option<String>, Option<&str>) {
    match origin {
        Origin::Api { principal } => ("api", Some(principal.clone()), None),
        Origin::Stream { stream, message } => ("stream", Some(stream.clone()), Some(message)),
        Origin::Outbox => ("outbox", None, None),
        Origin::Replay { of } => ("replay", Some(of.to_string()), None),
    }
}
