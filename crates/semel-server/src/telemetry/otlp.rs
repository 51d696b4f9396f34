//! Traces for OpenTelemetry: one span per request of the gateway and per delivery attempt, sent as OTLP over HTTP, in JSON.
//!
//! Configured by the standard variables: `OTEL_EXPORTER_OTLP_ENDPOINT` (or `…_TRACES_ENDPOINT`), `…_HEADERS`, `…_CERTIFICATE`,
//! `OTEL_SERVICE_NAME`, `OTEL_SDK_DISABLED`. Sampling follows the parent; a request without one is sampled. If the collector is
//! unavailable, spans are dropped and requests continue.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::client::{AdminClient, Request};
use crate::config::Environment;
use crate::misused::Misused;

/// Maximum number of queued spans.
const QUEUE: usize = 8_192;
/// Maximum number of spans per request.
const BATCH: usize = 512;
/// Maximum wait for more spans.
const PAUSE: Duration = Duration::from_secs(1);
/// Timeout for the last spans.
const PARTING: Duration = Duration::from_secs(2);

/// A request of the gateway or a delivery attempt, as a span.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) trace: u128,
    pub(crate) id: u64,
    pub(crate) parent: Option<u64>,
    /// Method and route, or the target.
    pub(crate) name: String,
    pub(crate) kind: SpanKind,
    /// In microseconds since the epoch.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) request_id: String,
    pub(crate) status: u16,
    pub(crate) outcome: &'static str,
    /// Other attributes.
    pub(crate) more: Vec<(&'static str, String)>,
}

/// The side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanKind {
    /// The call was received.
    Server = 2,
    /// The call was made.
    Client = 3,
}

/// Sends spans in a task of its own.
#[derive(Debug)]
pub(crate) struct Exporter {
    queue: mpsc::Sender<OtlpMessage>,
    dropped: AtomicU64,
}

#[derive(Debug)]
enum OtlpMessage {
    Span(Box<Span>),
    Flush(oneshot::Sender<()>),
}

/// The receiver of spans.
struct Collector {
    client: AdminClient,
    /// Appended to the path of the endpoint.
    path: &'static str,
    headers: HeaderMap,
    service: String,
    /// True if the last batch was refused: the failure is logged once.
    troubled: bool,
}

impl Exporter {
    /// Starts it if the environment configures it. Needs a runtime.
    ///
    /// # Errors
    /// An unusable endpoint.
    pub(crate) fn start(environment: &Environment<'_>) -> anyhow::Result<Option<Arc<Self>>> {
        let variable = |name: &str| (environment.0)(name).filter(|value| !value.is_empty());
        let disabled = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let (name, endpoint, suffix) =
            match (variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), variable("OTEL_EXPORTER_OTLP_ENDPOINT")) {
                (Some(endpoint), _) => ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", endpoint, ""),
                (None, Some(endpoint)) => ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint, "/v1/traces"),
                (None, None) => return Ok(None),
            };
        if disabled {
            return Ok(None);
        }
        let protocol = variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
            .or_else(|| variable("OTEL_EXPORTER_OTLP_PROTOCOL"));
        if protocol.as_deref() == Some("grpc") {
            let what = "OTEL_EXPORTER_OTLP_PROTOCOL: expected http/json or http/protobuf, found grpc; a collector takes HTTP at port 4318";
            return Err(Misused::new(what).into());
        }
        let certificate = variable("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE")
            .or_else(|| variable("OTEL_EXPORTER_OTLP_CERTIFICATE"));
        let client = AdminClient::collector(&endpoint, certificate.as_deref().map(Path::new))
            .context(Misused::new(name))?;
        let headers = variable("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default();
        let collector = Collector {
            client,
            path: suffix,
            headers: headers_of(&headers).context(Misused::new("OTEL_EXPORTER_OTLP_HEADERS"))?,
            service: variable("OTEL_SERVICE_NAME").unwrap_or_else(|| "semel".to_owned()),
            troubled: false,
        };
        let (queue, spans) = mpsc::channel(QUEUE);
        // Ends when the last sender is dropped.
        drop(tokio::spawn(collector.run(spans)));
        Ok(Some(Arc::new(Self { queue, dropped: AtomicU64::new(0) })))
    }

    /// Queues a span, unless the queue is full.
    pub(crate) fn take(&self, span: Span) {
        if self.queue.try_send(OtlpMessage::Span(Box::new(span))).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of dropped spans.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all queued spans are sent, for a limited time.
    pub(crate) async fn flush(&self) {
        let (done, sent) = oneshot::channel();
        let flushed = async {
            if self.queue.send(OtlpMessage::Flush(done)).await.is_ok() {
                let _ = sent.await;
            }
        };
        let _ = tokio::time::timeout(PARTING, flushed).await;
    }
}

