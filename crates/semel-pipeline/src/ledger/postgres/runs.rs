//! What only runs have: changes, cancelling, keys that are reset.

use semel::fingerprint::Fingerprint;
use semel::key::KeyId;
use sqlx::PgConnection;

use super::PostgresLedger;
use super::fault::Fault;
use super::intake;
use super::letters::not_found;
use super::link::{Shape, Shared};
use super::reading::{self, rows_of};
use super::settle::{END_ITEMS, END_JOBS, LOCK_LANES_OF, NEXT_IN_LANES_OF};
use super::values::{Columns, check_text, members_to_json, micros};
use crate::delivery::{Impossible, State, Step};
use crate::event::{Event, Generation};
use crate::id::{EventId, EventKind};
use crate::ledger::{Answer, AuditLine, Change, Error, Ledger, Reset, Runs};
use crate::replay::ItemState;

impl Ledger for PostgresLedger {}

impl Runs for PostgresLedger {
    fn change(&self, id: EventId, change: Change, version: Option<u64>) -> Answer<'_, Event> {
        Box::pin(async move {
            for tag in &change.add_tags {
                check_text("a tag", tag)?;
            }
            let asked = (id, change, version);
            let changed = self
                .shared
                .call(shape_of(&asked.1), &asked, |s, c, a| Box::pin(self::change(s, c, a.0, &a.1, a.2)))
                .await?;
            if asked.1.delay.is_some() {
                self.shared.news.tell();
            }
            Ok(changed)
        })
    }

    fn cancel(&self, id: EventId, line: AuditLine) -> Answer<'_, u32> {
        Box::pin(async move {
            let asked = (id, line);
            let cancelled = self
                .shared
                .call(Shape::Transaction, &asked, |s, c, a| Box::pin(self::cancel(s, c, a.0, &a.1)))
                .await?;
            self.shared.news.tell();
            Ok(cancelled)
        })
    }

    fn resolve(&self, ghost: EventId) -> Answer<'_, Option<EventId>> {
        Box::pin(async move {
            self.shared
                .call(Shape::Read, &ghost, |s, c, ghost| {
                    Box::pin(async move {
                        let rows = rows_of(s, c, s.query(RESOLVE).bind(ghost.to_bytes())).await?;
                        let winner = rows.first().map(|row| Columns::new(s, row).bytes(0)).transpose()?;
                        Ok(winner.map(|id| EventId::from_bytes(ghost.kind(), id)))
                    })
                })
                .await
        })
    }

    fn reset(&self, dedupe: KeyId, line: AuditLine) -> Answer<'_, Reset> {
        Box::pin(async move {
            let asked = (dedupe, line);
            self.shared
                .call(Shape::TransactionOnce, &asked, |s, c, a| Box::pin(self::reset(s, c, a.0, &a.1)))
                .await
        })
    }

    fn advance(&self, dedupe: KeyId, from: Generation) -> Answer<'_, Generation> {
        Box::pin(async move {
            let asked = (dedupe, from);
            self.shared
                .call(Shape::Transaction, &asked, |s, c, a| Box::pin(self::advance(s, c, a.0, a.1)))
                .await
        })
    }

    fn find_keyless(
        &self,
        dedupe: KeyId,
        generation: Generation,
        fingerprint: Fingerprint,
    ) -> Answer<'_, Option<EventId>> {
        Box::pin(async move {
            let asked = (dedupe, generation, fingerprint);
            self.shared
                .call(Shape::Read, &asked, |s, c, a| {
                    Box::pin(async move {
                        let query = s
                            .query(FIND_KEYLESS)
                            .bind(*a.0.as_bytes())
                            .bind(bigint(a.1))
                            .bind(*a.2.as_bytes());
                        let rows = rows_of(s, c, query).await?;
                        let Some(row) = rows.first() else { return Ok(None) };
                        let columns = Columns::new(s, row);
                        let kind = columns.word(1, EventKind::from_name)?;
                        Ok(Some(EventId::from_bytes(kind, columns.bytes(0)?)))
                    })
                })
                .await
        })
    }
}

