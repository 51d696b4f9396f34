//! Grades the answers of a step: each check, the implicit checks, and the invariants.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::file::File;
use super::step::{judges_itself, transport_word};
use crate::answer::{TargetAnswer, shown};
use crate::check::{Check, CheckKind, CheckVerdict, CheckView, Severity, across, one};
use crate::invariant;
use crate::path::Path;
use crate::redact::{redact, secrets_in};
use crate::report::{CheckOutcome, TimelineEntry, Validation};
use crate::storyboard::{Expects, Spread, StoryboardStep};
use crate::substitute::Unresolved;

/// Longer strings are truncated in reports.
const LONGEST_TEXT: usize = 4000;

/// A request and its answer.
#[derive(Clone, Debug)]
pub(super) struct RecordedExchange {
    pub(super) asked: Value,
    pub(super) answer: TargetAnswer,
    pub(super) sent: Instant,
    pub(super) took: Duration,
}

impl RecordedExchange {
    /// It was sent at `sent`, and answered now.
    pub(super) fn new(asked: Value, answer: TargetAnswer, sent: Instant) -> Self {
        Self { asked, answer, sent, took: sent.elapsed() }
    }

    /// The exchange as reports show it, without secrets.
    pub(super) fn entry(&self, file: &File<'_>) -> TimelineEntry {
        let mut known = file.secrets.clone();
        secrets_in(&self.asked, &mut known);
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        TimelineEntry {
            at_ms: millis(self.sent.saturating_duration_since(file.began)),
            took_ms: millis(self.took),
            request: clean(self.asked.clone(), &known),
            response: clean(shown(&self.answer), &known),
        }
    }
}

/// The results of all checks of a step.
#[derive(Default)]
pub(super) struct Graded {
    pub(super) validations: Vec<Validation>,
}

impl Graded {
    pub(super) fn failed(&self) -> bool {
        self.validations.iter().any(|validation| validation.outcome == CheckOutcome::Failed)
    }

    /// A value was missing before anything was sent.
    pub(super) fn unresolved(token: &str) -> Self {
        let mut validation = blank("unresolved_substitution", "every value of the request is known");
        (validation.outcome, validation.passed) = (CheckOutcome::Failed, false);
        validation.expected = Some(json!(token));
        validation.actual = Some(Value::Null);
        Self { validations: vec![validation] }
    }

    /// A value could not be captured.
    pub(super) fn not_captured(name: &str, path: &str, found: Option<Value>) -> Validation {
        let mut validation = blank("capture_path_not_resolvable", &format!("the answer holds `{name}`"));
        (validation.outcome, validation.passed) = (CheckOutcome::Failed, false);
        validation.json_pointer = Some(Path::parse(path).pointer());
        validation.expected = Some(json!(path));
        validation.actual = Some(found.unwrap_or(Value::Null));
        validation
    }
}

fn blank(check: &str, description: &str) -> Validation {
    Validation {
        check: check.to_owned(),
        id: None,
        description: description.to_owned(),
        outcome: CheckOutcome::Passed,
        passed: true,
        json_pointer: None,
        expected: None,
        actual: None,
        request: None,
        response: None,
        note: None,
    }
}

/// Grades all answers of a step. `judged` is the result of a step that grades itself.
pub(super) fn grade(
    file: &File<'_>,
    step: &StoryboardStep,
    exchanges: &[RecordedExchange],
    judged: Option<&CheckVerdict>,
) -> Graded {
    let grader = Grader { file, step, exchanges };
    let mut graded = Graded::default();
    // Implicit checks are reported only if they fail, because they are not in the file.
    graded.validations.extend(grader.implicit());
    for check in &step.checks {
        graded.validations.push(grader.check(check, judged));
    }
    if let Some(verdict @ CheckVerdict::Fail { .. }) = judged
        && !step.checks.iter().any(|check| check.kind == CheckKind::RateLimitNotReplayed)
    {
        let validation =
            blank("replay_not_cached_rate_limit", "a rate limit is not stored as the answer to its key");
        graded.validations.push(grader.with_verdict(
            validation,
            verdict.clone(),
            exchanges.first(),
            Severity::Required,
        ));
    }
    for name in &file.storyboard.invariants {
        graded.validations.extend(grader.invariant(name));
    }
    graded
}

