//! What came out: per step, per file, and in sum.

mod explain;
mod json;
mod junit;
mod pretty;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

pub use self::json::json;
pub use self::junit::junit;
pub use self::pretty::{Paint, Telling, pretty};

use crate::answer::Extraction;
use crate::storyboard::Level;

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where requests went.
    pub target: String,
    /// Each file.
    pub storyboards: Vec<FileReport>,
    /// All in numbers.
    pub summary: Summary,
}

/// One file.
#[derive(Clone, Debug, Serialize)]
pub struct FileReport {
    /// Its id.
    pub storyboard: String,
    /// Its title.
    pub title: String,
    /// Where it was read.
    pub file: String,
    /// Why all of it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip: Option<Skip>,
    /// What is odd and harmless.
    pub notices: Vec<String>,
    /// Its steps, in order.
    pub steps: Vec<StepReport>,
    /// Its cases, in order.
    #[serde(skip)]
    pub cases: Vec<CaseReport>,
}

/// A case: what one phase is for.
#[derive(Clone, Debug)]
pub struct CaseReport {
    /// The phase's id.
    pub id: String,
    /// Its title.
    pub title: String,
    /// How much it weighs.
    pub level: Level,
    /// What a client suffers where it fails, and what to do.
    pub explain: Option<(String, String)>,
}

/// Why something was not graded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skip {
    /// One of few words.
    pub reason: Reason,
    /// The rest.
    pub detail: String,
}

impl Skip {
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }
}

/// The reasons there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It does not apply to this target, or cannot be judged.
    NotApplicable,
    /// The file has no phases.
    NoPhases,
    /// Something it builds on failed.
    PrerequisiteFailed,
    /// The target has no such tool.
    MissingTool,
    /// The target has no test controller.
    MissingTestController,
    /// A fixture could not be put in place.
    FixtureUnavailable,
    /// It needs a contract that this runner does not fulfil.
    UnsatisfiedContract,
    /// It needs something that is not there.
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

/// How a step came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// Every check held.
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
    /// How much it weighs.
    pub level: Level,
    /// How it came out.
    pub grade: Grade,
    /// Whether it passed.
    pub passed: bool,
    /// How long it took.
    pub duration_ms: u64,
    /// Each check.
    pub validations: Vec<Validation>,
    /// Where the payload was found.
    pub extraction_path: Extraction,
    /// Why it was not graded.
    pub skip: Option<Skip>,
    /// What kept it from being answered.
    pub error: Option<String>,
    /// For a person to look at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reviewer_checks: Vec<String>,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It held.
    Passed,
    /// It did not.
    Failed,
    /// It did not, and is only advice.
    Advisory,
    /// It could not be judged.
    NotApplicable,
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct Validation {
    /// Its kind.
    pub check: String,
    /// Its id, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What it is for.
    pub description: String,
    /// How it came out.
    pub outcome: Outcome,
    /// Whether it held.
    pub passed: bool,
    /// Where in the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_pointer: Option<String>,
    /// What would be right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<Value>,
    /// What is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual: Option<Value>,
    /// What was asked, without its secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<Value>,
    /// What was answered, without its secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<Value>,
    /// What else should be known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// All in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Steps.
    pub total: usize,
    /// Steps that passed.
    pub passed: usize,
    /// Steps of required cases that failed.
    pub failed: usize,
    /// Steps that were not graded.
    pub skipped: usize,
    /// The same by reason.
    pub skipped_by_reason: BTreeMap<String, usize>,
    /// Steps of recommended cases that failed.
    pub recommended_not_met: usize,
    /// Steps of optional cases that failed.
    pub optional_not_met: usize,
    /// Checks that could not be judged.
    pub validations_not_applicable: usize,
    /// Checks that are only advice and did not hold.
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
                    Outcome::NotApplicable => summary.validations_not_applicable += 1,
                    Outcome::Advisory => summary.advisory_failures += 1,
                    Outcome::Passed | Outcome::Failed => {}
                }
            }
        }
        Self { target, storyboards, summary }
    }

    /// Whether nothing that is required failed.
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
