//! Looking: events, deliveries, the audit log, numbers.

use bytes::Bytes;
use semel::fingerprint::Fingerprint;
use semel::key::{Hint, KeyId};
use semel::store::rusqlite::{self, Connection, OptionalExtension as _, ToSql, params};

use super::EmbeddedLedger;
use super::columns::{Columns, duration, micros, moment};
use super::page::{Listing, look_at, position};
use super::work::Done;
use crate::delivery::{self, Attempt, Class, Delivery, Ending, State, Told};
use crate::event::{Dedupe, Event, NewEvent, Notes, Trace};
use crate::id::{DeliveryId, EventId, EventKind, JobId, LetterId};
use crate::ledger::{Answer, AuditLine, Audited, DeliveryFilter, EventFilter, Page, Paged, Reading, Totals};
use crate::letter::Status;

impl Reading for EmbeddedLedger {
    fn event(&self, id: EventId) -> Answer<'_, Option<Event>> {
        Box::pin(async move { self.read(|connection| Ok(event(connection, id)?.map(|(_, event)| event))) })
    }

    fn events(&self, filter: EventFilter, page: Page) -> Answer<'_, Paged<Event>> {
        Box::pin(async move { self.read(|connection| events(connection, &filter, &page)) })
    }

    fn delivery(&self, id: DeliveryId) -> Answer<'_, Option<Told>> {
        Box::pin(async move {
            self.read(|connection| {
                let found = some_deliveries(connection, "WHERE d.id = ?1", &[&id.to_bytes()])?;
                Ok(told(connection, found)?.pop())
            })
        })
    }

    fn deliveries(&self, filter: DeliveryFilter, page: Page) -> Answer<'_, Paged<Delivery>> {
        Box::pin(async move { self.read(|connection| deliveries(connection, &filter, &page)) })
    }

    fn deliveries_of(&self, event: EventId) -> Answer<'_, Vec<Told>> {
        Box::pin(async move {
            self.read(|connection| {
                let tail = "WHERE e.id = ?1 ORDER BY d.number";
                let found = some_deliveries(connection, tail, &[&event.to_bytes()])?;
                Ok(told(connection, found)?)
            })
        })
    }

    fn find_events(&self, request_id: Option<String>, dedupe: Option<KeyId>) -> Answer<'_, Vec<EventId>> {
        Box::pin(async move {
            self.read(|connection| Ok(find_events(connection, request_id.as_deref(), dedupe)?))
        })
    }

    fn audit(&self, line: AuditLine) -> Answer<'_, ()> {
        Box::pin(self.write(move |work, _| Ok(work.audit(&line)?)))
    }

    fn audit_log(&self, subject: Option<String>, page: Page) -> Answer<'_, Paged<Audited>> {
        Box::pin(async move { self.read(|connection| audit_log(connection, subject.as_deref(), &page)) })
    }

    fn totals(&self) -> Answer<'_, Totals> {
        Box::pin(async move {
            let now = self.store.clock().now();
            self.read(|connection| Ok(totals(connection, now)?))
        })
    }

    fn sweep(&self, keep: std::time::Duration, limit: u32) -> Answer<'_, u64> {
        Box::pin(self.write(move |work, _| work.sweep(keep, limit)))
    }
}

const EVENT: &str = "number, kind, id, tenant, type, dedupe, hint, fingerprint, lifetime, payload, content_type, headers, order_key, origin, targets, delay, deliver_within, tags, metadata, request_id, traceparent, accepted_at, version, changes";

fn read_event(row: &rusqlite::Row<'_>) -> rusqlite::Result<(i64, Event)> {
    let mut columns = Columns::of(row);
    let number = columns.get()?;
    let kind = columns.name(EventKind::from_name)?;
    let id = EventId::from_bytes(kind, columns.get()?);
    let (tenant, event_type) = (columns.get()?, columns.get()?);
    let (dedupe, hint) = (columns.get::<Option<[u8; 16]>>()?, columns.get::<Option<String>>()?);
    let (fingerprint, lifetime) = (columns.get::<Option<[u8; 32]>>()?, columns.maybe_duration()?);
    let dedupe = dedupe.zip(fingerprint).map(|(id, fingerprint)| Dedupe {
        id: KeyId::from_bytes(id),
        hint: Hint::new(hint.as_deref().unwrap_or_default()),
        fingerprint: Fingerprint::from_bytes(fingerprint),
        lifetime,
        expires_at: None,
        generation: None,
    });
    let mut new = NewEvent {
        id,
        tenant,
        event_type,
        dedupe,
        payload: Bytes::from(columns.get::<Vec<u8>>()?),
        content_type: columns.get()?,
        headers: columns.json()?,
        order_key: columns.get()?,
        origin: columns.json()?,
        targets: columns.json()?,
        delay: duration(columns.get()?),
        deliver_within: columns.maybe_duration()?,
        notes: Notes { tags: columns.json()?, metadata: columns.json()? },
        trace: Trace { request_id: columns.get()?, traceparent: columns.get()? },
    };
    let (accepted_at, version) = (columns.time()?, columns.count()?);
    let changes = columns.count()?.max(new.notes.take_changes());
    Ok((number, Event { new, accepted_at, version, changes }))
}

