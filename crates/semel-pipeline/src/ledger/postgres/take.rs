//! Giving work out, and taking back what its worker lost.
//!
//! # Fair
//! Tenants of a target take turns in the order of their names, from behind the one that had the last turn: `ledger_turn` keeps who
//! that was. The walk from tenant to tenant is one index probe each, and bounded; where it finds too little, the longest
//! due fill the rest. So a take touches some hundred rows, however many wait.
//!
//! # In order
//! A delivery with an order key stands in a *lane*. Only the first of a lane waits to be taken (`waits`), and a take looks
//! once more whether an earlier one has come back or another one runs. The unique index `ledger_delivery_lane_running` is the
//! backstop: of two takes that cannot see each other one is told to look again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::database::Db;
use super::fault::Fault;
use super::link::{Shape, Shared};
use super::values::{check_text, integer, micros};
use crate::delivery::{Holding, LeaseResult, Work};
use crate::id::DeliveryId;
use crate::ledger::sql::{Columns, FromRow};
use crate::ledger::{Error, Take};

/// Nothing of the lane of `d` is before it, and nothing of it runs.
macro_rules! first_of_its_lane {
    () => {
        "(d.lane IS NULL OR (NOT EXISTS (SELECT FROM ledger_delivery AS p WHERE p.lane = d.lane AND p.number < d.number \
           AND p.state NOT IN ('done', 'dlq', 'cancelled')) \
         AND NOT EXISTS (SELECT FROM ledger_delivery AS p WHERE p.lane = d.lane AND p.state = 'running')))"
    };
}

/// The target of this expression is not paused.
macro_rules! not_paused {
    ($target:literal) => {
        concat!("NOT EXISTS (SELECT FROM ledger_pause AS z WHERE z.target = ", $target, ")")
    };
}

/// The columns of the work that was taken: the delivery `w` and its event `e`.
macro_rules! work {
    () => {
        "w.id, e.kind, w.event, w.target, w.tenant, e.event_type, e.payload, e.content_type, e.headers::text, w.attempts, \
         w.crashes, w.epoch, w.last_attempt, w.token, w.job, e.request_id, e.traceparent, e.accepted_at"
    };
}

