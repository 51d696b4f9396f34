#![doc = include_str!("../README.md")]
//!
//! # Layout
//!
//! - [`Storyboard`] (`storyboard`, `load`, `reader`, `yaml`): a file, parsed and validated; mistakes have positions.
//! - `check`, `path`, `invariant`: conditions on answers. `answer`: the parts of an answer.
//! - `substitute`, `key`: values and keys in requests. `gate`: decides what applies.
//! - [`Runner`] (`run`): phases and steps in order, dependencies, captures, grades.
//! - `call`, `mcp`, `wire`, `dispatch`: sends requests, one at a time or concurrently.
//! - [`Report`] (`report`, `redact`): for humans, as JSON, as JUnit; never with a secret.
//! - [`suite`] (`suites`): the built-in suites.

mod answer;
mod call;
mod check;
mod dispatch;
mod error;
mod gate;
mod invariant;
mod key;
mod load;
mod mcp;
mod path;
mod reader;
mod redact;
mod report;
mod run;
mod storyboard;
mod substitute;
mod suites;
mod wire;
mod yaml;

pub use self::answer::Extraction;
pub use self::error::{Error, FilePlace, Mistake};
pub use self::redact::{shown_address, shown_setting};
pub use self::report::{
    CaseReport, CheckOutcome, Explanation, FileReport, Grade, Paint, Reason, Report, ReportOrigin, Skip,
    StepReport, Summary, TimelineEntry, Validation, Verbosity, html, json, junit, markdown, pretty,
};
pub use self::run::{BodyFormat, Progress, RunOptions, Runner};
pub use self::storyboard::{Level, Storyboard, Transport};
pub use self::suites::{SUITES, Suite, suite, template};
