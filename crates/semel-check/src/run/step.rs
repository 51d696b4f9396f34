//! One step: its request or requests, its checks, its captures.

use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::file::File;
use super::grade::{Exchange, Graded, grade};
use crate::answer::Answer;
use crate::call::{Begun, Call, overlay};
use crate::check::{Kind, Verdict, rate_limit};
use crate::dispatch::{Dispatched, dispatch};
use crate::path::Path;
use crate::report::{Grade, Outcome, Reason, Skip, StepReport};
use crate::storyboard::{
    Action, Auth, Dialect, KeyRule, Level, Parallel, Phase, SharedKey, Source, Spread, Step, Transport, Trip,
};
use crate::substitute::{Unresolved, uuid_v4};
use crate::wire::Hold;

/// How long a restarted target may take until it accepts connections.
const UP_AGAIN: Duration = Duration::from_secs(60);
/// The contracts this runner fulfils.
const CONTRACTS: [&str; 2] = ["parallel_dispatch_runner", "rate_limit_trip_runner"];

/// How the sending went.
pub(super) enum Sent {
    Answered(Vec<Exchange>),
    Skipped(Skip),
    /// A value is missing: nothing was sent.
    Unresolved(Unresolved),
    /// No answer, or not what the step is about.
    Failed(String),
    /// The step judged itself.
    Judged(Vec<Exchange>, Box<Verdict>),
}

impl From<Unresolved> for Sent {
    fn from(unresolved: Unresolved) -> Self {
        Self::Unresolved(unresolved)
    }
}

