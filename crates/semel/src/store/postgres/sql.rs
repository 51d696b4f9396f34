//! Every statement of the store, built once for its schema.

use std::sync::Arc;

use semel_postgres::SchemaName;
use sqlx::AssertSqlSafe;

/// The columns of a record, in the order in which [`super::row`] reads them.
macro_rules! columns {
    ($of:literal) => {
        concat!(
            $of,
            "id, ",
            $of,
            "version, ",
            $of,
            "watched, ",
            $of,
            "state, ",
            $of,
            "mode, ",
            $of,
            "fingerprint, ",
            $of,
            "owner, ",
            $of,
            "fence, ",
            $of,
            "epoch, ",
            $of,
            "attempt, ",
            $of,
            "hint, ",
            $of,
            "claimed_at, ",
            $of,
            "changed_at, ",
            $of,
            "lease_until, ",
            $of,
            "expires_at, ",
            $of,
            "forget_at, ",
            $of,
            "lease, ",
            $of,
            "in_flight_max, ",
            $of,
            "retention, ",
            $of,
            "grace, ",
            $of,
            "memory, ",
            $of,
            "outcome"
        )
    };
}

/// The server's time in microseconds. Never `now()`, which does not advance inside a transaction.
macro_rules! clock {
    () => {
        "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    };
}

/// Invalidates every copy of an outcome outside this database. The row exists only if copies do. The clock prevents a
/// restored database from using the same numbers again.
macro_rules! next_generation {
    ($where:literal) => {
        concat!(
            "UPDATE {schema}.meta SET number = greatest(number + 1, ",
            clock!(),
            ") WHERE name = 'copies' AND ",
            $where
        )
    };
}

/// Whether this process and the database have the same secret; $17 is its SHA-256, null if it was configured.
macro_rules! same_secret {
    () => {
        "($17::bytea IS NULL OR EXISTS (SELECT FROM {schema}.meta m WHERE m.name = 'secret' AND sha256(m.bytes) = $17))"
    };
}

/// Statements with the schema's name filled in.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) claim: Statement,
    pub(super) claim_one: Statement,
    pub(super) write: Statement,
    pub(super) swap: Statement,
    /// As `swap`, if some of it removes outcomes: this begins a new generation of copies.
    pub(super) swap_and_invalidate: Statement,
    pub(super) read: Statement,
    pub(super) standing: Statement,
    pub(super) scan: Statement,
    pub(super) scan_in_progress: Statement,
    pub(super) arm: Statement,
    pub(super) due: Statement,
    pub(super) guard_floor: Statement,
    pub(super) raise_floor: Statement,
    pub(super) remove: Statement,
    pub(super) shrink: Statement,
    pub(super) more_due: Statement,
    pub(super) lock: Statement,
    /// Lets a transfer see this transaction until it ends.
    pub(super) join: Statement,
    pub(super) open_transactions: Statement,
    pub(super) keep_secret: Statement,
    pub(super) read_secret: Statement,
    pub(super) read_mark: Statement,
    pub(super) raise_mark: Statement,
    pub(super) list_marks: Statement,
    /// Whether the store grants claims.
    pub(super) read_transfer: Statement,
    pub(super) change_transfer: Statement,
    /// Writes records of another store.
    pub(super) import: Statement,
    pub(super) clock_and_floor: Statement,
    pub(super) used_bytes: Statement,
    pub(super) appear: Statement,
    pub(super) leave: Statement,
    pub(super) others: Statement,
    pub(super) tidy: Statement,
    pub(super) notify: Statement,
    #[cfg(feature = "redis")]
    pub(super) keep_copies: Statement,
    #[cfg(feature = "redis")]
    pub(super) read_copies: Statement,
    #[cfg(feature = "redis")]
    pub(super) renew_copies: Statement,
}

/// SQL without any caller's data: a checked schema name, and our own text.
#[derive(Clone, Debug)]
pub(super) struct Statement(Arc<str>);

impl Statement {
    pub(super) fn new(template: &str, schema: &SchemaName) -> Self {
        Self(template.replace("{schema}", &schema.quoted()).into())
    }

    pub(super) fn sql(&self) -> AssertSqlSafe<Arc<str>> {
        AssertSqlSafe(Arc::clone(&self.0))
    }
}

