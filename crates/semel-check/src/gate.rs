//! Decides what applies: capabilities, requirements, conditions.

use std::fmt;

use serde_json::{Map, Value};

use crate::path::{Path, same};
use crate::report::{Reason, Skip};
use crate::storyboard::{CapabilityGate, Wants};

/// A release of a protocol: `4.0`. Pre-releases count as their release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Release {
    major: u32,
    minor: u32,
}

impl Release {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split('-').next()?.split_once('.')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The reason why a capability gate is closed, if it is.
pub(crate) fn closed(gate: &CapabilityGate, capabilities: &Value) -> Option<Skip> {
    let found = Path::parse(&gate.path).get(capabilities);
    let items = found.as_ref().and_then(Value::as_array);
    let (open, wanted) = match &gate.wants {
        Wants::Equals(wanted) => {
            (found.as_ref().is_some_and(|found| same(found, wanted)), format!("equals {wanted}"))
        }
        Wants::Contains(wanted) => (
            items.is_some_and(|items| items.iter().any(|item| same(item, wanted))),
            format!("contains {wanted}"),
        ),
        Wants::NotContains(wanted) => {
            let without = items.is_some_and(|items| !items.iter().any(|item| same(item, wanted)));
            (without, format!("does not contain {wanted}"))
        }
        Wants::AtLeast(wanted) => {
            let releases = items.into_iter().flatten().chain(found.as_ref());
            let mut releases = releases.filter_map(|found| Release::parse(found.as_str()?));
            (releases.any(|release| release >= *wanted), format!("is at least {wanted}"))
        }
        Wants::Present(wanted) => (found.is_some() == *wanted, format!("present: {wanted}")),
    };
    (!open).then(|| {
        Skip::new(Reason::NotApplicable, format!("the target does not declare that {} {wanted}", gate.path))
    })
}

/// The reason why a requirement of a file is not met, if it is not.
pub(crate) fn unmet(requirement: &str, has_tool: impl Fn(&str) -> bool) -> Option<Skip> {
    match requirement {
        "real_wire" => None,
        "controller" | "seeded_state" if has_tool("comply_test_controller") => None,
        "controller" | "seeded_state" => {
            Some(Skip::new(Reason::MissingTestController, "the target has no tool comply_test_controller"))
        }
        other => Some(Skip::new(Reason::RequirementUnmet, format!("this runner cannot provide `{other}`"))),
    }
}

/// The value of a condition of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    True,
    False,
    /// It cannot be parsed.
    Unknown,
}

/// Evaluates `skip_if`: `NAME`, `!NAME`, `NAME == VALUE`, `NAME != VALUE`, joined by `||` or `&&`, where NAME is
/// `context.…` or `test_kit.…`.
pub(crate) fn condition(text: &str, context: &Map<String, Value>, test_kit: &Value) -> Condition {
    let context = Value::Object(context.clone());
    let lookup = |name: &str| -> Option<Value> {
        let name = name.trim();
        if let Some(path) = name.strip_prefix("context.") {
            return Some(Path::parse(path).get(&context).unwrap_or(Value::Null));
        }
        if let Some(path) = name.strip_prefix("test_kit.") {
            return Some(Path::parse(path).get(test_kit).unwrap_or(Value::Null));
        }
        match name {
            "null" => return Some(Value::Null),
            "true" => return Some(Value::Bool(true)),
            "false" => return Some(Value::Bool(false)),
            _ => {}
        }
        let quoted = |quote: char| name.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
        if let Some(text) = quoted('\'').or_else(|| quoted('"')) {
            return Some(Value::String(text.to_owned()));
        }
        serde_json::from_str(name).ok().filter(Value::is_number)
    };
    let truth = |value: &Value| match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::String(text) => !text.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(_) | Value::Object(_) => true,
    };
    let term = |term: &str| -> Option<bool> {
        let term = term.trim();
        if let Some((one, other)) = term.split_once("!=") {
            return Some(!same(&lookup(one)?, &lookup(other)?));
        }
        if let Some((one, other)) = term.split_once("==") {
            return Some(same(&lookup(one)?, &lookup(other)?));
        }
        match term.strip_prefix('!') {
            Some(name) => lookup(name).map(|value| !truth(&value)),
            None => lookup(term).map(|value| truth(&value)),
        }
    };
    let all = |part: &str| {
        part.split("&&").map(term).try_fold(true, |so_far, term| term.map(|term| so_far && term))
    };
    let any = text.split("||").map(all).try_fold(false, |so_far, part| part.map(|part| so_far || part));
    match any {
        Some(true) => Condition::True,
        Some(false) => Condition::False,
        None => Condition::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Condition, Release, closed, condition};
    use crate::report::Reason;
    use crate::storyboard::{CapabilityGate, Wants};

    #[test]
    fn conditions_are_evaluated_or_said_to_be_unreadable() {
        let Value::Object(context) = json!({"a": "x", "b": "x", "no": false, "n": 3}) else {
            panic!("a mapping")
        };
        let kit = json!({"auth": {"api_key": "k"}});
        for (text, expected) in [
            ("!context.a", Condition::False),
            ("!context.z", Condition::True),
            ("context.no", Condition::False),
            ("context.no != false", Condition::False),
            ("!context.z || context.a == context.b", Condition::True),
            ("context.a == 'y' || !test_kit.auth.basic", Condition::True),
            ("context.n == 3 && test_kit.auth.api_key", Condition::True),
            ("the moon is full", Condition::Unknown),
        ] {
            assert_eq!(condition(text, &context, &kit), expected, "{text}");
        }
    }

    #[test]
    fn gates_are_closed_where_nothing_is_declared() {
        let adcp = json!({"idempotency": {"supported": true}, "supported_versions": ["3.1", "4.0-rc.1"]});
        let capabilities = json!({"protocols": ["media_buy"], "adcp": adcp, "adcp_version": "3.1"});
        let at_least = |text| Wants::AtLeast(Release::parse(text).unwrap());
        for (path, wants, open) in [
            ("adcp.idempotency.supported", Wants::Equals(json!(true)), true),
            ("adcp.idempotency.supported", Wants::Equals(json!(false)), false),
            ("protocols", Wants::Contains(json!("media_buy")), true),
            ("protocols", Wants::NotContains(json!("media_buy")), false),
            ("missing", Wants::NotContains(json!("x")), false),
            ("missing", Wants::Present(false), true),
            ("protocols", Wants::Present(true), true),
            ("adcp.supported_versions", at_least("4.0"), true),
            ("adcp.supported_versions", at_least("4.1"), false),
            ("adcp_version", at_least("3.1"), true),
            ("adcp_version", at_least("4.0"), false),
            ("missing", at_least("0.0"), false),
            ("protocols", at_least("0.0"), false),
        ] {
            let skip = closed(&CapabilityGate { path: path.to_owned(), wants }, &capabilities);
            assert_eq!(skip.is_none(), open, "{path}");
            assert!(skip.is_none_or(|skip| skip.reason == Reason::NotApplicable));
        }
    }
}