/// Runs a step and grades it.
pub(super) async fn run(file: &mut File<'_>, phase: &Phase, step: &Step) -> StepReport {
    let started = Instant::now();
    let sent = send(file, step).await;
    let took = started.elapsed();
    let mut report = file.skipped(phase, step, Skip::new(Reason::NotApplicable, ""));
    report.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let graded = match sent {
        Sent::Skipped(skip) => {
            report.skip = Some(skip);
            return report;
        }
        Sent::Unresolved(Unresolved(token)) => Graded::unresolved(&token),
        Sent::Failed(error) => {
            report.error = Some(error);
            Graded::default()
        }
        Sent::Answered(exchanges) => {
            let graded = grade(file, step, &exchanges, None);
            remember(file, step, &exchanges, &mut report);
            graded
        }
        Sent::Judged(exchanges, verdict) => {
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
    let checks =
        report.validations.iter().filter(|validation| validation.outcome != Outcome::NotApplicable).count();
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

/// Keeps the first answer for later steps, whatever the checks said of it.
fn remember(file: &mut File<'_>, step: &Step, exchanges: &[Exchange], report: &mut StepReport) {
    let Some(first) = exchanges.first() else { return };
    report.extraction_path = first.answer.extraction;
    file.payloads.insert(step.id.clone(), first.answer.payload.clone());
    file.bodies.insert(step.id.clone(), first.answer.body.clone());
}

/// Captures values; what cannot be captured fails the step.
fn capture(file: &mut File<'_>, step: &Step) -> Vec<crate::report::Validation> {
    let mut failed = Vec::new();
    for output in &step.outputs {
        let Source::Path(path) = &output.from else { continue };
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

async fn send(file: &mut File<'_>, step: &Step) -> Sent {
    if let Some(contract) = step.requires_contract.as_deref().filter(|contract| !CONTRACTS.contains(contract))
    {
        return Sent::Skipped(Skip::new(Reason::UnsatisfiedContract, format!("needs `{contract}`")));
    }
    if let Some(tool) = step.requires_tool.as_deref().filter(|tool| !file.has_tool(tool)) {
        return Sent::Skipped(missing(tool));
    }
    let mut wait = None;
    if let Some(text) = &step.wait {
        match file.scope().fill(text) {
            Err(unresolved) => return unresolved.into(),
            Ok(value) => match duration(&value) {
                Some(duration) => wait = Some(duration),
                None => return Sent::Failed(format!("`wait` is no duration: {value}")),
            },
        }
    }
    if let Some(wait) = wait {
        sleep(wait).await;
    }
    match &step.action {
        Action::Restart => restart(file).await,
        Action::Contributions => Sent::Answered(Vec::new()),
        Action::Trip(wanted) => trip(file, step, wanted).await,
        action @ (Action::Request(_) | Action::Tool { .. }) => match &step.spread {
            Spread::Once => several(file, step, action, 1).await,
            Spread::Repeat(times) => several(file, step, action, *times).await,
            Spread::Parallel(parallel) => at_once(file, step, action, parallel).await,
        },
    }
}

fn missing(tool: &str) -> Skip {
    let reason =
        if tool == "comply_test_controller" { Reason::MissingTestController } else { Reason::MissingTool };
    Skip::new(reason, format!("the target has no tool `{tool}`"))
}

/// What is sent: the request or the arguments with every value filled in.
fn filled(file: &File<'_>, step: &Step, action: &Action, key: Option<&str>) -> Result<Action, Sent> {
    let scope = file.scope();
    let inject = |into: &mut Value| {
        for input in &step.inputs {
            let Some(value) = file.context.get(&input.key) else {
                // The other dialect lets an input without a value be.
                if file.storyboard.dialect == Dialect::Own {
                    return Err(Sent::Unresolved(Unresolved(format!("$context.{}", input.key))));
                }
                continue;
            };
            Path::parse(&input.inject_at).set(into, value.clone());
        }
        Ok(())
    };
    match action {
        Action::Request(request) => {
            let mut request = scope.fill(request).map_err(Sent::from)?;
            inject(&mut request)?;
            if let Some(key) = key {
                set_key_header(&mut request, key);
            }
            Ok(Action::Request(request))
        }
        Action::Tool { name, arguments } => {
            let (name, fallback) =
                name.split_once('|').map_or((name.as_str(), None), |(name, other)| (name, Some(other)));
            let name = match (scope.fill_text(name), fallback) {
                (Ok(name), _) => name,
                (Err(_), Some(fallback)) => fallback.to_owned(),
                (Err(unresolved), None) => return Err(unresolved.into()),
            };
            if !file.has_tool(&name) {
                return Err(Sent::Skipped(missing(&name)));
            }
            let mut arguments = scope.fill(arguments).map_err(Sent::from)?;
            inject(&mut arguments)?;
            if let Some(members) = arguments.as_object_mut() {
                if step.key == KeyRule::Omit {
                    members.shift_remove("idempotency_key");
                } else if let Some(key) = key {
                    members.insert("idempotency_key".to_owned(), json!(key));
                } else if !members.contains_key("idempotency_key") && wants_key(&name, file.tools.get(&name))
                {
                    members.insert("idempotency_key".to_owned(), json!(uuid_v4()));
                }
            }
            Ok(Action::Tool { name, arguments })
        }
        other => Ok(other.clone()),
    }
}

fn set_key_header(request: &mut Value, key: &str) {
    let Some(request) = request.as_object_mut() else { return };
    let headers = request.entry("headers").or_insert_with(|| json!({}));
    if let Some(headers) = headers.as_object_mut() {
        let known = headers.keys().find(|name| name.eq_ignore_ascii_case("idempotency-key")).cloned();
        headers.insert(known.unwrap_or_else(|| "Idempotency-Key".to_owned()), json!(key));
    }
}

/// Whether a tool changes something, and so wants a key: by its schema, else by its name.
fn wants_key(name: &str, schema: Option<&Value>) -> bool {
    let schema = schema.unwrap_or(&Value::Null);
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    if schema.pointer("/properties/idempotency_key").is_some()
        || required.into_iter().any(|name| name == "idempotency_key")
    {
        return true;
    }
    let strict = schema.get("additionalProperties") == Some(&Value::Bool(false));
    let reads = ["get_", "list_", "check_", "preview_", "validate_", "comply_", "search_", "tasks_"];
    !strict && !reads.iter().any(|start| name.starts_with(start))
}

/// Makes a call ready.
async fn call(file: &File<'_>, step: &Step, action: &Action) -> Result<Call, Sent> {
    let credential = match credential(file, &step.auth) {
        Ok(credential) => credential,
        Err(skip) => return Err(Sent::Skipped(skip)),
    };
    let credential = credential.as_deref();
    let caller = &file.runner.caller;
    let call = match action {
        Action::Request(request) => Call::request(request, credential),
        Action::Tool { name, arguments } => {
            match caller.begin(credential).await {
                Err(error) => return Err(Sent::Failed(error.to_string())),
                // A credential that may not even begin a session was refused: that is the answer.
                Ok(Begun::Refused(answer)) => {
                    let asked = json!({"tool": name, "arguments": arguments});
                    return Err(Sent::Answered(vec![Exchange { asked, answer: *answer }]));
                }
                Ok(Begun::Session) => {}
            }
            caller.tool(name, arguments, credential)
        }
        _ => Err("nothing to send".to_owned()),
    };
    call.map_err(Sent::Failed)
}

fn credential(file: &File<'_>, auth: &Auth) -> Result<Option<String>, Skip> {
    Ok(match auth {
        Auth::Given => file.credential(),
        Auth::None => None,
        Auth::Other => match &file.runner.options.other_auth {
            Some(other) => Some(other.clone()),
            None => {
                return Err(Skip::new(Reason::NotApplicable, "needs a second principal: --other-auth TOKEN"));
            }
        },
        Auth::Kit(path) => match Path::parse(path).get(&file.storyboard.test_kit) {
            Some(Value::String(token)) => Some(token),
            Some(basic @ Value::Object(_)) => Some(basic_credential(&basic)),
            _ if path == "auth.api_key" && file.credential().is_some() => file.credential(),
            _ => return Err(Skip::new(Reason::NotApplicable, format!("the test kit has no `{path}`"))),
        },
        Auth::Invalid("basic") => {
            Some(basic_credential(&json!({"credentials": format!("nobody:{}", file.invalid)})))
        }
        Auth::Invalid("jwt") => {
            let part = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
            Some(format!("{}.{}.{}", part("head"), part(&file.invalid), part("signature")))
        }
        Auth::Invalid(_) => Some(file.invalid.clone()),
        Auth::Unknown(what) => {
            return Err(Skip::new(
                Reason::NotApplicable,
                format!("this runner cannot authenticate with {what}"),
            ));
        }
    })
}

fn basic_credential(kit: &Value) -> String {
    let text = |name: &str| kit.get(name).and_then(Value::as_str).unwrap_or_default();
    let pair = match text("credentials") {
        "" => format!("{}:{}", text("username"), text("password")),
        pair => pair.to_owned(),
    };
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

/// One after the other, each over a connection of its own.
async fn several(file: &File<'_>, step: &Step, action: &Action, times: usize) -> Sent {
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
        match file.runner.caller.send(&call).await {
            Ok(answer) => exchanges.push(Exchange { asked: call.asked.clone(), answer }),
            Err(error) => return Sent::Failed(error.to_string()),
        }
    }
    Sent::Answered(exchanges)
}

/// All at once.
async fn at_once(file: &File<'_>, step: &Step, action: &Action, parallel: &Parallel) -> Sent {
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
                Action::Request(request) => *request = overlay(request, &over),
                Action::Tool { arguments, .. } => *arguments = overlay(arguments, &over),
                _ => {}
            }
        }
        let mut correlation = None;
        if parallel.key == SharedKey::Fresh {
            match &mut one {
                Action::Request(request) => set_key_header(request, &uuid_v4()),
                Action::Tool { arguments, .. } => {
                    if let Some(members) = arguments.as_object_mut() {
                        members.insert("idempotency_key".to_owned(), json!(uuid_v4()));
                    }
                }
                _ => {}
            }
        }
        if let Action::Tool { arguments, .. } = &mut one {
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
    match dispatch(file.runner.caller.target(), calls, parallel.barrier).await {
        Dispatched::Answered(answers) => {
            let exchanges = asked.into_iter().zip(answers).map(|(asked, answer)| Exchange { asked, answer });
            Sent::Answered(exchanges.collect())
        }
        Dispatched::TimedOut(why) => {
            Sent::Skipped(Skip::new(Reason::NotApplicable, format!("step_timeout: {why}")))
        }
        Dispatched::Broken(error) => Sent::Failed(error.to_string()),
    }
}

/// Changes the correlation id, where there is one. What it is now, and what it was.
fn tell_apart(arguments: &mut Value, suffix: &str) -> Option<(Value, Value)> {
    let id = arguments.pointer_mut("/context/correlation_id")?;
    let written = id.clone();
    let sent = Value::String(format!("{}--{suffix}", written.as_str()?));
    *id = sent.clone();
    Some((sent, written))
}

/// Fresh keys until the limiter trips; then, after the wait it asks for, the tripped key again.
async fn trip(file: &File<'_>, step: &Step, trip: &Trip) -> Sent {
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
        let tripped = match caller.send(&first).await {
            Ok(answer) => answer,
            Err(error) => return Sent::Failed(error.to_string()),
        };
        if !tripped.is_rate_limited() {
            continue;
        }
        let exchange = |answer: &Answer| Exchange { asked: first.asked.clone(), answer: answer.clone() };
        let fail = |expected: Value, actual: &str| Verdict::Fail { expected, actual: json!(actual) };
        let Some(wait) = tripped.retry_after().filter(|wait| !wait.is_zero()) else {
            let verdict = fail(json!("a hint when to come back"), "missing_retry_after");
            return Sent::Judged(vec![exchange(&tripped)], Box::new(verdict));
        };
        if wait > trip.longest {
            let verdict =
                fail(json!(format!("a hint of at most {:?}", trip.longest)), "replay_wait_exceeded");
            return Sent::Judged(vec![exchange(&tripped)], Box::new(verdict));
        }
        sleep(wait).await;
        let mut action = action;
        if let Action::Tool { arguments, .. } = &mut action {
            tell_apart(arguments, "replay");
        }
        let again = match call(file, step, &action).await {
            Ok(call) => call,
            Err(sent) => return sent,
        };
        return match caller.send(&again).await {
            Ok(replayed) => {
                let verdict = rate_limit(&tripped, &replayed);
                Sent::Judged(
                    vec![Exchange { asked: again.asked.clone(), answer: replayed }],
                    Box::new(verdict),
                )
            }
            Err(error) => Sent::Failed(error.to_string()),
        };
    }
    Sent::Skipped(Skip::new(Reason::NotApplicable, "rate_limit_not_triggered"))
}

/// Runs the hook, and waits until the target accepts connections again.
async fn restart(file: &mut File<'_>) -> Sent {
    let Some(command) = &file.runner.options.restart else {
        return Sent::Skipped(Skip::new(Reason::NotApplicable, "no --restart command"));
    };
    let mut child = tokio::process::Command::new("sh");
    child.arg("-c").arg(command).stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let deadline = Instant::now() + UP_AGAIN;
    match tokio::time::timeout_at(deadline, child.kill_on_drop(true).status()).await {
        Err(_) => return Sent::Failed(format!("the restart command did not end within {UP_AGAIN:?}")),
        Ok(Err(error)) => return Sent::Failed(format!("the restart command cannot be run: {error}")),
        Ok(Ok(status)) if !status.success() => {
            return Sent::Failed(format!("the restart command failed: {status}"));
        }
        Ok(Ok(_)) => {}
    }
    file.runner.caller.forget_sessions();
    loop {
        match file.runner.caller.target().open(Hold::released()).await {
            Ok(_) => return Sent::Answered(Vec::new()),
            Err(error) if Instant::now() >= deadline => return Sent::Failed(error.to_string()),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// `2`, `"2s"`, `"500ms"`, `"1m"`.
fn duration(value: &Value) -> Option<Duration> {
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

/// Whether a step's answer is judged by an implicit check: over HTTP a status, over MCP an error.
pub(super) fn judges_itself(step: &Step) -> bool {
    step.checks.iter().any(|check| check.kind.judges_errors() || check.kind == Kind::RateLimitNotReplayed)
        || step.checks.iter().flat_map(|check| &check.nested).any(|check| check.kind.judges_errors())
}

/// How an answer without a body of its own is told of.
pub(super) fn transport_word(transport: Transport) -> &'static str {
    match transport {
        Transport::Http => "a status below 400",
        Transport::Mcp => "a result, not an error",
    }
}
