//! Lists of runs: those in the ledger, and those in the buffer.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use schemars::JsonSchema;
use semel_pipeline::id::{EventId, EventKind};
use semel_pipeline::ledger::{self, EventFilter};
use serde::Serialize;

use super::super::Admin;
use super::super::access::Caller;
use super::super::answer::{Answer, Refusal};
use super::super::deliveries::ListedEvent;
use super::super::listing::{Filters, ListQuery, Page, Parameter};
use crate::pipeline::Pipeline;

/// The parameters of the list.
pub(super) struct RunFilters;

impl Filters for RunFilters {
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::text("target", "Only runs of this target."),
        Parameter::text("tenant", "Only runs of this tenant."),
        Parameter::text("tag", "Only runs with this tag."),
        Parameter::one_of::<bool>(
            "buffered",
            "true: the runs in the buffer, in no order. Requires `tenant` to list them one by one; without it they are counted, \
             for at most 1000 tenants.",
        ),
    ];
}

/// A page of runs.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub(super) enum RunPage {
    /// Runs in the ledger.
    Ledger(Page<ListedEvent>),
    /// Runs in the buffer.
    Buffer { items: Vec<BufferedRun>, next: Option<String>, tenants: Vec<BufferDepth> },
}

/// A run in the buffer.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct BufferedRun {
    #[schemars(with = "String")]
    id: EventId,
    tenant: String,
    buffered: bool,
}

/// The runs of a tenant in the buffer.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct BufferDepth {
    tenant: String,
    queued: u64,
    /// Runs on their way to the ledger.
    in_transit: u64,
    /// Age of the oldest run.
    oldest_seconds: f64,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    query: ListQuery<RunFilters>,
) -> Result<Answer<RunPage>, Refusal> {
    let pipeline = admin.pipeline()?;
    let mut asked = query.read()?;
    let tenant = match &caller.tenant {
        Some(own) => Some(own.clone()),
        None => asked.take("tenant"),
    };
    if asked.choice("buffered", &[("true", true), ("false", false)])? == Some(true) {
        return Answer::ok(buffered(pipeline, tenant, asked.page).await?);
    }
    let filter = EventFilter {
        kind: Some(EventKind::Run),
        tenant,
        event_type: asked.take("target"),
        tag: asked.take("tag"),
    };
    Answer::ok(RunPage::Ledger(ListedEvent::page(pipeline, filter, asked.page).await?))
}

/// Maximum number of tenants whose runs are counted for a list.
const TENANTS: u32 = 1_000;

/// The runs in the buffer: the number of each tenant, and the runs of one tenant.
async fn buffered(
    pipeline: &Pipeline,
    tenant: Option<String>,
    page: ledger::Page,
) -> Result<RunPage, Refusal> {
    let mut tenants = Vec::new();
    let Some(burst) = pipeline.intake.triggers.connected_burst()? else {
        return Ok(RunPage::Buffer { items: Vec::new(), next: None, tenants });
    };
    let names = match &tenant {
        Some(tenant) => vec![tenant.clone()],
        None => burst.buffer.first_tenants(TENANTS).await?,
    };
    for name in names {
        let depth = burst.buffer.depth(&name).await?;
        tenants.push(BufferDepth {
            tenant: name,
            queued: depth.queued,
            in_transit: depth.leased,
            oldest_seconds: depth.oldest.as_secs_f64(),
        });
    }
    let Some(tenant) = tenant else {
        return Ok(RunPage::Buffer { items: Vec::new(), next: None, tenants });
    };
    let after = page.after.map(|after| after.parse()).transpose();
    let after = after.map_err(|_| Refusal::bad("cursor: expected the `next` of the previous page"))?;
    let (ids, next) = burst.buffer.list(&tenant, after, page.limit).await?;
    let items =
        ids.into_iter().map(|id| BufferedRun { id, tenant: tenant.clone(), buffered: true }).collect();
    Ok(RunPage::Buffer { items, next: next.map(|next| next.to_string()), tenants })
}
