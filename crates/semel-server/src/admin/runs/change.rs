//! Changes of runs: patch, cancel, and the reset of a key.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use schemars::JsonSchema;
use semel_pipeline::delivery::DeliveryState;
use semel_pipeline::id::EventId;
use semel_pipeline::ledger::{self, Change, DeliveryFilter};
use semel_triggers::trigger::{RunKey, RunLocation};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::Admin;
use super::super::access::{Caller, Right};
use super::super::answer::{self, Answer, JsonBody, PathId, Refusal};
use super::super::audit::{self, States};
use super::super::listing::id_of;
use super::{RunDetails, run_error, tags, texts, view};
use crate::pipeline::Pipeline;

/// A change of a run.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct PatchRequest {
    #[serde(default)]
    pub(crate) add_tags: Vec<String>,
    /// Members to set; a member that is null is removed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata: BTreeMap<String, Box<RawValue>>,
    /// Numbers to add to members of the metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) increment: BTreeMap<String, Box<RawValue>>,
    /// How long to wait before the first attempt, such as "30s".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delay: Option<String>,
    /// Change the run only if it has this version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<u64>,
}

pub(super) async fn patch(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    body: JsonBody<PatchRequest>,
) -> Result<Answer<RunDetails>, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: EventId = id_of(&id)?;
    own(pipeline, id, &caller).await?;
    let asked = body.read()?;
    let (removed, set): (Vec<_>, Vec<_>) =
        texts(asked.metadata)?.into_iter().partition(|(_, value)| value == "null");
    let change = Change {
        add_tags: tags(asked.add_tags)?,
        set,
        remove: removed.into_iter().map(|(name, _)| name).collect(),
        increment: texts(asked.increment)?.into_iter().collect(),
        delay: answer::length("delay", asked.delay.as_deref())?,
    };
    let located = pipeline.intake.triggers.change(id, &change, asked.version).await.map_err(run_error)?;
    view(pipeline, located, id, &caller).await
}

/// 404 if the run belongs to another tenant: a token of one tenant must not learn about others.
async fn own(pipeline: &Pipeline, id: EventId, caller: &Caller) -> Result<(), Refusal> {
    let Some(tenant) = &caller.tenant else { return Ok(()) };
    let located = pipeline.intake.triggers.locate(id).await.map_err(run_error)?;
    let whose = match &located {
        RunLocation::Ledger(event) => Some(&event.new.tenant),
        RunLocation::Buffer { buffered, .. } => Some(&buffered.run.tenant),
        RunLocation::Missing => None,
    };
    match whose {
        Some(whose) if whose == tenant => Ok(()),
        _ => Err(Refusal::not_found(format!("there is no run {id}"))),
    }
}

/// Why a run is cancelled.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct CancelRequest {
    /// Why; for the audit log.
    #[serde(default)]
    pub(crate) reason: String,
}

pub(super) async fn cancel(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    body: JsonBody<CancelRequest>,
) -> Result<Answer<RunDetails>, Refusal> {
    let pipeline = admin.pipeline()?;
    let id: EventId = id_of(&id)?;
    cancel_run(&admin, &caller, id, body.read()?).await?;
    let located = pipeline.intake.triggers.locate(id).await.map_err(run_error)?;
    view(pipeline, located, id, &caller).await
}

/// The state of a run; `buffered` before it is in the ledger.
async fn state_of(pipeline: &Pipeline, id: EventId) -> Result<&'static str, Refusal> {
    let filter = DeliveryFilter { event: Some(id), ..DeliveryFilter::default() };
    let found = pipeline.ledger.deliveries(filter, ledger::Page { after: None, limit: 1 }).await?;
    Ok(found.items.first().map_or("buffered", |delivery| delivery.state.as_str()))
}

/// Cancels a run that has not started.
///
/// # Errors
/// There is no such run for the caller, or it has started.
pub(crate) async fn cancel_run(
    admin: &Admin,
    caller: &Caller,
    id: EventId,
    asked: CancelRequest,
) -> Result<(), Refusal> {
    let pipeline = admin.pipeline()?;
    own(pipeline, id, caller).await?;
    let states = States::new(state_of(pipeline, id).await?, DeliveryState::Cancelled.as_str());
    let line = audit::line(caller, "cancel", id.to_string(), &asked.reason, &states);
    pipeline.intake.triggers.cancel(id, &line).await.map_err(run_error)?;
    pipeline.waiters.wake(id);
    tracing::info!(
        target: "semel::audit", audit = true,
        user = caller.name,
        operation = "cancel",
        event_id = %id,
        reason = asked.reason,
        outcome = "done",
        "run cancelled"
    );
    Ok(())
}

/// A key of runs to reset.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct ResetRequest {
    pub(crate) target: String,
    pub(crate) key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    /// Name of the token that triggered the run, if it is another. Requires the role operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) principal: Option<String>,
    /// Why; for the audit log.
    #[serde(default)]
    pub(crate) reason: String,
}

/// The result of a key reset.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct ResetResult {
    /// False if no run had the key.
    reset: bool,
    /// The run that had the key.
    #[schemars(with = "Option<String>")]
    id: Option<EventId>,
}

pub(super) async fn reset_key(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    body: JsonBody<ResetRequest>,
) -> Result<Answer<ResetResult>, Refusal> {
    let pipeline = admin.pipeline()?;
    let asked = body.read()?;
    let tenant = caller.tenant_for(asked.tenant)?;
    let principal = match asked.principal {
        Some(other) if other != caller.name => {
            caller.may(Right::Operate)?;
            other
        }
        _ => caller.name.clone(),
    };
    let states = States::new("key in use", "key free");
    let line = audit::line(&caller, "reset-key", asked.target.clone(), &asked.reason, &states);
    let key = RunKey { principal: &principal, tenant: &tenant, target: &asked.target, key: &asked.key };
    let id = pipeline.intake.triggers.reset_key(key, &line).await.map_err(run_error)?;
    Answer::ok(ResetResult { reset: id.is_some(), id })
}
