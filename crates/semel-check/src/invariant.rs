//! Invariants that must hold after every step.

use serde_json::{Value, json};

use crate::answer::TargetAnswer;
use crate::redact::secrets_in;

/// The only members that a conflict may have.
const OF_A_CONFLICT: &[&str] = &[
    "adcp_error",
    "adcp_version",
    "code",
    "correlation_id",
    "detail",
    "doc_url",
    "error",
    "errors",
    "instance",
    "message",
    "recovery",
    "replayed",
    "request_id",
    "retryable",
    "status",
    "success",
    "task_id",
    "timestamp",
    "title",
    "trace_id",
    "type",
    "version",
];
/// Codes of a conflict.
const CONFLICTS: &[&str] =
    &["IDEMPOTENCY_CONFLICT", "CONFLICT", "conflict", "idempotency_conflict", "idempotency_error"];

/// A violated invariant: the expected and the actual value.
pub(crate) struct Broken {
    pub(crate) expected: Value,
    pub(crate) actual: Value,
    pub(crate) pointer: Option<String>,
}

/// Checks one answer. `None`: the invariant is unknown.
pub(crate) fn holds(
    name: &str,
    asked: &Value,
    answer: &TargetAnswer,
    secrets: &[String],
) -> Option<Result<(), Box<Broken>>> {
    match name {
        "idempotency.conflict_no_payload_leak" => Some(no_leak(asked, answer)),
        "context.no_secret_echo" => Some(no_echo(asked, answer, secrets)),
        _ => None,
    }
}

fn no_leak(asked: &Value, answer: &TargetAnswer) -> Result<(), Box<Broken>> {
    if !answer.code().is_some_and(|code| CONFLICTS.contains(&code)) {
        return Ok(());
    }
    // The answer may repeat the context of its own request.
    let context = asked.pointer("/arguments/context").or_else(|| asked.pointer("/body/context"));
    match stranger(&answer.payload, context, "") {
        None => Ok(()),
        Some((pointer, actual)) => Err(Box::new(Broken {
            expected: json!(
                "a conflict that carries nothing but code, message, recovery, status and correlation ids"
            ),
            actual,
            pointer: Some(pointer),
        })),
    }
}

/// The first member that a conflict must not have.
fn stranger(value: &Value, context: Option<&Value>, at: &str) -> Option<(String, Value)> {
    match value {
        Value::Object(members) => members.iter().find_map(|(name, member)| {
            let at = format!("{at}/{name}");
            let empty = match member {
                Value::Null => true,
                Value::Array(items) => items.is_empty(),
                Value::Object(members) => members.is_empty(),
                _ => false,
            };
            if empty || (name == "context" && (Some(member) == context || only_correlation(member))) {
                return None;
            }
            if !OF_A_CONFLICT.contains(&name.as_str()) {
                return Some((at, member.clone()));
            }
            stranger(member, context, &at)
        }),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| stranger(item, context, &format!("{at}/{index}"))),
        _ => None,
    }
}

fn only_correlation(context: &Value) -> bool {
    let known = ["correlation_id", "request_id", "trace_id"];
    context.as_object().is_some_and(|members| members.keys().all(|name| known.contains(&name.as_str())))
}

fn no_echo(asked: &Value, answer: &TargetAnswer, secrets: &[String]) -> Result<(), Box<Broken>> {
    let mut secret = secrets.to_vec();
    secrets_in(asked, &mut secret);
    let mut text = String::from_utf8_lossy(&answer.body).into_owned();
    for value in answer.headers.values() {
        text.push('\n');
        text.push_str(&String::from_utf8_lossy(value.as_bytes()));
    }
    if secret.iter().any(|secret| !secret.is_empty() && text.contains(secret.as_str())) {
        let expected = json!("an answer without any secret of the request");
        // The report does not say which secret it was.
        return Err(Box::new(Broken {
            expected,
            actual: json!("a secret of the request is in the answer"),
            pointer: None,
        }));
    }
    Ok(())
}
