//! Starting, health, and what is said at start.

use std::os::unix::net::UnixDatagram;

use rustix::process::Signal;
use semel_testbed::{Redis, wait};

use crate::kit::{PATIENCE, Semel, Upstream, metric, run, semel};

#[test]
fn without_an_upstream_there_is_only_the_admin_side() {
    let semel = Semel::start(&["--store", "memory:"]);
    assert!(semel.ready.starts_with("semel ready gateway=- admin=http://127.0.0.1:"), "{}", semel.ready);
    let admin = semel.admin();
    assert_eq!(admin.get("/healthz").status, 200);
    assert_eq!(admin.get("/readyz").expect(200)["ready"], true);
    assert_eq!(admin.get("/v1/keys").expect(200)["items"].as_array().map(Vec::len), Some(0));
    let document = admin.get("/openapi.json").expect(200);
    for path in ["/v1/claims", "/v1/keys/{id}/settle", "/readyz"] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    let missing = admin.get("/nope").expect(404);
    assert_eq!((missing["code"].as_str(), missing["status"].as_u64()), (Some("not_found"), Some(404)));
    assert_eq!(admin.get("/v1/claims").expect(405)["code"], "method_not_allowed");
    // A store that forgets says so.
    semel.logged("all keys are forgotten when this process ends");
}