/// An event with its number.
pub(super) fn event(connection: &Connection, id: EventId) -> rusqlite::Result<Option<(i64, Event)>> {
    connection
        .prepare_cached(&format!(
            "SELECT {EVENT} FROM ledger_events JOIN ledger_payloads ON event = number WHERE id = ?1 AND kind = ?2"
        ))?
        .query_row(params![id.to_bytes(), id.kind().as_str()], read_event)
        .optional()
}

/// An event by its number.
pub(super) fn numbered_event(connection: &Connection, number: i64) -> rusqlite::Result<Option<Event>> {
    connection
        .prepare_cached(&format!(
            "SELECT {EVENT} FROM ledger_events JOIN ledger_payloads ON event = number WHERE number = ?1"
        ))?
        .query_row([number], |row| read_event(row).map(|(_, event)| event))
        .optional()
}

fn events(connection: &Connection, filter: &EventFilter, page: &Page) -> Done<Paged<Event>> {
    let EventFilter { kind, tenant, event_type, tag } = filter;
    // One of the filters finds the rows, by its index; the others look at what is found.
    let (from, by): (&str, Option<&str>) = match (tag, tenant, event_type) {
        (Some(tag), _, _) => (
            "ledger_tags AS t JOIN ledger_events ON number = t.event JOIN ledger_payloads AS p ON p.event = number WHERE t.tag = ?3 AND t.event < ?1 ORDER BY t.event DESC",
            Some(tag),
        ),
        (None, Some(tenant), _) => (
            "ledger_events INDEXED BY ledger_events_tenant JOIN ledger_payloads AS p ON p.event = number WHERE tenant = ?3 AND number < ?1 ORDER BY number DESC",
            Some(tenant),
        ),
        (None, None, Some(event_type)) => (
            "ledger_events INDEXED BY ledger_events_type JOIN ledger_payloads AS p ON p.event = number WHERE type = ?3 AND number < ?1 ORDER BY number DESC",
            Some(event_type),
        ),
        (None, None, None) => (
            "ledger_events JOIN ledger_payloads AS p ON p.event = number WHERE number < ?1 AND ?3 IS NULL ORDER BY number DESC",
            None,
        ),
    };
    let mut statement = connection.prepare_cached(&format!("SELECT {EVENT} FROM {from} LIMIT ?2"))?;
    let mut listing = Listing::of(page);
    let rows = statement.query_map(params![position(page)?, look_at(), by], read_event)?;
    for row in rows {
        let (number, event) = row?;
        let wanted = kind.is_none_or(|kind| kind == event.new.id.kind())
            && tenant.as_ref().is_none_or(|tenant| *tenant == event.new.tenant)
            && event_type.as_ref().is_none_or(|event_type| *event_type == event.new.event_type);
        if !listing.look(number, wanted.then_some(event)) {
            break;
        }
    }
    Ok(listing.end())
}

const DELIVERY: &str = "d.number, d.event, d.id, e.kind, e.id, d.target, d.tenant, d.type, d.state, d.attempts, d.crashes, d.epoch, d.due_at, d.error, l.id, d.created_at, d.started_at, d.completed_at FROM ledger_deliveries AS d JOIN ledger_events AS e ON e.number = d.event LEFT JOIN ledger_letters AS l ON l.number = d.letter";

/// A delivery with its own number and its event's.
type Numbered = (i64, i64, Delivery);

fn read_delivery(row: &rusqlite::Row<'_>) -> rusqlite::Result<Numbered> {
    let mut columns = Columns::of(row);
    let (number, event) = (columns.get()?, columns.get()?);
    let id = DeliveryId::from_bytes(columns.get()?);
    let kind = columns.name(EventKind::from_name)?;
    let delivery = Delivery {
        id,
        event: EventId::from_bytes(kind, columns.get()?),
        target: columns.get()?,
        tenant: columns.get()?,
        event_type: columns.get()?,
        state: columns.name(State::from_name)?,
        attempts: columns.get()?,
        crashes: columns.get()?,
        epoch: columns.get()?,
        due_at: columns.time()?,
        error: columns.get()?,
        letter: columns.get::<Option<[u8; 16]>>()?.map(LetterId::from_bytes),
        created_at: columns.time()?,
        started_at: columns.maybe_time()?,
        completed_at: columns.maybe_time()?,
    };
    Ok((number, event, delivery))
}

