CREATE TABLE {schema}.event (
  id bytea PRIMARY KEY,
  seq bigint GENERATED ALWAYS AS IDENTITY,
  kind text COLLATE "C" NOT NULL CHECK (kind IN ('event', 'run')),
  tenant text COLLATE "C" NOT NULL,
  event_type text COLLATE "C" NOT NULL,
  dedupe bytea,
  dedupe_hint bytea,
  fingerprint bytea,
  dedupe_lifetime bigint,
  dedupe_until timestamptz,
  dedupe_live boolean NOT NULL DEFAULT false,
  payload bytea NOT NULL,
  content_type text COLLATE "C" NOT NULL,
  headers json NOT NULL,
  order_key text COLLATE "C",
  origin text COLLATE "C" NOT NULL CHECK (origin IN ('api', 'stream', 'outbox', 'replay')),
  origin_name text COLLATE "C",
  origin_message text COLLATE "C",
  delay bigint NOT NULL,
  deliver_within bigint,
  targets json NOT NULL,
  tags text[] COLLATE "C" NOT NULL DEFAULT '{}',
  metadata json NOT NULL DEFAULT '{}',
  request_id text COLLATE "C",
  traceparent text COLLATE "C",
  accepted_at timestamptz NOT NULL,
  version bigint NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE {schema}.event ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX event_seq ON {schema}.event (seq);
CREATE UNIQUE INDEX event_dedupe ON {schema}.event (dedupe) WHERE dedupe_live;
CREATE INDEX event_dedupe_before ON {schema}.event (dedupe) WHERE NOT dedupe_live AND dedupe IS NOT NULL;
CREATE INDEX event_tags ON {schema}.event USING gin (tags) WHERE tags <> '{}';
CREATE INDEX event_request ON {schema}.event (request_id) WHERE request_id IS NOT NULL;

CREATE TABLE {schema}.delivery (
  id bytea PRIMARY KEY,
  seq bigint GENERATED ALWAYS AS IDENTITY,
  event bytea NOT NULL,
  target text COLLATE "C" NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  lane bigint,
  state text COLLATE "C" NOT NULL CHECK (state IN
    ('idle', 'queued', 'running', 'done', 'retry_wait', 'blocked', 'dlq', 'replaying', 'cancelled')),
  waits boolean NOT NULL CHECK (NOT waits OR state IN ('idle', 'queued', 'retry_wait', 'replaying')),
  attempts integer NOT NULL DEFAULT 0,
  crashes integer NOT NULL DEFAULT 0,
  tries integer NOT NULL DEFAULT 0,
  epoch integer NOT NULL DEFAULT 0,
  due_at timestamptz NOT NULL,
  deliver_until timestamptz,
  token bytea,
  lease_until timestamptz,
  error text COLLATE "C",
  letter bytea,
  job bytea,
  item integer,
  created_at timestamptz NOT NULL,
  started_at timestamptz,
  completed_at timestamptz
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0);
CREATE INDEX delivery_event ON {schema}.delivery (event);
CREATE INDEX delivery_due ON {schema}.delivery (target, due_at, seq) WHERE waits;
CREATE INDEX delivery_turn ON {schema}.delivery (target, tenant, due_at, seq) WHERE waits;
CREATE INDEX delivery_lease ON {schema}.delivery (lease_until) WHERE state = 'running';
CREATE INDEX delivery_lane ON {schema}.delivery (lane, seq)
  WHERE lane IS NOT NULL AND state NOT IN ('done', 'dlq', 'cancelled');
CREATE UNIQUE INDEX delivery_lane_running ON {schema}.delivery (lane) WHERE lane IS NOT NULL AND state = 'running';
CREATE INDEX delivery_failed ON {schema}.delivery (id) WHERE state IN ('dlq', 'blocked', 'cancelled');

CREATE TABLE {schema}.attempt (
  delivery bytea NOT NULL,
  number integer NOT NULL,
  worker text COLLATE "C" NOT NULL,
  epoch integer NOT NULL,
  started_at timestamptz NOT NULL,
  ended_at timestamptz,
  class text COLLATE "C" CHECK (class IN ('success', 'transient', 'permanent', 'unknown', 'crashed', 'deferred')),
  status integer,
  error text COLLATE "C",
  excerpt text COLLATE "C",
  retry_after bigint,
  job bytea,
  PRIMARY KEY (delivery, number)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE {schema}.turn (
  target text COLLATE "C" PRIMARY KEY,
  tenant text COLLATE "C" NOT NULL
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

CREATE TABLE {schema}.letter (
  id bytea PRIMARY KEY,
  seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
  tenant text COLLATE "C" NOT NULL,
  event bytea,
  delivery bytea,
  target text COLLATE "C",
  event_type text COLLATE "C",
  stream text COLLATE "C",
  message text COLLATE "C",
  payload bytea,
  content_type text COLLATE "C" NOT NULL,
  headers json NOT NULL,
  cause text COLLATE "C" NOT NULL CHECK (cause IN
    ('exhausted', 'non_retryable', 'poison', 'undecodable', 'expired', 'manual')),
  error text COLLATE "C" NOT NULL,
  signature text COLLATE "C" NOT NULL,
  status text COLLATE "C" NOT NULL CHECK (status IN ('pending', 'replaying', 'replayed', 'discarded', 'parked')),
  attempts integer NOT NULL,
  last_attempt_at timestamptz,
  failed_replays integer NOT NULL DEFAULT 0,
  copy_of bytea,
  mirrored boolean NOT NULL DEFAULT false,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE {schema}.letter ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX letter_message ON {schema}.letter (stream, message) WHERE stream IS NOT NULL AND delivery IS NULL;
CREATE INDEX letter_event ON {schema}.letter (event) WHERE event IS NOT NULL;
CREATE INDEX letter_copy ON {schema}.letter (copy_of) WHERE copy_of IS NOT NULL;
CREATE INDEX letter_status ON {schema}.letter (status, seq);
CREATE INDEX letter_signature ON {schema}.letter (signature, seq);
CREATE INDEX letter_mirror ON {schema}.letter (stream, seq) WHERE NOT mirrored AND stream IS NOT NULL;

CREATE TABLE {schema}.job (
  id bytea PRIMARY KEY,
  seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
  selection json NOT NULL,
  mode text COLLATE "C" NOT NULL CHECK (mode IN ('resume', 're-execute', 'as-new')),
  reason text,
  asked_by text NOT NULL,
  rate double precision NOT NULL,
  concurrency integer NOT NULL,
  canary integer NOT NULL,
  pause_above double precision NOT NULL,
  state text COLLATE "C" NOT NULL CHECK (state IN ('running', 'paused', 'done', 'cancelled')),
  note text NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL
);
CREATE INDEX job_running ON {schema}.job (id) WHERE state = 'running';

CREATE TABLE {schema}.item (
  job bytea NOT NULL,
  place integer NOT NULL,
  delivery bytea NOT NULL,
  letter bytea,
  event bytea NOT NULL,
  kind text COLLATE "C" NOT NULL,
  target text COLLATE "C" NOT NULL,
  state text COLLATE "C" NOT NULL CHECK (state IN
    ('pending', 'released', 'replayed', 'skipped_completed', 'skipped_inflight', 'failed_again', 'cancelled')),
  new_event bytea,
  error text COLLATE "C",
  PRIMARY KEY (job, place)
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX item_delivery ON {schema}.item (job, delivery);
CREATE INDEX item_pending ON {schema}.item (job, place) WHERE state = 'pending';
CREATE INDEX item_released ON {schema}.item (job) WHERE state = 'released';

CREATE TABLE {schema}.alias (
  ghost bytea PRIMARY KEY,
  winner bytea NOT NULL
);
CREATE INDEX alias_winner ON {schema}.alias (winner);

CREATE TABLE {schema}.audit (
  seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL,
  who text NOT NULL,
  action text NOT NULL,
  subject text NOT NULL,
  reason text NOT NULL
);
CREATE INDEX audit_subject ON {schema}.audit (subject, seq);

CREATE TABLE {schema}.outbox (
  seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id bytea NOT NULL UNIQUE,
  event json NOT NULL,
  payload bytea NOT NULL,
  published_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
