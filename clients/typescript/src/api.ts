// Written by scripts/types.mjs from /openapi.json. Do not edit.

/** An attempt to deliver an event. */
export type Attempt = {
  /** Counts from 1. */
  attempt: number;
  epoch: number;
  worker: string;
  /** Request ID that the target received. */
  request_id: string;
  /** Replay job that asked for this attempt. */
  replay_id: string | null;
  started_at: string;
  ended_at: string | null;
  latency_ms: number | null;
  outcome: "success" | "transient" | "permanent" | "unknown" | "crashed" | "deferred" | null;
  http_status: number | null;
  error: string | null;
  /** The beginning of the response. */
  excerpt: string | null;
  /** How long the target asked to wait. */
  retry_after: string | null;
};

/** A line of the audit log. */
export type Audited = {
  at: string;
  /** Name of the token. */
  who: string;
  action: string;
  /** ID of the changed thing. */
  subject: string;
  reason: string;
  /** State before the change; null in entries of earlier versions. */
  before: string | null;
  /** State after the change. */
  after: string | null;
  /** Attempt of the key that was settled or forgotten: its number, time and request. Null for other changes. */
  attempt: string | null;
};

/** Operations on claims. */
export type Batch = {
  /** At most 1000. */
  operations: ({
    claim: Claim;
  } | {
    /** A claim. */
    begin: {
      claim_id: string;
    };
  } | {
    /** A claim. */
    renew: {
      claim_id: string;
    };
  } | {
    /** The outcome of a claim. */
    complete: {
      claim_id: string;
      /** Any JSON. It is replayed as it was given. */
      outcome?: unknown;
      /** Why there is no `outcome`, for example because it is larger than `max_outcome`. The effect does not run again. */
      not_kept?: string | null;
      /** How long to replay the outcome, instead of the retention of the claim. */
      retention?: string | null;
    };
  } | {
    /** A claim. */
    release: {
      claim_id: string;
    };
  } | {
    /** A claim. */
    abandon: {
      claim_id: string;
    };
  })[];
};

/** The results, in the order of the operations. */
export type BatchResults = {
  results: ({
    /** The result of an operation. */
    result: Claimed | Extended | {
      /** `accepted`: not stored yet. */
      status: "done" | "accepted";
    } | {
      status: "released";
    } | {
      status: "abandoned";
    };
  } | {
    problem: Problem;
  })[];
};

/** A change of a key by an operator. It is in the audit log. */
export type Changed = {
  id: string;
  action: string;
  /** Phase before the change. */
  before: "vacant" | "bound" | "claimed" | "begun" | "lapsed" | "in_doubt" | "done" | "expired";
  /** Phase after the change; `unknown` if the store could not be read. */
  after: "vacant" | "bound" | "claimed" | "begun" | "lapsed" | "in_doubt" | "done" | "expired" | "unknown";
  /** Where the audit line of the change is: in the ledger, or, without a ledger, in the log of the process. */
  audit: "ledger" | "log";
};

/** A claim on a key. */
export type Claim = {
  /** The operation. */
  namespace: string;
  /** Who asks: one part, or several. */
  scope?: string | string[] | null;
  /** Names the effect. */
  key: string;
  /** Digest of the request, computed by the caller. */
  fingerprint?: string | null;
  /** The request, compared as JSON. Not together with `fingerprint`. */
  payload?: unknown;
  mode?: "marked" | "keyed" | "rerun" | null;
  /** True: the effect may start as soon as the claim is won, without a call of `begin`. */
  begin?: boolean;
  /** 30s by default. */
  lease?: string | null;
  /** 60s by default. */
  in_flight_max?: string | null;
  /** 24h by default. */
  retention?: string | null;
  /** How long to wait while another owner holds the key: 0s by default, at most 60s. */
  wait?: string | null;
  /** 32 random hexadecimal characters, such as a UUID. A call with the same owner can be repeated. */
  owner?: string | null;
  /** Derive a key for this provider, for the mode `keyed`. */
  provider?: string | null;
};

