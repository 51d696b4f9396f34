//! A parsed and validated storyboard.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::check::Check;
use crate::gate::Release;

/// A whole file.
#[derive(Clone, Debug)]
pub struct Storyboard {
    /// The file.
    pub file: String,
    /// Its id.
    pub id: String,
    /// Its title.
    pub title: String,
    /// Its summary.
    pub summary: String,
    pub(crate) transport: Transport,
    pub(crate) dialect: StoryboardDialect,
    pub(crate) invariants: Vec<String>,
    pub(crate) required_tools: Vec<String>,
    pub(crate) tool_families: Vec<Vec<String>>,
    pub(crate) requires: Vec<String>,
    pub(crate) gates: Vec<CapabilityGate>,
    /// Values that every step can use; the command line can override them.
    pub(crate) context: Map<String, Value>,
    /// The names of all values that the file uses.
    pub(crate) used_values: BTreeSet<String>,
    pub(crate) seeding: Seeding,
    pub(crate) fixtures: Value,
    pub(crate) test_kit: Value,
    pub(crate) phases: Vec<StoryboardPhase>,
    /// Harmless oddities of the file.
    pub(crate) notices: Vec<String>,
    /// Why the file does not apply, if its content shows it.
    pub(crate) not_applicable: Option<String>,
}

/// The transport of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Plain HTTP.
    Http,
    /// Tool calls over MCP's streamable HTTP.
    Mcp,
}

/// The dialect of a file, where runners differ. A file with `transport` is written for this runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoryboardDialect {
    Own,
    Adcp,
}

/// Whether fixtures are created first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seeding {
    None,
    Controller,
}

/// The level of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// A failure fails the run.
    Required,
    /// A failure is shown, but the run does not fail.
    Recommended,
    /// A failure is mentioned.
    Optional,
}

impl Level {
    /// Its name in a file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Recommended => "recommended",
            Self::Optional => "optional",
        }
    }
}

/// The meaning of a failed case, for humans.
#[derive(Clone, Debug, Default)]
pub(crate) struct Explain {
    /// The harm to the client.
    pub(crate) suffers: String,
    /// How to fix it.
    pub(crate) fix: String,
}

/// A case: steps in order.
#[derive(Clone, Debug)]
pub(crate) struct StoryboardPhase {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) level: Level,
    pub(crate) explain: Option<Explain>,
    /// `None`: all earlier phases.
    pub(crate) depends_on: Option<Vec<String>>,
    pub(crate) gate: Option<CapabilityGate>,
    pub(crate) skip_if: Option<String>,
    pub(crate) branch: Option<String>,
    pub(crate) steps: Vec<StoryboardStep>,
}

/// A condition on the capabilities of the target.
#[derive(Clone, Debug)]
pub(crate) struct CapabilityGate {
    pub(crate) path: String,
    pub(crate) wants: Wants,
}

#[derive(Clone, Debug)]
pub(crate) enum Wants {
    Equals(Value),
    Contains(Value),
    NotContains(Value),
    /// A release that is not older than this one.
    AtLeast(Release),
    Present(bool),
}

/// One request or a group of requests, and their checks.
#[derive(Clone, Debug)]
pub(crate) struct StoryboardStep {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) action: StepAction,
    pub(crate) spread: Spread,
    pub(crate) wait: Option<Value>,
    pub(crate) level: Option<Level>,
    pub(crate) checks: Vec<Check>,
    pub(crate) outputs: Vec<Output>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) expects: Expects,
    pub(crate) key: KeyRule,
    pub(crate) stateful: bool,
    pub(crate) requires_tool: Option<String>,
    pub(crate) requires_contract: Option<String>,
    pub(crate) auth: Auth,
    /// Finds out in which form the API accepts keys.
    pub(crate) finds_key_form: bool,
    /// If its request is refused, the rest of the phase does not apply.
    pub(crate) skip_if_refused: bool,
    pub(crate) contributes_to: Option<String>,
    pub(crate) reviewer_checks: Vec<String>,
    pub(crate) schema: Option<Value>,
}

#[derive(Clone, Debug)]
pub(crate) enum StepAction {
    /// An HTTP request, as written: `method`, `path`, `headers`, `body` or `body_raw`.
    Request(Value),
    /// A tool and its arguments.
    Tool { name: String, arguments: Value },
    /// New keys until the rate limiter refuses, then the refused key again.
    Trip(Trip),
    /// The command that restarts the target.
    Restart,
    /// Only checks which branches passed.
    Contributions,
}

impl StepAction {
    pub(crate) fn task(&self) -> &str {
        match self {
            Self::Request(_) => "request",
            Self::Tool { name, .. } => name,
            Self::Trip(_) => "expect_rate_limit_not_replayed",
            Self::Restart => "restart",
            Self::Contributions => "assert_contribution",
        }
    }
}

/// How often, and how many concurrently.
#[derive(Clone, Debug)]
pub(crate) enum Spread {
    Once,
    /// One after the other, each over a new connection.
    Repeat(usize),
    Parallel(Parallel),
}

#[derive(Clone, Debug)]
pub(crate) struct Parallel {
    pub(crate) count: usize,
    pub(crate) key: SharedKey,
    pub(crate) barrier: Duration,
    /// Variations of the request, in turn.
    pub(crate) vary: Vec<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedKey {
    Same,
    Fresh,
}

#[derive(Clone, Debug)]
pub(crate) struct Trip {
    /// A tool's arguments, or a request.
    pub(crate) target: Box<StepAction>,
    pub(crate) attempts: usize,
    pub(crate) longest: Duration,
}

/// Which answer is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expects {
    Success,
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRule {
    Add,
    Omit,
}

/// The credential of a step.
#[derive(Clone, Debug)]
pub(crate) enum Auth {
    /// `--auth`, or the test kit's.
    Given,
    None,
    /// `--other-auth`: a second principal.
    Other,
    /// A credential of the step itself, with values filled in.
    Token(String),
    /// A credential of the test kit, by its path.
    Kit(String),
    /// An invalid one.
    Invalid(&'static str),
    Unknown(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) from: ValueSource,
}

#[derive(Clone, Debug)]
pub(crate) enum ValueSource {
    Path(String),
    Generate,
}

#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) key: String,
    pub(crate) inject_at: String,
}