struct Grader<'a> {
    file: &'a File<'a>,
    step: &'a StoryboardStep,
    exchanges: &'a [RecordedExchange],
}

impl Grader<'_> {
    fn check(&self, check: &Check, judged: Option<&CheckVerdict>) -> Validation {
        let mut validation = blank(&check.name, &check.description);
        validation.id.clone_from(&check.id);
        let filled = match check.fill(&self.file.scope()) {
            Ok(filled) => filled,
            Err(Unresolved(token)) => {
                validation.check = "unresolved_substitution".to_owned();
                let verdict = CheckVerdict::Fail { expected: json!(token), actual: Value::Null };
                return self.with_verdict(validation, verdict, None, check.severity);
            }
        };
        validation.json_pointer = filled.path.as_deref().map(|path| Path::parse(path).pointer());
        if check.kind == CheckKind::RateLimitNotReplayed
            && let Some(verdict) = judged
        {
            return self.with_verdict(validation, verdict.clone(), self.exchanges.first(), check.severity);
        }
        if check.kind.crosses() {
            let answers: Vec<&TargetAnswer> =
                self.exchanges.iter().map(|exchange| &exchange.answer).collect();
            let variants = match &self.step.spread {
                Spread::Parallel(parallel) => parallel.vary.len(),
                _ => 1,
            };
            let verdict = across(&filled, &answers, variants);
            validation.note = self.race_sentence(&filled, &verdict);
            return self.with_verdict(validation, verdict, self.exchanges.first(), check.severity);
        }
        if self.exchanges.is_empty() && check.kind != CheckKind::AnyOf {
            let verdict = CheckVerdict::NotApplicable("the step has no answer".to_owned());
            return self.with_verdict(validation, verdict, None, check.severity);
        }
        if self.exchanges.is_empty() {
            let nothing = TargetAnswer::none();
            let verdict = one(&filled, self.view(&nothing));
            return self.with_verdict(validation, verdict, None, check.severity);
        }
        // With several answers, the first failure is reported.
        let mut so_far = CheckVerdict::Pass;
        let mut about = self.exchanges.first();
        for (index, exchange) in self.exchanges.iter().enumerate() {
            let verdict = one(&filled, self.view(&exchange.answer));
            let fails = matches!(verdict, CheckVerdict::Fail { .. });
            if fails || index == 0 {
                so_far = verdict;
                about = Some(exchange);
            }
            if fails {
                if self.exchanges.len() > 1 {
                    validation.note = Some(format!("answer {} of {}", index + 1, self.exchanges.len()));
                }
                break;
            }
        }
        self.with_verdict(validation, so_far, about, check.severity)
    }

    /// The result of a race in a sentence, if it failed.
    fn race_sentence(&self, check: &Check, verdict: &CheckVerdict) -> Option<String> {
        let CheckVerdict::Fail { actual, .. } = verdict else { return None };
        if !matches!(self.step.spread, Spread::Parallel(_)) {
            return None;
        }
        let requests = self.exchanges.len();
        if check.path.as_deref() == Some("http_status") {
            let statuses: Vec<String> =
                actual.get("observed_values")?.as_array()?.iter().map(Value::to_string).collect();
            return Some(format!("{requests} requests, all answered {}", statuses.join(", ")));
        }
        if let Some(counts) = actual.get("answers_with_the_effect").and_then(Value::as_array) {
            let counts: Vec<String> = counts.iter().map(Value::to_string).collect();
            return Some(format!(
                "{requests} requests of {} kinds with one key: {} of them got the effect; one kind must get it always, the others never",
                counts.len(),
                counts.join(" and ")
            ));
        }
        let effects = actual.get("observed_cardinality")?.as_u64()?;
        Some(match effects {
            0 => format!("{requests} requests, and no answer with the member that names an effect"),
            _ => format!(
                "{requests} requests, {effects} effects: keys are not claimed before the handler runs"
            ),
        })
    }

    fn view<'b>(&'b self, answer: &'b TargetAnswer) -> CheckView<'b> {
        CheckView {
            answer,
            context: &self.file.context,
            dialect: self.file.storyboard.dialect,
            contributions: &self.file.contributions,
            answers: &self.file.answers,
            schema: self.step.schema.as_ref(),
        }
    }

    /// Success by default, or an error if one is expected.
    fn implicit(&self) -> Option<Validation> {
        let wrong = |exchange: &&RecordedExchange| {
            exchange.answer.error.is_some() != (self.step.expects == Expects::Error)
        };
        let explicit = judges_itself(self.step);
        if self.step.expects == Expects::Success && explicit {
            return None;
        }
        let exchange = self.exchanges.iter().find(wrong)?;
        let (name, expected) = match self.step.expects {
            Expects::Success => ("no_error", transport_word(self.file.storyboard.transport)),
            Expects::Error => ("expect_error", "an error"),
        };
        let actual = json!({"status": exchange.answer.status, "code": exchange.answer.code()});
        let verdict = CheckVerdict::Fail { expected: json!(expected), actual };
        Some(self.with_verdict(
            blank(name, "The answer is a success or an error, as expected"),
            verdict,
            Some(exchange),
            Severity::Required,
        ))
    }

    fn invariant(&self, name: &str) -> Option<Validation> {
        for exchange in self.exchanges {
            let held = invariant::holds(name, &exchange.asked, &exchange.answer, &self.file.secrets)?;
            if let Err(broken) = held {
                let mut validation = blank(name, "holds after every step");
                validation.json_pointer = broken.pointer;
                let verdict = CheckVerdict::Fail { expected: broken.expected, actual: broken.actual };
                return Some(self.with_verdict(validation, verdict, Some(exchange), Severity::Required));
            }
        }
        None
    }

    /// Sets the result; a failure carries the request and the answer, without secrets.
    fn with_verdict(
        &self,
        mut validation: Validation,
        verdict: CheckVerdict,
        about: Option<&RecordedExchange>,
        severity: Severity,
    ) -> Validation {
        match verdict {
            CheckVerdict::Pass => {}
            CheckVerdict::PassNoted(note) => validation.note = Some(note),
            CheckVerdict::NotApplicable(why) => {
                validation.outcome = CheckOutcome::NotApplicable;
                validation.passed = false;
                validation.note = Some(why);
            }
            CheckVerdict::Fail { expected, actual } => {
                validation.passed = false;
                validation.outcome = match severity {
                    Severity::Required => CheckOutcome::Failed,
                    Severity::Advisory => CheckOutcome::Advisory,
                };
                let mut known = self.file.secrets.clone();
                if let Some(exchange) = about {
                    // The answer may repeat them under another name.
                    secrets_in(&exchange.asked, &mut known);
                }
                let clean = |value| clean(value, &known);
                validation.expected = Some(clean(expected));
                validation.actual = Some(clean(actual));
                if let Some(exchange) = about {
                    validation.request = Some(clean(exchange.asked.clone()));
                    validation.response = Some(clean(shown(&exchange.answer)));
                }
            }
        }
        validation
    }
}

/// Removes secrets, then truncates. In this order, because a truncated secret would not be found.
fn clean(mut value: Value, known: &[String]) -> Value {
    redact(&mut value, known);
    cut(&mut value);
    value
}

/// Truncates long strings.
fn cut(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > LONGEST_TEXT => {
            let mut end = LONGEST_TEXT;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
            text.push('…');
        }
        Value::Array(items) => items.iter_mut().for_each(cut),
        Value::Object(members) => members.values_mut().for_each(cut),
        _ => {}
    }
}