/** The result of a claim. */
export type Claimed = {
  status: "won" | "replay" | "busy" | "conflict" | "in_doubt" | "expired";
  key_id: string;
  /** won: names the claim in the next steps. */
  claim_id?: string;
  /** won: 32 hexadecimal characters. */
  owner?: string;
  /** won. */
  fence?: number;
  /** won. */
  attempt?: number;
  /** won. */
  epoch?: number;
  /** won: remaining time of the lease. */
  lease_left?: string;
  /** won: the largest outcome that is kept, in bytes of JSON. Of a larger one, send `not_kept` instead. */
  max_outcome?: number;
  /** won: the key for `provider`. */
  derived_key?: string;
  /** replay: how long the outcome is replayed. */
  expires_in?: string;
  /** busy: when to retry. */
  retry_after?: string;
  /** The outcome: as it was given if it is JSON, otherwise in base64; null if it was not kept. */
  outcome?: unknown;
  /** `json`, `http`, or a kind that the application defines. */
  outcome_kind?: string;
  /** Why the outcome was not kept. */
  not_kept?: string;
};

/** A dead letter. */
export type DeadLetter = {
  /** dlq_… */
  id: string;
  status: "pending" | "replaying" | "replayed" | "discarded" | "parked";
  cause: "exhausted" | "non_retryable" | "poison" | "undecodable" | "expired" | "manual";
  /** The last failure. */
  error: string;
  /** Groups dead letters with the same kind of failure. */
  signature: string;
  event_id: string | null;
  delivery_id: string | null;
  target: string | null;
  type: string | null;
  tenant: string;
  /** Stream and message that a dead letter came from. */
  source: {
    stream: string;
    message: string;
  } | null;
  content_type: string;
  /** Size of the payload. */
  bytes: number;
  headers: [string, string][];
  attempts_made: number;
  last_attempt_at: string | null;
  failed_replays: number;
  /** The dead letter of which this is a copy. */
  copy_of: string | null;
  created_at: string;
  updated_at: string;
  /** Not in lists. */
  attempts?: Attempt[];
  /** Copies of this dead letter. Not in lists. */
  copies?: string[];
  /** The payload as it was given, if it is JSON. Only operators see it. */
  payload?: unknown;
  /** The payload in base64, if it is not JSON. Only operators see it. */
  payload_base64?: string;
};

/** Dead letters with the same failure signature. */
export type DeadLetterGroup = {
  signature: string;
  target: string | null;
  cause: "exhausted" | "non_retryable" | "poison" | "undecodable" | "expired" | "manual";
  count: number;
  /** Number of dead letters by status. */
  by_status: Record<string, unknown>;
  first_at: string;
  last_at: string;
  /** ID of a dead letter of the group. */
  sample: string;
  error: string;
};

/** A delivery of an event to a target. */
export type Delivery = {
  /** dlv_… */
  id: string;
  event_id: string;
  target: string;
  tenant: string;
  type: string;
  state: "idle" | "queued" | "running" | "done" | "retry_wait" | "blocked" | "dlq" | "replaying" | "cancelled";
  /** Attempts since the delivery was accepted or last replayed. */
  attempts_made: number;
  /** Attempts whose worker died. */
  crashes: number;
  /** Number of times the delivery was executed again on purpose. */
  epoch: number;
  /** When the next attempt may start. */
  due_at: string | null;
  /** Round of the next attempt, or of the last one if no other follows. Null if the target is not in the configuration. Not in lists. */
  round?: number;
  /** Number of rounds: the pauses of the target's schedule, plus one. Not in lists. */
  rounds?: number;
  /** Why it is not sent although it may be due: its target is paused, or the circuit breaker is open. Only where one delivery is shown. */
  waiting?: string;
  /** The last failure. */
  error: string | null;
  dlq_id: string | null;
  created_at: string;
  started_at: string | null;
  completed_at: string | null;
  /** Not in lists. */
  attempts?: Attempt[];
};

