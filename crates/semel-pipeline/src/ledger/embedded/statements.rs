//! The statements that shared code sends, as SQLite knows them.

use crate::delivery::DeliveryState;
use crate::id::EventKind;
use crate::ledger::sql::{ListStatements, Statements};
use crate::ledger::{DeliveryFilter, EventFilter, LetterFilter};

/// Events with their numbers.
macro_rules! events {
    ($from:literal, $which:expr) => {
        concat!(
            "SELECT e.number, e.kind, e.id, e.tenant, e.event_type, e.dedupe, CAST(e.dedupe_hint AS BLOB), e.fingerprint, e.dedupe_lifetime,
                p.payload, e.content_type, e.headers, e.order_key, e.origin, e.targets, e.delay, e.deliver_within, e.tags,
                e.metadata, e.request_id, e.traceparent, e.accepted_at, e.version, e.changes
            FROM ",
            $from,
            " JOIN ledger_payload AS p ON p.event = e.number WHERE ",
            $which
        )
    };
}

/// Deliveries with their numbers.
macro_rules! deliveries {
    ($from:expr, $which:expr) => {
        concat!(
            "SELECT d.number, d.id, e.kind, e.id, d.target, d.tenant, d.event_type, d.state, d.attempts, d.crashes, d.epoch,
                d.due_at, d.error, l.id, d.created_at, d.started_at, d.completed_at
            FROM ",
            $from,
            " JOIN ledger_event AS e ON e.number = d.event LEFT JOIN ledger_dead_letter AS l ON l.number = d.letter ",
            $which
        )
    };
}

/// Letters with their numbers.
macro_rules! letters {
    ($which:literal) => {
        letters!("", $which)
    };
    ($index:literal, $which:expr) => {
        concat!(
            "SELECT l.number, l.id, l.tenant, e.kind, e.id, d.id, l.target, l.event_type, l.stream, l.message,
                coalesce(l.payload, p.payload), coalesce(l.content_type, e.content_type),
                coalesce(l.headers, e.headers), l.cause, l.error, l.signature, l.status, l.attempts, l.last_attempt_at,
                l.failed_replays, l.copy_of, l.created_at, l.updated_at
            FROM ledger_dead_letter AS l ",
            $index,
            " LEFT JOIN ledger_event AS e ON e.number = l.event
                LEFT JOIN ledger_delivery AS d ON d.number = l.delivery
                LEFT JOIN ledger_payload AS p ON p.event = l.event
            WHERE ",
            $which
        )
    };
}

/// Jobs with their numbers.
macro_rules! jobs {
    ($which:literal) => {
        concat!(
            "SELECT number, id, selection, mode, reason, asked_by, rate, concurrency, canary, pause_above, state, note,
                created_at, updated_at, json_object('pending', pending, 'released', released, 'replayed', replayed,
                    'skipped_completed', skipped_completed, 'skipped_inflight', skipped_inflight,
                    'failed_again', failed_again, 'cancelled', cancelled)
            FROM ledger_job WHERE ",
            $which
        )
    };
}

/// Deliveries that may be replayed.
macro_rules! candidates {
    ($from:literal, $which:literal) => {
        concat!(
            "SELECT d.id, e.kind, e.id, d.target, d.tenant, d.state, l.id, l.status, l.signature FROM ",
            $from,
            " JOIN ledger_event AS e ON e.number = d.event ",
            $which
        )
    };
}

/// The numbers of deliveries that failed in this state and have a letter that waits, or none; the oldest first.
macro_rules! failed {
    ($state:literal) => {
        concat!(
            "SELECT d.number FROM ledger_delivery AS d INDEXED BY ledger_deliveries_state
            LEFT JOIN ledger_dead_letter AS l ON l.number = d.letter
            WHERE d.state = '",
            $state,
            "' AND d.state <> 'done' AND (l.status IS NULL OR l.status = 'pending') AND ($2 IS NULL OR d.tenant = $2)
                AND (json_array_length($3) = 0 OR d.target IN (SELECT value FROM json_each($3)))
                AND ($4 IS NULL OR l.signature = $4)
            ORDER BY d.number LIMIT $1"
        )
    };
}

