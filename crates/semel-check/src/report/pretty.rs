//! The report for humans.

use std::fmt::Write as _;

use super::reasons::reasons;
use super::{CaseReport, CaseVerdict, CheckOutcome, Explanation, FileReport, Grade, Report, StepReport};
use crate::storyboard::Level;

/// Whether to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// On a terminal.
    Coloured,
    /// Everywhere else.
    Plain,
}

/// The amount of detail for a failed case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// The expected and the actual value.
    Short,
    /// Also the harm to a client, the fix, the request and the answer.
    Explained,
}

impl Paint {
    fn paint(self, code: &str, text: &str) -> String {
        match self {
            Self::Coloured => format!("\x1b[{code}m{text}\x1b[0m"),
            Self::Plain => text.to_owned(),
        }
    }
}

/// The report for humans: the cases with their grades, the reasons of failures, and a summary line.
#[must_use]
pub fn pretty(report: &Report, paint: Paint, telling: Verbosity) -> String {
    let mut text = String::new();
    for file in &report.storyboards {
        tell_file(&mut text, file, paint, telling);
    }
    let all = &report.summary;
    let mut parts = vec![paint.paint("32", &format!("{} passed", all.passed))];
    let failed = format!("{} failed", all.failed);
    parts.push(if all.failed > 0 { paint.paint("31;1", &failed) } else { failed });
    for (count, what) in [
        (all.recommended_not_met, "recommended not met"),
        (all.optional_not_met, "optional not met"),
        (all.advisory_failures, "advisory"),
    ] {
        if count > 0 {
            parts.push(paint.paint("33", &format!("{count} {what}")));
        }
    }
    if all.skipped > 0 {
        let reasons: Vec<String> =
            all.skipped_by_reason.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        parts.push(format!("{} skipped ({})", all.skipped, reasons.join(", ")));
    }
    if all.validations_not_applicable > 0 {
        parts.push(format!("{} checks not applicable", all.validations_not_applicable));
    }
    let verdict = match (report.is_good(), all.passed) {
        (false, _) => paint.paint("31;1", "FAILED"),
        // Nothing failed because nothing applied, which is not a success.
        (true, 0) => paint.paint("33;1", "nothing graded"),
        (true, _) => paint.paint("32;1", "ok"),
    };
    let _ = writeln!(text, "{verdict}: {} steps against {}: {}", all.total, report.target, parts.join(", "));
    let open = report.required_without_verdict();
    if !open.is_empty() {
        text.push_str("Required cases without a verdict:\n");
        for (case, why) in open {
            let _ = writeln!(text, "  {case}: {why}");
        }
    }
    if !report.is_good() && telling == Verbosity::Short {
        let _ = writeln!(text, "`--explain` shows the harm to a client, and how to fix it.");
    }
    text
}

fn tell_file(text: &mut String, file: &FileReport, paint: Paint, telling: Verbosity) {
    let _ = writeln!(text, "{} ({})", paint.paint("1", &file.title), file.storyboard);
    for notice in &file.notices {
        let _ = writeln!(text, "  {} {notice}", paint.paint("2", "note:"));
    }
    if let Some(skip) = &file.skip {
        let _ =
            writeln!(text, "  {} {}: {}\n", paint.paint("33", "skipped"), skip.reason.name(), skip.detail);
        return;
    }
    for case in &file.cases {
        let steps: Vec<&StepReport> = file.steps.iter().filter(|step| step.phase == case.id).collect();
        let mark = match file.verdict_of(case) {
            CaseVerdict::Failed => paint.paint("31;1", "✗"),
            CaseVerdict::NotMet => paint.paint("33", "!"),
            CaseVerdict::NotDecided => paint.paint("33", "?"),
            CaseVerdict::Passed => paint.paint("32", "✓"),
            CaseVerdict::Skipped => paint.paint("2", "–"),
        };
        let level = match case.level {
            Level::Required => String::new(),
            other => paint.paint("2", &format!(" ({})", other.name())),
        };
        let _ = writeln!(text, "  {mark} {}: {}{level}", case.id, case.title);
        // A case that was skipped as a whole is reported once.
        let first = steps.first().and_then(|step| step.skip.as_ref());
        if let Some(skip) = first.filter(|skip| steps.iter().all(|step| step.skip.as_ref() == Some(*skip))) {
            let _ = writeln!(
                text,
                "      {}",
                paint.paint("2", &format!("{}: {}", skip.reason.name(), skip.detail))
            );
            let checks = steps.iter().flat_map(|step| &step.reviewer_checks);
            checks.for_each(|check| tell_reviewer(text, check, paint));
            continue;
        }
        for step in &steps {
            tell_step(text, case, step, paint, telling);
        }
        let mut unmet = steps.iter().filter(|step| matches!(step.grade, Grade::Failed | Grade::NotMet));
        let explanation = unmet.find_map(|step| file.explanation(step));
        if let Some(Explanation { harm, fix }) = explanation.filter(|_| telling == Verbosity::Explained) {
            let _ = writeln!(text, "      {} {harm}", paint.paint("1", "harm to a client:"));
            let _ = writeln!(text, "      {} {fix}", paint.paint("1", "how to fix it:"));
        }
    }
    text.push('\n');
}

fn tell_step(text: &mut String, case: &CaseReport, step: &StepReport, paint: Paint, telling: Verbosity) {
    // Else a required case would seem to fail although only advice in it was not met.
    let (mark, level) = match step.level == case.level {
        true => (String::new(), String::new()),
        false => (paint.paint("33", "! "), paint.paint("2", &format!(" ({})", step.level.name()))),
    };
    match step.grade {
        Grade::Failed | Grade::NotMet => {
            for line in reasons(step).lines() {
                let _ = writeln!(text, "      {mark}{}{level}: {line}", paint.paint("1", &step.step));
            }
            if telling == Verbosity::Explained {
                let failed =
                    step.validations.iter().find(|validation| validation.outcome == CheckOutcome::Failed);
                for (name, value) in failed
                    .into_iter()
                    .flat_map(|failed| [("asked", &failed.request), ("answered", &failed.response)])
                {
                    if let Some(value) = value {
                        let _ = writeln!(text, "        {name}: {}", short(&value.to_string()));
                    }
                }
            }
        }
        Grade::Skipped => {
            if let Some(skip) = &step.skip {
                let told = format!("{}: {}: {}", step.step, skip.reason.name(), skip.detail);
                let _ = writeln!(text, "      {}", paint.paint("2", &told));
            }
        }
        Grade::Passed => {}
    }
    for validation in
        step.validations.iter().filter(|validation| validation.outcome == CheckOutcome::Advisory)
    {
        let _ = writeln!(
            text,
            "      {} {}: {}",
            paint.paint("33", "advice:"),
            step.step,
            validation.description
        );
    }
    step.reviewer_checks.iter().for_each(|check| tell_reviewer(text, check, paint));
}

fn tell_reviewer(text: &mut String, check: &str, paint: Paint) {
    let _ = writeln!(text, "      {} {check}", paint.paint("2", "for a human:"));
}

/// One line, truncated to a maximum length.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 400;
    let line = text.replace('\n', " ");
    if line.chars().count() <= MOST {
        return line;
    }
    let mut cut: String = line.chars().take(MOST).collect();
    cut.push('…');
    cut
}