/** An event or run. */
export type Event = {
  id: string;
  type: string;
  tenant: string;
  /** The first eight characters of the deduplication key. */
  dedupe_key: string | null;
  /** ID of the deduplication key. */
  key_id: string | null;
  order_key: string | null;
  content_type: string;
  /** Size of the payload. */
  bytes: number;
  headers: [string, string][];
  /** Where an event came from. */
  origin: {
    kind: "api";
    principal: string;
  } | {
    kind: "stream";
    stream: string;
    message: string;
  } | {
    kind: "outbox";
  } | {
    kind: "replay";
    of: string;
  };
  targets: string[];
  tags: string[];
  metadata: Record<string, unknown>;
  ttl: string | null;
  request_id: string | null;
  traceparent: string | null;
  /** ID of the message in its envelope. */
  message_id?: string;
  correlation_id?: string;
  causation_id?: string;
  user?: string;
  accepted_at: string;
  /** Not in lists. */
  deliveries?: Delivery[];
  /** The payload as it was given, if it is JSON. Only operators see it. */
  payload?: unknown;
  /** The payload in base64, if it is not JSON. Only operators see it. */
  payload_base64?: string;
};

/** A claim with an extended lease. */
export type Extended = {
  status: "begun" | "renewed";
  /** Remaining time of the lease. */
  lease_left: string;
};

/** A key and the state of its record. */
export type Key = {
  /** 32 hexadecimal characters. */
  id: string;
  /** The first eight characters of the value of the key. */
  key: string;
  /** The request that claimed the key, for keys of the gateway. */
  request?: {
    method: string | null;
    /** The path without its query; the pattern of the route if the path contains the key. */
    path: string | null;
    /** The ID that the upstream received in `X-Request-Id`. */
    request_id: string | null;
    /** The same eight characters for all keys of one caller. */
    caller: string | null;
  };
  phase: "vacant" | "bound" | "claimed" | "begun" | "lapsed" | "in_doubt" | "done" | "expired";
  mode: "marked" | "keyed" | "rerun" | "atomic";
  fence: number;
  attempt: number;
  epoch: number;
  claimed_at: string;
  changed_at: string;
  /** Remaining time of the lease, while the key is claimed. */
  lease_left: string | null;
  /** When the outcome is no longer replayed. */
  expires_at: string | null;
  /** When the key is forgotten. */
  remembered_until: string | null;
  retention: string;
  /** An outcome without its body. */
  outcome: {
    kind: string;
    /** Size of the body. */
    bytes: number;
    /** False if the body was not kept. */
    kept: boolean;
  } | null;
  /** The outcome itself. Only operators see it. */
  returned?: {
    /** The outcome: as it was given if it is JSON, otherwise in base64; null if it was not kept. */
    outcome: unknown;
    /** `json`, `http`, or a kind that the application defines. */
    outcome_kind: string;
    /** Why the outcome was not kept. */
    not_kept?: string;
  };
  /** The answer that clients get from the record, for keys of the gateway. Only operators see it. */
  answer?: {
    status: number;
    /** Name and value of each header. */
    headers: [string, string][];
    /** The body, if it is text. */
    body?: string;
    /** The body in base64, if it is not text. */
    body_base64?: string;
  };
};

/** An event or run in a list. */
export type ListedEvent = Event & {
  /** Number of its deliveries by state. */
  states: Record<string, unknown>;
};

/** The result of a settlement for clients. */
export type Preview = {
  key: Key;
  /** The answer that every later request with the key gets. Null if the next one runs instead, or if no client of the gateway is answered. */
  answer: {
    status: number;
    /** Name and value of each header. */
    headers: [string, string][];
    /** The body, if it is text. */
    body?: string;
    /** The body in base64, if it is not text. */
    body_base64?: string;
  } | null;
  /** Names of headers that were given and are never stored, such as `set-cookie`: the answer does not have them. */
  not_stored: string[];
};