fn some_deliveries(
    connection: &Connection,
    tail: &str,
    with: &[&dyn ToSql],
) -> rusqlite::Result<Vec<Numbered>> {
    connection.prepare_cached(&format!("SELECT {DELIVERY} {tail}"))?.query_map(with, read_delivery)?.collect()
}

/// Adds what belongs to deliveries.
fn told(connection: &Connection, found: Vec<Numbered>) -> rusqlite::Result<Vec<Told>> {
    let mut all = Vec::with_capacity(found.len());
    for (number, event, delivery) in found {
        let event = numbered_event(connection, event)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        let attempts = attempts(connection, number, delivery.id)?;
        all.push(Told { delivery, event, attempts });
    }
    Ok(all)
}

/// The attempts of a delivery, the first one first.
pub(super) fn attempts(
    connection: &Connection,
    delivery: i64,
    id: DeliveryId,
) -> rusqlite::Result<Vec<Attempt>> {
    connection
        .prepare_cached(
            "SELECT number, worker, epoch, started_at, ended_at, class, status, error, excerpt, retry_after, job
             FROM ledger_attempts WHERE delivery = ?1 ORDER BY number",
        )?
        .query_map([delivery], |row| {
            let mut columns = Columns::of(row);
            let number = columns.get()?;
            let (worker, epoch) = (columns.get()?, columns.get()?);
            let (started_at, ended_at) = (columns.time()?, columns.maybe_time()?);
            let class = columns.maybe_name(Class::from_name)?;
            let (status, error) = (columns.get()?, columns.get::<Option<String>>()?);
            let (excerpt, retry_after) = (columns.get::<Option<String>>()?, columns.maybe_duration()?);
            let ending = class.map(|class| Ending {
                class,
                status,
                error: error.unwrap_or_default(),
                excerpt: excerpt.unwrap_or_default(),
                retry_after,
            });
            let job = columns.get::<Option<[u8; 16]>>()?.map(JobId::from_bytes);
            let request_id = delivery::request_id(id, number);
            Ok(Attempt { number, worker, epoch, started_at, ended_at, ending, job, request_id })
        })?
        .collect()
}

fn deliveries(connection: &Connection, filter: &DeliveryFilter, page: &Page) -> Done<Paged<Delivery>> {
    let DeliveryFilter { event, target, tenant, states } = filter;
    let (from, mut listing) = (position(page)?, Listing::of(page));
    // Whether the index that is used below finds nothing but what is wanted.
    let exact = target.is_none() && (states.is_empty() || (event.is_none() && tenant.is_none()));
    let most = if exact { listing.exactly() } else { look_at() };
    let of_state = "d INDEXED BY ledger_deliveries_state WHERE d.state = ?3 AND d.state <> 'done' AND d.number < ?1 ORDER BY d.number DESC LIMIT ?2";
    let mut found = Vec::new();
    if let Some(event) = event {
        let tail = "WHERE e.id = ?3 AND d.number < ?1 ORDER BY d.number DESC LIMIT ?2";
        found = some_deliveries(connection, tail, &[&from, &most, &event.to_bytes()])?;
    } else if let Some(tenant) = tenant {
        let tail = "WHERE d.tenant = ?3 AND d.number < ?1 ORDER BY d.number DESC LIMIT ?2";
        found = some_deliveries(connection, tail, &[&from, &most, tenant])?;
    } else if !states.is_empty() && !states.contains(&State::Done) {
        // Each state by its index, then merged: the states of what has not ended well hold few of all deliveries.
        let sql = DELIVERY.replace(
            "ledger_deliveries AS d",
            &format!("(SELECT * FROM ledger_deliveries AS {of_state}) AS d"),
        );
        let mut statement = connection.prepare_cached(&format!("SELECT {sql} ORDER BY d.number DESC"))?;
        for state in states {
            for row in statement.query_map(params![from, most, state.as_str()], read_delivery)? {
                found.push(row?);
            }
        }
        found.sort_by_key(|(number, ..)| std::cmp::Reverse(*number));
        found.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    } else {
        let tail = "WHERE d.number < ?1 ORDER BY d.number DESC LIMIT ?2";
        found = some_deliveries(connection, tail, &[&from, &most])?;
    }
    for (number, _, delivery) in found {
        let wanted = target.as_ref().is_none_or(|target| *target == delivery.target)
            && tenant.as_ref().is_none_or(|tenant| *tenant == delivery.tenant)
            && (states.is_empty() || states.contains(&delivery.state));
        if !listing.look(number, wanted.then_some(delivery)) {
            break;
        }
    }
    Ok(listing.end())
}

