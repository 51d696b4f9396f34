//! What only runs have: changes, cancelling, keys that are reset.

use semel::fingerprint::Fingerprint;
use semel::key::KeyId;

use super::reading::{self, audit};
use super::writing::Writing;
use super::{Database, Value, bigint, not_found};
use crate::delivery::{DeliveryState, DeliveryStep, Impossible};
use crate::event::{Event, Generation};
use crate::id::{DeliveryId, EventId};
use crate::ledger::{AuditLine, Change, Error, Reset, rules};

pub(crate) async fn resolve<D: Database>(db: &mut D, ghost: EventId) -> Result<Option<EventId>, D::Fault> {
    let winner: Option<[u8; 16]> = db.first(super::RESOLVE, &[ghost.to_bytes().into()]).await?;
    Ok(winner.map(|id| EventId::from_bytes(ghost.kind(), id)))
}

pub(crate) async fn find_keyless<D: Database>(
    db: &mut D,
    dedupe: KeyId,
    generation: Generation,
    fingerprint: Fingerprint,
) -> Result<Option<EventId>, D::Fault> {
    let fingerprint = Value::Bytes(Some(fingerprint.as_bytes().to_vec()));
    let with = [(*dedupe.as_bytes()).into(), bigint(generation.get()).into(), fingerprint];
    db.first(D::SQL.find_keyless, &with).await
}

/// An event whose row nobody else changes from now on.
pub(crate) async fn hold<D: Database>(db: &mut D, id: EventId) -> Result<Option<Event>, D::Fault> {
    let with = [id.to_bytes().into(), id.kind().as_str().into()];
    if db.first::<()>(D::SQL.hold_event, &with).await?.is_none() {
        // Not read either: it may arrive now, and then nobody holds it.
        return Ok(None);
    }
    reading::event(db, id).await
}

/// The deliveries of an event, which nobody else changes from now on.
async fn deliveries<D: Database>(
    db: &mut D,
    event: EventId,
) -> Result<Vec<(DeliveryId, DeliveryState)>, D::Fault> {
    db.rows(D::SQL.hold_deliveries, &[event.to_bytes().into()]).await
}

pub(crate) async fn change<D: Writing>(
    db: &mut D,
    id: EventId,
    change: &Change,
    version: Option<u64>,
) -> Result<Event, D::Fault> {
    // Before anything is written: a caller may go on after a refusal.
    for tag in &change.add_tags {
        D::check_text("a tag", tag)?;
    }
    let mut event = hold(db, id).await?.ok_or_else(|| not_found("event", id))?;
    rules::change(&mut event, change, version)?;
    if let Some(delay) = change.delay {
        rules::check_not_started(deliveries(db, id).await?.iter().map(|(_, state)| *state))?;
        db.put_off(id, delay).await?;
    }
    db.save_notes(&event).await?;
    Ok(event)
}

pub(crate) async fn cancel<D: Writing>(db: &mut D, id: EventId, line: &AuditLine) -> Result<u32, D::Fault> {
    let with = [id.to_bytes().into(), id.kind().as_str().into()];
    if db.first::<()>(super::EVENT_EXISTS, &with).await?.is_none() {
        return Err(not_found("event", id).into());
    }
    // Lanes before rows, as a settle does.
    if let Some(lock) = D::SQL.lock_lanes {
        db.run(lock, &[id.to_bytes().into()]).await?;
    }
    let all = deliveries(db, id).await?;
    let is_cancellable = |state: DeliveryState| state.after(DeliveryStep::Cancel).is_ok();
    let cancelled: Vec<DeliveryId> =
        all.iter().filter(|(_, state)| is_cancellable(*state)).map(|(id, _)| *id).collect();
    if let ([(_, state), ..], true) = (all.as_slice(), cancelled.is_empty()) {
        return Err(Error::from(Impossible { state: *state, step: DeliveryStep::Cancel }).into());
    }
    db.cancel_deliveries(&cancelled).await?;
    audit(db, line).await?;
    Ok(u32::try_from(cancelled.len()).unwrap_or(u32::MAX))
}

pub(crate) async fn reset<D: Writing>(
    db: &mut D,
    dedupe: KeyId,
    line: &AuditLine,
) -> Result<Reset, D::Fault> {
    // Two resets of one key come one after the other, so that each ends what it has read.
    if let Some(lock) = D::SQL.lock_key {
        db.run(lock, &[(*dedupe.as_bytes()).into()]).await?;
    }
    let key = db.key_state(dedupe).await?;
    db.end_generation(dedupe, key.generation).await?;
    audit(db, line).await?;
    Ok(Reset { ended: key.generation, holder: key.live().map(|holder| holder.event) })
}

/// Ends a generation of a key, unless it has ended. Answers the one that lasts now.
pub(crate) async fn advance<D: Writing>(
    db: &mut D,
    dedupe: KeyId,
    from: Generation,
) -> Result<Generation, D::Fault> {
    db.end_generation(dedupe, from).await
}