/** A problem as RFC 9457 describes it. */
export type Problem = {
  type: string;
  title: string;
  /** HTTP status. */
  status: number;
  /** What is wrong, for people. */
  detail: string;
  /** What is wrong, for programs. */
  code: string;
  /** True if the same request can succeed later. */
  retryable: boolean;
  /** Phase of the key, where it forbids the operation. */
  phase?: "vacant" | "bound" | "claimed" | "begun" | "lapsed" | "in_doubt" | "done" | "expired";
  /** The outcome: as it was given if it is JSON, otherwise in base64; null if it was not kept. */
  outcome?: unknown;
  /** `json`, `http`, or a kind that the application defines. */
  outcome_kind?: string;
  /** Why the outcome was not kept. */
  not_kept?: string;
};

/** An event to publish. */
export type Publish = {
  /** Type of the event, such as order.paid. Targets choose events by type. */
  type: string;
  /** Deduplication key: two events of a tenant with the same type and key are the same event. */
  dedupe_key: string;
  /** Any JSON. Targets receive the same bytes. */
  payload: unknown;
  tenant?: string | null;
  /** A target receives events with the same order key one after the other. */
  order_key?: string | null;
  /** How long to wait before the first attempt. */
  delay?: string | null;
  /** Expire after this time: the event is not sent any more. */
  ttl?: string | null;
};

/** A published event. */
export type Published = {
  /** evt_… */
  id: string;
  /** True if the event was accepted before. */
  cached: boolean;
  /** Targets that receive the event. Only of a new event. */
  targets?: string[];
};

/** A replay job to start. What to replay is one of `status`, `ids` and `event_id`. */
export type Replay = {
  /** Replay every delivery that ended in `dlq` or `blocked`. */
  status?: "failed" | null;
  /** With `status`: only dead letters that were written in this time, such as "24h". Deliveries that are blocked have no dead letter and are left out. */
  since?: string | null;
  /** Maximum number of items, with `status`: 100 by default. */
  limit?: number | null;
  tenant?: string | null;
  /** Only dead letters with this failure signature. */
  signature?: string | null;
  /** IDs of dead letters. */
  ids?: string[] | null;
  event_id?: string | null;
  /** Only deliveries to these targets. */
  targets?: string[];
  /** `resume` by default. */
  mode?: "resume" | "re-execute" | "as-new" | null;
  /** Why; for the audit log. Required by the mode `re-execute`. */
  reason?: string | null;
  /** Maximum number of items a second; 0 is no limit. */
  rate?: number | null;
  /** Number of items to try first; 0 is none. */
  canary?: number | null;
  /** Maximum number of items in progress. */
  concurrency?: number | null;
  /** Pause when a larger share of the items than this fails. */
  pause_above?: number | null;
  /** Show what the job would do; send nothing. */
  dry_run?: boolean;
};

/** A replay job. */
export type ReplayJob = {
  /** rpl_… */
  id: string;
  state: "running" | "paused" | "done" | "cancelled";
  /** Why the job is in this state. */
  note: string;
  mode: "resume" | "re-execute" | "as-new";
  reason: string | null;
  /** Name of the token that started the job. */
  by: string;
  /** The items of the job: `failed`, `letters` or `event`. */
  selection: Record<string, unknown>;
  rate: number;
  concurrency: number;
  canary: number;
  pause_above: number;
  /** Number of items by result. */
  counts: {
    total: number;
    /** Not started. */
    pending: number;
    /** In progress. */
    released: number;
    /** Delivered. */
    replayed: number;
    /** Delivered before the replay. */
    skipped_completed: number;
    /** In progress elsewhere. */
    skipped_inflight: number;
    failed_again: number;
    cancelled: number;
  };
  /** Why a running job waits: for each target of its unfinished items to which nothing is sent now. */
  waiting?: string;
  /** Number of further matches that `limit` left out when the job was started, counted up to 1000; exact with `since`. Only in the answer to the start of a job. */
  left_out?: number;
  created_at: string;
  updated_at: string;
};

