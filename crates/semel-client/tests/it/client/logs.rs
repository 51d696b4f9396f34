//! What is logged of a call.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use semel_client::retry::{Destinations, StoryIds};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use super::server::{Server, ok, say};
use super::{builder, keyed};

type Line = BTreeMap<&'static str, String>;

/// Keeps every line of the library as its fields.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<Line>>>);

struct Fields<'a>(&'a mut Line);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "semel"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::new();
        event.record(&mut Fields(&mut line));
        self.0.lock().push(line);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

// Attempt, latency, status, class and all ids; of the key eight characters.
#[tokio::test]
async fn every_try_is_logged_with_its_story() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let server = Server::script([say(503, &[], ""), ok()]).await;
    let destinations = Destinations::default();
    let client = builder(&server).destination(&destinations.get("acquirer")).build().unwrap();
    let story = StoryIds {
        org: Some("org-1".into()),
        delivery_id: Some("dlv_1".into()),
        target: Some("ledger".into()),
        event_type: Some("order.paid".into()),
        ..StoryIds::default()
    };
    let request = keyed()
        .story(story)
        .operation("charge")
        .user("user-7")
        .unwrap()
        .with_request_id("req-1")
        .unwrap()
        .traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .unwrap();
    client.send(&request).await.unwrap();
    let lines = lines.0.lock();
    let calls: Vec<&Line> = lines.iter().filter(|line| line.contains_key("attempt")).collect();
    assert_eq!(calls.len(), 2, "{lines:?}");
    for (field, first, second) in [
        ("operation", "charge", "charge"),
        ("destination", "acquirer", "acquirer"),
        ("outcome", "retry", "success"),
        ("attempt", "1", "2"),
        ("max_attempts", "3", "3"),
        ("http_status", "503", "200"),
        ("class", "unavailable", "success"),
        ("retryable", "true", "false"),
        ("breaker", "closed", "closed"),
        ("key", "derived-", "derived-"),
        ("request_id", "req-1", "req-1"),
        ("trace_id", "0af7651916cd43dd8448eb211c80319c", "0af7651916cd43dd8448eb211c80319c"),
        ("user", "user-7", "user-7"),
        ("org", "org-1", "org-1"),
        ("delivery_id", "dlv_1", "dlv_1"),
        ("target", "ledger", "ledger"),
        ("event_type", "order.paid", "order.paid"),
    ] {
        let of = |line: &Line| line.get(field).cloned().unwrap_or_default();
        assert_eq!((of(calls[0]).as_str(), of(calls[1]).as_str()), (first, second), "{field}");
    }
    assert_eq!(calls[0].get("delay_source").map(String::as_str), Some("backoff"));
    assert!(calls.iter().all(|line| line.contains_key("latency_ms") && line.contains_key("budget_left")));
    assert!(!format!("{lines:?}").contains("derived-key-1"), "never the whole key");
}
