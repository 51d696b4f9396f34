//! Looking: events, deliveries, the audit log, numbers.

use std::collections::HashMap;
use std::time::Duration;

use semel::key::KeyId;

use super::page::before;
use super::{Database, Value, not_found};
use crate::delivery::{self, Delivery, DeliveryAttempt, DeliveryHistory, DeliveryState};
use crate::event::Event;
use crate::id::{DeliveryId, EventId, EventKind};
use crate::ledger::{AuditLine, Audited, DeliveryFilter, EventFilter, Page, Paged, Totals};

/// An event with its number.
pub(crate) async fn numbered_event<D: Database>(
    db: &mut D,
    id: EventId,
) -> Result<Option<(i64, Event)>, D::Fault> {
    db.first(D::SQL.event, &[id.to_bytes().into(), id.kind().as_str().into()]).await
}

pub(crate) async fn event<D: Database>(db: &mut D, id: EventId) -> Result<Option<Event>, D::Fault> {
    Ok(numbered_event(db, id).await?.map(|(_, event)| event))
}

pub(crate) async fn events<D: Database>(
    db: &mut D,
    filter: &EventFilter,
    page: &Page,
) -> Result<Paged<Event>, D::Fault> {
    let EventFilter { kind, tenant, event_type, tag } = filter;
    let parts = [kind.map(EventKind::as_str).into(), tenant.into(), event_type.into(), tag.into()];
    let with = (before(page)?.into(), &parts[..]);
    db.filtered_page((D::SQL.events)(filter), with, page, |number, _| number.to_string()).await
}

/// The states of the deliveries of events.
pub(crate) async fn delivery_states<D: Database>(
    db: &mut D,
    events: &[EventId],
) -> Result<Vec<(EventId, DeliveryState, u64)>, D::Fault> {
    let ids: HashMap<[u8; 16], EventId> = events.iter().map(|event| (event.to_bytes(), *event)).collect();
    let asked = Value::Ids(ids.keys().copied().collect());
    let counted: Vec<([u8; 16], DeliveryState, u64)> = db.rows(D::SQL.states_of, &[asked]).await?;
    let known = |(id, state, count)| ids.get(&id).map(|event| (*event, state, count));
    Ok(counted.into_iter().filter_map(known).collect())
}

pub(crate) async fn delivery<D: Database>(
    db: &mut D,
    id: DeliveryId,
) -> Result<Option<DeliveryHistory>, D::Fault> {
    let found = db.rows(D::SQL.delivery, &[id.to_bytes().into()]).await?;
    Ok(details(db, found).await?.pop())
}

pub(crate) async fn deliveries_of<D: Database>(
    db: &mut D,
    event: EventId,
) -> Result<Vec<DeliveryHistory>, D::Fault> {
    let found = db.rows(D::SQL.deliveries_of, &[event.to_bytes().into()]).await?;
    details(db, found).await
}

/// Adds events and attempts to deliveries.
async fn details<D: Database>(
    db: &mut D,
    found: Vec<(i64, Delivery)>,
) -> Result<Vec<DeliveryHistory>, D::Fault> {
    let mut all = Vec::with_capacity(found.len());
    for (_, delivery) in found {
        let event = event(db, delivery.event).await?;
        let event = event.ok_or_else(|| not_found("event", delivery.event))?;
        let attempts = attempts(db, delivery.id).await?;
        all.push(DeliveryHistory { delivery, event, attempts });
    }
    Ok(all)
}

/// The attempts of a delivery, the first one first.
pub(crate) async fn attempts<D: Database>(
    db: &mut D,
    id: DeliveryId,
) -> Result<Vec<DeliveryAttempt>, D::Fault> {
    let mut attempts: Vec<DeliveryAttempt> = db.rows(D::SQL.attempts, &[id.to_bytes().into()]).await?;
    for attempt in &mut attempts {
        attempt.request_id = delivery::request_id(id, attempt.number);
    }
    Ok(attempts)
}

pub(crate) async fn deliveries<D: Database>(
    db: &mut D,
    filter: &DeliveryFilter,
    page: &Page,
) -> Result<Paged<Delivery>, D::Fault> {
    let DeliveryFilter { event, target, tenant, states } = filter;
    let parts = [
        target.into(),
        tenant.into(),
        Value::Texts(states.iter().map(|state| state.as_str()).collect()),
        event.map(EventId::to_bytes).into(),
    ];
    let with = (D::deliveries_before(page)?, &parts[..]);
    db.filtered_page((D::SQL.deliveries)(filter), with, page, D::delivery_cursor).await
}

pub(crate) async fn find_events<D: Database>(
    db: &mut D,
    request_id: Option<&str>,
    dedupe: Option<KeyId>,
    tags: &[String],
) -> Result<Vec<EventId>, D::Fault> {
    let delivery = request_id.and_then(delivery::delivery_of_request).map(DeliveryId::to_bytes);
    let key = dedupe.map(|dedupe| *dedupe.as_bytes());
    let tags = Value::Texts(tags.iter().map(String::as_str).collect());
    db.rows(D::SQL.find_events, &[request_id.into(), delivery.into(), key.into(), tags]).await
}

/// Writes a line of the audit log.
pub(crate) async fn audit<D: Database>(db: &mut D, line: &AuditLine) -> Result<(), D::Fault> {
    let AuditLine { who, action, subject, reason } = line;
    let with = [who.as_str().into(), action.as_str().into(), subject.as_str().into(), reason.as_str().into()];
    db.run(D::SQL.audit, &with).await.map(drop)
}

pub(crate) async fn audit_log<D: Database>(
    db: &mut D,
    subject: Option<&str>,
    page: &Page,
) -> Result<Paged<Audited>, D::Fault> {
    let more: Vec<Value<'_>> = subject.map(Value::from).into_iter().collect();
    let sql = if subject.is_some() { super::AUDIT_LOG_OF } else { super::AUDIT_LOG };
    db.page(sql, (before(page)?.into(), &more), page, |number, _| number.to_string()).await
}

/// Removes old lines of the audit log.
pub(crate) async fn sweep_audit<D: Database>(
    db: &mut D,
    keep: Duration,
    limit: u32,
) -> Result<u64, D::Fault> {
    let keep = i64::try_from(keep.as_micros()).unwrap_or(i64::MAX / 2);
    db.run(D::SQL.sweep_audit, &[keep.into(), i64::from(limit).into()]).await
}

pub(crate) async fn totals<D: Database>(db: &mut D) -> Result<Totals, D::Fault> {
    Ok(Totals {
        deliveries: db.rows(D::SQL.delivery_totals, &[]).await?,
        due: db.rows(D::SQL.oldest_due, &[]).await?,
        letters: db.rows(D::SQL.letter_totals, &[]).await?,
    })
}
