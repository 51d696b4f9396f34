//! Checks: conditions on answers.

mod across;
mod one;
mod schema;

use regex_lite::Regex;
use serde_json::{Map, Value};

pub(crate) use self::across::{across, rate_limit};
pub(crate) use self::one::{CheckView, one};

use crate::substitute::{Unresolved, Variables};

/// One check, as written in the file.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    pub(crate) kind: CheckKind,
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) value: Option<Value>,
    pub(crate) allowed: Option<Vec<Value>>,
    pub(crate) context_key: Option<String>,
    pub(crate) pattern: Option<String>,
    pub(crate) header: Option<String>,
    pub(crate) step: Option<String>,
    pub(crate) min: Option<Value>,
    pub(crate) max: Option<Value>,
    pub(crate) nested: Vec<Check>,
    pub(crate) schema: Option<Value>,
    pub(crate) description: String,
    pub(crate) severity: Severity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    Required,
    Advisory,
}

/// The kind of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckKind {
    FieldPresent,
    FieldAbsent,
    FieldPattern,
    FieldValue,
    FieldValueOrAbsent,
    FieldContains,
    ArrayLength,
    EnvelopeFieldPresent,
    EnvelopeFieldAbsent,
    EnvelopeFieldPattern,
    HttpStatus,
    HttpStatusIn,
    StatusCode,
    HeaderPresent,
    HeaderAbsent,
    HeaderValue,
    BodyEqualsStep,
    StatusEqualsStep,
    HeaderEqualsStep,
    FieldDiffersStep,
    RetryHint,
    ConflictAtOnce,
    BodyExcludes,
    ErrorCode,
    AnyOf,
    FieldLessThan,
    FieldGreaterThan,
    FieldEqualsContext,
    FieldDiffersContext,
    FieldInContextArray,
    ResponseSchema,
    CrossEqual,
    CrossCount,
    CrossOneRequest,
    RateLimitNotReplayed,
    Unknown,
}

impl CheckKind {
    /// Every kind by its name in a file.
    pub(crate) const NAMES: [(&'static str, Self); 35] = [
        ("field_present", Self::FieldPresent),
        ("field_absent", Self::FieldAbsent),
        ("field_pattern", Self::FieldPattern),
        ("field_value", Self::FieldValue),
        ("field_value_or_absent", Self::FieldValueOrAbsent),
        ("field_contains", Self::FieldContains),
        ("array_length", Self::ArrayLength),
        ("envelope_field_present", Self::EnvelopeFieldPresent),
        ("envelope_field_absent", Self::EnvelopeFieldAbsent),
        ("envelope_field_pattern", Self::EnvelopeFieldPattern),
        ("http_status", Self::HttpStatus),
        ("http_status_in", Self::HttpStatusIn),
        ("status_code", Self::StatusCode),
        ("header_present", Self::HeaderPresent),
        ("header_absent", Self::HeaderAbsent),
        ("header_value", Self::HeaderValue),
        ("body_equals_step", Self::BodyEqualsStep),
        ("status_equals_step", Self::StatusEqualsStep),
        ("header_equals_step", Self::HeaderEqualsStep),
        ("field_differs_step", Self::FieldDiffersStep),
        ("retry_hint", Self::RetryHint),
        ("conflict_at_once", Self::ConflictAtOnce),
        ("body_excludes", Self::BodyExcludes),
        ("error_code", Self::ErrorCode),
        ("any_of", Self::AnyOf),
        ("field_less_than", Self::FieldLessThan),
        ("field_greater_than", Self::FieldGreaterThan),
        ("field_equals_context", Self::FieldEqualsContext),
        ("field_differs_context", Self::FieldDiffersContext),
        ("field_in_context_array", Self::FieldInContextArray),
        ("response_schema", Self::ResponseSchema),
        ("cross_response_field_equal", Self::CrossEqual),
        ("cross_response_count_distinct", Self::CrossCount),
        ("cross_response_one_request", Self::CrossOneRequest),
        ("replay_not_cached_rate_limit", Self::RateLimitNotReplayed),
    ];

    pub(crate) fn of(name: &str) -> Self {
        Self::NAMES.iter().find(|(known, _)| *known == name).map_or(Self::Unknown, |(_, kind)| *kind)
    }

    /// True if it compares several answers.
    pub(crate) fn crosses(self) -> bool {
        matches!(self, Self::CrossEqual | Self::CrossCount | Self::CrossOneRequest)
    }

    /// True if it defines which status or error is correct.
    pub(crate) fn judges_errors(self) -> bool {
        matches!(self, Self::HttpStatus | Self::HttpStatusIn | Self::StatusCode | Self::ErrorCode)
    }
}

impl Check {
    /// The regular expression, in `value` or `pattern`.
    pub(crate) fn pattern_text(&self) -> Option<String> {
        self.pattern.clone().or_else(|| self.value.as_ref().and_then(Value::as_str).map(str::to_owned))
    }

    /// The step to compare with.
    pub(crate) fn other_step(&self) -> Option<String> {
        self.step.clone().or_else(|| self.value.as_ref().and_then(Value::as_str).map(str::to_owned))
    }

    /// The accepted values: `value`, or any of `allowed_values`.
    pub(crate) fn wanted(&self) -> Vec<Value> {
        let mut wanted: Vec<Value> = self.allowed.clone().unwrap_or_default();
        wanted.extend(self.value.clone());
        wanted
    }

    /// The same check with every value filled in.
    pub(crate) fn fill(&self, scope: &Variables<'_>) -> Result<Self, Unresolved> {
        let value = |value: &Option<Value>| value.as_ref().map(|value| scope.fill(value)).transpose();
        let text = |text: &Option<String>| text.as_deref().map(|text| scope.fill_text(text)).transpose();
        let is_pattern = matches!(self.kind, CheckKind::FieldPattern | CheckKind::EnvelopeFieldPattern);
        Ok(Self {
            path: text(&self.path)?,
            header: text(&self.header)?,
            // In a pattern, `$` marks the end.
            value: if is_pattern { self.value.clone() } else { value(&self.value)? },
            allowed: match &self.allowed {
                Some(allowed) => {
                    Some(allowed.iter().map(|value| scope.fill(value)).collect::<Result<_, _>>()?)
                }
                None => None,
            },
            min: value(&self.min)?,
            max: value(&self.max)?,
            nested: self.nested.iter().map(|nested| nested.fill(scope)).collect::<Result<_, _>>()?,
            ..self.clone()
        })
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CheckVerdict {
    Pass,
    /// It passed, with a note.
    PassNoted(String),
    Fail {
        expected: Value,
        actual: Value,
    },
    NotApplicable(String),
}

impl CheckVerdict {
    fn judge(held: bool, expected: impl FnOnce() -> Value, actual: impl FnOnce() -> Value) -> Self {
        if held { Self::Pass } else { Self::Fail { expected: expected(), actual: actual() } }
    }

    fn fail(expected: impl Into<Value>, actual: impl Into<Value>) -> Self {
        Self::Fail { expected: expected.into(), actual: actual.into() }
    }
}

/// "One of these", for reports.
fn one_of(wanted: &[Value]) -> Value {
    match wanted {
        [one] => one.clone(),
        several => {
            let mut members = Map::new();
            members.insert("one_of".to_owned(), Value::Array(several.to_vec()));
            Value::Object(members)
        }
    }
}

fn matches(pattern: &str, text: &str) -> Result<bool, String> {
    match Regex::new(pattern) {
        Ok(regex) => Ok(regex.is_match(text)),
        Err(error) => Err(format!("invalid pattern: {error}")),
    }
}
