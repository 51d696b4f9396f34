//! Sends the calls of a step: sequentially, concurrently, until a rate limit; or restarts the target.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::DEFAULT_TIMEOUT;
use super::file::File;
use super::grade::RecordedExchange;
use super::prepare::{KEY_HEADER, call, filled, set_key_header, tell_apart};
use super::step::SendResult;
use crate::answer::TargetAnswer;
use crate::call::overlay;
use crate::check::{CheckVerdict, rate_limit};
use crate::dispatch::{Dispatched, dispatch};
use crate::key::KeyForm;
use crate::report::{Reason, Skip};
use crate::storyboard::{Parallel, SharedKey, StepAction, StoryboardStep, Trip};
use crate::substitute::uuid_v4;
use crate::wire::SharedHalves;

/// How long a restarted target may take to accept connections.
const UP_AGAIN: Duration = Duration::from_secs(60);

/// Sends sequentially, each over a new connection.
pub(super) async fn several(
    file: &File<'_>,
    step: &StoryboardStep,
    action: &StepAction,
    times: usize,
) -> SendResult {
    let mut exchanges = Vec::new();
    let action = match filled(file, step, action, None) {
        Ok(action) => action,
        Err(sent) => return sent,
    };
    for _ in 0..times {
        let call = match call(file, step, &action).await {
            Ok(call) => call,
            Err(sent) => return sent,
        };
        let sent = Instant::now();
        match file.runner.caller.send(&call).await {
            Ok(answer) => exchanges.push(RecordedExchange::new(call.asked.clone(), answer, sent)),
            Err(error) => return SendResult::Failed(error.to_string()),
        }
    }
    SendResult::Answered(exchanges)
}

/// Sends the first request with keys in each form, until one is not refused. All later keys have that form.
pub(super) async fn find_key_form(
    file: &mut File<'_>,
    step: &StoryboardStep,
    action: &StepAction,
) -> SendResult {
    let mut first = None;
    for form in KeyForm::ALL {
        file.key_form = form;
        let sent = several(file, step, action, 1).await;
        let refused = match &sent {
            SendResult::Answered(exchanges) => {
                exchanges.iter().any(|exchange| (400..500).contains(&exchange.answer.status))
            }
            _ => false,
        };
        if !refused {
            file.notices.extend(form.notice().map(str::to_owned));
            file.context.insert("key_quoted".to_owned(), json!(form == KeyForm::Quoted));
            return sent;
        }
        first.get_or_insert(sent);
    }
    // It is not about the form.
    file.key_form = KeyForm::Quoted;
    first.unwrap_or_else(|| SendResult::Failed("no form of a key was tried".to_owned()))
}

/// Sends concurrently.
pub(super) async fn at_once(
    file: &File<'_>,
    step: &StoryboardStep,
    action: &StepAction,
    parallel: &Parallel,
) -> SendResult {
    let base = match filled(file, step, action, None) {
        Ok(action) => action,
        Err(sent) => return sent,
    };
    let mut calls = Vec::new();
    for index in 0..parallel.count {
        let mut one = base.clone();
        if !parallel.vary.is_empty() {
            let over = match file.scope().fill(&parallel.vary[index % parallel.vary.len()]) {
                Ok(over) => over,
                Err(unresolved) => return unresolved.into(),
            };
            match &mut one {
                StepAction::Request(request) => *request = overlay(request, &over),
                StepAction::Tool { arguments, .. } => *arguments = overlay(arguments, &over),
                _ => {}
            }
        }
        let mut correlation = None;
        if parallel.key == SharedKey::Fresh {
            match &mut one {
                StepAction::Request(request) => {
                    let header = file.runner.options.key_header.as_deref().unwrap_or(KEY_HEADER);
                    set_key_header(request, header, &file.key_form.key(&uuid_v4()));
                }
                StepAction::Tool { arguments, .. } => {
                    if let Some(members) = arguments.as_object_mut() {
                        members.insert("idempotency_key".to_owned(), json!(uuid_v4()));
                    }
                }
                _ => {}
            }
        }
        if let StepAction::Tool { arguments, .. } = &mut one {
            correlation = tell_apart(arguments, &format!("{}", index + 1));
        }
        match call(file, step, &one).await {
            Ok(call) => calls.push(match correlation {
                Some((sent, written)) => call.correlated(sent, written),
                None => call,
            }),
            Err(sent) => return sent,
        }
    }
    let asked: Vec<Value> = calls.iter().map(|call| call.asked.clone()).collect();
    let sent = Instant::now();
    // A longer --timeout is the way out for an API that needs more time for a race.
    let longest = file.runner.options.timeout;
    let barrier = if longest > DEFAULT_TIMEOUT { parallel.barrier.max(longest) } else { parallel.barrier };
    let exchange = |(asked, (answer, took))| RecordedExchange { asked, answer, sent, took };
    match dispatch(file.runner.caller.target(), calls, barrier).await {
        Dispatched::Answered(answers) => {
            SendResult::Answered(asked.into_iter().zip(answers).map(exchange).collect())
        }
        Dispatched::Incomplete(answers, why) => {
            let answered =
                asked.into_iter().zip(answers).filter_map(|(asked, answer)| Some((asked, answer?)));
            SendResult::Incomplete(answered.map(exchange).collect(), Skip::undecided(&why))
        }
    }
}

