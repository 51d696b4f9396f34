//! The report as JSON.

use super::Report;

/// The report as one JSON document.
#[must_use]
pub fn json(report: &Report) -> String {
    serde_json::to_string_pretty(report).expect("names, numbers and JSON values always have a JSON form")
}
