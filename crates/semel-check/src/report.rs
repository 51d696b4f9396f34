//! The results: per step, per file, and in total.

mod explain;
mod html;
mod json;
mod junit;
mod markdown;
mod pretty;
mod reasons;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

pub use self::html::html;
pub use self::json::json;
pub use self::junit::junit;
pub use self::markdown::markdown;
pub use self::pretty::{Paint, Verbosity, pretty};

use crate::answer::Extraction;
use crate::storyboard::Level;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// URL of the target.
    pub target: String,
    /// When and how the report was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<ReportOrigin>,
    /// Each file.
    pub storyboards: Vec<FileReport>,
    /// The totals.
    pub summary: Summary,
}

/// When and how a report was made.
#[derive(Clone, Debug, Serialize)]
pub struct ReportOrigin {
    /// The date and time of the run.
    pub date: String,
    /// The version of the tester.
    pub version: String,
    /// The command line, without secrets.
    pub command: String,
}

/// One file.
#[derive(Clone, Debug, Serialize)]
pub struct FileReport {
    /// Its id.
    pub storyboard: String,
    /// Its title.
    pub title: String,
    /// The file.
    pub file: String,
    /// Why the whole file was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip: Option<Skip>,
    /// Harmless oddities of the file.
    pub notices: Vec<String>,
    /// Its steps, in order.
    pub steps: Vec<StepReport>,
    /// Its cases, in order.
    pub cases: Vec<CaseReport>,
}

/// A case: the purpose of one phase.
#[derive(Clone, Debug, Serialize)]
pub struct CaseReport {
    /// The phase's id.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Its level.
    pub level: Level,
    /// What a failure means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explain: Option<Explanation>,
}

/// What the failure of a case means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The harm to a client.
    pub harm: String,
    /// How to fix it.
    pub fix: String,
}

impl FileReport {
    /// The steps of a case.
    pub fn steps_of<'a>(&'a self, case: &'a CaseReport) -> impl Iterator<Item = &'a StepReport> {
        self.steps.iter().filter(|step| step.phase == case.id)
    }

    /// The verdict on a case: of the steps of its own level. Steps of a lower level have their own.
    pub(crate) fn verdict_of(&self, case: &CaseReport) -> CaseVerdict {
        let steps = || self.steps_of(case).filter(|step| step.level <= case.level);
        let has = |grade: Grade| steps().any(|step| step.grade == grade);
        if has(Grade::Failed) {
            CaseVerdict::Failed
        } else if has(Grade::NotMet) {
            CaseVerdict::NotMet
        } else if steps().filter_map(|step| step.skip.as_ref()).any(|skip| skip.undecided) {
            CaseVerdict::NotDecided
        } else if has(Grade::Passed) {
            CaseVerdict::Passed
        } else {
            CaseVerdict::Skipped
        }
    }

    /// Why a case has no verdict.
    pub(crate) fn skip_of<'a>(&'a self, case: &'a CaseReport) -> Option<&'a Skip> {
        let open = matches!(self.verdict_of(case), CaseVerdict::NotDecided | CaseVerdict::Skipped);
        let skips = || self.steps_of(case).filter_map(|step| step.skip.as_ref()).filter(|_| open);
        skips().find(|skip| skip.undecided).or_else(|| skips().next())
    }

    /// The steps of a case that are not met, although they have a lower level than the case: recommendations.
    pub(crate) fn recommendations<'a>(
        &'a self,
        case: &'a CaseReport,
    ) -> impl Iterator<Item = &'a StepReport> {
        self.steps_of(case).filter(|step| step.level > case.level && step.grade == Grade::NotMet)
    }

    /// The case of a step.
    pub(crate) fn case_of(&self, step: &StepReport) -> Option<&CaseReport> {
        self.cases.iter().find(|case| case.id == step.phase)
    }

    /// What the failure of a step means: by its case, else by the check that failed. `None` for a step of a lower level than
    /// its case: the harm of the case does not follow from it.
    pub(crate) fn explanation(&self, step: &StepReport) -> Option<Explanation> {
        let case = self.case_of(step);
        if case.is_some_and(|case| step.level > case.level) {
            return None;
        }
        Some(case.and_then(|case| case.explain.clone()).unwrap_or_else(|| {
            let (harm, fix) = explain::explain(step);
            Explanation { harm: harm.to_owned(), fix: fix.to_owned() }
        }))
    }
}

/// The verdict on a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaseVerdict {
    Passed,
    Failed,
    NotMet,
    /// Too few answers arrived.
    NotDecided,
    Skipped,
}

impl CaseVerdict {
    /// The verdict in words.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotMet => "not met",
            Self::NotDecided => "not decided",
            Self::Skipped => "skipped",
        }
    }
}

/// Why something was not graded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skip {
    /// The reason.
    pub reason: Reason,
    /// Details.
    pub detail: String,
    /// True if the requests were sent, and too few were answered for a verdict.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub undecided: bool,
}

impl Skip {
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), undecided: false }
    }

    /// Concurrent requests of which some have no answer.
    pub(crate) fn undecided(why: &str) -> Self {
        let detail = format!(
            "{why}; not decided: raise the API's listen backlog or its number of workers, or give it more time with --timeout SECONDS"
        );
        Self { undecided: true, ..Self::new(Reason::NotApplicable, detail) }
    }
}

