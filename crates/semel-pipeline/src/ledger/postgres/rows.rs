//! Rows as events, deliveries, attempts and letters.

use bytes::Bytes;
use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};

use super::fault::Fault;
use super::values::{Columns, count, length};
use crate::delivery::{Attempt, Class, Delivery, Ending, State, request_id};
use crate::event::{Dedupe, Event, NewEvent, Notes, Origin, Trace};
use crate::id::{DeliveryId, EventId, EventKind, JobId, LetterId};
use crate::letter::{Cause, Letter, Signature, SourceMessage, Status};

/// The columns of an event, in the order in which [`event`] reads them, its number first.
macro_rules! event_columns {
    () => {
        "e.seq, e.id, e.kind, e.tenant, e.event_type, e.dedupe, e.dedupe_hint, e.fingerprint, e.dedupe_lifetime, \
         e.payload, e.content_type, e.headers::text, e.order_key, e.origin, e.origin_name, e.origin_message, \
         e.targets::text, e.delay, e.deliver_within, e.tags, e.metadata::text, e.request_id, e.traceparent, \
         e.accepted_at, e.version, e.changes"
    };
}
pub(super) use event_columns;

pub(super) fn event(row: Columns<'_>) -> Result<Event, Fault> {
    let id = EventId::from_bytes(row.word(2, EventKind::from_name)?, row.bytes(1)?);
    let dedupe = match (row.bytes_or_none(5)?, row.bytes_or_none(7)?) {
        (Some(id), Some(fingerprint)) => Some(Dedupe {
            id: KeyId::from_bytes(id),
            hint: Hint::new(&String::from_utf8_lossy(row.get::<Option<&[u8]>>(6)?.unwrap_or_default())),
            fingerprint: Fingerprint::from_bytes(fingerprint),
            lifetime: row.get::<Option<i64>>(8)?.map(length),
            expires_at: None,
            generation: None,
        }),
        _ => None,
    };
    let mut new = NewEvent {
        id,
        tenant: row.get(3)?,
        event_type: row.get(4)?,
        dedupe,
        payload: Bytes::from(row.get::<Vec<u8>>(9)?),
        content_type: row.get(10)?,
        headers: row.json(11)?,
        order_key: row.get(12)?,
        origin: origin(row)?,
        targets: row.json(16)?,
        delay: length(row.get(17)?),
        deliver_within: row.get::<Option<i64>>(18)?.map(length),
        notes: Notes { tags: row.get(19)?, metadata: row.json(20)? },
        trace: Trace { request_id: row.get(21)?, traceparent: row.get(22)? },
    };
    let version = u64::try_from(row.get::<i64>(24)?).unwrap_or(0);
    let changes = u64::try_from(row.get::<i64>(25)?).unwrap_or(0).max(new.notes.take_changes());
    Ok(Event { new, accepted_at: row.time(23)?, version, changes })
}

fn origin(row: Columns<'_>) -> Result<Origin, Fault> {
    let name = || Ok::<_, Fault>(row.get::<Option<String>>(14)?.unwrap_or_default());
    Ok(match row.get::<&str>(13)? {
        "api" => Origin::Api { principal: name()? },
        "stream" => {
            Origin::Stream { stream: name()?, message: row.get::<Option<String>>(15)?.unwrap_or_default() }
        }
        "outbox" => Origin::Outbox,
        _ => Origin::Replay { of: name()?.parse().map_err(|_| row.corrupt("an origin that is no event"))? },
    })
}

/// The columns of a delivery `d` with its event `e`, in the order in which [`delivery`] reads them.
macro_rules! delivery_columns {
    () => {
        "d.id, d.event, e.kind, d.target, d.tenant, e.event_type, d.state, d.attempts, d.crashes, d.epoch, d.due_at, \
         d.error, d.letter, d.created_at, d.started_at, d.completed_at"
    };
}
pub(super) use delivery_columns;

