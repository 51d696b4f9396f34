//! The statements that shared code sends, as PostgreSQL knows them.

use crate::delivery::DeliveryState;
use crate::id::EventKind;
use crate::ledger::sql::{ListStatements, Statements};
use crate::ledger::{DeliveryFilter, EventFilter, LetterFilter};

/// Events with their numbers.
macro_rules! events {
    ($which:literal) => {
        events!("ledger_event AS e", $which)
    };
    ($from:literal, $which:literal) => {
        concat!(
            "SELECT e.number, e.kind, e.id, e.tenant, e.event_type, e.dedupe, e.dedupe_hint, e.fingerprint, \
             e.dedupe_lifetime, e.payload, e.content_type, e.headers::text, e.order_key, e.origin, e.origin_name, \
             e.origin_message, e.targets::text, e.delay, e.deliver_within, array_to_json(e.tags)::text, \
             e.metadata::text, e.request_id, e.traceparent, e.accepted_at, e.version, e.changes FROM ",
            $from,
            " WHERE ",
            $which
        )
    };
}

/// Deliveries with their numbers.
macro_rules! deliveries {
    ($which:literal) => {
        deliveries!("ledger_delivery AS d", $which)
    };
    ($from:expr, $which:literal) => {
        concat!(
            "SELECT d.number, d.id, e.kind, d.event, d.target, d.tenant, e.event_type, d.state, d.attempts, d.crashes, \
             d.epoch, d.due_at, d.error, d.letter, d.created_at, d.started_at, d.completed_at FROM ",
            $from,
            " JOIN ledger_event AS e ON e.id = d.event WHERE ",
            $which
        )
    };
}

/// The parts of a filter for deliveries, but for its event.
macro_rules! delivery_parts {
    () => {
        "($3::text IS NULL OR d.target = $3) AND ($4::text IS NULL OR d.tenant = $4) \
         AND (cardinality($5::text[]) = 0 OR d.state = ANY($5))"
    };
}

/// A listing of deliveries. `$by_index` finds them in the order of their ids.
macro_rules! delivery_list {
    ($by_index:literal) => {
        ListStatements {
            rows: concat!(
                deliveries!("d.id < $1 AND d.id >= $7 AND "),
                $by_index,
                " AND ",
                delivery_parts!(),
                " ORDER BY d.id DESC LIMIT $2"
            ),
            end: Some(concat!(
                "SELECT NULL::bigint, d.id FROM ledger_delivery AS d WHERE d.id < $1 AND ",
                $by_index,
                " AND (true OR $3::text IS NULL OR $4::text IS NULL OR $5::text[] IS NULL) \
                 ORDER BY d.id DESC LIMIT 1 OFFSET $2"
            )),
        }
    };
}

/// The ids of deliveries in this state, where it is asked for; the newest first.
macro_rules! in_state {
    ($state:literal, $parts:expr, $limit:literal) => {
        concat!(
            "(SELECT d.id FROM ledger_delivery AS d WHERE d.state = '",
            $state,
            "' AND '",
            $state,
            "' = ANY($5::text[]) AND d.id < $1 AND ",
            $parts,
            " ORDER BY d.id DESC LIMIT ",
            $limit,
            ")"
        )
    };
}

/// The ids of deliveries in the states that are asked for: each state that has an index, then merged.
macro_rules! in_states {
    ($parts:expr, $limit:literal) => {
        concat!(
            in_state!("idle", $parts, $limit),
            " UNION ALL ",
            in_state!("running", $parts, $limit),
            " UNION ALL ",
            in_state!("retry_wait", $parts, $limit),
            " UNION ALL ",
            in_state!("blocked", $parts, $limit),
            " UNION ALL ",
            in_state!("dlq", $parts, $limit),
            " UNION ALL ",
            in_state!("replaying", $parts, $limit),
            " UNION ALL ",
            in_state!("cancelled", $parts, $limit)
        )
    };
}

/// Letters with their numbers; the payload of an event is not kept twice.
macro_rules! letters {
    ($which:literal) => {
        concat!(
            "SELECT l.number, l.id, l.tenant, e.kind, e.id, l.delivery, l.target, l.event_type, l.stream, l.message, \
             coalesce(l.payload, e.payload, ''::bytea), l.content_type, l.headers::text, l.cause, l.error, l.signature, \
             l.status, l.attempts, l.last_attempt_at, l.failed_replays, l.copy_of, l.created_at, l.updated_at \
             FROM ledger_dead_letter AS l LEFT JOIN ledger_event AS e ON e.id = l.event WHERE ",
            $which
        )
    };
}

