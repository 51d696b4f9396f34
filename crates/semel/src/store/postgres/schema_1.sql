CREATE TABLE {schema}.record (
  id bytea PRIMARY KEY,
  version bigint NOT NULL,
  watched boolean NOT NULL DEFAULT false,
  state smallint NOT NULL,
  mode smallint NOT NULL,
  fingerprint bytea NOT NULL,
  owner bytea NOT NULL,
  fence bigint NOT NULL,
  epoch bigint NOT NULL DEFAULT 0,
  attempt bigint NOT NULL DEFAULT 1,
  hint bytea NOT NULL,
  claimed_at bigint NOT NULL,
  changed_at bigint NOT NULL,
  lease_until bigint NOT NULL,
  expires_at bigint NOT NULL,
  forget_at bigint NOT NULL,
  sweep_at bigint,
  lease bigint NOT NULL,
  in_flight_max bigint NOT NULL,
  retention bigint NOT NULL,
  grace bigint NOT NULL,
  memory bigint NOT NULL,
  outcome bytea
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.record ALTER COLUMN outcome SET STORAGE EXTERNAL;
CREATE INDEX record_sweep_at ON {schema}.record (sweep_at) WHERE sweep_at IS NOT NULL;
CREATE TABLE {schema}.mark (
  id bytea PRIMARY KEY,
  value bigint NOT NULL
);
CREATE TABLE {schema}.process (
  id bytea PRIMARY KEY,
  trusted_until bigint NOT NULL
);
INSERT INTO {schema}.meta (name) VALUES ('sweep') ON CONFLICT (name) DO NOTHING;
CREATE SEQUENCE {schema}.fence_floor MINVALUE 0 START 0;

CREATE VIEW {schema}.records AS
SELECT encode(id, 'hex') AS id,
  encode(hint, 'escape') AS key_starts_with,
  CASE
    WHEN state = 0 THEN 'vacant'
    WHEN state = 1 THEN CASE WHEN now_us < expires_at THEN 'bound' ELSE 'vacant' END
    WHEN state IN (2, 3) AND now_us < lease_until THEN CASE state WHEN 2 THEN 'claimed' ELSE 'begun' END
    WHEN state = 3 AND mode = 2 THEN 'in doubt'
    WHEN state IN (2, 3) AND now_us < expires_at THEN 'lapsed'
    WHEN state = 4 AND now_us < expires_at THEN 'done'
    WHEN now_us < forget_at THEN 'expired'
    ELSE 'vacant'
  END AS phase,
  (ARRAY['atomic', 'keyed', 'marked', 'rerun'])[mode + 1] AS mode,
  encode(owner, 'hex') AS owner,
  fence,
  epoch,
  attempt,
  encode(fingerprint, 'hex') AS fingerprint,
  to_timestamp(claimed_at / 1000000.0) AS claimed_at,
  to_timestamp(changed_at / 1000000.0) AS changed_at,
  to_timestamp(lease_until / 1000000.0) AS lease_until,
  to_timestamp(expires_at / 1000000.0) AS expires_at,
  to_timestamp(forget_at / 1000000.0) AS forget_at,
  lease / 1000000.0 * interval '1 second' AS lease,
  in_flight_max / 1000000.0 * interval '1 second' AS in_flight_max,
  retention / 1000000.0 * interval '1 second' AS retention,
  encode(substring(outcome FROM 5 FOR get_byte(outcome, 0) + 256 * get_byte(outcome, 1)), 'escape') AS outcome_kind,
  length(outcome) AS outcome_bytes
FROM {schema}.record, LATERAL (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) AS clock;

COMMENT ON SCHEMA {schema} IS 'Semel: effects that happen once. Read the view records; change nothing by hand, use semel keys.';
COMMENT ON TABLE {schema}.meta IS 'Facts about the store: format (what the tables are), serves (the oldest format whose binaries still work on them), secret (for key ids and fingerprints), sweep (held by whoever raises the fence floor).';
COMMENT ON TABLE {schema}.record IS 'One row for each key. Times and durations are microseconds; the view records shows them for people.';
COMMENT ON COLUMN {schema}.record.id IS 'The key: 128 bits of keyed BLAKE3 over namespace, scope and value.';
COMMENT ON COLUMN {schema}.record.version IS 'A random number, new with every write: whoever judged an older one writes nothing.';
COMMENT ON COLUMN {schema}.record.watched IS 'Somebody waits, or has waited: whoever changes the row notifies.';
COMMENT ON COLUMN {schema}.record.state IS 'As written: 0 vacant, 1 bound, 2 claimed, 3 begun, 4 done, 5 expired. Time may have moved it on: see the view records.';
COMMENT ON COLUMN {schema}.record.mode IS '0 atomic, 1 keyed, 2 marked, 3 rerun.';
COMMENT ON COLUMN {schema}.record.fingerprint IS 'Keyed hash of what was asked.';
COMMENT ON COLUMN {schema}.record.owner IS 'Who claimed last.';
COMMENT ON COLUMN {schema}.record.fence IS 'Grows with every claim and never goes back.';
COMMENT ON COLUMN {schema}.record.epoch IS 'How often an operator asked for the effect to be executed anew.';
COMMENT ON COLUMN {schema}.record.attempt IS 'Claims granted in this life of the record.';
COMMENT ON COLUMN {schema}.record.hint IS 'The first 8 characters of the key''s value, UTF-8.';
COMMENT ON COLUMN {schema}.record.claimed_at IS 'When the last claim was granted.';
COMMENT ON COLUMN {schema}.record.changed_at IS 'When it was last claimed, completed, released, settled or forgotten.';
COMMENT ON COLUMN {schema}.record.lease_until IS 'Until when the claim stands without a heartbeat.';
COMMENT ON COLUMN {schema}.record.expires_at IS 'When outcome or payload stop to stand; grace included.';
COMMENT ON COLUMN {schema}.record.forget_at IS 'Until when the key is then remembered as expired.';
COMMENT ON COLUMN {schema}.record.sweep_at IS 'From when on sweeping has something to do; null while only an owner or a person can.';
COMMENT ON COLUMN {schema}.record.outcome IS 'Done only: length of kind (4 bytes, little-endian), kind, length of metadata (4), metadata, 0 kept or 1 tombstone (1), then the body or the reason.';
COMMENT ON TABLE {schema}.mark IS 'High-water marks of replicated sessions; they never go down.';
COMMENT ON TABLE {schema}.process IS 'Processes that answer from a cache. A forget is answered once each of them has dropped the key, or its trusted_until is over.';
COMMENT ON SEQUENCE {schema}.fence_floor IS 'The highest fence of any removed record. A sequence, because it is read as it is now, whatever a snapshot says.';
COMMENT ON VIEW {schema}.records IS 'The table record for people: states by the server''s clock, times as times.';
