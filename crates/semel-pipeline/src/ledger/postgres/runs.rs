//! What only runs have: changes, cancelling, keys that are reset.

use semel::fingerprint::Fingerprint;
use semel::key::KeyId;

use super::PostgresLedger;
use super::database::Db;
use super::fault::Fault;
use super::intake;
use super::link::Shape;
use super::settle::{END_ITEMS, END_JOBS, LOCK_LANES_OF, NEXT_IN_LANES_OF};
use super::values::{check_text, micros};
use crate::delivery::{DeliveryState, DeliveryStep, Impossible};
use crate::event::{Event, Generation};
use crate::id::EventId;
use crate::ledger::sql::{Database as _, bigint, not_found, reading, runs, to_json};
use crate::ledger::{Answer, AuditLine, Change, Error, Ledger, Reset, Runs, rules};
use crate::replay::ItemState;

impl Ledger for PostgresLedger {}

impl Runs for PostgresLedger {
    fn change(&self, id: EventId, change: Change, version: Option<u64>) -> Answer<'_, Event> {
        Box::pin(async move {
            for tag in &change.add_tags {
                check_text("a tag", tag)?;
            }
            let (shape, reschedules) = (shape_of(&change), change.delay.is_some());
            let changed = self.call(shape, (id, change, version), |db, (id, change, version)| {
                Box::pin(self::change(db, *id, change, *version))
            });
            let changed = changed.await?;
            if reschedules {
                self.shared.news.tell();
            }
            Ok(changed)
        })
    }

    fn cancel(&self, id: EventId, line: AuditLine) -> Answer<'_, u32> {
        Box::pin(async move {
            let cancelled = self
                .call(Shape::Transaction, (id, line), |db, (id, line)| Box::pin(self::cancel(db, *id, line)))
                .await?;
            self.shared.news.tell();
            Ok(cancelled)
        })
    }

    fn resolve(&self, ghost: EventId) -> Answer<'_, Option<EventId>> {
        self.call(Shape::Read, ghost, |db, ghost| Box::pin(runs::resolve(db, *ghost)))
    }

    fn reset(&self, dedupe: KeyId, line: AuditLine) -> Answer<'_, Reset> {
        self.call(Shape::TransactionOnce, (dedupe, line), |db, (dedupe, line)| {
            Box::pin(self::reset(db, *dedupe, line))
        })
    }

    fn advance(&self, dedupe: KeyId, from: Generation) -> Answer<'_, Generation> {
        self.call(Shape::Transaction, (dedupe, from), |db, (dedupe, from)| {
            Box::pin(self::advance(db, *dedupe, *from))
        })
    }

    fn find_keyless(
        &self,
        dedupe: KeyId,
        generation: Generation,
        fingerprint: Fingerprint,
    ) -> Answer<'_, Option<EventId>> {
        self.call(Shape::Read, (dedupe, generation, fingerprint), |db, (dedupe, generation, fingerprint)| {
            Box::pin(runs::find_keyless(db, *dedupe, *generation, *fingerprint))
        })
    }
}

/// An increment counts every time: where its commit has an unknown end, it is the caller who decides.
pub(super) fn shape_of(change: &Change) -> Shape {
    if change.increment.is_empty() { Shape::Transaction } else { Shape::TransactionOnce }
}

const HOLD: &str = "SELECT 1 FROM ledger_event WHERE id = $1 AND kind = $2 FOR UPDATE";
const HOLD_DELIVERIES: &str =
    "SELECT id, state FROM ledger_delivery WHERE event = $1 ORDER BY number FOR UPDATE";
const PUT_OFF: &str = "UPDATE ledger_delivery SET due_at = statement_timestamp() + $2 * interval '1 microsecond' WHERE event = $1";
const CHANGE: &str = "UPDATE ledger_event SET tags = $2, metadata = $3::json, changes = $4, version = version + 1 WHERE id = $1";

/// An event whose row nobody else changes from now on.
pub(super) async fn hold(db: &mut Db<'_>, id: EventId) -> Result<Option<Event>, Fault> {
    if db.first::<()>(HOLD, &[id.to_bytes().into(), id.kind().as_str().into()]).await?.is_none() {
        // Not read either: it may arrive now, and then nobody holds it.
        return Ok(None);
    }
    reading::event(db, id).await
}

async fn deliveries(db: &mut Db<'_>, id: EventId) -> Result<Vec<([u8; 16], DeliveryState)>, Fault> {
    db.rows(HOLD_DELIVERIES, &[id.to_bytes().into()]).await
}