/// A listing of letters. `$by_index` finds them in the order of their numbers.
macro_rules! letter_list {
    ($by_index:literal) => {
        ListStatements {
            rows: concat!(
                letters!("l.number < $1 AND l.number >= $7 AND "),
                $by_index,
                "($3::text IS NULL OR l.tenant = $3) AND ($4::text IS NULL OR l.target = $4) \
                 AND ($5::text IS NULL OR l.status = $5) AND ($6::text IS NULL OR l.signature = $6) \
                 ORDER BY l.number DESC LIMIT $2"
            ),
            end: Some(concat!(
                "SELECT l.number, NULL::bytea FROM ledger_dead_letter AS l WHERE l.number < $1 AND ",
                $by_index,
                "(true OR $3::text IS NULL OR $4::text IS NULL OR $5::text IS NULL OR $6::text IS NULL) \
                 ORDER BY l.number DESC LIMIT 1 OFFSET $2"
            )),
        }
    };
}

/// A listing of events. `$by_index` finds them in the order of their numbers.
macro_rules! event_list {
    ($by_index:literal) => {
        ListStatements {
            rows: concat!(
                events!("e.number < $1 AND e.number >= $7 AND "),
                $by_index,
                "($3::text IS NULL OR e.kind = $3) AND ($4::text IS NULL OR e.tenant = $4) \
                 AND ($5::text IS NULL OR e.event_type = $5) AND $6::text IS NULL ORDER BY e.number DESC LIMIT $2"
            ),
            end: Some(concat!(
                "SELECT e.number, NULL::bytea FROM ledger_event AS e WHERE e.number < $1 AND ",
                $by_index,
                "(true OR $3::text IS NULL OR $4::text IS NULL OR $5::text IS NULL OR $6::text IS NULL) \
                 ORDER BY e.number DESC LIMIT 1 OFFSET $2"
            )),
        }
    };
}

/// Jobs with their numbers.
macro_rules! jobs {
    ($which:literal) => {
        concat!(
            "SELECT j.number, j.id, j.selection::text, j.mode, j.reason, j.asked_by, j.rate, j.concurrency, j.canary, \
             j.pause_above, j.state, j.note, j.created_at, j.updated_at, \
             coalesce((SELECT json_object_agg(t.state, t.items) FROM ledger_item_total AS t WHERE t.job = j.id), '{}')::text \
             FROM ledger_job AS j WHERE ",
            $which
        )
    };
}

/// Deliveries that may be replayed.
macro_rules! candidates {
    ($which:literal) => {
        concat!(
            "SELECT d.id, e.kind, e.id, d.target, d.tenant, d.state, l.id, l.status, l.signature \
             FROM ledger_delivery AS d JOIN ledger_event AS e ON e.id = d.event ",
            $which
        )
    };
}

/// The ids of deliveries that failed in this state and have a letter that waits, or none; the oldest first.
macro_rules! failed {
    ($state:literal) => {
        concat!(
            "(SELECT d.id FROM ledger_delivery AS d LEFT JOIN ledger_dead_letter AS l ON l.id = d.letter WHERE d.state = '",
            $state,
            "' AND (l.status IS NULL OR l.status = 'pending') AND ($2::text IS NULL OR d.tenant = $2) \
               AND (cardinality($3::text[]) = 0 OR d.target = ANY($3)) AND ($4::text IS NULL OR l.signature = $4) \
             ORDER BY d.id LIMIT $1)"
        )
    };
}

