//! One step: its requests, its checks, its captures.

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::file::{File, request_refused};
use super::grade::{Graded, RecordedExchange, grade};
use super::prepare::missing;
use super::send::{at_once, duration, find_key_form, restart, several, trip};
use crate::check::{CheckKind, CheckVerdict};
use crate::path::Path;
use crate::report::{CheckOutcome, Grade, Reason, Skip, StepReport, TimelineEntry, Validation};
use crate::storyboard::{Level, Spread, StepAction, StoryboardPhase, StoryboardStep, Transport, ValueSource};
use crate::substitute::Unresolved;

/// The most requests that a timeline shows.
const LONGEST_TIMELINE: usize = 20;

/// The contracts that this runner supports.
const CONTRACTS: [&str; 2] = ["parallel_dispatch_runner", "rate_limit_trip_runner"];

/// The result of sending.
pub(super) enum SendResult {
    Answered(Vec<RecordedExchange>),
    Skipped(Skip),
    /// A value is missing: nothing was sent.
    Unresolved(Unresolved),
    /// Some of the concurrent requests have no answer.
    Incomplete(Vec<RecordedExchange>, Skip),
    /// No answer, or one that the step is not about.
    Failed(String),
    /// The step graded itself.
    Judged(Vec<RecordedExchange>, Box<CheckVerdict>),
}

impl From<Unresolved> for SendResult {
    fn from(unresolved: Unresolved) -> Self {
        Self::Unresolved(unresolved)
    }
}

/// Runs a step and grades it.
pub(super) async fn run(file: &mut File<'_>, phase: &StoryboardPhase, step: &StoryboardStep) -> StepReport {
    let started = Instant::now();
    let sent = send(file, step).await;
    let took = started.elapsed();
    let mut report = file.skipped(phase, step, Skip::new(Reason::NotApplicable, ""));
    report.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let graded = match sent {
        SendResult::Skipped(skip) => {
            report.skip = Some(skip);
            return report;
        }
        SendResult::Unresolved(Unresolved(token)) => Graded::unresolved(&token),
        SendResult::Failed(error) => {
            report.error = Some(error);
            Graded::default()
        }
        SendResult::Answered(exchanges) => {
            let graded = grade(file, step, &exchanges, None);
            remember(file, step, &exchanges, &mut report);
            let status =
                exchanges.iter().map(|one| one.answer.status).find(|status| (400..500).contains(status));
            if let Some(status) = status.filter(|_| step.skip_if_refused) {
                report.skip = Some(request_refused(status));
                return report;
            }
            if graded.failed() {
                report.timeline = timeline(file, &exchanges);
            }
            graded
        }
        SendResult::Incomplete(exchanges, skip) => {
            let mut graded = grade(file, step, &exchanges, None);
            graded.validations.retain(proves_too_many);
            if !graded.failed() {
                report.skip = Some(skip);
                return report;
            }
            report.timeline = timeline(file, &exchanges);
            graded
        }
        SendResult::Judged(exchanges, verdict) => {
            let graded = grade(file, step, &exchanges, Some(&verdict));
            remember(file, step, &exchanges, &mut report);
            graded
        }
    };
    let mut graded = graded;
    let mut failed = report.error.is_some() || graded.failed();
    if !failed {
        graded.validations.extend(capture(file, step));
        failed = graded.failed();
    }
    report.validations = graded.validations;
    let level = file.level(phase, step);
    let checks = report
        .validations
        .iter()
        .filter(|validation| validation.outcome != CheckOutcome::NotApplicable)
        .count();
    report.grade = if failed {
        if level == Level::Required { Grade::Failed } else { Grade::NotMet }
    } else if checks == 0 && !step.checks.is_empty() {
        report.skip = Some(Skip::new(Reason::NotApplicable, "none of its checks could be judged"));
        return report;
    } else {
        Grade::Passed
    };
    report.skip = None;
    report.passed = report.grade == Grade::Passed;
    if report.passed
        && let Some(flag) = &step.contributes_to
    {
        file.contributions.insert(flag.clone());
    }
    report
}