impl Statements {
    pub(super) fn new(schema: &SchemaName) -> Self {
        let fill = |template: &str| Statement::new(template, schema);
        Self {
            claim: fill(CLAIM),
            claim_one: fill(CLAIM_ONE),
            write: fill(WRITE),
            swap: fill(SWAP),
            swap_and_invalidate: fill(SWAP_AND_INVALIDATE),
            read: fill(READ),
            standing: fill(STANDING),
            scan: fill(&SCAN.replace("{condition}", "true")),
            scan_in_progress: fill(&SCAN.replace("{condition}", "r.state IN (2, 3)")),
            arm: fill(ARM),
            due: fill(DUE),
            guard_floor: fill("SELECT 1 FROM {schema}.meta WHERE name = 'sweep' FOR UPDATE"),
            raise_floor: fill(
                "SELECT setval('{schema}.fence_floor', greatest(last_value, $1)) FROM {schema}.fence_floor",
            ),
            remove: fill(REMOVE),
            shrink: fill(SHRINK),
            more_due: fill(concat!(
                "SELECT EXISTS (SELECT FROM {schema}.record WHERE sweep_at <= ",
                clock!(),
                ")"
            )),
            lock: fill(LOCK),
            join: fill("LOCK TABLE {schema}.record IN ROW SHARE MODE"),
            open_transactions: fill(OPEN_TRANSACTIONS),
            keep_secret: fill(
                "INSERT INTO {schema}.meta (name, bytes) VALUES ('secret', $1) ON CONFLICT (name) DO NOTHING",
            ),
            read_secret: fill("SELECT bytes FROM {schema}.meta WHERE name = 'secret'"),
            read_mark: fill("SELECT value FROM {schema}.mark WHERE id = $1"),
            used_bytes: fill("SELECT pg_total_relation_size('{schema}.record')"),
            raise_mark: fill(
                "INSERT INTO {schema}.mark AS m (id, value) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE \
                 SET value = greatest(m.value, excluded.value) RETURNING value",
            ),
            list_marks: fill("SELECT id, value FROM {schema}.mark WHERE id > $1 ORDER BY id LIMIT $2"),
            read_transfer: fill("SELECT bytes FROM {schema}.meta WHERE name = 'transfer'"),
            change_transfer: fill(CHANGE_TRANSFER),
            import: fill(IMPORT),
            clock_and_floor: fill(concat!("SELECT ", clock!(), ", last_value FROM {schema}.fence_floor")),
            appear: fill(concat!(
                "INSERT INTO {schema}.process (id, trusted_until) VALUES ($1, ",
                clock!(),
                " + $2) \
                 ON CONFLICT (id) DO UPDATE SET trusted_until = excluded.trusted_until"
            )),
            leave: fill("DELETE FROM {schema}.process WHERE id = $1"),
            others: fill(concat!(
                "SELECT id, trusted_until - ",
                clock!(),
                " FROM {schema}.process \
                 WHERE id <> $1 AND trusted_until > ",
                clock!()
            )),
            tidy: fill(concat!(
                "DELETE FROM {schema}.process WHERE trusted_until < ",
                clock!(),
                " - 3600000000"
            )),
            notify: fill("SELECT pg_notify($1, $2)::text"),
            #[cfg(feature = "redis")]
            keep_copies: fill(concat!(
                "INSERT INTO {schema}.meta (name, number, bytes) VALUES ('copies', ",
                clock!(),
                ", $1) ON CONFLICT (name) DO NOTHING"
            )),
            #[cfg(feature = "redis")]
            read_copies: fill(concat!(
                "SELECT number, bytes, ",
                clock!(),
                " FROM {schema}.meta WHERE name = 'copies'"
            )),
            #[cfg(feature = "redis")]
            renew_copies: fill(concat!(next_generation!("true"), " RETURNING number, bytes, ", clock!())),
        }
    }
}

