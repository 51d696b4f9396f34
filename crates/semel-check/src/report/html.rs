//! The report as one HTML page, for a ticket: the verdict, the cases, and a timeline of each failure.

use std::fmt::Write as _;

use serde_json::Value;

use super::junit::escape;
use super::reasons::reasons;
use super::{CheckOutcome, Explanation, FileReport, Grade, Report, StepReport, TimelineEntry};

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--bad:#c0392b;--warn:#b9770e;--good:#1e8449}\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem}h3{font-size:1rem}\
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}\
.failed{color:var(--bad);font-weight:600}.not_met{color:var(--warn);font-weight:600}.passed{color:var(--good)}\
code,pre{font:13px/1.4 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:0}\
section{border-left:4px solid var(--bad);padding-left:1rem;margin:1.5rem 0}section.not_met-case{border-color:var(--warn)}";

/// The report as one HTML page without external resources.
#[must_use]
pub fn html(report: &Report) -> String {
    let all = &report.summary;
    let verdict = match (report.is_good(), all.passed) {
        (false, _) => "Failed",
        (true, 0) => "Nothing was graded",
        (true, _) => "Passed",
    };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>Idempotency check: {verdict}</title><style>{STYLE}</style></head><body>\n"
    );
    // Writing to a string cannot fail.
    let _ = writeln!(page, "<h1>Idempotency check: {verdict}</h1>");
    let _ = writeln!(
        page,
        "<p>{} steps against <code>{}</code>: {} passed, {} failed, {} recommended and {} optional not met, {} skipped.</p>",
        all.total,
        escape(&report.target),
        all.passed,
        all.failed,
        all.recommended_not_met,
        all.optional_not_met,
        all.skipped
    );
    for file in &report.storyboards {
        write_file(&mut page, file);
    }
    page.push_str("</body></html>\n");
    page
}

fn write_file(page: &mut String, file: &FileReport) {
    let _ = writeln!(page, "<h2>{}</h2>", escape(&file.title));
    for notice in &file.notices {
        let _ = writeln!(page, "<p>{}</p>", escape(notice));
    }
    if let Some(skip) = &file.skip {
        let _ = writeln!(page, "<p>Skipped: {}</p>", escape(&skip.detail));
        return;
    }
    page.push_str("<table><tr><th>Result</th><th>Case</th><th>Level</th></tr>\n");
    for case in &file.cases {
        let grade = file.grade_of(case);
        let skip = file.steps_of(case).find_map(|step| step.skip.as_ref()).filter(|_| grade.is_none());
        let detail = skip.map(|skip| format!("<br>{}", escape(&skip.detail))).unwrap_or_default();
        let _ = writeln!(
            page,
            "<tr><td class=\"{}\">{}</td><td>{}{detail}</td><td>{}</td></tr>",
            grade.map_or("skipped", class),
            grade.map_or("skipped", Grade::word),
            escape(&case.title),
            case.level.name()
        );
    }
    page.push_str("</table>\n");
    for step in file.steps.iter().filter(|step| matches!(step.grade, Grade::Failed | Grade::NotMet)) {
        write_failure(page, file, step);
    }
}

fn write_failure(page: &mut String, file: &FileReport, step: &StepReport) {
    let Explanation { harm, fix } = file.explanation(step);
    let _ =
        writeln!(page, "<section class=\"{}-case\"><h3>{}</h3><ul>", class(step.grade), escape(&step.title));
    for line in reasons(step).lines() {
        let _ = writeln!(page, "<li>{}</li>", escape(line));
    }
    let _ = writeln!(
        page,
        "</ul><p><b>Harm to a client.</b> {}</p><p><b>How to fix it.</b> {}</p>",
        escape(&harm),
        escape(&fix)
    );
    if !step.timeline.is_empty() {
        page.push_str("<table><tr><th>Sent at</th><th>Request</th><th>Answer</th><th>Took</th></tr>\n");
        for entry in &step.timeline {
            write_entry(page, entry);
        }
        page.push_str("</table>\n");
    }
    let notes = step.validations.iter().filter(|one| one.outcome == CheckOutcome::Failed);
    for note in notes.filter_map(|one| one.note.as_ref()) {
        let _ = writeln!(page, "<p>{}</p>", escape(note));
    }
    page.push_str("</section>\n");
}

fn write_entry(page: &mut String, entry: &TimelineEntry) {
    let shown = |value: &Value| escape(&super::pretty::short(&value.to_string()));
    let _ = writeln!(
        page,
        "<tr><td>{} ms</td><td><code>{}</code></td><td><code>{}</code></td><td>{} ms</td></tr>",
        entry.at_ms,
        shown(&entry.request),
        shown(&entry.response),
        entry.took_ms
    );
}

/// The class of a grade.
fn class(grade: Grade) -> &'static str {
    match grade {
        Grade::Passed => "passed",
        Grade::Failed => "failed",
        Grade::NotMet => "not_met",
        Grade::Skipped => "skipped",
    }
}