/// The last row that a page of a listing looks at: `$from` without other tables, `$which` by an index, in the order of `$number`.
macro_rules! end_of_page {
    ($number:literal, $from:literal, $which:literal) => {
        concat!(
            "SELECT ",
            $number,
            ", NULL FROM ",
            $from,
            " WHERE ",
            $which,
            $number,
            " < $1 ORDER BY ",
            $number,
            " DESC LIMIT 1 OFFSET $2"
        )
    };
}

/// A listing of events by an index.
macro_rules! event_list {
    ($number:literal, $from:literal, $events:literal, $which:literal) => {
        ListStatements {
            rows: events!(
                $events,
                concat!(
                    $which, $number, " < $1 AND ", $number, " >= $7 AND ($3 IS NULL OR e.kind = $3)
                        AND ($4 IS NULL OR e.tenant = $4) AND ($5 IS NULL OR e.event_type = $5) ORDER BY ", $number,
                    " DESC LIMIT $2"
                )
            ),
            end: Some(end_of_page!($number, $from, $which)),
        }
    };
    ($from:literal, $which:literal) => {
        event_list!("e.number", $from, $from, $which)
    };
}

/// A listing of deliveries by an index.
macro_rules! delivery_list {
    ($from:literal, $which:literal) => {
        ListStatements {
            rows: deliveries!(
                $from,
                concat!(
                    "WHERE ",
                    $which,
                    "d.number < $1 AND d.number >= $7 AND ($3 IS NULL OR d.target = $3)
                        AND ($4 IS NULL OR d.tenant = $4)
                        AND (json_array_length($5) = 0 OR d.state IN (SELECT value FROM json_each($5)))
                        AND ($6 IS NULL OR e.id = $6) ORDER BY d.number DESC LIMIT $2"
                )
            ),
            end: Some(end_of_page!("d.number", $from, $which)),
        }
    };
}

/// The numbers of deliveries in this state, where it is asked for; the newest first.
macro_rules! in_state {
    ($state:literal, $which:literal) => {
        concat!(
            "SELECT * FROM (SELECT number FROM ledger_delivery INDEXED BY ledger_deliveries_state
            WHERE state = '",
            $state,
            "' AND state <> 'done' AND number < $1 AND instr($5, '\"",
            $state,
            "\"') > 0 ",
            $which,
        )
    };
}

/// The numbers of deliveries in the states that are asked for. Each state by its index, then merged: the states of what has not
/// ended well hold few of all deliveries.
macro_rules! in_states {
    ($which:literal) => {
        concat!(
            in_state!("idle", $which),
            " UNION ALL ",
            in_state!("queued", $which),
            " UNION ALL ",
            in_state!("running", $which),
            " UNION ALL ",
            in_state!("retry_wait", $which),
            " UNION ALL ",
            in_state!("blocked", $which),
            " UNION ALL ",
            in_state!("dlq", $which),
            " UNION ALL ",
            in_state!("replaying", $which),
            " UNION ALL ",
            in_state!("cancelled", $which),
        )
    };
}

/// A listing of dead letters by an index.
macro_rules! letter_list {
    ($index:literal, $which:literal) => {
        ListStatements {
            rows: letters!(
                $index,
                concat!(
                    $which,
                    "l.number < $1 AND l.number >= $7 AND ($3 IS NULL OR l.tenant = $3)
                        AND ($4 IS NULL OR l.target = $4) AND ($5 IS NULL OR l.status = $5)
                        AND ($6 IS NULL OR l.signature = $6) ORDER BY l.number DESC LIMIT $2"
                )
            ),
            end: Some(concat!(
                "SELECT l.number, NULL FROM ledger_dead_letter AS l ",
                $index,
                " WHERE ",
                $which,
                "l.number < $1 ORDER BY l.number DESC LIMIT 1 OFFSET $2"
            )),
        }
    };
}