// A supervisor starts what depends on the server once it is ready, and knows when it stops.
#[test]
fn a_supervisor_is_told_about_start_and_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let supervisor = UnixDatagram::bind(&path).unwrap();
    supervisor.set_read_timeout(Some(PATIENCE)).unwrap();
    let notice = || {
        let mut bytes = [0; 64];
        let length = supervisor.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let mut command = semel();
    command.args(["serve", "--store", "memory:", "--admin", "127.0.0.1:0"]).env("NOTIFY_SOCKET", &path);
    let server = Semel::spawn(command);
    assert_eq!(notice(), "READY=1\n");
    assert_eq!(server.admin().get("/readyz").status, 200);
    server.signal(Signal::TERM);
    assert_eq!(notice(), "STOPPING=1\n");

    // A supervisor that cannot be reached does not keep the server from its work.
    let mut command = semel();
    command.args(["serve", "--store", "memory:", "--admin", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", folder.path().join("nobody"));
    let server = Semel::spawn(command);
    server.logged("did not receive a notice");
    assert_eq!(server.admin().get("/readyz").status, 200);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let semel = Semel::start(&["--store", "memory:"]);
    let at = semel.admin_url().strip_prefix("http://").unwrap();
    let second = run(&["serve", "--store", "memory:", "--admin", at]);
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("the admin listener cannot bind 127.0.0.1:"), "{said}");
}

#[test]
fn a_store_that_is_not_there_is_named() {
    let refused = run(&["serve", "--store", "redis://127.0.0.1:1", "--admin", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the Redis store"), "{refused:?}");
}

// admin_auth: beyond loopback only with tokens.
#[test]
fn the_admin_side_stays_on_loopback_without_tokens() {
    let refused = run(&["serve", "--store", "memory:", "--admin", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("without tokens"), "{refused:?}");
}

// truthful_health: ready only if a claim round trip works; live does not depend on the store.
#[test]
fn health_tells_the_truth_about_a_dead_store() {
    let redis = Redis::start().unwrap();
    let semel = Semel::start(&["--store", &redis.url()]);
    let admin = semel.admin();
    assert_eq!(admin.get("/readyz").status, 200);
    redis.kill();
    wait::until("not ready", PATIENCE, || admin.get("/readyz").status == 503).unwrap();
    assert_eq!(admin.get("/healthz").status, 200);
    assert!(metric(&admin, "semel_store_up") < 0.5);
    let claim = admin.post("/v1/claims", r#"{"namespace": "n", "key": "k"}"#).expect(503);
    assert_eq!(
        (claim["code"].as_str(), claim["retryable"].as_bool()),
        (Some("store_unavailable"), Some(true))
    );
    redis.restart().unwrap();
    wait::until("ready again", PATIENCE, || admin.get("/readyz").status == 200).unwrap();
    assert_eq!(admin.post("/v1/claims", r#"{"namespace": "n", "key": "k"}"#).expect(200)["status"], "won");
}

// metrics_cardinality: nothing that a caller sends becomes a label or a log line.
#[test]
fn keys_are_neither_labels_nor_logged_whole() {
    let upstream = Upstream::start();
    let semel = Semel::start(&["--store", "memory:", "--upstream", &upstream.url()]);
    let secret = "canary-key-0123456789";
    let gateway =
        semel.gateway().with("authorization", "Bearer canary-credential").with("idempotency-key", secret);
    gateway.post("/pay", "canary-payload").expect(201);
    assert_eq!(gateway.post("/pay", "another").status, 422);
    semel.admin().post("/v1/claims", &format!(r#"{{"namespace": "n", "key": "{secret}"}}"#)).expect(200);
    semel.logged("canary-k");
    let (log, metrics) = (semel.log(), semel.admin().get("/metrics").text());
    for canary in ["canary-ke", "canary-credential", "canary-payload"] {
        assert!(!log.contains(canary), "{canary} in {log}");
        assert!(!metrics.contains(canary), "{canary} in {metrics}");
    }
}

// The names are those of the client libraries of Prometheus, so that existing dashboards show them.
#[test]
fn metrics_describe_the_process() {
    let semel = Semel::start(&["--store", "memory:"]);
    let admin = semel.admin();
    for (name, least) in [
        ("process_resident_memory_bytes", 1e6),
        ("process_virtual_memory_bytes", 1e6),
        ("process_threads", 1.0),
        ("process_cpu_seconds_total", 0.0),
        ("process_open_fds", 3.0),
        ("process_max_fds", 3.0),
        // The start of 2024: the clock of the machine, not of the process.
        ("process_start_time_seconds", 1.7e9),
        ("semel_connections_closed_at_limit_total{listener=\"admin\"}", 0.0),
    ] {
        let value = metric(&admin, name);
        assert!(value >= least, "{name}: {value}");
    }
}

// One line of JSON for each event, with the fields that tell its story.
#[test]
fn logs_are_json_with_the_known_fields() {
    let upstream = Upstream::start();
    let semel = Semel::start(&["--store", "memory:", "--upstream", &upstream.url()]);
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let gateway = semel
        .gateway()
        .with("authorization", "Bearer a")
        .with("x-request-id", "req-7")
        .with("traceparent", trace);
    let gateway = gateway.with("idempotency-key", "order-123456");
    gateway.post("/pay", "one").expect(201);
    assert_eq!(gateway.post("/pay", "two").status, 422);
    semel.logged("\"outcome\":\"conflict\",\"http_status\":422");
    let log = semel.log();
    let line = log.lines().find(|line| line.contains("http_status\":422")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!((line["key"].as_str(), line["operation"].as_str()), (Some("order-12"), Some("*")));
    assert!(line["latency_ms"].is_number(), "{line}");
    assert_eq!(line["span"]["request_id"], "req-7", "{line}");
    assert_eq!(line["span"]["trace_id"], "0af7651916cd43dd8448eb211c80319c", "{line}");
}

// Every warning about a request has its id, also from the task that calls the upstream; a claim is no line at all.
#[test]
fn warnings_have_the_request_id() {
    // Nothing listens there.
    let semel =
        Semel::start(&["--store", "memory:", "--upstream", "http://127.0.0.1:1", "--scope", "single-tenant"]);
    let gateway = semel.gateway();
    let keyed = gateway.with("idempotency-key", "k").with("x-request-id", "req-keyed");
    assert_eq!(keyed.post("/pay", "{}").status, 502);
    assert_eq!(gateway.with("x-request-id", "req-read").get("/").status, 502);
    let claim = r#"{"namespace": "jobs", "scope": "a", "key": "k", "payload": {}}"#;
    semel.admin().post("/v1/claims", claim).expect(200);
    semel.logged("req-read");
    let log = semel.log();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |id: &str| {
        let has = |line: &&serde_json::Value| line["request_id"] == id || line["span"]["request_id"] == id;
        let warnings = lines.iter().filter(|line| line["level"] == "WARN").filter(has);
        warnings.map(|line| line["message"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(
        (of("req-keyed"), of("req-read")),
        (vec!["guarded call failed"], vec!["upstream did not answer"])
    );
    assert!(!log.contains("v1/claims") && !log.contains("\"outcome\":\"won\""), "{log}");
    assert!(!log.contains("Some(") && !log.contains("Error {"), "no Rust debug output: {log}");
}

// A refreshed token is another principal: said once, when the first one is seen.
#[test]
fn a_jwt_as_credential_is_worth_a_word() {
    let upstream = Upstream::start();
    let semel = Semel::start(&["--store", "memory:", "--upstream", &upstream.url()]);
    for token in ["eyJhbGciOiJub25lIn0.e30.x", "eyJhbGciOiJub25lIn0.e30.y"] {
        let gateway =
            semel.gateway().with("authorization", &format!("Bearer {token}")).with("idempotency-key", "k");
        assert_eq!(gateway.post("/pay", "{}").header("idempotent-replayed"), None);
    }
    semel.logged("clients send JWTs");
    assert_eq!(semel.log().matches("clients send JWTs").count(), 1);
}

// log_disk_full: a reader of the logs that does not read holds up nobody.
#[test]
fn nobody_waits_for_the_logs() {
    let upstream = Upstream::start();
    let semel = Semel::with_unread_log(&[
        "--store",
        "memory:",
        "--upstream",
        &upstream.url(),
        "--scope",
        "single-tenant",
    ]);
    let gateway = semel.gateway().with("idempotency-key", "k");
    assert_eq!(gateway.post("/pay", "{}").status, 201);
    // A conflict is a log line of some 300 bytes; a pipe holds 64 KiB.
    for _ in 0..600 {
        assert_eq!(gateway.post("/pay", "other").status, 422);
    }
}
