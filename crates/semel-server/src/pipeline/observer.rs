//! Observers of attempts: the metrics, a collector of traces if there is one, and callers that wait for a run.

use std::sync::Arc;
use std::time::Duration;

use semel::time::{Clock as _, SystemClock};
use semel_pipeline::id::EventId;
use semel_pipeline::target::Sampled;
use semel_pipeline::worker::{Attempted, DeliveryObserver};

use super::waiters::RunWaiters;
use crate::telemetry::metrics::Deliveries;
use crate::telemetry::otlp::{Exporter, Span, SpanKind};

/// Notifies all of them.
pub(crate) struct AttemptObservers {
    pub(crate) counters: Arc<Deliveries>,
    pub(crate) exporter: Option<Arc<Exporter>>,
    pub(crate) waiters: Arc<RunWaiters>,
}

impl DeliveryObserver for AttemptObservers {
    fn attempted(&self, attempted: &Attempted<'_>) {
        self.counters.attempted(attempted);
        // An attempt that was not sent has no span.
        if let Some(exporter) = self.exporter.as_ref().filter(|_| attempted.took > Duration::ZERO) {
            let span = attempted.work.span();
            if span.sampled == Sampled::Yes {
                exporter.take(shown(attempted, &span));
            }
        }
    }

    fn written(&self, event: EventId) {
        self.waiters.wake(event);
    }
}

/// An attempt as a span.
fn shown(attempted: &Attempted<'_>, span: &semel_pipeline::target::AttemptSpan) -> Span {
    let work = attempted.work;
    let end = SystemClock.now().as_micros();
    let took = u64::try_from(attempted.took.as_micros()).unwrap_or(0);
    Span {
        trace: span.trace,
        id: span.id,
        parent: span.parent,
        // The operator chooses the target's name.
        name: format!("deliver {}", work.target),
        kind: SpanKind::Client,
        start: end.saturating_sub(took),
        end,
        request_id: work.request_id.clone(),
        status: attempted.http_status.unwrap_or(0),
        outcome: attempted.next.name(),
        more: vec![
            ("event_id", work.event.to_string()),
            ("delivery_id", work.holding.delivery.to_string()),
            ("event_type", work.event_type.clone()),
            ("target", work.target.clone()),
            ("attempt", work.attempt.to_string()),
            ("max_attempts", attempted.max_attempts.to_string()),
        ],
    }
}