/// An increment counts every time: where its commit has an unknown end, it is the caller who decides.
pub(super) fn shape_of(change: &Change) -> Shape {
    if change.increment.is_empty() { Shape::Transaction } else { Shape::TransactionOnce }
}

const FIND_KEYLESS: &str = r"
SELECT id, kind FROM event
WHERE dedupe = $1 AND NOT dedupe_live AND dedupe IS NOT NULL AND generation = $2 AND fingerprint = $3
ORDER BY seq LIMIT 1";

fn bigint(generation: Generation) -> i64 {
    i64::try_from(generation.get()).unwrap_or(i64::MAX)
}

const RESOLVE: &str = "SELECT winner FROM alias WHERE ghost = $1";

const HOLD: &str = "SELECT 1 FROM event WHERE id = $1 AND kind = $2 FOR UPDATE";
const HOLD_DELIVERIES: &str = "SELECT id, state FROM delivery WHERE event = $1 ORDER BY seq FOR UPDATE";
const PUT_OFF: &str =
    "UPDATE delivery SET due_at = statement_timestamp() + $2 * interval '1 microsecond' WHERE event = $1";
const CHANGE: &str =
    "UPDATE event SET tags = $2, metadata = $3::json, changes = $4, version = version + 1 WHERE id = $1";

/// An event whose row nobody else changes from now on.
pub(super) async fn hold(
    shared: &Shared,
    connection: &mut PgConnection,
    id: EventId,
) -> Result<Option<Event>, Fault> {
    let query = shared.query(HOLD).bind(id.to_bytes()).bind(id.kind().as_str());
    if rows_of(shared, connection, query).await?.is_empty() {
        // Not read either: it may arrive now, and then nobody holds it.
        return Ok(None);
    }
    reading::event(shared, connection, id).await
}

async fn deliveries(
    shared: &Shared,
    connection: &mut PgConnection,
    id: EventId,
) -> Result<Vec<([u8; 16], State)>, Fault> {
    let rows = rows_of(shared, connection, shared.query(HOLD_DELIVERIES).bind(id.to_bytes())).await?;
    rows.iter()
        .map(|row| {
            let columns = Columns::new(shared, row);
            Ok((columns.bytes(0)?, columns.word(1, State::from_name)?))
        })
        .collect()
}

pub(super) async fn change(
    shared: &Shared,
    connection: &mut PgConnection,
    id: EventId,
    change: &Change,
    version: Option<u64>,
) -> Result<Event, Fault> {
    let mut event = hold(shared, connection, id).await?.ok_or_else(|| not_found("event", id))?;
    if version.is_some_and(|version| version != event.version) {
        return Err(Error::Stale.into());
    }
    // Before anything is written: a caller may go on after a refusal.
    event.new.notes.apply(change).map_err(Error::Refused)?;
    if let Some(delay) = change.delay {
        let all = deliveries(shared, connection, id).await?;
        if let Some((_, state)) = all.iter().find(|(_, state)| !matches!(state, State::Idle | State::Queued))
        {
            return Err(Error::from(Impossible { state: *state, step: Step::Enqueue }).into());
        }
        rows_of(shared, connection, shared.query(PUT_OFF).bind(id.to_bytes()).bind(micros(delay))).await?;
    }
    event.version += 1;
    let query = shared
        .query(CHANGE)
        .bind(id.to_bytes())
        .bind(event.new.notes.tags.as_slice())
        .bind(members_to_json(&event.new.notes.metadata))
        .bind(i64::try_from(event.changes).unwrap_or(i64::MAX));
    rows_of(shared, connection, query).await?;
    Ok(event)
}

const CANCEL: &str = r"
WITH cancelled AS (
  UPDATE delivery SET state = 'cancelled', waits = false, completed_at = statement_timestamp() WHERE id = ANY($1)
  RETURNING letter
)
UPDATE letter AS l SET status = 'discarded', updated_at = statement_timestamp() FROM cancelled AS c WHERE l.id = c.letter";