/// True if a check found more different values than allowed. Missing answers could only add to them.
fn proves_too_many(validation: &Validation) -> bool {
    let number = |value: &Option<Value>, name: &str| value.as_ref()?.get(name)?.as_u64();
    let allowed = validation.expected.as_ref().and_then(|expected| expected.get("allowed_values"));
    let most =
        allowed.and_then(Value::as_array).and_then(|allowed| allowed.iter().filter_map(Value::as_u64).max());
    validation.outcome == CheckOutcome::Failed
        && number(&validation.actual, "observed_cardinality")
            .zip(most)
            .is_some_and(|(found, most)| found > most)
}

/// Stores an answer for later steps, whatever its grade: the first successful one, else the first.
fn remember(
    file: &mut File<'_>,
    step: &StoryboardStep,
    exchanges: &[RecordedExchange],
    report: &mut StepReport,
) {
    let success = |exchange: &&RecordedExchange| exchange.answer.error.is_none();
    let Some(first) = exchanges.iter().find(success).or(exchanges.first()) else { return };
    report.extraction_path = first.answer.extraction;
    file.payloads.insert(step.id.clone(), first.answer.payload.clone());
    file.answers.insert(step.id.clone(), first.answer.clone());
    file.all_answers.push((report.phase.clone(), step.id.clone(), first.answer.clone()));
}

/// Who sent what when, and what came back, for the report of a failed step.
fn timeline(file: &File<'_>, exchanges: &[RecordedExchange]) -> Vec<TimelineEntry> {
    exchanges.iter().take(LONGEST_TIMELINE).map(|exchange| exchange.entry(file)).collect()
}

/// Captures values; a failed capture fails the step.
fn capture(file: &mut File<'_>, step: &StoryboardStep) -> Vec<Validation> {
    let mut failed = Vec::new();
    for output in &step.outputs {
        let ValueSource::Path(path) = &output.from else { continue };
        let payload = file.payloads.get(&step.id).cloned().unwrap_or(Value::Null);
        // A path may itself be a value from the context.
        let path = file.scope().fill_text(path).unwrap_or_else(|_| path.clone());
        let found = Path::parse(&path).get(&payload);
        match found {
            Some(value) if !value.is_null() && value != json!("") => {
                file.context.insert(output.name.clone(), value);
            }
            found => failed.push(Graded::not_captured(&output.name, &path, found)),
        }
    }
    failed
}

async fn send(file: &mut File<'_>, step: &StoryboardStep) -> SendResult {
    if let Some(contract) = step.requires_contract.as_deref().filter(|contract| !CONTRACTS.contains(contract))
    {
        return SendResult::Skipped(Skip::new(Reason::UnsatisfiedContract, format!("needs `{contract}`")));
    }
    if let Some(tool) = step.requires_tool.as_deref().filter(|tool| !file.has_tool(tool)) {
        return SendResult::Skipped(missing(tool));
    }
    let mut wait = None;
    if let Some(text) = &step.wait {
        match file.scope().fill(text) {
            Err(unresolved) => return unresolved.into(),
            Ok(value) => match duration(&value) {
                Some(duration) => wait = Some(duration),
                None => return SendResult::Failed(format!("`wait` is not a duration: {value}")),
            },
        }
    }
    if let Some(wait) = wait {
        sleep(wait).await;
    }
    match &step.action {
        StepAction::Restart => restart(file).await,
        StepAction::Contributions => SendResult::Answered(Vec::new()),
        StepAction::Trip(wanted) => trip(file, step, wanted).await,
        action @ (StepAction::Request(_) | StepAction::Tool { .. }) => match &step.spread {
            Spread::Once if step.finds_key_form => find_key_form(file, step, action).await,
            Spread::Once => several(file, step, action, 1).await,
            Spread::Repeat(times) => several(file, step, action, *times).await,
            Spread::Parallel(parallel) => at_once(file, step, action, parallel).await,
        },
    }
}

/// True if an implicit check grades the answer of a step: over HTTP by status, over MCP by error.
pub(super) fn judges_itself(step: &StoryboardStep) -> bool {
    step.checks
        .iter()
        .any(|check| check.kind.judges_errors() || check.kind == CheckKind::RateLimitNotReplayed)
        || step.checks.iter().flat_map(|check| &check.nested).any(|check| check.kind.judges_errors())
}

/// The expected answer of an implicit check, in words.
pub(super) fn transport_word(transport: Transport) -> &'static str {
    match transport {
        Transport::Http => "a status below 400",
        Transport::Mcp => "a result, not an error",
    }
}
