CREATE TABLE ledger_events (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    type TEXT NOT NULL,
    dedupe BLOB,
    hint TEXT,
    fingerprint BLOB,
    lifetime INTEGER,
    content_type TEXT NOT NULL,
    headers TEXT NOT NULL,
    order_key TEXT,
    origin TEXT NOT NULL,
    targets TEXT NOT NULL,
    delay INTEGER NOT NULL,
    deliver_within INTEGER,
    tags TEXT NOT NULL,
    metadata TEXT NOT NULL,
    request_id TEXT,
    traceparent TEXT,
    accepted_at INTEGER NOT NULL,
    version INTEGER NOT NULL,
    unsettled INTEGER NOT NULL,
    settled_at INTEGER
) STRICT;
CREATE INDEX ledger_events_tenant ON ledger_events (tenant, number);
CREATE INDEX ledger_events_type ON ledger_events (type, number);
CREATE INDEX ledger_events_request ON ledger_events (request_id) WHERE request_id IS NOT NULL;
CREATE INDEX ledger_events_dedupe ON ledger_events (dedupe) WHERE dedupe IS NOT NULL;
CREATE INDEX ledger_events_settled ON ledger_events (settled_at) WHERE settled_at IS NOT NULL;

-- Apart from the events: their rows change with every delivery, and a payload can be large.
CREATE TABLE ledger_payloads (event INTEGER PRIMARY KEY, payload BLOB NOT NULL) STRICT;

CREATE TABLE ledger_tags (tag TEXT NOT NULL, event INTEGER NOT NULL, PRIMARY KEY (tag, event)) STRICT, WITHOUT ROWID;