pub(super) const STATEMENTS: Statements = Statements {
    event: events!("e.id = $1 AND e.kind = $2"),
    events,
    delivery: deliveries!("d.id = $1"),
    deliveries_of: deliveries!("d.event = $1 ORDER BY d.number"),
    deliveries,
    attempts: "SELECT number, worker, epoch, started_at, ended_at, class, status, error, excerpt, retry_after, job \
        FROM ledger_attempt WHERE delivery = $1 ORDER BY number",
    states_of: "SELECT event, state, count(*) FROM ledger_delivery WHERE event = ANY($1) GROUP BY event, state",
    find_events: "SELECT f.kind, f.id FROM (
          (SELECT e.id, e.kind, e.number FROM ledger_event AS e WHERE e.request_id = $1 AND e.request_id IS NOT NULL
            ORDER BY e.number LIMIT 1000)
          UNION
          SELECT e.id, e.kind, e.number FROM ledger_delivery AS d JOIN ledger_event AS e ON e.id = d.event WHERE d.id = $2
          UNION
          SELECT e.id, e.kind, e.number FROM ledger_event AS e WHERE e.dedupe = $3 AND e.dedupe_live
          UNION
          (SELECT e.id, e.kind, e.number FROM ledger_event AS e
            WHERE e.dedupe = $3 AND NOT e.dedupe_live AND e.dedupe IS NOT NULL LIMIT 1000)
          UNION
          SELECT e.id, e.kind, e.number FROM unnest($4::text[]) AS w(tag) CROSS JOIN LATERAL (
            SELECT t.number FROM ledger_tag AS t WHERE t.tag = w.tag ORDER BY t.number LIMIT 1000
          ) AS t JOIN ledger_event AS e ON e.number = t.number
        ) AS f ORDER BY f.number LIMIT 1000",
    audit: "INSERT INTO ledger_audit (at, who, action, subject, reason) VALUES (statement_timestamp(), $1, $2, $3, $4)",
    // By partial indexes, which hold what has not ended well.
    delivery_totals: "SELECT target, state, count(*) FROM (
          SELECT target, state FROM ledger_delivery
          WHERE state IN ('idle', 'retry_wait', 'blocked', 'dlq', 'replaying', 'cancelled')
          UNION ALL SELECT target, state FROM ledger_delivery WHERE state = 'running'
          UNION ALL SELECT target, state FROM ledger_delivery WHERE waits AND state = 'queued'
          UNION ALL SELECT target, state FROM ledger_delivery WHERE lane IS NOT NULL AND state NOT IN ('done', 'dlq', 'cancelled')
            AND NOT waits AND state = 'queued'
        ) AS d GROUP BY target, state ORDER BY target, state",
    letter_totals: "SELECT status, count(*) FROM ledger_dead_letter GROUP BY status ORDER BY status",
    oldest_due: "WITH RECURSIVE each AS (
          (SELECT target, due_at FROM ledger_delivery WHERE waits ORDER BY target, due_at LIMIT 1)
          UNION ALL
          SELECT n.target, n.due_at FROM each AS o CROSS JOIN LATERAL (
            SELECT d.target, d.due_at FROM ledger_delivery AS d WHERE d.waits AND d.target > o.target
            ORDER BY d.target, d.due_at LIMIT 1) AS n
        )
        SELECT target, (extract(epoch FROM statement_timestamp() - due_at) * 1000000)::bigint FROM each
        WHERE due_at <= statement_timestamp() ORDER BY target",
    sweep_audit: "DELETE FROM ledger_audit WHERE number IN (
          SELECT o.number FROM (SELECT number, at FROM ledger_audit ORDER BY number LIMIT $2) AS o
          WHERE o.at <= statement_timestamp() - $1 * interval '1 microsecond')",
    pause: "INSERT INTO ledger_pause (target, paused_at, who, reason) VALUES ($1, statement_timestamp(), $2, $3) \
        ON CONFLICT (target) DO NOTHING",
    letter: letters!("l.id = $1"),
    letters,
    unmirrored: letters!("l.stream = $1 AND l.stream IS NOT NULL AND NOT l.mirrored ORDER BY l.number LIMIT $2"),
    mirrored: "UPDATE ledger_dead_letter SET mirrored = true WHERE id = ANY($1)",
    job: jobs!("j.id = $1"),
    jobs: jobs!("j.number < $1 ORDER BY j.number DESC LIMIT $2"),
    // What ended in `dlq` or `blocked` and has a letter that waits, or none; the oldest first.
    failed: concat!(
        "WITH failed AS (",
        failed!("dlq"),
        " UNION ALL ",
        failed!("blocked"),
        ") ",
        candidates!(
            "JOIN failed AS f ON f.id = d.id LEFT JOIN ledger_dead_letter AS l ON l.id = d.letter ORDER BY d.id LIMIT $1"
        )
    ),
    deliveries_of_letters: candidates!(
        "JOIN ledger_dead_letter AS l ON l.delivery = d.id \
         JOIN unnest($1::bytea[]) WITH ORDINALITY AS w(id, n) ON w.id = l.id ORDER BY w.n"
    ),
    candidates_of_event: candidates!(
        "LEFT JOIN ledger_dead_letter AS l ON l.id = d.letter WHERE d.event = $1 ORDER BY d.number"
    ),
    find_keyless: "SELECT kind, id FROM ledger_event \
        WHERE dedupe = $1 AND NOT dedupe_live AND dedupe IS NOT NULL AND generation = $2 AND fingerprint = $3 \
        ORDER BY number LIMIT 1",
    hold_event: "SELECT 1 FROM ledger_event WHERE id = $1 AND kind = $2 FOR UPDATE",
    lock_lanes: Some(
        "SELECT pg_advisory_xact_lock(l.lane) FROM (
          SELECT DISTINCT lane FROM ledger_delivery WHERE event = $1 AND lane IS NOT NULL ORDER BY lane OFFSET 0) AS l",
    ),
    hold_deliveries: "SELECT id, state FROM ledger_delivery WHERE event = $1 ORDER BY number FOR UPDATE",
    lock_key: Some("SELECT pg_advisory_xact_lock(hashtextextended(encode($1, 'hex'), 0))"),
    holds_changes: "UPDATE ledger_event SET changes = greatest(changes, $2) WHERE id = $1",
    drop_key: "UPDATE ledger_event SET dedupe_live = false WHERE id = $1",
    hold_letter: "SELECT l.status, (SELECT d.state FROM ledger_delivery AS d WHERE d.id = l.delivery) \
        FROM ledger_dead_letter AS l WHERE l.id = $1 FOR UPDATE",
    letter_of_copy: "SELECT (SELECT l.id FROM ledger_dead_letter AS l \
          WHERE l.event = e.id AND l.event IS NOT NULL AND l.copy_of = $2) \
        FROM ledger_event AS e WHERE e.id = $1",
    touch_letter: "UPDATE ledger_dead_letter SET updated_at = statement_timestamp() WHERE id = $1",
    hold_job: "SELECT 1 FROM ledger_job WHERE id = $1 FOR UPDATE",
    add_job: "INSERT INTO ledger_job (id, selection, mode, reason, asked_by, rate, concurrency, canary, pause_above, state, \
          created_at, updated_at) \
        VALUES ($1, $2::json, $3, $4, $5, $6, $7, $8, $9, 'running', statement_timestamp(), statement_timestamp()) \
        ON CONFLICT (id) DO NOTHING",
    set_job_state: "UPDATE ledger_job SET state = $2, note = $3, updated_at = statement_timestamp() WHERE id = $1",
    // Where two processes end the last two items at once, the next release sees it.
    end_jobs: "UPDATE ledger_job AS j SET state = 'done', note = 'every item has ended', \
          updated_at = statement_timestamp() \
        WHERE j.id = ANY($1) AND j.state IN ('running', 'paused') \
          AND NOT EXISTS (SELECT FROM ledger_item AS i WHERE i.job = j.id AND i.state = 'pending') \
          AND NOT EXISTS (SELECT FROM ledger_item AS i WHERE i.job = j.id AND i.state = 'released')",
    next_items: "SELECT i.position, i.delivery, i.letter, i.kind, i.event, i.target, i.state, i.new_event, i.error \
        FROM ledger_item AS i WHERE i.job = $1 AND i.state = 'pending' ORDER BY i.position LIMIT $2",
    unfinished_targets: "SELECT DISTINCT i.target FROM ( \
            (SELECT target FROM ledger_item WHERE job = $1 AND state = 'pending' ORDER BY position LIMIT 1000) \
            UNION ALL (SELECT target FROM ledger_item WHERE job = $1 AND state = 'released' LIMIT 8192) \
        ) AS i ORDER BY i.target",
    // Their events are not swept meanwhile.
    hold_items: "SELECT d.id, d.state FROM ledger_delivery AS d JOIN ledger_event AS e ON e.id = d.event \
        WHERE d.id = ANY($1) ORDER BY d.id FOR UPDATE OF d FOR KEY SHARE OF e",
    hold_letters: "SELECT id, status FROM ledger_dead_letter WHERE id = ANY($1) ORDER BY id FOR UPDATE",
};

