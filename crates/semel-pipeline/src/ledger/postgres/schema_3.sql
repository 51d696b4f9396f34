-- The names of the embedded ledger. Only names change: no row is read or written, however many there are. Views and their
-- columns keep their names.
ALTER TABLE {schema}.event RENAME COLUMN seq TO number;
ALTER TABLE {schema}.delivery RENAME COLUMN seq TO number;
ALTER TABLE {schema}.delivery RENAME COLUMN tries TO last_attempt;
ALTER TABLE {schema}.letter RENAME COLUMN seq TO number;
ALTER TABLE {schema}.job RENAME COLUMN seq TO number;
ALTER TABLE {schema}.item RENAME COLUMN place TO position;
ALTER TABLE {schema}.audit RENAME COLUMN seq TO number;
ALTER TABLE {schema}.outbox RENAME COLUMN seq TO number;
ALTER TABLE {schema}.generation RENAME COLUMN key TO dedupe;

-- Indexes, sequences and constraints are named after their table and its columns.
DO $rename$
DECLARE
  renamed record;
  part record;
BEGIN
  FOR renamed IN
    SELECT c.oid AS id, r.old, r.new FROM (VALUES ('event', 'ledger_event'), ('delivery', 'ledger_delivery'),
      ('attempt', 'ledger_attempt'), ('turn', 'ledger_turn'), ('letter', 'ledger_dead_letter'), ('job', 'ledger_job'),
      ('item', 'ledger_item'), ('alias', 'ledger_alias'), ('audit', 'ledger_audit'), ('outbox', 'ledger_outbox'),
      ('generation', 'ledger_generation')) AS r(old, new)
    JOIN pg_class AS c ON c.relname = r.old AND c.relnamespace = '{schema}'::regnamespace
  LOOP
    EXECUTE format('ALTER TABLE {schema}.%I RENAME TO %I', renamed.old, renamed.new);
    FOR part IN
      SELECT p.command, p.name,
        renamed.new || regexp_replace(substr(p.name, length(renamed.old) + 1), '^_seq(?=_|$)', '_number') AS new
      FROM (
        SELECT 'ALTER INDEX {schema}.%2$I RENAME TO %3$I' AS command, c.relname AS name
        FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid WHERE i.indrelid = renamed.id
        UNION ALL
        SELECT 'ALTER SEQUENCE {schema}.%2$I RENAME TO %3$I', c.relname
        FROM pg_depend AS d JOIN pg_class AS c ON c.oid = d.objid AND c.relkind = 'S'
        WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = renamed.id
        UNION ALL
        SELECT 'ALTER TABLE {schema}.%1$I RENAME CONSTRAINT %2$I TO %3$I', conname
        FROM pg_constraint WHERE conrelid = renamed.id AND contype IN ('c', 'n')
      ) AS p WHERE starts_with(p.name, renamed.old || '_')
    LOOP
      EXECUTE format(part.command, renamed.new, part.name, part.new);
    END LOOP;
  END LOOP;
END
$rename$;

-- Applications publish under this name, also those that were built before the table was renamed.
CREATE VIEW {schema}.outbox AS SELECT id, event, payload, published_at FROM {schema}.ledger_outbox;
DO $grant$
DECLARE
  publisher text;
BEGIN
  FOR publisher IN
    SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
    FROM pg_class AS c, aclexplode(c.relacl) AS a
    WHERE c.oid = '{schema}.ledger_outbox'::regclass AND a.privilege_type = 'INSERT'
  LOOP
    EXECUTE format('GRANT INSERT ON {schema}.outbox TO %s', publisher);
  END LOOP;
END
$grant$;

COMMENT ON VIEW {schema}.outbox IS 'For publishers: they need the right to insert here, and no other.';
COMMENT ON COLUMN {schema}.ledger_delivery.number IS 'The order in which deliveries were accepted: that of their order keys.';
COMMENT ON COLUMN {schema}.ledger_delivery.attempts IS 'Started in the present round.';
COMMENT ON COLUMN {schema}.ledger_delivery.last_attempt IS 'The number of the last attempt, over all rounds.';
