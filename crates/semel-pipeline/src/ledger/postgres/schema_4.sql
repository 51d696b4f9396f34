CREATE TABLE {schema}.ledger_pause (
  target text COLLATE "C" PRIMARY KEY,
  paused_at timestamptz NOT NULL,
  who text COLLATE "C" NOT NULL,
  reason text COLLATE "C" NOT NULL
);
COMMENT ON TABLE {schema}.ledger_pause IS 'Targets that a person paused: no delivery to them is taken.';

COMMENT ON COLUMN {schema}.ledger_delivery.attempts IS 'Started since it was accepted or last replayed.';
COMMENT ON COLUMN {schema}.ledger_delivery.last_attempt IS 'The number of the last attempt, also over replays.';

-- Lists: each filter finds its rows in their order. What changes with every delivery has no index here: `queued`, `running` and
-- `done` are left out.
CREATE INDEX ledger_event_tenant ON {schema}.ledger_event (tenant, number);
CREATE INDEX ledger_event_type ON {schema}.ledger_event (event_type, number);
CREATE INDEX ledger_event_run ON {schema}.ledger_event (number) WHERE kind = 'run';
DROP INDEX {schema}.ledger_event_request;
CREATE INDEX ledger_event_request ON {schema}.ledger_event (request_id, number) WHERE request_id IS NOT NULL;
DROP INDEX {schema}.ledger_delivery_failed;
CREATE INDEX ledger_delivery_state ON {schema}.ledger_delivery (state, id) INCLUDE (target)
  WHERE state IN ('idle', 'retry_wait', 'blocked', 'dlq', 'replaying', 'cancelled');
CREATE INDEX ledger_dead_letter_target ON {schema}.ledger_dead_letter (target, status, number);
CREATE INDEX ledger_dead_letter_tenant ON {schema}.ledger_dead_letter (tenant, status, number);
CREATE INDEX ledger_dead_letter_group ON {schema}.ledger_dead_letter (signature, status, number);
CREATE INDEX ledger_dead_letter_over ON {schema}.ledger_dead_letter (updated_at)
  WHERE event IS NULL AND status IN ('replayed', 'discarded');

-- Groups of dead letters are counted in these two, without reading the rows.
DROP INDEX {schema}.ledger_dead_letter_status;
CREATE INDEX ledger_dead_letter_status ON {schema}.ledger_dead_letter (status, number) INCLUDE (signature, target, tenant);
CREATE INDEX ledger_dead_letter_newest ON {schema}.ledger_dead_letter (number) INCLUDE (status, signature, target, tenant);

-- Tags in the order of their events. Triggers keep them, so that processes of the previous version do too.
DROP INDEX {schema}.ledger_event_tags;
CREATE TABLE {schema}.ledger_tag (
  tag text COLLATE "C" NOT NULL,
  number bigint NOT NULL,
  PRIMARY KEY (tag, number)
);
INSERT INTO {schema}.ledger_tag (tag, number)
SELECT DISTINCT t.tag, e.number FROM {schema}.ledger_event AS e CROSS JOIN LATERAL unnest(e.tags) AS t(tag) WHERE e.tags <> '{}';
CREATE FUNCTION {schema}.ledger_keep_tags() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
  IF TG_OP = 'DELETE' THEN
    DELETE FROM {schema}.ledger_tag WHERE tag = ANY(OLD.tags) AND number = OLD.number;
  ELSE
    INSERT INTO {schema}.ledger_tag (tag, number) SELECT DISTINCT t.tag, NEW.number FROM unnest(NEW.tags) AS t(tag)
    ON CONFLICT DO NOTHING;
  END IF;
  RETURN NULL;
END
$function$;
CREATE TRIGGER ledger_tags_added AFTER INSERT ON {schema}.ledger_event FOR EACH ROW
  WHEN (NEW.tags <> '{}') EXECUTE FUNCTION {schema}.ledger_keep_tags();
CREATE TRIGGER ledger_tags_changed AFTER UPDATE OF tags ON {schema}.ledger_event FOR EACH ROW
  WHEN (NEW.tags IS DISTINCT FROM OLD.tags) EXECUTE FUNCTION {schema}.ledger_keep_tags();
CREATE TRIGGER ledger_tags_removed AFTER DELETE ON {schema}.ledger_event FOR EACH ROW
  WHEN (OLD.tags <> '{}') EXECUTE FUNCTION {schema}.ledger_keep_tags();

-- How many items of a job are in each state, so that nobody counts them.
CREATE TABLE {schema}.ledger_item_total (
  job bytea NOT NULL,
  state text COLLATE "C" NOT NULL,
  items bigint NOT NULL,
  PRIMARY KEY (job, state)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
INSERT INTO {schema}.ledger_item_total (job, state, items) SELECT job, state, count(*) FROM {schema}.ledger_item GROUP BY job, state;
CREATE FUNCTION {schema}.ledger_count_items() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO {schema}.ledger_item_total AS t (job, state, items)
    SELECT job, state, count(*) FROM added GROUP BY job, state ORDER BY job, state
    ON CONFLICT (job, state) DO UPDATE SET items = t.items + excluded.items;
  ELSE
    INSERT INTO {schema}.ledger_item_total AS t (job, state, items)
    SELECT c.job, c.state, sum(c.change) FROM (
      SELECT job, state, 1 AS change FROM added UNION ALL SELECT job, state, -1 FROM removed
    ) AS c GROUP BY c.job, c.state HAVING sum(c.change) <> 0 ORDER BY c.job, c.state
    ON CONFLICT (job, state) DO UPDATE SET items = t.items + excluded.items;
  END IF;
  RETURN NULL;
END
$function$;
CREATE TRIGGER ledger_items_added AFTER INSERT ON {schema}.ledger_item REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.ledger_count_items();
CREATE TRIGGER ledger_items_changed AFTER UPDATE ON {schema}.ledger_item REFERENCING NEW TABLE AS added OLD TABLE AS removed
  FOR EACH STATEMENT EXECUTE FUNCTION {schema}.ledger_count_items();

COMMENT ON TABLE {schema}.ledger_tag IS 'Tags of events, by number. Kept by triggers of ledger_event.';
COMMENT ON TABLE {schema}.ledger_item_total IS 'Items of replay jobs by state. Kept by triggers of ledger_item.';
