
-- For people: ids as the API spells them, and back.
CREATE FUNCTION {schema}.id_text(prefix text, id bytea) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $function$
  SELECT prefix || string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + digit, 1), '' ORDER BY place)
  FROM (
    SELECT place, sum(CASE WHEN place * 5 - 2 + n < 0 THEN 0 ELSE
      get_bit(id, (place * 5 - 2 + n) / 8 * 8 + 7 - (place * 5 - 2 + n) % 8) << (4 - n) END)::integer AS digit
    FROM generate_series(0, 25) AS place, generate_series(0, 4) AS n GROUP BY place
  ) AS digits
$function$;
CREATE FUNCTION {schema}.id_bytes(id text) RETURNS bytea LANGUAGE sql IMMUTABLE STRICT AS $function$
  SELECT decode(string_agg(lpad(to_hex(value), 2, '0'), '' ORDER BY byte), 'hex')
  FROM (
    SELECT byte, sum((((strpos('0123456789ABCDEFGHJKMNPQRSTVWXYZ', substr(right(id, 26), (byte * 8 + n + 2) / 5 + 1, 1)) - 1)
      >> (4 - (byte * 8 + n + 2) % 5)) & 1) << (7 - n))::integer AS value
    FROM generate_series(0, 15) AS byte, generate_series(0, 7) AS n GROUP BY byte
  ) AS bytes
$function$;

CREATE VIEW {schema}.events AS
SELECT {schema}.id_text(CASE kind WHEN 'run' THEN 'run_' ELSE 'evt_' END, id) AS id, tenant, event_type,
  encode(dedupe_hint, 'escape') AS key_starts_with, dedupe_live AND coalesce(dedupe_until > clock_timestamp(), true) AS key_stands,
  order_key, origin, origin_name, origin_message, targets, tags, metadata, request_id, accepted_at, content_type,
  length(payload) AS payload_bytes
FROM {schema}.event;
CREATE VIEW {schema}.deliveries AS
SELECT {schema}.id_text('dlv_', d.id) AS id, {schema}.id_text(CASE e.kind WHEN 'run' THEN 'run_' ELSE 'evt_' END, d.event) AS event,
  d.target, d.tenant, e.event_type, e.order_key, d.state, d.attempts, d.crashes, d.epoch, d.due_at, d.lease_until, d.error,
  {schema}.id_text('dlq_', d.letter) AS letter, {schema}.id_text('rpl_', d.job) AS job, d.created_at, d.started_at, d.completed_at
FROM {schema}.delivery AS d JOIN {schema}.event AS e ON e.id = d.event;
CREATE VIEW {schema}.dead_letters AS
SELECT {schema}.id_text('dlq_', id) AS id, tenant, target, event_type, stream, message, cause, error, signature, status, attempts,
  failed_replays, {schema}.id_text('dlq_', copy_of) AS copy_of, last_attempt_at, created_at, updated_at
FROM {schema}.letter;
CREATE VIEW {schema}.replay_jobs AS
SELECT {schema}.id_text('rpl_', id) AS id, mode, state, note, asked_by, reason, concurrency, rate, canary, pause_above,
  (SELECT count(*) FROM {schema}.item AS i WHERE i.job = j.id) AS items,
  (SELECT count(*) FROM {schema}.item AS i WHERE i.job = j.id AND i.state = 'replayed') AS replayed,
  (SELECT count(*) FROM {schema}.item AS i WHERE i.job = j.id AND i.state = 'failed_again') AS failed_again,
  created_at, updated_at
FROM {schema}.job AS j;

COMMENT ON TABLE {schema}.event IS 'What was accepted, once for each key. The view events is for people.';
COMMENT ON COLUMN {schema}.event.dedupe IS 'Keyed hash of what names it; unique among those that are live.';
COMMENT ON COLUMN {schema}.event.dedupe_live IS 'False once the key was over and taken by another event, or was reset.';
COMMENT ON COLUMN {schema}.event.delay IS 'Microseconds, as asked for; so are deliver_within and dedupe_lifetime.';
COMMENT ON COLUMN {schema}.event.metadata IS 'Each value is the text of a JSON value, as it was given.';
COMMENT ON TABLE {schema}.delivery IS 'One event for one target. The view deliveries is for people.';
COMMENT ON COLUMN {schema}.delivery.seq IS 'The order in which deliveries were accepted: that of their order keys.';
COMMENT ON COLUMN {schema}.delivery.lane IS 'Hash of target and order key; null without one.';
COMMENT ON COLUMN {schema}.delivery.waits IS 'May be taken once it is due: nothing of its lane was before it when this was written.';
COMMENT ON COLUMN {schema}.delivery.attempts IS 'Started in the present round; tries counts over all rounds.';
COMMENT ON COLUMN {schema}.delivery.token IS 'Proves who took it last; its last bits say whether it has a lane, a letter or a job.';
COMMENT ON TABLE {schema}.attempt IS 'One row for each start of an attempt, ended when its end is known.';
COMMENT ON TABLE {schema}.turn IS 'Whose turn it was last, of each target.';
COMMENT ON TABLE {schema}.letter IS 'Dead letters. The view dead_letters is for people; the payload is the event''s where this one is null.';
COMMENT ON TABLE {schema}.job IS 'Replay jobs. The view replay_jobs is for people.';
COMMENT ON TABLE {schema}.item IS 'What a replay job gives another try.';
COMMENT ON TABLE {schema}.alias IS 'Runs that were given an id and turned out to be another one.';
COMMENT ON TABLE {schema}.audit IS 'Who did what, and why.';
COMMENT ON TABLE {schema}.outbox IS 'Published in callers'' transactions, and not yet relayed.';
