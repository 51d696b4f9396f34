//! `/v1/targets`: list, pause and resume targets, and retry what waits for them.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use semel_client::retry::{Circuit, DestinationState};
use semel_pipeline::delivery::DeliveryState;
use semel_pipeline::ledger::{self, AuditLine, DeliveryFilter, TargetPause, Totals};
use semel_pipeline::target::Registered;
use serde::Serialize;
use serde_json::{Map, Value};

use super::Admin;
use super::access::Caller;
use super::answer::{self, Answer, JsonBody, PathId, Refusal};
use super::api::{Api, Needs};
use super::audit::{self, States, run_to_completion};
use super::dead_letters::ChangeRequest;
use super::listing::Page;
use super::records::time;
use crate::pipeline::Pipeline;
use crate::telemetry::metrics::AttemptCounts;

/// The most deliveries that are made due in one call to the ledger.
const AT_ONCE: u32 = 500;

pub(super) fn routes(api: &mut Api) {
    let missing = "No target has this name.";
    let mut group = api.group("events", "Name of the target.", Needs::Ledger);
    group.get(
        "/v1/targets",
        list,
        "List the targets with their circuit breaker and backlog, and whether they are paused.",
    );
    group
        .post(
            "/v1/targets/{name}/pause",
            pause,
            "Pause a target in all processes: nothing more is sent to it until it is resumed. Events for it are accepted.",
        )
        .problem(404, missing);
    group.post("/v1/targets/{name}/resume", resume, "Resume a paused target.").problem(404, missing);
    group
        .post(
            "/v1/targets/{name}/retry",
            retry,
            "Retry now: make all deliveries due that wait for their next attempt. The circuit breaker, the retry budget and \
             `concurrency` still apply.",
        )
        .problem(404, missing);
}

/// A target.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Target")]
struct TargetDetails {
    name: String,
    /// The events that it gets.
    events: String,
    /// Null unless the target is paused.
    paused: Option<PauseDetails>,
    /// State of its circuit breaker in this server.
    #[schemars(extend("enum" = ["closed", "open", "half_open"]))]
    breaker: &'static str,
    /// When an open breaker allows the first call.
    open_until: Option<String>,
    /// Time until then.
    open_seconds: Option<f64>,
    /// Calls that the breaker judged within its window, which begins again when it opens.
    calls: u64,
    /// Those of them that count for the breaker: no answer in time, or one that says that the target is down. A refusal such as
    /// 422 shows that the target works, so it is not among them.
    failures: u64,
    /// Attempts that this server sent in the last ten minutes.
    attempts: u64,
    /// Those of them that did not succeed, refused ones too.
    failed_attempts: u64,
    /// Share of `attempts` that succeeded; null without attempts.
    success_rate: Option<f64>,
    /// Deliveries that are not over, by state.
    backlog: Map<String, Value>,
    /// How long the oldest delivery that is due has been waiting; null if none is due.
    oldest_due_seconds: Option<f64>,
    /// Time until the next delivery is due; zero if one is due now; null if none waits, or if the target is paused.
    next_due_seconds: Option<f64>,
}

/// A pause of a target.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct PauseDetails {
    since: String,
    /// Name of the token that paused it.
    by: String,
    reason: String,
}

impl PauseDetails {
    fn new(pause: &TargetPause) -> Self {
        let TargetPause { since, by, reason, .. } = pause;
        Self { since: time(*since), by: by.clone(), reason: reason.clone() }
    }
}

/// A paused target.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(super) struct PausedTarget {
    target: String,
    #[serde(flatten)]
    pause: PauseDetails,
}

impl PausedTarget {
    pub(super) fn new(pause: &TargetPause) -> Self {
        Self { target: pause.target.clone(), pause: PauseDetails::new(pause) }
    }
}

async fn list(State(admin): State<Arc<Admin>>) -> Result<Answer<Page<TargetDetails>>, Refusal> {
    let pipeline = admin.pipeline()?;
    let (totals, states) = (pipeline.totals().await?, pipeline.destinations.states());
    let pauses = pipeline.ledger.paused_targets().await?;
    let mut items = Vec::new();
    for (name, registered) in pipeline.registry.current().iter() {
        let next_due = pipeline.ledger.next_due(vec![name.to_string()]).await?;
        let state = states.iter().find(|state| state.name == *name);
        let pause = pauses.iter().find(|pause| *pause.target == **name);
        let backlog = Backlog { totals: &totals, next_due, recent: admin.metrics.deliveries().recent(name) };
        items.push(TargetDetails::new(name, registered, state, pause, &backlog));
    }
    Page::answer(items, None)
}