/// Inserts the new ones and reads the others, in one round trip. A key that another process inserts at the same time
/// can be neither: it is claimed again, never left unanswered.
///
/// Visible keys are not inserted: an insert beside a row that a transaction is changing would wait for its end, and
/// with it the whole batch.
///
/// If the database has another secret, every key comes back as neither.
const CLAIM: &str = concat!(
    "WITH input AS MATERIALIZED (SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::smallint[], \
     $4::smallint[], $5::bytea[], $6::bytea[], $7::bytea[], $8::bigint[], $9::bigint[], $10::bigint[], \
     $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[]) AS i(id, version, \
     state, mode, fingerprint, owner, hint, lease_for, expires_in, forget_in, sweep_in, lease, in_flight_max, \
     retention, grace, memory) WHERE ",
    same_secret!(),
    "), \
     clock AS MATERIALIZED (SELECT ",
    clock!(),
    " AS now, last_value AS floor FROM {schema}.fence_floor), \
     known AS MATERIALIZED (SELECT ",
    columns!("r."),
    " FROM {schema}.record r WHERE r.id = ANY($1) AND EXISTS (SELECT FROM input)), \
     won AS (INSERT INTO {schema}.record AS r (id, version, state, mode, fingerprint, owner, fence, hint, \
     claimed_at, changed_at, lease_until, expires_at, forget_at, sweep_at, lease, in_flight_max, retention, grace, \
     memory) SELECT i.id, i.version, i.state, i.mode, i.fingerprint, i.owner, greatest(c.now, c.floor + 1), i.hint, \
     c.now, c.now, c.now + i.lease_for, c.now + i.expires_in, c.now + i.forget_in, c.now + i.sweep_in, i.lease, \
     i.in_flight_max, i.retention, i.grace, i.memory FROM input i, clock c \
     WHERE NOT EXISTS (SELECT FROM known k WHERE k.id = i.id) ON CONFLICT (id) DO NOTHING \
     RETURNING r.id, r.version, r.fence, r.claimed_at, \
     (SELECT f.last_value FROM {schema}.fence_floor f WHERE r.id IS NOT NULL) AS floor) \
     SELECT ",
    columns!("k."),
    ", c.now, NULL::bigint AS floor FROM known k, clock c UNION ALL \
     SELECT id, version, false, NULL, NULL, NULL, NULL, fence, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, \
     NULL, NULL, NULL, NULL, NULL, NULL, claimed_at, floor FROM won"
);

/// The insert of a single claim. No row means that the key is known, or that the database has another secret.
/// The fence is compared with the floor afterwards, as for all claims.
const CLAIM_ONE: &str = concat!(
    "INSERT INTO {schema}.record AS r (id, version, state, mode, fingerprint, owner, fence, hint, claimed_at, \
     changed_at, lease_until, expires_at, forget_at, sweep_at, lease, in_flight_max, retention, grace, memory) \
     SELECT $1, $2, $3, $4, $5, $6, c.now, $7, c.now, c.now, c.now + $8, c.now + $9, c.now + $10, c.now + $11, $12, \
     $13, $14, $15, $16 FROM (SELECT ",
    clock!(),
    " AS now OFFSET 0) c \
     WHERE NOT EXISTS (SELECT FROM {schema}.record k WHERE k.id = $1) AND ",
    same_secret!(),
    " ON CONFLICT (id) DO NOTHING RETURNING r.fence, r.claimed_at, \
     (SELECT f.last_value FROM {schema}.fence_floor f WHERE r.id IS NOT NULL)"
);

/// An owner's writes under a valid lease: complete (0), begin (1), renew (2). Every other command, and every refused
/// one, goes through the rules.
const WRITE: &str = concat!(
    "WITH input AS MATERIALIZED (SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::smallint[], $4::bytea[], \
     $5::bigint[], $6::bytea[], $7::bigint[]) AS i(id, version, kind, owner, fence, outcome, retention)), \
     clock AS MATERIALIZED (SELECT ",
    clock!(),
    " AS now), \
     taken AS (UPDATE {schema}.record r SET version = i.version, \
     state = CASE i.kind WHEN 0 THEN 4 WHEN 1 THEN 3 ELSE r.state END, \
     outcome = i.outcome, \
     changed_at = CASE i.kind WHEN 0 THEN c.now ELSE r.changed_at END, \
     lease_until = CASE i.kind WHEN 0 THEN c.now WHEN 1 THEN r.lease_until \
     ELSE greatest(r.lease_until, least(c.now + r.lease, r.claimed_at + r.in_flight_max)) END, \
     expires_at = CASE i.kind WHEN 0 THEN c.now + coalesce(i.retention, r.retention) + r.grace \
     ELSE r.expires_at END, \
     forget_at = CASE i.kind WHEN 0 THEN c.now + coalesce(i.retention, r.retention) + r.grace + r.memory \
     ELSE r.forget_at END, \
     sweep_at = CASE WHEN i.kind = 0 THEN c.now + coalesce(i.retention, r.retention) + r.grace \
     WHEN i.kind = 1 AND r.mode = 2 THEN NULL ELSE r.sweep_at END \
     FROM input i, clock c WHERE r.id = i.id AND r.owner = i.owner AND r.fence = i.fence \
     AND r.state IN (2, 3) AND c.now < r.lease_until \
     RETURNING r.id, r.lease_until - c.now AS lease_left, r.watched AND i.kind = 0 AS wake) \
     SELECT id, lease_left, CASE WHEN wake THEN pg_notify($8, 'w' || encode(id, 'hex'))::text END FROM taken"
);

