//! Looking: events, deliveries, the audit log, numbers.

use std::time::Duration;

use semel::key::KeyId;
use sqlx::PgConnection;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;

use super::PostgresLedger;
use super::fault::Fault;
use super::link::{Shape, Shared};
use super::rows::{self, ATTEMPTS, delivery_columns, event_columns};
use super::sweep;
use super::values::{Columns, plain};
use crate::delivery::{Attempt, Delivery, State, Told, delivery_of_request};
use crate::event::Event;
use crate::id::{DeliveryId, EventId, EventKind};
use crate::ledger::{
    Answer, AuditLine, Audited, DeliveryFilter, Error, EventFilter, Page, Paged, Reading, Totals,
};
use crate::letter::Status;

/// The most items of a page, whatever was asked for.
const LONGEST: u32 = 1_000;

impl Reading for PostgresLedger {
    fn event(&self, id: EventId) -> Answer<'_, Option<Event>> {
        Box::pin(
            async move { self.shared.call(Shape::Read, &id, |s, c, id| Box::pin(event(s, c, *id))).await },
        )
    }

    fn events(&self, filter: EventFilter, page: Page) -> Answer<'_, Paged<Event>> {
        Box::pin(async move {
            let asked = (filter, page);
            self.shared.call(Shape::Read, &asked, |s, c, a| Box::pin(events(s, c, &a.0, &a.1))).await
        })
    }

    fn delivery(&self, id: DeliveryId) -> Answer<'_, Option<Told>> {
        Box::pin(async move {
            let found = self.shared.call(Shape::Read, &id, |s, c, id| {
                Box::pin(async move { told(s, c, s.query(DELIVERY).bind(id.to_bytes())).await })
            });
            Ok(found.await?.pop())
        })
    }

    fn deliveries(&self, filter: DeliveryFilter, page: Page) -> Answer<'_, Paged<Delivery>> {
        Box::pin(async move {
            let asked = (filter, page);
            self.shared.call(Shape::Read, &asked, |s, c, a| Box::pin(deliveries(s, c, &a.0, &a.1))).await
        })
    }

    fn deliveries_of(&self, event: EventId) -> Answer<'_, Vec<Told>> {
        Box::pin(async move {
            let found = self.shared.call(Shape::Read, &event, |s, c, id| {
                Box::pin(async move { told(s, c, s.query(DELIVERIES_OF).bind(id.to_bytes())).await })
            });
            found.await
        })
    }

    fn find_events(&self, request_id: Option<String>, dedupe: Option<KeyId>) -> Answer<'_, Vec<EventId>> {
        Box::pin(async move {
            let asked = (request_id.filter(|id| !id.contains('\0')), dedupe);
            self.shared
                .call(Shape::Read, &asked, |s, c, a| Box::pin(find_events(s, c, a.0.as_deref(), a.1)))
                .await
        })
    }

    fn audit(&self, line: AuditLine) -> Answer<'_, ()> {
        Box::pin(async move {
            self.shared.call(Shape::Statement, &line, |s, c, l| Box::pin(audit(s, c, l))).await
        })
    }

    fn audit_log(&self, subject: Option<String>, page: Page) -> Answer<'_, Paged<Audited>> {
        Box::pin(async move {
            let asked = (subject, page);
            self.shared
                .call(Shape::Read, &asked, |s, c, a| Box::pin(audit_log(s, c, a.0.as_deref(), &a.1)))
                .await
        })
    }

    fn totals(&self) -> Answer<'_, Totals> {
        Box::pin(async move { self.shared.call(Shape::Read, &(), |s, c, ()| Box::pin(totals(s, c))).await })
    }

    fn sweep(&self, keep: Duration, limit: u32) -> Answer<'_, u64> {
        Box::pin(async move { sweep::sweep(&self.shared, keep, limit).await })
    }
}

/// Runs a statement and reads its rows.
pub(super) async fn rows_of(
    shared: &Shared,
    connection: &mut PgConnection,
    query: Query<'static, sqlx::Postgres, PgArguments>,
) -> Result<Vec<PgRow>, Fault> {
    query.fetch_all(connection).await.map_err(|error| shared.explain(&error))
}

/// How many rows to ask for: one more than fit, to know whether there are more.
pub(super) fn limit_of(page: &Page) -> i64 {
    i64::from(page.limit.clamp(1, LONGEST)) + 1
}