/** What a replay job would do. */
export type ReplayPlan = {
  /** Always true. */
  dry_run: boolean;
  mode: "resume" | "re-execute" | "as-new";
  total: number;
  /** Number of items that would be sent. */
  run: number;
  /** Number of items that would be skipped. */
  skip: number;
  /** Number of items that cannot be replayed now. */
  conflict: number;
  /** Number of items by failure signature. */
  by_signature: Record<string, unknown>;
  /** The first 1000 items. */
  items: ({
    delivery: string;
    letter: string | null;
    event: string;
    target: string;
    tenant: string;
    signature: string;
    action: "skip" | "run" | "conflict";
    why: string;
  })[];
  /** Number of items that are not in `items`. */
  more: number;
  /** Number of further matches that `limit` leaves out, counted up to 1000; exact with `since`. */
  left_out: number;
};

/** A run. */
export type Run = {
  id: string;
  target: string;
  tenant: string;
  status: "idle" | "queued" | "running" | "done" | "retry_wait" | "blocked" | "dlq" | "replaying" | "cancelled";
  /** True if the run is in the buffer. */
  buffered: boolean;
  tags: string[];
  /** Every value has the text that was given. */
  metadata: Record<string, unknown>;
  version: number;
  /** The first eight characters of the key. */
  idempotency_key: string | null;
  key_id: string | null;
  request_id: string | null;
  /** Null while the run is in the buffer. */
  accepted_at: string | null;
  deliveries: Delivery[];
  /** Only operators see it. */
  payload?: unknown;
};

/** The state of a server. */
export type ServerStatus = {
  version: string;
  /** True if a claim works. */
  ready: boolean;
  /** Why claims do not work, or not for new keys. */
  why?: string;
  /** How long a claim took. */
  claim_ms?: number;
  /** The store, without credentials. */
  store: string;
  /** True if this server has a gateway. */
  gateway: boolean;
  /** Keys in doubt at the last count. */
  in_doubt: number;
  /** When the keys in doubt were counted; null before the first count. */
  in_doubt_counted_at: string | null;
  /** Claims held by this server. */
  in_flight: number;
  /** Null if there is no ledger, or if it does not answer. */
  pipeline: {
    /** Number of deliveries by state. Those that succeeded are not counted. */
    deliveries: Record<string, unknown>;
    /** How long the oldest delivery that is due has been waiting. */
    oldest_due_seconds: number | null;
    /** Number of dead letters by status. */
    dead_letters: Record<string, unknown>;
    /** Runs in the buffer at the last count. */
    buffered_runs: number;
    /** Targets whose circuit breaker is not closed. */
    open_breakers: string[];
    /** The same circuit breakers, with their state. */
    breakers: ({
      target: string;
      state: "open" | "half_open";
      /** When an open breaker allows the next call. */
      open_until: string | null;
    })[];
    /** Replay jobs that run or are paused, among the newest hundred. */
    replays: ({
      /** rpl_… */
      id: string;
      state: "running" | "paused";
      /** Items that are not over. */
      pending: number;
      /** Why it waits, or what it does. */
      note: string;
    })[];
    /** Targets that a person paused. */
    paused_targets: {
      target: string;
      since: string;
      /** Name of the token that paused it. */
      by: string;
      reason: string;
    }[];
  } | null;
  /** Why the ledger does not answer. */
  pipeline_why?: string;
};

/** Everything that is known about one action. */
export type Story = {
  /** The ID that was asked for. */
  id: string;
  found: ({
    kind: "key" | "trigger claim" | "request" | "event" | "run" | "delivery" | "dead letter" | "replay";
    id: string;
    key_id?: string;
    type?: string;
    target?: string;
    state?: string;
    cause?: string;
    /** When the next attempt of a delivery may start. */
    due_at?: string;
    /** Round of that attempt. */
    round?: number;
    /** Number of rounds. */
    rounds?: number;
    /** Why a delivery is not sent now, although it may be due: its target is paused, or the circuit breaker is open. */
    waiting?: string;
  })[];
  /** What happened, the oldest first. */
  timeline: ({
    at: string;
    place: "gateway" | "claim" | "trigger" | "buffer" | "event" | "delivery" | "downstream" | "dead letter" | "replay" | "audit";
    what: string;
    id: string;
  })[];
  /** Answers to requests with a key are listed if this server gave them since this time. Null without such a key. */
  answers_since: string | null;
  /** Number of earlier requests with the key that `timeline` leaves out: it lists the last 50 of a key. */
  requests_left_out?: number;
};