/// $1 targets, $2 how many of each, $3 how many in all, $4 lease, $5 worker, $6 the beginning of all tokens.
///
/// What lapsed is given back by the same statement, which cannot take it as well; the first column says how many, so that
/// the caller can come again. Twice as many are looked at as are wanted: another take may hold some of them.
const TAKE: &str = concat!(
    r"
WITH RECURSIVE asked AS MATERIALIZED (
  SELECT a.target, least(a.most, $3) AS most, t.tenant AS last
  FROM unnest($1::text[], $2::integer[]) AS a(target, most) LEFT JOIN ledger_turn AS t ON t.target = a.target
  WHERE ",
    not_paused!("a.target"),
    r"
), lapsed AS (
  UPDATE ledger_delivery AS d SET state = 'retry_wait', waits = true, due_at = statement_timestamp(), crashes = d.crashes + 1,
    token = NULL, lease_until = NULL, error = 'its worker was gone before it ended'
  FROM (SELECT id FROM ledger_delivery WHERE state = 'running' AND lease_until <= statement_timestamp()
    ORDER BY lease_until LIMIT 500 FOR UPDATE SKIP LOCKED) AS o
  WHERE d.id = o.id
  RETURNING d.id, d.last_attempt
), crashed AS (
  UPDATE ledger_attempt AS a SET ended_at = statement_timestamp(), class = 'crashed',
    error = 'its worker was gone before it ended', excerpt = ''
  FROM lapsed AS l WHERE a.delivery = l.id AND a.number = l.last_attempt
), walk(target, most, last, tenant, lap, due, visited, found) AS (
  SELECT target, most, last, last, 0, false, 0, 0 FROM asked
  UNION ALL
  SELECT w.target, w.most, w.last, n.tenant, n.lap, n.due, w.visited + 1, w.found + n.due::integer
  FROM walk AS w CROSS JOIN LATERAL (
    (SELECT d.tenant, w.lap AS lap, d.due_at <= statement_timestamp() AS due FROM ledger_delivery AS d
      WHERE d.target = w.target AND d.waits AND d.tenant > w.tenant ORDER BY d.tenant, d.due_at LIMIT 1)
    UNION ALL
    (SELECT d.tenant, 1, d.due_at <= statement_timestamp() FROM ledger_delivery AS d
      WHERE w.lap = 0 AND d.target = w.target AND d.waits ORDER BY d.tenant, d.due_at LIMIT 1)
    LIMIT 1
  ) AS n
  WHERE w.visited < 256 AND w.found < w.most AND NOT (n.lap = 1 AND w.last IS NOT NULL AND n.tenant > w.last)
), tenants AS (
  SELECT target, most, tenant, row_number() OVER (PARTITION BY target ORDER BY visited) AS place,
    count(*) OVER (PARTITION BY target) AS tenants
  FROM walk WHERE due
), fair AS (
  SELECT t.target, t.tenant, t.place, y.id, y.nth
  FROM tenants AS t CROSS JOIN LATERAL (
    SELECT x.id, row_number() OVER () AS nth FROM (
      SELECT d.id FROM ledger_delivery AS d
      WHERE d.target = t.target AND d.tenant = t.tenant AND d.waits AND d.due_at <= statement_timestamp() AND ",
    first_of_its_lane!(),
    r"
      ORDER BY d.due_at, d.number LIMIT (2 * t.most + t.tenants - 1) / t.tenants
    ) AS x
  ) AS y
), rest AS (
  SELECT a.target, NULL::text AS tenant, x.id, row_number() OVER () AS place
  FROM asked AS a CROSS JOIN LATERAL (
    SELECT d.id FROM ledger_delivery AS d
    WHERE d.target = a.target AND d.waits AND d.due_at <= statement_timestamp() AND ",
    first_of_its_lane!(),
    r"
    ORDER BY d.due_at, d.number LIMIT 2 * a.most
  ) AS x
  WHERE (SELECT count(*) FROM fair AS f WHERE f.target = a.target) < a.most
), ranked AS (
  SELECT c.target, c.tenant, c.id, a.most, row_number() OVER (PARTITION BY c.target ORDER BY c.nth, c.place) AS turn
  FROM (
    SELECT target, tenant, id, nth, place FROM fair
    UNION ALL
    SELECT r.target, r.tenant, r.id, 1000000, r.place FROM rest AS r WHERE r.id NOT IN (SELECT id FROM fair)
  ) AS c JOIN asked AS a ON a.target = c.target
), held AS (
  SELECT d.id, r.target, r.tenant, r.turn, r.most
  FROM ranked AS r JOIN ledger_delivery AS d ON d.id = r.id
  WHERE d.waits AND d.due_at <= statement_timestamp()
  ORDER BY r.turn > r.most, r.turn, r.target LIMIT $3 FOR UPDATE OF d SKIP LOCKED
), chosen AS (
  SELECT id, target, tenant, turn, row_number() OVER (ORDER BY turn, target) AS n
  FROM (SELECT *, row_number() OVER (PARTITION BY target ORDER BY turn) AS nth FROM held) AS h WHERE nth <= most
), taken AS (
  UPDATE ledger_delivery AS d SET state = 'running', waits = false, attempts = d.attempts + 1, last_attempt = d.last_attempt + 1,
    token = $6::bytea || int4send(c.n::integer * 4 + (d.lane IS NOT NULL)::integer
      + 2 * (d.job IS NOT NULL OR d.letter IS NOT NULL)::integer),
    lease_until = statement_timestamp() + $4 * interval '1 microsecond',
    started_at = coalesce(d.started_at, statement_timestamp())
  FROM chosen AS c WHERE d.id = c.id
  RETURNING d.id, d.event, d.target, d.tenant, d.attempts, d.crashes, d.last_attempt, d.epoch, d.token, d.job,
    coalesce(d.deliver_until <= statement_timestamp(), false) AS expired, c.n
), begun AS (
  INSERT INTO ledger_attempt (delivery, number, worker, epoch, started_at, job)
  SELECT id, last_attempt, $5, epoch, statement_timestamp(), job FROM taken
), last AS (
  SELECT DISTINCT ON (target) target, tenant FROM chosen WHERE tenant IS NOT NULL ORDER BY target, turn DESC
), first_turn AS (
  INSERT INTO ledger_turn (target, tenant) SELECT l.target, l.tenant FROM last AS l
  WHERE NOT EXISTS (SELECT FROM ledger_turn AS t WHERE t.target = l.target) ON CONFLICT DO NOTHING
), next_turn AS (
  UPDATE ledger_turn AS t SET tenant = l.tenant
  FROM (SELECT target FROM ledger_turn WHERE target = ANY($1) FOR UPDATE SKIP LOCKED) AS o, last AS l
  WHERE t.target = o.target AND l.target = o.target AND t.tenant <> l.tenant
)
SELECT (SELECT count(*) FROM lapsed), ",
    work!(),
    r", w.expired
FROM (SELECT 1) AS one LEFT JOIN (taken AS w JOIN ledger_event AS e ON e.id = w.event) ON true
ORDER BY w.n"
);

