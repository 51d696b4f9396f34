-- The names of the ledger in PostgreSQL. Only names change: no row is read or written, however many there are. Indexes keep
-- their names, because SQLite would have to build them again.
DROP VIEW ledger_readable;

ALTER TABLE ledger_events RENAME TO ledger_event;
ALTER TABLE ledger_event RENAME COLUMN type TO event_type;
ALTER TABLE ledger_event RENAME COLUMN hint TO dedupe_hint;
ALTER TABLE ledger_event RENAME COLUMN lifetime TO dedupe_lifetime;

ALTER TABLE ledger_payloads RENAME TO ledger_payload;
ALTER TABLE ledger_tags RENAME TO ledger_tag;

ALTER TABLE ledger_dedupe RENAME TO ledger_key;
ALTER TABLE ledger_key RENAME COLUMN id TO dedupe;
ALTER TABLE ledger_key RENAME COLUMN until TO dedupe_until;

ALTER TABLE ledger_generations RENAME TO ledger_generation;
ALTER TABLE ledger_generation RENAME COLUMN id TO dedupe;

ALTER TABLE ledger_deliveries RENAME TO ledger_delivery;
ALTER TABLE ledger_delivery RENAME COLUMN type TO event_type;
ALTER TABLE ledger_delivery RENAME COLUMN expires_at TO deliver_until;
ALTER TABLE ledger_delivery RENAME COLUMN tries TO total_attempts;
ALTER TABLE ledger_delivery RENAME COLUMN numbered TO last_attempt;

ALTER TABLE ledger_attempts RENAME TO ledger_attempt;

ALTER TABLE ledger_letters RENAME TO ledger_dead_letter;
ALTER TABLE ledger_dead_letter RENAME COLUMN type TO event_type;

ALTER TABLE ledger_jobs RENAME TO ledger_job;
ALTER TABLE ledger_items RENAME TO ledger_item;
ALTER TABLE ledger_lanes RENAME TO ledger_turn;
ALTER TABLE ledger_tally RENAME TO ledger_total;
ALTER TABLE ledger_aliases RENAME TO ledger_alias;

CREATE VIEW ledger_readable AS
SELECT lower(hex(d.id)) AS delivery, d.target, d.tenant, d.event_type AS type, d.state, d.attempts, d.error,
       datetime(d.due_at / 1000000, 'unixepoch') AS due_at,
       datetime(d.created_at / 1000000, 'unixepoch') AS created_at,
       datetime(d.completed_at / 1000000, 'unixepoch') AS completed_at
FROM ledger_delivery AS d;
