//! What a storyboard says, read and checked.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::check::Check;

/// A whole file.
#[derive(Clone, Debug)]
pub struct Storyboard {
    /// Where it was read.
    pub file: String,
    /// Its id.
    pub id: String,
    /// Its title.
    pub title: String,
    /// What it is about.
    pub summary: String,
    pub(crate) transport: Transport,
    pub(crate) dialect: Dialect,
    pub(crate) invariants: Vec<String>,
    pub(crate) required_tools: Vec<String>,
    pub(crate) tool_families: Vec<Vec<String>>,
    pub(crate) requires: Vec<String>,
    pub(crate) gates: Vec<Gate>,
    /// Values that every step can use; set from outside by name.
    pub(crate) context: Map<String, Value>,
    pub(crate) seeding: Seeding,
    pub(crate) fixtures: Value,
    pub(crate) test_kit: Value,
    pub(crate) phases: Vec<Phase>,
    /// What is odd and harmless.
    pub(crate) notices: Vec<String>,
    /// Why the file cannot apply, known from reading it.
    pub(crate) not_applicable: Option<String>,
}

/// How requests travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Plain HTTP.
    Http,
    /// Tool calls over MCP's streamable HTTP.
    Mcp,
}

/// Whose rules a file follows where they differ. A file that names its `transport` is written for this runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Own,
    Adcp,
}

/// Whether fixtures are put in place first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seeding {
    None,
    Controller,
}

/// How much a case weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// A failure fails the run.
    Required,
    /// A failure is shown; the run does not fail.
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

/// What a failed case means, for people.
#[derive(Clone, Debug, Default)]
pub(crate) struct Explain {
    /// What the client would have suffered.
    pub(crate) suffers: String,
    /// How to fix it.
    pub(crate) fix: String,
}

/// A case: steps in order.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) level: Level,
    pub(crate) explain: Option<Explain>,
    /// `None`: all earlier phases.
    pub(crate) depends_on: Option<Vec<String>>,
    pub(crate) gate: Option<Gate>,
    pub(crate) skip_if: Option<String>,
    pub(crate) branch: Option<String>,
    pub(crate) steps: Vec<Step>,
}

/// A condition on what the target says it can do.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) path: String,
    pub(crate) wants: Wants,
}

#[derive(Clone, Debug)]
pub(crate) enum Wants {
    Equals(Value),
    Contains(Value),
    NotContains(Value),
    Present(bool),
}

/// One request, or a group of them, and what is checked.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) action: Action,
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
    pub(crate) contributes_to: Option<String>,
    pub(crate) reviewer_checks: Vec<String>,
    pub(crate) schema: Option<Value>,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// An HTTP request, as written: `method`, `path`, `headers`, `body` or `body_raw`.
    Request(Value),
    /// A tool and its arguments.
    Tool { name: String, arguments: Value },
    /// Fresh keys until the limiter trips, then the tripped key again.
    Trip(Trip),
    /// The hook command that restarts the target.
    Restart,
    /// Only a look at which branches held.
    Contributions,
}

impl Action {
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

/// How often, and how much at once.
#[derive(Clone, Debug)]
pub(crate) enum Spread {
    Once,
    /// One after the other, each over a connection of its own.
    Repeat(usize),
    Parallel(Parallel),
}

#[derive(Clone, Debug)]
pub(crate) struct Parallel {
    pub(crate) count: usize,
    pub(crate) key: SharedKey,
    pub(crate) barrier: Duration,
    /// What is laid over the request, by turns.
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
    pub(crate) target: Box<Action>,
    pub(crate) attempts: usize,
    pub(crate) longest: Duration,
}

/// Which answer is the pass condition.
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

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) enum Auth {
    /// `--auth`, or the test kit's.
    Given,
    None,
    /// `--other-auth`: a second principal.
    Other,
    /// A credential of the step's own, with values filled in.
    Token(String),
    /// A credential of the test kit, by its path.
    Kit(String),
    /// One that nobody gave.
    Invalid(&'static str),
    Unknown(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) from: Source,
}

#[derive(Clone, Debug)]
pub(crate) enum Source {
    Path(String),
    Generate,
}

#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) key: String,
    pub(crate) inject_at: String,
}