/// $1 the delivery, $2 lease, $3 worker, $4 the beginning of its token.
const RETAKE: &str = concat!(
    r"
WITH taken AS (
  UPDATE ledger_delivery AS d SET state = 'running', waits = false, attempts = d.attempts + 1, last_attempt = d.last_attempt + 1,
    token = $4::bytea || int4send(4 + (d.lane IS NOT NULL)::integer
      + 2 * (d.job IS NOT NULL OR d.letter IS NOT NULL)::integer),
    lease_until = statement_timestamp() + $2 * interval '1 microsecond',
    started_at = coalesce(d.started_at, statement_timestamp())
  WHERE d.id = $1 AND d.state = 'retry_wait' AND d.waits AND ",
    not_paused!("d.target"),
    " AND ",
    first_of_its_lane!(),
    r"
  RETURNING d.id, d.event, d.target, d.tenant, d.attempts, d.crashes, d.last_attempt, d.epoch, d.token, d.job,
    coalesce(d.deliver_until <= statement_timestamp(), false) AS expired
), begun AS (
  INSERT INTO ledger_attempt (delivery, number, worker, epoch, started_at, job)
  SELECT id, last_attempt, $3, epoch, statement_timestamp(), job FROM taken
)
SELECT 0::bigint, ",
    work!(),
    r", w.expired
FROM taken AS w JOIN ledger_event AS e ON e.id = w.event"
);

/// What an earlier try of the same call took: its answer was lost.
const TAKEN: &str = concat!(
    "SELECT 0::bigint, ",
    work!(),
    r", coalesce(w.deliver_until <= statement_timestamp(), false)
FROM ledger_delivery AS w JOIN ledger_event AS e ON e.id = w.event
WHERE w.state = 'running' AND substring(w.token FROM 1 FOR 12) = $1 ORDER BY w.token"
);

const RENEW: &str = r"
UPDATE ledger_delivery AS d SET lease_until = statement_timestamp() + $3 * interval '1 microsecond'
FROM unnest($1::bytea[], $2::bytea[]) AS h(id, token)
WHERE d.id = h.id AND d.token = h.token AND d.state = 'running'
RETURNING d.id, d.token";

const NEXT_DUE: &str = concat!(
    r"
SELECT (extract(epoch FROM min(x.at) - statement_timestamp()) * 1000000)::bigint
FROM unnest($1::text[]) AS a(target) CROSS JOIN LATERAL (
  (SELECT d.due_at AS at FROM ledger_delivery AS d WHERE d.target = a.target AND d.waits AND ",
    not_paused!("a.target"),
    " AND ",
    first_of_its_lane!(),
    r" ORDER BY d.due_at, d.number LIMIT 1)
  UNION ALL
  (SELECT d.lease_until FROM ledger_delivery AS d WHERE d.state = 'running' AND d.target = a.target
    ORDER BY d.lease_until LIMIT 1)
) AS x"
);

/// What a token says beside who holds it: the last bits, so that a settle knows what it has to do.
pub(super) const IN_A_LANE: u128 = 1;
/// As [`IN_A_LANE`]: there is a dead letter, or a job that released it.
pub(super) const REPLAYED: u128 = 2;

/// One question for work.
struct Ask<'a> {
    worker: &'a str,
    what: TakeQuery<'a>,
    lease: Duration,
    token: [u8; 12],
    /// Set once it was asked: the next try looks whether that was executed.
    asked: AtomicBool,
}

