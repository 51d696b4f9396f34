//! A payments API without idempotency: every request charges. It counts the charges.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;

use crate::config::parse_duration;

/// The charges, by the key of their request.
#[derive(Debug, Default)]
pub(super) struct Charges {
    by_key: Mutex<HashMap<String, u32>>,
    /// Deliveries that the warehouse refused once.
    refused: Mutex<HashSet<String>>,
}

impl Charges {
    /// Charges and returns the number of the charge.
    fn charge(&self, key: &str) -> usize {
        let mut by_key = self.by_key.lock();
        *by_key.entry(key.to_owned()).or_default() += 1;
        by_key.values().map(|count| *count as usize).sum()
    }

    /// Number of charges.
    pub(super) fn count(&self) -> usize {
        self.by_key.lock().values().map(|count| *count as usize).sum()
    }

    /// Number of charged keys.
    pub(super) fn keys(&self) -> usize {
        self.by_key.lock().len()
    }

    /// Number of keys that were charged more than once. It should be zero.
    pub(super) fn twice(&self) -> usize {
        self.by_key.lock().values().filter(|count| **count > 1).count()
    }
}

/// Starts the API on a free port. It ends with the runtime.
pub(super) async fn start(charges: Arc<Charges>) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let router = Router::new()
        .route("/v1/charges", post(charge).get(show))
        .route("/v1/refunds", post(refund))
        .route("/hooks/{target}", post(receive))
        .with_state(charges);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

#[derive(Deserialize)]
struct Charge {
    amount: u64,
    /// Latency of the acquirer.
    slow: Option<String>,
}

async fn charge(State(charges): State<Arc<Charges>>, headers: HeaderMap, body: Bytes) -> Response {
    // Ignores the content type, because people try this with curl.
    let Ok(Charge { amount, slow }) = serde_json::from_slice(&body) else {
        return answer(StatusCode::BAD_REQUEST, &json!({ "error": "expected {\"amount\": 1200}" }));
    };
    let takes = slow.and_then(|slow| parse_duration(&slow)).unwrap_or(Duration::from_millis(20));
    tokio::time::sleep(takes.min(Duration::from_secs(30))).await;
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or("(none)");
    let number = charges.charge(key);
    answer(
        StatusCode::CREATED,
        &json!({ "id": format!("ch_{number}"), "amount": amount, "status": "succeeded" }),
    )
}

/// The acquirer fails after it may have paid: nobody knows.
async fn refund() -> Response {
    answer(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "error": "no answer from the acquirer" }))
}

#[derive(Deserialize)]
struct Order {
    order: u32,
}

/// Targets: billing takes everything, the warehouse refuses every fourth order the first time, the CRM is down.
async fn receive(
    State(charges): State<Arc<Charges>>,
    Path(target): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default();
    let order = serde_json::from_slice(&body).map_or(0, |Order { order }| order);
    match target.as_str() {
        "crm" => answer(StatusCode::SERVICE_UNAVAILABLE, &json!({ "error": "down for maintenance" })),
        "warehouse" if order.is_multiple_of(4) && charges.refused.lock().insert(key.to_owned()) => answer(
            StatusCode::INTERNAL_SERVER_ERROR,
            &json!({ "error": "the shelf is locked by another process" }),
        ),
        _ => answer(StatusCode::OK, &json!({ "received": true })),
    }
}

async fn show(State(charges): State<Arc<Charges>>) -> Response {
    let (count, keys, twice) = (charges.count(), charges.keys(), charges.twice());
    answer(StatusCode::OK, &json!({ "charges": count, "keys": keys, "keys_charged_twice": twice }))
}

fn answer(status: StatusCode, body: &serde_json::Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}
