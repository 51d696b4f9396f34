//! Checks on one answer.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value, json};

use super::{Check, CheckKind, CheckVerdict, matches, one_of, schema};
use crate::answer::TargetAnswer;
use crate::path::{Path, same, subset};
use crate::redact::SHORTEST_SECRET;
use crate::storyboard::StoryboardDialect;

/// The data that a check can use.
#[derive(Clone, Copy)]
pub(crate) struct CheckView<'a> {
    pub(crate) answer: &'a TargetAnswer,
    pub(crate) context: &'a Map<String, Value>,
    pub(crate) dialect: StoryboardDialect,
    /// Branches that passed so far.
    pub(crate) contributions: &'a BTreeSet<String>,
    /// The answers of earlier steps.
    pub(crate) answers: &'a HashMap<String, TargetAnswer>,
    /// The step's own schema.
    pub(crate) schema: Option<&'a Value>,
}

/// Checks one answer. The check's values are filled in.
pub(crate) fn one(check: &Check, view: CheckView<'_>) -> CheckVerdict {
    let answer = view.answer;
    let payload = &answer.payload;
    let path = Path::parse(check.path.as_deref().unwrap_or_default());
    let wanted = check.wanted();
    match check.kind {
        CheckKind::FieldPresent => present(&path, payload),
        CheckKind::FieldAbsent => absent(&path, payload),
        CheckKind::EnvelopeFieldPresent => {
            either(present(&path, payload), || present(&path, &answer.envelope))
        }
        CheckKind::EnvelopeFieldAbsent => match absent(&path, payload) {
            CheckVerdict::Pass => absent(&path, &answer.envelope),
            failed => failed,
        },
        CheckKind::FieldPattern => pattern(check, &path, payload),
        CheckKind::EnvelopeFieldPattern => {
            either(pattern(check, &path, payload), || pattern(check, &path, &answer.envelope))
        }
        CheckKind::FieldValue => value(&path, payload, &wanted),
        CheckKind::FieldValueOrAbsent => match path.get(payload) {
            None => CheckVerdict::Pass,
            Some(_) => value(&path, payload, &wanted),
        },
        CheckKind::FieldContains => {
            let found = path.all(payload);
            let holds = |found: &Value, wanted: &Value| {
                subset(wanted, found)
                    || found.as_array().is_some_and(|items| items.iter().any(|item| subset(wanted, item)))
            };
            let held = found.iter().any(|found| wanted.iter().any(|wanted| holds(found, wanted)));
            CheckVerdict::judge(held, || one_of(&wanted), || Value::Array(found))
        }
        CheckKind::ArrayLength => length(check, &path, payload),
        CheckKind::HttpStatus | CheckKind::HttpStatusIn | CheckKind::StatusCode => {
            // A list in `value` is a list of accepted values.
            let wanted: Vec<Value> = wanted
                .into_iter()
                .flat_map(|value| match value {
                    Value::Array(values) => values,
                    one => vec![one],
                })
                .collect();
            let held = wanted.iter().any(|wanted| status_is(wanted, answer.status));
            CheckVerdict::judge(held, || one_of(&wanted), || Value::from(answer.status))
        }
        CheckKind::HeaderPresent => {
            let name = check.header.as_deref().unwrap_or_default();
            CheckVerdict::judge(
                answer.header(name).is_some(),
                || json!(format!("the header {name}")),
                || Value::Null,
            )
        }
        CheckKind::HeaderAbsent => {
            let name = check.header.as_deref().unwrap_or_default();
            let found = answer.header(name);
            CheckVerdict::judge(found.is_none(), || json!(format!("no header {name}")), || json!(found))
        }
        CheckKind::HeaderValue => header(check, answer, &wanted),
        CheckKind::BodyEqualsStep => with_step(check, view, |known| {
            let text = |body: &[u8]| json!(String::from_utf8_lossy(body));
            CheckVerdict::judge(known.body == answer.body, || text(&known.body), || text(&answer.body))
        }),
        CheckKind::StatusEqualsStep => with_step(check, view, |known| {
            CheckVerdict::judge(
                known.status == answer.status,
                || json!(known.status),
                || json!(answer.status),
            )
        }),
        CheckKind::HeaderEqualsStep => with_step(check, view, |known| {
            let name = check.header.as_deref().unwrap_or_default();
            let (first, now) = (known.header(name), answer.header(name));
            CheckVerdict::judge(first.is_none() || first == now, || json!(first), || json!(now))
        }),
        CheckKind::FieldDiffersStep => with_step(check, view, |known| {
            let (first, now) = (path.get(&known.payload), path.get(payload));
            let equal = first.as_ref().zip(now.as_ref()).is_some_and(|(first, now)| same(first, now));
            CheckVerdict::judge(!equal, || json!({"not": first}), || json!(now))
        }),
        CheckKind::ConflictAtOnce => {
            let is_late = answer.was_in_flight && answer.code().is_some_and(|code| code.contains("CONFLICT"));
            CheckVerdict::judge(
                !is_late,
                || json!("IDEMPOTENCY_CONFLICT at once"),
                || json!("IDEMPOTENCY_IN_FLIGHT, then IDEMPOTENCY_CONFLICT for the same request"),
            )
        }
        CheckKind::RetryHint => CheckVerdict::judge(
            !answer.without_hint,
            || json!("the header Retry-After"),
            || json!("a refusal that does not say when to ask again"),
        ),
        CheckKind::BodyExcludes => excludes(answer, &wanted),
        CheckKind::ErrorCode => {
            let code = answer.code();
            let right =
                |code: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted.as_str() == Some(code));
            let expected = || if wanted.is_empty() { json!("an error with a code") } else { one_of(&wanted) };
            CheckVerdict::judge(code.is_some_and(right), expected, || json!(code))
        }
        CheckKind::AnyOf => any_of(check, view, &path, &wanted),
        CheckKind::FieldLessThan => compare(check, view, &path, |one, other| one < other, "less than"),
        CheckKind::FieldGreaterThan => compare(check, view, &path, |one, other| one > other, "greater than"),
        CheckKind::FieldEqualsContext => with_context(check, view, |known| {
            let found = path.get(payload);
            let held = found.as_ref().is_some_and(|found| same(found, known));
            CheckVerdict::judge(held, || known.clone(), || json!(found))
        }),
        CheckKind::FieldDiffersContext => with_context(check, view, |known| {
            let found = path.get(payload);
            let held = found.as_ref().is_some_and(|found| !found.is_null() && !same(found, known));
            CheckVerdict::judge(held, || json!({"not": known}), || json!(found))
        }),
        CheckKind::FieldInContextArray => with_context(check, view, |known| {
            let found = path.get(payload);
            let members = known.as_array();
            let held = found
                .as_ref()
                .zip(members)
                .is_some_and(|(found, known)| known.iter().any(|one| same(one, found)));
            CheckVerdict::judge(held, || json!({"one_of": known}), || json!(found))
        }),
        CheckKind::ResponseSchema => {
            match check.schema.as_ref().filter(|schema| schema.is_object()).or(view.schema) {
                None => CheckVerdict::NotApplicable("no schema available".to_owned()),
                Some(known) => schema::validate(known, payload),
            }
        }
        CheckKind::CrossEqual | CheckKind::CrossCount | CheckKind::CrossOneRequest => {
            CheckVerdict::NotApplicable("compares several answers; this step has one".to_owned())
        }
        CheckKind::RateLimitNotReplayed => {
            CheckVerdict::NotApplicable("only for a rate-limit trip".to_owned())
        }
        CheckKind::Unknown => CheckVerdict::NotApplicable(format!("unknown check `{}`", check.name)),
    }
}

