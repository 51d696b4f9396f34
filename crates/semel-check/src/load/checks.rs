//! Checks of a step.

use regex_lite::Regex;
use serde_json::Value;

use crate::check::{Check, CheckKind, Severity};
use crate::reader::{FoundProblems, MappingReader};
use crate::storyboard::StoryboardDialect;

/// Reads the checks of a step.
#[derive(Clone, Copy)]
pub(super) struct Checks<'a> {
    pub(super) log: &'a FoundProblems,
    pub(super) dialect: StoryboardDialect,
    /// True if the step gets several answers.
    pub(super) several: bool,
    pub(super) tripping: bool,
}

impl Checks<'_> {
    pub(super) fn read(self, mut table: MappingReader<'_>) -> Check {
        let at = table.at();
        let name = table.needed_text("check");
        let kind = CheckKind::of(&name);
        let path = table.text("path");
        let mut check = Check {
            kind,
            name,
            id: table.text("id"),
            header: table.text("header").or_else(|| table.text("name")).or_else(|| path.clone()),
            path,
            value: table.explicit("value"),
            allowed: Self::allowed(&mut table),
            context_key: table.text("context_key"),
            pattern: table.text("pattern"),
            step: table.text("step"),
            min: table.json("min"),
            max: table.json("max"),
            nested: table.tables("checks").into_iter().map(|nested| self.read(nested)).collect(),
            schema: table.json("schema"),
            description: table.text("description").unwrap_or_default(),
            severity: Severity::Required,
        };
        let advised = table.has("permanent_advisory") || table.has("expires_after_version");
        match table.text("severity").as_deref() {
            None | Some("required") => {}
            Some("advisory") if advised => check.severity = Severity::Advisory,
            Some("advisory") => self.log.notice(
                at,
                "an advisory check needs permanent_advisory or expires_after_version; without, it counts as required",
            ),
            Some(other) => {
                if let Some(node) = table.node("severity") {
                    self.log.mistake(node.at, format!("`severity` to be required or advisory, not {other:?}"));
                }
            }
        }
        table.finish(&[]);
        if let Some(expected) = self.missing(&check) {
            self.log.mistake(at, format!("{expected} for the check {}", check.name));
        }
        check
    }

    fn allowed(table: &mut MappingReader<'_>) -> Option<Vec<Value>> {
        match table.json("allowed_values")? {
            Value::Array(values) => Some(values),
            other => {
                if let Some(node) = table.node("allowed_values") {
                    table.wrong(node, "allowed_values", "a list");
                }
                Some(vec![other])
            }
        }
    }

    /// The missing member of a check.
    fn missing(self, check: &Check) -> Option<&'static str> {
        let wanted = check.value.is_some() || check.allowed.is_some();
        let has_path = check.path.is_some();
        match check.kind {
            CheckKind::FieldPresent
            | CheckKind::FieldAbsent
            | CheckKind::EnvelopeFieldPresent
            | CheckKind::EnvelopeFieldAbsent => (!has_path).then_some("`path`"),
            CheckKind::FieldPattern | CheckKind::EnvelopeFieldPattern => {
                let Some(pattern) = check.pattern_text() else {
                    return Some("`path` and a regular expression in `value`");
                };
                if !has_path {
                    return Some("`path`");
                }
                // Other runners may support more patterns: then the check is not applicable at run time.
                let broken = self.dialect == StoryboardDialect::Own
                    && !pattern.contains('$')
                    && Regex::new(&pattern).is_err();
                broken.then_some("a valid regular expression in `value`")
            }
            CheckKind::FieldValue | CheckKind::FieldValueOrAbsent | CheckKind::FieldContains => {
                (!has_path || !wanted).then_some("`path`, and `value` or `allowed_values`")
            }
            CheckKind::ArrayLength => {
                let bounds = check.min.is_some() || check.max.is_some();
                let whole = |value: &Option<Value>| match value {
                    Some(Value::Number(number)) => number.is_u64(),
                    Some(Value::String(text)) => text.starts_with('$'),
                    Some(_) => false,
                    None => true,
                };
                let fine = has_path && (check.value.is_some() != bounds);
                let fine = fine && whole(&check.value) && whole(&check.min) && whole(&check.max);
                (!fine).then_some("`path`, and either a whole number in `value` or `min` and `max`")
            }
            CheckKind::HttpStatus | CheckKind::HttpStatusIn | CheckKind::StatusCode => {
                (!wanted).then_some("`value` or `allowed_values`")
            }
            // Without a value, every code is accepted.
            CheckKind::ErrorCode => None,
            CheckKind::HeaderPresent | CheckKind::HeaderAbsent => {
                check.header.is_none().then_some("`header`")
            }
            CheckKind::HeaderValue => {
                let wanted = wanted || check.pattern.is_some();
                (check.header.is_none() || !wanted)
                    .then_some("`header`, and `value`, `allowed_values` or `pattern`")
            }
            CheckKind::BodyEqualsStep | CheckKind::StatusEqualsStep => {
                check.other_step().is_none().then_some("`step`, the id of an earlier step")
            }
            CheckKind::HeaderEqualsStep => {
                (check.header.is_none() || check.step.is_none()).then_some("`header` and `step`")
            }
            CheckKind::FieldDiffersStep => (!has_path || check.step.is_none()).then_some("`path` and `step`"),
            CheckKind::BodyExcludes => (!wanted).then_some("`value` or `allowed_values`"),
            CheckKind::FieldLessThan | CheckKind::FieldGreaterThan => {
                let fine = has_path && (check.value.is_some() || check.context_key.is_some());
                (!fine).then_some("`path`, and `value` or `context_key`")
            }
            CheckKind::FieldEqualsContext
            | CheckKind::FieldDiffersContext
            | CheckKind::FieldInContextArray => {
                (!has_path || check.context_key.is_none()).then_some("`path` and `context_key`")
            }
            CheckKind::AnyOf => {
                (check.nested.is_empty() && !wanted).then_some("`checks`, or `allowed_values`")
            }
            CheckKind::CrossEqual | CheckKind::CrossCount | CheckKind::CrossOneRequest => {
                if self.dialect == StoryboardDialect::Own && !self.several {
                    return Some("a step with `parallel_dispatch` or `repeat`");
                }
                if !has_path {
                    return Some("`path`");
                }
                (check.kind == CheckKind::CrossCount && check.allowed.is_none()).then_some("`allowed_values`")
            }
            CheckKind::RateLimitNotReplayed => (self.dialect == StoryboardDialect::Own && !self.tripping)
                .then_some("a step with `rate_limit_trip`"),
            CheckKind::RetryHint
            | CheckKind::ConflictAtOnce
            | CheckKind::ResponseSchema
            | CheckKind::Unknown => None,
        }
    }
}