/// The deliveries that wait, and the attempts of the last minutes.
struct Backlog<'a> {
    totals: &'a Totals,
    next_due: Option<Duration>,
    recent: AttemptCounts,
}

impl TargetDetails {
    fn new(
        name: &str,
        registered: &Registered,
        state: Option<&DestinationState>,
        pause: Option<&TargetPause>,
        backlog: &Backlog<'_>,
    ) -> Self {
        let circuit = state.map_or(Circuit::Closed, |state| state.circuit);
        let until = match circuit {
            Circuit::Open { until } => Some(until),
            Circuit::Closed | Circuit::HalfOpen => None,
        };
        let (calls, failures) = state.map_or((0, 0), |state| (state.calls, state.failures));
        let AttemptCounts { succeeded, failed } = backlog.recent;
        let attempts = succeeded + failed;
        let Totals { deliveries, due, .. } = backlog.totals;
        let waiting = deliveries.iter().filter(|(target, state, _)| target == name && !state.is_over());
        let oldest = due.iter().find(|(target, _)| target == name);
        Self {
            name: name.to_owned(),
            events: registered.events.to_string(),
            paused: pause.map(PauseDetails::new),
            breaker: circuit.name(),
            open_until: until.map(time),
            open_seconds: until.map(|until| registered.destination.left(until).as_secs_f64()),
            calls,
            failures,
            attempts,
            failed_attempts: failed,
            success_rate: (attempts > 0).then(|| succeeded as f64 / attempts as f64),
            backlog: waiting.map(|(_, state, count)| (state.as_str().to_owned(), (*count).into())).collect(),
            oldest_due_seconds: oldest.map(|(_, age)| age.as_secs_f64()),
            next_due_seconds: backlog.next_due.map(|due| due.as_secs_f64()),
        }
    }
}

/// A change of a target. It is in the audit log.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct TargetChange {
    name: String,
    action: &'static str,
    /// The pause that is in force now; null if there is none.
    paused: Option<PauseDetails>,
    /// Number of deliveries that became due. Only for retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    retried: Option<u64>,
    /// Why nothing is sent to the target now. Only for resume and retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<String>,
    /// True if a pause met a paused target, or a resumption one that was not paused: nothing was changed. Of two pauses at the same
    /// moment one is in force; `paused` says which, also in the answer to the other.
    unchanged: bool,
}

/// What an operator does with a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetAction {
    Pause,
    Resume,
    Retry,
}

impl TargetAction {
    /// Its name in paths and in the audit log.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Retry => "retry",
        }
    }
}

async fn pause(
    admin: State<Arc<Admin>>,
    caller: Extension<Caller>,
    name: PathId,
    body: JsonBody<ChangeRequest>,
) -> Result<Answer<TargetChange>, Refusal> {
    change(admin, caller, name, body, TargetAction::Pause).await
}

async fn resume(
    admin: State<Arc<Admin>>,
    caller: Extension<Caller>,
    name: PathId,
    body: JsonBody<ChangeRequest>,
) -> Result<Answer<TargetChange>, Refusal> {
    change(admin, caller, name, body, TargetAction::Resume).await
}

async fn retry(
    admin: State<Arc<Admin>>,
    caller: Extension<Caller>,
    name: PathId,
    body: JsonBody<ChangeRequest>,
) -> Result<Answer<TargetChange>, Refusal> {
    change(admin, caller, name, body, TargetAction::Retry).await
}

async fn change(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<Caller>,
    PathId(name): PathId,
    body: JsonBody<ChangeRequest>,
    action: TargetAction,
) -> Result<Answer<TargetChange>, Refusal> {
    let asked = body.read()?;
    let change = async move { change_target(&admin, &caller, name, &asked, action).await };
    Answer::ok(run_to_completion(change).await?)
}

