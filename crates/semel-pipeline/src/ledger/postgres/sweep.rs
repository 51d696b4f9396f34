//! Removes what has expired, a bounded number of rows in each call.
//!
//! Events are looked at in the order in which they came, from where the last call stopped: what stays (a letter that nobody
//! has dealt with) is not looked at again until all others were.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::database::Db;
use super::fault::Fault;
use super::link::{Shape, Shared};
use super::values::micros;
use crate::ledger::Error;
use crate::ledger::sql::Database as _;

/// Number of events examined for each event that may be removed.
const LOOKS: i64 = 20;

/// $1 from where, $2 keep, $3 how many to look at, $4 how many to remove. The first column is where it stopped looking,
/// null where it has seen all.
const SWEEP_EVENTS: &str = r"
WITH looked AS MATERIALIZED (
  SELECT number, id FROM ledger_event WHERE number > $1 AND accepted_at <= statement_timestamp() - $2 * interval '1 microsecond'
  ORDER BY number LIMIT $3
), over AS MATERIALIZED (
  SELECT e.number, e.id FROM looked AS l JOIN ledger_event AS e ON e.id = l.id
  WHERE NOT (e.dedupe_live AND coalesce(e.dedupe_until > statement_timestamp(), false))
    AND NOT EXISTS (
      SELECT FROM ledger_delivery AS d LEFT JOIN ledger_dead_letter AS t ON t.id = d.letter
      WHERE d.event = e.id AND NOT (
        coalesce(d.completed_at <= statement_timestamp() - $2 * interval '1 microsecond', false)
        AND (d.state IN ('done', 'cancelled') OR (d.state = 'dlq' AND coalesce(t.status IN ('replayed', 'discarded')
          AND t.updated_at <= statement_timestamp() - $2 * interval '1 microsecond', false)))))
  ORDER BY e.number LIMIT $4 FOR UPDATE OF e SKIP LOCKED
), deliveries AS (
  DELETE FROM ledger_delivery AS d USING over AS o WHERE d.event = o.id RETURNING d.id
), attempts AS (
  DELETE FROM ledger_attempt AS a USING deliveries AS d WHERE a.delivery = d.id
), letters AS (
  DELETE FROM ledger_dead_letter AS l USING over AS o WHERE l.event = o.id AND l.event IS NOT NULL
), aliases AS (
  DELETE FROM ledger_alias AS a USING over AS o WHERE a.winner = o.id
), events AS (
  DELETE FROM ledger_event AS e USING over AS o WHERE e.id = o.id
)
SELECT CASE WHEN (SELECT count(*) FROM over) >= $4 THEN (SELECT max(number) FROM over)
    WHEN (SELECT count(*) FROM looked) >= $3 THEN (SELECT max(number) FROM looked) END,
  (SELECT count(*) FROM over)";

const SWEEP_LETTERS: &str = r"
DELETE FROM ledger_dead_letter WHERE id IN (
  SELECT id FROM ledger_dead_letter WHERE status IN ('replayed', 'discarded') AND event IS NULL
    AND updated_at <= statement_timestamp() - $1 * interval '1 microsecond' LIMIT $2 FOR UPDATE SKIP LOCKED)";

const SWEEP_JOBS: &str = r"
WITH over AS MATERIALIZED (
  SELECT j.id FROM ledger_job AS j WHERE j.state IN ('done', 'cancelled')
    AND j.updated_at <= statement_timestamp() - $1 * interval '1 microsecond'
    AND NOT EXISTS (SELECT FROM ledger_item AS i WHERE i.job = j.id AND i.state = 'released')
  ORDER BY j.number LIMIT $2 FOR UPDATE OF j SKIP LOCKED
), items AS (
  DELETE FROM ledger_item AS i USING over AS o WHERE i.job = o.id
), totals AS (
  DELETE FROM ledger_item_total AS t USING over AS o WHERE t.job = o.id
)
DELETE FROM ledger_job AS j USING over AS o WHERE j.id = o.id";

/// Nothing of an earlier generation is buffered or claimed any more after a week.
const SWEEP_GENERATIONS: &str = r"
DELETE FROM ledger_generation WHERE dedupe IN (
  SELECT k.dedupe FROM ledger_generation AS k WHERE k.changed_at <= statement_timestamp() - greatest($1 * interval '1 microsecond', interval '7 days')
    AND NOT EXISTS (SELECT FROM ledger_event AS e WHERE e.dedupe = k.dedupe AND e.dedupe_live)
  ORDER BY k.changed_at LIMIT $2 FOR UPDATE SKIP LOCKED)";

pub(super) async fn sweep(shared: &Shared, keep: Duration, limit: u32) -> Result<u64, Error> {
    let asked = (micros(keep), i64::from(limit), shared.swept.load(Ordering::Relaxed));
    let (next, mut swept) =
        shared.call(Shape::Statement, &asked, |db, asked| Box::pin(events(db, *asked))).await?;
    shared.swept.store(next.unwrap_or(0), Ordering::Relaxed);
    for statement in [SWEEP_LETTERS, SWEEP_JOBS, SWEEP_GENERATIONS] {
        let asked = (statement, asked.0, asked.1);
        swept += shared
            .call(Shape::Statement, &asked, |db, (statement, keep, limit)| {
                Box::pin(async move { db.execute(db.query(statement).bind(*keep).bind(*limit)).await })
            })
            .await?;
    }
    Ok(swept)
}

async fn events(db: &mut Db<'_>, (keep, limit, from): (i64, i64, i64)) -> Result<(Option<i64>, u64), Fault> {
    let with = [from.into(), keep.into(), limit.saturating_mul(LOOKS).into(), limit.into()];
    Ok(db.first(SWEEP_EVENTS, &with).await?.unwrap_or_default())
}