pub(super) fn delivery(row: Columns<'_>) -> Result<Delivery, Fault> {
    Ok(Delivery {
        id: DeliveryId::from_bytes(row.bytes(0)?),
        event: EventId::from_bytes(row.word(2, EventKind::from_name)?, row.bytes(1)?),
        target: row.get(3)?,
        tenant: row.get(4)?,
        event_type: row.get(5)?,
        state: row.word(6, State::from_name)?,
        attempts: row.count(7)?,
        crashes: row.count(8)?,
        epoch: row.count(9)?,
        due_at: row.time(10)?,
        error: row.get(11)?,
        letter: row.bytes_or_none(12)?.map(LetterId::from_bytes),
        created_at: row.time(13)?,
        started_at: row.time_or_none(14)?,
        completed_at: row.time_or_none(15)?,
    })
}

pub(super) const ATTEMPTS: &str = "SELECT number, worker, epoch, started_at, ended_at, class, status, error, excerpt, \
     retry_after, job FROM attempt WHERE delivery = $1 ORDER BY number";

pub(super) fn attempt(row: Columns<'_>, delivery: DeliveryId) -> Result<Attempt, Fault> {
    let number = row.count(0)?;
    let ending = match row.get::<Option<&str>>(5)? {
        None => None,
        Some(class) => Some(Ending {
            class: Class::from_name(class).ok_or_else(|| row.corrupt("a class of another version"))?,
            status: row.get::<Option<i32>>(6)?.and_then(|status| u16::try_from(status).ok()),
            error: row.get::<Option<String>>(7)?.unwrap_or_default(),
            excerpt: row.get::<Option<String>>(8)?.unwrap_or_default(),
            retry_after: row.get::<Option<i64>>(9)?.map(length),
        }),
    };
    Ok(Attempt {
        number,
        worker: row.get(1)?,
        epoch: row.get(2).map(count)?,
        started_at: row.time(3)?,
        ended_at: row.time_or_none(4)?,
        ending,
        job: row.bytes_or_none(10)?.map(JobId::from_bytes),
        request_id: request_id(delivery, number),
    })
}

/// A letter `l` with its event `e`, its number first; the payload of an event is not kept twice.
macro_rules! letter_columns {
    () => {
        "l.seq, l.id, l.tenant, e.id, e.kind, l.delivery, l.target, l.event_type, l.stream, l.message, \
         coalesce(l.payload, e.payload, ''::bytea), l.content_type, l.headers::text, l.cause, l.error, l.signature, \
         l.status, l.attempts, l.last_attempt_at, l.failed_replays, l.copy_of, l.created_at, l.updated_at \
         FROM letter AS l LEFT JOIN event AS e ON e.id = l.event"
    };
}
pub(super) use letter_columns;

pub(super) fn letter(row: Columns<'_>) -> Result<Letter, Fault> {
    let event = match row.bytes_or_none(3)? {
        Some(id) => Some(EventId::from_bytes(row.word(4, EventKind::from_name)?, id)),
        None => None,
    };
    let source = match (row.get(8)?, row.get(9)?) {
        (Some(stream), Some(message)) => Some(SourceMessage { stream, message }),
        _ => None,
    };
    Ok(Letter {
        id: LetterId::from_bytes(row.bytes(1)?),
        tenant: row.get(2)?,
        event,
        delivery: row.bytes_or_none(5)?.map(DeliveryId::from_bytes),
        target: row.get(6)?,
        event_type: row.get(7)?,
        source,
        payload: Bytes::from(row.get::<Vec<u8>>(10)?),
        content_type: row.get(11)?,
        headers: row.json(12)?,
        cause: row.word(13, Cause::from_name)?,
        error: row.get(14)?,
        signature: Signature::from_kept(row.get::<String>(15)?),
        status: row.word(16, Status::from_name)?,
        attempts: row.count(17)?,
        last_attempt_at: row.time_or_none(18)?,
        failed_replays: row.count(19)?,
        copy_of: row.bytes_or_none(20)?.map(LetterId::from_bytes),
        created_at: row.time(21)?,
        updated_at: row.time(22)?,
    })
}