/// Pauses, resumes or retries a target.
///
/// # Errors
/// There is no such target, or no reason is given.
pub(crate) async fn change_target(
    admin: &Admin,
    caller: &Caller,
    name: String,
    asked: &ChangeRequest,
    action: TargetAction,
) -> Result<TargetChange, Refusal> {
    let reason = audit::plain(answer::reason(&asked.reason)?);
    let pipeline = admin.pipeline()?;
    let known = pipeline.registry.current().names();
    let pauses = pipeline.ledger.paused_targets().await?;
    let before = pauses.into_iter().find(|pause| pause.target == name);
    // A target that was removed from the configuration can still be resumed.
    if !known.contains(&name) && before.is_none() {
        let detail = match known.as_slice() {
            [] => format!("there is no target {name:?}: the config has no [[target]]"),
            known => format!("there is no target {name:?}; there are {}", known.join(", ")),
        };
        return Err(Refusal::new(StatusCode::NOT_FOUND, "not_found", detail));
    }
    let line = AuditLine {
        who: caller.name.clone(),
        action: action.name().to_owned(),
        subject: name.clone(),
        reason: reason.clone(),
    };
    // The ledger writes a pause or a resumption and its line in one transaction.
    let mut retried = None;
    let unchanged = match action {
        TargetAction::Pause => {
            let pause = pipeline.ledger.pause_target(name.clone(), line).await?;
            // Somebody else may have paused it since it was looked at.
            before.as_ref() == Some(&pause) || pause.by != caller.name || pause.reason != reason
        }
        TargetAction::Resume => pipeline.ledger.resume_target(name.clone(), line).await?.is_none(),
        TargetAction::Retry => {
            let states = States::new("waiting for the next attempt", "due");
            audit::write(admin, caller, action.name(), name.clone(), &reason, &states).await?;
            retried = Some(retry_waiting(pipeline, &name).await?);
            false
        }
    };
    let pauses = pipeline.ledger.paused_targets().await?;
    let paused = pauses.iter().find(|pause| pause.target == name).map(PauseDetails::new);
    let waiting = match action {
        TargetAction::Pause => None,
        TargetAction::Resume | TargetAction::Retry => why_waiting(pipeline, &pauses, &name),
    };
    admin.metrics.deliveries().set_pauses(pauses);
    tracing::info!(
        target: "semel::audit", audit = true,
        user = caller.name,
        operation = action.name(),
        "target" = name,
        reason,
        retried,
        outcome = if unchanged { "unchanged" } else { "done" },
        "target changed by an operator"
    );
    Ok(TargetChange { name, action: action.name(), paused, retried, waiting, unchanged })
}

/// Makes all deliveries due that wait for a retry, page by page. Answers how many.
async fn retry_waiting(pipeline: &Pipeline, target: &str) -> Result<u64, Refusal> {
    let states = vec![DeliveryState::RetryWait];
    let filter = DeliveryFilter { target: Some(target.to_owned()), states, ..DeliveryFilter::default() };
    let (mut retried, mut after) = (0, None);
    loop {
        let page = ledger::Page { after, limit: AT_ONCE };
        let waiting = pipeline.ledger.deliveries(filter.clone(), page).await?;
        let ids: Vec<_> = waiting.items.iter().map(|delivery| delivery.id).collect();
        if !ids.is_empty() {
            retried += pipeline.ledger.retry_now(ids).await?;
        }
        after = waiting.next;
        if after.is_none() {
            return Ok(retried);
        }
    }
}

/// Why nothing is sent to a target at present: it is paused, or its circuit breaker is open. `None` if it gets deliveries.
pub(crate) fn why_waiting(pipeline: &Pipeline, pauses: &[TargetPause], target: &str) -> Option<String> {
    if let Some(pause) = pauses.iter().find(|pause| pause.target == target) {
        let TargetPause { by, since, reason, .. } = pause;
        return Some(format!("{target} is paused by {by} since {}: {reason}", time(*since)));
    }
    let states = pipeline.destinations.states();
    match states.iter().find(|state| *state.name == *target)?.circuit {
        Circuit::Open { until } => {
            Some(format!("the circuit breaker of {target} is open until {}", time(until)))
        }
        Circuit::Closed | Circuit::HalfOpen => None,
    }
}
