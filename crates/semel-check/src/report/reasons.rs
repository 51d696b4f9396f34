//! Why a step failed, in sentences.

use serde_json::Value;

use super::pretty::short;
use super::{CheckOutcome, StepReport, Validation};

/// Why a step failed, one line per reason.
pub(super) fn reasons(step: &StepReport) -> String {
    let failed: Vec<&Validation> =
        step.validations.iter().filter(|validation| validation.outcome == CheckOutcome::Failed).collect();
    let mut lines: Vec<String> = step.error.iter().cloned().collect();
    for validation in &failed {
        // The other checks say more precisely which error was expected.
        if validation.check == "expect_error" && failed.len() > 1 {
            continue;
        }
        lines.push(sentence(validation));
    }
    lines.join("\n")
}

fn sentence(validation: &Validation) -> String {
    let what = match validation.description.as_str() {
        "" => in_other_words(&validation.check),
        description => description,
    };
    if let Some(note) = validation.note.as_ref().filter(|_| validation.check.starts_with("cross_")) {
        return format!("{what}: {note}");
    }
    let actual = in_words(validation.actual.as_ref());
    // Its description names the alternatives; their checks have no short form.
    if validation.check == "any_of" {
        return format!("{what}: got {actual}");
    }
    let place = validation.json_pointer.as_deref().filter(|place| !place.is_empty());
    let place = place.map(|place| format!(" (member {})", place.trim_start_matches('/').replace('/', ".")));
    let place = place.unwrap_or_default();
    let which = validation.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    format!("{what}{place}: expected {}, got {actual}{which}", in_words(validation.expected.as_ref()))
}

/// What a check without a description is about.
fn in_other_words(check: &str) -> &str {
    match check {
        "http_status" | "http_status_in" | "status_code" => "The status",
        "body_equals_step" => "The body is that of the first answer",
        "status_equals_step" => "The status is that of the first answer",
        "header_equals_step" => "The header is that of the first answer",
        "header_present" | "header_absent" | "header_value" => "The header",
        "field_present" | "envelope_field_present" => "The answer has this member",
        "field_absent" | "envelope_field_absent" => "The answer does not have this member",
        "field_differs_step" | "field_differs_context" => "The value is a new one",
        "field_equals_context" => "The value is the earlier one",
        "body_excludes" => "The answer does not contain this value",
        "error_code" => "The code of the error",
        "response_schema" => "The answer follows its schema",
        "array_length" => "The length of the list",
        "any_of" => "One of the alternatives holds",
        name if name.starts_with("field_") || name.starts_with("envelope_field_") => "The value",
        name => name,
    }
}

/// A value as a reader would say it: the forms in which checks state what they expect, else JSON.
fn in_words(value: Option<&Value>) -> String {
    let json = |value: &Value| short(&value.to_string());
    let Some(value) = value.filter(|value| !value.is_null()) else { return "nothing".to_owned() };
    let only =
        value.as_object().filter(|members| members.len() == 1).and_then(|members| members.iter().next());
    let Some((form, value)) = only else { return json(value) };
    let list = |last: &str| {
        let words: Vec<String> = value.as_array().into_iter().flatten().map(json).collect();
        match words.split_last() {
            Some((end, [])) => end.clone(),
            Some((end, rest)) => format!("{} {last} {end}", rest.join(", ")),
            None => json(value),
        }
    };
    match form.as_str() {
        "not" => format!("another value than {}", json(value)),
        "without" => format!("an answer without {}", list("and")),
        "one_of" => list("or"),
        "matches" => format!("a match of {}", value.as_str().unwrap_or_default()),
        "header" => format!("the header {}", value.as_str().unwrap_or_default()),
        "greater than" | "less than" => format!("{form} {}", json(value)),
        _ => format!("{{\"{form}\":{}}}", json(value)),
    }
}
