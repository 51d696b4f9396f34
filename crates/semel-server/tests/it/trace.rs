//! Traces: what a collector gets, and what the upstream sees.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;

use rustix::process::Signal;
use serde_json::Value;

use crate::kit::{PATIENCE, Semel, Sink, Upstream};

/// Takes what is sent to `/v1/traces`, and hands the bodies on.
pub(crate) fn collector() -> (String, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(&stream);
            let mut length = 0;
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                assert!(!line.starts_with("POST ") || line.starts_with("POST /v1/traces "), "{line}");
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            (&stream)
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
                .unwrap();
            if tell.send(serde_json::from_slice(&body).unwrap()).is_err() {
                return;
            }
        }
    });
    (url, told)
}

#[test]
fn a_request_is_a_span_and_the_upstream_its_child() {
    let upstream = Upstream::start();
    let (url, collected) = collector();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nscope = \"single-tenant\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"memory:\"\n[[route]]\nmatch = \"POST /pay/{{id}}\"\n",
        upstream.url()
    );
    std::fs::write(&file, text).unwrap();
    let mut semel =
        Semel::with_config(&file, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &url), ("OTEL_SERVICE_NAME", "shop")]);
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let gateway = semel.gateway().with("idempotency-key", "k");
    let traced =
        gateway.with("traceparent", &format!("00-{trace}-{parent}-01")).with("x-request-id", "req-1");
    assert_eq!(traced.post("/pay/secret-id", "{}").status, 201);
    // A request that is not sampled is not.
    let silent = semel.gateway().with("traceparent", &format!("00-{trace}-{parent}-00")).post("/pay/1", "{}");
    assert_eq!(silent.status, 201);
    assert_eq!(gateway.post("/pay/secret-id", "{}").header("idempotent-replayed"), Some("true"));
    // What was taken is sent before the end.
    semel.signal(Signal::TERM);
    assert!(semel.wait().success());
    drop(semel);

    let mut spans = Vec::new();
    while spans.len() < 2 {
        let body = collected.recv_timeout(PATIENCE).unwrap();
        let resource = &body["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "shop");
        spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().clone());
        assert!(!body.to_string().contains("secret-id"), "no path of a caller's: {body}");
    }
    let attribute = |span: &Value, name: &str| {
        let attributes = span["attributes"].as_array().unwrap();
        attributes.iter().find(|attribute| attribute["key"] == name).unwrap()["value"].clone()
    };
    let first = &spans[0];
    assert_eq!((first["traceId"].as_str(), first["parentSpanId"].as_str()), (Some(trace), Some(parent)));
    assert_eq!(first["name"], "POST /pay/{id}");
    assert_eq!(attribute(first, "request_id")["stringValue"], "req-1");
    assert_eq!(attribute(first, "http.response.status_code")["intValue"], "201");
    let second = &spans[1];
    assert_eq!(attribute(second, "outcome")["stringValue"], "replayed");
    assert_ne!(second["traceId"].as_str(), Some(trace), "a request without a parent is a trace of its own");
    // The unsampled request went on as it came; the first had the gateway's span for its parent.
    assert_eq!(upstream.traceparent(), format!("00-{trace}-{parent}-00"));
    assert_eq!(spans.len(), 2);
}

// An attempt to deliver is a span of the event's trace, and the target's parent.
#[test]
fn an_attempt_is_a_span_of_the_events_trace() {
    let (sink, (url, collected)) = (Sink::start(), collector());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"embedded:{}\"\n[[target]]\nname = \"crm\"\nurl = \"{}\"\n",
        folder.path().join("data").display(),
        sink.url(),
    );
    std::fs::write(&file, text).unwrap();
    let semel = Semel::with_config(&file, &[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)]);
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let admin = semel.admin().with("traceparent", &format!("00-{trace}-{parent}-01"));
    let event = r#"{"type": "a", "dedupe_key": "1", "payload": 1}"#;
    let id = admin.post("/v1/events", event).expect(201)["id"].clone();
    let body = collected.recv_timeout(PATIENCE).unwrap();
    let span = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!((&span["name"], &span["kind"]), (&Value::from("deliver crm"), &Value::from(3)));
    assert_eq!((span["traceId"].as_str(), span["parentSpanId"].as_str()), (Some(trace), Some(parent)));
    assert!(span["attributes"].to_string().contains(id.as_str().unwrap()), "{span}");
    let sent = format!("00-{trace}-{}-01", span["spanId"].as_str().unwrap());
    assert_eq!(sink.seen()[0].header("traceparent"), sent);
}

#[test]
fn a_collector_that_cannot_be_spoken_to_is_refused() {
    for (name, value) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://h:4318"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c"),
    ] {
        let output = crate::kit::semel()
            .args(["serve", "--store", "memory:", "--admin", "127.0.0.1:0"])
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1")
            .env(name, value)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(name), "{said}");
    }
}