/// The work that is asked for.
enum TakeQuery<'a> {
    /// Deliveries that are due: of these targets with a maximum each, and a maximum in all.
    Due(Vec<(&'a str, u32)>, u32),
    /// This delivery.
    This(DeliveryId),
}

impl<'a> Ask<'a> {
    fn new(worker: &'a str, what: TakeQuery<'a>, lease: Duration) -> Self {
        Self { worker, what, lease, token: rand::random(), asked: AtomicBool::new(false) }
    }
}

pub(super) async fn retake(
    shared: &Shared,
    delivery: DeliveryId,
    worker: &str,
    lease: Duration,
) -> Result<Option<Work>, Error> {
    check_text("the name of a worker", worker)?;
    let ask = Ask::new(worker, TakeQuery::This(delivery), lease);
    let (_, mut works) =
        shared.call(Shape::Statement, &ask, |db, asked| Box::pin(take_once(db, asked))).await?;
    Ok(works.pop())
}

pub(super) async fn take(shared: &Shared, take: &Take) -> Result<Vec<Work>, Error> {
    check_text("the name of a worker", &take.worker)?;
    let mut caps: HashMap<&str, u32> = HashMap::new();
    for (target, most) in &take.targets {
        check_text("the name of a target", target)?;
        caps.insert(target, *most);
    }
    let mut all: Vec<Work> = Vec::new();
    let mut more = false;
    let mut again = 3;
    loop {
        let left = take.limit.saturating_sub(u32::try_from(all.len()).unwrap_or(u32::MAX));
        let mut targets: Vec<(&str, u32)> =
            caps.iter().map(|(target, most)| (*target, *most)).filter(|(_, most)| *most > 0).collect();
        targets.sort_unstable();
        if left == 0 || targets.is_empty() {
            return Ok(all);
        }
        let ask = Ask::new(&take.worker, TakeQuery::Due(targets, left), take.lease);
        let (lapsed, works) =
            shared.call(Shape::Statement, &ask, |db, asked| Box::pin(take_once(db, asked))).await?;
        for work in &works {
            if let Some(most) = caps.get_mut(work.target.as_str()) {
                *most -= 1;
            }
        }
        let found = !works.is_empty();
        all.extend(works);
        if lapsed > 0 {
            more = true;
        } else if found || !more || again == 0 {
            return Ok(all);
        } else {
            // What was just given back is held for a moment by its late worker, who is being told that it has lost it.
            again -= 1;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn take_once(db: &mut Db<'_>, ask: &Ask<'_>) -> Result<(i64, Vec<Work>), Fault> {
    if ask.asked.swap(true, Ordering::Relaxed) {
        let taken = gather(db.fetch(db.query(TAKEN).bind(ask.token.as_slice())).await?);
        if !taken.1.is_empty() {
            return Ok(taken);
        }
    }
    let query = match &ask.what {
        TakeQuery::Due(targets, limit) => db
            .query(TAKE)
            .bind(targets.iter().map(|(target, _)| *target).collect::<Vec<_>>())
            .bind(targets.iter().map(|(_, most)| integer(*most)).collect::<Vec<_>>())
            .bind(integer(*limit)),
        TakeQuery::This(delivery) => db.query(RETAKE).bind(delivery.to_bytes()),
    };
    let query = query.bind(micros(ask.lease)).bind(ask.worker).bind(ask.token.as_slice());
    Ok(gather(db.fetch(query).await?))
}

/// How many leases were over, and the work that was taken.
fn gather(rows: Vec<(i64, Option<Work>)>) -> (i64, Vec<Work>) {
    let lapsed = rows.last().map_or(0, |(lapsed, _)| *lapsed);
    (lapsed, rows.into_iter().filter_map(|(_, work)| work).collect())
}

/// Renews leases on the connection for heartbeats.
pub(super) async fn renew(
    shared: &Shared,
    held: &[Holding],
    lease: Duration,
) -> Result<Vec<LeaseResult>, Error> {
    if held.is_empty() {
        return Ok(Vec::new());
    }
    let arguments = (held, lease);
    let kept = shared.call_apart(&arguments, |db, asked| Box::pin(renew_once(db, asked))).await?;
    Ok(held
        .iter()
        .map(|held| if kept.contains(held) { LeaseResult::Kept } else { LeaseResult::Lost })
        .collect())
}

async fn renew_once(db: &mut Db<'_>, (held, lease): &(&[Holding], Duration)) -> Result<Vec<Holding>, Fault> {
    let query = db
        .query(RENEW)
        .bind(held.iter().map(|held| held.delivery.to_bytes()).collect::<Vec<_>>())
        .bind(held.iter().map(|held| held.token.to_be_bytes()).collect::<Vec<_>>())
        .bind(micros(*lease));
    db.fetch(query).await
}

impl FromRow for Holding {
    fn read<C: Columns>(columns: &mut C) -> Result<Self, C::Error> {
        let delivery = DeliveryId::from_bytes(columns.id()?);
        Ok(Self { delivery, token: u128::from_be_bytes(columns.id()?) })
    }
}

pub(super) async fn next_due(shared: &Shared, targets: &[String]) -> Result<Option<Duration>, Error> {
    shared.call(Shape::Read, targets, |db, asked| Box::pin(next_due_once(db, asked))).await
}

async fn next_due_once(db: &mut Db<'_>, targets: &[String]) -> Result<Option<Duration>, Fault> {
    // One that is due already has waited for less than nothing.
    Ok(db.fetch(db.query(NEXT_DUE).bind(targets)).await?.pop().flatten())
}
