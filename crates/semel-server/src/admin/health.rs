//! Alive, and ready (truthful_health): ready only if a claim round trip works; alive whatever the store does.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use semel::Engine;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Admin;
use crate::metrics::Metrics;

/// A probe that takes longer counts as failed.
const PATIENCE: Duration = Duration::from_secs(2);
/// So long an answer stands: whoever asks more often does not load the store more.
const FRESH: Duration = Duration::from_millis(500);

/// Knows whether claims work.
pub(super) struct Health {
    engine: Engine,
    metrics: Arc<Metrics>,
    last: Mutex<Option<(Instant, Result<Duration, String>)>>,
}

impl Health {
    pub(super) fn new(engine: Engine, metrics: Arc<Metrics>) -> Self {
        Self { engine, metrics, last: Mutex::new(None) }
    }

    /// Claims and releases a key of its own.
    pub(super) async fn probe(&self) -> Result<Duration, String> {
        // Held across the probe on purpose: everybody who asks meanwhile gets its answer.
        let mut last = self.last.lock().await;
        if let Some((_, answer)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return answer.clone();
        }
        let answer = match tokio::time::timeout(PATIENCE, self.engine.verify(1)).await {
            Ok(Ok(took)) => Ok(took),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("the store did not answer within {PATIENCE:?}")),
        };
        self.metrics.store_up(answer.as_ref().map(drop).map_err(drop));
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

/// The process runs.
pub(super) async fn live() -> &'static str {
    "ok\n"
}

/// Claims work.
pub(super) async fn ready(State(admin): State<Arc<Admin>>) -> Response {
    let (status, answer) = match admin.health.probe().await {
        // Still ready: known keys are served, and every process of a full store would leave at once.
        Ok(took) if admin.metrics.store_is_full() => {
            let why = "the store has reached max_bytes: new keys are refused, known keys are served";
            let answer = json!({
                "ready": true, "claim_ms": took.as_secs_f64() * 1e3, "new_keys": "refused", "why": why
            });
            (StatusCode::OK, answer)
        }
        Ok(took) => (StatusCode::OK, json!({ "ready": true, "claim_ms": took.as_secs_f64() * 1e3 })),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, json!({ "ready": false, "why": why })),
    };
    (status, [(header::CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
}