fn find_events(
    connection: &Connection,
    request_id: Option<&str>,
    dedupe: Option<KeyId>,
) -> rusqlite::Result<Vec<EventId>> {
    let id = |row: &rusqlite::Row<'_>| {
        let mut columns = Columns::of(row);
        let kind = columns.name(EventKind::from_name)?;
        Ok(EventId::from_bytes(kind, columns.get()?))
    };
    let mut found: Vec<EventId> = Vec::new();
    if let Some(request_id) = request_id {
        let mut statement = connection
            .prepare_cached("SELECT kind, id FROM ledger_events WHERE request_id = ?1 ORDER BY number")?;
        for event in statement.query_map([request_id], id)? {
            found.push(event?);
        }
        if let Some(delivery) = delivery::delivery_of_request(request_id) {
            let event = connection
                .prepare_cached(
                    "SELECT e.kind, e.id FROM ledger_deliveries AS d JOIN ledger_events AS e ON e.number = d.event
                     WHERE d.id = ?1",
                )?
                .query_row([delivery.to_bytes()], id)
                .optional()?;
            found.extend(event);
        }
    }
    if let Some(dedupe) = dedupe {
        let mut statement = connection
            .prepare_cached("SELECT kind, id FROM ledger_events WHERE dedupe = ?1 ORDER BY number")?;
        for event in statement.query_map([dedupe.as_bytes()], id)? {
            found.push(event?);
        }
    }
    let mut once = Vec::with_capacity(found.len());
    for event in found {
        if !once.contains(&event) {
            once.push(event);
        }
    }
    Ok(once)
}

fn audit_log(connection: &Connection, subject: Option<&str>, page: &Page) -> Done<Paged<Audited>> {
    let wanted = match subject {
        Some(_) => "subject = ?3 AND",
        None => "?3 IS NULL AND",
    };
    let mut statement = connection.prepare_cached(&format!(
        "SELECT number, at, who, action, subject, reason FROM ledger_audit
         WHERE {wanted} number < ?1 ORDER BY number DESC LIMIT ?2"
    ))?;
    let mut listing = Listing::of(page);
    let rows = statement.query_map(params![position(page)?, listing.exactly(), subject], |row| {
        let mut columns = Columns::of(row);
        let (number, at): (i64, _) = (columns.get()?, columns.time()?);
        let line = AuditLine {
            who: columns.get()?,
            action: columns.get()?,
            subject: columns.get()?,
            reason: columns.get()?,
        };
        Ok((number, Audited { at, line }))
    })?;
    for row in rows {
        let (number, line) = row?;
        if !listing.look(number, Some(line)) {
            break;
        }
    }
    Ok(listing.end())
}

fn totals(connection: &Connection, now: semel::time::Timestamp) -> rusqlite::Result<Totals> {
    let mut totals = Totals::default();
    let mut statement = connection.prepare_cached(
        "SELECT what, name, state, count FROM ledger_tally WHERE count > 0 ORDER BY name, state",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let mut columns = Columns::of(row);
        let (what, name): (String, String) = (columns.get()?, columns.get()?);
        if what == "delivery" {
            totals.deliveries.push((name, columns.name(State::from_name)?, columns.count()?));
        } else {
            totals.letters.push((columns.name(Status::from_name)?, columns.count()?));
        }
    }
    let oldest: Option<i64> = connection
        .prepare_cached(
            "SELECT min((SELECT due_at FROM ledger_deliveries AS d INDEXED BY ledger_deliveries_ready
                         WHERE d.target = l.target AND d.tenant = l.tenant AND d.front = 1
                           AND d.state IN ('idle', 'queued', 'retry_wait', 'replaying')
                         ORDER BY due_at LIMIT 1))
             FROM ledger_lanes AS l WHERE turn IS NOT NULL OR due_at <= ?1",
        )?
        .query_row([micros(now)], |row| row.get(0))?;
    totals.oldest_due = oldest.map(moment).filter(|due| *due <= now).map(|due| now.left(due));
    Ok(totals)
}
