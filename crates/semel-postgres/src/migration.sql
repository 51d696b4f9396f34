BEGIN;
SET LOCAL lock_timeout = '10s';
SET LOCAL statement_timeout = '60s';
SELECT pg_advisory_xact_lock(hashtextextended('semel {owner} {name}', 0));
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.meta (
  name text PRIMARY KEY,
  number bigint,
  bytes bytea
);
INSERT INTO {schema}.meta (name, number) VALUES ('{prefix}format', 0) ON CONFLICT (name) DO NOTHING;
SELECT number FROM {schema}.meta WHERE name = '{prefix}format' FOR UPDATE;
