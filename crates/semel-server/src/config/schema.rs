//! The JSON schema of the config file, from the list of its settings. A test compares every setting with the reader.

use serde_json::{Map, Value, json};

use self::Kind::{
    Certificate, Count, Duration, DurationList, Durations, Number, OneOf, Secret, Size, Switch, Table,
    Tables, Text, TextOrSecret, TextOrTexts, Texts,
};

/// A setting of the file.
struct Setting {
    name: &'static str,
    kind: Kind,
    description: &'static str,
    required: bool,
}

/// What a setting takes.
enum Kind {
    Text,
    Texts,
    TextOrTexts,
    Switch,
    /// A number between two bounds.
    Count(u64, u64),
    /// One of these numbers.
    Number(&'static [u16]),
    Duration,
    DurationList,
    /// Durations by name.
    Durations,
    Size,
    OneOf(&'static [&'static str]),
    Secret,
    TextOrSecret,
    Certificate,
    Table(&'static [Setting]),
    Tables(&'static [Setting]),
}

/// Tables of settings: a name, what it takes, what it is for.
macro_rules! settings {
    ($($table:ident { $($($required:ident)? $name:literal $kind:expr => $description:literal;)* })*) => {$(
        const $table: &[Setting] = &[$(Setting {
            name: $name,
            kind: $kind,
            description: $description,
            required: {
                let marks: &[&str] = &[$(stringify!($required))?];
                !marks.is_empty()
            },
        }),*];
    )*};
}

/// The schema, as `semel config schema` prints it.
pub(crate) fn schema() -> Value {
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The config file of Semel",
    });
    merge(&mut schema, table(SETTINGS));
    let mut secret = table(SECRET);
    merge(&mut secret, json!({ "minProperties": 1, "maxProperties": 1 }));
    schema["$defs"] = json!({
        "duration": { "type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$" },
        "size": {
            "anyOf": [
                { "type": "integer", "minimum": 0 },
                { "type": "string", "pattern": "^[0-9]+ ?(B|KiB|MiB|GiB|kB|KB|MB|GB)$" },
            ],
        },
        "secret": secret,
        "certificate": table(CERTIFICATE),
    });
    schema
}

