CREATE TABLE {schema}.generation (
  key bytea PRIMARY KEY,
  generation bigint NOT NULL,
  changed_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX generation_changed ON {schema}.generation (changed_at);

ALTER TABLE {schema}.event ADD COLUMN generation bigint NOT NULL DEFAULT 0, ADD COLUMN changes bigint NOT NULL DEFAULT 0;
DROP INDEX {schema}.event_dedupe;
CREATE UNIQUE INDEX event_dedupe ON {schema}.event (dedupe, generation) WHERE dedupe_live;

CREATE OR REPLACE VIEW {schema}.events AS
SELECT {schema}.id_text(CASE kind WHEN 'run' THEN 'run_' ELSE 'evt_' END, id) AS id, tenant, event_type,
  encode(dedupe_hint, 'escape') AS key_starts_with, dedupe_live AND coalesce(dedupe_until > clock_timestamp(), true)
    AND NOT EXISTS (SELECT FROM {schema}.generation AS k WHERE k.key = e.dedupe AND k.generation > e.generation) AS key_stands,
  order_key, origin, origin_name, origin_message, targets, tags, metadata, request_id, accepted_at, content_type,
  length(payload) AS payload_bytes
FROM {schema}.event AS e;

COMMENT ON TABLE {schema}.generation IS 'Keys that were reset or have expired, with the generation that lasts now. A key without a row is in generation 0.';
COMMENT ON COLUMN {schema}.event.generation IS 'The generation of its key that the event belongs to.';
COMMENT ON COLUMN {schema}.event.changes IS 'How many of the changes that were made in the buffer the run holds.';
COMMENT ON COLUMN {schema}.event.dedupe_live IS 'False for an event that does not hold its key in its generation.';