fn either(first: CheckVerdict, second: impl FnOnce() -> CheckVerdict) -> CheckVerdict {
    match first {
        CheckVerdict::Fail { expected, actual } => match second() {
            CheckVerdict::Fail { .. } => CheckVerdict::Fail { expected, actual },
            other => other,
        },
        other => other,
    }
}

fn present(path: &Path, root: &Value) -> CheckVerdict {
    let found = path.get(root).filter(|found| !found.is_null());
    CheckVerdict::judge(found.is_some(), || json!("a value"), || Value::Null)
}

fn absent(path: &Path, root: &Value) -> CheckVerdict {
    let found = path.get(root);
    CheckVerdict::judge(found.is_none(), || json!("nothing there"), || json!(found))
}

fn value(path: &Path, root: &Value, wanted: &[Value]) -> CheckVerdict {
    let found = if path.has_wildcard() { path.all(root) } else { path.get(root).into_iter().collect() };
    // Every one of several values must match.
    let held = !found.is_empty() && found.iter().all(|found| wanted.iter().any(|wanted| same(wanted, found)));
    CheckVerdict::judge(held, || one_of(wanted), || found.first().cloned().unwrap_or(Value::Null))
}

fn pattern(check: &Check, path: &Path, root: &Value) -> CheckVerdict {
    let pattern = check.pattern_text().unwrap_or_default();
    let found = path.get(root);
    let text = match &found {
        Some(Value::String(text)) => text.clone(),
        Some(number @ Value::Number(_)) => number.to_string(),
        _ => return CheckVerdict::fail(json!({"matches": pattern}), json!(found)),
    };
    match matches(&pattern, &text) {
        Ok(held) => CheckVerdict::judge(held, || json!({"matches": pattern}), || json!(found)),
        Err(why) => CheckVerdict::NotApplicable(why),
    }
}

