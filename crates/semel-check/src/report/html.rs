//! The report as one HTML page, for a ticket: the verdict, the cases, and a timeline of each failure.

use std::fmt::Write as _;

use serde_json::Value;

use super::junit::escape;
use super::reasons::reasons;
use super::{CaseVerdict, Explanation, FileReport, Grade, Report, StepReport, TimelineEntry};

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
    if let Some(origin) = &report.origin {
        let _ = writeln!(
            page,
            "<p>{}, Semel {}</p><p><code>{}</code></p>",
            escape(&origin.date),
            escape(&origin.version),
            escape(&origin.command)
        );
    }
    let open = report.required_without_verdict();
    if !open.is_empty() {
        page.push_str("<p>Required cases without a verdict:</p><ul>\n");
        for (case, why) in open {
            let _ = writeln!(page, "<li><code>{}</code>: {}</li>", escape(case), escape(why));
        }
        page.push_str("</ul>\n");
    }
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
        let verdict = file.verdict_of(case);
        let skip = file.skip_of(case).map(|skip| format!("<br>{}", escape(&skip.detail)));
        let name = format!("{}{}", titled(&case.id, &case.title), skip.unwrap_or_default());
        write_row(page, class(verdict), verdict.word(), &name, case.level.name());
        for step in file.recommendations(case) {
            write_row(page, "not_met", "not met", &step_title(step), step.level.name());
        }
    }
    page.push_str("</table>\n");
    for step in file.steps.iter().filter(|step| matches!(step.grade, Grade::Failed | Grade::NotMet)) {
        write_failure(page, file, step);
    }
}

fn write_row(page: &mut String, class: &str, verdict: &str, name: &str, level: &str) {
    let _ = writeln!(page, "<tr><td class=\"{class}\">{verdict}</td><td>{name}</td><td>{level}</td></tr>");
}

/// An id and a title.
fn titled(id: &str, title: &str) -> String {
    format!("<code>{}</code>: {}", escape(id), escape(title))
}

fn step_title(step: &StepReport) -> String {
    titled(&format!("{}/{}", step.phase, step.step), &step.title)
}

fn write_failure(page: &mut String, file: &FileReport, step: &StepReport) {
    let meaning = file.explanation(step);
    let title = match file.case_of(step).filter(|_| meaning.is_some()) {
        Some(case) => format!("{} (step <code>{}</code>)", titled(&case.id, &case.title), escape(&step.step)),
        None => format!("{} ({})", step_title(step), step.level.name()),
    };
    let class = if step.grade == Grade::Failed { "failed" } else { "not_met" };
    let _ = writeln!(page, "<section class=\"{class}-case\"><h3>{title}</h3><ul>");
    for line in reasons(step).lines() {
        let _ = writeln!(page, "<li>{}</li>", escape(line));
    }
    page.push_str("</ul>");
    if let Some(Explanation { harm, fix }) = meaning {
        let _ = writeln!(
            page,
            "<p><b>Harm to a client.</b> {}</p><p><b>How to fix it.</b> {}</p>",
            escape(&harm),
            escape(&fix)
        );
    }
    if !step.timeline.is_empty() {
        page.push_str("<table><tr><th>Sent at</th><th>Request</th><th>Answer</th><th>Took</th></tr>\n");
        for entry in &step.timeline {
            write_entry(page, entry);
        }
        page.push_str("</table>\n");
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

/// The class of a verdict.
fn class(verdict: CaseVerdict) -> &'static str {
    match verdict {
        CaseVerdict::Passed => "passed",
        CaseVerdict::Failed => "failed",
        CaseVerdict::NotMet | CaseVerdict::NotDecided => "not_met",
        CaseVerdict::Skipped => "skipped",
    }
}