/// The statements, without an end where the index applies every part of the filter.
fn listing(statements: ListStatements, parts: usize, by_index: usize) -> ListStatements {
    ListStatements { end: statements.end.filter(|_| parts > by_index), ..statements }
}

fn events(filter: &EventFilter) -> ListStatements {
    let EventFilter { kind, tenant, event_type, tag } = filter;
    let parts = [kind.is_some(), tenant.is_some(), event_type.is_some(), tag.is_some()];
    let parts = parts.into_iter().filter(|given| *given).count();
    match filter {
        EventFilter { tag: Some(_), .. } => {
            let statements = ListStatements {
                rows: events!(
                    "ledger_tag AS t JOIN ledger_event AS e ON e.number = t.number",
                    "t.tag = $6 AND t.number < $1 AND t.number >= $7 AND ($3::text IS NULL OR e.kind = $3) \
                     AND ($4::text IS NULL OR e.tenant = $4) AND ($5::text IS NULL OR e.event_type = $5) \
                     ORDER BY t.number DESC LIMIT $2"
                ),
                end: Some(
                    "SELECT t.number, NULL::bytea FROM ledger_tag AS t WHERE t.tag = $6 AND t.number < $1 \
                     AND (true OR $3::text IS NULL OR $4::text IS NULL OR $5::text IS NULL) \
                     ORDER BY t.number DESC LIMIT 1 OFFSET $2",
                ),
            };
            listing(statements, parts, 1)
        }
        EventFilter { tenant: Some(_), .. } => listing(event_list!("e.tenant = $4 AND "), parts, 1),
        EventFilter { event_type: Some(_), .. } => listing(event_list!("e.event_type = $5 AND "), parts, 1),
        EventFilter { kind: Some(EventKind::Run), .. } => {
            listing(event_list!("e.kind = 'run' AND "), parts, 1)
        }
        EventFilter { .. } => listing(event_list!(""), parts, 0),
    }
}