impl Collector {
    async fn run(mut self, mut spans: mpsc::Receiver<OtlpMessage>) {
        while let Some(first) = spans.recv().await {
            let mut batch = Vec::new();
            let mut flushes = Vec::new();
            let mut next = Some(first);
            let ready = tokio::time::sleep(PAUSE);
            tokio::pin!(ready);
            while let Some(message) = next.take() {
                match message {
                    OtlpMessage::Span(span) => batch.push(*span),
                    OtlpMessage::Flush(done) => flushes.push(done),
                }
                if batch.len() < BATCH && flushes.is_empty() {
                    next = tokio::select! {
                        () = &mut ready => None,
                        message = spans.recv() => message,
                    };
                }
            }
            self.send(&batch).await;
            for done in flushes {
                let _ = done.send(());
            }
        }
    }

    async fn send(&mut self, batch: &[Span]) {
        if batch.is_empty() {
            return;
        }
        // A lost span does no harm, so the request may reuse a connection.
        let mut post = Request::post(self.path).bytes(body(&self.service, batch).to_string()).repeatable();
        post = post.header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &self.headers {
            post = post.header(name.clone(), value.clone());
        }
        let sent = self.client.send(&post).await;
        let trouble = match &sent {
            Ok(reply) if reply.status.is_success() => None,
            Ok(reply) => Some(format!("it answered {}", reply.status)),
            Err(error) => Some(format!("{error:#}")),
        };
        if let (Some(why), false) = (&trouble, self.troubled) {
            tracing::warn!(target: "semel", why, "the OpenTelemetry collector does not accept spans; dropping them");
        }
        self.troubled = trouble.is_some();
    }
}

/// Parses `name=value,name=value`.
fn headers_of(text: &str) -> anyhow::Result<HeaderMap> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| {
            // The value is not repeated, because it may be a token.
            let name: HeaderName = name.trim().parse().with_context(|| format!("{:?}", name.trim()))?;
            let mut value: HeaderValue = value.trim().parse().with_context(|| name.to_string())?;
            value.set_sensitive(true);
            Ok((name, value))
        })
        .collect()
}

/// The body of an OTLP request.
fn body(service: &str, batch: &[Span]) -> Value {
    let text = |name: &str, value: &str| json!({ "key": name, "value": { "stringValue": value } });
    let spans: Vec<Value> = batch
        .iter()
        .map(|span| {
            let mut attributes = vec![
                text("request_id", &span.request_id),
                text("outcome", span.outcome),
                json!({ "key": "http.response.status_code", "value": { "intValue": span.status.to_string() } }),
            ];
            attributes.extend(span.more.iter().map(|(name, value)| text(name, value)));
            json!({
                "traceId": format!("{:032x}", span.trace),
                "spanId": format!("{:016x}", span.id),
                "parentSpanId": span.parent.map(|parent| format!("{parent:016x}")).unwrap_or_default(),
                "name": span.name,
                "kind": span.kind as u8,
                "startTimeUnixNano": format!("{}000", span.start),
                "endTimeUnixNano": format!("{}000", span.end),
                "attributes": attributes,
                // 2 means error. Mistakes of clients are not errors of the server.
                "status": { "code": if span.status >= 500 { 2 } else { 0 } },
            })
        })
        .collect();
    let resource = json!({ "attributes": [text("service.name", service)] });
    json!({ "resourceSpans": [{ "resource": resource, "scopeSpans": [{ "scope": { "name": "semel" }, "spans": spans }] }] })
}