/// Where a page begins, for listings that go down.
pub(super) fn position(page: &Page) -> Result<i64, Fault> {
    let Some(text) = &page.after else { return Ok(i64::MAX) };
    text.parse().map_err(|_| wrong_cursor())
}

fn wrong_cursor() -> Fault {
    Fault::Answer(Error::Refused(
        "the cursor is not one of this listing: give the `next` of its last page, or none".to_owned(),
    ))
}

/// A page of what was read, where one more was asked for than fit. Each comes with its cursor.
pub(super) fn paged<T>(page: &Page, mut found: Vec<(String, T)>) -> Paged<T> {
    let limit = page.limit.clamp(1, LONGEST) as usize;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|(cursor, _)| cursor.clone());
    Paged { items: found.into_iter().map(|(_, item)| item).collect(), next }
}

const EVENT: &str = concat!("SELECT ", event_columns!(), " FROM event AS e WHERE e.id = $1 AND e.kind = $2");

const EVENTS: &str = concat!(
    "SELECT ",
    event_columns!(),
    " FROM event AS e WHERE e.seq < $1 AND ($3::text IS NULL OR e.kind = $3) AND ($4::text IS NULL OR e.tenant = $4) \
       AND ($5::text IS NULL OR e.event_type = $5) ORDER BY e.seq DESC LIMIT $2"
);

const EVENTS_WITH_TAG: &str = concat!(
    "SELECT ",
    event_columns!(),
    " FROM event AS e WHERE e.seq < $1 AND ($3::text IS NULL OR e.kind = $3) AND ($4::text IS NULL OR e.tenant = $4) \
       AND ($5::text IS NULL OR e.event_type = $5) AND e.tags @> ARRAY[$6::text] AND e.tags <> '{}' \
     ORDER BY e.seq DESC LIMIT $2"
);

pub(super) async fn event(
    shared: &Shared,
    connection: &mut PgConnection,
    id: EventId,
) -> Result<Option<Event>, Fault> {
    let query = shared.query(EVENT).bind(id.to_bytes()).bind(id.kind().as_str());
    let rows = rows_of(shared, connection, query).await?;
    rows.first().map(|row| rows::event(Columns::new(shared, row))).transpose()
}

async fn events(
    shared: &Shared,
    connection: &mut PgConnection,
    filter: &EventFilter,
    page: &Page,
) -> Result<Paged<Event>, Fault> {
    let statement = if filter.tag.is_some() { EVENTS_WITH_TAG } else { EVENTS };
    let query = shared
        .query(statement)
        .bind(position(page)?)
        .bind(limit_of(page))
        .bind(filter.kind.map(EventKind::as_str))
        .bind(filter.tenant.as_deref().map(plain))
        .bind(filter.event_type.as_deref().map(plain));
    let query = match &filter.tag {
        Some(tag) => query.bind(plain(tag)),
        None => query,
    };
    let rows = rows_of(shared, connection, query).await?;
    let found = rows.iter().map(|row| {
        let columns = Columns::new(shared, row);
        Ok((columns.get::<i64>(0)?.to_string(), rows::event(columns)?))
    });
    Ok(paged(page, found.collect::<Result<_, Fault>>()?))
}

const DELIVERY: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM delivery AS d JOIN event AS e ON e.id = d.event WHERE d.id = $1"
);

const DELIVERIES_OF: &str = concat!(
    "SELECT ",
    delivery_columns!(),
    " FROM delivery AS d JOIN event AS e ON e.id = d.event WHERE d.event = $1 ORDER BY d.seq"
);

macro_rules! deliveries {
    ($more:literal) => {
        concat!(
            "SELECT ",
            delivery_columns!(),
            " FROM delivery AS d JOIN event AS e ON e.id = d.event WHERE d.id < $1 \
               AND ($3::text IS NULL OR d.target = $3) AND ($4::text IS NULL OR d.tenant = $4) \
               AND (cardinality($5::text[]) = 0 OR d.state = ANY($5))",
            $more,
            " ORDER BY d.id DESC LIMIT $2"
        )
    };
}

const DELIVERIES: &str = deliveries!("");
const DELIVERIES_FAILED: &str = deliveries!(" AND d.state IN ('dlq', 'blocked')");
const DELIVERIES_OF_EVENT: &str = deliveries!(" AND d.event = $6");

