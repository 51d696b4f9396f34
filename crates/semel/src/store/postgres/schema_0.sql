BEGIN;
SET LOCAL lock_timeout = '10s';
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.meta (
  name text PRIMARY KEY,
  number bigint,
  bytes bytea
);
INSERT INTO {schema}.meta (name, number) VALUES ('format', 0) ON CONFLICT (name) DO NOTHING;