CREATE TABLE ledger_dedupe (
    id BLOB NOT NULL PRIMARY KEY,
    event BLOB NOT NULL,
    kind TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    until INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX ledger_dedupe_until ON ledger_dedupe (until) WHERE until IS NOT NULL;

CREATE TABLE ledger_deliveries (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    event INTEGER NOT NULL,
    target TEXT NOT NULL,
    tenant TEXT NOT NULL,
    type TEXT NOT NULL,
    order_key TEXT,
    state TEXT NOT NULL,
    front INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    expires_at INTEGER,
    attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    tries INTEGER NOT NULL,
    numbered INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    token BLOB,
    lease_until INTEGER,
    error TEXT,
    letter INTEGER,
    job BLOB,
    item INTEGER,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    completed_at INTEGER
) STRICT;
CREATE INDEX ledger_deliveries_event ON ledger_deliveries (event);
CREATE INDEX ledger_deliveries_tenant ON ledger_deliveries (tenant, number);
CREATE INDEX ledger_deliveries_state ON ledger_deliveries (state, number) WHERE state <> 'done';
CREATE INDEX ledger_deliveries_ready ON ledger_deliveries (target, tenant, due_at, number)
    WHERE front = 1 AND state IN ('idle', 'queued', 'retry_wait', 'replaying');
CREATE INDEX ledger_deliveries_leases ON ledger_deliveries (target, lease_until) WHERE state = 'running';
CREATE INDEX ledger_deliveries_order ON ledger_deliveries (target, order_key, number)
    WHERE order_key IS NOT NULL AND state NOT IN ('done', 'dlq', 'cancelled');
CREATE INDEX ledger_deliveries_front ON ledger_deliveries (target, order_key)
    WHERE order_key IS NOT NULL AND front = 1;

CREATE TABLE ledger_lanes (
    target TEXT NOT NULL,
    tenant TEXT NOT NULL,
    turn INTEGER,
    due_at INTEGER NOT NULL,
    PRIMARY KEY (target, tenant)
) STRICT, WITHOUT ROWID;
CREATE INDEX ledger_lanes_awake ON ledger_lanes (target, turn) WHERE turn IS NOT NULL;
CREATE INDEX ledger_lanes_asleep ON ledger_lanes (target, due_at) WHERE turn IS NULL;

CREATE TABLE ledger_attempts (
    delivery INTEGER NOT NULL,
    number INTEGER NOT NULL,
    worker TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at INTEGER,
    class TEXT,
    status INTEGER,
    error TEXT,
    excerpt TEXT,
    retry_after INTEGER,
    job BLOB,
    PRIMARY KEY (delivery, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE ledger_letters (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    event INTEGER,
    delivery INTEGER,
    target TEXT,
    type TEXT,
    stream TEXT,
    message TEXT,
    payload BLOB,
    content_type TEXT,
    headers TEXT,
    cause TEXT NOT NULL,
    error TEXT NOT NULL,
    signature TEXT NOT NULL,
    status TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    last_attempt_at INTEGER,
    failed_replays INTEGER NOT NULL,
    copy_of BLOB,
    mirrored INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;
CREATE INDEX ledger_letters_status ON ledger_letters (status, number);
CREATE INDEX ledger_letters_signature ON ledger_letters (signature, number);
CREATE INDEX ledger_letters_event ON ledger_letters (event) WHERE event IS NOT NULL;
CREATE INDEX ledger_letters_copies ON ledger_letters (copy_of) WHERE copy_of IS NOT NULL;
CREATE UNIQUE INDEX ledger_letters_message ON ledger_letters (stream, message) WHERE delivery IS NULL;
CREATE INDEX ledger_letters_unmirrored ON ledger_letters (stream, number) WHERE mirrored = 0 AND stream IS NOT NULL;
CREATE INDEX ledger_letters_over ON ledger_letters (updated_at)
    WHERE event IS NULL AND status IN ('replayed', 'discarded');

CREATE TABLE ledger_jobs (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    selection TEXT NOT NULL,
    mode TEXT NOT NULL,
    reason TEXT,
    asked_by TEXT NOT NULL,
    rate REAL NOT NULL,
    concurrency INTEGER NOT NULL,
    canary INTEGER NOT NULL,
    pause_above REAL NOT NULL,
    state TEXT NOT NULL,
    note TEXT NOT NULL,
    total INTEGER NOT NULL,
    pending INTEGER NOT NULL,
    released INTEGER NOT NULL,
    replayed INTEGER NOT NULL,
    skipped_completed INTEGER NOT NULL,
    skipped_inflight INTEGER NOT NULL,
    failed_again INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;
CREATE INDEX ledger_jobs_state ON ledger_jobs (state, updated_at);

CREATE TABLE ledger_items (
    job BLOB NOT NULL,
    position INTEGER NOT NULL,
    delivery BLOB NOT NULL,
    letter BLOB,
    event BLOB NOT NULL,
    kind TEXT NOT NULL,
    target TEXT NOT NULL,
    state TEXT NOT NULL,
    new_event BLOB,
    error TEXT,
    PRIMARY KEY (job, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX ledger_items_pending ON ledger_items (job, position) WHERE state = 'pending';

CREATE TABLE ledger_audit (
    number INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT;
CREATE INDEX ledger_audit_subject ON ledger_audit (subject, number);

CREATE TABLE ledger_outbox (
    number INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    event TEXT NOT NULL,
    payload BLOB NOT NULL,
    published_at INTEGER NOT NULL
) STRICT;

-- How many deliveries of a target in each state, how many letters in each status: kept with every change.
CREATE TABLE ledger_tally (
    what TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (what, name, state)
) STRICT, WITHOUT ROWID;

-- For people with a sqlite3 shell.
CREATE VIEW ledger_readable AS
SELECT lower(hex(d.id)) AS delivery, d.target, d.tenant, d.type, d.state, d.attempts, d.error,
       datetime(d.due_at / 1000000, 'unixepoch') AS due_at,
       datetime(d.created_at / 1000000, 'unixepoch') AS created_at,
       datetime(d.completed_at / 1000000, 'unixepoch') AS completed_at
FROM ledger_deliveries AS d;

-- Runs that were given an id and are another one: their key was in the ledger already.
CREATE TABLE ledger_aliases (ghost BLOB NOT NULL PRIMARY KEY, winner BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX ledger_aliases_winner ON ledger_aliases (winner);