/// Adds events and attempts to deliveries.
async fn told(
    shared: &Shared,
    connection: &mut PgConnection,
    query: Query<'static, sqlx::Postgres, PgArguments>,
) -> Result<Vec<Told>, Fault> {
    let mut all = Vec::new();
    for row in rows_of(shared, connection, query).await? {
        let delivery = rows::delivery(Columns::new(shared, &row))?;
        let event = event(shared, connection, delivery.event).await?;
        let event = event.ok_or_else(|| shared.corrupt("a delivery without an event"))?;
        let attempts = attempts(shared, connection, delivery.id).await?;
        all.push(Told { delivery, event, attempts });
    }
    Ok(all)
}

/// The attempts of a delivery, the first one first.
pub(super) async fn attempts(
    shared: &Shared,
    connection: &mut PgConnection,
    delivery: DeliveryId,
) -> Result<Vec<Attempt>, Fault> {
    let rows = rows_of(shared, connection, shared.query(ATTEMPTS).bind(delivery.to_bytes())).await?;
    rows.iter().map(|row| rows::attempt(Columns::new(shared, row), delivery)).collect()
}

async fn deliveries(
    shared: &Shared,
    connection: &mut PgConnection,
    filter: &DeliveryFilter,
    page: &Page,
) -> Result<Paged<Delivery>, Fault> {
    let before = match &page.after {
        None => vec![0xff; 17],
        Some(text) => text.parse::<DeliveryId>().map_err(|_| wrong_cursor())?.to_bytes().to_vec(),
    };
    let failed = |state: &State| matches!(state, State::Dlq | State::Blocked);
    let statement = if filter.event.is_some() {
        DELIVERIES_OF_EVENT
    } else if !filter.states.is_empty() && filter.states.iter().all(failed) {
        DELIVERIES_FAILED
    } else {
        DELIVERIES
    };
    let query = shared
        .query(statement)
        .bind(before)
        .bind(limit_of(page))
        .bind(filter.target.as_deref().map(plain))
        .bind(filter.tenant.as_deref().map(plain))
        .bind(filter.states.iter().map(|state| state.as_str()).collect::<Vec<_>>());
    let query = match filter.event {
        Some(event) => query.bind(event.to_bytes()),
        None => query,
    };
    let rows = rows_of(shared, connection, query).await?;
    let found = rows.iter().map(|row| {
        let delivery = rows::delivery(Columns::new(shared, row))?;
        Ok((delivery.id.to_string(), delivery))
    });
    Ok(paged(page, found.collect::<Result<_, Fault>>()?))
}

const FIND_EVENTS: &str = r"
SELECT f.id, f.kind FROM (
  SELECT e.id, e.kind, e.seq FROM event AS e WHERE e.request_id = $1 AND e.request_id IS NOT NULL
  UNION
  SELECT e.id, e.kind, e.seq FROM delivery AS d JOIN event AS e ON e.id = d.event WHERE d.id = $2
  UNION
  SELECT e.id, e.kind, e.seq FROM event AS e WHERE e.dedupe = $3 AND e.dedupe_live
  UNION
  SELECT e.id, e.kind, e.seq FROM event AS e WHERE e.dedupe = $3 AND NOT e.dedupe_live AND e.dedupe IS NOT NULL
) AS f ORDER BY f.seq LIMIT 1000";

async fn find_events(
    shared: &Shared,
    connection: &mut PgConnection,
    request_id: Option<&str>,
    dedupe: Option<KeyId>,
) -> Result<Vec<EventId>, Fault> {
    let query = shared
        .query(FIND_EVENTS)
        .bind(request_id)
        .bind(request_id.and_then(delivery_of_request).map(DeliveryId::to_bytes))
        .bind(dedupe.map(|dedupe| *dedupe.as_bytes()));
    let rows = rows_of(shared, connection, query).await?;
    rows.iter()
        .map(|row| {
            let columns = Columns::new(shared, row);
            Ok(EventId::from_bytes(columns.word(1, EventKind::from_name)?, columns.bytes(0)?))
        })
        .collect()
}

const AUDIT: &str =
    "INSERT INTO audit (at, who, action, subject, reason) VALUES (statement_timestamp(), $1, $2, $3, $4)";