/** A target. */
export type Target = {
  name: string;
  /** The events that it gets. */
  events: string;
  /** Null unless the target is paused. */
  paused: {
    since: string;
    /** Name of the token that paused it. */
    by: string;
    reason: string;
  } | null;
  /** State of its circuit breaker in this server. */
  breaker: "closed" | "open" | "half_open";
  /** When an open breaker allows the first call. */
  open_until: string | null;
  /** Time until then. */
  open_seconds: number | null;
  /** Calls that the breaker judged within its window, which begins again when it opens. */
  calls: number;
  /** Those of them that count for the breaker: no answer in time, or one that says that the target is down. A refusal such as 422 shows that the target works, so it is not among them. */
  failures: number;
  /** Attempts that this server sent in the last ten minutes. */
  attempts: number;
  /** Those of them that did not succeed, refused ones too. */
  failed_attempts: number;
  /** Share of `attempts` that succeeded; null without attempts. */
  success_rate: number | null;
  /** Deliveries that are not over, by state. */
  backlog: Record<string, unknown>;
  /** How long the oldest delivery that is due has been waiting; null if none is due. */
  oldest_due_seconds: number | null;
  /** Time until the next delivery is due; zero if one is due now; null if none waits, or if the target is paused. */
  next_due_seconds: number | null;
};

/** A run to trigger. */
export type Trigger = {
  /** Name of a target in the configuration. */
  target: string;
  /** Any JSON. The target receives the same bytes. */
  payload: unknown;
  tenant?: string | null;
  tags?: string[];
  /** Every value keeps its text. */
  metadata?: Record<string, unknown>;
  /** How long to wait before the first attempt, such as "30s". */
  delay?: string | null;
  /** How long the key is remembered, such as "24h". */
  ttl?: string | null;
  /** Key of the run. The header Idempotency-Key can hold it instead. */
  idempotency_key?: string | null;
};

/** A triggered run. */
export type Triggered = {
  /** run_… */
  id: string;
  /** True if the run already existed. */
  cached: boolean;
  /** True if the run is in the buffer. */
  buffered: boolean;
  /** State of the run. Only with wait=true. */
  status?: string;
  /** When the next attempt may start, if the run has not ended. Only with wait=true. */
  due_at?: string;
};

/** Request and answer of the calls that this client makes. */
export interface Calls {
  "/v1/claims": {
    request: Claim;
    answer: Claimed;
  };
  "/v1/claims/batch": {
    request: Batch;
    answer: BatchResults;
  };
  "/v1/claims/renew": {
    request: {
      /** At most 1000. */
      claim_ids: string[];
    };
    answer: BatchResults;
  };
  "/v1/claims/{claim_id}/abandon": {
    request: undefined;
    answer: {
      status: "abandoned";
    };
  };
  "/v1/claims/{claim_id}/begin": {
    request: undefined;
    answer: Extended;
  };
  "/v1/claims/{claim_id}/complete": {
    request: {
      /** Any JSON. It is replayed as it was given. */
      outcome?: unknown;
      /** Why there is no `outcome`, for example because it is larger than `max_outcome`. The effect does not run again. */
      not_kept?: string | null;
      /** How long to replay the outcome, instead of the retention of the claim. */
      retention?: string | null;
    };
    answer: {
      /** `accepted`: not stored yet. */
      status: "done" | "accepted";
    };
  };
  "/v1/claims/{claim_id}/release": {
    request: undefined;
    answer: {
      status: "released";
    };
  };
  "/v1/claims/{claim_id}/renew": {
    request: undefined;
    answer: Extended;
  };
  "/v1/events": {
    request: Publish;
    answer: Published;
  };
  "/v1/runs": {
    request: Trigger;
    answer: Triggered;
  };
}