fn length(check: &Check, path: &Path, root: &Value) -> CheckVerdict {
    let found = path.get(root);
    let Some(items) = found.as_ref().and_then(Value::as_array) else {
        return CheckVerdict::fail("array", json!(found));
    };
    let count = u64::try_from(items.len()).unwrap_or(u64::MAX);
    let bound = |value: &Option<Value>| value.as_ref().and_then(Value::as_u64);
    let (exact, min, max) = (bound(&check.value), bound(&check.min), bound(&check.max));
    if exact.is_none() && min.is_none() && max.is_none() {
        return CheckVerdict::fail("a whole number to compare with", Value::Null);
    }
    let held = exact.is_none_or(|exact| count == exact)
        && min.is_none_or(|min| count >= min)
        && max.is_none_or(|max| count <= max);
    CheckVerdict::judge(
        held,
        || exact.map_or_else(|| json!({"min": min, "max": max}), Value::from),
        || Value::from(count),
    )
}

/// A number, `"2xx"`, or a number as a string.
fn status_is(wanted: &Value, status: u16) -> bool {
    match wanted {
        Value::Number(number) => number.as_u64() == Some(u64::from(status)),
        Value::String(class) => match class.strip_suffix("xx") {
            Some(first) => first.parse() == Ok(status / 100),
            None => class.parse() == Ok(status),
        },
        _ => false,
    }
}

fn header(check: &Check, answer: &TargetAnswer, wanted: &[Value]) -> CheckVerdict {
    let name = check.header.as_deref().unwrap_or_default();
    let found = answer.header(name);
    let Some(text) = &found else { return CheckVerdict::fail(json!({"header": name}), Value::Null) };
    if let Some(pattern) = &check.pattern {
        return match matches(pattern, text) {
            Ok(held) => CheckVerdict::judge(held, || json!({"matches": pattern}), || json!(text)),
            Err(why) => CheckVerdict::NotApplicable(why),
        };
    }
    let held = wanted.iter().any(|wanted| match wanted {
        Value::String(wanted) => wanted == text,
        other => serde_json::from_str(text).is_ok_and(|found: Value| same(&found, other)),
    });
    CheckVerdict::judge(held, || one_of(wanted), || json!(text))
}

/// Compares with the answer of an earlier step.
fn with_step(
    check: &Check,
    view: CheckView<'_>,
    judge: impl FnOnce(&TargetAnswer) -> CheckVerdict,
) -> CheckVerdict {
    let step = check.other_step().unwrap_or_default();
    match view.answers.get(&step) {
        Some(known) => judge(known),
        None => {
            CheckVerdict::fail(format!("an answer of the step {step}"), "no answer is known of that step")
        }
    }
}

