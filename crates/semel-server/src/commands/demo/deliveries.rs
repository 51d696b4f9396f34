//! What the console has to show besides traffic: events for the targets, and a refund whose result is unknown.

use std::time::Duration;

use http::{HeaderValue, header};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::{AdminClient, Request};

/// Time between two events.
const PAUSE: Duration = Duration::from_millis(700);

/// Sends a refund, then publishes events until `stop` becomes true.
pub(super) fn start(
    gateway: &str,
    admin: &str,
    stop: &watch::Receiver<bool>,
) -> anyhow::Result<JoinHandle<()>> {
    let (gateway, admin, mut stop) = (AdminClient::own(gateway)?, AdminClient::own(admin)?, stop.clone());
    Ok(tokio::spawn(async move {
        refund(&gateway).await;
        let mut order = 0_u32;
        loop {
            order += 1;
            publish(&admin, order).await;
            if tokio::time::timeout(PAUSE, stop.wait_for(|stop| *stop)).await.is_ok() {
                return;
            }
        }
    }))
}

/// Its answer is an error after which the refund may have happened: the key is in doubt.
async fn refund(gateway: &AdminClient) {
    let request = Request::post("/v1/refunds").bytes(json!({ "charge": "ch_1", "amount": 1200 }).to_string());
    let request = request.header(header::AUTHORIZATION, HeaderValue::from_static("Bearer support"));
    let request = request.header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(request) = request.key("refund-of-order-17") {
        // What matters is the record that it leaves.
        let _ = gateway.send(&request).await;
    }
}

async fn publish(admin: &AdminClient, order: u32) {
    let tenants = ["eu", "us", "asia"];
    let event = json!({
        "type": "order.paid",
        "dedupe_key": format!("order-{order}"),
        "tenant": tenants[order as usize % tenants.len()],
        "payload": { "order": order, "total": 1200 + order, "currency": "EUR" },
    });
    let request = Request::post("/v1/events").bytes(event.to_string());
    let json = HeaderValue::from_static("application/json");
    // The demo ends with its server; an event that is refused is not missed.
    let _ = admin.send(&request.header(header::CONTENT_TYPE, json)).await;
}