/// The records of [`super::columns::SwapColumns`].
macro_rules! swap_input {
    () => {
        "input AS MATERIALIZED (SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], \
         $5::bool[], $6::bool[], $7::smallint[], $8::smallint[], $9::bytea[], $10::bytea[], $11::bigint[], \
         $12::bigint[], $13::bigint[], $14::bytea[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], \
         $19::bigint[], $20::bigint[], $21::bigint[], $22::bigint[], $23::bigint[], $24::bigint[], $25::bigint[], \
         $26::bytea[]) AS i(id, seen, judged_until, version, wake, invalidate, state, mode, fingerprint, owner, \
         fence, epoch, attempt, hint, claimed_at, changed_at, lease_until, expires_at, forget_at, sweep_at, lease, \
         in_flight_max, retention, grace, memory, outcome))"
    };
}

/// Writes records that the rules judged, if they are unchanged since. Never waits for a locked row: it comes back as
/// not written, and is read again.
macro_rules! swap {
    ($more:expr) => {
        concat!(
    "WITH ",
    swap_input!(),
    ", locked AS MATERIALIZED (SELECT r.id FROM {schema}.record r JOIN input i ON r.id = i.id \
     WHERE r.version = i.seen AND ",
    clock!(),
    " < i.judged_until ORDER BY r.id FOR UPDATE OF r SKIP LOCKED), \
     put AS (UPDATE {schema}.record r SET version = i.version, state = i.state, mode = i.mode, \
     fingerprint = i.fingerprint, owner = i.owner, fence = i.fence, epoch = i.epoch, attempt = i.attempt, \
     hint = i.hint, claimed_at = i.claimed_at, changed_at = i.changed_at, lease_until = i.lease_until, \
     expires_at = i.expires_at, forget_at = i.forget_at, sweep_at = i.sweep_at, lease = i.lease, \
     in_flight_max = i.in_flight_max, retention = i.retention, grace = i.grace, memory = i.memory, \
     outcome = i.outcome FROM input i, locked l WHERE r.id = i.id AND l.id = r.id \
     RETURNING r.id, r.version, r.watched AND i.wake AS wake, i.invalidate)",
    $more,
    " SELECT id, CASE WHEN wake THEN pg_notify($27, 'w' || encode(id, 'hex'))::text END, \
     CASE WHEN invalidate THEN pg_notify($27, 'f' || encode(id, 'hex') || lpad(to_hex(version), 16, '0') || $28)::text END \
     FROM put"
)
    };
}

const SWAP: &str = swap!("");

/// In the same transaction: a later read of the number or of the record sees both or neither.
const SWAP_AND_INVALIDATE: &str =
    swap!(concat!(", generation AS (", next_generation!("EXISTS (SELECT FROM put WHERE invalidate)"), ")"));

/// Replaces the state $1 by $2. A store without one is open. Also begins a new generation of copies: records may have
/// changed while the store was closed.
const CHANGE_TRANSFER: &str = concat!(
    "WITH generation AS (",
    next_generation!("true"),
    ") INSERT INTO {schema}.meta AS m (name, bytes) SELECT 'transfer', $2::bytea WHERE $1::bytea = 'open' OR EXISTS \
     (SELECT FROM {schema}.meta n WHERE n.name = 'transfer' AND n.bytes = $1) \
     ON CONFLICT (name) DO UPDATE SET bytes = excluded.bytes WHERE m.bytes = $1 RETURNING 1"
);

/// How much a record knows about its claim: claimed, begun, ended. As `is_ahead` in store/transfer.rs.
macro_rules! rank {
    ($of:literal) => {
        concat!("CASE ", $of, "state WHEN 2 THEN 0 WHEN 3 THEN 1 ELSE 2 END")
    };
}