fn deliveries(filter: &DeliveryFilter) -> ListStatements {
    let DeliveryFilter { event, target, tenant, states } = filter;
    let parts = [event.is_some(), target.is_some(), tenant.is_some(), !states.is_empty()];
    let parts = parts.into_iter().filter(|given| *given).count();
    let unindexed = |state: &DeliveryState| matches!(state, DeliveryState::Done | DeliveryState::Queued);
    if event.is_some() {
        // An event has few deliveries.
        return listing(delivery_list!("d.event = $6"), parts, 4);
    }
    if states.is_empty() || states.iter().any(unindexed) {
        return listing(delivery_list!("$6::bytea IS NULL"), parts, 0);
    }
    let statements = ListStatements {
        rows: deliveries!(
            concat!(
                "(SELECT u.id FROM (",
                in_states!(concat!("d.id >= $7 AND ", delivery_parts!()), "$2"),
                ") AS u ORDER BY u.id DESC LIMIT $2) AS f JOIN ledger_delivery AS d ON d.id = f.id"
            ),
            "$6::bytea IS NULL ORDER BY d.id DESC"
        ),
        end: Some(concat!(
            "SELECT NULL::bigint, u.id FROM (",
            in_states!("(true OR $3::text IS NULL OR $4::text IS NULL OR $6::bytea IS NULL)", "$2 + 1"),
            ") AS u ORDER BY u.id DESC LIMIT 1 OFFSET $2"
        )),
    };
    listing(statements, parts, 1)
}

fn letters(filter: &LetterFilter) -> ListStatements {
    let LetterFilter { status, tenant, target, signature } = filter;
    let parts = [status.is_some(), tenant.is_some(), target.is_some(), signature.is_some()];
    let parts = parts.into_iter().filter(|given| *given).count();
    match (signature, target, tenant, status) {
        (Some(_), _, _, Some(_)) => {
            listing(letter_list!("l.signature = $6 AND l.status = $5 AND "), parts, 2)
        }
        (Some(_), _, _, None) => listing(letter_list!("l.signature = $6 AND "), parts, 1),
        (None, Some(_), _, Some(_)) => {
            listing(letter_list!("l.target = $4 AND l.status = $5 AND "), parts, 2)
        }
        (None, None, Some(_), Some(_)) => {
            listing(letter_list!("l.tenant = $3 AND l.status = $5 AND "), parts, 2)
        }
        (None, None, None, Some(_)) => listing(letter_list!("l.status = $5 AND "), parts, 1),
        (None, _, _, None) => listing(letter_list!(""), parts, 0),
    }
}
