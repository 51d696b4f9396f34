//! `/v1/deliveries`: list, show.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Response;
use semel_pipeline::delivery::State as DeliveryState;
use semel_pipeline::id::DeliveryId;
use semel_pipeline::ledger::DeliveryFilter;

use super::Admin;
use super::answer::{self, Named, Refusal};
use super::listing::{Asked, id_of, items};
use super::told;

/// Lists deliveries, the newest first. `state` may be given more than once, or with commas.
pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let mut asked = Asked::read(query, &["event_id", "target", "tenant", "state"])?;
    let mut states = Vec::new();
    while let Some(given) = asked.take("state") {
        for name in given.split(',') {
            let state = DeliveryState::from_name(name).ok_or_else(|| {
                let names = DeliveryState::ALL.map(DeliveryState::as_str).join(", ");
                Refusal::bad(format!("state: expected some of {names}"))
            })?;
            states.push(state);
        }
    }
    let event = asked.take("event_id").map(|id| id_of(&id)).transpose()?;
    let filter = DeliveryFilter { event, target: asked.take("target"), tenant: asked.take("tenant"), states };
    let page = pipeline.ledger.deliveries(filter, asked.page()).await?;
    items(page.items.iter().map(told::delivery), page.next)
}

/// One delivery with its attempts.
pub(super) async fn show(State(admin): State<Arc<Admin>>, Named(id): Named) -> Result<Response, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: DeliveryId = id_of(&id)?;
    let found = pipeline.ledger.delivery(id).await?;
    let found = found.ok_or_else(|| Refusal::not_found(format!("there is no delivery {id}")))?;
    answer::json(&told::delivery_with_attempts(&found))
}