fn table(settings: &[Setting]) -> Value {
    let properties: Map<String, Value> =
        settings.iter().map(|setting| (setting.name.to_owned(), setting.schema())).collect();
    let mut schema = json!({ "type": "object", "additionalProperties": false, "properties": properties });
    let required: Vec<&str> =
        settings.iter().filter(|setting| setting.required).map(|setting| setting.name).collect();
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn merge(schema: &mut Value, more: Value) {
    if let (Value::Object(schema), Value::Object(more)) = (schema, more) {
        schema.extend(more);
    }
}

impl Setting {
    fn schema(&self) -> Value {
        let text = json!({ "type": "string" });
        let reference = |name: &str| json!({ "$ref": format!("#/$defs/{name}") });
        let mut schema = match self.kind {
            Text => text,
            Texts => json!({ "type": "array", "items": text }),
            TextOrTexts => json!({ "anyOf": [text, { "type": "array", "minItems": 1, "items": text }] }),
            Switch => json!({ "type": "boolean" }),
            Count(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
            Number(numbers) => json!({ "enum": numbers }),
            OneOf(words) => json!({ "enum": words }),
            Duration => reference("duration"),
            DurationList => json!({ "type": "array", "items": reference("duration") }),
            Durations => json!({ "type": "object", "additionalProperties": reference("duration") }),
            Size => reference("size"),
            Secret => reference("secret"),
            TextOrSecret => json!({ "anyOf": [text, reference("secret")] }),
            Certificate => reference("certificate"),
            Table(settings) => table(settings),
            Tables(settings) => {
                let mut items = table(settings);
                items["description"] = json!(self.description);
                let mut schema = json!({ "type": "array", "items": items });
                if self.required {
                    schema["minItems"] = json!(1);
                }
                return schema;
            }
        };
        schema["description"] = json!(self.description);
        schema
    }
}

settings! {
    SETTINGS {
        "secret" Secret => "Secret of the deployment, for key ids, fingerprints and derived keys.";
        "drain" Duration => "How long requests in progress may take to end after SIGTERM.";
        "gateway" Table(GATEWAY) => "The gateway.";
        "admin" Table(ADMIN) => "The admin API.";
        "token" Tables(TOKEN) => "A token for the admin API.";
        "store" Table(STORE) => "Where records are stored.";
        "downstream" Tables(DOWNSTREAM) => "A service that the services behind Semel call.";
        "log" Table(LOG) => "Logs.";
        "route" Tables(ROUTE) => "How matching requests are treated; the first match wins.";
        "ledger" Table(LEDGER) => "Where events and deliveries are stored.";
        "limits" Table(LIMITS) => "Limits of events and deliveries.";
        "target" Tables(TARGET) => "A target of events.";
        "source" Tables(SOURCE) => "A source of events.";
        "gate" Table(GATE) => "The gate: bursts of triggers wait in Redis.";
    }
    GATEWAY {
        "listen" Text => "Address to listen on.";
        "upstream" Text => "URL that requests are sent to.";
        "profile" OneOf(&["ietf", "stripe", "stripe-v2", "ucp", "adcp-mcp"]) => "Form of keys and errors that clients expect.";
        "tools" Texts => "adcp-mcp: the tools that need a key, instead of AdCP's mutating tools and those whose schema requires one. Every call with a key is guarded.";
        "scope" TextOrTexts => "What separates the keys of two clients: authorization, header:NAME, jwt:CLAIM, single-tenant; or a list of parts.";
        "namespace" Text => "Separates the keys of two services.";
        "documentation" Text => "Link of refusals: a URL, a path of the API, or empty for none. Default: the published policy.";
        "store_down" OneOf(&["closed", "open"]) => "Whether requests are refused (closed) or passed on (open) while the store is unavailable.";
        "upstream_protocol" OneOf(&["auto", "http1", "http2"]) => "HTTP version to the upstream.";
        "upstream_ca" Text => "PEM file of certificates to trust.";
        "host" OneOf(&["upstream", "client"]) => "Host header that the upstream sees.";
        "forwarded" OneOf(&["replace", "append", "remove"]) => "How X-Forwarded-*, X-Real-IP and similar headers are treated.";
        "ambiguous" OneOf(&["refuse", "allow"]) => "Whether requests that two servers can read differently are allowed.";
        "ignore_case" Switch => "Whether routes ignore the case of letters.";
        "unmatched" OneOf(&["fallback", "deny"]) => "What happens to requests that no route matches.";
        "hosts" Texts => "Host names that are served; empty for any.";
        "upgrades" Texts => "Protocols that a connection may be upgraded to.";
        "trusted_headers" Texts => "Headers that the upstream trusts, in addition to the usual ones.";
        "via" Text => "Name in the Via header.";
        "tls" Certificate => "Certificate of the listener.";
        "jwt" Table(GATEWAY_JWT) => "How tokens are verified, for scope = \"jwt:CLAIM\".";
        "limits" Table(GATEWAY_LIMITS) => "Limits of clients.";
        "timeouts" Table(GATEWAY_TIMEOUTS) => "Timeouts.";
    }
    GATEWAY_JWT {
        "jwks" Text => "File with a key set.";
        "secret" Secret => "Secret for HS256.";
        "issuer" Text => "Required issuer.";
        "audience" Text => "Required audience.";
    }
    GATEWAY_LIMITS {
        "connections" Count(1, 1_000_000) => "Maximum number of open connections.";
        "streams" Count(1, 10_000) => "Maximum number of open streams of an HTTP/2 connection.";
        "headers" Count(1, 10_000) => "Maximum number of header lines.";
        "head" Size => "Maximum size of the head of a request.";
        "target" Size => "Maximum size of the target of a request.";
        "body" Size => "Maximum size of the body of a request.";
        "calls" Count(1, 1_000_000) => "Maximum number of guarded calls in progress, for all upstreams.";
        "calls_per_upstream" Count(1, 1_000_000) => "Maximum number of guarded calls in progress, for one upstream.";
        "buffered" Size => "Maximum number of bytes of bodies with a key in memory.";
    }
    GATEWAY_TIMEOUTS {
        "head" Duration => "To receive the head of a request.";
        "body" Duration => "To receive the next part of the body of a request.";
        "idle" Duration => "Between two requests of a connection.";
        "write" Duration => "Until the client has received a response.";
        "tunnel" Duration => "Until an idle tunnel is closed.";
        "connect" Duration => "To connect to the upstream.";
        "read" Duration => "Until the upstream sends something.";
        "total" Duration => "For a request and its response.";
    }
    ADMIN {
        "listen" Text => "Address to listen on; an address that is not loopback requires tokens.";
        "hosts" Texts => "Host names that are served, in addition to those of loopback.";
        "tls" Certificate => "Certificate of the listener.";
    }
    TOKEN {
        required "name" Text => "Name of the token in logs and in the audit log.";
        required "role" OneOf(&["viewer", "operator", "admin", "producer"]) => "Rights of the token.";
        required "value" Secret => "The token.";
        "tenant" Text => "Limits the token to one tenant.";
    }
    STORE {
        "url" TextOrSecret => "memory:, embedded:PATH, redis://…, rediss://…, redis-cluster://…, redis-sentinel://…, postgres://…";
        "coordinate" TextOrSecret => "Redis in front of PostgreSQL.";
        "timeout" Duration => "Timeout of a call to the store.";
        "hot_cache" Size => "Size of the cache of done records in this process.";
        "max_outcome" Size => "Maximum size of an outcome; of a larger one only a tombstone is kept.";
        "max_bytes" Size => "Maximum size of the store; 0 for no limit.";
        "new_keys_per_second" Count(0, 4_294_967_295) => "Maximum rate of new keys; 0 for no limit.";
        "new_keys_burst" Count(1, 4_294_967_295) => "Maximum burst of new keys.";
        "waiters" Count(1, 10_000_000) => "Maximum number of waiting callers.";
        "waiters_per_key" Count(1, 1_000_000) => "Maximum number of callers that wait for one key.";
        "waiters_per_scope" Count(1, 1_000_000) => "Maximum number of callers of one principal that wait.";
        "on_corruption" OneOf(&["refuse", "quarantine"]) => "Embedded: what to do about damaged rows.";
        "prefix" Text => "Redis: prefix of all keys.";
        "ca" Text => "Redis: PEM file of certificates to trust.";
        "require_replicas" Count(0, 100) => "Redis: number of replicas that must have a write.";
        "on_store_loss" OneOf(&["alarm", "refuse"]) => "Redis: what to do when it comes back with older data.";
        "schema" Text => "PostgreSQL: schema of the tables.";
        "pooling" OneOf(&["direct", "transaction"]) => "PostgreSQL: direct connections, or a pooler in transaction mode.";
        "async_commit" OneOf(&["refuse", "accept"]) => "PostgreSQL: whether a server that acknowledges before it syncs is accepted.";
        "connections" Count(1, 1_000) => "PostgreSQL: number of connections for reads.";
        "encryption" Table(STORE_ENCRYPTION) => "Encryption of outcomes at rest.";
    }
    STORE_ENCRYPTION {
        "plain" OneOf(&["read", "refuse"]) => "Whether unencrypted outcomes of before are read.";
        "ledger" OneOf(&["refuse", "plain"]) => "Whether events, dead letters and buffered runs may be stored unencrypted.";
        required "key" Tables(ENCRYPTION_KEY) => "An encryption key. The first one encrypts, all of them decrypt.";
    }
    ENCRYPTION_KEY {
        required "id" Text => "Permanent name of the key.";
        required "value" Secret => "At least 32 random characters.";
    }
    DOWNSTREAM {
        required "name" Text => "Name of the service, as in `provider` of a route.";
        required "pattern" OneOf(&["derived-key", "claim-first"]) => "How duplicate calls are prevented.";
        "secret" Secret => "Secret for its derived keys only.";
    }
    LOG {
        "format" OneOf(&["auto", "text", "json"]) => "Text on a terminal and JSON elsewhere (auto), or one of them.";
        "level" OneOf(&["error", "warn", "info", "debug", "trace"]) => "Minimum severity of log messages.";
    }
    ROUTE {
        required "match" Text => "A method and a path: `POST /v1/payments`. `*` and `{x}` match one segment, `/**` the rest.";
        "upstream" Text => "Upstream of this route, instead of that of the gateway.";
        "guard" Switch => "false: requests are passed on unchanged.";
        "ambiguous" OneOf(&["refuse", "allow"]) => "Whether requests that two servers can read differently are allowed.";
        "key" Table(ROUTE_KEY) => "Where the key of a request is.";
        "scope" TextOrTexts => "Scope of the keys, instead of that of the gateway.";
        "mode" OneOf(&["marked", "keyed", "rerun"]) => "What happens to an effect whose owner is lost.";
        "in_flight" OneOf(&["wait", "reject"]) => "What a duplicate gets while the first call is in progress.";
        "wait" Duration => "How long a duplicate waits.";
        "lease" Duration => "When a claim without a heartbeat expires.";
        "in_flight_max" Duration => "Maximum duration of a call.";
        "in_flight_max_tools" Durations => "adcp-mcp: maximum duration of calls of single tools, by the name of the tool.";
        "retention" Duration => "How long a response is replayed.";
        "grace" Duration => "How much longer a response is replayed in practice.";
        "memory" Duration => "How long the key is remembered as expired afterwards.";
        "body_timeout" Duration => "Timeout of the body of a request with a key.";
        "pin" OneOf(&["success", "deterministic", "all"]) => "Which responses are stored.";
        "on_5xx" OneOf(&["release", "doubt", "pin"]) => "What a 5xx means that is not stored.";
        "on_doubt" OneOf(&["hold", "probe", "release"]) => "What happens to a key in doubt.";
        "probe" Text => "Request that asks the upstream what became of a call: `GET /by-key/{key}`.";
        "probe_absent" OneOf(&["unknown", "run"]) => "What a 404 of the probe means.";
        "verify" Text => "Request with the credentials of the client before every replay.";
        "store_down" OneOf(&["closed", "open"]) => "Whether requests are refused (closed) or passed on (open) while the store is unavailable.";
        "request_limit" Size => "Maximum size of the body of a request with a key.";
        "response_limit" Size => "Maximum size of a response that is stored.";
        "refusal_limit" Size => "Maximum size of a stored response with a status of 400 or more.";
        "expired" Number(&[410, 412]) => "Status of an expired key.";
        "fingerprint" OneOf(&["exact", "json"]) => "Whether requests are compared byte for byte or as JSON.";
        "fingerprint_exclude" Texts => "Pointers to members that are not compared.";
        "fingerprint_headers" Texts => "Headers that are compared, in addition to the usual ones.";
        "fingerprint_headers_exclude" Texts => "Usual headers that are not compared.";
        "strip_headers" Texts => "Headers that are removed before the upstream.";
        "stored_headers" Texts => "The only headers of a response that are stored.";
        "limits" Table(ROUTE_LIMITS) => "Limits of one principal.";
    }
    ROUTE_KEY {
        "header" Text => "In this header.";
        "json" Text => "In the JSON body, at this pointer.";
        "content" Table(ROUTE_KEY_CONTENT) => "The hash of the JSON body is the key.";
        "route" Text => "From named segments of the path, as in `refund-{order}`.";
        "required" Switch => "Whether a request without a key is refused.";
        "min_length" Count(1, 1_024) => "Minimum length of a key.";
        "max_length" Count(1, 1_024) => "Maximum length of a key.";
        "derived_header" Text => "In mode keyed: header of the derived key.";
        "provider" Text => "In mode keyed: provider that the key is derived for.";
    }
    ROUTE_KEY_CONTENT {
        "exclude" Texts => "Pointers to members that are ignored.";
    }
    ROUTE_LIMITS {
        required "writes" Table(RATE) => "New keys.";
        required "reads" Table(RATE) => "Replays and refusals.";
    }
    RATE {
        required "per_second" Count(1, 4_294_967_295) => "Maximum rate.";
        required "burst" Count(1, 4_294_967_295) => "Maximum burst.";
    }
    LEDGER {
        "url" TextOrSecret => "embedded:PATH, postgres://…; that of the store by default.";
        "schema" Text => "PostgreSQL: schema of the tables.";
        "retention" Duration => "How long events that have ended are kept.";
        "audit_retention" Duration => "How long lines of the audit log are kept; 365d by default.";
        "lease" Duration => "When a delivery without a heartbeat of its worker expires.";
    }
    LIMITS {
        "payload" Size => "Maximum size of a payload.";
        "deliveries" Count(1, 100_000) => "Maximum number of deliveries in progress, for all targets.";
        "crashes" Count(1, 1_000) => "Number of attempts whose process died that make a delivery poison.";
        "run_wait" Duration => "Maximum timeout of a trigger that waits for its run; at most 1h.";
        "run_waiters" Count(1, 100_000) => "Maximum number of callers of this process that wait for runs.";
    }
    TARGET {
        required "name" Text => "Name of the target; deliveries are stored under it.";
        required "url" Text => "URL that payloads are sent to with POST.";
        "events" Texts => "Event types: order.paid, order.*, or *; all by default.";
        "retry" Table(TARGET_RETRY) => "How failed attempts are retried within one round.";
        "schedule" DurationList => "Pauses between the rounds of a delivery; [] for a single round. At most 100, each at most 30d.";
        "on_exhausted" OneOf(&["dlq", "blocked"]) => "What happens to a delivery whose last round failed.";
        "concurrency" Count(1, 10_000) => "Maximum number of deliveries in progress.";
        "allow_link_local" Switch => "Whether link-local addresses and metadata services of clouds may be called.";
        "breaker" Table(TARGET_BREAKER) => "The circuit breaker.";
        "secret" Secret => "whsec_…: signs deliveries by the Standard Webhooks scheme.";
        "bearer" Secret => "Token for Authorization: Bearer.";
        "ca" Text => "PEM file of certificates to trust instead of the public ones.";
    }
    TARGET_RETRY {
        "max_attempts" Count(1, 1_000) => "Maximum number of attempts of a round.";
        "base" Duration => "First backoff; each further one is twice as long.";
        "cap" Duration => "Maximum backoff.";
        "timeout" Duration => "Timeout of an attempt.";
    }
    TARGET_BREAKER {
        "failure_percent" Count(1, 100) => "The breaker opens when this percentage of calls within `window` failed.";
        "failure_calls" Count(1, 1_000_000) => "Minimum number of calls within `window`.";
        "window" Duration => "Time that calls, and the retry budget, are counted over.";
        "rest" Duration => "How long the breaker stays open first; doubled with every failed probe.";
        "longest_rest" Duration => "Maximum time that the breaker stays open.";
        "probes" Count(1, 1_000) => "Number of successful probes that close the breaker.";
    }
    SOURCE {
        required "kind" OneOf(&["redis-stream"]) => "Kind of the source.";
        required "url" TextOrSecret => "URL of the Redis.";
        required "stream" Text => "Name of the stream.";
        "group" Text => "Consumer group; semel by default.";
        "at_once" Count(1, 10_000) => "Maximum number of messages in a read.";
        "min_idle" Duration => "How long a message stays with a consumer before another one takes it over.";
        "ca" Text => "PEM file of certificates to trust instead of the public ones.";
    }
    GATE {
        "mode" OneOf(&["off", "shadow", "on"]) => "Whether the gate is off, only counts (shadow), or is on.";
        "threshold" Count(0, 4_294_967_295) => "Number of triggers of a tenant that pass in a window.";
        "window" Duration => "Length of a window.";
        "hold" Duration => "How long the gate stays closed after a window with too many triggers.";
        "buffer" TextOrSecret => "Redis that stores buffered runs.";
        "ca" Text => "PEM file of certificates to trust instead of the public ones.";
        "prefix" Text => "Prefix of all keys of the buffer.";
        "capacity" Count(1, 100_000_000) => "Maximum number of buffered runs of a tenant.";
        "wait" Duration => "How long a trigger waits for another one with the same key, at most 60s.";
        "lease" Duration => "When a claim on a key, or a lease of a drainer, expires without a heartbeat; at most 60s.";
        "require_replicas" Count(0, 100) => "Number of Redis replicas that must have a run before it is answered with 202.";
        "drainers" Count(0, 64) => "Number of drainers of this process.";
        "batch" Count(1, 1_000) => "Maximum number of runs in a batch.";
        "rest" Duration => "Pause after every batch.";
        "global" Table(GATE_GLOBAL) => "All tenants together.";
    }
    GATE_GLOBAL {
        "threshold" Count(0, 4_294_967_295) => "Number of triggers that pass in a window.";
        "window" Duration => "Length of a window.";
        "hold" Duration => "How long the gate stays closed after a window with too many triggers.";
    }
    SECRET {
        "env" Text => "Name of an environment variable.";
        "file" Text => "Path of a file.";
    }
    CERTIFICATE {
        required "cert" Text => "PEM file.";
        required "key" Text => "PEM file.";
        "client_ca" Text => "PEM file of authorities: only clients with a certificate of one of them are let in.";
    }
}