pub(super) const STATEMENTS: Statements = Statements {
    event: events!("ledger_event AS e", "e.id = $1 AND e.kind = $2"),
    events,
    delivery: deliveries!("ledger_delivery AS d", "WHERE d.id = $1"),
    deliveries_of: deliveries!("ledger_delivery AS d", "WHERE e.id = $1 ORDER BY d.number"),
    deliveries,
    attempts: "SELECT number, worker, epoch, started_at, ended_at, class, status, error, excerpt, retry_after, job
        FROM ledger_attempt WHERE delivery = (SELECT number FROM ledger_delivery WHERE id = $1) ORDER BY number",
    states_of: "SELECT e.id, d.state, count(*) FROM json_each($1) AS w CROSS JOIN ledger_event AS e ON e.id = unhex(w.value)
            CROSS JOIN ledger_delivery AS d ON d.event = e.number
        GROUP BY e.id, d.state",
    find_events: "SELECT kind, id FROM (
            SELECT * FROM (
                SELECT number, kind, id FROM ledger_event WHERE request_id = $1 ORDER BY number LIMIT 1000)
            UNION SELECT e.number, e.kind, e.id FROM ledger_delivery AS d JOIN ledger_event AS e ON e.number = d.event
            WHERE d.id = $2
            UNION SELECT * FROM (
                SELECT number, kind, id FROM ledger_event WHERE dedupe = $3 ORDER BY number LIMIT 1000)
            UNION SELECT e.number, e.kind, e.id FROM json_each($4) AS w CROSS JOIN ledger_event AS e
            WHERE e.number IN (SELECT t.event FROM ledger_tag AS t WHERE t.tag = w.value ORDER BY t.event LIMIT 1000))
        ORDER BY number LIMIT 1000",
    audit: "INSERT INTO ledger_audit (at, who, action, subject, reason) VALUES (:now, $1, $2, $3, $4)",
    delivery_totals: "SELECT name, state, count FROM ledger_total WHERE what = 'delivery' AND count > 0
        ORDER BY name, state",
    letter_totals: "SELECT state, count FROM ledger_total WHERE what = 'letter' AND count > 0 ORDER BY state",
    // Of each target the tenants whose turn is next, and those that sleep although something is due.
    oldest_due: "WITH RECURSIVE each(target) AS (
            SELECT min(target) FROM ledger_turn
            UNION ALL
            SELECT (SELECT min(t.target) FROM ledger_turn AS t WHERE t.target > each.target) FROM each
            WHERE each.target IS NOT NULL
        ), waiting AS (
            SELECT each.target, (SELECT min(due) FROM (
                SELECT (SELECT d.due_at FROM ledger_delivery AS d INDEXED BY ledger_deliveries_ready
                    WHERE d.target = each.target AND d.tenant = l.tenant AND d.front = 1
                        AND d.state IN ('idle', 'queued', 'retry_wait', 'replaying')
                    ORDER BY d.due_at LIMIT 1) AS due
                FROM (
                    SELECT * FROM (SELECT t.tenant FROM ledger_turn AS t INDEXED BY ledger_lanes_awake
                        WHERE t.target = each.target AND t.turn IS NOT NULL ORDER BY t.turn LIMIT 1000)
                    UNION ALL
                    SELECT * FROM (SELECT t.tenant FROM ledger_turn AS t INDEXED BY ledger_lanes_asleep
                        WHERE t.target = each.target AND t.turn IS NULL AND t.due_at <= :now ORDER BY t.due_at LIMIT 1000)
                ) AS l)) AS due
            FROM each WHERE each.target IS NOT NULL
        )
        SELECT target, :now - due FROM waiting WHERE due <= :now ORDER BY target",
    sweep_audit: "DELETE FROM ledger_audit WHERE number IN (
            SELECT number FROM (SELECT number, at FROM ledger_audit ORDER BY number LIMIT $2) WHERE at <= :now - $1)",
    pause: "INSERT INTO ledger_pause (target, paused_at, who, reason) VALUES ($1, :now, $2, $3)
        ON CONFLICT (target) DO NOTHING",
    letter: letters!("l.id = $1"),
    letters,
    unmirrored: letters!(
        "l.number IN (
            SELECT number FROM ledger_dead_letter INDEXED BY ledger_letters_unmirrored
            WHERE stream = $1 AND stream IS NOT NULL AND mirrored = 0 ORDER BY number LIMIT $2)
        ORDER BY l.number"
    ),
    mirrored: "UPDATE ledger_dead_letter SET mirrored = 1 WHERE id IN (SELECT unhex(value) FROM json_each($1))",
    job: jobs!("id = $1"),
    jobs: jobs!("number < $1 ORDER BY number DESC LIMIT $2"),
    failed: concat!(
        "WITH failed AS (SELECT * FROM (",
        failed!("dlq"),
        ") UNION ALL SELECT * FROM (",
        failed!("blocked"),
        "))",
        candidates!(
            "failed AS f CROSS JOIN ledger_delivery AS d ON d.number = f.number
            LEFT JOIN ledger_dead_letter AS l ON l.number = d.letter",
            "ORDER BY f.number LIMIT $1"
        )
    ),
    deliveries_of_letters: candidates!(
        "json_each($1) AS w CROSS JOIN ledger_dead_letter AS l ON l.id = unhex(w.value)
        JOIN ledger_delivery AS d ON d.number = l.delivery",
        "ORDER BY w.key"
    ),
    candidates_of_event: candidates!(
        "ledger_delivery AS d LEFT JOIN ledger_dead_letter AS l ON l.number = d.letter",
        "WHERE d.event = (SELECT number FROM ledger_event WHERE id = $1) ORDER BY d.number"
    ),
    find_keyless: "SELECT kind, id FROM ledger_event AS e
        WHERE dedupe = $1 AND generation = $2 AND fingerprint = $3 AND NOT EXISTS (
            SELECT 1 FROM ledger_key AS k WHERE k.dedupe = e.dedupe AND k.event = e.id)
        ORDER BY number LIMIT 1",
    hold_event: "SELECT 1 FROM ledger_event WHERE id = $1 AND kind = $2",
    lock_lanes: None,
    hold_deliveries: "SELECT id, state FROM ledger_delivery
        WHERE event = (SELECT number FROM ledger_event WHERE id = $1) ORDER BY number",
    lock_key: None,
    holds_changes: "UPDATE ledger_event SET changes = max(changes, $2) WHERE id = $1",
    drop_key: "DELETE FROM ledger_key WHERE event = $1",
    hold_letter: "SELECT l.status, d.state FROM ledger_dead_letter AS l
            LEFT JOIN ledger_delivery AS d ON d.number = l.delivery
        WHERE l.id = $1",
    letter_of_copy: "SELECT (SELECT l.id FROM ledger_dead_letter AS l WHERE l.event = e.number AND l.copy_of = $2)
        FROM ledger_event AS e WHERE e.id = $1",
    touch_letter: "UPDATE ledger_dead_letter SET updated_at = :now WHERE id = $1",
    hold_job: "SELECT 1 FROM ledger_job WHERE id = $1",
    add_job: "INSERT INTO ledger_job (id, selection, mode, reason, asked_by, rate, concurrency, canary, pause_above, state,
            note, total, pending, released, replayed, skipped_completed, skipped_inflight, failed_again, cancelled,
            created_at, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'running', '', 0, 0, 0, 0, 0, 0, 0, 0, :now, :now)",
    set_job_state: "UPDATE ledger_job SET state = $2, note = $3, updated_at = :now WHERE id = $1",
    end_jobs: "UPDATE ledger_job SET state = 'done', note = 'every item has ended', updated_at = :now
        WHERE id IN (SELECT unhex(value) FROM json_each($1)) AND state IN ('running', 'paused') AND pending = 0
            AND released = 0",
    next_items: "SELECT position, delivery, letter, kind, event, target, state, new_event, error
        FROM ledger_item INDEXED BY ledger_items_pending
        WHERE job = $1 AND state = 'pending' ORDER BY position LIMIT $2",
    // What is in progress comes before what was not released.
    unfinished_targets: "SELECT DISTINCT target FROM (
            SELECT target, state FROM (
                SELECT target, state FROM ledger_item INDEXED BY ledger_items_pending
                WHERE job = $1 AND state = 'pending' ORDER BY position LIMIT 1000)
            UNION ALL
            SELECT target, state FROM (
                SELECT target, state FROM ledger_item
                WHERE job = $1 AND position < coalesce((
                    SELECT min(position) FROM ledger_item INDEXED BY ledger_items_pending
                    WHERE job = $1 AND state = 'pending'), 9223372036854775807)
                ORDER BY position DESC LIMIT 8192)
        ) WHERE state IN ('pending', 'released') ORDER BY target",
    hold_items: "SELECT id, state FROM ledger_delivery WHERE id IN (SELECT unhex(value) FROM json_each($1))",
    hold_letters: "SELECT id, status FROM ledger_dead_letter WHERE id IN (SELECT unhex(value) FROM json_each($1))",
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
        EventFilter { tag: Some(_), .. } => listing(
            event_list!(
                "t.event",
                "ledger_tag AS t",
                "ledger_tag AS t CROSS JOIN ledger_event AS e ON e.number = t.event",
                "t.tag = $6 AND "
            ),
            parts,
            1,
        ),
        EventFilter { tenant: Some(_), .. } => listing(
            event_list!("ledger_event AS e INDEXED BY ledger_events_tenant", "e.tenant = $4 AND "),
            parts,
            1,
        ),
        EventFilter { event_type: Some(_), .. } => listing(
            event_list!("ledger_event AS e INDEXED BY ledger_events_type", "e.event_type = $5 AND "),
            parts,
            1,
        ),
        EventFilter { kind: Some(EventKind::Run), .. } => listing(
            event_list!("ledger_event AS e INDEXED BY ledger_event_run", "e.kind = 'run' AND "),
            parts,
            1,
        ),
        EventFilter { .. } => listing(event_list!("ledger_event AS e", ""), parts, 0),
    }
}