/// The reasons for a skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It does not apply to this target, or cannot be graded.
    NotApplicable,
    /// The file has no phases.
    NoPhases,
    /// A step that it depends on failed.
    PrerequisiteFailed,
    /// The target does not have this tool.
    MissingTool,
    /// The target has no test controller.
    MissingTestController,
    /// A fixture could not be created.
    FixtureUnavailable,
    /// It needs a contract that this runner does not support.
    UnsatisfiedContract,
    /// A requirement is not available.
    RequirementUnmet,
}

impl Reason {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotApplicable => "not_applicable",
            Self::NoPhases => "no_phases",
            Self::PrerequisiteFailed => "prerequisite_failed",
            Self::MissingTool => "missing_tool",
            Self::MissingTestController => "missing_test_controller",
            Self::FixtureUnavailable => "fixture_unavailable",
            Self::UnsatisfiedContract => "unsatisfied_contract",
            Self::RequirementUnmet => "requirement_unmet",
        }
    }
}

/// The grade of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// Every check passed.
    Passed,
    /// A required case failed.
    Failed,
    /// A recommended or optional case failed.
    NotMet,
    /// It was not graded.
    Skipped,
}

/// One step.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// The file's id.
    pub storyboard: String,
    /// The phase's id: the case.
    pub phase: String,
    /// The step's id.
    pub step: String,
    /// Its title.
    pub title: String,
    /// The tool, or `request`.
    pub task: String,
    /// Its level.
    pub level: Level,
    /// Its grade.
    pub grade: Grade,
    /// True if it passed.
    pub passed: bool,
    /// Its duration.
    pub duration_ms: u64,
    /// Each check.
    pub validations: Vec<Validation>,
    /// Where the payload was found.
    pub extraction_path: Extraction,
    /// Why it was not graded.
    pub skip: Option<Skip>,
    /// Its requests and answers, if it failed; at most 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<TimelineEntry>,
    /// Why it got no answer.
    pub error: Option<String>,
    /// Checks for a human.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reviewer_checks: Vec<String>,
}

/// One request and its answer, without secrets.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineEntry {
    /// When it was sent, in milliseconds since the run began.
    pub at_ms: u64,
    /// How long the answer took, with all retries that the API asked for.
    pub took_ms: u64,
    /// The request.
    pub request: Value,
    /// The answer.
    pub response: Value,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckOutcome {
    /// It passed.
    Passed,
    /// It failed.
    Failed,
    /// It failed, and is only advisory.
    Advisory,
    /// It could not be graded.
    NotApplicable,
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    /// Its kind.
    pub check: String,
    /// Its id, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its purpose.
    pub description: String,
    /// Its result.
    pub outcome: CheckOutcome,
    /// True if it passed.
    pub passed: bool,
    /// Path in the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_pointer: Option<String>,
    /// The expected value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Value>,
    /// The actual value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual: Option<Value>,
    /// The request, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Value>,
    /// The answer, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<Value>,
    /// A note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The totals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Number of steps.
    pub total: usize,
    /// Number of steps that passed.
    pub passed: usize,
    /// Number of failed steps of required cases.
    pub failed: usize,
    /// Number of steps that were not graded.
    pub skipped: usize,
    /// The same by reason.
    pub skipped_by_reason: BTreeMap<String, usize>,
    /// Number of failed steps of recommended cases.
    pub recommended_not_met: usize,
    /// Number of failed steps of optional cases.
    pub optional_not_met: usize,
    /// Number of checks that could not be graded.
    pub validations_not_applicable: usize,
    /// Number of failed advisory checks.
    pub advisory_failures: usize,
}

impl Report {
    pub(crate) fn new(target: String, storyboards: Vec<FileReport>) -> Self {
        let mut summary = Summary::default();
        for step in storyboards.iter().flat_map(|file| &file.steps) {
            summary.total += 1;
            match step.grade {
                Grade::Passed => summary.passed += 1,
                Grade::Failed => summary.failed += 1,
                Grade::NotMet if step.level == Level::Recommended => summary.recommended_not_met += 1,
                Grade::NotMet => summary.optional_not_met += 1,
                Grade::Skipped => summary.skipped += 1,
            }
            if let Some(skip) = &step.skip {
                *summary.skipped_by_reason.entry(skip.reason.name().to_owned()).or_default() += 1;
            }
            for validation in &step.validations {
                match validation.outcome {
                    CheckOutcome::NotApplicable => summary.validations_not_applicable += 1,
                    CheckOutcome::Advisory => summary.advisory_failures += 1,
                    CheckOutcome::Passed | CheckOutcome::Failed => {}
                }
            }
        }
        Self { target, origin: None, storyboards, summary }
    }

    /// The required cases without a verdict, and why: by id. Each reason names the option that the case needs, if it needs one.
    pub(crate) fn required_without_verdict(&self) -> Vec<(&str, &str)> {
        let cases = self.storyboards.iter().flat_map(|file| file.cases.iter().map(move |case| (file, case)));
        let required = cases.filter(|(_, case)| case.level == Level::Required);
        required
            .filter_map(|(file, case)| Some((case.id.as_str(), file.skip_of(case)?.detail.as_str())))
            .collect()
    }

    /// True if no required case failed.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.summary.failed == 0
    }

    /// The ids of the cases with a failed step, required or not, in order.
    #[must_use]
    pub fn failed_cases(&self) -> Vec<&str> {
        let mut cases: Vec<&str> = Vec::new();
        for step in self.storyboards.iter().flat_map(|file| &file.steps) {
            if matches!(step.grade, Grade::Failed | Grade::NotMet) && !cases.contains(&step.phase.as_str()) {
                cases.push(&step.phase);
            }
        }
        cases
    }
}