pub(super) async fn change(
    db: &mut Db<'_>,
    id: EventId,
    change: &Change,
    version: Option<u64>,
) -> Result<Event, Fault> {
    let mut event = hold(db, id).await?.ok_or_else(|| not_found("event", id))?;
    // Before anything is written: a caller may go on after a refusal.
    rules::change(&mut event, change, version)?;
    if let Some(delay) = change.delay {
        rules::check_not_started(deliveries(db, id).await?.iter().map(|(_, state)| *state))?;
        db.execute(db.query(PUT_OFF).bind(id.to_bytes()).bind(micros(delay))).await?;
    }
    let query = db
        .query(CHANGE)
        .bind(id.to_bytes())
        .bind(event.new.notes.tags.as_slice())
        .bind(to_json(&event.new.notes.metadata))
        .bind(bigint(event.changes));
    db.execute(query).await?;
    Ok(event)
}

const CANCEL: &str = r"
WITH cancelled AS (
  UPDATE ledger_delivery SET state = 'cancelled', waits = false, completed_at = statement_timestamp() WHERE id = ANY($1)
  RETURNING letter
)
UPDATE ledger_dead_letter AS l SET status = 'discarded', updated_at = statement_timestamp() FROM cancelled AS c WHERE l.id = c.letter";

pub(super) async fn cancel(db: &mut Db<'_>, id: EventId, line: &AuditLine) -> Result<u32, Fault> {
    if reading::event(db, id).await?.is_none() {
        return Err(not_found("event", id).into());
    }
    // Lanes before rows, as a settle does.
    let all: Vec<[u8; 16]> = db.rows(DELIVERY_IDS, &[id.to_bytes().into()]).await?;
    db.execute(db.query(LOCK_LANES_OF).bind(all)).await?;
    let all = deliveries(db, id).await?;
    let cancelled: Vec<[u8; 16]> = all
        .iter()
        .filter(|(_, state)| state.after(DeliveryStep::Cancel).is_ok())
        .map(|(id, _)| *id)
        .collect();
    if let ([(_, state), ..], true) = (all.as_slice(), cancelled.is_empty()) {
        return Err(Error::from(Impossible { state: *state, step: DeliveryStep::Cancel }).into());
    }
    db.execute(db.query(CANCEL).bind(cancelled.as_slice())).await?;
    let query = db
        .query(END_ITEMS)
        .bind(cancelled.as_slice())
        .bind(vec![ItemState::Cancelled.as_str(); cancelled.len()])
        .bind(vec!["it was cancelled"; cancelled.len()]);
    let jobs: Vec<[u8; 16]> = db.fetch(query).await?;
    db.execute(db.query(END_JOBS).bind(jobs)).await?;
    db.execute(db.query(NEXT_IN_LANES_OF).bind(cancelled.as_slice())).await?;
    reading::audit(db, line).await?;
    Ok(u32::try_from(cancelled.len()).unwrap_or(u32::MAX))
}

const DELIVERY_IDS: &str = "SELECT id FROM ledger_delivery WHERE event = $1";

/// Ends the generation of a key, and the one that `$2` names only where it still lasts. Answers the one that lasts now.
const END_GENERATION: &str = r"
INSERT INTO ledger_generation AS k (dedupe, generation, changed_at)
VALUES ($1, greatest($2 + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), statement_timestamp())
ON CONFLICT (dedupe) DO UPDATE SET generation = CASE WHEN k.generation > $2 THEN k.generation ELSE excluded.generation END,
  changed_at = CASE WHEN k.generation > $2 THEN k.changed_at ELSE excluded.changed_at END
RETURNING generation";

pub(super) async fn advance(db: &mut Db<'_>, dedupe: KeyId, from: Generation) -> Result<Generation, Fault> {
    let with = [(*dedupe.as_bytes()).into(), bigint(from.get()).into()];
    let generation: Option<i64> = db.first(END_GENERATION, &with).await?;
    let generation = generation.ok_or_else(|| db.shared.corrupt("a generation without its row"))?;
    Ok(Generation::new(u64::try_from(generation).unwrap_or(0)))
}

/// Two resets of one key come one after the other, so that each ends what it has read.
const LOCK_KEY: &str = "SELECT pg_advisory_xact_lock(hashtextextended(encode($1, 'hex'), 0))";

async fn reset(db: &mut Db<'_>, dedupe: KeyId, line: &AuditLine) -> Result<Reset, Fault> {
    db.execute(db.query(LOCK_KEY).bind(*dedupe.as_bytes())).await?;
    let key = intake::find_in(db, &[dedupe]).await?.pop().unwrap_or_default();
    advance(db, dedupe, key.generation).await?;
    reading::audit(db, line).await?;
    Ok(Reset { ended: key.generation, holder: key.live().map(|holder| holder.event) })
}