fn deliveries(filter: &DeliveryFilter) -> ListStatements {
    let DeliveryFilter { event, target, tenant, states } = filter;
    let parts = [event.is_some(), target.is_some(), tenant.is_some(), !states.is_empty()];
    let parts = parts.into_iter().filter(|given| *given).count();
    match filter {
        // An event has few deliveries.
        DeliveryFilter { event: Some(_), .. } => {
            listing(delivery_list!("ledger_delivery AS d", "e.id = $6 AND "), parts, 4)
        }
        DeliveryFilter { states, .. } if !states.is_empty() && !states.contains(&DeliveryState::Done) => {
            let statements = ListStatements {
                rows: concat!(
                    "WITH found AS (",
                    in_states!(
                        "AND number >= $7 AND ($3 IS NULL OR target = $3) AND ($4 IS NULL OR tenant = $4)
                            ORDER BY number DESC LIMIT $2)"
                    ),
                    ") ",
                    deliveries!(
                        "(SELECT number FROM found ORDER BY number DESC LIMIT $2) AS f
                        CROSS JOIN ledger_delivery AS d ON d.number = f.number",
                        "ORDER BY d.number DESC"
                    )
                ),
                end: Some(concat!(
                    "SELECT number, NULL FROM (",
                    in_states!("ORDER BY number DESC LIMIT $2 + 1)"),
                    ") ORDER BY number DESC LIMIT 1 OFFSET $2"
                )),
            };
            listing(statements, parts, 1)
        }
        DeliveryFilter { target: Some(_), .. } => listing(
            delivery_list!("ledger_delivery AS d INDEXED BY ledger_delivery_target", "d.target = $3 AND "),
            parts,
            1,
        ),
        DeliveryFilter { tenant: Some(_), .. } => listing(
            delivery_list!("ledger_delivery AS d INDEXED BY ledger_deliveries_tenant", "d.tenant = $4 AND "),
            parts,
            1,
        ),
        DeliveryFilter { .. } => listing(delivery_list!("ledger_delivery AS d", ""), parts, 0),
    }
}