/// None of these values may occur in the body or in a header.
fn excludes(answer: &TargetAnswer, wanted: &[Value]) -> CheckVerdict {
    let mut text = String::from_utf8_lossy(&answer.body).into_owned();
    for (_, value) in &answer.headers {
        text.push('\n');
        text.push_str(&String::from_utf8_lossy(value.as_bytes()));
    }
    let found = wanted.iter().find(|wanted| match wanted {
        Value::String(wanted) if wanted.len() >= SHORTEST_SECRET => text.contains(wanted.as_str()),
        // A short string would match by chance, so only a whole value counts.
        Value::String(wanted) if wanted.is_empty() => false,
        wanted => holds_value(&answer.payload, wanted),
    });
    CheckVerdict::judge(found.is_none(), || json!({"without": wanted}), || json!(found))
}

/// True if a value occurs anywhere in another.
fn holds_value(whole: &Value, value: &Value) -> bool {
    same(whole, value)
        || match whole {
            Value::Array(items) => items.iter().any(|item| holds_value(item, value)),
            Value::Object(members) => members.values().any(|member| holds_value(member, value)),
            _ => false,
        }
}

fn any_of(check: &Check, view: CheckView<'_>, path: &Path, wanted: &[Value]) -> CheckVerdict {
    if !check.nested.is_empty() {
        let verdicts: Vec<CheckVerdict> = check.nested.iter().map(|nested| one(nested, view)).collect();
        if verdicts.iter().any(|verdict| matches!(verdict, CheckVerdict::Pass | CheckVerdict::PassNoted(_))) {
            return CheckVerdict::Pass;
        }
        if verdicts.iter().all(|verdict| matches!(verdict, CheckVerdict::NotApplicable(_))) {
            return CheckVerdict::NotApplicable("none of its checks applies".to_owned());
        }
        let failed = verdicts.into_iter().find_map(|verdict| match verdict {
            CheckVerdict::Fail { actual, .. } => Some(actual),
            _ => None,
        });
        let names: Vec<&str> = check.nested.iter().map(|nested| nested.name.as_str()).collect();
        return CheckVerdict::fail(json!({"any_of": names}), failed.unwrap_or(Value::Null));
    }
    if check.path.is_some() {
        return value(path, &view.answer.payload, wanted);
    }
    let held = wanted.iter().any(|flag| flag.as_str().is_some_and(|flag| view.contributions.contains(flag)));
    CheckVerdict::judge(held, || json!({"any_of": wanted}), || json!(view.contributions))
}

fn compare(
    check: &Check,
    view: CheckView<'_>,
    path: &Path,
    holds: impl Fn(f64, f64) -> bool,
    word: &str,
) -> CheckVerdict {
    let judge = |other: &Value| {
        let found = path.get(&view.answer.payload);
        let numbers = found.as_ref().and_then(Value::as_f64).zip(other.as_f64());
        let held = numbers.is_some_and(|(one, other)| holds(one, other));
        CheckVerdict::judge(held, || json!({word: other}), || json!(found))
    };
    match (&check.context_key, &check.value) {
        (Some(_), _) => with_context(check, view, judge),
        (None, Some(value)) => judge(value),
        (None, None) => CheckVerdict::fail("a number to compare with", Value::Null),
    }
}

/// With a captured value. If the capture is absent, the other dialect passes with a note; this one fails.
fn with_context(
    check: &Check,
    view: CheckView<'_>,
    judge: impl FnOnce(&Value) -> CheckVerdict,
) -> CheckVerdict {
    let key = check.context_key.as_deref().unwrap_or_default();
    match (view.context.get(key), view.dialect) {
        (Some(known), _) => judge(known),
        (None, StoryboardDialect::Adcp) => CheckVerdict::PassNoted(format!("context_key_absent: {key}")),
        (None, StoryboardDialect::Own) => {
            CheckVerdict::fail(format!("a captured value `{key}`"), Value::Null)
        }
    }
}
