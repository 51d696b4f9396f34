//! The report as Markdown, for a pull request.

use std::fmt::Write as _;

use super::reasons::reasons;
use super::{Explanation, Grade, Report};

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
    for file in &report.storyboards {
        let _ = writeln!(text, "| | {} | level |\n|---|---|---|", cell(&file.title));
        for case in &file.cases {
            let grade = file.grade_of(case);
            let word = grade.map_or("skipped", Grade::word);
            // So that a failure stands out in a long table.
            let bold = if grade == Some(Grade::Failed) { "**" } else { "" };
            let _ = writeln!(text, "| {bold}{word}{bold} | {} | {} |", cell(&case.title), case.level.name());
        }
        text.push('\n');
        for notice in &file.notices {
            let _ = writeln!(text, "> {}\n", notice.replace('\n', " "));
        }
        for step in file.steps.iter().filter(|step| matches!(step.grade, Grade::Failed | Grade::NotMet)) {
            let Explanation { harm, fix } = file.explanation(step);
            let _ = writeln!(text, "**{}/{}**", step.phase, step.step);
            for line in reasons(step).lines() {
                let _ = writeln!(text, "- {}", cell(line));
            }
            let _ = writeln!(text, "- Harm to a client: {harm}\n- How to fix it: {fix}\n");
        }
    }
    text
}

/// Text that cannot end a table cell or begin a tag.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|").replace('<', "&lt;")
}