/// Sends new keys until the rate limiter refuses one; then, after the requested wait, the refused key again.
pub(super) async fn trip(file: &File<'_>, step: &StoryboardStep, trip: &Trip) -> SendResult {
    let caller = &file.runner.caller;
    for _ in 0..trip.attempts {
        let key = uuid_v4();
        let action = match filled(file, step, &trip.target, Some(&key)) {
            Ok(action) => action,
            Err(sent) => return sent,
        };
        let first = match call(file, step, &action).await {
            Ok(call) => call,
            Err(sent) => return sent,
        };
        let sent = Instant::now();
        let tripped = match caller.send(&first).await {
            Ok(answer) => answer,
            Err(error) => return SendResult::Failed(error.to_string()),
        };
        if !tripped.is_rate_limited() {
            continue;
        }
        let exchange =
            |answer: &TargetAnswer| RecordedExchange::new(first.asked.clone(), answer.clone(), sent);
        let fail = |expected: Value, actual: &str| CheckVerdict::Fail { expected, actual: json!(actual) };
        let Some(wait) = tripped.retry_after().filter(|wait| !wait.is_zero()) else {
            let verdict = fail(json!("a retry hint"), "missing_retry_after");
            return SendResult::Judged(vec![exchange(&tripped)], Box::new(verdict));
        };
        if wait > trip.longest {
            let verdict =
                fail(json!(format!("a retry hint of at most {:?}", trip.longest)), "replay_wait_exceeded");
            return SendResult::Judged(vec![exchange(&tripped)], Box::new(verdict));
        }
        sleep(wait).await;
        let mut action = action;
        if let StepAction::Tool { arguments, .. } = &mut action {
            tell_apart(arguments, "replay");
        }
        let again = match call(file, step, &action).await {
            Ok(call) => call,
            Err(sent) => return sent,
        };
        return match caller.send(&again).await {
            Ok(replayed) => {
                let verdict = rate_limit(&tripped, &replayed);
                SendResult::Judged(
                    vec![RecordedExchange::new(again.asked.clone(), replayed, sent)],
                    Box::new(verdict),
                )
            }
            Err(error) => SendResult::Failed(error.to_string()),
        };
    }
    SendResult::Skipped(Skip::new(Reason::NotApplicable, "rate_limit_not_triggered"))
}

/// Runs the command, and waits until the target accepts connections again.
pub(super) async fn restart(file: &mut File<'_>) -> SendResult {
    let Some(command) = &file.runner.options.restart else {
        return SendResult::Skipped(Skip::new(Reason::NotApplicable, "no --restart command"));
    };
    let mut child = tokio::process::Command::new("sh");
    child.arg("-c").arg(command).stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let deadline = Instant::now() + UP_AGAIN;
    match tokio::time::timeout_at(deadline, child.kill_on_drop(true).status()).await {
        Err(_) => return SendResult::Failed(format!("the restart command did not end within {UP_AGAIN:?}")),
        Ok(Err(error)) => return SendResult::Failed(format!("cannot run the restart command: {error}")),
        Ok(Ok(status)) if !status.success() => {
            return SendResult::Failed(format!("the restart command failed: {status}"));
        }
        Ok(Ok(_)) => {}
    }
    file.runner.caller.forget_sessions();
    loop {
        match file.runner.caller.target().open(SharedHalves::released()).await {
            Ok(_) => return SendResult::Answered(Vec::new()),
            Err(error) if Instant::now() >= deadline => return SendResult::Failed(error.to_string()),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// `2`, `"2s"`, `"500ms"`, `"1m"`.
pub(super) fn duration(value: &Value) -> Option<Duration> {
    let text = match value {
        Value::Number(number) => return Duration::try_from_secs_f64(number.as_f64()?).ok(),
        Value::String(text) => text.trim(),
        _ => return None,
    };
    let split =
        text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().ok()?;
    let seconds = match unit.trim() {
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds).ok()
}