/// Writes a line of the audit log.
pub(super) async fn audit(
    shared: &Shared,
    connection: &mut PgConnection,
    line: &AuditLine,
) -> Result<(), Fault> {
    let AuditLine { who, action, subject, reason } = line;
    let query =
        shared.query(AUDIT).bind(plain(who)).bind(plain(action)).bind(plain(subject)).bind(plain(reason));
    rows_of(shared, connection, query).await.map(drop)
}

const AUDIT_LOG: &str =
    "SELECT seq, at, who, action, subject, reason FROM audit WHERE seq < $1 ORDER BY seq DESC LIMIT $2";
const AUDIT_LOG_OF: &str = "SELECT seq, at, who, action, subject, reason FROM audit WHERE seq < $1 AND subject = $3 ORDER BY seq DESC LIMIT $2";

async fn audit_log(
    shared: &Shared,
    connection: &mut PgConnection,
    subject: Option<&str>,
    page: &Page,
) -> Result<Paged<Audited>, Fault> {
    let statement = if subject.is_some() { AUDIT_LOG_OF } else { AUDIT_LOG };
    let query = shared.query(statement).bind(position(page)?).bind(limit_of(page));
    let query = match subject {
        Some(subject) => query.bind(plain(subject)),
        None => query,
    };
    let rows = rows_of(shared, connection, query).await?;
    let found = rows.iter().map(|row| {
        let columns = Columns::new(shared, row);
        let line = AuditLine {
            who: columns.get(2)?,
            action: columns.get(3)?,
            subject: columns.get(4)?,
            reason: columns.get(5)?,
        };
        Ok((columns.get::<i64>(0)?.to_string(), Audited { at: columns.time(1)?, line }))
    });
    Ok(paged(page, found.collect::<Result<_, Fault>>()?))
}

/// By the partial indexes, each of which holds what has not ended well.
const TOTALS: &str = r"
SELECT target, state, count(*) FROM (
  SELECT target, state FROM delivery WHERE waits
  UNION ALL SELECT target, state FROM delivery WHERE state = 'running'
  UNION ALL SELECT target, state FROM delivery WHERE state IN ('dlq', 'blocked', 'cancelled')
  UNION ALL SELECT target, state FROM delivery WHERE lane IS NOT NULL AND state NOT IN ('done', 'dlq', 'cancelled')
    AND NOT waits AND state IN ('idle', 'queued', 'retry_wait', 'replaying')
) AS d GROUP BY target, state ORDER BY target, state";

const LETTER_TOTALS: &str = "SELECT status, count(*) FROM letter GROUP BY status ORDER BY status";

const OLDEST_DUE: &str = r"
WITH RECURSIVE each AS (
  (SELECT target, due_at FROM delivery WHERE waits ORDER BY target, due_at LIMIT 1)
  UNION ALL
  SELECT n.target, n.due_at FROM each AS o CROSS JOIN LATERAL (
    SELECT d.target, d.due_at FROM delivery AS d WHERE d.waits AND d.target > o.target
    ORDER BY d.target, d.due_at LIMIT 1) AS n
)
SELECT (extract(epoch FROM statement_timestamp() - min(due_at)) * 1000000)::bigint FROM each
WHERE due_at <= statement_timestamp()";

async fn totals(shared: &Shared, connection: &mut PgConnection) -> Result<Totals, Fault> {
    let number =
        |columns: Columns<'_>, column| columns.get::<i64>(column).map(|n| u64::try_from(n).unwrap_or(0));
    let mut totals = Totals::default();
    for row in &rows_of(shared, connection, shared.query(TOTALS)).await? {
        let columns = Columns::new(shared, row);
        let state = columns.word(1, State::from_name)?;
        totals.deliveries.push((columns.get(0)?, state, number(columns, 2)?));
    }
    for row in &rows_of(shared, connection, shared.query(LETTER_TOTALS)).await? {
        let columns = Columns::new(shared, row);
        totals.letters.push((columns.word(0, Status::from_name)?, number(columns, 1)?));
    }
    if let Some(row) = rows_of(shared, connection, shared.query(OLDEST_DUE)).await?.first() {
        let oldest: Option<i64> = Columns::new(shared, row).get(0)?;
        totals.oldest_due = oldest.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)));
    }
    Ok(totals)
}