/// Writes records as another store had them, unless the stored one is ahead. Only while the state is $27: the lock on it
/// keeps a late statement of a killed process from writing after the store was opened.
const IMPORT: &str = concat!(
    "WITH filling AS MATERIALIZED (SELECT 1 FROM {schema}.meta WHERE name = 'transfer' AND bytes = $27 FOR SHARE), ",
    swap_input!(),
    ", written AS (INSERT INTO {schema}.record AS r (id, version, state, mode, fingerprint, owner, fence, epoch, attempt, \
     hint, claimed_at, changed_at, lease_until, expires_at, forget_at, sweep_at, lease, in_flight_max, retention, \
     grace, memory, outcome) SELECT id, version, state, mode, fingerprint, owner, fence, epoch, attempt, hint, \
     claimed_at, changed_at, lease_until, expires_at, forget_at, sweep_at, lease, in_flight_max, retention, grace, \
     memory, outcome FROM input WHERE EXISTS (SELECT FROM filling) ON CONFLICT (id) DO UPDATE SET \
     version = excluded.version, state = excluded.state, mode = excluded.mode, fingerprint = excluded.fingerprint, \
     owner = excluded.owner, fence = excluded.fence, epoch = excluded.epoch, attempt = excluded.attempt, \
     hint = excluded.hint, claimed_at = excluded.claimed_at, changed_at = excluded.changed_at, \
     lease_until = excluded.lease_until, expires_at = excluded.expires_at, forget_at = excluded.forget_at, \
     sweep_at = excluded.sweep_at, lease = excluded.lease, in_flight_max = excluded.in_flight_max, \
     retention = excluded.retention, grace = excluded.grace, memory = excluded.memory, outcome = excluded.outcome \
     WHERE (r.fence, ",
    rank!("r."),
    ") <= (excluded.fence, ",
    rank!("excluded."),
    ") RETURNING r.id) SELECT id FROM written UNION ALL SELECT NULL FROM filling"
);

const READ: &str = concat!(
    "SELECT ",
    columns!("r."),
    ", ",
    clock!(),
    ", NULL::bigint FROM {schema}.record r WHERE r.id = ANY($1)"
);

/// The records that these owners still claim.
const STANDING: &str = concat!(
    "SELECT ",
    columns!("r."),
    ", ",
    clock!(),
    ", NULL::bigint FROM {schema}.record r WHERE r.id = ANY($1) AND r.owner = ANY($2) AND r.state IN (2, 3)"
);

const SCAN: &str = concat!(
    "SELECT ",
    columns!("r."),
    ", ",
    clock!(),
    ", NULL::bigint FROM {schema}.record r \
     WHERE r.id > $1 AND {condition} ORDER BY r.id LIMIT $2"
);

/// Marks records in progress as waited for, so that their changes are notified. Returns the records in progress,
/// whether they are marked, and whether their lease is valid. Locked records are neither marked nor waited for.
const ARM: &str = concat!(
    "WITH free AS MATERIALIZED (SELECT id FROM {schema}.record WHERE id = ANY($1) \
     AND state IN (2, 3) AND NOT watched ORDER BY id FOR UPDATE SKIP LOCKED), \
     armed AS (UPDATE {schema}.record r SET watched = true FROM free WHERE r.id = free.id \
     RETURNING r.id, r.lease_until) \
     SELECT id, true, lease_until > ",
    clock!(),
    " FROM armed UNION ALL \
     SELECT r.id, r.watched, r.lease_until > ",
    clock!(),
    " FROM {schema}.record r WHERE r.id = ANY($1) AND r.state IN (2, 3) \
     AND NOT EXISTS (SELECT FROM armed a WHERE a.id = r.id)"
);

/// Due records, found by the index on their time, and locked until the sweep commits. Locked ones are skipped.
const DUE: &str = concat!(
    "SELECT ",
    columns!("r."),
    ", ",
    clock!(),
    ", NULL::bigint FROM (SELECT * FROM {schema}.record \
     WHERE sweep_at <= ",
    clock!(),
    " ORDER BY sweep_at LIMIT $1 FOR UPDATE SKIP LOCKED) r"
);

const REMOVE: &str = "DELETE FROM {schema}.record r USING unnest($1::bytea[], $2::bigint[]) AS i(id, seen) \
     WHERE r.id = i.id AND r.version = i.seen";

const SHRINK: &str = "UPDATE {schema}.record r SET state = 5, outcome = NULL, version = i.version, \
     sweep_at = i.sweep_at FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[]) \
     AS i(id, seen, version, sweep_at) WHERE r.id = i.id AND r.version = i.seen";

/// Locks one record for the caller's transaction, and reads the time after that. The last column is the state of the
/// store.
const LOCK: &str = concat!(
    "SELECT ",
    columns!("r."),
    ", ",
    clock!(),
    ", NULL::bigint, (SELECT m.bytes FROM {schema}.meta m WHERE m.name = 'transfer') \
     FROM (SELECT * FROM {schema}.record WHERE id = $1 FOR UPDATE) r"
);

/// The transactions that have joined, also prepared ones. Statements of the store hold the same lock for a moment.
const OPEN_TRANSACTIONS: &str = "SELECT DISTINCT virtualtransaction || coalesce(' of process ' || pid, '') FROM pg_locks \
     WHERE locktype = 'relation' AND relation = '{schema}.record'::regclass AND mode = 'RowShareLock' \
     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
