//! Alive, and ready (truthful_health): ready only if a claim round trip works; alive whatever the store does.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use semel::Engine;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Admin;
use super::answer::Answer;
use super::api::{Api, Needs};
use super::status::FULL_STORE;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::millis;

/// A probe that takes longer counts as failed.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an answer is reused, so that frequent health checks do not load the store.
const PROBE_MAX_AGE: Duration = Duration::from_millis(500);

/// Knows whether claims work.
pub(crate) struct Health {
    engine: Engine,
    metrics: Arc<Metrics>,
    last: Mutex<Option<(Instant, Result<Duration, String>)>>,
}

impl Health {
    pub(super) fn new(engine: Engine, metrics: Arc<Metrics>) -> Self {
        Self { engine, metrics, last: Mutex::new(None) }
    }

    /// Claims and releases a key of its own.
    pub(crate) async fn probe(&self) -> Result<Duration, String> {
        // Held across the probe on purpose: everybody who asks meanwhile gets its answer.
        let mut last = self.last.lock().await;
        if let Some((_, answer)) = last.as_ref().filter(|(at, _)| at.elapsed() < PROBE_MAX_AGE) {
            return answer.clone();
        }
        let answer = match tokio::time::timeout(PROBE_TIMEOUT, self.engine.verify(1)).await {
            Ok(Ok(took)) => Ok(took),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("the store did not answer within {} s", PROBE_TIMEOUT.as_secs())),
        };
        self.metrics.store_up(answer.as_ref().map(drop).map_err(drop));
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

pub(super) fn routes(api: &mut Api) {
    let mut group = api.group("health", "", Needs::Nothing);
    group.get("/healthz", live, "Check that the process runs.");
    group
        .get("/readyz", ready, "Check that a claim works.")
        .success(&[(200, "Claims work."), (503, "Claims do not work; `why` gives the reason.")]);
}

/// Whether claims work.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(inline)]
struct Readiness {
    ready: bool,
    /// How long a claim took.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_ms: Option<f64>,
    /// `refused` if the store is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    new_keys: Option<&'static str>,
    /// Why claims do not work, or not for new keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

async fn live() -> &'static str {
    "ok\n"
}

async fn ready(State(admin): State<Arc<Admin>>) -> Answer<Readiness> {
    match admin.health.probe().await {
        Ok(took) => {
            let mut readiness =
                Readiness { ready: true, claim_ms: Some(millis(took)), ..Readiness::default() };
            // Still ready: known keys are served, and every process of a full store would leave at once.
            if admin.metrics.store_is_full() {
                (readiness.new_keys, readiness.why) = (Some("refused"), Some(FULL_STORE.to_owned()));
            }
            Answer::new(StatusCode::OK, readiness)
        }
        Err(why) => {
            Answer::new(StatusCode::SERVICE_UNAVAILABLE, Readiness { why: Some(why), ..Readiness::default() })
        }
    }
}