fn letters(filter: &LetterFilter) -> ListStatements {
    let LetterFilter { status, tenant, target, signature } = filter;
    let parts = [status.is_some(), tenant.is_some(), target.is_some(), signature.is_some()];
    let parts = parts.into_iter().filter(|given| *given).count();
    match (signature, target, tenant, status) {
        (Some(_), _, _, Some(_)) => listing(
            letter_list!("INDEXED BY ledger_dead_letter_group", "l.signature = $6 AND l.status = $5 AND "),
            parts,
            2,
        ),
        (Some(_), _, _, None) => {
            listing(letter_list!("INDEXED BY ledger_letters_signature", "l.signature = $6 AND "), parts, 1)
        }
        (None, Some(_), _, Some(_)) => listing(
            letter_list!("INDEXED BY ledger_dead_letter_target", "l.target = $4 AND l.status = $5 AND "),
            parts,
            2,
        ),
        (None, None, Some(_), Some(_)) => listing(
            letter_list!("INDEXED BY ledger_dead_letter_tenant", "l.tenant = $3 AND l.status = $5 AND "),
            parts,
            2,
        ),
        (None, None, None, Some(_)) => {
            listing(letter_list!("INDEXED BY ledger_dead_letter_status", "l.status = $5 AND "), parts, 1)
        }
        (None, _, _, None) => listing(letter_list!("", ""), parts, 0),
    }
}
