//! The statements that shared code sends, as SQLite knows them.

use crate::delivery::DeliveryState;
use crate::ledger::sql::Statements;
use crate::ledger::{DeliveryFilter, EventFilter, LetterFilter};

/// Events with their numbers.
macro_rules! events {
    ($from:literal, $which:literal) => {
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
    ($from:literal, $which:literal) => {
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
        concat!(
            "SELECT l.number, l.id, l.tenant, e.kind, e.id, d.id, l.target, l.event_type, l.stream, l.message,
                coalesce(l.payload, p.payload), coalesce(l.content_type, e.content_type),
                coalesce(l.headers, e.headers), l.cause, l.error, l.signature, l.status, l.attempts, l.last_attempt_at,
                l.failed_replays, l.copy_of, l.created_at, l.updated_at
            FROM ledger_dead_letter AS l LEFT JOIN ledger_event AS e ON e.number = l.event
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

/// The numbers of deliveries in this state, where it is asked for; the newest first.
macro_rules! in_state {
    ($state:literal) => {
        concat!(
            "SELECT * FROM (SELECT number FROM ledger_delivery INDEXED BY ledger_deliveries_state
            WHERE state = '",
            $state,
            "' AND state <> 'done' AND number < $1 AND instr($5, '\"",
            $state,
            "\"') > 0 ORDER BY number DESC LIMIT $2)"
        )
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
    find_events: "SELECT kind, id FROM (
            SELECT number, kind, id FROM ledger_event WHERE request_id = $1
            UNION SELECT e.number, e.kind, e.id FROM ledger_delivery AS d JOIN ledger_event AS e ON e.number = d.event
            WHERE d.id = $2
            UNION SELECT number, kind, id FROM ledger_event WHERE dedupe = $3
            UNION SELECT e.number, e.kind, e.id FROM ledger_tag AS t JOIN ledger_event AS e ON e.number = t.event
            WHERE t.tag IN (SELECT value FROM json_each($4)))
        ORDER BY number LIMIT 1000",
    audit: "INSERT INTO ledger_audit (at, who, action, subject, reason) VALUES (:now, $1, $2, $3, $4)",
    delivery_totals: "SELECT name, state, count FROM ledger_total WHERE what = 'delivery' AND count > 0
        ORDER BY name, state",
    letter_totals: "SELECT state, count FROM ledger_total WHERE what = 'letter' AND count > 0 ORDER BY state",
    oldest_due: "SELECT CASE WHEN due <= :now THEN :now - due END FROM (
            SELECT min((SELECT due_at FROM ledger_delivery AS d INDEXED BY ledger_deliveries_ready
                WHERE d.target = l.target AND d.tenant = l.tenant AND d.front = 1
                    AND d.state IN ('idle', 'queued', 'retry_wait', 'replaying')
                ORDER BY due_at LIMIT 1)) AS due
            FROM ledger_turn AS l WHERE turn IS NOT NULL OR due_at <= :now)",
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
    hold_items: "SELECT id, state FROM ledger_delivery WHERE id IN (SELECT unhex(value) FROM json_each($1))",
    hold_letters: "SELECT id, status FROM ledger_dead_letter WHERE id IN (SELECT unhex(value) FROM json_each($1))",
};

fn events(filter: &EventFilter) -> &'static str {
    // One of the filters finds the rows, by its index; shared code applies the others to what is found.
    match filter {
        EventFilter { tag: Some(_), .. } => events!(
            "ledger_tag AS t JOIN ledger_event AS e ON e.number = t.event",
            "t.tag = $6 AND t.event < $1 ORDER BY t.event DESC LIMIT $2"
        ),
        EventFilter { tenant: Some(_), .. } => events!(
            "ledger_event AS e INDEXED BY ledger_events_tenant",
            "e.tenant = $4 AND e.number < $1 ORDER BY e.number DESC LIMIT $2"
        ),
        EventFilter { event_type: Some(_), .. } => events!(
            "ledger_event AS e INDEXED BY ledger_events_type",
            "e.event_type = $5 AND e.number < $1 ORDER BY e.number DESC LIMIT $2"
        ),
        EventFilter { .. } => {
            events!("ledger_event AS e", "e.number < $1 ORDER BY e.number DESC LIMIT $2")
        }
    }
}

fn deliveries(filter: &DeliveryFilter) -> &'static str {
    match filter {
        DeliveryFilter { event: Some(_), .. } => deliveries!(
            "ledger_delivery AS d",
            "WHERE e.id = $6 AND d.number < $1 ORDER BY d.number DESC LIMIT $2"
        ),
        DeliveryFilter { tenant: Some(_), .. } => deliveries!(
            "ledger_delivery AS d",
            "WHERE d.tenant = $4 AND d.number < $1 ORDER BY d.number DESC LIMIT $2"
        ),
        // Each state by its index, then merged: the states of what has not ended well hold few of all deliveries.
        DeliveryFilter { states, .. } if !states.is_empty() && !states.contains(&DeliveryState::Done) => {
            concat!(
                "WITH found AS (",
                in_state!("idle"),
                " UNION ALL ",
                in_state!("queued"),
                " UNION ALL ",
                in_state!("running"),
                " UNION ALL ",
                in_state!("retry_wait"),
                " UNION ALL ",
                in_state!("blocked"),
                " UNION ALL ",
                in_state!("dlq"),
                " UNION ALL ",
                in_state!("replaying"),
                " UNION ALL ",
                in_state!("cancelled"),
                ") ",
                deliveries!(
                    "(SELECT number FROM found ORDER BY number DESC LIMIT $2) AS f
                CROSS JOIN ledger_delivery AS d ON d.number = f.number",
                    "ORDER BY d.number DESC"
                )
            )
        }
        DeliveryFilter { .. } => {
            deliveries!("ledger_delivery AS d", "WHERE d.number < $1 ORDER BY d.number DESC LIMIT $2")
        }
    }
}

fn letters(filter: &LetterFilter) -> &'static str {
    match filter {
        LetterFilter { signature: Some(_), .. } => {
            letters!("l.signature = $6 AND l.number < $1 ORDER BY l.number DESC LIMIT $2")
        }
        LetterFilter { status: Some(_), .. } => {
            letters!("l.status = $5 AND l.number < $1 ORDER BY l.number DESC LIMIT $2")
        }
        LetterFilter { .. } => letters!("l.number < $1 ORDER BY l.number DESC LIMIT $2"),
    }
}
