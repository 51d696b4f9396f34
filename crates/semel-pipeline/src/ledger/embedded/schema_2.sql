-- Keys have generations: a reset or an expiry ends one. A key without a row here is in its first.
CREATE TABLE ledger_generations (
    id BLOB NOT NULL PRIMARY KEY,
    generation INTEGER NOT NULL,
    changed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX ledger_generations_changed ON ledger_generations (changed_at);

ALTER TABLE ledger_dedupe ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE ledger_events ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
-- How many of the changes that were made in the buffer an event holds.
ALTER TABLE ledger_events ADD COLUMN changes INTEGER NOT NULL DEFAULT 0;

-- An expired key stays as long as its event, so that the next trigger under it ends its generation. Only keys whose event is
-- gone are removed when they expire.
ALTER TABLE ledger_dedupe ADD COLUMN orphaned INTEGER NOT NULL DEFAULT 0;
UPDATE ledger_dedupe SET orphaned = 1 WHERE NOT EXISTS (SELECT 1 FROM ledger_events AS e WHERE e.id = event);
DROP INDEX ledger_dedupe_until;
CREATE INDEX ledger_dedupe_orphaned ON ledger_dedupe (until) WHERE orphaned = 1;