pub(super) async fn cancel(
    shared: &Shared,
    connection: &mut PgConnection,
    id: EventId,
    line: &AuditLine,
) -> Result<u32, Fault> {
    if reading::event(shared, connection, id).await?.is_none() {
        return Err(not_found("event", id));
    }
    // Lanes before rows, as a settle does.
    let all: Vec<[u8; 16]> = {
        let rows = rows_of(shared, connection, shared.query(DELIVERY_IDS).bind(id.to_bytes())).await?;
        rows.iter().map(|row| Columns::new(shared, row).bytes(0)).collect::<Result<_, _>>()?
    };
    rows_of(shared, connection, shared.query(LOCK_LANES_OF).bind(all)).await?;
    let all = deliveries(shared, connection, id).await?;
    let cancelled: Vec<[u8; 16]> =
        all.iter().filter(|(_, state)| state.after(Step::Cancel).is_ok()).map(|(id, _)| *id).collect();
    if let ([(_, state), ..], true) = (all.as_slice(), cancelled.is_empty()) {
        return Err(Error::from(Impossible { state: *state, step: Step::Cancel }).into());
    }
    rows_of(shared, connection, shared.query(CANCEL).bind(cancelled.as_slice())).await?;
    let query = shared
        .query(END_ITEMS)
        .bind(cancelled.as_slice())
        .bind(vec![ItemState::Cancelled.as_str(); cancelled.len()])
        .bind(vec!["it was cancelled"; cancelled.len()]);
    let rows = rows_of(shared, connection, query).await?;
    let jobs: Vec<[u8; 16]> =
        rows.iter().map(|row| Columns::new(shared, row).bytes(0)).collect::<Result<_, _>>()?;
    rows_of(shared, connection, shared.query(END_JOBS).bind(jobs)).await?;
    rows_of(shared, connection, shared.query(NEXT_IN_LANES_OF).bind(cancelled.as_slice())).await?;
    reading::audit(shared, connection, line).await?;
    Ok(u32::try_from(cancelled.len()).unwrap_or(u32::MAX))
}

const DELIVERY_IDS: &str = "SELECT id FROM delivery WHERE event = $1";

/// Ends the generation of a key, and the one that `$2` names only where it still lasts. Answers the one that lasts now.
const END_GENERATION: &str = r"
INSERT INTO generation AS k (key, generation, changed_at)
VALUES ($1, greatest($2 + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), statement_timestamp())
ON CONFLICT (key) DO UPDATE SET generation = CASE WHEN k.generation > $2 THEN k.generation ELSE excluded.generation END,
  changed_at = CASE WHEN k.generation > $2 THEN k.changed_at ELSE excluded.changed_at END
RETURNING generation";

pub(super) async fn advance(
    shared: &Shared,
    connection: &mut PgConnection,
    dedupe: KeyId,
    from: Generation,
) -> Result<Generation, Fault> {
    let query = shared.query(END_GENERATION).bind(*dedupe.as_bytes()).bind(bigint(from));
    let rows = rows_of(shared, connection, query).await?;
    let row = rows.first().ok_or_else(|| shared.corrupt("a generation without its row"))?;
    Ok(Generation::new(u64::try_from(Columns::new(shared, row).get::<i64>(0)?).unwrap_or(0)))
}

/// Two resets of one key come one after the other, so that each ends what it has read.
const LOCK_KEY: &str = "SELECT pg_advisory_xact_lock(hashtextextended(encode($1, 'hex'), 0))";

async fn reset(
    shared: &Shared,
    connection: &mut PgConnection,
    dedupe: KeyId,
    line: &AuditLine,
) -> Result<Reset, Fault> {
    rows_of(shared, connection, shared.query(LOCK_KEY).bind(*dedupe.as_bytes())).await?;
    let found = intake::find_in(shared, connection, &[dedupe]).await?;
    let key = found.first().copied().unwrap_or_default();
    advance(shared, connection, dedupe, key.generation).await?;
    reading::audit(shared, connection, line).await?;
    Ok(Reset { ended: key.generation, holder: key.live().map(|holder| holder.event) })
}
