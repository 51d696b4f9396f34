//! The report as Markdown, for a pull request.

use std::fmt::Write as _;

use super::reasons::reasons;
use super::{CaseVerdict, Explanation, FileReport, Grade, Report, StepReport};

/// The report as Markdown: a line for each case, then the reasons of failures with their fixes.
#[must_use]
pub fn markdown(report: &Report) -> String {
    let mut text = String::new();
    let all = &report.summary;
    let verdict = if report.is_good() { "passed" } else { "failed" };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "### Idempotency check {verdict}\n");
    let _ = writeln!(
        text,
        "{} steps against `{}`: {} passed, {} failed, {} recommended and {} optional not met, {} skipped.\n",
        all.total,
        report.target,
        all.passed,
        all.failed,
        all.recommended_not_met,
        all.optional_not_met,
        all.skipped
    );
    let open = report.required_without_verdict();
    if !open.is_empty() {
        text.push_str("Required cases without a verdict:\n\n");
        for (case, why) in open {
            let _ = writeln!(text, "- `{case}`: {}", cell(why));
        }
        text.push('\n');
    }
    for file in &report.storyboards {
        write_file(&mut text, file);
    }
    if let Some(origin) = &report.origin {
        let _ = writeln!(text, "Semel {}, {}\n", origin.version, origin.date);
    }
    text
}

fn write_file(text: &mut String, file: &FileReport) {
    let _ = writeln!(text, "| | {} | level |\n|---|---|---|", cell(&file.title));
    for case in &file.cases {
        let verdict = file.verdict_of(case);
        // So that a failure stands out in a long table.
        let bold = if verdict == CaseVerdict::Failed { "**" } else { "" };
        let why = file.skip_of(case).map(|skip| format!(" ({})", cell(&skip.detail))).unwrap_or_default();
        let name = cell(&format!("`{}`: {}", case.id, case.title));
        let _ = writeln!(text, "| {bold}{}{bold} | {name}{why} | {} |", verdict.word(), case.level.name());
        for step in file.recommendations(case) {
            let _ = writeln!(text, "| not met | {} | {} |", step_name(step), step.level.name());
        }
    }
    text.push('\n');
    for notice in &file.notices {
        let _ = writeln!(text, "> {}\n", notice.replace('\n', " "));
    }
    for step in file.steps.iter().filter(|step| matches!(step.grade, Grade::Failed | Grade::NotMet)) {
        let meaning = file.explanation(step);
        match file.case_of(step).filter(|_| meaning.is_some()) {
            Some(case) => {
                let _ = writeln!(
                    text,
                    "**{}** (step `{}`)",
                    cell(&format!("`{}`: {}", case.id, case.title)),
                    step.step
                );
            }
            None => {
                let _ = writeln!(text, "**{}** ({})", step_name(step), step.level.name());
            }
        }
        for line in reasons(step).lines() {
            let _ = writeln!(text, "- {}", cell(line));
        }
        if let Some(Explanation { harm, fix }) = meaning {
            let _ = writeln!(text, "- Harm to a client: {harm}\n- How to fix it: {fix}");
        }
        text.push('\n');
    }
}

/// The name of a step in the table and above its reasons.
fn step_name(step: &StepReport) -> String {
    cell(&format!("`{}/{}`: {}", step.phase, step.step, step.title))
}

/// Text that cannot end a table cell or begin a tag.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|").replace('<', "&lt;")
}
