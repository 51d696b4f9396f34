//! The report as JUnit XML, for CI servers.
//!
//! Written here: `quick-junit` depends on packages for dates, UUIDs and XML, for five elements.

use std::fmt::Write as _;

use super::reasons::reasons;
use super::{Explanation, FileReport, Grade, Report, StepReport};

/// The report as JUnit XML: a file is a suite, a step is a test case. A recommended or optional case that failed is reported as
/// skipped, so that the build does not fail.
#[must_use]
pub fn junit(report: &Report) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let all = &report.summary;
    let spent: u64 =
        report.storyboards.iter().flat_map(|file| &file.steps).map(|step| step.duration_ms).sum();
    let skipped = all.skipped + all.recommended_not_met + all.optional_not_met;
    // Writing to a string cannot fail.
    let _ = writeln!(
        xml,
        "<testsuites name=\"semel check\" tests=\"{}\" failures=\"{}\" skipped=\"{skipped}\" time=\"{}\">",
        all.total,
        all.failed,
        seconds(spent)
    );
    for file in &report.storyboards {
        let count = |grade: Grade| file.steps.iter().filter(|step| step.grade == grade).count();
        let spent: u64 = file.steps.iter().map(|step| step.duration_ms).sum();
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{}\">",
            escape(&file.storyboard),
            file.steps.len(),
            count(Grade::Failed),
            count(Grade::Skipped) + count(Grade::NotMet),
            seconds(spent)
        );
        for step in &file.steps {
            case(&mut xml, file, step);
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn case(xml: &mut String, file: &FileReport, step: &StepReport) {
    let _ = write!(
        xml,
        "    <testcase classname=\"{}.{}\" name=\"{}\" time=\"{}\"",
        escape(&step.storyboard),
        escape(&step.phase),
        escape(&step.step),
        seconds(step.duration_ms)
    );
    let reasons = reasons(step);
    let told = match step.grade {
        Grade::Passed => None,
        Grade::Failed => {
            let first = reasons.lines().next().unwrap_or("failed");
            let meaning = file
                .explanation(step)
                .map(|Explanation { harm, fix }| format!("\nharm to a client: {harm}\nhow to fix it: {fix}"));
            let whole = format!("{reasons}{}", meaning.unwrap_or_default());
            Some(format!("<failure message=\"{}\">{}</failure>", escape(first), escape(&whole)))
        }
        Grade::NotMet => {
            let message =
                format!("{}, not met: {}", step.level.name(), reasons.lines().next().unwrap_or_default());
            Some(format!("<skipped message=\"{}\"/>", escape(&message)))
        }
        Grade::Skipped => {
            let skip = step.skip.as_ref().map(|skip| format!("{}: {}", skip.reason.name(), skip.detail));
            Some(format!("<skipped message=\"{}\"/>", escape(&skip.unwrap_or_default())))
        }
    };
    match told {
        None => xml.push_str("/>\n"),
        Some(told) => {
            let _ = writeln!(xml, ">\n      {told}\n    </testcase>");
        }
    }
}

fn seconds(milliseconds: u64) -> String {
    format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000)
}

/// Escapes text for XML; drops characters that XML does not allow.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            '\t' | ' '.. => escaped.push(character),
            _ => {}
        }
    }
    escaped
}
